"""
The page of a workflow: its document, and facts from the database, the disk and git.

Reading changes nothing. If a part is not available (git is too slow, files are gone), the page says why in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from adws.adw_modules import attempt_files, costs, effects, events, views
from adws.adw_modules.attempt_files import Followed
from adws.adw_modules.costs import cap_of
from adws.adw_modules.queue.model import FINAL_RUNS, ROLLBACK
from adws.adw_modules.recovery.explain import claim_of, diagnosis_of, explain
from adws.adw_modules.reports import charts
from adws.adw_modules.reports.timeline import timeline
from adws.adw_modules.rollback.plan import recorded_steps
from adws.adw_modules.state_machine import read_table
from adws.adw_modules.worker.control import allowed_actions
from adws.web import changes
from adws.web.dashboard import frame
from adws.web.dependencies import AdwId, HomeOf

if TYPE_CHECKING:
    from adws.adw_modules.costs import CostEntry
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.identifiers import JsonValue
    from adws.adw_modules.views import AttemptView, WorkflowView
    from adws.app import Home


#: The most attempts listed, the newest ones.
MOST_ATTEMPTS = 200


def attempts_of(document: WorkflowDocument, view: WorkflowView) -> list[tuple[AttemptView, CostEntry | None]]:
    """Return the attempts, newest first, each with its cost."""
    paid = {(one.phase, one.attempt): one for one in costs.of_document(document)}

    return [(attempt, paid.get((attempt.phase, attempt.number))) for attempt in view.attempts]


def find_attempt(document: WorkflowDocument, phase: str, number: int) -> tuple[PhaseRecord, AttemptRecord] | None:
    """Return an attempt with its phase, or None."""
    result = (
        (record, attempt)
        for record in document.phases
        if record.name == phase
        for attempt in record.attempts
        if attempt.number == number
    )

    return next(result, None)


# --- plain JSON ------------------------------------------------------------------------------------------------


def text_of(data: Mapping[str, JsonValue], name: str) -> str:
    """Return the text *name* of plain JSON, or ""."""
    value = data.get(name)

    return value if isinstance(value, str) else ""


def plain_facts(data: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """Return the texts and numbers in plain JSON, each with a readable name."""
    return [
        (name.replace("_", " "), str(value))
        for name, value in data.items()
        if isinstance(value, str | int | float) and value not in ("", None)
    ]


#: The most characters of patches here; the page of the changes has all.
MOST_OF_PATCHES = 60_000
#: The most rows of lists here; the pages of the lists have all.
MOST_EVENTS = 15
MOST_EXECUTIONS = 20
MOST_CHECKPOINTS = 20
MOST_MOVES = 30
#: Events per page.
EVENTS_OF_A_PAGE = 100
#: The most effects listed, the newest ones.
MOST_EFFECTS = 40


# --- output ----------------------------------------------------------------------------------------------------


def readable(read: Callable[[], Followed]) -> Followed:
    """Return the result of *read*, or an empty one if the files were deleted, as those of old workflows are."""
    try:
        return read()
    except OSError:
        return Followed(text="", spot=None)


# --- `/workflows/{id}`: everything about one workflow ----------------------------------------------------------


router = APIRouter(prefix="/workflows/{adw_id}", include_in_schema=False)


@router.get("")
def show_workflow(request: Request, home: HomeOf, adw_id: AdwId) -> HTMLResponse:
    """Show a workflow; raises StateNotFound, or why its document cannot be read."""
    loaded = home.store.load(adw_id)
    document, now = loaded.document, home.clock.now()
    view, cap_usd = views.workflow(document, notices=loaded.notices), home.settings.quota_max_cost
    lease, sessions = home.leases.read(adw_id), home.sessions.of_workflow(adw_id)
    run = next(iter(home.runs.of_workflow(adw_id, limit=1)), None)
    claim, number = claim_of(lease, home.processes), document.issue_number
    ownership = {
        "lease": lease if lease and lease.owner else None,
        "verdict": home.processes.verdict(lease.owner if lease else None),
        "claim": claim,
        "run": run,  # the newest
        "asked": tuple(one.kind for one in home.requests.open_for(adw_id)),  # open requests to its owner
        "session": sessions[-1] if sessions else None,
        "lock": home.locks.holder(number, document.repository) if number is not None else None,
        "ports": tuple(port for port in home.ports.all() if port.adw_id == adw_id),
    }
    folder = home.folder_of(adw_id)
    output = readable(lambda: attempt_files.begin(folder, attempt_files.outputs(folder, document)))
    facts = {
        "document": document,
        "explanation": explain(diagnosis_of(home, document, now=now)),
        "possible": allowed_actions(
            document,
            is_live=claim.is_live,
            is_rolled_back_next=bool(run and run.kind == ROLLBACK and run.state not in FINAL_RUNS),
            max_cost_usd=cap_usd,
            now=home.clock.now,
        ),
        "ownership": ownership,
        "pictures": _pictures(home, document, now=now),
        "view": view,
        "attempts": attempts_of(document, view),
        "executions": home.execution_views.of_workflow(adw_id, limit=MOST_EXECUTIONS),
        "checkpoints": home.checkpoints.lines_of(adw_id),
        "changes": changes.read(home, document, most=MOST_OF_PATCHES),
        "output": output,
        "cap_usd": cap_of(document, cap_usd),
        "rollback": document.rollback,
    }

    return frame.render(
        request,
        "workflow.html",
        topic=f"workflow:{adw_id}",
        facts=facts,
        name=view.name,
        output=frame.readable(output.text),
        rollback_steps=recorded_steps(document) if document.rollback else (),
        events=[(event, events.facts_of(event)) for event in home.events.newest(adw_id, limit=MOST_EVENTS)],
        moves=[(entry, why_of(entry.metadata)) for entry in document.state_history[::-1]][:MOST_MOVES],
        effects=[(effect, effects.name_of(effect)) for effect in document.resources[::-1]],
        most_attempts=MOST_ATTEMPTS,
        most_effects=MOST_EFFECTS,
        most_checkpoints=MOST_CHECKPOINTS,
    )


def _pictures(home: Home, document: WorkflowDocument, *, now: datetime) -> dict[str, object]:
    """Return the pictures of a workflow; every text in them is redacted and cleaned before it is escaped."""
    redact, line = home.redactor.redact_text, timeline(document, now=now)

    def say(text: str) -> str:
        return frame.plain(redact(text))

    made = charts.moves_of(document.state_history)
    # Both return markup in which every text is escaped.
    drawn = Markup(charts.timeline_svg(line, title="Timeline of the phases", say=say))  # noqa: S704 - see above
    states = Markup(charts.state_svg(read_table(document), document.current_state, made))  # noqa: S704 - see above

    return {"line": line, "timeline": drawn, "legend": charts.legend(line), "states": states}


@router.get("/events")
def show_events(
    request: Request, home: HomeOf, adw_id: AdwId, before: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """Show the events, the newest first, one page at a time."""
    document = home.load(adw_id)
    result = home.events.newest(adw_id, before=before or None, limit=EVENTS_OF_A_PAGE + 1)
    page = result[:EVENTS_OF_A_PAGE]

    return frame.of_workflow(
        request,
        "workflow_events.html",
        document,
        topic="" if before else f"workflow:{adw_id}",
        events=[(event, events.facts_of(event)) for event in page],
        before=before,
        older=page[-1].event_id if len(result) > EVENTS_OF_A_PAGE else "",
    )


def why_of(metadata: Mapping[str, JsonValue]) -> str:
    """Return the reason for a state change in one line."""
    said = (text_of(metadata, name) for name in ("reason", "phase"))
    by = text_of(metadata, "by")

    return ", ".join([*filter(None, said), *([f"by {by}"] if by else [])])
