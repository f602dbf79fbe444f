"""The command of those who deploy: manifest."""

from pathlib import Path
from typing import Annotated

import typer

from runonce.cli import output
from runonce.cli.app import DEPLOY, command
from runonce.cli.context import Context
from runonce.cli.exits import Exit

DEFAULT_OUTPUT = Path("infra/jobs.json")


@command(
    DEPLOY,
    "runonce manifest",
    "runonce manifest --check",
    "runonce manifest --emulator -o servicebus/emulator.json",
)
def manifest(
    ctx: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; end with 1 if the file is not up to date.")
    ] = False,
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is the terminal.")
    ] = DEFAULT_OUTPUT,
    emulator: Annotated[
        bool, typer.Option("--emulator", help="Write the Service Bus emulator's configuration instead.")
    ] = False,
) -> None:
    """Write infra/jobs.json from the code, for the infrastructure to loop over.

    Needs no storage. Ends with 5 when a job file is broken: a manifest without its jobs would remove what runs them.
    """
    from runonce.hosts.manifest import emulator_config, make_manifest, to_text  # noqa: PLC0415 - only here

    context = Context.of(ctx)
    if context.runtime.found.broken:
        for error in context.runtime.found.broken:
            output.complain(str(error))
        raise typer.Exit(Exit.CONFIGURATION)
    made = make_manifest(context.runtime.found, context.runtime.clock.now())
    for job in made["jobs"]:
        if job["container_apps_refusal"]:
            output.warn(f"not for Container Apps: {job['container_apps_refusal']}")
    text = to_text(emulator_config(made) if emulator else made)
    if str(out) == "-":
        typer.echo(text, nl=False)
    elif not check:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8", newline="\n")
        typer.echo(f"{out}: {len(made['jobs'])} scheduled jobs, {len(made['handlers'])} handlers")
    elif not out.is_file() or out.read_text(encoding="utf-8") != text:
        output.complain(f"{out} is not what the code says; run `runonce manifest` and commit the file")
        raise typer.Exit(Exit.FAILED)
    else:
        typer.echo(f"{out} is up to date")
