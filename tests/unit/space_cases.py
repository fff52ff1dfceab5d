"""
What the tests of workspace, shipping and cleaning share: a repository in memory, and a world that works in it.
"""

from __future__ import annotations

import shutil
import socket
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import GitError, GitUnreachable, NotOurs
from adws.adw_modules.git.change_policy import CommitText
from adws.adw_modules.git.repository import Worktree
from adws.adw_modules.git.worktree import GitWorkplace
from adws.adw_modules.resources.ports import Ports
from adws.adw_modules.resources.quotas import Limits, Quotas
from adws.adw_modules.workspace.workspace import Workspace
from tests.homes import ABANDONED, free_range
from tests.unit.engine_cases import ADW_ID, WELL, World, home_with

BRANCH = f"feature-issue-42-adw-{ADW_ID}-add-fine-thing"
TREE = Path("/repo/trees") / ADW_ID
ISSUE = FrozenIssue(title="Add a fine thing")


@dataclass
class MemoryGit:
    """A `GitRepository` and a `GitWorkplace` in memory; a commit is the files it has, known by a number."""

    commits: dict[str, dict[str, str]] = field(default_factory=lambda: {"c0": {"app.py": "one"}})
    heads: dict[str, str] = field(default_factory=lambda: {"main": "c0"})
    remote: dict[str, str] | None = field(default_factory=lambda: {"main": "c0"})
    trees: dict[Path, Worktree] = field(default_factory=dict)
    files: dict[Path, dict[str, str]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    pushes: list[str] = field(default_factory=list)
    conflicts: tuple[str, ...] = ()
    extra_refs: dict[str, str] = field(default_factory=dict)
    push_answer: str | Exception | None = None
    own: dict[str, str] = field(default_factory=dict)  #: refs of our own on the remote
    log: list[str] = field(default_factory=list)  #: what was pushed there and fetched from there
    root: Path = Path("/repo")
    is_offline: bool = False
    not_put_back: tuple[str, ...] = ()
    filled: list[Path] = field(default_factory=list)

    # --- GitRepository -----------------------------------------------------------------------------------------

    def default_branch(self) -> str:
        return "main"

    def fetch_default(self) -> tuple[str, str]:
        return "main", self.fetch("main")

    def fetch(self, branch: str) -> str:
        if self.is_offline:
            raise GitUnreachable("the remote cannot be reached")
        return (self.remote or self.heads)[branch]

    def commit_of(self, ref: str) -> str | None:
        name = self.heads.get(ref.removeprefix("refs/heads/"), ref)
        return name if name in self.commits else None

    def missing_from(self, branch: str, commits):
        return ()

    def refs(self):
        local = {f"refs/heads/{name}": sha for name, sha in self.heads.items()}
        there = {f"refs/remotes/origin/{name}": sha for name, sha in (self.remote or {}).items()}
        return {**local, **there, **self.extra_refs}

    def worktrees(self):
        return tuple(replace(tree, head=self.heads.get(tree.branch, "")) for tree in self.trees.values())

    def is_as_made(self, path: Path, *, branch: str, reason: str) -> bool:
        return False  # it has no files: the list of worktrees tells

    def add_worktree(self, path: Path, *, branch: str, start: str, reason: str) -> Worktree:
        if path in self.trees:
            raise GitError(f"{path} is there already")
        self.heads.setdefault(branch, start)
        self.trees[path] = Worktree(path=path, branch=branch, head=start, lock_reason=reason)
        self.files[path] = dict(self.commits[self.heads[branch]])
        return self.trees[path]

    def why_damaged(self, path: Path, *, reason: str) -> str:
        return ""

    def remove_stale_locks(self, path: Path, branch: str, *, before: float) -> tuple[str, ...]:
        return ()

    def remove_worktree(self, path: Path, *, reason: str, is_recorded: bool = False) -> bool:
        result = self.trees.get(path)
        if result is not None and result.lock_reason != reason:
            raise NotOurs(f"the worktree {path} is left alone")
        self.files.pop(path, None)
        return self.trees.pop(path, None) is not None

    def push(self, worktree: Path, branch: str, *, expected: str | None) -> str:
        if isinstance(self.push_answer, Exception):
            raise self.push_answer
        if self.push_answer is not None:
            return self.push_answer
        assert self.remote is not None
        if self.remote.get(branch) != expected:
            return "stale"
        self.remote[branch] = self.heads[branch]
        self.pushes.append(self.heads[branch])
        return ""

    def remote_ref(self, ref: str) -> str | None:
        heads = {f"refs/heads/{name}": sha for name, sha in (self.remote or {}).items()}
        return {**heads, **self.own}.get(ref)

    def fetch_ref(self, ref: str, *, expected: str) -> None:
        assert self.remote_ref(ref) == expected
        self.log.append(f"fetch {expected}")

    def push_ref(self, commit: str, ref: str, *, expected: str | None) -> str:
        if isinstance(self.push_answer, Exception):
            raise self.push_answer
        if self.push_answer is not None:
            return self.push_answer
        if self.own.get(ref) != expected:
            return "stale"
        self.own[ref] = commit
        self.log.append(f"push {commit}")
        return ""

    def delete_remote_ref(self, ref: str, *, expected: str) -> bool:
        assert self.own.pop(ref) == expected
        return True

    def has_remote(self) -> bool:
        return self.remote is not None

    def remote_commit(self, branch: str) -> str | None:
        return (self.remote or {}).get(branch)

    # --- GitWorkplace ------------------------------------------------------------------------------------------

    def _head(self, path: Path) -> str:
        return self.heads[self.trees[path].branch]

    def status(self, path: Path):
        committed, result = self.commits[self._head(path)], self.files[path]
        return tuple(sorted(name for name in {*committed, *result} if committed.get(name) != result.get(name)))

    def head_and_status(self, path: Path):
        return self._head(path), self.status(path)

    def patch_of_changes(self, path: Path) -> bytes:
        return "\n".join(self.status(path)).encode()

    def commit_all(self, path: Path, message: str) -> str | None:
        return self.commit(path, message) if self.status(path) else None

    def commit(self, path: Path, message: str) -> str:
        made = f"c{len(self.commits)}"
        self.commits[made] = dict(self.files[path])
        self.messages[made] = message
        self.heads[self.trees[path].branch] = made
        return made

    def changed_files(self, path: Path, base: str):
        before, now = self.commits[base], self.commits[self._head(path)]
        return tuple(sorted(name for name in {*before, *now} if before.get(name) != now.get(name)))

    def diff(self, path: Path, base: str) -> str:
        now = self.commits[self._head(path)]
        return "".join(
            f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n+{now.get(name, '')}\n"
            for name in self.changed_files(path, base)
        )

    def commit_texts(self, path: Path, base: str):
        head = self._head(path)
        text = CommitText(sha=head, person="Ada", message=self.messages.get(head, ""), patch="")
        return (text,) if head != base else ()

    refuse_unfit = GitWorkplace.refuse_unfit

    def patch_of_paths(self, path: Path, base: str, names) -> bytes:
        return "".join(f"{name}: {self.files[path].get(name, '')}\n" for name in names).encode()

    def put_back(self, path: Path, base: str, names):
        if {*names} & {*self.changed_files(path, base)}:
            self.heads[self.trees[path].branch] = base
        for name in names:
            self.files[path].pop(name, None)
        self.files[path].update({name: text for name, text in self.commits[base].items() if name in names})
        return self.not_put_back

    def rebase(self, path: Path, onto: str):
        if not self.conflicts:
            self.files[path] = {**self.commits[onto], **self.files[path]}
            self.commit(path, "rebased")
        return self.conflicts

    def fill(self, path: Path, **_keywords):
        self.filled.append(path)
        return (), ()

    def write_ports(self, path: Path, ports) -> tuple[str, ...]:
        return ()

    def end_rebase(self, path: Path, branch: str) -> None:
        """Do nothing: a rebase here is whole or not begun."""

    # --- for tests ---------------------------------------------------------------------------------------------

    def move_base(self, **files: str) -> str:
        """Let somebody else push to the base."""
        assert self.remote is not None
        tip = f"c{len(self.commits)}"
        self.commits[tip] = {**self.commits[self.remote["main"]], **files}
        self.remote["main"] = tip
        return tip


class SpaceWorld(World):
    """A workflow that works in a worktree of a repository in memory."""

    def __init__(self, spec, scripts=None, *, git: MemoryGit | None = None, runners=None, **fields) -> None:
        super().__init__(spec, scripts, **{"issue": ISSUE, **fields})
        self.git = git or MemoryGit()
        self.port_range = free_range(4)
        self.ports = self.parts.ports = Ports(
            self.parts.database, clock=self.clock, me=self.parts.me, ports=self.port_range
        )
        self.quotas = Quotas(
            self.parts.database,
            clock=self.clock,
            trees=self.parts.settings.trees_dir,
            host="testhost",
            limits=Limits(min_free_disk=1, min_free_memory=1),
        )
        self._strangers = ExitStack()
        self._state = Path(mkdtemp(prefix="adw-space-"))
        weakref.finalize(self, shutil.rmtree, self._state, ignore_errors=True)
        self.engine.phase_runners |= runners or {}
        self.enter()

    def enter(self, **changes) -> None:
        """Work in the workspace of a new process; *changes* are other parts of its home."""
        self.engine = home_with(
            self.engine,
            **{
                "settings": SimpleNamespace(
                    quota_max_cost=None,
                    worktree_release=True,
                    home=Path("/repo"),
                    trees_dir=Path("/repo/trees"),
                    git_remote="origin",
                    git_commit_message="<type>: <summary> (#<issue>)",
                    is_shared=False,
                ),
                "folder_of": lambda adw_id: self._state / adw_id,
                "host": "testhost",
                "has_worktrees": True,
                "is_synced": False,  # there are no files to sync
                "processes": SimpleNamespace(boot_id="boot-1"),
                "git": self.git,
                "workplace": self.git,
                "ports": self.ports,
                "quotas": self.quotas,
                "publisher": None,
                "left_behind": None,
                **changes,
            },
        )
        self.space = self.engine.workspace = Workspace(self.engine)

    def occupy(self, *ports: int) -> None:
        """Let another program listen on *ports*, until `vacate` or the end of the test."""
        for port in ports:
            self._strangers.enter_context(socket.create_server(("127.0.0.1", port)))
        ABANDONED.append(self._strangers)

    def vacate(self) -> None:
        self._strangers.close()

    def places(self) -> list[str]:
        """The workflows that have a place."""
        return [*self.quotas.workflows()]

    @property
    def kept(self) -> list[str]:
        """The patches of what was put back."""
        return [path.read_text() for path in sorted(self._state.rglob("*.patch"))]

    def effect(self, key: str):
        return next((item for item in self.document.resources if item.key == key), None)

    @contextmanager
    def ledger(self):
        with self.session() as session:
            yield session.ledger


def writing(world, **files: str):
    """A phase that changes files in its worktree and says so."""

    def run(context):
        world().git.files[context.cwd].update({name.replace("__", "/"): text for name, text in files.items()})
        return WELL

    return run
