"""
Working on a workflow in the terminal it was asked for: through its retries, until it is over or parked.

Ctrl-C suspends: the attempt under way is ended in order and does not count, the workflow is paused. A second one ends
its processes at once. SIGTERM suspends too, but leaves the workflow to the next worker.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from adws.adw_modules import timestamps
from adws.adw_modules.coordination.workflow_work import BUSY_SECONDS, describe
from adws.adw_modules.demands import meets
from adws.adw_modules.errors import AdwError, WorkflowBusy
from adws.adw_modules.interfaces_engine import Order
from adws.adw_modules.outcome import RetryAt, Stopped
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.runs import FINAL_RUNS, LIVE_RUNS, Run, RunState
from adws.cli import log, looking, progress, runner_text
from adws.cli.ending_text import EXIT_INTERRUPTED, EXIT_TERMINATED, Ending

if TYPE_CHECKING:
    from adws.adw_modules.coordination.workflow_work import WorkEnd
    from adws.app import App

CTRL_C = "Ctrl-C"
#: Lanes of steps that are worked on at a time.
_LANES = 8
#: Seconds between two looks at a run that somebody else works on, or at the time of a retry.
_LOOK_SECONDS = 0.25


class Foreground:
    """The work of one command on one workflow; made before anything else, so that all of it is shown."""

    def __init__(self, app: App) -> None:
        self._app = app
        log.install_for_people(app.settings)
        self._progress = progress.make(app.clock, app.redactor.redact_text)
        app.say, app.tell = self._progress.say, self._progress.tell
        self._signal: int | None = None  #: the last one that came
        self._interrupts = 0
        self._held_by = ""  #: why the run waits, as it was said last
        self._seen: str | None = None  #: the last event of somebody else's work that was shown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.close()

    def carry(self, run: Run) -> Ending:
        """Work on a run until it is over or parked, waiting for its retries; follow it when a worker was first."""
        with self._signals():
            ended, message = self._carry(run)
        self._progress.close()
        state = looking.peek(self._app, run.adw_id).data

        return Ending(
            data=state,
            message=message,
            has_worker=ended is not None and ended.state in LIVE_RUNS,
            signal_exit=EXIT_TERMINATED if self._signal == signal.SIGTERM else self._signal and EXIT_INTERRUPTED,
        )

    def _carry(self, run: Run) -> tuple[Run | None, str]:
        """Return the run as it stands in the end, and what is to be said about it."""
        me, ttl_seconds = self._app.processes.me("cli"), self._app.settings.lease_ttl_seconds
        while True:
            claimed = self._app.runs.claim(me, ttl_seconds=ttl_seconds, run_id=run.run_id, terms=self._app.terms)
            if claimed is None:
                found = self._follow(run)
                if found is None or found.state in FINAL_RUNS or self._interrupts:
                    return self._left(found, run)
                self._wait_for_place(found)
                continue
            end = self._app.work.run_work.work(claimed)
            due = self._is_tried_again_at(end)
            if due is None:
                return end.run, _said(end, self._signal)
            if self._wait(run, due):
                return self._left(self._app.runs.get(run.run_id), run)

    def _is_tried_again_at(self, end: WorkEnd) -> datetime | None:
        """Return when to go on with work that only waits, None when there is nothing for us to wait for."""
        if isinstance(end.outcome, RetryAt):
            return end.outcome.at
        if end.outcome is not None or end.run is None or end.run.state is not RunState.PENDING:
            return None
        due = timestamps.parse(end.run.not_before) if end.run.not_before else self._app.clock.now()
        # Somebody had the workflow for a moment; trouble with disk or database is not sat out in a terminal.
        return due if (due - self._app.clock.now()).total_seconds() <= BUSY_SECONDS else None

    def _wait(self, run: Run, due: datetime) -> bool:
        """
        Wait until *due*; say whether that was cut short, by a signal or by somebody who dealt with the run.

        Calls of its steps that are due are made meanwhile: there need not be a worker.
        """
        while (left := (due - self._app.clock.now()).total_seconds()) > 0.0:
            found = self._app.runs.get(run.run_id)
            if self._interrupts or found is None or found.state is not RunState.PENDING:
                return True
            if found.not_before <= timestamps.to_text(self._app.clock.now()):
                return False  # what it waited for is over
            if not self._work_on_lanes(run.adw_id):
                self._app.clock.sleep(min(left, _LOOK_SECONDS))

        return False

    def _work_on_lanes(self, adw_id: str) -> bool:
        """Make calls of the steps of a workflow that are due; say whether there were any."""
        me, ttl_seconds = self._app.processes.me("cli"), self._app.settings.lease_ttl_seconds
        due = self._app.executions.due_lanes(adw_id)[:_LANES]
        claimed = [
            run
            for run_id in due
            if (run := self._app.runs.claim(me, ttl_seconds=ttl_seconds, run_id=run_id, terms=self._app.terms))
        ]
        if not claimed:
            return False
        with ThreadPoolExecutor(len(claimed), thread_name_prefix="adw-lane") as pool:
            list(pool.map(self._app.work.run_work.work, claimed))

        return True

    def _left(self, found: Run | None, run: Run) -> tuple[Run | None, str]:
        """Leave a run that waits, or that somebody else has; Ctrl-C parks what nobody has."""
        if self._signal != signal.SIGINT or found is None or found.state is not RunState.PENDING:
            return found, "" if found is None or found.state in LIVE_RUNS else found.reason
        try:
            self._app.work.control.pause(run.adw_id, by="", reason=CTRL_C)
        except AdwError as exc:
            return found, str(exc)

        return self._app.runs.get(run.run_id), ""

    def _wait_for_place(self, run: Run) -> None:
        """Wait a moment with a run that is due and that we may not claim, and say why, once."""
        offer = self._app.terms.offer
        if offer is not None and not meets(offer, run.demands):
            why = f"it demands {run.demands.describe()}, so it is left to a worker that has that"
        else:
            why = runner_text.why_waiting(self._app, [run]).get(run.run_id, "")
        if why and why != self._held_by:
            self._progress.interject(f"adw: waiting: {why}")
        self._held_by = why
        self._app.clock.sleep(_LOOK_SECONDS)

    # --- somebody else's work ----------------------------------------------------------------------------------

    def _follow(self, run: Run) -> Run | None:
        """Show what somebody else does with the run; return it when it is over, free again, or we are to end."""
        while True:
            found = self._app.runs.get(run.run_id)
            self._show_events(run.adw_id)
            if found is None or found.state in FINAL_RUNS or self._interrupts:
                return found
            if found.state is RunState.PENDING:
                is_due = found.not_before <= timestamps.to_text(self._app.clock.now())
                if is_due or self._wait(run, timestamps.parse(found.not_before)):
                    return self._app.runs.get(run.run_id)
                continue
            if self._is_left_behind(found):
                self._app.work.recovery.recover()
            self._app.clock.sleep(_LOOK_SECONDS)

    def _show_events(self, adw_id: str) -> None:
        found = self._app.events.of_workflow(adw_id, after=self._seen)
        if found:
            self._seen = found[-1].event_id
            self._progress.tell(self._app.store.load(adw_id).document, found)

    def _is_left_behind(self, run: Run) -> bool:
        owner = OwnerRecord.from_text(run.owner)
        is_dead = owner is not None and self._app.processes.verdict(owner) is Verdict.DEAD

        return is_dead or run.seconds_left <= 0.0

    # --- signals -----------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Leave marks only: this may run in the middle of anything, also of our own output."""
        del frame
        self._interrupts += 1
        self._signal = number
        is_urgent = self._interrupts > 1
        is_ours = number == signal.SIGINT
        order = Order(
            kind="pause" if is_ours else "drain",
            reason=CTRL_C if is_ours else "asked to end by SIGTERM",
            is_urgent=is_urgent,
        )
        self._app.work.keeper.order_all(order)
        again = "; Ctrl-C again ends its processes at once" if is_ours else ""
        self._progress.interject("adw: ending its processes now" if is_urgent else f"adw: suspending{again}")


def _said(end: WorkEnd, number: int | None) -> str:
    if isinstance(end.outcome, Stopped):
        return "asked to end by SIGTERM" if number == signal.SIGTERM else describe(end.outcome)

    return end.message


def run_of(app: App, adw_id: str) -> Run:
    """Return the newest run of a workflow; raise WorkflowBusy when it has none any more."""
    for run in app.runs.of_workflow(adw_id, limit=1):
        return run

    raise WorkflowBusy(adw_id, f"somebody who took its run away at {timestamps.to_text(app.clock.now())}")
