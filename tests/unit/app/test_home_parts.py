"""The parts of a home are built once, whoever asks first, and can be replaced."""

from __future__ import annotations

import threading

import pytest

from adws.app import Home, part
from adws.testing import FakeClock, MemoryForge, home
from tests.unit.setting_cases import settings_with


class Slow(Home):
    """A home with a part that takes its time, needs another one, and counts how often it is built."""

    built = 0

    def __init__(self) -> None:
        super().__init__(settings_with(), clock=FakeClock(), role="test")
        self.both_asked = threading.Barrier(2)

    @part
    def inner(self) -> list[str]:
        """The part that the other one needs."""
        return []

    @part
    def outer(self) -> list[str]:
        """The part that takes its time."""
        self.built += 1
        threading.Event().wait(0.05)
        return self.inner


def test_two_threads_get_the_same_part():
    slow, got = Slow(), []

    def ask() -> None:
        slow.both_asked.wait(10.0)
        got.append(slow.outer)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert slow.built == 1
    assert got[0] is got[1] is slow.inner


def test_a_part_that_could_not_be_built_is_built_by_the_next_who_asks():
    class Broken(Home):
        tries = 0

        @part
        def fragile(self) -> int:
            self.tries += 1
            if self.tries == 1:
                raise OSError("not now")
            return self.tries

    broken = Broken(settings_with(), clock=FakeClock(), role="test")
    with pytest.raises(OSError, match="not now"):
        _ = broken.fragile

    assert (broken.fragile, broken.fragile, broken.tries) == (2, 2, 2)


def test_a_part_is_replaced_by_assignment():
    slow = Slow()
    slow.outer = ["mine"]

    assert (slow.outer, slow.built) == (["mine"], 0)
    assert isinstance(Home.forge, part)


def test_every_part_of_a_home_can_be_built(tmp_path):
    with home(tmp_path) as made:
        made.forge = MemoryForge()  # a new home has none
        for name, found in vars(Home).items():
            if isinstance(found, part):
                assert getattr(made, name) is getattr(made, name)
