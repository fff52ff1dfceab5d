"""
How the nouns of the house are told by the API.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from adws.adw_modules import delivery_rows, resume_rules, timestamps
from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
from adws.adw_modules.errors import AdwError
from adws.adw_modules.interfaces import LeaseRow, LoadNotice, WorkflowSummary
from adws.adw_modules.interfaces_coordination import Runner
from adws.adw_modules.interfaces_durability import BreakerRow
from adws.adw_modules.interfaces_resources import QuotaStatus
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.run_waiting import state_of
from adws.adw_modules.runs import Run
from adws.adw_modules.trigger import DeliveryRow
from adws.web import models


def line_of(row: WorkflowSummary) -> models.WorkflowLine:
    """Return a workflow of a list."""
    return models.WorkflowLine(
        adw_id=row.adw_id,
        state=row.state,
        repository=row.repository,
        issue_number=row.issue_number,
        title=row.title,
        workflow=row.workflow,
        revision=row.revision,
        owner=name_of(row.owner),
        created_at=known(row.created_at),
        updated_at=known(row.updated_at),
    )


def workflow_of(
    document: WorkflowDocument, notices: Sequence[LoadNotice], lease: LeaseRow | None, verdict: Verdict
) -> models.Workflow:
    """Return all that people ask about one workflow."""
    return models.Workflow(
        adw_id=document.adw_id,
        state=document.current_state,
        repository=document.repository,
        issue_number=document.issue_number,
        title=document.issue.title if document.issue else "",
        workflow=document.workflow.name if document.workflow else None,
        revision=document.revision,
        resume_state=document.resume_state,
        failed_phase=document.failed_phase,
        terminal_reason=document.terminal_reason,
        pause_reason=document.pause_reason,
        waiting_phase=waiting_phase(document),
        retry_count=document.retry_count,
        max_retries=document.max_retries,
        reworks=document.reworks,
        max_reworks=document.max_reworks,
        branch_name=document.branch_name,
        worktree_path=document.worktree_path,
        pr_number=document.pr_number,
        cost_usd=document.cost.total_usd,
        is_cost_estimated=document.cost.is_estimated,
        warnings=document.warnings,
        hints=[dict(hint) for hint in document.hints],
        rollback_blocked_by=document.rollback.blocked_by if document.rollback else None,
        phases=[phase_of(phase) for phase in document.phases],
        owner=owner_of(lease, verdict),
        notices=[f"{notice.path}: {notice.reason}" for notice in notices],
        created_at=known(document.created_at),
        updated_at=known(document.updated_at),
    )


def waiting_phase(document: WorkflowDocument) -> str | None:
    """Return the phase that waits for a person, None when none does."""
    try:
        return document.phases[resume_rules.waiting_phase(document)].name
    except AdwError:
        return None


def phase_of(phase: PhaseRecord) -> models.Phase:
    """Return a phase with its attempts."""
    return models.Phase(
        name=phase.name,
        state=phase.state,
        status=phase.status,
        round=phase.round,
        attempts_used=phase.attempts_used,
        max_attempts=phase.max_attempts + phase.granted,
        last_failure_reason=phase.last_failure_reason,
        terminal_reason=phase.terminal_reason,
        retry_at=phase.retry_at,
        wait_reason=phase.wait_reason,
        attempts=[attempt_of(attempt) for attempt in phase.attempts],
    )


def attempt_of(attempt: AttemptRecord) -> models.Attempt:
    """Return an attempt; of its error only what people read."""
    error = attempt.error or {}

    return models.Attempt(
        number=attempt.number,
        round=attempt.round,
        status=attempt.status,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        duration=attempt.duration,
        model=attempt.model,
        error=_text(error.get("message")),
        category=_text(error.get("category")),
    )


def owner_of(lease: LeaseRow | None, verdict: Verdict) -> models.Owner | None:
    """Return who works on a workflow."""
    if lease is None or lease.owner is None:
        return None

    return models.Owner(
        host=lease.owner.host,
        pid=lease.owner.pid,
        role=lease.owner.role,
        liveness=verdict.value,
        lease_seconds_left=round(lease.seconds_left, 3),
    )


def run_of(run: Run) -> models.RunLine:
    """Return a run."""
    return models.RunLine(
        run_id=run.run_id,
        adw_id=run.adw_id,
        kind=run.kind,
        state=run.state.value,
        priority=run.priority,
        not_before=run.not_before or None,
        attempts=run.attempts,
        owner=name_of(run.owner),
        reason=run.reason,
        asked_by=run.asked_by,
        created_at=run.created_at,
        updated_at=run.updated_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        demands=run.demands.to_json(),
        labels=sorted(run.labels),
        losses=run.losses,
        parent_run_id=run.parent_run_id,
    )


def runner_of(runner: Runner, *, verdict: Verdict, lease_seconds: float) -> models.RunnerLine:
    """Return a worker; *verdict* is about its process."""
    return models.RunnerLine(
        runner_id=runner.runner_id,
        host=runner.owner.host,
        pid=runner.owner.pid,
        tags=sorted(runner.tags),
        state=state_of(runner, verdict=verdict, lease_seconds=lease_seconds).value,
        busy=runner.busy,
        places=runner.concurrency,
        version=runner.version,
        started_at=runner.started_at,
        heartbeat_at=runner.heartbeat_at,
        silent_seconds=round(max(0.0, runner.silent_seconds), 1),
    )


def quota_of(status: QuotaStatus) -> models.QuotaLine:
    """Return a limit."""
    return models.QuotaLine(
        name=status.name,
        used=status.used if status.is_known else None,
        limit=status.limit,
        unit=status.unit,
        is_exceeded=status.is_exceeded,
        detail=status.detail,
    )


def breaker_of(row: BreakerRow) -> models.BreakerLine:
    """Return a breaker."""
    return models.BreakerLine(
        name=row.name,
        state=row.state,
        failures=row.failures,
        opened_at=row.opened_at,
        reopens_at=row.reopens_at,
        reason=row.reason,
    )


def delivery_of(row: DeliveryRow) -> models.DeliveryLine:
    """Return a delivery."""
    return models.DeliveryLine(**{**asdict(row), "adw_id": delivery_rows.meant_id(row)})


def name_of(owner: str) -> str | None:
    """Return the owner whose record is *owner* in words, None for nobody."""
    record = OwnerRecord.from_text(owner) if owner else None

    return record.describe() if record else None


def known(moment: str) -> str | None:
    """Return *moment*, None for the one that nobody wrote down."""
    return None if moment == timestamps.UNKNOWN_MOMENT else moment


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
