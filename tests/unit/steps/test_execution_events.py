"""How executions end, and what their events say of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.execution_update import verdict
from adws.adw_modules.steps.model import CallReport, Execution, ExecutionState, NewExecution
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


HALF = {"on_failure": "threshold", "threshold": 0.5}
ONE = {"on_failure": "threshold", "threshold": 1}
COMPLETED, FAILED, CANCELLED = ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.CANCELLED


@pytest.mark.parametrize(
    ("loop", "total", "counts", "end"),
    [
        ({}, None, (0, 0, 0), None),
        ({}, 0, (0, 0, 0), (COMPLETED, "")),
        ({}, 2, (1, 0, 0), None),
        ({}, 2, (2, 0, 0), (COMPLETED, "")),
        ({}, 3, (1, 1, 1), (FAILED, "1 of 3 iterations failed")),
        ({"on_failure": "continue"}, 2, (0, 2, 0), (COMPLETED, "")),
        (HALF, 4, (2, 2, 0), (COMPLETED, "")),
        (HALF, 4, (1, 3, 0), (FAILED, "3 of 4 iterations failed")),
        (ONE, 3, (2, 1, 0), (COMPLETED, "")),
        (ONE, 3, (1, 2, 0), (FAILED, "2 of 3 iterations failed")),
        ({}, 2, (1, 0, 1), (CANCELLED, "1 iteration was cancelled")),
        ({}, 3, (1, 0, 2), (CANCELLED, "2 iterations were cancelled")),
        (None, 1, (0, 1, 0), (FAILED, "1 of 1 iterations failed")),
    ],
)
def test_an_execution_ends_with_its_last_iteration_and_by_its_policy(loop, total, counts, end):
    step = StepSpec(name="s", tool="http", loop=None if loop is None else LoopSpec(collection=[], **loop))
    execution = Execution("e", step, total=total)
    execution.succeeded, execution.failed, execution.cancelled = counts

    assert verdict(execution) == end


@given(
    ends=st.lists(st.sampled_from(["succeeded", "failed", "cancelled"]), min_size=1, max_size=12),
    policy=st.sampled_from(["fail_fast", "continue", "threshold"]),
)
def test_an_execution_ends_exactly_when_every_iteration_has_an_end(ends, policy):
    loop = LoopSpec(collection=[], on_failure=policy, threshold=0.5)
    execution = Execution("e", StepSpec(name="s", tool="http", loop=loop), total=len(ends))
    for name in ends:
        assert verdict(execution) is None
        setattr(execution, name, getattr(execution, name) + 1)

    assert verdict(execution) is not None


# --- events ----------------------------------------------------------------------------------------------------


def opened(step, elements):
    """Return a store with one execution, the run that is its lane, and a function that returns the events."""
    home = lab_home()
    executions = Executions(home.database, clock=home.clock, redactor=Redactor([KNOWN]))
    home.runs.enqueue(NewRun(adw_id=ADW_ID, kind="start", not_before="2999-01-01T00:00:00.000000Z"))
    new = NewExecution(
        execution_id=f"{ADW_ID}.build.1.s",
        parent_execution_id=f"{ADW_ID}.build.1",
        adw_id=ADW_ID,
        phase="build",
        attempt_number=1,
        catalog_id="demo@1",
        step=step,
        context={},
    )
    executions.open(new, elements, lanes=1)
    return executions, home.runs.claim(make_owner(), ttl_seconds=60), lambda: home.events.of_workflow(ADW_ID)


def test_a_loop_tells_its_settings():
    loop = LoopSpec(
        collection=[1], mode="async", concurrency=3, where="item > 1", limit=7, on_failure="threshold", threshold=0.5
    )
    _executions, _run, events = opened(StepSpec(name="s", tool="http", loop=loop), [1])

    assert events()[0].data == {
        "tool": "http",
        "collection_size": 1,
        "iterator_name": "item",
        "mode": "async",
        "concurrency": 3,
        "chunk_size": None,
        "on_failure": "threshold",
        "threshold": 0.5,
        "where": "item > 1",
        "limit": 7,
    }
    assert events()[0].meta == {"retry": {"has_config": False}}


def test_an_error_is_told_without_its_trace_and_the_end_counts_it():
    executions, run, events = opened(StepSpec(name="s", tool="http", loop=LoopSpec(collection=[])), [1, 2, 3])
    calls = executions.take(run, most=3).assignments
    error = {"message": "x" * 900, "traceback": "secret lines", "category": "fatal"}
    reports = [CallReport(index=one.index, attempt_number=1, ok=one.index < 2, error=dict(error)) for one in calls]
    executions.report(run, reports, most=0)

    told = {event.event_type: event for event in events()}
    failed, end = told["action_failed"], told["iterator_failed"]
    assert failed.data["error"] == {"category": "fatal", "message": "x" * 500}
    assert (failed.meta["error"]["message"], failed.meta["error"]["has_stack_trace"]) == ("x" * 500, True)
    assert end.data["success_rate"] == end.meta["success_rate"] == 0.666667
    assert (end.data["successful"], end.data["failed"], end.meta["completed_iterations"]) == (2, 1, 2)
    assert end.meta["queue"]["queue_id"] == run.run_id


# --- secrets ---------------------------------------------------------------------------------------------------


@pytest.fixture
def paged():
    """A step that goes through pages, with a redactor that knows a secret; gives `call(response)` and its log."""
    executions, run, events = opened(StepSpec(name="s", tool="http", retry=(PAGES,)), [None])
    taken = [executions.take(run, most=1)]

    def call(response):
        (one,) = taken[-1].assignments
        report = CallReport(index=0, attempt_number=one.attempt_number, ok=True, result=response)
        taken.append(executions.report(run, [report], most=1))
        return taken[-1]

    return call, events, executions


def test_the_next_call_is_made_with_the_whole_value_and_told_without_it(paged):
    """
    A cursor may be called a token: the server needs it, the log does not.
    """
    call, told_events, _executions = paged

    (following,) = call({"more": True, "next": "cursor-of-page-2"}).assignments

    assert following.call == {"params": {"page_token": "cursor-of-page-2"}}
    (told,) = (event for event in told_events() if event.event_type == "action_completed")
    assert told.data["retry"]["call"] == {"params": {"page_token": MASK}}


@pytest.mark.parametrize("secret", [KNOWN, TOKEN], ids=["known", "by_its_looks"])
def test_a_next_call_that_cannot_be_stored_ends_the_sequence_with_a_sentence(paged, secret):
    """
    Made with a mask in the place of the secret it would be another call than the one that was asked for.
    """
    call, told_events, executions = paged

    assert call({"more": True, "next": secret}).is_over

    assert executions.get(f"{ADW_ID}.build.1.s").state is ExecutionState.FAILED
    (end,) = (event for event in told_events() if event.event_type == "retry_sequence_failed")
    assert "looks like a secret" in end.data["reason"]
    assert secret not in json.dumps([event.to_json() for event in told_events()])
