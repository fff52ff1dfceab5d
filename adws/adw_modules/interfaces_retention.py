"""
What forgetting what is old asks of the database and of the disk.

Apart from `interfaces` because only gc and cron need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class OldEvents:
    """How many events are old."""

    events: int = 0
    workflows: int = 0  #: that they are of


class OldRows(Protocol):
    """Rows of what is over."""

    def old_events(self, before: str) -> OldEvents:
        """Return how many events of finished workflows are older than *before*, and of how many workflows."""

    def forget_events(self, before: str) -> int:
        """Delete them, and return how many."""

    def finished(self, before: str) -> tuple[str, ...]:
        """Return the workflows that are over and have not changed since *before*."""

    def holds(self, adw_id: str) -> tuple[bool, bool]:
        """Return whether a workflow has its issue, and whether a run of it is not over."""

    def fence_of(self, adw_id: str) -> int | None:
        """Return the fence of a workflow's row, None when there is no row."""

    def forget_workflow(self, adw_id: str, *, fence: int) -> bool:
        """Delete all rows of a workflow that is over; False, with nothing deleted, when it is not ours or not over."""

    def old_deliveries(self, before: str) -> int:
        """Return how many deliveries came before *before* and have been dealt with."""

    def forget_errands(self, before: str) -> int:
        """Delete runs of no workflow that ended before *before*, and return how many."""


class OldFiles(Protocol):
    """The directories of workflows on this machine."""

    def output_of(self, adw_id: str) -> tuple[str, ...]:
        """Return the logs and the files of attempts of a workflow, relative to its directory."""

    def forget_output(self, adw_id: str) -> int:
        """Delete them, and return how many there were."""

    def set_aside(self, adw_id: str) -> None:
        """Take the directory of a workflow out of the way, in one step."""

    def put_back(self, adw_id: str) -> None:
        """Undo that."""

    def is_there(self, adw_id: str) -> bool:
        """Say whether a workflow has a directory."""

    def set_aside_ids(self) -> tuple[str, ...]:
        """Return the workflows whose directories are set aside."""

    def remove_set_aside(self, adw_id: str) -> None:
        """Delete what was set aside."""
