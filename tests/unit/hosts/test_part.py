"""A part is made once, by whichever thread asks first; the other waits for it, and for no other object's part."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runonce.hosts.part import part
from runonce.hosts.runtime import Runtime


class Whole:
    """Its part takes until it is let go on."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Semaphore(0), threading.Event()

    @part
    def slow(self) -> object:
        """The part."""
        self.asked.release()
        assert self.go_on.wait(10)
        return object()

    @part
    def other(self) -> tuple[object]:
        """Made of it."""
        return (self.slow,)


def test_two_threads_that_ask_at_once_get_the_same() -> None:
    """The second waits for what the first makes: two deliverers of one process would each know half of its messages."""
    whole, free = Whole(), Whole()
    free.go_on.set()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: whole.slow)
        assert whole.asked.acquire(timeout=10)
        second = pool.submit(lambda: whole.other)
        assert free.slow is free.slow  # another object's is made meanwhile
        assert not whole.asked.acquire(timeout=0.2)  # nobody makes it a second time
        whole.go_on.set()
        assert (first.result(10),) == second.result(10)


def test_a_part_that_cannot_be_made_is_made_when_it_is_asked_for_again() -> None:
    """The error is of the one who asks, and nothing is kept of it."""

    class Failing:
        tries = 0

        @part
        def it(self) -> int:
            self.tries += 1
            if self.tries == 1:
                raise ValueError("not yet")
            return self.tries

    failing = Failing()
    with pytest.raises(ValueError, match="not yet"):
        _ = failing.it
    assert (failing.it, failing.it) == (2, 2)


def test_the_parts_of_a_process_are_made_so() -> None:
    """Each of them: a worker's invocations come at the same instant."""
    assert isinstance(Runtime.deliverer, part)
    assert isinstance(Runtime.dispatcher, part)
