"""dev.py: what it decides, and that it ends what it starts."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dev
from azurite import launcher
from servicebus.entities import Subscription, Topic, declared

ROOT = Path(dev.__file__).parent
posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows hands Ctrl-C to the child itself")


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


class TestBeforeAnythingIsInstalled:
    def test_old_python_is_told_what_it_needs(self) -> None:
        """A Python that is too old gets one line that says so, not a traceback."""
        pretend = "import sys; sys.version_info = (3, 10, 4); exec(open('dev.py').read())"
        answer = subprocess.run(
            [sys.executable, "-c", pretend], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 1
        assert answer.stderr.startswith("dev.py needs Python 3.11 or newer")
        assert answer.stderr.count("\n") == 1

    def test_old_python_can_read_the_file_at_all(self) -> None:
        """Nothing in dev.py is a syntax error on the Pythons that it turns away."""
        ast.parse((ROOT / "dev.py").read_text(encoding="utf-8"), feature_version=(3, 7))

    @pytest.mark.parametrize(
        "name", ["dev.py", "azurite/launcher.py", "servicebus/launcher.py", "servicebus/entities.py"]
    )
    def test_standard_library_is_enough(self, name: str) -> None:
        """dev.py and what it loads import nothing that has to be installed."""
        assert imported_modules(ROOT / name) - sys.stdlib_module_names <= {
            "azurite",
            "servicebus",
            "_typeshed",
        }


class TestServiceBus:
    def manifest(self, monkeypatch: pytest.MonkeyPatch, *handlers: dict[str, str], code: int = 0) -> None:
        """What `runonce manifest` says."""
        figures = {"lock_duration": "PT1M", "max_delivery_count": 10, "duplicate_detection_window": "PT10M"}
        listed = [{**figures, **handler} for handler in handlers]
        answer = subprocess.CompletedProcess([], code, json.dumps({"handlers": listed}))
        monkeypatch.setattr(dev.subprocess, "run", lambda *_, **__: answer)

    def test_it_has_the_queues_and_topics_of_the_handlers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A queue for each handler, a topic once, and subscriptions that forward; the broker takes them."""
        self.manifest(
            monkeypatch,
            {"queue": "invoices", "topic": "", "subscription": "", "forward": False},
            {"queue": "orders.billing", "topic": "orders", "subscription": "billing", "forward": True},
            {"queue": "orders.audit.retry", "topic": "orders", "subscription": "audit", "forward": False},
        )
        figures = "lock=60,max_delivery=10,dedup=600"
        arguments = dev.servicebus_entities()
        assert arguments == [
            *("--queue", f"invoices:{figures}"),
            *("--queue", f"orders.billing:{figures}"),
            *("--subscription", "orders/billing:forward=orders.billing"),
            *("--queue", f"orders.audit.retry:{figures}"),
            *("--subscription", "orders/audit:"),
            *("--topic", f"orders:{figures}"),
        ]
        given = {
            option: [
                value for name, value in zip(arguments[::2], arguments[1::2], strict=True) if name == option
            ]
            for option in ("--queue", "--topic", "--subscription")
        }
        entities = declared(given["--queue"], given["--topic"], given["--subscription"])
        [topic] = [one for one in entities if isinstance(one, Topic)]
        assert [
            (each.name, each.forward) for each in topic.subscriptions if isinstance(each, Subscription)
        ] == [
            ("billing", "orders.billing"),
            ("audit", ""),
        ]

    def test_without_handlers_there_is_nothing_to_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It says what to write, and where."""
        self.manifest(monkeypatch)
        with pytest.raises(dev.SetupError, match="no file of jobs/ defines a handler"):
            dev.servicebus_entities()

    def test_a_machine_without_a_compiler_is_told_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A build that fails ends in the hint, not in an error: everything else works without it."""

        def fail(command: list[str], **_: object) -> None:
            raise launcher.CommandError(f"{command[0]}\nended with 1:\nerror: command 'gcc' failed")

        self.manifest(monkeypatch, code=1)
        monkeypatch.setattr(dev.launcher, "run_quietly", fail)
        assert dev.install_servicebus() is False
        said = capsys.readouterr().out
        assert "command 'gcc' failed" in said
        assert "apt-get install gcc" in said


class TestSetUp:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        for name in dev.REQUIREMENT_FILES:
            (tmp_path / name).write_text("a==1\n")
        return tmp_path

    @pytest.mark.parametrize("name", dev.REQUIREMENT_FILES)
    def test_changed_requirement_file_changes_the_hash(self, checkout: Path, name: str) -> None:
        """Packages are installed again when any of the requirement files changed."""
        before = dev.requirements_hash(checkout)
        assert dev.requirements_hash(checkout) == before
        (checkout / name).write_text("a==2\n")
        assert dev.requirements_hash(checkout) != before

    def test_other_python_changes_the_hash(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Packages are installed again for another minor version of Python."""
        before = dev.requirements_hash(checkout)
        monkeypatch.setattr(sys, "version_info", (3, 99, 0))
        assert dev.requirements_hash(checkout) != before

    def test_second_time_does_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a matching stamp no command runs; without one the packages are installed and the stamp is set."""
        commands: list[list[str]] = []
        monkeypatch.setattr(dev, "VENV", tmp_path)
        monkeypatch.setattr(dev, "VENV_PYTHON", Path(sys.executable))
        monkeypatch.setattr(launcher, "run_quietly", lambda command, **_: commands.append(command))
        dev.set_up()
        assert [command[1:4] for command in commands] == [["-m", "pip", "install"]]
        dev.set_up()
        assert len(commands) == 1

    def test_demo_and_serve_install_the_package_and_what_it_needs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The package itself is in .venv, so `runonce` is a command there; tools for tests come with `test` alone."""
        commands: list[list[str]] = []
        monkeypatch.setattr(dev, "VENV", tmp_path)
        monkeypatch.setattr(dev, "VENV_PYTHON", Path(sys.executable))
        monkeypatch.setattr(launcher, "run_quietly", lambda command, **_: commands.append(command))
        dev.set_up()
        assert commands[0][-4:] == ["-r", "requirements.txt", "--editable", "."]
        dev.set_up(dev.TOOLS)
        assert commands[1][-4:] == ["-r", "requirements-dev.txt", "--editable", "."]
        dev.set_up()
        assert len(commands) == 2, "the tools include what the app needs"

    def test_python_without_ensurepip_borrows_pip(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Where venv cannot bring pip, the machine's own pip fills the environment."""
        commands: list[list[str]] = []

        def fail_to_bring_pip(command: list[str], **_: object) -> None:
            commands.append(command)
            if "venv" in command and "--without-pip" not in command:
                raise launcher.CommandError("no ensurepip")

        monkeypatch.setattr(dev, "VENV_PYTHON", tmp_path / "none")
        monkeypatch.setattr(launcher, "run_quietly", fail_to_bring_pip)
        dev.set_up_venv()
        assert commands[-1] == [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(tmp_path / "none"),
            "install",
            "pip",
        ]
        assert "making .venv" in capsys.readouterr().out

    def test_python_without_venv_and_pip_names_the_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Where neither venv nor pip can help, the message says which package to install."""

        def fail(command: list[str], **_: object) -> None:
            raise launcher.CommandError(f"{command} failed")

        monkeypatch.setattr(dev, "VENV_PYTHON", tmp_path / "none")
        monkeypatch.setattr(launcher, "run_quietly", fail)
        with pytest.raises(dev.SetupError, match="apt install python3-venv"):
            dev.set_up_venv()
        assert "failed after" in capsys.readouterr().out


class TestCommandLine:
    def test_what_follows_test_is_for_pytest(self) -> None:
        """Everything after `test` reaches pytest, in order and after dev.py's own choices, so that it wins."""
        options = dev.parse(["test", "-k", "lease", "-x", "tests/unit", "-n", "0"])
        assert dev.pytest_command(options.pytest_arguments)[-6:] == [
            "-k",
            "lease",
            "-x",
            "tests/unit",
            "-n",
            "0",
        ]

    @pytest.mark.parametrize("command", sorted(set(dev.COMMANDS) - {"test"}))
    def test_misspelt_option_is_refused(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        """A command that does not know an option says so instead of running without it."""
        with pytest.raises(SystemExit) as stop:
            dev.parse([command, "--nope"])
        assert stop.value.code == 2
        assert "--nope" in capsys.readouterr().err

    def test_demo_takes_a_file_of_invoices(self) -> None:
        """`demo --invoices PATH` keeps the path."""
        assert dev.parse(["demo", "--invoices", "mine.csv"]).invoices == Path("mine.csv")

    @pytest.mark.parametrize(("cores", "processes"), [(1, 3), (2, 6), (4, 8), (64, 8)])
    def test_tests_share_the_cores(self, cores: int, processes: int) -> None:
        """Tests run in three processes per core, never more than eight."""
        assert dev.pytest_processes(cores) == processes

    def test_trouble_is_one_message_and_exit_code_one(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A failed installation ends with its message on stderr, not with a traceback."""

        def fail(_: object) -> int:
            raise launcher.CommandError("pip install ended with 1")

        monkeypatch.setitem(dev.COMMANDS, "check", fail)
        monkeypatch.setattr(dev, "stop_on_signals", lambda: None)
        assert dev.main(["check"]) == 1
        assert capsys.readouterr().err == "dev.py: pip install ended with 1\n"


class TestPassingOn:
    """What dev.py does not know is a command of runonce's."""

    def passed(self, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[str], dict[str, str] | None]:
        called: list[tuple[list[str], dict[str, str] | None]] = []

        def run(command: list[str], *, settings: dict[str, str] | None = None, **_: object) -> int:
            called.append((command, settings))
            return 3

        monkeypatch.setattr(dev, "set_up", lambda: None)
        monkeypatch.setattr(dev, "stop_on_signals", lambda: None)
        monkeypatch.setattr(dev, "run", run)
        assert dev.main(words) == 3
        return called[0]

    def test_arguments_and_exit_code_are_passed_as_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`python dev.py run JOB --at T` is `runonce run JOB --at T`, and ends with its exit code."""
        command, _ = self.passed(monkeypatch, "run", "book_orders", "--at", "2026-01-01", "-h")
        assert command == [
            str(dev.VENV_PYTHON),
            "-m",
            "runonce",
            "run",
            "book_orders",
            "--at",
            "2026-01-01",
            "-h",
        ]

    def test_it_finds_the_emulator_that_dev_py_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The ports of this checkout's emulator are known in every terminal; a setting of one's own goes first."""
        monkeypatch.delenv("RUNONCE_STORAGE", raising=False)
        monkeypatch.setattr(dev, "DATA", tmp_path)
        with launcher.start(tmp_path) as emulator, launcher.noted(tmp_path, emulator, {"MORE": "of it"}):
            _, settings = self.passed(monkeypatch, "status")
            assert settings == {"RUNONCE_STORAGE": emulator.connection_string, "MORE": "of it"}
            monkeypatch.setenv("RUNONCE_STORAGE", "mine")
            assert self.passed(monkeypatch, "status")[1] is None
            monkeypatch.delenv("RUNONCE_STORAGE")
        assert self.passed(monkeypatch, "status")[1] == {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}

    def test_dev_is_told_of_no_storage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`python dev.py dev` starts its own emulator, as `serve` does, which is the same."""
        monkeypatch.delenv("RUNONCE_STORAGE", raising=False)
        command = [str(dev.VENV_PYTHON), "-m", "runonce", "dev"]
        assert self.passed(monkeypatch, "dev") == self.passed(monkeypatch, "serve") == (command, None)

    def test_two_checkouts_have_an_emulator_each(self, tmp_path: Path) -> None:
        """Claims and queues of another checkout are not shared: an emulator that this one did not start is not used."""
        with launcher.start(tmp_path / "one") as emulator, launcher.noted(tmp_path / "one", emulator, {}):
            assert launcher.running(tmp_path / "one") is not None
            assert launcher.running(tmp_path / "other") is None
        assert launcher.running(tmp_path / "one") is None


class TestStep:
    def test_line_carries_the_seconds(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A step that is not on a terminal prints one line when it begins and one when it ended."""
        with dev.step("looking"):
            pass
        first, last = capsys.readouterr().out.splitlines()
        assert first == "dev.py: looking ..."
        assert re.fullmatch(r"dev\.py: looking \.\.\. \d\.\d s", last)


CHILD = """
import signal, sys, time
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
print("ready", flush=True)
deadline = time.monotonic() + 20
while not asked and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep({drain})
print("asked", len(asked), flush=True)
"""
STRAY = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
PARENT = """
import sys, dev
dev.COMMANDS["check"] = lambda _: dev.run([sys.executable, "-c", sys.argv[1]])
sys.exit(dev.main(["check"]))
"""


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@posix_only
class TestRun:
    def start(self, child: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PARENT, child], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    @pytest.mark.parametrize(
        ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
    )
    def test_request_to_stop_reaches_the_child_once(self, sent: signal.Signals, code: int) -> None:
        """Whichever signal ends dev.py, the child is asked once, may finish, and the exit code tells which."""
        with self.start(CHILD.format(drain=0.2)) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            parent.send_signal(sent)
            assert parent.stdout.read() == "asked 1\ndev.py: stopped\n"
        assert parent.returncode == code

    def test_second_request_does_not_wait(self) -> None:
        """Asked again, dev.py ends a child that is still busy."""
        with self.start(CHILD.format(drain=30)) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            began = time.monotonic()
            parent.send_signal(signal.SIGINT)
            time.sleep(0.3)
            parent.send_signal(signal.SIGINT)
            assert parent.stdout.read() == "dev.py: stopped\n"
        assert parent.returncode == 130
        assert time.monotonic() - began < 5

    def test_what_the_child_left_behind_ends_too(self) -> None:
        """A process the child started and forgot is gone when dev.py returns."""
        with self.start(STRAY) as parent:
            assert parent.stdout is not None
            stray = int(parent.stdout.read())
        assert parent.returncode == 0
        assert not running(stray)

    def test_exit_code_is_the_childs(self) -> None:
        """dev.py ends with the exit code of the command it ran."""
        with self.start("raise SystemExit(7)") as parent:
            pass
        assert parent.returncode == 7
