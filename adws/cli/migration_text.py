"""
What `adw state migrate` says about a plan and about what became of it.

Pure: values in, rows and lines out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from adws.cli import output
from adws.cli.output import Printable

if TYPE_CHECKING:
    from adws.adw_modules.coordination.migrate_tree import Applied, Plan, PlannedFile

#: Path, id, version, action, detail.
Row: TypeAlias = tuple[str, str, str, str, str]

_NAMES = ("path", "adw_id", "version", "action", "detail")
_HEADERS = ("FILE", "ID", "VERSION", "ACTION", "DETAIL")


def plan_rows(plan: Plan) -> list[Row]:
    """Return what would be done, one row a file."""
    return [_row(plan, file, file.action.value, file.detail) for file in plan.files]


def applied_rows(plan: Plan, results: Sequence[Applied]) -> list[Row]:
    """Return what was done, one row a file."""
    return [_row(plan, result.file, _outcome(result), result.detail) for result in results]


def data(plan: Plan, rows: Sequence[Row]) -> dict[str, Printable]:
    """Return the rows for programs."""
    return {"root": str(plan.root), "files": [dict(zip(_NAMES, row, strict=True)) for row in rows]}


def lines(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """Return the rows for people."""
    if not rows:
        return [f"no workflow documents below {plan.root}"]

    return output.table(_HEADERS, rows)


def notes(plan: Plan) -> list[str]:
    """Return what was noticed while the documents were read, but for what a row says already."""
    return [
        f"{notice.path}: {notice.reason}"
        for file in plan.files
        for notice in file.notices
        if notice.kind != "migrated" and notice.reason not in file.detail
    ]


def _outcome(result: Applied) -> str:
    if not result.file.action.is_change:
        return result.file.action.value

    return "done" if result.is_done else "refused"


def _row(plan: Plan, file: PlannedFile, action: str, detail: str) -> Row:
    is_inside = file.path.is_relative_to(plan.root) and file.path != plan.root
    path = file.path.relative_to(plan.root) if is_inside else file.path

    return (str(path), file.adw_id, file.version, action, detail)
