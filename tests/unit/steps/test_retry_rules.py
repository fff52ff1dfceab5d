"""What is tried again later: phases and calls, and giving up the next attempt of a phase."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_modules.phase import Failed, Next, RetryAt, WaitingForChildren
from adws.adw_modules.worker import control as worker_control
from adws.testing import START
from tests.unit import timeline_cases
from tests.unit.engine_cases import ADW_ID, BROKEN, World, phase, spec_of

AT = "2026-01-31T10:00:00.000000Z"


def retrying(*attempts, state="building", **fields):
    known = {"status": "retry_wait", "retry_at": AT, "attempts_used": 2, **fields}
    build = timeline_cases.phase("build", *attempts, **known)
    return timeline_cases.document(timeline_cases.phase("plan"), build, adw_id=ADW_ID, current_state=state)


def test_a_phase_that_waits_is_a_retry_under_the_id_of_its_workflow():
    result = worker_control.of_phase(retrying(last_failure_reason="connection reset by peer"))

    assert result is not None
    assert result.to_json() == {
        "kind": "phase",
        "retry_id": ADW_ID,
        "adw_id": ADW_ID,
        "phase": "build",
        "next_at": AT,
        "why": "it failed",
        "step": "",
        "index": None,
        "attempt_number": 2,
        "page": None,
        "error": "connection reset by peer",
    }


@pytest.mark.parametrize(
    "document",
    [
        retrying(status="running"),
        retrying(retry_at=None),
        retrying(timeline_cases.tried(1, 0, status="waiting")),
        retrying(state="paused"),
        retrying(state="failed"),
    ],
)
def test_what_waits_for_no_moment_of_its_own_is_no_retry(document):
    assert worker_control.of_phase(document) is None


# --- giving up -------------------------------------------------------------------------------------------------


def waiting(**changes) -> World:
    world = World(spec_of(phase("plan", **changes), "build"), {"plan": [BROKEN]})
    assert isinstance(world.attempt(), RetryAt)
    return world


def cancelled(world: World, **how):
    index = worker_control.waiting_phase(world.document)
    return world.change(lambda draft: worker_control.cancel(draft, world.spec, index, **how))


def test_a_required_phase_fails_with_its_workflow():
    world = waiting()

    outcome = cancelled(world, by="ada", reason="enough")

    assert outcome == Failed(phase="plan", reason="RETRY_CANCELLED", message="ada cancelled its next attempt: enough")
    assert (world.state, world.document.terminal_reason) == ("failed", "RETRY_CANCELLED")
    assert world.record("plan").retry_at is None
    (told,) = world.events("phase_failed")
    assert told.data["message"] == "ada cancelled its next attempt: enough"


def test_one_that_is_not_required_is_passed_over():
    world = waiting(is_required=False)

    assert cancelled(world, by="ada") == Next(phase="build")
    assert world.document.warnings == ["plan was passed over: ada cancelled its next attempt"]


def test_a_phase_that_waits_for_others_is_no_retry():
    world = World(spec_of("build"), {"build": [WaitingForChildren(reason="waits", until=START)]})
    world.attempt()

    with pytest.raises(UsageError):
        worker_control.waiting_phase(world.document)


def test_a_workflow_that_has_failed_has_no_retry_left():
    world = waiting()
    cancelled(world, by="ada")
    world.change(lambda draft: draft.change_phase(0, status="retry_wait"))

    with pytest.raises(UsageError):
        worker_control.waiting_phase(world.document)
