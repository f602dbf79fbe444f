"""The Typer application: global options, how a command is added, and errors as one line with an exit code.

This module and those with commands have no `from __future__ import annotations`: Typer reads the annotations.
"""

import inspect
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from runonce.cli import exits, logs, output, times
from runonce.cli.context import Context
from runonce.errors import RunonceError

F = TypeVar("F", bound=Callable[..., Any])

LOOK, EXECUTE, OPERATE, DEPLOY, PROJECT = "Look", "Run", "Operate", "Deploy", "Your project"
"""The panels of `--help`."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys instead of a table.")]


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The jobs of the jobs folder that begin so, for the shell."""
    return [name for name in Context.of(ctx).runtime.found.jobs if name.startswith(incomplete)]


def handler_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The handlers of the jobs folder that begin so, for the shell."""
    return [name for name in Context.of(ctx).runtime.found.handlers if name.startswith(incomplete)]


def names_of(ctx: typer.Context, incomplete: str) -> list[str]:
    """The jobs and handlers of the jobs folder that begin so, for the shell."""
    return [*job_names(ctx, incomplete), *handler_names(ctx, incomplete)]


JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The job's name, as `runonce list` shows it.", autocompletion=job_names
    ),
]
HandlerName = Annotated[
    str, typer.Argument(metavar="HANDLER", help="The handler's name.", autocompletion=handler_names)
]


class Commands(TyperGroup):
    """Takes the global options before and after the command's name, and ends every error in an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        return super().parse_args(ctx, _global_first(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        context = Context.of(ctx)
        try:
            with context.runtime:
                return super().invoke(ctx)
        except RunonceError as error:
            if context.verbose:
                traceback.print_exception(error)
            output.complain(context.explain(error))
            raise typer.Exit(exits.of_error(error)) from None
        except (typer.Exit, typer.Abort, typer.TyperException, OSError, EOFError):
            raise  # Typer's own to answer
        except Exception:  # noqa: BLE001 - Python's own exit code 1 means here that a run failed
            traceback.print_exc()
            output.complain(
                "This is a defect of runonce, not of your jobs; please report it with the lines above."
            )
            raise typer.Exit(exits.Exit.FAULT) from None


def _global_first(args: list[str]) -> list[str]:
    first: list[str] = []
    rest: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            return [*first, *rest, word, *waiting]
        if word in ("-v", "--verbose") or word.startswith("--jobs="):
            first.append(word)
        elif word == "--jobs":
            first += [word, *waiting[:1]]
            del waiting[:1]
        else:
            rest.append(word)
    return first + rest


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.HELP,
)


def command(panel: str, *examples: str, name: str | None = None) -> Callable[[F], F]:
    """Make a function a command: its docstring is the help, its parameters are the options."""
    return _adding(app, examples, name, rich_help_panel=panel)


def group(name: str, panel: str, what: str) -> typer.Typer:
    """A command that has commands."""
    made = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(made, name=name, help=what, rich_help_panel=panel)
    return made


def command_of(made: typer.Typer, *examples: str, name: str | None = None) -> Callable[[F], F]:
    """As `command`, in a group."""
    return _adding(made, examples, name)


def _adding(to: typer.Typer, examples: tuple[str, ...], name: str | None, **more: Any) -> Callable[[F], F]:
    shown = "\n".join(["Examples:", *(f"$ {example}" for example in examples)])

    def add(function: F) -> F:
        return to.command(name, help=_unwrapped(function), epilog=shown, **more)(function)

    return add


def _unwrapped(function: Callable[..., Any]) -> str:
    """The docstring, each paragraph one line, for `--help` to wrap to the terminal's width."""
    text = inspect.getdoc(function) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def read_at(text: str, time_zone: str, option: str) -> datetime:
    """An instant a person gave; says how one without an offset was read."""
    try:
        instant, remark = times.read_instant(text, time_zone)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if remark:
        output.note(remark)
    return instant


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - hardly ever asked for

        try:
            typer.echo(version("runonce"))
        except PackageNotFoundError:
            typer.echo("a checkout")
        raise typer.Exit


@app.callback()
def runonce(
    ctx: typer.Context,
    jobs: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The jobs folder. Default: RUNONCE_JOBS, or jobs.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log everything, and show the tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Scheduled jobs and queue handlers on Azure that take effect once.

    RUNONCE_STORAGE names the storage account that keeps their records; "UseDevelopmentStorage=true" is the
    emulator on this machine.

    RUNONCE_NAMESPACE names the application and its environment, such as shop-production.
    """
    del version
    context = Context.of(ctx)
    context.runtime.jobs_folder = jobs or context.runtime.jobs_folder
    context.verbose = verbose
    logs.set_up(verbose=verbose)
