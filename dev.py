#!/usr/bin/env python3
"""Everything to do with a checkout, in one file: Python 3.11 or newer is all it needs.

    python dev.py demo       see what the toolkit promises, proven on this machine
    python dev.py test       run every test
    python dev.py serve      run the jobs in jobs/ here, anew when one changes, until Ctrl-C: runonce dev
    python dev.py azurite    run only the storage emulator, until Ctrl-C
    python dev.py servicebus run a local Service Bus with the handlers' queues and topics, until Ctrl-C
    python dev.py simulate   run the dispatcher against simulated storage, clocks and faults, many times
    python dev.py soak       kill, pause and stop real replicas for ten minutes, then account for everything
    python dev.py fuzz       give whatever is read from outside changed inputs, a minute for each of its readers
    python dev.py mutate     change the core in one place at a time, and see that a test fails each time
    python dev.py check      lint, format and type check
    python dev.py run JOB    any other command is runonce's own: status, history JOB, next JOB, --help

Each command first sets up what is missing: a virtual environment in .venv and, where it is needed, the
storage emulator Azurite. The first time takes a minute or two, afterwards nothing. No command leaves a
process behind.
"""

from __future__ import annotations

import sys

OLDEST_PYTHON = (3, 11)
if sys.version_info < OLDEST_PYTHON:  # before the imports below, which old Pythons do not have
    sys.exit(f"dev.py needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}.")

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from azurite import launcher
from servicebus.launcher import HINT as SERVICEBUS_HINT
from servicebus.launcher import arguments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
APP, TOOLS = "requirements.txt", "requirements-dev.txt"
"""What the jobs need, and what tests and checks need as well."""
REQUIREMENT_FILES = (APP, TOOLS, "constraints.txt", "pyproject.toml")
DATA = ROOT / ".azurite"
JOBS = "jobs"
STOP_SECONDS = 10.0
DRAIN_SECONDS = 50.0  # runs get 45 s, one lease, to stop at a good place; the rest is for recording it
TELL_EVERY_SECONDS = 15  # how often a long step says so where lines cannot be rewritten


class SetupError(RuntimeError):
    """This machine lacks something dev.py cannot bring. The message says what and how to get it."""


class Interrupted(BaseException):
    """Somebody asked dev.py to stop: Ctrl-C, kill, or a closed terminal."""

    def __init__(self, signum: int) -> None:
        """Remember which signal it was, for the exit code."""
        super().__init__(signum)
        self.signum = signum


# --- commands -----------------------------------------------------------------


def demo(options: argparse.Namespace) -> int:
    """Run the experiments: what is promised, and what happens when things die."""
    set_up()
    command = [str(VENV_PYTHON), "-m", "experiments", *(options.names or ["all"])]
    if options.invoices is not None:
        command += ["--invoices", str(options.invoices.resolve())]
    if options.html is not None:
        command += ["--html", str(options.html.resolve())]
    with start_azurite() as azurite:
        return run(command, settings={"RUNONCE_STORAGE": azurite.connection_string})


def test(options: argparse.Namespace) -> int:
    """Run every test."""
    set_up(TOOLS)
    install_azurite()  # each test process starts its own; installing it here shows why the first time is slow
    install_servicebus()  # without it its tests are skipped, and fail in CI
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a run would compile each test file anew in each process
    return run(pytest_command(options.pytest_arguments))


def simulate(options: argparse.Namespace) -> int:
    """Simulate schedules of faults, and check what must hold after every step."""
    set_up()
    command = [str(VENV_PYTHON), "-m", "simulation"]
    for name in ("schedules", "seed", "processes"):
        given = getattr(options, name)
        if given is not None:
            command += [f"--{name}", str(given)]
    return run(command)


def soak(options: argparse.Namespace) -> int:
    """Kill, pause and stop replicas for minutes, restart the emulator, and account for every fire time."""
    set_up()
    install_azurite()
    command = [str(VENV_PYTHON), "-m", "experiments.soak"]
    return run([*command, "--minutes", str(options.minutes), "--seed", str(options.seed)])


def fuzz(options: argparse.Namespace) -> int:
    """Fuzz whatever is read from outside: what hypothesis makes of samples first, then what atheris does."""
    set_up(TOOLS)
    install_servicebus()  # without it the broker's part is left out
    seconds, examples = str(options.seconds), str(20 * options.seconds)
    some = ["-k", " or ".join(options.targets)] if options.targets else []
    say(f"hypothesis: {examples} inputs for each target, and every one that ever broke it")
    tried = run(pytest_command(["tests/fuzz", *some]), settings={"RUNONCE_FUZZ_EXAMPLES": examples})
    install = [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    with contextlib.suppress(launcher.CommandError), step("installing atheris"):
        launcher.run_quietly([*install, "-r", "fuzz/requirements.txt"], cwd=ROOT)
    say(f"atheris: {seconds} s for each target, guided by what its inputs reach")
    return run([str(VENV_PYTHON), "-m", "fuzz", "--seconds", seconds, *options.targets]) or tried


def mutate(options: argparse.Namespace) -> int:
    """Change the core's code in one place at a time, and see that a unit test fails."""
    set_up(TOOLS)
    command = [str(VENV_PYTHON), "-m", "tests.mutation"]
    if options.processes is not None:
        command += ["--processes", str(options.processes)]
    return run([*command, *options.modules])


def serve(_options: argparse.Namespace) -> int:
    """Run the jobs here until Ctrl-C: `runonce dev`."""
    set_up()
    return run([str(VENV_PYTHON), "-m", "runonce", "dev"], grace=DRAIN_SECONDS)


def azurite(_options: argparse.Namespace) -> int:
    """Run the storage emulator until Ctrl-C."""
    running = launcher.running(DATA)
    if running:
        say("the Azurite of this checkout runs already")
        tell_other_terminals(running)
        return 0
    set_up_venv()  # Node may have to be installed there
    emulator = start_azurite(DATA, launcher.default_or_free_ports())
    with emulator, launcher.noted(DATA, emulator, {}) as settings:
        say(f"Azurite serves {DATA.name}/ on ports {', '.join(map(str, emulator.ports))} until Ctrl-C")
        print(emulator.connection_string, flush=True)
        tell_other_terminals(settings)
        emulator.process.wait()
        say(f"Azurite ended by itself:\n{emulator.log_tail()}")
    return 1


def pass_on(options: argparse.Namespace) -> int:
    """Run a command of runonce's, on this checkout's emulator unless RUNONCE_STORAGE names other storage."""
    set_up()
    settings = None
    if not os.environ.get("RUNONCE_STORAGE") and options.arguments[0] != "dev":
        settings = launcher.running(DATA) or {"RUNONCE_STORAGE": "UseDevelopmentStorage=true"}
    command = [str(VENV_PYTHON), "-m", "runonce", *options.arguments]
    return run(command, settings=settings, grace=DRAIN_SECONDS)


def tell_other_terminals(settings: Mapping[str, str]) -> None:
    """Say how the command line finds this emulator."""
    setting = "$env:{}='{}'" if os.name == "nt" else "export {}='{}'"
    say("in another terminal: python dev.py status, or with .venv activated")
    for name, value in settings.items():
        print(setting.format(name, value), flush=True)


def servicebus(options: argparse.Namespace) -> int:
    """Run a local Service Bus until Ctrl-C."""
    set_up()
    if not install_servicebus():
        return 1
    command = [str(VENV_PYTHON), "-m", "servicebus", "--port", str(options.port), *servicebus_entities()]
    return run(command)


def servicebus_entities() -> list[str]:
    """The queues and topics of the handlers in jobs/, as the broker's arguments."""
    ask = [str(VENV_PYTHON), "-m", "runonce", "manifest", "--output", "-"]
    answer = subprocess.run(ask, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        raise SetupError("the jobs folder could not be read; the lines above say why.")
    arguments = arguments_of(json.loads(answer.stdout)["handlers"])
    if not arguments:
        raise SetupError(
            f"no file of {JOBS}/ defines a handler, so there would be no queue; write one first."
        )
    return arguments


def check(_options: argparse.Namespace) -> int:
    """Lint, format and type check; every tool runs, whatever the one before it found."""
    set_up(TOOLS)
    tools = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])
    codes = []
    for tool in tools:
        say(" ".join(tool))
        codes.append(run([str(VENV_PYTHON), "-m", *tool]))
    return max(codes)


def pytest_command(arguments: Sequence[str]) -> list[str]:
    """Pytest over several processes, a file at a time each; later arguments win, so `-n 0` turns that off.

    In the order of the folders: the slow ones come first, and the many quick ones fill what is left.
    """
    processes = str(pytest_processes(os.cpu_count() or 1))
    spread = ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]
    return [str(VENV_PYTHON), "-m", "pytest", *spread, *arguments]


def pytest_processes(cores: int) -> int:
    """Three per core, since tests mostly wait; at most eight, since each starts an Azurite."""
    return min(8, 3 * cores)


# --- setting up ---------------------------------------------------------------


def set_up(requirements: str = APP) -> None:
    """Make .venv hold exactly what a requirement file asks for, and the package itself."""
    wanted = requirements_hash()
    if VENV_PYTHON.exists() and any(stamped(name) == wanted for name in {requirements, TOOLS}):
        return
    set_up_venv()
    with step("installing packages"):
        install = [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        launcher.run_quietly([*install, "-r", requirements, "--editable", "."], cwd=ROOT)
    stamp(requirements).write_text(wanted, encoding="ascii")


def stamp(requirements: str) -> Path:
    """Where it is noted that a requirement file was installed."""
    return VENV / f".{requirements}.stamp"


def stamped(requirements: str) -> str:
    """The hash that was wanted when a requirement file was installed last, or nothing."""
    try:
        return stamp(requirements).read_text(encoding="ascii")
    except OSError:
        return ""


def set_up_venv() -> None:
    """Make .venv, with the Python that runs this file."""
    if venv_fits():
        return
    version = ".".join(map(str, sys.version_info[:2]))
    with step(f"making .venv for Python {version}"):
        try:
            launcher.run_quietly([sys.executable, "-m", "venv", "--clear", str(VENV)], cwd=ROOT)
        except launcher.CommandError as error:
            make_venv_without_ensurepip(error)


def make_venv_without_ensurepip(reason: launcher.CommandError) -> None:
    """Take pip from the machine: Debian and Ubuntu keep the copy that venv wants in a package of its own."""
    try:
        launcher.run_quietly([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)], cwd=ROOT)
        launcher.run_quietly(
            [sys.executable, "-m", "pip", "--python", str(VENV_PYTHON), "install", "pip"], cwd=ROOT
        )
    except launcher.CommandError:
        raise SetupError(
            f"this Python cannot make a virtual environment.\n{reason}\n\n"
            "On Debian and Ubuntu: apt install python3-venv (python3.12-venv and so on for other versions).\n"
            "Elsewhere: use a Python that comes with venv and ensurepip. Then run this again."
        ) from None


def venv_fits() -> bool:
    """Whether .venv works, has pip and is of the minor version that runs this file."""
    ask = "import pip, sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.run([str(VENV_PYTHON), "-c", ask], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.stdout.split() == [str(part) for part in sys.version_info[:2]]


def requirements_hash(folder: Path = ROOT) -> str:
    """Change whenever .venv must: the requirement files and the Python version."""
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for name in REQUIREMENT_FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def install_azurite() -> None:
    """Install the storage emulator, and Node when the machine has none."""
    if not launcher.is_installed():
        with step("installing Azurite"):
            launcher.ensure_installed(VENV_PYTHON)


def install_servicebus() -> bool:
    """Build what the local Service Bus needs, which takes a C compiler; say what to do where there is none."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('cproton') is None)"
    if subprocess.run([str(VENV_PYTHON), "-c", ask], check=False).returncode == 0:
        return True
    install = [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    try:
        with step("building the local Service Bus"):
            launcher.run_quietly([*install, "-r", "servicebus/requirements.txt"], cwd=ROOT)
    except launcher.CommandError as error:
        last = str(error).rstrip().rpartition("\n")[2]
        say(f"{last}\n{SERVICEBUS_HINT}.")
        return False
    return True


def start_azurite(
    folder: Path | None = None, ports: launcher.Ports = launcher.FREE_PORTS
) -> launcher.Azurite:
    """Start the storage emulator: without a folder, in memory."""
    install_azurite()
    with step("starting Azurite"):
        return launcher.start(folder, ports, python=VENV_PYTHON)


# --- processes and lines ------------------------------------------------------


def run(
    command: Sequence[str], *, settings: Mapping[str, str] | None = None, grace: float = STOP_SECONDS
) -> int:
    """Run a command in front, return its exit code, and pass on a request to stop once."""
    environment = {**os.environ, **(settings or {})}
    # On Windows the console itself hands Ctrl-C to everybody in it, so there the child stays in our group.
    group: dict[str, Any] = {} if os.name == "nt" else launcher.own_group()
    child = subprocess.Popen(command, cwd=ROOT, env=environment, **group)
    try:
        return child.wait()
    except Interrupted:
        ask_to_stop(child, grace)
        raise
    finally:
        launcher.kill_group(child)


def ask_to_stop(child: subprocess.Popen[bytes], grace: float) -> None:
    """Send Ctrl-C, which every child here takes as a request; a second one cuts the wait short."""
    if grace > STOP_SECONDS:
        say(f"stopping; what is running gets up to {grace:.0f} s (Ctrl-C again ends it now)")
    if os.name != "nt":
        child.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired, Interrupted):
        child.wait(grace)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Print a line for a step, keep it alive while the step lasts, and end it with the seconds it took."""
    began = time.monotonic()
    done = threading.Event()
    ticker = threading.Thread(target=tick, args=(name, began, done), daemon=True)
    ticker.start()
    outcome = "failed after "
    try:
        yield
        outcome = ""
    finally:
        done.set()
        ticker.join()
        say(f"{name} ... {outcome}{time.monotonic() - began:.1f} s", rewrite=True)


def tick(name: str, began: float, done: threading.Event) -> None:
    """Say how long a step has taken so far: in place on a terminal, a line now and then elsewhere."""
    terminal = sys.stdout.isatty()
    say(f"{name} ...", end="" if terminal else "\n")
    while not done.wait(1 if terminal else TELL_EVERY_SECONDS):
        say(f"{name} ... {time.monotonic() - began:.0f} s", rewrite=True, end="" if terminal else "\n")


def say(text: str, *, rewrite: bool = False, end: str = "\n") -> None:
    """Print a line of dev.py's own; `rewrite` replaces the line before it on a terminal."""
    start = "\r" if rewrite and sys.stdout.isatty() else ""
    print(f"{start}dev.py: {text}", end=end, flush=True)


def stop_on_signals() -> None:
    """Turn every polite request to stop into Interrupted, so that the way out is always the same."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), interrupt)


def interrupt(signum: int, _frame: object) -> NoReturn:
    """Stop what is going on."""
    raise Interrupted(signum)


# --- command line -------------------------------------------------------------


def make_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Build the parser, and one for each command."""
    parser = argparse.ArgumentParser(
        prog="dev.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        name: commands.add_parser(name, help=(command.__doc__ or "").rstrip("."), allow_abbrev=False)
        for name, command in COMMANDS.items()
    }
    parsers["demo"].add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="some of them only, or takeover or locks, which take a minute",
    )
    parsers["demo"].add_argument(
        "--invoices",
        type=Path,
        metavar="PATH",
        help="your own invoices to work on, instead of the built-in ones",
    )
    parsers["demo"].add_argument(
        "--html", type=Path, metavar="PATH", help="write what was seen, with its pictures, as a page"
    )
    simulation = parsers["simulate"]
    simulation.add_argument(
        "--schedules", type=int, metavar="N", help="how many (default: 2000; 1 with --seed)"
    )
    simulation.add_argument(
        "--seed", type=int, metavar="S", help="of the first one; a failing one's replays it exactly"
    )
    simulation.add_argument(
        "--processes", type=int, metavar="P", help="how many (default: one for each core)"
    )
    parsers["soak"].add_argument(
        "--minutes", type=int, default=10, metavar="N", help="how long (default: 10)"
    )
    parsers["soak"].add_argument(
        "--seed", type=int, default=1, metavar="S", help="of what befalls the replicas (default: 1)"
    )
    parsers["fuzz"].add_argument(
        "--seconds", type=int, default=60, metavar="S", help="for each target (default: %(default)s)"
    )
    parsers["fuzz"].add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    mutation = parsers["mutate"]
    mutation.add_argument(
        "modules", nargs="*", metavar="MODULE", help="such as runonce.runs.plan (default: all)"
    )
    mutation.add_argument("--processes", type=int, metavar="P", help="how many (default: four for each core)")
    parsers["servicebus"].add_argument(
        "--port", type=int, default=5673, help="where it listens (default: %(default)s)"
    )
    parsers["test"].usage = "dev.py test [any pytest argument ...]    (such as -k lease, -x, tests/unit)"
    return parser, parsers


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": demo,
    "test": test,
    "serve": serve,
    "azurite": azurite,
    "servicebus": servicebus,
    "simulate": simulate,
    "soak": soak,
    "fuzz": fuzz,
    "mutate": mutate,
    "check": check,
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what `test` does not know itself is for pytest, and other commands are runonce's."""
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        return argparse.Namespace(command=None, arguments=list(arguments))
    parser, parsers = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown and options.command != "test":
        parsers[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    options.pytest_arguments = unknown
    return options


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    options = parse(arguments)
    stop_on_signals()
    try:
        return COMMANDS.get(options.command, pass_on)(options)
    except Interrupted as stop:
        say("stopped")
        return 128 + stop.signum
    except (SetupError, launcher.CommandError, launcher.AzuriteError) as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
