"""`adw state`: show, change and migrate workflow documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from adws.adw_modules import timestamps
from adws.adw_modules.errors import StateInvalid
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.cli import common as cli_common
from adws.cli import main, output
from adws.cli.output import Printable

if TYPE_CHECKING:
    from adws.adw_modules.store.legacy_import import ImportedFile, MigrationPlan, PlannedFile, TreeMigration
    from adws.app import Home


# What `adw state migrate` says about a plan and about what became of it.
#
# Pure: values in, rows and lines out.


#: Path, id, version, action, detail.
Row: TypeAlias = tuple[str, str, str, str, str]

_NAMES = ("path", "adw_id", "version", "action", "detail")
_HEADERS = ("FILE", "ID", "VERSION", "ACTION", "DETAIL")


def plan_rows(plan: MigrationPlan) -> list[Row]:
    """Return what would be done, one row a file."""
    return [_row(plan, file, file.action.value, file.detail) for file in plan.files]


def applied_rows(plan: MigrationPlan, results: Sequence[ImportedFile]) -> list[Row]:
    """Return what was done, one row a file."""
    return [_row(plan, result.file, _outcome(result), result.detail) for result in results]


def data(plan: MigrationPlan, rows: Sequence[Row]) -> dict[str, Printable]:
    """Return the rows for programs."""
    return {"root": str(plan.root), "files": [dict(zip(_NAMES, row, strict=True)) for row in rows]}


def lines(plan: MigrationPlan, rows: Sequence[Row]) -> list[str]:
    """Return the rows for people."""
    if not rows:
        return [f"no workflow documents below {plan.root}"]

    return output.table(_HEADERS, rows)


def notes(plan: MigrationPlan) -> list[str]:
    """Return what was noticed while the documents were read, but for what a row says already."""
    return [
        f"{notice.path}: {notice.reason}"
        for file in plan.files
        for notice in file.notices
        if notice.kind != "migrated" and notice.reason not in file.detail
    ]


def _outcome(result: ImportedFile) -> str:
    if not result.file.action.is_change:
        return result.file.action.value

    return "done" if result.is_done else "refused"


def _row(plan: MigrationPlan, file: PlannedFile, action: str, detail: str) -> Row:
    is_inside = file.path.is_relative_to(plan.root) and file.path != plan.root
    path = file.path.relative_to(plan.root) if is_inside else file.path

    return (str(path), file.adw_id, file.version, action, detail)


#: Characters of a value on one line of `adw state show`; --json prints it whole.
SHOWN_WIDTH = 160


@click.group()
def state() -> None:
    """Show, change and migrate workflow documents."""


@state.command()
@cli_common.adw_id_argument
@output.json_option
def show(*, adw_id: str, as_json: bool) -> None:
    """Show the whole document of a workflow, each key with its value."""
    with main.open_home() as app:
        try:
            loaded = cli_common.load(app, adw_id)
            data, warnings = loaded.data, cli_common.notes(loaded)
        except StateInvalid as exc:  # shown all the same, so that a person can repair it
            if exc.data is None:
                raise
            data, warnings = exc.data, (str(exc),)
        output.emit(data, output.facts((key, _shown(value)) for key, value in data.items()), as_json=as_json)
        for warning in warnings:
            output.say(f"adw: {warning}")


@state.command(name="set")
@cli_common.adw_id_argument
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("-m", "--message", metavar="REASON", default="", help="Why; it is kept in the events.")
@click.option("--new", "allow_new", is_flag=True, help="Allow keys that the document does not have yet.")
@output.json_option
def set_(*, adw_id: str, assignments: tuple[str, ...], message: str, allow_new: bool, as_json: bool) -> None:
    """Change fields of a document, as its owner; a value is JSON where it parses as JSON, else a text."""
    from adws.adw_modules.store import field_edits

    wanted = field_edits.parse_assignments(assignments)
    with main.open_home() as app:
        notes = cli_common.notes_before_a_write(app, adw_id)
        change = field_edits.apply_change(adw_id, wanted, home=app, reason=message, allow_new=allow_new)
        revision = change.document.revision
        data: JsonObject = {"adw_id": adw_id, "revision": revision, "old": change.old, "new": change.new}
        data["changed"] = change.has_effect
        lines = [f"{key}: {_shown(change.old[key])} -> {_shown(change.new[key])}" for key in wanted]
        ending = f"revision {revision}" if change.has_effect else f"nothing changed, still revision {revision}"

        output.emit(data, [*(lines if change.has_effect else ()), ending], as_json=as_json)
        for note in notes:
            output.say(f"adw: {note}")


@state.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@output.json_option
def migrate(*, path: Path | None, dry_run: bool, as_json: bool) -> int:
    """
    Bring every old document below PATH (default: this home) to the current version.

    Documents of this home are upgraded in place, with a backup beside them. agents/ID/adw_state.json of older ADW
    set-ups, and documents of other homes, are imported and stay where they are.
    """
    from adws.adw_modules.store.legacy_import import TreePlanner

    with main.open_home() as app:
        settings = app.settings
        state_dir = settings.state_dir if settings.store == "files" else None
        has_database = app.has_database()  # looking makes none
        planner = TreePlanner(
            store=app.store if has_database or settings.store == "files" else None,
            state_dir=state_dir,
            locks=app.locks if has_database else None,
            leases=app.leases if has_database else None,
            repository=settings.repository or "",
            max_bytes=settings.max_document_bytes,
        )
        plan = planner.plan_migration(path) if path else planner.plan_migration(settings.home, settings.state_dir)
        if dry_run:
            return _print_migration(plan, plan_rows(plan), plan.has_trouble, as_json=as_json)

        results = tuple(_tree_migration(app).apply_migration(plan))
        has_trouble = not all(result.is_done for result in results)
        return _print_migration(plan, applied_rows(plan, results), has_trouble, as_json=as_json)


def _tree_migration(app: Home) -> TreeMigration:
    from adws.adw_modules.store.legacy_import import TreeMigration

    return TreeMigration(
        store=app.store,
        ownership=app.ownership,
        max_bytes=app.settings.max_document_bytes,
    )


def _print_migration(plan: MigrationPlan, rows: list[Row], has_trouble: bool, *, as_json: bool) -> int:
    output.emit(data(plan, rows), lines(plan, rows), as_json=as_json)
    for note in notes(plan):
        output.say(f"adw: {note}")

    return 1 if has_trouble else 0


def _shown(value: JsonValue) -> str:
    if value == timestamps.UNKNOWN_MOMENT:
        return "unknown"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)

    return output.shorten(text, SHOWN_WIDTH)
