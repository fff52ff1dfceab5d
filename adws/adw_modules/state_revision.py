"""
The next revision of a document: its fields, its events, its text.

Writes nothing. The document that comes in is never changed; what comes out is a copy with the store's own fields set,
and the very bytes that are to be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import events as event_words
from adws.adw_modules import state_text, timestamps
from adws.adw_modules.errors import AdwError, StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Clock, ProjectedWrite, WorkflowSummary
from adws.adw_modules.json_value import JsonObject, JsonValue

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


class Revision(NamedTuple):
    """A revision, ready to be written."""

    document: WorkflowDocument
    body: bytes  #: its JSON text, without the checksum
    events: tuple[Event, ...]  #: those that happened with it


class RevisionBuilder:
    """
    Builds revisions.

    *parse*, *dump* and *scrub* are those of the store. *max_outbox* is how many events a document keeps: None for all
    that are not confirmed, 0 where events are stored beside the document. *max_bytes* None: a document of any size.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        parse: Callable[[Mapping[str, JsonValue]], WorkflowDocument],
        dump: Callable[[WorkflowDocument], bytes] | None,
        scrub: Callable[[bytes], bytes] | None,
        max_bytes: int | None = None,
        max_outbox: int | None = None,
    ) -> None:
        self._clock = clock
        self._parse = parse
        self._dump = dump or methodcaller("to_bytes")
        self._scrub = scrub
        self._max_bytes = max_bytes
        self._max_outbox = max_outbox

    def build(
        self,
        document: WorkflowDocument,
        *,
        revision: int,
        fence: int,
        events: Sequence[Event],
        outbox: Sequence[JsonObject] = (),
    ) -> Revision:
        """Return *document* as *revision* under *fence*, with *events* stamped and added to *outbox*."""
        moment = timestamps.to_text(self._clock.now())
        stamped = event_words.stamp(events, adw_id=document.adw_id, revision=revision, created_at=moment)
        stored = document.model_copy()
        stored.assign(revision=revision, fence=fence, updated_at=moment, outbox=self._outbox(outbox, stamped))
        body = self._text_of(stored)
        if self._scrub is not None:
            scrubbed = self._scrub(body)
            if scrubbed != body:  # seldom: then the document and its events are what is left of them
                body, stored = scrubbed, self._parse(state_text.parse(scrubbed))
                stamped = events_after(stored, revision - 1) if self._max_outbox != 0 else stamped
        if self._max_bytes is not None and len(body) + state_text.SEAL_BYTES > self._max_bytes:
            size = f"{len(body)} bytes, the limit is {self._max_bytes}"
            raise StateUnserialisable(f"the document of {document.adw_id} has {size}: keep large texts in files")

        return Revision(stored, body, stamped)

    def _outbox(self, before: Sequence[JsonObject], stamped: Sequence[Event]) -> list[JsonObject]:
        if self._max_outbox == 0:
            return []
        waiting = [*before, *(event.to_json() for event in stamped)]

        return waiting if self._max_outbox is None else waiting[-self._max_outbox :]

    def as_it_is(self, document: WorkflowDocument) -> Revision:
        """Return *document*, as it was read from its file, as the revision that is stored there."""
        return Revision(document, self._text_of(document), ())

    def _text_of(self, document: WorkflowDocument) -> bytes:
        try:
            return self._dump(document)
        except AdwError:
            raise
        except (ValueError, TypeError) as exc:
            raise StateUnserialisable(f"the document of {document.adw_id} cannot be written as JSON: {exc}") from exc


def revision_of(entry: JsonObject) -> int:
    """Return the revision an event of the outbox belongs to."""
    revision = entry.get("revision", 0)
    return revision if isinstance(revision, int) else 0


def waiting_after(outbox: Sequence[JsonObject], revision: int) -> list[JsonObject]:
    """Return what of *outbox* came with a later revision than *revision*."""
    if not outbox or revision_of(outbox[0]) > revision:  # it is in the order of the revisions
        return list(outbox)

    return [entry for entry in outbox if revision_of(entry) > revision]


def events_after(document: WorkflowDocument, revision: int) -> tuple[Event, ...]:
    """Return the events of the outbox that came with a later revision than *revision*."""
    return tuple(map(Event.from_json, waiting_after(document.outbox, revision)))


def projected(revision: Revision, events: tuple[Event, ...]) -> ProjectedWrite:
    """Return what the database's copy has to follow."""
    document = revision.document
    return ProjectedWrite(
        adw_id=document.adw_id,
        revision=document.revision,
        fence=document.fence,
        body=revision.body,
        summary=summary_of(document),
        events=events,
    )


def title_of(document: WorkflowDocument) -> str:
    """Return the title that lists show, "" for a workflow without an issue."""
    return document.issue.title if document.issue is not None else ""


def workflow_of(document: WorkflowDocument) -> str:
    """Return the name of the workflow that *document* runs, "" when none is written down."""
    return document.workflow.name if document.workflow is not None else ""


def summary_of(document: WorkflowDocument) -> WorkflowSummary:
    """Return the line that lists show of *document*."""
    return WorkflowSummary(
        adw_id=document.adw_id,
        repository=document.repository,
        issue_number=document.issue_number,
        title=title_of(document),
        workflow=workflow_of(document),
        state=document.current_state,
        revision=document.revision,
        created_at=document.created_at,
        updated_at=document.updated_at,
    )
