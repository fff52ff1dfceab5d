"""The tool `agent`: one question, answered by a program that plays an agent; what it used is always told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adws.adw_modules.steps import iteration_worker
from adws.adw_modules.steps.iteration_worker import ToolCalls
from adws.adw_modules.steps.model import Assignment, CallReport
from adws.adw_modules.steps.tools import CallContext
from adws.adw_modules.workflow.model import StepSpec
from tests.integration.agent_lab import SECRET, AgentWorld


class World(AgentWorld):
    """Asks agents."""

    def __init__(self, place: Path, kind: str = "claude", *, spent: float = 0.0, shared=None, **changes) -> None:
        super().__init__(place, kind, **changes)
        home = self.app
        home.has_worktrees = shared is not None
        if shared is not None:
            home.git = shared
        self.spent = spent
        self.calls = ToolCalls(home)

    def ask(self, **inputs) -> CallReport:
        """Make one call."""
        step = StepSpec(name="review", tool="agent", inputs=inputs)
        assignment = Assignment(execution_id="e", index=0, element=None, attempt_number=1, page=1)

        return self.calls.make(
            step,
            assignment,
            CallContext(
                document=self.document,
                phase="build",
                phase_attempt=1,
                values={"item": "a.py", "issue": {"title": "Fix it"}},
                cwd=self.cwd,
                folder=self.folder,
                orders=self.orders,
                record_process=self.records.append,
                say=self.said.append,
                spent=lambda: self.spent,
                model="sonnet-of-the-phase",
            ),
        )


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_the_last_answer_is_the_result_and_what_it_cost_is_told(world):
    world.agent.plays({"answer": "All is well."})

    report = world.ask(prompt="Review {{ item }} for: {{ issue.title }}")

    assert (report.ok, report.result) == (True, "All is well.")
    assert world.agent.calls[0]["prompt"] == "Review a.py for: Fix it"
    assert world.agent.calls[0]["cwd"] == str(world.cwd)
    call = report.meta["call"]
    assert (call["agent"], call["permissions"], call["cost_usd"]) == ("claude", "read", 0.25)
    assert call["session_id"]
    assert iteration_worker.used([report.meta, report.meta, {}]).tokens.output == 20
    assert iteration_worker.spent([report.meta, report.meta]) == 0.5


def test_an_agent_reads_and_nothing_else_unless_the_step_says_so(world):
    world.ask(prompt="x")
    world.ask(prompt="x", options={"permissions": "edit", "max_turns": 3}, model="opus")

    first, second = (" ".join(call["argv"]) for call in world.agent.calls)
    assert "sonnet-of-the-phase" in first
    assert "--model=opus" in second
    assert first != second.replace("opus", "sonnet-of-the-phase")
    assert "acceptEdits" not in first
    assert "acceptEdits" in second


def test_an_agent_gets_few_variables_and_no_secret_in_its_prompt(world):
    world.ask(prompt=f"The key is {SECRET}.")

    call = world.agent.calls[0]
    assert SECRET not in call["prompt"]
    assert not {"GITHUB_TOKEN", "OTHER", "MY_SETTING"} & call["env"].keys()
    assert call["env"]["GIT_TERMINAL_PROMPT"] == "0"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"prompt": "  "}, "the prompt came out empty"),
        ({"prompt_file": "nothing"}, "there is no prompt 'nothing'"),
        ({"prompt": "x", "options": {"nope": 1}}, "'nope' is no option of an agent"),
        ({"prompt": "x", "options": {"session": "fresh"}}, "the option session is for whole phases"),
        ({"prompt": "x", "options": {"max_turns": 0}}, "max_turns"),
        ({"prompt": "x", "options": "{{ 7 }}"}, "options must be a table"),
        ({"prompt": "x", "agent": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_asked_is_told_and_starts_nothing(world, inputs, message):
    report = world.ask(**inputs)

    assert message in report.error["message"]
    assert report.error["category"] == "configuration"
    assert world.agent.calls == []


def test_an_agent_that_fails_says_why_and_what_it_used(world):
    world.agent.plays({"result": {"subtype": "error_max_turns", "is_error": True, "result": None}})

    report = world.ask(prompt="x")

    assert (report.error["klass"], report.meta["call"]["cost_usd"]) == ("turns", 0.25)
    assert report.error["type"] == "AgentCallFailed"


def test_an_agent_that_changed_what_worktrees_share_has_failed(tmp_path):
    class Shared:
        def __init__(self) -> None:
            self.looks = 0

        def marks(self) -> dict[str, str]:
            self.looks += 1
            return {"config": f"hash-{self.looks}"}

        def is_ancestor(self, old: str, new: str) -> bool:
            return False

    shared = Shared()
    world = World(tmp_path, shared=shared)

    report = world.ask(prompt="x")

    assert (report.ok, report.error["type"]) == (False, "RepositoryTampered")
    assert "config" in json.dumps(report.error)
