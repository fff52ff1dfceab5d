"""What is tried again later: phases and calls, and giving up the next attempt of a phase."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_modules.phase import RetryAt, WaitingForChildren
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.worker import control as worker_control
from adws.testing import START
from tests.unit import timeline_cases
from tests.unit.conduct_cases import Home
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


@pytest.fixture
def waiting():
    made = []

    def waiting(**changes) -> Home:
        home = Home()
        made.append(home)
        home.runner.add("plan", BROKEN)
        home.create(spec=spec_of(phase("plan", **changes), "build"))
        assert isinstance(home.work().outcome, RetryAt)
        return home

    yield waiting
    for home in made:
        home.lease_renewer.close()


def test_a_required_phase_fails_with_its_workflow_and_its_run_is_over(waiting):
    home = waiting()

    done = home.control.cancel_retry(ADW_ID, by="ada", reason="enough")

    assert (done.state, done.run, done.message) == ("failed", None, "plan is not retried; the workflow is failed")
    assert (home.state(), home.document().terminal_reason) == ("failed", "RETRY_CANCELLED")
    assert home.record("plan").retry_at is None
    [told] = [event for event in home.parts.events.of_workflow(ADW_ID) if event.event_type == "phase_failed"]
    assert told.data["message"] == "ada cancelled its next attempt: enough"
    assert home.run().state is RunState.STOPPED
    with pytest.raises(UsageError, match="has no scheduled retry"):
        home.control.cancel_retry(ADW_ID, by="ada")


def test_one_that_is_not_required_is_passed_over_and_the_next_phase_is_queued(waiting):
    home = waiting(is_required=False)

    done = home.control.cancel_retry(ADW_ID, by="ada")

    assert (done.state, done.run.state) == ("planning", RunState.PENDING)
    assert home.document().warnings == ["plan was passed over: ada cancelled its next attempt"]


def test_a_phase_that_waits_for_others_is_no_retry():
    world = World(spec_of("build"), {"build": [WaitingForChildren(reason="waits", until=START)]})
    world.attempt()

    with pytest.raises(UsageError):
        worker_control.waiting_phase(world.document)
