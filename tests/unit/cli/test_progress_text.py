"""What a person is told while a workflow runs."""

from __future__ import annotations

import pytest

from adws.adw_modules import identifiers
from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
from adws.adw_modules.events import Event
from adws.adw_modules.redaction.redactor import Redactor
from adws.cli import output as cli_output

NOW = "2026-01-31T09:00:00.000000Z"


def document(**facts):
    attempt = AttemptRecord(number=2, started_at=NOW, duration=75.0)
    record = PhaseRecord(
        **{"name": "build", "state": "building", "attempts_used": 2, "granted": 1, "attempts": [attempt]} | facts
    )
    return WorkflowDocument(
        adw_id="1a2b3c4d", issue_number=7, created_at=NOW, updated_at=NOW, current_state="building", phases=[record]
    )


def told(kind, **data):
    return cli_output.sentences(document(), [Event(event_type=kind, node_name="build", data=data)])


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("attempt_started", {"attempts_used": 1, "limit": 3}, "build: attempt 1/3"),
        ("attempt_started", {"attempts_used": 1, "limit": 3, "model": "large"}, "build: attempt 1/3 with large"),
        (
            "attempt_parked",
            {"at": "2026-01-31T10:00:00Z", "why": "a quota is used up: limit"},
            "build: a quota is used up: limit; resuming in 1 h 0 min, the attempt does not count",
        ),
        (
            "breaker_waited",
            {"at": "2026-01-31T09:00:12Z", "why": "github keeps failing"},
            "build: waiting, github keeps failing; resuming in 12 s",
        ),
        ("doctor_decided", {"decision": "replan", "reason": "wrong plan"}, "build: the doctor says replan: wrong plan"),
        (
            "doctor_decided",
            {"decision": "retry_model", "reason": "too hard", "model": "large"},
            "build: the doctor says retry_model with large: too hard",
        ),
        ("attempt_failed", {"error": {"message": "red\ntests"}}, "build: attempt 2/6 failed: red tests"),
        ("attempt_interrupted", {}, "build: attempt 2/6 was interrupted"),
        ("phase_completed", {}, "build: complete in 1 min 15 s"),
        ("phase_failed", {"terminal_reason": "REJECTED"}, "build: failed (REJECTED)"),
        ("phase_skipped", {"message": "its needs failed"}, "build: skipped: its needs failed"),
        ("retry_scheduled", {"at": "2026-01-31T09:00:12Z"}, "build: retrying in 12 s"),
        ("retry_scheduled", {"at": "2026-01-31T08:00:00Z"}, "build: retrying now"),
        ("retry_scheduled", {"at": "soon"}, "build: retrying at soon"),
        ("rework_asked", {"back_to": "plan"}, "build: sends the work back to plan"),
        ("base_checked", {"gates": [{"gate": "make", "passed": True}]}, "build: gates on the base commit: ok"),
        (
            "base_checked",
            {"gates": [{"gate": "make", "passed": False, "reason": "ended with exit code 2"}]},
            "build: gates on the base commit: `make` ended with exit code 2",
        ),
        (
            "work_discarded",
            {"files": ["a.pyc", "b.pyc"], "count": 2},
            "build: discarded what is left beside the work: a.pyc, b.pyc",
        ),
        (
            "work_discarded",
            {"files": list("abcdefg"), "count": 70},
            "build: discarded what is left beside the work: a, b, c, d, e and 65 more",
        ),
        ("approval_asked", {}, "build: waits for approval"),
        ("hint_given", {"text": "hurry"}, "hint noted: hurry"),
    ],
)
def test_each_event_is_one_sentence(kind, data, said):
    assert told(kind, **data) == [said]


def test_events_that_people_need_not_hear_of_are_left_out():
    assert told("state_changed", to="building") == []


def test_an_event_without_its_phase_is_still_told():
    event = Event(event_type="attempt_started", node_name="other")

    assert cli_output.sentences(document(), [event]) == ["other: attempt 0/0"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"status": "running"}, "build  attempt 2/6"),
        ({"status": "retry_wait", "retry_at": "2026-01-31T09:05:00Z"}, "build  attempt 3/6 at 09:05:00 UTC"),
        ({"status": "retry_wait"}, "build  attempt 3/6"),
        ({"status": "complete"}, "building"),
    ],
)
def test_the_line_says_what_the_workflow_is_doing(facts, said):
    assert cli_output.headline(document(**facts)) == said


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("Edit /w/t/src/app.py", 40, "edits src/app.py"),
        ("Edit /w/t/src/adw/modules/deep/app.py", 24, "edits .../deep/app.py"),
        ("Read /w/t/src/adw/modules/deep/app.py", 14, "reads src/a..."),
        ("Bash pytest -q tests/unit/cli", 20, "runs pytest -q te..."),
        ("I will look at the tests first", 20, "I will look at th..."),
    ],
)
def test_the_line_names_the_file_an_agent_works_on_also_where_there_is_little_room(line, width, shown):
    assert cli_output.fitting(cli_output.activity(line, "/w/t"), width) == shown


def test_plain_lines_of_a_worker_name_the_workflow(capsys):
    event = Event(event_type="phase_completed", node_name="build")

    cli_output.PlainLines(str, with_ids=True).tell(document(), [event])
    cli_output.PlainLines(str).tell(document(), [event])

    assert capsys.readouterr().err == "1a2b3c4d build: complete in 1 min 15 s\nbuild: complete in 1 min 15 s\n"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0.00 s"),
        (0.456, "0.46 s"),
        (4.26, "4.3 s"),
        (59.9, "59 s"),
        (125.0, "2 min 5 s"),
        (3780.0, "1 h 3 min"),
        (2.2 * 86_400, "2 d 4 h"),
    ],
)
def test_a_span_is_told_in_its_largest_units(seconds, said):
    assert identifiers.span(seconds) == said


def test_no_secret_is_in_a_line(capsys):
    """What was just stored was scrubbed on its way; the event in hand was not."""
    event = Event(event_type="hint_given", data={"text": "use correct-horse-battery"})

    cli_output.PlainLines(Redactor(["correct-horse-battery"]).redact_text).tell(document(), [event])

    assert "use [redacted]" in capsys.readouterr().err
