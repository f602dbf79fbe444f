"""One request to whoever is told something: tried a little, bounded, its URL in no log."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from support.listener import DRIP, HANG

from runonce.notify.post import extended, post

if TYPE_CHECKING:
    from support.listener import Listener

SECRET = "T0K3N-s3cr3t"
RUN = uuid.UUID(int=7)


def told(server: Listener) -> bool:
    return post("The webhook", f"{server.url}/{SECRET}", b"{}", {"Content-Type": "application/json"})


def test_what_is_sent_arrives(server: Listener) -> None:
    """One POST with its body and its type, and no second one."""
    assert told(server)
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("POST", f"/{SECRET}", b"{}")
    assert request.content_type == "application/json"


@pytest.mark.slow
@pytest.mark.parametrize("statuses", [[500], [503, 429], [500, 502]])
def test_a_fault_is_tried_again(server: Listener, statuses: list[int]) -> None:
    """A server that fails once or twice is told all the same."""
    server.statuses = list(statuses)
    assert told(server)
    assert len(server.requests) == len(statuses) + 1


@pytest.mark.slow
def test_it_is_given_up_after_three_tries(server: Listener, caplog: pytest.LogCaptureFixture) -> None:
    """A server that always fails is asked three times, and the log says so without the URL."""
    server.always = 500
    assert not told(server)
    assert len(server.requests) == 3
    assert [record.getMessage() for record in caplog.records if record.name == "runonce.notify"] == [
        "The webhook was not told: HTTP 500"
    ]


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301, 307])
def test_a_refusal_is_not_tried_again(
    server: Listener, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that says no is asked once, and nobody it names instead is told the secret."""
    server.always = status
    assert not told(server)
    assert server.paths == [f"/{SECRET}"]
    assert f"The webhook was not told: HTTP {status}" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("how", [HANG, DRIP], ids=["silent", "a byte now and then"])
def test_a_server_that_hangs_costs_bounded_time(server: Listener, how: int) -> None:
    """A server that takes the request and never answers is given up."""
    server.always = how
    began = time.monotonic()
    assert not told(server)
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_nobody_there(caplog: pytest.LogCaptureFixture) -> None:
    """A refused connection is tried again and then told in the log, by the kind of error alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/{SECRET}"
    caplog.set_level(logging.DEBUG)
    assert not post("The webhook", url, b"", {})
    assert "The webhook was not told: ServiceRequestError" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 500, 404, HANG])
def test_the_url_is_in_no_log(server: Listener, status: int, caplog: pytest.LogCaptureFixture) -> None:
    """Not even when everything is logged, the HTTP library's own lines included."""
    caplog.set_level(logging.DEBUG)
    server.always = status
    told(server)
    assert SECRET not in caplog.text
    assert not any(SECRET in repr(record.__dict__) for record in caplog.records)


def test_others_lines_of_the_http_library_stay() -> None:
    """What another thread's request logs is not kept out."""
    record = logging.LogRecord("urllib3.connectionpool", logging.DEBUG, "", 1, "GET /blob", (), None)
    assert all(one.filter(record) for one in logging.getLogger("urllib3.connectionpool").filters)


@pytest.mark.parametrize(
    ("url", "path", "whole"),
    [
        ("https://hc-ping.com/u", "/start", f"https://hc-ping.com/u/start?rid={RUN}"),
        ("https://hc-ping.com/u/", "/fail", f"https://hc-ping.com/u/fail?rid={RUN}"),
        ("https://hc-ping.com/key/slug?create=1", "", f"https://hc-ping.com/key/slug?create=1&rid={RUN}"),
        (
            "https://hc.example:8443/ping/u?create=1",
            "/start",
            f"https://hc.example:8443/ping/u/start?create=1&rid={RUN}",
        ),
    ],
)
def test_a_pings_path_comes_before_the_query(url: str, path: str, whole: str) -> None:
    """URL/start and URL/fail, with the run's id as rid."""
    assert extended(url, path, RUN) == whole
