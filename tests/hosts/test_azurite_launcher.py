"""The launcher of Azurite, with real processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.storage.queue import QueueClient

from azurite import launcher

ROOT = Path(launcher.__file__).parent.parent
posix_only = pytest.mark.skipif(os.name == "nt", reason="kill -9 is POSIX")

PARENT = """
import sys, time
from azurite import launcher
azurite = launcher.start()
print(azurite.pid, *azurite.ports, azurite._temporary, flush=True)
if sys.argv[1] == "stay":
    time.sleep(60)
"""


def wait_until_gone(ports: launcher.Ports, folder: Path, seconds: float = 10) -> bool:
    """Whether nobody listens on the ports any more and the folder is deleted."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(launcher._in_use(port) for port in ports) and not folder.exists():
            return True
        time.sleep(0.05)
    return False


def start_in_other_process(how: str) -> tuple[subprocess.Popen[str], launcher.Ports, Path]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, how], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    _, blob, queue, table, folder = parent.stdout.readline().split()
    return parent, (int(blob), int(queue), int(table)), Path(folder)


class TestStart:
    def test_serves_until_stopped(self) -> None:
        """All three services answer when start returns, and none after stop, which may be called twice."""
        azurite = launcher.start()
        try:
            assert launcher.answers(azurite.ports)
            assert len(set(azurite.ports)) == 3
        finally:
            azurite.stop()
        azurite.stop()
        assert azurite.process.returncode == 0
        assert not launcher.answers(azurite.ports)

    @pytest.mark.slow
    def test_two_live_side_by_side(self) -> None:
        """Each start gets ports of its own, so that test processes do not meet."""
        with launcher.start() as one, launcher.start() as other:
            assert not set(one.ports) & set(other.ports)

    @pytest.mark.slow
    def test_folder_keeps_data_from_one_start_to_the_next(self, tmp_path: Path) -> None:
        """With a folder, what was written before a stop is there after the next start."""
        for expected in (1, 2):
            with (
                launcher.start(tmp_path / "data") as azurite,
                QueueClient.from_connection_string(azurite.connection_string, "kept") as queue,
            ):
                if expected == 1:
                    queue.create_queue()
                queue.send_message("hello")
                assert queue.get_queue_properties().approximate_message_count == expected

    def test_taken_port_is_an_error_with_the_reason(self) -> None:
        """A port somebody else has is named at once, with what Azurite said about it."""
        with socket.create_server((launcher.HOST, 0)) as other:
            taken = other.getsockname()[1]
            with pytest.raises(launcher.AzuriteError, match=str(taken)):
                launcher.start(ports=(0, taken, 0))

    def test_default_ports_are_used_only_when_all_are_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One taken default port is enough to choose three free ones."""
        with socket.create_server((launcher.HOST, 0)) as other:
            taken = other.getsockname()[1]
            monkeypatch.setattr(launcher, "DEFAULT_PORTS", (taken, taken, taken))
            assert launcher.default_or_free_ports() == launcher.FREE_PORTS
        assert launcher.default_or_free_ports() == (taken, taken, taken)


class TestEnd:
    def test_parent_that_forgets_to_stop(self) -> None:
        """An Azurite that nobody stopped ends when its parent exits."""
        parent, ports, folder = start_in_other_process("leave")
        with parent:
            pass
        assert parent.returncode == 0
        assert wait_until_gone(ports, folder)

    @pytest.mark.slow
    @posix_only
    @pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_parent_that_is_killed(self, sent: signal.Signals) -> None:
        """An Azurite ends, and its temporary folder with it, when its parent is killed in any way."""
        parent, ports, folder = start_in_other_process("stay")
        with parent:
            assert launcher.answers(ports)
            parent.send_signal(sent)
        assert wait_until_gone(ports, folder)


class TestInstall:
    @pytest.fixture
    def elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(launcher, "HERE", tmp_path)
        monkeypatch.setattr(launcher, "find_or_install_node", lambda _: launcher.Node("node", ("npm",)))
        (tmp_path / "package-lock.json").write_text("{}")
        return tmp_path

    def test_installs_once_and_again_when_the_lock_changed(
        self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """npm runs the first time and after a change of the lock file, and at no other time."""
        runs: list[list[str]] = []

        def install(command: list[str], **_: object) -> None:
            runs.append(command)
            (elsewhere / "node_modules").mkdir(exist_ok=True)

        monkeypatch.setattr(launcher, "run_quietly", install)
        launcher.ensure_installed()
        launcher.ensure_installed()
        assert len(runs) == 1
        (elsewhere / "package-lock.json").write_text("{ }")
        launcher.ensure_installed()
        assert len(runs) == 2

    def test_broken_download_is_tried_once_more(
        self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A failed installation is repeated once; the second failure is the answer, and leaves no stamp."""
        runs: list[int] = []

        def fail(*_: object, **__: object) -> None:
            runs.append(1)
            raise launcher.CommandError("connection reset")

        monkeypatch.setattr(launcher, "run_quietly", fail)
        with pytest.raises(launcher.CommandError, match="connection reset"):
            launcher.ensure_installed()
        assert len(runs) == 2
        assert not launcher.is_installed()
        assert not (elsewhere / "node_modules").exists()

    def test_failed_command_shows_what_it_printed(self) -> None:
        """The error holds the command, its exit code and its last words."""
        with pytest.raises(launcher.CommandError, match=r"(?s)ended with 3.*last words"):
            launcher.run_quietly([sys.executable, "-c", "print('last words'); raise SystemExit(3)"])

    @posix_only
    def test_one_installs_while_others_wait(self, tmp_path: Path) -> None:
        """Of two processes that want to install, the second waits for the first, and is let in when that dies."""
        hold = (
            "import sys, time; from pathlib import Path; from azurite import launcher\n"
            "with launcher._only_one(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", hold, str(tmp_path / "lock")]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "in\n"
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as second:
                assert second.stdout is not None
                assert not select.select([second.stdout], [], [], 0.5)[0]
                first.kill()
                assert second.stdout.readline() == "in\n"
                second.kill()


@posix_only
class TestNode:
    def program(self, folder: Path, name: str, prints: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\necho {prints}\n")
        path.chmod(0o755)

    def test_new_enough_node_with_npm_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The machine's own Node serves when it is 18 or newer and has npm."""
        self.program(tmp_path, "node", "v18.0.0")
        self.program(tmp_path, "npm", "9")
        monkeypatch.setenv("PATH", str(tmp_path))
        node = launcher.find_or_install_node()
        assert node == launcher.Node(str(tmp_path / "node"), (str(tmp_path / "npm"),))

    @pytest.mark.parametrize("programs", [{}, {"node": "v20.1.0"}, {"node": "v16.9.1", "npm": "8"}])
    def test_otherwise_node_comes_as_a_package(
        self, programs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without Node, without npm, or with one too old, pip installs a Node beside Python, once."""
        for name, prints in programs.items():
            self.program(tmp_path, name, prints)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(launcher, "HERE", tmp_path)
        commands: list[list[str]] = []
        packaged = launcher.Node("packaged", ("packaged", "npm-cli.js"))
        monkeypatch.setattr(launcher, "_node_in_package", lambda _: packaged if commands else None)
        monkeypatch.setattr(launcher, "run_quietly", lambda command, **_: commands.append(command))
        assert launcher.find_or_install_node() == packaged
        assert launcher.find_or_install_node() == packaged
        assert [command[-1] for command in commands] == [launcher.NODE_PACKAGE]
