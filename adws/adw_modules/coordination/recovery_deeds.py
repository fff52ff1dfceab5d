"""
Doing what a recovery planned about workflows: the document first, then its run, each workflow under its own lease.

Where documents are in the database, document, run, sessions and lease are one transaction. With documents in files the
document is written, then the queue: killed in between, the next recovery finds a run whose worker is gone and an
attempt that is closed already, and does the rest. Whatever moved on since the plan was made is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

from adws.adw_modules import attempt_rules, stopping_rules
from adws.adw_modules.attempt_rules import Loss
from adws.adw_modules.coordination.keeper import Keeper
from adws.adw_modules.coordination.recovery_evidence import Looked
from adws.adw_modules.coordination.seizing import SeizedWorkflow, Seizing, Wish
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import AdwError, DatabaseError, WorkflowBusy
from adws.adw_modules.interfaces_coordination import HandBack
from adws.adw_modules.interfaces_engine import NoOrders, RunQueue
from adws.adw_modules.outcome import Outcome
from adws.adw_modules.owner_record import Verdict
from adws.adw_modules.phase_choice import AllPassed, choose, running_attempt
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.recovery_facts import Action, Mode, Proof, Recovered, RecoveryStep
from adws.adw_modules.runs import FINAL_RUNS, UNCONFIRMED, NewRun, Run, RunEnd, RunState, stop_reason
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState

logger = logging.getLogger("adw.recovery")

#: Terminal reasons of workflows that recovery fails.
POISON = "POISON_RUN"
INTERRUPTED = "INTERRUPTED"

#: Workflows that are taken at a time: their leases are one transaction, and kept while they are worked on.
BATCH = 64

#: Steps that are done under the lease of the workflow.
OWNING = frozenset(
    {Action.INTERRUPT, Action.REQUEUE, Action.ENQUEUE, Action.FAIL, Action.STOP, Action.BURY, Action.END_RUN}
)
_SETTLING = tuple(OWNING - {Action.INTERRUPT})


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The steps about one workflow that belong together."""

    steps: tuple[RecoveryStep, ...]
    looked: Looked

    @property
    def adw_id(self) -> str:
        """Whose."""
        return self.looked.evidence.adw_id

    def find(self, *actions: Action) -> RecoveryStep | None:
        """Return the first step that is one of *actions*."""
        return next((step for step in self.steps if step.action in actions), None)

    @property
    def main(self) -> RecoveryStep:
        """The step that says what becomes of the run, else the first."""
        return self.find(*_SETTLING) or self.steps[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deed:
    """What was done about one workflow."""

    group: Group
    run: Run | None  #: that was to be changed
    end: RunEnd | None
    settled: Run | None  #: the run as it stands, when it was changed together with the document
    back: HandBack  #: what is left to be done in the database


@dataclass(frozen=True, kw_only=True, slots=True)
class DeedParts:
    """What deeds are done with."""

    runs: RunQueue
    engine: EngineParts
    keeper: Keeper
    seizing: Seizing
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what a dead worker left running
    new_run: Callable[[WorkflowDocument], NewRun]  #: the run that goes on with a workflow that has none
    threads: int = 1  #: that settle workflows at the same time


class Deeds:
    """Does what was planned about workflows."""

    def __init__(self, parts: DeedParts, *, mode: Mode) -> None:
        self._parts = parts
        self._mode = mode

    def do_all(self, groups: Sequence[Group]) -> tuple[list[Group], list[Recovered]]:
        """Return those that were done, and the runs that changed with that."""
        done: list[Group] = []
        recovered: list[Recovered] = []
        with ExitStack() as stack:
            pool = None
            if 1 < self._parts.threads < len(groups):
                pool = stack.enter_context(ThreadPoolExecutor(self._parts.threads, thread_name_prefix="adw-recovery"))
            for first in range(0, len(groups), BATCH):
                for group, runs in self._do_batch(groups[first : first + BATCH], pool):
                    done.append(group)
                    recovered.extend(runs)

        return done, recovered

    def _do_batch(
        self, groups: Sequence[Group], pool: ThreadPoolExecutor | None
    ) -> list[tuple[Group, list[Recovered]]]:
        parts = self._parts
        taken = parts.seizing.take([_wish(group) for group in groups])
        work = list(zip(groups, taken, strict=True))
        deeds: list[Deed] = []
        try:
            with ExitStack() as stack:
                for seized in filter(None, taken):
                    stack.enter_context(parts.keeper.charge(seized))
                answers = pool.map(self._do_one, *zip(*work, strict=True)) if pool else map(self._do_one, groups, taken)
                deeds.extend(filter(None, answers))
        finally:
            # Also when the database went away in the middle: what was written is given back if it can be.
            runs = parts.seizing.leases.hand_back([deed.back for deed in deeds])
            parts.seizing.let_go(taken)

        return [(deed.group, _recovered(deed, run)) for deed, run in zip(deeds, runs, strict=True)]

    def _do_one(self, group: Group, seized: SeizedWorkflow | None) -> Deed | None:
        """Do what was planned about one workflow; None when it was not needed any more, or cannot be done now."""
        if seized is None:
            return None  # its worker came back, or another recovery is at it
        parts = self._parts
        try:
            with parts.seizing.inside(seized), parts.engine.log_of(group.adw_id):
                return Settlement(parts, group, seized, mode=self._mode).settle()
        except WorkflowBusy:
            return None
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            said = {"action": "recovery_failed", "workflow": group.adw_id}
            logger.warning("Could not recover", extra=said, exc_info=exc)
            return None


class Settlement:
    """Settles one workflow that is ours for the moment."""

    def __init__(self, parts: DeedParts, group: Group, seized: SeizedWorkflow, *, mode: Mode) -> None:
        self._parts = parts
        self._group = group
        self._seized = seized
        self._mode = mode
        self._session = WorkSession(parts.engine, seized, NoOrders())
        self._run = self._fresh_run()
        self._end: RunEnd | None = None

    def settle(self) -> Deed | None:
        """Do it, and return what is left to be done in the database; None when nothing was needed any more."""
        if not self._is_needed():
            self._tell_takeover()
            return None
        ended = self._end_processes()
        self._seized.join_next_write(self._joined)
        index = self._open_attempt()
        self._session.change(lambda draft: self._decide(draft, ended))
        if index is not None and self._run is None:  # else the session followed its run
            self._session.tell_agent_ended(index, self._seized.document.phases[index].attempts[-1].number)
        if not self._is_active():
            self._session.rest()  # whoever worked on it did not come to it
        back, settled = self._seized.hand_over(), self._seized.settled
        is_joined = self._seized.can_join
        new_run = self._new_run()

        return Deed(
            group=self._group,
            run=self._run,
            end=self._end,
            settled=settled,
            back=back if is_joined else replace(back, run=self._run, end=self._end, new_run=new_run),
        )

    # --- looking again -----------------------------------------------------------------------------------------

    def _fresh_run(self) -> Run | None:
        """Return the run that the plan spoke of as it stands, None when it moved on."""
        planned, step = self._group.looked.run, self._group.main
        if planned is None or step.after is None:
            return None
        if self._seized.is_certain:
            return planned  # whoever changes it later is found out when it is settled
        found = self._parts.runs.get(planned.run_id)
        is_same = found is not None and (found.token, found.owner) == (planned.token, planned.owner)
        if found is None or not is_same or found.state in FINAL_RUNS:
            return None
        has_come_back = planned.seconds_left <= 0.0 < found.seconds_left

        return None if has_come_back else found

    def _is_needed(self) -> bool:
        group = self._group
        if group.find(Action.END_RUN):
            return self._run is not None and not self._is_active()
        if group.find(Action.INTERRUPT) and self._open_attempt() is not None:
            return True
        if group.find(Action.ENQUEUE):
            return self._is_active() and not self._has_run()
        if group.find(Action.FAIL) and group.looked.run is None:
            return self._is_active()

        return self._run is not None

    def _has_run(self) -> bool:
        newest = self._parts.runs.of_workflow(self._group.adw_id, limit=1)

        return any(run.state not in FINAL_RUNS for run in newest)

    def _is_active(self) -> bool:
        return WorkflowState(self._seized.document.current_state) in ACTIVE_STATES

    def _open_attempt(self) -> int | None:
        phases = self._seized.document.phases
        return next((index for index, record in enumerate(phases) if running_attempt(record) is not None), None)

    def _tell_takeover(self) -> None:
        """Write down that it was taken over, so that it can be given back; nothing else is changed."""
        if self._seized.is_takeover:
            self._seized.save(self._seized.document)

    # --- processes ---------------------------------------------------------------------------------------------

    def _end_processes(self) -> Ending:
        """End what the attempt that was cut off left running; raise WorkflowBusy when that cannot be ended."""
        index = self._open_attempt()
        attempt = running_attempt(self._seized.document.phases[index]) if index is not None else None
        if attempt is None or not attempt.process:
            return Ending(evidence="", is_certain=True)
        ending = self._parts.end_process(attempt.process)
        # A stop that is planned as one nobody confirms is over; everything else waits for the end of its processes.
        if ending.left and not self._group.main.why.startswith(UNCONFIRMED):
            what = f"processes that its former owner left and that cannot be ended ({', '.join(ending.left)})"
            raise WorkflowBusy(self._group.adw_id, what)

        return ending

    # --- deciding ----------------------------------------------------------------------------------------------

    def _decide(self, draft: Draft, ended: Ending) -> None:
        """Change the document, and decide what becomes of the run."""
        index, step = self._open_attempt(), self._group.main
        if index is not None and draft.document.rollback is None:
            self._interrupt(draft, index, ended)
        is_active = draft.machine.current_state in ACTIVE_STATES and draft.document.rollback is None
        if is_active and step.action in (Action.FAIL, Action.BURY):
            self._fail(draft, index, step)
        if is_active and step.action is Action.STOP:
            attempt_rules.pause(draft, _stop_reason(self._run, step, ended) if self._run else step.why)
        self._end = self._end_of_run(draft, step, ended)
        self._tell(draft, step)

    def _interrupt(self, draft: Draft, index: int, ended: Ending) -> Outcome | None:
        attempt = running_attempt(draft.phase(index))
        why = "the process that worked on it ended without a word" + (f"; {ended.describe()}" if ended.evidence else "")
        spec = self._session.spec
        harvest = None
        if attempt is not None and attempt.agent:
            harvest = self._parts.engine.harvest(self._seized.document, spec.phases[index], attempt)

        doubt = "" if ended.is_certain else ended.describe()

        return stopping_rules.interrupt(draft, spec, index, why, harvest, doubt=doubt)

    def _fail(self, draft: Draft, index: int | None, step: RecoveryStep) -> None:
        spec = self._session.spec
        if step.action is Action.FAIL and self._group.looked.evidence.exhausted_phase and index is None:
            attempt_rules.before_attempt(draft, spec)  # the rule that fails what has no attempt left
            return
        if index is None:
            found = choose(spec, draft.document.phases)
            if isinstance(found, AllPassed):
                return  # all of it is done: whoever claims it next completes it
            index = found.index
        loss = Loss(
            reason=POISON if step.action is Action.BURY else INTERRUPTED,
            message=step.why,
            advice=f"read adw logs {self._group.adw_id}, then try again: adw retry {self._group.adw_id} --grant 1",
        )
        draft.change_phase(index, last_failure_reason=step.why)
        attempt_rules.fail_workflow(draft, spec.phases[index], index, loss)

    def _end_of_run(self, draft: Draft, step: RecoveryStep, ended: Ending) -> RunEnd | None:
        if self._run is None:
            return None
        state = draft.machine.current_state
        if step.action is Action.BURY:
            return RunEnd(state=RunState.DEAD, reason=step.why)
        if step.action is Action.STOP or self._run.state is RunState.STOPPING:
            return RunEnd(state=RunState.STOPPED, reason=_stop_reason(self._run, step, ended))
        if draft.document.rollback is not None and step.action is Action.REQUEUE:
            return RunEnd(state=RunState.PENDING, reason=step.why)
        if state is WorkflowState.FAILED and step.action is not Action.END_RUN:
            return RunEnd(state=RunState.FAILED, reason=step.why)
        if state not in ACTIVE_STATES:
            return RunEnd(state=RunState.STOPPED, reason=step.why)

        return RunEnd(state=RunState.PENDING, reason=step.why)

    def _tell(self, draft: Draft, step: RecoveryStep) -> None:
        proof = str(step.evidence.get("proof") or "")
        if self._run is None or self._end is None:
            draft.tell("recovered", data={"why": step.why, "mode": self._mode.value, "verdict": proof})
            return
        draft.tell(
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

    def _joined(self, document: WorkflowDocument) -> HandBack:
        """Return what is done in the transaction that stores *document*; one that is parked is kept for a moment."""
        is_active = WorkflowState(document.current_state) in ACTIVE_STATES
        lease = self._seized.lease if is_active else None

        return HandBack(lease=lease, run=self._run, end=self._end, new_run=self._new_run())

    def _new_run(self) -> NewRun | None:
        """Return the run that is queued for a workflow that has none and should be worked on."""
        if self._group.find(Action.ENQUEUE) is None or not self._is_active():
            return None

        return self._parts.new_run(self._seized.document)


def _stop_reason(run: Run, step: RecoveryStep, ended: Ending) -> str:
    wanted = run.reason or step.why
    if ended.is_certain and not step.why.startswith(UNCONFIRMED):
        return wanted
    found = ended.describe() if ended.evidence else step.why.removeprefix(f"{UNCONFIRMED}: ")

    return stop_reason(wanted, found)


def _wish(group: Group) -> Wish:
    """Return what may be taken, and from whom: the lease of one that is dead or unproven is taken by its fence."""
    lease, claim = group.looked.lease, group.looked.evidence.lease
    if lease is None or claim.proof in (Proof.FREE, Proof.OVER):
        return Wish(adw_id=group.adw_id, verdict=claim.verdict)

    return Wish(adw_id=group.adw_id, verdict=claim.verdict, fence=lease.fence)


def _recovered(deed: Deed, found: Run | None) -> list[Recovered]:
    run, settled = deed.run, deed.settled or found
    if run is None or deed.end is None or settled is None:
        return []
    step = deed.group.main

    return [
        Recovered(
            run_id=run.run_id,
            adw_id=run.adw_id,
            before=run.state,
            after=settled.state,
            action=step.action,
            proof=str(step.evidence.get("proof") or Verdict.UNKNOWN.value),
        )
    ]
