"""
Finding runs whose worker is gone, and making them ready to continue.

Evidence is gathered from documents, leases and runs; `recovery.plan` makes the plan; each workflow is then recovered
under its own lease: the document first, then its run. Where documents are in the database, document, run, sessions and
lease are one transaction. With documents in files, a recovery killed in between is finished by the next one: it finds a
run whose worker is gone and an attempt that is closed already. What moved on since the plan was made is left alone.
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

#: What is counted, by the labels of the metric: verdict, mode and action.
METRIC = "adw_runs_recovered_total"
#: Terminal reasons of workflows that recovery fails.
POISON = "POISON_RUN"
INTERRUPTED = "INTERRUPTED"
#: Workflows that are taken at a time: their leases are one transaction, and kept while they are worked on.
BATCH = 64
#: Threads that recover workflows: while one waits for a disk or a server, others work. A store in SQLite has one
#: writer at a time, and threads that wait for it cost more than they gain.
THREADS = 4
#: Workflows recovered at a time up to which each has it in its own log, too: opening each log is a third of the work.
#: The log of adw and the history of each workflow have all of them.
MOST_LOGGED = 100
#: Steps that are done under the lease of the workflow: all that change its document or its run.
OWNING = frozenset(RecoveryAction) - {
    RecoveryAction.LEAVE,
    RecoveryAction.REPORT,
    RecoveryAction.PROJECT,
    RecoveryAction.FREE_ISSUE,
    RecoveryAction.END_LEFT,
    RecoveryAction.FORGET,
}
#: State of a run after recovery -> what was done with it, where that is not what was planned.
_DONE = {
    RunState.PENDING: RecoveryAction.REQUEUE,
    RunState.FAILED: RecoveryAction.FAIL,
    RunState.DEAD: RecoveryAction.BURY,
    RunState.STOPPED: RecoveryAction.STOP,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowPlan:
    """What is planned about one workflow, and from which evidence."""

    evidence: Evidence
    steps: tuple[RecoveryStep, ...]

    def find(self, *actions: RecoveryAction) -> RecoveryStep | None:
        """Return the first step that is one of *actions*."""
        return next((step for step in self.steps if step.action in actions), None)

    @property
    def main(self) -> RecoveryStep:
        """The step that says what becomes of the run, else the first."""
        return self.find(*(OWNING - {RecoveryAction.INTERRUPT})) or self.steps[0]

    @property
    def needs_lease(self) -> bool:
        """Whether something is done about a workflow whose document can be read."""
        return bool(self.evidence.state) and not self.evidence.is_errand and self.find(*OWNING) is not None


class Recovery:
    """Plans and applies recovery."""

    def __init__(self, home: Home) -> None:
        """Raises UsageError when the settings name a mode that does not exist."""
        settings = home.settings
        self._home = home
        self._mode = mode_of(settings.recovery_mode)  #: used when the caller names no mode
        self._reported: set[tuple[str, str]] = set()
        self.policy = Policy(  #: as the settings say
            threshold_seconds=settings.recovery_threshold_seconds,
            # Somebody who allows a phase more attempts expects that its worker may die as often.
            max_losses=max(MAX_LOSSES, settings.max_attempts),
        )

    def plan(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> tuple[RecoveryStep, ...]:
        """Return what would be done; *every_document* also compares each document with its copy."""
        plans = self.planned(every_document=every_document, mode=mode, policy=policy)

        return tuple(step for plan in plans for step in plan.steps)

    def planned(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> list[WorkflowPlan]:
        """Return the same with the evidence, each workflow's steps together."""
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
        Do what the plan says, and return the steps that were done, and those that need a person.

        In mode none, and in a dry run, nothing is changed: the steps are those that would be done.
        """
        plans = self.planned(every_document=every_document, mode=mode, policy=policy)
        mode = mode or self._mode
        if not is_dry_run and mode is not Mode.NONE:
            return self.apply(plans, mode)
        steps = (step for plan in plans for step in plan.steps if step.action is not RecoveryAction.LEAVE)

        return RecoveryResult(mode=mode, is_dry_run=is_dry_run, steps=tuple(steps))

    def apply(self, plans: Iterable[WorkflowPlan], mode: Mode) -> RecoveryResult:
        """Do what *plans* say, each workflow for itself, and return what was done; what moved on is left alone."""
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
                # Requests to the worker that died over them are answered: the workflow is parked.
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
        """Return one step that needs no lease as it was done; None when it was not needed, or cannot be done now."""
        home, adw_id = self._home, step.adw_id
        try:
            if step.action in OWNING:
                return self._settle_without_document(step, row)
            if step.action is RecoveryAction.REPORT:
                if (adw_id, step.why) not in self._reported:  # recovery comes every minute, a person does not
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
            else:  # end what attempts left here that were closed elsewhere; their present owner need not be waited for
                before = transitions.in_doubt(home.store.load(adw_id).document.phases)
                for _, attempt in before:
                    home.end_process(attempt.process or {})
                with home.ownership.own(adw_id) as owned, home.engine.log_of(adw_id), home.lease_renewer.charge(owned):
                    WorkSession(home.engine, owned, NoOrders()).end_left()
                    is_done = len(transitions.in_doubt(owned.document.phases)) < len(before)
        except WorkflowBusy:
            return None  # its worker came back, or another recovery is at it
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            _log_failure(adw_id, exc)
            return None

        return step if is_done else None

    def _settle_without_document(self, step: RecoveryStep, row: Evidence) -> RecoveryStep | None:
        """Settle a run that has no document: what a delivery asks for, or one whose document nobody can read."""
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
        """Return the plans as they were carried out under their leases, each with the step that changed its run."""
        home = self._home
        former: dict[str, tuple[Verdict, int | None]] = {}
        for row in (plan.evidence for plan in plans):
            # A lease is taken from an owner that is dead or unproven by its fence.
            by_fence = row.lease_row is not None and row.lease.proof not in (Proof.FREE, Proof.OVER)
            former[row.adw_id] = row.lease.verdict, row.lease_row.fence if row.lease_row and by_fence else None
        taken = home.ownership.take_all(former, "recovery")

        def recover_one(plan: WorkflowPlan) -> WorkflowRecovery | None:
            """Return None when it was not needed any more, or cannot be done now."""
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

        # What could not be taken: its worker came back, or another recovery is at it.
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
            # Also when the database went away in the middle: what was written is released if it can be.
            if applied:
                home.database.transact(give_back)
            for owned in taken.values():
                with suppress(AdwError):
                    owned.give_back()  # what was not recovered; leases end by themselves

        results = [recovery.result() for recovery in applied]

        return [(plan, settled) for plan, settled in results if plan.steps]


class WorkflowRecovery:
    """Recovers one workflow that is ours for the moment."""

    def __init__(
        self, home: Home, session: WorkSession, plan: WorkflowPlan, owned: OwnedWorkflow, *, mode: Mode
    ) -> None:
        self._home = home
        self._session = session
        self._plan = plan
        self._owned = owned
        self._mode = mode
        self._run = plan.evidence.run if plan.main.after is not None else None  #: that is to be changed
        # That of a dead owner nobody has changed since the plan; a later change is detected when it is written.
        if self._run is not None and not (owned.is_takeover and owned.verdict is Verdict.DEAD):
            self._run = _unchanged_run(home, self._run)
        self._end: RunEnd | None = None  #: what it is to become
        self._new_run: NewRun | None = None  #: what is queued for a workflow that has no run
        self._settled: Run | None = None  #: the run as the transaction left it, None when it moved on
        self._is_settled = False  #: whether that was the transaction of the document
        self._has_lease = False  #: whether the lease is still to be released

    def apply(self) -> bool:
        """Change the document; return False when nothing was needed any more. `give_back` does the rest."""
        owned = self._owned
        if not self._is_needed():
            if owned.is_takeover:
                owned.save(owned.document)  # records the takeover, so that the workflow can be released
            return False
        ending = self._end_processes()
        is_joint = isinstance(self._home.store, DatabaseStateStore)

        def settle_with_document(session: Session, document: WorkflowDocument) -> None:
            if _is_active(document):  # the lease of one that is parked is kept for now
                self._home.leases.release_in(session, owned.lease)
            self._queue(document)
            self._settle_in(session)

        if is_joint:
            owned.with_next_save = settle_with_document
        index = self._open_attempt()
        self._session.change(lambda draft: self._decide(draft, ending))
        self._is_settled = is_joint
        if index is not None and self._run is None:  # else the session followed its run
            self._session.tell_agent_ended(index, owned.document.phases[index].attempts[-1].number)
        is_active = _is_active(owned.document)
        if not is_active:
            self._session.rest()  # its worker died before it released them
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
        """Return the plan as it was carried out, and its step that changed a run: that may not be what was planned."""
        plan, main = self._plan, self._plan.main
        settled = self._settled
        if settled is None and self._run is not None and self._end is not None:
            # It was taken by force from a worker that lives, which found itself fenced off and gave the run back
            # between our write of the document and that of the run; else it moved on.
            settled = self._home.runs.get(self._run.run_id)
            if settled is not None and settled.state is not self._end.state:
                is_back = settled.state is RunState.PENDING
                settled = self._home.runs.settle_lost(settled, self._end) if is_back else None
        if main.after is None:
            return plan, None
        if settled is None:  # somebody has the run again
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
        """End what the interrupted attempt left running; raise WorkflowBusy when that cannot be ended."""
        index = self._open_attempt()
        attempt = running_attempt(self._owned.document.phases[index]) if index is not None else None
        if attempt is None or not attempt.process:
            return ProcessEnding(evidence="", is_certain=True)
        ending = self._home.end_process(attempt.process)
        # A stop that is planned as one nobody confirms is over; everything else waits for the end of its processes.
        if ending.left and not self._plan.main.why.startswith(UNCONFIRMED):
            what = f"processes that its former owner left and that cannot be ended ({', '.join(ending.left)})"
            raise WorkflowBusy(self._plan.evidence.adw_id, what)

        return ending

    # --- deciding ----------------------------------------------------------------------------------------------

    def _decide(self, draft: Draft, ending: ProcessEnding) -> None:
        """Change the document, and decide what becomes of the run."""
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
            transitions.before_attempt(draft, spec)  # the rule that fails what has no attempt left
            return
        if index is None:
            chosen = choose(spec, draft.document.phases)
            if isinstance(chosen, AllPassed):
                return  # all of it is done: the worker that claims it next completes it
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
        """Choose the run that is queued for a workflow that has none and should be worked on."""
        if self._plan.find(RecoveryAction.ENQUEUE) is not None and _is_active(document):
            self._new_run = self._home.run_factory.of(document, "resume", asked_by="recovery")

    def _settle_in(self, session: Session) -> None:
        """Do what was decided about the run, or queue a new one, inside the transaction *session*."""
        if self._run is not None and self._end is not None:
            self._settled = self._home.runs.settle_in(session, self._run, self._end)
        elif self._new_run is not None:
            self._settled = self._home.runs.enqueue_in(session, self._new_run)


def _is_active(document: WorkflowDocument) -> bool:
    return WorkflowState(document.current_state) in ACTIVE_STATES


def _end_of_run(run: Run, draft: Draft, step: RecoveryStep, ending: ProcessEnding) -> RunEnd:
    """Return what becomes of the run of a workflow whose document was changed."""
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
    """Return a run as it stands, None when it moved on since the plan was made."""
    run = home.runs.get(planned.run_id)
    if run is None or run.state in FINAL_RUNS or (run.token, run.owner) != (planned.token, planned.owner):
        return None
    has_come_back = planned.seconds_left <= 0.0 < run.seconds_left

    return None if has_come_back else run


def _as_done(step: RecoveryStep, settled: Run) -> RecoveryStep:
    """Return *step* with what became of its run: closing an attempt may have used up the last one."""
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
    Recover what is proven to be left, and what has been silent for the threshold where nothing is proven.

    With *fails_running* runs that were being worked on fail; the settings decide without.
    """
    recovery = (home or default_home.get()).recovery
    policy = _policy(recovery, fails_running, threshold_seconds=stale_threshold_seconds)

    return recovery.recover(every_document=True, mode=Mode.STALE, policy=policy)


def recover_all_active_runs(
    *, force: bool = False, fails_running: bool | None = None, home: Home | None = None
) -> RecoveryResult:
    """Recover everything whose owner is not alive, whatever its age; with *force* also from those that are."""
    recovery = (home or default_home.get()).recovery

    return recovery.recover(
        every_document=True, mode=Mode.ALL, policy=_policy(recovery, fails_running, is_forced=force)
    )


def _policy(recovery: Recovery, fails_running: bool | None, **wanted: Any) -> Policy:
    """Return the policy of the settings with what the caller wants otherwise."""
    return replace(recovery.policy, **wanted, **({} if fails_running is None else {"fails_running": fails_running}))


class RunQueue:
    """
    The runs of a home, recovered when it is opened.

    There is no cache: every question is answered by the rows, so what another process did is seen at once, and waiting
    runs are claimed in the order they were asked for, also after a restart.
    """

    def __init__(self, recovery_mode: str = "stale", *, home: Home | None = None) -> None:
        """
        Open the queue of *home*, of the default home without, and recover it.

        *recovery_mode* is none, stale or all; another one is a UsageError that names these.
        """
        mode = mode_of(recovery_mode)
        self._home = home or default_home.get()
        self.recovered: RecoveryResult = self.recover(mode.value)  #: what was done when it was made

    def recover(self, mode: str = "stale") -> RecoveryResult:
        """Recover again, as when it was made."""
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
        Take the next run that is due (or *run_id*, if it still waits), None when there is none.

        Without *terms* those of the home hold: what its workers offer, and how many runs may be worked on at a time.
        """
        return self._home.runs.claim(
            owner, ttl_seconds=ttl_seconds, run_id=run_id, terms=self._home.claim_policy if terms is None else terms
        )

    def waiting(self) -> tuple[Run, ...]:
        """Return the waiting runs, in the order they are claimed once they are due."""
        waiting = [run for run in self._home.runs.unfinished() if run.state is RunState.PENDING]

        return tuple(sorted(waiting, key=lambda run: (-run.priority, run.run_id)))

    def active(self) -> tuple[Run, ...]:
        """Return what a worker has, oldest first."""
        return tuple(run for run in self._home.runs.live() if run.state in LIVE_RUNS)
