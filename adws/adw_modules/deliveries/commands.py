"""
Deliveries as values, what they ask for, who may ask, and what a command means in each state of a workflow.

Pure. A command that means nothing in a state is answered with one sentence that says why and what would. Answers never
contain what starts a workflow, and mention nobody.
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


#: What somebody may do on a forge, less first.
PERMISSIONS = ("none", "read", "triage", "write", "maintain", "admin")
#: Causes that the forge itself reports and that are verified there, instead of being asked for by a person.
FACTS = frozenset({"pull_request", "checks"})


# --- values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """The requester."""

    login: str
    is_bot: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """A workflow is to be started for an issue, or an older one to be continued."""

    repository: str
    issue: IssueText
    actor: Actor  #: who labelled, commented or opened: their permission counts
    workflow: str = ""  #: name or alias, "": the default one
    adw_id: str = ""  #: of the workflow to continue, "": a new one
    model_set: str = ""
    hint: str = ""  #: the requested change, as text
    is_again: bool = False  #: although the issue has an open pull request
    cause: str = ""  #: label | comment | opened | assigned | poll
    intent: str = ""  #: the same for two deliveries that ask for the same: (repository, issue, comment or label event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Something is to be done to the workflow of an issue or pull request."""

    kind: str  #: one of COMMANDS
    repository: str
    number: int  #: of the issue or pull request
    actor: Actor
    adw_id: str = ""  #: "": the one that works on it
    text: str = ""  #: a hint, a reason
    head_sha: str = ""  #: the commit that CI or a reviewer checked
    cause: str = ""  #: comment | pull_request | review | checks | closed
    intent: str = ""
    answers: bool = True  #: a comment reports the result


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """Nothing is to be done."""

    reason: str  #: in one sentence


#: What a delivery can ask for.
Request: TypeAlias = RunRequest | Command
Verdict: TypeAlias = Request | Ignored


#: What lists show of a delivery.
SHOWN = (
    *("guid", "event", "action", "sender", "repository", "number", "verdict", "reason", "status", "outcome", "run_id"),
    *("adw_id", "received_at", "finished_at", "deliveries"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A webhook delivery, from its bytes to its row; a listed one comes without request and body."""

    guid: str
    event: str
    action: str = ""
    hook: str = ""  #: which hook sent it, "" when it does not say
    sender: str = ""
    repository: str = ""
    number: int | None = None
    verdict: str  #: run | command | ignored
    reason: str  #: why it is ignored; else what is wanted, as text
    request: JsonObject = field(default_factory=dict)  #: the RunRequest or Command, as JSON
    intent: str = ""  #: that of the request
    body: bytes | None = None  #: None: not kept
    body_hash: str = ""  #: SHA-256, hexadecimal
    status: str = "received"  #: received | done | refused | failed
    outcome: str = ""  #: the result, in one sentence
    run_id: int | None = None
    adw_id: str = ""  #: of the workflow it started or meant, "" for none
    received_at: str = ""
    finished_at: str | None = None
    deliveries: int = 1  #: how often it came

    @property
    def is_new(self) -> bool:
        """Whether it came for the first time."""
        return self.deliveries == 1

    @property
    def meant_id(self) -> str:
        """The workflow that it started or meant, "" until a worker has found which one a command is about."""
        return "" if self.verdict == "command" and self.status == "received" else self.adw_id

    def to_json(self) -> JsonObject:
        """Return what is shown of it in a list."""
        return {**{name: getattr(self, name) for name in SHOWN}, "adw_id": self.meant_id}


def to_json(request: Request) -> JsonObject:
    """Return *request* as plain data."""
    # Not asdict: that copies every text, and costs more than all the rest of reading a delivery.
    data: JsonObject = {"type": "run" if isinstance(request, RunRequest) else "command", **_plain(request)}
    data["actor"] = _plain(request.actor)
    if isinstance(request, RunRequest):
        data["issue"] = {**_plain(request.issue), "labels": list(request.issue.labels)}

    return data


def _plain(value: Request | Actor | IssueText) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def from_json(data: JsonObject) -> Request:
    """
    Return what `to_json` made plain; raise DatabaseError when *data* is something else.

    A worker reads it hours later, perhaps of another version: what does not fit is named, never guessed.
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
    """Return why the lists of *settings* forbid *actor* to ask for anything, "" when they do not."""
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
    """Return why the *permission* that the forge gives *actor* is not enough, "" when it is."""
    has = PERMISSIONS.index(permission) if permission in PERMISSIONS else 0
    if has >= PERMISSIONS.index(settings.webhook_permission):
        return ""

    return f"that needs the permission {settings.webhook_permission} or more, which {actor.login} does not have here"


def _lowered(names: Sequence[str] | None) -> frozenset[str]:
    return frozenset(name.lower() for name in names or ())


# --- what it means ---------------------------------------------------------------------------------------------


class WorkflowStanding(Enum):
    """Where a workflow stands, as far as commands are concerned."""

    ACTIVE = "at work"
    WAITING = "waiting for approval"
    PAUSED = "paused"
    FAILED = "failed"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    ROLLED_BACK = "rolled back"
    ROLLING_BACK = "being rolled back"


class CommandAction(Enum):
    """What is done to a workflow."""

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
    REWORK = "rework"  #: it goes back to building
    FOLLOW_UP = "follow_up"  #: a new workflow continues its branch: what is completed has no way back


@dataclass(frozen=True, kw_only=True, slots=True)
class No:
    """Nothing is done."""

    why: str  #: in one sentence
    is_done: bool = False  #: because it is so already


_S, _A = WorkflowStanding, CommandAction
_OPEN = (_S.ACTIVE, _S.WAITING, _S.PAUSED, _S.FAILED)

#: command -> where the workflow stands -> what is done; where nothing stands, nothing is.
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
#: Commands of comments and pages to an existing workflow.
COMMANDS = tuple(MEANINGS)
#: Actions that continue a workflow: it must have its issue.
CONTINUING = frozenset({_A.HINT, _A.RESUME, _A.APPROVE, _A.REJECT, _A.REWORK})
#: (command, where it stands) -> it is so already.
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
    """Return where a workflow stands."""
    state = WorkflowState(document.current_state)
    if document.rollback is not None and state is not WorkflowState.ROLLED_BACK:
        return _S.ROLLING_BACK
    if state in ACTIVE_STATES:
        return _S.ACTIVE
    if state is WorkflowState.PAUSED and any(record.status == "waiting" for record in document.phases):
        return _S.WAITING

    return _S[state.name]


def why_no_second(holder: str, document: WorkflowDocument | None) -> str:
    """Return why an issue of workflow *holder* gets no other; *document* is its own, None before it has one."""
    standing = _S.ACTIVE if document is None else standing_of(document)
    if standing in {_S.WAITING, _S.PAUSED, _S.FAILED}:
        return f"`{holder}` has this issue already and is {standing.value}: let it go on, or abandon it first"

    return f"`{holder}` is at work on this issue already, and one workflow at a time has an issue"


def meaning(kind: str, standing: WorkflowStanding, *, adw_id: str, text: str = "") -> CommandAction | No:
    """Return what the command *kind* means for workflow *adw_id*, or why it means nothing there."""
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
    """Return the phase that work which is sent back begins with: the first that builds, else the first of all."""
    building = [record for record in document.phases if record.state == WorkflowState.BUILDING.value]

    return next((record.name for record in building or document.phases), "")


def rework_from(document: WorkflowDocument) -> str:
    """Return where a workflow that waits is sent back to, "" when it never came that far: it continues where it is."""
    first = first_to_rework(document)
    is_begun = any(
        record.name == first and (record.attempts or record.status != "queued") for record in document.phases
    )

    return first if is_begun else ""


def recorded_head(document: WorkflowDocument) -> str:
    """Return the commit that adw pushed last for this workflow, "" when there is none."""
    key = f"remote_branch:{document.branch_name}"
    first = next((entry for entry in document.resources if entry.key == key), None)

    return str(first.undo.get("sha") or "") if first is not None else ""
