"""When each phase of a workflow was worked on, as bars of text. Pure: takes what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.time_words import span

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument

#: Columns of the bars.
WIDTH = 48
#: How an attempt ended -> what its bar is drawn with.
_GOOD = "#"
_MARKS = {"succeeded": _GOOD, "failed": "x", "interrupted": "!", "suspended": "-", "running": "."}
_OTHER = "-"
_LEGEND = {"x": "x failed", "!": "! cut off", "-": "- ended on order"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    start: float  #: seconds since the workflow was made
    seconds: float
    mark: str


def lines(document: WorkflowDocument) -> list[str]:
    """Return one line for each phase that was begun: its attempts at their place in time, and how long they took."""
    begun = timestamps.parse(document.created_at)
    phases = {
        phase.name: [
            _bar(one, (timestamps.parse(one.started_at) - begun).total_seconds(), document) for one in phase.attempts
        ]
        for phase in document.phases
        if phase.attempts
    }
    bars = [bar for found in phases.values() for bar in found]
    if not bars:
        return []
    whole = max(*(bar.start + bar.seconds for bar in bars), 0.001)
    width = max(map(len, phases))
    drawn = [f"{name:<{width}}  |{_drawn(found, whole)}|  {_told(found)}".rstrip() for name, found in phases.items()]
    seen = {bar.mark for bar in bars}
    legend = ", ".join(text for mark, text in _LEGEND.items() if mark in seen)

    return [*drawn, f"{'':<{width}}  {span(whole)} in all{f'; {legend}' if legend else ''}"]


def _bar(attempt: AttemptRecord, start: float, document: WorkflowDocument) -> _Bar:
    end = timestamps.parse(attempt.ended_at or document.updated_at)
    seconds = (end - timestamps.parse(attempt.started_at)).total_seconds()

    return _Bar(start=start, seconds=max(seconds, 0.0), mark=_MARKS.get(attempt.status, _OTHER))


def _drawn(bars: list[_Bar], whole: float) -> str:
    columns = [" "] * WIDTH
    # What went wrong is drawn last: where two share a column, that is to be seen.
    for bar in sorted(bars, key=lambda bar: bar.mark != _GOOD):
        for column in _columns(bar, whole):
            columns[column] = bar.mark

    return "".join(columns)


def _columns(bar: _Bar, whole: float) -> Iterator[int]:
    first = min(int(bar.start / whole * WIDTH), WIDTH - 1)
    last = min(int((bar.start + bar.seconds) / whole * WIDTH), WIDTH - 1)
    yield from range(max(first, 0), max(last, first) + 1)


def _told(bars: list[_Bar]) -> str:
    count = f", {len(bars)} attempts" if len(bars) > 1 else ""

    return f"{span(sum(bar.seconds for bar in bars))}{count}"
