"""
Rollbacks that a worker makes: queued as runs like all other work, so that whoever asks need not wait.

A workflow has one unfinished run. One that waits gives way to the rollback; whoever works on one is asked to stop, and
the rollback is queued when the workflow is free.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from adws.adw_modules.command_rules import Mark
from adws.adw_modules.coordination.workflow_work import TROUBLE_SECONDS, WorkEnd, end_of
from adws.adw_modules.errors import WorkflowBusy
from adws.adw_modules.interfaces import Clock, Request, Requests
from adws.adw_modules.interfaces_engine import RunQueue
from adws.adw_modules.outcome import Done, Failed, Outcome, RetryAt
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.rollback import RollbackReport, Rollbacks, payload_of
from adws.adw_modules.rollback_rules import Wishes
from adws.adw_modules.runs import ROLLBACK, NewRun, Run, RunEnd, RunState

#: Seconds between two looks whether the owner has let go.
LOOK_SECONDS = 0.2
#: How often a worker takes up a rollback that is blocked, and at most how many seconds apart.
MAX_ROLLBACKS = 10
MAX_BLOCKED_SECONDS = 3600.0


class RollbackRuns:
    """Queues rollbacks, and makes those that a worker has claimed."""

    def __init__(self, rollbacks: Rollbacks, *, runs: RunQueue, requests: Requests, clock: Clock) -> None:
        self._rollbacks = rollbacks
        self._runs = runs
        self._requests = requests
        self._clock = clock

    def queue(self, adw_id: str, wishes: Wishes, *, by: str = "", wait_seconds: float = 30.0) -> Run:
        """Return the durable run that will roll the workflow back; raise WorkflowBusy when its owner stays at it."""
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

    def work(self, run: Run) -> WorkEnd:
        """
        Make the rollback of a claimed run; what cannot be undone now is tried again a few times.

        Raises what `rollback` raises. Implements `Errand`.
        """
        now = self._clock.now()
        report, ended = self._rollbacks.work(run, wishes_of(run), lambda report: _end_of(run, report, now=now))

        return WorkEnd(run=ended, outcome=after_rollback(run, report, now=now), message=ended.reason)

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


def wishes_of(run: Run) -> Wishes:
    """Return what whoever queued a rollback asked for."""
    hosts = run.payload.get("forget_hosts")
    reason = str(run.payload.get("reason") or "") or f"rolled back by {run.asked_by or 'a worker'}"

    return Wishes(
        reason=reason,
        keep_branch=run.payload.get("keep_branch") is True,
        force=run.payload.get("force") is True,
        forget_hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
        by=str(run.payload.get("by") or run.asked_by),
        mark=Mark.from_json(run.payload.get("mark")),
    )
