"""The doctor by rules: asked only about what it can help with, and what it prescribes against which failure."""

from __future__ import annotations

import pytest

from adws.adw_modules.engine import advisor
from adws.adw_modules.engine.advisor import (
    HUMAN,
    MAX_CALLS,
    MAX_CALLS_PER_PHASE,
    MAX_REPLANS,
    REPLAN,
    RETRY,
    RETRY_MODEL,
    SKIP,
    Advice,
    Case,
    case_data,
    fingerprint,
    may_ask,
    prescribe,
    read_answer,
    way_back,
)
from adws.adw_modules.engine.transitions import Failure
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import FailedRun, GateFailed, RunFailed
from adws.testing import START
from tests.unit.engine_cases import attempt, document_of, phase, records_of, spec_of

TURNS = RunFailed(FailedRun(subtype="error_max_turns", text="too many turns"))
CONTEXT = RunFailed(FailedRun(text="prompt is too long"))
REFUSED = RunFailed(FailedRun(subtype="refused", text="I cannot help with that"))
GATE = GateFailed("build", "pytest: 3 failed in 12.5s")
NO_EFFECT = RunFailed(FailedRun(subtype="no_effect", text="nothing changed"))


def facts_of(error: BaseException):
    return describe(error, "build")


def trouble_of(error: BaseException, **changes) -> Failure:
    facts = facts_of(error)
    return Failure(**{"error": facts.to_json(), "retry_at": START, "facts": facts, **changes})


def case_of(*errors: BaseException, spec=None, models=(), **fields):
    """A document in which build failed with each of *errors* and is about to be closed for the last one."""
    known = spec or spec_of("plan", phase("build", options={"models": list(models)}))
    records = records_of(known)
    index = len(records) - 1
    for record in records[:index]:
        record.status, record.attempts_used, record.attempts = "complete", 1, [attempt(1, "succeeded")]
    made = [attempt(number, error=facts_of(error).to_json()) for number, error in enumerate(errors[:-1], 1)]
    made.append(attempt(len(errors), "running"))
    records[index].attempts, records[index].attempts_used = made, len(made)
    document = document_of(known, phases=records, **fields)
    return known.phases[index], document.phases[index], document


def prescribed(*errors: BaseException, spare=(), **how) -> Advice:
    item, record, document = case_of(*errors, **how)
    return prescribe(facts_of(errors[-1]), item, record, document, spare=spare)


# --- who is asked ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset by peer"),
        RunFailed(FailedRun(http_status=529)),
        RunFailed(FailedRun(http_status=429)),
        OSError(28, "No space left on device"),
        RunFailed(FailedRun(signal=9)),
    ],
    ids=["network", "overloaded", "rate-limit", "disk", "killed"],
)
def test_the_doctor_is_not_asked_about_the_network_and_the_machine(error):
    _, record, document = case_of(error)

    assert not may_ask(document, record, trouble_of(error))


@pytest.mark.parametrize(
    "changes",
    [{"facts": None}, {"is_parked": True}, {"retry_at": None, "terminal_reason": "NOT_RETRYABLE"}],
    ids=["not-classified", "parked", "judged-hopeless"],
)
def test_the_doctor_is_not_asked_about_what_is_settled(changes):
    _, record, document = case_of(GATE)

    assert not may_ask(document, record, trouble_of(GATE, **changes))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NO_EFFECT, "RETRIES_DO_NOT_HELP"),
        (TURNS, "NEEDS_PERSON"),
        (CONTEXT, "RETRIES_DO_NOT_HELP"),
        (REFUSED, "NEEDS_PERSON"),
    ],
    ids=["no-effect", "turns", "context", "refused"],
)
def test_the_doctor_is_asked_about_what_another_model_or_plan_may_help(error, reason):
    _, record, document = case_of(error)

    assert may_ask(document, record, trouble_of(error, retry_at=None, terminal_reason=reason))


def test_the_doctor_has_so_many_calls_and_none_for_a_phase_without_attempts():
    _, record, document = case_of(GATE)

    asked = record.changed(doctor=[{}] * MAX_CALLS_PER_PHASE)
    assert not may_ask(document, asked, trouble_of(GATE))
    assert not may_ask(document.changed(doctor_calls=MAX_CALLS), record, trouble_of(GATE))
    assert not may_ask(document, record.changed(attempts_used=record.max_attempts), trouble_of(GATE))


# --- what the rules prescribe ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [TURNS, CONTEXT, REFUSED], ids=["turns", "context", "refused"])
def test_what_one_model_cannot_do_goes_to_another(error):
    result = prescribed(error, models=("small", "large"))

    assert (result.decision, result.model) == (RETRY_MODEL, "small")  # no attempt of this round was made with it


@pytest.mark.parametrize("error", [TURNS, CONTEXT], ids=["turns", "context"])
def test_without_another_model_a_task_that_is_too_large_is_planned_again(error):
    assert prescribed(error).decision == REPLAN


def test_what_a_model_refuses_is_not_planned_again():
    assert prescribed(REFUSED).decision == HUMAN


@pytest.mark.parametrize(("is_required", "decision"), [(True, HUMAN), (False, SKIP)])
def test_without_a_way_out_a_person_is_asked_or_the_phase_is_left(is_required, decision):
    spec = spec_of(phase("build", is_required=is_required))

    assert prescribed(TURNS, spec=spec).decision == decision


def test_without_a_way_out_what_may_be_tried_again_is_judged_as_ever():
    assert prescribed(CONTEXT, spec=spec_of("build")).decision == RETRY


def test_a_gate_that_says_the_same_twice_speaks_against_the_plan():
    result = prescribed(GATE, GateFailed("build", "pytest: 3 failed in 99.0s"), models=("small", "large"))

    assert result.decision == REPLAN
    assert "failed twice in the same way (gate)" in result.reason


def test_the_same_failure_twice_speaks_against_the_model():
    result = prescribed(NO_EFFECT, NO_EFFECT, spare=("other",))

    assert (result.decision, result.model) == (RETRY_MODEL, "other")


def test_a_plan_that_a_command_makes_is_not_made_again():
    spec = spec_of(phase("plan", runner="command", command=("true",)), "build")

    assert prescribed(TURNS, spec=spec).decision == HUMAN


def test_a_failure_of_another_round_or_one_that_was_stopped_is_not_the_same_failure():
    item, record, document = case_of(NO_EFFECT, NO_EFFECT)
    other_round = [record.attempts[0].changed(round=0), record.attempts[1]]
    stopped = [record.attempts[0].changed(status="suspended"), record.attempts[1]]

    for attempts in (other_round, stopped):
        result = prescribe(facts_of(NO_EFFECT), item, record.changed(attempts=attempts), document, spare=("other",))
        assert result.decision == RETRY


def test_failures_that_differ_in_numbers_hashes_and_blanks_are_the_same():
    one, other = "3 failed in 1.2s\n at 0xdeadbeef", "17 Failed in 3.4s at 0xfeedface"

    assert fingerprint("gate", one) == fingerprint("gate", other) != fingerprint("failed", one)


# --- the way back to the plan ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"replans": MAX_REPLANS}, "planned again 2 of 2 times"),
        ({"pr_merged": True}, "merged"),
    ],
    ids=["bounded", "merged"],
)
def test_a_workflow_does_not_go_back_when(changes, why):
    _, _, document = case_of(GATE, **changes)

    assert why in way_back(document, spec_of("plan", "build"), 1)


def test_a_workflow_without_a_plan_has_nothing_to_go_back_to():
    spec = spec_of("build", "test")

    assert "no phase plans what test does" in way_back(document_of(spec), spec, 1)
    assert "no phase plans what plan does" in way_back(document_of(spec_of("plan")), spec_of("plan"), 0)


def test_a_phase_that_is_done_and_has_no_attempt_left_cannot_be_done_again():
    _, _, document = case_of(GATE)
    document.phases[0].attempts_used = document.phases[0].max_attempts

    assert "plan has no attempt left" in way_back(document, spec_of("plan", "build"), 1)
    document.phases[0].status = "failed"  # it was not required, and is not done again
    assert way_back(document, spec_of("plan", "build"), 1) == 0


# --- answers of others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        {"decision": "replan", "reason": " the plan is wrong ", "model": "ignored"},
        '{"decision": "replan", "reason": "the plan is wrong"}',
        'So:\n```json\n{"decision": "replan", "reason": "the plan is wrong"}\n```\n',
        Advice(decision="replan", reason="the plan is wrong"),
    ],
    ids=["object", "text", "fenced", "prescription"],
)
def test_an_answer_is_read(answer):
    assert read_answer(answer, "rules") == Advice(decision=REPLAN, reason="the plan is wrong")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("no idea", "no JSON"),
        (None, "no JSON object but NoneType"),
        ("[]", "no JSON object but list"),
        ({"decision": "give up", "reason": "x"}, "its decision is 'give up'"),
        ({"decision": ["retry"], "reason": "x"}, "its decision is"),
        ({"decision": "retry"}, "no reason"),
        ({"decision": "retry", "reason": "  "}, "no reason"),
        ({"decision": "retry", "reason": 5}, "no reason"),
        ({"decision": "retry_model", "reason": "x"}, "not the name of a model"),
        ({"decision": "retry_model", "reason": "x", "model": 5}, "not the name of a model"),
        ({"decision": "retry_model", "reason": "x", "model": "--dangerous"}, "not the name of a model"),
    ],
)
def test_an_answer_that_is_none_says_why(answer, why):
    with pytest.raises(ValueError, match=why):
        read_answer(answer, "rules")


def test_a_case_is_plain_json_with_what_went_before():
    item, record, document = case_of(GATE, NO_EFFECT, models=("small",))
    case = Case(facts=facts_of(NO_EFFECT), phase=item, record=record, document=document, context=None)

    data = case_data(case)

    assert data["error"]["class"] == "no_effect"
    assert data["attempts_before"] == [
        {"number": 1, "status": "failed", "model": "", "class": "gate", "message": record.attempts[0].error["message"]}
    ]
    assert (data["phase"], data["attempts_used"], data["max_attempts"], data["models"]) == ("build", 2, 5, ["small"])
    assert data["decisions"] == list(advisor.DECISIONS)
