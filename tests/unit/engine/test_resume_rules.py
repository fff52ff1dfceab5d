"""How a workflow that stopped goes on: a plan that says so or why not, and that plan made true."""

from __future__ import annotations

import pytest

from adws.adw_modules.engine import resume, transitions
from adws.adw_modules.engine.resume import ResumePlan, apply_resume, plan_resume
from adws.adw_modules.engine.transitions import Failure
from adws.adw_modules.errors import StateInvalid, UsageError
from adws.adw_modules.phase import Done, Failed, Next
from adws.adw_modules.state_machine import WorkflowStateMachine
from tests.unit.engine_cases import ADW_ID, WELL, S, document_of, draft_of, phase, spec_of, types

SPEC = spec_of("plan", phase("build", max_attempts=2), "test")
GONE = Failure(error={"message": "it broke"}, retry_at=None, terminal_reason="NOT_RETRYABLE")


def begin(draft, spec):
    result = transitions.before_attempt(draft, spec)
    transitions.begin(draft, result, owner="worker 1@here", fence=1)
    return result


def done_until(name, spec=SPEC, **fields):
    """A draft in which every phase before *name* is complete, and *name* has just begun."""
    draft = draft_of(document_of(spec, **fields))
    while (result := begin(draft, spec)).spec.name != name:
        transitions.succeed(draft, spec, result, WELL)
    return draft, result


def failed_in(name, spec=SPEC, **fields):
    draft, result = done_until(name, spec, **fields)
    transitions.fail(draft, spec, result, GONE, None)
    return draft_of(draft.finished())


def exhausted_in(name, spec=SPEC):
    draft, result = done_until(name, spec)
    record = draft.change_phase(result.index, attempts_used=result.spec.max_attempts)
    assert record.attempts_used == result.spec.max_attempts
    transitions.fail(draft, spec, result, GONE, None)
    return draft_of(draft.finished())


def paused_in(name, spec=SPEC):
    draft, result = done_until(name, spec)
    transitions.suspend(draft, result, kind="pause", reason="someone")
    return draft_of(draft.finished())


def waiting_in(name, spec=SPEC, **fields):
    draft, result = done_until(name, spec, **fields)
    transitions.await_approval(draft, result, WELL, "look")
    return draft_of(draft.finished())


def plan(draft, spec=SPEC, **how) -> ResumePlan:
    return plan_resume(draft.document, spec, draft.machine, **how)


def resumed(draft, spec=SPEC, **how):
    apply_resume(draft, plan(draft, spec, **how), by="someone")
    return draft.finished()


# --- plain resume ----------------------------------------------------------------------------------------------


def test_a_paused_workflow_goes_on_where_it_was():
    draft = paused_in("build")

    document = resumed(draft)

    assert (document.current_state, document.pause_reason) == ("building", None)
    assert (document.phases[1].status, document.phases[1].attempts_used) == ("queued", 0)
    assert document.state_history[-1].metadata == {"reason": "resumed", "by": "someone"}
    assert types(draft) == ["state_changed", "resumed"]
    assert draft.events[-1].data == {"phase": "build", "by": "someone"}


def test_a_failed_workflow_goes_on_with_the_phase_that_failed_and_what_it_has_left():
    document = resumed(failed_in("build"))

    record = document.phases[1]
    assert (document.current_state, document.terminal_reason, document.retry_count) == ("building", None, 1)
    assert (record.status, record.attempts_used, record.round, record.terminal_reason) == ("queued", 1, 1, None)
    assert record.last_failure_reason == "it broke"


def test_a_workflow_that_failed_and_does_not_know_where_goes_back_to_its_first_phase():
    """
    Older tools did not write down which phase had failed.
    """
    draft = failed_in("plan")
    document = draft.document.model_copy(update={"failed_phase": None, "furthest_failed": None})

    assert plan(draft_of(document)).target is S.PLANNING


def test_a_workflow_paused_before_its_first_phase_or_nobody_knows_where_goes_back_to_pending():
    draft = draft_of(document_of(SPEC))
    transitions.pause(draft, "wait")
    draft = draft_of(draft.finished())

    assert plan(draft).target is S.PENDING
    assert resumed(draft).current_state == "pending"
    document = paused_in("plan").document.model_copy(update={"resume_state": None})
    assert plan(draft_of(document)).target is S.PENDING


def test_an_active_workflow_is_only_told_not_to_wait():
    draft, result = done_until("build")
    transitions.fail(draft, SPEC, result, Failure(error={}, retry_at=draft.at), None)

    assert plan(draft).target is None
    document = resumed(draft)

    assert (document.phases[1].status, document.phases[1].retry_at) == ("queued", None)
    assert document.current_state == "building"


def test_a_workflow_with_nothing_left_to_do_goes_on_to_its_end():
    draft = paused_in("test")
    draft.change_phase(2, status="complete")

    result = plan(draft)

    assert (result.phase, result.target) == ("", S.TESTING)
    assert result.describe() == f"workflow {ADW_ID} is finished"
    assert resumed(draft).current_state == "testing"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "continues with build"),
        ({"starts_round": True}, "continues with build, from its beginning"),
        ({"grant": 3}, "continues with build, with 3 more attempts"),
    ],
)
def test_a_plan_says_in_a_sentence_what_will_happen(given, text):
    made = ResumePlan(adw_id=ADW_ID, target=S.BUILDING, phase="build", **given)

    assert made.describe() == f"workflow {ADW_ID} {text}"


# --- refusals --------------------------------------------------------------------------------------------------


def completed():
    draft, result = done_until("test")
    transitions.succeed(draft, SPEC, result, WELL)
    return draft


def abandoned():
    draft, result = done_until("test", issue_number=None)
    transitions.suspend(draft, result, kind="abandon", reason="")
    return draft


def rolling_back():
    draft = failed_in("build")
    draft.machine.begin_rollback()
    return draft


WAYS = rf"adw resume {ADW_ID} --workflow NAME carries it on, adw run 42 starts anew"
SPENT = r"2 of 2 attempts are used.*adw state set .* max_total_attempts=N"
NO_RETRY = r"used 0 of 0 retries: allow more with adw retry .* --grant N"
ACTIVE = rf"is building: pause it first \(adw pause {ADW_ID}\)"


@pytest.mark.parametrize(
    ("stopped", "how", "message"),
    [
        (completed, {}, rf"is completed and cannot go on: {WAYS}"),
        (abandoned, {}, r"is abandoned and cannot go on$"),
        (rolling_back, {}, f"finish it with adw rollback {ADW_ID}"),
        (lambda: waiting_in("build"), {}, f"waits for approval of build: adw approve {ADW_ID}, or adw reject"),
        (lambda: exhausted_in("build"), {}, r"build used 2 of 2 attempts: .*--grant N, or .*--from build"),
        *((lambda: failed_in("build", max_retries=0), how, NO_RETRY) for how in ({}, {"from_phase": "plan"})),
        *(
            (lambda: failed_in("build", max_total_attempts=2), how, SPENT)
            for how in ({}, {"grant": 2}, {"from_phase": "plan"})
        ),
        (lambda: paused_in("build"), {"grant": 1}, f"only a failed workflow can be granted .* and {ADW_ID} is paused"),
        (lambda: failed_in("build"), {"grant": -1}, "-1 attempts cannot be granted"),
        (lambda: failed_in("build"), {"from_phase": "test"}, "test comes after build, where it stopped: no phase may"),
        (lambda: failed_in("build"), {"from_phase": "lint"}, r"has no phase 'lint'; it has: plan, build, test"),
        (lambda: done_until("build")[0], {"from_phase": "plan"}, ACTIVE),
    ],
)
def test_what_cannot_go_on_is_refused_before_anything_is_changed_and_says_what_to_do(stopped, how, message):
    with pytest.raises(UsageError, match=message):
        plan(stopped(), **how)


# --- grants ----------------------------------------------------------------------------------------------------


def test_a_grant_raises_the_limit_of_the_phase_and_is_recorded():
    draft = exhausted_in("build")

    document = resumed(draft, grant=2)

    record = document.phases[1]
    assert (record.max_attempts, record.granted, record.attempts_used) == (2, 2, 2)
    assert (document.current_state, document.max_retries) == ("building", 3)
    told = next(event for event in draft.events if event.event_type == "grant_given")
    assert told.data == {"attempts": 2, "retries": 0, "by": "someone"}


def test_a_grant_opens_the_way_out_of_failed_when_no_retry_is_left():
    draft = failed_in("build", max_retries=0)

    document = resumed(draft, grant=1)

    assert (document.current_state, document.max_retries, document.retries_granted) == ("building", 1, 1)


def test_a_grant_is_not_lost_in_the_new_round_it_comes_with():
    document = resumed(exhausted_in("build"), from_phase="plan", grant=3)

    assert (document.phases[0].granted, document.phases[0].attempts_used) == (3, 0)


def test_a_grant_with_nothing_left_to_do_only_opens_the_way_out():
    draft = failed_in("test", max_retries=0)
    draft.change_phase(2, status="complete")

    document = resumed(draft, grant=1)

    assert (document.current_state, document.retries_granted) == ("testing", 1)
    assert [record.granted for record in document.phases] == [0, 0, 0]


# --- from a phase ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [failed_in, paused_in])
def test_resuming_from_a_phase_starts_a_new_round_there(stopped):
    document = resumed(stopped("test"), from_phase="build")

    assert document.current_state == "building"
    assert [(r.status, r.round, r.attempts_used) for r in document.phases] == [
        ("complete", 1, 1),
        ("queued", 2, 0),
        ("queued", 2, 0),
    ]
    assert [len(record.attempts) for record in document.phases] == [1, 1, 1]


@pytest.mark.parametrize("stopped", [failed_in, exhausted_in, paused_in])
def test_the_phase_where_it_stopped_can_be_started_afresh(stopped):
    document = resumed(stopped("build"), from_phase="build")

    assert (document.current_state, document.phases[1].attempts_used, document.phases[1].round) == ("building", 0, 2)


def test_a_phase_that_was_not_begun_yet_can_be_named_too():
    """
    Paused between two phases: the next one comes after the state in which it was paused, and nothing is skipped.
    """
    draft, result = done_until("plan")
    transitions.succeed(draft, SPEC, result, WELL)
    transitions.pause(draft, "wait")
    draft = draft_of(draft.finished())

    document = resumed(draft, from_phase="build")

    assert (document.current_state, document.phases[1].status) == ("planning", "queued")
    result = begin(draft_of(document), SPEC)
    assert result.spec.name == "build"


def test_from_any_phase_when_all_have_passed():
    draft = paused_in("test")
    draft.change_phase(2, status="complete")

    assert plan(draft, from_phase="test").phase == "test"


# --- hints -----------------------------------------------------------------------------------------------------


def test_a_hint_is_for_its_phase_and_one_for_none_is_for_all():
    draft = paused_in("build")
    apply_resume(draft, plan(draft), hint="use the other library", by="someone")
    resume.add_hint(draft, "", "be short", "another")
    document = draft.finished()

    assert transitions.hints_for(document, "build") == ("use the other library", "be short")
    assert transitions.hints_for(document, "test") == ("be short",)
    assert document.hints[0] == {
        "text": "use the other library",
        "by": "someone",
        "at": draft.text,
        "phase": "build",
    }
    assert types(draft)[0] == "hint_given"


# --- approval --------------------------------------------------------------------------------------------------


def test_approval_completes_the_phase_and_goes_on_behind_it():
    draft = waiting_in("build")

    outcome = resume.approve(draft, SPEC, text="fine", by="someone")

    document = draft.finished()
    assert outcome == Next(phase="test")
    assert (document.current_state, document.pause_reason) == ("building", None)
    assert document.phases[1].status == "complete"
    assert types(draft) == ["approval_given", "state_changed", "phase_completed"]
    assert draft.events[0].data == {"by": "someone", "text": "fine"}


def test_approval_of_the_last_phase_completes_the_workflow():
    draft = waiting_in("test")

    assert resume.approve(draft, SPEC) == Done(state="completed")
    assert draft.finished().current_state == "completed"


def test_a_rejected_phase_is_tried_again_with_the_text_as_a_hint():
    draft = waiting_in("build")

    outcome = resume.reject(draft, SPEC, text="too long", by="someone")

    document = draft.finished()
    record = document.phases[1]
    assert outcome is None
    assert (document.current_state, document.pause_reason) == ("building", None)
    assert (record.status, record.attempts_used, record.result) == ("queued", 1, None)
    assert record.last_failure_reason == "rejected by someone: too long"
    assert transitions.hints_for(document, "build") == ("too long",)
    assert document.state_history[-1].metadata == {"reason": "rejected", "by": "someone"}


def test_a_rejection_without_a_word_leaves_no_hint():
    draft = waiting_in("build")

    resume.reject(draft, SPEC)

    assert draft.document.hints == []
    assert draft.phase(1).last_failure_reason == "rejected by a person"


def test_a_rejection_of_the_last_attempt_fails_the_workflow_with_a_reason_of_its_own():
    spec = spec_of("plan", phase("build", max_attempts=1))
    draft = waiting_in("build", spec)

    outcome = resume.reject(draft, spec, text="no", by="someone")

    document = draft.finished()
    assert outcome == Failed(phase="build", reason="REJECTED", message="rejected by someone: no")
    assert (document.current_state, document.terminal_reason, document.failed_phase) == (
        "failed",
        "REJECTED",
        "building",
    )


def test_a_rejected_phase_that_is_not_required_is_passed_over_and_the_workflow_is_not_left_paused():
    spec = spec_of("plan", phase("build", max_attempts=1, is_required=False), "test")
    draft = waiting_in("build", spec)

    outcome = resume.reject(draft, spec)

    assert outcome == Next(phase="test")
    assert draft.finished().current_state == "building"


def test_a_rejected_clean_up_after_a_merge_is_completed_with_warnings():
    spec = spec_of(phase("clean", max_attempts=1))
    draft = waiting_in("clean", spec, pr_merged=True)

    assert resume.reject(draft, spec).state == "completed"


@pytest.mark.parametrize("stopped", [failed_in, paused_in])
def test_what_waits_for_nobody_cannot_be_approved(stopped):
    draft = stopped("build")

    with pytest.raises(UsageError, match=f"workflow {ADW_ID} does not wait for approval"):
        resume.waiting_phase(draft.document)


# --- documents without a definition ----------------------------------------------------------------------------


def older(**fields):
    """A document as a migration leaves it: a state, and neither definition nor phases."""
    return draft_of(document_of(SPEC, workflow=None, phases=[], **fields))


def test_a_definition_is_read_from_the_document_and_one_without_it_says_how_to_give_it_one():
    definition = resume.definition_of(document_of(SPEC))

    assert (definition.catalog_id, definition.phases) == ("tried@7", SPEC.phases)
    with pytest.raises(StateInvalid, match=f"adw resume {ADW_ID} --workflow NAME gives it one"):
        resume.definition_of(older().document)
    with pytest.raises(StateInvalid, match="--workflow NAME"):
        resume.definition_of(document_of(SPEC, workflow={"name": "tried"}))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, ["queued", "queued", "queued"]),
        ({"current_state": "building"}, ["complete", "queued", "queued"]),
        ({"current_state": "paused", "resume_state": "testing"}, ["complete", "complete", "queued"]),
        ({"current_state": "paused"}, ["queued", "queued", "queued"]),
        ({"current_state": "failed", "failed_phase": "building"}, ["complete", "queued", "queued"]),
        ({"current_state": "failed"}, ["queued", "queued", "queued"]),
        # It failed in testing, was planned again, and stands in building now.
        ({"current_state": "building", "failed_phase": "testing"}, ["complete", "queued", "queued"]),
    ],
)
def test_an_adopted_definition_takes_the_phases_before_its_place_as_complete(fields, status):
    draft = older(**fields)

    resume.adopt(draft, SPEC)

    document = draft.finished()
    assert [record.status for record in document.phases] == status
    assert resume.definition_of(document).phases == SPEC.phases
    assert S.LINTING not in draft.machine.table
    WorkflowStateMachine.of(document)


def test_a_definition_without_the_place_where_it_stands_is_refused():
    with pytest.raises(UsageError, match="stands at linting, which tried has no phase for"):
        resume.adopt(older(current_state="linting"), SPEC)


def test_a_definition_that_its_history_does_not_fit_is_refused():
    """
    Else the document could not be loaded any more.
    """
    moves = [("pending", "planning"), ("planning", "building"), ("building", "linting"), ("linting", "testing")]
    history = [{"from": a, "to": b, "timestamp": "2026-01-31T09:00:00.000000Z"} for a, b in moves]
    draft = older(current_state="testing", state_history=history)

    with pytest.raises(UsageError, match=r"tried does not fit workflow .*building -> linting.*take another workflow"):
        resume.adopt(draft, SPEC)


def test_a_workflow_that_is_over_adopts_nothing():
    with pytest.raises(UsageError, match="is completed and cannot go on"):
        resume.adopt(older(current_state="completed"), SPEC)
