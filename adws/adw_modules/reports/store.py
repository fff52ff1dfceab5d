"""
Reports from the database.

Past work comes from sums kept for each day, present work from the queue and the few documents that it names. So
reports do not take longer when there are more workflows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from adws.adw_modules import costs, timestamps
from adws.adw_modules.db import connection, listing
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.document import readable
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.interfaces import Clock, OwnerRecord
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import FINAL_RUNS, RunState
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import (
    COST_FIGURES,
    MOST_COUNTED,
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    PhaseAttempts,
    PhaseHistory,
    QueueLine,
    QueueNow,
    ReportSum,
    RequestCount,
    RunningNow,
    Subject,
    SumKey,
    WaitingNow,
    WaitKind,
    Window,
    WorkflowCost,
)
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState

#: The name of our position in the events, up to which workflows were added.
CURSOR = "reports"
#: Workflows added in one transaction.
AT_ONCE = 400
#: Key of a sum of costs -> its column.
COST_COLUMNS = {"phase": "phase", "day": "day", "provider": "item"}
#: Not the plain column: SQLite would scan its whole index instead of the few events after a number.
WORKFLOWS_AFTER_EVENT = """
SELECT DISTINCT adw_id || '' AS changed FROM events WHERE seq > :after AND seq <= :last ORDER BY changed
"""
_IN_WINDOW = "day >= :day AND (:workflow = '' OR workflow = :workflow)"
#: A workflow whose run ended so recently is not unattended: the copy of its document may still follow.
JUST_ENDED = timedelta(minutes=1)


# --- keeping the sums --------------------------------------------------------------------------------------------
#
# Events name the workflows that changed, and documents say what they add. What a workflow has added is stored in its
# row, so only the difference is added: nothing is counted twice after a crash, and after events or documents were
# rebuilt all workflows are read again. None of this delays a step.


class ReportSums:
    """Keeps the sums."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def catch_up(self) -> int:
        """Add every workflow that changed since the last call, and return how many."""
        with self._database.read() as session:
            place = listing.place_of(session, CURSOR)
            # Another event has the number of the last one: events were rebuilt, so all workflows are read.
            is_known = place is not None and listing.event_at(session, place.seq) == place.event_id
            after = place.seq if place is not None and is_known else -1
            if after == listing.last_in(session):
                return 0
        last = listing.last(self._database)
        if last is None:
            return 0
        with self._database.read() as session:
            changed = WORKFLOWS_AFTER_EVENT if is_known else "SELECT adw_id FROM workflow_states ORDER BY adw_id"
            ids = [row[0] for row in session.all(changed, {"after": after, "last": last} if is_known else {})]
        for first in range(0, len(ids), AT_ONCE):
            self._database.transact(partial(self.look_at, ids[first : first + AT_ONCE]))

        def move(session: Session) -> None:
            if listing.take_place(self._database, session, CURSOR) == place:  # else done meanwhile, or rebuilt
                listing.move(session, CURSOR, last)

        self._database.transact(move)

        return len(ids)

    def look_at(self, adw_ids: Sequence[str], session: Session) -> None:
        """Add what workflows have not added yet; an unreadable one is skipped."""
        listing.take_place(self._database, session, CURSOR)  # a lock: two transactions would both add what is new
        named = {f"id{place}": adw_id for place, adw_id in enumerate(adw_ids)}
        sql = f"""
        SELECT flow.body, added.sums
        FROM workflow_states AS flow LEFT JOIN report_workflows AS added ON added.adw_id = flow.adw_id
        WHERE flow.adw_id IN ({", ".join(f":{name}" for name in named)}) ORDER BY flow.adw_id
        """
        news: dict[SumKey, ReportSum] = {}
        workflows: list[dict[str, object]] = []
        for body, before in session.all(sql, named):
            document = readable(body)
            if document is None:
                continue
            now = reports_model.sums_of(document)
            row: dict[str, object] = {name: getattr(now, name) for name in now.__slots__}
            workflows.append({**row, "sums": json.dumps([[*key, *one[:2]] for key, one in now.sums.items()])})
            for key, total in now.sums.items():
                news[key] = news.get(key, ReportSum()).plus(total)
            for *names, number, amount in json.loads(before or "[]"):
                key = SumKey(*names)
                news[key] = news.get(key, ReportSum()).plus(ReportSum(-number, -amount))
        # Of two last failures the later one is kept.
        is_newer = "excluded.last_at >= report_sums.last_at"
        session.run_each(
            f"""
            INSERT INTO report_sums (kind, day, workflow, phase, item, number, amount, last_at, adw_id, label)
            VALUES (:kind, :day, :workflow, :phase, :item, :number, :amount, :last_at, :adw_id, :label)
            ON CONFLICT (kind, day, workflow, phase, item) DO UPDATE
            SET number = report_sums.number + excluded.number, amount = report_sums.amount + excluded.amount,
                adw_id = CASE WHEN {is_newer} THEN excluded.adw_id ELSE report_sums.adw_id END,
                label = CASE WHEN {is_newer} THEN excluded.label ELSE report_sums.label END,
                last_at = CASE WHEN {is_newer} THEN excluded.last_at ELSE report_sums.last_at END
            """,
            [
                {name: _plain(value) for name, value in (key._asdict() | total._asdict()).items()}
                for key, total in sorted(news.items())
                if total.number or total.amount
            ],
        )
        session.run_each(
            """
            INSERT INTO report_workflows (adw_id, workflow, outcome, last_day, attempts, cost, sums)
            VALUES (:adw_id, :workflow, :outcome, :last_day, :attempts, :cost, :sums)
            ON CONFLICT (adw_id) DO UPDATE
            SET workflow = excluded.workflow, outcome = excluded.outcome, last_day = excluded.last_day,
                attempts = excluded.attempts, cost = excluded.cost, sums = excluded.sums
            """,
            [{name: _plain(value) for name, value in row.items()} for row in workflows],
        )


def _plain(value: object) -> object:
    return connection.plain(value) if isinstance(value, str) else value


# --- the present -----------------------------------------------------------------------------------------------

_SUBJECT = "flow.adw_id, flow.title, flow.workflow, flow.state, flow.issue_number, flow.repository"
_LIVE = "run.state IN ('claimed', 'running', 'stopping') AND run.state NOT IN ('pending', 'completed')"
#: Runs that continue a workflow or roll it back: no lanes of its steps, no runs without a workflow.
RUNNING = f"""
SELECT {_SUBJECT}, flow.body, run.run_id, run.kind, run.state, run.owner,
       CASE WHEN run.claim_boot = :boot THEN run.claim_until ELSE 0 END - {{now}}, run.started_at, run.updated_at
FROM (
  SELECT * FROM runs AS run WHERE {_LIVE} AND run.slot = '' AND run.kind NOT IN ('cron', 'delivery')
  ORDER BY run.run_id LIMIT :limit
) AS run JOIN workflow_states AS flow ON flow.adw_id = run.adw_id
ORDER BY run.run_id
"""
WAITING = f"""
SELECT {_SUBJECT}, flow.body, run.updated_at, run.not_before, run.reason
FROM {{waiting}} JOIN workflow_states AS flow ON flow.adw_id = run.adw_id
WHERE run.state = 'pending' AND run.slot = '' ORDER BY run.rank, run.run_id LIMIT :limit
"""
PAUSED = f"""
SELECT {_SUBJECT}, flow.body FROM workflow_states AS flow
WHERE flow.state = 'paused' ORDER BY flow.created_at DESC, flow.adw_id DESC LIMIT :limit
"""
#: `{states}` are the active ones. A workflow without a revision is still being created, and if a run has just ended,
#: the copy of a document in files may still follow.
UNATTENDED = f"""
SELECT {_SUBJECT}, flow.body, flow.updated_at FROM workflow_states AS flow
WHERE flow.state IN ({{states}}) AND flow.revision > 0
  AND (flow.owner = '' OR flow.lease_boot <> :boot OR flow.lease_until <= {{now}})
  AND NOT EXISTS (
    SELECT 1 FROM runs AS run WHERE run.adw_id = flow.adw_id AND run.slot = ''
      AND (run.finished_at IS NULL OR run.finished_at > :recently))
ORDER BY flow.state, flow.created_at, flow.adw_id LIMIT :limit
"""
#: The queue: runs that are due and since when, that are not due, and that have a worker, each up to `:limit`.
_SINCE = "CASE WHEN run.updated_at > run.not_before THEN run.updated_at ELSE run.not_before END"
QUEUE_DUE = f"""
SELECT count(*), min(since) FROM (
  SELECT {_SINCE} AS since FROM {{waiting}} WHERE run.state = 'pending' AND run.not_before <= :moment LIMIT :limit
) AS few
"""
QUEUE_LATER = """
SELECT count(*) FROM (
  SELECT 1 FROM {waiting} WHERE run.state = 'pending' AND run.not_before > :moment LIMIT :limit
) AS few
"""
QUEUE_LIVE = f"SELECT count(*) FROM (SELECT 1 FROM runs AS run WHERE {_LIVE} LIMIT :limit) AS few"

#: Waiting runs, in queue order. On SQLite the index is named: without statistics it takes another one and sorts all.
_WAITING_RUNS = {"sqlite": "runs AS run INDEXED BY ix_runs_waiting", "postgresql": "runs AS run"}


def render(database: Database, text: str) -> str:
    """Return *text* in the SQL dialect of *database*."""
    return database.render(text.replace("{waiting}", _WAITING_RUNS[database.dialect]))


class ReportStore:
    """Reads reports from the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sums = ReportSums(database)

    def refresh(self) -> int:
        """Update the sums, and return how many workflows changed."""
        return self._sums.catch_up()

    # --- what was done -----------------------------------------------------------------------------------------

    def outcomes(self, window: Window) -> tuple[DayOutcomes, ...]:
        """Return how workflows ended, by day, the oldest first."""
        days: dict[str, dict[str, int]] = {}
        for day, item, number, _ in self._sum(window, ("outcome",), "day, item"):
            days.setdefault(day, {})[item] = number

        return tuple(DayOutcomes(day=day, **counts) for day, counts in sorted(days.items()))

    def attempts(self, window: Window) -> tuple[PhaseAttempts, ...]:
        """Return the attempts at each phase, by name."""
        needed, statuses, took = dict[str, dict[int, int]](), dict[str, dict[str, int]](), dict[str, int]()
        for kind, phase, item, number, amount in self._sum(window, ("attempt", "needed"), "kind, phase, item"):
            if kind == "needed":
                needed.setdefault(phase, {})[int(item)] = number
            else:
                statuses.setdefault(phase, {})[item] = number
                took[phase] = took.get(phase, 0) + amount

        return tuple(
            PhaseAttempts(
                phase=phase,
                needed=dict(sorted(needed.get(phase, {}).items())),
                by_status=dict(sorted(counts.items())),
                seconds=took[phase] / 1000.0,
            )
            for phase, counts in sorted(statuses.items())
        )

    def requests(self, window: Window) -> RequestCount:
        """
        Return how many issues had a workflow created in the window, and for how many of them one is completed.

        A workflow without an issue is a request of its own. Workflows deleted because of their age are not counted.
        """
        sql = """
        SELECT count(*), coalesce(sum(is_done), 0) FROM (
          SELECT max(CASE WHEN state = 'completed' THEN 1 ELSE 0 END) AS is_done FROM workflow_states
          WHERE created_at >= :day AND (:workflow = '' OR workflow = :workflow)
          GROUP BY repository, issue_number, CASE WHEN issue_number IS NULL THEN adw_id ELSE '' END
        ) AS requests
        """
        with self._database.read() as session:
            asked, completed = session.one(sql, _params(window)) or (0, 0)

        return RequestCount(asked=int(asked), completed=int(completed))

    def costs(self, window: Window, *, by: str) -> tuple[CostSum, ...]:
        """Return what was spent by `phase`, `day` or `provider`, in the order of the keys."""
        if by not in COST_COLUMNS:
            raise UsageError(f"costs are told by {', '.join(COST_COLUMNS)}, not by {by!r}")
        spent: dict[str, dict[str, float]] = {}
        for key, kind, number, amount in self._sum(window, tuple(COST_FIGURES), f"{COST_COLUMNS[by]}, kind"):
            figures = spent.setdefault(key, {})
            figures[COST_FIGURES[kind]] = number
            if kind == "cost":
                figures["cost_usd"] = amount / 1_000_000

        return tuple(
            CostSum(key=(key or costs.NO_PROVIDER) if by == "provider" else key, **figures)  # type: ignore[arg-type]  # all but the cost are whole
            for key, figures in sorted(spent.items())
        )

    def costliest(self, window: Window, *, limit: int = 10) -> tuple[WorkflowCost, ...]:
        """Return the workflows with an attempt that ended in the window, the most expensive first."""
        sql = """
        SELECT adw_id, workflow, outcome, cost, attempts, last_day FROM report_workflows
        WHERE cost > 0 AND last_day >= :day AND (:workflow = '' OR workflow = :workflow)
        ORDER BY cost DESC, adw_id DESC LIMIT :limit
        """

        return tuple(
            WorkflowCost(
                adw_id=adw_id,
                workflow=workflow,
                outcome=outcome,
                cost_usd=cost / 1_000_000,
                attempts=attempts,
                last_day=last_day,
            )
            for adw_id, workflow, outcome, cost, attempts, last_day in self._brought_up(
                sql, {**_params(window), "limit": limit}
            )
        )

    def failures(self, window: Window, *, limit: int = 10) -> tuple[FailureGroup, ...]:
        """Return the failures of attempts, the most frequent first."""
        groups = f"""
        SELECT phase, item, sum(number) AS times FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW}
        GROUP BY phase, item HAVING sum(number) > 0 ORDER BY times DESC, phase, item LIMIT :limit
        """
        example = f"""
        SELECT last_at, adw_id, label FROM report_sums
        WHERE kind = 'failure' AND {_IN_WINDOW} AND phase = :phase AND item = :item AND number > 0
        ORDER BY last_at DESC LIMIT 1
        """
        failures: list[FailureGroup] = []
        for phase, item, count in self._brought_up(groups, {**_params(window), "limit": limit}):
            with self._database.read() as session:
                last = session.one(example, {**_params(window), "phase": phase, "item": item})
            last_at, adw_id, message = last or ("", "", "")
            failures.append(
                FailureGroup(
                    phase=phase,
                    category=item.rpartition(":")[0],
                    message=message,
                    count=int(count),
                    last_at=last_at,
                    adw_id=adw_id,
                )
            )

        return tuple(failures)

    def histories(self, phases: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], PhaseHistory]:
        """Return the durations of successful attempts at each of *phases* (workflow, phase) that has a history."""
        window = Window(since=reports_model.history_since(self._clock.now()))
        buckets: dict[tuple[str, str], dict[int, int]] = {}
        for workflow, phase, item, number, _ in self._sum(window, ("duration",), "workflow, phase, item"):
            buckets.setdefault((workflow, phase), {})[int(item)] = number

        return {key: reports_model.history_of(*key, buckets[key]) for key in phases if key in buckets}

    def _sum(self, window: Window, kinds: Sequence[str], columns: str) -> list[tuple[Any, ...]]:
        """Return the columns, number and amount of the sums of *kinds* in the window."""
        named = ", ".join(f"'{kind}'" for kind in kinds)
        sql = f"""
        SELECT {columns}, sum(number), sum(amount) FROM report_sums
        WHERE kind IN ({named}) AND {_IN_WINDOW} GROUP BY {columns} HAVING sum(number) > 0
        """

        return [(*row[:-2], int(row[-2]), int(row[-1])) for row in self._brought_up(sql, _params(window))]

    def _brought_up(self, sql: str, params: Mapping[str, object]) -> list[Row]:
        """Return rows of sums, updated first; if nothing can be written, they are as before."""
        with suppress(AdwError):
            self._sums.catch_up()
        with self._database.read() as session:
            return session.all(sql, params)

    # --- what is -----------------------------------------------------------------------------------------------

    def states(self, *, at_most: int = MOST_COUNTED) -> Mapping[str, Count]:
        """Return how many workflows are in each state, without empty states."""
        named = {f"state{place}": state.value for place, state in enumerate(WorkflowState)}
        sql = " UNION ALL ".join(
            f"""
            SELECT :{name} AS state, count(*) AS number
            FROM (SELECT 1 FROM workflow_states WHERE state = :{name} LIMIT :limit) AS few
            """
            for name in named
        )
        with self._database.read() as session:
            rows = session.all(sql, {**named, "limit": at_most + 1})

        return {state: _count(number, at_most) for state, number in rows if number}

    def queue(self, *, at_most: int = MOST_COUNTED) -> QueueNow:
        """Return how many runs are due, not due, and with a worker."""
        params = {"moment": self._moment(), "limit": at_most + 1}
        with self._database.read() as session:
            due, later, live = (
                session.one(self._render(text), params) or (0, None) for text in (QUEUE_DUE, QUEUE_LATER, QUEUE_LIVE)
            )

        return QueueNow(
            due=_count(due[0], at_most),
            later=_count(later[0], at_most),
            at_work=_count(live[0], at_most),
            oldest_due_at=due[1] or "",
        )

    def queue_lines(self, *, at_most: int = MOST_COUNTED) -> tuple[QueueLine, ...]:
        """Return the unfinished runs by state and kind, counting up to *at_most* of each state."""
        by_kind = "SELECT kind, count(*), min(created_at) FROM ({few}) AS few GROUP BY kind ORDER BY kind"
        waiting = """
        SELECT run.kind, run.created_at FROM {waiting} WHERE run.state = 'pending'
        ORDER BY run.rank, run.run_id LIMIT :limit
        """
        live = f"""
        SELECT run.kind, run.created_at FROM runs AS run WHERE {_LIVE} AND run.state = :state
        ORDER BY run.run_id LIMIT :limit
        """
        lines: list[QueueLine] = []
        with self._database.read() as session:
            for state in (state for state in RunState if state not in FINAL_RUNS):
                sql = by_kind.replace("{few}", waiting if state is RunState.PENDING else live)
                rows = session.all(self._render(sql), {"state": state.value, "limit": at_most + 1})
                is_more = sum(int(row[1]) for row in rows) > at_most
                lines += (
                    QueueLine(
                        state=state.value, kind=kind, count=Count(number=number, is_more=is_more), oldest_at=oldest
                    )
                    for kind, number, oldest in rows
                )

        return tuple(lines)

    def running(self, *, limit: int = 50) -> tuple[RunningNow, ...]:
        """Return the workflows with a running run, the oldest run first."""
        clock = self._database.lease_clock()
        with self._database.read() as session:
            rows = session.all(self._render(RUNNING), {**clock, "limit": limit})
            heard = session.all(self._render(workers.RUNNERS_ALL), clock) if rows else []
        silent = {row[0]: row[-1] for row in heard}
        found: list[RunningNow] = []
        for row in rows:
            run_id, kind, state, owner, left, started_at, updated_at = row[7:]
            phase, record = reports_model.phase_with(readable(row[6]), "running"), OwnerRecord.from_text(owner)
            began_at = phase.attempts[-1].started_at if phase and phase.attempts else ""
            found.append(
                RunningNow(
                    subject=_subject(row),
                    phase=phase.name if phase else "",
                    attempt=phase.attempts_used if phase else 0,
                    started_at=began_at or started_at or updated_at,
                    run_id=run_id,
                    kind=kind,
                    is_stopping=state == "stopping",
                    owner=owner,
                    seconds_left=float(left),
                    silent_seconds=None if record is None else silent.get(record.token),
                )
            )

        return tuple(found)

    def waiting(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return the waiting workflows: first the queue in its order, then the paused ones, the newest first."""
        queued = self.queued(limit=limit)

        return (*queued, *self.paused(limit=limit - len(queued)))

    def queued(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return the waiting runs, in the order of the queue."""
        now = self._moment()
        with self._database.read() as session:
            rows = session.all(self._render(WAITING), {"limit": limit})

        return tuple(
            reports_model.waiting(
                _subject(row), readable(row[6]), since=row[7], not_before=row[8], reason=row[9], now=now
            )
            for row in rows
        )

    def paused(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return the paused workflows, the newest first."""
        with self._database.read() as session:
            rows = session.all(PAUSED, {"limit": limit}) if limit > 0 else []

        return tuple(reports_model.paused(_subject(row), readable(row[6])) for row in rows)

    def unattended(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return workflows in active states that have neither an owner nor an unfinished run."""
        named = {f"state{place}": state.value for place, state in enumerate(ACTIVE_STATES)}
        sql = self._render(UNATTENDED.replace("{states}", ", ".join(f":{name}" for name in named)))
        recently = timestamps.to_text(self._clock.now() - JUST_ENDED)
        with self._database.read() as session:
            params = {**self._database.lease_clock(), **named, "limit": limit, "recently": recently}
            rows = session.all(sql, params)
        found: list[WaitingNow] = []
        for row in rows:
            phase = reports_model.phase_with(readable(row[6]), "running")
            name = phase.name if phase else ""
            found.append(WaitingNow(subject=_subject(row), kind=WaitKind.NOBODY, phase=name, since=row[7]))

        return tuple(found)

    def _render(self, text: str) -> str:
        return render(self._database, text)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


# --- rows ------------------------------------------------------------------------------------------------------


def _params(window: Window) -> dict[str, object]:
    return {"day": window.first_day, "workflow": connection.plain(window.workflow)}


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
