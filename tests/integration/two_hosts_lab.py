"""
Two machines as two roots: each has its home, its clone of one bare remote and its name; they share PostgreSQL.

Who has another name is another machine: nobody here can prove that the other's processes are dead, or would end them.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.forge.effects import freeze
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.config import load as config_load
from tests import warm
from tests.integration.work_lab import git

#: Seconds after which something that should happen soon is taken as never happening.
PATIENCE = 60.0
LEASE_SECONDS = 3.0


@dataclass
class Host:
    """One machine."""

    name: str
    home: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        own = {"ADW_HOME": str(self.home), "ADW_WORKER_HOST": self.name, "ADW_WORKER_GRACE_SECONDS": "0.2"}
        return {**own, "ADW_SANDBOX_MODE": "off", **self.env}

    def open(self, **env: str) -> app_module.Home:
        """Open the home as a worker does."""
        return app_module.open_home(config_load.load(env={**self.variables, **env}, cwd=self.home), role="worker")

    def start(self, *phases: PhaseSpec, title: str = "Add a fine thing") -> str:
        """Write an issue and accept a workflow for it; return its id."""
        with self.open() as app:
            number = app.forge.create_issue(title, "Please.").number
            issue = freeze(app.forge.issue(number))
            spec = WorkflowSpec(name="tried", phases=phases)

            return app.workflow_creator.start(NewWorkflow(issue_number=number, spec=spec, issue=issue)).adw_id

    def resume(self, adw_id: str) -> None:
        with self.open() as app:
            app.control.resume(adw_id, by="ada", grant=1)

    def work(self) -> None:
        """Be a worker until nothing is due that this machine may do; it recovers first."""
        with self.open() as app:
            app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()

    def adw(self, *args: str) -> tuple[int, str]:
        """Run a command and return its exit code and all it said."""
        done = warm.run(
            [warm.ADW, *args],
            cwd=self.home,
            env={**os.environ, **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        return done.returncode, done.stdout

    def worker(self) -> subprocess.Popen[str]:
        """Start a worker beside the test."""
        return warm.Popen(
            [warm.ADW, "worker"],
            cwd=self.home,
            env={**os.environ, **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def document(self, adw_id: str):
        with self.open() as app:
            return app.store.load(adw_id).document

    def runs(self, adw_id: str):
        with self.open() as app:
            return app.runs.of_workflow(adw_id)

    def events(self, adw_id: str) -> list:
        with self.open() as app:
            return list(app.events.of_workflow(adw_id, limit=1000))

    def trees(self) -> list[str]:
        lines = git(self.home, "worktree", "list", "--porcelain").splitlines()
        return [line for line in lines if line.startswith("worktree ")][1:]

    def branches(self) -> list[str]:
        return git(self.home, "for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()

    def is_sound(self) -> bool:
        """Say whether `adw admin verify` finds nothing, and show what it found."""
        code, said = self.adw("admin", "verify", "--json")
        assert code == 0, said

        return json.loads(said)["violations"] == []


@dataclass
class TwoHosts:
    """Both, and what they share."""

    place: Path
    remote: Path
    alpha: Host
    beta: Host

    def refs(self) -> dict[str, str]:
        """The refs of the remote."""
        lines = git(self.remote, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        return dict(line.split(" ") for line in lines)

    def wip(self, adw_id: str) -> str | None:
        return self.refs().get(f"refs/adw/wip/{adw_id}")

    def at_work(self) -> set[str]:
        """The machines whose workers said that they are there."""
        with self.alpha.open() as app, app.database.read() as session:
            owners = [OwnerRecord.from_text(row[0]) for row in session.all("SELECT owner FROM runners")]
        return {owner.host for owner in owners if owner is not None}

    def has_begun(self) -> None:
        """Return when a phase has said through the pipe that it has begun."""
        fd = os.open(self.place / "up", os.O_RDWR | os.O_NONBLOCK)
        try:
            assert select.select([fd], [], [], PATIENCE)[0], "the phase has not begun"
            os.read(fd, 100)
        finally:
            os.close(fd)


def make_two_hosts(place: Path, url: str, **env: str) -> TwoHosts:
    """Return two machines below *place* that share the database at *url*."""
    place = place.resolve()
    shared = {
        "ADW_DATABASE_URL": url,
        "ADW_FORGE_KIND": "local",
        "ADW_FORGE_DIR": str(place / "forge"),
        "ADW_FORGE_KEY": "k" * 32,
        "ADW_LEASE_TTL_SECONDS": str(LEASE_SECONDS),
        **env,
    }
    homes = [place / name for name in ("alpha", "beta")]
    homes[0].mkdir()
    git(homes[0], "init", "-q", "--initial-branch=main")
    (homes[0] / "app.py").write_text("print('one')\n")
    (homes[0] / ".gitignore").write_text(".env\n.ports.env\nstate/\ntrees/\n")
    git(homes[0], "add", "-A")
    git(homes[0], "commit", "-q", "-m", "Begin")
    alpha = Host(name="alpha", home=homes[0], env=shared)
    with alpha.open() as app:
        remote = Path(app.forge.remote_url().removeprefix("file://"))
        git(homes[0], "remote", "add", "origin", app.forge.remote_url())
    git(homes[0], "push", "-q", "origin", "main")
    git(place, "clone", "-q", str(remote), "beta")
    os.mkfifo(place / "up")
    # Beside each other on one machine they cannot listen on the same ports, as two machines can.
    other = {"ADW_PORTS_BACKEND_START": "19100", "ADW_PORTS_FRONTEND_START": "19200"}

    return TwoHosts(place=place, remote=remote, alpha=alpha, beta=Host(name="beta", home=homes[1], env=shared | other))


def until(is_so: Callable[[], object], what: str) -> None:
    """Return when *is_so*; look often, and give up after long."""
    tick = threading.Event()
    for _ in range(int(PATIENCE / 0.02)):
        if is_so():
            return
        tick.wait(0.02)

    raise AssertionError(f"it never happened: {what}")
