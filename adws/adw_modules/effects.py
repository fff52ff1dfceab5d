"""
The ledger of external effects in a document: reading it, making effects by it, and on which machine the work is.

All but `Ledger` is pure. Worktree and branch have plain keys on the host where the work is now. What the workflow left
on a host that it moved away from keeps its entry, under a key that names that host. Work can move when nothing was
committed yet, or when its last commit is on the remote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.document import Draft, Resource
from adws.adw_modules.errors import AdwError, ForgeUnavailable, GitUnreachable, OwnershipError
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.state_machine import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.attempt import WorkSession


# --- what the facts of an effect mean ------------------------------------------------------------------------------
#
# Documents of older versions call them by other names: all of these are known here.


def name_of(effect: Resource) -> str:
    """Return an effect as people call it."""
    if effect.kind == "pull_request":
        number = number_of(effect.undo)
        return f"#{number}" if number is not None else f"of {branch_of(effect.undo) or effect.key}"

    named = path_of(effect.undo) or branch_of(effect.undo) or effect.undo.get("label") or effect.undo.get("ref")

    return str(named or effect.key)


def path_of(facts: Mapping[str, JsonValue]) -> str:
    """Return where a worktree or directory is, "" when that is not recorded."""
    return _text(facts, "path", "worktree_path")


def branch_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the name of a branch."""
    return _text(facts, "branch", "branch_name", "head")


def commit_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the commit that adw last put there, "" when none is recorded."""
    return _text(facts, "sha", "commit", "head_sha")


def number_of(facts: Mapping[str, JsonValue]) -> int | None:
    """Return the number of an issue or pull request."""
    result = (facts.get(name) for name in ("pr_number", "number"))

    return next((number for number in result if isinstance(number, int)), None)


def _text(facts: Mapping[str, JsonValue], *names: str) -> str:
    result = (facts.get(name) for name in names)

    return next((text for text in result if isinstance(text, str) and text), "")


#: Outcomes of effects that are there, or may be.
OPEN_OUTCOMES: Sequence[str] = ("intended", "made", "adopted", "observed")


#: Effects that are certainly there, as far as the ledger knows.
MADE = frozenset({"made", "adopted", "observed"})


def effect(document: WorkflowDocument, key: str) -> Resource | None:
    """Return the effect called *key*."""
    return next((entry for entry in document.resources if entry.key == key), None)


def open_effects(document: WorkflowDocument) -> tuple[Resource, ...]:
    """Return the effects that are there or may be, newest first: what a rollback has to undo."""
    return tuple(item for item in reversed(document.resources) if item.outcome in OPEN_OUTCOMES)


def secured_head(document: WorkflowDocument) -> str:
    """
    Return the last commit on the workflow's branch that a phase was concluded with, "" when there is none yet.

    What an attempt did that was cut off comes on top of it, so the next one finds it as work of the phase.
    """
    if not document.branch_name:
        return ""
    branch = effect(document, f"branch:{document.branch_name}")

    return str(branch.undo.get("sha") or "") if branch is not None else ""


def phase_commits(document: WorkflowDocument) -> tuple[tuple[str, int, str], ...]:
    """Return phase, attempt and commit of everything recorded that must be on the branch: what no rebase replaced."""
    branch = effect(document, f"branch:{document.branch_name}")
    replaced = branch.undo.get(REPLACED) if branch is not None else None
    gone = set(replaced) if isinstance(replaced, list) else set()

    return tuple(
        (phase.name, attempt.number, attempt.commit)
        for phase in document.phases
        for attempt in phase.attempts
        if attempt.commit and attempt.commit not in gone
    )


def replaced_commits(document: WorkflowDocument) -> JsonObject:
    """Return the fact about the branch that its history was rewritten: no commit recorded so far is on it any more."""
    branch = effect(document, f"branch:{document.branch_name}")
    before = branch.undo.get(REPLACED) if branch is not None else None
    known = [str(sha) for sha in before] if isinstance(before, list) else []

    return {REPLACED: [*known, *(commit for _, _, commit in phase_commits(document))]}


def intend(draft: Draft, *meant: Resource) -> None:
    """Write down that effects are about to be made; one of that key that is over is begun again, as the newest."""
    document = draft.document
    keys = {item.key for item in meant}
    others = [entry for entry in document.resources if entry.key not in keys]
    document.resources = [*others, *meant]
    for item in meant:
        draft.add_event("effect_intended", data={"key": item.key, "kind": item.kind})


def settle(draft: Draft, key: str, outcome: str, facts: JsonObject | None = None) -> None:
    """Record the result of an effect; *facts* are added to what is needed to undo it."""
    document = draft.document
    document.resources = [
        entry.model_copy(update={"outcome": outcome, "undo": {**entry.undo, **(facts or {})}})
        if entry.key == key
        else entry
        for entry in document.resources
    ]
    draft.add_event("effect_settled", data={"key": key, "outcome": outcome, **(facts or {})})


def note(draft: Draft, key: str, facts: JsonObject) -> None:
    """Add to what is known about an effect, without settling its result."""
    draft.document.resources = [
        entry.model_copy(update={"undo": {**entry.undo, **facts}}) if entry.key == key else entry
        for entry in draft.document.resources
    ]


def become(draft: Draft, key: str, *made: Resource) -> None:
    """Put the effects that resulted from the one called *key* in its place: only now their own keys are known."""
    keys = {key, *(item.key for item in made)}
    others = [entry for entry in draft.document.resources if entry.key not in keys]
    draft.document.resources = [*others, *made]
    for item in made:
        draft.add_event("effect_settled", data={"key": item.key, "outcome": item.outcome, **item.undo})


def observe(draft: Draft, seen: Resource) -> None:
    """Write down an effect that somebody else's tool made for us, such as a ref that appeared during a phase."""
    if effect(draft.document, seen.key) is None:
        draft.document.resources = [*draft.document.resources, seen]
        draft.add_event("effect_observed", data={"key": seen.key, "kind": seen.kind})


#: The ledger's key of a workflow's worktree.
WORKTREE = "worktree"
#: The ledger's key and kind of the ref of the remote that has work which is not shipped yet.
WIP, WIP_KIND = "wip", "wip_ref"
#: Fact of a branch: recorded commits that a rebase, or a phase that rewrote the history, put others in the place of.
REPLACED = "replaced"
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


def is_left(effect: Resource) -> bool:
    """Say whether an effect stayed on a host that the work moved away from."""
    return bool(effect.host) and effect.key.endswith(f"{_ON}{effect.host}")


def host_of_work(document: WorkflowDocument) -> str:
    """Return the host where the work is now, "" when there is none yet or the ledger does not say."""
    result = (effect(document, key) for key in (WORKTREE, f"branch:{document.branch_name}"))

    return next((one.host for one in result if one is not None and one.host and _is_open(one)), "")


def branch_of_work(document: WorkflowDocument) -> Resource | None:
    """Return the workflow's own branch where it is, or else where it was last."""
    key = f"branch:{document.branch_name}"
    present = effect(document, key)
    if present is not None and _is_open(present):
        return present
    left = [one for one in document.resources if is_left(one) and one.key == left_key(key, one.place)]

    return left[-1] if left else None


def has_commits(branch: Resource | None) -> bool:
    """Say whether anything was committed on a branch, as far as the ledger knows."""
    sha = branch.undo.get("sha") if branch is not None else None

    return bool(sha) and branch is not None and sha != branch.undo.get("start")


def is_pushed(document: WorkflowDocument) -> bool:
    """Say whether the remote has all that was committed on the workflow's branch; also when that is nothing."""
    branch, remote = (effect(document, f"{kind}:{document.branch_name}") for kind in ("branch", "remote_branch"))
    if branch is None or not branch.undo.get("sha"):
        return False
    if not has_commits(branch):
        return True

    return remote is not None and remote.outcome in MADE and remote.undo.get("sha") == branch.undo["sha"]


def published(document: WorkflowDocument) -> tuple[Published, ...]:
    """Return the refs of the remote that have work of the workflow, the one with its last commit first."""
    branch = branch_of_work(document)
    last = str(branch.undo.get("sha") or "") if branch is not None else ""
    result = []
    for effect in document.resources:
        ref, commits = _remote_ref(document, effect), _commits(effect)
        if ref and commits and _is_open(effect):
            sha = str(effect.undo.get("sha") or "") if effect.outcome in MADE else ""
            result.append(Published(ref=ref, sha=sha, commits=commits))

    return tuple(sorted(result, key=lambda one: (one.sha != last, last not in one.commits)))


def bound_to(document: WorkflowDocument, *, host: str) -> str:
    """Return the only host that can go on with the work when that is not *host*, "" when *host* can."""
    where, branch = host_of_work(document), branch_of_work(document)
    if where in {"", host} or branch is None or not has_commits(branch):
        return ""
    is_there = any(branch.undo.get("sha") == one.sha for one in published(document))

    return "" if is_there else where


def left_on(document: WorkflowDocument, host: str) -> tuple[Resource, ...]:
    """Return what a workflow has on *host* that it will not use again there, the newest first."""
    is_over = document.current_state == WorkflowState.COMPLETED.value

    return tuple(
        one
        for one in reversed(document.resources)
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
    # Of an earlier stay on the same host, which is over: the later entry describes what is there.
    document.resources = list({entry.key: entry for entry in entries}.values())
    document.assign(worktree_path=None)
    data: JsonObject = {"from": former, "to": here, "commit": branch.undo.get("sha") if branch is not None else None}
    draft.add_event("work_moved", data=data)


def _remote_ref(document: WorkflowDocument, effect: Resource) -> str:
    if effect.kind == WIP_KIND:
        return str(effect.undo.get("ref") or "")
    branch = effect.undo.get("branch")

    return f"refs/heads/{branch}" if effect.kind == "remote_branch" and branch == document.branch_name else ""


def _commits(effect: Resource) -> tuple[str, ...]:
    intended = effect.undo.get("intended")
    meant = intended.get("sha") if isinstance(intended, dict) else None

    return tuple(sha for sha in (effect.undo.get("sha"), meant) if isinstance(sha, str) and sha)


def _is_open(effect: Resource) -> bool:
    return effect.outcome in OPEN_OUTCOMES


class Ledger:
    """
    Makes the effects of the workflow that a session works on, so that a crash can neither lose nor double one.

    The intent is durable before anything is done, with all that is needed to find the effect again. After a crash an
    intended effect is looked up first and made only when it is not there. An act whose answer was lost stays intended.
    """

    def __init__(self, session: WorkSession, *, host: str) -> None:
        self._session = session
        self._host = host

    def facts(self, key: str) -> JsonObject | None:
        """Return what is known about an effect that is there, None when it is not."""
        result = effect(self._session.document, key)

        return dict(result.undo) if result is not None and result.outcome in MADE else None

    def make(
        self,
        key: str,
        kind: str,
        *,
        undo: JsonObject,
        find: Callable[[], JsonObject | None],
        act: Callable[[], JsonObject],
        fields: Callable[[JsonObject], JsonObject] = lambda _facts: {},
        also: Sequence[Resource] = (),
    ) -> JsonObject:
        """
        Return the facts of an effect, made unless it is there.

        *undo* is what is needed to find and undo it, known before. *find* looks it up, *act* makes it; both return what
        is then known. *fields* are the document's own fields that follow from that. *also* are the effects that the
        same act makes.
        """
        known = self.facts(key)
        if known is not None:
            return known
        meant = [Resource(key=key, kind=kind, host=self._host or None, undo=undo)]
        meant += [other.changed(host=self._host or None) for other in also if self.facts(other.key) is None]
        self._session.change(lambda draft: intend(draft, *meant))
        result, outcome = find(), "adopted"
        if result is None:
            try:
                result, outcome = act(), "made"
            except (ForgeUnavailable, GitUnreachable, OwnershipError):
                raise  # whether it was done is not known: it stays intended, and the next attempt looks it up
            except AdwError as exc:
                self._fail(meant, str(exc))
                raise
        facts: JsonObject = {**undo, **result}

        def record(draft: Draft) -> None:
            settle(draft, key, outcome, facts)
            for other in meant[1:]:
                settle(draft, other.key, outcome)
            draft.document.assign(**fields(facts))

        self._session.change(record)

        return facts

    def _fail(self, meant: Sequence[Resource], why: str) -> None:
        def record(draft: Draft) -> None:
            for one in meant:
                settle(draft, one.key, "failed", {"error": why})

        self._session.change(record)

    def change(
        self, key: str, *, intended: JsonObject, act: Callable[[], JsonObject], find: Callable[[], JsonObject | None]
    ) -> JsonObject:
        """
        Return the facts of an effect that is there, changed to what is *intended* unless it is that already.

        What it was stays known until the change is over: after a crash it is one or the other, and both are ours.
        """
        self._session.change(lambda draft: note(draft, key, {"intended": intended}))
        facts = find()
        if facts is None:
            facts = act()
        settled: JsonObject = {**intended, **facts, "intended": None}
        self.note(key, settled)

        return settled

    def note(self, key: str, facts: JsonObject) -> None:
        """Add to what is known about an effect."""
        self._session.change(lambda draft: note(draft, key, facts))

    def mark_merged(self) -> None:
        """Write down that the pull request is merged: from here on nothing is rolled back."""
        self._session.change(lambda draft: draft.machine.mark_merged())

    def warn(self, warning: str) -> None:
        """Write down something that went otherwise than asked for and does not keep the work from being done."""

        def rule(draft: Draft) -> None:
            if warning not in draft.document.warnings:
                draft.document.warnings = [*draft.document.warnings, warning]

        self._session.change(rule)

    def set_fields(self, **fields: JsonValue) -> None:
        """Set fields of the document that say where an effect is."""
        self._session.change(lambda draft: draft.document.assign(**fields))

    def undone(self, key: str, outcome: str = "undone", facts: JsonObject | None = None) -> None:
        """Write down that an effect is not there any more, or is kept on request."""
        self._session.change(lambda draft: settle(draft, key, outcome, facts))
