"""
Working on one run: own the workflow, make attempts, act on what comes of them.

Only here is an outcome acted on. The run is given back, requeued or ended after the document says so, never before: a
crash in between leaves a run whose worker is gone, and recovery finds both.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from adws.adw_modules import attempt_rules, timestamps
from adws.adw_modules.coordination.keeper import Charge, Keeper
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    OwnershipError,
    RunLost,
    StateConflict,
    StateWriteFailed,
    WorkflowBusy,
)
from adws.adw_modules.interfaces import Clock, Owned, Ownership, Request, Requests
from adws.adw_modules.interfaces_engine import RunQueue
from adws.adw_modules.outcome import Done, Failed, Next, Outcome, Paused, RetryAt, Stopped
from adws.adw_modules.resume_rules import add_hint
from adws.adw_modules.runs import Run, RunState

logger = logging.getLogger("adw.worker")

#: Seconds until a run is tried again whose workflow somebody else is working on.
BUSY_SECONDS = 2.0
#: Seconds until a run is tried again that a full disk or a lost database stopped.
TROUBLE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkParts:
    """What working on runs needs."""

    clock: Clock
    engine: EngineParts
    ownership: Ownership
    runs: RunQueue
    requests: Requests
    keeper: Keeper


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkEnd:
    """How the work on a run ended."""

    run: Run | None  #: as it stands now; None: it is not ours any more
    outcome: Outcome | None  #: None: there was no attempt
    message: str = ""


class RunWork:
    """Carries a claimed run as far as it goes."""

    def __init__(self, parts: WorkParts) -> None:
        self._parts = parts

    def work(self, run: Run, *, owning: AbstractContextManager[Owned] | None = None) -> WorkEnd:
        """Work on *run* until it waits, is parked or over; *owning* is the ownership of who owns it already."""
        try:
            with owning or self._parts.ownership.own(run.adw_id) as owned:
                return self._with(owned, run)
        except WorkflowBusy as exc:
            return self._later(run, str(exc))
        except (RunLost, StateConflict, OwnershipError) as exc:
            logger.warning("Run lost", extra={"action": "run_lost", "run_id": run.run_id, "workflow": run.adw_id})
            return WorkEnd(run=None, outcome=None, message=str(exc))
        except (StateWriteFailed, DatabaseError) as exc:
            return self._later(run, str(exc), seconds=TROUBLE_SECONDS)
        except AdwError as exc:
            return self._give_up(run, exc)

    def _with(self, owned: Owned, run: Run) -> WorkEnd:
        parts = self._parts
        run = parts.runs.begin(run)
        with parts.engine.log_of(run.adw_id), parts.keeper.charge(owned, run) as charge:
            for request in parts.requests.open_for(run.adw_id):  # a former owner may have died over them
                charge.note(request)
            session = WorkSession(parts.engine, owned, charge)
            outcome = self._carry_on(session, charge)
            self._answer_requests(charge, outcome)
        ended = self._act(run, outcome)

        return WorkEnd(run=ended, outcome=outcome)

    def _carry_on(self, session: WorkSession, charge: Charge) -> Outcome:
        """Make attempts until the workflow does not simply go on."""
        while True:
            early = self._obey(session, charge)
            if early is not None:
                return early
            outcome = session.attempt(may_go_on=lambda: not charge.has_business())
            if not isinstance(outcome, Next):
                return outcome

    def _obey(self, session: WorkSession, charge: Charge) -> Outcome | None:
        """Answer what was asked while no attempt is under way; return the outcome when that ends the work."""
        for request in charge.open_requests():
            if request.kind == "hint":
                session.change(partial(_note_hint, request))
                self._handled(charge, request.request_id, "noted")
        order = charge.current()
        if order is None or session.has_begun:
            return None
        if order.kind in ("drain", "lost_lease"):
            return Stopped(reason=order.kind)
        if order.kind in ("pause", "stop"):
            return session.change(lambda draft: attempt_rules.pause(draft, order.reason))

        return session.change(lambda draft: attempt_rules.abandon(draft, order.reason))

    def _answer_requests(self, charge: Charge, outcome: Outcome) -> None:
        for request in charge.open_requests():
            self._handled(charge, request.request_id, describe(outcome))

    def _handled(self, charge: Charge, request_id: int, answer: str) -> None:
        self._parts.requests.handled(request_id, answer)
        charge.answered(request_id)

    # --- acting ------------------------------------------------------------------------------------------------

    def _act(self, run: Run, outcome: Outcome) -> Run:
        runs = self._parts.runs
        if isinstance(outcome, RetryAt):
            return runs.requeue(run, not_before=timestamps.to_text(outcome.at), reason=describe(outcome))
        if isinstance(outcome, Stopped):
            return runs.requeue(run, reason=describe(outcome))
        states = {Done: RunState.COMPLETED, Paused: RunState.STOPPED, Failed: RunState.FAILED}

        return runs.finish(run, states[type(outcome)], reason=describe(outcome))

    def _later(self, run: Run, why: str, *, seconds: float = BUSY_SECONDS) -> WorkEnd:
        due = self._parts.clock.now() + timedelta(seconds=seconds)
        again = self._parts.runs.requeue(run, not_before=timestamps.to_text(due), reason=why)

        return WorkEnd(run=again, outcome=None, message=why)

    def _give_up(self, run: Run, cause: AdwError) -> WorkEnd:
        """End a run that cannot be worked on: its document is missing, damaged, or nobody knows what is on disk."""
        logger.error(
            "Run cannot be worked on",
            extra={"action": "run_failed", "run_id": run.run_id, "workflow": run.adw_id},
            exc_info=cause,
        )
        ended = self._parts.runs.finish(run, RunState.FAILED, reason=str(cause))

        return WorkEnd(run=ended, outcome=None, message=str(cause))


def describe(outcome: Outcome) -> str:
    """Return an outcome in a few words."""
    if isinstance(outcome, Done):
        return outcome.state
    if isinstance(outcome, RetryAt):
        return f"{outcome.phase} is tried again at {timestamps.to_text(outcome.at)}: {outcome.reason}"
    if isinstance(outcome, Paused):
        return f"paused: {outcome.reason}"
    if isinstance(outcome, Failed):
        return f"{outcome.phase} failed ({outcome.reason}): {outcome.message}"
    if isinstance(outcome, Stopped):
        return f"stopped: {outcome.reason}"

    return f"goes on with {outcome.phase}"


def _note_hint(request: Request, draft: Draft) -> None:
    payload = request.payload
    add_hint(draft, str(payload.get("phase") or ""), str(payload.get("text") or ""), request.asked_by)
