"""
Finding what is left of workflows that are over or gone, and removing it when that is asked for.

Each orphan is named with the reason why it is one, and looked at again right before it is removed. Work is salvaged
first; processes are ended by their identity; what is not ours any more is left and reported. Other homes may share the
remote: a branch there is ours only when its workflow is known here, or its commit is kept here under a ref of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from adws.adw_modules import forge_texts, gc_rules, leftovers, moving_rules, rollback_rules, salvage, timestamps
from adws.adw_modules.coordination.retention import Old, Retention
from adws.adw_modules.coordination.survey import Branch, Seen, Survey, SurveyParts, workflow_of
from adws.adw_modules.errors import AdwError, GitError, NotOurs, RollbackBlocked
from adws.adw_modules.fenced_write import TEMP_PREFIX
from adws.adw_modules.forge import Forge
from adws.adw_modules.gc_rules import Orphan
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import ProcessRecord
from adws.adw_modules.interfaces_resources import RemoteRefs
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.rollback import RollbackReport
from adws.adw_modules.rollback_hands import Repository, Workplace

#: Directory in that of the state where the patches of worktrees without a workflow go.
SALVAGE_DIR = ".salvage"
#: Seconds after which a half written file is nobody's any more: a write takes milliseconds.
TEMP_SECONDS = 3600.0


class SharedRepository(Repository, Protocol):
    """The repository, and the remote that others use too (`GitRepository`, a part of it)."""

    def refs(self) -> Mapping[str, str]: ...
    def remote_branches(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class GcParts:
    """What orphans are found and removed with."""

    survey: SurveyParts
    clock: Clock
    roll_back: Callable[[str, str], RollbackReport]  #: workflow and reason
    release_lock: Callable[[str], object]  #: frees the issue of a workflow that is over or was never written
    release_place: Callable[[str], object]
    end_process: Callable[[Mapping[str, object]], Ending]
    sweep: Callable[[str], object]  #: removes half written files of a workflow that nobody works on
    forget_checkpoints: Callable[[str], int]  #: deletes the checkpoints of a workflow's phases
    git: SharedRepository | None = None
    refs: RemoteRefs | None = None
    workplace: Workplace | None = None
    forge: Forge | None = None
    forge_key: bytes = b""
    retention: Retention | None = None  #: None: nothing is ever too old


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """What came of an orphan."""

    orphan: Orphan
    is_gone: bool
    detail: str = ""

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {**self.orphan.to_json(), "removed": self.is_gone, "detail": self.detail}


class GarbageCollector:
    """Finds and removes orphans."""

    def __init__(self, parts: GcParts) -> None:
        self._parts = parts
        self._survey = Survey(parts.survey)
        self._doers: dict[str, Callable[[Orphan], str]] = {
            "workflow": self._roll_back,
            "process": self._end_process,
            "pull_request": self._close_pull_request,
            "remote_branch": self._delete_remote_branch,
            "wip_ref": self._delete_wip_ref,
            "worktree": self._remove_worktree,
            "branch": self._delete_branch,
            "port": self._free_ports,
            "quota": lambda orphan: str(self._parts.release_place(orphan.adw_id) or ""),
            "lock": self._release_lock,
            "checkpoint": lambda orphan: f"{self._parts.forget_checkpoints(orphan.adw_id)} deleted",
            "temp": lambda orphan: str(self._parts.sweep(orphan.adw_id) or ""),
            **dict.fromkeys(gc_rules.OLD_KINDS, self._forget),
        }
        self.problems: list[str] = []  #: what could not be looked at, or not be decided, for the person

    def find(self, *, older_than: timedelta | None = None) -> tuple[Orphan, ...]:
        """Return what nobody needs any more; changes nothing."""
        self.problems.clear()
        # Before the look at this home: what is pushed after this has its document by then, and is known.
        there, wip = self._remote_branches(), self._wip_refs()
        seen = self._survey.look()
        self.problems += filter(None, map(gc_rules.why_not_here, seen.workflows.values()))
        found = [
            *self._workflows(seen),
            *self._held(seen),
            *self._git(seen),
            *self._remote(seen, there),
            *self._unshipped(seen, wip),
            *self._temps(seen),
            *self._old(),
        ]

        return gc_rules.chosen(found, older_than=older_than, now=self._parts.clock.now())

    def remove(self, orphans: tuple[Orphan, ...]) -> tuple[Removal, ...]:
        """Remove *orphans* and return what came of each; one that cannot be removed does not keep the others."""
        return tuple(map(self._remove, orphans))

    def _remove(self, orphan: Orphan) -> Removal:
        try:
            if orphan.adw_id and self._survey.is_live(orphan.adw_id):
                return Removal(orphan=orphan, is_gone=False, detail="somebody works on its workflow now")
            return Removal(orphan=orphan, is_gone=True, detail=self._doers[orphan.kind](orphan))
        except (AdwError, OSError) as exc:
            return Removal(orphan=orphan, is_gone=False, detail=str(exc))

    # --- finding -----------------------------------------------------------------------------------------------

    def _workflows(self, seen: Seen) -> Iterator[Orphan]:
        for known in seen.workflows.values():
            why = gc_rules.why_left_over(known)
            if why:
                yield Orphan(kind="workflow", name=known.adw_id, adw_id=known.adw_id, why=why, since=known.updated_at)

    def _held(self, seen: Seen) -> Iterator[Orphan]:
        rows = [("process", p.adw_id, f"{p.stat.pid} ({p.stat.command})") for p in seen.processes]
        facts: dict[str, JsonObject] = {
            f"{p.stat.pid} ({p.stat.command})": {"token": p.token, "pid": p.stat.pid, "ticks": p.stat.start_ticks}
            for p in seen.processes
        }
        rows += [("port", row.adw_id, str(row.port)) for row in seen.ports]
        rows += [("quota", adw_id, adw_id) for adw_id in seen.places]
        rows += [("lock", lock.adw_id, _issue(lock.repository, lock.issue_number)) for lock in seen.locks]
        rows += [("checkpoint", adw_id, adw_id) for adw_id in seen.checkpoints]
        for kind, adw_id, name in rows:
            yield from self._orphan(seen, kind, adw_id, name, facts=facts.get(name))

    def _git(self, seen: Seen) -> Iterator[Orphan]:
        for adw_id, tree in seen.worktrees:
            facts: JsonObject = {"reason": tree.lock_reason, "head": tree.head}
            yield from self._orphan(seen, "worktree", adw_id, str(tree.path), facts=facts, since=_modified(tree.path))
        for branch in seen.branches:
            orphans = list(self._orphan(seen, "branch", branch.adw_id, branch.name, facts={"sha": branch.sha}))
            yield from orphans
            if orphans:
                yield from self._pull_requests(branch, orphans[0])

    def _remote_branches(self) -> Mapping[str, str]:
        try:
            return self._parts.git.remote_branches() if self._parts.git is not None else {}
        except GitError as exc:
            self.problems.append(f"the branches of the remote could not be asked for: {exc}")
            return {}

    def _remote(self, seen: Seen, there: Mapping[str, str]) -> Iterator[Orphan]:
        local = {branch.name for branch in seen.branches}
        refs = self._repository().refs() if there else {}
        for name, sha in there.items():
            adw_id = workflow_of(name, seen.workflows)
            if not adw_id:
                continue
            branch = Branch(adw_id=adw_id, name=name, sha=sha)
            if seen.known(adw_id) is None and not _is_kept_here(branch, refs):
                self.problems.append(
                    f"branch {name} of the remote is named for a workflow that this home does not know, and may be "
                    "another home's: it is left alone; delete it by hand if it is nobody's"
                )
                continue
            orphans = list(self._orphan(seen, "remote_branch", adw_id, name, facts={"sha": sha}))
            yield from orphans
            if orphans and name not in local:  # else its pull requests were asked for with the local one
                yield from self._pull_requests(branch, orphans[0])

    def _wip_refs(self) -> Mapping[str, str]:
        try:
            return self._parts.refs.all(moving_rules.wip_ref("*")) if self._parts.refs is not None else {}
        except GitError as exc:
            self.problems.append(f"the refs of the remote could not be asked for: {exc}")
            return {}

    def _unshipped(self, seen: Seen, there: Mapping[str, str]) -> Iterator[Orphan]:
        """Yield refs of work of workflows that are over; those of workflows that are not known here are left alone."""
        for ref, sha in there.items():
            adw_id = ref.removeprefix(moving_rules.wip_ref(""))
            if seen.known(adw_id) is not None:
                yield from self._orphan(seen, "wip_ref", adw_id, ref, facts={"sha": sha})

    def _orphan(
        self, seen: Seen, kind: str, adw_id: str, name: str, *, facts: JsonObject | None = None, since: str = ""
    ) -> Iterator[Orphan]:
        known = seen.known(adw_id)
        # What a workflow as a whole is rolled back for goes with it.
        why = "" if known is not None and gc_rules.why_left_over(known) else gc_rules.why_orphan(kind, name, known)
        if why:
            moment = known.updated_at if known is not None else since
            yield Orphan(kind=kind, name=name, adw_id=adw_id, why=why, since=moment, facts=facts)

    def _pull_requests(self, branch: Branch, orphan: Orphan) -> Iterator[Orphan]:
        forge = self._parts.forge
        if forge is None:
            return
        try:
            found = [one for one in forge.pull_requests_of(branch.name, state="open") if one.author == forge.login()]
        except AdwError as exc:
            self.problems.append(f"the pull requests of {branch.name} could not be asked for: {exc}")
            return
        for one in found:
            marker = forge_texts.read_marker(one.body, key=self._parts.forge_key, repository=forge.repository)
            if marker is not None and marker.adw_id == branch.adw_id:
                yield Orphan(
                    kind="pull_request",
                    name=f"#{one.number}",
                    adw_id=branch.adw_id,
                    why=orphan.why,
                    since=orphan.since,
                    facts={"number": one.number},
                )

    def _temps(self, seen: Seen) -> Iterator[Orphan]:
        now = self._parts.clock.now().timestamp()
        for path in sorted(self._parts.survey.state_dir.glob(f"*/{TEMP_PREFIX}.*")):
            known = seen.known(path.parent.name)
            if (known is not None and known.is_live) or not path.is_file() or path.is_symlink():
                continue
            if now - path.stat().st_mtime >= TEMP_SECONDS:
                yield Orphan(
                    kind="temp",
                    name=str(path),
                    adw_id=path.parent.name,
                    why="a write was cut off, and nobody works on its workflow",
                    since=_modified(path),
                )

    def _old(self) -> Iterator[Orphan]:
        for old in self._parts.retention.find() if self._parts.retention else ():
            yield Orphan(kind=old.kind, name=old.name, adw_id=old.adw_id, why=old.why, since=old.before)

    # --- removing ----------------------------------------------------------------------------------------------

    def _roll_back(self, orphan: Orphan) -> str:
        report = self._parts.roll_back(orphan.adw_id, f"gc: {orphan.why}")
        if not report.is_complete:
            raise RollbackBlocked(f"blocked by: {'; '.join(report.blocked_by)}")

        return "; ".join(["rolled back", *report.kept])

    def _end_process(self, orphan: Orphan) -> str:
        facts = orphan.facts or {}
        me = self._parts.survey.processes.me("cli")
        pid, ticks = facts.get("pid"), facts.get("ticks")
        record = ProcessRecord(
            token=str(facts.get("token")),
            identity=replace(me, pid=int(str(pid)), start_ticks=int(str(ticks))),
            argv=(),
            started_at="",
        )
        ending = self._parts.end_process(record.to_json())
        if ending.left or not ending.is_certain:
            raise RollbackBlocked(f"it could not be ended: {ending.evidence}")

        return ending.evidence

    def _close_pull_request(self, orphan: Orphan) -> str:
        if self._parts.forge is None:
            raise RollbackBlocked("no forge is configured")
        number = int(str((orphan.facts or {}).get("number")))
        if self._parts.forge.pull_request(number).is_merged:
            raise NotOurs("it is merged")

        return self._parts.forge.close_pull_request(number).url

    def _delete_remote_branch(self, orphan: Orphan) -> str:
        git, sha = self._repository(), str((orphan.facts or {}).get("sha"))
        if not _is_kept_here(Branch(adw_id=orphan.adw_id, name=orphan.name, sha=sha), git.refs()):
            raise NotOurs(f"it is at {sha[:12]}, which is not kept here: somebody else pushed it; delete it by hand")
        said = self._salvage(orphan.adw_id, sha)
        git.delete_remote_branch(orphan.name, expected=sha)

        return said

    def _delete_wip_ref(self, orphan: Orphan) -> str:
        if self._parts.refs is None:
            raise RollbackBlocked("this home is in no git repository")
        sha = str((orphan.facts or {}).get("sha"))
        self._parts.refs.fetch(orphan.name, expected=sha)
        said = self._salvage(orphan.adw_id, sha)
        self._parts.refs.delete(orphan.name, expected=sha)

        return said

    def _remove_worktree(self, orphan: Orphan) -> str:
        git, path, facts = self._repository(), Path(orphan.name), orphan.facts or {}
        said = self._salvage(orphan.adw_id, str(facts.get("head") or ""))
        payload = self._parts.workplace.patch_of_changes(path) if self._parts.workplace and path.exists() else b""
        if payload:
            moment = f"{self._parts.clock.now():%Y%m%dT%H%M%S}"
            folder = self._parts.survey.state_dir / SALVAGE_DIR
            kept = leftovers.write_patch(folder, f"{orphan.adw_id}-{moment}.patch", payload)
            said = "; ".join(filter(None, [said, f"uncommitted work is kept in {kept}"]))
        git.remove_worktree(path, reason=str(facts.get("reason") or ""))

        return said

    def _delete_branch(self, orphan: Orphan) -> str:
        sha = str((orphan.facts or {}).get("sha"))
        if orphan.name == self._repository().default_branch():
            raise NotOurs("it is the branch that everything starts from")
        said = self._salvage(orphan.adw_id, sha)
        self._repository().delete_branch(orphan.name, expected=sha)

        return said

    def _salvage(self, adw_id: str, sha: str) -> str:
        """Keep *sha* under a ref of ours that is free, or has it already; nothing for what the default branch has."""
        git = self._repository()
        if not sha or sha == git.commit_of(f"refs/heads/{git.default_branch()}"):
            return ""

        return f"its commits are kept as {salvage.keep_commits(git, adw_id, sha)}"

    def _free_ports(self, orphan: Orphan) -> str:
        ports = self._parts.survey.ports
        freed = ports.free(orphan.adw_id) if ports else ()

        return f"freed {', '.join(map(str, freed))}" if freed else "it was free already"

    def _release_lock(self, orphan: Orphan) -> str:
        self._parts.release_lock(orphan.adw_id)
        if any(_issue(lock.repository, lock.issue_number) == orphan.name for lock in self._parts.survey.locks.all()):
            raise RollbackBlocked("it is still held")

        return ""

    def _forget(self, orphan: Orphan) -> str:
        if self._parts.retention is None:
            raise RollbackBlocked("nothing says how long it is kept")

        return self._parts.retention.forget(Old(kind=orphan.kind, name=orphan.name, adw_id=orphan.adw_id))

    def _repository(self) -> SharedRepository:
        if self._parts.git is None:
            raise RollbackBlocked("this home is in no git repository")

        return self._parts.git


def _is_kept_here(branch: Branch, refs: Mapping[str, str]) -> bool:
    """Say whether the commit of a branch of the remote is that of our own branch, or was salvaged."""
    salvaged = rollback_rules.salvage_ref(branch.adw_id)
    kept = {sha for ref, sha in refs.items() if ref == salvaged or ref.startswith(f"{salvaged}.")}

    return branch.sha in {refs.get(f"refs/heads/{branch.name}"), *kept}


def _issue(repository: str, number: int) -> str:
    return f"{repository}#{number}" if repository else f"#{number}"


def _modified(path: Path) -> str:
    try:
        return timestamps.to_text(datetime.fromtimestamp(path.stat().st_mtime, tz=UTC))
    except OSError:
        return ""
