"""A home in a real git repository, with a local forge and its bare remote, for tests that carry work all the way."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from adws import app as app_module
from adws.adw_modules.forge.effects import freeze
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import PhaseSpec, RetrySpec, WorkflowSpec
from adws.config import load as config_load
from tests import templates

QUICK = RetrySpec(strategy="fixed", base_seconds=0.01, max_seconds=0.01)
PERSON = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


def git(cwd: Path, *args: str) -> str:
    """Run plain git, as a person would."""
    done = subprocess.run(
        ["git", *args], cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **PERSON}
    )
    assert done.returncode == 0, f"git {' '.join(args)}: {done.stderr}"

    return done.stdout.strip()


def step(name: str, shell: str, state: str, **fields) -> PhaseSpec:
    """A phase that runs a line of shell."""
    return PhaseSpec(name=name, state=state, runner="command", shell=shell, **{"retry": QUICK, **fields})


PLAN = step("plan", "echo steps > plan.md", "planning")
BUILD = step("build", "echo built >> app.py", "building")
SHIP = PhaseSpec(name="ship", state="shipping", runner="ship", needs=("plan", "build"), on_rework="build", retry=QUICK)
CLEAN = PhaseSpec(name="clean", state="cleaning", runner="clean", is_required=False, retry=QUICK)


@dataclass
class WorkLab:
    """The home, and the ways of looking at it."""

    home: Path
    remote: Path
    env: dict[str, str] = field(default_factory=dict)

    def open(self) -> app_module.Home:
        """Open the home as a worker does."""
        env = {"ADW_HOME": str(self.home), "ADW_FORGE_KIND": "local", "ADW_WORKER_GRACE_SECONDS": "0.2"}
        env |= {"ADW_SANDBOX_MODE": "off", **self.env}

        return app_module.open_home(config_load.load(env=env, cwd=self.home), role="worker")

    def start(self, *phases: PhaseSpec, title: str = "Add a fine thing", **fields) -> str:
        """Write an issue and accept a workflow for it; return its id."""
        with self.open() as app:
            number = app.forge.create_issue(title, "Please.").number
            spec = WorkflowSpec(name="tried", phases=phases or (PLAN, BUILD, SHIP, CLEAN))
            issue = freeze(app.forge.issue(number))

            return app.workflow_creator.start(NewWorkflow(issue_number=number, spec=spec, issue=issue, **fields)).adw_id

    def work(self) -> None:
        """Be a worker until everything due is done, retries included."""
        with self.open() as app:
            while True:
                app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
                due = app.runs.seconds_to_next()
                if due is None or due > 5.0:
                    return
                app.clock.sleep(max(0.0, due))

    def document(self, adw_id: str):
        with self.open() as app:
            return app.store.load(adw_id).document

    def branches(self) -> list[str]:
        return git(self.home, "for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()

    def subjects(self, ref: str, cwd: Path | None = None) -> list[str]:
        return git(cwd or self.home, "log", "--format=%s", f"main..{ref}").splitlines()

    def phases(self, ref: str, cwd: Path | None = None) -> list[str]:
        """Return the phases whose work was committed, the newest first."""
        form = "--format=%(trailers:key=ADW-Phase,valueonly,separator=)"
        return git(cwd or self.home, "log", form, f"main..{ref}").splitlines()

    def worktrees(self) -> list[str]:
        return [line for line in git(self.home, "worktree", "list", "--porcelain").splitlines() if line[:4] == "work"]

    def main_checkout(self) -> tuple[object, ...]:
        """All of the main checkout that a person would miss."""
        ours = {"state", "trees", ".git"}
        files = sorted(p for p in self.home.rglob("*") if p.is_file() and not ours & {*p.relative_to(self.home).parts})
        digest = [(str(p), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]
        hidden = [(self.home / ".git" / name).read_bytes() for name in ("HEAD", "index")]

        return digest, hidden, git(self.home, "status", "--porcelain"), git(self.home, "rev-parse", "main")


def make_work_lab(place: Path, **env: str) -> WorkLab:
    """Return a home below *place* whose main checkout has work in progress."""
    place = place.resolve()
    # Beside the folders of other tests: made by the first of them, and gone with all of them.
    templates.copy_repositories(place.parent / "work-lab", place, _make_home)
    home = place / "home"

    return WorkLab(home=home, remote=Path(git(home, "remote", "get-url", "origin")), env=dict(env))


def _make_home(place: Path) -> None:
    home = place / "home"
    home.mkdir()
    templates.prepare_home(home)
    git(home, "init", "-q", "--initial-branch=main")
    (home / "app.py").write_text("print('one')\n")
    (home / ".gitignore").write_text(".env\n.ports.env\nstate/\ntrees/\n")
    git(home, "add", "-A")
    git(home, "commit", "-q", "-m", "Begin")
    with WorkLab(home=home, remote=home).open() as app:
        git(home, "remote", "add", "origin", app.forge.remote_url())
    git(home, "push", "-q", "origin", "main")
    (home / "app.py").write_text("print('in progress')\n")
    (home / "staged.txt").write_text("staged\n")
    git(home, "add", "staged.txt")
