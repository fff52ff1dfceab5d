"""
Why a workflow is not moving, what will happen next, and what to type: one paragraph.

`explain` is pure: it reads a document, its lease, its run and what else `diagnosis_of` has gathered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.circuit_breaker import seen
from adws.adw_modules.engine.transitions import last_attempt, limit
from adws.adw_modules.errors import QUOTA_REFUSAL
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import FINAL_RUNS, NO_DEMANDS, RunState, full_labels
from adws.adw_modules.queue.workers import NO_WORKER, RunnerState, offer_of, state_of
from adws.adw_modules.recovery.plan import Claim
from adws.adw_modules.timestamps import to_text

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import BreakerRow
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.interfaces import LeaseRow, RegisteredWorker
    from adws.adw_modules.process.identity import SystemProcesses
    from adws.adw_modules.queue.model import Run
    from adws.adw_modules.workflow.requirements import Requirements
    from adws.app import Home


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What is known about a workflow."""

    document: WorkflowDocument
    lease: Claim
    run_state: RunState | None = None  #: of its newest run
    run_reason: str = ""
    not_before: str = ""  #: when that run is due
    is_due: bool = True
    asked: tuple[str, ...] = ()  #: kinds of requests that its owner has not answered
    held: str = ""  #: why its run may not be claimed though it is due
    demands: Requirements = NO_DEMANDS  #: of its run
    no_match_seconds: float = 0.0  #: after which a run is given up that no worker can take
    breaker: BreakerRow | None = None  #: that its phase waits for, as it stands now


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The answer."""

    why: str
    then: str  #: what happens next by itself
    commands: tuple[str, ...] = ()  #: what to type

    def paragraph(self) -> str:
        """Return it as one paragraph."""
        typed = f" Type: {', or '.join(self.commands)}." if self.commands else ""

        return f"{self.why} {self.then}{typed}"


def explain(known: Diagnosis) -> Explanation:
    """Return why the workflow stands where it stands."""
    document = known.document
    adw_id, state = document.adw_id, document.current_state
    if document.rollback is not None and state != "rolled_back":
        return Explanation(
            why=f"Workflow {adw_id} is being rolled back and is not finished.",
            then="Nothing else is done with it until that is over.",
            commands=(f"adw rollback {adw_id}",),
        )
    if known.lease.is_live:
        phase = _phase_with(document, "running")
        what = f"{phase.name}, attempt {_attempts(phase)}" if phase else state
        asked = f" It was asked to {' and '.join(known.asked)} and has not answered yet." if known.asked else ""
        return Explanation(
            why=f"Workflow {adw_id} is moving: {known.lease.owner} works on {what}.{asked}",
            then="It goes on by itself.",
            commands=(f"adw logs {adw_id} -f", f"adw events {adw_id} -f"),
        )
    if state == "paused":
        return _paused(document)
    if state == "failed":
        return _failed(document)
    if state in ("completed", "abandoned", "rolled_back"):
        return _over(document)
    if known.run_state is RunState.PENDING:
        return _queued(known)
    if known.run_state is None or known.run_state in FINAL_RUNS:
        return Explanation(
            why=f"Workflow {adw_id} is {state}, and no run waits for it.",
            then="The next worker, or adw recover, queues it again.",
            commands=("adw recover", f"adw resume {adw_id}"),
        )

    return Explanation(
        why=f"Workflow {adw_id} is {state}, but whoever worked on it is gone: {known.lease.why_over()}.",
        then="The next worker, or adw recover, makes it ready to go on.",
        commands=("adw recover", f"adw resume {adw_id}"),
    )


def _paused(document: WorkflowDocument) -> Explanation:
    adw_id, phase = document.adw_id, _phase_with(document, "waiting")
    if phase is not None:
        return Explanation(
            why=f"Workflow {adw_id} waits for a person to look at {phase.name}.",
            then="Nothing happens until somebody decides.",
            commands=(f"adw approve {adw_id}", f"adw reject {adw_id} -m TEXT"),
        )
    reason = document.pause_reason or "no reason is recorded"
    named = "" if _has_definition(document) else " --workflow NAME"

    return Explanation(
        why=_sentence(f"Workflow {adw_id} is paused in {document.resume_state or 'pending'}: {reason}"),
        then="It keeps its issue and goes on only when it is told to.",
        commands=(f"adw resume {adw_id}{named}", f"adw abandon {adw_id}"),
    )


def _failed(document: WorkflowDocument) -> Explanation:
    adw_id, phase = document.adw_id, _phase_with(document, "failed")
    name = phase.name if phase else document.failed_phase or ""
    reason = document.terminal_reason or (phase and phase.terminal_reason)
    message = phase.last_failure_reason if phase else ""
    why = f"Workflow {adw_id} failed in {name or 'a phase'}" + (f" ({reason})" if reason else "")
    why = _sentence(f"{why}: {message}" if message else why)
    if phase is not None:
        attempt = last_attempt(phase)
        error = (attempt.error if attempt else None) or {}
        why = f"{why}{_advisor(phase)} {typed_commands(str(error.get('advice') or ''), adw_id)}".rstrip()

    return Explanation(
        why=why,
        then="It keeps its issue and is not tried again by itself.",
        commands=_ways_on(document, phase, name),
    )


def _advisor(phase: PhaseRecord) -> str:
    """Return what the advisor decided last about a phase that failed, "" when that has nothing to do with it."""
    last = phase.doctor[-1] if phase.doctor else {}
    if last.get("decision") not in ("skip", "human"):
        return ""
    what = "gave its other attempts up" if last["decision"] == "skip" else "asks for a person"

    return " " + _sentence(f"The doctor ({last.get('by')}) {what}: {last.get('reason')}")


def _ways_on(document: WorkflowDocument, phase: PhaseRecord | None, name: str) -> tuple[str, ...]:
    """Return the commands that a failed workflow does not refuse."""
    adw_id = document.adw_id
    if not _has_definition(document):
        return (f"adw resume {adw_id} --workflow NAME", f"adw abandon {adw_id}")
    is_spent = phase is not None and phase.attempts_used >= limit(phase)
    is_out_of_retries = document.retry_count >= document.max_retries
    grant = " --grant 3" if is_spent or is_out_of_retries else ""
    if "BUDGET" in (document.terminal_reason, phase and phase.terminal_reason):
        return (f"adw cost {adw_id}", f"adw retry {adw_id}{grant} --budget USD", f"adw abandon {adw_id}")
    again = f"adw retry {adw_id}{grant}"
    afresh = () if not name or is_out_of_retries else (f"adw resume {adw_id} --from {name}",)

    return (f"adw logs {adw_id}", again, *afresh, f"adw abandon {adw_id}")


def _over(document: WorkflowDocument) -> Explanation:
    name, number = document.workflow_name, document.issue_number
    again = (f"adw run {number}{f' --workflow {name}' if name else ''}",) if number is not None else ()
    free = ", and its issue is free for another one" if again else ""

    return Explanation(
        why=f"Workflow {document.adw_id} is {document.current_state.replace('_', ' ')}.",
        then=f"Nothing more happens to it{free}.",
        commands=again,
    )


def _queued(known: Diagnosis) -> Explanation:
    adw_id, state = known.document.adw_id, known.document.current_state
    if known.held:
        return _held(known)
    phase = _phase_with(known.document, "retry_wait")
    if phase is not None and known.breaker is not None:
        return _behind_breaker(known, phase, known.breaker)
    if phase is not None and phase.wait_reason and not phase.retry_at:
        return Explanation(
            why=_sentence(f"Workflow {adw_id} is in {phase.name}, which {phase.wait_reason}"),
            then="It goes on by itself when that is over. Workers make the calls of steps; what is done outside of "
            "adw is reported over HTTP.",
            commands=(f"adw executions {adw_id}", "adw retries", "adw external"),
        )
    if phase is not None and phase.wait_reason:
        until = _moment(phase.retry_at)
        return Explanation(
            why=_sentence(f"Workflow {adw_id} waits with {phase.name} until {until}: {phase.wait_reason}"),
            then="No attempt is used by that. Whoever waits for that moment goes on then: a worker, or the command "
            "that was started for it.",
            commands=("adw worker", f"adw resume {adw_id}"),
        )
    if phase is not None:
        failed = f"attempt {_attempts(phase)} failed: {phase.last_failure_reason or ''}"
        return Explanation(
            why=f"Workflow {adw_id} waits to try {phase.name} again at {_moment(phase.retry_at)} ({failed}).",
            then="Whoever waits for that does it then: a worker, or the command that was started for it.",
            commands=("adw worker", f"adw resume {adw_id}"),
        )
    due = "" if known.is_due else f", not before {_moment(known.not_before)}"
    reason = f" ({known.run_reason})" if known.run_reason else ""
    is_refused = known.run_reason.startswith(QUOTA_REFUSAL)

    return Explanation(
        why=f"Workflow {adw_id} is {state} and waits for a worker{due}{reason}.",
        then="A worker takes it up.",
        commands=("adw quota" if is_refused else "adw worker", f"adw resume {adw_id}"),
    )


def _held(known: Diagnosis) -> Explanation:
    """Explain a run that is due and may not be claimed: no worker meets its demands, or a limit is reached."""
    document = known.document
    why = f"Workflow {document.adw_id} is {document.current_state} and waits for a worker: {known.held}."
    if not known.held.startswith(NO_WORKER):
        return Explanation(
            why=why,
            then="It goes on when a run that counts there ends, or when the limit is raised in adw.toml.",
            commands=("adw runs", "adw config"),
        )
    tags = "".join(f" --tag {tag}" for tag in sorted(known.demands.tags))
    host = known.demands.host

    return Explanation(
        why=why,
        then=f"A worker{f' on {host}' if host else ''} that has that takes it up; without one for "
        f"{known.no_match_seconds:g} s (runs.no_match_seconds) the workflow is paused.",
        commands=("adw runners",) if host else (f"adw worker{tags}",),
    )


def _behind_breaker(known: Diagnosis, phase: PhaseRecord, breaker: BreakerRow) -> Explanation:
    adw_id = known.document.adw_id
    if breaker.state == "closed":
        later = f"It goes on by itself at {_moment(known.not_before)} at the latest."
        return Explanation(
            why=f"Workflow {adw_id} waited with {phase.name} for {breaker.name}, whose breaker is closed again.",
            then="A worker takes it up." if known.is_due else later,
            commands=(f"adw resume {adw_id}", "adw worker"),
        )
    until, reason = _moment(phase.retry_at), phase.wait_reason or ""
    trial = f"at {_moment(breaker.reopens_at)}" if breaker.state == "open" and breaker.reopens_at else "now"

    return Explanation(
        why=_sentence(f"Workflow {adw_id} waits with {phase.name} until {until}: {reason}"),
        then=f"Its breaker lets a trial through {trial}. No attempt is used by that.",
        commands=(f"adw breakers reset {breaker.name}", "adw breakers", "adw worker"),
    )


def _phase_with(document: WorkflowDocument, status: str) -> PhaseRecord | None:
    return next((record for record in document.phases if record.status == status), None)


def _has_definition(document: WorkflowDocument) -> bool:
    """Say whether a definition is frozen in it; documents of older versions have none."""
    return document.workflow is not None and bool(document.workflow.phases)


def typed_commands(advice: str, adw_id: str) -> str:
    """Return *advice* with its commands as they can be typed: with the id of the workflow."""
    return re.sub(r"(?<=adw )(\w+) ID\b", rf"\1 {adw_id}", advice)


def _attempts(phase: PhaseRecord) -> str:
    return f"{phase.attempts_used}/{limit(phase)}"


def _moment(text: str | None) -> str:
    try:
        return f"{timestamps.parse(text or ''):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return text or ""  # written by another tool: show what it says


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- gathering what is known -----------------------------------------------------------------------------------


def diagnosis_of(home: Home, document: WorkflowDocument, *, now: datetime) -> Diagnosis:
    """Return what is known about the workflow of *document*."""
    adw_id = document.adw_id
    run = next(iter(home.runs.of_workflow(adw_id, limit=1)), None)
    held = why_held(home, [run]).get(run.run_id, "") if run else ""

    return Diagnosis(
        document=document,
        lease=claim_of(home.leases.read(adw_id), home.processes),
        run_state=run.state if run else None,
        run_reason=run.reason if run else "",
        not_before=run.not_before if run else "",
        is_due=run is None or run.not_before <= to_text(now),
        asked=tuple(request.kind for request in home.requests.open_for(adw_id)),
        held=held,
        demands=run.demands if run else NO_DEMANDS,
        no_match_seconds=home.settings.runs_no_match_seconds,
        breaker=_breaker_of(home, document, now),
    )


def _breaker_of(home: Home, document: WorkflowDocument, now: datetime) -> BreakerRow | None:
    """Return the breaker that a phase waits for, unless it was closed already when the phase began to wait."""
    phase = _phase_with(document, "retry_wait")
    if phase is None or not phase.waits_for:
        return None
    rows = [seen(row, now) for row in home.breakers.stored() if row.name in phase.waits_for]

    return next((row for row in rows if row.state != "closed" or row.generation != phase.waits_for[row.name]), None)


def why_held(home: Home, runs: Sequence[Run]) -> dict[int, str]:
    """Return for each run that is due and may not be claimed now why that is; asks nothing when nothing can be held."""
    now, limits = to_text(home.clock.now()), home.settings.run_limits
    due = [run for run in runs if run.state is RunState.PENDING and run.not_before <= now]
    if not any(run.demands.to_text() or (limits and run.labels) for run in due):
        return {}
    online = [worker for worker in home.workers.all() if worker_state(home, worker) is RunnerState.ONLINE]
    full = full_labels((run.labels for run in home.runs.live()), limits) if limits else ()
    offers = [offer_of(worker) for worker in online]
    result = {run.run_id: workers.why_held(run, offers=offers, full=full, limits=limits) for run in due}

    return {run_id: why for run_id, why in result.items() if why}


def worker_state(home: Home, worker: RegisteredWorker) -> RunnerState:
    """Return how a worker stands, seen from here."""
    verdict = home.processes.verdict(worker.owner)

    return state_of(worker, verdict=verdict, lease_seconds=home.settings.lease_ttl_seconds)


def claim_of(row: LeaseRow | None, processes: SystemProcesses) -> Claim:
    """Return who has a workflow, and whether that owner lives."""
    if row is None or row.owner is None:
        return Claim()

    return Claim(owner=row.owner.describe(), verdict=processes.verdict(row.owner), seconds_left=row.seconds_left)
