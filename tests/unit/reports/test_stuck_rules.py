"""What is stuck, and why."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.reports.model import PhaseHistory, RunningNow, StuckKind, Subject, WaitingNow, WaitKind
from adws.adw_modules.reports.reports import StuckFacts, find_stuck
from adws.testing import START

SUBJECT = Subject(adw_id="1a2b3c4d", workflow="sdlc", state="building")


def ago(seconds: float) -> str:
    return timestamps.to_text(START - timedelta(seconds=seconds))


def running(seconds: float = 10.0, **fields) -> RunningNow:
    usual = {"phase": "build", "attempt": 2, "started_at": ago(seconds), "seconds_left": 25.0, "silent_seconds": 5.0}

    return RunningNow(subject=SUBJECT, run_id=7, kind="start", is_stopping=False, owner="", **{**usual, **fields})


def history(**fields) -> dict[tuple[str, str], PhaseHistory]:
    usual = {"count": 20, "median": 60.0, "p95": 100.0, "longest": 150.0}

    return {("sdlc", "build"): PhaseHistory(workflow="sdlc", phase="build", **{**usual, **fields})}


def find(**facts):
    return find_stuck(StuckFacts(now=START, **facts))


def test_what_moves_is_not_stuck():
    waits = WaitingNow(subject=SUBJECT, kind=WaitKind.RETRY, since=ago(99_999))

    assert find(running=[running()], waiting=[waits], histories=history(), has_worker=False) == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seconds_left": -12.0}, "12 s"),
        ({"silent_seconds": 61.0}, "1 min 1 s"),
        ({"seconds_left": -1.0, "silent_seconds": None}, "1.0 s"),
    ],
    ids=["claim over", "no heartbeat", "no worker of ours"],
)
def test_what_nobody_says_anything_of_is_silent_and_not_too_long_besides(fields, said):
    (result,) = find(running=[running(99_999, **fields)], histories=history())

    assert (result.kind, result.phase, result.since) == (StuckKind.SILENT, "build", ago(99_999))
    assert result.why == f"its worker has not said for {said} that it lives"
    assert result.commands == ("adw admin recover", "adw status 1a2b3c4d")


def test_a_worker_may_be_silent_for_two_leases():
    assert find(running=[running(silent_seconds=60.0)]) == ()
    assert find(lease_seconds=5.0, running=[running(silent_seconds=11.0)]) != ()


@pytest.mark.parametrize(
    ("took", "of_it", "is_stuck"),
    [
        (200.0, {}, False),
        (201.0, {}, True),
        (201.0, {"longest": 300.0}, False),
        (59.0, {"p95": 1.0, "longest": 2.0}, False),
        (61.0, {"p95": 1.0, "longest": 2.0}, True),
    ],
    ids=["twice what most took", "more", "it took longer once", "short all the same", "more than a minute"],
)
def test_an_attempt_takes_too_long_by_its_own_history(took, of_it, is_stuck):
    result = find(running=[running(took)], histories=history(**of_it))

    assert [one.kind for one in result] == ([StuckKind.TOO_LONG] if is_stuck else [])


def test_too_long_says_what_is_usual_and_what_to_type():
    (result,) = find(running=[running(3700.0)], histories=history())

    assert result.why == (
        "attempt 2 at build takes 1 h 1 min so far: of 20 that succeeded, 95 % took 1 min 40 s or less and none more "
        "than 2 min 30 s"
    )
    assert result.commands == ("adw logs 1a2b3c4d -f", "adw pause 1a2b3c4d")
    assert result.since == ago(3700.0)


@pytest.mark.parametrize("histories", [{}, history(count=4)], ids=["none", "too few"])
def test_without_a_history_a_fixed_time_holds(histories):
    assert find(running=[running(7200.0)], histories=histories) == ()
    (result,) = find(running=[running(7201.0)], histories=histories)
    assert result.why == (
        "attempt 2 at build takes 2 h 0 min so far: more than 2 h 0 min, and too few have succeeded to say how long it "
        "usually takes"
    )


def test_between_two_phases_nothing_takes_too_long():
    assert find(running=[running(99_999, phase="")]) == ()
    assert find(running=[running(started_at="torn")]) == ()


def test_what_is_under_way_and_nobody_has_is_unattended():
    with_phase = WaitingNow(subject=SUBJECT, kind=WaitKind.NOBODY, phase="build", since=ago(100))
    without = WaitingNow(subject=SUBJECT, kind=WaitKind.NOBODY, since=ago(100))

    first, second = find(unattended=[with_phase, without])

    assert (first.kind, first.since) == (StuckKind.UNATTENDED, ago(100))
    assert first.why == "build is under way by its document, but nobody works on it and no run of it waits"
    assert second.why.startswith("it is building by its document")
    assert first.commands == ("adw admin recover", "adw resume 1a2b3c4d")
    assert find(unattended=[WaitingNow(subject=SUBJECT, kind=WaitKind.NOBODY, since=ago(30))]) == ()


def test_what_is_due_is_stuck_when_no_worker_is_there():
    due = WaitingNow(subject=SUBJECT, kind=WaitKind.WORKER, since=ago(300))

    (result,) = find(waiting=[due], has_worker=False)

    assert (result.kind, result.commands) == (StuckKind.NOT_TAKEN, ("adw worker", "adw resume 1a2b3c4d"))
    assert result.why == "it has been due for 5 min 0 s, and no worker is there to take it"
    assert find(waiting=[due]) == ()
    fresh = WaitingNow(subject=SUBJECT, kind=WaitKind.WORKER, since=ago(299))
    assert find(waiting=[fresh], has_worker=False) == ()
