"""The phases of a workflow as the status shows them."""

from __future__ import annotations

from datetime import UTC, datetime

from adws.adw_modules import timestamps
from adws.cli import views as cli_views

NOW = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)


def phase(**facts):
    return {"name": "build", "state": "building", "status": "failed", "attempts_used": 2, "max_attempts": 2} | facts


def test_totals_count_every_round_and_the_average_only_what_has_a_time():
    attempts = [
        {
            "number": 1,
            "round": 1,
            "status": "failed",
            "duration": 2.0,
            "error": {"message": "red", "category": "fatal"},
        },
        {"number": 2, "round": 1, "status": "suspended", "duration": 4.0},
        {"number": 3, "round": 2, "status": "interrupted", "duration": None},
    ]

    data = cli_views.phase_data(phase(granted=1, attempts=attempts))

    assert (data["total_attempts"], data["suspended_attempts"], data["max_attempts"]) == (3, 1, 3)
    assert (data["total_seconds"], data["average_seconds"]) == (6.0, 3.0)
    assert data["attempts"][0]["error"] == "red"
    assert data["attempts"][0]["category"] == "fatal"
    assert data["attempts"][1]["error"] is None


def test_a_row_has_counters_times_and_the_failure_cut_to_fit():
    attempts = [{"status": "failed", "duration": 75.0}, {"status": "suspended", "duration": 5.0}]
    long = cli_views.phase_data(phase(attempts=attempts, last_failure_reason="x" * 100))
    fresh = cli_views.phase_data({"name": "test", "status": "queued", "attempts_used": 0, "max_attempts": 5})

    lines = cli_views.phase_lines([long, fresh], NOW)

    assert lines[1].split() == [
        "PHASE",
        "STATUS",
        "ATTEMPTS",
        "IN",
        "ALL",
        "TIME",
        "AVERAGE",
        "NEXT",
        "TRY",
        "LAST",
        "FAILURE",
    ]
    assert lines[2].startswith("build  failed  2/2       2 (1 suspended)  1 min 20 s  40 s     -         xxx")
    assert lines[2].endswith("...")
    assert lines[3].split() == ["test", "queued", "0/5", "0", "-", "-", "-", "-"]
    assert cli_views.phase_lines([], NOW) == []


def test_the_newest_failure_that_was_not_made_good_is_told():
    old = phase(name="lint", last_failure_reason="style", last_attempt_timestamp="2026-01-31T08:00:00Z")
    new = phase(
        name="test", last_failure_reason="red", last_attempt_timestamp="2026-01-31T08:30:00Z", status="retry_wait"
    )
    good = phase(last_failure_reason="flaky", last_attempt_timestamp="2026-01-31T08:59:00Z", status="complete")

    assert cli_views.newest_failure([new, old, good]) == "test: red"
    assert cli_views.newest_failure([good]) == ""


def test_the_phase_that_failed_is_the_last_one_that_did():
    assert (
        cli_views.failed_phase([phase(name="audit"), phase(name="test"), phase(name="ship", status="queued")])["name"]
        == "test"
    )
    assert cli_views.failed_phase([]) == {}


def test_hints_are_shown_with_what_is_known_about_them():
    at = timestamps.to_text(NOW)
    full = cli_views.hint_data({"text": "use less memory", "by": "ann", "at": at, "phase": "test", "other": 1})

    assert cli_views.hint_lines([full, {"text": "hurry"}], NOW) == [
        "",
        "hint: use less memory [for test, by ann, 2026-01-31 09:00:00 UTC (now)]",
        "hint: hurry",
    ]
    assert cli_views.hint_lines([], NOW) == []


def test_odd_fields_are_shown_as_far_as_they_go():
    data = cli_views.phase_data({"name": None, "max_attempts": "many", "attempts": [3, {"error": "text"}]})

    assert data["max_attempts"] == 0
    assert data["total_attempts"] == 1
    assert cli_views.phase_lines([data], NOW)[2].split()[0] == "/0"


def test_a_wait_for_others_is_said_with_its_reason():
    waiting = cli_views.phase_data(
        phase(status="retry_wait", retry_at="2026-01-31T10:00:00.000000Z", wait_reason="anthropic keeps failing")
    )

    (line,) = cli_views.wait_lines([waiting, cli_views.phase_data(phase())], NOW)

    assert line.startswith("waiting: build until ")
    assert line.endswith(": anthropic keeps failing")


def test_parked_attempts_are_told_apart():
    data = cli_views.phase_data(phase(attempts=[{"status": "parked"}, {"status": "suspended"}, {"status": "failed"}]))

    assert (data["suspended_attempts"], data["parked_attempts"]) == (1, 1)
    assert "3 (1 suspended, 1 parked)" in "\n".join(cli_views.phase_lines([data], NOW))


def test_the_doctor_is_told_decision_by_decision():
    calls = [
        {"attempt": 2, "by": "rules", "decision": "retry_model", "reason": "too hard", "model": "large", "more": 1},
        {"attempt": 3, "by": "claude", "decision": "replan", "reason": "wrong", "problem": "it cannot be done: x"},
        {"attempt": 4, "by": "pkg:fn"},
    ]
    data = cli_views.phase_data(phase(doctor=calls, attempts=[{"number": 1, "model": "small"}]))

    assert cli_views.doctor_lines([data]) == [
        "",
        "doctor: build, attempt 2: retry_model large: too hard [by rules]",
        "doctor: build, attempt 3: replan: wrong (it cannot be done: x) [by claude]",
        "doctor: build, attempt 4: was asked and gave no answer [by pkg:fn]",
    ]
    assert data["doctor"][0] == {key: calls[0][key] for key in ("attempt", "by", "decision", "reason", "model")}
    assert data["attempts"][0]["model"] == "small"
    assert cli_views.doctor_lines([cli_views.phase_data(phase())]) == []
