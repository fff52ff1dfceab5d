"""`/workflows/{id}/log`, `/attempts/...`, `/file`: what attempts wrote, while they do and afterwards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse

from adws.adw_modules import attempt_files, views
from adws.adw_modules.attempt_files import Followed
from adws.adw_modules.state_machine import is_terminal
from adws.web.dashboard import frame, workflow
from adws.web.dashboard.workflow import folder_of, readable
from adws.web.dependencies import AdwId, HomeOf

if TYPE_CHECKING:
    from adws.adw_modules.attempt_files import AttemptFile
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject
    from adws.app import Home


router = APIRouter(prefix="/workflows/{adw_id}", include_in_schema=False)

#: Bytes of a file that a page shows.
PART_BYTES = 64 * 1024
#: The header that says where a tail goes on.
NEXT = "Adw-Next"

Phase = Annotated[str, Path(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$", description="name of a phase")]
Number = Annotated[int, Path(ge=1, le=999_999_999, description="of an attempt")]
PhaseQuery = Annotated[str, Query(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})?$")]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOutput:
    """What one attempt wrote."""

    phase: str
    attempt: int
    files: tuple[AttemptFile, ...]


@router.get("/log")
def show_log(
    request: Request,
    home: HomeOf,
    adw_id: AdwId,
    phase: PhaseQuery = "",
    attempt: Annotated[int, Query(ge=0, le=999_999_999)] = 0,
) -> HTMLResponse:
    """Show the end of what one attempt wrote, the newest unless another is asked for, and follow it."""
    document = home.store.load(adw_id).document
    result = begin(home, document, phase=phase, attempt=attempt)

    return frame.render(
        request,
        "workflow_log.html",
        adw_id=adw_id,
        name=views.workflow(document).name,
        followed=result,
        output=frame.readable(result.text),
        is_newest=not phase,
        written=_written(home, document),
    )


@router.get("/log/tail")
def tail(home: HomeOf, adw_id: AdwId, after: Annotated[str, Query(max_length=4000)] = "") -> PlainTextResponse:
    """Give what came since, as plain text; the header says where to go on, as long as something may come."""
    document = home.store.load(adw_id).document
    folder = folder_of(home, adw_id)
    sources = attempt_files.outputs(folder, document)
    if after:
        spot = attempt_files.spot_in(after)
        attempt = workflow.find_attempt(document, spot.phase, spot.attempt)
        has_ended = attempt is not None and attempt[1].ended_at is not None
        result = readable(lambda: attempt_files.follow(folder, sources, spot, has_ended=has_ended))
    else:
        result = readable(lambda: attempt_files.begin(folder, sources))
    text = frame.readable(home.redactor.redact_text(result.text))
    headers = {"Cache-Control": "no-store"}
    if result.text or not is_terminal(document.current_state):
        where = f"?after={quote(str(result.spot), safe='')}" if result.spot else ""
        headers[NEXT] = f"/workflows/{adw_id}/log/tail{where}"

    return PlainTextResponse(text, headers=headers)


@router.get("/attempts/{phase}/{number}")
def show_attempt(request: Request, home: HomeOf, adw_id: AdwId, phase: Phase, number: Number) -> HTMLResponse:
    """Show one attempt: what it was made with, what came of it, what it cost and what it wrote."""
    document = home.store.load(adw_id).document
    result = workflow.find_attempt(document, phase, number)
    if result is None:
        raise HTTPException(404)
    record, attempt = result
    view = views.workflow(document)
    attempts = workflow.attempts_of(document, view)
    row, cost = next(one for one in attempts if (one[0].phase, one[0].number) == (phase, number))
    output = begin(home, document, phase=phase, attempt=number)
    files = next((one.files for one in _written(home, document) if (one.phase, one.attempt) == (phase, number)), ())

    return frame.render(
        request,
        "workflow_attempt.html",
        topic=f"workflow:{adw_id}" if attempt.ended_at is None else "",
        adw_id=adw_id,
        name=view.name,
        row=row,
        cost=cost,
        attempt=attempt,
        error=attempt.error or {},
        report=attempt.report or {},
        agent=workflow.plain_facts(attempt.agent or {}),
        doctor=[call for call in record.doctor if call.get("attempt") == number],
        followed=output,
        output=frame.readable(output.text),
        files=files,
        result=_pretty(record.result) if _is_last(record.attempts, number) else "",
    )


@router.get("/file")
def show_file(
    request: Request,
    home: HomeOf,
    adw_id: AdwId,
    name: Annotated[str, Query(max_length=300)],
    start: Annotated[int, Query(alias="from", ge=0, le=2**53)] = 0,
) -> HTMLResponse:
    """Show a file of an attempt, one part at a time."""
    document = home.store.load(adw_id).document
    try:
        part, size = attempt_files.read_part(folder_of(home, adw_id), name, start=start, max_bytes=PART_BYTES)
    except OSError as exc:
        raise HTTPException(404) from exc
    end = start + len(part)

    return frame.render(
        request,
        "workflow_file.html",
        adw_id=adw_id,
        name=views.workflow(document).name,
        file=name,
        text=frame.readable(attempt_files.clipped(part.decode("utf-8", "replace"))) if part else "",
        start=start,
        end=end,
        size=size,
        earlier=max(0, start - PART_BYTES) if start else None,
        later=end if end < size else None,
    )


def begin(home: Home, document: WorkflowDocument, *, phase: str = "", attempt: int = 0) -> Followed:
    """Return the end of what an attempt wrote."""
    folder = folder_of(home, document.adw_id)

    return readable(
        lambda: attempt_files.begin(folder, attempt_files.outputs(folder, document), phase=phase, attempt=attempt)
    )


def _written(home: Home, document: WorkflowDocument) -> list[AttemptOutput]:
    """Return the files of each attempt, the newest attempt first."""
    try:
        files = attempt_files.list_files(folder_of(home, document.adw_id))
    except OSError:  # they are being forgotten
        return []
    rows = views.workflow(document).attempts
    result = (
        AttemptOutput(
            phase=row.phase,
            attempt=row.number,
            files=tuple(file for file in files if (file.phase, file.attempt) == (row.phase, row.number)),
        )
        for row in rows
    )

    return [one for one in result if one.files]


def _is_last(attempts: list[AttemptRecord], number: int) -> bool:
    return bool(attempts) and attempts[-1].number == number


def _pretty(value: JsonObject | None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) if value else ""
