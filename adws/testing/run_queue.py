"""
The run queue in memory.

Time comes from the clock that is passed in: advance it to make a run due or to let a claim run out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from adws.adw_modules import timestamps
from adws.adw_modules.demands import Demands, Offer, meets
from adws.adw_modules.errors import RunLost, RunNotFound, StateUnserialisable, UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.run_limits import full_labels
from adws.adw_modules.runs import (
    DELIVERY,
    FINAL_RUNS,
    ITERATION,
    LIVE_RUNS,
    NO_TERMS,
    ROLLBACK,
    NewRun,
    Run,
    RunEnd,
    RunState,
    Terms,
    check_due,
    check_final,
    check_new_run,
)


class MemoryRunQueue:
    """A `RunQueue` in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.RLock()
        self._runs: dict[int, Run] = {}
        self._ends: dict[int, float] = {}  #: of claims, by Clock.boottime
        self._last_id = 0
        self._changes = 0
        self.followers: list[Callable[[Run], None]] = []  #: told of every change, such as the sessions of agents

    # --- waiting -----------------------------------------------------------------------------------------------

    def enqueue(self, run: NewRun) -> Run:
        """Store a run; the workflow's unfinished run when it has one."""
        run = check_new_run(run)
        with self._guard:
            unfinished = [
                other
                for other in self._runs.values()
                if (other.adw_id, other.slot) == (run.adw_id, run.slot) and other.state not in FINAL_RUNS
            ]
            if unfinished:
                return self._shown(unfinished[0])
            moment = self._moment()
            self._last_id += 1
            return self._put(
                Run(
                    run_id=self._last_id,
                    adw_id=run.adw_id,
                    kind=run.kind,
                    state=RunState.PENDING,
                    priority=run.priority,
                    not_before=run.not_before,
                    attempts=0,
                    token=0,
                    owner="",
                    seconds_left=0.0,
                    reason="",
                    payload=_copied(run.payload),
                    asked_by=run.asked_by,
                    created_at=moment,
                    updated_at=moment,
                    demands=run.demands,
                    labels=run.labels,
                    slot=run.slot,
                    parent_run_id=run.parent_run_id,
                )
            )

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: Terms = NO_TERMS,
    ) -> Run | None:
        """Take the next run that is due (or *run_id*, if it still waits), None when there is none."""
        with self._guard:
            may_claim = self._on_terms(owner, NO_TERMS if only_deliveries else terms, terms.offer)
            run = self._next(may_claim, only_deliveries=only_deliveries) if run_id is None else self._runs.get(run_id)
            if run is None or run.state is not RunState.PENDING or not may_claim(run):
                return None
            self._ends[run.run_id] = self._clock.boottime() + ttl_seconds
            return self._put(
                run,
                state=RunState.CLAIMED,
                attempts=run.attempts + 1,
                token=run.token + 1,
                owner=owner.to_text(),
                reason="",
            )

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds the next waiting run is due (0 when one is), None when none waits."""
        with self._guard:
            waiting = [run.not_before for run in self._runs.values() if run.state is RunState.PENDING]
        if not waiting:
            return None
        first = min(waiting)

        return max(0.0, (timestamps.parse(first) - self._clock.now()).total_seconds()) if first else 0.0

    def watch(self) -> MemoryWatch:
        """Return something that says whether the queue changed."""
        return MemoryWatch(self)

    # --- with a worker -----------------------------------------------------------------------------------------

    def begin(self, run: Run) -> Run:
        """Say that work on a claimed run has begun; one that shall stop stays STOPPING."""
        with self._guard:
            ours = self._ours(run)
            state = RunState.RUNNING if ours.state is RunState.CLAIMED else ours.state
            return self._put(ours, state=state, started_at=ours.started_at or self._moment())

    def renew(self, run: Run, *, ttl_seconds: float) -> Run:
        """Push the end of the claim out, also of one that is over and that nobody took back."""
        with self._guard:
            ours = self._ours(run)
            self._ends[run.run_id] = self._clock.boottime() + ttl_seconds
            return self._put(ours, updated_at=ours.updated_at)

    def requeue(self, run: Run, *, not_before: str = "", reason: str = "", demands: Demands | None = None) -> Run:
        """Give the run back, to its old place: PENDING again, STOPPED when it was to stop."""
        due = check_due(not_before)
        with self._guard:
            ours = self._ours(run)
            waiting = ours if demands is None else replace(ours, demands=demands)
            return self._give_back(waiting, not_before=due, reason=reason)

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End the run: COMPLETED, FAILED or STOPPED."""
        check_final(state)
        with self._guard:
            ours = self._ours(run)
            kept = ours.reason if state is RunState.STOPPED and not reason else reason
            return self._put(ours, state=state, owner="", reason=kept, finished_at=self._moment())

    def end(self, run: Run, end: RunEnd) -> Run:
        """Give the run back or end it; for `MemoryLeases`, where the workflow is given back with that."""
        if end.state is RunState.PENDING:
            return self.requeue(run, not_before=end.not_before, reason=end.reason, demands=end.demands)
        return self.finish(run, end.state, reason=end.reason)

    def take_back(self, run: Run, *, reason: str) -> Run | None:
        """Make a run whose worker is gone PENDING again, None when it moved on or its worker came back."""
        with self._guard:
            try:
                ours = self._ours(run)
            except RunLost:
                return None
            if run.seconds_left <= 0.0 < self._left(ours):
                return None
            lost = replace(ours, losses=ours.losses + 1)
            return self._give_back(lost, not_before=ours.not_before, reason=reason)

    def bury(self, run: Run, *, reason: str) -> Run | None:
        """End a run that too many workers vanished with: DEAD (STOPPED if it was stopping), None when it moved on."""
        with self._guard:
            found = self._runs.get(run.run_id)
            if found is None or found.state in FINAL_RUNS or (found.token, found.owner) != (run.token, run.owner):
                return None
            if run.seconds_left <= 0.0 < self._left(found):
                return None
            is_stopping = found.state is RunState.STOPPING
            return self._put(
                found,
                state=RunState.STOPPED if is_stopping else RunState.DEAD,
                owner="",
                reason=(found.reason if is_stopping else "") or reason,
                losses=found.losses + (found.state is not RunState.PENDING),
                finished_at=self._moment(),
            )

    def settle_lost(self, run: Run, end: RunEnd) -> Run | None:
        """Do what was decided about a run whose worker is gone, or that waits; None when it moved on."""
        with self._guard:
            found = self._runs.get(run.run_id)
            if found is None or found.state in FINAL_RUNS or (found.token, found.owner) != (run.token, run.owner):
                return None
            if run.seconds_left <= 0.0 < self._left(found):
                return None
            is_stopping = found.state is RunState.STOPPING
            state = RunState.STOPPED if is_stopping else end.state
            kept = found.reason if is_stopping and end.state is not RunState.STOPPED else ""
            return self._put(
                found,
                state=state,
                owner="",
                reason=kept or end.reason,
                losses=found.losses + (found.state is not RunState.PENDING),
                finished_at=None if state is RunState.PENDING else self._moment(),
            )

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits is STOPPED at once, one with a worker becomes STOPPING. Idempotent."""
        with self._guard:
            run = self._runs.get(run_id)
            if run is None:
                raise RunNotFound(run_id)
            if run.state is RunState.PENDING:
                return self._put(run, state=RunState.STOPPED, reason=reason, finished_at=self._moment())
            if run.state in {RunState.CLAIMED, RunState.RUNNING}:
                return self._put(run, state=RunState.STOPPING, reason=reason)
            return self._shown(run)

    def wake(self, adw_id: str) -> int:
        """Make the run of a workflow due that waits for its time; for `MemoryExecutions`."""
        with self._guard:
            moment = self._moment()
            waiting = [
                run
                for run in self._runs.values()
                if (run.adw_id, run.slot, run.state) == (adw_id, "", RunState.PENDING)
                and run.kind != ROLLBACK
                and run.not_before > moment
            ]
            for run in waiting:
                self._put(run, not_before="")
            return len(waiting)

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, run_id: int) -> Run | None:
        """Return a run."""
        with self._guard:
            run = self._runs.get(run_id)
            return None if run is None else self._shown(run)

    def of_workflow(self, adw_id: str, *, limit: int = 50) -> tuple[Run, ...]:
        """Return the runs of a workflow, newest first, without the lanes of its steps."""
        check_adw_id(adw_id)
        found = (run for run in self._newest_first() if run.adw_id == adw_id and run.kind != ITERATION)
        return tuple(found)[: _checked(limit)]

    def page(self, *, states: Sequence[RunState] = (), limit: int = 50, before: int | None = None) -> tuple[Run, ...]:
        """Return runs, newest first, those with a lower id than *before*."""
        found = (
            run
            for run in self._newest_first()
            if (not states or run.state in states) and (before is None or run.run_id < before)
        )
        return tuple(found)[: _checked(limit)]

    def live(self) -> tuple[Run, ...]:
        """Return every run that a worker has, or had when it died."""
        return tuple(run for run in reversed(self._newest_first()) if run.state in LIVE_RUNS)

    def demanding(self) -> tuple[Run, ...]:
        """Return every waiting run that demands something, the oldest first."""
        waiting = (run for run in reversed(self._newest_first()) if run.state is RunState.PENDING)
        return tuple(run for run in waiting if run.demands.to_text())

    def remove(self, adw_id: str) -> None:
        """Take the runs of a workflow away; for `MemoryRegistry`, whose workflow was never written."""
        with self._guard:
            self._runs = {run_id: run for run_id, run in self._runs.items() if run.adw_id != adw_id}
            self._changes += 1

    @property
    def changes(self) -> int:
        """Return how often anything changed."""
        return self._changes

    # --- how -----------------------------------------------------------------------------------------------------

    def _on_terms(self, owner: OwnerRecord, terms: Terms, offer: Offer | None) -> Callable[[Run], bool]:
        """Return what says whether a run may be claimed on *terms* by who has this *offer*."""
        offered = offer or Offer(host=owner.host)
        live = [run.labels for run in self._runs.values() if run.state in LIVE_RUNS]
        full = set(full_labels(live, terms.limits))

        return lambda run: meets(offered, run.demands) and not full & run.labels

    def _next(self, may_claim: Callable[[Run], bool], *, only_deliveries: bool) -> Run | None:
        now = self._moment()
        waiting = (run for run in self._runs.values() if run.state is RunState.PENDING)
        due = [run for run in waiting if run.not_before <= now and may_claim(run)]
        if only_deliveries:
            due = [run for run in due if run.kind == DELIVERY]
        return min(due, key=lambda run: (-run.priority, run.run_id), default=None)

    def _ours(self, run: Run) -> Run:
        found = self._runs.get(run.run_id)
        if found is None or found.state not in LIVE_RUNS or (found.token, found.owner) != (run.token, run.owner):
            raise RunLost(run.run_id)
        return found

    def _give_back(self, run: Run, *, not_before: str, reason: str) -> Run:
        if run.state is RunState.STOPPING:
            return self._put(
                run,
                state=RunState.STOPPED,
                owner="",
                not_before=not_before,
                reason=run.reason or reason,
                finished_at=self._moment(),
            )
        return self._put(run, state=RunState.PENDING, owner="", not_before=not_before, reason=reason)

    def _put(self, run: Run, **changes: object) -> Run:
        self._changes += 1
        self._runs[run.run_id] = replace(run, **{"updated_at": self._moment(), **changes})  # type: ignore[arg-type]  # mypy does not know which field is which
        for follow in self.followers:
            follow(self._runs[run.run_id])
        return self._shown(self._runs[run.run_id])

    def _newest_first(self) -> list[Run]:
        with self._guard:
            return [self._shown(run) for _, run in sorted(self._runs.items(), reverse=True)]

    def _shown(self, run: Run) -> Run:
        return replace(run, seconds_left=self._left(run), payload=_copied(run.payload))

    def _left(self, run: Run) -> float:
        return self._ends[run.run_id] - self._clock.boottime() if run.owner else 0.0

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


class MemoryWatch:
    """A `QueueWatch` on a queue in memory."""

    def __init__(self, queue: MemoryRunQueue) -> None:
        self._queue = queue
        self._seen = -1

    def has_changed(self) -> bool:
        """Say whether there is something new; the first look says yes."""
        seen, self._seen = self._seen, self._queue.changes
        return seen != self._seen

    def close(self) -> None:
        """Look anew the next time."""
        self._seen = -1


def _copied(payload: JsonObject) -> JsonObject:
    try:
        copied: JsonObject = json.loads(json.dumps(payload, allow_nan=False))
    except (ValueError, TypeError) as exc:
        raise StateUnserialisable(f"the payload of a run is not JSON: {exc}") from exc
    return copied


def _checked(limit: int) -> int:
    if limit < 1:
        raise UsageError(f"a page needs a limit of at least 1, not {limit}")
    return limit
