"""
Reports from the database.

What was done comes from sums that are kept for each day, with what is not in them yet added on the way. What is now
comes from the queue and from the few documents that it names. So nothing here takes longer when there are more
workflows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from adws.adw_modules import plain_document, report_now, report_views, timestamps
from adws.adw_modules.db import report_statements as sql
from adws.adw_modules.db import rows, runner_statements
from adws.adw_modules.db.report_sums import News, ReportSums
from adws.adw_modules.db.session import Database, Row, Session
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
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.report_tallies import COST_KINDS, Last, Slot, Sum
from adws.adw_modules.runs import FINAL_RUNS, RunState
from adws.adw_modules.state_table import ACTIVE_STATES, WorkflowState

_ACTIVE = sorted(state.value for state in ACTIVE_STATES)
_OPEN_RUNS = tuple(state.value for state in RunState if state not in FINAL_RUNS)
_STATES = tuple(state.value for state in WorkflowState)


class DatabaseReports:
    """`Reports` from the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sums = ReportSums(database)

    def refresh(self) -> int:
        """Add what is new to the sums that are kept, and return how many workflows had something new."""
        return self._sums.bring_up()

    # --- what was done -----------------------------------------------------------------------------------------

    def outcomes(self, window: Window) -> tuple[DayOutcomes, ...]:
        """Return how workflows ended, the oldest day first."""
        return report_views.outcomes_of(self._summed(window, kinds=("outcome",), columns=("day", "item")))

    def attempts(self, window: Window) -> tuple[PhaseAttempts, ...]:
        """Return the attempts at each phase, by its name."""
        return report_views.attempts_of(self._summed(window, kinds=("attempt", "needed"), columns=("phase", "item")))

    def costs(self, window: Window, *, by: str) -> tuple[CostSum, ...]:
        """Return what was spent by `phase`, `day` or `provider`, in the order of the keys."""
        column = report_views.cost_column(by)

        return report_views.costs_of(self._summed(window, kinds=COST_KINDS, columns=(column,)), by)

    def costliest(self, window: Window, *, limit: int = 10) -> tuple[WorkflowCost, ...]:
        """Return the workflows with an attempt that ended in the window, what cost most first."""
        self._sums.bring_up_if_behind()
        with self._database.read() as session:
            new = self._sums.news(session).workflows
            found = session.all(sql.COSTLIEST, {**_window(window), "limit": limit + len(new)})
        known = [_to_cost(row) for row in found if row[0] not in new]
        added = [report_views.cost_of(one) for one in new.values() if report_views.has_cost_in(one, window)]

        return tuple(sorted((*known, *added), key=lambda one: (one.cost_usd, one.adw_id), reverse=True)[:limit])

    def failures(self, window: Window, *, limit: int = 10) -> tuple[FailureGroup, ...]:
        """Return the failures of attempts, the most frequent first."""
        self._sums.bring_up_if_behind()
        with self._database.read() as session:
            news = self._sums.news(session)
            added = report_views.grouped(
                news.sums.items(), kinds=("failure",), columns=("phase", "item"), window=window
            )
            params = {**_window(window), "limit": limit + len(added)}
            counts = {(row[0], row[1]): int(row[2]) for row in session.all(sql.FAILURES_MOST, params)}
            for (_kind, phase, item), total in added.items():
                of_group = session.one(sql.FAILURES_OF, {**_window(window), "phase": phase, "item": item}) or (0,)
                counts[phase, item] = int(of_group[0]) + total.number
            most = sorted(((-count, *group) for group, count in counts.items() if count > 0))[:limit]

            return tuple(
                report_views.failure_of(phase, item, -count, self._last(session, news, window, phase, item))
                for count, phase, item in most
            )

    def _last(self, session: Session, news: News, window: Window, phase: str, item: str) -> Last:
        stored = session.one(sql.FAILURE_LAST, {**_window(window), "phase": phase, "item": item})
        lasts = [
            last
            for slot, last in news.lasts.items()
            if (slot.phase, slot.item) == (phase, item) and report_views.is_in(slot, window)
        ]

        return max((*lasts, *([Last(*stored)] if stored else [])), default=Last())

    def histories(self, phases: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], PhaseHistory]:
        """Return how long successful attempts took at each of *phases* (workflow, phase) that has a history."""
        self._sums.bring_up_if_behind()
        window = Window(since=report_views.history_since(self._clock.now()))
        found: dict[tuple[str, str], PhaseHistory] = {}
        with self._database.read() as session:
            new = report_views.grouped(
                self._sums.news(session).sums.items(),
                kinds=("duration",),
                columns=("workflow", "phase", "item"),
                window=window,
            )
            for workflow, phase in phases:
                params = {"day": window.first_day, "workflow": rows.plain(workflow), "phase": rows.plain(phase)}
                kept = {int(row[0]): int(row[1]) for row in session.all(sql.DURATIONS, params)}
                history = report_views.history_of(workflow, phase, report_views.with_news(kept, new, workflow, phase))
                if history is not None:
                    found[workflow, phase] = history

        return found

    def _summed(
        self, window: Window, *, kinds: tuple[str, ...], columns: tuple[str, ...]
    ) -> dict[tuple[str, ...], Sum]:
        """Return sums by kind and *columns*, with what is not kept yet."""
        self._sums.bring_up_if_behind()
        with self._database.read() as session:
            found = session.all(sql.sums(kinds, columns), _window(window))
            new: dict[Slot, Sum] = self._sums.news(session).sums
        kept = {tuple(row[:-2]): Sum(int(row[-2]), int(row[-1])) for row in found}

        return report_views.together(
            kept, report_views.grouped(new.items(), kinds=kinds, columns=columns, window=window)
        )

    # --- what is -----------------------------------------------------------------------------------------------

    def states(self, *, at_most: int = MOST_COUNTED) -> Mapping[str, Count]:
        """Return how many workflows are in each state; states without one are left out."""
        named = {f"state{place}": state for place, state in enumerate(_STATES)}
        query = " UNION ALL ".join(sql.STATE_COUNT.format(state=name) for name in named)
        with self._database.read() as session:
            found = session.all(query, {**named, "limit": at_most + 1})

        return {state: _count(number, at_most) for state, number in found if number}

    def queue(self, *, at_most: int = MOST_COUNTED) -> QueueNow:
        """Return how much waits for a worker."""
        params = {"moment": self._moment(), "limit": at_most + 1}
        with self._database.read() as session:
            due, later, live = (
                session.one(self._spelled(text), params) or (0, None)
                for text in (sql.QUEUE_DUE, sql.QUEUE_LATER, sql.QUEUE_LIVE)
            )

        return QueueNow(
            due=_count(due[0], at_most),
            later=_count(later[0], at_most),
            at_work=_count(live[0], at_most),
            oldest_due_at=due[1] or "",
        )

    def queue_lines(self, *, at_most: int = MOST_COUNTED) -> tuple[QueueLine, ...]:
        """Return the runs that are not over by state and kind; of each state the first *at_most* are looked at."""
        lines: list[QueueLine] = []
        with self._database.read() as session:
            for state in _OPEN_RUNS:
                text = sql.KINDS_WAITING if state == RunState.PENDING.value else sql.KINDS_LIVE
                found = session.all(self._spelled(text), {"state": state, "limit": at_most + 1})
                is_more = sum(int(row[1]) for row in found) > at_most
                lines += (
                    QueueLine(state=state, kind=kind, count=Count(number=number, is_more=is_more), oldest_at=oldest)
                    for kind, number, oldest in found
                )

        return tuple(lines)

    def running(self, *, limit: int = 50) -> tuple[RunningNow, ...]:
        """Return what somebody works on, what began first first."""
        clock = self._database.lease_clock()
        with self._database.read() as session:
            found = session.all(self._spelled(sql.RUNNING), {**clock, "limit": limit})
            heard = session.all(self._spelled(runner_statements.RUNNERS_ALL), clock) if found else []
        silent = {row[0]: row[-1] for row in heard}

        return tuple(_to_running(row, silent) for row in found)

    def waiting(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits: first the queue in its order, then what waits for a person, the newest first."""
        with self._database.read() as session:
            queued = self._queued(session, limit)
            return (*queued, *self._paused(session, limit - len(queued)))

    def queued(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits in the queue, in its order."""
        with self._database.read() as session:
            return self._queued(session, limit)

    def _queued(self, session: Session, limit: int) -> tuple[WaitingNow, ...]:
        now = self._moment()

        return tuple(
            report_now.waiting(
                _subject(row),
                plain_document.read(row[6]),
                report_now.RunFacts(since=row[7], not_before=row[8], reason=row[9]),
                now=now,
            )
            for row in session.all(self._spelled(sql.WAITING), {"limit": limit})
        )

    def paused(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what waits for a person, the newest first."""
        with self._database.read() as session:
            return self._paused(session, limit)

    def _paused(self, session: Session, limit: int) -> tuple[WaitingNow, ...]:
        found = session.all(sql.PAUSED, {"limit": limit}) if limit > 0 else []

        return tuple(report_now.paused(_subject(row), plain_document.read(row[6])) for row in found)

    def unattended(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return workflows that are under way by their state, while nobody has them and no run of theirs waits."""
        named = {f"state{place}": state for place, state in enumerate(_ACTIVE)}
        text = sql.UNATTENDED.replace("{states}", ", ".join(f":{name}" for name in named))
        with self._database.read() as session:
            params = {**self._database.lease_clock(), **named, "limit": limit, "recently": self._recently()}
            found = session.all(self._spelled(text), params)

        return tuple(
            WaitingNow(
                subject=_subject(row),
                kind=WaitKind.NOBODY,
                phase=report_now.at_work(plain_document.read(row[6])).phase,
                since=row[7],
            )
            for row in found
        )

    def _spelled(self, text: str) -> str:
        return sql.spelled(self._database, text)

    def _recently(self) -> str:
        return timestamps.to_text(self._clock.now() - report_now.JUST_ENDED)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


# --- rows ------------------------------------------------------------------------------------------------------


def _window(window: Window) -> dict[str, object]:
    return {"day": window.first_day, "workflow": rows.plain(window.workflow)}


def _count(number: int, at_most: int) -> Count:
    return Count(number=min(number, at_most), is_more=number > at_most)


def _subject(row: Row) -> Subject:
    adw_id, title, workflow, state, issue_number, repository = row[:6]

    return Subject(
        adw_id=adw_id,
        title=title,
        workflow=workflow,
        state=state,
        issue_number=issue_number,
        repository=repository,
    )


def _to_running(row: Row, silent: Mapping[str, float | None]) -> RunningNow:
    run_id, kind, state, owner, left, started_at, updated_at = row[7:]
    at_work, record = report_now.at_work(plain_document.read(row[6])), OwnerRecord.from_text(owner)

    return RunningNow(
        subject=_subject(row),
        phase=at_work.phase,
        attempt=at_work.attempt,
        started_at=at_work.started_at or started_at or updated_at,
        run_id=run_id,
        kind=kind,
        is_stopping=state == "stopping",
        owner=owner,
        seconds_left=float(left),
        silent_seconds=None if record is None else silent.get(record.token),
    )


def _to_cost(row: Row) -> WorkflowCost:
    adw_id, workflow, outcome, last_day, attempts, cost = row

    return WorkflowCost(
        adw_id=adw_id,
        workflow=workflow,
        outcome=outcome,
        cost_usd=cost / 1_000_000,
        attempts=attempts,
        last_day=last_day,
    )
