"""
Coding agents themselves, each with a model of our own on this machine: plan and build through the real worker.

An agent that is not installed is skipped, and the reason is printed. Nothing leaves this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.workflow.model import PhaseSpec
from tests.agents import real_agents
from tests.agents.stub_model import COMMAND, StubModel
from tests.integration.work_lab import QUICK, WorkLab, git, make_work_lab

PATIENCE = 60.0
#: Requests that one phase takes: one that asks for a tool, one that says the end. aider has no tools.
TURNS = {"aider": 1}

WORKER = """
from adws.config import load as config
from adws.adw_modules.worker.worker import WorkerOptions
from adws.app import open_home
with open_home(config.from_environment(), role="worker") as app:
    app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
"""


@dataclass
class RealWorld:
    """One agent, its model, and a home that has both at work."""

    name: str
    model: StubModel
    lab: WorkLab
    adw_id: str = ""
    phases: tuple[PhaseSpec, ...] = field(default=())

    def start(self) -> None:
        options = dict(real_agents.OPTIONS.get(self.name, {}))
        plan = PhaseSpec(name="plan", state="planning", runner="agent", prompt="plan", retry=QUICK, options=options)
        build = PhaseSpec(
            name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=3, options=options
        )
        self.adw_id = self.lab.start(plan, build)

    def run(self, *plays: str) -> None:
        """Plan well, let *plays* happen to the requests of the build, and work to the end."""
        self.model.plays = [*["work"] * TURNS.get(self.name, 2), *plays]
        self.start()
        self.lab.work()

    @property
    def document(self):
        return self.lab.document(self.adw_id)

    @property
    def build(self):
        return next(record for record in self.document.phases if record.name == "build")

    def worker(self) -> subprocess.Popen:
        """Start a worker of its own, for those who want to kill something."""
        env = {**os.environ, **self.lab.env, "ADW_HOME": str(self.lab.home), "ADW_FORGE_KIND": "local"}
        return subprocess.Popen([sys.executable, "-c", WORKER], cwd=self.lab.home, env=env)

    def agent_pid(self) -> int:
        """Return the process of the agent at work."""
        stored = json.loads((self.lab.home / "state" / self.adw_id / "adw_state.json").read_text())
        return json.loads(stored["phases"][1]["attempts"][-1]["process"]["identity"])["pid"]


@pytest.fixture(params=agents_base.names())
def world(request, tmp_path, monkeypatch):
    name = request.param
    missing = real_agents.why_missing(name)
    if missing:
        pytest.skip(missing)
    with StubModel() as model:
        for key, value in real_agents.variables(name, tmp_path / "person", model.url).items():
            monkeypatch.setenv(key, value)
        (tmp_path / "person" / ".gitconfig").write_text("[user]\n\tname = adw tests\n\temail = tests@adw.invalid\n")
        settings = {
            "ADW_AGENT_PROGRAMS": f"{name}={real_agents.program(name)}",
            "ADW_AGENT_NAME": name,
            "ADW_ADVISOR_USE": "off",
        }
        yield RealWorld(name=name, model=model, lab=make_work_lab(tmp_path, **settings))


# --- it works --------------------------------------------------------------------------------------------------


def test_an_agent_plans_and_builds_and_what_it_used_is_known(world):
    world.run()

    document, attempt = world.document, world.build.attempts[0]
    profile = agents_base.profile(world.name)
    assert document.current_state == "completed", [one.error for record in document.phases for one in record.attempts]
    assert len(world.lab.subjects(document.branch_name)) >= 2  # aider makes some of its own
    assert files_of(world) == {"stub.txt"}, "nothing but the work is committed"
    assert attempt.agent["name"] == world.name
    assert bool(attempt.agent["session_id"]) is profile.capabilities.resumes
    usage = attempt.report["usage"]
    assert usage["tokens"]["input"] > 0
    assert usage["tokens"]["output"] > 0
    if world.name == "claude":
        assert 0 < attempt.report["usage"]["cost_usd"] < document.cost.total_usd
    assert "Add a fine thing" in json.dumps(world.model.requests[0])
    assert world.lab.main_checkout()[2] == "M app.py\nA  staged.txt"


# --- it fails --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "klasses"),
    [(429, {"rate_limited"}), (529, {"overloaded"}), (500, {"server", "overloaded"})],  # Codex tells no number for 500
    ids=["429", "529", "500"],
)
@pytest.mark.parametrize("world", ["claude", "codex"], indirect=True)
def test_a_model_that_is_busy_is_asked_again_later(world, status, klasses):
    world.run(*[str(status)] * tries(world.name, status))

    assert world.document.current_state == "completed", classes(world)
    assert len(classes(world)) == 1
    assert set(classes(world)) <= klasses


@pytest.mark.parametrize("world", ["gemini", "opencode", "aider"], indirect=True)
def test_one_refusal_is_got_over(world):
    world.run("429")

    assert world.document.current_state == "completed", classes(world)
    assert set(classes(world)) <= {"rate_limited"}


def test_a_stream_that_breaks_is_gone_on_with(world):
    world.run("cut")

    assert world.document.current_state == "completed", classes(world)
    assert set(classes(world)) <= {"network", "overloaded"}


@pytest.mark.parametrize(("status", "klass"), [(401, "auth"), (400, "invalid")])
def test_what_no_repetition_helps_needs_a_person(world, status, klass):
    world.run(*[str(status)] * 20)

    document = world.document
    assert (document.current_state, document.terminal_reason) == ("failed", "NEEDS_PERSON"), classes(world)
    assert classes(world) == [klass]


# --- it is killed ----------------------------------------------------------------------------------------------


@contextmanager
def hanging_in_build(world) -> Iterator[subprocess.Popen]:
    """Have a worker, when the agent has done a step of the build and waits for the model; it ends with the block."""
    turns = TURNS.get(world.name, 2)
    world.model.plays = [*["work"] * turns, *["work"] * (turns - 1), "hang"]
    world.start()
    with world.worker() as worker:
        try:
            assert world.model.hangs.wait(PATIENCE), "the agent has not begun"
            yield worker
        finally:
            worker.kill()


def test_after_kill_9_of_the_worker_the_conversation_goes_on(world):
    with hanging_in_build(world):  # kill -9 at its end
        pid = world.agent_pid()
        asked = len(world.model.requests)

    with world.lab.open() as app:
        app.recovery.recover(every_document=True)
    world.lab.work()

    first, second = world.build.attempts
    assert world.document.current_state == "completed"
    assert (first.status, second.status) == ("interrupted", "succeeded")
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    if not agents_base.profile(world.name).capabilities.resumes:
        return
    assert second.agent["is_resumed"]
    assert second.agent["session_id"] == first.agent["session_id"]
    went_on = json.dumps(world.model.requests[asked])
    assert json.dumps(COMMAND)[1:-1] in went_on, "the model sees what it asked for before the kill"


@pytest.mark.parametrize("world", ["claude", "codex"], indirect=True)  # Gemini CLI does not end by it
def test_an_agent_that_gets_sigterm_is_started_again_in_its_conversation(world):
    with hanging_in_build(world) as worker:
        os.kill(world.agent_pid(), signal.SIGTERM)
        worker.wait(PATIENCE)

    world.lab.work()

    first, second = world.build.attempts
    assert world.document.current_state == "completed"
    assert (first.status, second.status) == ("failed", "succeeded")
    assert first.error["klass"] == "killed", first.error
    if agents_base.profile(world.name).capabilities.resumes:
        assert second.agent["session_id"] == first.agent["session_id"]


def files_of(world) -> set[str]:
    """Return the files that the branch has and main has not."""
    return set(git(world.lab.home, "diff", "--name-only", f"main..{world.document.branch_name}").splitlines())


def tries(name: str, status: int) -> int:
    """Return how many refusals an agent takes before it gives up, as it is set up here."""
    return 3 if name == "claude" else (1 if status == 429 else 4)


def classes(world) -> list[str]:
    return [attempt.error["klass"] for attempt in world.build.attempts if attempt.error]
