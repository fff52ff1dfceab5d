"""What an attempt does to a workflow: counted when it is begun, and every end of it is one change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.engine import transitions
from adws.adw_modules.engine.transitions import MAX_SUSPENSIONS, Chosen, Failure, TerminalFailure
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


def test_beginning_counts_the_attempt_and_writes_down_who_makes_it_and_until_when():
    draft, _ = begun(spec_of(phase("plan", timeouts=Timeouts(wall=60.0))))

    record = draft.phase(0)
    (made,) = record.attempts
    assert (record.status, record.attempts_used, record.last_attempt_timestamp) == ("running", 1, draft.text)
    assert (made.number, made.round, made.status, made.started_at) == (1, 1, "running", draft.text)
    assert (made.owner, made.fence) == ("worker 1@here", 3)
    assert made.deadline_at == timestamps.to_text(START + timedelta(seconds=60))
    assert draft.machine.current_state is S.PLANNING


def test_a_phase_without_a_wall_clock_has_no_deadline():
    draft, _ = begun(spec_of(phase("plan", timeouts=Timeouts(wall=None))))

    assert draft.phase(0).attempts[0].deadline_at is None


def test_the_event_of_an_attempt_has_the_counters_of_the_document():
    draft, _ = begun(spec_of(phase("plan", max_attempts=4)))

    told = draft.events[-1]
    assert (told.event_type, told.attempt_number, told.status) == ("attempt_started", 1, "running")
    assert told.data == {"round": 1, "attempts_used": 1, "limit": 4}


def test_numbers_of_attempts_go_on_through_rounds_while_the_count_starts_again():
    spec = spec_of("plan")
    draft, _ = begun(spec)
    draft.end_attempt(0, "failed")
    transitions.new_round(draft, "plan")

    begin_next(draft, spec)

    record = draft.phase(0)
    assert [made.number for made in record.attempts] == [1, 2]
    assert (record.attempts_used, record.round, record.attempts[-1].round) == (1, 2, 2)


# --- before an attempt -----------------------------------------------------------------------------------------


def test_a_phase_that_waits_for_its_time_is_not_begun_before_it():
    spec, clock = spec_of("plan"), FakeClock()
    draft, result = begun(spec, clock)
    transitions.fail(draft, spec, result, trouble(), None)

    assert transitions.before_attempt(draft, spec) == RetryAt(phase="plan", at=LATER, reason="it broke")

    clock.set(LATER)
    assert isinstance(transitions.before_attempt(draft_of(draft.finished(), clock), spec), Chosen)


def test_waiting_for_its_time_has_a_reason_also_when_none_was_written_down():
    spec = spec_of("plan")
    document = document_of(spec)
    document.phases[0].retry_at = timestamps.to_text(LATER)

    result = transitions.before_attempt(draft_of(document), spec)

    assert result.reason == "the attempt before failed"


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


def test_a_phase_that_is_not_required_and_exhausted_is_passed_over():
    spec = spec_of(phase("plan", max_attempts=1, is_required=False), "build")
    document = document_of(spec)
    document.phases[0] = document.phases[0].model_copy(
        update={"attempts_used": 1, "attempts": [attempt(1)], "last_failure_reason": "it broke"}
    )
    draft = draft_of(document)

    result = transitions.before_attempt(draft, spec)

    assert result.spec.name == "build"
    assert draft.phase(0).status == "failed"
    assert draft.document.warnings == ["plan was passed over: it broke"]


def test_a_required_phase_whose_needs_are_not_met_fails_the_workflow():
    spec = spec_of(phase("plan", is_required=False), phase("build", needs=("plan",)))
    document = document_of(spec)
    document.phases[0].status = "failed"

    outcome = transitions.before_attempt(draft_of(document), spec)

    assert outcome == Failed(phase="build", reason="NEEDS_UNMET", message="plan is not complete")


def test_the_workflow_goes_on_past_the_state_of_a_phase_that_was_left_out():
    """
    Skipping must not need a move that the table does not have.
    """
    spec = spec_of(
        phase("plan", is_required=False),
        phase("build", is_required=False, needs=("plan",)),
        phase("lint", is_required=False, needs=("build",)),
        "test",
    )
    draft, result = begun(spec)
    transitions.fail(draft, spec, result, trouble(retry_at=None), None)

    begin_next(draft, spec)

    assert [record.status for record in draft.document.phases] == ["failed", "skipped", "skipped", "running"]
    assert draft.finished().current_state == "testing"
    assert types(draft).count("phase_skipped") == 2


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
    draft = draft_of(draft.finished(), clock)

    transitions.succeed(draft, spec, result, RunReport(ok=True))

    assert {event.event_type: event.duration for event in draft.events if event.event_type != "state_changed"} == {
        "attempt_succeeded": 3.0,
        "phase_completed": 23.0,
    }


def test_a_phase_that_never_began_tells_no_time():
    spec = spec_of("plan")
    draft = draft_of(document_of(spec), FakeClock())

    transitions.fail_workflow(
        draft, spec.phases[0], 0, transitions.TerminalFailure(reason="BUDGET", message="nothing is left")
    )

    assert next((event.event_type, event.duration) for event in draft.events) == ("phase_failed", None)


def test_a_report_that_says_nothing_leaves_nothing_in_the_document():
    spec = spec_of("plan")
    draft, result = begun(spec)

    transitions.succeed(draft, spec, result, RunReport(ok=True))

    assert (draft.phase(0).result, draft.phase(0).attempts[0].report) == (None, None)
    assert next(event for event in draft.events if event.event_type == "attempt_succeeded").data == {}


def test_a_clock_that_was_turned_back_gives_no_negative_time():
    spec, clock = spec_of("plan"), FakeClock()
    draft, result = begun(spec, clock)
    clock.set(START - timedelta(hours=1))
    draft = draft_of(draft.finished(), clock)

    transitions.succeed(draft, spec, result, WELL)

    assert draft.phase(0).attempts[0].duration == 0.0


def test_the_success_of_the_last_phase_completes_the_workflow_in_the_same_change():
    spec = spec_of("plan")
    draft, result = begun(spec)

    outcome = transitions.succeed(draft, spec, result, WELL)

    assert outcome == Done(state="completed")
    assert draft.finished().current_state == "completed"


def test_what_each_phase_cost_is_added_up_also_when_it_failed():
    spec = spec_of("plan", "build")
    draft, result = begun(spec)
    transitions.fail(draft, spec, result, trouble(retry_at=START), RunReport(ok=False, cost_usd=0.5))
    result = begin_next(draft, spec)
    transitions.succeed(draft, spec, result, RunReport(ok=True, cost_usd=0.25))
    result = begin_next(draft, spec)
    transitions.succeed(draft, spec, result, RunReport(ok=True, cost_usd=1.0))

    cost = draft.document.cost
    assert (cost.total_usd, cost.by_phase) == (1.75, {"plan": 0.75, "build": 1.0})


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


def test_a_phase_that_needs_a_person_parks_the_workflow_and_keeps_what_it_did():
    spec = spec_of("plan", "build")
    draft, result = begun(spec)

    outcome = transitions.await_approval(draft, result, RunReport(ok=True, result={"n": 1}), "look at it")

    document = draft.finished()
    assert outcome == Paused(reason="awaiting_approval")
    assert (document.current_state, document.pause_reason) == ("paused", "awaiting_approval")
    assert (draft.phase(0).status, draft.phase(0).result) == ("waiting", {"n": 1})
    assert types(draft)[-3:] == ["attempt_succeeded", "approval_asked", "state_changed"]


# --- rework ----------------------------------------------------------------------------------------------------


def reworking(spec, **fields):
    """A draft in which `test` has just begun."""
    draft, result = begun(spec, **fields)
    while result.spec.name != "test":
        transitions.succeed(draft, spec, result, WELL)
        result = begin_next(draft, spec)
    return draft, result


REWORK = spec_of("plan", "build", phase("test", on_rework="build"), "review")


def test_rework_starts_a_new_round_for_its_goal_and_all_after_it():
    draft, result = reworking(REWORK)

    outcome = transitions.rework(draft, REWORK, result, RunReport(ok=True, result={"broken": 2}, summary="2 are red"))

    document = draft.finished()
    assert outcome == Next(phase="build")
    assert (document.current_state, document.reworks) == ("building", 1)
    assert [(r.status, r.round, r.attempts_used) for r in document.phases] == [
        ("complete", 1, 1),
        ("queued", 2, 0),
        ("queued", 2, 0),
        ("queued", 1, 0),
    ]
    told = next(event for event in draft.events if event.event_type == "rework_asked")
    assert told.data == {"back_to": "build", "summary": "2 are red"}


def test_what_asked_for_rework_is_there_for_those_who_do_it():
    draft, result = reworking(REWORK)

    transitions.rework(draft, REWORK, result, RunReport(ok=True, result={"broken": 2}))

    assert draft.phase(2).result == {"broken": 2}


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


def test_the_last_rework_fails_the_workflow_with_a_reason_of_its_own():
    draft, result = reworking(REWORK, max_reworks=0)

    outcome = transitions.rework(draft, REWORK, result, WELL)

    message = "it asks for rework, but 0 of 0 reworks are used"
    assert outcome == Failed(phase="test", reason="MAX_REWORKS_EXHAUSTED", message=message)
    assert (draft.phase(2).status, draft.phase(2).last_failure_reason) == ("failed", message)
    assert draft.phase(2).attempts[-1].status == "succeeded"
    assert draft.finished().current_state == "failed"


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


def test_the_last_failed_attempt_and_the_failed_workflow_are_one_change():
    spec = spec_of(phase("plan", max_attempts=1), "build")
    draft, result = begun(spec)

    outcome = transitions.fail(draft, spec, result, trouble(), None)

    document = draft.finished()
    assert outcome == Failed(phase="plan", reason="MAX_ATTEMPTS_EXHAUSTED", message="it broke", advice="look")
    assert (document.current_state, document.terminal_reason) == ("failed", "MAX_ATTEMPTS_EXHAUSTED")
    record = document.phases[0]
    assert (record.status, record.attempts_used, record.terminal_reason) == ("failed", 1, "MAX_ATTEMPTS_EXHAUSTED")
    assert record.last_failure_reason == "it broke"
    assert types(draft)[-3:] == ["attempt_failed", "phase_failed", "state_changed"]


def test_what_is_not_worth_another_attempt_fails_at_once_with_the_reason_that_was_decided():
    spec = spec_of(phase("plan", max_attempts=5))
    draft, result = begun(spec)

    outcome = transitions.fail(draft, spec, result, trouble(retry_at=None, terminal_reason="NOT_RETRYABLE"), None)

    assert outcome.reason == draft.finished().terminal_reason == "NOT_RETRYABLE"
    assert draft.phase(0).attempts_used == 1


def test_trouble_without_words_has_some():
    silent = Failure(error={}, retry_at=None)

    assert (silent.message, silent.advice) == ("no reason was given", "")


def test_a_phase_that_is_not_required_fails_alone():
    spec = spec_of("plan", phase("lint", is_required=False, max_attempts=1), "test")
    draft, result = begun(spec)
    transitions.succeed(draft, spec, result, WELL)
    result = begin_next(draft, spec)

    outcome = transitions.fail(draft, spec, result, trouble(), None)

    assert outcome == Next(phase="test")
    assert draft.machine.current_state is S.LINTING
    assert (draft.phase(1).status, draft.phase(1).terminal_reason) == ("failed", "MAX_ATTEMPTS_EXHAUSTED")
    assert draft.document.warnings == ["lint was passed over: it broke"]
    assert draft.document.terminal_reason is None


def test_the_last_phase_may_fail_alone_and_the_workflow_is_complete_with_warnings():
    spec = spec_of(phase("plan", is_required=False))
    draft, result = begun(spec)

    outcome = transitions.fail(draft, spec, result, trouble(retry_at=None), None)

    assert outcome == Done(state="completed", warnings=("plan was passed over: it broke",))


# --- the health budget -----------------------------------------------------------------------------------------


def test_a_workflow_over_its_budget_of_attempts_fails_with_a_reason_of_its_own():
    spec = spec_of("plan", "build")
    draft, result = begun(spec, max_total_attempts=1)
    transitions.succeed(draft, spec, result, WELL)

    outcome = transitions.before_attempt(draft, spec)

    assert outcome.reason == draft.finished().terminal_reason == "HEALTH_BUDGET"
    assert outcome.message == "its health budget is gone: 1 of 1 attempts are used"
    assert draft.phase(1).attempts == []


def test_a_workflow_over_its_budget_of_minutes_fails_with_the_same_reason():
    spec, clock = spec_of("plan", "build"), FakeClock()
    draft, result = begun(spec, clock, max_minutes=1.0)
    clock.advance(60.0)
    draft = draft_of(draft.finished(), clock)
    transitions.succeed(draft, spec, result, WELL)

    outcome = transitions.before_attempt(draft, spec)

    assert (outcome.reason, outcome.message) == (
        "HEALTH_BUDGET",
        "its health budget is gone: 1.0 of 1 minutes are used",
    )


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


def test_cleaning_that_fails_after_a_merge_is_completed_with_warnings():
    spec = spec_of(phase("clean", max_attempts=1))
    draft, result = begun(spec)
    draft.machine.mark_merged()

    outcome = transitions.fail(draft, spec, result, trouble(), None)

    document = draft.finished()
    assert outcome == Done(state="completed", warnings=("clean failed: it broke",))
    assert (document.current_state, document.terminal_reason) == ("completed", None)
    assert document.state_history[-1].metadata["warnings"] == ["it broke"]
    assert draft.events[-1].data == {"from": "cleaning", "to": "completed", "warnings": ["it broke"]}


def test_cleaning_that_fails_before_a_merge_is_a_failure():
    spec = spec_of(phase("clean", max_attempts=1))
    draft, result = begun(spec)

    assert isinstance(transitions.fail(draft, spec, result, trouble(), None), Failed)


def test_cleaning_that_may_not_even_begin_after_a_merge_is_completed_with_warnings():
    spec = spec_of("ship", "clean")
    draft, result = begun(spec, max_total_attempts=1)
    draft.machine.mark_merged()
    transitions.succeed(draft, spec, result, WELL)

    outcome = transitions.before_attempt(draft, spec)

    assert outcome.state == draft.finished().current_state == "completed"
    assert outcome.warnings == ("clean failed: its health budget is gone: 1 of 1 attempts are used",)


# --- being cut off ---------------------------------------------------------------------------------------------


def test_an_attempt_that_was_cut_off_stays_counted():
    spec = spec_of(phase("plan", max_attempts=2))
    draft, _ = begun(spec)

    assert transitions.interrupt(draft, spec, 0, "its process died") is None

    record = draft.phase(0)
    assert (record.status, record.attempts_used) == ("interrupted", 1)
    assert record.last_failure_reason == "its process died"
    assert (record.attempts[0].status, record.attempts[0].duration) == ("interrupted", None)
    assert record.attempts[0].error == {"category": "interrupted", "message": "its process died"}
    assert types(draft)[-1] == "attempt_interrupted"


def test_the_last_attempt_that_was_cut_off_fails_the_workflow_in_the_same_change():
    spec = spec_of(phase("plan", max_attempts=1))
    draft, _ = begun(spec)

    outcome = transitions.interrupt(draft, spec, 0, "its process died")

    assert outcome == Failed(phase="plan", reason="MAX_ATTEMPTS_EXHAUSTED", message="its process died")
    assert draft.finished().current_state == "failed"


# --- ending on order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drain", "lost_lease"])
def test_a_suspended_attempt_is_taken_out_of_the_count(kind):
    spec, clock = spec_of("plan"), FakeClock()
    draft, result = begun(spec, clock)
    clock.advance(3.0)
    draft = draft_of(draft.finished(), clock)

    outcome = transitions.suspend(draft, result, kind=kind, reason="the worker ends")

    record = draft.phase(0)
    assert outcome == Stopped(reason=kind)
    assert (record.status, record.attempts_used) == ("suspended", 0)
    assert (record.attempts[0].status, record.attempts[0].duration) == ("suspended", 3.0)
    assert record.attempts[0].error == {"order": kind, "message": "the worker ends"}
    assert draft.machine.current_state is S.PLANNING


@pytest.mark.parametrize("kind", ["pause", "stop"])
def test_a_pause_suspends_the_attempt_and_parks_the_workflow(kind):
    draft, result = begun(spec_of("plan"))

    outcome = transitions.suspend(draft, result, kind=kind, reason="someone wants to look")

    document = draft.finished()
    assert outcome == Paused(reason="someone wants to look")
    assert (document.current_state, document.resume_state) == ("paused", "planning")
    assert document.state_history[-1].metadata == {"reason": "someone wants to look", "phase": "plan"}
    assert draft.phase(0).attempts_used == 0


@pytest.mark.parametrize("kind", ["abandon", "rollback"])
def test_giving_up_suspends_the_attempt_and_abandons_the_workflow(kind):
    draft, result = begun(spec_of("plan"))

    outcome = transitions.suspend(draft, result, kind=kind, reason="")

    document = draft.finished()
    assert outcome == Done(state="abandoned")
    assert (document.current_state, document.terminal_reason) == ("abandoned", "ABANDONED")
    assert document.state_history[-1].metadata == {"reason": kind}


def test_a_pause_without_a_reason_has_one():
    draft, result = begun(spec_of("plan"))

    assert transitions.suspend(draft, result, kind="pause", reason="") == Paused(reason="paused")


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


def test_many_ordered_stops_in_a_row_need_a_person_and_burn_no_attempt():
    draft, outcomes = suspended_in_a_row(MAX_SUSPENSIONS)

    assert outcomes[:-1] == [Stopped(reason="drain")] * (MAX_SUSPENSIONS - 1)
    assert outcomes[-1] == Paused(reason="suspended_too_often")
    assert draft.phase(0).attempts_used == 1


def test_a_person_who_resumed_it_is_not_called_at_the_very_next_stop():
    _, outcomes = suspended_in_a_row(2 * MAX_SUSPENSIONS)

    paused = [number for number, outcome in enumerate(outcomes, 1) if isinstance(outcome, Paused)]
    assert paused == [MAX_SUSPENSIONS, 2 * MAX_SUSPENSIONS]


def test_pausing_between_two_phases_names_no_phase():
    draft = draft_of(document_of(spec_of("plan")))

    transitions.pause(draft, "wait")

    assert draft.finished().state_history[-1].metadata == {"reason": "wait"}


def test_a_loss_tells_its_reason_and_its_message():
    told = TerminalFailure(reason="REJECTED", message="no", advice="say why").to_json()

    assert told == {"terminal_reason": "REJECTED", "message": "no"}
