"""The command that tries whether everything here is as it has to be: doctor."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runonce.cli import output
from runonce.cli.app import LOOK, Json, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit

if TYPE_CHECKING:
    from runonce.hosts.doctor import Check

STYLES = {"mend": "red", "note": "yellow", "well": "green"}
"""The worst first."""
CHECKED = 26
"""Columns for what was looked at; the rest of 80 is for the findings."""


@command(LOOK, "runonce doctor", "runonce doctor --offline", "runonce doctor --json")
def doctor(
    ctx: typer.Context,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only look at the project and the settings; send nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Try everything that runs need, and say of what is amiss how to mend it.

    To be run in the project's folder, where its settings are: settings and job files; host.json and infra/jobs.json
    against the code; schedules that changing clocks meet in the next year; each right on storage, tried with a row, a
    lease, a message and a blob that are removed again; clocks; who else uses the namespace; every queue and topic.

    Ends with 5 when a setting is wrong or a job file is broken, else with 1 when anything is to be mended, else with 0.
    """
    from runonce.hosts.doctor import examine  # noqa: PLC0415 - only here

    context = Context.of(ctx)
    checks = examine(context.runtime, Path.cwd(), offline=offline)
    code = _exit(checks)
    if as_json:
        output.print_json({"checks": [_json(one) for one in checks], "exit_code": int(code)})
    else:
        _print(checks)
    raise typer.Exit(code)


def _exit(checks: "list[Check]") -> Exit:
    if any(one.must_mend for one in checks if one.area in ("settings", "job files")):
        return Exit.CONFIGURATION
    return Exit.FAILED if any(one.must_mend for one in checks) else Exit.DONE


def _print(checks: "list[Check]") -> None:
    made = output.table("", "Checked", "What is amiss, and the remedy")
    made.columns[1].max_width = CHECKED
    for one in sorted(checks, key=lambda one: list(STYLES).index(one.state)):
        texts = [(("\n" if number else "") + found.text, "") for number, found in enumerate(one.findings)]
        made.add_row(
            output.styled((one.state, STYLES[one.state])),
            output.styled((one.area, "bold"), (f"\n{one.what}", "dim")),
            output.styled(*(texts or [("-", "dim")])),
        )
        if one.findings:
            made.add_section()
    output.console().print(made)
    count = sum(found.must_mend for one in checks for found in one.findings)
    typer.echo(f"{count} to mend" if count else "nothing to mend")


def _json(one: "Check") -> dict[str, Any]:
    return {"area": one.area, "what": one.what, "state": one.state, "findings": one.findings}
