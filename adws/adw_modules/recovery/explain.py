"""
One paragraph on why a workflow is not moving, what will happen next, and what to type.

Pure: decides from the view of the workflow, its lease and its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps, views
from adws.adw_modules.errors import QUOTA_REFUSAL
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import FINAL_RUNS, RunState, full_labels
from adws.adw_modules.queue.workers import NO_MATCH_SECONDS, NO_WORKER, RunnerState, offer_of, state_of
from adws.adw_modules.recovery.evidence import Owners
from adws.adw_modules.recovery.plan import Claim
from adws.adw_modules.timestamps import to_text
from adws.adw_modules.views import PhaseView, WorkflowView

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import BreakerRow
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.interfaces import LeaseRow, RegisteredWorker
    from adws.adw_modules.process.identity import SystemProcesses
    from adws.adw_modules.queue.model import Run
    from adws.app import Home


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What is known about a workflow: the input of an explanation."""

    workflow: WorkflowView
    lease: Claim
    run: Run | None = None  #: the newest one
    is_due: bool = True  #: whether that run is due
    asked: tuple[str, ...] = ()  #: kinds of requests that its owner has not answered
    held: str = ""  #: why its run may not be claimed although it is due
    breaker: BreakerRow | None = None  #: the one that its phase waits for, in its present state


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Why a workflow does not move, and what to do."""

    why: str
    then: str  #: what happens next by itself
    commands: tuple[str, ...] = ()  #: what to type

    def paragraph(self) -> str:
        """Return the explanation as one paragraph."""
        typed = f" Type: {', or '.join(self.commands)}." if self.commands else ""

        return f"{self.why} {self.then}{typed}"


def explain(found: Diagnosis) -> Explanation:
    """Return why the workflow is in its present state, and what comes next."""
    workflow = found.workflow
    adw_id, state = workflow.adw_id, workflow.state
    if workflow.rollback is not None and state != "rolled_back":
        return Explanation(
            why=f"Workflow {adw_id} is being rolled back and is not finished.",
            then="Nothing else is done with it until that is over.",
            commands=(f"adw rollback {adw_id}",),
        )
    if found.lease.is_live:
        return _at_work(found)
    if state == "paused":
        return _paused(workflow)
    if state == "failed":
        return _failed(workflow)
    if state in ("completed", "abandoned", "rolled_back"):
        number, name = workflow.issue_number, workflow.workflow
        again = () if number is None else (f"adw run {number}{f' --workflow {name}' if name else ''}",)
        free = ", and its issue is free for another one" if again else ""
        return Explanation(
            why=f"Workflow {adw_id} is {state.replace('_', ' ')}.",
            then=f"Nothing more happens to it{free}.",
            commands=again,
        )

    return _waiting(found, adw_id, state)


def _at_work(found: Diagnosis) -> Explanation:
    adw_id, phase = found.workflow.adw_id, found.workflow.phase_with("running")
    what = f"{phase.name}, attempt {_attempts(phase)}" if phase else found.workflow.state
    asked = f" It was asked to {' and '.join(found.asked)} and has not answered yet." if found.asked else ""

    return Explanation(
        why=f"Workflow {adw_id} is moving: {found.lease.owner} works on {what}.{asked}",
        then="It goes on by itself.",
        commands=(f"adw logs {adw_id} -f", f"adw events {adw_id} -f"),
    )


def _paused(workflow: WorkflowView) -> Explanation:
    adw_id = workflow.adw_id
    if workflow.waiting_phase:
        return Explanation(
            why=f"Workflow {adw_id} waits for a person to approve {workflow.waiting_phase}.",
            then="Nothing happens until somebody decides.",
            commands=(f"adw approve {adw_id}", f"adw reject {adw_id} -m TEXT"),
        )
    reason, place = workflow.pause_reason or "no reason is recorded", workflow.resume_state or "pending"
    named = "" if workflow.has_definition else " --workflow NAME"

    return Explanation(
        why=_sentence(f"Workflow {adw_id} is paused in {place}: {reason}"),
        then="It keeps its issue and goes on only when it is told to.",
        commands=(f"adw resume {adw_id}{named}", f"adw abandon {adw_id}"),
    )


def _failed(workflow: WorkflowView) -> Explanation:
    phase = workflow.failure
    name = phase.name if phase else workflow.failed_phase
    reason = workflow.terminal_reason or (phase.terminal_reason if phase else None)
    message = phase.last_failure_reason if phase else None
    why = f"Workflow {workflow.adw_id} failed in {name or 'a phase'}" + (f" ({reason})" if reason else "")
    sentences = [_sentence(f"{why}: {message}" if message else why)]
    if phase is not None:
        last = phase.doctor[-1] if phase.doctor else {}
        did = {"skip": "gave its other attempts up", "human": "asks for a person"}.get(str(last.get("decision")))
        if did:
            sentences.append(_sentence(f"The doctor ({last.get('by')}) {did}: {last.get('reason')}"))
        sentences.append(phase.advice)

    return Explanation(
        why=" ".join(filter(None, sentences)),
        then="It keeps its issue and is not retried by itself.",
        commands=_ways_on(workflow, phase, name or ""),
    )


def _ways_on(workflow: WorkflowView, phase: PhaseView | None, name: str) -> tuple[str, ...]:
    """Return the commands that are possible for a failed workflow."""
    adw_id = workflow.adw_id
    if not workflow.has_definition:
        return (f"adw resume {adw_id} --workflow NAME", f"adw abandon {adw_id}")
    is_spent = phase is not None and phase.attempts_used >= phase.max_attempts > 0
    is_out_of_retries = workflow.retry_count >= workflow.max_retries
    grant = " --grant 3" if is_spent or is_out_of_retries else ""
    if "BUDGET" in (workflow.terminal_reason, phase.terminal_reason if phase else None):
        return (f"adw report {adw_id}", f"adw retry {adw_id}{grant} --budget USD", f"adw abandon {adw_id}")
    afresh = () if not name or is_out_of_retries else (f"adw resume {adw_id} --from {name}",)

    return (f"adw logs {adw_id}", f"adw retry {adw_id}{grant}", *afresh, f"adw abandon {adw_id}")


def _waiting(found: Diagnosis, adw_id: str, state: str) -> Explanation:
    run = found.run
    if run is None or run.state in FINAL_RUNS:
        return Explanation(
            why=f"Workflow {adw_id} is {state}, and no run waits for it.",
            then="The next worker, or adw admin recover, queues it again.",
            commands=("adw admin recover", f"adw resume {adw_id}"),
        )
    if run.state is RunState.PENDING:
        return _queued(found, run, adw_id, state)

    return Explanation(
        why=f"Workflow {adw_id} is {state}, but its worker is gone: {found.lease.why_over()}.",
        then="The next worker, or adw admin recover, makes it ready to go on.",
        commands=("adw admin recover", f"adw resume {adw_id}"),
    )


def _queued(found: Diagnosis, run: Run, adw_id: str, state: str) -> Explanation:
    if found.held:
        return _held(found, run, adw_id, state)
    phase = found.workflow.phase_with("retry_wait")
    if phase is not None and found.breaker is not None:
        return _behind_breaker(found, run, phase, found.breaker)
    if phase is not None and (reason := phase.wait_reason):
        if not phase.retry_at:
            return Explanation(
                why=_sentence(f"Workflow {adw_id} is in {phase.name}, which {reason}"),
                then="It goes on by itself when that is over. Workers make the calls of steps; what is done outside of "
                "adw is reported over HTTP.",
                commands=(f"adw status {adw_id}", "adw queue retries", "adw queue external"),
            )
        return Explanation(
            why=_sentence(f"Workflow {adw_id} waits with {phase.name} until {_moment(phase.retry_at)}: {reason}"),
            then="The wait uses no attempt. A worker, or the command that started it, goes on then.",
            commands=("adw worker", f"adw resume {adw_id}"),
        )
    if phase is not None:
        waits = f"Workflow {adw_id} retries {phase.name} at {_moment(phase.retry_at or '')}"
        failed = f"attempt {_attempts(phase)} failed: {phase.last_failure_reason or ''}"
        return Explanation(
            why=f"{waits} ({failed}).",
            then="A worker, or the command that started it, retries it then.",
            commands=("adw worker", f"adw resume {adw_id}"),
        )
    due = "" if found.is_due else f", not before {_moment(run.not_before)}"
    reason = f" ({run.reason})" if run.reason else ""
    is_refused = run.reason.startswith(QUOTA_REFUSAL)

    return Explanation(
        why=f"Workflow {adw_id} is {state} and waits for a worker{due}{reason}.",
        then="A worker takes it up.",
        commands=("adw quota" if is_refused else "adw worker", f"adw resume {adw_id}"),
    )


def _held(found: Diagnosis, run: Run, adw_id: str, state: str) -> Explanation:
    """Explain a run that is due but may not be claimed: no worker meets its requirements, or a limit is reached."""
    why = f"Workflow {adw_id} is {state} and waits for a worker: {found.held}."
    if not found.held.startswith(NO_WORKER):
        return Explanation(
            why=why,
            then="It goes on when a run that counts there ends, or when the limit is raised in adw.toml.",
            commands=("adw queue runs", "adw config"),
        )
    tags = "".join(f" --tag {tag}" for tag in sorted(run.demands.tags))
    host = run.demands.host

    return Explanation(
        why=why,
        then=f"A worker{f' on {host}' if host else ''} that has that takes it up; without one for "
        f"{NO_MATCH_SECONDS:g} s the workflow is paused.",
        commands=("adw queue workers",) if host else (f"adw worker{tags}",),
    )


def _behind_breaker(found: Diagnosis, run: Run, phase: PhaseView, breaker: BreakerRow) -> Explanation:
    adw_id = run.adw_id
    if breaker.state == "closed":
        return Explanation(
            why=f"Workflow {adw_id} waited with {phase.name} for {breaker.name}, whose breaker is closed again.",
            then="A worker takes it up."
            if found.is_due
            else f"It goes on by itself at {_moment(run.not_before)} at the latest.",
            commands=(f"adw resume {adw_id}", "adw worker"),
        )
    until = _moment(phase.retry_at or "")
    trial = f"at {_moment(breaker.reopens_at)}" if breaker.state == "open" and breaker.reopens_at else "now"

    return Explanation(
        why=_sentence(f"Workflow {adw_id} waits with {phase.name} until {until}: {phase.wait_reason}"),
        then=f"Its circuit breaker lets a trial through {trial}. The wait uses no attempt.",
        commands=(f"adw admin breakers reset {breaker.name}", "adw admin breakers", "adw worker"),
    )


def _attempts(phase: PhaseView) -> str:
    return f"{phase.attempts_used}/{phase.max_attempts}"


def _moment(text: str) -> str:
    try:
        return f"{timestamps.parse(text):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return text  # written by another tool: shown as it is


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


# Gathering the facts for an explanation.


def diagnosis_of(home: Home, document: WorkflowDocument, *, now: datetime) -> Diagnosis:
    """Return what is known about the workflow in *document*."""
    adw_id = document.adw_id
    run = next(iter(home.runs.of_workflow(adw_id, limit=1)), None)
    held = why_held(home, [run]).get(run.run_id, "") if run else ""

    return Diagnosis(
        workflow=views.workflow(document),
        lease=claim_of(home.leases.read(adw_id), home.processes),
        run=run,
        is_due=run is None or run.not_before <= to_text(now),
        asked=tuple(request.kind for request in home.requests.open_for(adw_id)),
        held=held,
        breaker=_breaker_of(home, document, now),
    )


def _breaker_of(home: Home, document: WorkflowDocument, now: datetime) -> BreakerRow | None:
    """Return the breaker that a phase waits for, unless it closed before the phase began to wait."""
    services = next((phase.waits_for for phase in document.phases if phase.status == "retry_wait"), {})
    if not services:
        return None
    from adws.adw_modules.circuit_breaker import seen  # noqa: PLC0415 - a third of `adw status`'s start, seldom needed

    rows = [seen(row, now) for row in home.breakers.stored() if row.name in services]

    return next((row for row in rows if row.state != "closed" or row.generation != services[row.name]), None)


def why_held(home: Home, runs: Sequence[Run]) -> dict[int, str]:
    """Return why due runs may not be claimed now, by run; queries nothing if none of them can be held."""
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
    """Return the state of a worker, as seen from this machine."""
    verdict = home.processes.verdict(worker.owner)

    return state_of(worker, verdict=verdict, lease_seconds=home.settings.lease_ttl_seconds)


def claim_of(row: LeaseRow | None, processes: SystemProcesses) -> Claim:
    """Return the lease of a workflow as a claim, with whether its owner lives."""
    return Owners(processes).claim_of_lease(row)
