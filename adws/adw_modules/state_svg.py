"""
The states of a workflow as a picture: where it is, and which way it came.

Pure: text out of a table and the moves that were made, everything escaped. The way from pending to completed goes down
on the left, and what stops it stands on the right. Every move that was made is drawn; of the others those that lead on,
and once, from the box around the phases, those that all phases share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from adws.adw_modules.state_table import PHASE_STATES, Table, WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document import HistoryEntry

_S = WorkflowState
#: A move, as two names.
Move: TypeAlias = tuple[str, str]

#: What stops a workflow, from the top down.
_STOPS = (_S.PAUSED, _S.FAILED, _S.ABANDONED, _S.ROLLED_BACK)
#: The moves between those that are drawn though nobody made them.
_CHAIN: tuple[Move, ...] = (("failed", "abandoned"), ("abandoned", "rolled_back"), ("completed", "rolled_back"))
#: Pixels: the picture, a state, and the middle of the two columns.
WIDTH = 400
_PITCH, _MARGIN = 46, 24
_HALF_WIDTH, _HALF_HEIGHT = 60, 14
_LEFT, _RIGHT = 116, 318
#: How far a curve beside a column leaves it, and the way to and from a state are apart.
_BEND, _APART = 44, 5
#: Moves that are told in words.
_MOST_MOVES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """The middle of a state."""

    x: int
    y: float
    row: int = 0  #: in its column, from the top

    @property
    def is_left(self) -> bool:
        return self.x == _LEFT


def moves_of(history: Iterable[HistoryEntry]) -> Counter[Move]:
    """Return how often each move was made."""
    return Counter((entry.from_state, entry.to_state) for entry in history)


def state_svg(table: Table, current: str, made: Mapping[Move, int]) -> str:
    """Return the picture of *table* with the state *current* and the moves that were *made* marked."""
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
    """Return the picture in words."""
    moves = [f"{_said(a)} to {_said(b)}{f' {n} times' if n > 1 else ''}" for (a, b), n in made.items()]
    more = f" and {len(moves) - _MOST_MOVES} others" if len(moves) > _MOST_MOVES else ""
    way = f" Moves so far: {', '.join(moves[:_MOST_MOVES])}{more}." if moves else ""

    return f"The workflow is {_said(current)}.{way}"


def _places(table: Table) -> dict[str, _Place]:
    """Return where each state stands."""
    left = [state.value for state in table if state not in _STOPS]
    right = [state.value for state in _STOPS if state in table]
    rows = max(len(left), len(right))

    return {**_column(left, _LEFT, rows), **_column(right, _RIGHT, rows)}


def _column(names: Sequence[str], x: int, rows: int) -> dict[str, _Place]:
    apart = _PITCH * (rows - 1) / max(1, len(names) - 1)

    return {name: _Place(x=x, y=_MARGIN + number * apart, row=number) for number, name in enumerate(names)}


def _moves(table: Table, places: Mapping[str, _Place], made: Mapping[Move, int]) -> list[Move]:
    """Return the moves to draw, those that were made last: they lie on top."""
    possible = [(source.value, target.value) for source, row in table.items() for target in row]
    plain = [move for move in possible if move in _CHAIN or all(places[name].is_left for name in move)]
    known = [move for move in made if places.keys() >= set(move)]

    return [*(move for move in plain if move not in made), *known]


def _box(table: Table, places: Mapping[str, _Place]) -> Iterator[str]:
    """Yield the box around the phases, and the moves that all of them share."""
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
    """Return the way from one state to another, and where a word about it can stand."""
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
    """Return the way between the columns; that back runs a little lower, so that both are seen."""
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
