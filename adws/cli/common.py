"""
What several commands share: arguments, completion, opening a document for a view, answers of owners, the log.

It also holds the examples for the help and docs/cli.md; each line is a command that a test parses.
"""

from __future__ import annotations

import getpass
import logging
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem

from adws.adw_modules import identifiers, timestamps
from adws.adw_modules.errors import AdwError, DatabaseError, DatabaseMoved, UsageError
from adws.adw_modules.interfaces import LoadedState
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.worker.control import Applied, Asked
    from adws.app import Home
    from adws.config.settings import Settings


# --- arguments -------------------------------------------------------------------------------------------------


_Command = TypeVar("_Command", bound=Callable[..., object])

#: A prefix that people type before an id, as in branch names.
PREFIX = "adw-"
_SPAN = r"([0-9]{1,9})(s|m|h|d|w)"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class NumberRange(click.FloatRange):
    """A finite number within bounds: `nan` passes every comparison with a bound, so it is refused here, like `inf`."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return *value* as a number; fail as click does."""
        result: float = super().convert(value, param, ctx)
        if not math.isfinite(result):
            self.fail(f"{value!r} is not a number that can be counted with.", param, ctx)

        return result


def workflow_id(text: str) -> str:
    """
    Return the id of the workflow that *text* names; raise InvalidAdwId, UsageError.

    An id may have `adw-` in front or be a unique prefix of at least four characters; `#3`, `owner/name#3` and the URL
    of an issue name the newest workflow of that issue.
    """
    from adws.adw_modules.interfaces import PageQuery

    bare = text.removeprefix(PREFIX)
    if identifiers.is_ours(bare):
        return bare
    issue = identifiers.parse_issue(text) if "#" in text or "/" in text else None
    if issue is None and not re.fullmatch(r"[0-9a-f]{4,7}", bare):
        return identifiers.check_adw_id(text)
    with main.open_home() as app:
        query = PageQuery(limit=1000, search=bare) if issue is None else PageQuery(limit=1000, issue_number=issue[0])
        rows = app.catalogue.page(query).rows if app.has_database() else ()
    if issue is not None:
        here = [row.adw_id for row in rows if issue[1] in ("", row.repository)]
        if not here:
            raise UsageError(f"no workflow of issue {text}: adw list shows the workflows")
        return here[0]
    ids = [row.adw_id for row in rows if row.adw_id.startswith(bare)]
    if len(ids) > 1 and bare not in ids:
        raise UsageError(f"{text!r} is the beginning of {len(ids)} ids ({', '.join(ids[:5])}): type more of it")

    return ids[0] if len(ids) == 1 else identifiers.check_adw_id(text)


def parse_span(text: str) -> timedelta:
    """Return the span of time in *text*, such as 7d; raise UsageError."""
    match = re.fullmatch(_SPAN, text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no span of time: use a number and s, m, h, d or w, such as 7d")
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as exc:
        raise UsageError(f"{text!r} is longer than any workflow: use something shorter, such as 52w") from exc


def parse_since(text: str, now: datetime) -> str:
    """Return a day, a moment or a span before *now* as a moment in the format of documents; raise UsageError."""
    try:
        return timestamps.to_text(timestamps.parse(text))
    except (ValueError, OverflowError):
        if re.fullmatch(_SPAN, text.strip()) is None:
            wrong = f"{text!r} is neither a day nor a span of time: use such as 2026-01-31, 2026-01-31T09:00 or 7d"
            raise UsageError(wrong) from None
    try:
        return timestamps.to_text(now - parse_span(text))
    except OverflowError as exc:
        raise UsageError(f"{text!r} ago was before all time: use something shorter, such as 52w") from exc


# --- completion of ids, names of workflows, and states ---------------------------------------------------------
#
# The shell waits for this at each key press and shows no errors: what cannot be looked up is not offered, and looking
# creates nothing.


#: The most ids offered, the newest ones.
MOST_IDS = 50


def offer_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the ids of the newest workflows, each with its state and title."""
    from adws.adw_modules.interfaces import PageQuery

    prefix = PREFIX if incomplete.startswith(PREFIX) else ""
    with suppress(AdwError), _home_of(ctx) as app:
        rows = app.catalogue.page(PageQuery(limit=MOST_IDS)).rows if app.has_database() else ()
        return [
            CompletionItem(f"{prefix}{row.adw_id}", help=f"{row.state}: {row.title}"[:60])
            for row in rows
            if f"{prefix}{row.adw_id}".startswith(incomplete)
        ]

    return []


def offer_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of the workflows that can be run."""
    with suppress(AdwError), _home_of(ctx) as app:
        return [CompletionItem(name) for name in app.workflows.names() if name.startswith(incomplete)]

    return []


def offer_states(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the states of a workflow."""
    from adws.adw_modules.state_machine import WorkflowState

    return [CompletionItem(state.value) for state in WorkflowState if state.value.startswith(incomplete)]


def _home_of(ctx: click.Context) -> Home:
    from adws.app import open_home
    from adws.config.load import from_environment

    home = ctx.find_root().params.get("home")

    return open_home(from_environment({"home": home} if home else {}))


def given_id(_ctx: click.Context, param: click.Parameter, typed: str) -> str:
    """Return the id of the workflow typed, or an omitted optional argument unchanged; a callback for click."""
    return workflow_id(typed) if typed or param.required else typed


def adw_id_argument(command: _Command) -> _Command:
    """Add the argument ID to a command, as *adw_id*."""
    return click.argument("adw_id", metavar="ID", callback=given_id, shell_complete=offer_ids)(command)


@click.command("help")
@click.argument("names", metavar="[COMMAND]", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, *, names: tuple[str, ...]) -> None:
    """Show the help of a command, such as adw help db move; without one the list of commands."""
    below: click.Context = ctx.find_root()
    for name in names:
        if not isinstance(below.command, click.Group):
            raise UsageError(f"{below.command_path} has no commands below it: leave out {name!r}")
        found, command, _rest = below.command.resolve_command(below, [name])
        if command is not None:
            below = click.Context(command, info_name=found, parent=below, max_content_width=100)
    output.emit_as_is(below.get_help())


# --- `adw completion`: the script with which a shell completes commands, options, ids and names ----------------


SHELLS = ("bash", "zsh", "fish")
#: The variable with which the shell asks for completions.
VARIABLE = "_ADW_COMPLETE"


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def completion(*, shell: str) -> None:
    """
    Print the script by which SHELL (bash, zsh or fish) completes commands, options, workflows and their ids.

    bash: eval "$(adw completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish: save it as
    ~/.config/fish/completions/adw.fish.
    """
    from click.shell_completion import get_completion_class

    made_by = get_completion_class(shell)
    if made_by is None:
        raise click.BadParameter(f"{shell} is not supported: use {', '.join(SHELLS)}")
    output.emit_as_is(made_by(main.cli, {}, "adw", VARIABLE).source())


# --- what a view may open --------------------------------------------------------------------------------------
#
# A view creates no database: a home where nobody has worked has nothing to show, and in a home that lost its database a
# new one would hide the loss (`App.has_database`).


_STOPPED = frozenset({"completed", "failed", "paused", "abandoned", "rolled_back"})


def load(app: Home, adw_id: str) -> LoadedState:
    """Return the document of a workflow; raise StateNotFound, or DatabaseMoved if the documents have moved."""
    if app.settings.store == "database":
        if not app.has_database():
            raise app.no_workflow(adw_id)
    else:
        refuse_moved(app)

    return app.store.load(adw_id)


def refuse_moved(app: Home) -> None:
    """Raise DatabaseMoved if the documents moved to another database: the files still here are out of date."""
    try:
        if app.has_database():
            _ = app.database
    except DatabaseMoved:
        raise
    except DatabaseError:
        return  # a document in files can be shown without the database


def has_stopped(app: Home, adw_id: str) -> bool:
    """Return whether the workflow stays as it is until a person acts."""
    return load(app, adw_id).document.current_state in _STOPPED


def notes(loaded: LoadedState) -> tuple[str, ...]:
    """Return the notices from loading a document, as text."""
    return tuple(str(notice) for notice in loaded.notices)


def notes_before_a_write(app: Home, adw_id: str) -> tuple[str, ...]:
    """Return the notices of a document about to be written; if it is unreadable, the write will refuse it."""
    try:
        return notes(load(app, adw_id))
    except AdwError:
        return ()


# --- requesters, and results: done at once, or by the owner that was asked -------------------------------------


EXIT_DONE, EXIT_UNCONFIRMED = 0, 1
#: The state of a workflow after its owner has carried out a request.
_WANTED = {"pause": "paused", "stop": "paused", "abandon": "abandoned"}
#: Seconds between two polls for an answer, and between two checks whether the owner is alive.
_ANSWER_POLL_SECONDS, _OWNER_POLL_SECONDS = 0.1, 1.0


def who() -> str:
    """Return the name of the person at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


def tell(app: Home, done: Asked | Applied, adw_id: str, wait: float, *, as_json: bool) -> int:
    """Print the result after waiting up to *wait* seconds for the owner; return the exit code."""
    from adws.adw_modules.queue.model import UNCONFIRMED
    from adws.adw_modules.worker.control import Applied, Asked

    def emit(text: str, state: str, *, answer: str | None = None, asked: str | None = None) -> None:
        data: dict[str, output.Printable] = {"adw_id": adw_id, "state": state, "answer": answer, "asked": asked}
        output.emit(data, text, as_json=as_json)

    if isinstance(done, Asked):
        done = _waited_for(app, done, wait)
    if isinstance(done, Applied):
        emit(done.message, done.state, answer=done.message)
        return EXIT_DONE if done.is_confirmed else EXIT_UNCONFIRMED
    request = app.requests.get(done.request.request_id)
    state = load(app, adw_id).document.current_state
    if request is not None and request.handled_at is not None:
        said = request.outcome or ""
        text = f"workflow {adw_id}: {said}"
        emit(text, state, answer=said or text)
        is_done = state == _WANTED.get(request.kind, state) and UNCONFIRMED not in said
        return EXIT_DONE if is_done else EXIT_UNCONFIRMED
    if done.request.kind == "hint":
        text = f"the hint is left for the next attempt; {done.owner} is at work"
        emit(text, state, answer=text)
        return EXIT_DONE
    text = f"asked {done.owner}, who has not answered yet: the {done.request.kind} is kept; adw status {adw_id}"
    emit(text, state, asked=done.owner)

    return EXIT_UNCONFIRMED


def _waited_for(app: Home, asked: Asked, wait: float) -> Asked | Applied:
    """Wait for the owner's answer, or act ourselves once it is gone; return `Asked` if there was no answer."""
    from adws.adw_modules.worker.control import Asked

    done: Asked | Applied = asked
    until, again_at = app.clock.monotonic() + wait, app.clock.monotonic() + _OWNER_POLL_SECONDS
    while isinstance(done, Asked) and app.clock.monotonic() < until:
        result = app.requests.get(asked.request.request_id)
        if result is None or result.handled_at is not None:
            break
        if app.clock.monotonic() >= again_at:
            done, again_at = done.again(), app.clock.monotonic() + _OWNER_POLL_SECONDS
        else:
            app.clock.sleep(_ANSWER_POLL_SECONDS)

    return done


#: command without `adw` -> (what to type after `adw`, what it does)
EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "status": (
        ("status", "Show running, waiting and stuck workflows, with the command that helps."),
        ("status 1a2b3c4d", "Show how far a workflow is, why it waits, and what it cost."),
        ("status octo/cat#42 --json", "The newest workflow of an issue, for a program."),
        ("status 1a2b3c4d.build.1.fetch --index 3", "Show one iteration of a step with its calls."),
    ),
    "report": (
        ("report", "Show how the last 30 days went."),
        ("report --since 7d --html report.html", "Write a page with pictures about a week."),
        ("report --since 7d --by provider", "Show what was spent in a week, by provider."),
        ("report 1a2b3c4d --by attempt", "Show what each attempt of one workflow cost."),
    ),
    "workflow list": (("workflow list", "List the workflows that can be run."),),
    "workflow show": (("workflow show sdlc", "Show the phases of one, and what runs them here."),),
    "queue unschedulable": (("queue unschedulable", "Show runs whose demands no worker meets."),),
    "help": (("help db move", "Show the help of a command."),),
    "logs": (
        ("logs 1a2b3c4d -f", "Follow the attempt that runs."),
        ("logs 1a2b3c4d --phase test --attempt 2 --raw", "Show the output of one attempt as it was written."),
        ("logs 1a2b3c4d --log", "Show what adw itself logged about the workflow."),
    ),
    "run": (
        ("run 42", "Start the usual workflow for issue 42, and stay with it."),
        ("run octo/cat#42 --workflow plan_build --detach", "Leave it to a worker, and print its id."),
        ('run --task "Add a --version option"', "Start without an issue; --task - reads a longer text."),
        ("run 42 --dry-run", "Show what would be done, and do nothing."),
    ),
    "pause": (
        ('pause 1a2b3c4d -m "release freeze"', "Pause it; its processes are asked to end."),
        ("pause 1a2b3c4d --now", "Kill its processes at once."),
    ),
    "db move": (
        ("db move postgresql://adw@db.example.com/adw --dry-run", "Show what would be moved to PostgreSQL."),
        ("db move postgresql://adw@db.example.com/adw", "Move; may be repeated after an interruption."),
    ),
    # --- look --------------------------------------------------------------------------------------------------
    "list": (
        ("list --state failed", "Show what failed, newest first."),
        ("list --issue 42 --json", "Show the workflows of issue 42, for a program."),
    ),
    "events": (
        ("events 1a2b3c4d", "Show what happened."),
        ("events 1a2b3c4d -f", "Follow the events, until Ctrl-C."),
    ),
    "queue runs": (
        ("queue runs", "List queued and running runs."),
        ("queue runs --state dead", "List runs that failed because too many workers died with them."),
    ),
    "queue workers": (("queue workers", "Show the workers on all machines, and how long each was silent."),),
    "queue retries": (("queue retries --workflow 1a2b3c4d", "List the scheduled retries of one workflow."),),
    "queue retries cancel": (
        (
            'queue retries cancel 1a2b3c4d -m "the service is gone"',
            "Cancel the retry of a phase; the phase has failed then.",
        ),
        ("queue retries cancel 1a2b3c4d.build.1.fetch --index 3", "Give one iteration of a loop up."),
    ),
    "queue external": (("queue external --all", "Show every external task, also those that are over."),),
    "queue external show": (
        ("queue external show 1a2b3c4d.test.1 --token", "Print a task with the token that it is done by."),
    ),
    "webhook deliveries": (
        ("webhook deliveries --verdict ignored", "Show what came in and was not acted on, with the reason."),
    ),
    "state path": (("state path 1a2b3c4d", "Print the worktree, such as for cd $(adw state path 1a2b3c4d)."),),
    "admin ports": (("admin ports", "List the ports of workflows."),),
    "quota": (("quota", "Show every limit; ends with 1 when one is reached, for cron."),),
    "workflow agents": (("workflow agents", "Show which agents are installed and logged in."),),
    "workflow plugins": (("workflow plugins", "Show what other packages provide; ends with 1 on a problem."),),
    "config": (("config", "Show every setting, its value and where that comes from."),),
    # --- work --------------------------------------------------------------------------------------------------
    "resume": (
        ("resume 1a2b3c4d", "Continue where it stopped."),
        ('resume 1a2b3c4d --from test -m "use the other port"', "Begin a phase anew, with a hint."),
    ),
    "retry": (
        ("retry 1a2b3c4d", "Try a failed workflow again."),
        ('retry 1a2b3c4d --grant 2 -m "the key was wrong"', "Allow two more, and say what is different."),
    ),
    "abandon": (('abandon 1a2b3c4d -m "solved by hand"', "Abandon it; what it made is kept until rollback or gc."),),
    "approve": (('approve 1a2b3c4d -m "looks right"', "Let a phase that waits for a person pass."),),
    "reject": (('reject 1a2b3c4d -m "the plan misses the tests"', "Send it back to work, with the reason."),),
    "webhook replay": (("webhook replay 72d3162e-cc78-11e3-81ab-4c9367dc0958", "Carry a delivery out again."),),
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
    "admin recover": (
        ("admin recover --dry-run", "List the runs of dead workers that would be recovered, and why."),
        ("admin recover --mode all", "Look at everything that is with a worker, however young."),
    ),
    "cron": (
        ("cron --once", "Do what is due and end: the line for a crontab."),
        ("cron --list", "Show the schedule, and when each entry comes next."),
    ),
    # --- change ------------------------------------------------------------------------------------------------
    "state show": (("state show 1a2b3c4d", "Print the document of a workflow."),),
    "state set": (('state set 1a2b3c4d max_attempts=8 -m "slow tests"', "Change a field, on record."),),
    "state migrate": (
        ("state migrate --dry-run", "Show documents of older versions, and the result of migrating them."),
        ("state migrate agents", "Import what an older ADW set-up left in that directory."),
    ),
    "admin locks": (("admin locks", "Show which workflow has which issue, and whether its owner lives."),),
    "admin locks release": (("admin locks release 42", "Free an issue whose workflow is gone."),),
    "admin breakers": (("admin breakers", "Show which circuit breakers are open, and until when."),),
    "admin breakers reset": (("admin breakers reset github", "Close a circuit breaker before its time."),),
    # --- undo --------------------------------------------------------------------------------------------------
    "rollback": (
        ("rollback 1a2b3c4d --dry-run", "Show what would be removed, and what prevents it."),
        ("rollback 1a2b3c4d --keep-branch", "Undo all but the branch."),
        ("rollback 1a2b3c4d --forget-host old-laptop", "Give up what is on a machine that is gone for good."),
    ),
    "admin gc": (
        ("admin gc", "Show what workflows that are over left behind."),
        ("admin gc --older-than 14d --execute", "Remove what is older than two weeks."),
    ),
    "admin verify": (("admin verify", "Check what must always hold; ends with 1 when something does not."),),
    "admin adopt": (("admin adopt trees/1a2b3c4d", "Take an orphaned worktree back into its workflow."),),
    # --- data --------------------------------------------------------------------------------------------------
    "db check": (("db check", "Look for damage, and for what does not fit together."),),
    "db upgrade": (("db upgrade", "Bring the database to the version of this adw, with a backup."),),
    "db rebuild": (("db rebuild", "Rebuild the database from the documents."),),
    "db backup": (("db backup nightly.tar.gz", "Write documents and database into one file, while workers run."),),
    "db restore": (("db restore nightly.tar.gz", "Bring a backup back into an empty home."),),
    # --- begin -------------------------------------------------------------------------------------------------
    "demo": (
        ("demo", "See an issue become a pull request, in seconds."),
        ("demo --crash", "Kill the worker, and see the work resumed."),
        ("demo --rollback", "See that nothing is left of it."),
        ("demo --dashboard", "Watch it in the browser."),
    ),
    "init": (
        ("init", "Look at the repository you are in, and write what adw needs."),
        ("init --dry-run", "Only say what would be written."),
        ('init --yes --test "make check"', "Ask nothing, and say how tests are run."),
    ),
    "doctor": (
        ("doctor", "Check this machine and repository, and suggest fixes."),
        ("doctor --json", "The same for a program; ends with 1 when there is a problem."),
        ("doctor --diagram", "Print the states of a workflow as a Mermaid diagram."),
    ),
    "completion": (
        ("completion bash", "Print the script; eval it in ~/.bashrc."),
        ("completion fish", "Save it as ~/.config/fish/completions/adw.fish."),
    ),
}


def of(path: str) -> tuple[tuple[str, str], ...]:
    """Return the examples of the command *path*, such as `adw db check`, as one types them."""
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


# --- the log of a command, set up at the first record: most commands log nothing, and views must start fast ---


_ROOT = "adw"
#: Dots in the name of a workflow's logger, adw.<id>.<phase>.
_WORKFLOW_DOTS = 2


def install(settings: Settings, *, with_workflows: bool = True, least: int = logging.NOTSET) -> None:
    """
    Log to standard error from now on, with the format and level of the settings.

    Without *with_workflows* records of workflows go only to their files, because the command shows them in its own way.
    Records below *least* are not sent to standard error.
    """
    logger = logging.getLogger(_ROOT)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Late)]:
        logger.removeHandler(handler)
    logger.addHandler(_Late(settings, with_workflows=with_workflows, least=least))
    logger.setLevel(settings.log_level)


def install_for_people(settings: Settings, *, least: int = logging.ERROR) -> None:
    """
    Log only errors to standard error, for a command that reports its progress itself.

    If the level was set, records from that level on are sent. Records of workflows go to their files.
    """
    is_chosen = settings.origin("log_level") != "default"
    install(settings, with_workflows=False, least=logging.NOTSET if is_chosen else least)


class _Late(logging.Handler):
    """Installs the real handler at the first record, and is silent from then on."""

    def __init__(self, settings: Settings, *, with_workflows: bool, least: int) -> None:
        super().__init__(least)
        self._least = least
        self._settings = settings
        self._with_workflows = with_workflows
        if not with_workflows:
            self.addFilter(_is_not_of_a_workflow)

    def emit(self, record: logging.LogRecord) -> None:
        """Set up the log; the new handler comes after this one in the list, so it gets *record* by itself."""
        del record
        from adws.adw_modules import structured_logger
        from adws.app import make_redactor
        from adws.config import load as config_load

        self.setLevel(logging.CRITICAL + 1)
        level, form = self._settings.log_level, self._settings.log_format
        redactor, no_color = make_redactor(self._settings), config_load.is_without_colour()
        real = structured_logger.configure(level, form, no_color=no_color, redactor=redactor)
        if self._least > real.level:
            real.setLevel(self._least)
        if not self._with_workflows:
            real.addFilter(_is_not_of_a_workflow)


def _is_not_of_a_workflow(record: logging.LogRecord) -> bool:
    """Return whether *record* is from any logger other than `adw.<id>.<phase>`."""
    return record.name.count(".") < _WORKFLOW_DOTS
