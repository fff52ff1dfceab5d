"""
The command line's frame: which commands there are, and what each way of ending means to the shell.

A command's module is imported only when that command runs, so `adw --help` loads click and this file. Exit codes:
0 done, 1 expected failure, 2 wrong use, 3 a bug in adw, 130 interrupted, 141 the reader of the output went away,
143 ended by SIGTERM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

import adws
from adws.adw_modules.errors import AdwError, ConfigError

if TYPE_CHECKING:
    from adws.app import Home
    from adws.config.settings import Settings

EXIT_OK, EXIT_BUG, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 0, 3, 130, 141


class CommandEntry(NamedTuple):
    """Where a command lives, and its line in the help."""

    module: str
    attribute: str
    summary: str


#: Section of the help -> command -> where it lives.
COMMANDS: dict[str, dict[str, CommandEntry]] = {
    "Begin": {
        "demo": CommandEntry("adws.cli.demo", "demo", "Carry a sample issue to a pull request, without an account."),
        "init": CommandEntry("adws.cli.init", "init", "Write adw.toml, prompts and .gitignore lines for a repository."),
        "doctor": CommandEntry("adws.cli.init", "doctor", "Say what is wrong on this machine, and what mends it."),
    },
    "Look": {
        "status": CommandEntry("adws.cli.views", "status", "Show one workflow."),
        "list": CommandEntry("adws.cli.views", "list_", "List workflows, newest first."),
        "events": CommandEntry("adws.cli.views", "events", "Show what happened to a workflow."),
        "runs": CommandEntry("adws.cli.runs", "runs", "Show what waits for a worker, and what is with one."),
        "runners": CommandEntry("adws.cli.runs", "runners", "Show the workers there are, and what they offer."),
        "executions": CommandEntry("adws.cli.steps", "executions", "Show the steps of a workflow that loop or retry."),
        "retries": CommandEntry("adws.cli.steps", "retries", "Show what is tried again later, and cancel it."),
        "external": CommandEntry("adws.cli.steps", "external", "Show what is done outside of adw, and its token."),
        "deliveries": CommandEntry(
            "adws.cli.deliveries", "deliveries", "Show what came in from outside and what came of it."
        ),
        "logs": CommandEntry("adws.cli.logs", "logs", "Show the output of an attempt, or the log of a workflow."),
        "path": CommandEntry("adws.cli.logs", "path", "Print where a workflow works."),
        "explain": CommandEntry("adws.cli.reports", "explain", "Say why a workflow is not moving, and what to type."),
        "stuck": CommandEntry(
            "adws.cli.reports", "stuck", "Show what does not move as it should, why, and what to type."
        ),
        "report": CommandEntry("adws.cli.reports", "report", "Show how work went: success, attempts, costs, failures."),
        "attempts": CommandEntry("adws.cli.reports", "attempts", "Show how many attempts phases need."),
        "ports": CommandEntry("adws.cli.resources", "ports", "Show which workflow has which ports."),
        "cost": CommandEntry("adws.cli.reports", "cost", "Show what was spent, of one workflow or of all."),
        "quota": CommandEntry("adws.cli.resources", "quota", "Show every limit and how much of it is used."),
        "agents": CommandEntry("adws.cli.config", "agents", "Show which agents can be used here."),
        "plugins": CommandEntry(
            "adws.cli.config", "plugins_", "Show what other packages bring, and whether it can be used."
        ),
        "workflows": CommandEntry("adws.cli.config", "workflows", "Show the workflows there are to run."),
        "config": CommandEntry("adws.cli.config", "config", "Show the settings in force and where each comes from."),
        "completion": CommandEntry("adws.cli.common", "completion", "Print the completion script of a shell."),
    },
    "Work": {
        "run": CommandEntry("adws.cli.work", "run", "Start a workflow for an issue."),
        "resume": CommandEntry("adws.cli.work", "resume", "Make a workflow that stopped go on."),
        "retry": CommandEntry("adws.cli.work", "retry", "Try a failed workflow again; --grant allows more."),
        "pause": CommandEntry("adws.cli.control", "pause", "Park a workflow."),
        "stop": CommandEntry("adws.cli.control", "stop", "Stop the work on a workflow."),
        "abandon": CommandEntry("adws.cli.control", "abandon", "Give a workflow up and free its issue."),
        "approve": CommandEntry("adws.cli.control", "approve", "Let a phase that waits for a person pass."),
        "reject": CommandEntry("adws.cli.control", "reject", "Send a phase that waits for a person back to work."),
        "replay": CommandEntry("adws.cli.deliveries", "replay", "Carry out a delivery again."),
        "worker": CommandEntry("adws.cli.worker", "worker", "Work on what waits."),
        "serve": CommandEntry("adws.cli.serve", "serve", "Webhooks, API and dashboard, with workers beside them."),
        "dashboard": CommandEntry(
            "adws.cli.serve", "dashboard", "Print a link that logs a browser in to the dashboard."
        ),
        "recover": CommandEntry("adws.cli.worker", "recover", "Find work whose worker is gone."),
        "cron": CommandEntry("adws.cli.serve", "cron", "Do what is due: poll, watch quotas, recover, notify, report."),
    },
    "Change": {
        "state": CommandEntry("adws.cli.state", "state", "Show, change and migrate workflow documents."),
        "locks": CommandEntry(
            "adws.cli.resources", "locks", "Show which workflow has which issue, and release a lock."
        ),
        "breakers": CommandEntry(
            "adws.cli.resources", "breakers", "Show which outside parties are held off, and let work on."
        ),
    },
    "Undo": {
        "rollback": CommandEntry("adws.cli.rollback", "rollback", "Undo everything a workflow made."),
        "gc": CommandEntry("adws.cli.rollback", "gc", "Find what is left of workflows that are over, and remove it."),
        "verify": CommandEntry("adws.cli.rollback", "verify", "Check what must always hold."),
        "adopt": CommandEntry("adws.cli.rollback", "adopt", "Take an orphaned worktree back into a workflow."),
    },
    "Data": {
        "db": CommandEntry("adws.cli.maintenance", "db", "Upgrade, check and rebuild the database."),
        "backup": CommandEntry("adws.cli.maintenance", "backup", "Write a backup of documents and database."),
        "restore": CommandEntry("adws.cli.maintenance", "restore", "Bring a backup back."),
    },
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the order of the help."""
        del ctx
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, None when there is no such command."""
        del ctx
        entry = next((section[cmd_name] for section in COMMANDS.values() if cmd_name in section), None)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        _give_examples(command)

        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run; an unknown one is refused with the nearest names."""
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            from adws.adw_modules.identifiers import nearest

            near = nearest(args[0], self.list_commands(ctx))
            hint = f"did you mean {near}?" if near else "adw --help lists the commands"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")

        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, by section, without importing any of them."""
        del ctx
        width = max(len(name) for section in COMMANDS.values() for name in section)
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in section.items()])


class Invocation:
    """One run of the command line: its global options, and the settings once somebody asked for them."""

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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(adws.__version__, prog_name="adw", message="%(prog)s %(version)s")
@click.option("--home", metavar="PATH", help="Use this home instead of ADW_HOME or the repository you are in.")
@click.pass_obj
def cli(invocation: Invocation, home: str | None) -> None:
    """Carry a GitHub issue to a pull request through durable, resumable, reversible phases."""
    if home is not None:
        invocation.overrides["home"] = home


def load_settings() -> Settings:
    """Return the settings of the running command; raise ConfigError."""
    return click.get_current_context().ensure_object(Invocation).settings


def given_home() -> str | None:
    """Return the home that was named on the command line, None when none was."""
    return click.get_current_context().ensure_object(Invocation).overrides.get("home")


def open_home(*, role: str = "cli") -> AbstractContextManager[Home]:
    """Return the home of the running command, to be used with `with`; each part is built on first use."""
    settings = load_settings()
    importlib.import_module("adws.config.load").leave_pydantic_plugins_out()
    importlib.import_module("adws.cli.common").install(settings)
    app: AbstractContextManager[Home] = importlib.import_module("adws.app").open_home(settings, role=role)

    return app


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing but the code and the output leaves here."""
    invocation, stdout = Invocation(), sys.stdout
    if stdout is None:
        # Before anything is done: what the command would say about it could not be read, and what it opens next
        # would get the number of the closed output.
        return _expected(AdwError("the output is closed: send it to a file or a program, or to /dev/null"))
    try:
        result = cli.main(args, prog_name="adw", standalone_mode=False, obj=invocation)
        sys.stdout.flush()  # a reader that is gone is noticed here, not while the interpreter ends
        return result if isinstance(result, int) else EXIT_OK
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except AdwError as exc:
        return _expected(exc)
    except SystemExit as exc:
        # Click leaves so after a completion script, and after a broken pipe, for which it swaps the streams.
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
    """Return the exit code for output that cannot be written, such as the help on a full disk; 0 when it can be."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        output = importlib.import_module("adws.cli.output")
        output.silence()
        return _expected(AdwError(output.NOT_WRITTEN.format(exc.strerror or exc)))

    return EXIT_OK


def _give_examples(command: click.Command) -> None:
    """Let the help of a command and of all below it end with examples, which are loaded when it is asked for."""
    command.format_epilog = _write_examples  # type: ignore[method-assign]  # one place for all, whatever their class
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _give_examples(below)


def _write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    importlib.import_module("adws.cli.common").write(ctx, formatter)
