"""
The ledger of external effects in a document: read it, make effects through it, and find the host of the work.

Everything except `Ledger` is pure. The worktree and branch on the host where the work is now have plain keys. Effects
left on a host that the work moved away from keep their entries, under keys that name that host. Work can move if
nothing was committed yet, or if its last commit is on the remote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from adws.adw_modules.document import Draft, Resource
from adws.adw_modules.errors import AdwError, ForgeUnavailable, GitUnreachable, OwnershipError
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.state_machine import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.engine.attempt import WorkSession


# --- reading the facts of an effect ----------------------------------------------------------------------------
#
# Documents of older versions use other keys for the same facts; the functions below accept all of them.


def name_of(effect: Effect) -> str:
    """Return the name of an effect as shown to people."""
    if effect.kind == "pull_request":
        number = number_of(effect.undo)
        return f"#{number}" if number is not None else f"of {branch_of(effect.undo) or effect.key}"

    named = path_of(effect.undo) or branch_of(effect.undo) or effect.undo.get("label") or effect.undo.get("ref")

    return str(named or effect.key)


def path_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the path of a worktree or directory, or "" if it is not recorded."""
    return _text(facts, "path", "worktree_path")


def branch_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the name of a branch."""
    return _text(facts, "branch", "branch_name", "head")


def commit_of(facts: Mapping[str, JsonValue]) -> str:
    """Return the commit that adw last put on the branch or ref, or "" if none is recorded."""
    return _text(facts, "sha", "commit", "head_sha")


def number_of(facts: Mapping[str, JsonValue]) -> int | None:
    """Return the number of an issue or pull request."""
    result = (facts.get(name) for name in ("pr_number", "number"))

    return next((number for number in result if isinstance(number, int)), None)


def _text(facts: Mapping[str, JsonValue], *names: str) -> str:
    result = (facts.get(name) for name in names)

    return next((text for text in result if isinstance(text, str) and text), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """An effect on the outside world, as recorded in the ledger."""

    key: str  #: unique in the workflow, such as worktree, branch:<name>, pull_request, port:9100
    #: worktree | branch | remote_branch | wip_ref | pull_request | comment | label | port | process | directory
    kind: str
    outcome: str = "intended"  #: intended | made | adopted | observed | failed | undone | kept | gone | forgotten
    host: str = ""
    undo: JsonObject = field(default_factory=dict)  #: what is needed to find and undo it


#: Outcomes of effects that exist or may exist.
OPEN_OUTCOMES: Sequence[str] = ("intended", "made", "adopted", "observed")


#: Outcomes of effects that certainly exist, as far as the ledger knows.
MADE = frozenset({"made", "adopted", "observed"})


def effects(document: WorkflowDocument) -> tuple[Effect, ...]:
    """Return every effect of a workflow, oldest first."""
    return tuple(_effect(entry) for entry in document.resources)


def effect(document: WorkflowDocument, key: str) -> Effect | None:
    """Return the effect with the key *key*, or None."""
    return next((_effect(entry) for entry in document.resources if entry.key == key), None)


def open_effects(document: WorkflowDocument) -> tuple[Effect, ...]:
    """Return the effects that exist or may exist, newest first: those a rollback has to undo."""
    return tuple(item for item in reversed(effects(document)) if item.outcome in OPEN_OUTCOMES)


def secured_head(document: WorkflowDocument) -> str:
    """
    Return the last commit on the workflow's branch that was recorded when a phase ended, or "" without one.

    Work of an interrupted attempt comes on top of this commit, so the next attempt treats it as work of its phase.
    """
    if not document.branch_name:
        return ""
    branch = effect(document, f"branch:{document.branch_name}")

    return str(branch.undo.get("sha") or "") if branch is not None else ""


def phase_commits(document: WorkflowDocument) -> tuple[tuple[str, int, str], ...]:
    """Return phase, attempt and commit of each recorded commit that must be on the branch: no rebase replaced it."""
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
    """Return the branch fact, recorded after a history rewrite, that marks all recorded commits as replaced."""
    branch = effect(document, f"branch:{document.branch_name}")
    before = branch.undo.get(REPLACED) if branch is not None else None
    known = [str(sha) for sha in before] if isinstance(before, list) else []

    return {REPLACED: [*known, *(commit for _, _, commit in phase_commits(document))]}


def intend(draft: Draft, *meant: Effect) -> None:
    """Record that effects are about to be made. A new, newest entry replaces an older one with the same key."""
    document = draft.document
    keys = {item.key for item in meant}
    others = [entry for entry in document.resources if entry.key not in keys]
    document.resources = [*others, *map(_resource, meant)]
    for item in meant:
        draft.add_event("effect_intended", data={"key": item.key, "kind": item.kind})


def settle(draft: Draft, key: str, outcome: str, facts: JsonObject | None = None) -> None:
    """Record the outcome of an effect, and add *facts* to the data needed to undo it."""
    document = draft.document
    document.resources = [
        entry.model_copy(update={"outcome": outcome, "undo": {**entry.undo, **(facts or {})}})
        if entry.key == key
        else entry
        for entry in document.resources
    ]
    draft.add_event("effect_settled", data={"key": key, "outcome": outcome, **(facts or {})})


def note(draft: Draft, key: str, facts: JsonObject) -> None:
    """Add facts about an effect without recording an outcome."""
    draft.document.resources = [
        entry.model_copy(update={"undo": {**entry.undo, **facts}}) if entry.key == key else entry
        for entry in draft.document.resources
    ]


def become(draft: Draft, key: str, *made: Effect) -> None:
    """Replace the effect *key* by the effects it resulted in, whose own keys are known only now."""
    keys = {key, *(item.key for item in made)}
    others = [entry for entry in draft.document.resources if entry.key not in keys]
    draft.document.resources = [*others, *map(_resource, made)]
    for item in made:
        draft.add_event("effect_settled", data={"key": item.key, "outcome": item.outcome, **item.undo})


def observe(draft: Draft, seen: Effect) -> None:
    """Record an effect that another tool made for the workflow, such as a ref that appeared during a phase."""
    if effect(draft.document, seen.key) is None:
        draft.document.resources = [*draft.document.resources, _resource(seen)]
        draft.add_event("effect_observed", data={"key": seen.key, "kind": seen.kind})


def _effect(entry: Resource) -> Effect:
    return Effect(key=entry.key, kind=entry.kind, outcome=entry.outcome, host=entry.host or "", undo=dict(entry.undo))


def _resource(meant: Effect) -> Resource:
    return Resource(
        key=meant.key, kind=meant.kind, outcome=meant.outcome, host=meant.host or None, undo=dict(meant.undo)
    )


#: Ledger key of a workflow's worktree.
WORKTREE = "worktree"
#: Ledger key and kind of the remote ref that holds work not shipped yet.
WIP, WIP_KIND = "wip", "wip_ref"
#: Fact of a branch: recorded commits that were replaced by a rebase or by a phase that rewrote the history.
REPLACED = "replaced"
#: Kinds of effects that exist on one machine, and can be checked and undone only there.
LOCAL_KINDS = frozenset({"worktree", "branch", "ref", "directory"})
#: Outcome of effects on a host that was abandoned for good.
FORGOTTEN = "forgotten"
#: Separates the key of an effect from the host it was left on; no ref name contains a space.
_ON = " on "


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A remote ref that holds work of a workflow."""

    ref: str
    sha: str  #: the commit the ref points to according to the ledger, or "" if the ref may not exist
    commits: tuple[str, ...]  #: the commits it may point to: the last one adw pushed, and the one it was about to push


def wip_ref(adw_id: str) -> str:
    """Return the remote ref that holds the work of a workflow until it is shipped."""
    return f"refs/adw/wip/{adw_id}"


def left_key(key: str, host: str) -> str:
    """Return the key of an effect that stayed on *host* when the work moved away."""
    return f"{key}{_ON}{host}"


def is_left(effect: Effect) -> bool:
    """Say whether an effect stayed on a host that the work moved away from."""
    return bool(effect.host) and effect.key.endswith(f"{_ON}{effect.host}")


def host_of_work(document: WorkflowDocument) -> str:
    """Return the host where the work is now, or "" if there is none yet or the ledger does not say."""
    result = (effect(document, key) for key in (WORKTREE, f"branch:{document.branch_name}"))

    return next((one.host for one in result if one is not None and one.host and _is_open(one)), "")


def branch_of_work(document: WorkflowDocument) -> Effect | None:
    """Return the workflow's own branch where the work is now, else the last one left on another host, else None."""
    key = f"branch:{document.branch_name}"
    present = effect(document, key)
    if present is not None and _is_open(present):
        return present
    left = [one for one in effects(document) if is_left(one) and one.key == left_key(key, one.host)]

    return left[-1] if left else None


def has_commits(branch: Effect | None) -> bool:
    """Say whether anything was committed on a branch, as far as the ledger knows."""
    sha = branch.undo.get("sha") if branch is not None else None

    return bool(sha) and branch is not None and sha != branch.undo.get("start")


def is_pushed(document: WorkflowDocument) -> bool:
    """Say whether the remote has every commit on the workflow's branch; True if nothing was committed."""
    branch, remote = (effect(document, f"{kind}:{document.branch_name}") for kind in ("branch", "remote_branch"))
    if branch is None or not branch.undo.get("sha"):
        return False
    if not has_commits(branch):
        return True

    return remote is not None and remote.outcome in MADE and remote.undo.get("sha") == branch.undo["sha"]


def published(document: WorkflowDocument) -> tuple[Published, ...]:
    """Return the remote refs that hold work of the workflow, the one with its last commit first."""
    branch = branch_of_work(document)
    last = str(branch.undo.get("sha") or "") if branch is not None else ""
    result = []
    for effect in effects(document):
        ref, commits = _remote_ref(document, effect), _commits(effect)
        if ref and commits and _is_open(effect):
            sha = str(effect.undo.get("sha") or "") if effect.outcome in MADE else ""
            result.append(Published(ref=ref, sha=sha, commits=commits))

    return tuple(sorted(result, key=lambda one: (one.sha != last, last not in one.commits)))


def bound_to(document: WorkflowDocument, *, host: str) -> str:
    """Return the only host that can continue the work if that is not *host*, or "" if *host* can."""
    where, branch = host_of_work(document), branch_of_work(document)
    if where in {"", host} or branch is None or not has_commits(branch):
        return ""
    is_there = any(branch.undo.get("sha") == one.sha for one in published(document))

    return "" if is_there else where


def left_on(document: WorkflowDocument, host: str) -> tuple[Effect, ...]:
    """Return what a workflow has on *host* and will not use again there, newest first."""
    is_over = document.current_state == WorkflowState.COMPLETED.value

    return tuple(
        one
        for one in reversed(effects(document))
        if one.host == host
        and one.kind in LOCAL_KINDS
        and (one.outcome == FORGOTTEN or (_is_open(one) and (is_left(one) or (is_over and one.kind == WORKTREE))))
    )


def move(draft: Draft, *, here: str) -> None:
    """Mark what exists on other hosts as left there, so that *here* can have its own worktree and branch."""
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
    # An entry of an earlier stay on the same host is outdated: the later entry describes what exists there.
    document.resources = list({entry.key: entry for entry in entries}.values())
    document.assign(worktree_path=None)
    data: JsonObject = {"from": former, "to": here, "commit": branch.undo.get("sha") if branch is not None else None}
    draft.add_event("work_moved", data=data)


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


class Ledger:
    """
    Makes the external effects of the workflow in a session so that a crash can neither lose nor duplicate one.

    The intent is durable before anything is done, with all that is needed to find the effect again. After a crash, an
    intended effect is looked up first and made only if it does not exist. If an act's answer is lost, the effect stays
    intended.
    """

    def __init__(self, session: WorkSession, *, host: str) -> None:
        self._session = session
        self._host = host

    def facts(self, key: str) -> JsonObject | None:
        """Return the facts of an existing effect, or None if it does not exist."""
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
        also: Sequence[Effect] = (),
    ) -> JsonObject:
        """
        Return the facts of an effect, making it unless it exists.

        *undo* holds what is needed to find and undo the effect, known beforehand. *find* looks the effect up and *act*
        makes it; both return the facts known then. *fields* derives document fields from those facts. *also* lists
        other effects that the same act makes.
        """
        known = self.facts(key)
        if known is not None:
            return known
        meant = [Effect(key=key, kind=kind, host=self._host, undo=undo)]
        meant += [replace(other, host=self._host) for other in also if self.facts(other.key) is None]
        self._session.change(lambda draft: intend(draft, *meant))
        result, outcome = find(), "adopted"
        if result is None:
            try:
                result, outcome = act(), "made"
            except (ForgeUnavailable, GitUnreachable, OwnershipError):
                raise  # the result is unknown: the effect stays intended, and the next attempt looks it up
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

    def _fail(self, meant: Sequence[Effect], why: str) -> None:
        def record(draft: Draft) -> None:
            for one in meant:
                settle(draft, one.key, "failed", {"error": why})

        self._session.change(record)

    def push(
        self, key: str, kind: str, *, undo: JsonObject, head: str, there: str | None, act: Callable[[], None]
    ) -> None:
        """
        Have the commit *head* on the remote, where *there* is now (None: nothing); *act* pushes it unless it is there.

        The old commit stays recorded until the push is done: after a crash the remote has the old or the new one.
        """
        intended: JsonObject = {"sha": head}
        pushed: JsonObject = {"sha": head, "intended": None}

        def acted() -> JsonObject:
            act()
            return pushed

        if self.facts(key) is None:
            meant: JsonObject = {**undo, "sha": there or "", "intended": intended}
            self.make(key, kind, undo=meant, find=lambda: pushed if there == head else None, act=acted)
            return
        self.note(key, {"intended": intended})
        if there != head:
            act()
        self.note(key, pushed)

    def note(self, key: str, facts: JsonObject) -> None:
        """Add facts about an effect."""
        self._session.change(lambda draft: note(draft, key, facts))

    def mark_merged(self) -> None:
        """Record that the pull request is merged; from now on nothing is rolled back."""
        self._session.change(lambda draft: draft.machine.mark_merged())

    def warn(self, warning: str) -> None:
        """Record a warning: something differed from what was asked for, but the work can proceed."""

        def rule(draft: Draft) -> None:
            if warning not in draft.document.warnings:
                draft.document.warnings = [*draft.document.warnings, warning]

        self._session.change(rule)

    def set_fields(self, **fields: JsonValue) -> None:
        """Set document fields that say where an effect is."""
        self._session.change(lambda draft: draft.document.assign(**fields))

    def undone(self, key: str, outcome: str = "undone", facts: JsonObject | None = None) -> None:
        """Record that an effect no longer exists, or is kept on request."""
        self._session.change(lambda draft: settle(draft, key, outcome, facts))
