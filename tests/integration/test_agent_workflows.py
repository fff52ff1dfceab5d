"""
Whole workflows with a fake agent, through the real worker: every class of failure, and what comes next.

The agent plans well; then it builds as the scenario says.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, Timeouts
from adws.app import Home
from adws.testing import FakeClock
from tests import sampling
from tests.integration.agent_lab import FakeAgent
from tests.integration.process_lab import is_alive
from tests.integration.work_lab import QUICK, make_work_lab

CHANGE = ["echo built >> app.py"]
PLANNED = {"do": ["mkdir -p specs", "echo steps > specs/plan.md"], "answer": "Planned."}
BUILT = {"do": CHANGE, "answer": "Built."}
PLAN = PhaseSpec(name="plan", state="planning", runner="agent", prompt="plan", retry=QUICK)
BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=3)
PATIENCE = 30.0


def failed(text="", status=None, **more):
    """A turn whose result is an error."""
    result = {"is_error": True, "result": text, **({"api_error_status": status} if status else {}), **more}
    return {"result": result, "exit": 1}


@pytest.fixture
def agent(tmp_path):
    return FakeAgent(tmp_path / "agent")


@pytest.fixture
def lab(tmp_path, agent, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-real-key")
    return make_work_lab(tmp_path, ADW_AGENT_PROGRAMS=f"claude={agent.program}", ADW_ADVISOR_USE="off")


def build_record(lab, adw_id):
    return next(phase for phase in lab.document(adw_id).phases if phase.name == "build")


def classes(record) -> list[str]:
    return [attempt.error["klass"] for attempt in record.attempts if attempt.error]


# --- every class -----------------------------------------------------------------------------------------------
#
# What is said for which class, the table of tests/unit/agents/test_agent_failure_table.py has; here some of each kind
# go through whole workflows, and all of them in the soak.


@pytest.mark.parametrize(
    ("turn", "klass"),
    sampling.some(
        [
            (failed("Prompt is too long", terminal_reason="prompt_too_long"), "context"),
            ({"signal": int(signal.SIGKILL)}, "killed"),
            ({"exit": 143, "no_result": True}, "killed"),
            ({"answer": "I would rather not."}, "no_effect"),
            ({"mute": True, "exit": 3, "stderr": "something odd"}, "failed"),
        ],
        2,
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_pass_is_retried_and_then_works(lab, agent, turn, klass):
    agent.plays(PLANNED, turn, BUILT)
    adw_id = lab.start(PLAN, BUILD)

    lab.work()

    record = build_record(lab, adw_id)
    assert lab.document(adw_id).current_state == "completed"
    assert classes(record) == [klass]
    assert [attempt.status for attempt in record.attempts] == ["failed", "succeeded"]
    _, first, second = agent.calls
    session = record.attempts[0].agent["session_id"]
    is_resumed = f"--resume={session}" in second["argv"]
    assert is_resumed is (klass != "context"), "a conversation that is full is not resumed"
    assert f"--session-id={session}" in first["argv"]


@pytest.mark.parametrize(
    ("turn", "klass"),
    sampling.some(
        [
            (failed("API Error: Request rejected (429)", 429), "rate_limited"),
            (failed("API Error: Repeated 529 Overloaded errors", 529), "overloaded"),
            (failed("API Error: 500 internal", 500), "server"),
            (failed("API Error: Unable to connect", api_error="connection_failed"), "network"),
        ],
        2,
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_provider_that_fails_is_waited_for_and_its_failures_use_no_attempt(lab, agent, turn, klass):
    agent.plays(PLANNED, turn, turn, turn, BUILT)
    adw_id = lab.start(PLAN, replace(BUILD, max_attempts=2))

    lab.work()

    record = build_record(lab, adw_id)
    assert lab.document(adw_id).current_state == "completed"
    assert classes(record) == [klass] * 3
    assert [attempt.status for attempt in record.attempts] == ["parked"] * 3 + ["succeeded"]
    assert record.attempts_used == 1
    session = record.attempts[0].agent["session_id"]
    assert all(f"--resume={session}" in call["argv"] for call in agent.calls[2:])


@pytest.mark.parametrize(
    ("turn", "klass", "reason"),
    sampling.some(
        [
            (failed("Credit balance is too low"), "billing", "NEEDS_PERSON"),
            (failed("Invalid API key", 401), "auth", "NEEDS_PERSON"),
            ({**failed("", subtype="error_max_budget_usd")}, "budget", "BUDGET"),
            ({**failed("", subtype="error_max_turns")}, "turns", "NEEDS_PERSON"),
            (failed("API Error: 400 bad request", 400), "invalid", "NEEDS_PERSON"),
            ({"mute": True, "stderr": "error: unknown option '--frobnicate'"}, "invalid", "NEEDS_PERSON"),
            ({"result": {"permission_denials": [{"tool_name": "Write"}]}}, "denied", "NEEDS_PERSON"),
            (failed("This violates our usage policy."), "refused", "NEEDS_PERSON"),
        ],
        3,
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_pass_by_itself_needs_a_person_at_once(lab, agent, turn, klass, reason):
    agent.plays(PLANNED, turn)
    adw_id = lab.start(PLAN, BUILD)

    lab.work()

    document, record = lab.document(adw_id), build_record(lab, adw_id)
    assert (document.current_state, document.terminal_reason) == ("failed", reason)
    assert classes(record) == [klass]
    assert len(agent.calls) == 2


def test_a_quota_that_is_used_up_parks_the_workflow_and_uses_no_attempt(lab, agent):
    reset = int(time.time()) + 3600
    info = {"status": "rejected", "rateLimitType": "five_hour", "resetsAt": reset}
    event = {"type": "rate_limit_event", "rate_limit_info": info}
    turn = {"events": [event], **failed("You've hit your session limit", 429)}
    agent.plays(PLANNED, turn)
    adw_id = lab.start(PLAN, BUILD)

    lab.work()

    document, record = lab.document(adw_id), build_record(lab, adw_id)
    assert (document.current_state, record.attempts_used, record.parks) == ("building", 0, 1)
    assert classes(record) == ["quota_window"]
    assert timestamps.parse(record.retry_at).timestamp() >= reset + 60
    assert len(agent.calls) == 2


def test_who_logs_in_again_is_resumed_at_once_and_the_attempt_that_is_left_counts(lab, agent):
    agent.plays(PLANNED, failed("Invalid API key", 401), BUILT)
    adw_id = lab.start(PLAN, BUILD)
    lab.work()
    with lab.open() as app:
        assert app.breakers.get("anthropic").row.state == "open", "nobody else runs into it"
        app.control.resume(adw_id, by="a person")

    lab.work()

    assert lab.document(adw_id).current_state == "completed"
    assert classes(build_record(lab, adw_id)) == ["auth"], "one attempt was spent on it, and no retries"


def test_the_first_answer_of_a_trial_closes_the_breaker_before_the_trial_ends(lab, agent):
    agent.plays(failed("API Error: 500 internal", 500))
    slow = RetrySpec(base_seconds=300)
    with lab.open() as app:
        earlier = FakeClock(app.clock.now() - timedelta(hours=1))
        breaker = Home(app.settings, clock=earlier, role="cli").breakers.get("anthropic")
        breaker.open_until(earlier.now() + timedelta(minutes=30), "server: it was down")
    adw_id = lab.start(replace(BUILD, retry=slow))

    lab.work()

    with lab.open() as app:
        row = app.breakers.get("anthropic").row
        app.catch_up(adw_id)
        told = [event.event_type for event in app.events.of_workflow(adw_id) if "breaker" in event.event_type]
    assert told == ["breaker_closed"], "the trial was answered"
    assert (row.state, row.failures) == ("closed", 1), "and its end counts as one failure"


@pytest.mark.parametrize(
    "turn",
    [
        {"do": [*CHANGE, "git commit -qam 'Mine' --no-verify"]},
        {"do": CHANGE, "result": {"permission_denials": [{"tool_name": "WebFetch"}]}},
        {"do": CHANGE, "line": 3_000_000},
        {"do": CHANGE, "leaves": ["child", "daemon"]},
    ],
    ids=["commits-itself", "denied-but-done", "long-line", "leaves-children"],
)
def test_what_was_really_done_counts(lab, agent, turn):
    agent.plays(PLANNED, {"answer": "Built.", **turn})
    adw_id = lab.start(PLAN, BUILD)

    lab.work()

    document = lab.document(adw_id)
    assert document.current_state == "completed"
    assert document.cost.total_usd == 0.5
    assert document.cost.by_provider == {"anthropic": 0.5}
    assert len(lab.subjects(document.branch_name)) == 2
    assert agent.left == []


@pytest.mark.parametrize(
    ("hang", "timeouts", "end"),
    [
        ("before", Timeouts(wall=1.0, idle=None, after_result=None), "timeout"),
        ("during", Timeouts(wall=None, idle=1.0, after_result=None), "timeout"),
        ("after", Timeouts(wall=None, idle=None, after_result=1.0), ""),
    ],
)
def test_an_agent_that_hangs_is_ended_by_the_right_clock(lab, agent, hang, timeouts, end):
    turn = {**BUILT, "hang": hang, "ignore_term": True, "leaves": ["child", "daemon"]}
    agent.plays(PLANNED, turn, BUILT)
    phase = PhaseSpec(
        name="build", state="building", runner="agent", prompt="build", retry=QUICK, timeouts=timeouts, max_attempts=3
    )
    adw_id = lab.start(PLAN, phase)

    lab.work()

    record = build_record(lab, adw_id)
    assert lab.document(adw_id).current_state == "completed"
    assert classes(record) == ([end] if end else [])
    if end:
        clock = next(name for name in ("wall", "idle") if getattr(timeouts, name))
        assert record.attempts[0].error["metadata"]["timed_out"] == clock
    assert agent.left == []


# --- between phases --------------------------------------------------------------------------------------------


# --- kill -9 ---------------------------------------------------------------------------------------------------

WORKER = """
import sys
from adws.config import load as config
from adws.adw_modules.worker.worker import WorkerOptions
from adws.app import open_home
with open_home(config.from_environment(), role="worker") as app:
    app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
"""


def wait_until(is_so) -> None:
    """Look until something is so that comes at once."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came"


def has_heard(lab) -> bool:
    """Say whether the worker has kept what the agent said before it hung."""
    outputs = lab.home.glob("state/*/phases/build/attempt-1.stdout.log")
    return any('"type": "assistant"' in path.read_text() for path in outputs)


def kill_the_worker_while_the_agent_works(lab, agent) -> int:
    """Kill -9 a worker when the agent says that it hangs; return the pid of the agent."""
    os.mkfifo(agent.place / "up")
    fd = os.open(agent.place / "up", os.O_RDWR | os.O_NONBLOCK)
    env = {
        **os.environ,
        **lab.env,
        "ADW_HOME": str(lab.home),
        "ADW_FORGE_KIND": "local",
    }
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd=lab.home, env=env) as worker:
        assert select.select([fd], [], [], PATIENCE)[0], "the agent has not begun"
        wait_until(lambda: has_heard(lab))
        worker.kill()
    os.close(fd)
    (agent.place / "up").unlink()
    [stored] = [json.loads(path.read_text()) for path in lab.home.glob("state/*/adw_state.json")]
    attempt = stored["phases"][1]["attempts"][-1]
    assert attempt["agent"]["session_id"]

    return json.loads(attempt["process"]["identity"])["pid"]


def recover(lab) -> None:
    """Let the lease of the dead worker be taken over, and work on."""
    with lab.open() as app:
        app.recovery.recover(every_document=True)
    lab.work()


def test_after_a_kill_the_conversation_is_resumed_and_what_was_used_is_known(lab, agent):
    agent.plays(PLANNED, {"hang": "during", "do": CHANGE, "tokens": 70}, {"answer": "Went on."})
    adw_id = lab.start(PLAN, BUILD)

    pid = kill_the_worker_while_the_agent_works(lab, agent)
    recover(lab)

    document, record = lab.document(adw_id), build_record(lab, adw_id)
    first, second = record.attempts
    assert document.current_state == "completed"
    assert (first.status, second.status) == ("interrupted", "succeeded")
    assert f"--resume={first.agent['session_id']}" in agent.calls[-1]["argv"]
    assert first.report["usage"]["tokens"]["input"] == 70
    assert second.agent["base"] == first.agent["base"], "what the first one did counts for the second"
    wait_until(lambda: not is_alive(pid))


# --- another agent ---------------------------------------------------------------------------------------------
