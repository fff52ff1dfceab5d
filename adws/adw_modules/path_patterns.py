"""
Whether paths in a repository are meant by patterns such as `src/**`, `docs/`, `*.md` or `.github/workflows`.

Pure. A pattern without a wildcard means that file, or everything below that directory. `*` stays inside one name, `**`
goes through any number of directories; a pattern without a slash means names at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache


def matching(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that one of *patterns* means, in order."""
    wanted = [_compiled(pattern) for pattern in patterns]

    return tuple(path for path in paths if any(one.fullmatch(path) for one in wanted))


def outside(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that none of *patterns* means; none when there are no patterns, which allows all."""
    known, wanted = tuple(paths), tuple(patterns)
    if not wanted:
        return ()
    inside = set(matching(known, wanted))

    return tuple(path for path in known if path not in inside)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = [part for part in pattern.removeprefix("./").split("/") if part]
    is_anchored = len(parts) > 1 or pattern.startswith("/")
    text = "" if is_anchored else r"(?:.*/)?"
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            text += ".+" if is_last else r"(?:.*/)?"
        else:
            text += _segment(part) + ("" if is_last else "/")

    # What stands for a directory stands for all that is in it.
    return re.compile(f"{text}(?:/.*)?", re.DOTALL)


def _segment(part: str) -> str:
    return re.escape(part).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
