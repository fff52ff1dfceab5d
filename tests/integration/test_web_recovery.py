"""Recovery and the sessions of agents by HTTP: who may, in which mode, and what is answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.interfaces import AgentSession, SessionStatus
from tests.integration.web_lab import WebLab

PATH = "/admin/recover-runs"
KEYS = {"mode", "dry_run", "reset_to_pending", "marked_failed", "marked_stopped", "run_ids", "steps"}


@pytest.fixture
def lab(tmp_path):
    with WebLab(tmp_path / "home") as made:
        yield made


def claim_and_die(lab) -> int:
    """Start a workflow whose run is claimed by a worker that is proven dead."""
    lab.start()
    me = lab.app.processes.me("worker")
    dead = replace(me, start_ticks=me.start_ticks + 1)
    return lab.app.runs.claim(dead, ttl_seconds=3600.0).run_id


def state(lab, run_id: int) -> str:
    return lab.app.runs.get(run_id).state.value


@pytest.mark.parametrize("token", [None, "wrong-token-0123456789"])
def test_recovery_needs_the_token(lab, token):
    run_id = claim_and_die(lab)

    assert lab.ask("POST", PATH, token=token).status_code == 401
    assert state(lab, run_id) == "claimed"


def test_recovered_runs_are_returned_and_logged(lab, caplog):
    run_id = claim_and_die(lab)

    answer = lab.post(PATH, {"by": "ada"})

    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert set(result) == KEYS
    assert (result["mode"], result["reset_to_pending"], result["marked_failed"]) == ("stale", 1, 0)
    assert result["run_ids"] == {"reset_to_pending": [run_id], "marked_failed": [], "marked_stopped": []}
    assert [(step["action"], step["from"], step["to"]) for step in result["steps"]] == [
        ("requeue", "claimed", "pending")
    ]
    assert state(lab, run_id) == "pending"
    (told,) = [record for record in caplog.records if getattr(record, "action", "") == "recovery_asked"]
    assert (told.by, told.mode, told.reset_to_pending) == ("ada (API)", "stale", 1)


@pytest.mark.parametrize("way", ["query", "body"])
def test_the_mode_is_taken_from_the_address_or_the_body(lab, way):
    run_id = claim_and_die(lab)

    answer = lab.ask("POST", PATH, **({"params": {"mode": "none"}} if way == "query" else {"json": {"mode": "none"}}))

    assert (answer.status_code, answer.json()["mode"], answer.json()["reset_to_pending"]) == (200, "none", 0)
    assert len(answer.json()["steps"]) == 1, "it says what it would do"
    assert state(lab, run_id) == "claimed"


def test_a_dry_run_changes_nothing(lab):
    run_id = claim_and_die(lab)

    assert lab.post(PATH, {"mode": "all", "dry_run": True}).json()["dry_run"] is True
    assert state(lab, run_id) == "claimed"


@pytest.mark.parametrize(
    "request_",
    [
        {"params": {"mode": "some"}},
        {"json": {"mode": "some"}},
        {"params": {"modus": "all"}},
        {"json": {"threshold": -1}},
        {"json": {"threshold": "soon"}},
        {"json": {"mode": "stale", "force": True}},
        {"params": {"force": "true"}},
    ],
)
def test_an_invalid_recovery_is_refused_and_recovers_nothing(lab, request_):
    run_id = claim_and_die(lab)

    answer = lab.ask("POST", PATH, **request_)

    assert answer.status_code in {400, 422}, answer.text
    assert answer.json()["error"]["message"]
    assert state(lab, run_id) == "claimed"


def test_force_takes_a_run_from_a_worker_that_lives(lab):
    lab.start()
    run_id = lab.app.runs.claim(lab.app.processes.me("worker"), ttl_seconds=3600.0).run_id
    assert lab.post(PATH, {"mode": "all"}).json()["reset_to_pending"] == 0

    assert lab.post(PATH, {"mode": "all", "force": True}).json()["reset_to_pending"] == 1
    assert state(lab, run_id) == "pending"


# --- sessions --------------------------------------------------------------------------------------------------


def test_sessions_are_listed_for_all_and_for_one(lab):
    adw_id = lab.start()
    assert lab.get("/api/v1/sessions") == {"sessions": []}
    session = AgentSession(
        session_id=f"{adw_id}.plan.1",
        adw_id=adw_id,
        run_id=None,
        phase="plan",
        attempt_number=1,
        agent="claude",
        host="here",
        status=SessionStatus.RUNNING,
        executor_session_id="abc",
    )
    lab.app.sessions.open(session)
    lab.app.sessions.open(replace(session, session_id=f"{adw_id}.plan.2", attempt_number=2))
    lab.app.sessions.close(f"{adw_id}.plan.1", SessionStatus.FAILED, reason="cut off")

    (live,) = lab.get("/api/v1/sessions")["sessions"]
    both = lab.get("/api/v1/sessions", adw_id=adw_id)["sessions"]

    assert (live["attempt_number"], live["agent"], live["status"], live["executor_session_id"]) == (
        2,
        "claude",
        "running",
        "abc",
    )
    assert [(one["status"], one["reason"]) for one in both] == [("failed", "cut off"), ("running", "")]


def test_the_threshold_is_taken_from_the_address(lab):
    lab.start()
    run_id = lab.app.runs.claim(lab.app.processes.me("worker"), ttl_seconds=3600.0).run_id
    with lab.app.database.write() as session:
        session.run("UPDATE runs SET owner = '', claim_until = 0, claim_boot = ''")

    assert lab.ask("POST", PATH).json()["reset_to_pending"] == 0
    assert lab.ask("POST", PATH, params={"threshold": 0}).json()["run_ids"]["reset_to_pending"] == [run_id]
