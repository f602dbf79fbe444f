"""The toolkit with one guard taken out at a time. A simulation that does not notice is no proof."""

from __future__ import annotations

import inspect
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from runonce.execution.lease import Lease
from runonce.execution.owned import Owned
from runonce.hosts.functions import handlers, in_hand
from runonce.messages import claim as message_claim
from runonce.messages import plan as message_plan
from runonce.messages.claim import MessageClaim
from runonce.messages.deliver import Deliverer
from runonce.runs import claim, plan
from runonce.runs.claim import Claim
from runonce.runs.dispatch import Dispatcher
from runonce.stores.memory import MemoryLeases
from runonce.transports import copies
from simulation.case import draw
from simulation.server import ANY
from simulation.simulate import Seen, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

Change = tuple[object, str, str, str]
"""Module or class, the name of its function, a piece of its text, and what stands there instead."""

JOB_MUTANTS: dict[str, tuple[Change, ...]] = {
    "no claim": (
        (plan, "_settled", "if previous.outcome.is_final:", "if False:"),
        (claim, "claim", "if not unknown and (refused := admit(", "if False and (refused := admit("),
    ),
    "release without a look at the holder": (
        (Lease, "release", "self._lost is None and self._trusted_until == -inf", "False"),
        (Lease, "release", "or self._lost is not None", "or False"),
        (
            MemoryLeases,
            "release",
            'if self._holders.get(name, ("",))[0] == holder:',
            "if name in self._holders:",
        ),
    ),
    "trust counted from the reply": (
        (Lease, "acquire", "= started + terms.duration", "= clock.elapsed() + terms.duration"),
        (
            Lease,
            "_renewal_round",
            "= started + self._terms.duration",
            "= self._clock.elapsed() + self._terms.duration",
        ),
    ),
    "takeover without ETag": (
        (claim, "_claim_writes", "write(planned.job, job_etag)", f"write(planned.job, job_etag and {ANY!r})"),
        (claim, "_claim_writes", "write(planned.run, run_etag)", f"write(planned.run, run_etag and {ANY!r})"),
        (claim, "claim", "lease.check()  #", "pass  #"),
    ),
    "finish without a condition": (
        (Owned, "_replaced", "encode(row), etag)", f"encode(row), {ANY!r})"),
        (Claim, "_check_right", "self._lease.check()", "pass"),
        (Dispatcher, "_judge", "held=started.lease.held", "held=True"),
    ),
    "the watermark moved by a request": ((plan, "_advanced", "asked = who.by", "asked = False and who.by"),),
    "stopped is told as succeeded": (
        (Dispatcher, "_outcome", "return Outcome.STOPPED", "return Outcome.SUCCEEDED"),
    ),
    "a host's clock believed": ((claim, "claim", "if fire_time > lease.granted_by + EARLY:", "if False:"),),
    "a lost reply taken for a refusal": (
        (claim, "claim", "if unknown and previous is not None", "if False and previous is not None"),
    ),
}
MESSAGE_MUTANTS: dict[str, tuple[Change, ...]] = {
    "copies with equal ids": (
        (copies, "copy_of", "delivery.message_id or sent_as", "sent_as"),
        (copies, "copy_of", "delivery.body, times", "delivery.body, 1"),
    ),
    "a lock not asked before a write": (
        (MessageClaim, "check", "if self.lock is not None:", "if False:"),
        (MessageClaim, "_check_right", "if self.lock is not None:", "if False:"),
    ),
    "a message without a claim": (
        (
            message_plan,
            "decide",
            "return Settle(Complete(duplicate=True))",
            "return Claimable(_claimed(row, arrival))",
        ),
    ),
    "a message taken over without ETag": (
        (message_claim, "claim_message", "encode(after), read.etag)", f"encode(after), {ANY!r})"),
    ),
    "a message taken from one who lives": (
        (message_plan, "expired", "> row.lease + RESOLUTION", "> row.lease / 4"),
    ),
    "follow-ups sent once or never": (
        (Deliverer, "_settled", "if row is not None and not is_anothers and", "if False and"),
        (Deliverer, "_start", "if claim.row.outbox:", "if False:"),
    ),
}
FUNCTIONS_MUTANTS: dict[str, tuple[Change, ...]] = {
    "what a stopping Functions host cuts off is not given back": (
        (handlers, "_give_back", "runtime.deliverer.finish(working, None, SystemExit())", "Complete()"),
    ),
    "a dead copy is copied anew": ((handlers, "_put_aside", "if delivery.dead is not None:", "if False:"),),
    "what a killed worker of Storage queues had is shown by nobody": (
        (in_hand.InHand, "look", "if row.read_at - row.timestamp > MISSED:", "if False:"),
    ),
    "what is put aside from a Storage queue is deleted alone": (
        (handlers, "_put_aside", "put_aside(cast(", "(lambda *_: None)(cast("),
    ),
}
"""Of messages, too."""
MUTANTS = JOB_MUTANTS | MESSAGE_MUTANTS | FUNCTIONS_MUTANTS


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """Take the guard out; AssertionError where the text it stands in has changed."""
    with ExitStack() as changed:
        for place, function, old, new in MUTANTS[name]:
            whole, rewritten = inspect.getattr_static(place, function), _rewritten(place, function, old, new)
            for module in [place, *_importers(function, whole)]:
                changed.enter_context(patch.object(module, function, rewritten))
        yield


def found(name: str, budget: int) -> Seen | None:
    """The first schedule in which the mutant breaks what must hold, or None; to be called within `simulated`.

    Of the wing that the mutant is in, every second seed; of Functions apps those alone in which its code is used, the
    calm ones first, for what a stop does is seen there.
    """
    with mutant(name):
        cases = (draw(seed) for seed in range(int(name not in JOB_MUTANTS), 2 * budget, 2))
        if name in FUNCTIONS_MUTANTS:
            useful = [case for case in cases if case.functions]
            cases = (case for calm in (True, False) for case in useful if case.calm is calm)
        return next((seen for seen in map(simulate, cases) if seen.violations), None)


def _importers(name: str, function: Any) -> list[object]:
    """Modules that have it under its name too."""
    ours = [module for key, module in sys.modules.items() if key.startswith("runonce.")]
    return [module for module in ours if vars(module).get(name) is function]


def _rewritten(place: object, name: str, old: str, new: str) -> Any:
    function = inspect.getattr_static(place, name)
    plain = function.__func__ if isinstance(function, classmethod) else function
    text = _texts.get(plain) or textwrap.dedent(inspect.getsource(plain))
    assert old in text, f"{name} of {place} has no {old!r} any more; give its mutant another place"  # noqa: S101
    scope = vars(sys.modules[plain.__module__])
    made: dict[str, Any] = {}
    exec(compile(text.replace(old, new), f"<mutant {name}>", "exec"), scope, made)  # noqa: S102 - our own text
    changed = made[name]
    plain = changed.__func__ if isinstance(changed, classmethod) else changed
    _texts[plain] = text.replace(old, new)
    return changed


_texts: dict[Any, str] = {}
"""Of functions that were rewritten once already."""
