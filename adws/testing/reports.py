"""
Reports in memory: everything is counted anew for each question.

The sums are made by the same rules as those that the database keeps, from the documents as they are now: what a store
has forgotten is not in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from adws.adw_modules import report_now, report_tallies, report_views, timestamps
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_reports import (
    MOST_COUNTED,
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    PhaseAttempts,
    PhaseHistory,
    QueueLine,
    QueueNow,
    RunningNow,
    Subject,
    WaitingNow,
    WaitKind,
    Window,
    WorkflowCost,
)
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.report_tallies import COST_KINDS, Last, Slot, Sum, Tallies
from adws.adw_modules.runs import FINAL_RUNS, LIVE_RUNS, Run, RunState
from adws.adw_modules.state_revision import summary_of
from adws.adw_modules.state_table import ACTIVE_STATES
from adws.testing.ownership import MemoryLeases
from adws.testing.run_queue import MemoryRunQueue
from adws.testing.runners import MemoryRunners
from adws.testing.stores import MemoryStore

_ALL_RUNS = 1_000_000


class MemoryReports:
    """`Reports` in memory."""

    def __init__(
        self, clock: Clock, store: MemoryStore, *, runs: MemoryRunQueue, leases: MemoryLeases, runners: MemoryRunners
    ) -> None:
        self._clock, self._store = clock, store
        self._runs, self._leases, self._runners = runs, leases, runners

    def refresh(self) -> int:
        """Do nothing: nothing is kept."""
        return 0

    # --- what was done -----------------------------------------------------------------------------------------

    def outcomes(self, window: Window) -> tuple[DayOutcomes, ...]:
        """Return how workflows ended, the oldest day first."""
        return report_views.outcomes_of(self._summed(window, ("outcome",), ("day", "item")))

    def attempts(self, window: Window) -> tuple[PhaseAttempts, ...]:
        """Return the attempts at each phase, by its name."""
        return report_views.attempts_of(self._summed(window, ("attempt", "needed"), ("phase", "item")))

    def costs(self, window: Window, *, by: str) -> tuple[CostSum, ...]:
        """Return what was spent by `phase`, `day` or `provider`, in the order of the keys."""
        return report_views.costs_of(self._summed(window, COST_KINDS, (report_views.cost_column(by),)), by)

    def costliest(self, window: Window, *, limit: int = 10) -> tuple[WorkflowCost, ...]:
        """Return the workflows with an attempt that ended in the window, what cost most first."""
        found = [report_views.cost_of(one) for one in self._tallies() if report_views.has_cost_in(one, window)]

        return tuple(sorted(found, key=lambda one: (one.cost_usd, one.adw_id), reverse=True)[:limit])

    def failures(self, window: Window, *, limit: int = 10) -> tuple[FailureGroup, ...]:
        """Return the failures of attempts, the most frequent first."""
        counts = self._summed(window, ("failure",), ("phase", "item"))
        lasts = {
            key: max(
                last
                for one in self._tallies()
                for slot, last in one.lasts.items()
                if (slot.kind, slot.phase, slot.item) == key and report_views.is_in(slot, window)
            )
            for key in counts
        }
        most = sorted(counts, key=lambda key: (-counts[key].number, *key))[:limit]

        return tuple(
            report_views.failure_of(key[1], key[2], counts[key].number, lasts.get(key, Last())) for key in most
        )

    def histories(self, phases: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], PhaseHistory]:
        """Return how long successful attempts took at each of *phases* (workflow, phase) that has a history."""
        window = Window(since=report_views.history_since(self._clock.now()))
        new = self._summed(window, ("duration",), ("workflow", "phase", "item"))
        found = {
            (workflow, phase): report_views.history_of(
                workflow, phase, report_views.with_news({}, new, workflow, phase)
            )
            for workflow, phase in phases
        }

        return {key: history for key, history in found.items() if history is not None}

    def _summed(self, window: Window, kinds: tuple[str, ...], columns: tuple[str, ...]) -> dict[tuple[str, ...], Sum]:
        sums: Iterator[tuple[Slot, Sum]] = (entry for one in self._tallies() for entry in one.sums.items())

        return report_views.grouped(sums, kinds=kinds, columns=columns, window=window)

    def _tallies(self) -> Iterator[Tallies]:
        for subject, data in self._documents():
            yield report_tallies.tallies_of(subject.adw_id, subject.workflow, data)

    # --- what is -----------------------------------------------------------------------------------------------

    def states(self, *, at_most: int = MOST_COUNTED) -> Mapping[str, Count]:
        """Return how many workflows are in each state; states without one are left out."""
        numbers = Counter(subject.state for subject, _ in self._documents())

        return {state: _count(number, at_most) for state, number in numbers.items()}

    def queue(self, *, at_most: int = MOST_COUNTED) -> QueueNow:
        """Return how much waits for a worker."""
        now, pending = self._moment(), self._pending()
        due = [run for run in pending if run.not_before <= now]

        return QueueNow(
            due=_count(len(due), at_most),
            later=_count(len(pending) - len(due), at_most),
            at_work=_count(len(self._runs.live()), at_most),
            oldest_due_at=min((max(run.updated_at, run.not_before) for run in due), default=""),
        )

    def queue_lines(self, *, at_most: int = MOST_COUNTED) -> tuple[QueueLine, ...]:
        """Return the runs that are not over by state and kind; of each state the first *at_most* are looked at."""
        first = sorted((*self._pending(), *self._runs.live()), key=lambda run: (-run.priority, run.run_id))
        lines: list[QueueLine] = []
        for state in (state for state in RunState if state not in FINAL_RUNS):
            found = [run for run in first if run.state is state]
            looked_at, is_more = found[: at_most + 1], len(found) > at_most
            lines += (
                QueueLine(
                    state=state.value,
                    kind=kind,
                    count=Count(number=sum(run.kind == kind for run in looked_at), is_more=is_more),
                    oldest_at=min(run.created_at for run in looked_at if run.kind == kind),
                )
                for kind in sorted({run.kind for run in looked_at})
            )

        return tuple(lines)

    def running(self, *, limit: int = 50) -> tuple[RunningNow, ...]:
        """Return what somebody works on, what began first first."""
        silent = {runner.runner_id: runner.silent_seconds for runner in self._runners.all()}
        live = sorted(self._runs.live(), key=lambda run: run.run_id)
        known = dict(self._by_id())

        return tuple(_running(run, *known[run.adw_id], silent) for run in live if _goes_on(run, known))[:limit]

    def waiting(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits: first the queue in its order, then what waits for a person, the newest first."""
        return tuple((*self.queued(), *self.paused())[:limit])

    def queued(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits in the queue, in its order."""
        known, now = dict(self._by_id()), self._moment()
        queue = sorted(self._pending(), key=lambda run: (-run.priority, run.run_id))
        waits = [
            report_now.waiting(
                *known[run.adw_id],
                report_now.RunFacts(since=run.updated_at, not_before=run.not_before, reason=run.reason),
                now=now,
            )
            for run in queue
            if _goes_on(run, known)
        ]

        return tuple(waits[:limit])

    def paused(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits for a person, the newest first."""
        known = sorted(self._documents(), key=lambda one: (str(one[1]["created_at"]), one[0].adw_id), reverse=True)

        return tuple(report_now.paused(*one) for one in known if one[0].state == "paused")[:limit]

    def unattended(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return workflows that are under way by their state, while nobody has them and no run of theirs waits."""
        active = {state.value for state in ACTIVE_STATES}
        recently = timestamps.to_text(self._clock.now() - report_now.JUST_ENDED)
        runs = self._runs.page(limit=_ALL_RUNS)
        attended = {
            run.adw_id for run in runs if not run.slot and (run.finished_at is None or run.finished_at > recently)
        }
        found = sorted(
            (one for one in self._documents() if one[0].state in active and one[0].adw_id not in attended),
            key=lambda one: (one[0].state, str(one[1]["created_at"]), one[0].adw_id),
        )

        return tuple(
            WaitingNow(
                subject=subject,
                kind=WaitKind.NOBODY,
                phase=report_now.at_work(data).phase,
                since=str(data["updated_at"]),
            )
            for subject, data in found
            if not self._is_owned(subject.adw_id)
        )[:limit]

    def _is_owned(self, adw_id: str) -> bool:
        row = self._leases.read(adw_id)

        return row is not None and row.owner is not None and row.seconds_left > 0.0

    def _pending(self) -> tuple[Run, ...]:
        return self._runs.page(states=(RunState.PENDING,), limit=_ALL_RUNS)

    def _by_id(self) -> Iterator[tuple[str, tuple[Subject, JsonObject]]]:
        yield from ((subject.adw_id, (subject, data)) for subject, data in self._documents())

    def _documents(self) -> Iterator[tuple[Subject, JsonObject]]:
        for adw_id in self._store.ids():
            summary = summary_of(self._store.load(adw_id).document)
            subject = Subject(
                adw_id=adw_id,
                title=summary.title,
                workflow=summary.workflow,
                state=summary.state,
                issue_number=summary.issue_number,
                repository=summary.repository,
            )
            yield subject, self._store.peek(adw_id).data

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


def _count(number: int, at_most: int) -> Count:
    return Count(number=min(number, at_most), is_more=number > at_most)


def _goes_on(run: Run, known: Mapping[str, object]) -> bool:
    """Say whether a run goes on with a workflow: it is neither a lane nor an errand."""
    return not run.slot and run.adw_id in known and run.state in (RunState.PENDING, *LIVE_RUNS)


def _running(run: Run, subject: Subject, data: JsonObject, silent: Mapping[str, float]) -> RunningNow:
    work, record = report_now.at_work(data), OwnerRecord.from_text(run.owner)

    return RunningNow(
        subject=subject,
        phase=work.phase,
        attempt=work.attempt,
        started_at=work.started_at or run.started_at or run.updated_at,
        run_id=run.run_id,
        kind=run.kind,
        is_stopping=run.state is RunState.STOPPING,
        owner=run.owner,
        seconds_left=run.seconds_left,
        silent_seconds=None if record is None else silent.get(record.token),
    )
