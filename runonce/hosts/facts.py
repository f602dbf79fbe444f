"""The facts about a namespace, for whatever shows them: the commands that look, and pages. Reads only.

| what | who says it |
|---|---|
| namespace, account, setting | `facts.place(runtime)` -> `Place` |
| all of the below that one look needs | `facts.overview(runtime)` -> `Overview` |
| hosts | `presence.hosts(runtime.runs)` -> `Host`s |
| jobs | `runs.status.job_statuses(runtime.dispatcher, runtime.found)` -> `JobStatus`es, the worst first |
| one job's history | `runs.status.history(runtime.dispatcher, name, limit)` -> `RunRow`s |
| one run's page | `runs.status.runs_at(runtime.dispatcher, name, fire_time)` -> `RunRow`s; `attempts(run)` |
| handlers | `facts.handlers(runtime)` -> `HandlerStatus`es, the worst first |
| a handler's history, one key's | `messages.status.message_history`, `key_history` -> `MessageRow`s; `attempts(row)` |
| dead letters by reason | `facts.dead_letters(runtime, names)` -> `DeadLettersOf` each |
| one handler's dead letters | `facts.letters(runtime, handler, limit)` -> `Letters` |
| held work | `facts.held(runtime)` -> `HeldRun`s and `MessageRow`s that wait for a person's decision |
| did every fire time run | `runs.accounts.audit_since(runtime.dispatcher, since, only)` -> `JobAudit`s |
| and every message | `messages.status.audit_messages(runtime.claims, since)` -> `HandlerAudit`s |
| who did what | `runs.trail.actions(runtime.runs, limit)` -> `Action`s; `runs.trail.note` writes one |

All of them raise StoreError where storage does not answer or refuses, and SettingsError where a setting is missing. A
broker that cannot be asked is said on the handler that it is of (`unreachable`), and the others are told.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runonce.errors import SettingsError, TransportError
from runonce.hosts.runtime import check_transport
from runonce.messages.dead_letters import COUNTED, DeadLetterView, view
from runonce.messages.status import (
    Claims,
    DeadLettersOf,
    HandlerStatus,
    Put,
    grouped,
    handler_status,
    known_handlers,
    of_claim,
    of_dead,
    open_claims,
    stand_in,
)
from runonce.runs.presence import Host, hosts
from runonce.runs.status import HeldRun, JobStatus, held_runs, job_statuses
from runonce.settings import EMULATED, emulator
from runonce.stores.columns import to_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.messages.rows import MessageRow
    from runonce.settings import StorageConnection
    from runonce.transports.protocols import Backlog, Dead

AT_ONCE = 8
"""Brokers' entities that are asked at the same time."""
MOST = 1000
"""Dead letters of one handler that are looked at."""
MOST_NAMESPACES = 20
HANDLER_TROUBLES = ("", "dead letters", "held", "broken")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the facts are of."""

    namespace: str
    account: str
    """The account's name or address, nothing secret: "account shop"."""
    setting: str
    """The setting that names it."""

    def __str__(self) -> str:
        return f"namespace {self.namespace!r} on {self.account} ({self.setting})"


@dataclass(frozen=True, slots=True)
class Overview:
    """A namespace as it stands."""

    place: Place
    hosts: tuple[Host, ...]
    """Those alive first."""
    jobs: tuple[JobStatus, ...]
    handlers: tuple[HandlerStatus, ...]
    held_messages: tuple[MessageRow, ...]
    broken_files: tuple[str, ...]
    looked_at: datetime
    is_empty: bool
    """Whether the namespace has no row of a job, a host or a claim: nothing ever ran in it."""


def overview(runtime: Runtime) -> Overview:
    """A namespace as it stands: the calls do not grow with the jobs, and are three for each handler."""
    alive = hosts(runtime.runs)
    jobs = job_statuses(runtime.dispatcher, runtime.found)
    claims = open_claims(runtime.claims)
    known = _handlers(runtime)
    return Overview(
        place=place(runtime),
        hosts=tuple(alive),
        jobs=tuple(jobs),
        handlers=tuple(_statuses(runtime, known, claims)),
        held_messages=tuple(row for one in claims.values() for row in one.held),
        broken_files=tuple(str(error) for error in runtime.found.broken),
        looked_at=runtime.clock.now(),
        is_empty=not (alive or claims or any(job.is_known for job in jobs)),
    )


def held(runtime: Runtime) -> tuple[list[HeldRun], list[MessageRow]]:
    """What waits for a person to say whether it took effect: runs (resume-run, replay, mark) and messages (replay).

    It stands in rows: no broker is asked.
    """
    claims = open_claims(runtime.claims).values()
    runs = held_runs(job_statuses(runtime.dispatcher, runtime.found))
    return runs, [row for one in claims for row in one.held]


def handlers(runtime: Runtime) -> list[HandlerStatus]:
    """Every handler of the code or with claims: those in the worst trouble first, then by name."""
    claims = open_claims(runtime.claims)
    return _statuses(runtime, _handlers(runtime), claims)


def handler_of(runtime: Runtime, name: str) -> Handler | None:
    """The handler of that name; where it is not in the code a stand-in with its queue, or None: nothing knows it."""
    if name in runtime.found.handlers:
        return runtime.found.handlers[name]
    entity = known_handlers(runtime.claims).get(name)
    return None if entity is None else stand_in(name, entity)


def dead_letters(runtime: Runtime, names: Collection[str] = ()) -> list[DeadLettersOf]:
    """The dead letters of every handler, or of those named, by reason: handlers without any are left out."""
    claims = open_claims(runtime.claims)
    known = {one.name: one for one in _handlers(runtime) if not names or one.name in names}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda one: _dead_letters(runtime, one, claims.get(one.name)), known.values())
    return sorted(
        (one for one in found if one.count or one.groups or one.unreachable),
        key=lambda one: (-(one.count or 0), one.handler),
    )


def _dead_letters(runtime: Runtime, handler: Handler, claims: Claims | None) -> DeadLettersOf:
    by_claims = [] if claims is None else [*claims.failed, *claims.held]
    try:
        backlog = _backlog(runtime, handler)
        letters = runtime.transport.dead_letters(handler)
        try:
            dead = letters.peek(MOST) if backlog.dead else []
        finally:
            letters.close()
    except (SettingsError, TransportError) as error:
        groups = grouped(of_claim(row) for row in by_claims)
        return DeadLettersOf(handler.name, handler.entity, None, False, groups, 0, str(error))
    seen = [_seen(runtime, handler, one, by_claims) for one in dead]
    rest = []
    count = max(backlog.dead or 0, len(seen))
    if count > len(seen):  # a queue that shows no more of itself
        shown = {(row.message_id, row.key) for _, row in seen if row is not None}
        rest = [of_claim(row) for row in by_claims if (row.message_id, row.key) not in shown]
        rest = rest[: count - len(seen)]
    puts = [put for put, _ in seen] + rest
    return DeadLettersOf(
        handler=handler.name,
        entity=handler.entity,
        count=count,
        at_least=len(dead) >= MOST,
        groups=grouped(puts),
        unexplained=count - len(puts),
    )


def namespaces(runtime: Runtime) -> list[str]:
    """The other namespaces of the account that have rows, at most twenty: a call for each."""
    found: list[str] = []
    first, own = " ", runtime.settings.namespace
    while len(found) < MOST_NAMESPACES:
        rows = list(runtime.stores.runs.scan_partitions(first, "~", limit=1))
        if not rows:
            break
        partition = rows[0][0]
        name = partition.partition(":")[0]
        if name not in (own, *found):
            found.append(name)
        first = f"{partition} "  # past it: no name has a character before a space
    return found


@dataclass(frozen=True, slots=True)
class Letters:
    """A handler's dead letters, one by one."""

    shown: tuple[DeadLetterView, ...]
    """Those that the broker shows, the oldest first, with their claims."""
    by_claims: tuple[MessageRow, ...]
    """Those that it does not show, as their claims tell of them."""
    count: int
    """How many there are, by the broker's own count."""


def letters(runtime: Runtime, handler: Handler, limit: int) -> Letters:
    """A handler's dead letters, at most so many; the code is asked for their keys where it is here.

    Raises:
        TransportError: The broker did not answer, or refused.
        SettingsError: The transport cannot carry the handler's messages.
    """
    count = _backlog(runtime, handler).dead or 0
    opened = runtime.transport.dead_letters(handler)
    try:
        dead = opened.peek(limit)
    finally:
        opened.close()
    count = max(count, len(dead))
    in_code, claims = handler.name in runtime.found.handlers, _dead_claims(runtime, handler.name)
    if in_code:
        shown = [view(runtime.claims, handler, one) for one in dead]
    else:
        shown = [
            DeadLetterView(one, put.key, row)
            for one in dead
            for put, row in [_seen(runtime, handler, one, claims)]
        ]
    if count == len(dead) or len(dead) == limit:
        return Letters(tuple(shown), (), count)
    seen = {(one.row.entity, one.row.key) for one in shown if one.row is not None}
    rest = [row for row in claims if (row.entity, row.key) not in seen]
    return Letters(tuple(shown), tuple(rest[: min(limit, count) - len(dead)]), count)


def _dead_claims(runtime: Runtime, name: str) -> list[MessageRow]:
    """The claims that have dead letters, the oldest first."""
    claims = open_claims(runtime.claims, name).get(name)
    rows = [] if claims is None else [*claims.failed, *claims.held]
    return sorted(rows, key=lambda row: to_text(row.finished_at or row.started_at))


def place(runtime: Runtime) -> Place:
    """Where the facts are of; raises SettingsError."""
    settings = runtime.settings
    return Place(settings.namespace, account(settings.storage), settings.storage.setting)


def account(storage: StorageConnection) -> str:
    """Which storage account, without anything secret: "account shop", "the emulator, 127.0.0.1:10002"."""
    parts = dict(
        part.strip().partition("=")[::2]
        for part in (emulator(storage.connection_string) or storage.connection_string or "").split(";")
        if "=" in part
    )
    parts = {name.lower(): value for name, value in parts.items()}
    urls = storage.endpoints.get("table") or parts.get("tableendpoint") or parts.get("blobendpoint") or ""
    host = urlsplit(urls).netloc.rpartition("@")[2]
    if storage.is_local or parts.get("accountname") == EMULATED:
        return f"the emulator, {host}"
    if "accountname" in parts:
        return f"account {parts['accountname']}"
    return host + (" with a managed identity" if storage.endpoints else "")


def _handlers(runtime: Runtime) -> list[Handler]:
    """The handlers of the code, and stand-ins for those that only their claims tell of."""
    found = dict(runtime.found.handlers)
    for name, entity in known_handlers(runtime.claims).items():
        found.setdefault(name, stand_in(name, entity))
    return [found[name] for name in sorted(found)]


def _statuses(runtime: Runtime, known: list[Handler], claims: dict[str, Claims]) -> list[HandlerStatus]:
    def status(handler: Handler) -> HandlerStatus:
        backlog, unreachable = None, ""
        try:
            backlog = _backlog(runtime, handler)
        except (SettingsError, TransportError) as error:
            unreachable = str(error)
        return handler_status(
            handler.name,
            handler.entity,
            claims.get(handler.name),
            backlog,
            in_code=handler.name in runtime.found.handlers,
            unreachable=unreachable,
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(status, known))
    return sorted(made, key=lambda one: (-HANDLER_TROUBLES.index(one.trouble), one.name))


def _backlog(runtime: Runtime, handler: Handler) -> Backlog:
    check_transport(runtime.settings, handler)
    return runtime.transport.backlog(handler)


def _seen(
    runtime: Runtime, handler: Handler, dead: Dead, claims: list[MessageRow]
) -> tuple[Put, MessageRow | None]:
    """A dead letter that the broker shows, and its claim if there is one."""
    ids = {dead.delivery.message_id, dead.delivery.sent_as} - {""}
    row = next((row for row in claims if row.message_id in ids), None)
    if (
        dead.reason in ("", COUNTED) and handler.name in runtime.found.handlers
    ):  # whoever put it there did not know
        judged = view(runtime.claims, handler, dead, max_body=runtime.settings.max_body)
        return of_dead(judged.dead, judged.key), judged.row
    return of_dead(dead, "" if row is None else row.key), row
