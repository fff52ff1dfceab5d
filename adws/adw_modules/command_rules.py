"""
What deliveries may ask of workflows: who may, what a command means where a workflow stands, and what is answered.

Pure. A command that means nothing in a state is answered with one sentence that says why and what would. Answers never
contain what starts a workflow, and call nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject, JsonValue
    from adws.adw_modules.trigger import Actor

#: What somebody may do on a forge, less first.
PERMISSIONS = ("none", "read", "triage", "write", "maintain", "admin")
#: Deliveries that a document remembers: more than can be under way at once.
REMEMBERED = 50
#: What is told by the forge itself, and looked at there again, instead of being asked for by a person.
FACTS = frozenset({"pull_request", "checks"})


# --- who -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who may ask for something."""

    permission: str = "write"  #: one of PERMISSIONS: the least that a person needs
    allow: tuple[str, ...] = ()  #: logins; when there are any, nobody else may
    deny: tuple[str, ...] = ()  #: logins that may not, whatever else says
    bots: tuple[str, ...] = ()  #: logins of programs that may; a forge gives them no permission to look at


def why_not_listed(actor: Actor, access: Access) -> str:
    """Return why *actor* may not ask for anything, as far as the lists say; "" when they do not forbid it."""
    login = actor.login.lower()
    if not login:
        return "nobody knows who asked for it"
    if login in _lowered(access.deny):
        return f"{actor.login} is on the list of those who may not"
    if actor.is_bot and login not in _lowered(access.bots):
        return f"{actor.login} is a program, and not on the list of those that may"
    if access.allow and not actor.is_bot and login not in _lowered(access.allow):
        return f"{actor.login} is not on the list of those who may"

    return ""


def needs_permission(actor: Actor) -> bool:
    """Say whether the forge has to be asked: programs have no permission there, their list alone counts."""
    return not actor.is_bot


def why_not_permitted(actor: Actor, permission: str, access: Access) -> str:
    """Return why the *permission* that the forge gives *actor* is not enough, "" when it is."""
    has = PERMISSIONS.index(permission) if permission in PERMISSIONS else 0
    if has >= PERMISSIONS.index(access.permission):
        return ""

    return f"that needs the permission {access.permission} or more, which {actor.login} does not have here"


def _lowered(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


# --- what it means ---------------------------------------------------------------------------------------------


class Standing(Enum):
    """Where a workflow stands, as far as commands are concerned."""

    ACTIVE = "at work"
    WAITING = "waiting for approval"
    PAUSED = "paused"
    FAILED = "failed"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    ROLLED_BACK = "rolled back"
    ROLLING_BACK = "being rolled back"


class Action(Enum):
    """What is done to a workflow."""

    TELL = "tell"
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
    FOLLOW_UP = "follow_up"  #: a new workflow goes on with its branch: what is completed has no way back


@dataclass(frozen=True, kw_only=True, slots=True)
class No:
    """Nothing is done."""

    why: str  #: in one sentence
    is_done: bool = False  #: because it is so already


_S, _A = Standing, Action
_OPEN = (_S.ACTIVE, _S.WAITING, _S.PAUSED, _S.FAILED)

#: command -> where the workflow stands -> what is done; where nothing stands, nothing is.
MEANINGS: Mapping[str, Mapping[Standing, Action]] = MappingProxyType(
    {
        "status": dict.fromkeys(_S, _A.TELL),
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
#: Actions that go on with a workflow: it must have its issue.
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
_INSTEAD: Mapping[tuple[str, Standing], str] = MappingProxyType(
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


def standing_of(document: WorkflowDocument) -> Standing:
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


def meaning(kind: str, standing: Standing, *, adw_id: str, text: str = "") -> Action | No:
    """Return what the command *kind* means for workflow *adw_id*, or why it means nothing there."""
    action = MEANINGS[kind].get(standing)
    if action is _A.HINT and not text:
        action = None  # there is nothing to say to whoever is at work
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


def why_no_follow_up(document: WorkflowDocument, *, most: int) -> str:
    """Return why the work is not sent on once more, "" when it may be."""
    if document.followups >= most:
        return f"the work was sent on {document.followups} of {most} times already: a person has to look at it"

    return ""


def first_to_rework(document: WorkflowDocument) -> str:
    """Return the phase that work which is sent back begins with: the first that builds, else the first of all."""
    building = [record for record in document.phases if record.state == WorkflowState.BUILDING.value]

    return next((record.name for record in building or document.phases), "")


def rework_from(document: WorkflowDocument) -> str:
    """Return where a workflow that waits is sent back to, "" when it never came that far: it goes on where it is."""
    first = first_to_rework(document)
    is_begun = any(
        record.name == first and (record.attempts or record.status != "queued") for record in document.phases
    )

    return first if is_begun else ""


def recorded_head(document: WorkflowDocument) -> str:
    """Return the commit that adw pushed last for this workflow, "" when there is none."""
    key = f"remote_branch:{document.branch_name}"
    found = next((entry for entry in document.resources if entry.key == key), None)

    return str(found.undo.get("sha") or "") if found is not None else ""


# --- once ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """
    Who asked for a change: written with the change, so that nobody makes it twice, and its history says who.
    """

    delivery: str  #: the delivery, or the click of a person
    kind: str = ""
    by: str = ""
    is_follow_up: bool = False
    source: str = ""  #: the door that a person came by, and from where; "": it is a delivery's

    def to_json(self) -> JsonObject:
        """Return the mark as it travels in a request to the owner of a workflow."""
        return {
            "delivery": self.delivery,
            "kind": self.kind,
            "by": self.by,
            "is_follow_up": self.is_follow_up,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, data: JsonValue) -> Mark | None:
        """Return the mark that `to_json` wrote, None when *data* is none."""
        if not isinstance(data, dict) or not isinstance(data.get("delivery"), str):
            return None

        return cls(
            delivery=str(data["delivery"]),
            kind=str(data.get("kind") or ""),
            by=str(data.get("by") or ""),
            is_follow_up=data.get("is_follow_up") is True,
            source=str(data.get("source") or ""),
        )


def is_marked(document: WorkflowDocument, mark: Mark | None) -> bool:
    """Say whether what the delivery of *mark* asked for is in *document* already."""
    return mark is not None and mark.delivery in document.deliveries


def mark(draft: Draft, made: Mark | None) -> None:
    """Write down who asked for this change, once; None: nobody who has to be named."""
    if made is None or is_marked(draft.document, made):
        return
    document = draft.document
    document.deliveries = [*document.deliveries, made.delivery][-REMEMBERED:]
    if made.source:
        draft.tell("action_asked", data={"action": made.kind, "by": made.by, "from": made.source})
    else:
        draft.tell("command_obeyed", data={"delivery": made.delivery, "command": made.kind, "by": made.by})
    if made.is_follow_up:
        document.followups += 1
        draft.tell("followup_begun", data={"number": document.followups, "by": made.by, "delivery": made.delivery})
