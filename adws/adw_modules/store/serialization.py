"""
A document as text: strict JSON, one key a line, closed by a checksum.

Pure. What is read back is exactly what was written, or the text is refused: duplicate keys, NaN, values JSON cannot
hold and every changed byte are noticed. The checksum is the last key and covers the bytes before it, not their
meaning, so that white space counts too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import events as events_module
from adws.adw_modules import timestamps
from adws.adw_modules.errors import AdwError, StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock, ProjectedWrite, WorkflowSummary

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


#: Bytes a document may have unless the caller says otherwise.
MAX_BYTES = 16 * 1024 * 1024
#: Objects and lists inside each other; far more than any document has, and far less than any parser's own limit.
MAX_DEPTH = 100
#: The key that only this module writes and takes out again.
CHECKSUM_KEY = "checksum"

_TAIL_START = b',\n "checksum": "sha256:'
_TAIL_END = b'"\n}\n'
_TAIL_SIZE = len(_TAIL_START) + 64 + len(_TAIL_END)
_EMPTY_HEAD = b"{"
#: Bytes that `add_checksum` adds at most.
SEAL_BYTES = _TAIL_SIZE


class Seal(Enum):
    """What the checksum of a text says."""

    GOOD = "good"  #: every byte is as it was written
    BROKEN = "broken"  #: there is one, and it does not match
    ABSENT = "absent"  #: there is none, or not where adw writes it


class Unreadable(ValueError):
    """The text is not a JSON object as adw accepts it; the message is the reason."""


def add_checksum(body: bytes) -> bytes:
    """Return *body*, an indented JSON object, with its checksum as the last key."""
    if not body.endswith(b"\n}") and body != b"{}":
        raise ValueError("a text to be sealed is an indented JSON object")
    head = body[:-2] if body != b"{}" else _EMPTY_HEAD
    return head + _tail_of(head)


def verify_checksum(text: bytes) -> Seal:
    """Return what the checksum of *text* says."""
    for head_size in (len(text) - _TAIL_SIZE, len(_EMPTY_HEAD)):
        head = text[: max(head_size, 0)]
        if head and text[len(head) :] == _tail_of(head):
            return Seal.GOOD

    return Seal.BROKEN if b'"checksum": "sha256:' in text[-2 * _TAIL_SIZE :] else Seal.ABSENT


def _tail_of(head: bytes) -> bytes:
    start = _TAIL_START if head != _EMPTY_HEAD else _TAIL_START[1:]
    return b"%b%b%b" % (start, hashlib.sha256(head).hexdigest().encode("ascii"), _TAIL_END)


def parse(text: bytes, *, is_ours: bool = False) -> JsonObject:
    """
    Return the object in *text* without its checksum key; raise Unreadable with the reason.

    With *is_ours*, the caller vouches that adw wrote every byte: what adw never writes is not looked for.
    """
    try:
        data = (_PLAIN if is_ours else _STRICT).decode(text.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise Unreadable(f"not UTF-8 at byte {exc.start}") from exc
    except json.JSONDecodeError as exc:
        raise Unreadable(_why_not_json(text, exc)) from exc
    except RecursionError as exc:
        raise Unreadable("nested too deeply") from exc
    except Unreadable:
        raise
    except ValueError as exc:  # an integer with more digits than Python reads
        raise Unreadable(str(exc)) from exc
    if not isinstance(data, dict):
        raise Unreadable(f"the top level is {_kind(data)}, not an object")
    data.pop(CHECKSUM_KEY, None)

    return data


def _why_not_json(text: bytes, exc: json.JSONDecodeError) -> str:
    if not text.strip():
        return "the file is empty"
    return f"not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}"


def _object_without_duplicates(pairs: Sequence[tuple[str, JsonValue]]) -> JsonObject:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    keys = [key for key, _ in pairs]

    raise Unreadable(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")


def _refuse_constant(name: str) -> float:
    raise Unreadable(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise Unreadable(f"the number {text} is too large")
    return number


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object_without_duplicates, parse_constant=_refuse_constant, parse_float=_finite
)
_PLAIN = json.JSONDecoder()


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")


def to_bytes(data: Mapping[str, JsonValue]) -> bytes:
    """Return *data* as indented JSON; raise StateUnserialisable naming the value that would not come back the same."""
    if CHECKSUM_KEY in data:
        raise StateUnserialisable(f"the key {CHECKSUM_KEY!r} is written by adw itself: leave it out")
    plain = dict(data)
    _check(plain, path="", depth=1)
    try:
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, TypeError) as exc:  # an integer of thousands of digits
        raise StateUnserialisable(f"the data cannot be written as JSON: {exc}") from exc


def _check(value: object, *, path: str, depth: int) -> None:
    """Raise StateUnserialisable when *value* would not be the same after writing and reading."""
    if value is None or isinstance(value, bool | int):
        return
    if isinstance(value, str):
        _check_string(value, path)
    elif isinstance(value, float):
        _check_float(value, path)
    elif depth > MAX_DEPTH:
        raise StateUnserialisable(f"{path[:60]}... is nested more than {MAX_DEPTH} deep, or contains itself")
    elif isinstance(value, dict):
        _check_object(value, path, depth)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, path=f"{path}[{index}]", depth=depth + 1)
    else:
        kind = type(value).__name__
        raise StateUnserialisable(f"{path} is a {kind}, which would not come back the same: {_hint(value)}")


def _check_object(value: dict[object, object], path: str, depth: int) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            raise StateUnserialisable(f"{path or 'the document'} has the key {key!r}: keys must be strings")
        where = f"{path}.{key}" if path else key
        _check_string(key, where)
        _check(item, path=where, depth=depth + 1)


def _check_float(value: float, path: str) -> None:
    if not math.isfinite(value):
        raise StateUnserialisable(f"{path} is {value}, which JSON cannot hold: use null or a string")


def _check_string(value: str, path: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise StateUnserialisable(f"{path!a} holds half a character (a lone surrogate), which is not UTF-8") from exc


def _hint(value: object) -> str:
    if isinstance(value, tuple | set | frozenset):
        return "use a list"
    if hasattr(value, "isoformat"):
        return "write it as text, such as 2026-01-31T09:00:00.000000Z"
    return "use strings, numbers, booleans, null, lists and dicts"


# The next revision of a document: its fields, its events, its text.
#
# Writes nothing. The document that comes in is never changed; what comes out is a copy with the store's own fields set,
# and the very bytes that are to be stored.


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
        stamped = events_module.stamp(events, adw_id=document.adw_id, revision=revision, created_at=moment)
        stored = document.model_copy()
        stored.assign(revision=revision, fence=fence, updated_at=moment, outbox=self._outbox(outbox, stamped))
        body = self._text_of(stored)
        if self._scrub is not None:
            scrubbed = self._scrub(body)
            if scrubbed != body:  # seldom: then the document and its events are what is left of them
                body, stored = scrubbed, self._parse(parse(scrubbed))
                stamped = events_after(stored, revision - 1) if self._max_outbox != 0 else stamped
        if self._max_bytes is not None and len(body) + SEAL_BYTES > self._max_bytes:
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


def summary_of(document: WorkflowDocument) -> WorkflowSummary:
    """Return the line that lists show of *document*."""
    return WorkflowSummary(
        adw_id=document.adw_id,
        repository=document.repository,
        issue_number=document.issue_number,
        title=document.issue_title,
        workflow=document.workflow_name,
        state=document.current_state,
        revision=document.revision,
        created_at=document.created_at,
        updated_at=document.updated_at,
    )
