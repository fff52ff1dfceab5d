"""Looking at executions on both databases: counts, pages of iterations, and one iteration with its calls."""

from __future__ import annotations

import pytest

from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps.model import CallReport, NewExecution
from adws.adw_modules.steps.store import Executions
from adws.adw_modules.steps.views import ExecutionViews
from adws.adw_modules.workflow.model import LoopSpec, StepSpec
from tests.contracts.worlds import FIRST, make_owner

EXECUTION = f"{FIRST}.build.1.fetch"


@pytest.fixture
def views(database, clock):
    """Look at an execution of four iterations: one went well, one failed, one is being called, one waits for a lane."""
    executions = Executions(database, clock=clock, redactor=Redactor())
    runs = RunStore(database, clock=clock)
    runs.enqueue(NewRun(adw_id=FIRST, not_before="2099-01-01T00:00:00Z"))
    new = NewExecution(
        execution_id=EXECUTION,
        parent_execution_id=f"{FIRST}.build.1",
        adw_id=FIRST,
        phase="build",
        attempt_number=1,
        catalog_id="tried@7",
        step=StepSpec(name="fetch", tool="command", loop=LoopSpec(collection=[], on_failure="continue")),
        context={},
    )
    executions.open(new, ["a", "b" * 5000, "c", "d"], lanes=1)
    run = runs.begin(runs.claim(make_owner(), ttl_seconds=60.0))
    executions.take(run, most=1)
    executions.report(run, [CallReport(index=0, attempt_number=1, ok=True, result={"n": 1})], most=1)
    error = {"type": "X", "message": "it is broken", "category": "permanent"}
    executions.report(run, [CallReport(index=1, attempt_number=1, ok=False, error=error)], most=1)

    return ExecutionViews(database)


def test_an_execution_has_its_counts(views):
    (line,) = views.of_workflow(FIRST)

    assert line == views.get(EXECUTION)
    assert (line.step, line.state, line.total, line.done, line.succeeded, line.failed) == (
        "fetch",
        "running",
        4,
        2,
        1,
        1,
    )
    assert (line.running, line.waiting, line.next_retry, line.ended_at) == (1, 0, None, None)
    assert views.of_workflow(FIRST, step="fetch") == (line,)
    assert views.of_workflow(FIRST, step="other") == views.of_workflow("ffffffff") == ()


def test_iterations_are_shown_in_pages_with_the_beginning_of_what_they_got_and_gave(views):
    first = views.iterations(EXECUTION, limit=2)
    rest = views.iterations(EXECUTION, after=first[-1].index)

    assert [(row.index, row.state) for row in (*first, *rest)] == [
        (0, "completed"),
        (1, "failed"),
        (2, "running"),
        (3, "pending"),
    ]
    assert len(first[1].element) == 200
    assert (first[0].result, rest[1].result) == ('{"n": 1}', "")
    assert [row.index for row in views.iterations(EXECUTION, states=("failed", "pending"))] == [1, 3]


def test_one_iteration_is_opened_with_its_own_calls(views):
    result = views.iteration(EXECUTION, 1)

    assert result.element == "b" * 5000
    assert [(call["event_type"], call["iteration_index"]) for call in result.calls] == [
        ("action_started", 1),
        ("action_failed", 1),
    ]
    assert "it is broken" in result.line.error


def test_an_iteration_whose_last_call_went_well_says_why_it_is_not_complete(views, database, clock):
    executions = Executions(database, clock=clock, redactor=Redactor())
    executions.cancel(EXECUTION, reason="not wanted")

    cancelled = views.iterations(EXECUTION, states=("cancelled",))

    assert [(row.index, row.error) for row in cancelled] == [(3, "not wanted")]
    assert views.iterations(EXECUTION)[0].error == ""
