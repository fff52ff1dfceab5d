"""What the overview says about a home."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime

import pytest

from adws.adw_modules.circuit_breaker import BreakerRow
from adws.adw_modules.reports.model import (
    CostSum,
    Count,
    DayOutcomes,
    QueueNow,
    RunningNow,
    StuckKind,
    StuckNow,
    Subject,
    WaitingNow,
    WaitKind,
)
from adws.adw_modules.resources.quotas import QuotaStatus
from adws.web.dashboard import overview
from adws.web.dashboard.frame import Frame, Viewer
from adws.web.dashboard.overview import Concern, OverviewSnapshot

NOW = datetime(2026, 1, 31, 14, 5, tzinfo=UTC)
NONE = Count(number=0)
SUBJECT = Subject(adw_id="1a2b3c4d", title="Pay by invoice", state="building")


def seen(**changes) -> OverviewSnapshot:
    facts = {
        "now": NOW,
        "states": {"completed": Count(number=3)},
        "queue": QueueNow(due=NONE, later=NONE, at_work=NONE),
        **dict.fromkeys(
            (
                "running",
                "waiting",
                "for_people",
                "stuck",
                "outcomes",
                "costs",
                "failures",
                "gauges",
                "breakers",
                "runners",
            ),
            (),
        ),
    }
    return OverviewSnapshot(**{**facts, **changes})


def runner(state: str) -> dict[str, object]:
    return {"state": state}


def quota(name="runs", *, used=1.0, limit=4.0, unit="workflows", **changes) -> QuotaStatus:
    facts = {"is_exceeded": False, "detail": f"the detail of {name}", **changes}
    return QuotaStatus(name=name, used=used, limit=limit, unit=unit, **facts)


def tile(of: OverviewSnapshot, label: str, budget: float = 10.0) -> tuple[str, str, str]:
    """Value, note and tone of a number at the top of the page."""
    pages = Frame(now=lambda: NOW, redact=str, is_read_only=True)
    page = pages.text("tiles.html", path="/", viewer=Viewer(), **overview.numbers(of, budget=budget))
    shown = rf'<li class="tile(?: tile-(\w+))?"><a [^>]*><span>{label}[^<]*</span> <b>(.*)</b> <small>(.*)</small>'
    tone, value, note = re.search(shown, page).groups()

    return html.unescape(value), html.unescape(note), tone or ""


# --- days ------------------------------------------------------------------------------------------------------


def test_the_window_ends_today_and_every_day_of_it_is_told_also_those_without_work():
    result = overview.by_day(
        seen(outcomes=[DayOutcomes(day="2026-01-30", failed=2)], costs=[CostSum(key="2026-01-31", cost_usd=1.5)])
    )

    assert overview.window_days(NOW, 3) == ("2026-01-29", "2026-01-30", "2026-01-31")
    assert [(one.day, one.failed, spent) for one, spent in result[:3]] == [
        ("2026-01-31", 0, 1.5),
        ("2026-01-30", 2, 0.0),
        ("2026-01-29", 0, 0.0),
    ]
    assert len(result) == overview.DAYS


def test_a_home_is_new_until_something_was_started():
    assert seen(states={}).is_new
    assert not seen().is_new
    assert not seen(states={}, outcomes=[DayOutcomes(day="2026-01-30", completed=1)]).is_new, "forgotten, but done"


# --- on top ----------------------------------------------------------------------------------------------------


def test_success_is_the_share_of_those_that_ended():
    days = [DayOutcomes(day="2026-01-30", completed=2, failed=1), DayOutcomes(day="2026-01-31", rolled_back=1)]

    result = tile(seen(outcomes=days), "Success")

    assert result[:2] == ("50 %", "2 of 4 completed in 14 days")
    assert tile(seen(), "Success")[:2] == ("—", "nothing ended yet")


@pytest.mark.parametrize(
    ("spent", "budget", "tone"),
    [(7.9, 10.0, ""), (8.0, 10.0, "wait"), (10.0, 10.0, "bad"), (1.0, 0.0, "")],
    ids=["some", "nearly", "all", "no-budget"],
)
def test_the_cost_of_today_is_shown_against_the_budget(spent, budget, tone):
    costs = [CostSum(key="2026-01-30", cost_usd=50.0), CostSum(key="2026-01-31", cost_usd=spent)]

    result = tile(seen(costs=costs), "Cost today", budget)

    assert result == (f"${spent:.2f}", f"of ${budget:.2f}", tone)


def test_what_runs_says_for_how_long():
    def running(started_at):
        return RunningNow(
            subject=SUBJECT,
            phase="build",
            attempt=1,
            started_at=started_at,
            run_id=1,
            kind="start",
            is_stopping=False,
            owner="",
            seconds_left=9.0,
        )

    both = [running("2026-01-31T14:04:30.000000Z"), running("2026-01-31T14:00:00.000000Z")]

    assert tile(seen(running=both), "Running") == ("2", "the longest for 5 min 0 s", "busy")
    assert tile(seen(running=both * 25), "Running")[0] == "50+"
    assert tile(seen(), "Running") == ("0", "nothing is running", "")


def test_approvals_are_counted_apart_from_what_else_needs_a_person():
    approval, paused = (WaitingNow(subject=SUBJECT, kind=kind) for kind in (WaitKind.APPROVAL, WaitKind.PERSON))

    assert tile(seen(for_people=[approval, approval, paused]), "Waiting") == ("2", "1 more need a person", "wait")
    assert tile(seen(), "Waiting") == ("0", "nothing else needs a person", "")


def test_what_is_due_says_since_when():
    queue = QueueNow(due=Count(number=2), later=NONE, at_work=NONE, oldest_due_at="2026-01-31T14:04:00.000000Z")

    assert tile(seen(queue=queue), "Queued")[:2] == ("2", "the oldest for 1 min 0 s")
    assert tile(seen(), "Queued")[:2] == ("0", "nothing is due")


def test_failed_workflows_are_counted_in_red():
    assert tile(seen(states={"failed": Count(number=2)}), "Failed") == ("2", "retry them or roll them back", "bad")
    assert tile(seen(), "Failed") == ("0", "none", "")


def test_every_way_of_waiting_has_words():
    assert set(overview.WAITS) == set(WaitKind)


# --- what needs somebody ---------------------------------------------------------------------------------------


def test_nothing_to_do_is_no_concern():
    assert overview.concerns(seen(gauges=[quota()], breakers=[BreakerRow(name="x")])) == ()


def test_work_that_is_due_without_a_worker_is_a_concern():
    queue = QueueNow(due=Count(number=2), later=NONE, at_work=NONE)

    [alone] = overview.concerns(seen(queue=queue, runners=[runner("silent")]))

    assert (alone.what, alone.advice, alone.is_command) == ("No worker is running", "adw worker", True)
    assert overview.concerns(seen(queue=queue, runners=[runner("online")])) == ()


def test_what_stops_work_is_a_concern_with_what_to_do():
    stuck = StuckNow(
        subject=SUBJECT, kind=StuckKind.SILENT, phase="build", since="", why="its worker is silent", commands=("adw x",)
    )
    breakers = [BreakerRow(name="anthropic", state="open", reason="HTTP 529"), BreakerRow(name="y", state="open")]

    result = overview.concerns(
        seen(gauges=[quota(is_exceeded=True), quota("z", is_exceeded=True)], breakers=breakers, stuck=[stuck])
    )

    assert result == (
        Concern(what="Running workflows: the limit is reached", why="the detail of runs"),
        Concern(what="z: the limit is reached", why="the detail of z"),
        Concern(what="Circuit breaker open for anthropic", why="HTTP 529"),
        Concern(what="Circuit breaker open for y", why="it failed too often"),
        Concern(
            what="Pay by invoice",
            why="its worker is silent",
            advice="adw x",
            href="/workflows/1a2b3c4d",
            is_command=True,
        ),
    )


def test_what_is_stuck_without_a_title_is_named_by_its_id():
    bare = StuckNow(subject=Subject(adw_id="1a2b3c4d"), kind=StuckKind.NOT_TAKEN, phase="", since="", why="w")

    assert overview.concerns(seen(stuck=[bare])) == (Concern(what="1a2b3c4d", why="w", href="/workflows/1a2b3c4d"),)


# --- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "share", "text", "tone"),
    [
        (quota(), 0.25, "1 of 4", "good"),
        (quota(used=4), 1.0, "4 of 4", "wait"),
        (quota(used=5, is_exceeded=True), 1.0, "5 of 4", "bad"),
        (quota("cost_per_day", used=8, limit=10, unit="USD"), 0.8, "$8.00 of $10.00", "wait"),
        (quota("worktree_size", used=2.5, limit=5, unit="GB"), 0.5, "2.5 GB of 5 GB", "good"),
        (quota("disk", used=40, limit=10, unit="GB free"), 0.25, "40 GB, at least 10 GB", "good"),
        (quota("disk", used=11, limit=10, unit="GB free"), 10 / 11, "11 GB, at least 10 GB", "wait"),
        (quota("disk", used=0.5, limit=10, unit="GB free", is_exceeded=True), 1.0, "512 MB, at least 10 GB", "bad"),
        (quota(used=0, limit=0), 0.0, "0 of 0", "good"),
        (quota(is_known=False), None, "not known yet", "quiet"),
    ],
    ids=["some", "full", "over", "money", "size", "floor", "floor-near", "floor-broken", "no-limit", "unknown"],
)
def test_a_gauge_shows_how_full_a_limit_is(status, share, text, tone):
    gauge = overview.gauge_of(status)

    assert (gauge.share, gauge.text, gauge.tone) == (share, text, tone)
    assert gauge.detail == status.detail
