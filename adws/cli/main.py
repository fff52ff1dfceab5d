"""
The frame of the command line: the commands, and the exit code of each way to end.

A command's module is imported only when it runs, so `adw --help` loads click and this file. Exit codes: 0 done,
1 expected failure, 2 wrong use, 3 a bug in adw, 130 interrupted, 141 the reader of the output went away, 143 ended by
SIGTERM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

import adws
from adws.adw_modules.errors import AdwError, ConfigError

if TYPE_CHECKING:
    from adws.app import Home
    from adws.config.settings import Settings

EXIT_OK, EXIT_BUG, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 0, 3, 130, 141


class Entry(NamedTuple):
    """The place of a command, and its line in the help."""

    place: str  #: module and name; "" for a group, whose commands are in GROUPS
    summary: str


#: Section of the help -> command -> its place.
COMMANDS: dict[str, dict[str, Entry]] = {
    "Daily commands": {
        "init": Entry("init:init", "Write adw.toml, prompts and .gitignore lines for a repository."),
        "doctor": Entry("init:doctor", "Check this machine and repository; say how to fix each problem."),
        "run": Entry("work:run", "Start a workflow for an issue, or for a --task."),
        "list": Entry("views:list_", "List workflows, newest first."),
        "status": Entry("views:status", "Show what runs, waits or is stuck, or one workflow."),
        "logs": Entry("logs:logs", "Show the transcript of an attempt, or the log of a workflow."),
        "pause": Entry("control:pause", "Pause a workflow; --now kills its processes at once."),
        "resume": Entry("work:resume", "Continue a workflow where it stopped."),
        "retry": Entry("work:retry", "Retry a failed workflow; --grant allows more attempts."),
        "rollback": Entry("rollback:rollback", "Undo everything a workflow made."),
        "serve": Entry("serve:serve", "Run the dashboard, API, webhooks and workers."),
    },
    "More commands": {
        "demo": Entry("demo:demo", "Run a sample issue to a pull request, without an account."),
        "events": Entry("views:events", "Show the events of a workflow."),
        "approve": Entry("control:approve", "Approve the phase that waits for a person."),
        "reject": Entry("control:reject", "Send the phase that waits for a person back, with a hint."),
        "abandon": Entry("control:abandon", "Abandon a workflow and release its issue lock."),
        "worker": Entry("worker:worker", "Execute queued runs."),
        "cron": Entry("serve:cron", "Run the schedule: poll, check quotas, recover, notify, report."),
        "dashboard": Entry("serve:dashboard", "Print a link that logs a browser in to the dashboard."),
        "report": Entry("reports:report", "Report success, attempts, costs and failures over a time."),
        "quota": Entry("resources:quota", "Show every limit and how much of it is used."),
        "config": Entry("config:config", "Show the settings in force and where each comes from."),
    },
    "Groups": {
        "queue": Entry("", "Runs, workers, scheduled retries, external tasks."),
        "webhook": Entry("", "Deliveries that arrived, and replaying one."),
        "workflow": Entry("", "The workflows, agents and plugins that can be used here."),
        "state": Entry("", "Workflow documents: show, set, migrate, path."),
        "db": Entry("", "The database: upgrade, check, rebuild, move, backup, restore."),
        "admin": Entry("", "Locks, circuit breakers, ports, orphans, invariants, recovery."),
    },
}
#: Commands named in the last line of the help.
OTHERS = {
    "help": Entry("common:help_", "Show the help of a command."),
    "completion": Entry("common:completion", "Print the completion script of a shell."),
}
#: Group -> command -> its place.
GROUPS: dict[str, dict[str, Entry]] = {
    "queue": {
        "runs": Entry("runs:runs", "List queued, running and ended runs."),
        "workers": Entry("runs:workers", "List the workers on all machines, and what they offer."),
        "retries": Entry("steps:retries", "List scheduled retries; cancel one."),
        "external": Entry("steps:external", "List external tasks and their tokens."),
        "unschedulable": Entry("runs:unschedulable", "List runs that no worker can execute."),
    },
    "webhook": {
        "deliveries": Entry("deliveries:deliveries", "List webhook deliveries and their results."),
        "replay": Entry("deliveries:replay", "Process a delivery again."),
    },
    "workflow": {
        "list": Entry("config:list_workflows", "List the workflows that can be run."),
        "show": Entry("config:show_workflow", "Show the phases of one, and what runs them here."),
        "agents": Entry("config:agents", "Show which agents can be used here."),
        "plugins": Entry("config:plugins_", "Show what other packages provide, and whether it can be used."),
    },
    "state": {
        "show": Entry("state:show", "Show the document of a workflow."),
        "set": Entry("state:set_", "Change fields of a document, on record."),
        "migrate": Entry("state:migrate", "Bring documents of older versions to the current one."),
        "path": Entry("state:path", "Print the directory a workflow works in."),
    },
    "db": {
        "upgrade": Entry("maintenance:upgrade", "Bring the schema of the database up to date."),
        "check": Entry("maintenance:check", "Check the database for damage and contradictions."),
        "rebuild": Entry("maintenance:rebuild", "Rebuild the database from the documents."),
        "move": Entry("maintenance:move_to", "Move this home to PostgreSQL."),
        "backup": Entry("maintenance:backup", "Write a backup of documents and database."),
        "restore": Entry("maintenance:restore", "Restore a backup."),
    },
    "admin": {
        "locks": Entry("resources:locks", "List issue locks; release one."),
        "breakers": Entry("resources:breakers", "List circuit breakers; reset one."),
        "ports": Entry("resources:ports", "List the ports of workflows."),
        "gc": Entry("rollback:gc", "Find orphaned resources of ended workflows, and remove them."),
        "verify": Entry("rollback:verify", "Check the invariants."),
        "adopt": Entry("rollback:adopt", "Adopt an orphaned worktree into a workflow."),
        "recover": Entry("worker:recover", "Recover the runs of dead workers."),
    },
}
#: Old name of a command -> its name now.
MOVED = {
    "stuck": "status",
    "explain": "status ID",
    "attempts": "report, or adw status ID",
    "executions": "status ID",
    "cost": "report --by phase, or adw status ID",
    "path": "state path ID",
    "stop": "pause ID --now",
    "runs": "queue runs",
    "runners": "queue workers",
    "retries": "queue retries",
    "external": "queue external",
    "deliveries": "webhook deliveries",
    "replay": "webhook replay GUID",
    "workflows": "workflow list",
    "agents": "workflow agents",
    "plugins": "workflow plugins",
    "backup": "db backup",
    "restore": "db restore PATH",
    "move-to": "db move URL",
    **{name: f"admin {name}" for name in GROUPS["admin"]},
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Entry]] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        #: Heading -> command -> its place; the help does not list commands without a heading.
        self.sections = {**COMMANDS, "": OTHERS} if sections is None else sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the order of the help."""
        del ctx
        return [name for section in self.sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if there is no such command."""
        del ctx
        entry = next((section[cmd_name] for section in self.sections.values() if cmd_name in section), None)
        if entry is None:
            return None
        if not entry.place:
            return LazyGroup(cmd_name, help=entry.summary, sections={"Commands": GROUPS[cmd_name]})
        module, _, name = entry.place.partition(":")
        command: click.Command = getattr(importlib.import_module(f"adws.cli.{module}"), name)
        _give_examples(command)

        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; refuse an unknown one with its new name or the nearest names."""
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            from adws.adw_modules.identifiers import nearest

            near = nearest(args[0], self.list_commands(ctx))
            hint = f"did you mean {near}?" if near else f"{ctx.command_path} --help lists the commands"
            if args[0] in MOVED:
                hint = f"use adw {MOVED[args[0]]}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")

        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help by section, without importing them."""
        del ctx
        shown = {title: section for title, section in self.sections.items() if title}
        width = max(len(name) for section in shown.values() for name in section)
        for title, section in shown.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in section.items()])


class RootGroup(LazyGroup):
    """`adw` itself; its few options take one line at the end, so that its help fits on one screen."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        formatter.write("\nOptions: --home PATH (use this home), --version, -h. More: adw help, adw completion.\n")


class Invocation:
    """One run of the command line: its global options, and its settings once they are read."""

    def __init__(self) -> None:
        self.overrides: dict[str, str] = {}  #: setting -> value given on the command line
        self.known_settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """The settings in force, read on first use."""
        if self.known_settings is None:
            from adws.config import load as config_load

            self.known_settings = config_load.from_environment(self.overrides)
        return self.known_settings


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(adws.__version__, prog_name="adw", message="%(prog)s %(version)s")
@click.option("--home", metavar="PATH", help="Use this home instead of ADW_HOME or the repository you are in.")
@click.pass_obj
def cli(invocation: Invocation, home: str | None) -> None:
    """Carry a GitHub issue to a pull request through durable, reversible phases."""
    if home is not None:
        invocation.overrides["home"] = home


def load_settings() -> Settings:
    """Return the settings of the running command; raise ConfigError."""
    return click.get_current_context().ensure_object(Invocation).settings


def given_home() -> str | None:
    """Return the home named on the command line, or None."""
    return click.get_current_context().ensure_object(Invocation).overrides.get("home")


def open_home(*, role: str = "cli") -> AbstractContextManager[Home]:
    """Return the home of the running command as a context manager; each part is built on first use."""
    settings = load_settings()
    importlib.import_module("adws.config.load").leave_pydantic_plugins_out()
    importlib.import_module("adws.cli.common").install(settings)
    app: AbstractContextManager[Home] = importlib.import_module("adws.app").open_home(settings, role=role)

    return app


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no exception escapes."""
    invocation, stdout = Invocation(), sys.stdout
    if stdout is None:
        # Checked before anything is done: nobody could read the output, and the next file opened would get the
        # descriptor of the closed output.
        return _expected(AdwError("the output is closed: send it to a file or a program, or to /dev/null"))
    try:
        result = cli.main(args, prog_name="adw", standalone_mode=False, obj=invocation)
        sys.stdout.flush()  # detect a closed pipe here, not at interpreter shutdown
        return result if isinstance(result, int) else EXIT_OK
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except AdwError as exc:
        return _expected(exc)
    except SystemExit as exc:
        # Click exits this way after a completion script and after a broken pipe, for which it replaces the streams.
        if sys.stdout is not stdout:
            return _reader_gone()
        return exc.code if isinstance(exc.code, int) else EXIT_OK
    except BrokenPipeError:
        return _reader_gone()
    except Exception as exc:  # noqa: BLE001 - the outermost frame: a bug becomes a log file and exit code 3
        if code := _output_failed():
            return code
        importlib.import_module("adws.cli.crash").report(exc, invocation.known_settings)
        return EXIT_BUG


def main() -> NoReturn:
    """Entry point of the `adw` command."""
    try:
        importlib.import_module("adws.config.credentials").take()
    except ConfigError as exc:
        sys.exit(_expected(exc))
    sys.exit(run())


def _expected(error: AdwError) -> int:
    fail = importlib.import_module("adws.cli.output").fail
    for problem in error.problems if isinstance(error, ConfigError) else (str(error),):
        fail(problem)

    return error.exit_code


def _reader_gone() -> int:
    importlib.import_module("adws.cli.output").silence()

    return EXIT_BROKEN_PIPE


def _output_failed() -> int:
    """Return the exit code if output cannot be written, such as to a full disk, else 0."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        output = importlib.import_module("adws.cli.output")
        output.silence()
        return _expected(AdwError(output.NOT_WRITTEN.format(exc.strerror or exc)))

    return EXIT_OK


def _give_examples(command: click.Command) -> None:
    """Let the help of a command and its subcommands end with examples, which are loaded on demand."""
    command.format_epilog = _write_examples  # type: ignore[method-assign]  # one place for commands of any class
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _give_examples(below)


def _write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    importlib.import_module("adws.cli.common").write(ctx, formatter)
