"""
Undoing everything a workflow made, so that nothing is left but what was kept on request.

A plan is written first. Each step is recorded before and after it is made, may be made twice, and fails alone: what
cannot be undone now stays on the document's list, blocks every other use of the workflow, and is tried by the next
call. A merged pull request stops it before anything is touched. `rolled_back` is written when the list is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from adws.adw_modules import ambient, command_rules, effect_rules, rollback_rules
from adws.adw_modules.demands import Demands
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
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
)
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Owned, Ownership, Requests
from adws.adw_modules.interfaces_engine import NoOrders, RunQueue
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.moving_rules import FORGOTTEN
from adws.adw_modules.retry_handler import Retry, RetryPolicy, decide
from adws.adw_modules.rollback_forge import refuse_merged
from adws.adw_modules.rollback_hands import Done, Hands
from adws.adw_modules.rollback_rules import Step, Wishes
from adws.adw_modules.rollback_steps import Undoing
from adws.adw_modules.runs import FINAL_RUNS, ROLLBACK, NewRun, Run, RunEnd
from adws.adw_modules.state_machine import WorkflowState
from adws.adw_modules.state_table import ACTIVE_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

__all__ = ["Hands", "RollbackParts", "RollbackReport", "Rollbacks", "WorkflowRollback", "mark_workflow_rolled_back"]

logger = logging.getLogger("adw.rollback")

#: How often one step is tried in one call, and the seconds of all its tries together.
STEP_ATTEMPTS = 3
STEP_SECONDS = 60.0
_POLICY = RetryPolicy(max_attempts=STEP_ATTEMPTS, backoff_base_seconds=1.0, backoff_max_seconds=20.0)
#: Not a step's failure: somebody else owns the workflow, or what was done cannot be written down.
_NOT_OURS = (OwnershipError, StateError, DatabaseError)


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackParts:
    """What a rollback works with."""

    ownership: Ownership
    engine: EngineParts
    runs: RunQueue
    requests: Requests
    hands: Hands
    load: Callable[[str], WorkflowDocument]  #: reads a document without owning it
    #: Renews the lease, and the claim of a run, inside the block.
    keep: Callable[[Owned, Run | None], AbstractContextManager[object]] = lambda _owned, _run: nullcontext()
    observe: Callable[[WorkSession], None] = lambda _session: None  #: records what a cut-off attempt made unseen


@runtime_checkable
class RollsBack(Protocol):
    """A home whose workflows can be rolled back (`app.App`)."""

    @property
    def rollback_parts(self) -> RollbackParts: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackReport:
    """What came of a rollback, or what one would do."""

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
        return rollback_rules.blocked_by(self.steps)

    @property
    def kept(self) -> list[str]:
        """What is left on purpose."""
        return rollback_rules.kept(self.steps)

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
            "waits_for_hosts": list(self.waits_for),
        }


class Rollbacks:
    """Rolls workflows back."""

    def __init__(self, parts: RollbackParts) -> None:
        self._parts = parts

    def plan(self, adw_id: str, wishes: Wishes) -> RollbackReport:
        """Return what a rollback would do; nothing is changed. Raises PullRequestMerged."""
        document = self._parts.load(check_adw_id(adw_id))
        refuse_merged(document, self._parts.hands.forge)
        self._check_forgotten(document, wishes)
        steps = () if document.current_state == WorkflowState.ROLLED_BACK.value else self._plan(document, wishes)

        return RollbackReport(
            adw_id=adw_id,
            state=document.current_state,
            steps=steps or rollback_rules.recorded_steps(document),
            is_dry_run=True,
        )

    def rollback(self, adw_id: str, wishes: Wishes) -> RollbackReport:
        """
        Undo what the workflow made and return what came of it; one that is rolled back already is left as it is.

        Raises WorkflowBusy while somebody works on it, PullRequestMerged when there is nothing to undo any more.
        """
        with self._parts.ownership.own(check_adw_id(adw_id)) as owned:
            report = self._made(owned, wishes)
        self._hand_on(report, wishes)

        return report

    def _hand_on(self, report: RollbackReport, wishes: Wishes) -> None:
        """Queue the rest for the machine that it is on; one after the other, when there are several."""
        if not report.waits_for or not self._parts.hands.is_shared:
            return
        demands = Demands(host=report.waits_for[0])
        self._parts.runs.enqueue(
            NewRun(adw_id=report.adw_id, kind=ROLLBACK, payload=payload_of(wishes), asked_by=wishes.by, demands=demands)
        )

    def work(self, run: Run, wishes: Wishes, end: Callable[[RollbackReport], RunEnd]) -> tuple[RollbackReport, Run]:
        """Do the same for a run that we have claimed, and end it as *end* says; return the report and the run."""
        with self._parts.ownership.own(run.adw_id, run=run) as owned:
            report = self._made(owned, wishes)

            return report, owned.end_run(owned.run or run, end(report))

    def _made(self, owned: Owned, wishes: Wishes) -> RollbackReport:
        parts = self._parts
        with parts.keep(owned, owned.run), parts.engine.log_of(owned.lease.adw_id):
            session = WorkSession(parts.engine, owned, NoOrders())
            if session.document.current_state == WorkflowState.ROLLED_BACK.value:
                self._stop_work(session, owned.run)
                return _report(session.document, rollback_rules.recorded_steps(session.document))
            refuse_merged(session.document, parts.hands.forge)
            self._check_forgotten(session.document, wishes)
            self._stop_work(session, owned.run)
            return _Running(parts, owned, session, wishes).run(lambda: self._plan(session.document, wishes))

    def _stop_work(self, session: WorkSession, ours: Run | None) -> None:
        """Answer and end what still waits for the workflow: from here on nothing goes on with it, but for our run."""
        adw_id = session.document.adw_id
        for request in self._parts.requests.open_for(adw_id):
            self._parts.requests.handled(request.request_id, "the workflow is rolled back")
        for run in self._parts.runs.of_workflow(adw_id):
            if run.state not in FINAL_RUNS and (ours is None or run.run_id != ours.run_id):
                self._parts.runs.ask_to_stop(run.run_id, reason="the workflow is rolled back")

    def _plan(self, document: WorkflowDocument, wishes: Wishes) -> tuple[Step, ...]:
        hands = self._parts.hands
        root = hands.git.root if hands.git else None
        names = rollback_rules.external_names(document.adw_id) if root else ()
        external = [str(root / name) for name in names if root and (root / name).exists()]

        return rollback_rules.plan_rollback(
            document, wishes=wishes, external=external, has_forge=hands.forge is not None, host=hands.host
        )

    def _check_forgotten(self, document: WorkflowDocument, wishes: Wishes) -> None:
        """Raise UsageError for a machine that cannot be given up: this one, or one that has nothing of the workflow."""
        hosts = {step.host for step in self._plan(document, replace(wishes, forget_hosts=()))} - {""}
        for host in wishes.forget_hosts:
            if host == self._parts.hands.host:
                raise UsageError(f"this is {host}: what is here is undone here, and not given up")
            if host not in hosts:
                known = ", ".join(sorted(hosts)) or "no machine"
                raise UsageError(f"workflow {document.adw_id} has nothing on {host}: it has something on {known}")


class _Running:
    """One rollback while it is made."""

    def __init__(self, parts: RollbackParts, owned: Owned, session: WorkSession, wishes: Wishes) -> None:
        self._parts = parts
        self._owned = owned
        self._session = session
        self._wishes = wishes
        self._undoing = Undoing(parts.hands, session, wishes)
        self._steps: tuple[Step, ...] = ()

    def run(self, plan: Callable[[], tuple[Step, ...]]) -> RollbackReport:
        with suppress(StateError):  # without a definition nobody can say what an open attempt means
            self._session.settle()
        self._parts.observe(self._session)
        self._steps = plan()
        self._session.change(self._begin)
        for step in self._steps:
            if step.kind not in {"lock", "state"} and not step.is_over:
                self._make(step)
        if all(step.is_over for step in self._steps if step.kind not in {"lock", "state"}):
            self._parts.hands.release(self._session.document.adw_id)
            self._session.change(self._end)

        waits_for = rollback_rules.hosts_waited_for(self._steps, host=self._parts.hands.host)
        is_over = self._session.document.current_state == WorkflowState.ROLLED_BACK.value

        return replace(_report(self._session.document, self._steps), waits_for=() if is_over else waits_for)

    # --- one step ----------------------------------------------------------------------------------------------

    def _make(self, step: Step) -> None:
        # What is on another machine is not done here, whatever else it waits for.
        is_elsewhere = rollback_rules.hosts_waited_for((step,), host=self._parts.hands.host)
        waits = "" if is_elsewhere else rollback_rules.waits_for(step, self._steps)
        if waits:
            self._store(replace(step, status="blocked", detail=f"waits for: {waits}"))
            return
        self._store(replace(step, status="doing"))
        self._owned.renew()  # nothing is undone by somebody who was taken over
        try:
            came = self._tried(step)
        except NotOurs as exc:
            came = Done(status="left", detail=str(exc))
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

    def _tried(self, step: Step) -> Done:
        clock, attempts = self._parts.hands.clock, 0
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
        draft.tell("rollback_step", data={**data, "status": step.status})
        _settle_effects(draft, step)

    def _write_record(self, draft: Draft) -> None:
        record = draft.document.rollback
        if record is not None:
            draft.document.rollback = record.model_copy(
                update={
                    "steps": [step.to_json() for step in self._steps],
                    "blocked_by": rollback_rules.blocked_by(self._steps),
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
            draft.tell("rollback_begun", data={"reason": self._wishes.reason, **steps})
        command_rules.mark(draft, self._wishes.mark)
        self._write_record(draft)
        self._tell_forgotten(draft)
        for step in self._steps:
            _settle_effects(draft, step)  # of those that are kept on request
        if draft.machine.current_state in ACTIVE_STATES:
            draft.document.terminal_reason = "ROLLED_BACK"
            draft.move(WorkflowState.ABANDONED, {"reason": self._wishes.reason})

    def _tell_forgotten(self, draft: Draft) -> None:
        """Tell of each machine that is given up with this: who, why, and what is left there."""
        known = {entry.key for entry in effect_rules.open_effects(draft.document)}
        for host in dict.fromkeys(self._wishes.forget_hosts):
            steps = [step for step in self._steps if step.host == host and step.status == FORGOTTEN]
            is_news = not any({*step.effects} - known for step in steps)
            if steps and is_news:
                who: JsonObject = {"host": host, "by": self._wishes.by, "reason": self._wishes.reason}
                draft.tell("host_forgotten", data={**who, "left": [step.what for step in steps]})

    def _end(self, draft: Draft) -> None:
        """Free the issue and mark the workflow rolled back in one write: neither is true without the other."""
        done = {"lock": "freed by the write that ended the workflow", "state": ""}
        self._steps = tuple(
            replace(step, status="done", detail=done[step.kind]) if step.kind in done and not step.is_over else step
            for step in self._steps
        )
        self._write_record(draft)
        draft.document.assign(worktree_path=None, backend_port=None, frontend_port=None)
        mark_rolled_back(draft, reason=self._wishes.reason, kept=rollback_rules.kept(self._steps))


def _settle_effects(draft: Draft, step: Step) -> None:
    if not step.is_over:
        return
    known = {entry.key for entry in effect_rules.open_effects(draft.document)}
    outcome = rollback_rules.outcome_of(step)
    for key in step.effects:
        if key in known:
            effect_rules.settle(draft, key, outcome, _why(step, outcome, draft.text))


def _why(step: Step, outcome: str, at: str) -> JsonObject | None:
    """Return what the ledger says of an effect that is not undone; its own facts stay, for whoever finds it."""
    if outcome == FORGOTTEN:
        return {"forgotten": step.detail, "forgotten_at": at}

    return {"reason": step.detail} if outcome == "kept" else None


def payload_of(wishes: Wishes) -> JsonObject:
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
    draft.tell("rolled_back", data={"reason": reason, "kept": list(kept)})


def _report(document: WorkflowDocument, steps: tuple[Step, ...]) -> RollbackReport:
    return RollbackReport(adw_id=document.adw_id, state=document.current_state, steps=steps)


# --- for scripts -----------------------------------------------------------------------------------------------


class WorkflowRollback:
    """Rolls one workflow back, for library users: the home is the one that is open unless parts are given."""

    def __init__(
        self, adw_id: str, logger: logging.Logger | None = None, *, parts: RollbackParts | None = None
    ) -> None:
        self.adw_id = check_adw_id(adw_id)
        self.logger = logger
        self._parts = parts or _ambient_parts()

    def rollback(self, reason: str, *, keep_branch: bool = False, force: bool = False) -> RollbackReport:
        """Undo everything; raise WorkflowBusy or PullRequestMerged. What is blocked is in the report."""
        if not reason.strip():
            raise UsageError("say why the workflow is rolled back: the reason must not be empty")
        report = Rollbacks(self._parts).rollback(
            self.adw_id, Wishes(reason=reason, keep_branch=keep_branch, force=force)
        )
        if self.logger is not None:
            said = {"action": "rollback", "workflow": self.adw_id, "state": report.state, "blocked": report.blocked_by}
            self.logger.info("Rollback ended", extra=said)

        return report


def mark_workflow_rolled_back(adw_id: str, reason: str = "", *, parts: RollbackParts | None = None) -> RollbackReport:
    """
    Mark a workflow rolled back, in its document and in the database, after its rollback is finished.

    There is no mark without that: what is still to be undone is undone first, and blocks the mark when it cannot be.
    """
    return WorkflowRollback(adw_id, logger, parts=parts).rollback(reason or "marked as rolled back")


def _ambient_parts() -> RollbackParts:
    home = ambient.parts()
    if not isinstance(home, RollsBack):
        raise UsageError("the adw home that is open cannot roll back: pass parts=")

    return home.rollback_parts
