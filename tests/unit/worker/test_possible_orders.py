"""What a person may order about a workflow: all that would be obeyed, and nothing that would be refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules.document import Cost
from adws.adw_modules.engine import transitions
from adws.adw_modules.engine.transitions import Failure
from adws.adw_modules.phase import WaitingForChildren
from adws.adw_modules.worker.control import Possible, allowed_actions
from adws.testing import START, FakeClock
from tests.unit.engine_cases import ADW_ID, WELL, document_of, draft_of, phase, spec_of

SPEC = spec_of("plan", phase("build", max_attempts=2), "test")


def at_work(name="build", spec=SPEC, **fields):
    """A draft in which *name* has just begun."""
    draft = draft_of(document_of(spec, **fields))
    while True:
        result = transitions.before_attempt(draft, spec)
        transitions.begin(draft, result, owner="worker 1@here", fence=1)
        if result.spec.name == name:
            return draft, result
        transitions.succeed(draft, spec, result, WELL)


def failed(*, used=1, retry_at=None, **fields):
    draft, result = at_work(**fields)
    draft.change_phase(result.index, attempts_used=used)
    trouble = Failure(error={"message": "it broke"}, retry_at=retry_at, terminal_reason="NOT_RETRYABLE")
    transitions.fail(draft, SPEC, result, trouble, None)
    return draft.finished()


def waiting():
    draft, result = at_work()
    transitions.await_approval(draft, result, WELL, "look")
    return draft.finished()


def paused(**fields):
    draft, result = at_work(**fields)
    transitions.suspend(draft, result, kind="pause", reason="lunch")
    return draft.finished()


def asked(document, **how) -> Possible:
    return allowed_actions(document, now=FakeClock().now, **how)


def test_a_workflow_at_work_can_be_stopped_but_not_resumed():
    document = at_work()[0].finished()

    assert asked(document, is_live=True) == Possible(
        may_pause=True, may_stop=True, may_abandon=True, may_hint=True, may_roll_back=True
    )


def test_a_paused_workflow_is_resumed_where_it_was_or_from_an_earlier_phase():
    result = asked(paused())

    assert (result.may_pause, result.may_stop, result.may_abandon, result.is_retry) == (False, False, True, False)
    assert (result.plan, result.needs) == (f"workflow {ADW_ID} continues with build", ())
    assert (result.phases, result.refusal) == (("plan", "build"), "")
    assert result.may_go_on


def test_a_phase_that_waits_for_a_person_is_decided_and_not_gone_on_with():
    result = asked(waiting())

    assert (result.approval, result.may_go_on) == ("build", False)
    assert "waits for approval of build" in result.refusal
    assert asked(waiting(), is_live=True).approval == ""


def test_a_failed_workflow_is_retried():
    result = asked(failed())

    assert (result.is_retry, result.may_go_on, result.may_pause, result.cancels) == (True, True, False, "")
    assert result.phases == ("plan", "build")


def test_a_workflow_whose_attempts_are_used_up_needs_a_grant_and_says_so():
    going_on = asked(failed(used=2))

    assert going_on.needs == ("grant",)
    assert going_on.plan == f"workflow {ADW_ID} continues with build"
    assert going_on.phases == ("plan", "build")
    assert "used 2 of 2 attempts" in going_on.refusal


def test_a_workflow_that_has_spent_its_money_needs_a_budget():
    spent = Cost(total_usd=5.0)

    assert asked(paused(cost=spent), max_cost_usd=5.0).needs == ("budget",)
    assert asked(paused(cost=spent), max_cost_usd=5.0).phases == ("plan", "build")
    assert asked(failed(used=2, cost=spent), max_cost_usd=5.0).needs == ("grant", "budget")
    assert asked(paused(cost=spent), max_cost_usd=6.0).needs == ()


def test_a_workflow_whose_health_budget_is_gone_cannot_be_resumed():
    going_on = asked(failed(max_total_attempts=2))

    assert (going_on.plan, going_on.needs) == ("", ())
    assert "health budget" in going_on.refusal


def test_a_retry_that_waits_for_its_moment_can_be_cancelled_or_made_now():
    document = failed(retry_at=START + timedelta(seconds=60))
    result = asked(document)

    assert (result.cancels, result.may_go_on, result.may_pause) == ("build", True, True)
    assert asked(document, is_live=True).cancels == ""


def test_an_attempt_that_waits_for_others_is_not_resumed():
    draft, result = at_work()
    transitions.fork(draft, result, WaitingForChildren(until=START + timedelta(hours=1), reason="waits for a step"))
    possible = asked(draft.finished())

    assert (possible.may_go_on, possible.refusal, possible.may_pause) == (False, "", True)


@pytest.mark.parametrize("state", ["completed", "abandoned"])
def test_what_is_over_can_only_be_rolled_back(state):
    assert asked(document_of(SPEC, current_state=state)) == Possible(may_roll_back=True)


def test_what_is_merged_or_rolled_back_leaves_nothing_to_order():
    assert asked(document_of(SPEC, current_state="completed", pr_merged=True)) == Possible()
    assert asked(document_of(SPEC, current_state="rolled_back")) == Possible()


def test_a_rollback_that_was_begun_can_only_be_gone_on_with():
    document = paused()
    document.begin_rollback()

    assert asked(document) == Possible(may_roll_back=True)


def test_while_a_rollback_waits_for_a_worker_nothing_else_is_ordered():
    assert asked(paused(), is_rolled_back_next=True) == Possible()


def test_a_document_of_an_older_version_says_what_it_lacks():
    going_on = asked(document_of(SPEC, workflow=None))

    assert going_on.plan == ""
    assert "has no definition" in going_on.refusal
