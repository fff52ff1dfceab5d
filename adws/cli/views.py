"""
`adw status`, `adw list`, `adw events`: looking, without changing anything.

These start without pydantic, SQLAlchemy and the like, because people type them often and scripts call them in loops.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import click

from adws.adw_modules.errors import DatabaseError, StateNotFound, UsageError
from adws.adw_modules.interfaces import LeaseRow, Page, PageQuery
from adws.cli import arguments, looking, main, output, view_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adws.adw_modules.execution_views import ExecutionLine
    from adws.adw_modules.interfaces_coordination import AgentSession
    from adws.app import App

#: Seconds between two looks for more events.
_LOOK_SECONDS = 0.25
#: Executions among which those are that are under way; a phase has one at a time.
_MOST_EXECUTIONS = 20


@click.command()
@arguments.adw_id_argument
@output.json_option
def status(*, adw_id: str, as_json: bool) -> None:
    """Show one workflow: its state, phases, attempts, owner and what it made."""
    with main.open_home() as app:
        peeked = looking.peek(app, adw_id)
        lease, problem = _lease_of(app, adw_id)
        verdict = app.processes.verdict(lease.owner) if lease and lease.owner else None
        # Before the first attempt there is neither, and what tells of them need not be loaded.
        is_begun = problem is None and view_text.is_begun(peeked.data)
        session = _session_of(app, adw_id) if is_begun else None
        executions = _executions_of(app, adw_id) if is_begun else ()
        data = view_text.status_data(
            peeked, lease, verdict, session=session, executions=executions, database_problem=problem
        )

        output.emit(data, view_text.status_lines(data, app.clock.now()), as_json=as_json)


@click.command(name="list")
@click.option(
    "--state",
    shell_complete=arguments.offer_states,
    metavar="STATE",
    callback=lambda _ctx, _param, value: _known_state(value),
    help="Only those in this state.",
)
@click.option("--issue", type=click.IntRange(min=1), metavar="NUMBER", help="Only the workflows of this issue.")
@click.option(
    "--workflow", metavar="NAME", shell_complete=arguments.offer_names, help="Only workflows made from this definition."
)
@click.option(
    "--search",
    metavar="WORDS",
    default="",
    help="Only those that have all these words in title, repository, id or issue.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Workflows on a page, at most 1000."
)
@click.option("--cursor", metavar="CURSOR", help="Go on where the page before ended.")
@output.json_option
def list_(
    *,
    state: str | None,
    issue: int | None,
    workflow: str | None,
    search: str,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List workflows, newest first, one page at a time."""
    query = PageQuery(limit=limit, cursor=cursor, state=state, issue_number=issue, workflow=workflow, search=search)
    with main.open_home() as app:
        page = app.catalogue.page(query) if app.has_database() else Page(rows=())

        output.emit(view_text.list_data(page), view_text.list_lines(page, app.clock.now()), as_json=as_json)


@click.command()
@arguments.adw_id_argument
@click.option("--after", metavar="EVENT", help="Only what came after this event.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Events to show.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more happens, until the workflow stops.")
@output.json_option
def events(*, adw_id: str, after: str | None, limit: int, follow: bool, as_json: bool) -> None:
    """Show what happened to a workflow, in order; with -f and --json one document a line."""
    with main.open_home() as app:
        if not app.has_database():
            raise StateNotFound(adw_id)
        found = app.events.of_workflow(adw_id, after=after, limit=limit)
        if not found and not app.store.exists(adw_id):
            raise StateNotFound(adw_id)

        if not follow:
            output.emit(view_text.events_data(found), view_text.events_lines(found, app.clock.now()), as_json=as_json)
            return
        _follow(app, adw_id, after, as_json=as_json)


def _follow(app: App, adw_id: str, after: str | None, *, as_json: bool) -> None:
    """Print events as they come, until the workflow has stopped and there are none left."""
    while True:
        has_stopped = looking.has_stopped(app, adw_id)
        found = app.events.of_workflow(adw_id, after=after)
        for event in found:
            after = event.event_id
            output.emit_line(event.to_json(), view_text.event_line(event), as_json=as_json)
        if has_stopped and not found:
            return
        if not found:
            app.clock.sleep(_LOOK_SECONDS)


def _lease_of(app: App, adw_id: str) -> tuple[LeaseRow | None, str | None]:
    """Return the lease, and why it is not known when the database cannot say: the document tells enough without it."""
    try:
        return (app.leases.read(adw_id) if app.has_database() else None), None
    except DatabaseError as exc:
        return None, str(exc)


def _session_of(app: App, adw_id: str) -> AgentSession | None:
    """Return the newest session of an agent, None when there was none, or when that cannot be told."""
    try:
        found = app.sessions.of_workflow(adw_id) if app.has_database() else ()
    except DatabaseError:
        return None

    return found[-1] if found else None


def _executions_of(app: App, adw_id: str) -> Sequence[ExecutionLine]:
    """Return the steps that are under way, none when that cannot be told."""
    try:
        found = app.execution_views.of_workflow(adw_id, limit=_MOST_EXECUTIONS) if app.has_database() else ()
    except DatabaseError:
        return ()

    return [one for one in found if one.state == "running"]


def _known_state(text: str | None) -> str | None:
    """Return the state that is meant, in any case; raise UsageError with the list of those there are."""
    if text is None:
        return None
    # Imported for those who filter only: the other views start without the state machine.
    states = [state.value for state in importlib.import_module("adws.adw_modules.state_machine").WorkflowState]
    if text.lower() not in states:
        raise UsageError(f"{text!r} is not a state; use one of {', '.join(states)}")

    return text.lower()
