"""
Documents, their list and their events in memory.

`MemoryStore` keeps the JSON text, not the object, so what a test loads went through the same serialiser as on disk. It
passes the same contract suite as the stores that are used for real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adws.adw_modules import document as documents
from adws.adw_modules import events as event_module
from adws.adw_modules import search_rules, timestamps
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import Fenced, StateConflict, StateExists, StateNotFound, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, LoadedState, Page, PageQuery, PeekedState, WorkflowSummary
from adws.adw_modules.repository_name import in_home
from adws.adw_modules.state_revision import summary_of
from adws.testing.clock import FakeClock


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    body: bytes
    revision: int
    fence: int


class MemoryStore:
    """A `StateStore` without a disk: documents are gone when it is."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or FakeClock()
        self._guard = threading.Lock()
        self._stored: dict[str, _Stored] = {}
        self._events: dict[str, list[Event]] = {}
        self._fenced_out: dict[str, int] = {}

    def create(self, document: WorkflowDocument, *, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* as revision 1; raise StateExists when its id is taken, Fenced as for `save`."""
        adw_id = check_adw_id(document.adw_id)
        with self._guard:
            if adw_id in self._stored:
                raise StateExists(adw_id)
            if document.fence <= self._fenced_out.get(adw_id, -1):
                raise Fenced(adw_id, document.fence)
            return self._put(document, revision=1, fence=document.fence, events=events)

    def load(self, adw_id: str) -> LoadedState:
        """Return the stored document, parsed afresh."""
        return LoadedState(document=documents.parse(self.peek(adw_id).data))

    def peek(self, adw_id: str) -> PeekedState:
        """Return the stored document as plain JSON."""
        return PeekedState(data=json.loads(self._find(adw_id).body))

    def save(self, document: WorkflowDocument, *, fence: int, events: Sequence[Event] = ()) -> WorkflowDocument:
        """Store *document* with *events* as the next revision."""
        adw_id = check_adw_id(document.adw_id)
        with self._guard:
            stored = self._find(adw_id)
            if fence < stored.fence:
                raise Fenced(adw_id, fence, stored.fence)
            if fence <= self._fenced_out.get(adw_id, -1):
                raise Fenced(adw_id, fence)
            if document.revision != stored.revision:
                raise StateConflict(adw_id, document.revision, stored.revision)
            return self._put(document, revision=stored.revision + 1, fence=fence, events=events)

    def fence_out(self, adw_id: str, *, fence: int) -> None:
        """Make every write under *fence* or a lower one fail from now on."""
        check_adw_id(adw_id)
        with self._guard:
            self._fenced_out[adw_id] = max(fence, self._fenced_out.get(adw_id, -1))

    def sweep(self, adw_id: str) -> None:
        """Do nothing: there are no left-overs in memory."""
        check_adw_id(adw_id)

    def exists(self, adw_id: str) -> bool:
        """Say whether there is a document."""
        return check_adw_id(adw_id) in self._stored

    def ids(self) -> Iterator[str]:
        """Yield the id of every document."""
        yield from tuple(self._stored)

    def events_of(self, adw_id: str) -> tuple[Event, ...]:
        """Return the events stored with the document so far, in order."""
        return tuple(self._events.get(check_adw_id(adw_id), ()))

    def forget(self, adw_id: str) -> None:
        """Take the document away, as a lost disk would."""
        with self._guard:
            self._stored.pop(adw_id, None)

    def _find(self, adw_id: str) -> _Stored:
        stored = self._stored.get(check_adw_id(adw_id))
        if stored is None:
            raise StateNotFound(adw_id)
        return stored

    def _put(
        self, document: WorkflowDocument, *, revision: int, fence: int, events: Sequence[Event]
    ) -> WorkflowDocument:
        moment = timestamps.to_text(self._clock.now())
        stamped = event_module.stamp(events, adw_id=document.adw_id, revision=revision, created_at=moment)
        changes = {"revision": revision, "fence": fence, "updated_at": moment, "outbox": []}
        stored = document.model_copy(update=changes)
        self._stored[document.adw_id] = _Stored(body=documents.to_bytes(stored), revision=revision, fence=fence)
        self._events.setdefault(document.adw_id, []).extend(stamped)

        return stored


class MemoryCatalogue:
    """A `Catalogue` over a `MemoryStore`."""

    def __init__(self, store: MemoryStore, *, repository: str = "") -> None:
        """List the documents of *store*; *repository* is the one that "" stands for in its home."""
        self._store = store
        self._repository = repository

    def page(self, query: PageQuery) -> Page:
        """Return one page, newest first."""
        if query.limit < 1:
            raise UsageError(f"a page needs a limit of at least 1, not {query.limit}")
        rows = [row for row in self._newest_first() if self._matches(row, query)]
        if query.cursor is not None:
            rows = [row for row in rows if _cursor(row) < query.cursor]
        shown = tuple(rows[: query.limit])

        return Page(rows=shown, next_cursor=_cursor(shown[-1]) if len(rows) > len(shown) else None)

    def find_by_issue(self, issue_number: int, repository: str | None = None) -> tuple[WorkflowSummary, ...]:
        """Return the workflows of an issue, newest first."""
        query = PageQuery(issue_number=issue_number, repository=repository)
        return tuple(row for row in self._newest_first() if self._matches(row, query))

    def _newest_first(self) -> list[WorkflowSummary]:
        found = [summary_of(self._store.load(adw_id).document) for adw_id in self._store.ids()]
        return sorted(found, key=_cursor, reverse=True)

    def _matches(self, row: WorkflowSummary, query: PageQuery) -> bool:
        if query.repository is not None and self._key(query.repository) != self._key(row.repository):
            return False
        if not search_rules.fits(search_rules.words_in(query.search), row):
            return False
        wanted = ((query.state, row.state), (query.issue_number, row.issue_number), (query.workflow, row.workflow))

        return all(asked is None or asked == found for asked, found in wanted)

    def _key(self, repository: str) -> str:
        return in_home(repository, self._repository)


class MemoryEventLog:
    """An `EventLog` over a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def of_workflow(self, adw_id: str, *, after: str | None = None, limit: int = 1000) -> tuple[Event, ...]:
        """Return the events of a workflow in the order they happened, those after event *after*."""
        return _behind(self._store.events_of(adw_id), after, adw_id)[:limit]

    def newest(self, adw_id: str, *, before: str | None = None, limit: int = 50) -> tuple[Event, ...]:
        """Return the events of a workflow, the newest first, those before event *before*."""
        return _behind(self._store.events_of(adw_id)[::-1], before, adw_id)[:limit]


def _behind(events: tuple[Event, ...], event_id: str | None, adw_id: str) -> tuple[Event, ...]:
    """Return those of *events* that come behind the one of that id, all of them for None."""
    if event_id is None:
        return events
    keys = [event.event_id for event in events]
    if event_id not in keys:
        raise UsageError(f"workflow {adw_id} has no event {event_id}")

    return events[keys.index(event_id) + 1 :]


def _cursor(row: WorkflowSummary) -> str:
    return f"{row.created_at} {row.adw_id}"
