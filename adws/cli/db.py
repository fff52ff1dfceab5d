"""
`adw db`: bringing the schema up, holding the database against the documents, making it again from them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from adws.adw_modules.db import check as checking
from adws.adw_modules.db import opening, views
from adws.adw_modules.errors import AdwError, DatabaseUnavailable
from adws.adw_modules.json_value import JsonObject
from adws.cli import main, output, report_text

if TYPE_CHECKING:
    from adws.adw_modules.db.check import Problem
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.interfaces import PeekedState
    from adws.app import App


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
        database = _connect(app)
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
        problems = _lost(app) or _problems(app)
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


def _connect(app: App) -> Database:
    """Return the database as it is: `app.database` would upgrade it on the way."""
    return opening.connect(app.settings.database_url, clock=app.clock, boot_id=app.processes.boot_id)


def _lost(app: App) -> tuple[Problem, ...]:
    """Return that the database is gone, when it is: then there is nothing else to check."""
    try:
        app.has_database()
    except DatabaseUnavailable as exc:
        text, _, hint = str(exc).rpartition(": ")
        return (checking.Problem(kind="storage", text=text, hint=hint),)

    return ()


def _problems(app: App) -> tuple[Problem, ...]:
    database = _connect(app)
    try:
        return checking.find_problems(
            database,
            home=app.settings.store,
            documents=lambda: _documents(app),
            repository=app.settings.repository or "",
            verdict=app.processes.verdict,
        )
    finally:
        database.close()


def _documents(app: App) -> dict[str, PeekedState | str]:
    """Return every document, or why it cannot be read."""
    links = app.folders.links() if app.settings.store == "files" else ()
    found: dict[str, PeekedState | str] = {}
    for adw_id in (*app.store.ids(), *links):
        try:
            found[adw_id] = app.store.peek(adw_id)
        except AdwError as exc:
            found[adw_id] = str(exc)

    return found
