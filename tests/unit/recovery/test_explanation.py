"""One paragraph: why a workflow is not moving, what happens next, what to type."""

from __future__ import annotations

import pytest

from adws.adw_modules import views
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.recovery.explain import Diagnosis, Explanation, explain
from adws.adw_modules.recovery.plan import Claim
from tests.unit.timeline_cases import document, phase, tried

ID = "1a2b3c4d"
LIVE = Claim(owner="worker 7@here", verdict=Verdict.ALIVE, seconds_left=20.0)
DEAD = Claim(owner="worker 7@here", verdict=Verdict.DEAD, seconds_left=20.0)


def situation(state="building", *, lease=DEAD, phases=(), **rest) -> Diagnosis:
    known = {name: rest.pop(name) for name in Diagnosis.__slots__ if name in rest and name != "workflow"}
    fields = {"issue_number": None, "workflow": {"name": "sdlc", "phases": [{"name": "build"}]}, **rest}
    made = WorkflowDocument.model_validate(document(*phases, current_state=state).model_dump() | fields)
    return Diagnosis(workflow=views.workflow(made), lease=lease, **known)


def build(*attempts, **fields):
    return phase("build", *attempts, attempts_used=2, **fields)


def failed(error):
    return tried(1, 0, 1, "failed", error=error)


def test_what_is_worked_on_is_moving():
    said = explain(situation(lease=LIVE, phases=[build(status="running")]))

    assert said.why == f"Workflow {ID} is moving: worker 7@here works on build, attempt 2/5."
    assert said.commands == (f"adw logs {ID} -f", f"adw events {ID} -f")


def test_an_owner_that_was_asked_and_has_not_answered_is_named():
    said = explain(situation(lease=LIVE, asked=("pause", "hint")))

    assert said.why.endswith("works on building. It was asked to pause and hint and has not answered yet.")


def test_a_rollback_that_is_not_finished_comes_before_everything():
    assert explain(situation("abandoned", rollback={"steps": []})).commands == (f"adw rollback {ID}",)
    over = situation("rolled_back", rollback={"steps": []}, issue_number=42, workflow=None)
    assert explain(over).commands == ("adw run 42",)


def test_a_pause_gives_its_reason_once():
    said = explain(situation("paused", pause_reason="lunch.", resume_state="testing"))

    assert said.why == f"Workflow {ID} is paused in testing: lunch."
    assert said.commands == (f"adw resume {ID}", f"adw abandon {ID}")
    assert explain(situation("paused")).why == f"Workflow {ID} is paused in pending: no reason is recorded."


def test_a_phase_that_waits_for_a_person_is_to_be_approved_or_rejected():
    said = explain(situation("paused", phases=[build(status="waiting")]))

    assert said.why == f"Workflow {ID} waits for a person to look at build."
    assert said.commands == (f"adw approve {ID}", f"adw reject {ID} -m TEXT")


@pytest.mark.parametrize("state", ["paused", "failed"])
@pytest.mark.parametrize("workflow", [None, {"name": "sdlc", "phases": []}])
def test_a_document_of_an_older_version_needs_a_definition_to_go_on(state, workflow):
    said = explain(situation(state, workflow=workflow))

    assert said.commands == (f"adw resume {ID} --workflow NAME", f"adw abandon {ID}")


def test_a_failure_is_told_with_reason_and_advice():
    broken = build(failed({"advice": "Log in again."}), status="failed", last_failure_reason="401 Unauthorized")

    said = explain(situation("failed", phases=[broken], terminal_reason="FATAL"))

    assert said.why == f"Workflow {ID} failed in build (FATAL): 401 Unauthorized. Log in again."
    assert said.commands == (
        f"adw logs {ID}",
        f"adw retry {ID}",
        f"adw resume {ID} --from build",
        f"adw abandon {ID}",
    )


def test_advice_names_commands_as_they_can_be_typed():
    attempt = failed({"advice": "Pay, then: adw retry ID. The ID of the key is wrong."})

    said = explain(situation("failed", phases=[build(attempt, status="failed")]))

    assert said.why.endswith(f"Pay, then: adw retry {ID}. The ID of the key is wrong.")


def test_a_budget_that_is_spent_needs_a_larger_one():
    commands = explain(situation("failed", phases=[build(status="failed")], terminal_reason="BUDGET")).commands

    assert commands == (f"adw cost {ID}", f"adw retry {ID} --budget USD", f"adw abandon {ID}")


@pytest.mark.parametrize(
    ("fields", "counters", "afresh"),
    [
        ({}, {"attempts_used": 5}, True),
        ({}, {"attempts_used": 7, "granted": 2}, True),
        ({"retry_count": 3}, {}, False),
    ],
)
def test_what_is_used_up_needs_a_grant(fields, counters, afresh):
    broken = build(status="failed").model_copy(update=counters)

    commands = explain(situation("failed", phases=[broken], **fields)).commands

    assert f"adw retry {ID} --grant 3" in commands
    assert (f"adw resume {ID} --from build" in commands) is afresh


@pytest.mark.parametrize("attempts", [[], [failed(None)], [failed({})]])
def test_a_failure_nobody_knows_more_about_is_told_all_the_same(attempts):
    said = explain(situation("failed", phases=[build(*attempts, status="failed")]))

    assert said.why == f"Workflow {ID} failed in build."


def test_a_failure_without_a_phase_names_no_phase_to_type():
    said = explain(situation("failed"))

    assert said.why == f"Workflow {ID} failed in a phase."
    assert said.commands == (f"adw logs {ID}", f"adw retry {ID}", f"adw abandon {ID}")
    assert "--from testing" in explain(situation("failed", failed_phase="testing")).paragraph()


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_what_is_over_is_over(state):
    assert explain(situation(state)) == Explanation(
        why=f"Workflow {ID} is {state.replace('_', ' ')}.", then="Nothing more happens to it."
    )


def test_the_issue_of_what_is_over_is_free_for_another_workflow():
    said = explain(situation("completed", issue_number=42, workflow=None))

    assert said.then == "Nothing more happens to it, and its issue is free for another one."
    assert said.commands == ("adw run 42",)


def test_a_retry_waits_for_its_time():
    waiting = build(status="retry_wait", retry_at="2026-01-31T09:05:00Z", last_failure_reason="429")

    said = explain(situation(phases=[waiting], run_state=RunState.PENDING))

    assert said.why == (f"Workflow {ID} waits to try build again at 2026-01-31 09:05:00 UTC (attempt 2/5 failed: 429).")


def test_a_phase_that_waits_for_others_says_for_what():
    waiting = build(status="retry_wait", retry_at=None, wait_reason="waits for 3 of 10 iterations of step fetch")

    said = explain(situation(phases=[waiting], run_state=RunState.PENDING))

    assert said.why == f"Workflow {ID} is in build, which waits for 3 of 10 iterations of step fetch."
    assert said.commands == (f"adw executions {ID}", "adw retries", "adw external")


def test_a_moment_of_another_spelling_is_shown_as_it_is():
    waiting = build(status="retry_wait", retry_at="soon", last_failure_reason="429")

    assert "build again at soon (" in explain(situation(phases=[waiting], run_state=RunState.PENDING)).why


@pytest.mark.parametrize("run_state", [None, RunState.STOPPED, RunState.FAILED])
@pytest.mark.parametrize("status", ["queued", "retry_wait"])
def test_what_no_run_waits_for_needs_recovery(run_state, status):
    said = explain(situation(phases=[build(status=status)], run_state=run_state))

    assert said.why == f"Workflow {ID} is building, and no run waits for it."
    assert said.commands[0] == "adw recover"


def test_what_waits_for_a_worker_says_since_when_and_why():
    waiting = situation("pending", run_state=RunState.PENDING)
    later = situation(
        run_state=RunState.PENDING, is_due=False, not_before="2026-01-31T09:05:00Z", run_reason="stopped: drain"
    )

    assert explain(waiting).why == f"Workflow {ID} is pending and waits for a worker."
    assert explain(later).why == (
        f"Workflow {ID} is building and waits for a worker, not before 2026-01-31 09:05:00 UTC (stopped: drain)."
    )


def test_a_dead_worker_is_named():
    said = explain(situation(run_state=RunState.RUNNING))

    assert said.why == (
        f"Workflow {ID} is building, but whoever worked on it is gone: its owner worker 7@here is dead."
    )


def test_the_paragraph_ends_with_what_to_type():
    said = Explanation(why="It is stuck.", then="Nothing happens.", commands=("adw a", "adw b"))

    assert said.paragraph() == "It is stuck. Nothing happens. Type: adw a, or adw b."
    assert Explanation(why="It is over.", then="That is all.").paragraph() == "It is over. That is all."


def test_a_wait_that_is_no_failure_of_the_work_says_what_is_waited_for():
    waiting = build(
        status="retry_wait",
        retry_at="2026-01-31T10:00:00.000000Z",
        wait_reason="a quota is used up: limit reached",
        last_failure_reason="an older failure",
    )

    said = explain(situation(phases=[waiting], run_state=RunState.PENDING))

    assert said.why == (
        f"Workflow {ID} waits with build until 2026-01-31 10:00:00 UTC: a quota is used up: limit reached."
    )
    assert said.then.startswith("No attempt is used by that.")
    assert said.commands == ("adw worker", f"adw resume {ID}")


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            [{"by": "rules", "decision": "skip", "reason": "no progress"}],
            "The doctor (rules) gave its other attempts up: no progress.",
        ),
        (
            [{"by": "claude", "decision": "human", "reason": "who knows?"}],
            "The doctor (claude) asks for a person: who knows?",
        ),
        ([{"by": "rules", "decision": "retry", "reason": "x"}], ""),
        ([], ""),
    ],
)
def test_a_failure_that_the_doctor_made_final_says_so(calls, said):
    broken = build(status="failed", terminal_reason="DOCTOR_SKIP", last_failure_reason="3 tests fail", doctor=calls)

    why = explain(situation("failed", phases=[broken])).why

    assert why == f"Workflow {ID} failed in build (DOCTOR_SKIP): 3 tests fail." + (f" {said}" if said else "")
