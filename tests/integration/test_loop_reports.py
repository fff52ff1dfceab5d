"""What lanes report is held against the rows: the row counts, and whoever lost its run changes nothing."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import RunLost
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.model import CallReport, IterationState, NewExecution
from adws.adw_modules.steps.store import Executions
from adws.adw_modules.workflow.model import LoopSpec, RetryRule, StepSpec
from adws.testing import FakeProcesses

ADW_ID = "1a2b3c4d"
LATER = "2099-01-01T00:00:00.000000Z"


@pytest.fixture
def runs(database, clock):
    return RunStore(database, clock=clock)


@pytest.fixture
def executions(database, clock, runs):
    runs.enqueue(NewRun(adw_id=ADW_ID, not_before=LATER))
    return Executions(database, clock=clock, redactor=Redactor())


@pytest.fixture
def me(clock):
    return FakeProcesses(clock.token).me("worker")


def begin(executions, *, count=1, retry=()):
    step = StepSpec(
        name="s", tool="python", loop=LoopSpec(collection=[], mode="async", concurrency=count), retry=tuple(retry)
    )
    new = NewExecution(
        execution_id=f"{ADW_ID}.build.1.s",
        parent_execution_id=f"{ADW_ID}.build.1",
        adw_id=ADW_ID,
        phase="build",
        attempt_number=1,
        catalog_id="w@1",
        step=step,
        context={},
    )
    executions.open(new, range(count), lanes=count)
    return new.execution_id


def claimed(runs, me, ttl=30.0):
    run = runs.claim(me, ttl_seconds=ttl)
    assert run is not None
    return runs.begin(run)


def states(executions, execution_id):
    return [state for _, state, _ in executions.results(execution_id)]


@pytest.mark.parametrize("said", [0, 2, 7, -1])
def test_the_row_counts_the_calls_whatever_a_report_says_of_them(executions, runs, me, said):
    retry = [RetryRule(kind="on_error", max_attempts=2, base_seconds=0.0, max_seconds=0.0)]
    execution_id = begin(executions, retry=retry)
    run = claimed(runs, me)
    (call,) = executions.take(run, most=1).assignments

    taken = executions.report(
        run, [CallReport(index=0, attempt_number=said, ok=False, error={"category": "transient"})], most=1
    )

    assert states(executions, execution_id) == [IterationState.RUNNING], "it was put back, and taken up again"
    assert [one.attempt_number for one in taken.assignments] == [call.attempt_number]


def test_a_report_about_a_call_that_nobody_was_given_is_not_counted(executions, runs, me):
    execution_id = begin(executions, count=3)
    run = claimed(runs, me)
    executions.take(run, most=1)

    executions.report(run, [CallReport(index=2, attempt_number=1, ok=True, result="forged")], most=0)

    assert IterationState.COMPLETED not in states(executions, execution_id)
    assert "forged" not in [result for *_, result in executions.results(execution_id)]


def test_whoever_lost_its_run_stores_nothing(executions, runs, me):
    execution_id = begin(executions)
    late = claimed(runs, me)
    (call,) = executions.take(late, most=1).assignments
    runs.requeue(late)
    again = claimed(runs, me)
    (repeated,) = executions.take(again, most=1).assignments

    with pytest.raises(RunLost):
        executions.report(
            late, [CallReport(index=0, attempt_number=call.attempt_number, ok=True, result="late")], most=1
        )

    assert states(executions, execution_id) == [IterationState.RUNNING]
    taken = executions.report(
        again, [CallReport(index=0, attempt_number=repeated.attempt_number, ok=True, result="in time")], most=1
    )
    assert taken.is_over
    assert list(executions.results(execution_id)) == [(0, IterationState.COMPLETED, "in time")]
