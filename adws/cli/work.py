"""`adw run`, `adw resume`, `adw retry`: starting a workflow and making one go on."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.locks import check_issue_number
from adws.cli import arguments, foreground, main, output

if TYPE_CHECKING:
    from adws.adw_modules.coordination.control import Applied
    from adws.adw_modules.coordination.launch import Start
    from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec
    from adws.app import App


def who() -> str:
    """Return the name of the person at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


@click.command(name="run")
@click.argument("issue", metavar="ISSUE")
@click.option("--workflow", metavar="NAME", help="The workflow to run; adw workflows lists them.")
@click.option("--repository", metavar="OWNER/NAME", default="", help="The issue's repository, when it is not this one.")
@click.option("--title", default="", help="Title of the issue, for the phases.")
@click.option("--body", default="", help="Text of the issue, for the phases.")
@click.option("--priority", type=int, default=0, help="Higher is worked on first.")
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
            issue=FrozenIssue(title=title, body=body),
            priority=priority,
            asked_by=who(),
            max_retries=settings.max_retries,
            max_reworks=settings.max_reworks,
            max_total_attempts=settings.max_total_attempts,
            max_minutes=settings.max_minutes,
        )
        if dry_run:
            return _show_plan(app, start, as_json=as_json)
        if detach:
            document = app.work.launcher.start(start)
            text = f"workflow {document.adw_id} is accepted; adw worker works on it, adw status {document.adw_id}"
            output.emit({"adw_id": document.adw_id, "state": document.current_state}, text, as_json=as_json)
            return 0

        return _start_here(app, start, as_json=as_json)


def _show_plan(app: App, start: Start, *, as_json: bool) -> int:
    document = app.work.launcher.document(start)
    spec = start.spec
    phases = [_phase_data(phase) for phase in spec.phases]
    lines = [f"issue {document.issue_number} would go through {spec.name} ({spec.source}):"]
    lines += output.table(
        ("phase", "state", "runner", "attempts", "what"),
        [(p.name, p.state, p.runner, str(p.max_attempts), what(p)) for p in spec.phases],
    )
    output.emit(
        {"workflow": spec.name, "issue_number": document.issue_number, "phases": phases}, lines, as_json=as_json
    )

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


def _start_here(app: App, start: Start, *, as_json: bool) -> int:
    here = foreground.Foreground(app, is_quiet=as_json)
    document = app.work.launcher.document(start)
    if not as_json:
        output.say(f"workflow {document.adw_id}: {start.spec.name} for issue {document.issue_number}")
    with app.work.launcher.create(document, start):
        pass
    end = here.carry(foreground.run_of(app, document.adw_id).run_id)
    told, lines = foreground.ending(app, document.adw_id, end)
    output.emit(told, lines, as_json=as_json)

    return foreground.exit_code(app, document.adw_id, end)


@click.command()
@arguments.adw_id_argument
@click.option("--from", "from_phase", metavar="PHASE", default="", help="Start again at this phase, with a new round.")
@click.option("-m", "--hint", default="", help="What to do differently, for the next attempt.")
@click.option("--workflow", metavar="NAME", help="The definition, for a workflow of an older version that has none.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--detach", is_flag=True, help="Leave the work to a worker (adw worker).")
@output.json_option
def resume(
    *, adw_id: str, from_phase: str, hint: str, workflow: str | None, dry_run: bool, detach: bool, as_json: bool
) -> int:
    """Make a workflow that stopped go on where it was."""
    with main.open_home() as app:
        if dry_run:
            plan = app.work.control.plan(adw_id, from_phase=from_phase)
            output.emit(
                {"adw_id": adw_id, "plan": plan.describe(), "phase": plan.phase}, plan.describe(), as_json=as_json
            )
            return 0
        spec: WorkflowSpec | None = app.workflows.get(workflow) if workflow else None
        applied = app.work.control.resume(adw_id, by=who(), from_phase=from_phase, hint=hint, spec=spec)

        return _go_on(app, adw_id, applied, detach=detach, as_json=as_json)


@click.command()
@arguments.adw_id_argument
@click.option("--grant", type=click.IntRange(1, 100), default=0, metavar="N", help="Allow N more attempts.")
@click.option("-m", "--hint", default="", help="What to do differently, for the next attempt.")
@click.option("--detach", is_flag=True, help="Leave the work to a worker (adw worker).")
@output.json_option
def retry(*, adw_id: str, grant: int, hint: str, detach: bool, as_json: bool) -> int:
    """Try a failed workflow again; with --grant also when its attempts are used up."""
    with main.open_home() as app:
        applied = app.work.control.resume(adw_id, by=who(), hint=hint, grant=grant)

        return _go_on(app, adw_id, applied, detach=detach, as_json=as_json)


def _go_on(app: App, adw_id: str, applied: Applied, *, detach: bool, as_json: bool) -> int:
    if detach or applied.run is None:
        output.emit(
            {"adw_id": adw_id, "state": applied.state, "plan": applied.message}, applied.message, as_json=as_json
        )
        return 0
    if not as_json:
        output.say(applied.message)
    end = foreground.Foreground(app, is_quiet=as_json).carry(applied.run.run_id)
    told, lines = foreground.ending(app, adw_id, end)
    output.emit(told, lines, as_json=as_json)

    return foreground.exit_code(app, adw_id, end)
