"""Texts that people and hosts give: schedules, settings, host.json, instants, parameters, the broker's entities."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import typer
from urllib3.util import parse_url

from runonce import Message, Run, handler, scheduled
from runonce.cli import times
from runonce.cli.audit import _begins
from runonce.cli.context import local_settings
from runonce.cli.which import day_of, read_fire_time
from runonce.errors import InputError, ScheduleError, SettingsError
from runonce.hosts.dashboard import words
from runonce.hosts.functions.host_json import check_host_json, longest_run, max_dequeue_count
from runonce.messages.definition import Handler
from runonce.messages.named import _handlers
from runonce.runs.parameters import arguments, canonical
from runonce.runs.requests import read_request
from runonce.schedules import ncrontab
from runonce.schedules.host_cron import container_apps_cron, functions_timer
from runonce.schedules.nights import nights
from runonce.schedules.schedule import Schedule
from runonce.schedules.setting import read_schedule
from runonce.schedules.zones import names
from runonce.settings import SERVICES, Settings
from runonce.stores.azure.wire import _reached
from runonce.stores.columns import to_text
from servicebus import sql
from servicebus.entities import declared
from servicebus.filters import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SECRETS = {
    "RUNONCE_STORAGE",
    "AzureWebJobsStorage",
    "RUNONCE_SERVICEBUS",
    "RUNONCE_NOTIFY_URL",
    "RUNONCE_LEASES",
}
"""Settings that are not repeated."""
SECRET = "hunter2"  # noqa: S105 - what must not be repeated


@scheduled("0 0 3 * * *", name="nightly", max_runtime=3600)
def nightly(
    run: Run,
    *,
    region: str = "eu",
    count: int = 1,
    rate: float = 0.5,
    dry: bool = False,
    day: date = date(2026, 1, 1),
    since: datetime = NOW,
    level: Literal["low", "high"] = "low",
) -> None:
    """Takes a parameter of each kind."""
    del region, count, rate, dry, day, since, level
    for _ in run.batches(range(3), size=1):
        run.check()


@handler(queue="invoices", key="id", name="send_invoice")
def send_invoice(message: Message) -> None:
    """Takes a message."""


def text_of(data: bytes) -> str:
    """As the environment and arguments are decoded: what is no UTF-8 becomes halves of surrogate pairs."""
    return data.decode("utf-8", "surrogateescape")


def schedule(data: bytes) -> None:
    """`EXPRESSION`, and a zone on the second line: an error that names either, or a schedule that fires."""
    expression, _, zone = text_of(data).partition("\n")
    zone = zone or "UTC"
    try:
        read, _ = read_schedule(expression, None, zone, {"NIGHTLY": "0 0 3 * * *"}, "nightly")
    except ScheduleError as error:
        assert "Job 'nightly'" in str(error)
        assert any(one in str(error) for one in (repr(expression), repr(zone), expression.strip().strip("%")))
        return
    assert Schedule.parse(read.expression, read.time_zone) == read
    assert zone == "UTC" or zone in names()
    following = list(read.fire_times(NOW, NOW + timedelta(days=3), limit=20))
    assert all(one < other for one, other in pairwise(following))
    coming = read.next(NOW)
    assert coming is None or (coming > NOW and read.previous(coming) == coming == read.snap(coming))
    ncrontab.read(functions_timer(read, NOW))
    words.explained(read.expression)
    nights(read, NOW)
    try:
        container_apps_cron(read, NOW, job="nightly")
    except ScheduleError as error:
        assert "Job 'nightly'" in str(error)


def instant(data: bytes) -> None:
    """An instant of the command line, and a zone on the second line: an error that repeats it, or UTC to the second."""
    text, _, zone = text_of(data).partition("\n")
    zone = zone if zone in names() else "Europe/Istanbul"
    try:
        read, _ = times.read_instant(text, zone)
    except ValueError as error:
        assert repr(text) in str(error) or "skipped" in str(error)
        return
    assert read.tzinfo is UTC
    assert not read.microsecond
    assert times.read_instant(times.to_utc(read), zone) == (read, "")
    times.to_local(read, zone)
    times.from_now(read, NOW)


def when(data: bytes) -> None:
    """What `--at`, `--since` and dates of the command line take: an instant or a day, or an error for people."""
    text = text_of(data)
    for read in (
        lambda: read_fire_time(nightly, text),
        lambda: day_of(nightly, text, "--from"),
        lambda: _begins(text, NOW),
    ):
        try:
            read()
        except (InputError, typer.BadParameter) as error:
            assert str(error)


def file(data: bytes) -> None:
    """local.settings.json, and a manifest of handlers: what they say, or an error that names the file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "local.settings.json"
        path.write_bytes(data)
        try:
            values = local_settings(path.parent)
        except SettingsError as error:
            assert str(path) in str(error)
        else:
            assert all(isinstance(one, str) for pair in values.items() for one in pair)
        try:
            known = _handlers.__wrapped__(path, 0)
        except InputError as error:
            assert str(path) in str(error)
        else:
            assert all(isinstance(one, Handler) for one in known.values())


def parameters(data: bytes) -> None:
    """`NAME=VALUE` lines: an error that names job and parameter, or a text for the row that reads as the same."""
    lines = [line.partition("=") for line in text_of(data).split("\n") if line]
    try:
        kept = canonical("nightly", nightly.parameters, {name: value for name, _, value in lines})
    except InputError as error:
        assert "Job nightly" in str(error)
        return
    assert canonical("nightly", nightly.parameters, arguments("nightly", nightly.parameters, kept)) == kept


def settings(data: bytes) -> None:
    """`NAME=VALUE` lines of an environment: an error that names a setting of it, or settings; never a secret."""
    lines = [line.partition("=") for line in text_of(data).replace("\0", "").split("\n")]
    environ = {name: value for name, _, value in lines if name}
    secret = {name for name, value in environ.items() if SECRET in f"{name}{value}"} <= SECRETS
    try:
        made = Settings.from_env(environ)
    except SettingsError as error:
        assert any(name in str(error) for name in ("RUNONCE_", "AzureWebJobsStorage", "ServiceBusConnection"))
        assert not secret or SECRET not in str(error).partition("DevelopmentStorageProxyUri")[0]  # no secret
        return
    assert not secret or SECRET not in repr(made)
    _ = made.storage.is_local
    if (text := made.storage.connection_string) is not None:
        addresses = []
        with suppress(ValueError):  # which a host makes a SettingsError of
            addresses = [_reached(made.storage, service, None)[0] for service in SERVICES]
        all(map(parse_url, addresses))
    assert text is not None or all(map(parse_url, made.storage.endpoints.values()))


def host_json(data: bytes) -> None:
    """host.json, and `NAME=VALUE` overrides after a NUL: findings with text, and figures that runs can be held to."""
    text, _, rest = text_of(data).partition("\0")
    lines = [line.partition("=") for line in rest.split("\n") if line]
    environ = {name: value for name, _, value in lines}
    for transport in ("servicebus", "storage"):
        for finding in check_host_json(text, environ, [nightly], [send_invoice], transport):
            assert finding.text
    assert longest_run(text, environ) >= 0
    assert isinstance(max_dequeue_count(text, environ), int)


def request(data: bytes) -> None:
    """A message of the internal queue: an error that says it is dropped, or a request that reads the same again."""
    try:
        read = read_request(text_of(data))
    except InputError as error:
        assert "It is dropped" in str(error)
        return
    assert read.fire_time.tzinfo is UTC
    fields = {
        "job": read.job,
        "fire_time": to_text(read.fire_time),
        "why": read.why,
        "put_back": read.put_back,
    }
    assert read_request(json.dumps(fields)) == read


def declaration(data: bytes) -> None:
    """What the local broker's command line declares: an error, or entities whose own arguments declare the same."""
    given: dict[str, list[str]] = {"--queue": [], "--topic": [], "--subscription": []}
    for line in text_of(data).split("\n"):
        option, _, text = line.partition(" ")
        given.get(option, []).append(text)
    try:
        found = declared(*given.values())
    except ValueError as error:
        assert str(error)
        return
    for one in found:
        again: dict[str, list[str]] = {name: [] for name in given}
        for option, text in zip(one.arguments[::2], one.arguments[1::2], strict=True):
            again[option].append(text)
        assert declared(*again.values()) == [one]


def filter_of_a_subscription(data: bytes) -> None:
    """A SQL filter: an error that repeats it, or one that says True, False or None of any properties."""
    text = text_of(data)
    try:
        wanted = sql.parse(text, frozenset({"label", "messageid"}))
    except ValueError as error:
        assert repr(text) in str(error)
        return
    compiled(text)
    for values in ({}, {"user.total": 7, "sys.label": "paid"}, {"user.total": 1e308, "user.a": b"\xff"}):
        wanted(values)


TARGETS: dict[Callable[[bytes], None], tuple[bytes, ...]] = {
    schedule: (
        b"0 30 2 * * *\nAmerica/New_York",
        b"*/10 0 1-3 29 Feb Mon-Fri\nAustralia/Lord_Howe",
        b"%NIGHTLY%\nEurope/Istanbul",
        b"@daily",
        b"0 0 0 31 2,4 5/15",
        b"0 0 0 1 Jan,December Sun",
    ),
    instant: (
        b"2026-11-29T03:00:00Z",
        b"2026-03-29T02:30\nEurope/Berlin",
        b"0001-01-01T00:00+14:00",
        b"9999-12-31T23:59:59.999999-12:00",
        b"2026-W48-7\nAmerica/Havana",
        b"20261129T030000,5",
    ),
    when: (
        b"2026-11-29",
        b" 2026-11-29T03:00 ",
        b"0001-01-01",
        b"9999-12-31",
        b"7d",
        b" 999999 w",
        b"2026-W48-7",
    ),
    file: (
        b'{"IsEncrypted": false, "Values": {"RUNONCE_NAMESPACE": "shop", "A": 1}} // here',
        b'{"handlers": [{"name": "send_invoice", "queue": "q", "topic": "", "key": "id"}]}',
        b'{"handlers": [{"name": "a", "queue": "q", "topic": "t", "subscription": "s", "forward": true, "key": "()"}]}',
        b'{"Values": [], "handlers": {"name": []}}',
        b"\xff\xfe",
    ),
    parameters: (
        b"region=us\ncount=17",
        b"rate=-0.0\ndry=true\nlevel=high",
        b"day=2026-11-29\nsince=2026-11-29T03:00:00+03:00",
        b"rate=nan\ncount=" + b"9" * 40,
        b"since=0001-01-01T00:00:00+14:00",
    ),
    settings: (
        b"RUNONCE_STORAGE=UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://azurite\nRUNONCE_LEASE_MARGIN=4.5",
        b"AzureWebJobsStorage=AccountName=shop;AccountKey=aHVudGVyMg==;EndpointSuffix=core.net\nRUNONCE_NAMESPACE=shop-test\n"
        b"RUNONCE_LEASE_DURATION=60\nRUNONCE_LEASE_RENEWAL=1e1\nRUNONCE_NOTIFY_URL=https://[::1]:8080/hunter2",
        b"RUNONCE_STORAGE__accountName=shop\nRUNONCE_STORAGE__credential=managedidentity\nRUNONCE_NAMESPACE=a-b",
        b"RUNONCE_STORAGE__blobServiceUri=https://b\nRUNONCE_STORAGE__queueServiceUri=https://q\n"
        b"RUNONCE_STORAGE__tableServiceUri=http://[::1\nRUNONCE_NAMESPACE=shop\nRUNONCE_TELEMETRY=otlp\n"
        b"RUNONCE_LEASES=postgresql://u:hunter2@[::1/db",
        b"RUNONCE_SERVICEBUS=Endpoint=sb://shop/;SharedAccessKey=hunter2\nRUNONCE_TRANSPORT=servicebus\n"
        b"RUNONCE_QUEUE_NAMES=plain\nRUNONCE_DASHBOARD=act\nRUNONCE_STORAGE=UseDevelopmentStorage=true",
        b"RUNONCE_HISTORY_DAYS=3650\nRUNONCE_MAX_BODY=inf\nRUNONCE_CLAIM_LEASE=nan\nRUNONCE_STORAGE=BlobEndpoint=http://[a"
        b";QueueEndpoint=http://q;TableEndpoint=http://t;SharedAccessSignature=hunter2\nRUNONCE_NAMESPACE=shop",
    ),
    host_json: (
        b'{"functionTimeout": "01:30:00", "extensions": {"queues": {"maxDequeueCount": 5, "batchSize": 16,'
        b' "newBatchThreshold": 8, "visibilityTimeout": "00:00:30", "messageEncoding": "base64"}}} // shop',
        b"{'extensions': {serviceBus: {autoCompleteMessages: false, prefetchCount: 3,"
        b' maxAutoLockRenewalDuration: "1.00:05:00",},},} /* end */',
        b"{}\0AzureFunctionsJobHost__functionTimeout=-1\n"
        b"AzureFunctionsJobHost__extensions__queues__maxDequeueCount=7\nAzureFunctionsJobHost__a=true",
        b'{"functionTimeout": -1, "extensions": [1e400, NaN, null, "\\ud800"]}',
    ),
    request: (
        b'{"job": "nightly", "fire_time": "2026-11-29T03:00:00Z", "why": "asked", "put_back": 3}',
        b'{"job": "nightly", "fire_time": "2026-11-29T03:00:00+03:00"}',
        b'{"job": "a b", "fire_time": "0001-01-01T00:00:00+14:00", "put_back": Infinity}',
        b'[{"job": [], "fire_time": {}}]',
    ),
    declaration: (
        b"--queue send-invoice:lock=30,max_delivery=10,dedup=600,ttl=3600,forward=dead\n--queue dead",
        b"--topic orders:billing,shipping,lock=5,quota=4096\n"
        b"--subscription orders/audit:dead_letter_expired=true,filter=total > 5 AND sys.Label IN ('a', 'b=c')",
        b'--topic t\n--subscription t/s:filter={"subject": "x", "properties": {"a": 1}}',
        b"--queue q:lock=nan,ttl=inf,quota=7",
    ),
    filter_of_a_subscription: (
        b"sys.Label = 'paid' AND total > 5",
        b"NOT (a LIKE 'x%!_' ESCAPE '!' OR [b] IN (1, 2.5e3, 'it''s')) AND EXISTS(\"c d\")",
        b"property(a) IS NOT NULL AND -a * +2 / 0 % 3 <> user.b",
        b"1e308 * 1e308 >= total OR TRUE",
    ),
}
