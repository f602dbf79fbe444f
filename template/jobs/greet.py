"""A handler: each message has one effect, however often it is delivered. Replace it with yours."""

from runonce import Message, handler


@handler(queue="greetings", key="name", retries=3)
def greet(message: Message) -> None:
    """Greet whoever the message names, once."""
    message.commit({"greeting": {"text": f"Hello, {message.json['name']}!"}})
