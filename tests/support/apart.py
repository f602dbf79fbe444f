"""Simulations in a process of their own: a thread that another test has left behind here would find simulated locks."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from simulation.simulate import simulated

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def apart(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What comes of a call, by which nothing but values of modules is needed, within `simulated` in that process."""
    return _process().submit(_in_simulation, call, *args, **named).result()


@cache
def _process() -> ProcessPoolExecutor:
    """One for all calls: it takes a second to begin."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _in_simulation(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    with simulated():
        return call(*args, **named)
