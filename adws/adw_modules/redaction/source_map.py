"""Where the characters of a text without its escapes stand in the text it was made from. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable


class SourceMap:
    """The places of `escapes.sub(plain, text)` in *text*; *plain* returns at most one character for each escape."""

    __slots__ = ("_above", "_ends", "_starts")

    def __init__(self, text: str, escapes: re.Pattern[str], plain: Callable[[re.Match[str]], str]) -> None:
        #: One entry for each run that was kept and each character that was decoded, and one for the end.
        self._above: list[int] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        at = above = 0
        for item in escapes.finditer(text):
            above = self._add(above, at, item.start(), width=item.start() - at)
            above = self._add(above, item.start(), item.end(), width=len(plain(item)))
            at = item.end()
        self._above.append(self._add(above, at, len(text), width=len(text) - at))

    def _add(self, above: int, start: int, end: int, *, width: int) -> int:
        if width:
            self._above.append(above)
            self._starts.append(start)
            self._ends.append(end)

        return above + width

    def back(self, start: int, end: int) -> tuple[int, int]:
        """Return where in the text below the characters from *start* to *end* came from."""
        first = bisect_right(self._above, start) - 1
        last = bisect_right(self._above, end - 1) - 1
        is_run = self._above[last + 1] - self._above[last] > 1
        stop = self._starts[last] + end - self._above[last] if is_run else self._ends[last]

        return self._starts[first] + start - self._above[first], stop
