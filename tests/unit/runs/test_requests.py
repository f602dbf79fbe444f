from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from runonce.errors import InputError
from runonce.runs.requests import ASK_AGAIN, Request, read_request, send_request
from runonce.stores.memory import MemoryQueue
from runonce.testing import ManualClock

THREE = datetime(2026, 11, 29, 3, tzinfo=UTC)


def test_a_request_comes_back_as_it_was_sent() -> None:
    """What is sent can be read, whatever the reason holds."""
    queue = MemoryQueue(ManualClock())
    send_request(queue, "nightly", THREE, 'missed: "ş"')
    item = queue.receive(visibility=30)
    assert item is not None
    assert read_request(item.body) == Request("nightly", THREE, 'missed: "ş"')


def test_a_request_lives_until_it_is_asked_again() -> None:
    """A request nobody took is gone by the time the recovery tick asks again, so that none pile up."""
    clock = ManualClock()
    queue = MemoryQueue(clock)
    send_request(queue, "nightly", THREE, "missed")
    clock.advance(ASK_AGAIN.total_seconds())
    assert queue.receive(visibility=30) is None


@pytest.mark.parametrize(
    "text",
    ["2026-11-29T03:00:00Z", "2026-11-29T03:00:00+00:00", "2026-11-29T06:00:00+03:00", "20261129T030000Z"],
)
def test_an_instant_may_be_written_in_any_zone(text: str) -> None:
    """Whatever offset a person writes, the fire time is the UTC instant that everything hangs on."""
    request = read_request(json.dumps({"job": "nightly", "fire_time": text}))
    assert request == Request("nightly", THREE, "")
    assert request.fire_time.utcoffset() == timedelta()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "{",
        "null",
        "7",
        "[]",
        '"text"',
        "{}",
        '{"job":"nightly"}',
        '{"fire_time":"2026-11-29T03:00:00Z"}',
        '{"job":"nightly","fire_time":null}',
        '{"job":"nightly","fire_time":7}',
        '{"job":"nightly","fire_time":""}',
        '{"job":"nightly","fire_time":"tomorrow"}',
        '{"job":"nightly","fire_time":"2026-11-29T03:00:00"}',
        '{"job":"nightly","fire_time":"2026-11-29"}',
        '{"job":"nightly","fire_time":"2026-11-29T03:00:00.5Z"}',
        '{"job":"nightly","fire_time":"2026-13-29T03:00:00Z"}',
        '{"job":"nightly","fire_time":"0001-01-01T00:00:00+14:00"}',
        '{"job":7,"fire_time":"2026-11-29T03:00:00Z"}',
        '{"job":null,"fire_time":"2026-11-29T03:00:00Z"}',
        '{"job":"a b","fire_time":"2026-11-29T03:00:00Z"}',
        '{"job":"a\\nERROR forged","fire_time":"2026-11-29T03:00:00Z"}',
        "[" * 100_000,
        "1" * 5000,
        "\x00",
    ],
    ids=lambda body: repr(body[:60]),
)
def test_anything_else_is_an_input_error(body: str) -> None:
    """Whatever is in the queue, reading it raises nothing but InputError, which shows what it was and the form."""
    with pytest.raises(InputError) as refused:
        read_request(body)
    assert "2026-11-29T03:00:00Z" in str(refused.value)
    assert "dropped" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_more_fields_than_known_are_no_harm() -> None:
    """A request of a later version is understood as far as it is known."""
    body = '{"job":"nightly","fire_time":"2026-11-29T03:00:00Z","why":"asked","version":2}'
    assert read_request(body) == Request("nightly", THREE, "asked")
