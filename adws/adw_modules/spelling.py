"""
What somebody may have meant who mistyped a name.
"""

from __future__ import annotations

from collections.abc import Collection


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that looks most like *name*, "" when none does."""
    import difflib  # noqa: PLC0415 - only needed when something is wrong already

    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)), "")


def meant(name: str, known: Collection[str]) -> str:
    """Return how a sentence about the unknown *name* goes on: `, did you mean X?`, else nothing."""
    near = nearest(name, known)

    return f", did you mean {near}?" if near else ""


def hint(name: str, known: Collection[str], there_are: str = "there are") -> str:
    """Return how a sentence about the unknown *name* goes on: with the one that was meant, else with all there are."""
    return meant(name, known) or f"; {there_are}: {', '.join(known)}"
