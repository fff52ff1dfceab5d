"""`adw state`: show, change and migrate workflow documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adws.adw_modules import identifiers, timestamps
from adws.adw_modules.errors import StateInvalid
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.store.legacy_import import ImportedFile


#: Characters of a value on one line of `adw state show`; --json shows it whole.
SHOWN_WIDTH = 160


@click.command()
@cli_common.adw_id_argument
@output.json_option
def show(*, adw_id: str, as_json: bool) -> None:
    """Show the whole document of a workflow, each key with its value."""
    with main.open_home() as app:
        try:
            loaded = cli_common.load(app, adw_id)
            data, warnings = loaded.data, cli_common.notes(loaded)
        except StateInvalid as exc:  # shown anyway, so that a person can repair it
            if exc.data is None:
                raise
            data, warnings = exc.data, (str(exc),)
        output.emit(data, output.facts((key, _shown(value)) for key, value in data.items()), as_json=as_json)
        for warning in warnings:
            output.say(f"adw: {warning}")


@click.command(name="set")
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


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing.")
@output.json_option
def migrate(*, path: Path | None, dry_run: bool, as_json: bool) -> int:
    """
    Bring every old document below PATH (default: this home) to the current version.

    Documents of this home are upgraded in place, with a backup beside them. agents/ID/adw_state.json of older ADW
    set-ups, and documents of other homes, are imported and stay where they are.
    """
    from adws.adw_modules.store.legacy_import import TreeMigration, TreePlanner

    with main.open_home() as app:
        settings = app.settings
        has_database = app.has_database()  # looking creates none
        planner = TreePlanner(
            store=app.store if has_database or settings.store == "files" else None,
            state_dir=settings.state_dir if settings.store == "files" else None,
            locks=app.locks if has_database else None,
            leases=app.leases if has_database else None,
            repository=app.repository,
        )
        plan = planner.plan_migration(path) if path else planner.plan_migration(settings.home, settings.state_dir)
        if dry_run:
            results = [(file, file.action.value, file.detail) for file in plan.files]
            has_trouble = plan.has_trouble
        else:
            migration = TreeMigration(store=app.store, ownership=app.ownership)
            done = list(migration.apply_migration(plan))
            results = [(one.file, _outcome(one), one.detail) for one in done]
            has_trouble = not all(one.is_done for one in done)
    rows = []
    for file, action, detail in results:
        is_inside = file.path.is_relative_to(plan.root) and file.path != plan.root
        shown = file.path.relative_to(plan.root) if is_inside else file.path
        rows.append((str(shown), file.adw_id, file.version, action, detail))
    names = ("path", "adw_id", "version", "action", "detail")
    data: output.Printable = {
        "root": str(plan.root),
        "files": [dict(zip(names, row, strict=True)) for row in rows],
    }
    table = output.table(("FILE", "ID", "VERSION", "ACTION", "DETAIL"), rows)
    output.emit(data, table if rows else f"no workflow documents below {plan.root}", as_json=as_json)
    for file in plan.files:
        for notice in file.notices:
            # Leave out what the row already says.
            if notice.kind != "migrated" and notice.reason not in file.detail:
                output.say(f"adw: {notice.path}: {notice.reason}")

    return 1 if has_trouble else 0


def _outcome(result: ImportedFile) -> str:
    if not result.file.action.is_change:
        return result.file.action.value

    return "done" if result.is_done else "refused"


def _shown(value: JsonValue) -> str:
    if value == timestamps.UNKNOWN_MOMENT:
        return "unknown"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)

    return identifiers.shortened(text, SHOWN_WIDTH)


@click.command()
@cli_common.adw_id_argument
@click.option("--state", "want_state", is_flag=True, help="The directory of its document, log and output instead.")
@output.json_option
def path(*, adw_id: str, want_state: bool, as_json: bool) -> None:
    """Print the directory a workflow works in, so that you can cd into it."""
    with main.open_home() as app:
        worktree = cli_common.load(app, adw_id).document.worktree_path
        place = Path(worktree) if worktree else app.settings.home
        shown = app.settings.state_dir / adw_id if want_state else place

        output.emit({"adw_id": adw_id, "path": str(shown)}, str(shown), as_json=as_json)
