"""The cron does each tick once, whatever a job does, and however many crons run."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.schedule.jobs import JobEnd
from adws.adw_modules.schedule.store import Notice
from adws.adw_triggers.trigger_cron import Cron, ScheduleEntry
from tests.homes import lab_home

EVERY_MINUTE = ScheduleEntry(name="quota", expression="* * * * *")


class Lab:
    """Crons that share a schedule; jobs note what they were called for."""

    def __init__(self) -> None:
        home = lab_home()
        self.clock, self.processes = home.clock, home.processes
        self.notifications, self.book = home.notifications, home.schedule
        self.done: list[tuple[str, str]] = []
        self.raises: dict[str, Exception] = {}

    def job(self, tick) -> JobEnd:
        self.done.append((tick.name, tick.due))
        if tick.name in self.raises:
            raise self.raises[tick.name]
        return JobEnd(outcome="well", memo={"times": tick.memo.get("times", 0) + 1})

    def cron(self, *entries: ScheduleEntry, jobs=None) -> Cron:
        entries = entries or (EVERY_MINUTE,)
        jobs = {entry.name: self.job for entry in entries} | (jobs or {})
        home = SimpleNamespace(schedule=self.book, cron_jobs=jobs, clock=self.clock, processes=self.processes)
        return Cron(home, entries)


@pytest.fixture
def lab():
    return Lab()


def test_what_is_due_is_done_once(lab):
    cron = lab.cron()

    first, second = list(cron.run_due()), list(cron.run_due())

    assert [(ran.name, ran.status, ran.outcome) for ran in first] == [("quota", "done", "well")]
    assert second == []
    assert lab.book.rows()[0].status == "done"


def test_a_tick_that_another_cron_did_in_between_is_not_done_again(lab):
    """
    Both look; one is done before the other claims.
    """
    slow, fast = lab.cron(), lab.cron()
    seen_by_slow = slow.run_due()
    original = lab.book.rows

    def rows_then_the_other():
        result = original()
        lab.book.rows = original
        list(fast.run_due())
        return result

    lab.book.rows = rows_then_the_other

    assert [ran.status for ran in seen_by_slow] == ["busy"]
    assert len(lab.done) == 1


def test_a_bug_in_one_job_does_not_keep_the_others_from_being_done(lab):
    lab.raises["a"] = ZeroDivisionError("oh")

    ran = list(
        lab.cron(
            ScheduleEntry(name="a", expression="* * * * *"), ScheduleEntry(name="b", expression="* * * * *")
        ).run_due()
    )

    assert [(one.name, one.status) for one in ran] == [("a", "failed"), ("b", "done")]
    assert "ZeroDivisionError" in ran[0].outcome


def test_a_database_that_is_gone_leaves_the_tick_for_the_next_cron(lab):
    lab.raises["quota"] = DatabaseUnavailable("gone")
    with pytest.raises(DatabaseUnavailable):
        list(lab.cron().run_due())
    lab.raises.clear()
    assert [ran.status for ran in lab.cron().run_due()] == ["busy"]

    lab.clock.advance(121.0)

    assert [ran.status for ran in lab.cron().run_due()] == ["done"]


def test_the_same_cron_does_the_tick_as_soon_as_the_database_is_back(lab):
    cron = lab.cron()
    lab.raises["quota"] = DatabaseUnavailable("gone")
    with pytest.raises(DatabaseUnavailable):
        list(cron.run_due())
    lab.raises.clear()

    assert [ran.status for ran in cron.run_due()] == ["done"]


def test_the_claim_of_a_cron_that_is_proven_dead_is_taken_over_at_once(lab):
    lab.raises["quota"] = DatabaseUnavailable("gone")
    dead = lab.processes.me("cron")
    lab.book.claim("quota", spec="* * * * *", due="x", seen="", owner=dead, ttl_seconds=600.0)
    lab.raises.clear()
    assert [ran.status for ran in lab.cron().run_due()] == ["busy"]

    lab.processes.kill(dead)

    assert [ran.status for ran in lab.cron().run_due()] == ["done"]


def test_a_cron_that_is_taken_over_while_working_is_told_that_nothing_of_it_counts(lab):
    def slow(tick):
        lab.clock.advance(500.0)
        lab.book.claim("quota", spec="x", due=tick.due, seen="", owner=lab.processes.me("cron"), ttl_seconds=60.0)
        return JobEnd(outcome="late", notices=(Notice(key="k", kind="stuck", title="t", channels=("http",)),))

    (ran,) = lab.cron(jobs={"quota": slow}).run_due()

    assert ran.status == "lost"
    assert lab.notifications.page() == ()


def test_what_is_told_is_sent_after_everything_else_was_done(lab):
    entries = [ScheduleEntry(name=name, expression="* * * * *") for name in ("notify", "quota", "recover")]

    list(lab.cron(*entries).run_due())

    assert [name for name, _ in lab.done] == ["quota", "recover", "notify"]


def test_it_runs_from_tick_to_tick_until_it_is_stopped(lab):
    cron = lab.cron()

    def tell(_ran):
        if len(lab.done) == 3:
            cron.stop()

    cron.run(tell)

    moments = [timestamps.parse(due) for _, due in lab.done]
    assert [later - earlier for earlier, later in pairwise(moments)] == [timedelta(minutes=1)] * 2
    assert list(cron.run_due()) == []  # stopped: begins nothing more


def test_it_survives_a_database_that_is_gone_for_a_while(lab):
    cron = lab.cron()
    original, looks = lab.book.rows, []

    def rows():
        looks.append(lab.clock.now())
        if len(looks) < 3:
            raise DatabaseUnavailable("gone")
        cron.stop()
        return original()

    lab.book.rows = rows
    cron.run()

    assert len(looks) == 3
