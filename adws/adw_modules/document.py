"""
The workflow document, schema 3.0, and the draft of its next revision.

Unknown keys survive a round trip. `current_state` is assigned by `state_machine` alone. A document is parsed once, when
it is loaded; what adw itself built is not validated again on save.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from adws.adw_modules import timestamps
from adws.adw_modules.errors import StateInvalid, StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine, rank
from adws.adw_modules.state_schema import CURRENT_VERSION

if TYPE_CHECKING:
    from adws.adw_modules.identifiers import JsonObject, JsonValue
else:  # pydantic cannot resolve a recursive alias; what JSON may hold is checked where the bytes are read
    JsonObject = dict[str, Any]


class Part(BaseModel):
    """Base of everything in a document: unknown keys are kept."""

    # Left alone, pydantic silently writes NaN as null; as a constant it can be found and refused. Schemas are built
    # when they are first needed, for the start-up of commands.
    model_config = ConfigDict(extra="allow", populate_by_name=True, ser_json_inf_nan="constants", defer_build=True)
    #: The text under which a store wrote this part last, for `store.serialization.Serializer` alone. It belongs to this
    #: very object: a copy has none, and setting a field drops it.
    __slots__ = ("stored_text",)
    if TYPE_CHECKING:
        stored_text: ClassVar[tuple[object, bytes] | None]

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field, and forget the stored text."""
        object.__setattr__(self, "stored_text", None)
        super().__setattr__(name, value)

    def assign(self, **fields: object) -> None:
        """Set *fields*, of the right types, all at once: pydantic's own assignment takes them one by one, slowly."""
        object.__setattr__(self, "stored_text", None)
        values, names = self.__dict__, self.__pydantic_fields_set__
        values |= fields
        names |= {*fields}

    def changed(self, **fields: object) -> Self:
        """Return a copy with *fields*, of the right types: what `model_copy` does, but each step makes five."""
        made = object.__new__(type(self))
        put = object.__setattr__
        put(made, "__dict__", {**self.__dict__, **fields})
        put(made, "__pydantic_extra__", {**(self.__pydantic_extra__ or {})})
        put(made, "__pydantic_fields_set__", {*self.__pydantic_fields_set__, *fields})
        put(made, "__pydantic_private__", None)  # it has no private attributes
        put(made, "stored_text", None)

        return made


#: Return what a part's slot holds; raises AttributeError for one that was never set, without asking pydantic first.
stored_text_of: Callable[[Part], tuple[object, bytes] | None] = Part.__dict__["stored_text"].__get__


class HistoryEntry(Part):
    """One move along an edge of the state table."""

    from_state: str = Field(alias="from")
    to_state: str = Field(alias="to")
    timestamp: str
    metadata: JsonObject = Field(default_factory=dict)


class AttemptRecord(Part):
    """One attempt at a phase, recorded before it runs."""

    number: int  #: counts from 1 and never goes back
    round: int = 1
    status: str = "running"
    started_at: str
    ended_at: str | None = None
    owner: str | None = None
    fence: int = 0  #: of the ownership it was begun under
    deadline_at: str | None = None
    error: JsonObject | None = None  #: classified: category, class, message, advice, traceback
    duration: float | None = None  #: seconds of work, when it ended in an orderly way
    waiting_since: str | None = None  #: while it waits for work that others do
    waited_seconds: float = 0.0  #: for that, before it went on: no work of its own
    report: JsonObject | None = None  #: what its runner said: summary, exit code, cost, output files, was_done
    process: JsonObject | None = None  #: recorded before it executes anything
    model: str | None = None  #: chosen when it was begun; None: the agent's own choice
    agent: JsonObject | None = None  #: name, provider, session_id, is_resumed, hashes of prompt and rules files
    shared: JsonObject | None = None  #: marks of the shared git directory before it, and of what it changed there
    leftovers: bool = False  #: all of its work is committed: what else it leaves in the worktree is to be discarded
    commit: str | None = None  #: the head of the branch when its work was recorded; None: it changed nothing


class PhaseRecord(Part):
    """What is known about one phase: counters, status and every attempt."""

    name: str
    state: str  #: the workflow state it runs under
    status: str = "queued"  #: queued running retry_wait waiting complete failed skipped interrupted suspended
    attempts_used: int = 0  #: in this round
    max_attempts: int = 5
    granted: int = 0  #: further attempts a person allowed
    round: int = 1
    last_attempt_timestamp: str | None = None
    last_failure_reason: str | None = None
    terminal_reason: str | None = None
    retry_at: str | None = None
    wait_reason: str | None = None  #: why it waits until retry_at, when that is no failed attempt: a quota, a breaker
    result: JsonObject | None = None  #: what its last success gave back
    parks: int = 0  #: in a row: waits for a quota or a service, which use no attempt
    waits_for: dict[str, int] = Field(default_factory=dict)  #: services -> generation of the breaker when it failed
    wait_deadline_at: str | None = None  #: when a service is no longer waited for
    model: str | None = None  #: what the advisor chose for the next attempts
    doctor: list[JsonObject] = Field(default_factory=list)  #: what the advisor was asked and decided, oldest first
    sent_back: JsonObject | None = None  #: what sent the work back to it for this round: phase, attempt, reason
    attempts: list[AttemptRecord] = Field(default_factory=list)


class Resource(Part):
    """An effect on the outside world, written down before it is made."""

    key: str  #: unique in the workflow, such as worktree, branch:<name>, pull_request, port:9100
    #: worktree | branch | remote_branch | wip_ref | pull_request | comment | label | port | process | directory
    kind: str
    outcome: str = "intended"  #: intended | made | adopted | observed | failed | undone | kept | gone | forgotten
    host: str | None = None
    undo: JsonObject = Field(default_factory=dict)  #: what is needed to find and undo it

    @property
    def place(self) -> str:
        """The host that it is on, "" when any host can undo it."""
        return self.host or ""


class WorkflowRef(Part):
    """The workflow's definition, frozen at the start."""

    name: str
    version: str = "1"
    phases: list[JsonObject] = Field(default_factory=list)
    demands: JsonObject = Field(default_factory=dict)  #: host and tags of the workers that may continue it
    workload: JsonObject = Field(default_factory=dict)  #: values that templates of its steps know
    base: str = ""  #: what a gate that is red on the base commit means; "": as the setting says
    run_phases: list[str] = Field(default_factory=list)  #: those of the definition that it is carried on with; []: all
    earlier: list[JsonObject] = Field(
        default_factory=list
    )  #: definitions before: name, version, states, moves till then


class Cost(Part):
    """Money spent so far, in US dollars."""

    total_usd: float = 0.0
    by_phase: dict[str, float] = Field(default_factory=dict)
    by_provider: dict[str, float] = Field(default_factory=dict)
    token_counts: dict[str, int] = Field(default_factory=dict)  #: input, output, cache_read, cache_write
    is_estimated: bool = False  #: some of it was reckoned from a price table
    warned_at: float | None = None  #: the cap of which four fifths were spent when that was said


#: Control characters, NUL first of all, and halves of characters. Not the escape of terminal codes: without it the rest
#: of the code would stand in the text, inside a token perhaps, which redaction would not recognise any more.
_UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\ud800-\udfff]")


class FrozenIssue(Part):
    """The issue as it was when the workflow was started."""

    title: str = ""
    body: str = ""
    author: str | None = None
    url: str | None = None
    labels: list[str] = Field(default_factory=list)

    def cleaned(self) -> FrozenIssue:
        """Return the same without characters that no command, commit or database takes; the title is one line."""
        title = " ".join(_UNPRINTED.sub(" ", self.title).split())

        return self.model_copy(update={"title": title, "body": _UNPRINTED.sub("", self.body)})


class RollbackRecord(Part):
    """A rollback that was begun: its steps and what blocks it."""

    reason: str = ""
    started_at: str | None = None
    steps: list[JsonObject] = Field(default_factory=list)
    blocked_by: list[str] = Field(default_factory=list)


class WorkflowDocument(Part):
    """Everything adw knows about one workflow."""

    state_version: str = CURRENT_VERSION
    adw_id: str
    issue_number: int | None  #: None: a workflow without an issue
    repository: str = ""  #: owner/name, "" for the repository of this home
    revision: int = 0  #: grows by one with each write; 0: never written
    fence: int = 0  #: token of the owner who wrote it

    current_state: str = "pending"
    resume_state: str | None = None  #: the phase that was left for PAUSED
    failed_phase: str | None = None  #: the state of the phase that failed
    furthest_failed: str | None = None  #: of all that failed since retry_count was 0: it must succeed to set it back
    retry_count: int = 0
    retry_marks: int = 0  #: retries that are counted but not used yet
    max_retries: int = 3
    retries_granted: int = 0  #: how much of max_retries a person added
    reworks: int = 0
    max_reworks: int = 3
    history_dropped: int = 0  #: older entries that only the event log has
    terminal_reason: str | None = None
    warnings: list[str] = Field(default_factory=list)
    pause_reason: str | None = None
    hints: list[JsonObject] = Field(default_factory=list)  #: what people said to do differently: text, by, at
    max_total_attempts: int | None = None  #: health budget of the whole workflow
    max_minutes: float | None = None  #: health budget of work, waiting left out
    doctor_calls: int = 0  #: over all phases
    replans: int = 0
    max_cost_usd: float | None = None  #: a cap of its own, raised by a person; None: that of the settings

    cost: Cost = Field(default_factory=Cost)
    pr_merged: bool = False  #: from here on nothing is rolled back

    branch_name: str | None = None
    plan_file: str | None = None
    worktree_path: str | None = None
    backend_port: int | None = None
    frontend_port: int | None = None
    pr_number: int | None = None
    issue_class: str | None = None
    model_set: str | None = None
    all_adws: list[str] = Field(default_factory=list)
    deliveries: list[str] = Field(default_factory=list)  #: guids of the newest whose wish is in here already
    continues: str | None = None  #: the workflow whose branch and pull request it continues
    followups: int = 0  #: how often a review or red checks sent the work on, that of `continues` included

    created_at: str
    updated_at: str
    # What grows comes last, see `PARTS`.
    outbox: list[JsonObject] = Field(default_factory=list)  #: events that may not be in the database yet
    workflow: WorkflowRef | None = None
    issue: FrozenIssue | None = None
    rollback: RollbackRecord | None = None
    resources: list[Resource] = Field(default_factory=list)
    state_history: list[HistoryEntry] = Field(default_factory=list)
    phases: list[PhaseRecord] = Field(default_factory=list)

    @property
    def issue_title(self) -> str:
        """The title that lists show, "" for a workflow without an issue."""
        return self.issue.title if self.issue is not None else ""

    @property
    def workflow_name(self) -> str:
        """The name of the workflow definition, "" when none is recorded."""
        return self.workflow.name if self.workflow is not None else ""

    def add_history(self, moves: Sequence[JsonObject], *, keep: int) -> None:
        """Append *moves* and keep the last *keep* of all; for the state machine, which loads without pydantic."""
        entries = [*self.state_history, *map(HistoryEntry.model_validate, moves)]
        self.assign(state_history=entries[-keep:])

    def to_bytes(self, *, indent: int | None = 1) -> bytes:
        """Return `to_bytes(self)`: a caller that has a document need not import this module to write it."""
        return to_bytes(self, indent=indent)

    def to_plain(self) -> JsonObject:
        """Return the document as plain JSON, a copy."""
        data: JsonObject = json.loads(to_bytes(self, indent=None))

        return data

    def begin_rollback(self) -> None:
        """Write down that a rollback was begun, if that is not written yet."""
        if self.rollback is None:
            self.rollback = RollbackRecord()


#: The last fields of a document, after its outbox: parts and lists of parts. A store does not serialise those again
#: that did not change.
PARTS = ("workflow", "issue", "rollback", "resources", "state_history", "phases")
#: Those of them that are one part, or null.
SINGLE_PARTS = frozenset({"workflow", "issue", "rollback"})


def parse(data: Mapping[str, JsonValue]) -> WorkflowDocument:
    """Return the document in *data*, which is of the current version; raise StateInvalid naming every bad field."""
    version = data.get("state_version", CURRENT_VERSION)
    if version != CURRENT_VERSION:
        raise StateInvalid(f"the document has version {version!r}, not {CURRENT_VERSION!r}: migrate it before parsing")
    try:
        return WorkflowDocument.model_validate(data)
    except ValidationError as exc:
        result = "; ".join(
            f"{'.'.join(str(part) for part in error['loc']) or 'document'}: {error['msg']}" for error in exc.errors()
        )
        invalid = StateInvalid(f"the document of {data.get('adw_id', 'a workflow')} is not valid: {result}")
        invalid.data = dict(data)
        raise invalid from exc


def readable(text: str) -> WorkflowDocument | None:
    """Return the document in the text of a row, None for one that cannot be read: `adw db check` names it."""
    try:
        return WorkflowDocument.model_validate_json(text)
    except ValidationError:
        return None


def to_bytes(document: WorkflowDocument, *, indent: int | None = 1) -> bytes:
    """
    Return *document* as JSON text, one key a line so that people can read and grep it; without *indent* all in one.

    Raises StateUnserialisable for a value that JSON cannot represent; NaN and the infinities are such values.
    """
    try:
        body = document.__pydantic_serializer__.to_json(document, indent=indent, by_alias=True)
    except PydanticSerializationError as exc:
        raise StateUnserialisable(f"the document of {document.adw_id} cannot be written as JSON: {exc}") from exc
    refuse_constants(document.adw_id, body)

    return body


def part_to_json(
    part: Part, *, indent: int | None, exclude: set[str] | None = None, exclude_none: bool = False
) -> bytes:
    """Return one part of a document, without the fields *exclude*, as JSON text; constants are not looked for."""
    return part.__pydantic_serializer__.to_json(
        part, indent=indent, by_alias=True, exclude=exclude, exclude_none=exclude_none
    )


def object_to_json(data: JsonObject | Sequence[JsonObject], *, indent: int | None) -> bytes:
    """Return a plain object, or a list of some, as JSON text; constants are not looked for."""
    return to_json(data, indent=indent, inf_nan_mode="constants")


def refuse_constants(adw_id: str, text: bytes) -> None:
    """Raise StateUnserialisable when NaN or an infinity is a value in *text*, which is JSON but for that."""
    # The names of these constants also occur in texts, so a hit is only a reason to check closely. Searching for one
    # byte is ten times as fast as searching for a name.
    if (b"N" in text and b"NaN" in text) or (b"I" in text and b"Infinity" in text):
        json.loads(text, parse_constant=lambda word: _refuse_constant(adw_id, word))


def _refuse_constant(adw_id: str, word: str) -> NoReturn:
    raise StateUnserialisable(
        f"the document of {adw_id} holds {word}, which is not JSON: store a number, null or a text"
    )


# The next revision of a document in the making: changes, moves and the events about them, for one write.
#
# The document that comes in is never changed. State moves only through the machine.


class Draft:
    """A document being changed; `document` and `events` go into one write."""

    def __init__(
        self,
        document: WorkflowDocument,
        machine: WorkflowStateMachine,
        *,
        now: Callable[[], datetime],
        max_cost_usd: float | None = None,
        queue: JsonObject | None = None,
    ) -> None:
        """*queue* is who makes the changes, and on which run: `queue_id` and `worker_id`."""
        self.document = document.changed(phases=list(document.phases))
        self.machine = machine
        self.now = now
        self.max_cost_usd = max_cost_usd  #: the cap of the settings, for documents that have none; None: no cap
        self._meta: JsonObject = {"queue": queue} if queue else {}
        self.events: list[Event] = []
        self.at = now()  #: the one moment of this write
        self.text = timestamps.to_text(self.at)

    def finished(self) -> WorkflowDocument:
        """Return the document with the machine's state written into it."""
        self.machine.write_into(self.document)

        return self.document

    # --- state -------------------------------------------------------------------------------------------------

    def move(self, state: WorkflowState, metadata: Mapping[str, JsonValue] | None = None) -> None:
        """Move the workflow; nothing when it is there already."""
        before = self.machine.current_state
        if before is state:
            return
        self.machine.transition(state, metadata)
        self.record_transition(before, metadata)

    def advance_to(self, state: WorkflowState) -> None:
        """
        Advance to *state*, through the states in between whose phases were all skipped.

        The table has no move past a state: a state that is silently left out would not be in the history.
        """
        start, table = self.machine.current_state, self.machine.table
        if state is start:
            return
        if state not in table[start]:
            for passed in sorted((known for known in table if _is_between(start, known, state)), key=rank):
                self.move(passed, {"reason": "passed_over"})
        self.move(state)

    def record_transition(self, before: WorkflowState, metadata: Mapping[str, JsonValue] | None = None) -> None:
        """Add the event of a move that the machine made since it was in *before*."""
        after = self.machine.current_state
        start, end = before._value_, after._value_
        data: JsonObject = {"from": start, "to": end, **(metadata or {})}
        self.events.append(Event(event_type="state_changed", status=end, data=data))

    # --- phases ------------------------------------------------------------------------------------------------

    def phase(self, index: int) -> PhaseRecord:
        """Return the record of a phase as it stands in this draft."""
        return self.document.phases[index]

    def change_phase(self, index: int, **changes: object) -> PhaseRecord:
        """Replace fields of a phase's record."""
        record = self.document.phases[index].changed(**changes)
        self.document.phases[index] = record

        return record

    def end_attempt(
        self, index: int, status: str, *, phase: Mapping[str, object] = MappingProxyType({}), **changes: object
    ) -> AttemptRecord:
        """Close the newest attempt of a phase, and change fields of the *phase* with it."""
        record = self.document.phases[index]
        ended = record.attempts[-1].changed(status=status, ended_at=self.text, deadline_at=None, **changes)
        self.change_phase(index, attempts=[*record.attempts[:-1], ended], **phase)

        return ended

    def mark_attempt(self, index: int, **changes: object) -> None:
        """Write something down about the newest attempt of a phase."""
        record = self.document.phases[index]
        self.change_phase(index, attempts=[*record.attempts[:-1], record.attempts[-1].changed(**changes)])

    # --- events ------------------------------------------------------------------------------------------------

    def add_event(
        self, event_type: str, index: int | None = None, *, data: JsonObject | None = None, **fields: Any
    ) -> None:
        """Add an event, about the phase at *index* when one is given."""
        if index is not None:
            record = self.document.phases[index]
            number = record.attempts[-1].number if record.attempts else None
            fields = {
                "node_id": record.name,
                "node_name": record.name,
                "node_type": "phase",
                "status": record.status,
                "attempt_number": number,
                **fields,
                "meta": {**self._meta, **fields["meta"]} if "meta" in fields else self._meta,
            }
        reference = self.document.workflow
        catalog = f"{reference.name}@{reference.version}" if reference else None
        self.events.append(Event(event_type=event_type, catalog_id=catalog, data=data or {}, **fields))


def _is_between(start: WorkflowState, state: WorkflowState, end: WorkflowState) -> bool:
    """Say whether the pipeline has *state* after *start* and before *end*."""
    return rank(start) < rank(state) < rank(end)


#: Deliveries that a document remembers: more than can be under way at once.
REMEMBERED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """
    Who asked for a change: written with the change, so that nobody makes it twice, and its history says who.
    """

    delivery: str  #: the delivery, or the click of a person
    kind: str = ""
    by: str = ""
    is_follow_up: bool = False
    source: str = ""  #: the interface a person used, and from where; "": it is a delivery's

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
    """Record who asked for this change, once; None: nobody has to be named."""
    if made is None or is_marked(draft.document, made):
        return
    document = draft.document
    document.deliveries = [*document.deliveries, made.delivery][-REMEMBERED:]
    if made.source:
        draft.add_event("action_asked", data={"action": made.kind, "by": made.by, "from": made.source})
    else:
        draft.add_event("command_obeyed", data={"delivery": made.delivery, "command": made.kind, "by": made.by})
    if made.is_follow_up:
        document.followups += 1
        draft.add_event("followup_begun", data={"number": document.followups, "by": made.by, "delivery": made.delivery})
