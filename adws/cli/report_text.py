"""
What `adw db`, `adw backup` and `adw restore` say about what they found and did, in lines of text.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from adws.cli import output

if TYPE_CHECKING:
    from adws.adw_modules.coordination.backup import BackupReport
    from adws.adw_modules.coordination.move import MoveReport
    from adws.adw_modules.coordination.rebuild import RebuildReport
    from adws.adw_modules.coordination.rebuild_plan import LockConflict
    from adws.adw_modules.coordination.restore import RestoreReport
    from adws.adw_modules.db.check import Problem


def problem_lines(problems: Iterable[Problem]) -> list[str]:
    """Return what a check found as a table."""
    rows = [(problem.kind, problem.adw_id or "-", problem.text, problem.hint) for problem in problems]
    if not rows:
        return ["no problems found"]

    return output.table(("KIND", "WORKFLOW", "PROBLEM", "WHAT HELPS"), rows)


def rebuild_lines(report: RebuildReport) -> list[str]:
    """Return what was made again, what was kept, and what is lost."""
    counts = f"{report.workflows} workflows, {report.locks} issue locks, {report.requests} requests"
    lines = [f"{counts}; {report.events_kept} events kept, {report.events_made} made again from documents"]
    lines += [f"the old database had a problem: {text}" for text in report.problems]
    kept = "the log that the lost database left" if report.was_missing else "the old database"
    lines += [f"{kept} is kept as {report.set_aside}"] if report.set_aside else []
    lines += [f"cannot be read, left out: {adw_id}: {why}" for adw_id, why in report.unreadable.items()]
    lines += [f"has no document, its copy stays: {adw_id}" for adw_id in report.only_in_database]
    lines += [f"was never written, forgotten: {adw_id}" for adw_id in report.forgotten]
    lines += [f"was to go on and had no run, waits for a worker again: {adw_id}" for adw_id in report.runs_made]
    lines += [f"freed issue {lock.issue_number}, which {lock.adw_id} had" for lock in report.freed]
    lines += [_conflict(conflict) for conflict in report.conflicts]
    lines += [f"only a backup may still have: {what}" for what in report.lost]

    return lines


def backup_lines(report: BackupReport) -> list[str]:
    """Return what was written, and what was left out of it."""
    what = "and the database" if report.has_database else "without a database"
    # Whatever it is called: who opens a .zip with a program for those should know why that fails.
    form = "" if report.path.name.endswith((".tar.gz", ".tgz")) else "a .tar.gz archive, "
    counts = f"{report.workflows} workflows, {report.events} events, {what}"
    lines = [f"wrote {report.path} ({form}{report.bytes} bytes): {counts}"]
    lines += [f"left out: {name}" for name in report.left_out]

    return [*lines, f"note: {report.note}"] if report.note else lines


def restore_lines(report: RestoreReport) -> list[str]:
    """Return what came back, and what a person has to know about it."""
    count, replaced = len(report.workflows), len(report.replaced)
    database = ", and the database" if report.has_database else ""
    lines = [f"restored {count} workflows ({replaced} replaced), {report.events} events{database}"]
    lines += [f"notice: {_conflict(conflict)}" for conflict in report.conflicts]
    lines += [f"notice: {adw_id} was not restored: {why}" for adw_id, why in report.unreadable.items()]

    return [*lines, *(f"notice: {adw_id} is restored; an owner took it before its event" for adw_id in report.untold)]


def move_lines(report: MoveReport) -> list[str]:
    """Return what was moved, and what to set from now on; a password is not shown."""
    done, counts = report.move, report.counts
    listed = ", ".join(f"{rows} {name}" for name, rows in counts.items() if rows) or "nothing"
    if report.is_dry_run:
        return [f"{done.target} is free; there is to be moved: {listed}"]
    if done.gone_on:
        found = f"{done.target} has all of {done.source}; {done.gone_on} workflows have gone on there since"
    else:
        found = f"{done.target} has all of {done.source}, read back and compared: {listed}"
    lines = ["it had moved already; it was looked at again", found] if done.was_done else [f"moved: {found}"]

    return [
        *lines,
        f"{done.source} is closed and stays where it is, like the files of the workflows",
        "every adw of this home needs these settings from now on, in its environment:",
        f"  ADW_DATABASE_URL={done.target}",
        "  ADW_STORE=database",
        "or in adw.toml: database.url and state.store"
        + (" (put the password where *** stands, or into ~/.pgpass)" if "***" in done.target else ""),
    ]


def _conflict(conflict: LockConflict) -> str:
    where = f" of {conflict.repository}" if conflict.repository else ""
    others = ", ".join(conflict.others)

    return f"issue {conflict.issue_number}{where} is claimed by several: {conflict.keeper} keeps it, not {others}"
