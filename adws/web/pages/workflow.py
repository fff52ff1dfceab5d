"""`/workflows/{id}`: one workflow, with all that is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from adws.adw_modules import effect_facts, event_words
from adws.web.pages import frame, terminal_text, workflow_facts, workflow_rows
from adws.web.routes import AdwId, HomeOf

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.json_value import JsonValue

router = APIRouter(prefix="/workflows/{adw_id}", include_in_schema=False)

#: Events of a page.
EVENTS_OF_A_PAGE = 100
#: Effects that are listed, the newest.
MOST_EFFECTS = 40


@router.get("")
def show_workflow(request: Request, home: HomeOf, adw_id: AdwId) -> HTMLResponse:
    """Show it."""
    facts = workflow_facts.gather(home, adw_id)

    return frame.render(
        request,
        "workflow.html",
        topic=f"workflow:{adw_id}",
        facts=facts,
        name=name_of(facts.document),
        output=terminal_text.readable(facts.output.text),
        events=[(event, event_words.facts_of(event)) for event in facts.events],
        moves=[(entry, why_of(entry.metadata)) for entry in facts.document.state_history[::-1]][
            : workflow_facts.MOST_MOVES
        ],
        effects=[(effect, effect_facts.name_of(effect)) for effect in facts.effects],
        most_attempts=workflow_rows.MOST_ATTEMPTS,
        most_effects=MOST_EFFECTS,
        most_files=workflow_facts.MOST_FILES,
        most_checkpoints=workflow_facts.MOST_CHECKPOINTS,
    )


@router.get("/events")
def show_events(
    request: Request, home: HomeOf, adw_id: AdwId, before: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """Show what happened, the newest first, one page at a time."""
    document = home.part(lambda app: app.store).load(adw_id).document
    log = home.part(lambda app: app.events)
    found = log.newest(adw_id, before=before or None, limit=EVENTS_OF_A_PAGE + 1)
    page = found[:EVENTS_OF_A_PAGE]

    return frame.render(
        request,
        "workflow_events.html",
        topic="" if before else f"workflow:{adw_id}",
        adw_id=adw_id,
        name=name_of(document),
        events=[(event, event_words.facts_of(event)) for event in page],
        before=before,
        older=page[-1].event_id if len(found) > EVENTS_OF_A_PAGE else "",
    )


def name_of(document: WorkflowDocument) -> str:
    """Return a workflow as people call it: by its issue, else by its id."""
    title = document.issue.title if document.issue else ""
    if document.issue_number is None:
        return title or document.adw_id

    return f"#{document.issue_number} {title}".strip()


def why_of(metadata: Mapping[str, JsonValue]) -> str:
    """Return why a move was made, in a line."""
    said = (workflow_rows.text_of(metadata, name) for name in ("reason", "phase"))
    by = workflow_rows.text_of(metadata, "by")

    return ", ".join([*filter(None, said), *([f"by {by}"] if by else [])])
