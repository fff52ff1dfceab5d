"""
When a workflow worked and when it waited, and for what: the bars of its timeline.

Pure. Attempts are recorded with their start and end; the time between two of them is a wait, whose cause comes from the
attempt before it and from the workflow's moves. Unrecorded facts are not guessed: an unreadable moment leaves its bar
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.engine.transitions import AWAITING_APPROVAL, WAITING
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import span
from adws.adw_modules.state_machine import is_rework, is_terminal, state_named

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, HistoryEntry, PhaseRecord, WorkflowDocument


#: Kind of a bar that is not an attempt -> its label. The kind of an attempt is its status.
WAITS = {
    "retry": "waits for its next attempt",
    "quota": "waits for a rate limit or a quota",
    "party": "waits for an external service",
    "others": "waits for work that others do",
    "approval": "waits for a person to decide",
    "paused": "paused",
    "stopped": "failed, waits for a person",
    "lost": "its worker is gone",
    "queue": "waits for a worker",
}
#: Maximum number of bars; the newest are kept, as more could not be distinguished.
MOST_BARS = 600
#: The part of the whole below which a gap between two attempts is not a wait.
SHORTEST_PART = 0.004
#: Maximum shown of a wait that has not ended: as a part of the time before it, and at least in seconds.
WAIT_PART, WAIT_SECONDS = 0.25, 60.0
#: Maximum length of an error or a reason in a label.
_LABEL_WIDTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineBar:
    """A period spent on one thing."""

    lane: str  #: the phase
    kind: str  #: status of an attempt, or a key of WAITS
    start: datetime
    end: datetime
    label: str  #: in words
    attempt: int = 0  #: 0: a wait
    round: int = 1
    is_open: bool = False  #: it has not ended

    @property
    def seconds(self) -> float:
        """The duration of the bar."""
        return (self.end - self.start).total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineMark:
    """A moment at which something was decided."""

    kind: str  #: rework | resumed | approved | rejected
    at: datetime
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineLane:
    """A phase and its bars, the oldest first."""

    name: str
    status: str
    bars: tuple[TimelineBar, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The timeline of a workflow."""

    start: datetime
    end: datetime  #: of the chart: now, the end of the workflow, or the end of a wait
    now: datetime
    lanes: tuple[TimelineLane, ...]
    marks: tuple[TimelineMark, ...] = ()
    left_out: int = 0  #: number of older bars
    is_cut: bool = False  #: something continues beyond the end of the chart
    spent: dict[str, float] = field(default_factory=dict)  #: kind -> seconds until now

    @property
    def seconds(self) -> float:
        """The duration of the timeline, never 0."""
        return max(1.0, (self.end - self.start).total_seconds())

    @property
    def bars(self) -> tuple[TimelineBar, ...]:
        """All bars, the oldest first."""
        return tuple(sorted((bar for lane in self.lanes for bar in lane.bars), key=lambda bar: bar.start))

    @property
    def worked_seconds(self) -> float:
        """The total duration of attempts."""
        return sum(seconds for kind, seconds in self.spent.items() if kind not in WAITS)

    @property
    def waited_seconds(self) -> float:
        """The total duration of waits."""
        return sum(seconds for kind, seconds in self.spent.items() if kind in WAITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Try:
    """An attempt with its phase."""

    phase: PhaseRecord
    attempt: AttemptRecord
    start: datetime
    end: datetime  #: now, if it has not ended

    @property
    def is_open(self) -> bool:
        return self.attempt.ended_at is None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gap:
    """A period without an attempt."""

    start: datetime
    end: datetime
    before: _Try | None
    after: _Try | None


def timeline(document: WorkflowDocument, *, now: datetime) -> Timeline:
    """Return the timeline of the workflow in *document* as of *now*."""
    tries = sorted(
        (
            _Try(phase=phase, attempt=attempt, start=start, end=max(start, _moment(attempt.ended_at) or now))
            for phase in document.phases
            for attempt in phase.attempts
            if (start := _moment(attempt.started_at)) is not None
        ),
        key=lambda one: (one.start, one.attempt.number),  # attempts do not overlap
    )
    start = min(filter(None, [_moment(document.created_at), *(one.start for one in tries)]), default=now)
    ended = _ended(document)
    until = max(ended or now, start)
    shortest = (until - start).total_seconds() * SHORTEST_PART
    waits = [bar for gap in _gaps(tries, start, until) for bar in _waits(document, gap, is_over=ended is not None)]
    bars = [*(bar for one in tries for bar in _bars_of(one, now)), *(b for b in waits if b.seconds > shortest)]
    bars.sort(key=lambda bar: bar.start)
    kept = bars[-MOST_BARS:]

    end, is_cut = until, False
    if kept and kept[-1].is_open and not kept[-1].attempt:  # a week of waiting must not fill the chart
        last = kept[-1]
        room = max(WAIT_SECONDS, (last.start - start).total_seconds() * WAIT_PART)
        limit = last.start + timedelta(seconds=room)
        end, is_cut = (limit, True) if last.end > limit else (max(until, last.end), False)
    spent: dict[str, float] = {}
    for bar in bars:
        seconds = (min(bar.end, until) - bar.start).total_seconds()
        spent[bar.kind] = spent.get(bar.kind, 0.0) + max(0.0, seconds)

    return Timeline(
        start=kept[0].start if len(kept) < len(bars) else start,
        end=end,
        now=now,
        lanes=tuple(
            TimelineLane(
                name=phase.name,
                status=phase.status,
                bars=tuple(replace(bar, end=min(bar.end, end)) for bar in kept if bar.lane == phase.name),
            )
            for phase in document.phases
        ),
        marks=tuple(_marks(document.state_history)),
        left_out=len(bars) - len(kept),
        is_cut=is_cut,
        spent=spent,
    )


# --- attempts --------------------------------------------------------------------------------------------------


def _bars_of(one: _Try, now: datetime) -> Iterator[TimelineBar]:
    """Yield the bar of an attempt, or the two bars of one that waits for others."""
    name, attempt = one.phase.name, one.attempt
    again = f", round {attempt.round}" if attempt.round > 1 else ""
    waited = f", {span(attempt.waited_seconds)} of it waiting" if attempt.waited_seconds else ""
    error = (attempt.error or {}).get("message")
    because = f": {_clipped(error)}" if isinstance(error, str) and error else ""
    bar = TimelineBar(
        lane=name,
        kind=attempt.status,
        start=one.start,
        end=one.end,
        label=f"attempt {attempt.number}{again} {attempt.status}{waited}{because}",
        attempt=attempt.number,
        round=attempt.round,
        is_open=one.is_open,
    )
    since = _moment(attempt.waiting_since)
    if attempt.status != WAITING or since is None or not one.start <= since <= now:
        yield bar
        return
    yield replace(bar, kind="running", end=since)
    why = _clipped(one.phase.wait_reason or "")
    yield replace(bar, kind="others", start=since, attempt=0, label=f"{WAITS['others']}{f': {why}' if why else ''}")


# --- waits -----------------------------------------------------------------------------------------------------


def _gaps(tries: Sequence[_Try], start: datetime, until: datetime) -> Iterator[_Gap]:
    """Yield the time before the first attempt, between two, and after the last."""
    for before, after in pairwise([None, *tries, None]):
        if before is not None and before.is_open:
            continue
        first, last = before.end if before else start, after.start if after else until
        if first < last or after is None:  # two clocks may disagree
            yield _Gap(start=first, end=last, before=before, after=after)


def _waits(document: WorkflowDocument, gap: _Gap, *, is_over: bool) -> Iterator[TimelineBar]:
    """Yield the waits in a gap: the periods in which the workflow was parked, and those before and after them."""
    place, parked = gap.start, None
    for bar in _parked(document, gap):
        yield from _wait(document, gap, place, bar.start, was_parked=parked is not None, is_open=False)
        yield bar
        place, parked = bar.end, bar
    is_open = gap.after is None and not is_over
    if parked is None or not parked.is_open:
        yield from _wait(document, gap, place, gap.end, was_parked=parked is not None, is_open=is_open)


def _wait(
    document: WorkflowDocument, gap: _Gap, start: datetime, end: datetime, *, was_parked: bool, is_open: bool
) -> Iterator[TimelineBar]:
    following = _next_phase(document, gap)
    kind, why = ("queue", "") if was_parked or gap.before is None else _cause(gap.before, following)
    lane = following if kind == "queue" or gap.before is None else gap.before.phase
    if lane is None:
        return
    planned = _moment(lane.retry_at) if is_open else None
    if is_open and lane.status == "retry_wait" and lane.wait_reason:
        kind, why = ("quota" if kind == "quota" else "party"), lane.wait_reason
    label = WAITS[kind] + (f": {_clipped(why)}" if why else "")
    last = max(end, planned) if planned is not None else end
    if last > start:
        yield TimelineBar(lane=lane.name, kind=kind, start=start, end=last, label=label, is_open=is_open)


def _cause(before: _Try, following: PhaseRecord | None) -> tuple[str, str]:
    """Return why there is no attempt after *before*, as a kind and a reason."""
    error = before.attempt.error or {}
    said = error.get("message")
    why = said if isinstance(said, str) else ""
    if error.get("category") == "rate_limit":
        return "quota", why
    if before.attempt.status == "parked":
        return "party", why
    if before.attempt.status == "interrupted":
        return "lost", why
    if before.attempt.status == "failed" and following is not None and following.name == before.phase.name:
        return "retry", why

    return "queue", ""


def _next_phase(document: WorkflowDocument, gap: _Gap) -> PhaseRecord | None:
    """Return the phase that was to begin: that of the next attempt, else the first unfinished one."""
    if gap.after is not None:
        return gap.after.phase
    waiting = [phase for phase in document.phases if phase.status not in {"complete", "skipped", "failed"}]

    return waiting[0] if waiting else None


def _parked(document: WorkflowDocument, gap: _Gap) -> Iterator[TimelineBar]:
    """Yield the periods of a gap in which the workflow was paused or had failed."""
    one = gap.before or gap.after
    lane = one.phase if one is not None else _next_phase(document, gap)
    for entry, following in zip_longest(document.state_history, document.state_history[1:]):
        kind, label = _parked_as(entry)
        start = _moment(entry.timestamp)
        end = _moment(following.timestamp) if following is not None else gap.end
        if not kind or lane is None or start is None or end is None or end <= gap.start or start >= gap.end:
            continue
        is_open = following is None
        first, last = max(start, gap.start), min(end, gap.end)
        yield TimelineBar(lane=lane.name, kind=kind, start=first, end=last, label=label, is_open=is_open)


def _parked_as(entry: HistoryEntry) -> tuple[str, str]:
    """Return the kind and label of the wait after a move that parks a workflow, "" after any other move."""
    reason = entry.metadata.get("reason")
    why = f": {_clipped(reason)}" if isinstance(reason, str) and reason else ""
    if entry.to_state == "failed":
        return "stopped", WAITS["stopped"] + why
    if entry.to_state != "paused":
        return "", ""
    if reason == AWAITING_APPROVAL:
        return "approval", WAITS["approval"]

    return "paused", WAITS["paused"] + why


def _ended(document: WorkflowDocument) -> datetime | None:
    """Return when the workflow ended, or None if it has not; a later rollback does not count."""
    if not is_terminal(document.current_state):
        return None
    for entry in document.state_history:
        if is_terminal(entry.to_state) and (at := _moment(entry.timestamp)) is not None:
            return at

    return _moment(document.updated_at)


# --- moments ---------------------------------------------------------------------------------------------------


def _marks(history: Sequence[HistoryEntry]) -> Iterator[TimelineMark]:
    for entry in history:
        at = _moment(entry.timestamp)
        reason, by = entry.metadata.get("reason"), entry.metadata.get("by")
        if at is None:
            continue
        if isinstance(reason, str) and reason in {"resumed", "approved", "rejected"}:
            whose = f" by {by}" if isinstance(by, str) and by else ""
            yield TimelineMark(kind=reason, at=at, label=_clipped(f"{reason}{whose}"))
            continue
        with suppress(UsageError):  # an older tool had other states
            if is_rework(state_named(entry.from_state), state_named(entry.to_state)):
                label = _clipped(f"{entry.from_state} sent the work back to {entry.to_state}")
                yield TimelineMark(kind="rework", at=at, label=label)


def _moment(text: str | None) -> datetime | None:
    if not text or text == timestamps.UNKNOWN_MOMENT:
        return None
    try:
        return timestamps.parse(text)
    except ValueError:
        return None


def _clipped(text: str) -> str:
    return text if len(text) <= _LABEL_WIDTH else text[: _LABEL_WIDTH - 1] + "\u2026"
