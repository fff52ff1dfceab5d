"""A value that takes long to find out is known as of a while ago."""

from __future__ import annotations

import pytest

from adws.testing import FakeClock
from adws.web.dependencies import CachedValue


class Answers:
    """Gives one answer after the other, and keeps the work that was to be done beside."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.work = []

    def find(self):
        result = self.answers.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def do(self):
        self.work.pop(0)()


@pytest.fixture
def clock():
    return FakeClock()


def lately(answers, clock):
    return CachedValue(answers.find, clock=clock, keep_seconds=30.0, beside=answers.work.append)


def test_a_value_is_computed_in_the_background_once_at_a_time(clock):
    answers = Answers("first")
    value = lately(answers, clock)

    assert (value.get(), value.get()) == (None, None)
    assert len(answers.work) == 1
    answers.do()
    assert value.get() == "first"


def test_an_old_value_is_returned_until_the_new_one_is_known(clock):
    answers = Answers("first", "second")
    value = lately(answers, clock)
    value.get()
    answers.do()

    clock.advance(29.9)
    assert value.get() == "first"
    assert answers.work == []
    clock.advance(0.1)
    assert value.get() == "first"
    answers.do()
    assert value.get() == "second"


def test_a_failed_measurement_leaves_the_last_value_and_is_retried(clock, caplog):
    answers = Answers("first", OSError("gone"), "third")
    value = lately(answers, clock)
    for seen in (None, "first", "first"):
        assert value.get() == seen
        answers.do()
        clock.advance(30)

    assert value.get() == "third"
    assert [record.message for record in caplog.records] == ["A value could not be measured"]
