"""Runs that ask a worker for an entry of the schedule: done once, whoever else is at it, and ended with the outcome."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.errors import ForgeUnavailable, UsageError
from adws.adw_modules.queue.model import CRON, NewRun, RunState
from adws.adw_modules.schedule.jobs import BUSY_SECONDS, CRON_ENTRIES, CronRuns, JobEnd
from adws.adw_modules.worker.run_executor import RunExecutor
from tests.unit.conduct_cases import Home
from tests.unit.setting_cases import settings_with


class Lab:
    """A home whose worker knows the schedule."""

    def __init__(self) -> None:
        self.home = Home()
        self.clock, self.runs = self.home.clock, self.home.runs
        self.book = self.home.parts.schedule
        self.done: list[tuple[str, str]] = []
        self.raises: Exception | None = None
        self.cron = CronRuns(
            SimpleNamespace(
                clock=self.clock,
                settings=settings_with(),
                runs=self.runs,
                lease_renewer=self.home.lease_renewer,
                schedule=self.book,
                cron_jobs=dict.fromkeys(CRON_ENTRIES, self.job),
                processes=self.home.parts.processes,
            )
        )

    def job(self, tick) -> JobEnd:
        self.done.append((tick.name, tick.due))
        if self.raises is not None:
            raise self.raises
        return JobEnd(outcome="3 left over")

    def work(self):
        """Claim what is due and do it, as a worker does."""
        return RunExecutor(self.home.changed(job_handler={CRON: self.cron}.get)).work(self.home.claim())

    def claimed_elsewhere(self, entry: str = "gc"):
        owner = self.home.parts.processes.me("cron")
        return self.book.claim(entry, spec="", due="2026-01-31T03:30:00.000000Z", seen="", owner=owner, ttl_seconds=120)


@pytest.fixture
def lab():
    made = Lab()
    yield made
    made.home.lease_renewer.close()


def test_a_worker_does_the_entry_and_the_run_says_what_came_of_it(lab):
    run = lab.cron.queue("gc", by="kim")
    assert (run.kind, run.state, run.asked_by, run.payload) == (CRON, RunState.PENDING, "kim", {"entry": "gc"})

    end = lab.work()

    assert (end.run.state, end.run.reason, end.message) == (RunState.COMPLETED, "3 left over", "3 left over")
    assert [name for name, _ in lab.done] == ["gc"]
    (row,) = lab.book.rows()
    assert (row.name, row.status, row.outcome, row.spec) == ("gc", "done", "3 left over", "30 3 * * *")


def test_asking_twice_is_asking_once(lab):
    assert lab.cron.queue("gc").run_id == lab.cron.queue("gc").run_id
    assert lab.cron.queue("report").run_id != lab.cron.queue("gc").run_id


def test_what_is_no_entry_is_refused_by_naming_those_there_are(lab):
    with pytest.raises(UsageError, match="'dance' is no entry of the schedule; use one of notify, recover, quota,"):
        lab.cron.queue("dance")
    with pytest.raises(UsageError, match="is no entry"):
        lab.cron.do("dance")
    assert lab.runs.page() == ()


def test_a_run_of_an_entry_that_is_not_there_any_more_has_failed(lab):
    """An older adw asked for it."""
    lab.runs.enqueue(NewRun(adw_id="cron-dance", kind=CRON, payload={"entry": "dance"}))

    end = lab.work()

    assert (end.run.state, lab.done) == (RunState.FAILED, [])
    assert "is no entry of the schedule" in end.run.reason


def test_a_job_that_fails_fails_its_run_with_the_reason(lab):
    lab.raises = ForgeUnavailable("the forge does not answer")
    lab.cron.queue("gc")

    end = lab.work()

    assert (end.run.state, end.run.reason) == (RunState.FAILED, "the forge does not answer")
    assert lab.book.rows()[0].status == "failed"


def test_what_another_cron_is_at_is_looked_at_again_soon(lab):
    tick = lab.claimed_elsewhere()
    lab.cron.queue("gc")

    end = lab.work()

    assert (end.run.state, end.run.reason, lab.done) == (RunState.PENDING, "another cron has it, or has done it", [])
    lab.book.finish(tick, status="done", outcome="well")
    lab.clock.advance(BUSY_SECONDS)
    assert lab.work().run.state is RunState.COMPLETED


def test_a_run_that_shall_stop_does_nothing(lab):
    run = lab.cron.queue("gc")
    claimed = lab.home.claim()
    lab.runs.ask_to_stop(run.run_id, reason="not now")

    end = lab.cron.work(claimed)

    assert (end.run.state, end.run.reason, lab.done) == (RunState.STOPPED, "not now", [])


def test_a_run_whose_worker_died_is_done_by_the_next(lab):
    lab.cron.queue("gc")
    dead = lab.home.parts.processes.me("worker")
    lab.runs.claim(dead, ttl_seconds=30.0)
    lab.home.parts.processes.kill(dead)

    result = lab.home.recovery(job_handler={CRON: lab.cron}.get).recover()

    assert result.reset_to_pending == 1
    assert lab.work().run.state is RunState.COMPLETED
