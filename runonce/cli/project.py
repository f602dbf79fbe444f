"""The commands for a project of one's own: init, upgrade."""

import difflib
import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from runonce.cli import template
from runonce.cli.app import PROJECT, command
from runonce.cli.exits import Exit
from runonce.clock import SystemClock
from runonce.errors import SettingsError

MANIFEST = "infra/jobs.json"


class Host(StrEnum):
    """What a project is made for, when not for everything."""

    FUNCTIONS = "functions"
    CONTAINER_APPS = "container-apps"
    LOCAL = "local"


@command(PROJECT, "runonce init shop-jobs", "runonce init --only functions")
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where; it is made if need be.")] = Path(),
    only: Annotated[
        Host | None, typer.Option(help="Leave out what other hosts need. Default: for all of them.")
    ] = None,
) -> None:
    """Write a project that runs: a job, a handler, their tests, and what takes them to Azure.

    It needs no storage, asks nothing, and overwrites nothing: a file that is there with another content is an error,
    and then nothing is written.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "jobs"
    host = None if only is None else only.value
    files = template.project_files(name, host)
    taken = [path for path, text in files.items() if _text(folder / path) not in (None, text)]
    if taken:
        raise SettingsError(
            f"{folder.resolve()} has {', '.join(taken)} already, with another content; nothing was written. Name an "
            f"empty folder, and move over what you want."
        )
    files[template.STATE] = template.state_of(files, name, host)
    for path, text in files.items():
        _write(folder / path, text)
    if host != Host.LOCAL:
        _write(folder / MANIFEST, _manifest(folder))
    typer.echo(f"{len(files)} files in {folder.resolve()}. Next, there:")
    typer.echo("  python -m pytest        its tests, in memory")
    typer.echo("  runonce list            what there is")
    typer.echo("  runonce dev             run it here, with an emulator")


def _manifest(folder: Path) -> str:
    from runonce.hosts.discover import discover  # noqa: PLC0415 - only here
    from runonce.hosts.manifest import make_manifest, to_text  # noqa: PLC0415

    return to_text(make_manifest(discover(folder / "jobs"), SystemClock().now()))


@command(PROJECT, "runonce upgrade", "runonce upgrade host.json infra/main.bicep")
def upgrade(
    ctx: typer.Context,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="The files to take.")] = None,
) -> None:
    """Show what this version of runonce would change in the project's files, or take some of them.

    To be run in the project's folder, after another version of the package was installed. Without a file it only
    shows; a file that you have changed is marked, since taking it loses your changes. jobs/ and tests/ are yours.
    """
    del ctx
    try:
        state = json.loads(Path(template.STATE).read_text(encoding="utf-8"))
        noted, name, only = dict(state["files"]), str(state["name"]), state["only"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{template.STATE} is not here or not readable ({error}): run this in a folder that `runonce init` made."
        ) from error
    new = {
        path: text
        for path, text in template.project_files(name, only).items()
        if not path.startswith(template.YOURS)
    }
    changed = {path: text for path, text in new.items() if _text(Path(path)) != text}
    unknown = sorted(set(files or []) - set(new))
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no file of the project's; `runonce upgrade` lists those that differ."
        )
    for path in files or []:
        _write(Path(path), new[path])
        noted[path] = template.digest(new[path])
        typer.echo(f"{path}: taken")
    if files:
        state |= {"files": noted, "version": template.installed()}
        _write(Path(template.STATE), json.dumps(state, indent=2) + "\n")
        return
    for path, text in changed.items():
        _show(path, text, noted.get(path))
    typer.echo(
        f"{len(changed)} of {len(new)} files differ" + (": runonce upgrade FILE takes one" if changed else "")
    )
    raise typer.Exit(Exit.DONE)


def _show(path: str, text: str, noted: str | None) -> None:
    current = _text(Path(path))
    if current is None:
        typer.echo(f"{path}: not here")
        return
    yours = "" if template.digest(current) == noted else " (you have changed it)"
    typer.echo(f"{path}{yours}")
    lines = difflib.unified_diff(current.splitlines(), text.splitlines(), "here", "new", lineterm="")
    typer.echo("\n".join(lines))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
