"""
What people type: examples for the help of each command, and for docs/cli.md.

A table of its own, because it is loaded only when somebody asks for help. Each line is a command that is understood: a
test parses all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

#: command, without `adw` -> (what to type after `adw`, what it does)
EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    # --- look --------------------------------------------------------------------------------------------------
    "status": (
        ("status 1a2b3c4d", "Show how far a workflow is."),
        ("status adw-1a2b3c4d --json", "The same for a program; an id may be typed as branches spell it."),
    ),
    "list": (
        ("list --state failed", "Show what failed, newest first."),
        ("list --issue 42 --json", "Show the workflows of issue 42, for a program."),
    ),
    "events": (
        ("events 1a2b3c4d", "Show what happened."),
        ("events 1a2b3c4d -f", "Go on showing what happens, until Ctrl-C."),
    ),
    "runs": (
        ("runs", "Show what waits and what is with a worker."),
        ("runs --state dead", "Show what was given up because too many workers vanished with it."),
    ),
    "runners": (("runners", "Show the workers on all machines, and how long each was silent."),),
    "executions": (
        ("executions 1a2b3c4d", "Show the steps that loop or retry."),
        ("executions 1a2b3c4d.build.1.fetch --index 3", "Show one iteration with its calls."),
    ),
    "retries": (("retries --workflow 1a2b3c4d", "Show what of one workflow is tried again, and when."),),
    "retries cancel": (
        ('retries cancel 1a2b3c4d -m "the service is gone"', "Give a phase up that waits to be tried again."),
        ("retries cancel 1a2b3c4d.build.1.fetch --index 3", "Give one iteration of a loop up."),
    ),
    "external": (("external --all", "Show every task that is done outside of adw, also those that are over."),),
    "external show": (("external show 1a2b3c4d.test.1 --token", "Print a task with the token that it is done by."),),
    "deliveries": (("deliveries --verdict ignored", "Show what came in and was not acted on, with the reason."),),
    "logs": (
        ("logs 1a2b3c4d -f", "Follow the output of the attempt that runs."),
        ("logs 1a2b3c4d --phase test --attempt 2", "Show the output of one attempt."),
        ("logs 1a2b3c4d --log", "Show what adw itself logged about the workflow."),
    ),
    "path": (("path 1a2b3c4d", "Print the worktree, such as for cd $(adw path 1a2b3c4d)."),),
    "explain": (("explain 1a2b3c4d", "Say why it is not moving, and what to type."),),
    "stuck": (
        ("stuck", "Show what does not move, why, and what to type."),
        ("stuck --json", "The same for a program that watches."),
    ),
    "report": (
        ("report", "Show how the last 30 days went."),
        ("report --since 7d --html report.html", "Write a page with pictures about a week."),
        ("report --since 2026-01-01 --workflow sdlc --no-orphans --json", "One definition, for a program, quickly."),
    ),
    "attempts": (
        ("attempts --since 4w", "Show how many attempts each phase needed in four weeks."),
        ("attempts 1a2b3c4d", "Show how many attempts the phases of one workflow have used."),
    ),
    "ports": (("ports", "Show which workflow has which ports."),),
    "cost": (
        ("cost 1a2b3c4d", "Show what one workflow cost, by phase and attempt."),
        ("cost --since 7d --by provider", "Show what was spent in a week, by provider."),
    ),
    "quota": (("quota", "Show every limit; ends with 1 when one is reached, for cron."),),
    "agents": (("agents", "Show which agents are installed and logged in."),),
    "plugins": (("plugins", "Show what other packages bring; ends with 1 when something cannot be used."),),
    "workflows": (
        ("workflows", "List the workflows there are to run."),
        ("workflows sdlc", "Show the phases of one, and what runs them here."),
    ),
    "config": (("config", "Show every setting, its value and where that comes from."),),
    # --- work --------------------------------------------------------------------------------------------------
    "run": (
        ("run 42", "Start the usual workflow for issue 42, and stay with it."),
        ("run 42 --workflow plan_build --detach", "Leave it to a worker, and print its id."),
        ("run 42 --dry-run", "Say what would be done, and do nothing."),
    ),
    "resume": (
        ("resume 1a2b3c4d", "Go on where it stopped."),
        ('resume 1a2b3c4d --from test -m "use the other port"', "Begin a phase anew, with a hint."),
    ),
    "retry": (
        ("retry 1a2b3c4d", "Try a failed workflow again."),
        ('retry 1a2b3c4d --grant 2 -m "the key was wrong"', "Allow two more, and say what is different."),
    ),
    "pause": (('pause 1a2b3c4d -m "release freeze"', "Park it; what runs is ended in order."),),
    "stop": (
        ("stop 1a2b3c4d", "Ask the worker to stop, and let what runs end in order."),
        ("stop 1a2b3c4d --now", "Kill what runs at once."),
    ),
    "abandon": (('abandon 1a2b3c4d -m "solved by hand"', "Give it up; what it made stays until rollback or gc."),),
    "approve": (('approve 1a2b3c4d -m "looks right"', "Let a phase that waits for a person pass."),),
    "reject": (('reject 1a2b3c4d -m "the plan misses the tests"', "Send it back to work, with the reason."),),
    "replay": (("replay 72d3162e-cc78-11e3-81ab-4c9367dc0958", "Carry a delivery out again."),),
    "worker": (
        ("worker --concurrency 4", "Work on four runs at a time, until SIGTERM."),
        ("worker --once", "Do what is due now, and end."),
        ("worker --tag gpu", "Take runs, too, that demand the tag gpu."),
    ),
    "serve": (
        ("serve", "Webhooks, API and dashboard at loopback, with a worker beside it."),
        ("serve --port 9000 --workers 0", "At another port, without workers."),
    ),
    "dashboard": (
        ("dashboard", "Print a link that logs a browser in, once."),
        ("dashboard --address https://adw.example.com", "The same for a server behind a proxy."),
    ),
    "recover": (
        ("recover --dry-run", "Show what would be taken back from dead workers, and by what proof."),
        ("recover --mode all", "Look at everything that is with a worker, however young."),
    ),
    "cron": (
        ("cron --once", "Do what is due and end: the line for a crontab."),
        ("cron --list", "Show the schedule, and when each entry comes next."),
    ),
    # --- change ------------------------------------------------------------------------------------------------
    "state show": (("state show 1a2b3c4d", "Print the document of a workflow."),),
    "state set": (('state set 1a2b3c4d max_attempts=8 -m "slow tests"', "Change a field, on record."),),
    "state migrate": (
        ("state migrate --dry-run", "Show which documents are of older versions, and what would become of them."),
        ("state migrate agents", "Import what an older ADW set-up left in that directory."),
    ),
    "locks": (("locks", "Show which workflow has which issue, and whether its owner lives."),),
    "locks release": (("locks release 42", "Free an issue whose workflow is gone."),),
    "breakers": (("breakers", "Show which outside parties are held off, and until when."),),
    "breakers reset": (("breakers reset github", "Let work on before the time: the party is known to be well."),),
    # --- undo --------------------------------------------------------------------------------------------------
    "rollback": (
        ("rollback 1a2b3c4d --dry-run", "Show what would be removed, and what stands in the way."),
        ("rollback 1a2b3c4d --keep-branch", "Undo all but the branch."),
        ("rollback 1a2b3c4d --forget-host old-laptop", "Give up what is on a machine that is gone for good."),
    ),
    "gc": (
        ("gc", "Show what workflows that are over left behind."),
        ("gc --older-than 14d --execute", "Remove what is older than two weeks."),
    ),
    "verify": (("verify", "Check what must always hold; ends with 1 when something does not."),),
    "adopt": (("adopt trees/1a2b3c4d", "Take an orphaned worktree back into its workflow."),),
    # --- data --------------------------------------------------------------------------------------------------
    "db check": (("db check", "Look for damage, and for what does not fit together."),),
    "db upgrade": (("db upgrade", "Bring the database to the version of this adw, with a backup."),),
    "db rebuild": (("db rebuild", "Make the database again from the documents."),),
    "db move-to": (
        ("db move-to postgresql://adw@db.example.com/adw --dry-run", "Show what would be moved to PostgreSQL."),
        ("db move-to postgresql://adw@db.example.com/adw", "Move; may be repeated after a cut."),
    ),
    "backup": (("backup nightly.tar.gz", "Write documents and database into one file, while work goes on."),),
    "restore": (("restore nightly.tar.gz", "Bring a backup back into an empty home."),),
    # --- begin -------------------------------------------------------------------------------------------------
    "demo": (
        ("demo", "See an issue become a pull request, in seconds."),
        ("demo --crash", "See a killed worker's work go on."),
        ("demo --rollback", "See that nothing is left of it."),
        ("demo --dashboard", "Watch it in the browser."),
    ),
    "init": (
        ("init", "Look at the repository you are in, and write what adw needs."),
        ("init --dry-run", "Only say what would be written."),
        ('init --yes --test "make check"', "Ask nothing, and say how tests are run."),
    ),
    "doctor": (
        ("doctor", "Say what is wrong here, and what mends it."),
        ("doctor --json", "The same for a program; ends with 1 when there is a problem."),
        ("doctor --diagram", "Print the states of a workflow as a Mermaid diagram."),
    ),
    "completion": (
        ("completion bash", "Print the script; eval it in ~/.bashrc."),
        ("completion fish", "Save it as ~/.config/fish/completions/adw.fish."),
    ),
}


def of(path: str) -> tuple[tuple[str, str], ...]:
    """Return the examples of the command *path*, such as `adw db check`, as they are typed."""
    return tuple((f"adw {typed}", what) for typed, what in EXAMPLES.get(path.removeprefix("adw "), ()))


def write(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the examples of a command into its help."""
    lines = of(ctx.command_path)
    if not lines:
        return
    with formatter.section("Examples"):
        for typed, what in lines:
            formatter.write(f"{'':>{formatter.current_indent}}{typed}\n")
            formatter.indent()
            formatter.write_text(what)
            formatter.dedent()
