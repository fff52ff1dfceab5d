"""
What the page of metrics asks of the database: what was counted, and how things stand.

Apart from `interfaces` because only that page needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from adws.adw_modules.metric_names import Readings


class EventTally(Protocol):
    """Events, counted."""

    def bring_up(self) -> int:
        """Count every event since the last time, and return how many those were; nothing while some are on the way."""

    def counted(self) -> Readings:
        """Return every counter of the metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLine:
    """Runs of a kind that stand alike."""

    kind: str
    state: str  #: waiting | delayed | claimed | running | stopping | dead
    runs: int
    since: str = ""  #: since when the first of them has stood so; "": that says nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How many there are of what, at one moment."""

    workflows: dict[str, int] = field(default_factory=dict)  #: by state
    queue: tuple[QueueLine, ...] = ()
    executions: int = 0  #: steps whose calls are being made
    iterations: dict[str, int] = field(default_factory=dict)  #: of those steps, by where they stand


class Standings(Protocol):
    """Counts what there is now; cheap however much there was before."""

    def look(self) -> Standing:
        """Return how many there are of what."""
