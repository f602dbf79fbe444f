"""What has left the code does nothing more where an older deployment's job still starts it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import CommandLine

from runonce.errors import ConflictError
from runonce.hosts.deployed import KEY
from runonce.transports.protocols import Outgoing

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

JOB = """
    from runonce import Run, scheduled

    @scheduled("0 0 * * * *")
    def {name}(run: Run) -> None:
        run.log.info("{name} runs")
"""
HANDLER = """
    from runonce import Message, handler

    @handler(queue="{name}-queue", key="id")
    def {name}(message: Message) -> None: ...
"""
OLD, NEW = "20261128T120000Z", "20261129T113000Z"


class Deployments:
    """Images of different times, on one storage."""

    def __init__(self, folder: Path) -> None:
        self.cli = CommandLine(folder)

    def image(self, **kinds: str) -> None:
        """Let the code be these jobs and handlers, by name."""
        for file in self.cli.folder.glob("*.py"):
            file.unlink()
        for name, source in kinds.items():
            self.cli.file(f"{name}.py", source.format(name=name))

    def __call__(self, deployment: str, *args: str) -> Result:
        """An execution of a deployment."""
        environ = {"RUNONCE_DEPLOYMENT": deployment} if deployment else {}
        return self.cli(*args, environ={**self.cli.environ, **environ})

    def names(self) -> list[str]:
        """What the row of the namespace names."""
        row = self.cli.stores.runs.get("local", KEY)
        assert row is not None
        return str(row.values["names_0000000"]).split("\n")


@pytest.fixture
def deployed(tmp_path: Path) -> Deployments:
    return Deployments(tmp_path)


def went(result: Result) -> bool:
    """Whether the run was carried out; if not, it said why, and ended well."""
    assert result.exit_code == 0, result.output
    if "succeeded" in result.output:
        return True
    assert f"bill: not run: the deployment of {NEW} no longer has it" in result.stderr
    assert f"this is the one of {OLD}" in result.stderr
    return False


@pytest.mark.parametrize(
    "first", [("run", "charge", "--scheduled"), ("recover", "--work"), ("work", "mail", "--max-wait", "0")]
)
def test_a_renamed_job_does_not_go_on_under_its_old_name(
    deployed: Deployments, first: tuple[str, ...]
) -> None:
    """Once any execution of the new deployment has been there, the old image's job of the old name does nothing."""
    deployed.image(bill=JOB, mail=HANDLER)
    assert went(deployed(OLD, "run", "bill", "--scheduled"))
    deployed.image(charge=JOB, mail=HANDLER)
    assert deployed(NEW, *first).exit_code == 0
    assert deployed.names() == ["charge", "mail", "runonce_recovery"]
    deployed.image(bill=JOB, mail=HANDLER)
    deployed.cli.clock.advance(3600)
    assert not went(deployed(OLD, "run", "bill", "--scheduled"))
    shown = json.loads(deployed(OLD, "run", "bill", "--scheduled", "--json").stdout)
    assert shown["exit_code"] == 0
    assert "no longer has it" in shown["reason"]


def test_a_deleted_handler_leaves_its_messages_alone(deployed: Deployments) -> None:
    """The old image's handler takes no message of its queue once it has left the code."""
    deployed.image(mail=HANDLER)
    sender = deployed.cli.transport.sender()
    sender.send("mail-queue", [Outgoing(b'{"id": 1}', "m-1")])
    deployed.image(report=JOB)
    assert deployed(NEW, "run", "report", "--scheduled").exit_code == 0
    deployed.image(mail=HANDLER)
    done = deployed(OLD, "work", "mail", "--max-messages", "1")
    assert (done.exit_code, "mail: not run" in done.stderr) == (0, True)
    assert "1 message settled" in deployed("", "work", "mail", "--max-messages", "1").stdout, (
        "by hand it is taken"
    )


def test_what_is_still_there_runs_while_a_deployment_is_under_way(deployed: Deployments) -> None:
    """The old image goes on with jobs that the new one has as well, and makes no older names the newest."""
    deployed.image(bill=JOB)
    assert went(deployed(NEW, "run", "bill", "--scheduled"))
    deployed.cli.clock.advance(3600)
    deployed.image(bill=JOB, report=JOB)
    assert went(deployed(OLD, "run", "bill", "--scheduled"))
    assert deployed.names() == ["bill", "runonce_recovery"]


def test_a_job_that_came_back_runs(deployed: Deployments) -> None:
    """A later deployment with the job in it names it again."""
    for deployment, code in ((OLD, {"report": JOB}), (NEW, {"report": JOB, "bill": JOB})):
        deployed.image(**code)
        assert deployed(deployment, "run", "report", "--scheduled").exit_code == 0
    assert went(deployed(NEW, "run", "bill", "--scheduled"))
    assert deployed.names() == ["bill", "report", "runonce_recovery"]


def test_a_name_that_the_image_does_not_have_ends_well(deployed: Deployments) -> None:
    """Deployed, it ends with 0 and says so; elsewhere, or where a file did not load, it is an error as ever."""
    deployed.image(report=JOB)
    for command in (("run", "bill", "--scheduled"), ("work", "mail")):
        done = deployed(NEW, *command)
        assert (done.exit_code, "is not in the code of this image" in done.stderr) == (0, True), done.output
        assert deployed("", *command).exit_code == 5
    deployed.cli.file("broken.py", "import nothing_of_that_name")
    assert deployed(NEW, "run", "bill", "--scheduled").exit_code == 5


def test_an_image_with_a_broken_file_names_nothing(deployed: Deployments) -> None:
    """The names of what did not load would be missing, and their older executions would stop."""
    deployed.image(report=JOB)
    deployed.cli.file("broken.py", "import nothing_of_that_name")
    assert deployed(NEW, "run", "report", "--scheduled").exit_code == 0
    assert deployed.cli.stores.runs.get("local", KEY) is None


def test_the_first_of_several_at_once_writes_the_row(
    deployed: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not the first to write reads what the other wrote, and goes by it."""
    deployed.image(bill=JOB)
    runs: Any = deployed.cli.stores.runs
    commit, writes = runs.commit, []

    def late(partition: str, batch: Any) -> list[str]:
        if batch[0].key == KEY and not writes:
            writes.append(batch)
            commit(partition, [type(batch[0])(KEY, {"deployed_at": NEW, "names_0000000": "report"})])
            raise ConflictError("somebody was first")
        return list(commit(partition, batch))

    monkeypatch.setattr(runs, "commit", late)
    assert not went(deployed(OLD, "run", "bill", "--scheduled"))


def test_by_hand_and_elsewhere_nothing_is_asked(deployed: Deployments) -> None:
    """Without a deployment no row is read or written; a run by hand goes ahead in any case."""
    deployed.image(bill=JOB)
    assert deployed("", "run", "bill", "--scheduled").exit_code == 0
    assert deployed.cli.stores.runs.get("local", KEY) is None
