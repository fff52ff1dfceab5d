"""
A home with a real repository, a bare remote, a local forge and workflows that have really made things.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from adws import app as app_module
from adws.adw_modules import timestamps
from adws.adw_modules.document import Draft, PhaseRecord, Resource, WorkflowDocument, WorkflowRef
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.model import NewPullRequest
from adws.adw_modules.forge.text import Marker
from adws.adw_modules.git import git as git_module
from adws.adw_modules.process.tree import TOKEN_VARIABLE
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import PhaseSpec, WorkflowSpec
from adws.app import Home, open_home
from adws.config import load as config_load
from tests import templates

ADW_ID = "1a2b3c4d"
SPEC = WorkflowSpec(
    name="tried",
    version="1",
    phases=(
        PhaseSpec(name="plan", state="planning", runner="command", command=("true",)),
        PhaseSpec(name="build", state="building", runner="command", command=("true",)),
    ),
)


def git(path: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TidyHome:
    """The home, to be opened as often as needed."""

    def __init__(self, path: Path, *, store: str = "files", database: str = "") -> None:
        """*database* is the URL of one that is not the file in the home."""
        self.path = path
        self._env = {"ADW_DATABASE_URL": database} if database else {}
        # Beside the folders of other tests: made by the first of them, and gone with all of them.
        templates.copy_repositories(path.parent.parent / f"tidy-{store}", path, lambda place: _make_home(place, store))

    @contextmanager
    def open(self):
        with _opened(self.path, self._env) as app:
            yield app

    @property
    def remote(self) -> Path:
        return self.path / "forge" / "remote.git"

    def tree(self, adw_id: str = ADW_ID) -> Path:
        return self.path / "trees" / adw_id

    def remote_heads(self) -> set[str]:
        return set(git(self.remote, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    def heads(self) -> set[str]:
        return set(git(self.path, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())

    # --- a workflow that made everything -------------------------------------------------------------------------

    def make(self, app: Home, adw_id: str = ADW_ID, *, state: str = "building") -> int:
        """Make a workflow with worktree, commit, push, pull request, sticky comment and ports; return its issue."""
        issue = app.forge.create_issue(f"Greet {adw_id}")
        branch = branch_of(adw_id, issue.number)
        host = app.processes.me("test").host
        with app.ownership.create(self._document(app, adw_id, issue.number)) as owned:
            start = app.git.fetch("main")
            reason = git_module.lock_reason(adw_id)
            app.git.add_worktree(self.tree(adw_id), branch=branch, start=start, reason=reason)
            (self.tree(adw_id) / "greet.py").write_text("def greet():\n    return 'hello'\n")
            head = app.workplace.commit_all(self.tree(adw_id), "Greet")
            assert app.git.push(self.tree(adw_id), branch, expected=None) == ""
            (self.tree(adw_id) / "draft.txt").write_text("not committed")
            pair = app.ports.take(adw_id)
            app.quotas.admit(adw_id)
            pull = app.forge.create_pull_request(
                NewPullRequest(
                    title="Greet", body=marked(app, "Greet", adw_id, forge_text.PULL_REQUEST), head=branch, base="main"
                )
            )
            sticky = app.forge.create_comment(issue.number, marked(app, "it works", adw_id, forge_text.STICKY))

            def effect(key: str, kind: str, **undo) -> Resource:
                return Resource(key=key, kind=kind, outcome="made", host=host, undo=undo)

            made = [
                effect(f"port:{pair.backend}", "port", port=pair.backend, purpose="backend"),
                effect(f"port:{pair.frontend}", "port", port=pair.frontend, purpose="frontend"),
                effect("worktree", "worktree", path=str(self.tree(adw_id)), branch=branch, reason=reason),
                effect(f"branch:{branch}", "branch", branch=branch, base="main", start=start, sha=head),
                effect("comment:sticky", "comment", number=issue.number, comment_id=sticky.comment_id),
                effect(f"remote_branch:{branch}", "remote_branch", branch=branch, sha=head),
                effect("pull_request", "pull_request", number=pull.number, branch=branch),
            ]
            fields = {
                "resources": made,
                "branch_name": branch,
                "worktree_path": str(self.tree(adw_id)),
                "pr_number": pull.number,
                "backend_port": pair.backend,
                "frontend_port": pair.frontend,
            }
            owned.save(owned.document.model_copy(update=fields))
            self._move(app, owned, state)
        return issue.number

    def _document(self, app: Home, adw_id: str, number: int) -> WorkflowDocument:
        moment = timestamps.to_text(app.clock.now())
        return WorkflowDocument(
            adw_id=adw_id,
            issue_number=number,
            workflow=WorkflowRef(**workflow_model.freeze(SPEC)),
            phases=[PhaseRecord(name=phase.name, state=phase.state) for phase in SPEC.phases],
            created_at=moment,
            updated_at=moment,
        )

    def _move(self, app: Home, owned, state: str) -> None:
        ways = {"planning": ["planning"], "building": ["planning", "building"]}
        for name in ways.get(state, ["planning", state]):
            draft = Draft(owned.document, WorkflowStateMachine.of(owned.document, now=app.clock.now), now=app.clock.now)
            draft.move(WorkflowState(name))
            owned.save(draft.finished(), events=draft.events)


def _opened(path: Path, env: dict[str, str]) -> Home:
    return open_home(config_load.load(env=env, cwd=path, overrides={"home": str(path)}))


def _make_home(path: Path, store: str) -> None:
    templates.prepare_home(path)
    git(path, "init", "-q", "-b", "main")
    (path / ".gitignore").write_text("state/\ntrees/\nforge/\n")
    (path / "adw.toml").write_text(f'[state]\nstore = "{store}"\n[forge]\nkind = "local"\ndir = "forge"\n')
    (path / "greet.py").write_text("def greet():\n    pass\n")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "Begin")
    with _opened(path, {}) as app:
        app.forge.prepare("main")
        git(path, "remote", "add", "origin", app.forge.remote_url())
    git(path, "push", "-q", "origin", "main")


def branch_of(adw_id: str, number: int) -> str:
    return f"feature-issue-{number}-adw-{adw_id}-greet"


def marked(app: Home, text: str, adw_id: str, op: str) -> str:
    key = app_module.key_of(app.settings, clock=app.clock)
    made = forge_text.make_marker(Marker(adw_id=adw_id, op=op), key=key, repository=app.forge.repository)
    return forge_text.with_marker(text, made)


def in_database(lab: TidyHome, text: str, *values: str) -> None:
    connection = sqlite3.connect(lab.path / "state" / "adw.db")
    with connection:
        connection.execute(text, values)
    connection.close()


class a_process:  # noqa: N801 - read as words: with a_process(...)
    """A process that carries our variables, for as long as the block."""

    def __init__(self, lab: TidyHome, adw_id: str, *, state_dir: Path | None = None, token: str = "t" * 32) -> None:
        self._env = {
            **os.environ,
            TOKEN_VARIABLE: token,
            "ADW_ID": adw_id,
            "ADW_RESULT_FILE": str((state_dir or lab.path / "state") / adw_id / "result.json"),
        }

    def __enter__(self) -> subprocess.Popen[bytes]:
        code = "import sys; print('up', flush=True); sys.stdin.read()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # its environment is that of the new program by now
        return self._process

    def __exit__(self, *_error: object) -> None:
        self._process.communicate()
