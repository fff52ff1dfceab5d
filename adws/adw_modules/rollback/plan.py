"""
Planning a rollback from the ledger and the disk: steps in the only safe order.

Pure. The plan is written into the document before anything is undone, and each step before and after it is done. An
interrupted rollback is therefore planned again from there, and finished steps are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from adws.adw_modules.document import Mark
from adws.adw_modules.effects import FORGOTTEN, LOCAL_KINDS, WIP_KIND, host_of_work, left_key, name_of, open_effects
from adws.adw_modules.git.git import salvage_ref
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import OwnerRecord

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.queue.model import Run


#: The order in which kinds of effects are undone; within a kind the newest comes first.
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
#: kind -> kinds to be finished first, because undoing it earlier could lose or touch something.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "remote_branch": ("pull_request",),
    "worktree": ("process", "salvage"),
    "branch": ("salvage", "worktree"),
    "directory": ("process",),
    "comment": tuple(kind for kind in ORDER if kind not in {"comment", "lock", "state"}),
}
#: The steps done by the last write: releasing the issue and marking the workflow rolled back.
LAST_WRITE = frozenset({"lock", "state"})
#: Statuses of finished steps: undone, found gone, kept on request, not ours, on a host declared lost.
OVER = frozenset({"done", "gone", "kept", "left", FORGOTTEN})
#: Statuses of attempts that may have left processes; attempts that ended in order have ended theirs.
DOUBTFUL = frozenset({"running", "interrupted"})
#: Kinds that one step undoes, however many effects there are.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a rollback, and its result."""

    key: str  #: unique in the rollback: the key of the effect, or the kind if the step has no effect
    kind: str  #: one of ORDER
    what: str  #: the action, for people
    status: str = "planned"  #: planned | doing | done | gone | kept | left | forgotten | blocked
    detail: str = ""  #: the result, or why it was not done
    host: str = ""  #: the machine that has to do it; "" for any
    effects: tuple[str, ...] = ()  #: keys of the effects in the ledger that it settles
    facts: JsonObject = field(default_factory=dict)  #: input of the step, and what it found out for later steps

    @property
    def is_over(self) -> bool:
        """Whether the step is finished."""
        return self.status in OVER

    @property
    def outcome(self) -> str:
        """The outcome of its effects in the ledger when it is finished; comments are never deleted."""
        if self.kind == "comment" or self.status in {"kept", "left"}:
            return "kept"

        return "undone" if self.status == "done" else self.status

    def ended(self, status: str, detail: str = "", **facts: JsonValue) -> Step:
        """Return the step with its result, and the *facts* that doing it found out."""
        return replace(self, status=status, detail=detail, facts={**self.facts, **facts})

    def to_json(self) -> JsonObject:
        """Return the step as it is stored in the document."""
        return {**asdict(self), "effects": list(self.effects)}

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Step | None:
        """Return the step that `to_json` wrote, or None if *data* is not one."""
        texts = {name: data.get(name) for name in ("key", "kind", "what", "status")}
        if not all(isinstance(text, str) for text in texts.values()) or texts["kind"] not in ORDER:
            return None
        effects, facts = data.get("effects"), data.get("facts")

        return cls(
            **{name: str(text) for name, text in texts.items()},
            detail=str(data.get("detail") or ""),
            host=str(data.get("host") or ""),
            effects=tuple(map(str, effects)) if isinstance(effects, list) else (),
            facts=dict(facts) if isinstance(facts, dict) else {},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackOptions:
    """Options of a rollback, set by the person who requested it."""

    reason: str
    keep_branch: bool = False  #: keep the branch, here and at the remote
    force: bool = False  #: continue although uncommitted work could not be salvaged
    forget_hosts: tuple[str, ...] = ()  #: lost machines: what is on them is not undone
    by: str = ""  #: the requester
    mark: Mark | None = None  #: the requester for the history, from an interface that records it

    def to_payload(self) -> JsonObject:
        """Return the options as the payload of a run."""
        payload: JsonObject = {
            "reason": self.reason,
            "keep_branch": self.keep_branch,
            "force": self.force,
            "forget_hosts": list(self.forget_hosts),
            "by": self.by,
        }

        return payload if self.mark is None else {**payload, "mark": self.mark.to_json()}

    @classmethod
    def of_run(cls, run: Run) -> RollbackOptions:
        """Return the options of a queued rollback."""
        hosts = run.payload.get("forget_hosts")

        return cls(
            reason=str(run.payload.get("reason") or "") or f"rolled back by {run.asked_by or 'a worker'}",
            keep_branch=run.payload.get("keep_branch") is True,
            force=run.payload.get("force") is True,
            forget_hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
            by=str(run.payload.get("by") or run.asked_by),
            mark=Mark.from_json(run.payload.get("mark")),
        )


# --- the plan --------------------------------------------------------------------------------------------------


def plan_rollback(
    document: WorkflowDocument,
    options: RollbackOptions,
    *,
    external: Sequence[str] = (),
    has_forge: bool = True,
    host: str = "",
) -> tuple[Step, ...]:
    """
    Return every step, finished ones included, in the order they are done.

    *external* are the directories found beside the repository's files on this machine, *host*. Steps that an earlier
    rollback finished stay finished; unfinished ones are planned again.
    """
    made = [*_host_steps(document), *_fixed_steps(document, has_forge=has_forge)]
    for effect in open_effects(document):
        if effect.kind not in _TOGETHER:
            step = Step(
                key=effect.key,
                kind=effect.kind if effect.kind in _VERBS else "other",
                what=_VERBS.get(effect.kind, f"undo the {effect.kind} {{}}").format(name_of(effect)),
                host=effect.place if effect.kind in LOCAL_KINDS else "",
                effects=(effect.key,),
                facts={**effect.undo, "outcome": effect.outcome},
            )
            made.append(step)
    for path in external:
        what = f"remove the directory {path}"
        made.append(Step(key=f"external:{path}", kind="directory", what=what, host=host, facts={"path": path}))
    planned = {step.key: step for step in made}
    earlier = {step.key: step for step in recorded_steps(document)}
    for key, step in earlier.items():
        # Directories beside the files of another machine are not visible here.
        is_elsewhere = key.startswith("external:") and step.host not in {"", host}
        if key not in planned and (step.is_over or is_elsewhere):
            planned[key] = step
    steps = [_continued(earlier.get(key), step, options) for key, step in planned.items()]

    return tuple(sorted(steps, key=lambda step: ORDER.index(step.kind)))


def recorded_steps(document: WorkflowDocument) -> tuple[Step, ...]:
    """Return the steps of a rollback that are recorded in the document."""
    steps = map(Step.from_json, document.rollback.steps) if document.rollback is not None else ()

    return tuple(step for step in steps if step is not None)


def _continued(earlier: Step | None, planned: Step, options: RollbackOptions) -> Step:
    """Return *planned* with the result of an earlier rollback and of the options."""
    if earlier is not None and earlier.is_over:
        return earlier
    step = planned if earlier is None else replace(planned, facts={**planned.facts, **earlier.facts})
    if step.host and step.host in options.forget_hosts:
        return step.ended(FORGOTTEN, f"{step.host} was declared lost by {options.by or 'a person'}: {options.reason}")
    maker = step.facts.get("made_by")
    if isinstance(maker, str) and maker:
        return step.ended("kept", f"workflow {maker} made it")
    if options.keep_branch and step.kind in {"branch", "remote_branch"}:
        return step.ended("kept", "kept on request")

    return step


def _host_steps(document: WorkflowDocument) -> list[Step]:
    """Return the steps on each machine that has effects: end its processes, keep its work."""
    effects = open_effects(document)
    attempts = [attempt for record in document.phases for attempt in record.attempts]
    processes = [attempt.process for attempt in attempts if attempt.status in DOUBTFUL and attempt.process]
    processes += [effect.undo for effect in effects if effect.kind == "process"]
    here = host_of_work(document)
    others = {effect.place for effect in effects if effect.kind in LOCAL_KINDS} | set(map(process_host, processes))
    others -= {here, ""}
    keep = f"keep its commits as {salvage_ref(document.adw_id)} and uncommitted work as a patch"
    ended_here = tuple(
        effect.key for effect in reversed(effects) if effect.kind == "process" and effect.place not in others
    )
    steps = [
        Step(key="processes", kind="process", what="end the processes it started", host=here, effects=ended_here),
        Step(key="salvage", kind="salvage", what=keep, host=here),
    ]
    for host in sorted(others):
        started = tuple(effect.key for effect in reversed(effects) if effect.kind == "process" and effect.place == host)
        what = f"end the processes it started on {host}"
        steps.append(Step(key=left_key("processes", host), kind="process", what=what, host=host, effects=started))
        steps.append(Step(key=left_key("salvage", host), kind="salvage", what=f"{keep} on {host}", host=host))

    return steps


def process_host(record: Mapping[str, JsonValue]) -> str:
    """Return the machine of a recorded process, or "" if the record has none."""
    text = record.get("identity")
    identity = OwnerRecord.from_text(text) if isinstance(text, str) else None

    return identity.host if identity is not None else ""


def _fixed_steps(document: WorkflowDocument, *, has_forge: bool) -> list[Step]:
    """Return the steps done once for the workflow: its ports, the comment, its issue lock, its state."""
    steps: list[Step] = []
    effects, issue = tuple(reversed(open_effects(document))), document.issue_number
    reserved = tuple(effect for effect in effects if effect.kind == "port")
    recorded = [document.backend_port, document.frontend_port, *(effect.undo.get("port") for effect in reserved)]
    ports = sorted({port for port in recorded if isinstance(port, int)})
    if ports or reserved:
        what = f"free the ports {', '.join(map(str, ports))}" if ports else "free its ports"
        keys = tuple(effect.key for effect in reserved)
        steps.append(Step(key="ports", kind="port", what=what, effects=keys, facts={"ports": list(ports)}))
    comments = tuple(effect.key for effect in effects if effect.kind == "comment")
    if has_forge and (issue is not None or comments):
        what = f"say on {f'issue #{issue}' if issue is not None else 'its pull request'} that it was rolled back"
        steps.append(Step(key="comment", kind="comment", what=what, effects=comments))
    if issue is not None:
        steps.append(Step(key="lock", kind="lock", what=f"free issue #{issue}"))

    return [*steps, Step(key="state", kind="state", what="mark the workflow rolled back")]


# --- dependencies between steps --------------------------------------------------------------------------------


def waits_for(step: Step, steps: Iterable[Step]) -> str:
    """
    Return, as text, the steps that have to be finished before *step*, or "".

    Machines do not wait for each other. A step that waits itself is named without its reason.
    """
    steps = tuple(steps)
    blocking = [
        other
        for other in steps
        if other.kind in NEEDS.get(step.kind, ())
        and not other.is_over
        and (not other.host or not step.host or other.host == step.host)
    ]

    return ", ".join(
        f"{other.what} ({other.detail})" if other.detail and not waits_for(other, steps) else other.what
        for other in blocking
    )


def hosts_waited_for(steps: Iterable[Step], *, host: str) -> tuple[str, ...]:
    """Return the machines other than *host* with unfinished steps."""
    return tuple(sorted({step.host for step in steps if not step.is_over and step.host not in {"", host}}))


# --- for people ------------------------------------------------------------------------------------------------


def blocked_by(steps: Iterable[Step]) -> list[str]:
    """Return what is not undone yet and why, for `document.rollback.blocked_by`."""
    return [f"{step.what}: {step.detail}" for step in steps if step.status == "blocked"]


def kept(steps: Iterable[Step]) -> list[str]:
    """Return what remains after the rollback, and why: on request, for safety, or because it is not ours."""
    lines = []
    for step in steps:
        if step.status in {"kept", "left"}:
            lines.append(f"not done: {step.what}: {step.detail}")
        elif step.status == FORGOTTEN:
            lines.append(f"left on {step.host}: {step.what.removesuffix(f' on {step.host}')}: {step.detail}")
        elif step.kind == "salvage" and step.status == "done":
            lines.append(step.detail)
        elif step.kind == "worktree" and step.status == "done" and step.detail:
            lines.append(f"{step.what}: {step.detail}")

    return lines


def plan_lines(steps: Iterable[Step], *, will: str = "will: ") -> list[str]:
    """Return the plan for people, one line for each step; *will* is put before steps still to be done."""
    marks = {"planned": will, "doing": "cut off, again: "}

    return [f"{marks.get(step.status, f'{step.status}: ')}{_with_detail(step)}" for step in steps]


def summary_text(adw_id: str, reason: str, steps: Sequence[Step]) -> str:
    """Return the comment about a rollback, without its marker."""
    done = [f"- {_with_detail(step)}" for step in steps if step.status == "done" and step.kind != "salvage"]
    left = [f"- {line}" for line in kept(steps)]
    parts = [f"Workflow {adw_id} was rolled back.", f"**Reason:** {reason}"]
    if done:
        parts.append("\n".join(["**Undone:**", *done]))
    if left:
        parts.append("\n".join(["**Left:**", *left]))

    return "\n\n".join(parts)


def _with_detail(step: Step) -> str:
    return f"{step.what} ({step.detail})" if step.detail else step.what
