"""
A timeline as a picture: one lane for each phase, attempts as blocks, waits as thin lines.

Pure: text out of values, everything escaped. Places across are in percent of the width and heights in pixels, so that
it fits a phone as it fits a screen, and its words stay readable. Colours come from the classes; nothing is told by
colour alone: waits are thin, attempts are thick, failures have a notch, and each has its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from html import escape

from adws.adw_modules.time_words import span
from adws.adw_modules.timeline import WAITS, Bar, Mark, Timeline

#: Pixels: of a lane, of the row of times, and where in a lane its block and its line lie.
_LANE, _AXIS = 44, 22
_BLOCK_TOP, _BLOCK = 20, 16
_LINE_TOP, _LINE = 25, 6
#: Times that are written below, the first and the last included.
_TICKS = 5
#: Percent of the width from which on a block has room for its number.
_ROOM = 4.0
#: Lengths in seconds from which on times are told by the minute, and by the day.
_BY_MINUTE, _BY_DAY = 600.0, 2 * 86_400.0
#: How an attempt ended that did not end well.
BAD = frozenset({"failed", "interrupted"})
#: How attempts stand or ended, as classes; what another tool calls it is no class.
_CLASSES = frozenset({"running", "waiting", "succeeded", "suspended", "parked"}) | BAD


def timeline_svg(line: Timeline, *, title: str, say: Callable[[str], str] = str) -> str:
    """Return the picture of *line*; *title* is read out in its place, *say* is what every strange text passes."""
    height = max(1, len(line.lanes)) * _LANE + _AXIS
    parts = [
        (
            f'<svg class="timeline kinds" role="img" aria-labelledby="timeline-title timeline-about" width="100%" '
            f'height="{height}">'
        ),
        f'<title id="timeline-title">{escape(say(title))}</title>',
        f'<desc id="timeline-about">{escape(say(about(line)))}</desc>',
        *_grid(line, height),
        *(part for number in range(len(line.lanes)) for part in _lane(line, number, say)),
        *(_mark(line, mark, height, say) for mark in line.marks if line.start <= mark.at <= line.end),
        *_now(line, height),
        "</svg>",
    ]

    return "".join(parts)


def about(line: Timeline) -> str:
    """Return what the picture shows, in a few sentences."""
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
        yield f'<line class="grid" x1="{place}" x2="{place}" y1="0" y2="{height - _AXIS}"/>'
        yield f'<text class="tick" x="{place}" y="{height - 6}" text-anchor="{anchor}">{clock_text(at, line)}</text>'


def clock_text(at: datetime, line: Timeline) -> str:
    """Return a moment as briefly as the length of the picture allows."""
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


def _block(line: Timeline, bar: Bar, top: int, text: str) -> str:
    left, width = _across(line, bar)
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


def _thin(line: Timeline, bar: Bar, top: int, text: str) -> str:
    left, width = _across(line, bar)
    opened = " open" if bar.is_open else ""

    return (
        f'<g class="wait {bar.kind}{opened}"><title>{text}</title>'
        f'<rect x="{left:.3f}%" y="{top + _LINE_TOP}" width="{width:.3f}%" height="{_LINE}" rx="3"/></g>'
    )


def words(bar: Bar) -> str:
    """Return a bar in words: what it was, and for how long."""
    return f"{bar.lane}: {bar.label} ({'so far ' if bar.is_open else ''}{span(bar.seconds)})"


def _mark(line: Timeline, mark: Mark, height: int, say: Callable[[str], str]) -> str:
    place = _percent(line, mark.at)

    return (
        f'<g class="mark {mark.kind}"><title>{escape(say(mark.label))}</title>'
        f'<line x1="{place:.3f}%" x2="{place:.3f}%" y1="0" y2="{height - _AXIS}"/>'
        f'<circle cx="{place:.3f}%" cy="5" r="4"/></g>'
    )


def _now(line: Timeline, height: int) -> Iterator[str]:
    """Yield the line that says how far it is, where something is still to come."""
    if line.start < line.now < line.end:
        place = _percent(line, line.now)
        yield f'<line class="now" x1="{place:.3f}%" x2="{place:.3f}%" y1="0" y2="{height - _AXIS}"/>'


def _across(line: Timeline, bar: Bar) -> tuple[float, float]:
    left = _percent(line, bar.start)

    return left, max(0.0, _percent(line, bar.end) - left)


def _percent(line: Timeline, at: datetime) -> float:
    return 100.0 * (at - line.start).total_seconds() / line.seconds


def legend(line: Timeline) -> list[tuple[str, str, bool]]:
    """Return the kinds there are in the picture: name, words, and whether it is a wait; work comes first."""
    kinds = dict.fromkeys(bar.kind for bar in line.bars)
    waits = [(kind, text, True) for kind, text in WAITS.items() if kind in kinds]

    return [*((kind, kind, False) for kind in kinds if kind in _CLASSES), *waits]
