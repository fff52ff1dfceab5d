"""
What is wrong with the database, its documents, its locks and leases, as `adw doctor` tells it.

Pure: facts in, findings out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from adws.adw_modules.checkup import OK, PROBLEM, WARNING, DatabaseFacts, Finding, Trouble

#: Most troubles of one area that are told one by one.
MOST = 5

#: Kind of trouble -> its area and how bad it is; others are warnings about the database.
_KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "storage": ("database", PROBLEM),
        "moved": ("database", PROBLEM),
        "document": ("database", PROBLEM),
        "lock": ("locks", PROBLEM),
        "owner": ("locks", WARNING),
        "request": ("locks", WARNING),
        "run": ("locks", WARNING),
        "runner": ("locks", WARNING),
    }
)

#: Kinds that keep everything else from being looked at.
_UNREADABLE = frozenset({"storage", "schema", "moved"})


def database(facts: DatabaseFacts) -> Iterator[Finding]:
    """Judge whether the database can be used, and whether what is in it fits together."""
    if facts.problem:
        what, _, mend = facts.problem.rpartition(": ")
        yield Finding(area="database", level=PROBLEM, what=what or facts.problem, mend=mend if what else "adw db check")
        return
    if not facts.is_made:
        yield Finding(area="database", level=OK, what=f"{facts.name} is not there yet: the first run makes it")
        return
    areas = {"database": list[Finding](), "locks": list[Finding]()}
    for trouble in facts.troubles:
        found = _judged(trouble)
        areas[found.area].append(found)
    if not areas["database"]:
        yield Finding(area="database", level=OK, what=f"{facts.name}, schema {facts.schema}: whole")
    if not areas["locks"] and not any(trouble.kind in _UNREADABLE for trouble in facts.troubles):
        yield Finding(area="locks", level=OK, what="no lock, lease or run is left behind")
    for area in areas.values():
        yield from _some(area)


def _judged(trouble: Trouble) -> Finding:
    area, level = _KINDS.get(trouble.kind, ("database", WARNING))
    where = f"{trouble.adw_id}: " if trouble.adw_id else ""

    return Finding(area=area, level=level, what=f"{where}{trouble.text}", mend=trouble.hint)


def _some(found: list[Finding]) -> Iterator[Finding]:
    worst_first = sorted(found, key=lambda one: one.level != PROBLEM)
    yield from worst_first[:MOST]
    rest = worst_first[MOST:]
    if rest:
        yield Finding(area=rest[0].area, level=rest[0].level, what=f"{len(rest)} more like these", mend="adw db check")
