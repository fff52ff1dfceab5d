"""What the events of an execution say of it."""

from __future__ import annotations

import json

import pytest

from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps import execution_update
from adws.adw_modules.steps.call_policy import Judgement
from adws.adw_modules.steps.model import CallReport, Execution, ExecutionState, NewExecution, Slot
from adws.adw_modules.steps.store import Executions
from adws.adw_modules.workflow.model import LoopSpec, RetryRule, StepSpec
from tests.contracts.worlds import make_owner
from tests.homes import lab_home

ADW_ID = "1a2b3c4d"
KNOWN = "correct-horse-battery"
TOKEN = "ghp_" + "a1B2" * 9
PAGES = RetryRule(
    kind="on_success",
    when="response.more",
    max_attempts=5,
    next_call={"params": {"page_token": "{{ response.next }}"}},
    base_seconds=0.0,
)


def test_a_loop_tells_how_it_goes_through_its_collection():
    loop = LoopSpec(
        collection=[1], mode="async", concurrency=3, where="item > 1", limit=7, on_failure="threshold", threshold=0.5
    )

    result = execution_update.started(StepSpec(name="s", tool="http", loop=loop), 4)

    assert result == {
        "tool": "http",
        "collection_size": 4,
        "iterator_name": "item",
        "mode": "async",
        "concurrency": 3,
        "chunk_size": None,
        "on_failure": "threshold",
        "threshold": 0.5,
        "where": "item > 1",
        "limit": 7,
    }


def test_a_step_without_a_loop_has_little_to_tell():
    assert execution_update.started(StepSpec(name="s", tool="http"), 1) == {"tool": "http", "collection_size": 1}


def test_an_end_tells_how_many_went_well():
    done = Execution(execution_id="e", step=StepSpec(name="s", tool="http"), total=3, succeeded=2, failed=1)

    assert execution_update.ended(done, "why")["success_rate"] == 0.666667
    assert execution_update.ended(done, "why")["reason"] == "why"
    assert execution_update.end_meta(done, "now") == {
        "total_iterations": 3,
        "completed_iterations": 2,
        "success_rate": 0.666667,
        "completed_at": "now",
    }


def test_of_nothing_everything_went_well():
    done = Execution(execution_id="e", step=StepSpec(name="s", tool="http"))

    assert execution_update.ended(done, "") == {
        "total_iterations": 0,
        "successful": 0,
        "failed": 0,
        "cancelled": 0,
        "success_rate": 1.0,
    }


def test_only_what_a_lane_does_has_a_place_in_the_queue():
    step = StepSpec(name="s", tool="http")

    assert execution_update.usual_meta(step, None) == {"retry": {"has_config": False}}
    assert execution_update.usual_meta(step, Slot(run_id=7, token=1, worker_id="w"))["queue"] == {
        "queue_id": 7,
        "worker_id": "w",
    }


@pytest.mark.parametrize(
    ("facts", "is_well", "told"),
    [
        ({"again": True, "rule": "on_error", "max_attempts": 4}, False, ("on_error", 4, True)),
        ({"again": True, "rule": "interrupted"}, False, ("interrupted", 3, True)),
        ({"again": False, "sequence": "exhausted"}, False, ("on_error", 3, False)),
        ({"again": False, "sequence": "completed"}, True, ("on_success", 5, False)),
    ],
)
def test_the_rule_that_decided_is_named(facts, is_well, told):
    step = StepSpec(name="s", tool="http", retry=(PAGES, RetryRule(kind="on_error", max_attempts=3)))

    result = execution_update.retry_meta(step, Judgement(facts=facts), attempts=2, is_well=is_well)

    assert (result["retry_type"], result["max_attempts"], result["will_retry"]) == told
    assert (result["has_config"], result["attempt_number"]) == (True, 2)


def test_an_error_is_told_without_its_trace():
    error = {"message": "x" * 900, "traceback": "secret lines", "category": "fatal"}

    assert execution_update.said(error) == {"category": "fatal", "message": "x" * 500}
    assert execution_update.error_meta(error, "m", "now") == {
        "message": "m",
        "has_stack_trace": True,
        "failed_at": "now",
    }
    assert execution_update.error_meta({"failed_at": "then"}, "m", "now")["failed_at"] == "then"


def test_what_is_not_json_is_reported_as_a_failure():
    report = CallReport(index=2, attempt_number=3, ok=True, duration=1.5, meta={"call": {}})

    result = execution_update.not_json(report, ValueError("NaN"))

    assert (result.ok, result.index, result.attempt_number, result.duration) == (False, 2, 3, 1.5)
    assert result.error["message"] == "what the call gave back is not JSON: NaN"


# --- secrets ---------------------------------------------------------------------------------------------------


@pytest.fixture
def paged():
    """A step that goes through pages, with a redactor that knows a secret; gives `call(response)` and its log."""
    home = lab_home()
    runs = home.runs
    executions = Executions(home.database, clock=home.clock, redactor=Redactor([KNOWN]))
    runs.enqueue(NewRun(adw_id=ADW_ID, kind="start", not_before="2999-01-01T00:00:00.000000Z"))
    new = NewExecution(
        execution_id=f"{ADW_ID}.build.1.s",
        parent_execution_id=f"{ADW_ID}.build.1",
        adw_id=ADW_ID,
        phase="build",
        attempt_number=1,
        catalog_id="demo@1",
        step=StepSpec(name="s", tool="http", retry=(PAGES,)),
        context={},
    )
    executions.open(new, [None], lanes=1)
    run = runs.claim(make_owner(), ttl_seconds=60)
    taken = [executions.take(run, most=1)]

    def call(response):
        (one,) = taken[-1].assignments
        report = CallReport(index=0, attempt_number=one.attempt_number, ok=True, result=response)
        taken.append(executions.report(run, [report], most=1))
        return taken[-1]

    return call, lambda: home.events.of_workflow(ADW_ID), executions, new


def test_the_next_call_is_made_with_the_whole_value_and_told_without_it(paged):
    """
    A cursor may be called a token: the server needs it, the log does not.
    """
    call, told_events, _executions, _new = paged

    (following,) = call({"more": True, "next": "cursor-of-page-2"}).assignments

    assert following.call == {"params": {"page_token": "cursor-of-page-2"}}
    (told,) = (event for event in told_events() if event.event_type == "action_completed")
    assert told.data["retry"]["call"] == {"params": {"page_token": MASK}}


def test_a_large_value_for_the_next_call_is_whole_in_the_row_and_short_in_the_log(paged):
    call, told_events, _executions, _new = paged

    (following,) = call({"more": True, "next": "x" * 20_000}).assignments

    assert following.call == {"params": {"page_token": "x" * 20_000}}
    (told,) = (event for event in told_events() if event.event_type == "action_completed")
    assert told.data["retry"]["call"]["_truncated"] is True


@pytest.mark.parametrize("secret", [KNOWN, TOKEN], ids=["known", "by_its_looks"])
def test_a_next_call_that_cannot_be_stored_ends_the_sequence_with_a_sentence(paged, secret):
    """
    Made with a mask in the place of the secret it would be another call than the one that was asked for.
    """
    call, told_events, executions, new = paged

    assert call({"more": True, "next": secret}).is_over

    assert executions.get(new.execution_id).state is ExecutionState.FAILED
    (end,) = (event for event in told_events() if event.event_type == "retry_sequence_failed")
    assert "looks like a secret" in end.data["reason"]
    assert secret not in json.dumps([event.to_json() for event in told_events()])


def test_reasons_of_people_are_told_without_secrets(paged):
    _call, told_events, executions, new = paged

    executions.cancel(new.execution_id, reason=f"it used {TOKEN}")

    assert TOKEN not in json.dumps([event.to_json() for event in told_events()])
