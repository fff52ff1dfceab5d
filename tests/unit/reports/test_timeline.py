"""A timeline says when a workflow worked, when it waited, and for what."""

from __future__ import annotations

import pytest

from adws.adw_modules.reports import timeline as reports_timeline
from adws.adw_modules.reports.timeline import WAITS, timeline
from tests.unit.timeline_cases import at, document, move, phase, short, text, tried


def bars(found: reports_timeline.Timeline) -> list[tuple[str, str, float, float]]:
    return [short(bar) for bar in found.bars]


# --- attempts --------------------------------------------------------------------------------------------------


def test_attempts_are_blocks_and_the_time_before_the_first_is_spent_in_the_queue():
    result = timeline(
        document(
            phase("plan", tried(1, 10, 40)),
            phase("build", tried(1, 40, 100)),
            history=(move("building", "completed", 100),),
        ),
        now=at(500),
    )

    assert bars(result) == [("plan", "queue", 0, 10), ("plan", "succeeded", 10, 40), ("build", "succeeded", 40, 100)]
    assert (result.start, result.end) == (at(0), at(100))
    assert (result.worked_seconds, result.waited_seconds, result.seconds) == (90, 10, 100)
    assert [lane.name for lane in result.lanes] == ["plan", "build"]


def test_an_attempt_is_told_with_its_round_its_waiting_and_its_error():
    error = {"message": "x" * 300, "category": "transient"}
    one = tried(3, 0, 40, "failed", round=2, error=error, waited_seconds=12.0)

    (bar,) = timeline(document(phase("build", one), history=(move("building", "failed", 40),)), now=at(40)).bars

    assert bar.label == f"attempt 3, round 2 failed, 12 s of it waiting: {'x' * 199}\u2026"
    assert (bar.attempt, bar.round, bar.seconds) == (3, 2, 40)


def test_an_attempt_that_waits_for_others_is_told_in_both_its_parts():
    one = tried(1, 0, None, "waiting", waiting_since=text(20))
    waits = phase("build", one, status="retry_wait", wait_reason="runs the step fetch")

    work, wait = timeline(document(waits), now=at(60)).bars

    assert (short(work), work.attempt) == (("build", "running", 0, 20), 1)
    assert (short(wait), wait.attempt, wait.is_open) == (("build", "others", 20, 60), 0, True)
    assert wait.label == "waits for work that others do: runs the step fetch"


SUSPENDED = tried(1, 0, 10, "suspended")
CASES = {
    "never begun": (
        20,
        document(phase("plan", status="queued"), phase("build", status="queued"), current_state="pending"),
        [("plan", "queue", 0, 20)],
    ),
    "the turn of a phase": (
        20,
        document(phase("plan", tried(1, 0, 10)), phase("build", status="queued")),
        [("plan", "succeeded", 0, 10), ("build", "queue", 10, 20)],
    ),
    "a moment between two attempts": (
        2000,
        document(phase("build", tried(1, 0, 1000, "failed"), tried(2, 1003)), phase("test")),
        [("build", "failed", 0, 1000), ("build", "running", 1003, 2000)],
    ),
    "two clocks that overlap": (
        40,
        document(phase("plan", tried(1, 0, 30)), phase("build", tried(1, 20), status="running")),
        [("plan", "succeeded", 0, 30), ("build", "running", 20, 40)],
    ),
    "a wait that a pause ended": (
        100,
        document(
            phase("build", tried(1, 0, 10, "failed"), tried(2, 60)),
            history=(move("building", "paused", 40), move("paused", "building", 60)),
        ),
        [
            *(("build", "failed", 0, 10), ("build", "retry", 10, 40)),
            *(("build", "paused", 40, 60), ("build", "running", 60, 100)),
        ],
    ),
    "resumed": (
        50,
        document(
            phase("build", SUSPENDED, status="queued"),
            history=(move("building", "paused", 10), move("paused", "building", 30)),
        ),
        [("build", "suspended", 0, 10), ("build", "paused", 10, 30), ("build", "queue", 30, 50)],
    ),
    "paused before its first phase": (
        50,
        document(phase("plan", status="queued"), history=(move("pending", "paused", 10),)),
        [("plan", "queue", 0, 10), ("plan", "paused", 10, 50)],
    ),
    "a move whose moment cannot be read": (
        50,
        document(
            phase("build", SUSPENDED, status="suspended"),
            history=(move("building", "paused", 10).changed(timestamp="yesterday"),),
        ),
        [("build", "suspended", 0, 10), ("build", "queue", 10, 50)],
    ),
    **{
        f"an attempt that began {moment!r}": (50, document(phase("build", SUSPENDED.changed(started_at=moment))), [])
        for moment in ("", "soon", "1970-01-01T00:00:00.000000Z")
    },
    **{
        f"an attempt that waits since {since}": (
            60,
            document(phase("build", tried(1, 0, None, "waiting", waiting_since=since), status="retry_wait")),
            [("build", "waiting", 0, 60)],
        )
        for since in (None, "2099-01-01T00:00:00.000000Z")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_every_stretch_of_time_is_one_bar(name):
    now, made, expected = CASES[name]

    assert bars(timeline(made, now=at(now))) == expected


# --- waits -----------------------------------------------------------------------------------------------------


def test_between_a_failed_attempt_and_the_next_the_phase_waits_for_its_retry():
    result = timeline(
        document(
            phase("build", tried(1, 0, 10, "failed", error={"message": "reset"}), tried(2, 40, 50)),
            history=(move("building", "completed", 50),),
        ),
        now=at(50),
    )

    assert bars(result)[1] == ("build", "retry", 10, 40)
    assert result.bars[1].label == "waits for its next attempt: reset"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        ("parked", {"message": "quota", "category": "rate_limit"}, "quota"),
        ("parked", {"message": "502", "category": "transient"}, "party"),
        ("failed", {"message": "429", "category": "rate_limit"}, "quota"),
        ("interrupted", {"message": "gone"}, "lost"),
        ("suspended", {"message": 5}, "queue"),
        ("succeeded", None, "queue"),
    ],
)
def test_the_cause_of_a_wait_is_read_off_the_attempt_before_it(status, error, kind):
    made = document(phase("build", tried(1, 0, 10, status, error=error), tried(2, 40)))

    assert bars(timeline(made, now=at(50)))[1] == ("build", kind, 10, 40)


def test_a_retry_that_is_planned_reaches_to_its_moment_and_counts_until_now():
    waits = phase("build", tried(1, 0, 100, "failed"), status="retry_wait", retry_at=text(130))

    result = timeline(document(waits), now=at(110))

    assert bars(result)[-1] == ("build", "retry", 100, 130)
    assert result.bars[-1].is_open
    assert (result.end, result.is_cut, result.spent["retry"]) == (at(130), False, 10)


def test_a_long_wait_for_a_person_is_cut_and_counted_whole():
    history = (move("building", "failed", 1000),)
    made = document(phase("build", tried(1, 0, 1000, "failed"), status="failed"), history=history)

    result = timeline(made, now=at(99_000))

    assert (result.end, result.is_cut) == (at(1250), True)
    assert bars(result)[-1] == ("build", "stopped", 1000, 1250)
    assert result.spent["stopped"] == 98_000


@pytest.mark.parametrize(
    ("before", "category", "kind"),
    [("parked", "rate_limit", "quota"), ("parked", "transient", "party"), ("succeeded", "", "party")],
)
def test_a_wait_for_a_quota_or_a_party_says_what_for(before, category, kind):
    made = tried(1, 0, 10, before, error={"category": category})
    waits = phase("build", made, status="retry_wait", retry_at=text(60), wait_reason="claude is out of order")

    value = timeline(document(waits), now=at(20)).bars[-1]

    assert (value.kind, value.label) == (kind, f"{WAITS[kind]}: claude is out of order")


# --- parked ----------------------------------------------------------------------------------------------------


def test_a_pause_is_told_with_its_reason_and_what_follows_is_the_queue():
    history = (
        move("building", "paused", 10, reason="lunch"),
        move("paused", "building", 60, reason="resumed", by="ada"),
    )
    made = document(phase("build", tried(1, 0, 10, "suspended"), tried(2, 80)), history=history)

    result = timeline(made, now=at(100))

    assert bars(result)[1:3] == [("build", "paused", 10, 60), ("build", "queue", 60, 80)]
    assert result.bars[1].label == "paused: lunch"


def test_a_phase_that_waits_for_a_person_waits_until_now():
    history = (move("building", "paused", 10, reason="awaiting_approval"),)
    made = document(phase("build", tried(1, 0, 10), status="waiting"), history=history)

    result = timeline(made, now=at(60))

    assert bars(result)[-1] == ("build", "approval", 10, 60)
    assert (result.bars[-1].is_open, result.bars[-1].label) == (True, "waits for a person to decide")


def test_a_workflow_that_failed_waits_for_a_person():
    history = (move("building", "failed", 10, reason="MAX_ATTEMPTS_EXHAUSTED"),)
    made = document(phase("build", tried(1, 0, 10, "failed"), status="failed"), history=history)

    assert timeline(made, now=at(50)).bars[-1].label == "failed, waits for a person: MAX_ATTEMPTS_EXHAUSTED"
    assert bars(timeline(made, now=at(50)))[-1] == ("build", "stopped", 10, 50)


def test_a_pause_of_a_workflow_without_phases_has_no_lane():
    assert timeline(document(history=(move("pending", "paused", 10),)), now=at(50)).bars == ()


# --- the end ---------------------------------------------------------------------------------------------------


def test_what_ended_is_shown_until_its_end_and_not_until_it_was_undone():
    history = (move("building", "abandoned", 60), move("abandoned", "rolled_back", 5000))
    waits = phase("build", tried(1, 0, 10, "failed"), status="retry_wait", retry_at=text(90))

    result = timeline(document(waits, history=history), now=at(9000))

    assert result.end == at(60)
    assert bars(result)[-1] == ("build", "retry", 10, 60)
    assert not result.bars[-1].is_open


def test_what_ended_nobody_knows_when_is_shown_until_it_was_last_changed():
    made = document(phase("build", tried(1, 0, 10)), current_state="completed", updated_at=text(20))

    assert timeline(made, now=at(500)).end == at(20)
    unread = move("building", "completed", 10).changed(timestamp="soon")
    assert timeline(made.changed(state_history=[unread]), now=at(500)).end == at(20)


def test_an_empty_workflow_has_an_empty_timeline_that_is_not_of_length_nothing():
    result = timeline(document(created_at="1970-01-01T00:00:00.000000Z"), now=at(5))

    assert (result.bars, result.start, result.seconds) == ((), at(5), 1.0)


def test_of_very_many_bars_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr(reports_timeline, "MOST_BARS", 2)
    made = document(phase("build", tried(1, 0, 10, "failed"), tried(2, 40, 50), tried(3, 50, 60)))

    result = timeline(made, now=at(60))

    assert bars(result) == [("build", "succeeded", 40, 50), ("build", "succeeded", 50, 60)]
    assert (result.left_out, result.start, result.spent["retry"]) == (2, at(40), 30)


# --- moments ---------------------------------------------------------------------------------------------------


def test_reworks_and_what_people_decided_are_marked():
    history = (
        move("testing", "building", 10, reason="rework"),
        move("paused", "building", 20, reason="resumed", by="ada"),
        move("paused", "testing", 30, reason="approved"),
        move("building", "linting", 40, reason=5),
        move("drawing", "building", 50),
        move("testing", "building", 60).changed(timestamp="soon"),
    )

    value = timeline(document(phase("build"), history=history, current_state="testing"), now=at(100)).marks

    assert [(mark.kind, mark.at, mark.label) for mark in value] == [
        ("rework", at(10), "testing sent the work back to building"),
        ("resumed", at(20), "resumed by ada"),
        ("approved", at(30), "approved"),
    ]
