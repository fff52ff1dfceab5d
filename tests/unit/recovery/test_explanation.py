"""One paragraph: why a workflow is not moving, what happens next, what to type."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.recovery.explain import Diagnosis, Explanation, explain
from adws.adw_modules.recovery.plan import Claim

ID = "1a2b3c4d"
LIVE = Claim(owner="worker 7@here", verdict=Verdict.ALIVE, seconds_left=20.0)
DEAD = Claim(owner="worker 7@here", verdict=Verdict.DEAD, seconds_left=20.0)


def situation(state="building", *, lease=DEAD, **rest) -> Diagnosis:
    known = {name: rest.pop(name) for name in Diagnosis.__slots__ if name in rest}
    moments = {"created_at": "2026-01-31T09:00:00Z", "updated_at": "2026-01-31T09:00:00Z"}
    workflow = {"name": "sdlc", "phases": [{"name": "build"}]}
    document = WorkflowDocument(
        **{"adw_id": ID, "issue_number": None, "current_state": state, "workflow": workflow, **moments, **rest}
    )
    return Diagnosis(document=document, lease=lease, **known)


def build(**fields):
    return PhaseRecord(**{"name": "build", "state": "building", "attempts_used": 2, "max_attempts": 5, **fields})


def failed(**error):
    return [AttemptRecord(number=1, status="failed", started_at="2026-01-31T09:00:00Z", **error)]


ADVICE = "Pay, then: adw retry ID. The ID of the key is wrong."
WAITS = {"run_state": RunState.PENDING}


def retry_wait(**fields):
    return [build(status="retry_wait", **fields)]


@pytest.mark.parametrize(
    ("known", "why", "commands"),
    [
        (
            situation(lease=LIVE, phases=[build(status="running")]),
            "is moving: worker 7@here works on build, attempt 2/5.",
            ("adw logs ID -f", "adw events ID -f"),
        ),
        (
            situation(lease=LIVE, asked=("pause", "hint")),
            "is moving: worker 7@here works on building. It was asked to pause and hint and has not answered yet.",
            None,
        ),
        (
            situation("abandoned", rollback={"steps": []}),
            "is being rolled back and is not finished.",
            ("adw rollback ID",),
        ),
        (
            situation("rolled_back", rollback={"steps": []}, issue_number=42, workflow=None),
            "is rolled back.",
            ("adw run 42",),
        ),
        (
            situation("paused", pause_reason="lunch.", resume_state="testing"),
            "is paused in testing: lunch.",
            ("adw resume ID", "adw abandon ID"),
        ),
        (situation("paused"), "is paused in pending: no reason is recorded.", None),
        (
            situation("paused", phases=[build(status="waiting")]),
            "waits for a person to look at build.",
            ("adw approve ID", "adw reject ID -m TEXT"),
        ),
        (
            situation(
                "failed",
                phases=[build(status="failed", last_failure_reason="401", attempts=failed(error={"advice": ADVICE}))],
                terminal_reason="FATAL",
            ),
            "failed in build (FATAL): 401. Pay, then: adw retry 1a2b3c4d. The ID of the key is wrong.",
            ("adw logs ID", "adw retry ID", "adw resume ID --from build", "adw abandon ID"),
        ),
        (
            situation("failed", phases=[build(status="failed")], terminal_reason="BUDGET"),
            "failed in build (BUDGET).",
            ("adw cost ID", "adw retry ID --budget USD", "adw abandon ID"),
        ),
        (
            situation("failed"),
            "failed in a phase.",
            ("adw logs ID", "adw retry ID", "adw abandon ID"),
        ),
        (
            situation("failed", failed_phase="testing"),
            "failed in testing.",
            ("adw logs ID", "adw retry ID", "adw resume ID --from testing", "adw abandon ID"),
        ),
        (
            situation(phases=retry_wait(retry_at="2026-01-31T09:05:00Z", last_failure_reason="429"), **WAITS),
            "waits to try build again at 2026-01-31 09:05:00 UTC (attempt 2/5 failed: 429).",
            None,
        ),
        (
            situation(phases=retry_wait(retry_at="soon", last_failure_reason="429"), **WAITS),
            "waits to try build again at soon (attempt 2/5 failed: 429).",
            None,
        ),
        (
            situation(phases=retry_wait(retry_at=None, wait_reason="waits for 3 of 10 iterations"), **WAITS),
            "is in build, which waits for 3 of 10 iterations.",
            ("adw executions ID", "adw retries", "adw external"),
        ),
        (
            situation(phases=retry_wait(retry_at="2026-01-31T10:00:00Z", wait_reason="a quota is used up"), **WAITS),
            "waits with build until 2026-01-31 10:00:00 UTC: a quota is used up.",
            ("adw worker", "adw resume ID"),
        ),
        (situation("pending", **WAITS), "is pending and waits for a worker.", None),
        (
            situation(is_due=False, not_before="2026-01-31T09:05:00Z", run_reason="stopped: drain", **WAITS),
            "is building and waits for a worker, not before 2026-01-31 09:05:00 UTC (stopped: drain).",
            None,
        ),
        (
            situation(run_state=RunState.RUNNING),
            "is building, but whoever worked on it is gone: its owner worker 7@here is dead.",
            None,
        ),
    ],
)
def test_why_a_workflow_stands_where_it_stands_and_what_to_type(known, why, commands):
    said = explain(known)

    assert said.why == f"Workflow {ID} {why}"
    if commands is not None:
        assert said.commands == tuple(command.replace("ID", ID) for command in commands)


def test_the_issue_of_what_is_over_is_free_for_another_workflow():
    said = explain(situation("completed", issue_number=42, workflow=None))

    assert said.then == "Nothing more happens to it, and its issue is free for another one."


@pytest.mark.parametrize("state", ["paused", "failed"])
@pytest.mark.parametrize("workflow", [None, {"name": "sdlc", "phases": []}])
def test_a_document_of_an_older_version_needs_a_definition_to_go_on(state, workflow):
    said = explain(situation(state, workflow=workflow))

    assert said.commands == (f"adw resume {ID} --workflow NAME", f"adw abandon {ID}")


@pytest.mark.parametrize(
    ("fields", "phase", "afresh"),
    [
        ({}, {"attempts_used": 5}, True),
        ({}, {"attempts_used": 7, "granted": 2}, True),
        ({"retry_count": 3}, {}, False),
    ],
)
def test_what_is_used_up_needs_a_grant(fields, phase, afresh):
    commands = explain(situation("failed", phases=[build(status="failed", **phase)], **fields)).commands

    assert f"adw retry {ID} --grant 3" in commands
    assert (f"adw resume {ID} --from build" in commands) is afresh


@pytest.mark.parametrize("attempts", [[], failed(), failed(error={"advice": None})])
def test_a_failure_nobody_knows_more_about_is_told_all_the_same(attempts):
    said = explain(situation("failed", phases=[build(status="failed", attempts=attempts)]))

    assert said.why == f"Workflow {ID} failed in build."


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_what_is_over_is_over(state):
    assert explain(situation(state)) == Explanation(
        why=f"Workflow {ID} is {state.replace('_', ' ')}.", then="Nothing more happens to it."
    )


@pytest.mark.parametrize("run_state", [None, RunState.STOPPED, RunState.FAILED])
@pytest.mark.parametrize("status", ["queued", "retry_wait"])
def test_what_no_run_waits_for_needs_recovery(run_state, status):
    said = explain(situation(phases=[build(status=status)], run_state=run_state))

    assert said.why == f"Workflow {ID} is building, and no run waits for it."
    assert said.commands[0] == "adw recover"


def test_the_paragraph_ends_with_what_to_type():
    said = Explanation(why="It is stuck.", then="Nothing happens.", commands=("adw a", "adw b"))

    assert said.paragraph() == "It is stuck. Nothing happens. Type: adw a, or adw b."
    assert Explanation(why="It is over.", then="That is all.").paragraph() == "It is over. That is all."


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
    phase = build(status="failed", terminal_reason="DOCTOR_SKIP", last_failure_reason="3 tests fail", doctor=calls)

    why = explain(situation("failed", phases=[phase])).why

    assert why == f"Workflow {ID} failed in build (DOCTOR_SKIP): 3 tests fail." + (f" {said}" if said else "")
