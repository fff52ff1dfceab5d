"""One paragraph: why a workflow is not moving, what happens next, what to type."""

from __future__ import annotations

from types import SimpleNamespace

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


def run(state=RunState.PENDING, **fields) -> SimpleNamespace:
    return SimpleNamespace(**{"adw_id": ID, "state": state, "reason": "", "not_before": "", "demands": None, **fields})


def situation(state="building", *, lease=DEAD, phases=(), **rest) -> Diagnosis:
    known = {name: rest.pop(name) for name in Diagnosis.__slots__ if name in rest and name != "workflow"}
    fields = {"issue_number": None, "workflow": {"name": "sdlc", "phases": [{"name": "build"}]}, **rest}
    made = WorkflowDocument.model_validate(document(*phases, current_state=state).model_dump() | fields)
    return Diagnosis(workflow=views.workflow(made), lease=lease, **known)


def build(*attempts, **fields):
    return phase("build", *attempts, attempts_used=2, **fields)


def failed(error):
    return tried(1, 0, 1, "failed", error=error)


AT = "2026-01-31T09:05:00Z"
MOMENT = "2026-01-31 09:05:00 UTC"
QUEUED = {"run": run()}
NO_DEFINITION = (f"adw resume {ID} --workflow NAME", f"adw abandon {ID}")
LOGS, RETRY, AFRESH, ABANDON = f"adw logs {ID}", f"adw retry {ID}", f"adw resume {ID} --from build", f"adw abandon {ID}"


def retry_wait(**fields):
    return build(status="retry_wait", **fields)


@pytest.mark.parametrize(
    ("found", "why", "commands"),
    [
        (
            situation(lease=LIVE, phases=[build(status="running")]),
            "is moving: worker 7@here works on build, attempt 2/5.",
            (f"adw logs {ID} -f", f"adw events {ID} -f"),
        ),
        (
            situation(lease=LIVE, asked=("pause", "hint")),
            "is moving: worker 7@here works on building. It was asked to pause and hint and has not answered yet.",
            None,
        ),
        (situation("abandoned", rollback={"steps": []}), None, (f"adw rollback {ID}",)),
        (
            situation("rolled_back", rollback={"steps": []}, issue_number=42, workflow=None),
            "is rolled back.",
            ("adw run 42",),
        ),
        (
            situation("paused", pause_reason="lunch.", resume_state="testing"),
            "is paused in testing: lunch.",
            (f"adw resume {ID}", ABANDON),
        ),
        (situation("paused"), "is paused in pending: no reason is recorded.", None),
        (
            situation("paused", phases=[build(status="waiting")]),
            "waits for a person to approve build.",
            (f"adw approve {ID}", f"adw reject {ID} -m TEXT"),
        ),
        (situation("paused", workflow=None), None, NO_DEFINITION),
        (situation("failed", workflow=None), None, NO_DEFINITION),
        (situation("failed", workflow={"name": "sdlc", "phases": []}), None, NO_DEFINITION),
        (
            situation(
                "failed",
                phases=[build(failed({"advice": "Log in."}), status="failed", last_failure_reason="401 Unauthorized")],
                terminal_reason="FATAL",
            ),
            "failed in build (FATAL): 401 Unauthorized. Log in.",
            (LOGS, RETRY, AFRESH, ABANDON),
        ),
        (
            situation("failed", phases=[build(failed({"advice": "Pay: adw retry ID. ID is wrong."}), status="failed")]),
            f"failed in build. Pay: adw retry {ID}. ID is wrong.",
            None,
        ),
        (
            situation("failed", phases=[build(status="failed")], terminal_reason="BUDGET"),
            "failed in build (BUDGET).",
            (f"adw report {ID}", f"{RETRY} --budget USD", ABANDON),
        ),
        (
            situation("failed", phases=[build(status="failed").model_copy(update={"attempts_used": 5})]),
            "failed in build.",
            (LOGS, f"{RETRY} --grant 3", AFRESH, ABANDON),
        ),
        (
            situation("failed", phases=[build(failed({}), status="failed")], retry_count=3),
            "failed in build.",
            (LOGS, f"{RETRY} --grant 3", ABANDON),
        ),
        (situation("failed"), "failed in a phase.", (LOGS, RETRY, ABANDON)),
        (
            situation("failed", failed_phase="testing"),
            "failed in testing.",
            (LOGS, RETRY, f"adw resume {ID} --from testing", ABANDON),
        ),
        (situation("completed"), "is completed.", ()),
        (
            situation(phases=[retry_wait(retry_at=AT, last_failure_reason="429")], **QUEUED),
            f"retries build at {MOMENT} (attempt 2/5 failed: 429).",
            ("adw worker", f"adw resume {ID}"),
        ),
        (
            situation(phases=[retry_wait(retry_at="soon", last_failure_reason="429")], **QUEUED),
            "retries build at soon (attempt 2/5 failed: 429).",
            None,
        ),
        (
            situation(phases=[retry_wait(retry_at=None, wait_reason="waits for 3 of 10 iterations")], **QUEUED),
            "is in build, which waits for 3 of 10 iterations.",
            (f"adw status {ID}", "adw queue retries", "adw queue external"),
        ),
        (
            situation(
                phases=[retry_wait(retry_at=AT, wait_reason="a quota is used up", last_failure_reason="older")],
                **QUEUED,
            ),
            f"waits with build until {MOMENT}: a quota is used up.",
            ("adw worker", f"adw resume {ID}"),
        ),
        (situation(run=None), "is building, and no run waits for it.", ("adw admin recover", f"adw resume {ID}")),
        (
            situation(phases=[retry_wait()], run=run(RunState.FAILED)),
            "is building, and no run waits for it.",
            None,
        ),
        (situation("pending", **QUEUED), "is pending and waits for a worker.", None),
        (
            situation(is_due=False, run=run(not_before=AT, reason="stopped: drain")),
            f"is building and waits for a worker, not before {MOMENT} (stopped: drain).",
            None,
        ),
        (
            situation(run=run(RunState.RUNNING)),
            "is building, but its worker is gone: its owner worker 7@here is dead.",
            ("adw admin recover", f"adw resume {ID}"),
        ),
    ],
)
def test_why_a_workflow_stands_where_it_stands_and_what_to_type(found, why, commands):
    said = explain(found)

    assert why is None or said.why == f"Workflow {ID} {why}"
    assert commands is None or said.commands == commands


def test_the_paragraph_says_what_happens_next_and_ends_with_what_to_type():
    said = Explanation(why="It is stuck.", then="Nothing happens.", commands=("adw a", "adw b"))

    assert said.paragraph() == "It is stuck. Nothing happens. Type: adw a, or adw b."
    over = explain(situation("completed", issue_number=42, workflow=None))
    assert over.then == "Nothing more happens to it, and its issue is free for another one."


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
