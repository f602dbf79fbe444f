from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError

from servicebus import launcher
from servicebus.launcher import Queue, start
from tests.support.service_bus import Bus, require_broker, sdk_forgets_sockets

pytestmark = sdk_forgets_sockets
ROOT = Path(launcher.__file__).parent.parent


@pytest.fixture(autouse=True)
def _needs_the_broker() -> None:
    require_broker()


def test_a_stopped_broker_is_gone() -> None:
    """Stopping ends the process and frees its port; stopping twice is no error."""
    broker = start([Queue("q")])
    pid = broker.pid
    assert _runs(pid)
    broker.stop()
    broker.stop()
    assert broker.pid is None
    assert not _runs(pid)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=1)


def test_a_broker_listens_on_loopback_only() -> None:
    """No other machine can reach the broker."""
    with start([Queue("q")]) as broker:
        listeners = subprocess.run(["ss", "-Hltn"], check=True, capture_output=True, text=True).stdout
        found = [
            line.split()[3] for line in listeners.splitlines() if line.split()[3].endswith(f":{broker.port}")
        ]
    assert found == [f"127.0.0.1:{broker.port}"]


def test_a_taken_port_is_reported() -> None:
    """A port that is in use makes start raise, with the reason."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(RuntimeError, match=r"did not start\..*address already in use"):
            start([Queue("q")], port=other.getsockname()[1])


def test_no_broker_outlives_its_parent() -> None:
    """When the process that started a broker is killed, the broker ends by itself."""
    script = """
import time
from servicebus.launcher import Queue, start
print(start([Queue("q")]).pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert _runs(pid)
        parent.kill()
    assert _ends(pid)


def test_a_paused_broker_still_stops() -> None:
    """A broker told to hang can be stopped."""
    with start([Queue("q")]) as broker:
        pid = broker.pid
        broker.pause()
    assert _ends(pid)


def test_with_a_key_tokens_are_checked() -> None:
    """Started with a key, the broker lets in who signs with it and nobody else."""
    with start([Queue("q")], key="s3cret") as broker:
        with Bus(broker.connection_string) as bus:
            bus.sender("q").send_messages(ServiceBusMessage("x"))
        assert broker.counts("q")["active"] == 1
        guessed = broker.connection_string.replace("s3cret", "guessed")
        with Bus(guessed) as bus, pytest.raises(ServiceBusAuthenticationError):
            bus.sender("q").send_messages(ServiceBusMessage("x"))


def test_the_command_line_serves_queues_and_topics() -> None:
    """`python -m servicebus` prints how to connect, serves what it was told to, and ends on SIGTERM."""
    command = [
        sys.executable, "-m", "servicebus", "--port", "0",
        "--queue", "invoices:lock=30,max_delivery=10,dedup=600", "--topic", "orders:shipping,lock=5",
        "--queue", "orders.billing",
        "--subscription", "orders/billing:forward=orders.billing,filter=sys.Label = 'paid' AND total IN (1, 2)",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert "Stop with Ctrl-C" in process.stdout.readline()
        with Bus(process.stdout.readline().strip()) as bus:
            bus.sender("invoices").send_messages(ServiceBusMessage("x"))
            paid = ServiceBusMessage("y", subject="paid", application_properties={"total": 2})
            bus.sender("orders").send_messages([ServiceBusMessage("x", subject="paid"), paid])
            assert bus.drain("orders/shipping", count=2) == ["x", "y"]
            assert bus.drain("orders.billing") == ["y"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "declare at least one"),
        (
            ["--queue", "q:lok=3"],
            "no setting 'lok'; there are lock, max_delivery, dedup, ttl, dead_letter_expired, quota, forward",
        ),
        (["--queue", "q:lock=long"], "lock=long is not a float"),
        (["--queue", "q:lock=0"], "a lock must last longer than 0 s"),
        (["--queue", "q:sub"], "'sub' is not a setting"),
        (["--topic", "a b:sub"], "'a b' is not an entity name"),
        (["--queue", "q", "--queue", "Q"], "q is declared twice"),
        (["--queue", "q:forward=there"], "q forwards to 'there', which is not declared"),
        (["--topic", "t:forward=q"], "a topic cannot forward, its subscriptions can"),
        (["--topic", "t:s", "--subscription", "t/S:lock=5"], "t/subscriptions/s is declared twice"),
        (
            ["--queue", "q", "--subscription", "t/s:lock=5"],
            "there is no topic 't'; declare it with --topic t",
        ),
        (["--topic", "t", "--subscription", "t/s:dedup=5"], "dedup and quota are settings of the topic"),
        (["--topic", "t", "--subscription", "t/s:filter=a ="], "filter 'a =', character 4"),
        (["--topic", "t", "--subscription", 't/s:filter={"a"'], "the correlation filter is not JSON"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(arguments: list[str], problem: str) -> None:
    """Every mistake in a declaration is named, with what would be right."""
    command = [sys.executable, "-m", "servicebus", "--port", "0", *arguments]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=20)
    assert result.returncode != 0
    assert problem in result.stderr
    assert "Traceback" not in result.stderr


def test_without_proton_the_remedy_is_named(tmp_path: Path) -> None:
    """Where Proton is missing, starting fails with the packages and the command that install it."""
    (tmp_path / "proton.py").write_text("raise ImportError('No module named proton')")
    command = [sys.executable, "-m", "servicebus", "--queue", "q"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=20, env=environment
    )
    assert result.returncode == 1
    assert "apt-get install gcc libc6-dev" in result.stderr
    assert "pip install python-qpid-proton==" in result.stderr


def _runs(pid: int | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _ends(pid: int | None, within: float = 5) -> bool:
    end = time.monotonic() + within
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not _runs(pid)
