"""
The orchestrator: what is to be done about an event of an execution.

Pure, and decided on the event alone and the counts before it: whoever folds the log of an execution from its beginning
comes to the same counts, and to the same commands. Whether a call is made again was judged on the whole response when
the event was made; here only what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from adws.adw_modules.events import Event
from adws.adw_modules.execution_words import ExecutionState, IterationState
from adws.adw_modules.executions import CallAgain, CancelRest, Command, EndExecution, EndIteration, Execution
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.steps import CONTINUE, FAIL_FAST, LoopSpec

#: The event that ends an iteration -> how it ended.
ENDS = {
    "iteration_completed": IterationState.COMPLETED,
    "iteration_failed": IterationState.FAILED,
    "iteration_cancelled": IterationState.CANCELLED,
}
#: The event that ends an execution -> how it ended.
EXECUTION_ENDS = {
    "iterator_completed": ExecutionState.COMPLETED,
    "iterator_failed": ExecutionState.FAILED,
    "iterator_cancelled": ExecutionState.CANCELLED,
}


def decide(execution: Execution, event: Event) -> tuple[Command, ...]:
    """Return what is to be done about *event*; *execution* has it counted already."""
    if execution.state is not ExecutionState.RUNNING:
        return ()  # its end was told, and nothing comes after that
    if event.event_type in {"action_completed", "action_failed"}:
        return (_after_call(event),)
    if event.event_type == "iterator_cancel_requested":
        return _ordered(*_all_over(execution, cancelled=_reason(event)), CancelRest(reason=_reason(event)))
    if event.event_type in ENDS:
        return _after_iteration(execution, event)
    if event.event_type == "iterator_started":
        return tuple(_all_over(execution))

    return ()


def fold(execution: Execution, event: Event) -> Execution:
    """Return the execution with *event* counted."""
    if event.event_type == "iterator_started":
        return replace(execution, total=event.total_iterations, first_event_id=event.event_id)
    if event.event_type == "iterator_cancel_requested":
        return replace(execution, reason=execution.reason or _reason(event))
    if event.event_type in EXECUTION_ENDS:
        state = EXECUTION_ENDS[event.event_type]
        return replace(execution, state=state, reason=_reason(event) or execution.reason)
    ended = ENDS.get(event.event_type)
    if ended is IterationState.COMPLETED:
        return replace(execution, succeeded=execution.succeeded + 1)
    if ended is IterationState.FAILED:
        return replace(execution, failed=execution.failed + 1)
    if ended is IterationState.CANCELLED:
        return replace(execution, cancelled=execution.cancelled + 1)

    return execution


def replay(execution: Execution, events: Iterable[Event]) -> tuple[Execution, tuple[Command, ...]]:
    """Return what *events*, in their order, make of an execution that has none, and every command they led to."""
    commands: list[Command] = []
    for event in events:
        execution = fold(execution, event)
        commands.extend(decide(execution, event))

    return execution, tuple(commands)


def is_broken(execution: Execution) -> bool:
    """Say whether so many iterations failed that the whole has failed."""
    if not execution.failed:
        return False
    loop = execution.step.loop

    return loop is None or execution.failed > _allowed_failures(loop, execution.total or 0)


def _allowed_failures(loop: LoopSpec, total: int) -> float:
    if loop.on_failure == CONTINUE:
        return total
    if loop.on_failure == FAIL_FAST:
        return 0

    return loop.threshold * total if loop.threshold < 1 else loop.threshold


# --- calls -----------------------------------------------------------------------------------------------------


def _after_call(event: Event) -> Command:
    """Return what the judgement in the event says about its iteration."""
    index = event.iteration_index or 0
    judged = _judged(event)
    if judged.get("again") is True:
        call = judged.get("call")
        return CallAgain(
            index=index,
            after_seconds=float(judged.get("after_seconds") or 0.0),  # type: ignore[arg-type]  # written by call_rules
            page=int(judged.get("page") or 1),  # type: ignore[arg-type]  # the same
            call=call if isinstance(call, dict) else {},
            why=str(judged.get("rule") or ""),
        )
    sequence = str(judged.get("sequence") or "")
    is_well = event.event_type == "action_completed" and sequence in {"", "completed"}

    return EndIteration(
        index=index,
        state=IterationState.COMPLETED if is_well else IterationState.FAILED,
        sequence=sequence,
        reason=str(judged.get("reason") or ""),
    )


def _judged(event: Event) -> JsonObject:
    found = event.data.get("retry")

    return found if isinstance(found, dict) else {}


# --- iterations ------------------------------------------------------------------------------------------------


def _after_iteration(execution: Execution, event: Event) -> tuple[Command, ...]:
    over = _all_over(execution)
    if over or not is_broken(execution):
        return tuple(over)
    if event.event_type == "iteration_failed":
        return (CancelRest(reason=f"iteration {event.iteration_index} failed: {_reason(event)}"),)

    return ()


def _all_over(execution: Execution, *, cancelled: str = "") -> list[Command]:
    """Return the end of the execution, once every iteration has one."""
    if execution.total is None or execution.ended < execution.total:
        return []
    if is_broken(execution):
        reason = f"{execution.failed} of {execution.total} iterations failed"
        return [EndExecution(state=ExecutionState.FAILED, reason=reason)]
    if execution.cancelled or cancelled:
        reason = execution.reason or cancelled or f"{execution.cancelled} iterations were cancelled"
        return [EndExecution(state=ExecutionState.CANCELLED, reason=reason)]

    return [EndExecution(state=ExecutionState.COMPLETED)]


def _ordered(*commands: Command) -> tuple[Command, ...]:
    """Return *commands*, the end of the execution last and alone: nothing is left to cancel after it."""
    end = [command for command in commands if isinstance(command, EndExecution)]

    return tuple(end or commands)


def _reason(event: Event) -> str:
    return str(event.data.get("reason") or "")
