"""
Waiting for others: for an outside party that is out of order, for a quota that is used up, and for work that others do.

Pure. None of them uses an attempt. How often in a row a quota is waited for is limited by `retry_decision.MAX_PARKS`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.attempt_report import add_cost, said_by, without_traceback
from adws.adw_modules.attempt_rules import Trouble, duration
from adws.adw_modules.interfaces_engine import Wait
from adws.adw_modules.outcome import Forked, Outcome, RetryAt, RunReport
from adws.adw_modules.phase_choice import WAITING
from adws.adw_modules.state_table import WorkflowState

if TYPE_CHECKING:
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.phase_choice import Chosen

#: Seconds between two looks at a party, at least: one that says "now" must not be asked without end.
SHORTEST_WAIT_SECONDS = 1.0
#: How it begins what is said of a phase that waits for a quota.
QUOTA_WAIT = "a quota is used up"


def wait_for(draft: Draft, chosen: Chosen, wait: Wait) -> Outcome:
    """Let a phase wait for an outside party before its next attempt; no attempt is used."""
    at = max(wait.at, draft.at + timedelta(seconds=SHORTEST_WAIT_SECONDS))
    record = draft.change_phase(
        chosen.index, status="retry_wait", retry_at=timestamps.to_text(at), wait_reason=wait.reason
    )
    told: JsonObject = {"party": wait.party, "at": record.retry_at or "", "why": wait.reason}
    draft.tell("breaker_waited", chosen.index, data=told)

    return RetryAt(phase=record.name, at=at, reason=wait.reason)


def fork(draft: Draft, chosen: Chosen, forked: Forked) -> Outcome:
    """Let the attempt wait for work that others do; it is not over, and not counted again when it goes on."""
    draft.mark_attempt(chosen.index, status=WAITING, waiting_since=timestamps.to_text(draft.at))
    record = draft.change_phase(chosen.index, status="retry_wait", retry_at=None, wait_reason=forked.reason)
    told: JsonObject = {"until": timestamps.to_text(forked.until), "why": forked.reason, **forked.facts}
    draft.tell("attempt_waits", chosen.index, status=WAITING, data=told)

    return RetryAt(phase=record.name, at=forked.until, reason=forked.reason, is_waiting=True)


def go_on(draft: Draft, chosen: Chosen, *, owner: str, fence: int) -> None:
    """Go on with the attempt that waited."""
    draft.move_on(WorkflowState(chosen.spec.state))
    attempt = draft.phase(chosen.index).attempts[-1]
    waited = attempt.waited_seconds
    if attempt.waiting_since is not None:
        waited += max(0.0, (draft.at - timestamps.parse(attempt.waiting_since)).total_seconds())
    draft.mark_attempt(
        chosen.index, status="running", owner=owner, fence=fence, waiting_since=None, waited_seconds=waited
    )
    draft.change_phase(chosen.index, status="running", wait_reason=None)
    draft.tell("attempt_went_on", chosen.index)


def park(draft: Draft, chosen: Chosen, trouble: Trouble, at: datetime, report: RunReport) -> Outcome:
    """Close an attempt that met a used-up quota, and wait for that; the attempt is taken out of the count."""
    index, record = chosen.index, draft.phase(chosen.index)
    attempt = draft.end_attempt(
        index, "parked", duration=duration(draft, index), error=trouble.error, report=said_by(report)
    )
    add_cost(draft, chosen.spec.name, report)
    why = f"{QUOTA_WAIT}: {trouble.message}"
    parked = draft.change_phase(
        index,
        status="retry_wait",
        attempts_used=max(0, record.attempts_used - 1),
        parks=record.parks + 1,
        retry_at=timestamps.to_text(at),
        wait_reason=why,
    )
    told: JsonObject = {"at": parked.retry_at or "", "why": why, "parks": parked.parks}
    told["error"] = without_traceback(trouble.error)
    draft.tell("attempt_parked", index, status=attempt.status, duration=attempt.duration, data=told)

    return RetryAt(phase=record.name, at=at, reason=why)
