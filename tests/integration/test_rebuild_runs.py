"""Runs in a database that is checked, made again and restored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adws import app as app_module
from adws.adw_modules.interfaces import LoadedState
from adws.adw_modules.maintenance import check
from adws.adw_modules.maintenance.rebuild import (
    RebuildReport,
    Salvage,
    plan_rebuild,
    rebuild,
)
from adws.adw_modules.queue.model import NewRun, RunState
from adws.config import load as config_load
from adws.testing import FakeProcesses
from tests.contracts.worlds import FIRST, SECOND, THIRD, database_world, make_document
from tests.homes import lab_home
from tests.integration.ownership_worker import new_document

DUE = "2100-01-31T09:00:00.000000Z"
TTL = 30.0


def stored(adw_id: str, state: str, **more: object):
    return new_document(adw_id, None, current_state=state, created_at=f"2026-01-01T{adw_id[0]}", revision=1, **more)


# --- the plan --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind"),
    [("pending", "start"), ("planning", "resume"), ("cleaning", "resume")],
)
def test_an_active_workflow_gets_a_run(state, kind):
    plan, _ = plan_rebuild([stored(FIRST, state)], Salvage(is_missing=True))

    assert plan.runs == (NewRun(adw_id=FIRST, kind=kind, asked_by="rebuild"),)


@pytest.mark.parametrize("state", ["paused", "failed", "completed", "abandoned", "rolled_back", "unheard of"])
def test_a_workflow_that_waits_for_a_person_or_has_ended_gets_none(state):
    plan, _ = plan_rebuild([stored(FIRST, state)], Salvage(is_missing=True))

    assert plan.runs == ()


def test_a_workflow_that_waits_for_a_retry_gets_a_run_at_that_time():
    phases = [
        {"name": "plan", "state": "planning", "status": "complete", "retry_at": "2090-01-01"},
        {"name": "build", "state": "building", "status": "retry_wait", "retry_at": "2100-01-31T10:00:00+01:00"},
    ]

    plan, _ = plan_rebuild([stored(FIRST, "building", phases=phases)], Salvage(is_missing=True))

    assert plan.runs[0].not_before == DUE


@pytest.mark.parametrize("moment", ["soon", None])
def test_a_retry_time_that_cannot_be_read_means_at_once(moment):
    phases = [{"name": "build", "state": "building", "status": "retry_wait", "retry_at": moment}]

    plan, _ = plan_rebuild([stored(FIRST, "building", phases=phases)], Salvage(is_missing=True))

    assert plan.runs[0].not_before == ""


def test_the_older_workflow_comes_first():
    plan, _ = plan_rebuild([stored("9c0d1e2f", "planning"), stored("1a2b3c4d", "building")], Salvage(is_missing=True))

    assert [run.adw_id for run in plan.runs] == ["1a2b3c4d", "9c0d1e2f"]


@pytest.mark.parametrize("salvage", [Salvage(), Salvage(problems=("torn",))])
def test_what_could_be_read_of_the_old_queue_comes_first_and_is_not_made_twice(salvage):
    queue = lab_home().runs
    old = queue.enqueue(
        NewRun(adw_id=FIRST, kind="retry", priority=3, not_before=DUE, payload={"a": 1}, asked_by="ada")
    )

    plan, _ = plan_rebuild([stored(FIRST, "building"), stored(SECOND, "planning")], replace(salvage, runs=(old,)))

    made = NewRun(adw_id=SECOND, kind="resume", asked_by="rebuild")
    kept = NewRun(adw_id=FIRST, kind="retry", priority=3, not_before=DUE, payload={"a": 1}, asked_by="ada")
    assert plan.runs == ((kept, made) if salvage.problems else (made,)), "a good database still has it"


# --- the database ----------------------------------------------------------------------------------------------


def open_home(path: Path) -> app_module.Home:
    return app_module.open_home(config_load.load(env={"ADW_HOME": str(path)}, cwd=path), role="worker")


def rebuilt(path: Path) -> RebuildReport:
    with open_home(path) as app:
        return rebuild(app)


def test_a_lost_database_gets_the_runs_of_active_workflows(home):
    with open_home(home) as app:
        for adw_id, state in ((FIRST, "planning"), (SECOND, "paused"), (THIRD, "pending")):
            with app.ownership.create(make_document(adw_id, issue_number=int(adw_id[0]), current_state=state)):
                pass
    for file in (home / "state").glob("adw.db*"):
        file.unlink()

    report = rebuilt(home)

    assert set(report.runs_made) == {FIRST, THIRD}
    assert report.to_json()["runs_made"] == list(report.runs_made)
    assert any("starts that had no document yet" in text for text in report.lost)
    with open_home(home) as app:
        assert {(run.adw_id, run.kind, run.state) for run in app.runs.page()} == {
            (FIRST, "resume", RunState.PENDING),
            (THIRD, "start", RunState.PENDING),
        }
    assert rebuilt(home).runs_made == (), "doing it again makes none"


# --- the check -------------------------------------------------------------------------------------------------


@pytest.fixture
def found(database, clock):
    """`found()` returns (workflow, text) of each problem with a run."""
    processes = FakeProcesses(clock.token)

    def find() -> list[tuple[str, str]]:
        problems = check.find_problems(
            database,
            home="database",
            documents=lambda: {FIRST: LoadedState(document=make_document(FIRST))},
            processes=processes,
        )
        assert all(problem.hint for problem in problems)
        return [(problem.adw_id, problem.text) for problem in problems if problem.kind == "run"]

    find.processes = processes
    return find


def test_runs_that_wait_or_are_with_a_live_worker_are_no_problem(database, clock, found):
    world = database_world(database, clock)
    world.add_row(FIRST)
    world.runs.enqueue(NewRun(adw_id=FIRST, kind="resume"))
    assert found() == []

    world.runs.claim(found.processes.me("worker"), ttl_seconds=TTL)

    assert found() == []


def test_a_run_whose_worker_is_dead_or_silent_is_named(database, clock, found):
    world = database_world(database, clock)
    world.add_row(FIRST)
    run = world.runs.enqueue(NewRun(adw_id=FIRST))
    worker = found.processes.me("worker")
    world.runs.claim(worker, ttl_seconds=TTL)

    world.let_pass(2 * TTL)
    assert found() == [
        (FIRST, f"run {run.run_id}: the claim of its worker {worker.describe()} is over and was not renewed")
    ]

    found.processes.kill(worker)
    assert found() == [(FIRST, f"run {run.run_id}: its worker {worker.describe()} is dead and did not release it")]


def test_a_run_of_a_workflow_that_is_gone_is_named_but_a_start_makes_its_own(database, clock, found):
    world = database_world(database, clock)
    world.add_row(FIRST)
    run = world.runs.enqueue(NewRun(adw_id=SECOND, kind="resume"))
    world.runs.enqueue(NewRun(adw_id=THIRD, kind="start"))

    assert found() == [(SECOND, f"run {run.run_id} is of a workflow that is gone")]

    world.runs.ask_to_stop(run.run_id)
    assert found() == []
