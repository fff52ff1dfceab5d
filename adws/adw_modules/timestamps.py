"""
Timestamps as text: aware UTC, fixed width, sorts as text.

Strings that drop their microseconds or mix `Z` with `+00:00` sort wrongly; these do not.
"""

from __future__ import annotations

from datetime import UTC, datetime

#: Stands for "nobody wrote down when": sorts before every real moment. People are shown `unknown` instead.
UNKNOWN_MOMENT = "1970-01-01T00:00:00.000000Z"


def to_text(moment: datetime) -> str:
    """Return *moment* as `2026-01-31T09:00:00.000000Z`; a naive moment is refused."""
    if moment.tzinfo is None:
        raise ValueError("a timestamp needs a time zone; use datetime.now(UTC)")

    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    # `+00:00` is cut off rather than the zone taken out first: this is on the path of every step.
    return in_utc.isoformat(timespec="microseconds")[:-6] + "Z"


def parse(text: str) -> datetime:
    """Return the aware UTC moment written in *text*; a text without a zone is taken as UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:  # as adw writes them
        return moment
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)

    return moment.astimezone(UTC)
