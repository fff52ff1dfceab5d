"""
`/start` and `/workflows/selected`: start a workflow, and apply one action to several workflows at once.

An action on several is confirmed on a page that names each. Then it is carried out for each by itself, and the answer
has the result of each. A refusal for one workflow does not affect the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import HTMLResponse, Response

from adws.adw_modules import identifiers, views
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.rollback.plan import RollbackOptions
from adws.adw_modules.worker.control import allowed_actions
from adws.web import api_workflows, models
from adws.web.dashboard import actions, frame
from adws.web.dashboard.frame import sentence
from adws.web.dependencies import HomeOf

if TYPE_CHECKING:
    from adws.app import Home
    from adws.web.dashboard.sessions import Form

router = APIRouter(include_in_schema=False)

#: Action on selected workflows -> label of its button.
BULK_ACTIONS = {"retry": "Retry", "rollback": "Roll back"}
#: The prefix of the field that selects a workflow; the id follows.
PICK = "pick-"
_NO_ISSUE = "'{}' is no issue: give 42, #42, owner/name#42 or the address of an issue"
#: The most characters of a task.
_LONGEST_TASK = 50_000


# --- a new workflow --------------------------------------------------------------------------------------------


@router.get("/start")
def show_start(request: Request, home: HomeOf) -> HTMLResponse:
    """Show the form that starts a workflow."""
    return frame.render(request, "start.html", begin=start_facts(home), problem="")


@router.post("/start")
def start(request: Request, home: HomeOf) -> Response:
    """Start a workflow and redirect to its page; when it is refused, show the form again with the reason."""
    form = actions.guard(request)
    by = frame.viewer(request).by
    issue, task = form.text("issue", most=500), form.text("task", most=_LONGEST_TASK)
    actions.note(request, "start", issue=issue)
    try:
        started, is_new = api_workflows.start(home, _wanted(form, issue, task), by=by)
    except (AdwError, ValidationError) as exc:
        said = str(exc) if isinstance(exc, AdwError) else _NO_ISSUE.format(issue[:80])
        typed = start_facts(home, issue=issue, task=task, workflow=form.text("workflow"))
        return frame.render(request, "start.html", status=422, begin=typed, problem=sentence(said))
    said = f"workflow {started.adw_id} is {'started' if is_new else 'continued'}: a worker takes it up"

    return actions.done(request, f"/workflows/{started.adw_id}", sentence(said))


def start_facts(home: Home, *, issue: str = "", task: str = "", workflow: str = "") -> dict[str, object]:
    """Return the facts for the form: the names of workflows, and the input to keep."""
    return {
        "names": home.workflows.names(),
        "issue": issue,
        "task": task,
        "workflow": workflow or home.settings.default_workflow,
    }


def _wanted(form: Form, issue: str, task: str) -> models.NewWorkflow:
    if bool(issue) is bool(task):
        raise UsageError("give either an issue or a task: a workflow has one goal")
    number, repository = None, ""
    if issue:
        parsed = identifiers.parse_issue(issue)
        if parsed is None:
            raise UsageError(_NO_ISSUE.format(issue[:80]))
        number, repository = parsed

    return models.NewWorkflow(
        issue_number=number, repository=repository, task=task, workflow=form.text("workflow", most=100)
    )


# --- several at once -------------------------------------------------------------------------------------------


@router.post("/workflows/selected")
def act_on_selected(request: Request, home: HomeOf) -> Response:
    """Ask whether an action on the selected workflows is to be done; when that was confirmed, do it for each."""
    form = actions.guard(request)
    action = form.text("action", most=20)
    adw_ids = [name.removeprefix(PICK) for name in form.fields if name.startswith(PICK)]
    if action not in BULK_ACTIONS or not adw_ids:
        return actions.done(request, "/workflows", f"{actions.NOT_DONE}select workflows first.")
    is_done = form.is_set("confirmed")
    grant = actions.granted(form) if is_done else 0
    rows = []
    for adw_id in adw_ids:
        row = {"adw_id": adw_id, "title": adw_id, "state": "", "note": "", "is_bad": False}
        try:
            document = home.load(adw_id)
            row |= {"title": views.workflow(document).name, "state": document.current_state}
            if is_done:
                row["note"] = sentence(_do(request, home, adw_id, action, grant=grant, count=len(adw_ids)))
            else:
                row["note"] = _refusal(home, adw_id, action)
                row["is_bad"] = bool(row["note"])
        except AdwError as exc:
            row |= {"note": f"{actions.NOT_DONE if is_done else ''}{sentence(str(exc))}", "is_bad": True}
        rows.append(row)

    return frame.render(
        request, "selected.html", action=action, label=BULK_ACTIONS[action], rows=rows, is_done=is_done, pick=PICK
    )


def _refusal(home: Home, adw_id: str, action: str) -> str:
    """Return why the action will be refused, or ""."""
    document = home.load(adw_id)
    may = allowed_actions(document, max_cost_usd=home.settings.quota_max_cost, now=home.clock.now)
    if action == "rollback":
        return "" if may.may_roll_back else "It cannot be rolled back: it is merged, or its rollback has begun."
    if not may.is_retry:
        return f"It is {frame.words(document.current_state)}, not failed."
    needs = may.needs
    if "budget" in needs:
        return "It has used its budget: retry it on its own page with a larger one."

    return "Its attempts are used up: grant further attempts below." if "grant" in needs else ""


def _do(request: Request, home: Home, adw_id: str, action: str, *, grant: int, count: int) -> str:
    """Carry out the action for one workflow and return the result as a sentence."""
    form, by = actions.guard(request), frame.viewer(request).by
    control = actions.control(request, home, action, adw_id)
    text = form.text("reason", most=10_000)
    if action == "retry":
        return api_workflows.order(home, adw_id, "retry", by=by, control=control, text=text, grant=grant).message
    options = RollbackOptions(
        reason=text or f"rolled back by {by}",
        keep_branch=form.is_set("keep_branch"),
        by=by,
        mark=actions.mark(request, home, "rollback"),
    )
    # All together wait no longer than one alone, so that the page responds.
    wait_seconds = api_workflows.ROLLBACK_WAIT_SECONDS / count

    return api_workflows.roll_back(home, adw_id, options, wait_seconds=wait_seconds).message
