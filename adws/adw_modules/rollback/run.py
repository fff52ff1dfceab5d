"""
Undoing everything a workflow made, so that nothing is left but what was kept on request.

A plan is written first. Each step is recorded before and after it is made, may be made twice, and fails alone: what
cannot be undone now stays on the document's list, blocks every other use of the workflow, and is tried by the next
call. A merged pull request stops it before anything is touched. `rolled_back` is written when the list is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import default_home, document, effects
from adws.adw_modules.document import Draft, Mark
from adws.adw_modules.effects import FORGOTTEN
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    NotOurs,
    OwnershipError,
    PullRequestMerged,
    RollbackBlocked,
    StateError,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.interfaces import Clock, OwnerRecord, Request
from adws.adw_modules.phase import Done, Failed, NoOrders, Outcome, RetryAt
from adws.adw_modules.queue.model import FINAL_RUNS, ROLLBACK, NewRun, Run, RunEnd, RunResult, RunState
from adws.adw_modules.retry_handler import Retry, RetryPolicy, decide
from adws.adw_modules.rollback import plan as rollback_plan
from adws.adw_modules.rollback.plan import RollbackOptions, Step
from adws.adw_modules.rollback.steps import StepResult as steps_Done
from adws.adw_modules.rollback.steps import Undoing, refuse_merged
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.worker.run_executor import TROUBLE_SECONDS, end_of
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.leases import Requests
    from adws.adw_modules.ownership.ownership import OwnedWorkflow, WorkflowOwnership
    from adws.adw_modules.queue.store import RunStore
    from adws.app import Home

__all__ = ["RollbackReport", "Rollbacks", "WorkflowRollback", "mark_workflow_rolled_back"]


logger = logging.getLogger("adw.rollback")

#: How often one step is tried in one call, and the seconds of all its tries together.
STEP_ATTEMPTS = 3
STEP_SECONDS = 60.0
_POLICY = RetryPolicy(max_attempts=STEP_ATTEMPTS, backoff_base_seconds=1.0, backoff_max_seconds=20.0)
#: Not a step's failure: somebody else owns the workflow, or what was done cannot be written down.
_NOT_OURS = (OwnershipError, StateError, DatabaseError)


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackReport:
    """The result of a rollback, or what one would do."""

    adw_id: str
    state: str
    steps: tuple[Step, ...]
    is_dry_run: bool = False
    waits_for: tuple[str, ...] = ()  #: machines that have to undo what is theirs

    @property
    def is_complete(self) -> bool:
        """Whether the workflow is rolled back."""
        return self.state == WorkflowState.ROLLED_BACK.value

    @property
    def blocked_by(self) -> list[str]:
        """What is not undone yet, and why."""
        return rollback_plan.blocked_by(self.steps)

    @property
    def kept(self) -> list[str]:
        """What is there after it: kept on request, for safety, or because it is not ours."""
        return rollback_plan.kept(self.steps)

    @property
    def left(self) -> list[str]:
        """Those of them that a person has to see to."""
        return rollback_plan.left(self.steps)

    def to_json(self) -> JsonObject:
        """Return the report for programs."""
        return {
            "adw_id": self.adw_id,
            "state": self.state,
            "complete": self.is_complete,
            "dry_run": self.is_dry_run,
            "steps": [step.to_json() for step in self.steps],
            "blocked_by": list(self.blocked_by),
            "kept": list(self.kept),
            "left": list(self.left),
            "waits_for_hosts": list(self.waits_for),
        }


class Rollbacks:
    """Rolls workflows back."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def plan(self, adw_id: str, wishes: RollbackOptions) -> RollbackReport:
        """Return what a rollback would do; nothing is changed. Raises PullRequestMerged."""
        document = self._home.load(check_adw_id(adw_id))
        refuse_merged(document, self._home.forge_if_any)
        self._check_forgotten(document, wishes)
        steps = () if document.current_state == WorkflowState.ROLLED_BACK.value else self._plan(document, wishes)

        return RollbackReport(
            adw_id=adw_id,
            state=document.current_state,
            steps=steps or rollback_plan.recorded_steps(document),
            is_dry_run=True,
        )

    def rollback(self, adw_id: str, wishes: RollbackOptions) -> RollbackReport:
        """
        Undo what the workflow made and return the result; of one that is rolled back already, what was left.

        Raises WorkflowBusy while somebody works on it, PullRequestMerged when there is nothing to undo any more.
        """
        with self._home.ownership.own(check_adw_id(adw_id), needs_issue=False) as owned:
            report = self._made(owned, wishes)
        self._hand_on(report, wishes)

        return report

    def _hand_on(self, report: RollbackReport, wishes: RollbackOptions) -> None:
        """Queue the rest for the machine that it is on; one after the other, when there are several."""
        if not report.waits_for or not self._home.settings.is_shared:
            return
        demands = Requirements(host=report.waits_for[0])
        self._home.runs.enqueue(
            NewRun(adw_id=report.adw_id, kind=ROLLBACK, payload=payload_of(wishes), asked_by=wishes.by, demands=demands)
        )

    def work(
        self, run: Run, wishes: RollbackOptions, end: Callable[[RollbackReport], RunEnd]
    ) -> tuple[RollbackReport, Run]:
        """Do the same for a run that we have claimed, and end it as *end* says; return the report and the run."""
        with self._home.ownership.own(run.adw_id, run=run, needs_issue=False) as owned:
            report = self._made(owned, wishes)

            return report, owned.end_run(owned.run or run, end(report))

    def _made(self, owned: OwnedWorkflow, wishes: RollbackOptions) -> RollbackReport:
        home = self._home
        with home.lease_renewer.charge(owned, owned.run), home.engine.log_of(owned.lease.adw_id):
            session = WorkSession(home.engine, owned, NoOrders())
            if session.document.current_state == WorkflowState.ROLLED_BACK.value:
                self._stop_work(session, owned.run)
                return _Running(home, owned, session, wishes).undo_left()
            refuse_merged(session.document, home.forge_if_any)
            self._check_forgotten(session.document, wishes)
            self._stop_work(session, owned.run)
            return _Running(home, owned, session, wishes).run(lambda: self._plan(session.document, wishes))

    def _stop_work(self, session: WorkSession, ours: Run | None) -> None:
        """Answer and end what still waits for the workflow: from here on nothing goes on with it, but for our run."""
        adw_id = session.document.adw_id
        for request in self._home.requests.open_for(adw_id):
            self._home.requests.handled(request.request_id, "the workflow is rolled back")
        for run in self._home.runs.of_workflow(adw_id):
            if run.state not in FINAL_RUNS and (ours is None or run.run_id != ours.run_id):
                self._home.runs.ask_to_stop(run.run_id, reason="the workflow is rolled back")

    def _plan(self, document: WorkflowDocument, wishes: RollbackOptions) -> tuple[Step, ...]:
        home, git = self._home, self._home.git_if_any
        root = git.root if git is not None else None
        names = rollback_plan.external_names(document.adw_id) if root else ()
        external = [str(root / name) for name in names if root and (root / name).exists()]

        return rollback_plan.plan_rollback(
            document, wishes=wishes, external=external, has_forge=home.forge_if_any is not None, host=home.host
        )

    def _check_forgotten(self, document: WorkflowDocument, wishes: RollbackOptions) -> None:
        """Raise UsageError for a machine that cannot be given up: this one, or one that has nothing of the workflow."""
        hosts = {step.host for step in self._plan(document, replace(wishes, forget_hosts=()))} - {""}
        for host in wishes.forget_hosts:
            if host == self._home.host:
                raise UsageError(f"this is {host}: what is here is undone here, and not given up")
            if host not in hosts:
                known = ", ".join(sorted(hosts)) or "no machine"
                raise UsageError(f"workflow {document.adw_id} has nothing on {host}: it has something on {known}")


class _Running:
    """One rollback while it is made."""

    def __init__(self, home: Home, owned: OwnedWorkflow, session: WorkSession, wishes: RollbackOptions) -> None:
        self._home = home
        self._owned = owned
        self._session = session
        self._wishes = wishes
        self._undoing = Undoing(home, session, wishes)
        self._steps: tuple[Step, ...] = ()

    def run(self, plan: Callable[[], tuple[Step, ...]]) -> RollbackReport:
        with suppress(StateError):  # without a definition nobody can say what an open attempt means
            self._session.settle()
        self._home.workspace.observe(self._session)
        self._steps = plan()
        self._session.change(self._begin)
        for step in self._steps:
            if step.kind not in {"lock", "state"} and not step.is_over:
                self._make(step)
        if all(step.is_over for step in self._steps if step.kind not in {"lock", "state"}):
            self._home.quotas.release(self._session.document.adw_id)
            self._session.change(self._end)

        waits_for = rollback_plan.hosts_waited_for(self._steps, host=self._home.host)
        is_over = self._session.document.current_state == WorkflowState.ROLLED_BACK.value

        return replace(_report(self._session.document, self._steps), waits_for=() if is_over else waits_for)

    def undo_left(self) -> RollbackReport:
        """Try again to undo what a finished rollback left: it may be gone by now, or free to be removed."""
        self._steps = rollback_plan.recorded_steps(self._session.document)
        for step in [step for step in self._steps if step.status == "left"]:
            try:
                self._make(step)
            finally:
                now = next(one for one in self._steps if one.key == step.key)
                if not now.is_over:
                    self._store(replace(now, status="left"))

        return _report(self._session.document, self._steps)

    # --- one step ----------------------------------------------------------------------------------------------

    def _make(self, step: Step) -> None:
        # What is on another machine is not done here, whatever else it waits for.
        is_elsewhere = rollback_plan.hosts_waited_for((step,), host=self._home.host)
        waits = "" if is_elsewhere else rollback_plan.waits_for(step, self._steps)
        if waits:
            self._store(replace(step, status="blocked", detail=f"waits for: {waits}"))
            return
        self._store(replace(step, status="doing"))
        self._owned.renew()  # an owner that was taken over undoes nothing
        try:
            came = self._tried(step)
        except NotOurs as exc:
            came = steps_Done(status="left", detail=str(exc))
        except PullRequestMerged as exc:
            self._store(replace(step, status="blocked", detail=str(exc)))
            raise
        except _NOT_OURS:
            raise
        except (AdwError, OSError) as exc:
            # Work that cannot be salvaged keeps its worktree, unless the person has said that it may be lost.
            is_given_up = step.kind == "salvage" and self._wishes.force
            self._store(replace(step, status="left" if is_given_up else "blocked", detail=str(exc)))
            return
        self._store(replace(step, status=came.status, detail=came.detail, facts={**step.facts, **(came.facts or {})}))

    def _tried(self, step: Step) -> steps_Done:
        clock, attempts = self._home.clock, 0
        deadline = clock.now() + timedelta(seconds=STEP_SECONDS)
        while True:
            attempts += 1
            try:
                return self._undoing.make(step)
            except (NotOurs, PullRequestMerged, RollbackBlocked, *_NOT_OURS):
                raise
            except (AdwError, OSError) as exc:
                decision = decide(
                    describe(exc, "rollback"),
                    attempts_used=attempts,
                    max_attempts=STEP_ATTEMPTS,
                    policy=_POLICY,
                    now=clock.now(),
                    deadline=deadline,
                    random=clock.random(),
                )
                if not isinstance(decision, Retry):
                    raise
            clock.sleep(decision.delay_seconds)

    # --- writing it down ---------------------------------------------------------------------------------------

    def _store(self, step: Step) -> None:
        self._steps = tuple(step if other.key == step.key else other for other in self._steps)
        self._session.change(lambda draft: self._write(draft, step))

    def _write(self, draft: Draft, step: Step) -> None:
        self._write_record(draft)
        if step.status == "doing":
            return
        data: JsonObject = {"step": step.key, "kind": step.kind, "what": step.what, "detail": step.detail}
        draft.add_event("rollback_step", data={**data, "status": step.status})
        _settle_effects(draft, step)

    def _write_record(self, draft: Draft) -> None:
        record = draft.document.rollback
        if record is not None:
            draft.document.rollback = record.model_copy(
                update={
                    "steps": [step.to_json() for step in self._steps],
                    "blocked_by": rollback_plan.blocked_by(self._steps),
                }
            )

    def _begin(self, draft: Draft) -> None:
        is_new = draft.document.rollback is None
        draft.machine.begin_rollback()
        draft.document.begin_rollback()
        record = draft.document.rollback
        if record is not None and (is_new or not record.started_at):
            draft.document.rollback = record.model_copy(
                update={"reason": self._wishes.reason, "started_at": draft.text}
            )
            steps: JsonObject = {"steps": [step.what for step in self._steps]}
            draft.add_event("rollback_begun", data={"reason": self._wishes.reason, **steps})
        document.mark(draft, self._wishes.mark)
        self._write_record(draft)
        self._tell_forgotten(draft)
        for step in self._steps:
            _settle_effects(draft, step)  # of those that are kept on request
        if draft.machine.current_state in ACTIVE_STATES:
            draft.document.terminal_reason = "ROLLED_BACK"
            draft.move(WorkflowState.ABANDONED, {"reason": self._wishes.reason})

    def _tell_forgotten(self, draft: Draft) -> None:
        """Add an event for each machine that is given up with this: who, why, and what is left there."""
        known = {entry.key for entry in effects.open_effects(draft.document)}
        for host in dict.fromkeys(self._wishes.forget_hosts):
            steps = [step for step in self._steps if step.host == host and step.status == FORGOTTEN]
            is_news = not any({*step.effects} - known for step in steps)
            if steps and is_news:
                who: JsonObject = {"host": host, "by": self._wishes.by, "reason": self._wishes.reason}
                draft.add_event("host_forgotten", data={**who, "left": [step.what for step in steps]})

    def _end(self, draft: Draft) -> None:
        """Free the issue and mark the workflow rolled back in one write: neither is true without the other."""
        done = {"lock": "freed by the write that ended the workflow", "state": ""}
        self._steps = tuple(
            replace(step, status="done", detail=done[step.kind]) if step.kind in done and not step.is_over else step
            for step in self._steps
        )
        self._write_record(draft)
        draft.document.assign(worktree_path=None, backend_port=None, frontend_port=None)
        mark_rolled_back(draft, reason=self._wishes.reason, kept=rollback_plan.kept(self._steps))


def _settle_effects(draft: Draft, step: Step) -> None:
    if not step.is_over:
        return
    known = {entry.key: entry.outcome for entry in effects.effects(draft.document)}
    outcome = rollback_plan.outcome_of(step)
    for key in step.effects:
        is_left = known.get(key) == "kept" and outcome in {"undone", "gone"}
        if known.get(key) in effects.OPEN_OUTCOMES or is_left:
            effects.settle(draft, key, outcome, _why(step, outcome, draft.text))


def _why(step: Step, outcome: str, at: str) -> JsonObject | None:
    """Return the ledger entry of an effect that is not undone; its own facts stay, so that it can be found."""
    if outcome == FORGOTTEN:
        return {"forgotten": step.detail, "forgotten_at": at}

    return {"reason": step.detail} if outcome == "kept" else None


def payload_of(wishes: RollbackOptions) -> JsonObject:
    """Return what a run needs to know to roll back as it was asked for."""
    payload: JsonObject = {
        "reason": wishes.reason,
        "keep_branch": wishes.keep_branch,
        "force": wishes.force,
        "forget_hosts": list(wishes.forget_hosts),
        "by": wishes.by,
    }

    return payload if wishes.mark is None else {**payload, "mark": wishes.mark.to_json()}


def mark_rolled_back(draft: Draft, *, reason: str, kept: list[str]) -> None:
    """Move the workflow to ROLLED_BACK, and tell what is left of it."""
    draft.move(WorkflowState.ROLLED_BACK, {"reason": reason})
    draft.add_event("rolled_back", data={"reason": reason, "kept": list(kept)})


def _report(document: WorkflowDocument, steps: tuple[Step, ...]) -> RollbackReport:
    return RollbackReport(adw_id=document.adw_id, state=document.current_state, steps=steps)


# --- for scripts -----------------------------------------------------------------------------------------------


class WorkflowRollback:
    """Rolls one workflow back, for library users, in the home that is open unless another is given."""

    def __init__(self, adw_id: str, logger: logging.Logger | None = None, *, home: Home | None = None) -> None:
        self.adw_id = check_adw_id(adw_id)
        self.logger = logger
        self._home = home or default_home.get()

    def rollback(self, reason: str, *, keep_branch: bool = False, force: bool = False) -> RollbackReport:
        """Undo everything; raise WorkflowBusy or PullRequestMerged. What is blocked is in the report."""
        if not reason.strip():
            raise UsageError("say why the workflow is rolled back: the reason must not be empty")
        wishes = RollbackOptions(reason=reason, keep_branch=keep_branch, force=force)
        report = Rollbacks(self._home).rollback(self.adw_id, wishes)
        if self.logger is not None:
            said = {"action": "rollback", "workflow": self.adw_id, "state": report.state, "blocked": report.blocked_by}
            self.logger.info("Rollback ended", extra=said)

        return report


def mark_workflow_rolled_back(adw_id: str, error_message: str = "", *, home: Home | None = None) -> RollbackReport:
    """
    Mark a workflow rolled back, in its document and in the database, with *error_message* as the reason.

    There is no mark before the rollback is finished: what is still to be undone is undone first, and blocks the mark
    when it cannot be.
    """
    return WorkflowRollback(adw_id, logger, home=home).rollback(error_message or "marked as rolled back")


# Rollbacks that a worker makes: queued as runs like all other work, so that the requester need not wait.
#
# A workflow has one unfinished run. A waiting one gives way to the rollback; the owner of a running one is asked to
# stop, and the rollback is queued when the workflow is free.


#: Seconds between two checks whether the owner has released it.
LOOK_SECONDS = 0.2
#: How often a worker takes up a rollback that is blocked, and at most how many seconds apart.
MAX_ROLLBACKS = 10
MAX_BLOCKED_SECONDS = 3600.0


class RollbackRuns:
    """Queues rollbacks, and makes those that a worker has claimed."""

    def __init__(
        self, rollbacks: Rollbacks, *, ownership: WorkflowOwnership, runs: RunStore, requests: Requests, clock: Clock
    ) -> None:
        self._rollbacks = rollbacks
        self._ownership = ownership
        self._runs = runs
        self._requests = requests
        self._clock = clock

    def queue(self, adw_id: str, wishes: RollbackOptions, *, by: str = "", wait_seconds: float = 30.0) -> Run:
        """Return the durable run that will roll the workflow back; raise WorkflowBusy when its owner stays at it."""
        self._ownership.migrate(adw_id)  # a run is of a workflow that the database knows
        payload = payload_of(wishes)
        until = self._clock.monotonic() + wait_seconds
        asked: Request | None = None
        while True:
            run = self._runs.enqueue(NewRun(adw_id=adw_id, kind=ROLLBACK, payload=payload, asked_by=by))
            if run.kind == ROLLBACK and (run.payload == payload or run.state is not RunState.PENDING):
                return run
            if run.state is RunState.PENDING:
                self._runs.ask_to_stop(run.run_id, reason="the workflow is to be rolled back")
                continue
            if asked is None:
                asked = self._requests.ask(adw_id, "rollback", payload=payload, asked_by=by)
            if self._clock.monotonic() >= until:
                owner = OwnerRecord.from_text(run.owner)
                raise WorkflowBusy(adw_id, owner.describe() if owner else "a worker")
            self._clock.sleep(LOOK_SECONDS)

    def work(self, run: Run) -> RunResult:
        """
        Make the rollback of a claimed run; what cannot be undone now is retried a few times.

        Raises what `rollback` raises. Implements `JobHandler`.
        """
        now = self._clock.now()
        report, ended = self._rollbacks.work(run, wishes_of(run), lambda report: _end_of(run, report, now=now))

        return RunResult(run=ended, outcome=after_rollback(run, report, now=now), message=ended.reason)

    def give_up(self, run: Run, why: str) -> None:
        """Leave it at that: the run itself says why, and the document what is left to undo."""


def _end_of(run: Run, report: RollbackReport, *, now: datetime) -> RunEnd:
    """Return what becomes of the run: what is on another machine waits for a worker there, and for nobody else."""
    if report.waits_for:
        where = report.waits_for[0]
        demands = replace(run.demands, host=where)
        return RunEnd(state=RunState.PENDING, reason=f"the rest is on {where}", demands=demands)

    return end_of(run, after_rollback(run, report, now=now))


def after_rollback(run: Run, report: RollbackReport, *, now: datetime) -> Outcome:
    """Return what comes after the rollback that *run* was for."""
    if report.is_complete:
        return Done(state=report.state)
    left = "; ".join(report.blocked_by)
    if run.attempts < MAX_ROLLBACKS:
        seconds = min(MAX_BLOCKED_SECONDS, TROUBLE_SECONDS * 2.0 ** min(max(run.attempts - 1, 0), 16))
        return RetryAt(phase="the rollback", at=now + timedelta(seconds=seconds), reason=left)

    return Failed(phase="the rollback", reason="BLOCKED", message=f"{left}; adw rollback {run.adw_id} goes on with it")


def wishes_of(run: Run) -> RollbackOptions:
    """Return what the requester of a rollback asked for."""
    hosts = run.payload.get("forget_hosts")
    reason = str(run.payload.get("reason") or "") or f"rolled back by {run.asked_by or 'a worker'}"

    return RollbackOptions(
        reason=reason,
        keep_branch=run.payload.get("keep_branch") is True,
        force=run.payload.get("force") is True,
        forget_hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
        by=str(run.payload.get("by") or run.asked_by),
        mark=Mark.from_json(run.payload.get("mark")),
    )


# Rolling back a workflow that somebody may be working on.
#
# While a lease is live only its owner writes: the owner is asked to stop, and the workflow is rolled back when it is
# free. A request that the owner never saw is answered by the rollback itself.


class RollingBack:
    """Asks a live owner to stop, then rolls back."""

    def __init__(self, rollbacks: Rollbacks, *, requests: Requests, clock: Clock) -> None:
        self._rollbacks = rollbacks
        self._requests = requests
        self._clock = clock

    def roll_back(
        self,
        adw_id: str,
        wishes: RollbackOptions,
        *,
        by: str = "",
        wait_seconds: float = 30.0,
        say: Callable[[str], None] = lambda _line: None,
    ) -> RollbackReport:
        """Roll the workflow back; raise WorkflowBusy when it is not released in time: the request is kept."""
        until = self._clock.monotonic() + wait_seconds
        asked: Request | None = None
        while True:
            try:
                return self._rollbacks.rollback(adw_id, wishes)
            except WorkflowBusy as exc:
                if asked is None:
                    payload: JsonObject = {"reason": wishes.reason, "is_urgent": wishes.force}
                    asked = self._requests.ask(adw_id, "rollback", payload=payload, asked_by=by)
                    say(f"asked {exc.owner} to stop")
                if self._clock.monotonic() >= until:
                    raise
            self._clock.sleep(LOOK_SECONDS)
