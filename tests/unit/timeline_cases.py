"""Documents whose times are given in seconds from the start, for the tests of timelines and of their pictures."""

from __future__ import annotations

from datetime import datetime, timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.document import AttemptRecord, HistoryEntry, PhaseRecord, WorkflowDocument
from adws.adw_modules.reports.timeline import TimelineBar
from adws.testing import START


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return timestamps.to_text(at(seconds))


def tried(number: int, start: float, end: float | None = None, status: str = "succeeded", **fields) -> AttemptRecord:
    ended = None if end is None else text(end)
    known = {"status": "running" if end is None and status == "succeeded" else status, **fields}
    return AttemptRecord(number=number, started_at=text(start), ended_at=ended, **known)


def phase(name: str, *attempts: AttemptRecord, status: str = "complete", **fields) -> PhaseRecord:
    return PhaseRecord(name=name, state=f"{name}ing", status=status, attempts=list(attempts), **fields)


def move(source: str, target: str, seconds: float, **metadata) -> HistoryEntry:
    return HistoryEntry(from_state=source, to_state=target, timestamp=text(seconds), metadata=metadata)


def document(*phases: PhaseRecord, history: tuple[HistoryEntry, ...] = (), **fields) -> WorkflowDocument:
    return WorkflowDocument(
        **{
            "adw_id": "1a2b3c4d",
            "issue_number": 7,
            "current_state": history[-1].to_state if history else "building",
            "phases": list(phases),
            "state_history": list(history),
            "created_at": text(0),
            "updated_at": text(0),
            **fields,
        }
    )


def short(bar: TimelineBar) -> tuple[str, str, float, float]:
    """Return a bar as lane, kind, and its ends in seconds from the start."""
    return bar.lane, bar.kind, (bar.start - START).total_seconds(), (bar.end - START).total_seconds()
