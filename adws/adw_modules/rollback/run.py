"""
Undoing everything a workflow made, except what is kept on request.

The plan is written first. Each step is recorded before and after it is done, may be repeated, and fails separately:
what cannot be undone now stays on the document's list, blocks every other use of the workflow, and is retried by the
next call. A merged pull request stops the rollback before anything is touched. `rolled_back` is written when the list
is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import default_home, document, effects
from adws.adw_modules.document import Draft
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
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.phase import Done, Failed, NoOrders, Outcome, RetryAt
from adws.adw_modules.queue.model import FINAL_RUNS, ROLLBACK, NewRun, Run, RunEnd, RunResult, RunState
from adws.adw_modules.retry_handler import Retry, RetryPolicy, decide
from adws.adw_modules.rollback import plan as rollback_plan
from adws.adw_modules.rollback.plan import LAST_WRITE, RollbackOptions, Step
from adws.adw_modules.rollback.steps import Undo, refuse_merged
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.worker.run_executor import TROUBLE_SECONDS, end_of
from adws.adw_modules.workflow.requirements import Requirements

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.app import Home

__all__ = ["RollbackReport", "Rollbacks", "WorkflowRollback", "mark_workflow_rolled_back"]


logger = logging.getLogger("adw.rollback")

#: How many times a step is tried in one call, and the seconds for all its tries together.
STEP_ATTEMPTS = 3
STEP_SECONDS = 60.0
_POLICY = RetryPolicy(max_attempts=STEP_ATTEMPTS, backoff_base_seconds=1.0, backoff_max_seconds=20.0)
#: Not failures of a step: somebody else owns the workflow, or the result cannot be stored.
_NOT_OF_THE_STEP = (OwnershipError, StateError, DatabaseError)
#: Seconds between two checks whether the owner has released the workflow.
POLL_SECONDS = 0.2
#: How many times a worker tries a blocked rollback, and the most seconds between two tries.
MAX_ROLLBACKS = 10
MAX_BLOCKED_SECONDS = 3600.0
#: Prefixes, before the id, of directories that older tools made beside the repository's files.
EXTERNAL_PREFIXES = ("adw_test_external_", "adw_build_external_")


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackReport:
    """The result of a rollback, or of its dry run."""

    adw_id: str
    state: str
    steps: tuple[Step, ...]
    is_dry_run: bool = False
    waits_for: tuple[str, ...] = ()  #: machines that have to undo their part

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
        """What remains: kept on request, for safety, or because it is not ours."""
        return rollback_plan.kept(self.steps)

    @property
    def left(self) -> list[str]:
        """What remains although nobody asked to keep it, so a person has to handle it."""
        return rollback_plan.kept(step for step in self.steps if step.status == "left")

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
    """Rolls workflows back: at once, or as a run for a worker."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def plan(self, adw_id: str, options: RollbackOptions) -> RollbackReport:
        """Return what a rollback would do; changes nothing. Raises PullRequestMerged."""
        document = self._home.load(check_adw_id(adw_id))
        refuse_merged(document, self._home.forge_if_any)
        self._check_forgotten(document, options)
        is_over = document.current_state == WorkflowState.ROLLED_BACK.value
        steps = rollback_plan.recorded_steps(document) if is_over else self._plan(document, options)

        return RollbackReport(adw_id=adw_id, state=document.current_state, steps=steps, is_dry_run=True)

    def rollback(
        self,
        adw_id: str,
        options: RollbackOptions,
        *,
        wait_seconds: float | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> RollbackReport:
        """
        Undo what the workflow made and return the result; if it is rolled back already, retry what was left.

        Only the owner of a live lease writes. With *wait_seconds* the owner is asked to stop and given that long; the
        request stays. Raises WorkflowBusy while there is a live owner, and PullRequestMerged.
        """
        home, is_asked = self._home, False
        until = home.clock.monotonic() + (wait_seconds or 0.0)
        report: RollbackReport | None = None
        while report is None:
            try:
                with home.ownership.own(check_adw_id(adw_id), needs_issue=False) as owned:
                    report = self._carry_out(owned, options)
            except WorkflowBusy as exc:
                if wait_seconds is None:
                    raise
                if not is_asked:
                    urgency: JsonObject = {"reason": options.reason, "is_urgent": options.force}
                    home.requests.ask(adw_id, "rollback", payload=urgency, asked_by=options.by)
                    say(f"asked {exc.owner} to stop")
                    is_asked = True
                if home.clock.monotonic() >= until:
                    raise
                home.clock.sleep(POLL_SECONDS)
        if report.waits_for and home.settings.is_shared:
            # The rest is queued for its machine; one machine after the other.
            there = Requirements(host=report.waits_for[0])
            payload = options.to_payload()
            home.runs.enqueue(NewRun(adw_id=adw_id, kind=ROLLBACK, payload=payload, asked_by=options.by, demands=there))

        return report

    def queue(self, adw_id: str, options: RollbackOptions, *, by: str = "", wait_seconds: float = 30.0) -> Run:
        """
        Return the durable run that will roll the workflow back; raise WorkflowBusy if its owner does not stop.

        A workflow has one unfinished run. A pending one is replaced by the rollback; the owner of a running one is
        asked to stop, and the rollback is queued when the workflow is free.
        """
        home, is_asked, payload = self._home, False, options.to_payload()
        home.ownership.migrate(adw_id)  # a run needs a workflow that the database knows
        until = home.clock.monotonic() + wait_seconds
        while True:
            run = home.runs.enqueue(NewRun(adw_id=adw_id, kind=ROLLBACK, payload=payload, asked_by=by))
            if run.kind == ROLLBACK and (run.payload == payload or run.state is not RunState.PENDING):
                return run
            if run.state is RunState.PENDING:
                home.runs.ask_to_stop(run.run_id, reason="the workflow is to be rolled back")
                continue
            if not is_asked:
                home.requests.ask(adw_id, "rollback", payload=payload, asked_by=by)
                is_asked = True
            if home.clock.monotonic() >= until:
                owner = OwnerRecord.from_text(run.owner)
                raise WorkflowBusy(adw_id, owner.describe() if owner else "a worker")
            home.clock.sleep(POLL_SECONDS)

    def work(self, run: Run) -> RunResult:
        """
        Execute the claimed run of a rollback; what cannot be undone now is retried a few times.

        Raises what `rollback` raises. Implements `JobHandler`.
        """
        now = self._home.clock.now()
        with self._home.ownership.own(run.adw_id, run=run, needs_issue=False) as owned:
            report = self._carry_out(owned, RollbackOptions.of_run(run))
            blocked = "; ".join(report.blocked_by)
            outcome: Outcome
            if report.is_complete:
                outcome = Done(state=report.state)
            elif run.attempts < MAX_ROLLBACKS:
                seconds = min(MAX_BLOCKED_SECONDS, TROUBLE_SECONDS * 2.0 ** min(max(run.attempts - 1, 0), 16))
                outcome = RetryAt(phase="the rollback", at=now + timedelta(seconds=seconds), reason=blocked)
            else:
                message = f"{blocked}; adw rollback {run.adw_id} continues it"
                outcome = Failed(phase="the rollback", reason="BLOCKED", message=message)
            end = end_of(run, outcome)
            if report.waits_for:  # only a worker on that machine can do the rest
                there = report.waits_for[0]
                demands = replace(run.demands, host=there)
                end = RunEnd(state=RunState.PENDING, reason=f"the rest is on {there}", demands=demands)
            ended = owned.end_run(owned.run or run, end)

        return RunResult(run=ended, outcome=outcome, message=ended.reason)

    def give_up(self, run: Run, why: str) -> None:
        """Do nothing: the run has the reason, and the document has what is left to undo. Implements `JobHandler`."""

    def _carry_out(self, owned: OwnedWorkflow, options: RollbackOptions) -> RollbackReport:
        """
        Undo the plan step by step, and mark the workflow rolled back when everything is undone.

        If it is rolled back already, steps that were left are retried: what they undo may be gone now.
        """
        home = self._home
        with home.lease_renewer.charge(owned, owned.run), home.engine.log_of(owned.lease.adw_id):
            session = WorkSession(home.engine, owned, NoOrders())
            is_again = session.document.current_state == WorkflowState.ROLLED_BACK.value
            if not is_again:
                refuse_merged(session.document, home.forge_if_any)
                self._check_forgotten(session.document, options)
            # Nothing else may use the workflow: requests are answered, its pending runs are stopped.
            why = "the workflow is rolled back"
            for request in home.requests.open_for(owned.lease.adw_id):
                home.requests.handled(request.request_id, why)
            for run in home.runs.of_workflow(owned.lease.adw_id):
                if run.state not in FINAL_RUNS and (owned.run is None or run.run_id != owned.run.run_id):
                    home.runs.ask_to_stop(run.run_id, reason=why)

            if is_again:
                record = _Record(session, rollback_plan.recorded_steps(session.document), options)
                todo = [step for step in record.steps if step.status == "left" or not step.is_over]
            else:
                with suppress(StateError):  # without a definition an open attempt cannot be settled
                    session.settle()
                home.workspace.observe(session)
                record = _Record(session, self._plan(session.document, options), options)
                record.begin()
                todo = [step for step in record.steps if step.kind not in LAST_WRITE and not step.is_over]

            undo = Undo(home, session, options)
            failed = "left" if is_again else "blocked"
            for step in todo:
                # A step of another machine is not done here, whatever else it waits for.
                is_elsewhere = rollback_plan.hosts_waited_for((step,), host=home.host)
                waits = "" if is_elsewhere else rollback_plan.waits_for(step, record.steps)
                if waits:
                    record.put(step.ended(failed, f"waits for: {waits}"))
                    continue
                record.put(replace(step, status="doing"))
                owned.renew()  # an owner whose lease was taken over must undo nothing
                try:
                    done = self._try(undo, step)
                except NotOurs as exc:
                    done = step.ended("left", str(exc))
                except PullRequestMerged as exc:
                    record.put(step.ended(failed, str(exc)))
                    raise
                except _NOT_OF_THE_STEP:
                    raise
                except (AdwError, OSError) as exc:
                    # Work that cannot be salvaged keeps its worktree, unless force says that it may be lost.
                    is_given_up = step.kind == "salvage" and options.force
                    done = step.ended("left" if is_given_up else failed, str(exc))
                record.put(done)

            if not is_again and all(step.is_over for step in record.steps if step.kind not in LAST_WRITE):
                home.quotas.release(session.document.adw_id)
                record.end()
            state = session.document.current_state
            is_over = state == WorkflowState.ROLLED_BACK.value
            waits_for = () if is_over else rollback_plan.hosts_waited_for(record.steps, host=home.host)

            return RollbackReport(adw_id=owned.lease.adw_id, state=state, steps=record.steps, waits_for=waits_for)

    def _try(self, undo: Undo, step: Step) -> Step:
        """Do the step and return it with its result; possibly transient errors are retried a few times."""
        clock, attempts = self._home.clock, 0
        deadline = clock.now() + timedelta(seconds=STEP_SECONDS)
        while True:
            attempts += 1
            try:
                return undo.undo(step)
            except (NotOurs, PullRequestMerged, RollbackBlocked, *_NOT_OF_THE_STEP):
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

    def _plan(self, document: WorkflowDocument, options: RollbackOptions) -> tuple[Step, ...]:
        home, git = self._home, self._home.git_if_any
        places = [git.root / f"{prefix}{document.adw_id}" for prefix in EXTERNAL_PREFIXES] if git is not None else []
        external = [str(place) for place in places if place.exists()]

        return rollback_plan.plan_rollback(
            document, options, external=external, has_forge=home.forge_if_any is not None, host=home.host
        )

    def _check_forgotten(self, document: WorkflowDocument, options: RollbackOptions) -> None:
        """Raise UsageError for a host that cannot be forgotten: this one, or one that has nothing of the workflow."""
        if not options.forget_hosts:
            return
        hosts = {step.host for step in self._plan(document, replace(options, forget_hosts=()))} - {""}
        for host in options.forget_hosts:
            if host == self._home.host:
                raise UsageError(f"this is {host}: what is here is undone here, and cannot be forgotten")
            if host not in hosts:
                known = ", ".join(sorted(hosts)) or "no machine"
                raise UsageError(f"workflow {document.adw_id} has nothing on {host}: it has something on {known}")


class _Record:
    """The current steps of a rollback; every change is one write of the document."""

    def __init__(self, session: WorkSession, steps: tuple[Step, ...], options: RollbackOptions) -> None:
        self.steps = steps
        self._session = session
        self._options = options

    def begin(self) -> None:
        """Store the plan; from here on nothing else is done with the workflow."""
        options = self._options

        def write(draft: Draft) -> None:
            is_new = draft.document.rollback is None
            draft.machine.begin_rollback()
            draft.document.begin_rollback()
            record = draft.document.rollback
            if record is not None and (is_new or not record.started_at):
                draft.document.rollback = record.model_copy(update={"reason": options.reason, "started_at": draft.text})
                planned: JsonObject = {"steps": [step.what for step in self.steps]}
                draft.add_event("rollback_begun", data={"reason": options.reason, **planned})
            document.mark(draft, options.mark)
            self._write_steps(draft)
            known = {entry.key for entry in effects.open_effects(draft.document)}
            for host in dict.fromkeys(options.forget_hosts):
                given_up = [step for step in self.steps if step.host == host and step.status == FORGOTTEN]
                is_news = not any({*step.effects} - known for step in given_up)
                if given_up and is_news:
                    who: JsonObject = {"host": host, "by": options.by, "reason": options.reason}
                    draft.add_event("host_forgotten", data={**who, "left": [step.what for step in given_up]})
            for step in self.steps:
                _settle_effects(draft, step)  # of the steps that are kept on request
            if draft.machine.current_state in ACTIVE_STATES:
                draft.document.terminal_reason = "ROLLED_BACK"
                draft.move(WorkflowState.ABANDONED, {"reason": options.reason})

        self._session.change(write)

    def put(self, step: Step) -> None:
        """Store a step with its status and, once it is finished, the outcome of its effects in the ledger."""
        self.steps = tuple(step if other.key == step.key else other for other in self.steps)

        def write(draft: Draft) -> None:
            self._write_steps(draft)
            if step.status != "doing":
                data: JsonObject = {"step": step.key, "kind": step.kind, "what": step.what, "detail": step.detail}
                draft.add_event("rollback_step", data={**data, "status": step.status})
                _settle_effects(draft, step)

        self._session.change(write)

    def end(self) -> None:
        """Release the issue and mark the workflow rolled back in one write: neither happens without the other."""
        detail = {"lock": "freed by the write that ended the workflow", "state": ""}
        self.steps = tuple(
            step.ended("done", detail[step.kind]) if step.kind in detail and not step.is_over else step
            for step in self.steps
        )
        reason = self._options.reason

        def write(draft: Draft) -> None:
            self._write_steps(draft)
            draft.document.assign(worktree_path=None, backend_port=None, frontend_port=None)
            draft.move(WorkflowState.ROLLED_BACK, {"reason": reason})
            draft.add_event("rolled_back", data={"reason": reason, "kept": list(rollback_plan.kept(self.steps))})

        self._session.change(write)

    def _write_steps(self, draft: Draft) -> None:
        if draft.document.rollback is not None:
            steps = [step.to_json() for step in self.steps]
            blocked = rollback_plan.blocked_by(self.steps)
            draft.document.rollback = draft.document.rollback.model_copy(update={"steps": steps, "blocked_by": blocked})


def _settle_effects(draft: Draft, step: Step) -> None:
    """Write the outcome of a finished step's effects into the ledger."""
    if not step.is_over:
        return
    outcome = step.outcome
    facts: JsonObject | None = None  # an effect that is not undone keeps its own facts, so it can be found
    if outcome == FORGOTTEN:
        facts = {"forgotten": step.detail, "forgotten_at": draft.text}
    elif outcome == "kept":
        facts = {"reason": step.detail}
    known = {entry.key: entry.outcome for entry in draft.document.resources}
    for key in step.effects:
        is_left = known.get(key) == "kept" and outcome in {"undone", "gone"}
        if known.get(key) in effects.OPEN_OUTCOMES or is_left:
            effects.settle(draft, key, outcome, facts)


# --- for scripts -----------------------------------------------------------------------------------------------


class WorkflowRollback:
    """Rolls one workflow back, for library users; in the open home unless another is given."""

    def __init__(self, adw_id: str, logger: logging.Logger | None = None, *, home: Home | None = None) -> None:
        self.adw_id = check_adw_id(adw_id)
        self.logger = logger
        self._home = home or default_home.get()

    def rollback(self, reason: str, *, keep_branch: bool = False, force: bool = False) -> RollbackReport:
        """Undo everything; raise WorkflowBusy or PullRequestMerged. The report has what is blocked."""
        if not reason.strip():
            raise UsageError("say why the workflow is rolled back: the reason must not be empty")
        options = RollbackOptions(reason=reason, keep_branch=keep_branch, force=force)
        report = Rollbacks(self._home).rollback(self.adw_id, options)
        if self.logger is not None:
            facts = {"action": "rollback", "workflow": self.adw_id, "state": report.state, "blocked": report.blocked_by}
            self.logger.info("Rollback ended", extra=facts)

        return report


def mark_workflow_rolled_back(adw_id: str, error_message: str = "", *, home: Home | None = None) -> RollbackReport:
    """
    Mark a workflow rolled back, in its document and in the database, with *error_message* as the reason.

    The mark is set only after a complete rollback: whatever is not undone yet is undone first, and prevents the mark if
    that fails.
    """
    return WorkflowRollback(adw_id, logger, home=home).rollback(error_message or "marked as rolled back")
