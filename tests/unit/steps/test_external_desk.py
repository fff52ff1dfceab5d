"""What is done outside of adw reports at the desk: whose word counts, what is kept of it, and what a token proves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.errors import ClaimLost, StateNotFound, TaskNotFound, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.external_tasks import (
    MAX_RESULT_BYTES,
    REPORTED,
    ExternalTaskService,
    task_of_token,
    token_of,
)
from adws.adw_modules.redaction.redactor import Redactor
from tests.unit.engine_cases import ADW_ID
from tests.unit.steps.test_external_runner import TASK, Outside

KEY = b"k" * 32
SECRET = "hunter2-hunter2-hunter2"


def event(event_type: str = "step_completed", event_id: str = "one", **fields) -> Event:
    return Event(event_type=event_type, event_id=event_id, **fields)


@pytest.fixture
def world():
    world = Outside()
    world.attempt()
    return world


@pytest.fixture
def desk(world):
    return ExternalTaskService(home_of(world))


def home_of(world, **changes):
    parts = {
        "external_tasks": world.tasks,
        "load": lambda adw_id: world.parts.store.load(adw_id).document,
        "redactor": Redactor([SECRET]),
        "forge_key": KEY,
    }

    return SimpleNamespace(**parts | changes)


@pytest.fixture
def claim(desk):
    return desk.claim(TASK, worker="ci", seconds=60.0).claims


# --- tokens ----------------------------------------------------------------------------------------------------


def test_a_token_names_its_task_and_proves_it(desk):
    token = desk.token_of(TASK)

    assert TASK in token
    assert task_of_token(token, lambda: KEY) == TASK


@pytest.mark.parametrize(
    "token",
    [
        "",
        "adwx_",
        "adwx_é_ü",
        TASK,
        token_of(TASK, b"another key"),
        token_of(TASK, KEY)[:-1],
        token_of(TASK, KEY) + "0",
        token_of(TASK, KEY).replace(".build.1", ".build.2"),
    ],
)
def test_what_is_no_token_of_this_home_proves_nothing(token):
    assert task_of_token(token, lambda: KEY) is None


def test_the_key_is_not_asked_for_what_does_not_look_like_a_token():
    def read() -> bytes:
        raise AssertionError("nobody may read the key")

    assert task_of_token("a token of the settings", read) is None


# --- whose word counts -----------------------------------------------------------------------------------------


def test_a_report_whose_answer_was_lost_is_answered_again_when_the_workflow_has_gone_on(world, desk, claim):
    end = event("action_completed", result={"n": 1})
    assert desk.emit(TASK, claim, end)
    world.attempt()

    assert not desk.emit(TASK, claim, end)
    with pytest.raises(ClaimLost, match="its end was reported already"):
        desk.emit(TASK, claim, event("action_completed", result={"n": 2}))


def test_a_task_whose_workflow_is_gone_is_not_found(world, desk):
    def load(adw_id: str):
        raise StateNotFound(adw_id)

    gone = ExternalTaskService(home_of(world, load=load))

    with pytest.raises(TaskNotFound):
        gone.heartbeat(TASK, 1)


# --- what is kept ----------------------------------------------------------------------------------------------


def test_an_event_is_told_once_by_its_id(world, desk, claim):
    assert desk.emit(TASK, claim, event(data={"step": "compile"}, duration=1.5, status="COMPLETED"))
    assert not desk.emit(TASK, claim, event(data={"step": "compile"}))

    told = world.told()[f"{TASK}.told-one"]
    assert (told.event_type, told.data, told.duration, told.status) == (
        "step_completed",
        {"step": "compile"},
        1.5,
        "COMPLETED",
    )
    assert told.meta["queue"] == {"queue_id": TASK, "worker_id": "ci", "claim": 1}
    assert (told.execution_id, told.parent_execution_id, told.node_name) == (TASK, ADW_ID, "build")


def test_the_context_keeps_what_the_seed_names_and_is_cut_to_size(world, desk, claim):
    context = {"vars": {"a": 1}, "_step_results": {"s": {}}, "_private": 1, "workload": "x" * 20_000}

    desk.emit(TASK, claim, event(context=context, result=["y" * 20_000]))

    told = world.told()[f"{TASK}.told-one"]
    assert told.context["vars"] == {"a": 1}
    assert told.context["_step_results"] == {"s": {}}
    assert "_private" not in told.context
    assert told.context["workload"] == {"_truncated": True, "_size": 20_002}
    assert told.result == {"_truncated": True, "_size": 20_004}


def test_a_large_result_is_whole_in_the_phase_and_short_in_the_log(world, desk, claim):
    result = {"log": "z" * 20_000, "tests": 12}

    desk.emit(TASK, claim, event("action_completed", result=result))

    assert world.tasks.get(TASK).report.result == result
    assert world.told()[f"{TASK}.end"].result == {"log": {"_truncated": True, "_size": 20_002}, "tests": 12}


def test_secrets_are_kept_nowhere(world, desk, claim):
    data = {"error": {"message": f"login with {SECRET} failed"}, "password": "x1y2z3"}

    desk.emit(TASK, claim, event("action_failed", data=data, result={"said": SECRET}), summary=f"no {SECRET}")

    kept = repr(world.tasks.get(TASK)) + repr(world.told())
    assert SECRET not in kept
    assert "x1y2z3" not in kept
    assert world.tasks.get(TASK).state == REPORTED


@pytest.mark.parametrize("error", [{"message": "red"}, "red"])
def test_an_error_is_a_sentence_or_a_table(world, desk, claim, error):
    desk.emit(TASK, claim, event("action_failed", data={"error": error}))

    report = world.tasks.get(TASK).report
    assert (report.is_ok, report.error) == (False, {"message": "red"})


@pytest.mark.parametrize(
    ("result", "words"),
    [([1], "result must be an object"), ({"x": "y" * MAX_RESULT_BYTES}, "result has .* bytes and may have")],
)
def test_a_result_that_cannot_be_kept_is_refused_and_the_task_stays_open(world, desk, claim, result, words):
    with pytest.raises(UsageError, match=words):
        desk.emit(TASK, claim, event("action_completed", result=result))

    assert world.tasks.get(TASK).report is None


def test_nobody_can_say_that_somebody_else_told_it(world, desk, claim):
    desk.emit(TASK, claim, event(meta={"queue": {"worker_id": "you"}, "agent": "make"}))

    meta = world.told()[f"{TASK}.told-one"].meta
    assert (meta["queue"]["worker_id"], meta["agent"]) == ("ci", "make")
