"""
`/api/v1/workflows`: looking at workflows, and starting them.

Accepted means durable: when a start is answered, the document and its run exist, and a worker takes them up.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from adws.adw_modules import repository_name
from adws.adw_modules.coordination.launch import Start
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import ForgeNotFound, UsageError
from adws.adw_modules.forge_effects import frozen_issue
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.state_table import WorkflowState
from adws.web import facts, models
from adws.web.home import Home
from adws.web.routes import ERRORS, AdwId, HomeOf, PageOf, asker

router = APIRouter(prefix="/api/v1/workflows", tags=["workflows"], responses=ERRORS)


class WorkflowFilter(PageOf):
    """Which workflows to list."""

    state: WorkflowState | None = None
    issue_number: int | None = Field(default=None, ge=1, le=10**18 - 1)
    repository: str | None = Field(default=None, max_length=200)
    workflow: str | None = Field(default=None, max_length=200)
    search: str = Field(
        default="", max_length=200, description="words that are all found in title, repository, id or issue number"
    )


@router.get("", operation_id="list_workflows")
def list_workflows(home: HomeOf, wanted: Annotated[WorkflowFilter, Query()]) -> models.WorkflowPage:
    """List workflows, newest first, one page at a time."""
    page = home.part(lambda app: app.catalogue).page(
        PageQuery(
            limit=wanted.limit,
            cursor=wanted.cursor or None,
            state=wanted.state.value if wanted.state else None,
            issue_number=wanted.issue_number,
            repository=wanted.repository,
            workflow=wanted.workflow,
            search=wanted.search,
        )
    )

    return models.WorkflowPage(workflows=[facts.line_of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.get("/{adw_id}", operation_id="get_workflow")
def get_workflow(home: HomeOf, adw_id: AdwId) -> models.Workflow:
    """Show one workflow: its state, phases, attempts and owner."""
    loaded = home.part(lambda app: app.store).load(adw_id)
    lease = home.part(lambda app: app.leases).read(adw_id)
    verdict = home.part(lambda app: app.processes).verdict(lease.owner if lease else None)

    return facts.workflow_of(loaded.document, loaded.notices, lease, verdict)


@router.post("", operation_id="start_workflow", status_code=201)
def start_workflow(home: HomeOf, new: models.NewWorkflow) -> models.Started:
    """Start a workflow for an issue; a worker takes it up. 409 when another workflow has the issue."""
    settings = home.settings
    repository = repository_name.normalise(new.repository)
    start = Start(
        issue_number=new.issue_number,
        spec=home.part(lambda app: app.workflows).get(new.workflow or settings.default_workflow),
        repository=repository or settings.repository or "",
        issue=_issue(home, new, repository),
        priority=new.priority,
        asked_by=asker(new.by),
        max_retries=settings.max_retries,
        max_reworks=settings.max_reworks,
        max_total_attempts=settings.max_total_attempts,
        max_minutes=settings.max_minutes,
    )
    document = home.part(lambda app: app.work.launcher).start(start)
    home.bring_up()
    runs = home.part(lambda app: app.runs).of_workflow(document.adw_id, limit=1)

    return models.Started(adw_id=document.adw_id, state=document.current_state, run_id=runs[0].run_id if runs else None)


def _issue(home: Home, new: models.NewWorkflow, repository: str) -> FrozenIssue:
    """Return the issue as the forge has it now, where there is one; what the request says wins."""
    ours = repository_name.comparable(home.settings.repository or "")
    if home.settings.forge_kind == "none" or repository not in {"", ours}:
        return FrozenIssue(title=new.title, body=new.body)
    try:
        found = frozen_issue(home.part(lambda app: app.forge), new.issue_number)
    except ForgeNotFound as exc:
        raise UsageError(f"there is no issue {new.issue_number} in {ours or 'the local forge'}") from exc

    return found.model_copy(update={"title": new.title or found.title, "body": new.body or found.body})
