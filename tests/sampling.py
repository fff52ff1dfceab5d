"""Tables of cases that are long, or dear to try: a few of them in the ordinary run, all of them in the soak."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any


def is_soak() -> bool:
    """Say whether this run takes the full counts."""
    return os.environ.get("ADW_SOAK", "") not in {"", "0"}


def some(cases: Sequence[Any], count: int) -> list[Any]:
    """Return *count* of *cases*, from the first to the last in equal steps; all of them in the soak."""
    if is_soak() or count >= len(cases):
        return list(cases)
    if count == 1:
        return [cases[0]]
    return [cases[round(number * (len(cases) - 1) / (count - 1))] for number in range(count)]


def each_value_once(*tables: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations in which every value of every table comes at least once; in the soak, all combinations."""
    if is_soak():
        return list(itertools.product(*tables))
    longest = max(map(len, tables))
    return [tuple(table[number % len(table)] for table in tables) for number in range(longest)]


def share(cases: Sequence[Any], number: int, count: int = 2) -> list[Any]:
    """Return *count* of *cases*: others for each *number*, so that several tests share them; in the soak, all."""
    if is_soak():
        return list(cases)
    return [cases[(number * count + more) % len(cases)] for more in range(count)]
