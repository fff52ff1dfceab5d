"""
What the page of a workflow tells of its document: attempts, phases, moves, links.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import cost_entries
from adws.adw_modules.agent import TokenUsage
from adws.adw_modules.phase_choice import limit
from adws.adw_modules.rollback_rules import recorded_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.json_value import JsonValue
    from adws.adw_modules.rollback_rules import Step

#: Attempts that the page lists, the newest.
MOST_ATTEMPTS = 200
_ISSUE_PAGE = re.compile(r"(https?://[^\s?#]+)/issues/[0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRow:
    """One attempt."""

    phase: str
    number: int
    round: int
    status: str
    started_at: str
    ended_at: str | None
    seconds: float | None  #: of work; None: nobody knows, or it has not ended
    waited_seconds: float
    model: str
    agent: str
    category: str  #: of its error
    error: str
    summary: str  #: what its runner said
    cost_usd: float | None
    is_estimated: bool
    is_subscription: bool
    tokens: TokenUsage


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRow:
    """One phase."""

    name: str
    status: str
    round: int
    used: int
    limit: int
    tries: int  #: over all rounds
    uncounted: int  #: of these, ended on order or parked
    seconds: float
    cost_usd: float | None
    retry_at: str | None
    wait_reason: str
    trouble: str  #: its last failure, while that is not made good
    terminal_reason: str


def attempt_rows(document: WorkflowDocument) -> tuple[AttemptRow, ...]:
    """Return the attempts, the newest first."""
    costs = costs_of(document)
    rows = [
        attempt_row(phase, attempt, costs.get((phase.name, attempt.number)))
        for phase in document.phases
        for attempt in phase.attempts
    ]

    return tuple(sorted(rows, key=lambda row: (row.started_at, row.number), reverse=True))


def costs_of(document: WorkflowDocument) -> dict[tuple[str, int], cost_entries.CostEntry]:
    """Return what the attempts cost, by phase and number."""
    data = [phase.model_dump(mode="json") for phase in document.phases]

    return {(one.phase, one.attempt): one for one in cost_entries.entries_of(document.adw_id, "", data)}


def attempt_row(phase: PhaseRecord, attempt: AttemptRecord, cost: cost_entries.CostEntry | None = None) -> AttemptRow:
    """Return one attempt, with what it cost."""
    error, agent, report = attempt.error or {}, attempt.agent or {}, attempt.report or {}

    return AttemptRow(
        phase=phase.name,
        number=attempt.number,
        round=attempt.round,
        status=attempt.status,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        seconds=attempt.duration,
        waited_seconds=attempt.waited_seconds,
        model=(cost.model if cost else "") or attempt.model or "",
        agent=text_of(agent, "name"),
        category=text_of(error, "category") or text_of(error, "order"),
        error=text_of(error, "message"),
        summary=text_of(report, "summary"),
        cost_usd=cost.cost_usd if cost else None,
        is_estimated=bool(cost and cost.is_estimated),
        is_subscription=bool(cost and cost.is_subscription),
        tokens=cost.tokens if cost else TokenUsage(),
    )


def phase_rows(document: WorkflowDocument) -> tuple[PhaseRow, ...]:
    """Return the phases, in the order they run."""
    return tuple(_phase_row(document, phase) for phase in document.phases)


def _phase_row(document: WorkflowDocument, phase: PhaseRecord) -> PhaseRow:
    is_good = phase.status in {"complete", "skipped"}

    return PhaseRow(
        name=phase.name,
        status=phase.status,
        round=phase.round,
        used=phase.attempts_used,
        limit=limit(phase),
        tries=len(phase.attempts),
        uncounted=sum(1 for attempt in phase.attempts if attempt.status in {"suspended", "parked"}),
        seconds=sum(attempt.duration or 0.0 for attempt in phase.attempts),
        cost_usd=document.cost.by_phase.get(phase.name),
        retry_at=phase.retry_at,
        wait_reason=phase.wait_reason or "",
        trouble="" if is_good else phase.last_failure_reason or "",
        terminal_reason=phase.terminal_reason or "",
    )


def find_attempt(document: WorkflowDocument, phase: str, number: int) -> tuple[PhaseRecord, AttemptRecord] | None:
    """Return an attempt with its phase, None when there is none."""
    found = (
        (record, attempt)
        for record in document.phases
        if record.name == phase
        for attempt in record.attempts
        if attempt.number == number
    )

    return next(found, None)


# --- rollback --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackFacts:
    """How far a rollback is."""

    reason: str
    started_at: str | None
    steps: tuple[Step, ...]
    blocked_by: Sequence[str]

    @property
    def done(self) -> int:
        """How many steps are over."""
        return sum(1 for step in self.steps if step.is_over)


def rollback_of(document: WorkflowDocument) -> RollbackFacts | None:
    """Return the rollback that was begun, None when none was."""
    record = document.rollback
    if record is None:
        return None

    return RollbackFacts(
        reason=record.reason,
        started_at=record.started_at,
        steps=recorded_steps(document),
        blocked_by=record.blocked_by,
    )


# --- links -----------------------------------------------------------------------------------------------------


def issue_url(document: WorkflowDocument) -> str:
    """Return the address of the issue, "" when there is none that a browser may be sent to."""
    return _safe(document.issue.url or "") if document.issue else ""


def pull_request_url(document: WorkflowDocument) -> str:
    """Return the address of the pull request: as the forge said it, else beside that of the issue; "" for none."""
    if document.pr_number is None:
        return ""
    for phase in document.phases:
        result = phase.result or {}
        if result.get("pr_number") == document.pr_number and (found := _safe(text_of(result, "url"))):
            return found
    place = _ISSUE_PAGE.fullmatch(issue_url(document))

    return f"{place[1]}/pull/{document.pr_number}" if place else ""


def _safe(url: str) -> str:
    return url if url.startswith(("https://", "http://")) and len(url) <= 2000 else ""


# --- plain JSON ------------------------------------------------------------------------------------------------


def text_of(data: Mapping[str, JsonValue], name: str) -> str:
    """Return a text of plain JSON, "" for anything else."""
    value = data.get(name)

    return value if isinstance(value, str) else ""


def plain_facts(data: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """Return the texts and numbers of plain JSON, each with its name as people write it."""
    return [
        (name.replace("_", " "), str(value))
        for name, value in data.items()
        if isinstance(value, str | int | float) and value not in ("", None)
    ]
