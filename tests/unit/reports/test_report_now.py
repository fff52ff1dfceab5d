"""What a workflow does or waits for, read from its document and its run."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import WorkflowRef
from adws.adw_modules.errors import QUOTA_WAIT
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import Subject, WaitKind
from tests.unit.timeline_cases import document, phase, tried

SUBJECT = Subject(adw_id="1a2b3c4d")
SINCE, NOW, LATER = "2026-01-31T08:00:00.000000Z", "2026-01-31T09:00:00.000000Z", "2026-01-31T10:00:00.000000Z"
LIMITED = tried(1, 0, 1, "parked", error={"category": "rate_limit"})


def waits(*phases, not_before: str = LATER, reason: str = "", **fields):
    made = document(*phases, **fields)
    return reports_model.waiting(SUBJECT, made, since=SINCE, not_before=not_before, reason=reason, now=NOW)


def retrying(*attempts, **fields):
    return phase("build", *attempts, status="retry_wait", **fields)


def test_what_is_due_waits_for_a_worker_since_it_is_due_whatever_its_phase_waited_for():
    at_once = waits(retrying(retry_at=NOW), not_before="", reason="drained")
    due = waits(not_before="2026-01-31T08:30:00.000000Z")

    assert (at_once.kind, at_once.since, at_once.why) == (WaitKind.WORKER, SINCE, "drained")
    assert due.since == "2026-01-31T08:30:00.000000Z"


@pytest.mark.parametrize(
    ("waiting", "kind", "until", "why"),
    [
        (retrying(retry_at=NOW, last_failure_reason="no"), WaitKind.RETRY, NOW, "no"),
        (retrying(LIMITED, retry_at=NOW), WaitKind.RATE_LIMIT, NOW, ""),
        (retrying(retry_at=NOW, wait_reason=f"{QUOTA_WAIT}: x"), WaitKind.QUOTA, NOW, f"{QUOTA_WAIT}: x"),
        (retrying(retry_at=NOW, wait_reason="github is held off"), WaitKind.BREAKER, NOW, "github is held off"),
        (retrying(LIMITED, retry_at=NOW, wait_reason="x", wait_deadline_at=LATER), WaitKind.RATE_LIMIT, NOW, "x"),
        (
            retrying(tried(1, 0, 1, "parked"), retry_at=NOW, wait_reason="no net", wait_deadline_at=LATER),
            WaitKind.OUTAGE,
            NOW,
            "no net",
        ),
        (retrying(wait_reason="waits for 3 calls"), WaitKind.CALLS, "", "waits for 3 calls"),
        (retrying(), WaitKind.RETRY, LATER, ""),
    ],
    ids=["retry", "rate limit", "quota", "breaker", "parked limit", "outage", "calls", "nothing known"],
)
def test_a_phase_says_what_it_waits_for_and_no_moment_is_made_up(waiting, kind, until, why):
    result = waits(waiting)

    assert (result.kind, result.phase, result.since, result.until, result.why) == (kind, "build", SINCE, until, why)


def test_a_phase_of_the_runner_external_waits_for_somebody_outside_until_its_deadline():
    defined = WorkflowRef(name="x", phases=[{"name": "other"}, {"name": "build", "runner": "external"}])

    result = waits(retrying(wait_reason="waits for task 1"), workflow=defined)

    assert (result.kind, result.until) == (WaitKind.EXTERNAL, LATER)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("the quota worktrees is used up: 5 of 5", WaitKind.QUOTA), ("somebody is at it", WaitKind.LATER)],
)
def test_a_run_that_waits_for_its_time_says_why(reason, kind):
    result = waits(reason=reason)

    assert (result.kind, result.until, result.why) == (kind, LATER, reason)


def test_what_is_paused_waits_for_a_person():
    asked = reports_model.paused(SUBJECT, document(phase("ship", status="waiting"), updated_at=SINCE))
    stopped = reports_model.paused(SUBJECT, document(pause_reason="lunch"))

    assert (asked.kind, asked.phase, asked.since) == (WaitKind.APPROVAL, "ship", SINCE)
    assert asked.why == "a person has to look at ship"
    assert (stopped.kind, stopped.why) == (WaitKind.PERSON, "lunch")


def test_a_document_that_cannot_be_read_stops_no_list():
    unreadable = reports_model.waiting(SUBJECT, None, since=SINCE, not_before=LATER, now=NOW)

    assert (unreadable.kind, unreadable.until) == (WaitKind.LATER, LATER)
    assert reports_model.paused(SUBJECT, None).kind is WaitKind.PERSON
