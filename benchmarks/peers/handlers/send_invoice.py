"""runonce's handler."""

import os

import work

from runonce import Message, handler


@handler(
    queue="benchmark",
    key="invoice_id",
    concurrency=work.AT_ONCE,
    on_abandoned=os.environ.get("ON_ABANDONED", "rerun"),
)
def send_invoice(message: Message) -> None:
    """Handle a message."""
    work.do(message.key)
