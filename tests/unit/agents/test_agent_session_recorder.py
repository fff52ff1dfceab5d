"""The session of an agent lasts from its first facts to the end of its attempt, and never stops the work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from adws.adw_modules.agents.sessions import AgentSessionRecorder, AgentSessions
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.interfaces import SessionStatus
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from tests.unit.conduct_cases import ADW_ID, WELL, Home, always


@pytest.fixture
def home():
    made = Home()
    made.engine_changes = {
        "agent_session_recorder": AgentSessionRecorder(SimpleNamespace(sessions=made.parts.sessions, host="here"))
    }
    yield made
    made.lease_renewer.close()


def speaks(
    report: RunReport | Suspended | BaseException, seen: list | None = None, sessions: AgentSessions | None = None
):
    """A phase whose agent says who it is, twice, and then reports."""

    def run(context: PhaseContext) -> RunReport | Suspended:
        context.record_agent({"name": "claude"})
        context.record_agent({"session_id": "abc"})
        if seen is not None and sessions is not None:
            seen.extend(sessions.live())
        if isinstance(report, BaseException):
            raise report
        return report

    return run


def test_an_agent_at_work_has_a_session_of_its_run(home):
    seen: list = []
    home.runner.add("plan", speaks(WELL, seen, home.parts.sessions))
    home.create()

    home.work()

    (live,) = seen
    assert (live.session_id, live.agent, live.executor_session_id) == (f"{ADW_ID}.plan.1", "claude", "abc")
    assert (live.run_id, live.host, live.status) == (home.run().run_id, "here", SessionStatus.RUNNING)


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (WELL, SessionStatus.FINISHED),
        (ConnectionError("connection reset by peer"), SessionStatus.FAILED),
    ],
)
def test_its_session_ends_with_its_attempt(home, report, status):
    home.runner.add("plan", speaks(report))
    home.create()

    home.work()

    (session,) = home.parts.sessions.of_workflow(ADW_ID)
    assert (session.status, session.ended_at is not None) == (status, True)


def test_a_session_that_cannot_be_written_down_does_not_keep_the_work_from_going_on(home, monkeypatch, caplog):
    monkeypatch.setattr(home.parts.sessions, "open", always(DatabaseUnavailable("gone")))
    monkeypatch.setattr(home.parts.sessions, "close", always(DatabaseUnavailable("gone")))
    home.runner.add("plan", speaks(WELL))
    home.create()

    home.work()

    assert home.state() == "completed"
    assert [record.action for record in caplog.records if record.name == "adw.sessions"] == ["session_not_written"] * 3
