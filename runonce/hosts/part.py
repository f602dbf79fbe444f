"""A part of an object, made when it is first asked for, and once, however many threads ask at the same time."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any, Self, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class part(cached_property[T_co]):  # noqa: N801 - a decorator, as the one it is made from
    """`cached_property` under a lock of the object's own: since Python 3.12 that one has none, and before a class's.

    Without it two invocations at once had a deliverer each, of which the stopping worker knew one.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T_co: ...
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T_co:
        """The part; with no instance the descriptor itself. Once made it is the instance's own, and costs no lock."""
        if instance is None:
            return self
        made, name = vars(instance), str(self.attrname)
        with made.setdefault(f"_making_{name}", threading.RLock()):
            if name not in made:
                made[name] = self.func(instance)
            part: T_co = made[name]
            return part
