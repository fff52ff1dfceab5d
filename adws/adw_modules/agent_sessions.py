"""
Conversations with agents: with which one an attempt goes on, and when a new one is begun.

Pure. The document is where conversations are kept: each attempt's record says under which id it spoke to which agent.
One goes on while its round lasts and nothing says that it is spoilt; a round begins with a fresh one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.failed_run import FailedRun

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord

#: The name of the failure of a conversation that the agent does not know (any more).
UNKNOWN_SESSION = "unknown_session"
#: Classes of failure after which a conversation is not gone on with: it is full, refused, or its history is broken.
SPOILING = frozenset({"context", "refused", "invalid", "crashed"})

#: What agents say about a conversation that they do not know.
_UNKNOWN = re.compile(
    r"no (?:conversation|session|rollout|thread)s?(?: was)? found"
    r"|(?:session|conversation|thread)(?: [\w-]+)? (?:was )?not found"
    r"|(?:could not|cannot|failed to) (?:find|load|resume) (?:the )?(?:session|conversation|thread)"
    r"|(?:invalid|unknown) session (?:id|identifier)"
    r"|session [\w-]+ does not exist",
    re.IGNORECASE,
)
_HEX = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """One that can be gone on with."""

    session_id: str
    attempt: int  #: the newest attempt that spoke in it


def new_session_id(token: str) -> str:
    """Return a UUID made of *token*, 32 random hex digits, as agents want one."""
    if not _HEX.fullmatch(token):
        raise ValueError(f"a session id is made of 32 hex digits, not of {token!r}")
    variant = "89ab"[int(token[16], 16) % 4]

    return f"{token[:8]}-{token[8:12]}-4{token[13:16]}-{variant}{token[17:20]}-{token[20:]}"


def session_for(record: PhaseRecord, *, agent: str) -> Conversation | None:
    """Return the conversation that the newest attempt of *record*, which begins now, goes on with; None: a new one."""
    before = newest_before(record)
    # One that succeeded is followed by another in its round only when a person rejected it, or planned again.
    if before is None or before.round != record.round or before.status == "running":
        return None
    facts = before.agent or {}
    session_id = facts.get("session_id")
    if facts.get("name") != agent or not isinstance(session_id, str) or not session_id:
        return None
    error = before.error or {}
    if _class_of(error) in SPOILING or _subtype_of(error) == UNKNOWN_SESSION:
        return None

    return Conversation(session_id=session_id, attempt=before.number)


def newest_before(record: PhaseRecord) -> AttemptRecord | None:
    """Return the attempt before the one that begins now, None for the first."""
    return record.attempts[-2] if len(record.attempts) > 1 else None


def had_session(record: PhaseRecord) -> bool:
    """Say whether the attempt before, in the same round, spoke with an agent: a new one has to be handed over to."""
    before = newest_before(record)

    return before is not None and before.round == record.round and bool((before.agent or {}).get("session_id"))


def base_of(record: PhaseRecord, *, default: str) -> str:
    """
    Return the commit that the work of this round is compared with: that of its first attempt.

    What an attempt committed before it was cut off counts for the one that goes on.
    """
    return next(_bases(record), default)


def _bases(record: PhaseRecord) -> Iterator[str]:
    for attempt in record.attempts:
        base = (attempt.agent or {}).get("base")
        if attempt.round == record.round and isinstance(base, str) and base:
            yield base


def is_unknown_session(failure: FailedRun) -> bool:
    """Say whether an agent failed because it does not know the conversation it was to go on with."""
    return failure.subtype == UNKNOWN_SESSION or _UNKNOWN.search(failure.text) is not None


def _class_of(error: object) -> str:
    return str(error.get("klass") or "") if isinstance(error, dict) else ""


def _subtype_of(error: object) -> str:
    metadata = error.get("metadata") if isinstance(error, dict) else None

    return str(metadata.get("subtype") or "") if isinstance(metadata, dict) else ""
