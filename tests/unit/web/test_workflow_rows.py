"""What the page of a workflow tells of its document."""

from __future__ import annotations

import pytest

from adws.adw_modules import views
from adws.adw_modules.document import FrozenIssue
from adws.testing import START
from adws.web.dashboard import frame, workflow
from tests.integration import workflow_lab
from tests.unit.timeline_cases import document, phase, tried

ISSUE = "https://github.invalid/acme/shop/issues/7"


def test_attempts_are_told_the_newest_first_with_what_they_cost():
    made = workflow_lab.reworked(START)
    rows = workflow.attempts_of(made, views.workflow(made))

    assert [(row.phase, row.number, row.status) for row, _cost in rows[:3]] == [
        ("test", 3, "running"),
        ("test", 2, "suspended"),
        ("lint", 2, "succeeded"),
    ]
    paid, cost = next(one for one in rows if (one[0].phase, one[0].number) == ("build", 1))
    assert (cost.cost_usd, cost.tokens.input, cost.model, paid.agent) == (1.1, 44_000, "claude-sonnet-4-5", "claude")
    assert (paid.category, paid.error) == ("transient", "connection reset by peer")
    ordered, cost = next(one for one in rows if one[0].status == "suspended")
    assert (ordered.order, ordered.error, cost) == ("pause", "lunch", None)


def test_phases_are_told_with_all_their_rounds():
    made = document(
        phase("plan", tried(1, 0, 10, "failed"), tried(2, 10, 20), last_failure_reason="it broke"),
        phase("build", tried(1, 20, 30, "suspended"), status="failed", last_failure_reason="it broke", granted=2),
    )

    plan, build = views.workflow(made).phases

    assert (len(plan.attempts), plan.suspended_attempts, plan.is_over) == (2, 0, True)
    assert (build.max_attempts, build.suspended_attempts, build.is_over) == (7, 1, False)


def test_an_attempt_is_found_by_phase_and_number():
    made = document(phase("plan", tried(1, 0, 10)), phase("build", tried(1, 10, 20), tried(2, 20, 30)))

    record, attempt = workflow.find_attempt(made, "build", 2)

    assert (record.name, attempt.number) == ("build", 2)
    assert workflow.find_attempt(made, "build", 3) is None
    assert workflow.find_attempt(made, "test", 1) is None


@pytest.mark.parametrize(
    ("said", "issue", "expected"),
    [
        ("https://forge.invalid/pr/9", ISSUE, "https://forge.invalid/pr/9"),
        ("", ISSUE, "https://github.invalid/acme/shop/pull/9"),
        ("javascript:alert(1)", "javascript:alert(2)", ""),
        ("", "https://forge.invalid/tickets/7", ""),
    ],
)
def test_a_pull_request_is_where_the_forge_says_or_beside_the_issue(said, issue, expected):
    ship = phase("ship", result={"pr_number": 9, "url": said})
    made = document(ship, pr_number=9, issue=FrozenIssue(url=issue))

    assert views.workflow(made).pull_request_url == expected


def test_without_a_pull_request_or_an_issue_there_is_no_address():
    assert views.workflow(document(issue=FrozenIssue(url=ISSUE))).pull_request_url == ""
    assert views.workflow(document()).issue_url == ""
    assert views.workflow(document(pr_number=9)).pull_request_url == ""


def test_a_rollback_is_told_with_its_steps():
    assert workflow.rollback_of(document()) is None
    made = document()
    made.begin_rollback()
    made.rollback.steps = [
        {"key": "lock", "kind": "lock", "what": "free it", "status": "done"},
        {"key": "state", "kind": "state", "what": "mark it", "status": "blocked"},
    ]

    rollback = workflow.rollback_of(made)

    assert (rollback.done, [step.what for step in rollback.steps]) == (1, ["free it", "mark it"])


def test_facts_of_plain_json_are_its_texts_and_numbers():
    data = {"name": "claude", "is_resumed": True, "hashes": {"a": 1}, "session_id": "", "tries": 2}

    assert workflow.plain_facts(data) == [("name", "claude"), ("is resumed", "True"), ("tries", "2")]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("\x1b[", ""),
        ("a\x08b\u202ec", "a\ufffdb\ufffdc"),
    ],
)
def test_what_a_terminal_would_obey_is_not_on_the_page(written, shown):
    assert frame.readable(written) == shown
