"""
Reports from the database.

What was done comes from sums that are kept for each day, with what is not in them yet added on the way. What is now
comes from the queue and from the few documents that it names. So nothing here takes longer when there are more
workflows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from adws.adw_modules import plain_document, timestamps
from adws.adw_modules.db import connection, listing
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.errors import AdwError
from adws.adw_modules.interfaces import Clock, OwnerRecord
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import FINAL_RUNS, RunState
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import (
    COST_KINDS,
    MOST_COUNTED,
    NOTHING,
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    Last,
    PhaseAttempts,
    PhaseHistory,
    QueueLine,
    QueueNow,
    ReportSum,
    RequestCount,
    RunningNow,
    Subject,
    SumKey,
    Tallies,
    WaitingNow,
    WaitKind,
    Window,
    WorkflowCost,
)
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState

# The queries of reports, by name; as in `db.connection`.
#
# Sums are read along their key: one kind, from a day on. Lists of the present state use a partial index.


SUM_KEY = ("kind", "day", "workflow", "phase", "item")
SUM_COLUMNS = (*SUM_KEY, "number", "amount", "last_at", "adw_id", "label")
WORKFLOW_COLUMNS = ("adw_id", "workflow", "outcome", "last_day", "attempts", "cost", "sums")

# --- how far was looked ----------------------------------------------------------------------------------------

#: Names of rows: the last event that was read, and the position of a pass over all workflows; the second only while one
#: is under way.
EVENTS, ALL = "events", "all"

PROGRESS_BEGIN = "INSERT INTO report_progress (name, seq, place) VALUES (:name, -1, '') ON CONFLICT (name) DO NOTHING"
PROGRESS_ALL = "SELECT name, seq, place FROM report_progress"
#: Locked while sums are added: two at once would both add what is new.
PROGRESS_TAKE = f"SELECT seq FROM report_progress WHERE name = '{EVENTS}' {{row_lock}}"
PROGRESS_MOVE = """
INSERT INTO report_progress (name, seq, place) VALUES (:name, :seq, :place)
ON CONFLICT (name) DO UPDATE SET seq = excluded.seq, place = excluded.place
"""
PROGRESS_END = "DELETE FROM report_progress WHERE name = :name"
PROGRESS_FORGET = "DELETE FROM report_progress"

EVENTS_AFTER = "SELECT seq, event_id, adw_id FROM events WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
#: Not by the column itself: SQLite would walk over the whole index of it, instead of the few events behind a number.
WORKFLOWS_AFTER_EVENT = "SELECT DISTINCT adw_id || '' AS changed FROM events WHERE seq > :after ORDER BY changed"
WORKFLOWS_AFTER = "SELECT adw_id FROM workflow_states WHERE adw_id > :after ORDER BY adw_id LIMIT :limit"

# --- sums ------------------------------------------------------------------------------------------------------

#: `{ids}` are the names of parameters. What was added by a workflow is NULL when nothing was.
DOCUMENTS = """
SELECT flow.adw_id, flow.workflow, flow.body, added.sums
FROM workflow_states AS flow LEFT JOIN report_workflows AS added ON added.adw_id = flow.adw_id
WHERE flow.adw_id IN ({ids}) ORDER BY flow.adw_id
"""
#: The last of two failures is the one that is shown.
SUM_ADD = f"""
INSERT INTO report_sums ({", ".join(SUM_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in SUM_COLUMNS)})
ON CONFLICT ({", ".join(SUM_KEY)}) DO UPDATE
SET number = report_sums.number + excluded.number, amount = report_sums.amount + excluded.amount,
    adw_id = CASE WHEN excluded.last_at >= report_sums.last_at THEN excluded.adw_id ELSE report_sums.adw_id END,
    label = CASE WHEN excluded.last_at >= report_sums.last_at THEN excluded.label ELSE report_sums.label END,
    last_at = CASE WHEN excluded.last_at >= report_sums.last_at THEN excluded.last_at ELSE report_sums.last_at END
"""
WORKFLOW_PUT = f"""
INSERT INTO report_workflows ({", ".join(WORKFLOW_COLUMNS)})
VALUES ({", ".join(f":{name}" for name in WORKFLOW_COLUMNS)})
ON CONFLICT (adw_id) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in WORKFLOW_COLUMNS[1:])}
"""

_IN_WINDOW = "day >= :day AND (:workflow = '' OR workflow = :workflow)"


def sums(kinds: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Return the query for sums of *kinds*, one for each kind and value of *columns*; both are names of ours."""
    named, by = ", ".join(f"'{kind}'" for kind in kinds), ", ".join(("kind", *columns))

    return f"""
SELECT {by}, sum(number), sum(amount) FROM report_sums WHERE kind IN ({named}) AND {_IN_WINDOW} GROUP BY {by}
"""


FAILURES_MOST = f"""
SELECT phase, item, sum(number) FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW}
GROUP BY phase, item HAVING sum(number) > 0 ORDER BY sum(number) DESC, phase, item LIMIT :limit
"""
_ONE = "phase = :phase AND item = :item"
FAILURES_OF = f"SELECT coalesce(sum(number), 0) FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW} AND {_ONE}"
FAILURE_LAST = f"""
SELECT last_at, adw_id, label FROM report_sums WHERE kind = 'failure' AND {_IN_WINDOW} AND {_ONE} AND number > 0
ORDER BY last_at DESC LIMIT 1
"""
COSTLIEST = """
SELECT adw_id, workflow, outcome, last_day, attempts, cost FROM report_workflows
WHERE cost > 0 AND last_day >= :day AND (:workflow = '' OR workflow = :workflow)
ORDER BY cost DESC, adw_id DESC LIMIT :limit
"""
DURATIONS = """
SELECT item, sum(number) FROM report_sums
WHERE kind = 'duration' AND day >= :day AND workflow = :workflow AND phase = :phase GROUP BY item
"""

# --- what is ---------------------------------------------------------------------------------------------------

#: How many there are in each of some states, but no more than `:limit` of each; `{state}` is the name of a parameter.
STATE_COUNT = """
SELECT :{state} AS state, count(*) AS number
FROM (SELECT 1 FROM workflow_states WHERE state = :{state} LIMIT :limit) AS few
"""

_SUBJECT = "flow.adw_id, flow.title, flow.workflow, flow.state, flow.issue_number, flow.repository"
_LIVE = "run.state IN ('claimed', 'running', 'stopping') AND run.state NOT IN ('pending', 'completed')"
#: Runs that go on with a workflow, or undo it: neither lanes of its steps nor errands.
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
#: `{states}` are those in which a workflow is under way. One that is registered and has no document yet is being made,
#: and where a run has just ended the copy of a document in files may not have followed yet.
UNATTENDED = f"""
SELECT {_SUBJECT}, flow.body, flow.updated_at FROM workflow_states AS flow
WHERE flow.state IN ({{states}}) AND flow.revision > 0
  AND (flow.owner = '' OR flow.lease_boot <> :boot OR flow.lease_until <= {{now}})
  AND NOT EXISTS (
    SELECT 1 FROM runs AS run WHERE run.adw_id = flow.adw_id AND run.slot = ''
      AND (run.finished_at IS NULL OR run.finished_at > :recently))
ORDER BY flow.state, flow.created_at, flow.adw_id LIMIT :limit
"""
#: The queue: what is due and since when, what is not, and what is with a worker, each no further than `:limit`.
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

#: By kind, of those in one state; the oldest is the one that was asked for first.
_BY_KIND = "SELECT kind, count(*), min(created_at) FROM ({few}) AS few GROUP BY kind ORDER BY kind"
_FEW = "SELECT run.kind, run.created_at FROM {runs} WHERE {which} ORDER BY {order} LIMIT :limit"
KINDS_WAITING = _BY_KIND.format(
    few=_FEW.format(runs="{waiting}", which="run.state = 'pending'", order="run.rank, run.run_id")
)
KINDS_LIVE = _BY_KIND.format(
    few=_FEW.format(runs="runs AS run", which=f"{_LIVE} AND run.state = :state", order="run.run_id")
)

#: Waiting runs, in queue order. SQLite is told which index: without statistics it takes another and sorts all.
_WAITING_RUNS = {"sqlite": "runs AS run INDEXED BY ix_runs_waiting", "postgresql": "runs AS run"}


def spelled(database: Database, text: str) -> str:
    """Return *text* in the SQL of the dialect of *database*."""
    return database.render(text.replace("{waiting}", _WAITING_RUNS[database.dialect]))


# The sums of reports: bringing them up, and what is not in them yet.
#
# Events say which workflows have changed, their documents say what they add. What a workflow has added stands in its
# row, so only the difference is added: nothing is counted twice, whatever dies meanwhile, and after events or documents
# were made again all workflows are simply looked at once more. Nothing of this is on the path of a step.


#: Events, and documents, that are looked at in one transaction.
EVENTS_AT_ONCE, DOCUMENTS_AT_ONCE = 2000, 400
#: So many events may wait to be summed up; beyond that a reader brings the sums up to date first.
MOST_WAITING = 200


@dataclass(frozen=True, slots=True)
class SumProgress:
    """How far was looked."""

    seq: int = -1  #: the last event; -1: none, so all workflows have to be looked at
    all_after: str | None = None  #: of a pass over all workflows: the last one; None: there is none under way

    @property
    def is_whole(self) -> bool:
        """Whether only events have to be looked at."""
        return self.seq >= 0 and self.all_after is None


@dataclass(slots=True)
class News:
    """What is not in the sums yet."""

    sums: dict[SumKey, ReportSum] = field(default_factory=dict)
    lasts: dict[SumKey, Last] = field(default_factory=dict)
    workflows: dict[str, Tallies] = field(default_factory=dict)

    def add(self, added: dict[SumKey, ReportSum], tallies: Tallies) -> None:
        """Take in what a workflow adds."""
        self.workflows[tallies.adw_id] = tallies
        for slot, total in added.items():
            self.sums[slot] = self.sums.get(slot, NOTHING).plus(total)
            last = tallies.lasts.get(slot)
            if last is not None and last.at >= self.lasts.get(slot, Last()).at:
                self.lasts[slot] = last


class ReportSums:
    """Keeps the sums."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._take = database.render(PROGRESS_TAKE)

    # --- bringing them up --------------------------------------------------------------------------------------

    def catch_up(self) -> int:
        """Add what is new, and return how many workflows had something new."""
        last, looked = listing.last(self._database), 0
        while last is not None:
            ids, is_through = self._database.transact(lambda session: self._look_at_some(session, last))
            looked += ids
            if is_through:
                break

        return looked

    def bring_up_if_behind(self) -> None:
        """Do it when much is new; where nothing can be written, the answers are right without it, only slower."""
        with self._database.read() as session:
            progress = progress_of(session)
            newest = listing.last_in(session)
        if progress.is_whole and newest - progress.seq <= MOST_WAITING:
            return
        try:
            self.catch_up()
        except AdwError:
            return

    def add_last(self, session: Session, adw_id: str) -> None:
        """Add what a workflow adds that is about to be forgotten."""
        session.run(PROGRESS_BEGIN, {"name": EVENTS})
        session.one(self._take)
        add_workflows(session, [adw_id])

    def _look_at_some(self, session: Session, last: int) -> tuple[int, bool]:
        """Add what some workflows add; return how many had something new, and whether that was all."""
        session.run(PROGRESS_BEGIN, {"name": EVENTS})
        session.one(self._take)
        progress = progress_of(session)
        if progress.seq < 0:
            place = listing.event_at(session, last)
            session.run(PROGRESS_MOVE, {"name": EVENTS, "seq": last, "place": place})
            session.run(PROGRESS_MOVE, {"name": ALL, "seq": 0, "place": ""})
            return 0, False
        if progress.all_after is not None:
            return self._look_at_all(session, progress.all_after), False
        params = {"after": progress.seq, "last": last, "limit": EVENTS_AT_ONCE}
        rows = session.all(EVENTS_AFTER, params)
        if rows:
            session.run(PROGRESS_MOVE, {"name": EVENTS, "seq": rows[-1][0], "place": rows[-1][1]})

        return add_workflows(session, sorted({row[2] for row in rows})), len(rows) < EVENTS_AT_ONCE

    def _look_at_all(self, session: Session, after: str) -> int:
        rows = session.all(WORKFLOWS_AFTER, {"after": after, "limit": DOCUMENTS_AT_ONCE})
        if len(rows) < DOCUMENTS_AT_ONCE:
            session.run(PROGRESS_END, {"name": ALL})
        else:
            session.run(PROGRESS_MOVE, {"name": ALL, "seq": 0, "place": rows[-1][0]})

        return add_workflows(session, [row[0] for row in rows])

    # --- what is not in them yet -------------------------------------------------------------------------------

    def news(self, session: Session) -> News:
        """Return what has to be added to the sums that *session* sees."""
        result = News()
        for tallies, added in _differences(session, self._waiting(session, progress_of(session))):
            result.add(added, tallies)

        return result

    def _waiting(self, session: Session, progress: SumProgress) -> Iterator[str]:
        """Yield the workflows that were not looked at."""
        changed = session.all(WORKFLOWS_AFTER_EVENT, {"after": progress.seq})
        after = progress.all_after if progress.seq >= 0 else ""
        yield from (row[0] for row in changed if after is None or row[0] <= after)
        while after is not None:
            rows = session.all(WORKFLOWS_AFTER, {"after": after, "limit": DOCUMENTS_AT_ONCE})
            yield from (row[0] for row in rows)
            after = rows[-1][0] if len(rows) == DOCUMENTS_AT_ONCE else None


def progress_of(session: Session) -> SumProgress:
    """Return how far was looked; nowhere when the last event is not the one that was looked at: they are others now."""
    result = {row[0]: row for row in session.all(PROGRESS_ALL)}
    events, everything = result.get(EVENTS), result.get(ALL)
    if events is None or events[1] < 0 or listing.event_at(session, events[1]) != events[2]:
        return SumProgress()

    return SumProgress(seq=int(events[1]), all_after=None if everything is None else str(everything[2]))


def add_workflows(session: Session, adw_ids: Sequence[str]) -> int:
    """Add what workflows add that is not in the sums yet, and return how many there were; `PROGRESS_TAKE` is ours."""
    new = News()
    for tallies, added in _differences(session, adw_ids):
        new.add(added, tallies)
    session.run_each(SUM_ADD, [_sum_params(slot, total, new) for slot, total in sorted(new.sums.items())])
    session.run_each(WORKFLOW_PUT, [_workflow_params(tallies) for tallies in new.workflows.values()])

    return len(new.workflows)


def _differences(session: Session, adw_ids: Iterable[str]) -> Iterator[tuple[Tallies, dict[SumKey, ReportSum]]]:
    """Yield what each workflow adds, and what of it is not in the sums; those with nothing new are left out."""
    waiting = iter(adw_ids)
    while some := list(islice(waiting, DOCUMENTS_AT_ONCE)):
        named = {f"id{place}": adw_id for place, adw_id in enumerate(some)}
        for row in session.all(DOCUMENTS.format(ids=", ".join(f":{name}" for name in named)), named):
            adw_id, workflow, body, before = row
            tallies = reports_model.tallies_of(adw_id, workflow, plain_document.read(body))
            added = reports_model.difference(reports_model.from_text(before), tallies.sums)
            if added:
                yield tallies, added


def _sum_params(slot: SumKey, total: ReportSum, new: News) -> dict[str, object]:
    last = new.lasts.get(slot, Last())
    texts = {**slot._asdict(), "last_at": last.at, "adw_id": last.adw_id, "label": last.label}

    return {**{name: connection.plain(text) for name, text in texts.items()}, **total._asdict()}


def _workflow_params(tallies: Tallies) -> dict[str, object]:
    named = {name: getattr(tallies, name) for name in WORKFLOW_COLUMNS if name != "sums"}

    return {**named, "sums": reports_model.to_text(tallies.sums)}


_ACTIVE = sorted(state.value for state in ACTIVE_STATES)
_OPEN_RUNS = tuple(state.value for state in RunState if state not in FINAL_RUNS)
_STATES = tuple(state.value for state in WorkflowState)


class ReportStore:
    """Reports from the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sums = ReportSums(database)

    def refresh(self) -> int:
        """Add what is new to the sums that are kept, and return how many workflows had something new."""
        return self._sums.catch_up()

    # --- what was done -----------------------------------------------------------------------------------------

    def outcomes(self, window: Window) -> tuple[DayOutcomes, ...]:
        """Return how workflows ended, the oldest day first."""
        return reports_model.outcomes_of(self._summed(window, kinds=("outcome",), columns=("day", "item")))

    def attempts(self, window: Window) -> tuple[PhaseAttempts, ...]:
        """Return the attempts at each phase, by its name."""
        return reports_model.attempts_of(self._summed(window, kinds=("attempt", "needed"), columns=("phase", "item")))

    def requests(self, window: Window) -> RequestCount:
        """
        Return how many issues had a workflow that was made in the window, and of how many one is completed.

        A workflow without an issue is a request of its own. What is forgotten because of its age is not counted.
        """
        text = """
        SELECT count(*), coalesce(sum(is_done), 0) FROM (
          SELECT max(CASE WHEN state = 'completed' THEN 1 ELSE 0 END) AS is_done FROM workflow_states
          WHERE created_at >= :day AND (:workflow = '' OR workflow = :workflow)
          GROUP BY repository, issue_number, CASE WHEN issue_number IS NULL THEN adw_id ELSE '' END
        ) AS requests
        """
        with self._database.read() as session:
            asked, completed = session.one(text, _window(window)) or (0, 0)

        return RequestCount(asked=int(asked), completed=int(completed))

    def costs(self, window: Window, *, by: str) -> tuple[CostSum, ...]:
        """Return what was spent by `phase`, `day` or `provider`, in the order of the keys."""
        column = reports_model.cost_column(by)

        return reports_model.costs_of(self._summed(window, kinds=COST_KINDS, columns=(column,)), by)

    def costliest(self, window: Window, *, limit: int = 10) -> tuple[WorkflowCost, ...]:
        """Return the workflows with an attempt that ended in the window, what cost most first."""
        self._sums.bring_up_if_behind()
        with self._database.read() as session:
            new = self._sums.news(session).workflows
            rows = session.all(COSTLIEST, {**_window(window), "limit": limit + len(new)})
        known = [_to_cost(row) for row in rows if row[0] not in new]
        added = [reports_model.cost_of(one) for one in new.values() if reports_model.has_cost_in(one, window)]

        return tuple(sorted((*known, *added), key=lambda one: (one.cost_usd, one.adw_id), reverse=True)[:limit])

    def failures(self, window: Window, *, limit: int = 10) -> tuple[FailureGroup, ...]:
        """Return the failures of attempts, the most frequent first."""
        self._sums.bring_up_if_behind()
        with self._database.read() as session:
            news = self._sums.news(session)
            added = reports_model.grouped(
                news.sums.items(), kinds=("failure",), columns=("phase", "item"), window=window
            )
            params = {**_window(window), "limit": limit + len(added)}
            counts = {(row[0], row[1]): int(row[2]) for row in session.all(FAILURES_MOST, params)}
            for (_kind, phase, item), total in added.items():
                of_group = session.one(FAILURES_OF, {**_window(window), "phase": phase, "item": item}) or (0,)
                counts[phase, item] = int(of_group[0]) + total.number
            most = sorted(((-count, *group) for group, count in counts.items() if count > 0))[:limit]

            return tuple(
                reports_model.failure_of(phase, item, -count, self._last(session, news, window, phase, item))
                for count, phase, item in most
            )

    def _last(self, session: Session, news: News, window: Window, phase: str, item: str) -> Last:
        stored = session.one(FAILURE_LAST, {**_window(window), "phase": phase, "item": item})
        lasts = [
            last
            for slot, last in news.lasts.items()
            if (slot.phase, slot.item) == (phase, item) and reports_model.is_in(slot, window)
        ]

        return max((*lasts, *([Last(*stored)] if stored else [])), default=Last())

    def histories(self, phases: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], PhaseHistory]:
        """Return how long successful attempts took at each of *phases* (workflow, phase) that has a history."""
        self._sums.bring_up_if_behind()
        window = Window(since=reports_model.history_since(self._clock.now()))
        result: dict[tuple[str, str], PhaseHistory] = {}
        with self._database.read() as session:
            new = reports_model.grouped(
                self._sums.news(session).sums.items(),
                kinds=("duration",),
                columns=("workflow", "phase", "item"),
                window=window,
            )
            for workflow, phase in phases:
                params = {
                    "day": window.first_day,
                    "workflow": connection.plain(workflow),
                    "phase": connection.plain(phase),
                }
                kept = {int(row[0]): int(row[1]) for row in session.all(DURATIONS, params)}
                history = reports_model.history_of(workflow, phase, reports_model.with_news(kept, new, workflow, phase))
                if history is not None:
                    result[workflow, phase] = history

        return result

    def _summed(
        self, window: Window, *, kinds: tuple[str, ...], columns: tuple[str, ...]
    ) -> dict[tuple[str, ...], ReportSum]:
        """Return sums by kind and *columns*, with what is not kept yet."""
        self._sums.bring_up_if_behind()
        with self._database.read() as session:
            rows = session.all(sums(kinds, columns), _window(window))
            new: dict[SumKey, ReportSum] = self._sums.news(session).sums
        kept = {tuple(row[:-2]): ReportSum(int(row[-2]), int(row[-1])) for row in rows}

        return reports_model.together(
            kept, reports_model.grouped(new.items(), kinds=kinds, columns=columns, window=window)
        )

    # --- what is -----------------------------------------------------------------------------------------------

    def states(self, *, at_most: int = MOST_COUNTED) -> Mapping[str, Count]:
        """Return how many workflows are in each state; states without one are left out."""
        named = {f"state{place}": state for place, state in enumerate(_STATES)}
        query = " UNION ALL ".join(STATE_COUNT.format(state=name) for name in named)
        with self._database.read() as session:
            rows = session.all(query, {**named, "limit": at_most + 1})

        return {state: _count(number, at_most) for state, number in rows if number}

    def queue(self, *, at_most: int = MOST_COUNTED) -> QueueNow:
        """Return how much waits for a worker."""
        params = {"moment": self._moment(), "limit": at_most + 1}
        with self._database.read() as session:
            due, later, live = (
                session.one(self._spelled(text), params) or (0, None) for text in (QUEUE_DUE, QUEUE_LATER, QUEUE_LIVE)
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
                text = KINDS_WAITING if state == RunState.PENDING.value else KINDS_LIVE
                rows = session.all(self._spelled(text), {"state": state, "limit": at_most + 1})
                is_more = sum(int(row[1]) for row in rows) > at_most
                lines += (
                    QueueLine(state=state, kind=kind, count=Count(number=number, is_more=is_more), oldest_at=oldest)
                    for kind, number, oldest in rows
                )

        return tuple(lines)

    def running(self, *, limit: int = 50) -> tuple[RunningNow, ...]:
        """Return what somebody works on, what began first first."""
        clock = self._database.lease_clock()
        with self._database.read() as session:
            rows = session.all(self._spelled(RUNNING), {**clock, "limit": limit})
            heard = session.all(self._spelled(workers.RUNNERS_ALL), clock) if rows else []
        silent = {row[0]: row[-1] for row in heard}

        return tuple(_to_running(row, silent) for row in rows)

    def waiting(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what is waiting: first the queue in its order, then what needs a person, the newest first."""
        with self._database.read() as session:
            queued = self._queued(session, limit)
            return (*queued, *self._paused(session, limit - len(queued)))

    def queued(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return the waiting runs, in the order of the queue."""
        with self._database.read() as session:
            return self._queued(session, limit)

    def _queued(self, session: Session, limit: int) -> tuple[WaitingNow, ...]:
        now = self._moment()

        return tuple(
            reports_model.waiting(
                _subject(row),
                plain_document.read(row[6]),
                reports_model.RunFacts(since=row[7], not_before=row[8], reason=row[9]),
                now=now,
            )
            for row in session.all(self._spelled(WAITING), {"limit": limit})
        )

    def paused(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return what needs a person, the newest first."""
        with self._database.read() as session:
            return self._paused(session, limit)

    def _paused(self, session: Session, limit: int) -> tuple[WaitingNow, ...]:
        rows = session.all(PAUSED, {"limit": limit}) if limit > 0 else []

        return tuple(reports_model.paused(_subject(row), plain_document.read(row[6])) for row in rows)

    def unattended(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return workflows that are under way by their state, while nobody has them and no run of theirs waits."""
        named = {f"state{place}": state for place, state in enumerate(_ACTIVE)}
        text = UNATTENDED.replace("{states}", ", ".join(f":{name}" for name in named))
        with self._database.read() as session:
            params = {**self._database.lease_clock(), **named, "limit": limit, "recently": self._recently()}
            rows = session.all(self._spelled(text), params)

        return tuple(
            WaitingNow(
                subject=_subject(row),
                kind=WaitKind.NOBODY,
                phase=reports_model.at_work(plain_document.read(row[6])).phase,
                since=row[7],
            )
            for row in rows
        )

    def _spelled(self, text: str) -> str:
        return spelled(self._database, text)

    def _recently(self) -> str:
        return timestamps.to_text(self._clock.now() - reports_model.JUST_ENDED)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


# --- rows ------------------------------------------------------------------------------------------------------


def _window(window: Window) -> dict[str, object]:
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


def _to_running(row: Row, silent: Mapping[str, float | None]) -> RunningNow:
    run_id, kind, state, owner, left, started_at, updated_at = row[7:]
    at_work, record = reports_model.at_work(plain_document.read(row[6])), OwnerRecord.from_text(owner)

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
