"""What the settings name, tried: storage with rows, a lease, a message and a blob of its own, and the broker.

Whatever is written is removed again, but for the lease's blob of no bytes. The message is sent hidden, so that no host
gets to see it.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from runonce.errors import ConflictError, MissingExtraError, RunonceError, SettingsError, TransportError
from runonce.execution.registry import Registry
from runonce.execution.server_clock import WARN
from runonce.hosts import facts
from runonce.hosts.doctor.findings import Area, Check, Finding
from runonce.hosts.explained import explain
from runonce.messages.status import known_handlers
from runonce.runs.presence import hosts
from runonce.stores.protocols import Delete, Insert, Replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runonce.hosts.discover import Discovered
    from runonce.hosts.runtime import Runtime
    from runonce.messages.definition import Handler
    from runonce.settings import Settings
    from runonce.stores.protocols import BlobStore, TableStore

NAME = "runonce_doctor"
"""No job can be called so."""
SECOND = timedelta(seconds=1)
"""What storage tells its time to."""
LEASE = 15
HIDDEN = 60
AT_ONCE = 8
MOST_NAMED = 5


def checks(runtime: Runtime, settings: Settings, found: Discovered) -> list[Check]:
    """Everything at the same time: one that does not answer takes seconds."""
    try:
        stores = runtime.stores
    except (SettingsError, MissingExtraError) as error:
        return [Check("storage", settings.storage.setting, (Finding(str(error)),))]
    own, prefix, data = settings.namespace, settings.queue_prefix, settings.data_container
    tries: list[tuple[Area, str, Callable[[], Iterator[Finding]]]] = [
        *(
            ("storage", f"table {name}: insert, read, replace and delete a row", partial(_rows, table, own))
            for name, table in ((settings.runs_table, stores.runs), (settings.claims_table, stores.claims))
        ),
        ("storage", "a lease: take, renew and release it; its time", partial(_lease, runtime)),
        ("storage", f"queue {settings.request_queue}: send, hide and delete", partial(_message, runtime)),
        ("storage", f"container {data}: write, read and delete", partial(_blob, stores.blobs, own)),
        ("namespace", f"who else is in {own!r}, or has its queues", partial(_others, runtime, found)),
        *(
            ("queues", f"{handler.name}: {prefix}{handler.entity}", partial(_reach, runtime, handler))
            for handler in found.handlers.values()
        ),
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(lambda one: _tried(settings, *one), tries))
    return [*made, _leading(runtime, settings)] if settings.leader else made


def _tried(settings: Settings, area: Area, what: str, call: Callable[[], Iterator[Finding]]) -> Check:
    findings: list[Finding] = []
    try:
        findings.extend(call())
    except RunonceError as error:
        findings.append(Finding(explain(error, settings)))
    return Check(area, what, tuple(findings))


def _rows(table: TableStore, namespace: str) -> Iterator[Finding]:
    partition, key = f"{namespace}:doctor", uuid.uuid4().hex
    (etag,) = table.commit(partition, [Insert(key, {"is": "a probe"})])
    try:
        if table.get(partition, key) is None:
            yield Finding(
                "A row that was written is not there: this is no storage of Azure's. Use another account."
            )
        (newer,) = table.commit(partition, [Replace(key, {"is": "replaced"}, etag)])
        with suppress(ConflictError):
            table.commit(partition, [Replace(key, {"is": "replaced twice"}, etag)])
            yield Finding(
                "A row was replaced that had changed meanwhile: without conditional writes nothing runs once. Use "
                "Azure Storage, or Azurite."
            )
        etag = newer
    finally:
        table.commit(partition, [Delete(key, etag)])


def _lease(runtime: Runtime) -> Iterator[Finding]:
    leases, name, holder = runtime.stores.leases, runtime.runs.lock_name(NAME), str(uuid.uuid4())
    before = runtime.clock.now()
    at = leases.acquire(name, holder, LEASE)
    after = runtime.clock.now()
    if at is None:
        return  # another one looks at the same moment
    try:
        if not leases.renew(name, holder):
            yield Finding("A lease that was just taken is lost: somebody breaks leases. Find out who does.")
    finally:
        leases.release(name, holder)
    ahead = before - (at + SECOND) if before > at + SECOND else min(after - at, timedelta())
    if abs(ahead) >= WARN:
        way = "ahead" if ahead > timedelta() else "behind"
        yield Finding(
            f"This machine's clock is {abs(ahead).total_seconds():.0f} s {way} of storage's: set it right (NTP). From "
            f"half a minute on, fire times are taken from storage's clock."
        )


def _message(runtime: Runtime) -> Iterator[Finding]:
    requests = runtime.stores.requests
    sent = requests.send("{}", delay=HIDDEN, time_to_live=2 * HIDDEN)
    hidden = requests.hide(sent, HIDDEN)
    requests.delete(hidden or sent)
    yield from ()


def _blob(blobs: BlobStore, namespace: str) -> Iterator[Finding]:
    name, data = f"{namespace}/{NAME}-{uuid.uuid4().hex}", b"a probe"
    etag = blobs.write(name, data, {}, etag=None, content_type="text/plain")
    try:
        read = blobs.read(name)
        if read is None or read.data != data:
            yield Finding(
                "A blob is not what was written: this is no storage of Azure's. Use another account."
            )
    finally:
        blobs.delete(name, etag=etag)


# -- others -----------------------------------------------------------------------------------------------------


def _others(runtime: Runtime, found: Discovered) -> Iterator[Finding]:
    settings = runtime.settings
    for host in hosts(runtime.runs):
        strange = sorted(name for name in set(host.jobs) - set(found.jobs) if not name.startswith("runonce"))
        if not (host.is_alive and strange and found.jobs) or found.broken:
            continue
        same = set(host.jobs) & set(found.jobs)
        remedy = (
            "It has another version of this code: deploy one of them everywhere."
            if same
            else "It is another project's: give each its own RUNONCE_NAMESPACE."
        )
        yield Finding(
            f"The host {host.name} is alive in namespace {settings.namespace!r} and has jobs that are not here: "
            f"{', '.join(strange[:MOST_NAMED])}. {remedy}",
            must_mend=not same,
        )
    if settings.transport != "storage":
        return
    own = {settings.queue_prefix + handler.queue: handler for handler in found.handlers.values()}
    for other in facts.namespaces(runtime):
        there = known_handlers(Registry(runtime.stores.claims, other, runtime.clock, runtime.host))
        for name, entity in there.items():
            plain = [] if settings.queue_prefix else [entity]  # then it may have plain names too
            for queue in {f"{other}-{entity}", *plain} & set(own):
                yield Finding(
                    f"Handler {own[queue].name!r} reads {queue!r}, and so does {name!r} of namespace {other!r} on "
                    f"this account, so each message goes to one of them by chance. Remove RUNONCE_QUEUE_NAMES=plain, "
                    f"or give either another queue or namespace."
                )


def _leading(runtime: Runtime, settings: Settings) -> Check:
    """Who leads is no finding."""
    leaders: list[str] = []

    def look() -> Iterator[Finding]:
        alive = [host for host in hosts(runtime.runs) if host.is_alive and host.kind == "local"]
        leaders.extend(host.name for host in alive if host.leads)
        if not leaders:
            yield Finding("No host leads, so nothing fires: start one, `runonce serve`.", must_mend=False)
        for host in alive:
            if not host.leads:
                yield Finding(
                    f"The host {host.name} runs timers without leading: set RUNONCE_LEADER=on on every host.",
                    must_mend=False,
                )

    made = _tried(settings, "namespace", "", look)
    return replace(made, what=f"who leads: {' and '.join(leaders) or 'nobody'}")


def _reach(runtime: Runtime, handler: Handler) -> Iterator[Finding]:
    if runtime.settings.transport == "storage":
        runtime.transport.backlog(handler)
        return
    remedy = (
        f"Deploy it from infra/jobs.json (`azd provision`), or let {_bus(runtime.settings)} name the Service Bus "
        f"that has it."
    )
    for what, call in (("read", _read), ("send to", _send)):
        try:
            call(runtime, handler)
        except TransportError as error:
            yield Finding(f"Handler {handler.name!r} cannot {what} {handler.entity!r}. {error} {remedy}")


def _bus(settings: Settings) -> str:
    return "RUNONCE_SERVICEBUS" if settings.servicebus is None else settings.servicebus.setting


def _read(runtime: Runtime, handler: Handler) -> Any:
    return runtime.transport.backlog(handler)


def _send(runtime: Runtime, handler: Handler) -> Any:
    runtime.sender.send(handler.target, [])  # opens the link, and sends nothing
