"""
Reports from the database.

What was done comes from sums that are kept for each day, with what is not in them yet added on the way. What is now
comes from the queue and from the few documents that it names. So nothing here takes longer when there are more
workflows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection, listing
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.document import readable
from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_modules.interfaces import Clock, OwnerRecord
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.model import FINAL_RUNS, RunState
from adws.adw_modules.reports import model as reports_model
from adws.adw_modules.reports.model import (
    COST_COLUMNS,
    COST_KINDS,
    MOST_COUNTED,
    NOTHING,
    CostSum,
    Count,
    DayOutcomes,
    FailureGroup,
    Grouped,
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

SUM_KEY = SumKey._fields
SUM_COLUMNS = (*SUM_KEY, "number", "amount", "last_at", "adw_id", "label")
WORKFLOW_COLUMNS = ("adw_id", "workflow", "outcome", "last_day", "attempts", "cost", "sums")

#: Rows of report_progress: the last event that was read, and the position of a pass over all workflows; the second only
#: while one is under way.
EVENTS, ALL = "events", "all"
PROGRESS_MOVE = """
INSERT INTO report_progress (name, seq, place) VALUES (:name, :seq, :place)
ON CONFLICT (name) DO UPDATE SET seq = excluded.seq, place = excluded.place
"""
PROGRESS_FORGET = "DELETE FROM report_progress"
#: Not by the column itself: SQLite would walk over its whole index, instead of the few events behind a number.
WORKFLOWS_AFTER_EVENT = "SELECT DISTINCT adw_id || '' AS changed FROM events WHERE seq > :after ORDER BY changed"
WORKFLOWS_AFTER = "SELECT adw_id FROM workflow_states WHERE adw_id > :after ORDER BY adw_id LIMIT :limit"
_IN_WINDOW = "day >= :day AND (:workflow = '' OR workflow = :workflow)"

#: Events, and documents, that are looked at in one transaction.
EVENTS_AT_ONCE, DOCUMENTS_AT_ONCE = 2000, 400
#: So many events may wait to be summed up; beyond that a reader brings the sums up to date first.
MOST_WAITING = 200
#: So long after the end of a run its workflow is not looked for: the copy of its document may still follow.
JUST_ENDED = timedelta(minutes=1)


# --- keeping the sums --------------------------------------------------------------------------------------------
#
# Events say which workflows have changed, their documents say what they add. What a workflow has added stands in its
# row, so only the difference is added: nothing is counted twice, whatever dies meanwhile, and after events or documents
# were made again all workflows are simply read once more. Nothing of this is on the path of a step. To wait for all
# writers of events stops them for a moment, so a reader adds the last few changes itself instead of storing them.


@dataclass(frozen=True, slots=True)
class SumProgress:
    """How far was read."""

    seq: int = -1  #: the last event; -1: none, so all workflows have to be read
    all_after: str | None = None  #: of a pass over all workflows: the last one; None: there is none under way


@dataclass(slots=True)
class News:
    """What is not in the sums yet."""

    sums: dict[SumKey, ReportSum] = field(default_factory=dict)
    lasts: dict[SumKey, Last] = field(default_factory=dict)
    workflows: dict[str, Tallies] = field(default_factory=dict)

    def grouped(self, window: Window, kinds: Sequence[str], columns: Sequence[str]) -> dict[tuple[str, ...], ReportSum]:
        """Return the sums of *kinds* in the window, one for each kind and value of *columns*."""
        result: dict[tuple[str, ...], ReportSum] = {}
        for key, total in self.sums.items():
            if key.kind in kinds and _is_in(window, key.day, key.workflow):
                group = (key.kind, *(getattr(key, name) for name in columns))
                result[group] = result.get(group, NOTHING).plus(total)

        return result


class ReportSums:
    """Keeps the sums."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def catch_up(self) -> int:
        """Add what is new, and return how many workflows had something new."""
        last, looked = listing.last(self._database), 0
        while last is not None:
            ids, is_through = self._database.transact(lambda session: self._look_at_some(session, last))
            looked += ids
            if is_through:
                break

        return looked

    def catch_up_if_behind(self) -> None:
        """Do it when much is new; where nothing can be written, the answers are right without it, only slower."""
        with self._database.read() as session:
            progress = _progress_of(session)
            newest = listing.last_in(session)
        is_whole = progress.seq >= 0 and progress.all_after is None
        if is_whole and newest - progress.seq <= MOST_WAITING:
            return
        try:
            self.catch_up()
        except AdwError:
            return

    def add_last(self, session: Session, adw_id: str) -> None:
        """Add what a workflow adds that is about to be forgotten."""
        self._take(session)
        _add_workflows(session, [adw_id])

    def news(self, session: Session) -> News:
        """Return what has to be added to the sums that *session* sees."""
        return _news_of(session, self._unread(session))

    def _take(self, session: Session) -> None:
        """Lock the sums: two writers at once would both add what is new."""
        begin = "INSERT INTO report_progress (name, seq, place) VALUES (:name, -1, '') ON CONFLICT (name) DO NOTHING"
        session.run(begin, {"name": EVENTS})
        session.one(
            self._database.render("SELECT seq FROM report_progress WHERE name = :name {row_lock}"), {"name": EVENTS}
        )

    def _look_at_some(self, session: Session, last: int) -> tuple[int, bool]:
        """Add what some workflows add; return how many had something new, and whether that was all."""
        self._take(session)
        progress = _progress_of(session)
        if progress.seq < 0:  # begin a pass over all workflows
            session.run(PROGRESS_MOVE, {"name": EVENTS, "seq": last, "place": listing.event_at(session, last)})
            session.run(PROGRESS_MOVE, {"name": ALL, "seq": 0, "place": ""})
            return 0, False
        if progress.all_after is not None:
            rows = session.all(WORKFLOWS_AFTER, {"after": progress.all_after, "limit": DOCUMENTS_AT_ONCE})
            if len(rows) < DOCUMENTS_AT_ONCE:
                session.run("DELETE FROM report_progress WHERE name = :name", {"name": ALL})
            else:
                session.run(PROGRESS_MOVE, {"name": ALL, "seq": 0, "place": rows[-1][0]})
            return _add_workflows(session, [row[0] for row in rows]), False
        sql = "SELECT seq, event_id, adw_id FROM events WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
        rows = session.all(sql, {"after": progress.seq, "last": last, "limit": EVENTS_AT_ONCE})
        if rows:
            session.run(PROGRESS_MOVE, {"name": EVENTS, "seq": rows[-1][0], "place": rows[-1][1]})

        return _add_workflows(session, sorted({row[2] for row in rows})), len(rows) < EVENTS_AT_ONCE

    def _unread(self, session: Session) -> Iterator[str]:
        """Yield the workflows whose last change was not read."""
        progress = _progress_of(session)
        changed = session.all(WORKFLOWS_AFTER_EVENT, {"after": progress.seq})
        after = progress.all_after if progress.seq >= 0 else ""
        yield from (row[0] for row in changed if after is None or row[0] <= after)
        while after is not None:
            rows = session.all(WORKFLOWS_AFTER, {"after": after, "limit": DOCUMENTS_AT_ONCE})
            yield from (row[0] for row in rows)
            after = rows[-1][0] if len(rows) == DOCUMENTS_AT_ONCE else None


def _progress_of(session: Session) -> SumProgress:
    """Return how far was read; nowhere when the last event is another than the one that was read then."""
    rows = {row[0]: row for row in session.all("SELECT name, seq, place FROM report_progress")}
    events, everything = rows.get(EVENTS), rows.get(ALL)
    if events is None or events[1] < 0 or listing.event_at(session, events[1]) != events[2]:
        return SumProgress()

    return SumProgress(seq=int(events[1]), all_after=None if everything is None else str(everything[2]))


def _news_of(session: Session, adw_ids: Iterable[str]) -> News:
    """Return what workflows add that is not in the sums."""
    news, waiting = News(), iter(adw_ids)
    while some := list(islice(waiting, DOCUMENTS_AT_ONCE)):
        named = {f"id{place}": adw_id for place, adw_id in enumerate(some)}
        sql = f"""
        SELECT flow.body, added.sums
        FROM workflow_states AS flow LEFT JOIN report_workflows AS added ON added.adw_id = flow.adw_id
        WHERE flow.adw_id IN ({", ".join(f":{name}" for name in named)}) ORDER BY flow.adw_id
        """
        for body, before in session.all(sql, named):
            document = readable(body)
            if document is None:
                continue
            tallies = reports_model.tallies_of(document)
            known = {SumKey(*entry[:5]): ReportSum(*entry[5:]) for entry in json.loads(before or "[]")}
            added = reports_model.difference(known, tallies.sums)
            if not added:
                continue
            news.workflows[tallies.adw_id] = tallies
            for key, total in added.items():
                news.sums[key] = news.sums.get(key, NOTHING).plus(total)
                last = tallies.lasts.get(key)
                if last is not None and last.at >= news.lasts.get(key, Last()).at:
                    news.lasts[key] = last

    return news


def _add_workflows(session: Session, adw_ids: Sequence[str]) -> int:
    """Add what workflows add that is not in the sums yet, and return how many there were; the sums are locked."""
    news = _news_of(session, adw_ids)
    # The last of two failures is the one that is shown.
    is_newer = "excluded.last_at >= report_sums.last_at"
    sum_add = f"""
    INSERT INTO report_sums ({", ".join(SUM_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in SUM_COLUMNS)})
    ON CONFLICT ({", ".join(SUM_KEY)}) DO UPDATE
    SET number = report_sums.number + excluded.number, amount = report_sums.amount + excluded.amount,
        adw_id = CASE WHEN {is_newer} THEN excluded.adw_id ELSE report_sums.adw_id END,
        label = CASE WHEN {is_newer} THEN excluded.label ELSE report_sums.label END,
        last_at = CASE WHEN {is_newer} THEN excluded.last_at ELSE report_sums.last_at END
    """
    params: list[Mapping[str, object]] = []
    for key, total in sorted(news.sums.items()):
        last = news.lasts.get(key, Last())
        texts = {**key._asdict(), "last_at": last.at, "adw_id": last.adw_id, "label": last.label}
        params.append({**{name: connection.plain(text) for name, text in texts.items()}, **total._asdict()})
    session.run_each(sum_add, params)
    workflow_put = f"""
    INSERT INTO report_workflows ({", ".join(WORKFLOW_COLUMNS)})
    VALUES ({", ".join(f":{name}" for name in WORKFLOW_COLUMNS)})
    ON CONFLICT (adw_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in WORKFLOW_COLUMNS[1:])}
    """
    session.run_each(
        workflow_put,
        [
            {
                **{name: getattr(tallies, name) for name in WORKFLOW_COLUMNS},
                "sums": json.dumps([[*key, *total] for key, total in tallies.sums.items()], separators=(",", ":")),
            }
            for tallies in news.workflows.values()
        ],
    )

    return len(news.workflows)


def _is_in(window: Window, day: str, workflow: str) -> bool:
    return day >= window.first_day and window.workflow in ("", workflow)


# --- what is ---------------------------------------------------------------------------------------------------

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

#: Waiting runs, in queue order. SQLite is told which index: without statistics it takes another and sorts all.
_WAITING_RUNS = {"sqlite": "runs AS run INDEXED BY ix_runs_waiting", "postgresql": "runs AS run"}


def render(database: Database, text: str) -> str:
    """Return *text* in the SQL of the dialect of *database*."""
    return database.render(text.replace("{waiting}", _WAITING_RUNS[database.dialect]))


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
        return reports_model.outcomes_of(self._summed(window, ("outcome",), ("day", "item")))

    def attempts(self, window: Window) -> tuple[PhaseAttempts, ...]:
        """Return the attempts at each phase, by its name."""
        return reports_model.attempts_of(self._summed(window, ("attempt", "needed"), ("phase", "item")))

    def requests(self, window: Window) -> RequestCount:
        """
        Return how many issues had a workflow that was made in the window, and of how many one is completed.

        A workflow without an issue is a request of its own. What is forgotten because of its age is not counted.
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

        return reports_model.costs_of(self._summed(window, COST_KINDS, (COST_COLUMNS[by],)), by)

    def costliest(self, window: Window, *, limit: int = 10) -> tuple[WorkflowCost, ...]:
        """Return the workflows with an attempt that ended in the window, what cost most first."""
        sql = """
        SELECT adw_id, workflow, outcome, cost, attempts, last_day FROM report_workflows
        WHERE cost > 0 AND last_day >= :day AND (:workflow = '' OR workflow = :workflow)
        ORDER BY cost DESC, adw_id DESC LIMIT :limit
        """
        self._sums.catch_up_if_behind()
        with self._database.read() as session:
            new = self._sums.news(session).workflows
            rows = session.all(sql, {**_params(window), "limit": limit + len(new)})
        found = [row for row in rows if row[0] not in new] + [
            (one.adw_id, one.workflow, one.outcome, one.cost, one.attempts, one.last_day)
            for one in new.values()
            if one.cost > 0 and _is_in(window, one.last_day, one.workflow)
        ]

        return tuple(
            WorkflowCost(
                adw_id=adw_id,
                workflow=workflow,
                outcome=outcome,
                cost_usd=cost / 1_000_000,
                attempts=attempts,
                last_day=last_day,
            )
            for adw_id, workflow, outcome, cost, attempts, last_day in sorted(
                found, key=lambda row: (row[3], row[0]), reverse=True
            )[:limit]
        )

    def failures(self, window: Window, *, limit: int = 10) -> tuple[FailureGroup, ...]:
        """Return the failures of attempts, the most frequent first."""
        totals, news = self._summed_with_news(window, ("failure",), ("phase", "item"))
        most = sorted(
            (-total.number, phase, item) for (_kind, phase, item), total in totals.items() if total.number > 0
        )
        sql = f"""
        SELECT last_at, adw_id, label FROM report_sums
        WHERE kind = 'failure' AND {_IN_WINDOW} AND phase = :phase AND item = :item AND number > 0
        ORDER BY last_at DESC LIMIT 1
        """
        groups: list[FailureGroup] = []
        params = _params(window)
        with self._database.read() as session:
            examples = [session.one(sql, {**params, "phase": phase, "item": item}) for _, phase, item in most[:limit]]
        for (count, phase, item), stored in zip(most, examples, strict=False):
            lasts = [
                last
                for key, last in news.lasts.items()
                if (key.phase, key.item) == (phase, item) and _is_in(window, key.day, key.workflow)
            ]
            last = max((*lasts, *([Last(*stored)] if stored else [])), default=Last())
            groups.append(
                FailureGroup(
                    phase=phase,
                    category=item.rpartition(":")[0],
                    message=last.label,
                    count=-count,
                    last_at=last.at,
                    adw_id=last.adw_id,
                )
            )

        return tuple(groups)

    def histories(self, phases: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], PhaseHistory]:
        """Return how long successful attempts took at each of *phases* (workflow, phase) that has a history."""
        window = Window(since=reports_model.history_since(self._clock.now()))
        buckets: dict[tuple[str, str], dict[int, int]] = {}
        for (_kind, workflow, phase, item), total in self._summed(
            window, ("duration",), ("workflow", "phase", "item")
        ).items():
            buckets.setdefault((workflow, phase), {})[int(item)] = total.number
        histories = {key: reports_model.history_of(*key, buckets.get(key, {})) for key in phases}

        return {key: history for key, history in histories.items() if history is not None}

    def _summed(self, window: Window, kinds: Sequence[str], columns: Sequence[str]) -> Grouped:
        return self._summed_with_news(window, kinds, columns)[0]

    def _summed_with_news(self, window: Window, kinds: Sequence[str], columns: Sequence[str]) -> tuple[Grouped, News]:
        """Return sums by kind and *columns*, and what of them is not kept yet."""
        named, by = ", ".join(f"'{kind}'" for kind in kinds), ", ".join(("kind", *columns))
        sql = f"""
        SELECT {by}, sum(number), sum(amount) FROM report_sums WHERE kind IN ({named}) AND {_IN_WINDOW} GROUP BY {by}
        """
        self._sums.catch_up_if_behind()
        with self._database.read() as session:
            rows = session.all(sql, _params(window))
            news = self._sums.news(session)
        totals = {tuple(row[:-2]): ReportSum(int(row[-2]), int(row[-1])) for row in rows}
        for key, total in news.grouped(window, kinds, columns).items():
            totals[key] = totals.get(key, NOTHING).plus(total)

        return totals, news

    # --- what is -----------------------------------------------------------------------------------------------

    def states(self, *, at_most: int = MOST_COUNTED) -> Mapping[str, Count]:
        """Return how many workflows are in each state; states without one are left out."""
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
        """Return how much waits for a worker."""
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
        """Return the runs that are not over by state and kind; of each state the first *at_most* are looked at."""
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
        """Return what somebody works on, what began first first."""
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
        """Return what is waiting: first the queue in its order, then what needs a person, the newest first."""
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
        """Return what needs a person, the newest first."""
        with self._database.read() as session:
            rows = session.all(PAUSED, {"limit": limit}) if limit > 0 else []

        return tuple(reports_model.paused(_subject(row), readable(row[6])) for row in rows)

    def unattended(self, *, limit: int = 50) -> tuple[WaitingNow, ...]:
        """Return workflows that are under way by their state, while nobody has them and no run of theirs waits."""
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
