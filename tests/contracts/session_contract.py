"""What every AgentSessions keeps: one row for each attempt of an agent, which ends with its attempt or with its run."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import AgentSession, SessionStatus
from adws.adw_modules.queue.model import NewRun, Run, RunEnd, RunState
from tests.contracts.worlds import FIRST, SECOND, make_owner

TTL = 30.0


def make_session(number: int = 1, **changes) -> AgentSession:
    fields = {
        "session_id": f"{FIRST}.build.{number}",
        "adw_id": FIRST,
        "run_id": None,
        "phase": "build",
        "attempt_number": number,
        "agent": "claude",
        "host": "testhost",
        "status": SessionStatus.RUNNING,
        **changes,
    }
    return AgentSession(**fields)


def running(world, adw_id: str = FIRST) -> Run:
    world.runs.enqueue(NewRun(adw_id=adw_id))
    return world.runs.begin(world.runs.claim(make_owner(), ttl_seconds=TTL))


def only(world) -> AgentSession:
    (result,) = world.sessions.of_workflow(FIRST)
    return result


class SessionContract:
    """Mix in and give a `world` fixture."""

    def test_a_session_belongs_to_the_run_that_its_workflow_has(self, world):
        run = running(world)

        world.sessions.open(make_session(executor_session_id="abc"))

        result = only(world)
        assert (result.run_id, result.status, result.ended_at) == (run.run_id, SessionStatus.RUNNING, None)
        assert (result.agent, result.host, result.executor_session_id) == ("claude", "testhost", "abc")
        assert result.started_at
        assert world.sessions.live() == (result,)

    def test_a_session_may_have_no_run(self, world):
        world.sessions.open(make_session())

        assert only(world).run_id is None

    def test_opening_it_again_changes_only_what_the_agent_calls_it(self, world):
        world.sessions.open(make_session())
        world.sessions.open(make_session(agent="codex", executor_session_id="abc"))

        assert (only(world).agent, only(world).executor_session_id) == ("claude", "abc")

    @pytest.mark.parametrize("status", [SessionStatus.FINISHED, SessionStatus.FAILED, SessionStatus.STOPPED])
    def test_a_session_ends_once(self, world, status):
        world.sessions.open(make_session())

        assert world.sessions.close(only(world).session_id, status, reason="done")
        assert not world.sessions.close(only(world).session_id, SessionStatus.FAILED, reason="late")

        assert (only(world).status, only(world).reason) == (status, "done")
        assert only(world).ended_at is not None
        assert world.sessions.live() == ()

    @pytest.mark.parametrize("status", [SessionStatus.RUNNING, SessionStatus.STOPPING])
    def test_a_session_does_not_end_as_something_that_lives(self, world, status):
        world.sessions.open(make_session())

        with pytest.raises(UsageError, match=f"does not end as {status.value}"):
            world.sessions.close(only(world).session_id, status)

    @pytest.mark.parametrize(
        ("state", "status"),
        [
            (RunState.COMPLETED, SessionStatus.FINISHED),
            (RunState.FAILED, SessionStatus.FAILED),
            (RunState.STOPPED, SessionStatus.STOPPED),
        ],
    )
    def test_the_end_of_a_run_ends_its_session(self, world, state, status):
        run = running(world)
        world.sessions.open(make_session())

        world.runs.finish(run, state, reason="over")

        assert (only(world).status, only(world).reason) == (status, "over")
        assert only(world).ended_at is not None

    def test_releasing_a_run_ends_its_session(self, world):
        run = running(world)
        world.sessions.open(make_session())

        world.runs.requeue(run, reason="drained")

        assert (only(world).status, world.sessions.live()) == (SessionStatus.FAILED, ())

    def test_taking_a_run_over_ends_its_session(self, world):
        run = running(world)
        world.sessions.open(make_session())

        world.runs.take_back(run, reason="its worker is dead")

        assert (only(world).status, only(world).reason) == (SessionStatus.FAILED, "its worker is dead")

    @pytest.mark.parametrize(
        ("state", "status"),
        [
            (RunState.PENDING, SessionStatus.FAILED),
            (RunState.FAILED, SessionStatus.FAILED),
            (RunState.DEAD, SessionStatus.FAILED),
            (RunState.STOPPED, SessionStatus.STOPPED),
        ],
    )
    def test_recovery_ends_the_session_with_the_run(self, world, state, status):
        run = running(world)
        world.sessions.open(make_session())

        world.runs.settle_lost(run, RunEnd(state=state, reason="gone"))

        assert (only(world).status, only(world).ended_at is not None) == (status, True)

    def test_a_run_that_shall_stop_marks_its_session(self, world):
        run = running(world)
        world.sessions.open(make_session())

        world.runs.ask_to_stop(run.run_id, reason="enough")
        marked = only(world)
        world.runs.finish(run, RunState.STOPPED)

        assert (marked.status, marked.ended_at, marked.reason) == (SessionStatus.STOPPING, None, "enough")
        assert only(world).status is SessionStatus.STOPPED

    def test_beginning_and_renewing_leave_sessions_alone(self, world):
        run = running(world)
        world.runs.take_back(run, reason="gone")
        run = world.runs.begin(world.runs.claim(make_owner(), ttl_seconds=TTL))
        world.sessions.open(make_session())

        world.runs.renew(run, ttl_seconds=TTL)

        assert only(world).status is SessionStatus.RUNNING

    def test_the_session_of_another_run_is_not_closed(self, world):
        run = running(world)
        world.sessions.open(make_session())
        running(world, SECOND)
        world.sessions.open(make_session(session_id="other", adw_id=SECOND))

        world.runs.finish(run, RunState.FAILED)

        assert [session.session_id for session in world.sessions.live()] == ["other"]

    def test_what_has_ended_stays_as_it_ended(self, world):
        run = running(world)
        world.sessions.open(make_session())
        world.sessions.close(only(world).session_id, SessionStatus.FINISHED)

        world.runs.finish(run, RunState.FAILED)

        assert only(world).status is SessionStatus.FINISHED

    def test_sessions_are_listed_oldest_first(self, world):
        world.sessions.open(make_session(1))
        world.clock.advance(1.0)
        world.sessions.open(make_session(2))

        assert [session.attempt_number for session in world.sessions.of_workflow(FIRST)] == [1, 2]
        assert [session.attempt_number for session in world.sessions.live()] == [1, 2]
