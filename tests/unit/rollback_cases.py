"""
What the tests of rollbacks share: git, ports and a forge in memory, and a killer that strikes before or after any act.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from adws.adw_modules.document import Draft, Resource, WorkflowDocument
from adws.adw_modules.errors import ForgeNotFound, ForgeUnavailable, GitUnreachable, NotOurs
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.model import Comment, PullRequest
from adws.adw_modules.forge.text import Marker
from adws.adw_modules.git import git
from adws.adw_modules.git.repository import Repository, Worktree
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.resources.ports import PortRow
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.rollback.run import RollbackReport, Rollbacks
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from tests.homes import ABANDONED
from tests.unit.conduct_cases import Home
from tests.unit.engine_cases import ADW_ID, attempt, document_of, records_of, spec_of

KEY = b"k" * 32
REPOSITORY = "acme/shop"
HOST, ME = "here", "adw-bot"
BRANCH = f"feature-issue-42-adw-{ADW_ID}-add-it"
START, HEAD, OTHER_SHA = "a" * 40, "b" * 40, "c" * 40
WISHES = RollbackOptions(reason="the plan was wrong")


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class Killer:
    """Counts what is done to the world, and strikes at the n-th moment; each act has one before and one after."""

    def __init__(self, strike_at: int | None = None) -> None:
        self.strike_at = strike_at
        self.moments: list[str] = []

    def pass_by(self, what: str) -> None:
        self.moments.append(what)
        if len(self.moments) - 1 == self.strike_at:
            raise Killed(what)


class Watched:
    """Anything, with the killer standing before and behind some of its methods."""

    def __init__(self, inner, killer: Killer, *names: str) -> None:
        self._inner, self._killer, self._names = inner, killer, names

    def __getattr__(self, name):
        result = getattr(self._inner, name)
        if name not in self._names:
            return result

        def call(*args, **keywords):
            self._killer.pass_by(f"before {name}")
            answer = result(*args, **keywords)
            self._killer.pass_by(f"after {name}")
            return answer

        return call


class MemoryGit:
    """A repository and its remote."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.heads = {"main": START, BRANCH: HEAD}
        self.remote = {"main": START, BRANCH: HEAD}
        self.trees = {str(root / "trees" / ADW_ID): (BRANCH, git.lock_reason(ADW_ID))}
        self.saved: dict[str, str] = {}
        self.is_reachable = True
        self.patch = b"diff --git a/x b/x\n"

    def default_branch(self) -> str:
        return "main"

    def commit_of(self, ref: str) -> str | None:
        return self.heads.get(ref.removeprefix("refs/heads/")) or self.saved.get(ref)

    def refs(self) -> dict[str, str]:
        return {**{f"refs/heads/{name}": sha for name, sha in self.heads.items()}, **self.saved}

    def worktrees(self) -> tuple[Worktree, ...]:
        return tuple(
            Worktree(path=Path(path), branch=branch, head=self.heads.get(branch, ""), lock_reason=reason)
            for path, (branch, reason) in self.trees.items()
        )

    def why_damaged(self, path: Path, *, reason: str) -> str:
        return ""

    def remove_worktree(self, path: Path, *, reason: str, is_recorded: bool = False) -> bool:
        if str(path) not in self.trees:
            return False
        if self.trees[str(path)][1] != reason:
            raise NotOurs(f"{path} is locked with {self.trees[str(path)][1]!r}")
        del self.trees[str(path)]
        return True

    def delete_branch(self, branch: str, *, expected: str) -> bool:
        if branch not in self.heads:
            return False
        if any(tree[0] == branch for tree in self.trees.values()):
            raise NotOurs(f"the branch {branch} is checked out")
        if self.heads[branch] != expected:
            raise NotOurs(f"the branch {branch} moved")
        del self.heads[branch]
        return True

    def save_ref(self, ref: str, commit: str) -> None:
        self.saved[ref] = commit

    keep_commits = Repository.keep_commits

    def remote_commit(self, branch: str) -> str | None:
        if not self.is_reachable:
            raise GitUnreachable("the remote cannot be reached: connection refused")
        return self.remote.get(branch)

    def delete_remote_branch(self, branch: str, *, expected: str) -> bool:
        if self.remote_commit(branch) is None:
            return False
        if self.remote[branch] != expected:
            raise NotOurs(f"the branch {branch} of origin moved")
        del self.remote[branch]
        return True

    def patch_of_changes(self, path: Path) -> bytes:
        return self.patch if str(path) in self.trees else b""


class MemoryPorts:
    """Reservations, without sockets."""

    def __init__(self) -> None:
        self.rows = {9100: ADW_ID, 9200: ADW_ID}

    def free(self, adw_id: str) -> tuple[int, ...]:
        freed = tuple(port for port, owner in self.rows.items() if owner == adw_id)
        self.rows = {port: owner for port, owner in self.rows.items() if owner != adw_id}
        return freed

    def all(self) -> tuple[PortRow, ...]:
        return tuple(
            PortRow(port=port, adw_id=adw_id, purpose="backend", host=HOST, reserved_at="")
            for port, adw_id in self.rows.items()
        )


class OneForge:
    """A forge with one issue and one pull request."""

    repository = REPOSITORY

    def __init__(self) -> None:
        self.pulls = {
            7: PullRequest(
                number=7,
                title="x",
                body=forge_text.with_marker("x", marker(forge_text.PULL_REQUEST)),
                head=BRANCH,
                head_sha=HEAD,
                base="main",
                state="open",
                url="https://forge/7",
                author=ME,
            )
        }
        sticky = forge_text.with_marker("it works", marker(forge_text.STICKY))
        self.said: dict[int, list[Comment]] = {42: [Comment(comment_id=1, body=sticky, author=ME)], 7: []}
        self.labels = {42: {"adw", "bug"}}
        self.is_reachable = True

    def login(self) -> str:
        self._ask()
        return ME

    def _ask(self) -> None:
        if not self.is_reachable:
            raise ForgeUnavailable("the forge did not answer: connection refused")

    def pull_request(self, number: int) -> PullRequest:
        self._ask()
        if number not in self.pulls:
            raise ForgeNotFound(f"there is no pull request {number}")
        return self.pulls[number]

    def pull_requests_of(self, head: str, *, state: str = "all") -> tuple[PullRequest, ...]:
        self._ask()
        return tuple(item for item in self.pulls.values() if item.head == head and state in {"all", item.state})

    def close_pull_request(self, number: int) -> PullRequest:
        self._ask()
        self.pulls[number] = replace(self.pulls[number], state="closed")
        return self.pulls[number]

    def comments(self, number: int, *, since: str = "") -> tuple[Comment, ...]:
        self._ask()
        return tuple(self.said[number])

    def create_comment(self, number: int, body: str) -> Comment:
        self._ask()
        made = Comment(comment_id=sum(map(len, self.said.values())) + 1, body=body, author=ME)
        self.said[number].append(made)
        return made

    def edit_comment(self, comment_id: int, body: str) -> Comment:
        self._ask()
        for comments in self.said.values():
            comments[:] = [replace(c, body=body) if c.comment_id == comment_id else c for c in comments]
        return Comment(comment_id=comment_id, body=body)

    def remove_label(self, number: int, label: str) -> None:
        self._ask()
        self.labels[number].discard(label)


def marker(op: str) -> str:
    return forge_text.make_marker(Marker(adw_id=ADW_ID, op=op), key=KEY, repository=REPOSITORY)


def effect(key: str, kind: str, outcome: str = "made", host: str = HOST, **undo) -> Resource:
    return Resource(key=key, kind=kind, outcome=outcome, host=host, undo=undo)


def ledger(root: Path) -> list[Resource]:
    """All that a workflow makes, in the order it makes it."""
    return [
        effect("port:9100", "port", port=9100, purpose="backend"),
        effect("port:9200", "port", port=9200, purpose="frontend"),
        effect(
            "worktree",
            "worktree",
            path=str(root / "trees" / ADW_ID),
            branch=BRANCH,
            reason=git.lock_reason(ADW_ID),
        ),
        effect(f"branch:{BRANCH}", "branch", branch=BRANCH, base="main", start=START, sha=HEAD),
        effect("comment:sticky", "comment", comment_id=1, number=42, op="sticky"),
        effect("label:adw", "label", number=42, label="adw"),
        effect(f"remote_branch:{BRANCH}", "remote_branch", branch=BRANCH, sha=HEAD, remote="origin"),
        effect("pull_request", "pull_request", number=7, branch=BRANCH),
    ]


class RollbackWorld:
    """A workflow that has made everything there is to make, and everybody who undoes it."""

    def __init__(self, tmp_path: Path, *, state: str = "building", killer: Killer | None = None, **fields) -> None:
        self.killer = killer or Killer()
        self.root = tmp_path
        self.home = Home()
        self.git, self.ports, self.forge = MemoryGit(tmp_path), MemoryPorts(), OneForge()
        self.ended: list[object] = []
        self.ending = ProcessEnding(evidence="it is gone", is_certain=True)
        self.released: list[str] = []
        (tmp_path / "trees" / ADW_ID).mkdir(parents=True)
        (tmp_path / f"adw_test_external_{ADW_ID}").mkdir()
        self._create({"resources": ledger(tmp_path), **fields})
        self._to(state)

    def _create(self, fields) -> None:
        spec = spec_of("plan", "build", "ship", "clean")
        records = records_of(spec)
        process = {"token": "t" * 32, "identity": "{}", "argv": ["agent"], "started_at": ""}
        records[0] = records[0].model_copy(
            update={"status": "complete", "attempts": [attempt(1, "succeeded", process=process)]}
        )
        document = document_of(spec, phases=records, worktree_path=str(self.root / "trees" / ADW_ID), **fields)
        document.branch_name, document.pr_number = BRANCH, 7
        with self.home.parts.ownership.create(document):
            pass

    def _to(self, state: str) -> None:
        way = {"pending": [], "completed": ["planning", "building", "shipping", "cleaning", "completed"]}
        before = ["planning", "building", "shipping", "cleaning"]
        path = way.get(state) or (before[: before.index(state) + 1] if state in before else ["planning", state])
        if state == "pending":
            return
        with self.home.parts.ownership.own(ADW_ID) as owned:
            for name in path:
                machine = WorkflowStateMachine.of(owned.document, now=self.home.clock.now)
                draft = Draft(owned.document, machine, now=self.home.clock.now)
                draft.move(WorkflowState(name))
                owned.save(draft.finished(), events=draft.events)

    def roll_back(self, wishes: RollbackOptions = WISHES, **changes) -> RollbackReport:
        """Roll back in a home that differs in *changes*."""
        return Rollbacks(RollbackHome(self, **changes)).rollback(ADW_ID, wishes)

    def plan(self, wishes: RollbackOptions = WISHES) -> RollbackReport:
        return Rollbacks(RollbackHome(self)).plan(ADW_ID, wishes)

    def end_process(self, record) -> ProcessEnding:
        self.killer.pass_by("before end_process")
        self.ended.append(record)
        return self.ending

    def die(self) -> None:
        """What the kernel does after a kill: the lock is free, and the owner is proven dead."""
        row = self.home.parts.leases.read(ADW_ID)
        if row is not None and row.owner is not None:
            self.home.parts.processes.kill(row.owner)
        with suppress(Exception):
            self.home.parts.local_lock.let_go(ADW_ID)

    def what_is_left(self) -> dict[str, object]:
        """Everything in the world that a rollback may touch."""
        return {
            "heads": dict(self.git.heads),
            "remote": dict(self.git.remote),
            "trees": dict(self.git.trees),
            "saved": dict(self.git.saved),
            "ports": dict(self.ports.rows),
            "pulls": {number: pull.state for number, pull in self.forge.pulls.items()},
            "labels": {number: set(names) for number, names in self.forge.labels.items()},
            "comments": {number: len(said) for number, said in self.forge.said.items()},
            "directories": sorted(path.name for path in self.root.iterdir() if path.name.startswith("adw_")),
            "locks": [lock.adw_id for lock in self.home.parts.locks.all()],
            "state": self.home.state(),
            "open": [entry.key for entry in self.home.document().resources if entry.outcome in {"made", "intended"}],
            # What was undone right before a kill is found gone after it: that is the same.
            "outcomes": sorted(
                (entry.key, entry.outcome.replace("gone", "undone")) for entry in self.home.document().resources
            ),
        }


class RollbackHome:
    """The parts of a home that a rollback uses, with the killer standing at what changes the world."""

    host = HOST
    forge_key = KEY

    def __init__(self, world: RollbackWorld, **changes) -> None:
        killer, home = world.killer, world.home
        self._world = world
        self.ownership = _WatchedOwnership(home.parts.ownership, killer)
        self.git_if_any = Watched(
            world.git, killer, "remove_worktree", "delete_branch", "keep_commits", "delete_remote_branch"
        )
        self.workplace = world.git
        self.ports = Watched(world.ports, killer, "free")
        self.forge_if_any = Watched(
            world.forge, killer, "close_pull_request", "create_comment", "edit_comment", "remove_label"
        )
        self.settings = SimpleNamespace(is_shared=False)
        self.redactor = SimpleNamespace(redact_text=str)
        self.quotas = SimpleNamespace(release=world.released.append)
        self.lease_renewer = SimpleNamespace(charge=lambda _owned, _run: nullcontext())
        self.workspace = SimpleNamespace(observe=lambda _session: None)
        self.end_process = world.end_process
        vars(self).update(changes)

    def __getattr__(self, name: str):
        return getattr(self._world.home, name)

    def folder_of(self, adw_id: str) -> Path:
        return self._world.root / "state" / adw_id

    def load(self, adw_id: str) -> WorkflowDocument:
        return self._world.home.store.load(adw_id).document


class _WatchedOwnership:
    """Owns workflows; the killer stands at every write, and a killed owner gives nothing back."""

    def __init__(self, inner, killer: Killer) -> None:
        self._inner, self._killer = inner, killer

    def own(self, adw_id: str, *, needs_issue: bool = True):
        return _WatchedBlock(self._inner.own(adw_id, needs_issue=needs_issue), self._killer)


class _WatchedBlock:
    def __init__(self, block, killer: Killer) -> None:
        self._block, self._killer = block, killer

    def __enter__(self):
        return Watched(self._block.__enter__(), self._killer, "save")

    def __exit__(self, kind, error, trace):
        if kind is Killed:
            ABANDONED.append(self._block)  # a block that is collected would be left in good order
            return False
        return self._block.__exit__(kind, error, trace)
