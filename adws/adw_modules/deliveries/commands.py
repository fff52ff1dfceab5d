"""
The values of deliveries, the rules of who may request what, and the meaning of a command in each workflow state.

Pure. A command without meaning in a state is answered with one sentence that says why and what would work. Answers
never contain text that starts a workflow, and mention nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.forge.model import IssueText
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.config.settings import Settings


#: Permissions on a forge, the lowest first.
PERMISSIONS = ("none", "read", "triage", "write", "maintain", "admin")
#: Causes that are reports of the forge, verified there, and not requests of a person.
FACTS = frozenset({"pull_request", "checks"})


# --- values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """The requester."""

    login: str
    is_bot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """A request to start a workflow for an issue, or to continue an earlier one."""

    repository: str
    issue: IssueText
    actor: Actor  #: the person who labelled, commented or opened; their permission counts
    workflow: str = ""  #: name or alias; "": the default workflow
    adw_id: str = ""  #: of the workflow to continue; "": start a new one
    model_set: str = ""
    hint: str = ""  #: the requested change, as text
    is_again: bool = False  #: start even if the issue has an open pull request
    cause: str = ""  #: label | comment | opened | assigned | poll
    intent: str = ""  #: equal for two deliveries of one request: (repository, issue, comment or label event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command to the workflow of an issue or pull request."""

    kind: str  #: one of COMMANDS
    repository: str
    number: int  #: of the issue or pull request
    actor: Actor
    adw_id: str = ""  #: "": the workflow of that issue or pull request
    text: str = ""  #: a hint, a reason
    head_sha: str = ""  #: the commit that CI or a reviewer checked
    cause: str = ""  #: comment | pull_request | review | checks | closed
    intent: str = ""
    answers: bool = True  #: whether a comment reports the result


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """The verdict that a delivery is ignored."""

    reason: str  #: in one sentence


#: What a delivery can request.
Request: TypeAlias = RunRequest | Command
Verdict: TypeAlias = Request | Ignored


#: The fields of a delivery shown in lists.
SHOWN = (
    *("guid", "event", "action", "sender", "repository", "number", "verdict", "reason", "status", "outcome", "run_id"),
    *("adw_id", "received_at", "finished_at", "deliveries"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A webhook delivery; one read for a list has no request and no body."""

    guid: str
    event: str
    action: str = ""
    hook: str = ""  #: id of the hook that sent it, or ""
    sender: str = ""
    repository: str = ""
    number: int | None = None
    verdict: str  #: run | command | ignored
    reason: str  #: why it is ignored, else the request as text
    request: JsonObject = field(default_factory=dict)  #: the RunRequest or Command, as JSON
    intent: str = ""  #: the intent of the request
    body: bytes | None = None  #: None: not kept
    body_hash: str = ""  #: SHA-256, hexadecimal
    status: str = "received"  #: received | done | refused | failed
    outcome: str = ""  #: the result, in one sentence
    run_id: int | None = None
    adw_id: str = ""  #: of the workflow it started or meant, or ""
    received_at: str = ""
    finished_at: str | None = None
    deliveries: int = 1  #: how often it was received

    @property
    def is_new(self) -> bool:
        """Whether it was received for the first time."""
        return self.deliveries == 1

    @property
    def meant_id(self) -> str:
        """The id of the workflow it started or meant; "" until a worker has found the workflow of a command."""
        return "" if self.verdict == "command" and self.status == "received" else self.adw_id

    def to_json(self) -> JsonObject:
        """Return the fields shown in a list."""
        return {**{name: getattr(self, name) for name in SHOWN}, "adw_id": self.meant_id}


def to_json(request: Request) -> JsonObject:
    """Return *request* as plain data."""
    # Not asdict, which copies every text and costs more than the rest of reading a delivery.
    data: JsonObject = {"type": "run" if isinstance(request, RunRequest) else "command", **_plain(request)}
    data["actor"] = _plain(request.actor)
    if isinstance(request, RunRequest):
        data["issue"] = {**_plain(request.issue), "labels": list(request.issue.labels)}

    return data


def _plain(value: Request | Actor | IssueText) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def from_json(data: JsonObject) -> Request:
    """
    Return the request that `to_json` wrote; raise DatabaseError if *data* is not one.

    The worker that reads it hours later may have another version: a field that does not fit is named, not guessed.
    """
    kind = data.get("type")
    if kind not in {"run", "command"}:
        raise DatabaseError(f"what a delivery asks for is neither a run nor a command, but {kind!r}")
    adapter: TypeAdapter[Request] = _adapter(RunRequest if kind == "run" else Command)
    try:
        request = adapter.validate_json(json.dumps(data), strict=True)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        name = next(part for part in reversed(error["loc"]) if isinstance(part, str))
        value = None if error["type"] == "missing" else error["input"]
        raise DatabaseError(f"what a delivery asks for cannot be read: its {name} is {value!r:.80}") from exc
    if isinstance(request, Command) and request.kind not in COMMANDS:
        raise DatabaseError(f"a delivery asks for {request.kind!r}, which is no command of this version of adw")

    return request


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# --- who -------------------------------------------------------------------------------------------------------


def why_not_listed(actor: Actor, settings: Settings) -> str:
    """Return why the allow and deny lists of *settings* exclude *actor*, or ""."""
    login = actor.login.lower()
    if not login:
        return "nobody knows who asked for it"
    if login in _lowered(settings.webhook_deny):
        return f"{actor.login} is on the list of those who may not"
    if actor.is_bot and login not in _lowered(settings.webhook_bots):
        return f"{actor.login} is a program, and not on the list of those that may"
    if settings.webhook_allow and not actor.is_bot and login not in _lowered(settings.webhook_allow):
        return f"{actor.login} is not on the list of those who may"

    return ""


def why_not_permitted(actor: Actor, permission: str, settings: Settings) -> str:
    """Return why the *permission* of *actor* at the forge is not enough, or ""."""
    has = PERMISSIONS.index(permission) if permission in PERMISSIONS else 0
    if has >= PERMISSIONS.index(settings.webhook_permission):
        return ""

    return f"that needs the permission {settings.webhook_permission} or more, which {actor.login} does not have here"


def _lowered(names: Sequence[str] | None) -> frozenset[str]:
    return frozenset(name.lower() for name in names or ())


# --- what it means ---------------------------------------------------------------------------------------------


class WorkflowStanding(Enum):
    """The state of a workflow, as commands distinguish it."""

    ACTIVE = "at work"
    WAITING = "waiting for approval"
    PAUSED = "paused"
    FAILED = "failed"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    ROLLED_BACK = "rolled back"
    ROLLING_BACK = "being rolled back"


class CommandAction(Enum):
    """An action on a workflow."""

    STATUS = "status"
    PAUSE = "pause"
    STOP = "stop"
    HINT = "hint"
    RESUME = "resume"
    APPROVE = "approve"
    REJECT = "reject"
    ABANDON = "abandon"
    ROLL_BACK = "roll_back"
    CLEAN_UP = "clean_up"
    REWORK = "rework"  #: return to building
    FOLLOW_UP = "follow_up"  #: a new workflow continues the branch, because a completed one cannot be reopened


@dataclass(frozen=True, kw_only=True, slots=True)
class No:
    """The answer that nothing is done."""

    why: str  #: in one sentence
    is_done: bool = False  #: because it was done already


_S, _A = WorkflowStanding, CommandAction
_OPEN = (_S.ACTIVE, _S.WAITING, _S.PAUSED, _S.FAILED)

#: command -> state of the workflow -> action; a missing entry means that nothing is done.
MEANINGS: Mapping[str, Mapping[WorkflowStanding, CommandAction]] = MappingProxyType(
    {
        "status": dict.fromkeys(_S, _A.STATUS),
        "pause": {_S.ACTIVE: _A.PAUSE},
        "stop": {_S.ACTIVE: _A.STOP},
        "resume": {_S.ACTIVE: _A.HINT, _S.PAUSED: _A.RESUME, _S.FAILED: _A.RESUME},
        "retry": {_S.FAILED: _A.RESUME},
        "approve": {_S.WAITING: _A.APPROVE},
        "reject": {_S.WAITING: _A.REJECT},
        "abandon": dict.fromkeys(_OPEN, _A.ABANDON),
        "rollback": dict.fromkeys((*_OPEN, _S.COMPLETED, _S.ABANDONED, _S.ROLLING_BACK), _A.ROLL_BACK),
        "clean_up": dict.fromkeys((_S.WAITING, _S.PAUSED, _S.FAILED, _S.COMPLETED, _S.ABANDONED), _A.CLEAN_UP),
        "rework": {
            _S.ACTIVE: _A.HINT,
            _S.WAITING: _A.REWORK,
            _S.PAUSED: _A.REWORK,
            _S.FAILED: _A.REWORK,
            _S.COMPLETED: _A.FOLLOW_UP,
        },
    }
)
#: Commands to an existing workflow, from comments and pages.
COMMANDS = tuple(MEANINGS)
#: Actions that continue a workflow, which needs the lock of its issue.
CONTINUING = frozenset({_A.HINT, _A.RESUME, _A.APPROVE, _A.REJECT, _A.REWORK})
#: (command, state) pairs in which the command is already fulfilled.
_ALREADY = frozenset(
    {
        ("pause", _S.PAUSED),
        ("pause", _S.WAITING),
        ("stop", _S.PAUSED),
        ("stop", _S.WAITING),
        ("resume", _S.ACTIVE),
        ("retry", _S.ACTIVE),
        ("abandon", _S.ABANDONED),
        ("rollback", _S.ROLLED_BACK),
        ("clean_up", _S.ROLLED_BACK),
    }
)
_INSTEAD: Mapping[tuple[str, WorkflowStanding], str] = MappingProxyType(
    {
        ("resume", _S.WAITING): "approve or reject decides",
        ("retry", _S.WAITING): "approve or reject decides",
        ("retry", _S.PAUSED): "resume makes it go on",
        ("pause", _S.FAILED): "nothing runs",
        ("stop", _S.FAILED): "nothing runs",
        ("clean_up", _S.ACTIVE): "it finds the merge itself when it is done",
    }
)
_OVER = frozenset({_S.COMPLETED, _S.ABANDONED, _S.ROLLED_BACK})


def standing_of(document: WorkflowDocument) -> WorkflowStanding:
    """Return the state of a workflow, as commands distinguish it."""
    state = WorkflowState(document.current_state)
    if document.rollback is not None and state is not WorkflowState.ROLLED_BACK:
        return _S.ROLLING_BACK
    if state in ACTIVE_STATES:
        return _S.ACTIVE
    if state is WorkflowState.PAUSED and any(record.status == "waiting" for record in document.phases):
        return _S.WAITING

    return _S[state.name]


def why_no_second(holder: str, document: WorkflowDocument | None) -> str:
    """Return why an issue that *holder* works on gets no second workflow; *document* is None before the first save."""
    standing = _S.ACTIVE if document is None else standing_of(document)
    if standing in {_S.WAITING, _S.PAUSED, _S.FAILED}:
        return f"`{holder}` has this issue already and is {standing.value}: let it go on, or abandon it first"

    return f"`{holder}` is at work on this issue already, and one workflow at a time has an issue"


def meaning(kind: str, standing: WorkflowStanding, *, adw_id: str, text: str = "") -> CommandAction | No:
    """Return the action of the command *kind* on workflow *adw_id*, or why there is no action."""
    action = MEANINGS[kind].get(standing)
    if action is _A.HINT and not text:
        action = None  # nothing to pass on to a running worker
    if action is not None:
        return action
    stands = f"workflow {adw_id} is {standing.value}"
    if (kind, standing) in _ALREADY:
        return No(why=f"{stands} already", is_done=True)
    if kind in {"approve", "reject"}:
        return No(why=f"workflow {adw_id} does not wait for approval: it is {standing.value}")
    instead = _INSTEAD.get((kind, standing), "")
    if not instead and standing in _OVER:
        instead = f"there is nothing to {_WORDS.get(kind, kind)} any more"

    return No(why=f"{stands}: {instead or 'that has to be over first'}")


_WORDS: Mapping[str, str] = MappingProxyType({"clean_up": "clean up", "rework": "work on", "rollback": "roll back"})


def first_to_rework(document: WorkflowDocument) -> str:
    """Return the phase at which rework begins: the first that builds, else the first of all."""
    building = [record for record in document.phases if record.state == WorkflowState.BUILDING.value]

    return next((record.name for record in building or document.phases), "")


def rework_from(document: WorkflowDocument) -> str:
    """Return the phase a waiting workflow returns to for rework, or "" if it never began that phase: it continues."""
    first = first_to_rework(document)
    is_begun = any(
        record.name == first and (record.attempts or record.status != "queued") for record in document.phases
    )

    return first if is_begun else ""


def recorded_head(document: WorkflowDocument) -> str:
    """Return the commit that adw pushed last for this workflow, or ""."""
    key = f"remote_branch:{document.branch_name}"
    first = next((entry for entry in document.resources if entry.key == key), None)

    return str(first.undo.get("sha") or "") if first is not None else ""
