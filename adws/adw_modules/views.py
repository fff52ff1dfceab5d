"""
One view of a workflow: the facts that the command line, the HTTP API and the dashboard show.

Pure. The interfaces render this view and compute nothing from the document themselves, so they always agree. What an
attempt cost is in `costs`, which reports read as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.interfaces import (
    IssueLock,
    LeaseRow,
    LoadNotice,
    OwnerRecord,
    RegisteredWorker,
    Verdict,
    WorkflowResult,
)

if TYPE_CHECKING:
    from datetime import datetime

    from adws.adw_modules.document import AttemptRecord, PhaseRecord, RollbackRecord, WorkflowDocument
    from adws.adw_modules.identifiers import JsonObject

#: Fields that views copy from the document, in the order of `adw status --json`.
_OF_ATTEMPT = ("number", "round", "status", "started_at", "ended_at", "duration", "model")
_OF_PHASE = (
    *("name", "state", "status", "round", "attempts_used", "last_attempt_timestamp", "last_failure_reason"),
    *("terminal_reason", "retry_at", "wait_reason", "wait_deadline_at", "parks"),
)
_OF_WORKFLOW = (
    *("adw_id", "repository", "issue_number", "revision", "resume_state", "failed_phase", "terminal_reason"),
    *("pause_reason", "retry_count", "max_retries", "reworks", "max_reworks", "branch_name", "worktree_path"),
    "pr_number",
)
_ISSUE_PAGE = re.compile(r"(https?://[^\s?#]+)/issues/[0-9]+")
#: Statuses of phases in which nothing is left to do.
_OVER = frozenset({"complete", "skipped"})
#: Fields shown of an advisor decision.
_ADVISOR_FIELDS = ("attempt", "by", "decision", "reason", "model", "problem", "asked_at", "decided_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptView:
    """One attempt at a phase."""

    phase: str
    number: int
    round: int
    status: str
    started_at: str
    ended_at: str | None
    duration: float | None  #: seconds of work; None: not ended, or unknown
    waited_seconds: float
    model: str | None  #: chosen when the attempt began; None: the agent's own choice
    agent: str | None
    error: str | None
    category: str | None  #: category of the error
    order: str | None  #: the order that ended it: pause, stop
    summary: str  #: written by its runner

    def to_json(self) -> JsonObject:
        """Return the attempt for `adw status --json`."""
        return {name: getattr(self, name) for name in (*_OF_ATTEMPT, "agent", "error", "category")}


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseView:
    """One phase with its attempts in all rounds."""

    name: str
    state: str
    status: str
    round: int
    attempts_used: int
    max_attempts: int  #: includes attempts granted by a person
    last_attempt_timestamp: str | None
    last_failure_reason: str | None
    terminal_reason: str | None
    retry_at: str | None
    wait_reason: str | None
    wait_deadline_at: str | None
    parks: int
    cost_usd: float | None
    advice: str  #: advice on its last failure, with commands ready to type
    doctor: Sequence[JsonObject]  #: advisor decisions, oldest first
    attempts: Sequence[AttemptView]

    @property
    def is_over(self) -> bool:
        """Whether the phase succeeded or was skipped."""
        return self.status in _OVER

    @property
    def suspended_attempts(self) -> int:
        """The number of attempts that ended on order."""
        return sum(1 for attempt in self.attempts if attempt.status == "suspended")

    @property
    def parked_attempts(self) -> int:
        """The number of attempts that ended because a quota or a service was not available."""
        return sum(1 for attempt in self.attempts if attempt.status == "parked")

    @property
    def total_seconds(self) -> float:
        """Seconds of work over all attempts."""
        return round(sum(attempt.duration or 0.0 for attempt in self.attempts), 3)

    @property
    def average_seconds(self) -> float | None:
        """Average seconds of work per attempt, or None if no duration is known."""
        known = [attempt.duration for attempt in self.attempts if attempt.duration is not None]

        return round(sum(known) / len(known), 3) if known else None

    @property
    def agent(self) -> str | None:
        """The agent of the newest attempt that had one."""
        return next((attempt.agent for attempt in reversed(self.attempts) if attempt.agent), None)

    def to_json(self) -> JsonObject:
        """Return the phase for `adw status --json`."""
        counted = ("suspended_attempts", "parked_attempts", "total_seconds", "average_seconds")

        return {
            **{name: getattr(self, name) for name in (*_OF_PHASE, "max_attempts", "cost_usd", *counted, "agent")},
            "total_attempts": len(self.attempts),
            "attempts": [attempt.to_json() for attempt in self.attempts],
            "doctor": [dict(call) for call in self.doctor],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerView:
    """The owner of a workflow; its token stays secret."""

    host: str
    pid: int
    role: str
    liveness: str
    lease_seconds_left: float
    fence: int
    taken_at: str

    def to_json(self) -> JsonObject:
        """Return the owner for `adw status --json`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowView:
    """Everything that is shown about one workflow."""

    adw_id: str
    state: str
    repository: str
    issue_number: int | None
    title: str
    workflow: str | None  #: name of its definition, None if there is none
    has_definition: bool  #: False for documents of older versions
    revision: int
    resume_state: str | None
    failed_phase: str | None  #: the state of the phase that failed
    terminal_reason: str | None
    pause_reason: str | None
    retry_count: int
    max_retries: int
    reworks: int
    max_reworks: int
    branch_name: str | None
    worktree_path: str | None
    pr_number: int | None
    cost_usd: float
    is_cost_estimated: bool
    warnings: Sequence[str]
    hints: Sequence[JsonObject]
    rollback: RollbackRecord | None
    phases: Sequence[PhaseView]
    owner: OwnerView | None
    notices: Sequence[LoadNotice]  #: notices from reading the document
    created_at: str | None  #: None: unknown
    updated_at: str | None
    issue_url: str  #: "": there is no URL that a browser may be sent to
    pull_request_url: str

    def phase_with(self, status: str) -> PhaseView | None:
        """Return the first phase with the given status, or None."""
        return next((phase for phase in self.phases if phase.status == status), None)

    @property
    def waiting_phase(self) -> str | None:
        """The phase that waits for approval."""
        waiting = self.phase_with("waiting") if self.state == "paused" else None

        return waiting.name if waiting else None

    @property
    def failure(self) -> PhaseView | None:
        """The phase that made the workflow fail: the last failed one, as optional ones before it may have failed."""
        failed = (phase for phase in reversed(self.phases) if phase.status == "failed")

        return next(failed, None) if self.state == "failed" else None

    @property
    def newest_failure(self) -> PhaseView | None:
        """The phase whose attempt failed last and that has not succeeded since."""
        failed = [phase for phase in self.phases if phase.last_failure_reason and not phase.is_over]

        return max(failed, key=lambda phase: phase.last_attempt_timestamp or "", default=None)

    @property
    def attempts(self) -> list[AttemptView]:
        """The attempts at all phases, newest first."""
        attempts = [attempt for phase in self.phases for attempt in phase.attempts]

        return sorted(attempts, key=lambda one: (one.started_at, one.number), reverse=True)

    @property
    def work_seconds(self) -> float:
        """Seconds of work over all attempts at all phases."""
        return round(sum(phase.total_seconds for phase in self.phases), 3)

    @property
    def rollback_blocked_by(self) -> list[str] | None:
        """What blocks the rollback, or None if no rollback has begun."""
        return None if self.rollback is None else self.rollback.blocked_by

    @property
    def name(self) -> str:
        """The name of the workflow for people: its issue number and title, else its title or id."""
        if self.issue_number is None:
            return self.title or self.adw_id

        return f"#{self.issue_number} {self.title}".strip()

    def to_json(self) -> JsonObject:
        """Return the view for `adw status --json`."""
        rollback = self.rollback

        return {
            **{name: getattr(self, name) for name in (*_OF_WORKFLOW, "state", "title", "workflow")},
            **{name: getattr(self, name) for name in ("cost_usd", "work_seconds", "created_at", "updated_at")},
            "pull_request_url": self.pull_request_url or None,
            "warnings": list(self.warnings),
            "hints": [{name: hint.get(name) for name in ("text", "by", "at", "phase")} for hint in self.hints],
            "rollback": rollback.model_dump(include={"reason", "started_at", "blocked_by"}) if rollback else None,
            "phases": [phase.to_json() for phase in self.phases],
            "owner": self.owner.to_json() if self.owner else None,
            "notices": [{"kind": n.kind, "path": n.path, "reason": n.reason} for n in self.notices],
        }


def workflow(
    document: WorkflowDocument,
    *,
    lease: LeaseRow | None = None,
    verdict: Verdict | None = None,
    notices: Sequence[LoadNotice] = (),
) -> WorkflowView:
    """Return the view of the workflow in *document*; *lease* and *verdict* describe its owner."""
    owner = None
    if lease is not None and lease.owner is not None:
        owner = OwnerView(
            host=lease.owner.host,
            pid=lease.owner.pid,
            role=lease.owner.role,
            liveness=(verdict or Verdict.UNKNOWN).value,
            lease_seconds_left=round(lease.seconds_left, 3),
            fence=lease.fence,
            taken_at=lease.taken_at,
        )

    return WorkflowView(
        **{name: getattr(document, name) for name in _OF_WORKFLOW},
        state=document.current_state,
        title=document.issue_title,
        workflow=document.workflow.name if document.workflow else None,
        has_definition=bool(document.workflow and document.workflow.phases),
        cost_usd=document.cost.total_usd,
        is_cost_estimated=document.cost.is_estimated,
        warnings=document.warnings,
        hints=document.hints,
        rollback=document.rollback,
        phases=[_phase(document, phase) for phase in document.phases],
        owner=owner,
        notices=notices,
        created_at=known_moment(document.created_at),
        updated_at=known_moment(document.updated_at),
        issue_url=_issue_url(document),
        pull_request_url=_pull_request_url(document),
    )


def result(document: WorkflowDocument) -> WorkflowResult:
    """Return the result so far of the workflow in *document*, for a line of a list."""
    left = [phase for phase in document.phases if phase.status not in _OVER]
    if document.current_state == "failed":
        # Optional phases may have failed before the one that made the workflow fail.
        left = [phase for phase in reversed(left) if phase.status == "failed"] or left

    return WorkflowResult(
        phase=left[0].name if left and document.current_state != "completed" else None,
        branch_name=document.branch_name,
        pr_number=document.pr_number,
        pull_request_url=_pull_request_url(document),
        cost_usd=document.cost.total_usd,
        work_seconds=round(sum(attempt.duration or 0.0 for phase in document.phases for attempt in phase.attempts), 3),
    )


def _phase(document: WorkflowDocument, phase: PhaseRecord) -> PhaseView:
    error = phase.attempts[-1].error if phase.attempts else None

    return PhaseView(
        **{name: getattr(phase, name) for name in _OF_PHASE},
        max_attempts=phase.max_attempts + phase.granted,
        cost_usd=document.cost.by_phase.get(phase.name),
        advice=re.sub(r"(?<=adw )(\w+) ID\b", rf"\1 {document.adw_id}", _text(error or {}, "advice") or ""),
        doctor=[{name: call[name] for name in _ADVISOR_FIELDS if name in call} for call in phase.doctor],
        attempts=[_attempt(phase.name, attempt) for attempt in phase.attempts],
    )


def _attempt(phase: str, attempt: AttemptRecord) -> AttemptView:
    error = attempt.error or {}

    return AttemptView(
        **{name: getattr(attempt, name) for name in _OF_ATTEMPT},
        phase=phase,
        waited_seconds=attempt.waited_seconds,
        agent=_text(attempt.agent or {}, "name"),
        error=_text(error, "message"),
        category=_text(error, "category"),
        order=_text(error, "order"),
        summary=_text(attempt.report or {}, "summary") or "",
    )


def _issue_url(document: WorkflowDocument) -> str:
    return _web_address(document.issue.url or "") if document.issue else ""


def _pull_request_url(document: WorkflowDocument) -> str:
    """Return the URL of the pull request that the forge reported, or else one derived from the URL of the issue."""
    if document.pr_number is None:
        return ""
    known = [phase.result or {} for phase in document.phases]
    known += [resource.undo for resource in document.resources if resource.kind == "pull_request"]
    for facts in known:
        if facts.get("pr_number") == document.pr_number and (url := _web_address(_text(facts, "url") or "")):
            return url
    page = _ISSUE_PAGE.fullmatch(_issue_url(document))

    return f"{page[1]}/pull/{document.pr_number}" if page else ""


def _web_address(url: str) -> str:
    return url if url.startswith(("https://", "http://")) and len(url) <= 2000 else ""


def worker(registered: RegisteredWorker, *, state: str, now: datetime) -> JsonObject:
    """Return a worker as the command line, the API and the dashboard show it; *state* is as seen from this machine."""
    return {
        "runner_id": registered.runner_id,
        "host": registered.owner.host,
        "pid": registered.owner.pid,
        "tags": sorted(registered.tags),  # type: ignore[dict-item]  # texts are JSON
        "state": state,
        "busy": registered.busy,
        "places": registered.concurrency,
        "version": registered.version,
        "started_at": registered.started_at,
        "age_seconds": round((now - timestamps.parse(registered.started_at)).total_seconds(), 1),
        "heartbeat_at": registered.heartbeat_at,
        "silent_seconds": round(max(0.0, registered.silent_seconds), 1),
    }


def lock(held: IssueLock, lease: LeaseRow | None, verdict: Verdict) -> JsonObject:
    """Return an issue lock, and whether the owner of its workflow lives."""
    owner = lease.owner if lease is not None else None

    return {
        "repository": held.repository,
        "issue_number": held.issue_number,
        "adw_id": held.adw_id,
        "acquired_at": held.acquired_at,
        "owner": owner.describe() if owner else None,
        "liveness": verdict.value if owner else "none",
        "lease_seconds_left": round(lease.seconds_left, 1) if lease is not None and owner else None,
    }


def owner_name(record: str) -> str | None:
    """Return the owner in *record* as text for people, or None if there is no owner."""
    owner = OwnerRecord.from_text(record) if record else None

    return owner.describe() if owner else None


def known_moment(moment: str) -> str | None:
    """Return *moment*, or None if it is the placeholder for an unknown time."""
    return None if moment == timestamps.UNKNOWN_MOMENT else moment


def _text(data: JsonObject, name: str) -> str | None:
    value = data.get(name)

    return value if isinstance(value, str) else None
