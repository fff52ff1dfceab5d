"""
Times as people say them.

Pure.
"""

from __future__ import annotations

#: Seconds -> the unit that they make up.
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit."""
    for size, unit in _AGES:
        if abs(seconds) >= size:
            count = int(abs(seconds) // size)
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"

    return "now"


def span(seconds: float) -> str:
    """Return how long something takes, such as `0.04 s`, `4.2 s`, `12 s`, `2 min 5 s`, `1 h 3 min` or `2 d 4 h`."""
    if seconds < 1.0:
        return f"{seconds:.2f} s"
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"

    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
