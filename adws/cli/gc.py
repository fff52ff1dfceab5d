"""`adw gc` and `adw adopt`: what is left of workflows that are over, and taking a worktree back."""

from __future__ import annotations

import click

from adws.adw_modules.coordination.gc import Removal
from adws.adw_modules.errors import UsageError
from adws.adw_modules.gc_rules import Orphan
from adws.cli import arguments, log, main, output

EXIT_LEFT = 1


@click.command()
@click.option("--execute", is_flag=True, help="Remove what was found; without it nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Change nothing, which is what happens without --execute, too.")
@click.option("--older-than", metavar="SPAN", default="", help="Only what is known to be that old: 30m, 12h, 7d, 2w.")
@output.json_option
def gc(*, execute: bool, dry_run: bool, older_than: str, as_json: bool) -> int:
    """
    Find what nobody needs any more, and say what each is: worktrees, branches, ports, processes, pull requests, locks.

    An abandoned workflow is rolled back as a whole. Commits and uncommitted work are salvaged first. What is older
    than the settings of retention say is forgotten: events, logs, deliveries, finished workflows.
    """
    if execute and dry_run:
        raise UsageError("--execute and --dry-run exclude each other: leave one of them out")
    span = arguments.parse_span(older_than) if older_than else None
    with main.open_home() as app:
        if not app.has_database():
            output.emit({"orphans": [], "executed": execute}, "there is nothing left over", as_json=as_json)
            return 0
        log.install_for_people(app.settings)
        collector = app.tidy.collector
        orphans = collector.find(older_than=span)
        removals = collector.remove(orphans) if execute else ()
        found = [removal.to_json() for removal in removals] if execute else [orphan.to_json() for orphan in orphans]
        data: output.Printable = {"orphans": found, "executed": execute, "problems": list(collector.problems)}
        lines = _removed(removals) if execute else _found(orphans)
        output.emit(data, [*lines, *collector.problems], as_json=as_json)

    return EXIT_LEFT if any(not removal.is_gone for removal in removals) else 0


@click.command()
@click.argument("what", metavar="ID|PATH")
@output.json_option
def adopt(*, what: str, as_json: bool) -> None:
    """Take an orphaned worktree back into its workflow; one without a workflow gets a new, paused one."""
    with main.open_home() as app:
        log.install_for_people(app.settings)
        done = app.tidy.adoption.adopt(what)
        told = f"workflow {done.adw_id} has the worktree {done.path} on {done.branch}"
        more = f"; it is new and paused: adw resume {done.adw_id} --workflow NAME" if done.is_new else ""
        output.emit(done.to_json(), f"{told}{more}", as_json=as_json)


def _found(orphans: tuple[Orphan, ...]) -> list[str]:
    if not orphans:
        return ["there is nothing left over"]
    rows = [(orphan.kind, orphan.name, orphan.adw_id, orphan.why) for orphan in orphans]

    return [*output.table(("kind", "what", "workflow", "why"), rows), "adw gc --execute removes them"]


def _removed(removals: tuple[Removal, ...]) -> list[str]:
    if not removals:
        return ["there is nothing left over"]
    rows = [
        ("removed" if done.is_gone else "left", done.orphan.kind, done.orphan.name, done.detail or done.orphan.why)
        for done in removals
    ]

    return output.table(("", "kind", "what", "why"), rows)
