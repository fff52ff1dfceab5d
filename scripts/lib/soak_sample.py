"""
The sample of the workflow soak: a repository with a bare remote and a local forge, its workers, and its person.

Everything is the real thing but the agent (`soak_agent.py`): the workers are `adw worker` processes.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from soak_requests import Request

from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.forge.effects import freeze
from adws.adw_modules.forge.local import LocalForge
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.app import Home, open_home
from adws.config import load as config_load

ADW = Path(sys.executable).parent / "adw"
AGENT = Path(__file__).with_name("soak_agent.py")
WORKERS, CONCURRENCY = 2, 3

ADW_TOML = """\
[forge]
kind = "local"
dir = "forge"
[git]
author = "Robot <robot@example.invalid>"
[worker]
grace_seconds = 0.5
recover_seconds = 1.0
[recovery]
mode = "all"
[ports]
backend_start = 19100
frontend_start = 19300
count = 100
[quota]
min_free_disk = "16 MiB"
min_free_memory = "16 MiB"
"""
RETRY = 'retry = { strategy = "fixed", base_seconds = 0.2, max_seconds = 0.5 }'
#: name -> phases of the workflows that the sample has besides `sdlc`
WORKFLOWS: dict[str, tuple[str, ...]] = {
    "fix": ("build", "test", "ship", "clean"),
    "words": ("plan", "document", "ship", "clean"),
    "careful": ("plan", "build", "review", "ship", "clean"),
    "hurried": ("build", "test", "ship", "clean"),
    "swept": ("build", "ship", "tidy", "clean"),
}


# --- the sample ------------------------------------------------------------------------------------------------


class Sample:
    """A repository with a bare remote, a local forge, and one issue for each request."""

    def __init__(self, place: Path) -> None:
        self.place = place.resolve()
        self.home = self.place / "home"
        self.home.mkdir()
        (self.place / "workers").mkdir()
        # Nothing of the person's own: no settings, no tokens, no git configuration.
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.place),
            "GIT_CONFIG_NOSYSTEM": "1",
            "ADW_SANDBOX_MODE": "off",  # the agent of the soak kills workers and damages databases: a box forbids that
        }
        self._make()

    def _make(self) -> None:
        self.git("init", "--quiet", "--initial-branch", "main")
        (self.home / ".gitignore").write_text("state/\ntrees/\nforge/\n__pycache__/\n", encoding="utf-8")
        (self.home / "shared.py").write_text("SHARED = ''\n", encoding="utf-8")
        (self.home / "adw.toml").write_text(self._toml(), encoding="utf-8")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "A sample")
        with self.open() as app:
            forge = self.forge(app)
            forge.prepare("main")
            self.git("remote", "add", "origin", forge.remote_url())
            self.git("push", "--quiet", "origin", "main")
        for name, when in (("pre-receive", "pre"), ("post-receive", "post")):
            hook = self.remote / "hooks" / name
            hook.parent.mkdir(exist_ok=True)
            hook.write_text(f"#!/bin/sh\nexec {shlex.join(self._agent())} {when}\n", encoding="utf-8")
            hook.chmod(0o755)

    def _agent(self) -> list[str]:
        return [sys.executable, "-I", "-S", str(AGENT), str(self.place)]

    def _toml(self) -> str:
        command = f"command = {json.dumps(self._agent())}"
        lines = [ADW_TOML]
        for name in ("plan", "build", "lint", "test", "review", "document"):
            gate = 'gate = "result"' if name in {"test", "review"} else ""
            lines.append(f"[phases.{name}]\n{command}\n{RETRY}\n{gate}")
        lines += [f"[phases.{name}]\n{RETRY}" for name in ("ship", "clean")]
        for workflow, phases in WORKFLOWS.items():
            lines += [self._phase(workflow, name, phases, command) for name in phases]

        return "\n".join(lines) + "\n"

    def _phase(self, workflow: str, name: str, phases: tuple[str, ...], command: str) -> str:
        lines = [f'[[workflows.{workflow}.phases]]\nname = "{name}"', RETRY]
        if name in {"ship", "clean"}:
            lines.append(f'runner = "{name}"')
        else:
            lines.append(command)
        if name == "tidy":
            lines.append('state = "cleaning"')
        if name in {"test", "review"}:
            lines.append('gate = "result"')
        if name in {"test", "review", "ship"} and "build" in phases:
            lines.append('on_rework = "build"')
        if (workflow, name) == ("careful", "plan"):
            lines.append('gate = "human"')
        if (workflow, name) == ("hurried", "build"):
            lines.append("timeouts = { wall = 2 }")
        if name == "clean":
            lines.append("required = false")

        return "\n".join(lines)

    @property
    def remote(self) -> Path:
        return self.home / "forge" / "remote.git"

    def open(self) -> Home:
        """Open the home, to look and to start workflows."""
        return open_home(config_load.load(env=self.env, cwd=self.home, overrides={"home": str(self.home)}))

    def forge(self, app: Home) -> LocalForge:
        """Return the local forge of the sample."""
        if not isinstance(app.forge, LocalForge):
            raise SystemExit("the sample should have a local forge")

        return app.forge

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.invalid")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=self.home, env=self.env, check=True, capture_output=True, text=True
        )

        return done.stdout.strip()

    def adw(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a person would."""
        command = [str(ADW), "--home", str(self.home), *arguments]

        return subprocess.run(command, cwd=self.home, env=self.env, check=False, capture_output=True, text=True)

    def start(self, requests: list[Request]) -> dict[str, Request]:
        """Write an issue for each request and start its workflow; return them by the workflow's id."""
        plan: dict[str, dict[str, str]] = {}
        numbers: dict[int, Request] = {}
        with self.open() as app:
            forge = self.forge(app)
            for request in requests:
                number = forge.create_issue(request.title, f"Please: {request.title}.", labels=(request.label,)).number
                plan[str(number)] = {fault.key: fault.kind for fault in request.faults}
                numbers[number] = request
            (self.place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
            return {
                app.workflow_creator.start(
                    NewWorkflow(
                        issue_number=number,
                        spec=app.workflows.get(request.workflow),
                        issue=freeze(forge.issue(number)),
                        repository=forge.repository,
                    )
                ).adw_id: request
                for number, request in numbers.items()
            }


# --- the workers, and the person -------------------------------------------------------------------------------


@dataclass
class Crew:
    """Worker processes, of which there are always enough."""

    sample: Sample
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    crashes: int = 0

    def keep_up(self) -> None:
        """Start workers in the place of those that were killed; raise when one ended by itself."""
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            if worker.returncode != -9:
                raise SystemExit(f"a worker ended with {worker.returncode}: see {self.sample.place}/worker.log")
            self.workers.remove(worker)
            self.crashes += 1
        while len(self.workers) < WORKERS:
            self._start()

    def _start(self) -> None:
        with (self.sample.place / "worker.log").open("ab") as log:
            worker = subprocess.Popen(
                [str(ADW), "--home", str(self.sample.home), "worker", "--concurrency", str(CONCURRENCY)],
                cwd=self.sample.home,
                env=self.sample.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.workers.append(worker)
        (self.sample.place / "workers" / str(worker.pid)).touch()

    def send_home(self) -> None:
        """End the workers in good order."""
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait()


class Person:
    """Does what only a person can: approves, and mends what is wrong with the machine."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._done: set[str] = set()

    def may_help(self, request: Request, document: WorkflowDocument) -> bool:
        """Say whether this person still has something to do for the workflow."""
        return bool(request.person) and document.adw_id not in self._done

    def help(self, request: Request, document: WorkflowDocument) -> None:
        """Do it, once."""
        if request.person == "approve" and document.pause_reason == "awaiting_approval":
            self._do(document, "approve", document.adw_id)
        if request.person == "mend" and document.current_state == "failed":
            (self._sample.place / f"mended-{document.issue_number}").touch()
            self._do(document, "resume", document.adw_id, "--detach")

    def _do(self, document: WorkflowDocument, *command: str) -> None:
        done = self._sample.adw(*command)
        if done.returncode != 0:
            raise SystemExit(f"adw {' '.join(command)} ended with {done.returncode}: {done.stderr}")
        self._done.add(document.adw_id)


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What came of carrying requests through."""

    started: dict[str, Request]  #: by the id of the workflow
    unsettled: frozenset[str]
    crashes: int


def carry(sample: Sample, requests: list[Request], *, patience: float, say: Callable[[str], None]) -> Carried:
    """Start the requests, keep workers at it until every one is settled or patience is over, and look."""
    started = sample.start(requests)
    crew, person = Crew(sample), Person(sample)
    end = time.monotonic() + patience
    open_ones = dict(started)
    try:
        with sample.open() as app:
            while open_ones and time.monotonic() < end:
                crew.keep_up()
                for adw_id, request in list(open_ones.items()):
                    document = app.store.load(adw_id).document
                    if person.may_help(request, document):
                        person.help(request, document)
                    elif is_settled(document):
                        del open_ones[adw_id]
                        say(f"{document.current_state:<10} {request.title}")
                time.sleep(0.1)
    finally:
        crew.send_home()

    return Carried(started=started, unsettled=frozenset(open_ones), crashes=crew.crashes)


def is_settled(document: WorkflowDocument) -> bool:
    """Say whether nothing moves any more without a person."""
    return document.current_state in {"completed", "failed", "paused", "abandoned", "rolled_back"}
