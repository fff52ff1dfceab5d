"""`adw db`: upgrade, check, rebuild, move, back up and restore the database or the whole home."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

import adws
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject, counted
from adws.adw_modules.maintenance import backup as maintenance_backup
from adws.adw_modules.maintenance.move import MoveReport, PostgresMove
from adws.cli import main, output
from adws.doctor import checks

if TYPE_CHECKING:
    from adws.adw_modules.maintenance.backup import BackupReport, RestoreReport
    from adws.adw_modules.maintenance.rebuild import LockConflict, RebuildReport
    from adws.app import Home


@click.command()
@output.json_option
def upgrade(*, as_json: bool) -> None:
    """
    Upgrade the schema of the database, and create missing views.

    What was there is kept: of a SQLite database a copy beside it, of PostgreSQL a copy of each table.
    """
    with main.open_home() as app:
        app.refuse_lost_database()
        database = checks.connect(app)
        try:
            done = migrate.upgrade(database)
            made = schema.make_missing(database)
        finally:
            database.close()
    text = (
        f"{database.name} has schema {done.now}, there was nothing to do"
        if done.found == done.now
        else f"{database.name}: schema {done.found or 'none'} -> {done.now}"
    )
    lines = [text] if done.backup is None else [text, f"the database as it was before: {done.backup}"]
    lines.extend(f"made the view {name} again" for name in made)
    data: JsonObject = {"from": done.found, "to": done.now, "backup": done.backup, "views": list(made)}

    output.emit(data, lines, as_json=as_json)


@click.command()
@output.json_option
def check(*, as_json: bool) -> int:
    """
    Check the database for damage and inconsistencies.

    Rows, documents, locks, requests and owners are compared. Exits with 1 when something does not match.
    """
    with main.open_home() as app:
        problems = checks.database_problems(app)
    data: JsonObject = {"ok": not problems, "problems": [asdict(problem) for problem in problems]}

    rows = [(problem.kind, problem.adw_id or "-", problem.text, problem.hint) for problem in problems]
    table = output.table(("KIND", "WORKFLOW", "PROBLEM", "FIX"), rows)
    output.emit(data, table if rows else "no problems found", as_json=as_json)

    return 1 if problems else 0


@click.command()
@click.option("--force", is_flag=True, help="Also while live owners work on workflows.")
@output.json_option
def rebuild(*, force: bool, as_json: bool) -> int:
    """
    Rebuild the database from the documents. The documents are not changed.

    Exits with 1 when a document cannot be read and had to be left out.
    """
    from adws.adw_modules.maintenance import rebuild as maintenance_rebuild

    with main.open_home() as app:
        report = maintenance_rebuild.rebuild(app, force=force)

    output.emit(report.to_json(), rebuild_lines(report), as_json=as_json)

    return 1 if report.unreadable else 0


def rebuild_lines(report: RebuildReport) -> list[str]:
    """Return what was rebuilt, what was kept, and what is lost."""
    counts = f"{counted(report.workflows, 'workflow')}, {counted(report.locks, 'issue lock')}"
    counts += f", {counted(report.requests, 'request')}"
    lines = [f"{counts}; {counted(report.events_kept, 'event')} kept, {report.events_made} made again from documents"]
    lines += [f"the old database had a problem: {text}" for text in report.problems]
    kept = "the log that the lost database left" if report.was_missing else "the old database"
    lines += [f"{kept} is kept as {report.set_aside}"] if report.set_aside else []
    lines += [f"cannot be read, left out: {adw_id}: {why}" for adw_id, why in report.unreadable.items()]
    lines += [f"has no document, its copy stays: {adw_id}" for adw_id in report.only_in_database]
    lines += [f"was never written, forgotten: {adw_id}" for adw_id in report.forgotten]
    lines += [f"active without a run, queued again: {adw_id}" for adw_id in report.runs_made]
    lines += [f"freed issue {lock.issue_number}, which {lock.adw_id} had" for lock in report.freed]
    lines += [_conflict(conflict) for conflict in report.conflicts]
    lines += [f"only a backup may still have: {what}" for what in report.lost]

    return lines


def _conflict(conflict: LockConflict) -> str:
    where = f" of {conflict.repository}" if conflict.repository else ""
    others = ", ".join(conflict.others)

    return f"issue {conflict.issue_number}{where} is claimed by several: {conflict.keeper} keeps it, not {others}"


@click.command("move")
@click.argument("url", metavar="URL")
@click.option("--dry-run", is_flag=True, help="Only say how much there is to move.")
@output.json_option
def move_to(*, url: str, dry_run: bool, as_json: bool) -> None:
    """
    Move this home to PostgreSQL: postgresql://USER@HOST/NAME, an empty database.

    Every table and document is copied, read back and compared; then the old database is closed. Refused
    while workers run. May be repeated after an interruption. A password is better given by PGPASSWORD or a file
    ~/.pgpass.
    """
    with main.open_home() as app:
        report = move(app, url, dry_run=dry_run)

    output.emit(report.to_json(), move_lines(report), as_json=as_json)


def move(app: Home, url: str, *, dry_run: bool = False) -> MoveReport:
    """Move the home of *app* to the database *url*, or with *dry_run* only count what there is to move."""
    settings = app.settings
    if settings.database_file is not None and not settings.database_file.exists():
        app.refuse_lost_database()
        raise UsageError(
            f"there is nothing to move: {settings.database_file} does not exist; set database.url to the new database"
        )
    with closing(PostgresMove(app, url)) as databases:
        return databases.move(dry_run=dry_run)


def move_lines(report: MoveReport) -> list[str]:
    """Return what was moved and which setting to change, without passwords."""
    listed = ", ".join(f"{rows} {name}" for name, rows in report.counts.items() if rows) or "nothing"
    if report.is_dry_run:
        return [f"{report.target} is free; there is to be moved: {listed}"]
    if report.gone_on:
        since = counted(report.gone_on, "workflow has", "workflows have")
        result = f"{report.target} has all of {report.source}; {since} continued there since"
    else:
        result = f"{report.target} has all of {report.source}, read back and compared: {listed}"
    lines = ["it had moved already; it was looked at again", result] if report.was_done else [f"moved: {result}"]

    return [
        *lines,
        f"{report.source} is closed and stays where it is, like the files of the workflows",
        "every adw of this home needs these settings from now on, in its environment:",
        f"  ADW_DATABASE_URL={report.target}",
        "  ADW_STATE_STORE=database",
        "or in adw.toml: database.url and state.store"
        + (" (put the password where *** stands, or into ~/.pgpass)" if "***" in report.target else ""),
    ]


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@output.json_option
def backup(*, path: Path | None, as_json: bool) -> None:
    """Write documents and database to PATH, a new .tar.gz or a directory; workers may run meanwhile."""
    with main.open_home() as app:
        target = maintenance_backup.archive_path(path, here=Path.cwd(), clock=app.clock)
        report = maintenance_backup.make_backup(target, app, adw_version=adws.__version__)

    output.emit(report.to_json(), backup_lines(report), as_json=as_json)


def backup_lines(report: BackupReport) -> list[str]:
    """Return what was written, and what was left out."""
    what = "and the database" if report.has_database else "without a database"
    # Named whatever the suffix: a person who opens a .zip should know why that fails.
    form = "" if report.path.name.endswith((".tar.gz", ".tgz")) else "a .tar.gz archive, "
    counts = f"{counted(report.workflows, 'workflow')}, {counted(report.events, 'event')}, {what}"
    lines = [f"wrote {report.path} ({form}{report.bytes} bytes): {counts}"]
    lines += [f"left out: {name}" for name in report.left_out]

    return [*lines, f"note: {report.note}"] if report.note else lines


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace workflows that exist; their documents are kept aside.")
@output.json_option
def restore(*, path: Path, force: bool, as_json: bool) -> None:
    """Restore the workflows of the backup PATH. Nothing is changed unless the whole backup is valid."""
    with main.open_home() as app:
        report = maintenance_backup.restore(path, app, force=force)

    output.emit(report.to_json(), restore_lines(report), as_json=as_json)


def restore_lines(report: RestoreReport) -> list[str]:
    """Return what was restored, and what a person has to know about it."""
    count, replaced = len(report.workflows), len(report.replaced)
    database = ", and the database" if report.has_database else ""
    lines = [
        f"restored {counted(count, 'workflow')} ({replaced} replaced), {counted(report.events, 'event')}{database}"
    ]
    lines += [f"notice: {_conflict(conflict)}" for conflict in report.conflicts]
    lines += [f"notice: {adw_id} was not restored: {why}" for adw_id, why in report.unreadable.items()]

    return [*lines, *(f"notice: {adw_id} is restored; an owner took it before its event" for adw_id in report.untold)]
