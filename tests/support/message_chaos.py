"""Many messages, each sent twice, and workers that are killed again and again while they handle them.

The witness is a file that the toolkit knows nothing of: a line for each commit that succeeded. The effects are the
rows in the table. The workers are what people start, `runonce work`, and are killed with SIGKILL.
"""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runonce.messages.effects import read_effects
from runonce.messages.sending import outgoing
from runonce.stores.azure.stores import azure_stores
from runonce.transports.protocols import Outgoing
from tests.support.transports import Pipe, make_handler

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runonce.settings import Settings

log = logging.getLogger("chaos")

MESSAGES = 1_000
WORKERS = 4
KILLS = 12
BETWEEN_KILLS = (0.4, 1.6)
"""Seconds; together about the time the work itself takes, so that workers die in the thick of it."""
DEADLINE = 200.0

HANDLER = """
    import os
    from pathlib import Path

    from runonce import Message, handler  # noqa: E402

    WITNESS = os.open(Path(__file__).parent / "witness", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    @handler(queue="{queue}", key="id", concurrency=4, retry_delay=1)
    def take(message: Message) -> None:
        message.commit({{"taken": {{"attempt": message.attempt, "token": message.fencing_token}}}})
        os.write(WITNESS, f"{{message.key}} {{message.attempt}}\\n".encode())
"""

BATCHES = """
    import os
    from pathlib import Path

    from runonce import Message, handler  # noqa: E402

    WITNESS = os.open(Path(__file__).parent / "witness", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    @handler(queue="{queue}", key="id", concurrency=2, batch=20, retry_delay=1)
    def take(messages: list[Message]) -> None:
        for message in messages:
            if int(message.key) % 10 == 0 and message.attempt == 1:
                message.fail(ValueError("not now"))
            elif int(message.key) % 2 == 0:
                message.commit({{"taken": {{"attempt": message.attempt, "token": message.fencing_token}}}})
                os.write(WITNESS, f"{{message.key}} {{message.attempt}}\\n".encode())
            else:
                message.step("take", os.write, WITNESS, f"{{message.key}} {{message.attempt}}\\n".encode())
"""
"""Half of its messages commit their effects, the others are marked done with those they came with."""


@dataclass
class Outcome:
    """What came of it."""

    effects: Counter[str]
    witnessed: Counter[str]
    left: int
    dead: int
    kills: int
    seconds: float
    attempts: Counter[int] = field(default_factory=Counter)


def run(
    settings: Settings,
    folder: Path,
    pipe: Pipe,
    seed: int,
    environ: Mapping[str, str],
    *,
    handler: str = HANDLER,
    messages: int = MESSAGES,
    workers_at_once: int = WORKERS,
    most_kills: int = KILLS,
) -> Outcome:
    """Send, kill, wait until everything is settled or the deadline has come; and count."""
    queue = pipe.queue()
    (folder / "handlers.py").write_text(textwrap.dedent(handler).format(queue=queue), encoding="utf-8")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RUNONCE_")},
        "RUNONCE_STORAGE": settings.storage.connection_string or "",
        "RUNONCE_NAMESPACE": settings.namespace,
        "RUNONCE_QUEUE_NAMES": "plain",
        "RUNONCE_JOBS": str(folder),
        "RUNONCE_CLAIM_LEASE": "3",
        **environ,
    }
    started = time.monotonic()
    _send(pipe, queue, messages)
    chance = random.Random(seed)
    workers = [_worker(env, folder) for _ in range(workers_at_once)]
    kills = 0
    try:
        while pipe.count(queue) and time.monotonic() - started < DEADLINE:
            threading.Event().wait(chance.uniform(*BETWEEN_KILLS))
            if kills < most_kills and (folder / "witness").exists():  # not before anything has been done
                victim = chance.randrange(workers_at_once)
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = _worker(env, folder)
                kills += 1
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
    rows = list(read_effects(azure_stores(settings).claims, settings.namespace, "take"))
    lines = [line.split() for line in (folder / "witness").read_text().splitlines()]
    return Outcome(
        effects=Counter(str(row["key"]) for row in rows),
        witnessed=Counter(key for key, _ in lines),
        left=pipe.count(queue),
        dead=pipe.dead_count(queue),
        kills=kills,
        seconds=time.monotonic() - started,
        attempts=Counter(int(row["attempt"]) for row in rows),
    )


def check(outcome: Outcome) -> None:
    """Every message had one effect, and is settled."""
    log.info("%d kills, %.0f s, effects by attempt %s", outcome.kills, outcome.seconds, outcome.attempts)
    assert outcome.kills >= KILLS / 2, outcome.kills
    assert len(outcome.effects) == MESSAGES, f"{MESSAGES - len(outcome.effects)} lost"
    assert set(outcome.effects.values()) == {1}
    twice = [key for key, times in outcome.witnessed.items() if times > 1]
    assert twice == []
    assert (outcome.left, outcome.dead) == (0, 0)


def _send(pipe: Pipe, queue: str, count: int) -> None:
    """Each message twice, the second time in another order and under another id, as two producers would."""
    to = make_handler(queue)
    messages = [outgoing(to, {"id": n}) for n in range(count)]
    again = [Outgoing(m.body, f"{m.message_id}-again") for m in messages]
    random.Random(1).shuffle(again)
    both = [one for pair in zip(messages, again, strict=True) for one in pair]
    threads = [
        threading.Thread(target=pipe.sender.send, args=(queue, both[start : start + 250]))
        for start in range(0, len(both), 250)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _worker(env: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "workers.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "runonce", "work", "take"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
