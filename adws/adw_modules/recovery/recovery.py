"""
Finding runs whose worker is gone, and making them ready to continue.

Evidence comes from documents, leases and runs; `recovery.plan` plans; each workflow is then recovered under its own
lease: the document first, then its run. With documents in the database, document, run, sessions and lease change in one
transaction. With documents in files, the next recovery completes one that was killed in between: it finds a run whose
worker is gone and an attempt that is closed already. Work that changed after the planning is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adws.adw_modules import default_home
from adws.adw_modules.document import Draft, WorkflowDocument
from adws.adw_modules.engine import transitions
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.transitions import AllPassed, TerminalFailure, choose, running_attempt
from adws.adw_modules.errors import AdwError, DatabaseError, WorkflowBusy
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.queue.model import (
    FINAL_RUNS,
    LIVE_RUNS,
    UNCONFIRMED,
    ClaimPolicy,
    NewRun,
    Run,
    RunEnd,
    RunState,
    stop_reason,
)
from adws.adw_modules.recovery.evidence import gather_evidence
from adws.adw_modules.recovery.plan import (
    MAX_LOSSES,
    Evidence,
    Mode,
    Policy,
    Proof,
    RecoveryAction,
    RecoveryResult,
    RecoveryStep,
    mode_of,
    plan_recovery,
)
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.worker.run_executor import PAUSING

if TYPE_CHECKING:
    from adws.adw_modules.db.connection import Session
    from adws.adw_modules.interfaces import OwnerRecord
    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.app import Home


logger = logging.getLogger("adw.recovery")

#: Counts recovered runs, with the labels verdict, mode and action.
METRIC = "adw_runs_recovered_total"
#: Terminal reasons of workflows that recovery fails.
POISON = "POISON_RUN"
INTERRUPTED = "INTERRUPTED"
#: Workflows taken at a time: their leases are taken in one transaction, and held while they are recovered.
BATCH = 64
#: Threads that recover workflows, so that some work while others wait for a disk or a server. With documents in
#: SQLite there is one: it has a single writer, and waiting for it costs more than threads gain.
THREADS = 4
#: If more workflows are recovered at a time, their own logs are left out: opening each is a third of the work. The log
#: of adw and the history of each workflow have all of them.
MOST_LOGGED = 100
#: Steps done under the workflow's lease: all that change its document or its run.
OWNING = frozenset(RecoveryAction) - {
    RecoveryAction.LEAVE,
    RecoveryAction.REPORT,
    RecoveryAction.PROJECT,
    RecoveryAction.FREE_ISSUE,
    RecoveryAction.END_LEFT,
    RecoveryAction.FORGET,
}
#: State of a run after recovery -> the action that was done, if it differs from the plan.
_DONE = {
    RunState.PENDING: RecoveryAction.REQUEUE,
    RunState.FAILED: RecoveryAction.FAIL,
    RunState.DEAD: RecoveryAction.BURY,
    RunState.STOPPED: RecoveryAction.STOP,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowPlan:
    """The plan for one workflow, and its evidence."""

    evidence: Evidence
    steps: tuple[RecoveryStep, ...]

    def find(self, *actions: RecoveryAction) -> RecoveryStep | None:
        """Return the first step that is one of *actions*."""
        return next((step for step in self.steps if step.action in actions), None)

    @property
    def main(self) -> RecoveryStep:
        """The step that decides about the run, or else the first."""
        return self.find(*(OWNING - {RecoveryAction.INTERRUPT})) or self.steps[0]

    @property
    def needs_lease(self) -> bool:
        """Whether a readable document is to be changed, or its run."""
        return bool(self.evidence.state) and not self.evidence.is_errand and self.find(*OWNING) is not None


class Recovery:
    """Plans and applies recovery."""

    def __init__(self, home: Home) -> None:
        """Raises UsageError if the settings name an unknown mode."""
        settings = home.settings
        self._home = home
        self._mode = mode_of(settings.recovery_mode)  #: used if the caller gives none
        self._reported: set[tuple[str, str]] = set()
        self.policy = Policy(  #: from the settings
            threshold_seconds=settings.recovery_threshold_seconds,
            # Allowing a phase more attempts also allows its worker to die as often.
            max_losses=max(MAX_LOSSES, settings.max_attempts),
        )

    def plan(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> tuple[RecoveryStep, ...]:
        """Return the steps that `recover` would do; *every_document* also compares each document with its copy."""
        plans = self.planned(every_document=every_document, mode=mode, policy=policy)

        return tuple(step for plan in plans for step in plan.steps)

    def planned(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> list[WorkflowPlan]:
        """Return the plan of each workflow with its evidence."""
        rows = tuple(gather_evidence(self._home, every_document=every_document))
        now, mode, policy = self._home.clock.now(), mode or self._mode, policy or self.policy

        return [WorkflowPlan(evidence=row, steps=plan_recovery([row], now, mode, policy=policy)) for row in rows]

    def recover(
        self,
        *,
        every_document: bool = False,
        mode: Mode | None = None,
        policy: Policy | None = None,
        is_dry_run: bool = False,
    ) -> RecoveryResult:
        """
        Apply the plan; return the steps that were done, and those that need a person.

        In mode none and in a dry run nothing is changed, and the steps are those that would be done.
        """
        plans = self.planned(every_document=every_document, mode=mode, policy=policy)
        mode = mode or self._mode
        if not is_dry_run and mode is not Mode.NONE:
            return self.apply(plans, mode)
        steps = (step for plan in plans for step in plan.steps if step.action is not RecoveryAction.LEAVE)

        return RecoveryResult(mode=mode, is_dry_run=is_dry_run, steps=tuple(steps))

    def apply(self, plans: Iterable[WorkflowPlan], mode: Mode) -> RecoveryResult:
        """Apply *plans* workflow by workflow and return what was done; work that changed meanwhile is left alone."""
        home = self._home
        wanted = [(plan, [one for one in plan.steps if one.action is not RecoveryAction.LEAVE]) for plan in plans]
        todo = [replace(plan, steps=tuple(steps)) for plan, steps in wanted if steps]
        done: list[RecoveryStep] = []
        runs: list[RecoveryStep] = []
        for plan in todo:
            for step in plan.steps:
                if plan.needs_lease and step.action in OWNING:
                    continue
                result = self._apply_without_lease(step, plan.evidence)
                if result is None:
                    continue
                done.append(result)
                if result.action in OWNING:
                    runs.append(result)
                if result.action is not RecoveryAction.REPORT:
                    _log(result)
        owning = [plan for plan in todo if plan.needs_lease]
        threads = 1 if home.settings.store == "database" and home.settings.database_file is not None else THREADS
        with ExitStack() as stack:
            pool = None
            if 1 < threads < len(owning):
                pool = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="adw-recovery"))
            applied: list[tuple[WorkflowPlan, RecoveryStep | None]] = []
            for first in range(0, len(owning), BATCH):
                batch, has_logs = owning[first : first + BATCH], len(owning) <= MOST_LOGGED
                applied += self._apply_batch(batch, mode, pool, has_logs=has_logs)
        for plan, settled in applied:
            done.extend(step for step in plan.steps if step.action in OWNING)
            _log(plan.main)
            if settled is not None:
                runs.append(settled)
            if plan.main.action is RecoveryAction.STOP:
                # The workflow is paused, so requests to its dead worker are answered.
                document = home.store.load(plan.main.adw_id).document
                for request in home.requests.open_for(plan.main.adw_id):
                    if request.kind in PAUSING:
                        home.requests.handled(request.request_id, f"paused: {document.pause_reason}")

        recovered = RecoveryResult(mode=mode, steps=tuple(done), runs=tuple(runs))
        if recovered.runs:
            home.tally.add({METRIC: {labels: float(amount) for labels, amount in recovered.metrics().items()}})
        home.free_left_behind()  # last: interrupted attempts are closed by now

        return recovered

    # --- without a lease ---------------------------------------------------------------------------------------

    def _apply_without_lease(self, step: RecoveryStep, row: Evidence) -> RecoveryStep | None:
        """Do one step that needs no lease and return it; None if it was not needed, or cannot be done now."""
        home, adw_id = self._home, step.adw_id
        try:
            if step.action in OWNING:
                return self._settle_without_document(step, row)
            if step.action is RecoveryAction.REPORT:
                if (adw_id, step.why) not in self._reported:  # once: recovery runs every minute, and a person does not
                    self._reported.add((adw_id, step.why))
                    facts = {"action": "recovery_report", "workflow": adw_id, "why": step.why}
                    logger.error("Needs a person", extra=facts)
                return step
            if step.action is RecoveryAction.PROJECT:
                is_done = home.settings.store == "files"
                if is_done:
                    home.catch_up(adw_id)
            elif step.action is RecoveryAction.FREE_ISSUE:
                is_done = home.ownership.release_if_finished(adw_id)
            elif step.action is RecoveryAction.FORGET:
                is_done = home.ownership.forget_unwritten(adw_id)
            else:  # end what attempts closed elsewhere left here, without waiting for the present owner
                before = transitions.in_doubt(home.store.load(adw_id).document.phases)
                for _, attempt in before:
                    home.end_process(attempt.process or {})
                with home.ownership.own(adw_id) as owned, home.engine.log_of(adw_id), home.lease_renewer.charge(owned):
                    WorkSession(home.engine, owned, NoOrders()).end_left()
                    is_done = len(transitions.in_doubt(owned.document.phases)) < len(before)
        except WorkflowBusy:
            return None  # its worker came back, or another recovery is doing it
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            _log_failure(adw_id, exc)
            return None

        return step if is_done else None

    def _settle_without_document(self, step: RecoveryStep, row: Evidence) -> RecoveryStep | None:
        """Settle a run without a readable document: that of a delivery, or one whose document is unreadable."""
        run = _unchanged_run(self._home, row.run) if row.run is not None else None
        if run is None or step.after is None:
            return None
        handler = self._home.job_handler(run.kind) if step.after is RunState.FAILED else None
        if handler is not None:
            handler.give_up(run, step.why)
        reason = run.reason if run.state is RunState.STOPPING and run.reason else step.why
        settled = self._home.runs.settle_lost(run, RunEnd(state=step.after, reason=reason))

        return _as_done(step, settled) if settled is not None else None

    def _apply_batch(
        self, plans: Sequence[WorkflowPlan], mode: Mode, pool: ThreadPoolExecutor | None, *, has_logs: bool
    ) -> list[tuple[WorkflowPlan, RecoveryStep | None]]:
        """Apply plans under their leases; return those carried out, each with the step that changed its run."""
        home = self._home
        former: dict[str, tuple[Verdict, int | None]] = {}
        for row in (plan.evidence for plan in plans):
            # From a dead or unproven owner a lease is taken by its fence.
            by_fence = row.lease_row is not None and row.lease.proof not in (Proof.FREE, Proof.OVER)
            former[row.adw_id] = row.lease.verdict, row.lease_row.fence if row.lease_row and by_fence else None
        taken = home.ownership.take_all(former, "recovery")

        def recover_one(plan: WorkflowPlan) -> WorkflowRecovery | None:
            """Recover one workflow; return None if it is no longer needed, or cannot be done now."""
            owned = taken[plan.evidence.adw_id]
            try:
                log = home.engine.log_of(owned.lease.adw_id) if has_logs else nullcontext()
                with home.ownership.entered(owned), log:
                    session = WorkSession(home.engine, owned, NoOrders(), has_log=has_logs)
                    recovery = WorkflowRecovery(home, session, plan, owned, mode=mode)
                    return recovery if recovery.apply() else None
            except WorkflowBusy:
                return None
            except DatabaseError:
                raise  # nothing can be done without it
            except AdwError as exc:
                _log_failure(owned.lease.adw_id, exc)
                return None

        # The others could not be taken: their worker came back, or another recovery is doing it.
        todo = [plan for plan in plans if plan.evidence.adw_id in taken]
        applied: list[WorkflowRecovery] = []

        def give_back(session: Session) -> None:
            for recovery in applied:
                recovery.give_back(session)

        try:
            with ExitStack() as stack:
                for plan in todo:
                    stack.enter_context(home.lease_renewer.charge(taken[plan.evidence.adw_id]))
                applied.extend(filter(None, pool.map(recover_one, todo) if pool else map(recover_one, todo)))
        finally:
            # Also when the database went away in between: releases what it can.
            if applied:
                home.database.transact(give_back)
            for owned in taken.values():
                with suppress(AdwError):
                    owned.give_back()  # those not recovered; their leases also expire

        results = [recovery.result() for recovery in applied]

        return [(plan, settled) for plan, settled in results if plan.steps]


class WorkflowRecovery:
    """Recovers one workflow, under the lease that was taken for it."""

    def __init__(
        self, home: Home, session: WorkSession, plan: WorkflowPlan, owned: OwnedWorkflow, *, mode: Mode
    ) -> None:
        self._home = home
        self._session = session
        self._plan = plan
        self._owned = owned
        self._mode = mode
        self._run = plan.evidence.run if plan.main.after is not None else None  #: the run to change
        # The run of a dead owner cannot have changed since the plan; a later change is detected when it is written.
        if self._run is not None and not (owned.is_takeover and owned.verdict is Verdict.DEAD):
            self._run = _unchanged_run(home, self._run)
        self._end: RunEnd | None = None  #: what the run will be
        self._new_run: NewRun | None = None  #: to be queued, if the workflow has no run
        self._settled: Run | None = None  #: the run after the transaction; None if it had changed before
        self._is_settled = False  #: whether the run changed in the transaction of the document
        self._has_lease = False  #: whether the lease still has to be released

    def apply(self) -> bool:
        """Change the document; return False if nothing is needed any more. `give_back` does the rest."""
        owned = self._owned
        if not self._is_needed():
            if owned.is_takeover:
                owned.save(owned.document)  # records the takeover, so that the workflow can be released
            return False
        ending = self._end_processes()
        is_joint = isinstance(self._home.store, DatabaseStateStore)

        def settle_with_document(session: Session, document: WorkflowDocument) -> None:
            if _is_active(document):  # the lease of a parked one is kept for now
                self._home.leases.release_in(session, owned.lease)
            self._queue(document)
            self._settle_in(session)

        if is_joint:
            owned.with_next_save = settle_with_document
        index = self._open_attempt()
        self._session.change(lambda draft: self._decide(draft, ending))
        self._is_settled = is_joint
        if index is not None and self._run is None:  # else the agent's session was updated with the run
            self._session.tell_agent_ended(index, owned.document.phases[index].attempts[-1].number)
        is_active = _is_active(owned.document)
        if not is_active:
            self._session.rest()  # its worker died before releasing its resources
        if not is_joint:
            self._queue(owned.document)
        self._has_lease = owned.hand_over() and not (is_joint and is_active)

        return True

    def give_back(self, session: Session) -> None:
        """Release the lease if it is still held, and settle the run if it did not change with its document."""
        if self._has_lease:
            self._owned.release_in(session)
        if not self._is_settled:
            self._settle_in(session)

    def result(self) -> tuple[WorkflowPlan, RecoveryStep | None]:
        """Return the plan as carried out, and the step that changed a run, which may differ from the planned one."""
        plan, main = self._plan, self._plan.main
        settled = self._settled
        if settled is None and self._run is not None and self._end is not None:
            # Either taken by force from a live worker, which was then fenced off and requeued the run between our
            # writes of the document and of the run; or somebody else changed it.
            settled = self._home.runs.get(self._run.run_id)
            if settled is not None and settled.state is not self._end.state:
                is_back = settled.state is RunState.PENDING
                settled = self._home.runs.settle_lost(settled, self._end) if is_back else None
        if main.after is None:
            return plan, None
        if settled is None:  # the run has a worker again
            return replace(plan, steps=tuple(step for step in plan.steps if step is not main)), None
        done = _as_done(main, settled)

        return replace(plan, steps=tuple(done if step is main else step for step in plan.steps)), done

    def _is_needed(self) -> bool:
        plan, is_active = self._plan, _is_active(self._owned.document)
        if plan.find(RecoveryAction.END_RUN):
            return self._run is not None and not is_active
        if plan.find(RecoveryAction.INTERRUPT) and self._open_attempt() is not None:
            return True
        if plan.find(RecoveryAction.ENQUEUE):
            newest = self._home.runs.of_workflow(plan.evidence.adw_id, limit=1)
            return is_active and all(run.state in FINAL_RUNS for run in newest)
        if plan.find(RecoveryAction.FAIL) and plan.evidence.run is None:
            return is_active

        return self._run is not None

    def _open_attempt(self) -> int | None:
        phases = self._owned.document.phases
        return next((index for index, record in enumerate(phases) if running_attempt(record) is not None), None)

    def _end_processes(self) -> ProcessEnding:
        """End the processes of the interrupted attempt; raise WorkflowBusy if some cannot be ended."""
        index = self._open_attempt()
        attempt = running_attempt(self._owned.document.phases[index]) if index is not None else None
        if attempt is None or not attempt.process:
            return ProcessEnding(evidence="", is_certain=True)
        ending = self._home.end_process(attempt.process)
        # A stop planned as unconfirmed does not wait for processes to end; everything else does.
        if ending.left and not self._plan.main.why.startswith(UNCONFIRMED):
            what = f"processes that its former owner left and that cannot be ended ({', '.join(ending.left)})"
            raise WorkflowBusy(self._plan.evidence.adw_id, what)

        return ending

    # --- deciding ----------------------------------------------------------------------------------------------

    def _decide(self, draft: Draft, ending: ProcessEnding) -> None:
        """Change the document, and decide how the run ends."""
        index, step = self._open_attempt(), self._plan.main
        if index is not None and draft.document.rollback is None:
            self._interrupt(draft, index, ending)
        is_active = draft.machine.current_state in ACTIVE_STATES and draft.document.rollback is None
        if is_active and step.action in (RecoveryAction.FAIL, RecoveryAction.BURY):
            self._fail(draft, index, step)
        if is_active and step.action is RecoveryAction.STOP:
            transitions.pause(draft, _stop_reason(self._run, step, ending) if self._run else step.why)
        data = {"why": step.why, "mode": self._mode.value, "verdict": str(step.evidence.get("proof") or "")}
        if self._run is None:
            draft.add_event("recovered", data={**data})
            return
        self._end = _end_of_run(self._run, draft, step, ending)
        draft.add_event(
            "run_recovered",
            data={
                **data,
                "run_id": self._run.run_id,
                "parent_run_id": self._run.parent_run_id,
                "from": self._run.state.value,
                "to": self._end.state.value,
                "why": self._end.reason,
                "losses": self._run.losses,
            },
        )

    def _interrupt(self, draft: Draft, index: int, ending: ProcessEnding) -> None:
        attempt, spec = running_attempt(draft.phase(index)), self._session.spec
        why = "the process that worked on it ended without a word"
        if ending.evidence:
            why += f"; {ending.describe()}"
        harvest = None
        if attempt is not None and attempt.agent:
            harvest = self._home.agent_runner.harvest(self._owned.document, spec.phases[index], attempt)
        doubt = "" if ending.is_certain else ending.describe()
        transitions.interrupt(draft, spec, index, why, harvest, doubt=doubt)

    def _fail(self, draft: Draft, index: int | None, step: RecoveryStep) -> None:
        spec, adw_id = self._session.spec, self._plan.evidence.adw_id
        if step.action is RecoveryAction.FAIL and self._plan.evidence.exhausted_phase and index is None:
            transitions.before_attempt(draft, spec)  # applies the rule for exhausted attempts
            return
        if index is None:
            chosen = choose(spec, draft.document.phases)
            if isinstance(chosen, AllPassed):
                return  # all phases are done: the next worker completes the workflow
            index = chosen.index
        failure = TerminalFailure(
            reason=POISON if step.action is RecoveryAction.BURY else INTERRUPTED,
            message=step.why,
            advice=f"read adw logs {adw_id}, then try again: adw retry {adw_id} --grant 1",
        )
        draft.change_phase(index, last_failure_reason=step.why)
        transitions.fail_workflow(draft, spec.phases[index], index, failure)

    # --- the database ------------------------------------------------------------------------------------------

    def _queue(self, document: WorkflowDocument) -> None:
        """Choose the run to enqueue if the workflow has none and should be worked on."""
        if self._plan.find(RecoveryAction.ENQUEUE) is not None and _is_active(document):
            self._new_run = self._home.run_factory.of(document, "resume", asked_by="recovery")

    def _settle_in(self, session: Session) -> None:
        """End the run as decided, or enqueue a new one, in the transaction of *session*."""
        if self._run is not None and self._end is not None:
            self._settled = self._home.runs.settle_in(session, self._run, self._end)
        elif self._new_run is not None:
            self._settled = self._home.runs.enqueue_in(session, self._new_run)


def _is_active(document: WorkflowDocument) -> bool:
    return WorkflowState(document.current_state) in ACTIVE_STATES


def _end_of_run(run: Run, draft: Draft, step: RecoveryStep, ending: ProcessEnding) -> RunEnd:
    """Return how the run ends, after its workflow's document was changed."""
    state = draft.machine.current_state
    if step.action is RecoveryAction.BURY:
        return RunEnd(state=RunState.DEAD, reason=step.why)
    if step.action is RecoveryAction.STOP or run.state is RunState.STOPPING:
        return RunEnd(state=RunState.STOPPED, reason=_stop_reason(run, step, ending))
    if draft.document.rollback is not None and step.action is RecoveryAction.REQUEUE:
        return RunEnd(state=RunState.PENDING, reason=step.why)
    if state is WorkflowState.FAILED and step.action is not RecoveryAction.END_RUN:
        return RunEnd(state=RunState.FAILED, reason=step.why)

    return RunEnd(state=RunState.PENDING if state in ACTIVE_STATES else RunState.STOPPED, reason=step.why)


def _stop_reason(run: Run, step: RecoveryStep, ending: ProcessEnding) -> str:
    wanted = run.reason or step.why
    if ending.is_certain and not step.why.startswith(UNCONFIRMED):
        return wanted

    return stop_reason(wanted, ending.describe() if ending.evidence else step.why.removeprefix(f"{UNCONFIRMED}: "))


def _unchanged_run(home: Home, planned: Run) -> Run | None:
    """Return the current run, or None if it changed since the plan."""
    run = home.runs.get(planned.run_id)
    if run is None or run.state in FINAL_RUNS or (run.token, run.owner) != (planned.token, planned.owner):
        return None
    has_come_back = planned.seconds_left <= 0.0 < run.seconds_left

    return None if has_come_back else run


def _as_done(step: RecoveryStep, settled: Run) -> RecoveryStep:
    """Return *step* with the run's actual result: closing an attempt may have used up the last one."""
    if settled.state is step.after:
        return replace(step, run_id=settled.run_id)
    action, why = _DONE.get(settled.state, step.action), f"{step.why}; its run is {settled.state.value} now"

    return replace(step, run_id=settled.run_id, action=action, after=settled.state, why=why)


def _log(step: RecoveryStep) -> None:
    facts = {"action": "recovered", "workflow": step.adw_id, "step": step.action.value, "why": step.why}
    logger.warning("Recovered", extra={**facts, "run_id": step.run_id})


def _log_failure(adw_id: str, exc: AdwError) -> None:
    logger.warning("Could not recover", extra={"action": "recovery_failed", "workflow": adw_id}, exc_info=exc)


# --- by name ---------------------------------------------------------------------------------------------------


def recover_stale_runs(
    stale_threshold_seconds: float = 300, *, fails_running: bool | None = None, home: Home | None = None
) -> RecoveryResult:
    """
    Recover what is proven abandoned or, without proof, has been silent for the threshold.

    *fails_running* fails the runs that were being executed; by default the settings decide.
    """
    recovery = (home or default_home.get()).recovery
    policy = _policy(recovery, fails_running, threshold_seconds=stale_threshold_seconds)

    return recovery.recover(every_document=True, mode=Mode.STALE, policy=policy)


def recover_all_active_runs(
    *, force: bool = False, fails_running: bool | None = None, home: Home | None = None
) -> RecoveryResult:
    """Recover all active runs without a live owner, whatever their age; *force* includes those with a live owner."""
    recovery = (home or default_home.get()).recovery

    return recovery.recover(
        every_document=True, mode=Mode.ALL, policy=_policy(recovery, fails_running, is_forced=force)
    )


def _policy(recovery: Recovery, fails_running: bool | None, **wanted: Any) -> Policy:
    """Return the policy of the settings, changed as the caller wants."""
    return replace(recovery.policy, **wanted, **({} if fails_running is None else {"fails_running": fails_running}))


class RunQueue:
    """
    The runs of a home, recovered when the queue is opened.

    There is no cache: every call reads the rows, so changes by other processes are seen at once, and pending runs are
    claimed in the order of the requests, also after a restart.
    """

    def __init__(self, recovery_mode: str = "stale", *, home: Home | None = None) -> None:
        """
        Open the queue of *home* (by default the default home) and recover it.

        *recovery_mode*: none, stale or all; another one raises UsageError, which names these.
        """
        mode = mode_of(recovery_mode)
        self._home = home or default_home.get()
        self.recovered: RecoveryResult = self.recover(mode.value)  #: what opening it did

    def recover(self, mode: str = "stale") -> RecoveryResult:
        """Recover again, as when the queue was opened."""
        result = self._home.recovery.recover(every_document=True, mode=mode_of(mode))
        facts = {key: value for key, value in result.to_json().items() if key != "steps"}
        log = logging.getLogger("adw.run_queue")
        if result.mode is Mode.NONE:
            log.info("Run recovery is off", extra={"action": "recovery_off", "would": len(result.steps)})
        elif result.runs:
            log.warning("Runs were recovered", extra={"action": "runs_recovered", **facts})

        return result

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float = 30.0,
        run_id: int | None = None,
        terms: ClaimPolicy | None = None,
    ) -> Run | None:
        """
        Claim and return the next due run (or *run_id*, if it is still pending), or None if no run is due.

        *terms* default to those of the home: what its workers offer, and its limits on runs at a time.
        """
        return self._home.runs.claim(
            owner, ttl_seconds=ttl_seconds, run_id=run_id, terms=self._home.claim_policy if terms is None else terms
        )

    def waiting(self) -> tuple[Run, ...]:
        """Return the pending runs, in the order they are claimed once they are due."""
        waiting = [run for run in self._home.runs.unfinished() if run.state is RunState.PENDING]

        return tuple(sorted(waiting, key=lambda run: (-run.priority, run.run_id)))

    def active(self) -> tuple[Run, ...]:
        """Return the runs that a worker has, oldest first."""
        return tuple(run for run in self._home.runs.live() if run.state in LIVE_RUNS)
