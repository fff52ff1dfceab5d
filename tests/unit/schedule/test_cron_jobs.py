"""What is done on a schedule: each job may be done twice, and tells people of a change once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.circuit_breaker import BreakerRow, DatabaseBreakers, Permit
from adws.adw_modules.document import AttemptRecord, PhaseRecord
from adws.adw_modules.housekeeping.inventory import Orphan
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.recovery.plan import RecoveryAction, RecoveryStep
from adws.adw_modules.reports.model import StuckKind, StuckNow, Subject
from adws.adw_modules.resources.quotas import QuotaStatus
from adws.adw_modules.schedule.jobs import CRON_ENTRIES, CronJobs, PollJobs
from adws.adw_modules.schedule.store import Tick
from adws.app import Home
from adws.testing import FakeClock
from tests.contracts.worlds import make_document
from tests.unit.setting_cases import settings_with

DUE, LATER = "2026-01-31T09:00:00.000000Z", "2026-01-31T09:05:00.000000Z"


class Meter:
    """Quotas that are what a test says."""

    def __init__(self) -> None:
        self.exceeded: set[str] = set()

    def free_left_behind(self) -> None:
        """Nothing is left behind here."""

    def sizes(self):
        return {}

    def too_large(self, sizes):
        return {}

    def status(self, *, estimated_cost=None, sizes=None):
        return tuple(
            QuotaStatus(name=name, used=1, limit=1, unit="GB", is_exceeded=name in self.exceeded, detail=f"{name}!")
            for name in ("disk", "cost_per_day")
        )


class Collector:
    """Left-overs that a test made."""

    def __init__(self, *orphans: Orphan) -> None:
        self.orphans, self.removed, self.problems = orphans, [], ["the remote did not answer"]

    def find(self):
        return self.orphans

    def remove(self, orphans):
        self.removed.extend(orphans)
        return tuple(SimpleNamespace(orphan=orphan, is_gone=orphan.kind != "lock", detail="held") for orphan in orphans)


def stuck(adw_id: str) -> StuckNow:
    return StuckNow(
        subject=Subject(adw_id=adw_id), kind=StuckKind.TOO_LONG, phase="build", since=DUE, why="it takes long"
    )


class CronHome(Home):
    """A home whose collector and retention a test may replace: they are made anew each time."""

    collector = Collector()
    retention = SimpleNamespace(forget_all=lambda: (0, ()))


class Lab:
    """A home whose quotas, recovery and left-overs are what a test says."""

    def __init__(self, path) -> None:
        self.path, self.clock = path, FakeClock()
        self.meter = Meter()
        self.sent: list[str] = []
        self.steps: tuple[RecoveryStep, ...] = ()
        self.collector = Collector()
        self.stuck: tuple[StuckNow, ...] = ()
        self.home = self.open()

    def open(self, **settings: str) -> Home:
        home = CronHome(settings_with(self.path, store="database", **settings), clock=self.clock, role="cron")
        home.host = "here"
        home.quotas = self.meter
        home.channels = {"http": self}
        home.recovery = SimpleNamespace(recover=lambda: SimpleNamespace(steps=self.steps))
        home.reporting.stuck = lambda: self.stuck
        return home

    def send(self, row) -> None:
        self.sent.append(row.title)

    def jobs(self) -> CronJobs:
        self.home.collector = self.collector
        return CronJobs(self.home)


def tick(name: str = "quota", due: str = DUE, memo=None) -> Tick:
    return Tick(name=name, due=due, token=1, memo=memo or {})


def titles(end) -> list[str]:
    return [notice.title for notice in end.notices]


@pytest.fixture
def lab(tmp_path):
    made = Lab(tmp_path)
    with made.home:
        yield made


# --- quotas ----------------------------------------------------------------------------------------------------


def test_a_quota_is_told_once_when_it_is_used_up_and_once_when_it_is_free(lab):
    jobs, memo, told = lab.jobs(), {}, []
    for number, exceeded in enumerate([(), ("disk",), ("disk",), ("disk", "cost_per_day"), (), ()]):
        lab.meter.exceeded = set(exceeded)
        end = jobs.quota(tick(due=f"tick {number}", memo=memo))
        memo = end.memo
        told.append([(notice.kind, notice.key) for notice in end.notices])

    assert told == [
        [],
        [("quota_exceeded", "quota_exceeded:disk@here:tick 1")],
        [],
        [("quota_exceeded", "quota_exceeded:cost_per_day:tick 3")],
        [("quota_free", "quota_free:disk@here:tick 4"), ("quota_free", "quota_free:cost_per_day:tick 4")],
        [],
    ]


def test_what_another_machine_knows_of_its_own_disk_is_left_to_it(lab):
    memo = {"exceeded": {"disk@there": "tick 0", "cost_per_day": "tick 0"}}

    end = lab.jobs().quota(tick(memo=memo))

    assert end.memo == {"exceeded": {"disk@there": "tick 0"}}
    assert [notice.kind for notice in end.notices] == ["quota_free"]


# --- crashed and stuck work ------------------------------------------------------------------------------------


def test_what_needs_a_person_is_told_under_the_same_key_each_time(lab):
    lab.steps = (
        RecoveryStep(adw_id="1a2b3c4d", action=RecoveryAction.REQUEUE, why="its worker is dead"),
        RecoveryStep(adw_id="5e6f7a8b", action=RecoveryAction.REPORT, why="its document is corrupt"),
    )

    first, again = lab.jobs().recover(tick("recover")), lab.jobs().recover(tick("recover", LATER))

    assert first.outcome == "1 recovered, 1 need a person, 0 do not move"
    assert titles(first) == ["workflow 5e6f7a8b needs a person: its document is corrupt"]
    assert [notice.key for notice in first.notices] == [notice.key for notice in again.notices]


def test_a_workflow_that_does_not_move_is_told_once_with_why(lab):
    lab.stuck = (stuck("1a2b3c4d"),)

    first, again = lab.jobs().recover(tick("recover")), lab.jobs().recover(tick("recover", LATER))

    (notice,) = first.notices
    assert notice.key == f"stuck:1a2b3c4d:too_long:{DUE}"
    assert notice.title == f"workflow 1a2b3c4d has not moved since {DUE}: it takes long"
    assert (first.outcome, again.notices) == ("0 recovered, 0 need a person, 1 do not move", first.notices)


# --- left-overs, breakers, retention ---------------------------------------------------------------------------


ORPHANS = (
    Orphan(kind="worktree", name="trees/x", adw_id="1a2b3c4d", why="it is over"),
    Orphan(kind="lock", name="42", adw_id="1a2b3c4d", why="it is gone"),
)


def test_left_overs_are_only_named_unless_removing_them_is_switched_on(lab):
    lab.collector = Collector(*ORPHANS)

    end = lab.jobs().gc(tick("gc"))

    assert lab.collector.removed == []
    assert end.outcome == "2 left over; adw admin gc --execute removes them"
    assert end.details == ("worktree trees/x: it is over", "lock 42: it is gone", "the remote did not answer")


def test_left_overs_are_removed_where_that_is_switched_on(lab):
    lab.collector = Collector(*ORPHANS)

    end = lab.jobs().gc_execute(tick("gc_execute"))

    assert lab.collector.removed == list(ORPHANS)
    assert (end.outcome, end.details[0]) == ("1 removed, 1 left", "lock 42: held")


def test_a_breaker_whose_time_has_come_may_be_tried_and_the_place_of_an_ended_trial_is_free(lab):
    now = timestamps.to_text(lab.clock.now())
    past = timestamps.to_text(lab.clock.now() - timedelta(seconds=1))
    future = timestamps.to_text(lab.clock.now() + timedelta(hours=1))
    breakers = DatabaseBreakers(lab.home.database)
    row = BreakerRow(name="x", opened_at=past, changed_at=past, reason="529")
    permit = Permit(token="t", generation=1, expires_at=past)
    for name, changes in {
        "anthropic": {"state": "open", "reopens_at": past},
        "github": {"state": "open", "reopens_at": future},
        "openai": {"state": "half_open", "permits": (permit,)},
        "git": {"state": "closed"},
    }.items():
        breakers.change(name, lambda _row, name=name, changes=changes: replace(row, name=name, **changes))

    end = lab.jobs().breakers(tick("breakers"))

    assert end.outcome == "1 open, 2 ready for a trial call"
    assert end.details == (
        f"Circuit breaker open for github until {future}: 529",
        "anthropic is ready for a trial call",
        "openai is ready for a trial call",
    )
    assert (breakers.read("anthropic").state, breakers.read("anthropic").changed_at) == ("half_open", now)
    assert breakers.read("openai").permits == ()
    assert breakers.read("git").changed_at == past


def test_old_notifications_are_forgotten(lab):
    lab.home.notifications.add(lab.jobs().report(tick("report")).notices)
    lab.jobs().notify(tick("notify"))
    lab.clock.advance(31 * 86400.0)

    assert lab.jobs().retention(tick("retention")).outcome == "0 workflows and 1 notification forgotten"


def test_what_is_older_than_the_settings_say_is_forgotten_and_told(lab):
    class Forgetting:
        def forget_all(self):
            return 3, ("9 events of 2 finished workflows: 9 forgotten", "1a2b3c4d stays: it has its issue")

    lab.home.retention = Forgetting()

    end = lab.jobs().retention(tick("retention"))

    assert end.outcome == (
        "3 workflows and 0 notifications forgotten; 9 events of 2 finished workflows: 9 forgotten; "
        "1a2b3c4d stays: it has its issue"
    )
    assert len(end.details) == 2


# --- telling people --------------------------------------------------------------------------------------------


def test_the_report_counts_states_outcomes_failures_waiting_runs_and_the_cost_of_a_day(lab):
    moment = timestamps.to_text(lab.clock.now())
    for number in range(3):
        adw_id = f"1a2b3c4{number}"
        lab.home.store.create(
            make_document(adw_id, current_state="building", created_at=moment, updated_at=moment, issue_number=number)
        )
        lab.home.runs.enqueue(NewRun(adw_id=adw_id))
    ended = {"created_at": moment, "updated_at": moment, "issue_number": None}
    error = {"category": "fatal", "message": "no"}
    attempts = [
        AttemptRecord(number=1, status="failed", started_at=at, ended_at=at, error=error, report={"cost_usd": cost})
        for at, cost in (("2026-01-29T00:00:00.000000Z", 9.0), (moment, 1.25))
    ]
    phase = PhaseRecord(name="build", state="building", attempts=attempts)
    lab.home.store.create(make_document("5e6f7a8b", current_state="failed", phases=[phase], **ended))
    lab.home.store.create(make_document("9c0d1e2f", current_state="completed", **ended))
    lab.stuck = (stuck("1a2b3c4d"),)

    end = lab.jobs().report(tick("report"))

    assert end.outcome == "5 workflows, 3 runs waiting, 1 stuck, 1.25 USD in a day"
    assert "  building: 3" in end.details
    assert "Ended since 2026-01-30: 50%: 1 of 2 completed" in end.details
    assert "  1 x build, fatal: no" in end.details
    assert "  1a2b3c4d: it takes long; adw status 1a2b3c4d" in end.details
    assert "Spent since 2026-01-30: 1.25 USD in 1 attempt" in end.details
    assert [notice.key for notice in end.notices] == [f"report:{DUE}"]
    assert end.memo["report"].splitlines() == list(end.details)


def test_notifying_says_what_was_sent_and_brings_the_sums_of_reports_up(lab):
    refreshed = []
    lab.home.notifications.add(lab.jobs().report(tick("report")).notices)
    lab.home.reports = SimpleNamespace(refresh=lambda: refreshed.append(True))

    end = lab.jobs().notify(tick("notify"))

    assert end.outcome == "0 new, 1 sent, 0 to be retried, 0 failed"
    assert lab.sent == ["adw: 0 workflows, 0 runs waiting, 0.00 USD in a day"]
    assert refreshed == [True]


def test_every_entry_of_the_schedule_has_its_job_and_its_setting(lab):
    from adws.config import settings as config_settings

    jobs = {*lab.jobs().all(), *PollJobs(lab.home).all()}
    settings = {setting.name.removeprefix("cron_") for setting in config_settings.SETTINGS if "five" in setting.values}

    assert jobs == set(CRON_ENTRIES)
    assert settings == {name for name, (expression, _what) in CRON_ENTRIES.items() if not expression}
