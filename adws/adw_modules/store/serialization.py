"""
A document as text: strict JSON, one key per line, ending with a checksum.

Pure. A text is read back exactly as written or refused: duplicate keys, NaN, values that JSON cannot hold and every
changed byte are detected. The checksum is the last key. It covers the bytes before it, so white space counts too.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from adws.adw_modules import document as document_module
from adws.adw_modules import events as events_module
from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Params
from adws.adw_modules.document import Part, PhaseRecord, WorkflowDocument, part_to_json, stored_text_of
from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.interfaces import Clock, WorkflowSummary

#: Default maximum size of a document in bytes.
MAX_BYTES = 16 * 1024 * 1024
#: Maximum nesting depth: far more than any document has, and far less than any parser's own limit.
MAX_DEPTH = 100
#: The key that only this module adds and removes.
CHECKSUM_KEY = "checksum"

_TAIL_START = b',\n "checksum": "sha256:'
_TAIL_END = b'"\n}\n'
_TAIL_SIZE = len(_TAIL_START) + 64 + len(_TAIL_END)
_EMPTY_HEAD = b"{"
#: Maximum number of bytes that `add_checksum` adds.
SEAL_BYTES = _TAIL_SIZE


class Seal(Enum):
    """The result of checking a text's checksum."""

    GOOD = "good"  #: every byte is as written
    BROKEN = "broken"  #: there is a checksum that does not match
    ABSENT = "absent"  #: there is no checksum, or not where adw writes it


class Unreadable(ValueError):
    """The text is not a JSON object that adw accepts; the message is the reason."""


def add_checksum(body: bytes) -> bytes:
    """Return *body*, an indented JSON object, with its checksum as the last key."""
    if not body.endswith(b"\n}") and body != b"{}":
        raise ValueError("a text to be sealed is an indented JSON object")
    head = body[:-2] if body != b"{}" else _EMPTY_HEAD
    return head + _tail_of(head)


def verify_checksum(text: bytes) -> Seal:
    """Return whether the checksum of *text* is good, broken or absent."""
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

    *is_ours* says that adw wrote every byte: checks for things adw never writes are skipped.
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
    except ValueError as exc:  # an integer with more digits than Python parses
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
    """Return *data* as indented JSON; raise StateUnserialisable naming a value that would not survive a round trip."""
    if CHECKSUM_KEY in data:
        raise StateUnserialisable(f"the key {CHECKSUM_KEY!r} is written by adw itself: leave it out")
    plain = dict(data)
    _check(plain, path="", depth=1)
    try:
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, TypeError) as exc:  # an integer with thousands of digits
        raise StateUnserialisable(f"the data cannot be written as JSON: {exc}") from exc


def _check(value: object, *, path: str, depth: int) -> None:
    """Raise StateUnserialisable if *value* would change when written and read back."""
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


# --- the next revision of a document: fields, events, text -----------------------------------------------------
#
# Writes nothing. The given document is never changed; the result is a copy with the store's fields set, and its bytes.


class Revision(NamedTuple):
    """A revision, ready to be written."""

    document: WorkflowDocument
    body: bytes  #: JSON text without the checksum
    event_rows: list[Params]  #: its events, as parameters of `connection.EVENT_INSERT`


#: Phases with more attempts are assembled from the attempts' texts; others are serialised as a whole.
FEW_ATTEMPTS = 8


class OutboxEntry(dict[str, JsonValue]):
    """An event waiting in a document; remembers its text as document parts do."""

    __slots__ = ("stored_text",)


class Serializer:
    """
    Makes the revisions that one store writes.

    An unchanged part of a document is the same object and has its stored text: only what is new in a revision is
    serialised and searched for secrets. *scrub* removes secrets from a text. *max_outbox* is the number of events a
    document keeps: None for all unconfirmed ones, 0 if events are stored outside the document. *max_bytes* None allows
    any size. With *is_indented*, the text has one key per line and every field, for people and grep; otherwise null
    fields are left out, and reading adds them again.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        scrub: Callable[[bytes], bytes] | None,
        max_bytes: int | None = None,
        max_outbox: int | None = None,
        is_indented: bool = True,
    ) -> None:
        self._indent = 1 if is_indented else None
        self._skips_null = not is_indented
        #: Line breaks, with the indentation of each depth.
        self._breaks = [b"\n" + b" " * depth if is_indented else b"" for depth in range(5)]
        self._colon = b": " if is_indented else b":"
        self._end = self._breaks[0] + b"}"
        names = ("outbox", *document_module.PARTS)
        self._keys = [(name, b'"%b"%b' % (name.encode(), self._colon)) for name in names]
        self._clock = clock
        self._scrub = scrub
        self._max_bytes = max_bytes
        self._max_outbox = max_outbox

    def next_revision(
        self,
        document: WorkflowDocument,
        *,
        revision: int,
        fence: int,
        events: Sequence[Event],
        outbox: Sequence[JsonObject] = (),
    ) -> Revision:
        """Return *document* as *revision* under *fence*, with *events* stamped and added to *outbox*."""
        scrub = self._scrub
        moment = timestamps.to_text(self._clock.now())
        events = events_module.stamp(events, adw_id=document.adw_id, revision=revision, created_at=moment)
        waiting: list[JsonObject] = []
        if self._max_outbox != 0:
            for entry in outbox:
                # Entries of a loaded document are plain objects, which cannot remember their text.
                waiting += (entry if type(entry) is OutboxEntry else OutboxEntry(entry),)
            for event in events:
                waiting += (OutboxEntry(event.to_json()),)
            if self._max_outbox is not None:
                waiting = waiting[-self._max_outbox :]
        stored = document.changed(revision=revision, fence=fence, updated_at=moment, outbox=waiting)
        fresh = _Fresh()
        body = self._text_of(stored, fresh)
        rows = connection.event_rows(events)
        if rows and self._max_outbox == 0:  # else the events are in the document
            fresh.texts.append(connection.event_texts(rows).encode("utf-8"))
        news = b"[%b]" % b",".join(fresh.texts)
        if b"NaN" in news or b"Infinity" in news:  # perhaps only inside a string
            document_module.refuse_constants(document.adw_id, body)
        if scrub is not None and scrub(news) != news:
            # Rare: the document and its events are then rebuilt from the scrubbed text, and no text is remembered.
            body, fresh = scrub(body), _Fresh()
            stored = document_module.parse(parse(body))
            rows = [_scrubbed_row(event, scrub) for event in events]
        if self._max_bytes is not None and len(body) + SEAL_BYTES > self._max_bytes:
            size = f"{len(body)} bytes, the limit is {self._max_bytes}"
            raise StateUnserialisable(f"the document of {document.adw_id} has {size}: keep large texts in files")
        for part, text in fresh.parts:
            object.__setattr__(part, "stored_text", (self, text))

        return Revision(stored, body, rows)

    def _text_of(self, document: WorkflowDocument, fresh: _Fresh) -> bytes:
        """Return the text of *document*, indented like `document.to_bytes`, and collect its new parts."""
        first, second = self._breaks[1], self._breaks[2]
        try:
            fields, extra = document.__dict__, document.__pydantic_extra__ or {}
            # Every other nullable field is null by default; unknown keys are kept as they are.
            skips_null = self._skips_null and document.issue_number is not None
            head = part_to_json(
                document,
                indent=self._indent,
                exclude={*document_module.PARTS, "outbox", *extra},
                exclude_none=skips_null and not document.cost.__pydantic_extra__,
            )
            fresh.texts.append(head)
            lines = [head[: -len(self._end)]]
            for name, key in self._keys:
                value = fields[name]
                if not value:
                    lines += (key + (b"null" if value is None else b"[]"),)
                elif name in document_module.SINGLE_PARTS:
                    lines += (key + self._texts((value,), first, fresh)[0],)
                else:
                    texts = self._outbox_texts(value, fresh) if name == "outbox" else self._texts(value, second, fresh)
                    lines += (b"%b[%b%b%b]" % (key, second, (b"," + second).join(texts), first),)
            if extra:
                text = document_module.object_to_json(extra, indent=self._indent)
                fresh.texts.append(text)
                lines += (text[1 + len(first) : -len(self._end)],)
        except (ValueError, TypeError) as exc:  # including values pydantic cannot write
            raise StateUnserialisable(f"the document of {document.adw_id} cannot be written as JSON: {exc}") from exc

        return (b"," + first).join(lines) + self._end

    def _outbox_texts(self, outbox: Sequence[JsonObject], fresh: _Fresh) -> list[bytes]:
        """Return the texts of the outbox: one per revision's events, remembered by the first of them."""
        first, second = self._breaks[1], self._breaks[2]
        texts: list[bytes] = []
        known = 0
        for entry in outbox:
            try:
                store, text = entry.stored_text  # type: ignore[attr-defined]  # entries without it are caught
            except (AttributeError, TypeError):
                break
            if store is not self or not (text or texts):
                break
            known += 1
            if text:
                texts.append(text)
        if new := outbox[known:]:
            text = document_module.object_to_json(new, indent=self._indent).replace(b"\n", first)
            text = text[1 + len(second) : -1 - len(first)]
            texts.append(text)
            fresh.texts.append(text)
            fresh.parts += [(entry, b"" if place else text) for place, entry in enumerate(new)]

        return texts

    def _texts(self, parts: Sequence[Part], line_break: bytes, fresh: _Fresh) -> list[bytes]:
        """
        Return the text of each of *parts*, whose lines begin with *line_break*.

        A phase with many attempts is assembled: only changed attempts are serialised.
        """
        texts: list[bytes] = []
        for part in parts:
            text, attempts = b"", part.attempts if type(part) is PhaseRecord else ()
            try:
                store, text = stored_text_of(part)  # type: ignore[misc]  # None, or a part without text, is caught
                is_known = store is self and bool(text)
                for attempt in attempts:
                    is_known &= stored_text_of(attempt)[0] is self  # type: ignore[index]  # as above
            except (AttributeError, TypeError):  # the part or an attempt was never stored, or has changed since
                is_known = False
            if not is_known:
                # Unknown keys of a phase come after the attempts.
                if not attempts or len(attempts) <= FEW_ATTEMPTS or part.__pydantic_extra__:
                    # Unknown keys are kept as they are, null or not.
                    skips_null = self._skips_null and not part.__pydantic_extra__
                    for attempt in attempts:
                        skips_null &= not attempt.__pydantic_extra__
                        fresh.parts += ((attempt, b""),)
                    text = part_to_json(part, indent=self._indent, exclude_none=skips_null)
                    if line_break:
                        text = text.replace(b"\n", line_break)
                    fresh.texts += (text,)
                else:
                    text = self._long_phase(part, attempts, fresh)
                fresh.parts += ((part, text),)
            texts += (text,)

        return texts

    def _long_phase(self, phase: Part, attempts: Sequence[Part], fresh: _Fresh) -> bytes:
        """Return the text of a phase, assembled from its own fields and its attempts."""
        _, _, second, third, fourth = self._breaks
        own = part_to_json(phase, indent=self._indent, exclude={"attempts"}, exclude_none=self._skips_null)
        own = own.replace(b"\n", second)
        fresh.texts.append(own)
        texts = (b"," + fourth).join(self._texts(attempts, fourth, fresh))
        before, after = own[: -1 - len(second)], b"%b]%b}" % (third, second)

        return b'%b,%b"attempts"%b[%b%b%b' % (before, third, self._colon, fourth, texts, after)


class _Fresh:
    """The new content of a revision: its texts, and the parts that will remember their texts."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.parts: list[tuple[object, bytes]] = []


def _scrubbed_row(event: Event, scrub: Callable[[bytes], bytes]) -> Params:
    text = connection.json_text(event.to_json(), f"the event {event.event_type}").encode("ascii")

    return connection.event_params(Event.from_json(json.loads(scrub(text))))


def revision_of(entry: JsonObject) -> int:
    """Return the revision of an outbox event."""
    revision = entry.get("revision", 0)
    return revision if type(revision) is int else 0


def waiting_after(outbox: Sequence[JsonObject], revision: int) -> list[JsonObject]:
    """Return the entries of *outbox* from revisions later than *revision*."""
    if not outbox or revision_of(outbox[0]) > revision:  # the outbox is in revision order
        return list(outbox)

    return [entry for entry in outbox if revision_of(entry) > revision]


def outbox_rows(document: WorkflowDocument) -> list[Params]:
    """Return the events waiting in *document*, as parameters of `connection.EVENT_INSERT`."""
    return [connection.event_params(Event.from_json(entry)) for entry in document.outbox]


def summary_of(document: WorkflowDocument) -> WorkflowSummary:
    """Return the list entry of *document*."""
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
