"""`adw run`, `adw resume`, `adw retry`: start a workflow or continue one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from adws.adw_modules import identifiers, timestamps, views
from adws.adw_modules.errors import AdwError, BaseRed, UsageError, WorkflowBusy
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.ownership.issue_locks import check_issue_number
from adws.adw_modules.phase import Order, RetryAt, Stopped
from adws.adw_modules.queue.model import FINAL_RUNS, LIVE_RUNS, ROLLBACK, Run, RunState
from adws.adw_modules.queue.workers import RunnerState
from adws.adw_modules.recovery.explain import why_held, worker_state
from adws.adw_modules.views import WorkflowView
from adws.adw_modules.worker.run_executor import BUSY_SECONDS, describe
from adws.adw_modules.workflow.requirements import meets
from adws.cli import common as cli_common
from adws.cli import main, output
from adws.cli.config import what_runs

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.queue.model import RunResult
    from adws.adw_modules.worker.control import Applied
    from adws.adw_modules.worker.create_workflow import NewWorkflow
    from adws.adw_modules.workflow.model import WorkflowSpec
    from adws.app import Home


# --- the result of a command that worked on a workflow ---------------------------------------------------------------


#: Lines of output shown of a gate that is red before any work was done.
_OUTPUT_LINES = 100

EXIT_DONE, EXIT_STOPPED, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 130, 143


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnding:
    """The state of a workflow when the command ends."""

    workflow: WorkflowView
    message: str = ""  #: about the run, if the workflow has not finished
    has_worker: bool = False  #: a worker works on it
    signal_exit: int | None = None  #: exit code of the signal that ended this command

    @property
    def reason(self) -> str:
        """Why it is paused or failed."""
        reasons = {"paused": self.workflow.pause_reason, "failed": self.workflow.terminal_reason}

        return reasons.get(self.workflow.state) or ""


def exit_code(end: RunEnding) -> int:
    """Return 0 if it is completed or waits for approval, else the signal's code, or 1."""
    state = end.workflow.state
    if state == "completed" or end.workflow.waiting_phase:
        return EXIT_DONE
    if end.signal_exit is not None and state not in ("failed", "abandoned", "rolled_back"):
        return end.signal_exit

    return EXIT_STOPPED


def told(end: RunEnding) -> dict[str, output.Printable]:
    """Return the ending for programs; every key is always there."""
    workflow, failed = end.workflow, end.workflow.failure

    return {
        **{name: getattr(workflow, name) for name in ("adw_id", "state", "branch_name", "pr_number", "cost_usd")},
        "phase": workflow.waiting_phase or (failed.name if failed else None),
        "reason": end.reason or None,
        "message": (failed.last_failure_reason if failed else None) or end.message or None,
        "advice": (failed.advice if failed else None) or None,
        "warnings": list(workflow.warnings),
        "pull_request_url": workflow.pull_request_url or None,
        "work_seconds": workflow.work_seconds,
        "next": list(_next(end)),
    }


def lines(end: RunEnding) -> list[str]:
    """Return the ending for people."""
    advice = [end.workflow.failure.advice] if end.workflow.failure and end.workflow.failure.advice else []
    warnings = [f"warning: {warning}" for warning in end.workflow.warnings]
    following = _next(end)
    facts = [made] if (made := output.result_line(end.workflow)) else []

    return [_first(end), *facts, *advice, *warnings, *([f"next: {', or '.join(following)}"] if following else [])]


def _first(end: RunEnding) -> str:
    workflow, state = end.workflow, end.workflow.state
    name = f"workflow {workflow.adw_id}"
    if workflow.waiting_phase:
        return f"{name} waits for approval of {workflow.waiting_phase}"
    if state == "failed":
        failed = workflow.failure
        place = (failed.name if failed else workflow.failed_phase) or "a phase"
        message = f": {failed.last_failure_reason}" if failed and failed.last_failure_reason else ""
        return f"{name} failed in {place}{f' ({end.reason})' if end.reason else ''}{message}"
    if state in ("completed", "abandoned", "rolled_back"):
        return f"{name} is {state.replace('_', ' ')}"
    if state == "paused":
        return f"{name} is paused{f': {end.reason}' if end.reason else ''}"
    if end.has_worker:
        return f"{name} is {state}, and a worker continues it"

    return f"{name} is {state} and waits for a worker{f' ({end.message})' if end.message else ''}"


def _next(end: RunEnding) -> tuple[str, ...]:
    adw_id, state = end.workflow.adw_id, end.workflow.state
    if end.workflow.waiting_phase:
        return f"adw approve {adw_id}", f"adw reject {adw_id} -m TEXT"
    if state == "failed":
        return f"adw logs {adw_id}", f"adw status {adw_id}"
    if state == "paused":
        return (f"adw resume {adw_id}",)
    if state in ("completed", "abandoned", "rolled_back"):
        return ()

    return (f"adw status {adw_id}", f"adw pause {adw_id}") if end.has_worker else (f"adw resume {adw_id}", "adw worker")


# --- work on a workflow in the foreground: through its retries, until it is finished or parked -----------------
#
# Ctrl-C suspends: the current attempt is ended in order and does not count, and the workflow is paused. A second Ctrl-C
# kills its processes at once. SIGTERM suspends too, but leaves the workflow to the next worker.


CTRL_C = "Ctrl-C"
#: The most lanes of steps worked on at a time.
_LANES = 8
#: Seconds between two polls of another process's run, or of the time of a retry.
_LOOK_SECONDS = 0.25


class Foreground:
    """The work of one command on one workflow; created before anything else, so that everything is shown."""

    def __init__(self, app: Home) -> None:
        self._app = app
        cli_common.install_for_people(app.settings)
        self._progress = output.make(app.clock, app.redactor.redact_text)
        app.say, app.tell = self._progress.say, self._tell
        self._signal: int | None = None  #: the last signal received
        self._interrupts = 0
        self._held_by = ""  #: the reason last shown why the run waits
        self._seen: str | None = None  #: the last stored event that was read
        self._told_revision = 0  #: revision of the document whose events our own work showed last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.close()

    def carry(self, run: Run) -> RunEnding:
        """Work on a run until it is finished or parked, waiting for its retries; follow it if a worker was first."""
        with self._signals():
            ended, message = self._carry(run)
        self._progress.close()

        return RunEnding(
            workflow=views.workflow(cli_common.load(self._app, run.adw_id).document),
            message=message,
            has_worker=ended is not None and ended.state in LIVE_RUNS,
            signal_exit=EXIT_TERMINATED if self._signal == signal.SIGTERM else self._signal and EXIT_INTERRUPTED,
        )

    def _carry(self, run: Run) -> tuple[Run | None, str]:
        """Work on the run; return its final state and a message about it."""
        me, ttl_seconds = self._app.processes.me("cli"), self._app.settings.lease_ttl_seconds
        while True:
            claimed = self._app.run_claimer.claim(
                me, ttl_seconds=ttl_seconds, run_id=run.run_id, terms=self._app.claim_policy
            )
            if claimed is None:
                result = self._follow(run)
                if result is not None and result.state in FINAL_RUNS and (newer := self._newer_run(run)) is not None:
                    run = newer
                    continue
                if result is None or result.state in FINAL_RUNS or self._interrupts:
                    return self._left(result, run)
                self._wait_for_place(result)
                continue
            end = self._app.run_executor.work(claimed)
            if self._is_over(end):
                return end.run, _said(end, self._signal)
            if isinstance(end.outcome, RetryAt):
                self._wait(run, end.outcome.at)
            elif end.run is not None and end.run.not_before:
                self._wait(run, timestamps.parse(end.run.not_before))
            if self._interrupts:
                return self._left(self._app.runs.get(run.run_id), run)

    def _is_over(self, end: RunResult) -> bool:
        """Return whether the run that we worked on has ended, or its wait is not worth staying for."""
        if isinstance(end.outcome, RetryAt):
            return False
        if end.run is None or end.outcome == Stopped(reason="lost_lease"):
            return False  # another process has it now
        if self._interrupts or end.outcome is not None or end.run.state is not RunState.PENDING:
            return True
        due = timestamps.parse(end.run.not_before) if end.run.not_before else self._app.clock.now()
        if (due - self._app.clock.now()).total_seconds() <= BUSY_SECONDS:
            return False  # another process had the workflow for a moment
        # A terminal does not wait for disk, database or quotas, unless a worker may take the run meanwhile.
        if not any(worker_state(self._app, worker) is RunnerState.ONLINE for worker in self._app.workers.all()):
            return True
        self._progress.interject(f"adw: waiting: {end.message}")

        return False

    def _wait(self, run: Run, due: datetime) -> bool:
        """
        Wait until *due*; return whether a signal or another process's claim of the run cut the wait short.

        Meanwhile, make due calls of its steps, because there may be no worker.
        """
        while (left := (due - self._app.clock.now()).total_seconds()) > 0.0:
            result = self._app.runs.get(run.run_id)
            if self._interrupts or result is None or result.state is not RunState.PENDING:
                return True
            if result.not_before <= timestamps.to_text(self._app.clock.now()):
                return False  # it became due earlier
            if not self._work_on_lanes(run.adw_id):
                self._app.clock.sleep(min(left, _LOOK_SECONDS))

        return False

    def _work_on_lanes(self, adw_id: str) -> bool:
        """Make the due calls of a workflow's steps; return whether there were any."""
        me, ttl_seconds = self._app.processes.me("cli"), self._app.settings.lease_ttl_seconds
        due = self._app.executions.due_lanes(adw_id)[:_LANES]
        claimed = [
            run
            for run_id in due
            if (run := self._app.runs.claim(me, ttl_seconds=ttl_seconds, run_id=run_id, terms=self._app.claim_policy))
        ]
        if not claimed:
            return False
        with ThreadPoolExecutor(len(claimed), thread_name_prefix="adw-lane") as pool:
            list(pool.map(self._app.run_executor.work, claimed))

        return True

    def _left(self, found: Run | None, run: Run) -> tuple[Run | None, str]:
        """Leave a run that waits or that another process has; after Ctrl-C pause the workflow if nobody has it."""
        if self._signal != signal.SIGINT or found is None or found.state is not RunState.PENDING:
            return found, "" if found is None or found.state in LIVE_RUNS else found.reason
        try:
            self._app.control.pause(run.adw_id, by="", reason=CTRL_C)
        except AdwError as exc:
            return found, str(exc)

        return self._app.runs.get(run.run_id), ""

    def _wait_for_place(self, run: Run) -> None:
        """Wait a moment with a due run that we may not claim, and say why, once."""
        offer = self._app.claim_policy.offer
        if offer is not None and not meets(offer, run.demands):
            why = f"it demands {run.demands.describe()}, so it is left to a worker that has that"
        else:
            why = why_held(self._app, [run]).get(run.run_id, "")
        if why and why != self._held_by:
            self._progress.interject(f"adw: waiting: {why}")
        self._held_by = why
        self._app.clock.sleep(_LOOK_SECONDS)

    # --- another process's work --------------------------------------------------------------------------------

    def _follow(self, run: Run) -> Run | None:
        """Show another process's work on the run; return the run once it is finished, free, or we have to end."""
        while True:
            result = self._app.runs.get(run.run_id)
            if result is not None and result.state in FINAL_RUNS:
                # The projection of its last events may lag behind the document.
                self._app.catch_up(run.adw_id)
                self._app.flush_projection()
            self._show_events(run.adw_id)
            if result is None or result.state in FINAL_RUNS or self._interrupts:
                return result
            if result.state is RunState.PENDING:
                is_due = result.not_before <= timestamps.to_text(self._app.clock.now())
                if is_due or self._wait(run, timestamps.parse(result.not_before)):
                    return self._app.runs.get(run.run_id)
                continue
            if self._is_left_behind(result):
                self._app.recovery.recover()
            self._app.clock.sleep(_LOOK_SECONDS)

    def _newer_run(self, run: Run) -> Run | None:
        """Return the run that follows a finished one, or None if the workflow does not continue."""
        while not self._interrupts:
            newest = run_of(self._app, run.adw_id)
            if newest.run_id != run.run_id:
                return newest if newest.kind != ROLLBACK else None
            lease = self._app.leases.read(run.adw_id)
            if lease is None or lease.owner is None or cli_common.has_stopped(self._app, run.adw_id):
                return None
            self._app.clock.sleep(_LOOK_SECONDS)  # its owner is about to queue it

        return None

    def _show_events(self, adw_id: str) -> None:
        result = self._app.events.of_workflow(adw_id, after=self._seen)
        if result:
            self._seen = result[-1].event_id
            others = [event for event in result if event.revision > self._told_revision]
            self._progress.tell(self._app.store.load(adw_id).document, others)

    def _tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show the events that our own work stored."""
        self._told_revision = document.revision
        self._progress.tell(document, events)

    def _is_left_behind(self, run: Run) -> bool:
        owner = OwnerRecord.from_text(run.owner)
        is_dead = owner is not None and self._app.processes.verdict(owner) is Verdict.DEAD

        return is_dead or run.seconds_left <= 0.0

    # --- signals -----------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only set flags: a signal may interrupt anything, even our own output."""
        del frame
        self._interrupts += 1
        self._signal = number
        is_urgent = self._interrupts > 1
        is_ours = number == signal.SIGINT
        order = Order(
            kind="pause" if is_ours else "drain",
            reason=CTRL_C if is_ours else "asked to end by SIGTERM",
            is_urgent=is_urgent,
        )
        self._app.lease_renewer.order_all(order)
        again = "; Ctrl-C again ends its processes at once" if is_ours else ""
        self._progress.interject("adw: ending its processes now" if is_urgent else f"adw: suspending{again}")


def _said(end: RunResult, number: int | None) -> str:
    if isinstance(end.outcome, Stopped):
        return "asked to end by SIGTERM" if number == signal.SIGTERM else describe(end.outcome)

    return end.message


def run_of(app: Home, adw_id: str) -> Run:
    """Return the newest run of a workflow; raise WorkflowBusy if it has none any more."""
    for run in app.runs.of_workflow(adw_id, limit=1):
        return run

    raise WorkflowBusy(adw_id, f"somebody who took its run away at {timestamps.to_text(app.clock.now())}")


_BUDGET = click.option(
    "--budget",
    type=cli_common.NumberRange(min=0, min_open=True),
    metavar="USD",
    help="What the workflow may cost in all from now on, in US dollars; what it has cost counts.",
)


_HINT = click.option("-m", "--hint", default="", help="What to do differently, for the next attempt.")
_DETACH = click.option("--detach", is_flag=True, help="Leave the work to a worker (adw worker).")
_DEFINITION = click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=cli_common.offer_names,
    help="Continue with the phases of this workflow; needed for a document of an older version without a definition.",
)


@click.command(name="run")
@click.argument("issue", metavar="[ISSUE]", required=False, default="")
@click.option(
    "--task",
    metavar="TEXT",
    help="Start without an issue: what to do, the title in its first line; - reads it from standard input.",
)
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=cli_common.offer_names,
    help="The workflow to run; adw workflow list lists them.",
)
@click.option(
    "--id",
    "adw_id",
    metavar="ID",
    default="",
    callback=cli_common.given_id,
    shell_complete=cli_common.offer_ids,
    help="Continue this workflow with the phases of --workflow, in its worktree and branch.",
)
@click.option("--repository", metavar="OWNER/NAME", default="", help="The issue's repository, when it is not this one.")
@click.option("--title", default="", help="Title of the issue, for the phases; wins over the forge's.")
@click.option("--body", default="", help="Text of the issue, for the phases; wins over the forge's.")
@click.option("--priority", metavar="N", type=int, default=0, help="Higher is worked on first.")
@click.option("--host", metavar="NAME", default="", help="The machine that has to do it; adw queue workers lists them.")
@click.option(
    "--tag", "tags", metavar="TAG", multiple=True, help="What a worker must offer; may be given several times."
)
@click.option("--again", is_flag=True, help="Start although the issue has an open pull request of an earlier workflow.")
@click.option("--in-place", is_flag=True, help="Work in the home itself, where that is in no git repository.")
@click.option("--dry-run", is_flag=True, help="Show what would be run, and start nothing.")
@_DETACH
@output.json_option
def run(
    *,
    issue: str,
    task: str | None,
    workflow: str | None,
    adw_id: str,
    repository: str,
    title: str,
    body: str,
    priority: int,
    host: str,
    tags: tuple[str, ...],
    again: bool,
    in_place: bool,
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """
    Start a workflow for an issue or a task, and work on it until it is over or waits for a person.

    ISSUE is a number, #42, owner/name#42 or the address of the issue.

    The command is refused, and nothing is created, when something needed to finish the work is missing. With --id an
    earlier workflow is continued; build, lint, test, review, document, ship, clean and sdlc_from_build continue the
    last workflow of the issue without it.
    """
    from adws.adw_modules.worker.control import last_workflow
    from adws.adw_modules.worker.preflight import StartRequest, title_and_body

    if task is not None:
        given = {"an issue": issue, "--id": adw_id, "--repository": repository, "--body": body, "--again": again}
        refused = [name for name, value in given.items() if value]
        if refused:
            raise UsageError(f"--task starts a workflow without an issue, so {refused[0]} cannot be given with it")
        task_title, body = title_and_body(sys.stdin.read() if task == "-" else task)
        if not task_title:
            raise UsageError('the task is empty: say what to do, such as --task "Add a --version option"')
        title = title or task_title
    elif not issue and not adw_id:
        raise UsageError('nothing to work on: give the number of an issue, or --task "what to do"')
    meant = identifiers.parse_issue(issue) if "#" in issue or "/" in issue else None
    if meant is not None:
        issue, repository = str(meant[0]), repository or meant[1]
    number = check_issue_number(issue) if issue else None
    with main.open_home() as app:
        settings = app.settings
        spec = app.workflows.get(workflow or settings.default_workflow)
        demands = spec.demands.also(host=host, tags=tags)
        if adw_id or app.workflows.is_dependent(spec):
            if number is None and not adw_id:
                raise UsageError(f"{spec.name} continues an earlier workflow: name that with --id, without --task")
            _refuse_options_of_starts(spec, adw_id, title=title, body=body, again=again, in_place=in_place)
            if adw_id:
                cli_common.load(app, adw_id)  # a wrong id creates no database
            elif number is not None:
                adw_id = last_workflow(app, number, repository, spec).adw_id
            return _carry_on(
                app,
                adw_id,
                replace(spec, demands=demands),
                issue_number=number,
                repository=repository,
                priority=priority,
                dry_run=dry_run,
                detach=detach,
                as_json=as_json,
            )
        request = StartRequest(
            spec=spec,
            issue_number=number,
            repository=repository,
            title=title,
            body=body,
            demands=demands,
            is_in_place=in_place,
            is_again=again,
        )
        start = app.preflight.accept(request, asked_by=cli_common.who(), priority=priority)
        if dry_run:
            return _show_plan(app, start, as_json=as_json)
        if detach:
            return _leave_to_worker(app, start, as_json=as_json)

        return _start_here(app, start, as_json=as_json)


def _refuse_options_of_starts(
    spec: WorkflowSpec, adw_id: str, *, title: str, body: str, again: bool, in_place: bool
) -> None:
    given = {"--title": title, "--body": body, "--again": again, "--in-place": in_place}
    names = [name for name, value in given.items() if value]
    if names:
        why = "with --id" if adw_id else f"with {spec.name}"
        raise UsageError(f"{names[0]} is for a new workflow, and {why} an earlier one is continued: leave it out")


def _carry_on(
    app: Home,
    adw_id: str,
    spec: WorkflowSpec,
    *,
    priority: int = 0,
    dry_run: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Continue a workflow with the phases of *spec*; *options* are those of `Control.plan_continue`."""
    control = app.control
    if dry_run:
        plan = control.plan_continue(adw_id, spec, **options)
        return _show_continuing(adw_id, plan.describe(), plan.named.phases[0].name, as_json=as_json)

    def ask() -> Applied:
        return control.continue_with(adw_id, spec, by=cli_common.who(), priority=priority, **options)

    return _go_on(app, adw_id, ask, hint="", detach=detach, as_json=as_json)


def _show_continuing(adw_id: str, plan: str, phase: str, *, as_json: bool) -> int:
    output.emit({"adw_id": adw_id, "plan": plan, "phase": phase}, plan, as_json=as_json)

    return 0


def _show_plan(app: Home, start: NewWorkflow, *, as_json: bool) -> int:
    spec, number = start.spec, start.issue_number
    rows: list[tuple[output.Printable, ...]] = [
        (phase.name, phase.state, phase.runner, phase.max_attempts, what_runs(phase, agent=app.settings.agent_name))
        for phase in spec.phases
    ]
    names = ("name", "state", "runner", "max_attempts", "what")
    phases = [dict(zip(names, row, strict=True)) for row in rows]
    table = output.table(("PHASE", "STATE", "RUNNER", "ATTEMPTS", "RUNS"), [tuple(map(str, row)) for row in rows])
    head = f"{_subject(number, start.issue.title)} would go through {spec.name} ({spec.source}):"
    output.emit({"workflow": spec.name, "issue_number": number, "phases": phases}, [head, *table], as_json=as_json)

    return 0


def _subject(issue_number: int | None, title: str) -> str:
    return f"issue {issue_number}" if issue_number is not None else f"task {identifiers.shortened(title, 60)!r}"


def _leave_to_worker(app: Home, start: NewWorkflow, *, as_json: bool) -> int:
    document = app.workflow_creator.start(start)
    text = [f"workflow {document.adw_id} waits for a worker", f"next: adw worker, or adw status {document.adw_id}"]
    output.emit({"adw_id": document.adw_id, "state": document.current_state}, text, as_json=as_json)

    return 0


def _start_here(app: Home, start: NewWorkflow, *, as_json: bool) -> int:
    document = app.workflow_creator.document(start)
    try:
        offer = app.claim_policy.offer
        if offer is None or start.demands is None or meets(offer, start.demands):
            app.base_check.before_creation(document, start.spec)
    except BaseRed as exc:
        for line in exc.output.splitlines()[-_OUTPUT_LINES:]:
            output.say(line)
        raise
    with Foreground(app) as here:
        with app.workflow_creator.create(document, start):
            pass  # stored: the run is claimed like any other, and a worker may be first
        subject = _subject(document.issue_number, document.issue_title)
        output.say(f"workflow {document.adw_id}: {start.spec.name} for {subject}")

        return _end(here.carry(run_of(app, document.adw_id)), as_json=as_json)


def _end(end: RunEnding, *, as_json: bool) -> int:
    output.emit(told(end), lines(end), as_json=as_json)

    return exit_code(end)


@click.command()
@cli_common.adw_id_argument
@click.option("--from", "from_phase", metavar="PHASE", default="", help="Start again at this phase, with a new round.")
@_HINT
@_BUDGET
@_DEFINITION
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@_DETACH
@output.json_option
def resume(
    *,
    adw_id: str,
    from_phase: str,
    hint: str,
    budget: float | None,
    workflow: str | None,
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """
    Resume a paused or failed workflow.

    While a worker runs it, -m alone leaves the hint for its next attempt. With --workflow a completed workflow is
    continued, too, with the phases of that workflow, in the same worktree and branch.
    """
    with main.open_home() as app:
        before = cli_common.load(app, adw_id).document  # a wrong id creates no database
        if workflow and before.workflow is not None and before.workflow.phases:
            if from_phase:
                raise UsageError("--from starts at a phase again, and --workflow names other phases: leave one out")
            spec_named = app.workflows.get(workflow)
            return _carry_on(
                app, adw_id, spec_named, hint=hint, budget=budget, dry_run=dry_run, detach=detach, as_json=as_json
            )
        spec: WorkflowSpec | None = app.workflows.get(workflow) if workflow else None
        control = app.control
        if dry_run:
            plan = control.plan(adw_id, from_phase=from_phase, budget=budget, spec=spec)
            return _show_continuing(adw_id, plan.describe(), plan.phase, as_json=as_json)

        def ask() -> Applied:
            by = cli_common.who()
            return control.resume(adw_id, by=by, from_phase=from_phase, hint=hint, budget=budget, spec=spec)

        left_hint = "" if from_phase or budget is not None else hint
        return _go_on(app, adw_id, ask, hint=left_hint, detach=detach, as_json=as_json)


@click.command()
@cli_common.adw_id_argument
@click.option("--grant", type=click.IntRange(1, 100), metavar="N", help="Allow N more attempts.")
@_BUDGET
@_HINT
@_DEFINITION
@_DETACH
@output.json_option
def retry(
    *,
    adw_id: str,
    grant: int | None,
    budget: float | None,
    hint: str,
    workflow: str | None,
    detach: bool,
    as_json: bool,
) -> int:
    """Retry a failed workflow; --grant allows more attempts when they are used up."""
    with main.open_home() as app:
        state = cli_common.load(app, adw_id).document.current_state
        spec: WorkflowSpec | None = app.workflows.get(workflow) if workflow else None
        if state != "failed":
            app.control.plan(adw_id, spec=spec)  # refuses what resume would refuse, with its advice
            helps = f"resume {adw_id} continues it" if state == "paused" else f"status {adw_id} says what it waits for"
            raise UsageError(f"workflow {adw_id} is {state}, not failed: adw {helps}")

        def ask() -> Applied:
            by = cli_common.who()
            return app.control.resume(adw_id, by=by, hint=hint, grant=grant or 0, budget=budget, spec=spec)

        return _go_on(app, adw_id, ask, hint="", detach=detach, as_json=as_json)


def _go_on(app: Home, adw_id: str, ask: Callable[[], Applied], *, hint: str, detach: bool, as_json: bool) -> int:
    """Call *ask* and work on the run it queued; if a worker has the workflow, leave it *hint*."""
    with Foreground(app) as here:
        try:
            applied = ask()
        except WorkflowBusy:
            if not hint:
                raise
            asked = app.control.hint(adw_id, hint, by=cli_common.who())
            return cli_common.tell(app, asked, adw_id, 0.0, as_json=as_json)
        if detach or applied.run is None:
            data: dict[str, output.Printable] = {"adw_id": adw_id, "state": applied.state, "plan": applied.message}
            output.emit(data, applied.message, as_json=as_json)
            return 0
        output.say(applied.message)

        return _end(here.carry(applied.run), as_json=as_json)
