"""
Doing what a recovery planned about workflows: the document first, then its run, each workflow under its own lease.

Where documents are in the database, document, run, sessions and lease are one transaction. With documents in files the
document is written, then the queue: killed in between, the next recovery finds a run whose worker is gone and an
attempt that is closed already, and does the rest. Whatever moved on since the plan was made is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adws.adw_modules import default_home
from adws.adw_modules.document import Draft, WorkflowDocument
from adws.adw_modules.engine import transitions
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.transitions import AllPassed, TerminalFailure, choose, running_attempt
from adws.adw_modules.errors import AdwError, DatabaseError, WorkflowBusy
from adws.adw_modules.interfaces import Verdict
from adws.adw_modules.phase import NoOrders, Outcome
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
from adws.adw_modules.recovery.evidence import Candidate, EvidenceGatherer, Owners
from adws.adw_modules.recovery.plan import (
    Evidence,
    Mode,
    Policy,
    Proof,
    Recovered,
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
    from adws.adw_modules.queue.store import RunStore
    from adws.app import Home


logger = logging.getLogger("adw.recovery")

#: Terminal reasons of workflows that recovery fails.
POISON = "POISON_RUN"
INTERRUPTED = "INTERRUPTED"

#: Workflows that are taken at a time: their leases are one transaction, and kept while they are worked on.
BATCH = 64

#: Threads that recover workflows: while one waits for a disk or a server, others go on. A store in SQLite has one
#: writer at a time, and threads that wait for it cost more than they gain.
THREADS = 4

#: Steps that are done under the lease of the workflow.
OWNING = frozenset(
    {
        RecoveryAction.INTERRUPT,
        RecoveryAction.REQUEUE,
        RecoveryAction.ENQUEUE,
        RecoveryAction.FAIL,
        RecoveryAction.STOP,
        RecoveryAction.BURY,
        RecoveryAction.END_RUN,
    }
)
_SETTLING = tuple(OWNING - {RecoveryAction.INTERRUPT})


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The steps about one workflow that belong together."""

    steps: tuple[RecoveryStep, ...]
    looked: Candidate

    @property
    def adw_id(self) -> str:
        """Whose."""
        return self.looked.evidence.adw_id

    def find(self, *actions: RecoveryAction) -> RecoveryStep | None:
        """Return the first step that is one of *actions*."""
        return next((step for step in self.steps if step.action in actions), None)

    @property
    def main(self) -> RecoveryStep:
        """The step that says what becomes of the run, else the first."""
        return self.find(*_SETTLING) or self.steps[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedStep:
    """What was done about one workflow."""

    group: Group
    owned: OwnedWorkflow
    run: Run | None  #: that was to be changed
    end: RunEnd | None
    new_run: NewRun | None  #: what is queued for a workflow that has no run
    has_lease: bool  #: whether the lease is still to be released
    is_settled: bool  #: whether the run was changed together with the document
    settled: Run | None  #: as it stands then


class RecoveryExecutor:
    """Applies the recovery plan to workflows."""

    def __init__(self, home: Home, *, mode: Mode, has_logs: bool = True) -> None:
        """*has_logs* says whether each workflow's own log gets what is done about it."""
        self._home = home
        self._mode = mode
        self._has_logs = has_logs
        is_sqlite_store = home.settings.store == "database" and home.settings.database_file is not None
        self._threads = 1 if is_sqlite_store else THREADS

    def do_all(self, groups: Sequence[Group]) -> tuple[list[Group], list[Recovered]]:
        """Return those that were done, and the runs that changed with that."""
        done: list[Group] = []
        recovered: list[Recovered] = []
        with ExitStack() as stack:
            pool = None
            if 1 < self._threads < len(groups):
                pool = stack.enter_context(ThreadPoolExecutor(self._threads, thread_name_prefix="adw-recovery"))
            for first in range(0, len(groups), BATCH):
                for group, runs in self._do_batch(groups[first : first + BATCH], pool):
                    done.append(group)
                    recovered.extend(runs)

        return done, recovered

    def _do_batch(
        self, groups: Sequence[Group], pool: ThreadPoolExecutor | None
    ) -> list[tuple[Group, list[Recovered]]]:
        home = self._home
        taken = home.ownership.take_all({group.adw_id: _former(group) for group in groups}, "recovery")
        # Without one its worker came back, or another recovery is at it.
        work = [(group, taken[group.adw_id]) for group in groups if group.adw_id in taken]
        applied: list[AppliedStep] = []
        try:
            with ExitStack() as stack:
                for _, owned in work:
                    stack.enter_context(home.lease_renewer.charge(owned))
                answers = pool.map(self._do_one, work) if pool else map(self._do_one, work)
                applied.extend(filter(None, answers))
        finally:
            # Also when the database went away in the middle: what was written is given back if it can be.
            runs = self._give_back(applied)
            for owned in taken.values():
                with suppress(AdwError):
                    owned.give_back()  # what nobody came to; leases end by themselves

        outcomes = [self._outcome(step, run) for step, run in zip(applied, runs, strict=True)]
        return [(group, recovered) for group, recovered in outcomes if group.steps]

    def _give_back(self, applied: Sequence[AppliedStep]) -> list[Run | None]:
        """Release what is still held, and settle the runs that did not change with their document; all or nothing."""
        runs = self._home.runs

        def give_back(session: Session) -> list[Run | None]:
            settled: list[Run | None] = []
            for step in applied:
                if step.has_lease:
                    step.owned.release_in(session)
                settled.append(
                    step.settled if step.is_settled else settle_in(session, runs, step.run, step.end, step.new_run)
                )
            return settled

        return self._home.database.transact(give_back) if applied else []

    def _outcome(self, step: AppliedStep, settled: Run | None) -> tuple[Group, list[Recovered]]:
        """Return the steps as they were done, and the run that changed with them: what was planned may not be that."""
        group, main = step.group, step.group.main
        if settled is None and step.run is not None and step.end is not None:
            settled = self._given_back(step.run, step.end)
        if main.after is None:
            return group, []
        if settled is None:  # somebody has the run again
            return replace(group, steps=tuple(one for one in group.steps if one is not main)), []
        done = as_done(main, settled)
        steps = tuple(done if one is main else one for one in group.steps)

        return replace(group, steps=steps), [_recovered(done, settled)]

    def _given_back(self, run: Run, end: RunEnd) -> Run | None:
        """
        Return a run as it stands that its worker gave back between our write of the document and that of the run.

        It was taken by force from a worker that lives, and that found itself fenced off. None when it moved on.
        """
        now = self._home.runs.get(run.run_id)
        if now is None or now.state is end.state:
            return now

        return self._home.runs.settle_lost(now, end) if now.state is RunState.PENDING else None

    def _do_one(self, work: tuple[Group, OwnedWorkflow]) -> AppliedStep | None:
        """Do what was planned about one workflow; None when it was not needed any more, or cannot be done now."""
        group, owned = work
        try:
            log = self._home.engine.log_of(group.adw_id) if self._has_logs else nullcontext()
            with self._home.ownership.entered(owned), log:
                session = WorkSession(self._home.engine, owned, NoOrders(), has_log=self._has_logs)
                return WorkflowRecovery(self._home, session, group, owned, mode=self._mode).settle()
        except WorkflowBusy:
            return None
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            said = {"action": "recovery_failed", "workflow": group.adw_id}
            logger.warning("Could not recover", extra=said, exc_info=exc)
            return None


class WorkflowRecovery:
    """Recovers one workflow that is ours for the moment."""

    def __init__(self, home: Home, session: WorkSession, group: Group, owned: OwnedWorkflow, *, mode: Mode) -> None:
        self._home = home
        self._session = session
        self._group = group
        self._owned = owned
        self._mode = mode
        self._run = self._fresh_run()
        self._end: RunEnd | None = None
        self._settled: Run | None = None  #: the run as the transaction of the document left it

    def settle(self) -> AppliedStep | None:
        """Do it, and return what is left to be done in the database; None when nothing was needed any more."""
        if not self._is_needed():
            self._tell_takeover()
            return None
        ended = self._end_processes()
        is_joint = isinstance(self._home.store, DatabaseStateStore)
        if is_joint:
            self._owned.with_next_save = self._settle_in
        index = self._open_attempt()
        self._session.change(lambda draft: self._decide(draft, ended))
        if index is not None and self._run is None:  # else the session followed its run
            self._session.tell_agent_ended(index, self._owned.document.phases[index].attempts[-1].number)
        if not self._is_active():
            self._session.rest()  # its worker died before it released them
        has_lease = self._owned.hand_over()

        return AppliedStep(
            group=self._group,
            owned=self._owned,
            run=self._run,
            end=self._end,
            new_run=self._new_run(),
            has_lease=has_lease and not (is_joint and self._is_active()),
            is_settled=is_joint,
            settled=self._settled,
        )

    # --- looking again -----------------------------------------------------------------------------------------

    def _fresh_run(self) -> Run | None:
        """Return the run that the plan spoke of as it stands, None when it moved on."""
        planned, step = self._group.looked.run, self._group.main
        if planned is None or step.after is None:
            return None
        if self._owned.is_takeover and self._owned.verdict is Verdict.DEAD:
            return planned  # nobody has changed it since, and a later change is detected when it is written

        return unchanged_run(self._home.runs, planned)

    def _is_needed(self) -> bool:
        group = self._group
        if group.find(RecoveryAction.END_RUN):
            return self._run is not None and not self._is_active()
        if group.find(RecoveryAction.INTERRUPT) and self._open_attempt() is not None:
            return True
        if group.find(RecoveryAction.ENQUEUE):
            return self._is_active() and not self._has_run()
        if group.find(RecoveryAction.FAIL) and group.looked.run is None:
            return self._is_active()

        return self._run is not None

    def _has_run(self) -> bool:
        newest = self._home.runs.of_workflow(self._group.adw_id, limit=1)

        return any(run.state not in FINAL_RUNS for run in newest)

    def _is_active(self) -> bool:
        return WorkflowState(self._owned.document.current_state) in ACTIVE_STATES

    def _open_attempt(self) -> int | None:
        phases = self._owned.document.phases
        return next((index for index, record in enumerate(phases) if running_attempt(record) is not None), None)

    def _tell_takeover(self) -> None:
        """Write down that it was taken over, so that it can be given back; nothing else is changed."""
        if self._owned.is_takeover:
            self._owned.save(self._owned.document)

    # --- processes ---------------------------------------------------------------------------------------------

    def _end_processes(self) -> ProcessEnding:
        """End what the attempt that was cut off left running; raise WorkflowBusy when that cannot be ended."""
        index = self._open_attempt()
        attempt = running_attempt(self._owned.document.phases[index]) if index is not None else None
        if attempt is None or not attempt.process:
            return ProcessEnding(evidence="", is_certain=True)
        ending = self._home.end_process_in_time(attempt.process)
        # A stop that is planned as one nobody confirms is over; everything else waits for the end of its processes.
        if ending.left and not self._group.main.why.startswith(UNCONFIRMED):
            what = f"processes that its former owner left and that cannot be ended ({', '.join(ending.left)})"
            raise WorkflowBusy(self._group.adw_id, what)

        return ending

    # --- deciding ----------------------------------------------------------------------------------------------

    def _decide(self, draft: Draft, ended: ProcessEnding) -> None:
        """Change the document, and decide what becomes of the run."""
        index, step = self._open_attempt(), self._group.main
        if index is not None and draft.document.rollback is None:
            self._interrupt(draft, index, ended)
        is_active = draft.machine.current_state in ACTIVE_STATES and draft.document.rollback is None
        if is_active and step.action in (RecoveryAction.FAIL, RecoveryAction.BURY):
            self._fail(draft, index, step)
        if is_active and step.action is RecoveryAction.STOP:
            transitions.pause(draft, _stop_reason(self._run, step, ended) if self._run else step.why)
        self._end = self._end_of_run(draft, step, ended)
        self._tell(draft, step)

    def _interrupt(self, draft: Draft, index: int, ended: ProcessEnding) -> Outcome | None:
        attempt = running_attempt(draft.phase(index))
        why = "the process that worked on it ended without a word" + (f"; {ended.describe()}" if ended.evidence else "")
        spec = self._session.spec
        harvest = None
        if attempt is not None and attempt.agent:
            harvest = self._home.agent_runner.harvest(self._owned.document, spec.phases[index], attempt)

        doubt = "" if ended.is_certain else ended.describe()

        return transitions.interrupt(draft, spec, index, why, harvest, doubt=doubt)

    def _fail(self, draft: Draft, index: int | None, step: RecoveryStep) -> None:
        spec = self._session.spec
        if step.action is RecoveryAction.FAIL and self._group.looked.evidence.exhausted_phase and index is None:
            transitions.before_attempt(draft, spec)  # the rule that fails what has no attempt left
            return
        if index is None:
            chosen = choose(spec, draft.document.phases)
            if isinstance(chosen, AllPassed):
                return  # all of it is done: the worker that claims it next completes it
            index = chosen.index
        loss = TerminalFailure(
            reason=POISON if step.action is RecoveryAction.BURY else INTERRUPTED,
            message=step.why,
            advice=f"read adw logs {self._group.adw_id}, then try again: adw retry {self._group.adw_id} --grant 1",
        )
        draft.change_phase(index, last_failure_reason=step.why)
        transitions.fail_workflow(draft, spec.phases[index], index, loss)

    def _end_of_run(self, draft: Draft, step: RecoveryStep, ended: ProcessEnding) -> RunEnd | None:
        if self._run is None:
            return None
        state = draft.machine.current_state
        if step.action is RecoveryAction.BURY:
            return RunEnd(state=RunState.DEAD, reason=step.why)
        if step.action is RecoveryAction.STOP or self._run.state is RunState.STOPPING:
            return RunEnd(state=RunState.STOPPED, reason=_stop_reason(self._run, step, ended))
        if draft.document.rollback is not None and step.action is RecoveryAction.REQUEUE:
            return RunEnd(state=RunState.PENDING, reason=step.why)
        if state is WorkflowState.FAILED and step.action is not RecoveryAction.END_RUN:
            return RunEnd(state=RunState.FAILED, reason=step.why)
        if state not in ACTIVE_STATES:
            return RunEnd(state=RunState.STOPPED, reason=step.why)

        return RunEnd(state=RunState.PENDING, reason=step.why)

    def _tell(self, draft: Draft, step: RecoveryStep) -> None:
        proof = str(step.evidence.get("proof") or "")
        if self._run is None or self._end is None:
            draft.add_event("recovered", data={"why": step.why, "mode": self._mode.value, "verdict": proof})
            return
        draft.add_event(
            "run_recovered",
            data={
                "run_id": self._run.run_id,
                "parent_run_id": self._run.parent_run_id,
                "from": self._run.state.value,
                "to": self._end.state.value,
                "verdict": proof,
                "mode": self._mode.value,
                "why": self._end.reason,
                "losses": self._run.losses,
            },
        )

    # --- the database ------------------------------------------------------------------------------------------

    def _settle_in(self, session: Session, document: WorkflowDocument) -> None:
        """Settle the run in the transaction that stores *document*; the lease of one that is parked is kept for now."""
        if WorkflowState(document.current_state) in ACTIVE_STATES:
            self._home.leases.release_in(session, self._owned.lease)
        self._settled = settle_in(session, self._home.runs, self._run, self._end, self._new_run(document))

    def _new_run(self, document: WorkflowDocument | None = None) -> NewRun | None:
        """Return the run that is queued for a workflow that has none and should be worked on."""
        if self._group.find(RecoveryAction.ENQUEUE) is None or not self._is_active():
            return None

        return self._home.run_factory.of(document or self._owned.document, "resume", asked_by="recovery")


def settle_in(
    session: Session, runs: RunStore, run: Run | None, end: RunEnd | None, new_run: NewRun | None
) -> Run | None:
    """Do what was decided about a run, or queue a new one, inside the transaction *session*; None when it moved on."""
    if run is not None and end is not None:
        return runs.settle_in(session, run, end)

    return runs.enqueue_in(session, new_run) if new_run is not None else None


def unchanged_run(runs: RunStore, planned: Run) -> Run | None:
    """Return a run as it stands, None when it moved on since the plan was made."""
    run = runs.get(planned.run_id)
    if run is None or run.state in FINAL_RUNS or (run.token, run.owner) != (planned.token, planned.owner):
        return None
    has_come_back = planned.seconds_left <= 0.0 < run.seconds_left

    return None if has_come_back else run


def _stop_reason(run: Run, step: RecoveryStep, ended: ProcessEnding) -> str:
    wanted = run.reason or step.why
    if ended.is_certain and not step.why.startswith(UNCONFIRMED):
        return wanted
    result = ended.describe() if ended.evidence else step.why.removeprefix(f"{UNCONFIRMED}: ")

    return stop_reason(wanted, result)


def _former(group: Group) -> tuple[Verdict, int | None]:
    """Return what is known of the owner, and the fence by which a lease is taken from one that is dead or unproven."""
    lease, claim = group.looked.lease, group.looked.evidence.lease
    if lease is None or claim.proof in (Proof.FREE, Proof.OVER):
        return claim.verdict, None

    return claim.verdict, lease.fence


#: State of a run after recovery -> what was done with it, where that is not what was planned.
_DONE = {
    RunState.PENDING: RecoveryAction.REQUEUE,
    RunState.FAILED: RecoveryAction.FAIL,
    RunState.DEAD: RecoveryAction.BURY,
    RunState.STOPPED: RecoveryAction.STOP,
}


def as_done(step: RecoveryStep, settled: Run) -> RecoveryStep:
    """Return *step* with what became of its run: closing an attempt may have used up the last one."""
    if settled.state is step.after:
        return replace(step, run_id=settled.run_id)
    action, why = _DONE.get(settled.state, step.action), f"{step.why}; its run is {settled.state.value} now"

    return replace(step, run_id=settled.run_id, action=action, after=settled.state, why=why)


def _recovered(step: RecoveryStep, settled: Run) -> Recovered:
    return Recovered(
        run_id=settled.run_id,
        adw_id=settled.adw_id,
        before=step.before,
        after=settled.state,
        action=step.action,
        proof=str(step.evidence.get("proof") or Verdict.UNKNOWN.value),
    )


# Finding runs whose worker is gone, and making them ready to go on.
#
# Evidence is gathered from documents, leases and runs; `recovery.plan` makes the plan; each workflow is then recovered
# under its own lease, so that a worker that came back meanwhile is left alone. Every run that is recovered leaves an
# event in the history of its workflow, a line in the log and a count.


#: What is counted, by verdict, mode and action.
METRIC = "adw_runs_recovered_total"
#: Workflows recovered at a time up to which each has it in its own log, too; the log of adw has all of them.
MOST_LOGGED = 100


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
            fails_running=settings.recovery_running == "fail",
            max_losses=settings.recovery_max_losses,
        )

    # --- planning ----------------------------------------------------------------------------------------------

    def plan(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> tuple[RecoveryStep, ...]:
        """Return what would be done; *every_document* also compares each document with its copy."""
        return tuple(
            step
            for group in self.planned(every_document=every_document, mode=mode, policy=policy)
            for step in group.steps
        )

    def evidence(self, *, every_document: bool = False) -> tuple[Evidence, ...]:
        """Return what is known about every workflow that may need something."""
        return tuple(
            looked.evidence for looked in self._look(Owners(self._home.processes), every_document=every_document)
        )

    def _look(self, owners: Owners, *, every_document: bool) -> tuple[Candidate, ...]:
        home = self._home
        gatherer = EvidenceGatherer(
            store=home.store,
            catalogue=home.catalogue,
            leases=home.leases,
            locks=home.locks,
            runs=home.runs,
            has_copies=home.settings.store == "files",
        )

        return tuple(gatherer.gather(owners, every_document=every_document))

    def planned(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> list[Group]:
        """Return the same with what it was made from, each workflow's steps together."""
        owners = Owners(self._home.processes)
        looked = self._look(owners, every_document=every_document)
        now, mode, policy = self._home.clock.now(), mode or self._mode, policy or self.policy

        return [
            Group(steps=plan_recovery([one.evidence], owners.by_record, now, mode, policy=policy), looked=one)
            for one in looked
        ]

    # --- doing it ----------------------------------------------------------------------------------------------

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
        the_mode = mode or self._mode
        plan = self.planned(every_document=every_document, mode=mode, policy=policy)
        if is_dry_run or the_mode is Mode.NONE:
            steps = tuple(step for group in map(_without_leaving, plan) for step in group.steps)
            return RecoveryResult(mode=the_mode, is_dry_run=is_dry_run, steps=steps)

        return self.apply(plan, the_mode)

    def apply(self, plan: Iterable[Group], mode: Mode) -> RecoveryResult:
        """
        Do what *plan* says, each workflow for itself, and return what was done; what moved on since is left alone.

        Where documents are in the database, the document, its run, sessions and lease are one transaction.
        """
        groups = [group for group in map(_without_leaving, plan) if group.steps]
        done, recovered = self._do(groups, mode)
        result = RecoveryResult(mode=mode, steps=tuple(done), runs=tuple(recovered))
        self._count(result)
        self._home.free_left_behind()  # last: what was cut off is closed by now

        return result

    def _do(self, groups: list[Group], mode: Mode) -> tuple[list[RecoveryStep], list[Recovered]]:
        owning = [group for group in groups if _needs_lease(group)]
        # Opening the log of each is a third of the work; the history of each tells the same.
        executor = RecoveryExecutor(self._home, mode=mode, has_logs=len(owning) <= MOST_LOGGED)
        done: list[RecoveryStep] = []
        recovered: list[Recovered] = []
        for group in groups:
            for step in group.steps:
                if not (_needs_lease(group) and step.action in OWNING):
                    done.extend(filter(None, [self._apply(step, group, recovered)]))
        finished, runs = executor.do_all(owning)
        recovered.extend(runs)
        for group in finished:
            done.extend(step for step in group.steps if step.action in OWNING)
            self._tell(group.main)
            if group.main.action is RecoveryAction.STOP:
                self._answer_stop(group.adw_id)

        return done, recovered

    def _answer_stop(self, adw_id: str) -> None:
        """Answer what was asked of the worker who died over it: the workflow is parked."""
        document = self._home.store.load(adw_id).document
        for request in self._home.requests.open_for(adw_id):
            if request.kind in PAUSING:
                self._home.requests.handled(request.request_id, f"paused: {document.pause_reason}")

    def _apply(self, step: RecoveryStep, group: Group, recovered: list[Recovered]) -> RecoveryStep | None:
        """Return one step that needs no lease as it was done; None when it was not needed, or cannot be done now."""
        try:
            if step.action in OWNING:
                done = self._settle_alone(step, group, recovered)
            else:
                done = step if self._do_alone(step) else None
        except WorkflowBusy:
            return None  # its worker came back, or another recovery is at it
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            said = {"action": "recovery_failed", "workflow": step.adw_id}
            logger.warning("Could not recover", extra=said, exc_info=exc)
            return None
        if done is not None and done.action is not RecoveryAction.REPORT:
            self._tell(done)

        return done

    def _do_alone(self, step: RecoveryStep) -> bool:
        if step.action is RecoveryAction.REPORT:
            return self._report(step)
        if step.action is RecoveryAction.PROJECT:
            return self._project(step)
        if step.action is RecoveryAction.FREE_ISSUE:
            return self._home.ownership.release_if_finished(step.adw_id)
        if step.action is RecoveryAction.FORGET:
            return self._home.ownership.forget_unwritten(step.adw_id)

        return self._end_left(step.adw_id)

    def _end_left(self, adw_id: str) -> bool:
        """End what attempts left here that were closed elsewhere; the present owner need not be waited for."""
        home = self._home
        before = transitions.in_doubt(home.store.load(adw_id).document.phases)
        for _, attempt in before:
            home.end_process_in_time(attempt.process or {})
        with home.ownership.own(adw_id) as owned, home.engine.log_of(adw_id), home.lease_renewer.charge(owned):
            WorkSession(home.engine, owned, NoOrders()).end_left()
            after = transitions.in_doubt(owned.document.phases)

        return len(after) < len(before)

    def _settle_alone(self, step: RecoveryStep, group: Group, recovered: list[Recovered]) -> RecoveryStep | None:
        """Settle a run that has no document: what a delivery asks for, or one whose document nobody can read."""
        planned = group.looked.run
        run = unchanged_run(self._home.runs, planned) if planned is not None else None
        if run is None or step.after is None:
            return None
        handler = self._home.job_handler(run.kind) if step.after is RunState.FAILED else None
        if handler is not None:
            handler.give_up(run, step.why)
        reason = run.reason if run.state is RunState.STOPPING and run.reason else step.why
        settled = self._home.runs.settle_lost(run, RunEnd(state=step.after, reason=reason))
        if settled is None:
            return None
        done = as_done(step, settled)
        recovered.append(_recovered(done, settled))

        return done

    def _report(self, step: RecoveryStep) -> bool:
        key = (step.adw_id, step.why)
        if key not in self._reported:  # recovery comes every minute, a person does not
            self._reported.add(key)
            said = {"action": "recovery_report", "workflow": step.adw_id, "why": step.why}
            logger.error("Needs a person", extra=said)

        return True

    def _project(self, step: RecoveryStep) -> bool:
        if self._home.settings.store != "files":
            return False
        self._home.catch_up(step.adw_id)

        return True

    def _tell(self, step: RecoveryStep) -> None:
        said = {"action": "recovered", "workflow": step.adw_id, "step": step.action.value, "why": step.why}
        logger.warning("Recovered", extra={**said, "run_id": step.run_id})

    def _count(self, result: RecoveryResult) -> None:
        for (verdict, mode, action), amount in result.metrics().items():
            labels = {"verdict": verdict, "mode": mode, "action": action}
            self._home.counters.add(METRIC, labels, float(amount))


def _without_leaving(group: Group) -> Group:
    kept = tuple(step for step in group.steps if step.action is not RecoveryAction.LEAVE)

    return group if len(kept) == len(group.steps) else replace(group, steps=kept)


def _needs_lease(group: Group) -> bool:
    """Say whether something is done about a workflow whose document can be read."""
    seen = group.looked.evidence

    return bool(seen.state) and not seen.is_errand and group.find(*OWNING) is not None


# --- by name ---------------------------------------------------------------------------------------------------


def recovery_of(home: Home | None = None) -> Recovery:
    """Return what recovers *home*, the default home without."""
    return (home or default_home.get()).recovery


def recover_stale_runs(
    stale_threshold_seconds: float = 300, *, fails_running: bool | None = None, home: Home | None = None
) -> RecoveryResult:
    """
    Take back what is proven to be left, and what has been silent for the threshold where nothing is proven.

    With *fails_running* runs that were being worked on fail; the settings decide without.
    """
    recovery = recovery_of(home)
    policy = replace(recovery.policy, threshold_seconds=stale_threshold_seconds, is_forced=False)
    if fails_running is not None:
        policy = replace(policy, fails_running=fails_running)

    return recovery.recover(every_document=True, mode=Mode.STALE, policy=policy)


def recover_all_active_runs(
    *, force: bool = False, fails_running: bool | None = None, home: Home | None = None
) -> RecoveryResult:
    """Take back everything whose owner is not alive, whatever its age; with *force* also from those that are."""
    recovery = recovery_of(home)
    policy = replace(recovery.policy, is_forced=force)
    if fails_running is not None:
        policy = replace(policy, fails_running=fails_running)

    return recovery.recover(every_document=True, mode=Mode.ALL, policy=policy)


def recover_by(mode: str, *, home: Home | None = None) -> RecoveryResult:
    """Recover in the mode called *mode*; raise UsageError, which names the modes there are."""
    the_mode = mode_of(mode)

    return recovery_of(home).recover(every_document=True, mode=the_mode)


# The run queue of a home by its short name: recovered when it is made, and then what the database says.
#
# There is no cache: every question is answered by the rows, so what another process did is seen at once, and waiting
# runs are claimed in the order they were asked for, also after a restart.


logger_run_queue = logging.getLogger("adw.run_queue")

#: Runs that are read at a time.
_PAGE = 500


class RunQueue:
    """The runs of a home."""

    def __init__(self, recovery_mode: str = "stale", *, home: Home | None = None) -> None:
        """
        Open the queue of *home*, of the default home without, and recover it.

        *recovery_mode* is none, stale or all; another one is a UsageError that names these.
        """
        mode = mode_of(recovery_mode)
        self._home = home or default_home.get()
        self.recovered: RecoveryResult = self._recover(mode)  #: what was done when it was made

    def recover(self, mode: str = "stale") -> RecoveryResult:
        """Recover again, as when it was made."""
        return self._recover(mode_of(mode))

    def _recover(self, mode: Mode) -> RecoveryResult:
        result = recover_by(mode.value, home=self._home)
        said = {key: value for key, value in result.to_json().items() if key != "steps"}
        if mode is Mode.NONE:
            logger_run_queue.info("Run recovery is off", extra={"action": "recovery_off", "would": len(result.steps)})
        elif result.runs:
            logger_run_queue.warning("Runs were recovered", extra={"action": "runs_recovered", **said})

        return result

    # --- runs --------------------------------------------------------------------------------------------------

    def enqueue(self, run: NewRun) -> Run:
        """Store a run, durable when this returns; the workflow's unfinished run when it has one."""
        return self._home.runs.enqueue(run)

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

        Without *terms* those of the home hold: what its workers offer, and how many runs may go on at a time.
        """
        return self._home.runs.claim(
            owner, ttl_seconds=ttl_seconds, run_id=run_id, terms=self._home.claim_policy if terms is None else terms
        )

    def begin(self, run: Run) -> Run:
        """Say that work on a claimed run has begun; raise RunLost when it is not ours any more."""
        return self._home.runs.begin(run)

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End a run of ours; raise RunLost when it is not ours any more."""
        return self._home.runs.finish(run, state, reason=reason)

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits at once, one with a worker as soon as that confirms it. Idempotent."""
        return self._home.runs.ask_to_stop(run_id, reason=reason)

    def get(self, run_id: int) -> Run | None:
        """Return a run."""
        return self._home.runs.get(run_id)

    def waiting(self) -> tuple[Run, ...]:
        """Return the waiting runs, in the order they are claimed once they are due."""
        runs: list[Run] = []
        before: int | None = None
        while page := self._home.runs.page(states=(RunState.PENDING,), limit=_PAGE, before=before):
            runs.extend(page)
            before = page[-1].run_id

        return tuple(sorted(runs, key=lambda run: (-run.priority, run.run_id)))

    def active(self) -> tuple[Run, ...]:
        """Return what a worker has, oldest first."""
        return tuple(run for run in self._home.runs.live() if run.state in LIVE_RUNS)
