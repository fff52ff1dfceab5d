"""What a workflow does or waits for, read from its document and its run."""

from __future__ import annotations

import pytest

from adws.adw_modules import plain_document
from adws.adw_modules.engine.transitions import QUOTA_WAIT
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import AtWork, RunFacts, Subject, WaitKind

SUBJECT = Subject(adw_id="1a2b3c4d")
SINCE, NOW, LATER = "2026-01-31T08:00:00.000000Z", "2026-01-31T09:00:00.000000Z", "2026-01-31T10:00:00.000000Z"


def waits(phase=None, *, not_before: str = LATER, reason: str = "", **fields):
    data = {"phases": [{"name": "build", **phase}] if phase else [], **fields}
    facts = RunFacts(since=SINCE, not_before=not_before, reason=reason)

    return reports_model.waiting(SUBJECT, data, facts, now=NOW)


def test_what_is_due_waits_for_a_worker_since_it_is_due():
    """
    Whatever its phase waited for before.
    """
    at_once = waits({"status": "retry_wait", "retry_at": NOW}, not_before="", reason="drained")
    due = waits(not_before="2026-01-31T08:30:00.000000Z")

    assert (at_once.kind, at_once.since, at_once.why) == (WaitKind.WORKER, SINCE, "drained")
    assert due.since == "2026-01-31T08:30:00.000000Z"


@pytest.mark.parametrize(
    ("phase", "kind", "until", "why"),
    [
        ({"retry_at": NOW, "last_failure_reason": "no"}, WaitKind.RETRY, NOW, "no"),
        ({"retry_at": NOW, "attempts": [{"error": {"category": "rate_limit"}}]}, WaitKind.RATE_LIMIT, NOW, ""),
        ({"retry_at": NOW, "wait_reason": f"{QUOTA_WAIT}: x"}, WaitKind.QUOTA, NOW, f"{QUOTA_WAIT}: x"),
        ({"retry_at": NOW, "wait_reason": "github is held off"}, WaitKind.BREAKER, NOW, "github is held off"),
        ({"wait_reason": "waits for 3 calls"}, WaitKind.CALLS, "", "waits for 3 calls"),
        ({}, WaitKind.RETRY, LATER, ""),
    ],
    ids=["retry", "rate limit", "quota", "breaker", "calls", "nothing known"],
)
def test_a_phase_says_what_it_waits_for(phase, kind, until, why):
    """
    A moment that nobody knows is not made up.
    """
    result = waits({"status": "retry_wait", **phase})

    assert (result.kind, result.phase, result.since, result.until, result.why) == (kind, "build", SINCE, until, why)


def test_a_phase_of_the_runner_external_waits_for_somebody_outside_until_its_deadline():
    """
    Its definition says what its runner is.
    """
    defined = {"phases": [{"name": "other"}, {"name": "build", "runner": "external"}]}

    result = waits({"status": "retry_wait", "wait_reason": "waits for task 1"}, workflow=defined)

    assert (result.kind, result.until) == (WaitKind.EXTERNAL, LATER)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("the quota worktrees is used up: 5 of 5", WaitKind.QUOTA), ("somebody is at it", WaitKind.LATER)],
)
def test_a_run_that_waits_for_its_time_says_why(reason, kind):
    """
    Where the document waits for nothing.
    """
    result = waits(reason=reason)

    assert (result.kind, result.until, result.why) == (kind, LATER, reason)


def test_what_is_paused_waits_for_a_person():
    """
    To look at a phase, or for any other reason.
    """
    asked = reports_model.paused(SUBJECT, {"updated_at": SINCE, "phases": [{"name": "ship", "status": "waiting"}]})
    stopped = reports_model.paused(SUBJECT, {"updated_at": SINCE, "pause_reason": "lunch"})

    assert (asked.kind, asked.phase, asked.since) == (WaitKind.APPROVAL, "ship", SINCE)
    assert asked.why == "a person has to look at ship"
    assert (stopped.kind, stopped.why) == (WaitKind.PERSON, "lunch")


def test_what_is_at_work_is_the_phase_that_runs():
    """
    Between two phases it is none.
    """
    running = {"name": "build", "status": "running", "attempts_used": 2, "attempts": [{}, {"started_at": SINCE}]}

    assert reports_model.at_work({"phases": [{"name": "plan", "status": "complete"}, running]}) == ("build", 2, SINCE)
    assert reports_model.at_work({"phases": [{"status": "running"}]}) == AtWork()
    assert reports_model.at_work({}) == AtWork()


@pytest.mark.parametrize("text", ["", "[]", "torn {", "7", "[" * 100_000])
def test_a_text_that_is_no_document_is_an_empty_one(text):
    """
    Who only looks goes on without it.
    """
    assert plain_document.read(text) == {}


def test_what_has_not_the_right_form_is_not_there():
    """
    A document of another tool may hold anything.
    """
    assert plain_document.read('{"a": 1}') == {"a": 1}
    assert list(plain_document.objects(["torn", {"a": 1}, None])) == [{"a": 1}]
    assert plain_document.text_in({"a": 1}, "a") == ""
    assert plain_document.number_in({"a": "1"}, "a") == 0
    assert plain_document.last_attempt({"attempts": ["torn"]}) == {}
    assert plain_document.error_of({"error": "torn"}) == {}
    assert plain_document.definition_in({"workflow": "torn"}, "build") == {}
    assert plain_document.phase_in({"phases": [{"status": "a"}]}, "b") is None
