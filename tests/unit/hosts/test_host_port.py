"""Hearing the host's end by its own port."""

from __future__ import annotations

import threading

import pytest

from runonce.hosts.functions import host_port
from runonce.hosts.functions.host_port import port_of, watch_host
from tests.support.functions_worker.port import HttpPort


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_port, "EVERY", 0.02)
    monkeypatch.setattr(host_port, "CONFIRM", 0.02)


@pytest.mark.parametrize(
    ("environ", "port"),
    [
        ({"ASPNETCORE_URLS": "http://127.0.0.1:7071"}, 7071),
        ({"ASPNETCORE_URLS": "http://+:80;https://+:443"}, 80),
        ({"ASPNETCORE_URLS": "http://[::]:8080/"}, 8080),
        ({"WEBSITE_HOSTNAME": "localhost:7072"}, 7072),
        ({"ASPNETCORE_URLS": "http://*:80", "WEBSITE_HOSTNAME": "localhost:7072"}, 80),
        ({"WEBSITE_HOSTNAME": "shop.azurewebsites.net"}, None),
        ({"WEBSITE_HOSTNAME": "shop.azurewebsites.net:443"}, None),
        ({"ASPNETCORE_URLS": "http://localhost"}, None),
        ({"ASPNETCORE_URLS": "http://localhost:99999"}, None),
        ({"ASPNETCORE_URLS": ""}, None),
        ({}, None),
    ],
)
def test_the_port_is_known_only_where_it_is_this_machines(environ: dict[str, str], port: int | None) -> None:
    """A name of another machine, or none with a port, is no place to look at."""
    assert port_of(environ) == port


@pytest.mark.slow
def test_a_port_that_answered_and_refuses_is_a_host_that_stops() -> None:
    """It is told once, soon after the port closes, and not while it answers."""
    gone, port = threading.Event(), HttpPort()
    watch_host(port.settings, gone.set)
    assert not gone.wait(0.3)
    port.close()
    assert gone.wait(2)


@pytest.mark.slow
def test_a_port_that_never_answered_tells_nothing() -> None:
    """A wrong port must stop nothing."""
    gone, port = threading.Event(), HttpPort()
    port.close()
    watch_host(port.settings, gone.set)
    assert not gone.wait(0.5)
