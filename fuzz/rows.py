"""Rows of a table as other versions, people and other programs may have left them."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_origin, get_type_hints

from fuzz.texts import nightly, send_invoice, text_of
from runonce.errors import RunonceError, UnreadableRowError
from runonce.hosts.discover import Discovered
from runonce.messages.rows import MessageRow, place
from runonce.runs import decide, operate
from runonce.runs.overflow import PendingRow
from runonce.runs.presence import hosts, partition
from runonce.runs.rows import JobRow, RunRow, job_key, run_key
from runonce.runs.status import history, job_statuses
from runonce.runs.switched_off import switched_off
from runonce.runs.trail import Action
from runonce.stores.columns import Columns, decode, encode
from runonce.stores.protocols import Insert, Row
from runonce.testing import Workbench

AT = datetime(2026, 11, 29, 3, tzinfo=UTC)
KINDS: dict[str, type[Columns]] = {
    "job": JobRow,
    "run": RunRow,
    "message": MessageRow,
    "pending": PendingRow,
    "action": Action,
}


def row(data: bytes) -> None:
    """`KIND` and its columns as JSON: the error that leaves it as it is, or values of their types; none is lost."""
    name, columns = given(data)
    kind = KINDS.get(name, JobRow)
    try:
        read = decode(kind, Row("key", columns, "etag", AT, AT))
    except UnreadableRowError as error:
        assert "Row key" in str(error)
        return
    hints = get_type_hints(kind)
    for field in fields(kind):
        value = getattr(read, field.name)
        assert fits(value, hints[field.name]), f"{field.name}: {value!r}"
    own = {field.name for field in fields(kind)} | {
        str(f.metadata.get("was", "format")) for f in fields(kind)
    }
    written = encode(read)
    assert {k: v for k, v in columns.items() if k not in own} == {
        k: v for k, v in written.items() if k not in own
    }
    assert encode(decode(kind, Row("key", written, "etag", AT, AT))) == written


def row_in_use(data: bytes) -> None:
    """A job's or run's row in the table: every verb passes or says the error; of a newer format nothing is changed."""
    name, columns = given(data)
    bench = Workbench(nightly)
    bench.clock.advance((AT - bench.clock.now()).total_seconds())
    key = run_key("nightly", AT) if name == "run" else job_key("nightly")
    table, at = bench.stores.runs, bench.settings.namespace
    table.commit(at, [Insert(key, columns)])
    which = decide.Which("nightly", AT, "", "ada", "because")
    verbs: list[Callable[[], Any]] = [
        lambda: history(bench.dispatcher, "nightly", 10),
        lambda: job_statuses(bench.dispatcher, Discovered({"nightly": nightly})),
        lambda: bench.run(nightly, AT),
        lambda: operate.pause(bench.dispatcher, "nightly", "moving"),
        lambda: operate.resume(bench.dispatcher, "nightly"),
        lambda: operate.ask(bench.dispatcher, nightly, AT - timedelta(days=1)),
        lambda: decide.replay(bench.dispatcher, which),
        bench.recover,
    ]
    for verb in verbs:
        with suppress(RunonceError):
            verb()
    kept = table.get(at, key)
    assert kept is not None
    if is_newer(columns):
        assert kept.values == columns


def claim_in_use(data: bytes) -> None:
    """The same of a message's claim: the message is settled or comes again, and never completed unhandled."""
    _, columns = given(data)
    bench = Workbench()
    at, key = place(bench.settings.namespace, send_invoice.entity, send_invoice.name, "A-17")
    bench.stores.claims.commit(at, [Insert(key, columns)])
    for _ in range(2):
        bench.deliver(send_invoice, {"id": "A-17"})
        bench.clock.advance(3600)
    kept = bench.stores.claims.get(at, key)
    assert kept is not None
    if is_newer(columns):
        assert kept.values == columns


def host_row(data: bytes) -> None:
    """What a host says of itself and has switched off: shown, or an error that names the row."""
    _, columns = given(data)
    bench = Workbench(nightly)
    registry = bench.dispatcher.registry
    for key, look in (("host:h", hosts), ("off:h", switched_off)):
        registry.table.commit(partition(registry.namespace), [Insert(key, columns)])
        try:
            look(registry)
        except UnreadableRowError as error:
            assert f"Row {key}" in str(error)


def given(data: bytes) -> tuple[str, dict[str, Any]]:
    """A kind of row and columns that a table can hold: text, whole numbers of 64 bits, numbers, booleans."""
    name, _, text = text_of(data).partition("\n")
    try:
        columns = json.loads(text)
    except (ValueError, RecursionError):
        columns = {}
    if not isinstance(columns, dict):
        columns = {}
    fit = {k: v for k, v in columns.items() if isinstance(v, str | bool | float) or is_long(v)}
    return name, fit


def is_long(value: Any) -> bool:
    """Whether a table can hold it as a whole number."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def is_newer(columns: Mapping[str, Any]) -> bool:
    """Whether a newer version wrote it."""
    found = columns.get("format")
    return isinstance(found, int) and found > 1


def fits(value: Any, hint: Any) -> bool:  # noqa: PLR0911 - one answer for each kind of type
    """Whether a value is of a type that a field says, down to what is in it; instants have a zone."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if isinstance(hint, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is tuple:
        items = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return isinstance(value, tuple) and len(value) == len(items) and all(map(fits, value, items))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items()
        )
    if isinstance(origin, type) or origin is not None:
        return True  # a Literal
    if hint is datetime:
        return isinstance(value, datetime) and value.tzinfo is not None
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


def _sample(kind: str, /, **columns: Any) -> bytes:
    return f"{kind}\n{json.dumps(columns)}".encode()


INSTANT = "2026-11-29T03:00:00Z"
JOB = {
    "name": "nightly", "token": 7, "watermark": INSTANT, "since": INSTANT, "schedule": "0 0 3 * * * UTC",
    "marks": json.dumps({"0 0 4 * * * UTC": [INSTANT, INSTANT]}), "running": INSTANT, "holder": "h", "host": "x",
    "pending": json.dumps({INSTANT: {"why": "retrying", "not_before": INSTANT, "asked_at": "", "by": "a"}}),
    "more": 1, "troubles": '{"failed": "x"}', "failures": json.dumps([[INSTANT, "", "failed", INSTANT]]),
    "took": "[1.5, 2]", "progress": '{"items": 3}', "format": 1,
}  # fmt: skip
RUN = {
    "job": "nightly", "fire_time": INSTANT, "outcome": "abandoned", "attempt": 2, "started_at": INSTANT,
    "checkpoint": '{"page": 7}', "attempts": '[{"attempt": "1", "outcome": "abandoned"}]', "format": 1,
    "skips": f'[["{INSTANT}", "{INSTANT}", "paused"]]', "progress": '{"items": 3}', "owner": "h", "epoch": 3,
}  # fmt: skip
CLAIM = {
    "handler": "send_invoice", "entity": "invoices", "key": "A-17", "state": "released", "attempt": 2, "lease": 60,
    "started_at": INSTANT, "retry_at": INSTANT, "progress": '{"items": 3}', "replays": f'["{INSTANT}"]',
    "outbox": '[{"to": "q", "id": "x", "body": "{}"}]', "attempts": '[{"attempt": "1"}]', "superseded": '["json-1"]',
    "fingerprint": "f", "holder": "h", "checkpoint": '{"at": 1}', "format": 1,
}  # fmt: skip

TARGETS: dict[Callable[[bytes], None], tuple[bytes, ...]] = {
    row: (
        _sample("job", **JOB, colour="red"),
        _sample("run", **RUN, size=7.5, wide=True),
        _sample("message", **CLAIM, newer=2**40),
        _sample("pending", job="nightly", fire_time=INSTANT, why="asked", not_before=INSTANT),
        _sample("action", at=INSTANT, by="ada", did="paused", about="nightly", format=2),
        _sample("job", name=7, watermark="2026-11-29", took="[[1]]", troubles="[]", format=1e400),
    ),
    row_in_use: (
        _sample("job", **JOB, colour="red"),
        _sample("job", **{**JOB, "format": 2, "pending": "another form", "running": ""}),
        _sample("run", **{**RUN, "format": 2}),
        _sample("run", **{**RUN, "outcome": "postponed"}),
        _sample("job", name="nightly", watermark="2026-11-29", took="[[1]]", troubles="[]"),
        _sample("run", **RUN),
    ),
    claim_in_use: (
        _sample("", **CLAIM),
        _sample("", **{**CLAIM, "format": 2, "state": "paused"}),
        _sample("", **{**CLAIM, "state": "done", "outbox": '["x"]'}),
        _sample(
            "", handler="send_invoice", entity="invoices", key="A-17", retry_at="2026-11-29", attempts="{}"
        ),
    ),
    host_row: (
        _sample("", name="h", kind="local", version="1", started=INSTANT, jobs='["nightly"]', every=60.0),
        _sample(
            "", app="shop", functions='{"nightly": "AzureWebJobs.nightly.Disabled"}', jobs="{", every="often"
        ),
        _sample("", app=7, functions="[1]", jobs="[[]]", started="soon", every=1e400),
    ),
}
