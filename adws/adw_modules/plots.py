"""
Numbers as pictures: columns over time, a line over time, and bars beside names.

Pure: text out of values, everything escaped. Places across are in percent of the width and heights in pixels, so that a
picture fits a phone as it fits a screen and its words stay readable. Colours come from classes, and nothing is told by
colour alone: each mark has its words, and the picture as a whole has a title and a description that are read out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

#: Pixels: what is drawn into, the row of labels below, and a bar beside a name with its row.
_HEIGHT, _AXIS = 132, 22
_ROW, _BAR = 40, 12
#: Percent of the width that the numbers at the side take: nothing is drawn over them.
_SIDE = 10.0
#: Percent of its place that a column fills.
_FILL = 0.76
#: Labels below, at most.
_LABELS = 4
#: Lines across.
_LINES = 4
#: The smallest part of something, in pixels: what is there is seen.
_LEAST = 2.0

#: What makes of a number what is written beside it.
Text = Callable[[float], str]


def plain(value: float) -> str:
    """Return a number as it is written beside a line."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def dollars(value: float) -> str:
    """Return an amount of money as it is written beside a line."""
    return f"${value:,.0f}" if float(value).is_integer() else f"${value:,.2f}"


def percent(value: float) -> str:
    """Return a share as it is written beside a line."""
    return f"{value * 100:.0f} %"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of a column, from the bottom up."""

    value: float
    kind: str  #: its class, such as `completed`
    words: str  #: read out, and shown when pointed at


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """What stands at one place of a time."""

    label: str
    parts: tuple[Part, ...] = ()

    @property
    def value(self) -> float:
        """How high it is."""
        return math.fsum(part.value for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point of a line; None: there is nothing to show, and the line is broken."""

    label: str
    value: float | None
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar beside a name."""

    label: str
    value: float
    words: str
    kind: str = "usual"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """What every picture has."""

    key: str  #: what the ids in it begin with: no two on a page are the same
    title: str
    about: str  #: what it shows, in a sentence or two
    text: Text = plain  #: what makes words of its numbers
    top: float = 0.0  #: the scale goes up to this, at least
    limit: float | None = None  #: a line that is not to be passed, such as a budget
    limit_words: str = ""
    say: Callable[[str], str] = str  #: what every text passes: what strangers wrote may draw nothing and do something

    def safe(self, text: str) -> str:
        """Return *text* as it may stand in the picture."""
        return escape(self.say(text))


def columns_svg(plot: Plot, columns: Sequence[Column]) -> str:
    """Return columns beside each other, each made of parts on top of each other."""
    top = scale_of(max((column.value for column in columns), default=0.0), plot)
    drawn = (
        mark for place, column in enumerate(columns) for mark in _column(plot, column, _place(place, len(columns)), top)
    )

    return _picture(plot, top, [column.label for column in columns], drawn)


def line_svg(plot: Plot, points: Sequence[Point]) -> str:
    """Return a line through points; where a point has no value it is broken."""
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


def bars_svg(plot: Plot, bars: Sequence[Bar]) -> str:
    """Return bars below each other, each under its name and with its number behind it."""
    most = max((bar.value for bar in bars), default=0.0) or 1.0
    height = max(1, len(bars)) * _ROW
    drawn = (_bar(plot, bar, number * _ROW, most) for number, bar in enumerate(bars))

    return _framed(plot, "plot bars", height, drawn)


def _bar(plot: Plot, bar: Bar, top: int, most: float) -> str:
    value, share = plot.safe(plot.text(bar.value)), 100 * max(0.0, bar.value) / most

    return (
        f'<g class="bar {plot.safe(bar.kind)}"><title>{plot.safe(bar.words)}</title>'
        f'<text class="name" x="0" y="{top + 14}">{plot.safe(bar.label)}</text>'
        f'<text class="value" x="100%" y="{top + 14}" text-anchor="end">{value}</text>'
        f'<rect class="rail" x="0" y="{top + 20}" width="100%" height="{_BAR}" rx="3"/>'
        f'<rect class="fill" x="0" y="{top + 20}" width="{share:.3f}%" height="{_BAR}" rx="3"/></g>'
    )


def scale_of(most: float, plot: Plot) -> float:
    """Return where the scale ends: a round number, not below anything that is shown."""
    wanted = max(most, plot.top, plot.limit or 0.0)
    if not 0.0 < wanted < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(wanted))

    return next(size * step for step in (1.0, 2.0, 4.0, 5.0, 8.0, 10.0) if size * step >= wanted * (1 - 1e-9))


# --- parts of a picture ----------------------------------------------------------------------------------------


def _picture(plot: Plot, top: float, labels: Sequence[str], drawn: Iterator[str] | Sequence[str]) -> str:
    parts = [*_lines(plot, top), *drawn, *_limit(plot, top), *_labels(plot, labels)]

    return _framed(plot, "plot", _HEIGHT + _AXIS, parts)


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
        if part.value <= 0:
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


def _limit(plot: Plot, top: float) -> Iterator[str]:
    if plot.limit:
        y, words = _y(plot.limit, top), plot.safe(plot.limit_words)
        yield f'<g class="limit"><title>{words}</title><line x1="{_SIDE}%" x2="100%" y1="{y}" y2="{y}"/></g>'


def _labels(plot: Plot, labels: Sequence[str]) -> Iterator[str]:
    """Yield labels that are equally far from each other; the last column has one."""
    count, y = len(labels), _HEIGHT + _AXIS - 6
    step = max(1, math.ceil(count / _LABELS))
    for at in range((count - 1) % step, count, step):
        # A narrow column at the very end has no room around it.
        anchor, x = ("end", 100.0) if step > 1 and at == count - 1 else ("middle", _middle(at, count))
        yield f'<text class="tick" x="{x}%" y="{y}" text-anchor="{anchor}">{plot.safe(labels[at])}</text>'


def _place(at: int, count: int) -> tuple[float, float]:
    """Return where a column begins and how wide it is, in percent."""
    room = (100.0 - _SIDE) / count

    return _SIDE + at * room + room * (1 - _FILL) / 2, room * _FILL


def _middle(at: int, count: int) -> float:
    return round(_SIDE + (at + 0.5) * (100.0 - _SIDE) / count, 3)


def _y(value: float | None, top: float) -> float:
    return round(_HEIGHT - max(0.0, value or 0.0) / top * _HEIGHT, 2)
