"""
On which machine the work of a workflow is, and whether another one can go on with it.

Pure. In the ledger worktree and branch have plain keys on the host where the work is now. What the workflow left on a
host that it moved away from keeps its entry, under a key that names that host. Work can move when nothing was committed
yet, or when its last commit is on the remote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import effect_rules
from adws.adw_modules.interfaces_resources import OPEN_OUTCOMES, Effect
from adws.adw_modules.state_table import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject

#: The ledger's key of a workflow's worktree.
WORKTREE = "worktree"
#: The ledger's key and kind of the ref of the remote that has work which is not shipped yet.
WIP, WIP_KIND = "wip", "wip_ref"
#: Kinds of effects that are on one machine, and can only be looked at and undone there.
LOCAL_KINDS = frozenset({"worktree", "branch", "ref", "directory"})
#: What became of effects on a host that was given up for good.
FORGOTTEN = "forgotten"
#: Between the key of an effect and the host it was left on: no ref has a space in its name.
_ON = " on "


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A ref of the remote that has work of a workflow."""

    ref: str
    sha: str  #: the commit that it is at as far as the ledger knows, "" when nobody can be sure that it is there
    commits: tuple[str, ...]  #: what adw put there last, and what it meant to: it can be at one of them


def wip_ref(adw_id: str) -> str:
    """Return the ref of the remote that has the work of a workflow until it is shipped."""
    return f"refs/adw/wip/{adw_id}"


def left_key(key: str, host: str) -> str:
    """Return the key of an effect that stayed on *host* when the work moved away."""
    return f"{key}{_ON}{host}"


def is_left(effect: Effect) -> bool:
    """Say whether an effect stayed on a host that the work moved away from."""
    return bool(effect.host) and effect.key.endswith(f"{_ON}{effect.host}")


def host_of_work(document: WorkflowDocument) -> str:
    """Return the host where the work is now, "" when there is none yet or the ledger does not say."""
    found = (effect_rules.effect(document, key) for key in (WORKTREE, f"branch:{document.branch_name}"))

    return next((one.host for one in found if one is not None and one.host and _is_open(one)), "")


def branch_of_work(document: WorkflowDocument) -> Effect | None:
    """Return the workflow's own branch where it is, or else where it was last."""
    key = f"branch:{document.branch_name}"
    present = effect_rules.effect(document, key)
    if present is not None and _is_open(present):
        return present
    left = [one for one in effect_rules.effects(document) if is_left(one) and one.key == left_key(key, one.host)]

    return left[-1] if left else None


def has_commits(branch: Effect | None) -> bool:
    """Say whether anything was committed on a branch, as far as the ledger knows."""
    sha = branch.undo.get("sha") if branch is not None else None

    return bool(sha) and branch is not None and sha != branch.undo.get("start")


def published(document: WorkflowDocument) -> tuple[Published, ...]:
    """Return the refs of the remote that have work of the workflow, the one with its last commit first."""
    branch = branch_of_work(document)
    last = str(branch.undo.get("sha") or "") if branch is not None else ""
    found = []
    for effect in effect_rules.effects(document):
        ref, commits = _remote_ref(document, effect), _commits(effect)
        if ref and commits and _is_open(effect):
            sha = str(effect.undo.get("sha") or "") if effect.outcome in effect_rules.MADE else ""
            found.append(Published(ref=ref, sha=sha, commits=commits))

    return tuple(sorted(found, key=lambda one: (one.sha != last, last not in one.commits)))


def bound_to(document: WorkflowDocument, *, host: str) -> str:
    """Return the only host that can go on with the work when that is not *host*, "" when *host* can."""
    where, branch = host_of_work(document), branch_of_work(document)
    if where in {"", host} or branch is None or not has_commits(branch):
        return ""
    is_there = any(branch.undo.get("sha") == one.sha for one in published(document))

    return "" if is_there else where


def left_on(document: WorkflowDocument, host: str) -> tuple[Effect, ...]:
    """Return what a workflow has on *host* that it will not use again there, the newest first."""
    is_over = document.current_state == WorkflowState.COMPLETED.value

    return tuple(
        one
        for one in reversed(effect_rules.effects(document))
        if one.host == host
        and one.kind in LOCAL_KINDS
        and (one.outcome == FORGOTTEN or (_is_open(one) and (is_left(one) or (is_over and one.kind == WORKTREE))))
    )


def move(draft: Draft, *, here: str) -> None:
    """Leave what is on another host to that host, so that *here* can have a worktree and a branch of its own."""
    document = draft.document
    former = host_of_work(document)
    branch = branch_of_work(document)
    entries = []
    for entry in document.resources:
        is_local = entry.kind in LOCAL_KINDS and entry.outcome in OPEN_OUTCOMES
        is_plain = entry.host and not entry.key.endswith(f"{_ON}{entry.host}")
        if is_local and is_plain and entry.host != here:
            entries.append(entry.model_copy(update={"key": left_key(entry.key, str(entry.host))}))
        else:
            entries.append(entry)
    # Of an earlier stay on the same host, which is over: the later entry tells of what is there.
    document.resources = list({entry.key: entry for entry in entries}.values())
    document.assign(worktree_path=None)
    data: JsonObject = {"from": former, "to": here, "commit": branch.undo.get("sha") if branch is not None else None}
    draft.tell("work_moved", data=data)


def _remote_ref(document: WorkflowDocument, effect: Effect) -> str:
    if effect.kind == WIP_KIND:
        return str(effect.undo.get("ref") or "")
    branch = effect.undo.get("branch")

    return f"refs/heads/{branch}" if effect.kind == "remote_branch" and branch == document.branch_name else ""


def _commits(effect: Effect) -> tuple[str, ...]:
    intended = effect.undo.get("intended")
    meant = intended.get("sha") if isinstance(intended, dict) else None

    return tuple(sha for sha in (effect.undo.get("sha"), meant) if isinstance(sha, str) and sha)


def _is_open(effect: Effect) -> bool:
    return effect.outcome in OPEN_OUTCOMES
