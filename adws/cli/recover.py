"""`adw recover`: finding work whose worker is gone, and making it ready to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from adws.adw_modules.errors import UsageError
from adws.adw_modules.recovery_facts import Action, Mode, RecoveryResult, RecoveryStep, mode_of
from adws.cli import arguments, log, main, output


@click.command()
@click.option(
    "--mode",
    metavar="none|stale|all",
    help="How far it goes, instead of recovery.mode: nothing, what is proven to be left, or also what is not.",
)
@click.option(
    "--threshold",
    type=arguments.NumberRange(min=0.0),
    metavar="S",
    help="Seconds without a change after which mode stale takes back what nothing is proven about.",
)
@click.option("--force", is_flag=True, help="With --mode all: take work also from owners that live.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option("--all", "show_all", is_flag=True, help="Also show the workflows that are left alone, and why.")
@output.json_option
def recover(
    *, mode: str | None, threshold: float | None, force: bool, dry_run: bool, show_all: bool, as_json: bool
) -> int:
    """Find work whose worker is gone and make it ready to go on; runs nothing itself."""
    with main.open_home() as app:
        log.install_for_people(app.settings)
        the_mode = mode_of(mode or app.settings.recovery_mode)
        if force and the_mode is not Mode.ALL:
            raise UsageError("--force takes work from owners that live: use it with --mode all, or leave it out")
        if not app.has_database():
            _show(RecoveryResult(mode=the_mode, is_dry_run=dry_run), (), as_json=as_json)
            return 0
        recovery = app.work.recovery
        policy = replace(recovery.policy, is_forced=force)
        if threshold is not None:
            policy = replace(policy, threshold_seconds=threshold)
        kept: tuple[RecoveryStep, ...] = ()
        if show_all:
            plan = recovery.plan(every_document=True, mode=the_mode, policy=policy)
            kept = tuple(step for step in plan if step.action is Action.LEAVE)
        result = recovery.recover(every_document=True, mode=the_mode, policy=policy, is_dry_run=dry_run)
        _show(result, kept, as_json=as_json)

    return 0


def _show(result: RecoveryResult, kept: Sequence[RecoveryStep], *, as_json: bool) -> None:
    shown = replace(result, steps=(*result.steps, *kept))
    output.emit(shown.to_json(), _lines(shown), as_json=as_json)


def _lines(result: RecoveryResult) -> list[str]:
    if not result.steps:
        return ["there is nothing to recover"]
    steps = [(step.adw_id, step.action.value, step.why) for step in result.steps]
    lines = output.table(("WORKFLOW", "ACTION", "WHY"), steps)
    if result.is_dry_run or result.mode is Mode.NONE:
        return [*lines, "nothing was changed" + ("" if result.is_dry_run else ": recovery is off (mode none)")]
    told = f"{result.reset_to_pending} reset to pending, {result.marked_failed} failed, {result.marked_stopped} stopped"

    return [*lines, told]
