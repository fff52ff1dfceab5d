"""
When a server wants to be asked again, as its headers or its words say it.

What cannot be read, or makes no sense, was not said. No clock is needed: a moment stays a moment until somebody who
knows the time decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_IN_SOME_TIME = re.compile(
    r"\b(?:retry|try again) in (\d{1,9}(?:\.\d{1,12})?) ?(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?)\b", re.IGNORECASE
)
_RESET_AFTER = re.compile(
    r"\bresets? (?:after|in) (?=\d)(?:(\d{1,4})h ?)?(?:(\d{1,6})m ?)?(?:(\d{1,9})s)?(?![\da-z])", re.IGNORECASE
)
_RETRY_AFTER = re.compile(r"\bretry[-_ ]after[\"']?[:= ]{1,3}[\"']?(\d{1,9})\b", re.IGNORECASE)
_RESET_EPOCH = re.compile(r"\blimit reached\|(\d{10})\b", re.IGNORECASE)
_RESET_UTC = re.compile(r"\bresets? (?:at )?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?) ?(?:UTC|Z)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerWait:
    """After how many seconds, or at which moment, the server wants to be asked again."""

    seconds: float | None = None  #: from the answer on
    at: datetime | None = None


#: The server said nothing about it.
NOT_SAID = ServerWait()


def in_seconds(value: object) -> ServerWait:
    """Return the wait of *value* seconds; what is no number from 0 up was not said."""
    seconds = _seconds(value)
    return NOT_SAID if seconds is None else ServerWait(seconds=seconds)


def at_epoch(value: object) -> ServerWait:
    """Return the wait until *value*, seconds since 1970; what is no such moment was not said."""
    return _at(_epoch(value))


def by_headers(headers: Mapping[str, str]) -> ServerWait:
    """Return what *headers*, with names in lower case, say: Retry-After, else X-RateLimit-Reset."""
    after = headers.get("retry-after")
    if after is not None:
        told = in_seconds(after)
        return _at(_http_date(after)) if told is NOT_SAID else told
    # The reset is also sent while there are requests left; then it is not what we were refused for.
    if headers.get("x-ratelimit-remaining", "0") == "0":
        return _at(_epoch(headers.get("x-ratelimit-reset", "")))

    return NOT_SAID


def by_text(text: str) -> ServerWait:
    """Return what *text* says. A time of day without a zone is not taken: whose zone it is in is not known."""
    found = _IN_SOME_TIME.search(text)
    if found is not None:
        unit = found[2].lower()
        return in_seconds(float(found[1]) * (0.001 if unit == "ms" else 60.0 if unit[0] == "m" else 1.0))
    found = _RESET_AFTER.search(text)
    if found is not None:
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return in_seconds(hours * 3600 + minutes * 60 + seconds)
    found = _RETRY_AFTER.search(text)
    if found is not None:
        return in_seconds(found[1])
    found = _RESET_EPOCH.search(text)
    if found is not None:
        return _at(_epoch(found[1]))
    found = _RESET_UTC.search(text)

    return NOT_SAID if found is None else _at(_utc(found[1]))


def _at(moment: datetime | None) -> ServerWait:
    return NOT_SAID if moment is None else ServerWait(at=moment)


def _seconds(value: object) -> float | None:
    try:
        seconds = float(value)  # type: ignore[arg-type]  # asked by trying
    except (TypeError, ValueError, OverflowError):
        return None

    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _epoch(value: object) -> datetime | None:
    seconds = _seconds(value)
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _utc(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
