"""
Timestamps as text: aware UTC, fixed width, sorts as text.

Texts that drop zero microseconds or mix `Z` with `+00:00` would sort wrongly.
"""

from __future__ import annotations

from datetime import UTC, datetime

#: Means "time not recorded"; sorts before every real timestamp. People are shown `unknown` instead.
UNKNOWN_MOMENT = "1970-01-01T00:00:00.000000Z"


def to_text(moment: datetime) -> str:
    """Return *moment* as `2026-01-31T09:00:00.000000Z`; raise ValueError if it is naive."""
    if moment.tzinfo is None:
        raise ValueError("a timestamp needs a time zone; use datetime.now(UTC)")

    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    # Cutting off `+00:00` is faster than removing the zone first, and every step runs this.
    return in_utc.isoformat(timespec="microseconds")[:-6] + "Z"


def parse(text: str) -> datetime:
    """Return the aware UTC datetime in *text*; a text without a zone is taken as UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:  # as adw writes them
        return moment
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)

    return moment.astimezone(UTC)
