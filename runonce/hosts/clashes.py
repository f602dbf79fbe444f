"""Definitions that cannot be beside each other, because a name one of them has, or is given, is another's too. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from runonce.messages.definition import Handler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from runonce.runs.definition import ScheduledJob

    Definition = ScheduledJob | Handler


def clashes(definitions: Iterable[Definition]) -> Iterator[tuple[Definition, Definition, str]]:
    """Pairs with what is wrong and the remedy. Brokers and hosts take no notice of case, so neither is taken here."""
    known = sorted(definitions, key=lambda one: one.name)
    handlers = [one for one in known if isinstance(one, Handler)]
    yield from _reading_the_same(handlers)
    names = {one.name: one for one in known}
    queues = {one.queue.casefold(): one for one in handlers}
    for one in handlers:
        whose = f"handler {one.name!r}"
        reader = queues.get(f"{one.queue}-poison".casefold())
        if reader is not None:
            what = f"Handler {reader.name!r} reads {reader.queue!r}, which on Storage queues has the dead letters of "
            yield one, reader, f"{what}{whose}; give it another queue."
        reader = queues.get(one.topic.casefold()) if one.topic else None
        if reader is not None:
            what = f"Handler {reader.name!r} reads the queue {reader.queue!r}, and {whose} the topic {one.topic!r}"
            yield one, reader, f"{what}: a namespace has either under one name; rename one of them."
        for other in (names[made] for made in one.function_names[1:] if made in names):
            what = f"{other.name!r} is what the function is called that {whose} gets on Functions for what comes again"
            yield one, other, f'{what}, because of forward=False; give either another name with name="…".'


def _reading_the_same(handlers: list[Handler]) -> Iterator[tuple[Handler, Handler, str]]:
    readers: defaultdict[tuple[str, str], list[Handler]] = defaultdict(list)
    for one in handlers:
        for entity, subscription in one.sources:
            readers[entity.casefold(), (subscription or "").casefold()].append(one)
    for first, *others in readers.values():
        for other in others:
            what = f"Handlers {first.name!r} and {other.name!r} both read {other.entity!r}, and each message would go"
            remedy = "give each a queue of its own, or a topic with a subscription for each."
            yield first, other, f"{what} to one of them by chance; {remedy}"
