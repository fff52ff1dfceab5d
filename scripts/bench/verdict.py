"""
The line that every benchmark ends a comparison with, so that people and `scripts/bench/all` read the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: As `tell` writes it.
LINE = re.compile(
    r"^= (?P<what>.+): (?P<measured>[0-9.,]+) (?P<unit>\S.*?), (?P<bound>at least|at most) (?P<limit>[0-9.,]+) \S.*?: "
    r"(?P<verdict>met|NOT MET)$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What was measured, and what was asked for."""

    what: str
    measured: str  #: with its unit
    asked: str  #: the same, after "at least" or "at most"
    is_met: bool


def tell(what: str, measured: float, *, least: float | None = None, most: float | None = None, unit: str = "x") -> bool:
    """Print *measured* beside its limit and say whether that is kept."""
    if (least is None) == (most is None):
        message = "give least or most"
        raise ValueError(message)
    limit = least if most is None else most
    bound, is_met = ("at least", measured >= limit) if most is None else ("at most", measured <= limit)
    print(f"= {what}: {measured:.2f} {unit}, {bound} {limit:g} {unit}: {'met' if is_met else 'NOT MET'}", flush=True)

    return is_met


def verdicts_in(text: str) -> list[Verdict]:
    """Return the verdicts that a benchmark printed."""
    return [
        Verdict(
            what=item["what"],
            measured=f"{item['measured']} {item['unit']}",
            asked=f"{item['bound']} {item['limit']} {item['unit']}",
            is_met=item["verdict"] == "met",
        )
        for item in map(LINE.match, text.splitlines())
        if item is not None
    ]
