"""What the alerts find in the log: worked out strictly, over lines that the toolkit itself logs."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from runonce import PermanentError, Run, scheduled
from runonce.cli.logs import _Line
from runonce.runs.dispatch import Dispatcher
from runonce.runs.operate import pause
from runonce.runs.recovery import recover
from runonce.settings import Settings, StorageConnection
from runonce.stores.memory import memory_stores
from runonce.testing import ManualClock
from tests.support import kql, kusto
from tests.support.infrastructure import with_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from runonce.runs.definition import ScheduledJob
    from runonce.runs.result import Result

NAMESPACE = "shop-production"
NAMES = {"applicationInsights": "appi-shop", "containerAppsEnvironment": "cae-shop"}
START = datetime(2026, 11, 2, 11, 0, 30, tzinfo=UTC)
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SOURCE = """
from runonce import Run, scheduled

@scheduled("0 0 * * * *")
def hourly(run: Run) -> None: ...

@scheduled("0 0 2 1 * *")
def monthly(run: Run) -> None: ...
"""
HANDLER = """
from runonce import Message, handler

@handler(queue="invoices", key="id")
def send_invoice(message: Message) -> None: ...
"""


@scheduled("0 0 * * * *", name="hourly", retries=0)
def hourly(run: Run) -> None:
    """Does as the world has it."""
    World.current.body(run)


@scheduled("0 0 2 1 * *", name="monthly")
def monthly(run: Run) -> None:
    """Is seldom due."""


def succeed(run: Run) -> None:
    """Nothing to do."""


def fail(run: Run) -> None:
    """Cannot be helped."""
    raise PermanentError(f"the books of {run.fire_time:%B} are closed")


@dataclass(eq=False)
class World(logging.Handler):
    """Jobs, a clock, and the log that their host writes: as Application Insights or Container Apps keep it."""

    queries: dict[str, str]
    windows: dict[str, timedelta]
    console: bool
    jobs: dict[str, ScheduledJob] = field(default_factory=lambda: {"hourly": hourly, "monthly": monthly})
    namespace: str = NAMESPACE
    current: ClassVar[World]

    def __post_init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        settings = Settings(self.namespace, StorageConnection())
        self.dispatcher = Dispatcher(self.jobs, memory_stores(self.clock), settings, self.clock, host="test")
        self.rows: list[dict[str, Any]] = []
        kind, name = ("managedenvironments", "CAE-shop") if self.console else ("components", "appi-shop")
        self.resource = f"/subscriptions/0/resourcegroups/rg/providers/microsoft/{kind}/{name}"
        self.body: Callable[[Run], None] = succeed
        self.formatter = _Line("%(asctime)s %(levelname)-7s %(message)s")
        World.current = self

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Hear what the toolkit logs."""
        logger = logging.getLogger("runonce")
        before = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        yield
        logger.removeHandler(self)
        logger.setLevel(before)

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record) if self.console else record.getMessage()
        column = "Log" if self.console else "Message"
        self.rows.append({"TimeGenerated": self.clock.now(), column: text, "_ResourceId": self.resource})

    def tick(self, minutes: int, every: int = 1) -> None:
        """Let time pass; recovery ticks in each minute."""
        for _ in range(0, minutes, every):
            recover(self.dispatcher)
            self.clock.advance(60 * every)

    def until(self, instant: datetime, every: int = 1) -> None:
        self.tick(int((instant - self.clock.now()) / timedelta(minutes=1)) + 1, every)

    def run(self, fire_time: datetime) -> Result | None:
        return self.dispatcher.execute(hourly, fire_time, by="timer")

    def fired(self, name: str) -> list[str]:
        """The jobs that an alert names now."""
        now = self.clock.now()
        seen = [row for row in self.rows if row["TimeGenerated"] > now - self.windows[name]]
        kept: list[dict[str, Any]] = []
        tables = {"ContainerAppConsoleLogs": seen if self.console else kept}
        tables["AppTraces"] = kept if self.console else seen
        return sorted({row["Job"] for row in kql.run(self.queries[name], tables, now)})

    def all_fired(self) -> dict[str, list[str]]:
        return {name: jobs for name in self.queries if (jobs := self.fired(name))}


def rules_of(folder: Path, source: str = SOURCE) -> tuple[dict[str, str], dict[str, timedelta]]:
    made = with_jobs(folder, source).main("both", namespace=NAMESPACE, names=NAMES)
    rules = {r.name.removeprefix("alert-"): r for r in made.of("Microsoft.Insights/scheduledQueryRules")}
    spans = {"H": "hours", "M": "minutes"}
    windows = {}
    for name, rule in rules.items():
        (number, unit) = re.fullmatch(r"PT(\d+)([HM])", rule.properties["windowSize"]).groups()  # type: ignore[union-attr]
        windows[name] = timedelta(**{spans[unit]: int(number)})
    return {n: r.properties["criteria"]["allOf"][0]["query"] for n, r in rules.items()}, windows


@pytest.fixture(params=["on Functions", "on Container Apps"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A host that logs, and the rules that watch it."""
    made = World(*rules_of(tmp_path), console=request.param == "on Container Apps")
    with made.logged():
        yield made


# -- nothing is wrong -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_monthly_job_raises_no_alarm_in_its_first_month(tmp_path: Path) -> None:
    """A job that has never run, since it was never due, is silent about nothing for a whole month."""
    alone = SOURCE[: SOURCE.index("@")] + SOURCE[SOURCE.rindex("@") :]
    world = World(*rules_of(tmp_path, alone), console=False, jobs={"monthly": monthly})
    with world.logged():
        world.tick(60, every=15)
        for _ in range(28 * 24):
            world.tick(60, every=15)
            assert world.all_fired() == {}, world.clock.now()
            world.rows = [row for row in world.rows if row["TimeGenerated"] > world.clock.now() - HOUR]


@pytest.mark.parametrize("state", ["new", "running", "paused", "recovered"])
def test_a_job_that_is_well_raises_no_alarm(world: World, state: str) -> None:
    """New, running for the first time, paused for hours, or well again after a failure: no alert names the job."""
    if state == "paused":
        pause(world.dispatcher, "hourly")
    if state in ("new", "paused"):
        world.until(NOON + timedelta(minutes=-2) if state == "new" else NOON + timedelta(hours=5))
    if state == "running":
        world.until(NOON)
        seen = []

        def body(run: Run) -> None:  # noqa: ARG001 - it is looked at
            recover(world.dispatcher)
            seen.append(world.all_fired())

        world.body = body
        world.run(NOON)
        assert seen == [{}]
        assert any(" state=running " in row.get("Message", row.get("Log")) for row in world.rows)
    if state == "recovered":
        world.until(NOON)
        world.body = fail
        world.run(NOON)
        world.until(NOON + timedelta(hours=1))
        world.body = succeed
        world.run(NOON + timedelta(hours=1))
        world.tick(2)
    assert world.all_fired() == {}


# -- something is -----------------------------------------------------------------------------------------------


def test_a_job_that_never_ran_and_should_have_is_missed(world: World) -> None:
    """A new job whose timer never starts is named as missed a quarter of an hour after its first fire time."""
    world.until(NOON + timedelta(minutes=12))
    assert world.all_fired() == {}
    world.until(NOON + timedelta(minutes=20))
    assert world.all_fired() == {"missed-runs": ["hourly"]}


def test_a_job_that_has_run_and_stopped_is_missed(world: World) -> None:
    """A job that ran at noon and not at one is named as missed."""
    world.until(NOON)
    world.run(NOON)
    world.until(NOON + timedelta(minutes=80))
    assert world.all_fired() == {"missed-runs": ["hourly"]}


def test_a_failed_run_is_named(world: World) -> None:
    """A run that fails for good is found by its own line and by the audit's, and not for ever."""
    world.until(NOON)
    world.body = fail
    world.run(NOON)
    world.clock.advance(60)
    assert world.all_fired() == {"failed-runs": ["hourly"]}
    by_its_line = [
        row
        for row in world.rows
        if "failed" in row.get("Message", row.get("Log")) and "audit" not in str(row)
    ]
    world.tick(20)
    world.rows = [row for row in world.rows if row not in by_its_line]
    assert world.all_fired() == {"failed-runs": ["hourly"]}, "by the audit's line alone"
    world.tick(15)
    assert world.all_fired() == {}


def test_a_neighbours_failure_is_the_neighbours(world: World) -> None:
    """A run that failed in another deployment, which logs to the same workspace, is not named here."""
    world.until(NOON)
    world.body = fail
    world.run(NOON)
    world.clock.advance(60)
    for row in world.rows:
        row["_ResourceId"] += "-staging"
    assert world.all_fired() == {}


def test_a_run_that_succeeds_is_not_named(world: World) -> None:
    """A run whose body succeeds leaves nothing that looks like a failure."""
    world.until(NOON)
    world.run(NOON)
    assert world.all_fired() == {}


def test_a_job_that_nobody_looks_after_is_named(world: World) -> None:
    """Where recovery leaves one job out, as that of an older deployment does, that job alone is named."""
    del world.jobs["monthly"]
    pause(world.dispatcher, "hourly")
    world.tick(70)
    assert world.all_fired() == {"no-sign-of-life": ["monthly"]}


@pytest.mark.parametrize("lost", ["runonce.audit", "runonce.recovery"])
def test_each_line_that_does_not_come_is_noticed(world: World, lost: str) -> None:
    """Either kind of line can be missing alone, and its alert does not stand on the other's."""
    pause(world.dispatcher, "hourly")
    world.tick(70)
    assert world.all_fired() == {}
    world.rows = [row for row in world.rows if f"{lost} namespace=" not in str(row)]
    assert set(world.all_fired()) == {"no-sign-of-life" if lost == "runonce.audit" else "recovery-silent"}


def test_a_dead_host_is_noticed(world: World) -> None:
    """When no line comes any more, recovery and every job are named within an hour and a quarter."""
    world.tick(30)
    world.clock.advance(75 * 60)
    assert world.all_fired() == {
        "no-sign-of-life": ["hourly", "monthly"],
        "recovery-silent": ["runonce_recovery"],
    }


def test_a_neighbour_in_the_same_workspace_does_not_hide_silence(world: World) -> None:
    """The lines of another namespace, even one whose name begins alike, are not taken for this one's."""
    pause(world.dispatcher, "hourly")
    world.tick(70)
    for row in world.rows:
        for column in ("Message", "Log"):
            if column in row:
                row[column] = row[column].replace(f"namespace={NAMESPACE} ", f"namespace={NAMESPACE}-2 ")
    assert set(world.all_fired()) == {"no-sign-of-life", "recovery-silent"}


def test_handlers_alone_still_have_recovery_watched(tmp_path: Path) -> None:
    """Without a scheduled job the recovery tick logs its own line, and the alert hears when it does not come."""
    world = World(*rules_of(tmp_path, HANDLER), console=False, jobs={})
    with world.logged():
        world.tick(70)
        assert world.all_fired() == {}
        world.clock.advance(75 * 60)
        assert world.all_fired() == {"recovery-silent": ["runonce_recovery"]}


# -- the evaluation and the parser ------------------------------------------------------------------------------


def test_one_column_of_the_wrong_type_empties_all_of_them() -> None:
    """`parse` as it is by default: where a dash stands in a column of times, the job's name is lost with it."""
    tables = {"T": [{"Text": "job=a finished=-"}]}
    typed = 'T | parse Text with * "job=" Job:string " finished=" Finished:{}'
    assert kql.run(typed.format("datetime"), tables, NOON)[0]["Job"] == ""
    assert kql.run(typed.format("string"), tables, NOON)[0]["Job"] == "a"


def test_a_text_is_not_compared_with_a_time() -> None:
    """A text that is compared with a time is an error of the query, not a false answer."""
    with pytest.raises(TypeError):
        kql.run("T | where Text > ago(30m)", {"T": [{"Text": "2026-11-02T12:00:00Z"}]}, NOON)


SEEDED = [
    ("project TimeGenerated, Text = Message", "project TimeGenerated, Text = Mesage", "Mesage"),
    ("ContainerAppConsoleLogs", "ContainerAppConsoleLog", "ContainerAppConsoleLog"),
    ("todatetime(Finished) >", "Finished >", "string and datetime"),
    ("kind=leftanti", "kind=leftnone", "Expected one of: inner"),
]


@pytest.fixture(scope="module")
def analysed(azurite_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What Kusto's own parser says of each query, and, under `QUERY: what it should say`, of each with a mistake."""
    queries, _ = rules_of(tmp_path_factory.mktemp("rules"))
    mistaken = {
        f"{name}: {said}": query.replace(right, wrong)
        for right, wrong, said in SEEDED
        for name, query in queries.items()
        if right in query
    }
    return kusto.analyse(azurite_launcher, queries | mistaken)


@pytest.mark.slow
def test_kustos_own_parser_accepts_every_query(analysed: dict[str, dict[str, Any]]) -> None:
    """Each alert's query is right against the tables' columns, and gives the columns that the rule counts by."""
    accepted = {name: said for name, said in analysed.items() if ":" not in name}
    assert accepted
    for name, said in accepted.items():
        assert said["errors"] == [], name
        assert (said["columns"]["Job"], said["columns"]["TimeGenerated"]) == ("string", "datetime"), name


@pytest.mark.slow
@pytest.mark.parametrize("said", [said for _, _, said in SEEDED])
def test_kustos_own_parser_finds_a_mistake(analysed: dict[str, dict[str, Any]], said: str) -> None:
    """A wrong column, table, type or word in a query is found, so a clean answer means something."""
    answers = {name: answer for name, answer in analysed.items() if name.endswith(f": {said}")}
    assert answers
    for name, answer in answers.items():
        assert any(said in error for error in answer["errors"]), (name, answer["errors"])
