"""
The workflow document, schema 3.0, and the draft of its next revision.

Unknown keys survive a round trip. Only `state_machine` assigns `current_state`. A document is validated once, when it
is loaded; documents built by adw itself are not validated again on save.
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
else:  # pydantic cannot resolve a recursive alias; JSON values are checked where the bytes are read
    JsonObject = dict[str, Any]


class Part(BaseModel):
    """Base of every part of a document; keeps unknown keys."""

    # By default pydantic silently writes NaN as null; as a constant it can be detected and rejected. Schemas are built
    # on first use, so that commands start faster.
    model_config = ConfigDict(extra="allow", populate_by_name=True, ser_json_inf_nan="constants", defer_build=True)
    #: The text that a store last wrote for this part, for `store.serialization.Serializer` alone. It belongs to this
    #: object only: copies start without it, and setting a field drops it.
    __slots__ = ("stored_text",)
    if TYPE_CHECKING:
        stored_text: ClassVar[tuple[object, bytes] | None]

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field, and drop the stored text."""
        object.__setattr__(self, "stored_text", None)
        super().__setattr__(name, value)

    def assign(self, **fields: object) -> None:
        """Set *fields*, which must have the right types, in one step; pydantic would assign them one by one, slowly."""
        object.__setattr__(self, "stored_text", None)
        values, names = self.__dict__, self.__pydantic_fields_set__
        values |= fields
        names |= {*fields}

    def changed(self, **fields: object) -> Self:
        """Return a copy with *fields*, of the right types. Faster than `model_copy`: each step makes five copies."""
        made = object.__new__(type(self))
        put = object.__setattr__
        put(made, "__dict__", {**self.__dict__, **fields})
        put(made, "__pydantic_extra__", {**(self.__pydantic_extra__ or {})})
        put(made, "__pydantic_fields_set__", {*self.__pydantic_fields_set__, *fields})
        put(made, "__pydantic_private__", None)  # parts have no private attributes
        put(made, "stored_text", None)

        return made


#: Returns a part's stored text; raises AttributeError if it was never set. Bypasses pydantic's attribute lookup.
stored_text_of: Callable[[Part], tuple[object, bytes] | None] = Part.__dict__["stored_text"].__get__


class HistoryEntry(Part):
    """One move along an edge of the state table."""

    from_state: str = Field(alias="from")
    to_state: str = Field(alias="to")
    timestamp: str
    metadata: JsonObject = Field(default_factory=dict)


class AttemptRecord(Part):
    """One attempt at a phase, recorded before it runs."""

    number: int  #: counts from 1 and never decreases
    round: int = 1
    status: str = "running"
    started_at: str
    ended_at: str | None = None
    owner: str | None = None
    fence: int = 0  #: fence of the lease under which it began
    deadline_at: str | None = None
    error: JsonObject | None = None  #: classified: category, class, message, advice, traceback
    duration: float | None = None  #: seconds of work, if the attempt ended normally
    waiting_since: str | None = None  #: set while it waits for work done elsewhere
    waited_seconds: float = 0.0  #: total time spent waiting for such work, not part of `duration`
    report: JsonObject | None = None  #: what its runner reported: summary, exit code, cost, output files, was_done
    process: JsonObject | None = None  #: recorded before the process executes anything
    model: str | None = None  #: chosen when the attempt began; None: the agent's own choice
    agent: JsonObject | None = None  #: name, provider, session_id, is_resumed, hashes of prompt and rules files
    shared: JsonObject | None = None  #: marks of the shared git directory before the attempt, and of its changes there
    leftovers: bool = False  #: all its work is committed: anything else it leaves in the worktree is discarded
    commit: str | None = None  #: head of the branch when its work was recorded; None: it changed nothing


class PhaseRecord(Part):
    """The record of one phase: counters, status and every attempt."""

    name: str
    state: str  #: the workflow state the phase runs under
    status: str = "queued"  #: queued running retry_wait waiting complete failed skipped interrupted suspended
    attempts_used: int = 0  #: in this round
    max_attempts: int = 5
    granted: int = 0  #: extra attempts granted by a person
    round: int = 1
    last_attempt_timestamp: str | None = None
    last_failure_reason: str | None = None
    terminal_reason: str | None = None
    retry_at: str | None = None
    wait_reason: str | None = None  #: why it waits until retry_at without a failed attempt: a quota, a circuit breaker
    result: JsonObject | None = None  #: output of its last success
    parks: int = 0  #: consecutive waits for a quota or a service, which use no attempt
    waits_for: dict[str, int] = Field(default_factory=dict)  #: service -> generation of its breaker at the failure
    wait_deadline_at: str | None = None  #: when to stop waiting for a service
    model: str | None = None  #: model the advisor chose for the next attempts
    doctor: list[JsonObject] = Field(default_factory=list)  #: requests to the advisor and its decisions, oldest first
    sent_back: JsonObject | None = None  #: what sent the work back to this phase for this round: phase, attempt, reason
    attempts: list[AttemptRecord] = Field(default_factory=list)


class Resource(Part):
    """An external effect, recorded before it is made."""

    key: str
    kind: str
    outcome: str = "intended"
    host: str | None = None
    undo: JsonObject = Field(default_factory=dict)


class WorkflowRef(Part):
    """The workflow definition, frozen when the workflow started."""

    name: str
    version: str = "1"
    phases: list[JsonObject] = Field(default_factory=list)
    demands: JsonObject = Field(default_factory=dict)  #: host and tags required of workers that continue it
    workload: JsonObject = Field(default_factory=dict)  #: values available in the templates of its steps
    base: str = ""  #: what a red gate on the base commit means; "": as configured
    run_phases: list[str] = Field(default_factory=list)  #: phases of the definition that a continuation runs; []: all
    earlier: list[JsonObject] = Field(
        default_factory=list
    )  #: earlier definitions: name, version, states, moves made until each ended


class Cost(Part):
    """Money spent so far, in US dollars, and tokens used."""

    total_usd: float = 0.0
    by_phase: dict[str, float] = Field(default_factory=dict)
    by_provider: dict[str, float] = Field(default_factory=dict)
    token_counts: dict[str, int] = Field(default_factory=dict)  #: input, output, cache_read, cache_write
    is_estimated: bool = False  #: part of it was calculated from a price table
    warned_at: float | None = None  #: the cap for which the warning at four fifths was given


#: Control characters (including NUL) and lone surrogates. Escape (0x1b) is kept: without it the rest of a terminal code
#: would stay in the text, perhaps inside a token, and redaction would no longer recognise the token.
_UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\ud800-\udfff]")


class FrozenIssue(Part):
    """The issue as it was when the workflow started."""

    title: str = ""
    body: str = ""
    author: str | None = None
    url: str | None = None
    labels: list[str] = Field(default_factory=list)

    def cleaned(self) -> FrozenIssue:
        """Return a copy without characters that commands, commits or databases reject; the title becomes one line."""
        title = " ".join(_UNPRINTED.sub(" ", self.title).split())

        return self.model_copy(update={"title": title, "body": _UNPRINTED.sub("", self.body)})


class RollbackRecord(Part):
    """A rollback that has begun: its steps and what blocks it."""

    reason: str = ""
    started_at: str | None = None
    steps: list[JsonObject] = Field(default_factory=list)
    blocked_by: list[str] = Field(default_factory=list)


class WorkflowDocument(Part):
    """Everything adw knows about one workflow."""

    state_version: str = CURRENT_VERSION
    adw_id: str
    issue_number: int | None  #: None: a workflow without an issue
    repository: str = ""  #: owner/name, or "" for the repository of this home
    revision: int = 0  #: grows by one with each write; 0: never written
    fence: int = 0  #: fence of the owner who wrote it

    current_state: str = "pending"
    resume_state: str | None = None  #: the phase that was left for PAUSED
    failed_phase: str | None = None  #: the state of the phase that failed
    furthest_failed: str | None = None  #: furthest phase that failed since retry_count was 0; its success resets it
    retry_count: int = 0
    retry_marks: int = 0  #: retries counted but not used yet
    max_retries: int = 3
    retries_granted: int = 0  #: the part of max_retries that a person added
    reworks: int = 0
    max_reworks: int = 3
    history_dropped: int = 0  #: number of older entries that only the event log has
    terminal_reason: str | None = None
    warnings: list[str] = Field(default_factory=list)
    pause_reason: str | None = None
    hints: list[JsonObject] = Field(default_factory=list)  #: instructions people gave: text, by, at
    max_total_attempts: int | None = None  #: attempt budget of the whole workflow
    max_minutes: float | None = None  #: time budget for work, excluding waits
    doctor_calls: int = 0  #: advisor calls over all phases
    replans: int = 0
    max_cost_usd: float | None = None  #: cap set by a person for this workflow; None: the configured cap

    cost: Cost = Field(default_factory=Cost)
    pr_merged: bool = False  #: once merged, nothing is rolled back

    branch_name: str | None = None
    plan_file: str | None = None
    worktree_path: str | None = None
    backend_port: int | None = None
    frontend_port: int | None = None
    pr_number: int | None = None
    issue_class: str | None = None
    model_set: str | None = None
    all_adws: list[str] = Field(default_factory=list)
    deliveries: list[str] = Field(default_factory=list)  #: ids of the newest deliveries already applied here
    continues: str | None = None  #: the workflow whose branch and pull request this one continues
    followups: int = 0  #: follow-up rounds after a review or red checks, including those of `continues`

    created_at: str
    updated_at: str
    # Fields that grow come last, see `PARTS`.
    outbox: list[JsonObject] = Field(default_factory=list)  #: events that may not be in the database yet
    workflow: WorkflowRef | None = None
    issue: FrozenIssue | None = None
    rollback: RollbackRecord | None = None
    resources: list[Resource] = Field(default_factory=list)
    state_history: list[HistoryEntry] = Field(default_factory=list)
    phases: list[PhaseRecord] = Field(default_factory=list)

    @property
    def issue_title(self) -> str:
        """The title shown in lists, or "" for a workflow without an issue."""
        return self.issue.title if self.issue is not None else ""

    @property
    def workflow_name(self) -> str:
        """The name of the workflow definition, or "" if none is recorded."""
        return self.workflow.name if self.workflow is not None else ""

    def add_history(self, moves: Sequence[JsonObject], *, keep: int) -> None:
        """Append *moves* and keep the last *keep* entries; for the state machine, which loads without pydantic."""
        entries = [*self.state_history, *map(HistoryEntry.model_validate, moves)]
        self.assign(state_history=entries[-keep:])

    def to_bytes(self, *, indent: int | None = 1) -> bytes:
        """Return `to_bytes(self)`, so that callers need not import this module."""
        return to_bytes(self, indent=indent)

    def to_plain(self) -> JsonObject:
        """Return a copy of the document as plain JSON."""
        data: JsonObject = json.loads(to_bytes(self, indent=None))

        return data

    def begin_rollback(self) -> None:
        """Record that a rollback has begun, unless it is recorded already."""
        if self.rollback is None:
            self.rollback = RollbackRecord()


#: The last fields of a document, after its outbox: parts and lists of parts. A store serialises only changed ones.
PARTS = ("workflow", "issue", "rollback", "resources", "state_history", "phases")
#: Fields of `PARTS` that are one part or null.
SINGLE_PARTS = frozenset({"workflow", "issue", "rollback"})


def parse(data: Mapping[str, JsonValue]) -> WorkflowDocument:
    """Return the document in *data*, which must have the current version; raise StateInvalid naming every bad field."""
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
    """Return the document in a database row's text, or None if it is unreadable; `adw db check` reports such rows."""
    try:
        return WorkflowDocument.model_validate_json(text)
    except ValidationError:
        return None


def to_bytes(document: WorkflowDocument, *, indent: int | None = 1) -> bytes:
    """
    Return *document* as JSON text: one key per line for people and grep, or all on one line if *indent* is None.

    Raises StateUnserialisable for values that JSON cannot represent, including NaN and the infinities.
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
    """Return one part of a document as JSON text, without the fields *exclude*; does not check for constants."""
    return part.__pydantic_serializer__.to_json(
        part, indent=indent, by_alias=True, exclude=exclude, exclude_none=exclude_none
    )


def object_to_json(data: JsonObject | Sequence[JsonObject], *, indent: int | None) -> bytes:
    """Return a plain object, or a list of them, as JSON text; does not check for constants."""
    return to_json(data, indent=indent, inf_nan_mode="constants")


def refuse_constants(adw_id: str, text: bytes) -> None:
    """Raise StateUnserialisable if *text*, otherwise valid JSON, has NaN or an infinity as a value."""
    # These names also occur inside strings, so a match only triggers a full check. Searching for one byte is ten times
    # as fast as searching for a name.
    if (b"N" in text and b"NaN" in text) or (b"I" in text and b"Infinity" in text):
        json.loads(text, parse_constant=lambda word: _refuse_constant(adw_id, word))


def _refuse_constant(adw_id: str, word: str) -> NoReturn:
    raise StateUnserialisable(
        f"the document of {adw_id} holds {word}, which is not JSON: store a number, null or a text"
    )


# --- the draft of the next revision ----------------------------------------------------------------------------
#
# A draft collects changes, moves and their events for one write. The original document is never changed, and the state
# changes only through the machine.


class Draft:
    """A document being changed; `document` and `events` are stored in one write."""

    def __init__(
        self,
        document: WorkflowDocument,
        machine: WorkflowStateMachine,
        *,
        now: Callable[[], datetime],
        max_cost_usd: float | None = None,
        queue: JsonObject | None = None,
    ) -> None:
        """*queue* says which worker makes the changes, and for which run: `queue_id` and `worker_id`."""
        self.document = document.changed(phases=list(document.phases))
        self.machine = machine
        self.now = now
        self.max_cost_usd = max_cost_usd  #: configured cap for documents without their own; None: no cap
        self._meta: JsonObject = {"queue": queue} if queue else {}
        self.events: list[Event] = []
        self.at = now()  #: the timestamp of everything in this write
        self.text = timestamps.to_text(self.at)

    def finished(self) -> WorkflowDocument:
        """Write the machine's state into the document and return it."""
        self.machine.write_into(self.document)

        return self.document

    # --- state -------------------------------------------------------------------------------------------------

    def move(self, state: WorkflowState, metadata: Mapping[str, JsonValue] | None = None) -> None:
        """Move the workflow to *state*; do nothing if it is there already."""
        before = self.machine.current_state
        if before is state:
            return
        self.machine.transition(state, metadata)
        self.record_transition(before, metadata)

    def advance_to(self, state: WorkflowState) -> None:
        """
        Advance to *state* through the states in between, whose phases were all skipped.

        The table has no move that skips a state, and a skipped state must appear in the history.
        """
        start, table = self.machine.current_state, self.machine.table
        if state is start:
            return
        if state not in table[start]:
            for passed in sorted((known for known in table if _is_between(start, known, state)), key=rank):
                self.move(passed, {"reason": "passed_over"})
        self.move(state)

    def record_transition(self, before: WorkflowState, metadata: Mapping[str, JsonValue] | None = None) -> None:
        """Add the event of a move that the machine made from *before*."""
        after = self.machine.current_state
        start, end = before._value_, after._value_
        data: JsonObject = {"from": start, "to": end, **(metadata or {})}
        self.events.append(Event(event_type="state_changed", status=end, data=data))

    # --- phases ------------------------------------------------------------------------------------------------

    def phase(self, index: int) -> PhaseRecord:
        """Return the record of a phase in this draft."""
        return self.document.phases[index]

    def change_phase(self, index: int, **changes: object) -> PhaseRecord:
        """Replace fields of a phase's record."""
        record = self.document.phases[index].changed(**changes)
        self.document.phases[index] = record

        return record

    def end_attempt(
        self, index: int, status: str, *, phase: Mapping[str, object] = MappingProxyType({}), **changes: object
    ) -> AttemptRecord:
        """Close the newest attempt of a phase, and change fields of the *phase* record with it."""
        record = self.document.phases[index]
        ended = record.attempts[-1].changed(status=status, ended_at=self.text, deadline_at=None, **changes)
        self.change_phase(index, attempts=[*record.attempts[:-1], ended], **phase)

        return ended

    def mark_attempt(self, index: int, **changes: object) -> None:
        """Change fields of the newest attempt of a phase."""
        record = self.document.phases[index]
        self.change_phase(index, attempts=[*record.attempts[:-1], record.attempts[-1].changed(**changes)])

    # --- events ------------------------------------------------------------------------------------------------

    def add_event(
        self, event_type: str, index: int | None = None, *, data: JsonObject | None = None, **fields: Any
    ) -> None:
        """Add an event, about the phase at *index* if given."""
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
    """Say whether *state* comes after *start* and before *end* in the pipeline."""
    return rank(start) < rank(state) < rank(end)


#: How many deliveries a document remembers: more than can be in progress at once.
REMEMBERED = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Who asked for a change. Stored with the change, so that it is applied only once and the history names who."""

    delivery: str  #: id of the delivery, or of a person's click
    kind: str = ""
    by: str = ""
    is_follow_up: bool = False
    source: str = ""  #: the interface a person used, and from where; "": the mark comes from a delivery

    def to_json(self) -> JsonObject:
        """Return the mark as sent in a request to the owner of a workflow."""
        return {
            "delivery": self.delivery,
            "kind": self.kind,
            "by": self.by,
            "is_follow_up": self.is_follow_up,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, data: JsonValue) -> Mark | None:
        """Return the mark that `to_json` wrote, or None if *data* is not a mark."""
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
    """Say whether the change requested by the delivery of *mark* is already in *document*."""
    return mark is not None and mark.delivery in document.deliveries


def mark(draft: Draft, made: Mark | None) -> None:
    """Record once who asked for this change; None: there is nobody to name."""
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
