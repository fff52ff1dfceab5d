"""`adw rollback`, `adw admin gc`, `adopt`, `verify`: undo, find leftover resources, adopt a worktree, check."""

from __future__ import annotations

import click

from adws.adw_modules.errors import UsageError
from adws.adw_modules.housekeeping import verify as housekeeping_verify
from adws.adw_modules.housekeeping.verify import INVARIANTS
from adws.adw_modules.identifiers import counted
from adws.adw_modules.rollback import plan as rollback_plan
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.rollback.run import RollbackReport
from adws.cli import common as cli_common
from adws.cli import main, output
from adws.cli.common import who

EXIT_BLOCKED = 1


@click.command()
@cli_common.adw_id_argument
@click.option("--reason", default="", help="Why, for the pull request, the issue and the history.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--force", is_flag=True, help="Continue although work cannot be salvaged, or a process not be confirmed dead."
)
@click.option("--keep-branch", is_flag=True, help="Keep the branch, here and at the remote.")
@click.option(
    "--forget-host",
    "forget_hosts",
    multiple=True,
    metavar="HOST",
    help="Give up what is on a machine that is gone for good; it is listed as left there. May be repeated.",
)
@click.option(
    "--wait", type=cli_common.NumberRange(min=0), default=30.0, show_default=True, help="Seconds to wait for its owner."
)
@click.option("--detach", is_flag=True, help="Leave the rollback to a worker (adw worker).")
@output.json_option
def rollback(
    *,
    adw_id: str,
    reason: str,
    dry_run: bool,
    force: bool,
    keep_branch: bool,
    forget_hosts: tuple[str, ...],
    wait: float,
    detach: bool,
    as_json: bool,
) -> int:
    """
    Undo everything a workflow made, in a safe order.

    Commits are kept as refs/adw/salvage/ID and uncommitted work as a patch. What cannot be undone now stays on the
    workflow's list; the same command continues it. The exit code is 1 while anything is left that was not asked to
    be kept. A merged pull request is not undone. What is on another machine
    is left to a worker there, and the workflow is rolled back when that has done its part.
    """
    wishes = RollbackOptions(
        reason=reason or f"rolled back by {who()}",
        keep_branch=keep_branch,
        force=force,
        forget_hosts=tuple(dict.fromkeys(forget_hosts)),
        by=who(),
    )
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        if detach and not dry_run:
            cli_common.load(app, adw_id)  # a wrong id queues nothing
            queued = app.rollbacks.queue(adw_id, wishes, by=who(), wait_seconds=wait)
            lines = [f"workflow {adw_id} waits for a worker that rolls it back", "next: adw worker"]
            output.emit({"adw_id": adw_id, "run_id": queued.run_id}, lines, as_json=as_json)
            return 0
        if dry_run:
            report = app.rollbacks.plan(adw_id, wishes)
        else:
            say = (lambda _line: None) if as_json else output.say
            report = app.rollbacks.rollback(adw_id, wishes, wait_seconds=wait, say=say)
        output.emit(report.to_json(), _lines(report), as_json=as_json)

    return 0 if dry_run or (report.is_complete and not report.left) else EXIT_BLOCKED


def _lines(report: RollbackReport) -> list[str]:
    lines = rollback_plan.plan_lines(report.steps)
    if report.is_dry_run:
        return [f"workflow {report.adw_id} is {report.state}; a rollback would:", *lines]
    if report.is_complete:
        wanted = [line for line in report.kept if line not in report.left]
        kept = [line if line.startswith("left on ") else f"kept: {line}" for line in wanted]
        left = [f"left: {line}" for line in report.left]
        if left:
            left.append(f"when that is out of the way: adw rollback {report.adw_id} undoes the rest")
        return [*lines, f"workflow {report.adw_id} is rolled back", *kept, *left]

    again = f"adw rollback {report.adw_id} continues it"
    if report.waits_for:
        hosts = ", ".join(report.waits_for)
        again = (
            f"it waits for a worker on {hosts}; if that is gone for good: "
            f"adw rollback {report.adw_id} --forget-host {report.waits_for[0]}"
        )

    return [*lines, f"workflow {report.adw_id} is not rolled back yet: {len(report.blocked_by)} left; {again}"]


# --- `adw admin gc` and `adw admin adopt`: leftover resources of finished workflows, and adopting a worktree ---------


EXIT_LEFT = 1


@click.command()
@click.option("--execute", is_flag=True, help="Remove what was found; without it nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Change nothing, which is what happens without --execute, too.")
@click.option("--older-than", metavar="SPAN", default="", help="Only what is known to be that old: 30m, 12h, 7d, 2w.")
@output.json_option
def gc(*, execute: bool, dry_run: bool, older_than: str, as_json: bool) -> int:
    """
    List what ended workflows left behind: worktrees, branches, ports, processes, pull requests, locks.

    An abandoned workflow is rolled back as a whole. Commits and uncommitted work are salvaged first. What is older
    than the settings of retention say is deleted: events, logs, deliveries, finished workflows.
    """
    if execute and dry_run:
        raise UsageError("--execute and --dry-run exclude each other: leave one of them out")
    span = cli_common.parse_span(older_than) if older_than else None
    with main.open_home() as app:
        if not app.has_database():
            output.emit({"orphans": [], "executed": execute}, "there is nothing left over", as_json=as_json)
            return 0
        cli_common.install_for_people(app.settings)
        collector = app.collector
        orphans = collector.find(older_than=span)
        removals = collector.remove(orphans) if execute else ()
        if execute:
            found = [removal.to_json() for removal in removals]
            headers = ("", "kind", "what", "why")
            rows = [
                (
                    "removed" if done.is_gone else "left",
                    done.orphan.kind,
                    done.orphan.name,
                    done.detail or done.orphan.why,
                )
                for done in removals
            ]
        else:
            found = [orphan.to_json() for orphan in orphans]
            headers = ("kind", "what", "workflow", "why")
            rows = [(orphan.kind, orphan.name, orphan.adw_id, orphan.why) for orphan in orphans]
        lines = output.table(headers, rows) if rows else ["there is nothing left over"]
        if rows and not execute:
            lines.append("adw admin gc --execute removes them")
        data: output.Printable = {"orphans": found, "executed": execute, "problems": list(collector.problems)}
        output.emit(data, [*lines, *collector.problems], as_json=as_json)

    return EXIT_LEFT if any(not removal.is_gone for removal in removals) else 0


@click.command()
@click.argument("what", metavar="ID|PATH")
@output.json_option
def adopt(*, what: str, as_json: bool) -> None:
    """Adopt an orphaned worktree into its workflow; one without a workflow gets a new, paused one."""
    with main.open_home() as app:
        cli_common.install_for_people(app.settings)
        done = app.adoption.adopt(what)
        told = f"workflow {done.adw_id} has the worktree {done.path} on {done.branch}"
        more = f"; it is new and paused: adw resume {done.adw_id} --workflow NAME" if done.is_new else ""
        output.emit(done.to_json(), f"{told}{more}", as_json=as_json)


# --- `adw admin verify`: check the eleven invariants -----------------------------------------------------------


EXIT_BROKEN = 1


@click.command()
@output.json_option
def verify(*, as_json: bool) -> int:
    """Check the invariants against documents, database, git, ports and processes; exit 1 when one is violated."""
    with main.open_home() as app:
        result = app.verifier.check() if app.has_database() else ()
        counts = {str(number): count for number, count in housekeeping_verify.count_by_invariant(result).items()}
        data: output.Printable = {"violations": [broken.to_json() for broken in result], "by_invariant": counts}
        lines = [] if result else [f"all {len(INVARIANTS)} invariants hold"]
        for number, rule in INVARIANTS.items():
            broken = [violation for violation in result if violation.invariant == number]
            if broken:
                lines += [f"{number}. {rule}", *(f"   {violation.where}: {violation.what}" for violation in broken)]
        if result:
            lines.append(counted(len(result), "violation"))
        output.emit(data, lines, as_json=as_json)

    return EXIT_BROKEN if result else 0
