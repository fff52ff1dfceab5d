"""
Charts as SVG text: timelines, the states of a workflow, columns, lines and bars; and state diagrams for Mermaid.

Pure, and everything is escaped. Horizontal positions are percentages and heights are pixels, so that a chart fits a
phone as well as a screen and its text stays readable. Colours come from classes, and colour is never the only sign:
each mark has a label, and the chart has a title and a description for screen readers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules.identifiers import span
from adws.adw_modules.reports.timeline import WAITS, Timeline, TimelineBar, TimelineMark
from adws.adw_modules.state_machine import END_STATES, PHASE_STATES, Table, WorkflowState, is_rework

if TYPE_CHECKING:
    from adws.adw_modules.document import HistoryEntry


# --- a timeline: one lane for each phase, attempts as blocks, waits as thin lines, failures with a notch ------------


#: Pixels: heights of a lane and of the row of times; top and height of a lane's block, and of its line.
_LANE, _TIMES = 44, 22
_BLOCK_TOP, _BLOCK = 20, 16
_LINE_TOP, _LINE = 25, 6
#: Number of times on the axis, the first and the last included.
_TICKS = 5
#: Percent of the width from which a block has space for its number.
_ROOM = 4.0
#: Timeline lengths in seconds from which times are shown without seconds, and with the day.
_BY_MINUTE, _BY_DAY = 600.0, 2 * 86_400.0
#: Statuses of attempts that did not end well.
BAD = frozenset({"failed", "interrupted"})
#: Statuses of attempts that are CSS classes; other tools' statuses are not.
_CLASSES = frozenset({"running", "waiting", "succeeded", "suspended", "parked"}) | BAD


def timeline_svg(line: Timeline, *, title: str, say: Callable[[str], str] = str) -> str:
    """Return the chart of *line*; screen readers read *title*, and *say* filters every text from outside."""
    height = max(1, len(line.lanes)) * _LANE + _TIMES
    parts = [
        (
            f'<svg class="timeline kinds" role="img" aria-labelledby="timeline-title timeline-about" width="100%" '
            f'height="{height}">'
        ),
        f'<title id="timeline-title">{escape(say(title))}</title>',
        f'<desc id="timeline-about">{escape(say(about_timeline(line)))}</desc>',
        *_grid(line, height),
        *(part for number in range(len(line.lanes)) for part in _lane(line, number, say)),
        *(_mark(line, mark, height, say) for mark in line.marks if line.start <= mark.at <= line.end),
    ]
    if line.start < line.now < line.end:  # something is still to come
        place = _percent(line, line.now)
        parts.append(f'<line class="now" x1="{place:.3f}%" x2="{place:.3f}%" y1="0" y2="{height - _TIMES}"/>')

    return "".join([*parts, "</svg>"])


def about_timeline(line: Timeline) -> str:
    """Return what the chart shows, in a few sentences."""
    said = [f"{span(line.worked_seconds)} of work, {span(line.waited_seconds)} of waiting."]
    for lane in line.lanes:
        tries = [bar for bar in lane.bars if bar.attempt]
        bad = sum(1 for bar in tries if bar.kind in BAD)
        failed = f", {bad} of them failed" if bad else ""
        count = f"{len(tries)} attempt{'s' if len(tries) != 1 else ''}{failed}" if tries else "not begun"
        said.append(f"{lane.name}: {count}.")

    return " ".join(said)


def _grid(line: Timeline, height: int) -> Iterator[str]:
    for number in range(_TICKS):
        part = number / (_TICKS - 1)
        anchor = "start" if number == 0 else "end" if number == _TICKS - 1 else "middle"
        at = line.start + (line.end - line.start) * part
        place = f"{part * 100:g}%"
        yield f'<line class="grid" x1="{place}" x2="{place}" y1="0" y2="{height - _TIMES}"/>'
        yield f'<text class="tick" x="{place}" y="{height - 6}" text-anchor="{anchor}">{clock_text(at, line)}</text>'


def clock_text(at: datetime, line: Timeline) -> str:
    """Return a moment, as briefly as the length of the timeline allows."""
    if line.seconds >= _BY_DAY:
        return f"{at:%d %b %H:%M}"

    return f"{at:%H:%M}" if line.seconds >= _BY_MINUTE else f"{at:%H:%M:%S}"


def _lane(line: Timeline, number: int, say: Callable[[str], str]) -> Iterator[str]:
    lane, top = line.lanes[number], number * _LANE
    yield f'<line class="lane" x1="0" x2="100%" y1="{top + 28}" y2="{top + 28}"/>'
    yield (
        f'<text class="lane-name" x="0" y="{top + 14}">{escape(say(lane.name))}'
        f'<tspan class="lane-status" dx="8">{escape(lane.status.replace("_", " "))}</tspan></text>'
    )
    for bar in lane.bars:
        text = escape(say(words(bar)))
        yield _block(line, bar, top, text) if bar.attempt else _thin(line, bar, top, text)


def _block(line: Timeline, bar: TimelineBar, top: int, text: str) -> str:
    left, width = _extent(line, bar)
    y = top + _BLOCK_TOP
    opened = " open" if bar.is_open else ""
    number = (
        f'<text class="number" x="{left + width / 2:.3f}%" y="{y + 12}" text-anchor="middle">{bar.attempt}</text>'
        if width >= _ROOM
        else ""
    )
    notch = (
        f'<rect class="notch" x="{left + width:.3f}%" y="{y - 3}" width="3" height="{_BLOCK + 6}" '
        'transform="translate(-3 0)"/>'
        if bar.kind in BAD
        else ""
    )
    box = f'<rect class="block" x="{left:.3f}%" y="{y}" width="{width:.3f}%" height="{_BLOCK}" rx="3"/>'

    kind = bar.kind if bar.kind in _CLASSES else "other"

    return f'<g class="bar {kind}{opened}"><title>{text}</title>{box}{notch}{number}</g>'


def _thin(line: Timeline, bar: TimelineBar, top: int, text: str) -> str:
    left, width = _extent(line, bar)
    opened = " open" if bar.is_open else ""

    return (
        f'<g class="wait {bar.kind}{opened}"><title>{text}</title>'
        f'<rect x="{left:.3f}%" y="{top + _LINE_TOP}" width="{width:.3f}%" height="{_LINE}" rx="3"/></g>'
    )


def words(bar: TimelineBar) -> str:
    """Return a bar in words: what it was, and for how long."""
    return f"{bar.lane}: {bar.label} ({'so far ' if bar.is_open else ''}{span(bar.seconds)})"


def _mark(line: Timeline, mark: TimelineMark, height: int, say: Callable[[str], str]) -> str:
    place = _percent(line, mark.at)

    return (
        f'<g class="mark {mark.kind}"><title>{escape(say(mark.label))}</title>'
        f'<line x1="{place:.3f}%" x2="{place:.3f}%" y1="0" y2="{height - _TIMES}"/>'
        f'<circle cx="{place:.3f}%" cy="5" r="4"/></g>'
    )


def _extent(line: Timeline, bar: TimelineBar) -> tuple[float, float]:
    left = _percent(line, bar.start)

    return left, max(0.0, _percent(line, bar.end) - left)


def _percent(line: Timeline, at: datetime) -> float:
    return 100.0 * (at - line.start).total_seconds() / line.seconds


def legend(line: Timeline) -> list[tuple[str, str, bool]]:
    """Return the kinds in the chart: name, label, and whether it is a wait; work comes first."""
    kinds = dict.fromkeys(bar.kind for bar in line.bars)
    waits = [(kind, text, True) for kind, text in WAITS.items() if kind in kinds]

    return [*((kind, kind, False) for kind in kinds if kind in _CLASSES), *waits]


# --- the states of a workflow: the current one, and the moves that led to it ---------------------------------------
#
# The path from pending to completed runs down on the left; the states that stop it are on the right. Every move that
# was made is drawn. Of the others only the moves forward are, and those that all phases share: once, from their box.


_S = WorkflowState
#: A move, as two names.
Move: TypeAlias = tuple[str, str]

#: States that stop a workflow, from the top down.
_STOPS = (_S.PAUSED, _S.FAILED, _S.ABANDONED, _S.ROLLED_BACK)
#: Moves of stopped or completed workflows that are always drawn.
_CHAIN: tuple[Move, ...] = (("failed", "abandoned"), ("abandoned", "rolled_back"), ("completed", "rolled_back"))
#: Pixels: the chart, a state, and the centres of the two columns.
WIDTH = 400
_PITCH, _MARGIN = 46, 24
_HALF_WIDTH, _HALF_HEIGHT = 60, 14
_LEFT, _RIGHT = 116, 318
#: How far a curve beside a column leaves it, and the distance between the lines to and from a state.
_BEND, _APART = 44, 5
#: Moves that the description lists.
_MOST_MOVES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """The centre of a state."""

    x: int
    y: float
    row: int = 0  #: in its column, from the top

    @property
    def is_left(self) -> bool:
        return self.x == _LEFT


def moves_of(history: Iterable[HistoryEntry]) -> Counter[Move]:
    """Return how many times each move was made."""
    return Counter((entry.from_state, entry.to_state) for entry in history)


def state_svg(table: Table, current: str, made: Mapping[Move, int]) -> str:
    """Return the chart of *table*, with the state *current* and the moves that were *made* marked."""
    places = _places(table)
    height = round(max(place.y for place in places.values()) + _MARGIN)
    seen = {name for move in made for name in move} | {current}
    parts = [
        (
            '<svg class="states" role="img" aria-labelledby="states-title states-about" '
            f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        ),
        f'<title id="states-title">{escape(f"The workflow is {_said(current)}")}</title>',
        f'<desc id="states-about">{escape(about(current, made))}</desc>',
        "<defs>",
        *(_arrowhead(name) for name in ("arrow", "arrow-made")),
        "</defs>",
        *_box(table, places),
        *(_edge(places, move, made.get(move, 0)) for move in _moves(table, places, made)),
        *(_node(name, place, is_current=name == current, is_seen=name in seen) for name, place in places.items()),
        "</svg>",
    ]

    return "".join(parts)


def about(current: str, made: Mapping[Move, int]) -> str:
    """Return the chart in words."""
    moves = [f"{_said(a)} to {_said(b)}{f' {n} times' if n > 1 else ''}" for (a, b), n in made.items()]
    more = f" and {len(moves) - _MOST_MOVES} others" if len(moves) > _MOST_MOVES else ""
    way = f" Moves so far: {', '.join(moves[:_MOST_MOVES])}{more}." if moves else ""

    return f"The workflow is {_said(current)}.{way}"


def _places(table: Table) -> dict[str, _Place]:
    """Return the position of each state."""
    left = [state.value for state in table if state not in _STOPS]
    right = [state.value for state in _STOPS if state in table]
    rows = max(len(left), len(right))

    return {**_column_of_states(left, _LEFT, rows), **_column_of_states(right, _RIGHT, rows)}


def _column_of_states(names: Sequence[str], x: int, rows: int) -> dict[str, _Place]:
    apart = _PITCH * (rows - 1) / max(1, len(names) - 1)

    return {name: _Place(x=x, y=_MARGIN + number * apart, row=number) for number, name in enumerate(names)}


def _moves(table: Table, places: Mapping[str, _Place], made: Mapping[Move, int]) -> list[Move]:
    """Return the moves to draw; those that were made come last, so that they are on top."""
    possible = [(source.value, target.value) for source, row in table.items() for target in row]
    plain = [move for move in possible if move in _CHAIN or all(places[name].is_left for name in move)]
    known = [move for move in made if places.keys() >= set(move)]

    return [*(move for move in plain if move not in made), *known]


def _box(table: Table, places: Mapping[str, _Place]) -> Iterator[str]:
    """Yield the box around the phases, and the moves that all phases share."""
    rows = [places[state.value].y for state in table if state in PHASE_STATES]
    top, bottom = min(rows) - _HALF_HEIGHT - 6, max(rows) + _HALF_HEIGHT + 6
    edge = _LEFT + _HALF_WIDTH + 6
    yield (
        f'<rect class="box" x="{_LEFT - _HALF_WIDTH - 6}" y="{top:g}" width="{2 * _HALF_WIDTH + 12}" '
        f'height="{bottom - top:g}" rx="8"/>'
    )
    phases = [state for state in table if state in PHASE_STATES]
    for stop in (state for state in _STOPS if state in table):
        y = min(max(places[stop.value].y, top + 10), bottom - 10)
        end = _Place(x=_RIGHT - _HALF_WIDTH, y=places[stop.value].y)
        if all(stop in table[phase] for phase in phases):
            yield _arrow(f"M{edge} {y - _APART:g}L{end.x} {end.y - _APART:g}", "edge")
        if all(phase in table[stop] for phase in phases):
            yield _arrow(f"M{end.x} {end.y + _APART:g}L{edge} {y + _APART:g}", "edge")


def _edge(places: Mapping[str, _Place], move: Move, count: int) -> str:
    source, target = places[move[0]], places[move[1]]
    path, x, y = _path(source, target)
    kind = "edge made" if count else "edge"
    times = f'<text class="times" x="{x:g}" y="{y:g}" text-anchor="middle">\u00d7{count}</text>' if count > 1 else ""
    words = f"{_said(move[0])} to {_said(move[1])}" + (f", {count} times" if count > 1 else "")

    return f"<g><title>{escape(words)}</title>{_arrow(path, kind)}{times}</g>"


def _path(source: _Place, target: _Place) -> tuple[str, float, float]:
    """Return the path from one state to another, and the position of its label."""
    if source.x != target.x:
        return _across(source, target)
    if target.row == source.row + 1:
        start, end = source.y + _HALF_HEIGHT, target.y - _HALF_HEIGHT
        return f"M{source.x} {start:g}L{target.x} {end:g}", source.x + 16, (start + end) / 2 + 4
    side = -1 if source.is_left else 1
    x = source.x + side * _HALF_WIDTH
    far = x + side * _BEND
    middle = (source.y + target.y) / 2

    return f"M{x} {source.y:g}C{far} {source.y:g} {far} {target.y:g} {x} {target.y:g}", far - side * 8, middle + 4


def _across(source: _Place, target: _Place) -> tuple[str, float, float]:
    """Return the path between the columns; the way back is a little lower, so that both are visible."""
    side = 1 if source.is_left else -1
    apart = -_APART if source.is_left else _APART
    x1, x2 = source.x + side * _HALF_WIDTH, target.x - side * _HALF_WIDTH
    y1, y2 = source.y + apart, target.y + apart
    middle = (x1 + x2) / 2

    return f"M{x1} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2} {y2:g}", middle, (y1 + y2) / 2 - 4


def _node(name: str, place: _Place, *, is_current: bool, is_seen: bool) -> str:
    marked = " current" if is_current else " seen" if is_seen else ""
    left, top = place.x - _HALF_WIDTH, place.y - _HALF_HEIGHT

    return (
        f'<g class="state {escape(name)}{marked}">'
        f'<rect x="{left}" y="{top:g}" width="{2 * _HALF_WIDTH}" height="{2 * _HALF_HEIGHT}" rx="14"/>'
        f'<text x="{place.x}" y="{place.y + 4:g}" text-anchor="middle">{escape(_said(name))}</text></g>'
    )


def _arrow(path: str, kind: str) -> str:
    head = "arrow-made" if "made" in kind else "arrow"

    return f'<path class="{kind}" d="{path}" marker-end="url(#{head})"/>'


def _arrowhead(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path class="{name}" d="M0 0L8 4L0 8z"/></marker>'
    )


def _said(name: str) -> str:
    return name.replace("_", " ")


# --- columns, lines and bars -------------------------------------------------------------------------------------

#: Pixels: the drawing area, the row of labels below it, and a bar and its row.
_HEIGHT, _AXIS = 132, 22
_ROW, _BAR = 40, 12
#: Percent of the width reserved for the numbers at the side.
_SIDE = 10.0
#: Part of its space that a column fills.
_FILL = 0.76
#: Maximum number of labels on the axis.
_LABELS = 4
#: Number of grid lines.
_LINES = 4
#: The least height of a part, in pixels, so that it is visible.
_LEAST = 2.0

#: Formats the numbers of a chart.
Text = Callable[[float], str]


def plain(value: float) -> str:
    """Format a number."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def dollars(value: float) -> str:
    """Format an amount of money."""
    return f"${value:,.0f}" if float(value).is_integer() else f"${value:,.2f}"


def percent(value: float) -> str:
    """Format a share."""
    return f"{value * 100:.0f} %"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A part of a column, a point of a line, or a bar beside a name."""

    value: float | None  #: None: nothing is drawn, and a line is interrupted
    words: str  #: for screen readers, and shown on hover
    label: str = ""  #: beside or below it
    kind: str = "usual"  #: its CSS class, such as `completed`


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of a chart."""

    label: str
    parts: tuple[Mark, ...] = ()  #: from the bottom up

    @property
    def value(self) -> float:
        """The height of the column."""
        return math.fsum(part.value or 0.0 for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """What every chart has."""

    key: str  #: prefix of the ids in it; unique on a page
    title: str
    about: str  #: what it shows, in a sentence or two
    text: Text = plain  #: formats its numbers
    top: float = 0.0  #: the scale reaches this at least
    limit: float | None = None  #: a line not to be exceeded, such as a budget
    limit_words: str = ""
    say: Callable[[str], str] = str  #: filters every label: text of strangers may hold invisible characters that act

    def safe(self, text: str) -> str:
        """Return *text* filtered and escaped for the chart."""
        return escape(self.say(text))


def columns_svg(plot: Plot, columns: Sequence[Column]) -> str:
    """Return columns beside each other, each made of parts on top of each other."""
    top = scale_of(max((column.value for column in columns), default=0.0), plot)
    drawn = (
        mark for place, column in enumerate(columns) for mark in _column(plot, column, _place(place, len(columns)), top)
    )

    return _picture(plot, top, [column.label for column in columns], drawn)


def line_svg(plot: Plot, points: Sequence[Mark]) -> str:
    """Return a line through points; it is interrupted where a point has no value."""
    top = scale_of(max((point.value or 0.0 for point in points), default=0.0), plot)
    count = len(points)
    drawn = [
        f'<line class="stroke" x1="{_middle(at - 1, count)}%" y1="{_y(one.value, top)}" x2="{_middle(at, count)}%" '
        f'y2="{_y(two.value, top)}"/>'
        for at, (one, two) in enumerate(pairwise(points), start=1)
        if one.value is not None and two.value is not None
    ]
    drawn += [
        f'<g class="dot"><title>{plot.safe(point.words)}</title>'
        f'<circle cx="{_middle(at, count)}%" cy="{_y(point.value, top)}" r="3.5"/></g>'
        for at, point in enumerate(points)
        if point.value is not None
    ]

    return _picture(plot, top, [point.label for point in points], drawn)


def bars_svg(plot: Plot, bars: Sequence[Mark]) -> str:
    """Return bars below each other, each under its name and with its number after it."""
    most = max((bar.value or 0.0 for bar in bars), default=0.0) or 1.0
    height = max(1, len(bars)) * _ROW
    drawn = (_bar(plot, bar, number * _ROW, most) for number, bar in enumerate(bars))

    return _framed(plot, "plot bars", height, drawn)


def _bar(plot: Plot, bar: Mark, top: int, most: float) -> str:
    number = bar.value or 0.0
    value, share = plot.safe(plot.text(number)), 100 * max(0.0, number) / most

    return (
        f'<g class="bar {plot.safe(bar.kind)}"><title>{plot.safe(bar.words)}</title>'
        f'<text class="name" x="0" y="{top + 14}">{plot.safe(bar.label)}</text>'
        f'<text class="value" x="100%" y="{top + 14}" text-anchor="end">{value}</text>'
        f'<rect class="rail" x="0" y="{top + 20}" width="100%" height="{_BAR}" rx="3"/>'
        f'<rect class="fill" x="0" y="{top + 20}" width="{share:.3f}%" height="{_BAR}" rx="3"/></g>'
    )


def scale_of(most: float, plot: Plot) -> float:
    """Return the end of the scale: a round number, not below any value shown."""
    wanted = max(most, plot.top, plot.limit or 0.0)
    if not 0.0 < wanted < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(wanted))

    return next(size * step for step in (1.0, 2.0, 4.0, 5.0, 8.0, 10.0) if size * step >= wanted * (1 - 1e-9))


# --- parts of a picture ----------------------------------------------------------------------------------------


def _picture(plot: Plot, top: float, labels: Sequence[str], drawn: Iterator[str] | Sequence[str]) -> str:
    parts = [*_lines(plot, top), *drawn]
    if plot.limit:
        y, words = _y(plot.limit, top), plot.safe(plot.limit_words)
        parts.append(f'<g class="limit"><title>{words}</title><line x1="{_SIDE}%" x2="100%" y1="{y}" y2="{y}"/></g>')

    return _framed(plot, "plot", _HEIGHT + _AXIS, [*parts, *_labels(plot, labels)])


def _framed(plot: Plot, kind: str, height: int, drawn: Iterator[str] | Sequence[str]) -> str:
    key = plot.safe(plot.key)

    return "".join(
        [
            f'<svg class="{kind}" role="img" aria-labelledby="{key}-title {key}-about" width="100%" height="{height}">',
            f'<title id="{key}-title">{plot.safe(plot.title)}</title>',
            f'<desc id="{key}-about">{plot.safe(plot.about)}</desc>',
            *drawn,
            "</svg>",
        ]
    )


def _column(plot: Plot, column: Column, place: tuple[float, float], top: float) -> Iterator[str]:
    left, width = place
    y = float(_HEIGHT)
    for part in column.parts:
        if not part.value or part.value <= 0:
            continue
        tall = max(_LEAST, part.value / top * _HEIGHT)
        y -= tall
        yield (
            f'<g class="part {plot.safe(part.kind)}"><title>{plot.safe(part.words)}</title>'
            f'<rect x="{left:.3f}%" y="{y:.2f}" width="{width:.3f}%" height="{tall:.2f}"/></g>'
        )


def _lines(plot: Plot, top: float) -> Iterator[str]:
    for number in range(_LINES + 1):
        value = top * number / _LINES
        y = _y(value, top)
        yield f'<line class="grid" x1="{_SIDE}%" x2="100%" y1="{y}" y2="{y}"/>'
        if number in (_LINES // 2, _LINES):
            yield f'<text class="tick" x="0" y="{y + 4:.2f}">{plot.safe(plot.text(value))}</text>'


def _labels(plot: Plot, labels: Sequence[str]) -> Iterator[str]:
    """Yield evenly spaced labels; the last column always has one."""
    count, y = len(labels), _HEIGHT + _AXIS - 6
    step = max(1, math.ceil(count / _LABELS))
    for at in range((count - 1) % step, count, step):
        # A narrow column at the very end has no space on its right.
        anchor, x = ("end", 100.0) if step > 1 and at == count - 1 else ("middle", _middle(at, count))
        yield f'<text class="tick" x="{x}%" y="{y}" text-anchor="{anchor}">{plot.safe(labels[at])}</text>'


def _place(at: int, count: int) -> tuple[float, float]:
    """Return the start and the width of a column, in percent."""
    room = (100.0 - _SIDE) / count

    return _SIDE + at * room + room * (1 - _FILL) / 2, room * _FILL


def _middle(at: int, count: int) -> float:
    return round(_SIDE + (at + 0.5) * (100.0 - _SIDE) / count, 3)


def _y(value: float | None, top: float) -> float:
    return round(_HEIGHT - max(0.0, value or 0.0) / top * _HEIGHT, 2)


# --- a state table as a Mermaid diagram --------------------------------------------------------------------------

#: Name of the box around the phases.
BOX = "working"

_LABELS_THERE = {
    WorkflowState.PAUSED: "pause",
    WorkflowState.FAILED: "fail",
    WorkflowState.ABANDONED: "abandon",
    WorkflowState.ROLLED_BACK: "roll back",
}
_LABELS_BACK = {
    WorkflowState.PAUSED: "resume",
    WorkflowState.FAILED: "retry",
    WorkflowState.COMPLETED: "carry on",
}


def mermaid(table: Table) -> str:
    """Return *table* as the text of a Mermaid state diagram, with a newline at the end."""
    phases = [state for state in table if state in PHASE_STATES]
    others = [state for state in table if state not in PHASE_STATES]
    lines = [
        "stateDiagram-v2",
        f"    [*] --> {WorkflowState.PENDING.value}",
        f"    state {BOX} {{",
        *(f"        {state.value}" for state in phases),
        *(
            f"        {_mermaid_arrow(state.value, target.value, 'rework' if is_rework(state, target) else '')}"
            for state in phases
            for target in table[state]
            if target in PHASE_STATES
        ),
        "    }",
        *(f"    {line}" for line in _outer(table, phases, others)),
        *(f"    {state.value} --> [*]" for state in others if state in END_STATES),
    ]

    return "\n".join(lines) + "\n"


def block(table: Table) -> str:
    """Return the diagram in a Markdown fence, as in a generated page."""
    return f"```mermaid\n{mermaid(table)}```\n"


def _outer(table: Table, phases: list[WorkflowState], others: list[WorkflowState]) -> Iterator[str]:
    """Yield the moves from and to phases, once if all phases share it, and those between other states."""
    for other in others:
        sources = [phase.value for phase in phases if other in table[phase]]
        for source in [BOX] if len(sources) == len(phases) else sources:
            yield _mermaid_arrow(source, other.value, _LABELS_THERE.get(other, ""))
    for other in others:
        back = _LABELS_BACK.get(other, "")
        targets = [phase.value for phase in phases if phase in table[other]]
        for target in [BOX] if len(targets) == len(phases) else targets:
            yield _mermaid_arrow(other.value, target, back)
        for state in table[other]:
            if state not in PHASE_STATES:
                yield _mermaid_arrow(other.value, state.value, _LABELS_THERE.get(state, back))


def _mermaid_arrow(source: str, target: str, label: str) -> str:
    return f"{source} --> {target} : {label}" if label else f"{source} --> {target}"
