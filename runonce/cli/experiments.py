"""The command that proves things: experiment."""

import difflib
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from runonce.cli import output
from runonce.cli.app import PROVE, command


@command(PROVE, "runonce experiment all", "runonce experiment all --invoices my-invoices.csv")
def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|all", help="Which one; without a name they are listed.")
    ] = None,
    invoices: Annotated[
        Path | None, typer.Option(metavar="PATH", exists=True, help="Your own invoices to work on.")
    ] = None,
) -> None:
    """Kill, cut off and double hosts, and count what took effect.

    Each experiment starts real processes on real storage, and says what it promises before it looks.
    """
    experiments: Any = import_module("runonce.experiments")  # loads what no other command needs
    known: dict[str, str] = experiments.EXPERIMENTS
    console = output.console()
    if name is None:
        made = output.table("Experiment", "What it shows")
        for row in known.items():
            made.add_row(*row)
        console.print(made)
        return
    names = list(known) if name == "all" else [name]
    if name not in (*known, "all"):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"they are: {', '.join(known)}, or all"
        raise typer.BadParameter(f"there is no experiment {name!r}; {hint}", param_hint="NAME")
    raise typer.Exit(experiments.run_experiments(names, invoices, console))
