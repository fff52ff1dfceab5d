"""
What a rollback does: a plan from the ledger and from what is there, step by step, in the one order that is safe.

Pure. The plan is written into the document before anything is undone, and each step before and after it is made; so a
rollback that was cut off is planned again from there, and what is over is not done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from adws.adw_modules.document import Mark
from adws.adw_modules.effects import FORGOTTEN, LOCAL_KINDS, WIP_KIND, host_of_work, left_key, name_of, open_effects
from adws.adw_modules.git.git import salvage_ref
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import OwnerRecord

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


#: The order in which kinds of things are undone; within a kind the newest comes first.
ORDER: tuple[str, ...] = (
    "process",
    "salvage",
    "pull_request",
    "remote_branch",
    WIP_KIND,
    "worktree",
    "branch",
    "other",
    "port",
    "directory",
    "label",
    "comment",
    "lock",
    "state",
)
#: kind -> kinds that have to be over first; else it waits, because undoing it could lose or touch something.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "remote_branch": ("pull_request",),
    "worktree": ("process", "salvage"),
    "branch": ("salvage", "worktree"),
    "directory": ("process",),
    "comment": tuple(kind for kind in ORDER if kind not in {"comment", "lock", "state"}),
}
#: What is left of a step that is over: nothing, nothing of ours, what was asked to be kept, what is not ours, what is
#: on a host that was given up.
OVER = frozenset({"done", "gone", "kept", "left", FORGOTTEN})
#: Status of a step that is over -> what the ledger says of its effects.
OUTCOME_OF: Mapping[str, str] = {
    "done": "undone",
    "gone": "gone",
    "kept": "kept",
    "left": "kept",
    FORGOTTEN: FORGOTTEN,
}
#: Directories that older tools made beside the repository's files; the id follows.
EXTERNAL_PREFIXES = ("adw_test_external_", "adw_build_external_")
#: Status of attempts that may have left processes: those that ended in good order have ended theirs.
DOUBTFUL = frozenset({"running", "interrupted"})
#: The ledger's names of the comments that a rollback itself writes.
CLOSING_COMMENT = "comment:rollback-closes-pull-request"
SUMMARY_COMMENT = "comment:rollback-summary"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One thing that a rollback does, and its result."""

    key: str  #: unique in the rollback: that of the effect, or the kind for what is no effect
    kind: str  #: one of ORDER
    what: str  #: for people: what is done to what
    status: str = "planned"  #: planned | doing | done | gone | kept | left | forgotten | blocked
    detail: str = ""  #: the result, or why not
    host: str = ""  #: the machine it has to be done on, "" for any
    effects: tuple[str, ...] = ()  #: keys in the ledger that are settled by it
    facts: JsonObject = field(default_factory=dict)  #: what is needed to do it, and what was learnt

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do about it."""
        return self.status in OVER

    def to_json(self) -> JsonObject:
        """Return the step as it stands in the document."""
        return {
            "key": self.key,
            "kind": self.kind,
            "what": self.what,
            "status": self.status,
            "detail": self.detail,
            "host": self.host,
            "effects": list(self.effects),
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Step | None:
        """Return the step that `to_json` wrote, None when *data* is not one."""
        texts = [data.get(name) for name in ("key", "kind", "what", "status")]
        kinds, known, facts = data.get("kind"), data.get("effects"), data.get("facts")
        if not all(isinstance(text, str) for text in texts) or kinds not in ORDER:
            return None

        return cls(
            key=str(data["key"]),
            kind=str(data["kind"]),
            what=str(data["what"]),
            status=str(data["status"]),
            detail=str(data.get("detail") or ""),
            host=str(data.get("host") or ""),
            effects=tuple(map(str, known)) if isinstance(known, list) else (),
            facts=dict(facts) if isinstance(facts, dict) else {},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackOptions:
    """What the person who rolls back asked for."""

    reason: str
    keep_branch: bool = False  #: the branch stays, here and at the remote
    force: bool = False  #: go on although uncommitted work could not be salvaged
    forget_hosts: tuple[str, ...] = ()  #: machines that are gone for good: what is there is not undone
    by: str = ""  #: who asks
    mark: Mark | None = None  #: the same for the history, from an interface that records it


# --- the plan --------------------------------------------------------------------------------------------------


def plan_rollback(
    document: WorkflowDocument,
    *,
    wishes: RollbackOptions,
    external: Sequence[str] = (),
    has_forge: bool = True,
    host: str = "",
) -> tuple[Step, ...]:
    """
    Return every step, those that are over included, in the order they are made.

    *external* are the directories found beside the repository's files on this machine, *host*. What an earlier rollback
    finished stays finished; what it left half done is planned again.
    """
    made = [
        *_fixed_steps(document, has_forge=has_forge),
        *_host_steps(document),
        *_effect_steps(document),
        *_external_steps(external, host),
    ]
    before = {step.key: step for step in recorded_steps(document)}
    planned = {step.key: step for step in made}
    steps = [_continued(before.get(key), step, wishes) for key, step in planned.items()]
    # What is beside the files of another machine cannot be seen from here.
    kept_on = [
        step for key, step in before.items() if key not in planned and (step.is_over or _is_of_other(step, host))
    ]
    steps += [_continued(None, step, wishes) if not step.is_over else step for step in kept_on]
    place = {key: number for number, key in enumerate(planned)}

    return tuple(sorted(steps, key=lambda step: (ORDER.index(step.kind), place.get(step.key, len(place)))))


def recorded_steps(document: WorkflowDocument) -> tuple[Step, ...]:
    """Return the steps that the document has of a rollback that was begun."""
    record = document.rollback
    result = map(Step.from_json, record.steps) if record is not None else ()

    return tuple(step for step in result if step is not None)


def _continued(before: Step | None, planned: Step, wishes: RollbackOptions) -> Step:
    step = planned
    if before is not None and before.is_over:
        return before
    if before is not None:
        step = replace(planned, facts={**planned.facts, **before.facts})
    if step.host and step.host in wishes.forget_hosts:
        given_up = f"{step.host} was given up by {wishes.by or 'a person'}: {wishes.reason}"
        return replace(step, status=FORGOTTEN, detail=given_up)
    maker = step.facts.get("made_by")
    if isinstance(maker, str) and maker:
        return replace(step, status="kept", detail=f"workflow {maker} made it")
    if wishes.keep_branch and step.kind in {"branch", "remote_branch"}:
        return replace(step, status="kept", detail="kept on request")

    return step


def _fixed_steps(document: WorkflowDocument, *, has_forge: bool) -> list[Step]:
    steps: list[Step] = []
    ports, reserved = _ports(document), _keys(document, "port")
    if ports or reserved:
        what = f"free the ports {', '.join(map(str, ports))}" if ports else "free its ports"
        steps.append(Step(key="ports", kind="port", what=what, effects=reserved, facts={"ports": list(ports)}))
    comments = _keys(document, "comment")
    if has_forge and (document.issue_number is not None or comments):
        where = f"issue #{document.issue_number}" if document.issue_number is not None else "its pull request"
        what = f"say on {where} that it was rolled back"
        steps.append(Step(key="comment", kind="comment", what=what, effects=comments))
    if document.issue_number is not None:
        steps.append(Step(key="lock", kind="lock", what=f"free issue #{document.issue_number}"))

    return [*steps, Step(key="state", kind="state", what="mark the workflow rolled back")]


def _host_steps(document: WorkflowDocument) -> list[Step]:
    """Return what is done on each machine that has something of the workflow: end its processes, keep its work."""
    here = host_of_work(document)
    local = {effect.host for effect in open_effects(document) if effect.kind in LOCAL_KINDS}
    keep = f"keep its commits as {salvage_ref(document.adw_id)} and uncommitted work as a patch"
    hosts = [here, *sorted({*local, *_process_hosts(document)} - {here, ""})]

    return [
        step
        for number, host in enumerate(hosts)
        for step in (
            Step(
                key=left_key("processes", host) if number else "processes",
                kind="process",
                what=_on("end the processes it started", host if number else ""),
                host=host,
                effects=_keys(document, "process", but=frozenset(hosts) - {host} if number else frozenset(hosts[1:])),
            ),
            Step(
                key=left_key("salvage", host) if number else "salvage",
                kind="salvage",
                what=_on(keep, host if number else ""),
                host=host,
            ),
        )
    ]


def _on(what: str, host: str) -> str:
    return f"{what} on {host}" if host else what


def _process_hosts(document: WorkflowDocument) -> set[str]:
    """Return the machines that may still have processes of attempts that were cut off."""
    attempts = [attempt for record in document.phases for attempt in record.attempts]
    doubtful = [attempt.process for attempt in attempts if attempt.status in DOUBTFUL and attempt.process]
    recorded = [*doubtful, *(effect.undo for effect in open_effects(document) if effect.kind == "process")]

    return {process_host(record) for record in recorded} - {""}


def process_host(record: Mapping[str, JsonValue]) -> str:
    """Return the machine that a recorded process is on, "" when the record does not say."""
    text = record.get("identity")
    identity = OwnerRecord.from_text(text) if isinstance(text, str) else None

    return identity.host if identity is not None else ""


def _effect_steps(document: WorkflowDocument) -> list[Step]:
    result = (effect for effect in open_effects(document) if effect.kind not in _TOGETHER)

    return [
        Step(
            key=effect.key,
            kind=effect.kind if effect.kind in _VERBS else "other",
            what=_VERBS.get(effect.kind, f"undo the {effect.kind} {{}}").format(name_of(effect)),
            host=effect.host if effect.kind in LOCAL_KINDS else "",
            effects=(effect.key,),
            facts={**effect.undo, "outcome": effect.outcome},
        )
        for effect in result
    ]


def _external_steps(paths: Iterable[str], host: str) -> list[Step]:
    return [
        Step(
            key=f"external:{path}",
            kind="directory",
            what=f"remove the directory {path}",
            host=host,
            facts={"path": path},
        )
        for path in paths
    ]


def _is_of_other(step: Step, host: str) -> bool:
    return step.key.startswith("external:") and step.host not in {"", host}


#: Kinds that are undone by one step, however many there are.
_TOGETHER = frozenset({"process", "port", "comment"})
_VERBS: Mapping[str, str] = {
    "pull_request": "close pull request {}",
    "remote_branch": "delete the remote branch {}",
    WIP_KIND: "delete the ref {} of the remote",
    "worktree": "remove the worktree {}",
    "branch": "delete the branch {}",
    "directory": "remove the directory {}",
    "label": "take the label {} off",
}


def _keys(document: WorkflowDocument, kind: str, *, but: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the keys of the open effects of a kind, those of some machines left out."""
    result = (effect for effect in reversed(open_effects(document)) if effect.kind == kind)

    return tuple(effect.key for effect in result if effect.host not in but)


def _ports(document: WorkflowDocument) -> tuple[int, ...]:
    result = (effect.undo.get("port") for effect in open_effects(document) if effect.kind == "port")
    recorded = [document.backend_port, document.frontend_port, *result]

    return tuple(sorted({port for port in recorded if isinstance(port, int)}))


def external_names(adw_id: str) -> tuple[str, ...]:
    """Return the names of directories that older tools made beside the repository's files."""
    return tuple(f"{prefix}{adw_id}" for prefix in EXTERNAL_PREFIXES)


# --- how it goes on --------------------------------------------------------------------------------------------


def outcome_of(step: Step) -> str:
    """Return what the ledger says of the effects of a step that is over; comments are never taken back."""
    return "kept" if step.kind == "comment" else OUTCOME_OF[step.status]


def waits_for(step: Step, steps: Iterable[Step]) -> str:
    """Return what has to be over before *step*, as text, "" for nothing; a waiting step is named without its reason."""
    needed, steps = NEEDS.get(step.kind, ()), tuple(steps)
    blocking = [
        other for other in steps if other.kind in needed and not other.is_over and _is_in_the_way(other, of=step)
    ]

    has_reason = [bool(other.detail) and not waits_for(other, steps) for other in blocking]

    return ", ".join(
        f"{other.what} ({other.detail})" if is_own else other.what
        for other, is_own in zip(blocking, has_reason, strict=True)
    )


def _is_in_the_way(other: Step, *, of: Step) -> bool:
    """Say whether what is not over there matters: two machines need not wait for each other."""
    return not other.host or not of.host or other.host == of.host


def hosts_waited_for(steps: Iterable[Step], *, host: str) -> tuple[str, ...]:
    """Return the machines other than *host* that have to do something before the rollback is over."""
    return tuple(sorted({step.host for step in steps if not step.is_over and step.host not in {"", host}}))


def blocked_by(steps: Iterable[Step]) -> list[str]:
    """Return what is not undone yet and why, for `document.rollback.blocked_by`."""
    return [f"{step.what}: {step.detail}" for step in steps if step.status == "blocked"]


def kept(steps: Iterable[Step]) -> list[str]:
    """Return what is left when the rollback is over, and why: on request, for safety, or because it is not ours."""
    lines = []
    for step in steps:
        if step.status in {"kept", "left"}:
            lines.append(f"not done: {step.what}: {step.detail}")
        elif step.status == FORGOTTEN:
            what = step.what.removesuffix(_on("", step.host))
            lines.append(f"left on {step.host}: {what}: {step.detail}")
        elif step.kind == "salvage" and step.status == "done":
            lines.append(step.detail)
        elif step.kind == "worktree" and step.status == "done" and step.detail:
            lines.append(f"{step.what}: {step.detail}")

    return lines


def left(steps: Iterable[Step]) -> list[str]:
    """Return what is there although a rollback is over, and was not asked to be kept or to be given up."""
    return kept(step for step in steps if step.status == "left")


# What people are told of a rollback: its plan, and the comments that it leaves.
#
# Pure.


_MARKS = {"doing": "cut off, again"}


def plan_lines(steps: Iterable[Step], *, will: str = "will: ") -> list[str]:
    """Return the plan for people, one line for each step; *will* begins those that are to be done."""
    return [f"{_mark(step, will)}{step.what}{_because(step)}" for step in steps]


def summary_text(adw_id: str, reason: str, steps: Sequence[Step]) -> str:
    """Return the comment about a rollback, without its marker."""
    done = [f"- {step.what}{_because(step)}" for step in steps if step.status == "done" and step.kind != "salvage"]
    left = [f"- {line}" for line in kept(steps)]
    parts = [f"Workflow {adw_id} was rolled back.", f"**Reason:** {reason}"]
    if done:
        parts.append("\n".join(["**Undone:**", *done]))
    if left:
        parts.append("\n".join(["**Left:**", *left]))

    return "\n\n".join(parts)


def closing_text(adw_id: str, reason: str) -> str:
    """Return the comment that a pull request is closed with, without its marker."""
    return f"Closed because workflow {adw_id} was rolled back: {reason}"


def _mark(step: Step, will: str) -> str:
    return will if step.status == "planned" else f"{_MARKS.get(step.status, step.status)}: "


def _because(step: Step) -> str:
    return f" ({step.detail})" if step.detail else ""
