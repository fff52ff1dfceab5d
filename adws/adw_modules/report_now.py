"""
What a workflow does or waits for now, read from its document as plain JSON and from its run.

Pure. What the document says comes first; where it says nothing, the run waits for its time or for a worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from adws.adw_modules.error_classes import ErrorCategory
from adws.adw_modules.interfaces_reports import Subject, WaitingNow, WaitKind
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.plain_document import definition_in, error_of, last_attempt, number_in, phase_in, text_in
from adws.adw_modules.steps import EXTERNAL
from adws.adw_modules.waiting_rules import QUOTA_WAIT

#: So long after the end of a run its workflow is not looked for: the copy of its document may still follow.
JUST_ENDED = timedelta(minutes=1)
#: How it begins what a run says that finds no room, see `errors.QuotaExceeded`.
_NO_ROOM = "the quota "


class AtWork(NamedTuple):
    """What somebody works on."""

    phase: str = ""  #: "" between two phases
    attempt: int = 0
    started_at: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What is known about a run that waits."""

    since: str
    not_before: str = ""  #: "": at once
    reason: str = ""


def at_work(data: JsonObject) -> AtWork:
    """Return what is under way according to the document *data*."""
    phase = phase_in(data, "running")
    if phase is None:
        return AtWork()

    return AtWork(text_in(phase, "name"), number_in(phase, "attempts_used"), text_in(last_attempt(phase), "started_at"))


def waiting(subject: Subject, data: JsonObject, run: RunFacts, *, now: str) -> WaitingNow:
    """Return what a workflow waits for whose run waits; *now* is a moment as documents have it."""
    phase = phase_in(data, "retry_wait")
    if run.not_before <= now:
        return WaitingNow(subject=subject, kind=WaitKind.WORKER, since=max(run.since, run.not_before), why=run.reason)
    if phase is not None:
        return _phase_waits(subject, data, phase, run)
    kind = WaitKind.QUOTA if run.reason.startswith(_NO_ROOM) else WaitKind.LATER

    return WaitingNow(subject=subject, kind=kind, since=run.since, until=run.not_before, why=run.reason)


def _phase_waits(subject: Subject, data: JsonObject, phase: JsonObject, run: RunFacts) -> WaitingNow:
    name, reason, at = (text_in(phase, key) for key in ("name", "wait_reason", "retry_at"))
    kind = _kind_of(data, phase)
    until = {WaitKind.CALLS: "", WaitKind.EXTERNAL: run.not_before}.get(kind, at or run.not_before)

    return WaitingNow(
        subject=subject,
        kind=kind,
        phase=name,
        since=run.since,
        until=until,
        why=reason or text_in(phase, "last_failure_reason"),
    )


def _kind_of(data: JsonObject, phase: JsonObject) -> WaitKind:
    reason = text_in(phase, "wait_reason")
    if reason and not phase.get("retry_at"):
        is_outside = definition_in(data, text_in(phase, "name")).get("runner") == EXTERNAL
        return WaitKind.EXTERNAL if is_outside else WaitKind.CALLS
    if reason:
        return WaitKind.QUOTA if reason.startswith(QUOTA_WAIT) else WaitKind.BREAKER
    is_limited = error_of(last_attempt(phase)).get("category") == ErrorCategory.RATE_LIMIT.value

    return WaitKind.RATE_LIMIT if is_limited else WaitKind.RETRY


def paused(subject: Subject, data: JsonObject) -> WaitingNow:
    """Return for whom a workflow waits that is paused."""
    phase = phase_in(data, "waiting")
    since = text_in(data, "updated_at")
    if phase is not None:
        name = text_in(phase, "name")
        return WaitingNow(
            subject=subject, kind=WaitKind.APPROVAL, phase=name, since=since, why=f"a person has to look at {name}"
        )

    return WaitingNow(subject=subject, kind=WaitKind.PERSON, since=since, why=text_in(data, "pause_reason"))
