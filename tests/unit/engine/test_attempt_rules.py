"""What an attempt does to a workflow: counted when it is begun, and every end of it is one change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.engine import transitions
from adws.adw_modules.engine.transitions import MAX_SUSPENSIONS, Chosen, Failure
from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.phase import Done, Failed, Next, Paused, RetryAt, RunReport, Stopped
from adws.adw_modules.workflow.model import Timeouts
from adws.testing import START, FakeClock
from tests.unit.engine_cases import WELL, S, attempt, document_of, draft_of, phase, spec_of, types

LATER = START + timedelta(hours=1)


def begun(spec, clock=None, **fields):
    """A draft whose first open phase has just begun an attempt."""
    draft = draft_of(document_of(spec, **fields), clock)
    result = transitions.before_attempt(draft, spec)
    assert isinstance(result, Chosen)
    transitions.begin(draft, result, owner="worker 1@here", fence=3)
    return draft, result


def begin_next(draft, spec):
    result = transitions.before_attempt(draft, spec)
    assert isinstance(result, Chosen), result
    transitions.begin(draft, result, owner="worker 1@here", fence=3)
    return result


def trouble(*, retry_at=LATER, **fields) -> Failure:
    error = {"category": "transient", "message": "it broke", "advice": "look", "traceback": "long"}
    return Failure(error=error, retry_at=retry_at, **fields)


# --- beginning -------------------------------------------------------------------------------------------------


def test_a_phase_without_a_wall_clock_has_no_deadline():
    draft, _ = begun(spec_of(phase("plan", timeouts=Timeouts(wall=None))))

    assert draft.phase(0).attempts[0].deadline_at is None


# --- before an attempt -----------------------------------------------------------------------------------------


def test_what_is_exhausted_but_not_failed_is_failed_before_anything_runs():
    """
    A crash of an older adw could leave this: it is never begun again and never taken for complete.
    """
    spec = spec_of(phase("plan", max_attempts=2), "build")
    document = document_of(spec)
    document.phases[0].attempts_used = 2
    draft = draft_of(document)

    outcome = transitions.before_attempt(draft, spec)

    assert outcome == Failed(phase="plan", reason="MAX_ATTEMPTS_EXHAUSTED", message="all attempts are used")
    assert draft.finished().current_state == "failed"


def test_a_required_phase_whose_needs_are_not_met_fails_the_workflow():
    spec = spec_of(phase("plan", is_required=False), phase("build", needs=("plan",)))
    document = document_of(spec)
    document.phases[0].status = "failed"

    outcome = transitions.before_attempt(draft_of(document), spec)

    assert outcome == Failed(phase="build", reason="NEEDS_UNMET", message="plan is not complete")


def test_a_workflow_whose_last_phase_is_left_out_completes():
    spec = spec_of(phase("plan", is_required=False), phase("build", is_required=False, needs=("plan",)))
    draft, result = begun(spec)
    transitions.fail(draft, spec, result, trouble(retry_at=None), None)

    outcome = transitions.before_attempt(draft, spec)

    assert outcome == Done(
        state="completed",
        warnings=("plan was passed over: it broke", "build was passed over: plan is not complete"),
    )
    assert draft.finished().current_state == "completed"


# --- ending well -----------------------------------------------------------------------------------------------


def test_success_closes_the_attempt_completes_the_phase_and_names_the_next_in_one_change():
    spec, clock = spec_of("plan", "build"), FakeClock()
    draft, result = begun(spec, clock)
    clock.advance(12.5)
    draft = draft_of(draft.finished(), clock)
    report = RunReport(
        ok=True, summary="planned", result={"plan": "a.md"}, exit_code=0, cost_usd=0.25, output_files=("1.log",)
    )

    outcome = transitions.succeed(draft, spec, result, report)

    record = draft.phase(0)
    (made,) = record.attempts
    assert outcome == Next(phase="build")
    assert (record.status, record.attempts_used, record.result) == ("complete", 1, {"plan": "a.md"})
    assert (made.status, made.duration, made.ended_at) == ("succeeded", 12.5, draft.text)
    assert made.report == {"summary": "planned", "exit_code": 0, "cost_usd": 0.25, "output_files": ["1.log"]}
    assert [(event.event_type, event.status) for event in draft.events] == [
        ("cost_added", ""),
        ("attempt_succeeded", "succeeded"),
        ("phase_completed", "complete"),
    ]
    assert draft.events[1].data == {"summary": "planned"}


def test_the_end_of_a_phase_tells_the_time_since_the_first_attempt_of_its_round():
    """
    The waits between attempts are part of what people wait for; an earlier round is not.
    """
    spec, clock = spec_of("plan"), FakeClock()
    draft, result = begun(spec, clock)
    transitions.new_round(draft, "plan")
    for seconds in (5.0, 20.0):
        clock.advance(seconds)
        draft = draft_of(draft.finished(), clock)
        transitions.begin(draft, result, owner="me", fence=1)
    clock.advance(3.0)
    early, draft = draft_of(draft.finished(), clock), draft_of(draft.finished(), clock)

    transitions.succeed(draft, spec, result, RunReport(ok=True))

    assert {event.event_type: event.duration for event in draft.events if event.event_type != "state_changed"} == {
        "attempt_succeeded": 3.0,
        "phase_completed": 23.0,
    }
    clock.set(START - timedelta(hours=1))  # a clock that was turned back gives no negative time
    early = draft_of(early.finished(), clock)
    transitions.succeed(early, spec, result, WELL)
    assert early.phase(0).attempts[-1].duration == 0.0


@pytest.mark.parametrize(
    "result", [{"when": START}, {1: "a"}, {"files": ("a", "b")}, {"x": float("nan")}, {"x": "\ud800"}]
)
def test_a_result_that_would_come_back_as_something_else_is_refused(result):
    spec = spec_of("plan")
    draft, value = begun(spec)

    with pytest.raises(StateUnserialisable, match="what plan gave back is not plain JSON"):
        transitions.succeed(draft, spec, value, RunReport(ok=True, result=result))


def test_a_result_is_copied_so_that_its_runner_cannot_change_it_later():
    spec, result = spec_of("plan"), {"files": ["a"]}
    draft, value = begun(spec)
    transitions.succeed(draft, spec, value, RunReport(ok=True, result=result))

    result["files"].append("b")

    assert draft.phase(0).result == {"files": ["a"]}


# --- rework ----------------------------------------------------------------------------------------------------


def reworking(spec, **fields):
    """A draft in which `test` has just begun."""
    draft, result = begun(spec, **fields)
    while result.spec.name != "test":
        transitions.succeed(draft, spec, result, WELL)
        result = begin_next(draft, spec)
    return draft, result


def test_a_new_round_takes_back_grants_and_waits_of_the_one_before():
    spec = spec_of("plan")
    document = document_of(spec)
    document.phases[0] = document.phases[0].model_copy(
        update={"granted": 2, "attempts_used": 6, "retry_at": "x", "terminal_reason": "y", "attempts": [attempt(1)]}
    )
    draft = draft_of(document)

    transitions.new_round(draft, "plan")

    record = draft.phase(0)
    assert (record.granted, record.attempts_used, record.retry_at, record.terminal_reason) == (0, 0, None, None)


def test_a_phase_that_is_not_required_is_passed_over_when_no_rework_is_left():
    spec = spec_of("plan", "build", phase("test", on_rework="build", is_required=False), "review")
    draft, result = reworking(spec, max_reworks=0)

    outcome = transitions.rework(draft, spec, result, WELL)

    assert outcome == Next(phase="review")
    assert draft.phase(2).terminal_reason == "MAX_REWORKS_EXHAUSTED"


# --- ending badly ----------------------------------------------------------------------------------------------


def test_a_failure_with_attempts_left_waits_which_is_not_running():
    spec = spec_of(phase("plan", max_attempts=2))
    draft, result = begun(spec)

    outcome = transitions.fail(draft, spec, result, trouble(), RunReport(ok=False, exit_code=1))

    record = draft.phase(0)
    assert outcome == RetryAt(phase="plan", at=LATER, reason="it broke")
    assert (record.status, record.retry_at) == ("retry_wait", timestamps.to_text(LATER))
    assert (record.last_failure_reason, record.terminal_reason) == ("it broke", None)
    assert record.attempts[0].error["traceback"] == "long"
    assert record.attempts[0].report == {"exit_code": 1}
    assert draft.machine.current_state is S.PLANNING
    assert [(event.event_type, event.status) for event in draft.events[-2:]] == [
        ("attempt_failed", "failed"),
        ("retry_scheduled", "retry_wait"),
    ]
    assert "traceback" not in draft.events[-2].data["error"]
    assert draft.events[-1].data == {
        "at": timestamps.to_text(LATER),
        "why": "it broke",
        "category": record.attempts[0].error["category"],
    }


# --- the health budget -----------------------------------------------------------------------------------------


def test_nobody_waits_for_an_attempt_that_the_budget_does_not_allow():
    spec = spec_of("plan")
    draft, result = begun(spec, max_total_attempts=1)

    outcome = transitions.fail(draft, spec, result, trouble(), None)

    assert outcome.reason == "HEALTH_BUDGET"
    assert "retry_scheduled" not in types(draft)
    assert (draft.phase(0).status, draft.phase(0).retry_at) == ("failed", None)


def test_a_budget_that_is_gone_fails_the_workflow_also_before_a_phase_that_is_not_required():
    spec = spec_of("plan", phase("build", is_required=False))
    draft, result = begun(spec, max_total_attempts=1)
    transitions.succeed(draft, spec, result, WELL)

    assert transitions.before_attempt(draft, spec).reason == "HEALTH_BUDGET"


def test_the_last_phase_completes_the_workflow_though_its_budget_is_used_up_by_it():
    spec = spec_of("plan")
    draft, result = begun(spec, max_total_attempts=1)

    assert transitions.succeed(draft, spec, result, WELL) == Done(state="completed")


# --- cleaning after a merge ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_merged", [False, True])
def test_cleaning_that_fails_after_a_merge_is_completed_with_warnings_and_before_it_a_failure(is_merged):
    spec = spec_of(phase("clean", max_attempts=1))
    draft, result = begun(spec)
    if not is_merged:
        assert isinstance(transitions.fail(draft, spec, result, trouble(), None), Failed)
        return
    draft.machine.mark_merged()

    outcome = transitions.fail(draft, spec, result, trouble(), None)

    document = draft.finished()
    assert outcome == Done(state="completed", warnings=("clean failed: it broke",))
    assert (document.current_state, document.terminal_reason) == ("completed", None)
    assert document.state_history[-1].metadata["warnings"] == ["it broke"]
    assert draft.events[-1].data == {"from": "cleaning", "to": "completed", "warnings": ["it broke"]}


def test_cleaning_that_may_not_even_begin_after_a_merge_is_completed_with_warnings():
    spec = spec_of("ship", "clean")
    draft, result = begun(spec, max_total_attempts=1)
    draft.machine.mark_merged()
    transitions.succeed(draft, spec, result, WELL)

    outcome = transitions.before_attempt(draft, spec)

    assert outcome.state == draft.finished().current_state == "completed"
    assert outcome.warnings == ("clean failed: its health budget is gone: 1 of 1 attempts are used",)


# --- ending on order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason", "outcome", "state", "metadata"),
    [
        ("drain", "the worker ends", Stopped(reason="drain"), "planning", {}),
        ("lost_lease", "the worker ends", Stopped(reason="lost_lease"), "planning", {}),
        ("pause", "a look", Paused(reason="a look"), "paused", {"reason": "a look", "phase": "plan"}),
        ("stop", "a look", Paused(reason="a look"), "paused", {"reason": "a look", "phase": "plan"}),
        ("pause", "", Paused(reason="paused"), "paused", {"reason": "paused", "phase": "plan"}),
        ("abandon", "", Done(state="abandoned"), "abandoned", {"reason": "abandon"}),
        ("rollback", "", Done(state="abandoned"), "abandoned", {"reason": "rollback"}),
    ],
)
def test_an_order_takes_the_attempt_out_of_the_count_and_decides_the_state(kind, reason, outcome, state, metadata):
    clock = FakeClock()
    draft, result = begun(spec_of("plan"), clock)
    clock.advance(3.0)
    draft = draft_of(draft.finished(), clock)

    assert transitions.suspend(draft, result, kind=kind, reason=reason) == outcome

    record, document = draft.phase(0), draft.finished()
    assert (record.status, record.attempts_used) == ("suspended", 0)
    assert (record.attempts[0].status, record.attempts[0].duration) == ("suspended", 3.0)
    assert record.attempts[0].error == {"order": kind, "message": reason}
    assert (document.current_state, document.state_history[-1].metadata) == (state, metadata)


def suspended_in_a_row(count: int):
    spec = spec_of("plan")
    draft, result = begun(spec)
    outcomes = []
    for _ in range(count):
        outcomes.append(transitions.suspend(draft, result, kind="drain", reason=""))
        if isinstance(outcomes[-1], Paused):
            draft.move(S.PLANNING)  # as a person who resumes it
        result = begin_next(draft, spec)
    return draft, outcomes


def test_a_person_who_resumed_it_is_not_called_at_the_very_next_stop():
    _, outcomes = suspended_in_a_row(2 * MAX_SUSPENSIONS)

    paused = [number for number, outcome in enumerate(outcomes, 1) if isinstance(outcome, Paused)]
    assert paused == [MAX_SUSPENSIONS, 2 * MAX_SUSPENSIONS]
