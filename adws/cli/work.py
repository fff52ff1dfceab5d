"""`adw run`, `adw resume`, `adw retry`: starting a workflow and making one go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import ForgeNotFound, UsageError, WorkflowBusy
from adws.adw_modules.locks import check_issue_number
from adws.cli import answers, arguments, ending_text, foreground, looking, main, output

if TYPE_CHECKING:
    from adws.adw_modules.coordination.control import Applied
    from adws.adw_modules.coordination.launch import Start
    from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec
    from adws.app import App
    from adws.cli.ending_text import Ending


@click.command(name="run")
@click.argument("issue", metavar="ISSUE")
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=arguments.offer_names,
    help="The workflow to run; adw workflows lists them.",
)
@click.option("--repository", metavar="OWNER/NAME", default="", help="The issue's repository, when it is not this one.")
@click.option("--title", default="", help="Title of the issue, for the phases; wins over the forge's.")
@click.option("--body", default="", help="Text of the issue, for the phases; wins over the forge's.")
@click.option("--priority", type=int, default=0, help="Higher is worked on first.")
@click.option("--host", metavar="NAME", default="", help="The machine that has to do it; adw runners lists them.")
@click.option(
    "--tag", "tags", metavar="TAG", multiple=True, help="What a worker must offer; may be given several times."
)
@click.option("--dry-run", is_flag=True, help="Show what would be run, and start nothing.")
@click.option("--detach", is_flag=True, help="Leave the work to a worker (adw worker).")
@output.json_option
def run(
    *,
    issue: str,
    workflow: str | None,
    repository: str,
    title: str,
    body: str,
    priority: int,
    host: str,
    tags: tuple[str, ...],
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Start a workflow for an issue, and work on it until it is over or waits for a person."""
    from adws.adw_modules.coordination.launch import Start  # noqa: PLC0415 - pydantic comes with it

    number = check_issue_number(issue)
    with main.open_home() as app:
        settings = app.settings
        spec = app.workflows.get(workflow or settings.default_workflow)
        start = Start(
            issue_number=number,
            spec=spec,
            repository=repository or settings.repository or "",
            issue=_issue(app, number, repository=repository, title=title, body=body),
            priority=priority,
            demands=spec.demands.also(host=host, tags=tags),
            asked_by=answers.who(),
            max_retries=settings.max_retries,
            max_reworks=settings.max_reworks,
            max_total_attempts=settings.max_total_attempts,
            max_minutes=settings.max_minutes,
        )
        if dry_run:
            return _show_plan(app, start, as_json=as_json)
        if detach:
            return _leave_to_worker(app, start, as_json=as_json)

        return _start_here(app, start, as_json=as_json)


def _issue(app: App, number: int, *, repository: str, title: str, body: str) -> FrozenIssue:
    """Return the issue as the forge has it now, where there is one; what the command line says wins."""
    is_asked = app.settings.forge_kind != "none" and repository in {"", app.settings.repository or ""}
    if not is_asked:
        return FrozenIssue(title=title, body=body)
    from adws.adw_modules.forge_effects import frozen_issue  # noqa: PLC0415 - only where there is a forge

    try:
        found = frozen_issue(app.forge, number)
    except ForgeNotFound as exc:
        where = app.forge.repository or "the local forge"
        raise UsageError(f"there is no issue {number} in {where}: adw run takes the number of an issue") from exc

    return found.model_copy(update={"title": title or found.title, "body": body or found.body})


def _show_plan(app: App, start: Start, *, as_json: bool) -> int:
    spec, number = start.spec, start.issue_number
    app.workflows.check_ready(spec)
    phases = [_phase_data(phase) for phase in spec.phases]
    lines = [f"issue {number} would go through {spec.name} ({spec.source}):"]
    lines += output.table(
        ("PHASE", "STATE", "RUNNER", "ATTEMPTS", "RUNS"),
        [(p.name, p.state, p.runner, str(p.max_attempts), what(p)) for p in spec.phases],
    )
    output.emit({"workflow": spec.name, "issue_number": number, "phases": phases}, lines, as_json=as_json)

    return 0


def _phase_data(phase: PhaseSpec) -> dict[str, output.Printable]:
    return {
        "name": phase.name,
        "state": phase.state,
        "runner": phase.runner,
        "max_attempts": phase.max_attempts,
        "what": what(phase),
    }


def what(phase: PhaseSpec) -> str:
    """Return what a phase runs, in one line."""
    return " ".join(phase.command) or phase.shell or phase.call or phase.prompt


def _leave_to_worker(app: App, start: Start, *, as_json: bool) -> int:
    document = app.work.launcher.start(start)
    text = [f"workflow {document.adw_id} waits for a worker", f"next: adw worker, or adw status {document.adw_id}"]
    output.emit({"adw_id": document.adw_id, "state": document.current_state}, text, as_json=as_json)

    return 0


def _start_here(app: App, start: Start, *, as_json: bool) -> int:
    with foreground.Foreground(app) as here:
        document = app.work.launcher.document(start)
        with app.work.launcher.create(document, start):
            pass  # stored: the work is taken up like any other run, so that a worker may be first
        output.say(f"workflow {document.adw_id}: {start.spec.name} for issue {document.issue_number}")

        return _end(here.carry(foreground.run_of(app, document.adw_id)), as_json=as_json)


def _end(end: Ending, *, as_json: bool) -> int:
    output.emit(ending_text.told(end), ending_text.lines(end), as_json=as_json)

    return ending_text.exit_code(end)


_BUDGET = click.option(
    "--budget",
    type=arguments.NumberRange(min=0, min_open=True),
    metavar="USD",
    help="What the workflow may cost in all from now on, in US dollars; what it has cost counts.",
)


@click.command()
@arguments.adw_id_argument
@click.option("--from", "from_phase", metavar="PHASE", default="", help="Start again at this phase, with a new round.")
@click.option("-m", "--hint", default="", help="What to do differently, for the next attempt.")
@_BUDGET
@click.option(
    "--workflow",
    metavar="NAME",
    shell_complete=arguments.offer_names,
    help="The definition, for a workflow of an older version that has none.",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--detach", is_flag=True, help="Leave the work to a worker (adw worker).")
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
    Make a workflow that stopped go on where it was.

    While somebody works on it, -m alone leaves the hint for its next attempt.
    """
    with main.open_home() as app:
        looking.peek(app, adw_id)  # a wrong id makes no database
        if dry_run:
            plan = app.work.control.plan(adw_id, from_phase=from_phase, budget=budget)
            data: dict[str, output.Printable] = {"adw_id": adw_id, "plan": plan.describe(), "phase": plan.phase}
            output.emit(data, plan.describe(), as_json=as_json)
            return 0
        spec: WorkflowSpec | None = app.workflows.get(workflow) if workflow else None

        return _go_on(
            app,
            adw_id,
            lambda: app.work.control.resume(
                adw_id, by=answers.who(), from_phase=from_phase, hint=hint, budget=budget, spec=spec
            ),
            hint="" if from_phase or budget is not None else hint,
            detach=detach,
            as_json=as_json,
        )


@click.command()
@arguments.adw_id_argument
@click.option("--grant", type=click.IntRange(1, 100), metavar="N", help="Allow N more attempts.")
@_BUDGET
@click.option("-m", "--hint", default="", help="What to do differently, for the next attempt.")
@click.option("--detach", is_flag=True, help="Leave the work to a worker (adw worker).")
@output.json_option
def retry(*, adw_id: str, grant: int | None, budget: float | None, hint: str, detach: bool, as_json: bool) -> int:
    """Try a failed workflow again; with --grant also when its attempts are used up."""
    with main.open_home() as app:
        state = looking.peek(app, adw_id).data.get("current_state")
        if state != "failed":
            raise UsageError(f"workflow {adw_id} is {state}, not failed: adw resume {adw_id} makes it go on")

        return _go_on(
            app,
            adw_id,
            lambda: app.work.control.resume(adw_id, by=answers.who(), hint=hint, grant=grant or 0, budget=budget),
            hint="",
            detach=detach,
            as_json=as_json,
        )


def _go_on(app: App, adw_id: str, ask: Callable[[], Applied], *, hint: str, detach: bool, as_json: bool) -> int:
    """Have the change made, and work on what it queued; *hint* is left to whoever is at work already."""
    with foreground.Foreground(app) as here:
        try:
            applied = ask()
        except WorkflowBusy:
            if not hint:
                raise
            return answers.tell(
                app, app.work.control.hint(adw_id, hint, by=answers.who()), adw_id, 0.0, as_json=as_json
            )
        if detach or applied.run is None:
            data: dict[str, output.Printable] = {"adw_id": adw_id, "state": applied.state, "plan": applied.message}
            output.emit(data, applied.message, as_json=as_json)
            return 0
        output.say(applied.message)

        return _end(here.carry(applied.run), as_json=as_json)
