"""
`adw db`: bringing the schema up, holding the database against the documents, making it again from them.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from adws import app_checkup
from adws.adw_modules.db import opening, views
from adws.adw_modules.json_value import JsonObject
from adws.cli import main, output, report_text


@click.group()
def db() -> None:
    """Upgrade, check and rebuild the database."""


@db.command()
@output.json_option
def upgrade(*, as_json: bool) -> None:
    """
    Bring the schema up, and make views again that are missing.

    What was there is kept: of a SQLite database a copy beside it, of PostgreSQL a copy of each table.
    """
    with main.open_home() as app:
        app.refuse_lost_database()
        database = app_checkup.connect(app)
        try:
            done = opening.upgrade(database)
            made = views.make_missing(database)
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


@db.command()
@output.json_option
def check(*, as_json: bool) -> int:
    """
    Look for damage and loose ends.

    Rows, documents, locks, requests and owners are held against each other. Exits with 1 when something does not fit.
    """
    with main.open_home() as app:
        problems = app_checkup.database_problems(app)
    data: JsonObject = {"ok": not problems, "problems": [asdict(problem) for problem in problems]}

    output.emit(data, report_text.problem_lines(problems), as_json=as_json)

    return 1 if problems else 0


@db.command()
@click.option("--force", is_flag=True, help="Also while live owners work on workflows.")
@output.json_option
def rebuild(*, force: bool, as_json: bool) -> int:
    """
    Make the database again from the documents. The documents are not changed.

    Exits with 1 when a document cannot be read and had to be left out.
    """
    from adws.adw_modules.coordination import rebuild as rebuilding  # noqa: PLC0415 - the other commands do without

    with main.open_home() as app:
        report = rebuilding.rebuild(
            store=app.store,
            fences=app.folders,
            reconstruction=app.reconstruction,
            local_lock=app.local_lock,
            processes=app.processes,
            repository=app.settings.repository or "",
            maker=app.run_maker,
            force=force,
        )

    output.emit(report.to_json(), report_text.rebuild_lines(report), as_json=as_json)

    return 1 if report.unreadable else 0


@db.command("move-to")
@click.argument("url", metavar="URL")
@click.option("--dry-run", is_flag=True, help="Only say how much there is to move.")
@output.json_option
def move_to(*, url: str, dry_run: bool, as_json: bool) -> None:
    """
    Move this home to PostgreSQL: postgresql://USER@HOST/NAME, an empty database.

    Every table and document is copied, read back and compared; then the old database is closed. Refused while anybody
    works. May be repeated after it was cut off. A password is better given by PGPASSWORD or a file ~/.pgpass.
    """
    from adws import app_move  # noqa: PLC0415 - the other commands do without

    with main.open_home() as app:
        report = app_move.move(app, url, dry_run=dry_run)

    output.emit(report.to_json(), report_text.move_lines(report), as_json=as_json)
