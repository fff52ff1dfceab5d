"""`/workflows/{id}/log`, `/diff`, `/attempts/...`, `/file`: output and changes of attempts, live and afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse

from adws.adw_modules import attempt_files, views
from adws.adw_modules.agents import transcript
from adws.adw_modules.attempt_files import Followed
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.worker.control import allowed_actions
from adws.web import changes
from adws.web.dashboard import frame, workflow
from adws.web.dashboard.workflow import readable
from adws.web.dependencies import AdwId, HomeOf

if TYPE_CHECKING:
    from adws.adw_modules.agents.transcript import Entry
    from adws.adw_modules.attempt_files import AttemptFile
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


router = APIRouter(prefix="/workflows/{adw_id}", include_in_schema=False)

#: Bytes of a file per page.
PART_BYTES = 64 * 1024
#: The header with the URL of the next part of a tail.
NEXT = "Adw-Next"

#: For a transcript: bytes read from the end of an agent's stream, and the most entries shown.
TRANSCRIPT_BYTES, MOST_ENTRIES = 1024 * 1024, 500

Phase = Annotated[str, Path(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$", description="name of a phase")]
Number = Annotated[int, Path(ge=1, le=999_999_999, description="of an attempt")]
NumberQuery = Annotated[int, Query(ge=0, le=999_999_999)]
IsRaw = Annotated[bool, Query(description="the stream of an agent as it came, instead of its transcript")]
PhaseQuery = Annotated[str, Query(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})?$")]


@router.get("/log")
def show_log(
    request: Request,
    home: HomeOf,
    adw_id: AdwId,
    phase: PhaseQuery = "",
    attempt: NumberQuery = 0,
    *,
    raw: IsRaw = False,
) -> HTMLResponse:
    """Show the end of what one attempt wrote, the newest unless another is asked for, and follow it."""
    document = home.load(adw_id)
    result = begin(home, document, phase=phase, attempt=attempt, is_raw=raw)

    return frame.of_workflow(
        request,
        "workflow_log.html",
        document,
        followed=result,
        output=frame.readable(result.text),
        spoken=[] if raw else _spoken(home, document, result),
        is_newest=not phase,
        is_raw=raw,
        written=_written(home, document),
    )


@router.get("/log/tail")
def tail(
    home: HomeOf, adw_id: AdwId, after: Annotated[str, Query(max_length=4000)] = "", *, raw: IsRaw = False
) -> PlainTextResponse:
    """Return new output as plain text; the header has the next address, as long as more may come."""
    document = home.load(adw_id)
    folder = home.folder_of(adw_id)
    sources = attempt_files.outputs(folder, document, is_raw=raw)
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
        following = {"after": str(result.spot)} if result.spot else {}
        headers[NEXT] = f"/workflows/{adw_id}/log/tail?{urlencode(following | ({'raw': 'true'} if raw else {}))}"

    return PlainTextResponse(text, headers=headers)


@router.get("/diff")
def show_diff(
    request: Request, home: HomeOf, adw_id: AdwId, phase: PhaseQuery = "", attempt: NumberQuery = 0
) -> HTMLResponse:
    """Show what the workflow or one attempt changed, beside the transcript of that attempt or else of the newest."""
    document = home.load(adw_id)
    output = begin(home, document, phase=phase, attempt=attempt)

    return frame.of_workflow(
        request,
        "workflow_diff.html",
        document,
        topic=f"workflow:{adw_id}",
        found=changes.read(home, document, phase=phase, attempt=attempt),
        possible=allowed_actions(document, now=home.clock.now),
        followed=output,
        output=frame.readable(output.text),
        spoken=_spoken(home, document, output),
    )


@router.get("/attempts/{phase}/{number}")
def show_attempt(request: Request, home: HomeOf, adw_id: AdwId, phase: Phase, number: Number) -> HTMLResponse:
    """Show one attempt: its agent, result, cost, changes and output."""
    document = home.load(adw_id)
    result = workflow.find_attempt(document, phase, number)
    if result is None:
        raise HTTPException(404)
    record, attempt = result
    attempts = workflow.attempts_of(document, views.workflow(document))
    row, cost = next(one for one in attempts if (one[0].phase, one[0].number) == (phase, number))
    output = begin(home, document, phase=phase, attempt=number)

    return frame.of_workflow(
        request,
        "workflow_attempt.html",
        document,
        topic=f"workflow:{adw_id}" if attempt.ended_at is None else "",
        row=row,
        cost=cost,
        attempt=attempt,
        error=attempt.error or {},
        report=attempt.report or {},
        agent=workflow.plain_facts(attempt.agent or {}),
        doctor=[call for call in record.doctor if call.get("attempt") == number],
        followed=output,
        output=frame.readable(output.text),
        spoken=_spoken(home, document, output),
        files=_written(home, document).get((phase, number), []),
        found=changes.read(home, document, phase=phase, attempt=number) if attempt.commit else None,
        result=frame.pretty(record.result) if record.result and record.attempts[-1].number == number else "",
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
    document = home.load(adw_id)
    try:
        part, size = attempt_files.read_part(home.folder_of(adw_id), name, start=start, max_bytes=PART_BYTES)
    except OSError as exc:
        raise HTTPException(404) from exc
    end = start + len(part)

    return frame.of_workflow(
        request,
        "workflow_file.html",
        document,
        file=name,
        text=frame.readable(attempt_files.clipped(part.decode("utf-8", "replace"))) if part else "",
        start=start,
        end=end,
        size=size,
        earlier=max(0, start - PART_BYTES) if start else None,
        later=end if end < size else None,
    )


def begin(
    home: Home, document: WorkflowDocument, *, phase: str = "", attempt: int = 0, is_raw: bool = False
) -> Followed:
    """Return the end of an attempt's output."""
    folder = home.folder_of(document.adw_id)

    def read() -> Followed:
        sources = attempt_files.outputs(folder, document, is_raw=is_raw)
        return attempt_files.begin(folder, sources, phase=phase, attempt=attempt)

    return readable(read)


def _spoken(home: Home, document: WorkflowDocument, followed: Followed) -> list[tuple[Entry, str]]:
    """
    Return the newest MOST_ENTRIES of the agent's transcript in the attempt of *followed*, once that has ended.

    Each entry comes with its first line as `adw logs` shows it. The list is empty while the attempt runs, whose output
    is followed as text, and if the output is not the stream of an agent.
    """
    spot = followed.spot
    found = workflow.find_attempt(document, spot.phase, spot.attempt) if spot else None
    if spot is None or found is None or found[1].ended_at is None:
        return []
    folder = home.folder_of(document.adw_id)
    name = f"{attempt_files.FOLDER}/{spot.phase}/attempt-{spot.attempt}.stdout.log"
    try:
        lines = attempt_files.read_tail(folder, name, max_bytes=TRANSCRIPT_BYTES).splitlines()
    except OSError:  # missing, or being deleted
        return []
    if not lines or not transcript.is_stream(lines[0]):
        return []
    worktree = document.worktree_path or ""

    return [
        (entry, transcript.lines_of(entry, worktree=worktree)[0].strip())
        for entry in list(transcript.entries(lines))[-MOST_ENTRIES:]
    ]


def _written(home: Home, document: WorkflowDocument) -> dict[tuple[str, int], list[AttemptFile]]:
    """Return the files of each attempt that wrote any, by phase and number, newest attempt first."""
    try:
        files = attempt_files.list_files(home.folder_of(document.adw_id))
    except OSError:  # they are being deleted
        return {}
    written: dict[tuple[str, int], list[AttemptFile]] = {}
    for file in files:
        written.setdefault((file.phase, file.attempt), []).append(file)
    attempts = [(one.phase, one.number) for one in views.workflow(document).attempts]

    return {attempt: written[attempt] for attempt in attempts if attempt in written}
