"""Rollbacks that are queued and made by a worker, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import Mark
from adws.adw_modules.errors import ForgeUnavailable, UsageError, WorkflowBusy
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.rollback.run import MAX_ROLLBACKS
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.run_executor import TROUBLE_SECONDS
from adws.adw_modules.worker.worker import WorkerOptions
from tests.integration.tidy_lab import ADW_ID, SPEC, TidyHome

ADW = str(Path(sysconfig.get_path("scripts")) / "adw")
WISHES = RollbackOptions(reason="not wanted", keep_branch=True)
ONCE = WorkerOptions(once=True)


@pytest.fixture
def lab(tmp_path):
    return TidyHome(tmp_path / "home")


def adw(lab, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ADW_HOME": str(lab.path)}
    return subprocess.run([ADW, *args], cwd=lab.path, env=env, capture_output=True, text=True, check=False, timeout=120)


def newest(app):
    [run] = app.runs.of_workflow(ADW_ID, limit=1)
    return run


@pytest.mark.parametrize("state", ["building", "abandoned"])
def test_a_worker_makes_the_rollback_that_somebody_queued(lab, state):
    """
    Its recovery comes first, and leaves the run alone though the workflow is over.
    """
    with lab.open() as app:
        lab.make(app)
        app.runs.enqueue(NewRun(adw_id=ADW_ID, kind="resume", not_before="2999-01-01T00:00:00Z"))
        if state == "abandoned":
            app.control.abandon(ADW_ID, by="ada")

    asked = adw(lab, "rollback", ADW_ID, "--reason", "not wanted", "--detach")
    with lab.open() as app:
        waits = newest(app)
    done = adw(lab, "worker", "--once")

    assert (asked.returncode, done.returncode) == (0, 0), done.stderr
    assert asked.stdout.startswith(f"workflow {ADW_ID} waits for a worker that rolls it back\n")
    assert (waits.kind, waits.state) == ("rollback", RunState.PENDING)
    with lab.open() as app:
        document, run = app.store.load(ADW_ID).document, newest(app)
        assert (document.current_state, run.run_id, run.state) == ("rolled_back", waits.run_id, RunState.COMPLETED)
        assert "not wanted" in str(document.state_history[-1])
        assert app.verifier.check() == ()
    assert (lab.heads(), lab.remote_heads(), lab.tree().exists()) == ({"main"}, {"main"}, False)


def test_a_wrong_id_queues_nothing(lab):
    said = adw(lab, "rollback", "99999999", "--detach")

    assert (said.returncode, said.stdout) == (1, "")


def test_who_asked_for_a_rollback_at_a_door_is_in_its_history_once(lab):
    """
    The run that a worker makes carries who asked.
    """
    asked = Mark(delivery="dashboard:1", kind="rollback", by="ada (dashboard)", source="dashboard, 10.0.0.7")
    with lab.open() as app:
        lab.make(app)
        app.rollbacks.queue(ADW_ID, replace(WISHES, mark=asked), by="ada")
        app.worker(ONCE).run()
        app.projection.flush()

        told = [event for event in app.events.of_workflow(ADW_ID) if event.event_type == "action_asked"]

    assert [event.data for event in told] == [
        {"action": "rollback", "by": "ada (dashboard)", "from": "dashboard, 10.0.0.7"}
    ]


def test_the_wishes_are_kept_with_the_run(lab):
    with lab.open() as app:
        lab.make(app)
        first = app.rollbacks.queue(ADW_ID, WISHES, by="ada")
        assert app.rollbacks.queue(ADW_ID, WISHES, by="bob") == first
        app.worker(ONCE).run()

        assert newest(app).state is RunState.COMPLETED
    assert len(lab.heads()) == 2, "the branch is kept"


def test_what_is_blocked_is_retried_later_and_then_left_to_a_person(lab, monkeypatch):
    with lab.open() as app:
        lab.make(app)
        app.rollbacks.queue(ADW_ID, WISHES)

        def down(*_args, **_keywords):
            raise ForgeUnavailable("the forge gives no answer")

        monkeypatch.setattr(app.forge, "close_pull_request", down)
        wait = app.clock.sleep
        monkeypatch.setattr(app.clock, "sleep", lambda seconds: wait(min(seconds, 0.01)))  # between the tries of a step
        app.worker(ONCE).run()
        run = newest(app)
        late = timestamps.parse(run.not_before) - app.clock.now()
        assert (run.state, run.attempts) == (RunState.PENDING, 1)
        assert TROUBLE_SECONDS - 20.0 < late.total_seconds() <= TROUBLE_SECONDS
        assert run.reason.startswith("the rollback is retried at ")

        for _ in range(MAX_ROLLBACKS - 1):
            claimed = app.runs.claim(app.processes.me("worker"), ttl_seconds=30.0, run_id=run.run_id)
            app.run_executor.work(claimed)
        run = newest(app)
        assert run.state is RunState.FAILED
        assert f"adw rollback {ADW_ID} continues it" in run.reason
        assert app.store.load(ADW_ID).document.current_state == "abandoned"


def test_who_works_on_it_is_asked_to_stop_first(lab):
    with lab.open() as app:
        lab.make(app)
        app.runs.enqueue(NewRun(adw_id=ADW_ID))
        app.runs.claim(app.processes.me("worker"), ttl_seconds=30.0)

        with pytest.raises(WorkflowBusy):
            app.rollbacks.queue(ADW_ID, WISHES, by="ada", wait_seconds=0.0)

        [request] = app.requests.open_for(ADW_ID)
        assert (request.kind, request.payload["reason"]) == ("rollback", "not wanted")


def test_what_is_to_be_rolled_back_is_not_resumed(lab):
    with lab.open() as app:
        issue = app.forge.create_issue("Greet").number
        adw_id = app.workflow_creator.start(NewWorkflow(issue_number=issue, spec=SPEC)).adw_id
        app.control.pause(adw_id, by="ada")
        app.rollbacks.queue(adw_id, WISHES)

        with pytest.raises(UsageError, match="is to be rolled back"):
            app.control.resume(adw_id, by="ada")
        with pytest.raises(UsageError, match="is to be rolled back"):
            app.control.approve(adw_id, by="ada")
        assert app.store.load(adw_id).document.current_state == "paused"


def test_a_rollback_that_may_not_be_made_ends_its_run_and_leaves_the_workflow(lab):
    with lab.open() as app:
        lab.make(app)
        pull = app.forge.pull_request(app.store.load(ADW_ID).document.pr_number)
        app.forge.edit_pull_request(pull.number, is_draft=False)
        app.forge.merge_pull_request(pull.number, sha=pull.head_sha)
        app.rollbacks.queue(ADW_ID, WISHES)
        before = app.store.load(ADW_ID).document.current_state

        app.worker(ONCE).run()

        assert (newest(app).state, app.store.load(ADW_ID).document.current_state) == (RunState.FAILED, before)
        assert "merged" in newest(app).reason
