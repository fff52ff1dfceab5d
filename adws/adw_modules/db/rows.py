"""
Rows of the database as the nouns of the house, and back.

A database stores neither a NUL character nor half a surrogate pair, and both can stand in an issue's title: in the
columns made for lists they are replaced. The document itself is JSON text, where they are escaped or refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING

from adws.adw_modules.db import statements
from adws.adw_modules.db.session import Row
from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import IssueLock, Request, WorkflowSummary
from adws.adw_modules.repository_name import comparable
from adws.adw_modules.search_rules import TITLE_LENGTH
from adws.adw_modules.state_revision import title_of, workflow_of

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

_JSON_COLUMNS = ("result", "context", "data", "meta")
_NUMBER_COLUMNS = frozenset({"revision", "attempt_number", "iteration_index", "total_iterations", "duration"})
_TEXT_COLUMNS = tuple(
    name for name in statements.EVENT_COLUMNS if name not in _JSON_COLUMNS and name not in _NUMBER_COLUMNS
)
_texts_of = itemgetter(*_TEXT_COLUMNS)
#: Made once: json.dumps builds a new encoder for every call that does not use its defaults.
_encode = json.JSONEncoder(allow_nan=False).encode


def plain(text: str) -> str:
    """Return *text* as every database can store it."""
    if _is_plain(text):
        return text
    text = text.replace("\x00", "\ufffd")

    return text.encode("utf-8", "replace").decode("utf-8")


def _is_plain(text: str) -> bool:
    return text.isascii() and "\x00" not in text


def _are_plain(texts: Iterable[str | None]) -> bool:
    try:
        return _is_plain("".join(filter(None, texts)))
    except TypeError:  # in an outbox that was changed by hand anything can stand
        return False


def summary_params(summary: WorkflowSummary) -> dict[str, object]:
    """Return the columns of a list as parameters."""
    return _list_params(summary, title=summary.title, workflow=summary.workflow, state=summary.state)


def document_params(document: WorkflowDocument) -> dict[str, object]:
    """Return the columns of a list that *document* has, without the detour of a summary: each step needs them."""
    title, workflow = title_of(document), workflow_of(document)

    return _list_params(document, title=title, workflow=workflow, state=document.current_state)


def _list_params(
    line: WorkflowSummary | WorkflowDocument, *, title: str, workflow: str, state: str
) -> dict[str, object]:
    return {
        "adw_id": line.adw_id,
        "repository": plain(comparable(line.repository)),
        "issue_number": line.issue_number,
        "title": plain(title[:TITLE_LENGTH]),
        "workflow": plain(workflow),
        "state": state,
        "revision": line.revision,
        "created_at": line.created_at,
        "updated_at": line.updated_at,
    }


def to_summary(row: Row) -> WorkflowSummary:
    """Return the line of a list in a row of `statements.SUMMARY`."""
    adw_id, repository, issue_number, title, workflow, state, revision, created_at, updated_at, owner = row

    return WorkflowSummary(
        adw_id=adw_id,
        repository=repository,
        issue_number=issue_number,
        title=title,
        workflow=workflow,
        state=state,
        revision=revision,
        created_at=created_at,
        updated_at=updated_at,
        owner=owner,
    )


def event_params(event: Event) -> dict[str, object]:
    """Return a stamped event as parameters; raise StateUnserialisable when it holds what JSON cannot."""
    params: dict[str, object] = dict(event.__dict__)  # its fields are the columns
    if not _are_plain(_texts_of(params)):
        params.update((name, plain(str(params[name]))) for name in _TEXT_COLUMNS if params[name])
    for name in _JSON_COLUMNS:
        value = params[name]
        if value is None:
            params[name] = "null"
        elif value == {}:
            params[name] = "{}"
        else:
            params[name] = json_text(value, f"{name} of the event {event.event_type}")

    return params


def to_event(row: Row) -> Event:
    """Return the event in a row of `statements.EVENTS_OF_WORKFLOW`."""
    values = dict(zip(statements.EVENT_COLUMNS, row, strict=True))
    for name in _JSON_COLUMNS:
        values[name] = json.loads(values[name])

    return Event(**values)


def to_lock(row: Row) -> IssueLock:
    """Return the lock in a row of `statements.LOCK_HOLDER`."""
    repository, issue_number, adw_id, acquired_at = row

    return IssueLock(repository=repository, issue_number=issue_number, adw_id=adw_id, acquired_at=acquired_at)


def lock_params(lock: IssueLock) -> dict[str, object]:
    """Return the columns of a lock as parameters."""
    return {name: getattr(lock, name) for name in ("repository", "issue_number", "adw_id", "acquired_at")}


def to_request(row: Row) -> Request:
    """Return the request in a row of `statements.REQUESTS_OPEN`."""
    request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome = row

    return Request(
        request_id=request_id,
        adw_id=adw_id,
        kind=kind,
        payload=json.loads(payload),
        asked_by=asked_by,
        created_at=created_at,
        handled_at=handled_at,
        outcome=outcome,
    )


def json_text(value: object, what: str) -> str:
    """Return *value* as JSON text; raise StateUnserialisable, naming *what*, when it has no such form."""
    try:
        return _encode(value)
    except (ValueError, TypeError) as exc:
        raise StateUnserialisable(f"{what} is not JSON: {exc}") from exc
