"""
The next revision of a document: its fields, its events, its text.

Writes nothing. The document that comes in is never changed; what comes out is a copy with the store's own fields set,
and the very bytes that are to be stored.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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
    """Builds revisions; *max_outbox* is how many events a document keeps, None: all that are not confirmed."""

    def __init__(
        self,
        *,
        clock: Clock,
        parse: Callable[[Mapping[str, JsonValue]], WorkflowDocument],
        dump: Callable[[WorkflowDocument], bytes] | None,
        scrub: Callable[[bytes], bytes] | None,
        max_bytes: int,
        max_outbox: int | None,
    ) -> None:
        self._clock = clock
        self._parse = parse
        self._dump = dump or _default_dump
        self._scrub = scrub
        self._max_bytes = max_bytes
        self._max_outbox = max_outbox

    def build(
        self,
        document: WorkflowDocument,
        *,
        revision: int,
        fence: int,
        outbox: list[JsonObject],
        events: Sequence[Event],
    ) -> Revision:
        """Return *document* as *revision* under *fence*, with *events* stamped and added to *outbox*."""
        moment = timestamps.to_text(self._clock.now())
        stamped = event_words.stamp(events, adw_id=document.adw_id, revision=revision, created_at=moment)
        waiting = outbox + [event.to_json() for event in stamped]
        if self._max_outbox is not None:
            waiting = waiting[-self._max_outbox :]
        changes = {"revision": revision, "fence": fence, "updated_at": moment, "outbox": waiting}
        stored = document.model_copy(update=changes)
        body = self._text_of(stored)
        if self._scrub is not None:
            scrubbed = self._scrub(body)
            if scrubbed != body:  # seldom: then the document and its events are what is left of them
                body, stored = scrubbed, self._parse(state_text.parse(scrubbed))
                stamped = events_after(stored, revision - 1)
        if len(body) + state_text.SEAL_BYTES > self._max_bytes:
            size = f"{len(body)} bytes, the limit is {self._max_bytes}"
            raise StateUnserialisable(f"the document of {document.adw_id} has {size}: keep large texts in files")

        return Revision(stored, body, stamped)

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


def _default_dump(document: WorkflowDocument) -> bytes:
    # Who has a document to save has loaded its module already; viewers never come here.
    text: bytes = importlib.import_module("adws.adw_modules.document").to_bytes(document)
    return text


def revision_of(entry: JsonObject) -> int:
    """Return the revision an event of the outbox belongs to."""
    revision = entry.get("revision", 0)
    return revision if isinstance(revision, int) else 0


def events_after(document: WorkflowDocument, revision: int) -> tuple[Event, ...]:
    """Return the events of the outbox that came with a later revision than *revision*."""
    return tuple(Event.from_json(entry) for entry in document.outbox if revision_of(entry) > revision)


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


def summary_of(document: WorkflowDocument) -> WorkflowSummary:
    """Return the line that lists show of *document*."""
    return WorkflowSummary(
        adw_id=document.adw_id,
        repository=document.repository,
        issue_number=document.issue_number,
        title=document.issue.title if document.issue is not None else "",
        workflow=document.workflow.name if document.workflow is not None else "",
        state=document.current_state,
        revision=document.revision,
        created_at=document.created_at,
        updated_at=document.updated_at,
    )
