"""
Finding work whose worker is gone, and making it ready to go on.

Evidence is gathered from documents, leases and runs; `recovery_rules` makes the plan; each workflow is then settled
under its own lease, so that a worker that came back meanwhile is left alone. Every run that is recovered leaves an
event in the history of its workflow, a line in the log and a count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from adws.adw_modules import ambient, stopping_rules
from adws.adw_modules.coordination.keeper import Keeper
from adws.adw_modules.coordination.ownership import WorkflowOwnership
from adws.adw_modules.coordination.recovery_deeds import OWNING, DeedParts, Deeds, Group
from adws.adw_modules.coordination.recovery_evidence import EvidenceGatherer, Looked, Owners
from adws.adw_modules.coordination.request_desk import PAUSING
from adws.adw_modules.coordination.seizing import Seizing
from adws.adw_modules.coordination.workflow_work import Errand
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import AdwError, DatabaseError, UsageError, WorkflowBusy
from adws.adw_modules.interfaces import Catalogue, Clock, IssueLocks, Processes, Requests, StateStore
from adws.adw_modules.interfaces_coordination import Counters
from adws.adw_modules.interfaces_engine import NoOrders, RunQueue
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.recovery_facts import (
    Action,
    Evidence,
    Mode,
    Policy,
    Recovered,
    RecoveryResult,
    RecoveryStep,
    mode_of,
)
from adws.adw_modules.recovery_rules import plan_recovery
from adws.adw_modules.run_making import RunMaker
from adws.adw_modules.runs import FINAL_RUNS, Run, RunEnd, RunState

logger = logging.getLogger("adw.recovery")

#: What is counted, by verdict, mode and action.
METRIC = "adw_runs_recovered_total"
#: Workflows recovered at a time up to which each has it in its own log, too; the log of adw has all of them.
MOST_LOGGED = 100


class Left(Protocol):
    """Taking away what crashes leave of workflows that are over, or never came to be (`WorkflowOwnership`)."""

    def release_if_finished(self, adw_id: str) -> bool:
        """Free the issue of a workflow that has ended, and say whether it still had one."""

    def forget_unwritten(self, adw_id: str) -> bool:
        """Take a workflow away whose creator died before its first write; raise WorkflowBusy while he may live."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryParts:
    """What recovery looks at and works with."""

    clock: Clock
    store: StateStore
    catalogue: Catalogue
    locks: IssueLocks
    runs: RunQueue
    requests: Requests  #: where whoever asked for a stop reads that it was made
    processes: Processes
    ownership: WorkflowOwnership
    left: Left
    engine: EngineParts
    keeper: Keeper  #: ending the processes of a dead worker may take longer than a lease
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what a dead worker left running
    bring_up: Callable[[str], None] | None = None  #: brings the database copy of a document up; None: there is none
    free_left_behind: Callable[[], object] = lambda: None  #: frees ports and places of workflows nobody works on
    maker: RunMaker = field(default_factory=RunMaker)  #: makes the run that goes on with a workflow that has none
    counters: Counters | None = None
    errands: Mapping[str, Errand] = field(default_factory=dict)  #: kind of run -> who is told that it is given up
    mode: Mode = Mode.STALE  #: where nobody says another
    threads: int = 1  #: that settle workflows at the same time: worth it where each write waits by itself
    policy: Policy = field(default_factory=Policy)


class Recovery:
    """Plans and applies recovery."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._reported: set[tuple[str, str]] = set()
        self._seizing = Seizing(parts.ownership, processes=parts.processes)

    @property
    def policy(self) -> Policy:
        """What the settings want."""
        return self._parts.policy

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
            looked.evidence for looked in self._look(Owners(self._parts.processes), every_document=every_document)
        )

    def _look(self, owners: Owners, *, every_document: bool) -> tuple[Looked, ...]:
        parts = self._parts
        gatherer = EvidenceGatherer(
            store=parts.store,
            catalogue=parts.catalogue,
            leases=self._seizing.leases,
            locks=parts.locks,
            runs=parts.runs,
            has_copies=parts.bring_up is not None,
        )

        return tuple(gatherer.gather(owners, every_document=every_document))

    def planned(
        self, *, every_document: bool = False, mode: Mode | None = None, policy: Policy | None = None
    ) -> list[Group]:
        """Return the same with what it was made from, each workflow's steps together."""
        owners = Owners(self._parts.processes)
        looked = self._look(owners, every_document=every_document)
        now, mode, policy = self._parts.clock.now(), mode or self._parts.mode, policy or self._parts.policy

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
        the_mode = mode or self._parts.mode
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
        self._parts.free_left_behind()  # last: what was cut off is closed by now

        return result

    def _do(self, groups: list[Group], mode: Mode) -> tuple[list[RecoveryStep], list[Recovered]]:
        parts = self._parts
        owning = [group for group in groups if _needs_lease(group)]
        # Opening the log of each is a third of the work; the history of each tells the same.
        is_quiet = len(owning) > MOST_LOGGED
        deeds = Deeds(
            DeedParts(
                runs=parts.runs,
                engine=replace(parts.engine, log_of=nullcontext, has_log=False) if is_quiet else parts.engine,
                keeper=parts.keeper,
                seizing=self._seizing,
                end_process=parts.end_process,
                new_run=lambda document: parts.maker.of(document, "resume", asked_by="recovery"),
                threads=parts.threads,
            ),
            mode=mode,
        )
        done: list[RecoveryStep] = []
        recovered: list[Recovered] = []
        for group in groups:
            for step in group.steps:
                if not (_needs_lease(group) and step.action in OWNING):
                    done.extend([step] if self._apply(step, group, recovered) else [])
        finished, runs = deeds.do_all(owning)
        recovered.extend(runs)
        for group in finished:
            done.extend(step for step in group.steps if step.action in OWNING)
            self._tell(group.main)
            if group.main.action is Action.STOP:
                self._answer_stop(group.adw_id)

        return done, recovered

    def _answer_stop(self, adw_id: str) -> None:
        """Answer what was asked of the worker who died over it: the workflow is parked."""
        data = self._parts.store.peek(adw_id).data
        for request in self._parts.requests.open_for(adw_id):
            if request.kind in PAUSING:
                self._parts.requests.handled(request.request_id, f"paused: {data.get('pause_reason')}")

    def _apply(self, step: RecoveryStep, group: Group, recovered: list[Recovered]) -> bool:
        """Do one step that needs no lease; False when it was not needed any more, or could not be done now."""
        try:
            is_done = self._do_alone(step, group, recovered)
        except WorkflowBusy:
            return False  # its worker came back, or another recovery is at it
        except DatabaseError:
            raise  # nothing can be done without it
        except AdwError as exc:
            said = {"action": "recovery_failed", "workflow": step.adw_id}
            logger.warning("Could not recover", extra=said, exc_info=exc)
            return False
        if is_done and step.action is not Action.REPORT:
            self._tell(step)

        return is_done

    def _do_alone(self, step: RecoveryStep, group: Group, recovered: list[Recovered]) -> bool:
        parts = self._parts
        if step.action is Action.REPORT:
            return self._report(step)
        if step.action is Action.PROJECT:
            return self._project(step)
        if step.action is Action.FREE_ISSUE:
            return parts.left.release_if_finished(step.adw_id)
        if step.action is Action.FORGET:
            return parts.left.forget_unwritten(step.adw_id)
        if step.action is Action.END_LEFT:
            return self._end_left(step.adw_id)

        return self._settle_alone(step, group, recovered)

    def _end_left(self, adw_id: str) -> bool:
        """End what attempts left here that were closed elsewhere; whoever works on it now need not be waited for."""
        parts = self._parts
        before = stopping_rules.in_doubt(parts.store.load(adw_id).document.phases)
        for _, attempt in before:
            parts.end_process(attempt.process or {})
        with parts.ownership.own(adw_id) as owned, parts.engine.log_of(adw_id), parts.keeper.charge(owned):
            WorkSession(parts.engine, owned, NoOrders()).end_left()
            after = stopping_rules.in_doubt(owned.document.phases)

        return len(after) < len(before)

    def _settle_alone(self, step: RecoveryStep, group: Group, recovered: list[Recovered]) -> bool:
        """Settle a run that has no document: what a delivery asks for, or one whose document nobody can read."""
        run = self._still(group.looked.run)
        if run is None or step.after is None:
            return False
        errand = self._parts.errands.get(run.kind)
        if step.after is RunState.FAILED and errand is not None:
            errand.give_up(run, step.why)
        reason = run.reason if run.state is RunState.STOPPING and run.reason else step.why
        settled = self._parts.runs.settle_lost(run, RunEnd(state=step.after, reason=reason))
        if settled is None:
            return False
        recovered.append(
            Recovered(
                run_id=run.run_id,
                adw_id=run.adw_id,
                before=run.state,
                after=settled.state,
                action=step.action,
                proof=str(step.evidence.get("proof") or ""),
            )
        )

        return True

    def _still(self, planned: Run | None) -> Run | None:
        """Return a run as it stands, None when it moved on since the plan was made."""
        found = self._parts.runs.get(planned.run_id) if planned is not None else None
        if planned is None or found is None or found.state in FINAL_RUNS:
            return None
        if (found.token, found.owner) != (planned.token, planned.owner):
            return None

        return None if planned.seconds_left <= 0.0 < found.seconds_left else found

    def _report(self, step: RecoveryStep) -> bool:
        key = (step.adw_id, step.why)
        if key not in self._reported:  # recovery comes every minute, a person does not
            self._reported.add(key)
            said = {"action": "recovery_report", "workflow": step.adw_id, "why": step.why}
            logger.error("Needs a person", extra=said)

        return True

    def _project(self, step: RecoveryStep) -> bool:
        if self._parts.bring_up is None:
            return False
        self._parts.bring_up(step.adw_id)

        return True

    def _tell(self, step: RecoveryStep) -> None:
        said = {"action": "recovered", "workflow": step.adw_id, "step": step.action.value, "why": step.why}
        logger.warning("Recovered", extra={**said, "run_id": step.run_id})

    def _count(self, result: RecoveryResult) -> None:
        if self._parts.counters is None:
            return
        for (verdict, mode, action), amount in result.metrics().items():
            labels = {"verdict": verdict, "mode": mode, "action": action}
            self._parts.counters.add(METRIC, labels, float(amount))


def _without_leaving(group: Group) -> Group:
    kept = tuple(step for step in group.steps if step.action is not Action.LEAVE)

    return group if len(kept) == len(group.steps) else replace(group, steps=kept)


def _needs_lease(group: Group) -> bool:
    """Say whether something is done about a workflow whose document can be read."""
    seen = group.looked.evidence

    return bool(seen.state) and not seen.is_errand and group.find(*OWNING) is not None


# --- by name ---------------------------------------------------------------------------------------------------


@runtime_checkable
class RecoveringParts(Protocol):
    """Parts of a home that has something to recover with (`adws.app.App`)."""

    @property
    def recovery(self) -> Recovery: ...


def recovery_of(parts: object | None = None) -> Recovery:
    """Return what recovers the home of *parts*, of the home we are in without; raise UsageError."""
    found = ambient.parts() if parts is None else parts
    if not isinstance(found, RecoveringParts):
        raise UsageError("these parts have nothing to recover with: open a home, or pass one that has a recovery")

    return found.recovery


def recover_stale_runs(
    stale_threshold_seconds: float = 300, *, fails_running: bool | None = None, parts: object | None = None
) -> RecoveryResult:
    """
    Take back what is proven to be left, and what has been silent for the threshold where nothing is proven.

    With *fails_running* runs that were being worked on fail; the settings decide without.
    """
    recovery = recovery_of(parts)
    policy = replace(recovery.policy, threshold_seconds=stale_threshold_seconds, is_forced=False)
    if fails_running is not None:
        policy = replace(policy, fails_running=fails_running)

    return recovery.recover(every_document=True, mode=Mode.STALE, policy=policy)


def recover_all_active_runs(
    *, force: bool = False, fails_running: bool | None = None, parts: object | None = None
) -> RecoveryResult:
    """Take back everything whose owner is not alive, whatever its age; with *force* also from those that are."""
    recovery = recovery_of(parts)
    policy = replace(recovery.policy, is_forced=force)
    if fails_running is not None:
        policy = replace(policy, fails_running=fails_running)

    return recovery.recover(every_document=True, mode=Mode.ALL, policy=policy)


def recover_by(mode: str, *, parts: object | None = None) -> RecoveryResult:
    """Recover in the mode called *mode*; raise UsageError, which names the modes there are."""
    the_mode = mode_of(mode)

    return recovery_of(parts).recover(every_document=True, mode=the_mode)
