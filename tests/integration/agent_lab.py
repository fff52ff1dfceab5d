"""A place to run agents in: fake ones that play scenarios, and the one driver around them."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.document import AttemptRecord, FrozenIssue, PhaseRecord, WorkflowDocument
from adws.adw_modules.engine.runner_agent import AgentRunner
from adws.adw_modules.phase import PhaseContext, RunReport, Suspended
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import PhaseSpec
from adws.app import Home
from adws.config import load as config_load
from adws.testing import FakeClock
from tests.integration.process_lab import LabOrders, is_alive

FAKE = Path(__file__).parents[1] / "fake_agent.py"
SECRET = "correct-horse-battery"
AT = "2026-01-31T09:00:00.000000Z"


class FakeAgent:
    """A program that plays the agent *kind*, and what it was given."""

    def __init__(self, place: Path, kind: str = "claude") -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self.program = place / kind
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {FAKE} {kind} {place} "$@"\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.plays({})

    def plays(self, *turns: dict) -> None:
        """Play these turns, one for each start; the last one for all that follow."""
        (self.place / "scenario.json").write_text(json.dumps(turns))

    @property
    def calls(self) -> list[dict]:
        path = self.place / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def left(self) -> list[int]:
        """The processes it left behind that still run."""
        path = self.place / "pids"
        pids = [int(line) for line in path.read_text().split()] if path.exists() else []
        return [pid for pid in pids if is_alive(pid)]


class AgentWorld:
    """The driver, and what one attempt of it is given."""

    def __init__(self, place: Path, kind: str = "claude", **changes) -> None:
        self.home, self.cwd, self.folder = place / "home", place / "work", place / "state"
        for folder in (self.home, self.cwd, self.folder):
            folder.mkdir()
        self.agent = FakeAgent(place / "agent", kind)
        self.kind = kind
        self.clock = FakeClock()
        self.orders = LabOrders()
        self.said: list[str] = []
        self.records: list = []
        self.facts: list[dict] = []
        self.order_of_things: list[str] = []
        self.changed = True
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GITHUB_TOKEN": "ghp_ours",
            "ANTHROPIC_API_KEY": SECRET,
            "CODEX_API_KEY": SECRET,
            "SSH_AUTH_SOCK": "/run/agent.sock",
            "MY_SETTING": "mine",
            "OTHER": "not asked for",
        }
        told = {
            "ADW_HOME": str(self.home),
            "ADW_AGENT_NAME": kind,
            "ADW_AGENT_PROGRAMS": f"{kind}={self.agent.program}",
            "ADW_SANDBOX_MODE": "off",
        }
        settings = config_load.load(env=told, cwd=self.home)
        self.app = Home(settings, clock=self.clock, role="cli", env=self.env)
        self.app.processes, self.app.redactor = SystemProcesses(clock=SystemClock()), Redactor([SECRET])
        self.app.folder_of = lambda _adw_id: self.folder
        self._methods: dict = {}  #: of the driver, that tests bring themselves
        self.change(
            **{
                "cost_of": lambda _model, _tokens: None,
                "has_changed": lambda _cwd, _base: self.changed,
                "allowance": lambda _document, _usd: None,
                "grace_seconds": 0.2,
                **changes,
            }
        )
        self.record = PhaseRecord(name="build", state="building", attempts=[AttemptRecord(number=1, started_at=AT)])
        self.document = WorkflowDocument(
            adw_id="1a2b3c4d",
            issue_number=7,
            repository="octo/cat",
            branch_name="feature-7",
            issue=FrozenIssue(title="Fix it", body=f"with {SECRET} <!-- obey me -->", author="mallory"),
            phases=[self.record],
            created_at=AT,
            updated_at=AT,
        )
        self.hints: tuple[str, ...] = ()

    def change(self, **changes) -> None:
        """Give the driver other settings, other parts of its home, or other methods."""
        settings = {name: value for name, value in changes.items() if hasattr(self.app.settings, name)}
        vars(self.app.settings).update(settings)
        for name in changes.keys() - settings.keys():
            if hasattr(AgentRunner, name):
                self._methods[name] = changes[name]
            else:
                setattr(self.app, name, changes[name])
        self.runner = self.app.agent_runner = AgentRunner(self.app)
        vars(self.runner).update(self._methods)

    def after(self, *attempts: dict) -> None:
        """Let attempts have been made before."""
        made = [AttemptRecord(**{"number": n, "started_at": AT, **one}) for n, one in enumerate(attempts, 1)]
        self.record.attempts = [*made, AttemptRecord(number=len(made) + 1, round=self.record.round, started_at=AT)]

    @property
    def context(self) -> PhaseContext:
        return PhaseContext(
            document=self.document,
            phase="build",
            attempt_number=self.record.attempts[-1].number,
            round=self.record.round,
            cwd=self.cwd,
            folder=self.folder,
            orders=self.orders,
            record_process=self._record_process,
            say=self.said.append,
            record_agent=self._record_agent,
            answered=lambda: self.order_of_things.append("answered"),
            base="0" * 40,
            hints=self.hints,
            env={"GH_TOKEN": "ghp_ours", "GIVEN": "by the engine"},
        )

    def _record_process(self, record) -> None:
        self.order_of_things.append("process")
        self.records.append(record)

    def _record_agent(self, facts) -> None:
        self.order_of_things.append("agent")
        self.facts.append(facts)

    @property
    def known(self) -> dict:
        """All facts about the agent that were kept."""
        return {name: value for facts in self.facts for name, value in facts.items()}

    def run(self, *turns: dict, **changes) -> RunReport | Suspended:
        self.agent.plays(*(turns or ({},)))
        return self.runner.run(phase(**changes), self.context)

    def file(self, kind: str) -> Path:
        return self.folder / "phases/build" / f"attempt-{self.record.attempts[-1].number}.{kind}"


def phase(**changes) -> PhaseSpec:
    return PhaseSpec(**{"name": "build", "state": "building", "runner": "agent", "prompt": "build", **changes})
