"""
Working on a workflow in the terminal it was asked for: through its retries, until it is over or parked.

Ctrl-C suspends: the attempt under way is ended in order and does not count, the workflow is paused. A second one ends
its processes at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.coordination.workflow_work import WorkEnd
from adws.adw_modules.errors import WorkflowBusy
from adws.adw_modules.interfaces_engine import Order
from adws.adw_modules.outcome import Done, Failed, Paused, RetryAt
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.runs import FINAL_RUNS, Run, RunState
from adws.adw_modules.state_table import is_terminal
from adws.cli import log, output, progress

if TYPE_CHECKING:
    from adws.adw_modules.interfaces import Owned
    from adws.app import App

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
#: Seconds between two looks at a run that somebody else works on.
_LOOK_SECONDS = 0.5


class Foreground:
    """The work of one command on one workflow."""

    def __init__(self, app: App, *, is_quiet: bool) -> None:
        self._app = app
        log.install(app.settings, with_workflows=False)
        self._progress = progress.make(app.clock, is_quiet=is_quiet)
        app.say, app.tell = self._progress.say, self._progress.tell
        self._interrupts = 0

    def carry(self, run_id: int, *, owning: AbstractContextManager[Owned] | None = None) -> WorkEnd:
        """Work on a run until it is over or parked, waiting for its retries; follow it when a worker was first."""
        try:
            with self._signals():
                return self._carry(run_id, owning)
        finally:
            self._progress.close()

    def _carry(self, run_id: int, owning: AbstractContextManager[Owned] | None) -> WorkEnd:
        me = self._app.processes.me("cli")
        while True:
            run = self._app.runs.claim(me, ttl_seconds=self._app.settings.lease_ttl_seconds, run_id=run_id)
            if run is None:
                if (end := self._follow(run_id, owning)) is not None:
                    return end
                owning = None
                continue
            end = self._app.work.run_work.work(run, owning=owning)
            owning = None
            if not isinstance(end.outcome, RetryAt):
                return end
            self._wait_until(end.outcome)

    def _wait_until(self, outcome: RetryAt) -> None:
        """Wait for a retry; Ctrl-C while waiting ends the wait, and the next attempt is never begun."""
        while not self._interrupts and (left := (outcome.at - self._app.clock.now()).total_seconds()) > 0.0:
            self._app.clock.sleep(min(left, _LOOK_SECONDS))

    def _follow(self, run_id: int, owning: AbstractContextManager[Owned] | None) -> WorkEnd | None:
        """Wait while somebody else has the run; None when that one is gone and it is ours to go on."""
        if owning is not None:
            with owning:
                pass  # a worker was first: give the workflow to it
        while True:
            run = self._app.runs.get(run_id)
            if run is None or run.state in FINAL_RUNS or self._interrupts:
                return WorkEnd(run=run, outcome=None, message=run.reason if run else "the run is gone")
            if run.state is RunState.PENDING:
                return None
            if self._is_left_behind(run):
                self._app.work.recovery.recover()
            self._app.clock.sleep(_LOOK_SECONDS)

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
        del frame
        self._interrupts += 1
        is_urgent = self._interrupts > 1
        kind = "pause" if number == signal.SIGINT else "drain"
        reason = "Ctrl-C" if number == signal.SIGINT else "asked to end by SIGTERM"
        self._app.work.keeper.order_all(Order(kind=kind, reason=reason, is_urgent=is_urgent))
        if number == signal.SIGINT and not is_urgent:
            output.say("adw: suspending; Ctrl-C again ends its processes at once")


def exit_code(app: App, adw_id: str, end: WorkEnd) -> int:
    """Return what the shell is told: 0 done or waiting for a person, 1 failed, 130 after Ctrl-C."""
    if isinstance(end.outcome, Paused) and end.outcome.reason == "Ctrl-C":
        return EXIT_INTERRUPTED
    if isinstance(end.outcome, Failed):
        return EXIT_FAILED
    if isinstance(end.outcome, Done):
        return EXIT_DONE if end.outcome.state == "completed" else EXIT_FAILED
    if end.outcome is None:
        state = str(app.store.peek(adw_id).data.get("current_state"))
        return EXIT_DONE if state in ("completed", "paused") or not (is_terminal(state) or state == "failed") else 1

    return EXIT_DONE


def ending(app: App, adw_id: str, end: WorkEnd) -> tuple[dict[str, output.Printable], list[str]]:
    """Return how it ended, for programs and for people."""
    data = app.store.peek(adw_id).data
    state = str(data.get("current_state"))
    told: dict[str, output.Printable] = {"adw_id": adw_id, "state": state, "reason": end.message}
    lines = [f"workflow {adw_id} is {state}"]
    outcome = end.outcome
    if isinstance(outcome, Failed):
        told.update(reason=outcome.reason, phase=outcome.phase, message=outcome.message, advice=outcome.advice)
        lines = [f"workflow {adw_id} failed in {outcome.phase} ({outcome.reason}): {outcome.message}"]
        lines += [outcome.advice] if outcome.advice else []
        lines.append(f"next: adw logs {adw_id}, adw explain {adw_id}")
    elif isinstance(outcome, Paused):
        told["reason"] = outcome.reason
        lines = [f"workflow {adw_id} is paused: {outcome.reason}", f"next: adw explain {adw_id}"]
    elif isinstance(outcome, Done) and outcome.warnings:
        told["warnings"] = list(outcome.warnings)
        lines += [f"warning: {warning}" for warning in outcome.warnings]
    elif end.message:
        lines.append(end.message)

    return told, lines


def run_of(app: App, adw_id: str) -> Run:
    """Return the unfinished run of a workflow; raise WorkflowBusy when it has none any more."""
    for run in app.runs.of_workflow(adw_id, limit=1):
        if run.state not in FINAL_RUNS:
            return run

    raise WorkflowBusy(adw_id, f"somebody who ended its run at {timestamps.to_text(app.clock.now())}")
