"""The orchestrator: what follows from an event, and that the log alone leads to the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.events import Event
from adws.adw_modules.steps import execution_update
from adws.adw_modules.steps.model import (
    CallAgain,
    CancelRest,
    EndExecution,
    EndIteration,
    Execution,
    ExecutionState,
    IterationState,
)
from adws.adw_modules.workflow.model import LoopSpec, StepSpec


def an_execution(total: int | None = None, **loop: object) -> Execution:
    step = StepSpec(name="fetch", tool="http", loop=LoopSpec(collection=[], **loop))
    return Execution(execution_id="e", step=step, total=total)


def happened(event_type: str, index: int | None = None, **data: object) -> Event:
    return Event(event_type=event_type, iteration_index=index, data=data)


def after(execution: Execution, *events: Event) -> tuple[Execution, tuple[object, ...]]:
    """Return the execution and what the last event led to."""
    commands: tuple[object, ...] = ()
    for event in events:
        execution = execution_update.fold(execution, event)
        commands = execution_update.decide(execution, event)
    return execution, commands


def started(total: int) -> Event:
    return Event(event_type="iterator_started", event_id="e.0", total_iterations=total)


# --- a loop ----------------------------------------------------------------------------------------------------


def test_a_loop_over_nothing_is_over_at_once():
    execution, commands = after(an_execution(), started(0))

    assert commands == (EndExecution(state=ExecutionState.COMPLETED),)
    assert (execution.total, execution.first_event_id) == (0, "e.0")


def test_a_loop_goes_on_while_an_iteration_is_left():
    _, commands = after(an_execution(), started(2), happened("iteration_completed", 0))

    assert commands == ()


def test_the_last_iteration_ends_the_loop():
    _, commands = after(
        an_execution(), started(2), happened("iteration_completed", 1), happened("iteration_completed", 0)
    )

    assert commands == (EndExecution(state=ExecutionState.COMPLETED),)


def test_nothing_follows_the_end():
    execution, _ = after(an_execution(), started(1), happened("iteration_completed", 0), happened("iterator_completed"))

    assert execution.state is ExecutionState.COMPLETED
    assert execution_update.decide(execution, happened("iteration_completed", 0)) == ()
    assert execution_update.decide(execution, happened("action_completed", 0)) == ()


def test_a_failed_iteration_counts_as_an_end_too():
    execution, commands = after(
        an_execution(on_failure="continue"),
        started(2),
        happened("iteration_failed", 0, reason="no route"),
        happened("iteration_completed", 1),
    )

    assert commands == (EndExecution(state=ExecutionState.COMPLETED),)
    assert (execution.succeeded, execution.failed) == (1, 1)


def test_fail_fast_cancels_what_is_left_and_fails_when_that_is_over():
    execution, commands = after(an_execution(), started(3), happened("iteration_failed", 1, reason="no route"))
    assert commands == (CancelRest(reason="iteration 1 failed: no route"),)

    execution, commands = after(execution, happened("iteration_completed", 0))
    assert commands == ()

    _, commands = after(execution, happened("iteration_cancelled", 2))
    assert commands == (EndExecution(state=ExecutionState.FAILED, reason="1 of 3 iterations failed"),)


def test_the_last_iteration_cancels_nothing_when_it_fails():
    _, commands = after(an_execution(), started(1), happened("iteration_failed", 0))

    assert commands == (EndExecution(state=ExecutionState.FAILED, reason="1 of 1 iterations failed"),)


def test_a_threshold_below_one_is_a_share():
    loop = an_execution(on_failure="threshold", threshold=0.25)
    execution, commands = after(loop, started(8), *(happened("iteration_failed", index) for index in range(2)))
    assert commands == ()

    _, commands = after(execution, happened("iteration_failed", 2))
    assert commands == (CancelRest(reason="iteration 2 failed: "),)


def test_a_threshold_from_one_on_is_a_number():
    loop = an_execution(on_failure="threshold", threshold=1)
    execution, commands = after(loop, started(3), happened("iteration_failed", 0))
    assert commands == ()

    _, commands = after(execution, happened("iteration_failed", 1))
    assert commands == (CancelRest(reason="iteration 1 failed: "),)


def test_a_step_without_a_loop_fails_with_its_one_call():
    single = Execution(execution_id="e", step=StepSpec(name="fetch", tool="http"))
    _, commands = after(single, started(1), happened("iteration_failed", 0))

    assert commands == (EndExecution(state=ExecutionState.FAILED, reason="1 of 1 iterations failed"),)


# --- cancelling ------------------------------------------------------------------------------------------------


def test_a_person_cancels_what_has_not_begun():
    execution, commands = after(an_execution(), started(2), happened("iterator_cancel_requested", reason="too many"))
    assert commands == (CancelRest(reason="too many"),)

    execution, _ = after(execution, happened("iteration_completed", 0))
    execution, commands = after(execution, happened("iteration_cancelled", 1))
    assert commands == (EndExecution(state=ExecutionState.CANCELLED, reason="too many"),)

    execution, _ = after(execution, happened("iterator_cancelled", reason="too many"))
    assert (execution.state, execution.reason) == (ExecutionState.CANCELLED, "too many")


def test_one_cancelled_call_leaves_a_loop_that_says_so():
    _, commands = after(
        an_execution(), started(2), happened("iteration_completed", 0), happened("iteration_cancelled", 1)
    )

    assert commands == (EndExecution(state=ExecutionState.CANCELLED, reason="1 iteration was cancelled"),)


def test_cancelling_when_all_is_over_ends_it():
    execution = an_execution(total=1)
    execution, _ = after(execution, happened("iteration_completed", 0))

    _, commands = after(execution, happened("iterator_cancel_requested", reason="late"))
    assert commands == (EndExecution(state=ExecutionState.CANCELLED, reason="late"),)


# --- calls -----------------------------------------------------------------------------------------------------


def test_a_call_that_is_made_again_waits_as_long_as_was_judged():
    judged = {"again": True, "after_seconds": 4.5, "page": 2, "call": {"params": {"page": 2}}, "rule": "on_success"}
    _, commands = after(an_execution(total=1), happened("action_completed", 0, retry=judged))

    assert commands == (CallAgain(index=0, after_seconds=4.5, page=2, call={"params": {"page": 2}}, why="on_success"),)


def test_what_a_judgement_leaves_out_is_as_usual():
    _, commands = after(an_execution(total=1), happened("action_failed", 3, retry={"again": True, "call": "nonsense"}))

    assert commands == (CallAgain(index=3, after_seconds=0.0, page=1, call={}, why=""),)


def test_a_call_without_rules_ends_its_iteration():
    _, commands = after(an_execution(total=1), happened("action_completed", 0))
    assert commands == (EndIteration(index=0, state=IterationState.COMPLETED),)

    _, commands = after(an_execution(total=1), happened("action_failed", 0))
    assert commands == (EndIteration(index=0, state=IterationState.FAILED),)


def test_a_sequence_that_is_exhausted_has_failed_though_its_last_call_worked():
    judged = {"sequence": "exhausted", "reason": "100 calls were made"}
    _, commands = after(an_execution(total=1), happened("action_completed", 0, retry=judged))

    assert commands == (
        EndIteration(index=0, state=IterationState.FAILED, sequence="exhausted", reason="100 calls were made"),
    )


def test_a_sequence_that_ends_well_completes_its_iteration():
    _, commands = after(an_execution(total=1), happened("action_completed", 0, retry={"sequence": "completed"}))

    assert commands == (EndIteration(index=0, state=IterationState.COMPLETED, sequence="completed"),)


def test_a_sequence_that_is_cut_at_its_limit_completes_its_iteration():
    judged = {"sequence": "completed", "is_cut": True, "reason": "3 of 3 calls are made"}
    _, commands = after(an_execution(total=1), happened("action_completed", 0, retry=judged))

    assert commands == (
        EndIteration(
            index=0,
            state=IterationState.COMPLETED,
            sequence="completed",
            reason="3 of 3 calls are made",
            is_cut=True,
        ),
    )


def test_what_only_tells_leads_to_nothing():
    execution = an_execution(total=1)

    assert after(execution, happened("iteration_started", 0)) == (execution, ())


# --- the log ---------------------------------------------------------------------------------------------------

_ENDS = st.lists(st.sampled_from(sorted(execution_update.ENDS)), max_size=12)


@given(ends=_ENDS, policy=st.sampled_from(["fail_fast", "continue", "threshold"]))
def test_the_log_of_a_loop_ends_it_exactly_once_and_not_before_its_last_iteration(ends, policy):
    loop = an_execution(on_failure=policy, threshold=0.5)
    events = [started(len(ends)), *(happened(kind, index) for index, kind in enumerate(ends))]

    execution, commands = execution_update.replay(loop, events)

    assert [type(command) for command in commands].count(EndExecution) == 1
    assert isinstance(commands[-1], EndExecution)
    assert execution.ended == execution.total == len(ends)
    assert execution_update.replay(loop, events[:-1])[1].count(commands[-1]) == 0
