"""
`ADWState`: the state of one workflow, for scripts and library users.

A thin facade of store and ownership. Every write goes through `Ownership.own`, so a live owner is never overwritten;
fields that only the state machine or the store may set are refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from adws.adw_modules import default_home, timestamps
from adws.adw_modules import document as document_module
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import StateConflict, UsageError
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue, check_adw_id
from adws.adw_modules.interfaces import LoadNotice, Page, PageQuery, WorkflowSummary
from adws.adw_modules.ownership.issue_locks import check_issue_number
from adws.adw_modules.store import serialization

if TYPE_CHECKING:
    import logging

    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.app import Home

_STORE = "the store sets it with each revision"
_MACHINE = "the state machine sets it"

#: Fields that library users may not set -> why.
RESERVED_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "adw_id": "an id never changes",
        "state_version": "migrations set it",
        "revision": _STORE,
        "fence": _STORE,
        "outbox": _STORE,
        "checksum": _STORE,
        "updated_at": _STORE,
        "created_at": "it is set once",
        "issue_number": "the issue lock belongs to it",
        "repository": "the issue lock belongs to it",
        "current_state": _MACHINE,
        "resume_state": _MACHINE,
        "failed_phase": _MACHINE,
        "furthest_failed": _MACHINE,
        "retry_count": _MACHINE,
        "retry_marks": _MACHINE,
        "retries_granted": _MACHINE,
        "reworks": _MACHINE,
        "terminal_reason": _MACHINE,
        "state_history": _MACHINE,
        "history_dropped": _MACHINE,
        "rollback": "a rollback sets it",
    }
)


class ADWState:
    """The state of one workflow as last loaded or saved."""

    def __init__(
        self,
        document: WorkflowDocument | str | None = None,
        *_others: object,
        home: Home | None = None,
        notices: tuple[LoadNotice, ...] = (),
        **_fields: object,
    ) -> None:
        """Called by `load` and `create`; raise UsageError naming these two for any other call."""
        if not isinstance(document, WorkflowDocument) or home is None or _others or _fields:
            adw_id = repr(document) if isinstance(document, str) else "adw_id"
            raise UsageError(
                f"ADWState(...) reads and makes nothing: use ADWState.load({adw_id}) for a workflow that exists, and "
                "ADWState.create(issue_number=...) for a new one"
            )
        self._document = document
        self._home = home
        self.notices = notices  #: notices of the loading

    @classmethod
    def create(
        cls,
        issue_number: int | None = None,
        *,
        adw_id: str | None = None,
        repository: str = "",
        home: Home | None = None,
        **fields: JsonValue,
    ) -> Self:
        """
        Create a workflow for *issue_number*, store it together with its issue lock, and return it.

        The defaults are a new *adw_id* and the *repository* of the home. *fields* are set as by `update`. The workflow
        has no phases and no worker runs it: use `adw run` for that. Raises IssueLocked if another workflow has the
        issue, StateExists if the id is taken, and UsageError and StateInvalid as `update` does.
        """
        in_use = home or default_home.get()
        _refuse_reserved(fields)
        now = timestamps.to_text(in_use.clock.now())
        document = document_module.parse(
            {
                **fields,
                "adw_id": check_adw_id(in_use.clock.token()[:8] if adw_id is None else adw_id),
                "issue_number": None if issue_number is None else check_issue_number(issue_number),
                "repository": repository,
                "created_at": now,
                "updated_at": now,
            }
        )

        return cls(in_use.ownership.leave(document), home=in_use)

    @classmethod
    def load(cls, adw_id: str, logger: logging.Logger | None = None, *, home: Home | None = None) -> Self:
        """
        Return the last valid revision, never None; raise StateNotFound or StateCorrupt.

        Notices (migrated, recovered, changed by hand) are in `notices` and are logged to *logger*.
        """
        in_use = home or default_home.get()
        loaded = in_use.store.load(check_adw_id(adw_id))
        if logger is not None:
            for notice in loaded.notices:
                facts = {"action": f"state_{notice.kind}", "path": notice.path, "reason": notice.reason}
                logger.warning("State loaded with a notice", extra=facts)

        return cls(loaded.document, home=in_use, notices=loaded.notices)

    @property
    def adw_id(self) -> str:
        """The id of the workflow."""
        return self._document.adw_id

    @property
    def document(self) -> WorkflowDocument:
        """The document; change its fields and call `save`, or use `update`."""
        return self._document

    @property
    def data(self) -> JsonObject:
        """A copy of the document as plain JSON; changes to it have no effect."""
        return self._document.to_plain()

    def get(self, key: str, default: JsonValue = None) -> JsonValue:
        """Return the value of *key*, known to adw or not, or *default* if it is missing or null."""
        value = self.data.get(key)
        return default if value is None else value

    def save(self) -> Self:
        """
        Store the changes made to `document` under ownership; without changes nothing is written.

        Raises StateConflict if the workflow was written since it was loaded, WorkflowBusy if it has a live owner,
        UsageError for a changed reserved field, StateInvalid for a value of the wrong type.
        """
        with self._home.ownership.own(self.adw_id) as owned:
            if owned.document.revision != self._document.revision:
                raise StateConflict(self.adw_id, self._document.revision, owned.document.revision)
            changes = _difference(owned.document.to_plain(), self._document.to_plain())
            self._document = _store(owned, changes)

        return self

    def update(self, **changes: JsonValue) -> Self:
        """
        Change fields of the newest revision and store it: load, change and save in one block of ownership.

        Unknown keys are kept. Unsaved changes to `document` are dropped. Raises UsageError for reserved fields,
        StateInvalid for a value of the wrong type, WorkflowBusy if the workflow has a live owner.
        """
        _refuse_reserved(changes)
        with self._home.ownership.own(self.adw_id) as owned:
            self._document = _store(owned, changes)

        return self

    @staticmethod
    def find_by_issue(
        issue_number: int, repository: str | None = None, *, home: Home | None = None
    ) -> tuple[WorkflowSummary, ...]:
        """Return the workflows of an issue, newest first, without reading their documents."""
        return (home or default_home.get()).catalogue.find_by_issue(issue_number, repository)

    @staticmethod
    def list(query: PageQuery | None = None, *, home: Home | None = None) -> Page:
        """Return one page of workflows, newest first; its cost does not grow with their number."""
        return (home or default_home.get()).catalogue.page(query or PageQuery())


def _difference(before: JsonObject, after: JsonObject) -> JsonObject:
    return {key: after.get(key) for key in {**before, **after} if before.get(key) != after.get(key)}


def _refuse_reserved(changes: Mapping[str, JsonValue]) -> None:
    for key in changes:
        if key in RESERVED_FIELDS:
            raise UsageError(f"{key} cannot be set here: {RESERVED_FIELDS[key]}")
    serialization.to_bytes(changes)  # refuses, by name, values that would not be read back unchanged


def _store(owned: OwnedWorkflow, changes: JsonObject) -> WorkflowDocument:
    """Store *changes*, checked field by field, as the next revision; return the stored document."""
    _refuse_reserved(changes)
    before = owned.document.to_plain()
    if not _difference(before, {**before, **changes}):
        return owned.document
    changed = document_module.parse({**before, **changes})
    event = Event(event_type="state_set", data={"old": {key: before.get(key) for key in changes}, "new": changes})

    return owned.save(changed, events=(event,))
