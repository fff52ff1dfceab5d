"""
The run queue in the database: the row is the truth about a run, and claiming it is one statement.

Its place is (priority, run_id), and a run keeps its id when it is given back: so what is older stays in front, also
after a restart. Whatever a worker says about a run names the claim it has; after another claim it changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.errors import DatabaseError, RunLost, RunNotFound, UsageError
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.interfaces import Clock, OwnerRecord, SessionStatus
from adws.adw_modules.queue.model import (
    DELIVERY_PRIORITY,
    FINAL_RUNS,
    NO_DEMANDS,
    NO_LIMITS,
    NO_TERMS,
    ClaimPolicy,
    NewRun,
    Run,
    RunEnd,
    RunLimits,
    RunState,
    check_due,
    check_final,
    check_new_run,
    full_labels,
    labels_of,
    labels_text,
)
from adws.adw_modules.workflow.requirements import Capabilities, Requirements, meets

# Rows of the table `runs` as values, and back.
#
# What is asked for is checked before it is stored: a moment in another spelling would sort wrongly for ever.


NO_LABELS: frozenset[str] = frozenset()


#: Columns of `store.CHANGED`.
_CHANGED = 9
#: A third of the time of `RunState(text)`.
_STATES = {state.value: state for state in RunState}


def to_run(row: Row) -> Run:
    """Return the run in a row of `store.SHOWN`."""
    payload = row[11]

    return Run(
        run_id=row[0],
        adw_id=row[1],
        kind=row[2],
        state=_STATES[row[3]],
        priority=row[4],
        not_before=row[5],
        attempts=row[6],
        token=row[7],
        owner=row[8],
        seconds_left=float(row[9]),
        reason=row[10],
        payload={} if payload == "{}" else json.loads(payload),
        asked_by=row[12],
        created_at=row[13],
        updated_at=row[14],
        started_at=row[15],
        finished_at=row[16],
        demands=Requirements.from_text(row[17]) if row[17] else NO_DEMANDS,
        labels=labels_of(row[18]) if row[18] else NO_LABELS,
        losses=row[19],
        slot=row[20],
        parent_run_id=row[21],
    )


def changed(run: Run, row: Row) -> Run:
    """Return *run* as it stands in a row of `store.CHANGED`."""
    return Run(  # by hand: dataclasses.replace takes three times as long, and every run passes here
        run_id=run.run_id,
        adw_id=run.adw_id,
        kind=run.kind,
        state=_STATES[row[0]],
        priority=run.priority,
        not_before=row[1],
        attempts=run.attempts,
        token=run.token,
        owner=row[2],
        seconds_left=float(row[3]),
        reason=row[4],
        payload=run.payload,
        asked_by=run.asked_by,
        created_at=run.created_at,
        updated_at=row[5],
        started_at=row[6],
        finished_at=row[7],
        demands=run.demands,
        labels=run.labels,
        losses=row[8],
        slot=run.slot,
        parent_run_id=run.parent_run_id,
    )


def has_agent(row: Row) -> bool:
    """Say whether an agent of the run has not ended; only the ends of runs ask."""
    return len(row) > _CHANGED and bool(row[_CHANGED])


def new_run_params(run: NewRun, moment: str, database: Database) -> dict[str, object]:
    """
    Return the columns of a run that is asked for, as *database* stores them.

    Raises UsageError or StateUnserialisable when it cannot be one.
    """
    run = check_new_run(run)

    return {
        "adw_id": run.adw_id,
        "kind": run.kind,
        "rank": -run.priority,
        "not_before": run.not_before,
        "payload": database.clean_json(connection.json_text(run.payload, f"the payload of a run of {run.adw_id}")),
        "asked_by": connection.plain(database.clean(run.asked_by)),
        "demands": run.demands.to_text(),
        "labels": labels_text(run.labels),
        "slot": connection.plain(run.slot),
        "parent_run_id": run.parent_run_id,
        "moment": moment,
    }


# Every query about runs, by name.
#
# As in `db.connection`, with three more placeholders filled in by `spelled`: `{waiting}` is the table, scanned in the
# order of the queue, `{demanding}` is the table by requirements, and `{skip_locked}` keeps two claims from waiting for
# the same row. A claim is over when it belongs to another start of the machine or when its time is up.


#: On SQLite the index is named, because without statistics it takes another one and sorts all waiting runs.
_SQLITE = {
    "{waiting}": "runs INDEXED BY ix_runs_waiting",
    "{demanding}": "runs INDEXED BY ix_runs_demanding",
    "{skip_locked}": "",
}
#: Without the last a second claim would wait for the first one to commit, and then find its row taken.
_POSTGRESQL = {"{waiting}": "runs", "{demanding}": "runs", "{skip_locked}": "FOR UPDATE SKIP LOCKED"}


def spelled(database: Database, sql: str) -> str:
    """Return *sql* in the SQL of the dialect of *database*."""
    words = _POSTGRESQL if database.dialect == "postgresql" else _SQLITE
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)

    return database.render(sql)


#: All but `woken`, which only these statements look at.
RUN_COLUMNS = (
    "run_id",
    "adw_id",
    "kind",
    "state",
    "rank",
    "not_before",
    "attempts",
    "token",
    "owner",
    "claim_until",
    "claim_boot",
    "reason",
    "payload",
    "asked_by",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
    "demands",
    "labels",
    "losses",
    "slot",
    "parent_run_id",
)

#: A run as `store.to_run` reads it.
SHOWN = """
run_id, adw_id, kind, state, -rank, not_before, attempts, token, owner,
CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END,
reason, payload, asked_by, created_at, updated_at, started_at, finished_at, demands, labels, losses, slot,
parent_run_id
"""

#: What can be another than in the claim that is reported on; `store.changed` reads it.
CHANGED = """
state, not_before, owner, CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END,
reason, updated_at, started_at, finished_at, losses
"""

#: Whether an agent of the run has not ended, looked up by an index that has only such: nearly free where none has.
_HAS_SESSION = "EXISTS (SELECT 1 FROM sessions WHERE sessions.run_id = runs.run_id AND sessions.ended_at IS NULL)"

_RETURNING = f" RETURNING {SHOWN}"
_RETURNING_CHANGED = f" RETURNING {CHANGED}"
#: Of what the sessions of agents have to follow.
_RETURNING_END = f"{_RETURNING_CHANGED}, {_HAS_SESSION}"
RUNS_SHOWN = f"SELECT {SHOWN} FROM runs "

#: A worker has it.
_IS_LIVE = "state IN ('claimed', 'running', 'stopping')"
#: What the index of states has; SQLite uses it only for queries that say so.
_IS_INDEXED = "state NOT IN ('pending', 'completed')"
#: The worker that asks has it: the number of the claim alone would do, unless the table was made again since.
_IS_OURS = f"WHERE run_id = :run_id AND token = :token AND owner = :owner AND {_IS_LIVE}"
_NOBODY = "owner = '', claim_until = 0, claim_boot = '', updated_at = :moment"

# --- waiting ---------------------------------------------------------------------------------------------------

#: Nothing is returned when the workflow has an unfinished run.
RUN_ENQUEUE = (
    "INSERT INTO runs (adw_id, kind, state, rank, not_before, attempts, token, owner, claim_until, claim_boot, reason,"
    " payload, asked_by, created_at, updated_at, demands, labels, losses, slot, parent_run_id)"
    " VALUES (:adw_id, :kind, 'pending', :rank, :not_before, 0, 0, '', 0, '', '', :payload, :asked_by, :moment,"
    " :moment, :demands, :labels, 0, :slot, :parent_run_id)"
    " ON CONFLICT (adw_id, slot) WHERE finished_at IS NULL DO NOTHING"
) + _RETURNING
RUN_UNFINISHED = RUNS_SHOWN + "WHERE adw_id = :adw_id AND slot = :slot AND finished_at IS NULL"
RUNS_UNFINISHED = RUNS_SHOWN + "WHERE finished_at IS NULL ORDER BY run_id"

#: Conditions on what may be claimed.
IS_DUE = "state = 'pending' AND not_before <= :moment"
#: The rank keeps the walk short where many workflows wait: nothing behind it is a delivery.
IS_DUE_DELIVERY = f"{IS_DUE} AND rank <= :rank AND kind = 'delivery'"
RUN_NEXT_DUE = "SELECT min(not_before) FROM {waiting} WHERE state = 'pending'"

_CLAIM = """
UPDATE runs
SET state = 'claimed', attempts = attempts + 1, token = token + 1, owner = :owner, claim_until = {now} + :ttl,
    claim_boot = :boot, reason = '', updated_at = :moment
"""
#: The index of what demands something has these, and is empty nearly always.
_DEMANDING = "{demanding} WHERE demands <> '' AND state = 'pending'"
DEMANDS_WAITING = f"SELECT DISTINCT demands FROM {_DEMANDING}"
DEMANDS_OF_RUN = "SELECT demands FROM runs WHERE run_id = :run_id AND state = 'pending'"
#: Claims that look at labels take turns: what one of them counted must not change before it has claimed.
LIMITS_LOCK = "SELECT pg_advisory_xact_lock(hashtext('adw.run_limits'))"
LABELS_LIVE = f"SELECT labels FROM runs WHERE {_IS_LIVE} AND {_IS_INDEXED} AND labels <> ''"


def is_any_due(due: str) -> str:
    """Return the cheapest query: whether anything at all is *due*."""
    return f"SELECT 1 FROM {{waiting}} WHERE {due} LIMIT 1"


def is_due(due: str, met: int = 0, full: int = 0) -> str:
    """Return the read before a claim, where claiming means waiting for every other writer."""
    return f"SELECT 1 FROM {{waiting}} WHERE {due}{_terms(met, full)} LIMIT 1"


def claim_first(due: str, met: int = 0, full: int = 0) -> str:
    """
    Return the claim of the first run that is *due*, demands nothing but what is *met*, and carries no *full* label.

    The place in the queue is (rank, run_id), and no requeue changes either.
    """
    first = f"SELECT run_id FROM {{waiting}} WHERE {due}{_terms(met, full)} ORDER BY rank, run_id LIMIT 1"

    return f"{_CLAIM} WHERE run_id = ({first} {{skip_locked}}) {_RETURNING}"


def claim_undemanding(due: str) -> str:
    """Return the claim for the usual case: nothing is claimed while anything waits that demands something."""
    first = f"SELECT run_id FROM {{waiting}} WHERE {due} AND demands = '' ORDER BY rank, run_id LIMIT 1"

    return f"{_CLAIM} WHERE run_id = ({first} {{skip_locked}}) AND NOT EXISTS (SELECT 1 FROM {_DEMANDING}) {_RETURNING}"


def claim_one(met: int = 0, full: int = 0) -> str:
    """Return the claim of one run, whatever its place and time."""
    return f"{_CLAIM} WHERE run_id = :run_id AND state = 'pending'{_terms(met, full)} {_RETURNING}"


def _terms(met: int, full: int) -> str:
    """Return the conditions of so many demands, `:met0` ..., and so many labels between bars, `:full0` ..."""
    demands = ", ".join(["''", *(f":met{number}" for number in range(met))])
    # Both dialects have replace, and neither takes a sign in the name of a label for a pattern.
    labels = "".join(f" AND replace(labels, :full{number}, '') = labels" for number in range(full))

    return f" AND demands IN ({demands}){labels}"


# --- with a worker ---------------------------------------------------------------------------------------------

RUN_BEGIN = f"""
UPDATE runs
SET state = CASE state WHEN 'claimed' THEN 'running' ELSE state END, started_at = coalesce(started_at, :moment),
    updated_at = :moment
{_IS_OURS} {_RETURNING_CHANGED}
"""
RUN_RENEW = f"UPDATE runs SET claim_until = {{now}} + :ttl, claim_boot = :boot {_IS_OURS} {_RETURNING_CHANGED}"

#: What somebody stops does not wait again.
_GIVE_BACK = f"""
UPDATE runs
SET state = CASE state WHEN 'stopping' THEN 'stopped' ELSE 'pending' END,
    finished_at = CASE state WHEN 'stopping' THEN :moment END,
    reason = CASE WHEN state = 'stopping' AND reason <> '' THEN reason ELSE :reason END, {_NOBODY}
"""
#: What it is to wait for may have ended while its worker was writing that it waits.
_NOT_BEFORE = "not_before = CASE WHEN woken = token THEN '' ELSE :not_before END"
RUN_REQUEUE = f"{_GIVE_BACK}, {_NOT_BEFORE}, demands = :demands {_IS_OURS} {_RETURNING_END}"
#: For a claim that was found over: its worker may have renewed it since.
_IS_OVER = "AND (claim_boot <> :boot OR claim_until <= {now})"
_TAKE_BACK = f"{_GIVE_BACK}, losses = losses + 1 {_IS_OURS}"
RUN_TAKE_BACK = f"{_TAKE_BACK} {_RETURNING_END}"
RUN_TAKE_BACK_IF_OVER = f"{_TAKE_BACK} {_IS_OVER} {_RETURNING_END}"

#: Nobody has one that waits, so its claim is over.
_BURY = f"""
UPDATE runs
SET state = CASE state WHEN 'stopping' THEN 'stopped' ELSE 'dead' END, finished_at = :moment,
    losses = CASE state WHEN 'pending' THEN losses ELSE losses + 1 END,
    reason = CASE WHEN state = 'stopping' AND reason <> '' THEN reason ELSE :reason END, {_NOBODY}
WHERE run_id = :run_id AND token = :token AND owner = :owner AND finished_at IS NULL
"""
RUN_BURY = f"{_BURY} {_RETURNING_END}"
RUN_BURY_IF_OVER = f"{_BURY} {_IS_OVER} {_RETURNING_END}"

#: What recovery decided about a run whose worker is gone, or that waits; one that was to stop is stopped all the same.
_SETTLE = f"""
UPDATE runs
SET state = CASE WHEN state = 'stopping' THEN 'stopped' ELSE :state END,
    finished_at = CASE WHEN state <> 'stopping' AND :state = 'pending' THEN NULL ELSE :moment END,
    losses = CASE state WHEN 'pending' THEN losses ELSE losses + 1 END,
    reason = CASE WHEN state = 'stopping' AND reason <> '' AND :state <> 'stopped' THEN reason ELSE :reason END,
    {_NOBODY}
WHERE run_id = :run_id AND token = :token AND owner = :owner AND finished_at IS NULL
"""
RUN_SETTLE = f"{_SETTLE} {_RETURNING_END}"
RUN_SETTLE_IF_OVER = f"{_SETTLE} {_IS_OVER} {_RETURNING_END}"

RUN_FINISH = f"""
UPDATE runs
SET state = :state, finished_at = :moment,
    reason = CASE WHEN :state = 'stopped' AND :reason = '' THEN reason ELSE :reason END, {_NOBODY}
{_IS_OURS} {_RETURNING_END}
"""

# --- for everybody ---------------------------------------------------------------------------------------------

RUN_STOP = f"""
UPDATE runs
SET state = CASE state WHEN 'pending' THEN 'stopped' ELSE 'stopping' END,
    finished_at = CASE state WHEN 'pending' THEN :moment END, reason = :reason, updated_at = :moment
WHERE run_id = :run_id AND state IN ('pending', 'claimed', 'running') {_RETURNING}, {_HAS_SESSION}
"""
#: What the run that goes on with a workflow waits for has ended; one that a worker has is due again when given back.
RUN_WAKE = f"""
UPDATE runs
SET not_before = CASE state WHEN 'pending' THEN '' ELSE not_before END, woken = token, updated_at = :moment
WHERE adw_id = :adw_id AND slot = '' AND finished_at IS NULL {_RETURNING}
"""
RUN_GET = RUNS_SHOWN + "WHERE run_id = :run_id"
#: Those that go on with it or undo it; the lanes of its steps are not asked for by it.
RUNS_OF_WORKFLOW = RUNS_SHOWN + "WHERE adw_id = :adw_id AND kind <> 'iteration' ORDER BY run_id DESC LIMIT :limit"
RUNS_LIVE = RUNS_SHOWN + f"WHERE {_IS_LIVE} AND {_IS_INDEXED} ORDER BY run_id"
RUNS_DEMANDING = f"SELECT {SHOWN} FROM {_DEMANDING} ORDER BY run_id"
RUNS_PAGE = RUNS_SHOWN + "WHERE run_id < :before ORDER BY run_id DESC LIMIT :limit"
_PAGE_END = "AND run_id < :before ORDER BY run_id DESC LIMIT :limit"
#: The ids on a page of one state, by the index that has it. Those that went well are found among all there are.
PAGE_OF_PENDING = f"SELECT run_id FROM {{waiting}} WHERE state = 'pending' {_PAGE_END}"
PAGE_OF_COMPLETED = f"SELECT run_id FROM runs WHERE state = 'completed' {_PAGE_END}"
#: `{state}` is the name of the parameter.
PAGE_OF_STATE = f"SELECT run_id FROM runs WHERE state = :{{state}} AND {_IS_INDEXED} {_PAGE_END}"
RUNS_OF_WORKFLOW_DELETE = "DELETE FROM runs WHERE adw_id = :adw_id"

# --- checks ----------------------------------------------------------------------------------------------------

#: A start is stored before its workflow exists; what the schedule or a delivery asks for has none.
CHECK_RUNS = """
SELECT run_id, adw_id FROM runs AS asked
WHERE finished_at IS NULL AND kind NOT IN ('start', 'cron', 'delivery')
  AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = asked.adw_id)
ORDER BY run_id
"""


# Claiming runs in the database, on the terms of a worker: what it offers, and how many of a kind may go on at a time.
#
# The usual case is one statement: nothing demands anything, and nothing is limited. Only while something waits that
# demands something are demands read and matched; only under limits are labels counted, in the transaction that claims.


#: The highest number a row can have.
LAST_ID = 2**63 - 1
#: Makes the text of a query for so many demands that are met and so many labels that are full.
_Text = Callable[[int, int], str]
_DUES = (IS_DUE, IS_DUE_DELIVERY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimer:
    """Who claims, for how long, on which terms."""

    owner: OwnerRecord
    ttl_seconds: float
    terms: ClaimPolicy

    @property
    def offer(self) -> Capabilities:
        """What the claimer has to offer."""
        return self.terms.offer or Capabilities(host=self.owner.host)


class RunClaims:
    """Claims from the table runs."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_sqlite = database.dialect == "sqlite"
        # A reader waits for nobody, a claim for every writer before it: so one that will find nothing is not made.
        # Where the last one found something, the next one will too.
        self._looks_first = self._is_sqlite
        # Spelled once: these two are all of the usual case.
        self._undemanding = {due: self._spelled(claim_undemanding(due)) for due in _DUES}
        self._any_due = {due: self._spelled(is_any_due(due)) for due in _DUES}
        self._demands_wait = False  #: when it was last looked at; what is wrong here costs a statement, no more

    def claim(self, claimer: Claimer, *, run_id: int | None, only_deliveries: bool) -> Run | None:
        """Return the run that is claimed, None when there is none on these terms."""
        params = {
            **self._database.lease_clock(),
            "owner": claimer.owner.to_text(),
            "ttl": claimer.ttl_seconds,
            "moment": timestamps.to_text(self._clock.now()),
        }
        if run_id is not None:
            result = self._one(claimer, {**params, "run_id": run_id}) if 0 < run_id <= LAST_ID else None
        elif only_deliveries:
            # They carry no labels: what they ask for is short, and a stop is not to wait for what it stops.
            delivering = {**params, "rank": -DELIVERY_PRIORITY}
            result = self._first(IS_DUE_DELIVERY, claimer, NO_LIMITS, delivering)
        else:
            result = self._first(IS_DUE, claimer, claimer.terms.limits, params)
            self._looks_first = self._is_sqlite and result is None

        return None if result is None else to_run(result)

    # --- one by its id -----------------------------------------------------------------------------------------

    def _one(self, claimer: Claimer, params: dict[str, object]) -> Row | None:
        limits = claimer.terms.limits
        result = self._claimed(claim_one, params, (), limits)
        if result is not None:
            return result
        with self._database.read() as session:
            row = session.one(DEMANDS_OF_RUN, params)
        if row is None or not row[0] or not meets(claimer.offer, Requirements.from_text(row[0])):
            return None

        return self._claimed(claim_one, params, (row[0],), limits)

    # --- the next ----------------------------------------------------------------------------------------------

    def _first(self, due: str, claimer: Claimer, limits: RunLimits, params: dict[str, object]) -> Row | None:
        """Return the first that is *due*."""
        is_usual = not limits and not self._demands_wait
        if is_usual:
            if self._must_look(due) and not self._is_any_due(due, params):
                return None
            result = self._database.transact(lambda session: session.one(self._undemanding[due], params))
            if result is not None:
                return result
        met = self._met(claimer.offer)
        if is_usual and not self._demands_wait:
            return None
        if self._is_sqlite and not self._is_due(due, met, limits, params):
            return None

        return self._claimed(lambda number, full: claim_first(due, number, full), params, met, limits)

    def _must_look(self, due: str) -> bool:
        return self._is_sqlite and (self._looks_first or due == IS_DUE_DELIVERY)

    def _met(self, offer: Capabilities) -> tuple[str, ...]:
        """Return the demands that wait and that *offer* meets."""
        with self._database.read() as session:
            waiting = [row[0] for row in session.all(self._spelled(DEMANDS_WAITING))]
        self._demands_wait = bool(waiting)

        return tuple(text for text in waiting if meets(offer, Requirements.from_text(text)))

    def _is_any_due(self, due: str, params: dict[str, object]) -> bool:
        with self._database.read() as session:
            return session.one(self._any_due[due], params) is not None

    def _is_due(self, due: str, met: Sequence[str], limits: RunLimits, params: dict[str, object]) -> bool:
        with self._database.read() as session:
            full = _full(session, limits)
            text = self._spelled(is_due(due, len(met), len(full)))

            return session.one(text, {**params, **_numbered("met", met), **_numbered("full", full)}) is not None

    # --- how -----------------------------------------------------------------------------------------------------

    def _claimed(self, text: _Text, params: dict[str, object], met: Sequence[str], limits: RunLimits) -> Row | None:
        """Return the row that *text* claims; labels are counted in the same transaction, and by one at a time."""

        def work(session: Session) -> Row | None:
            if limits and not self._is_sqlite:
                session.one(LIMITS_LOCK)
            full = _full(session, limits)
            wanted = {**params, **_numbered("met", met), **_numbered("full", full)}

            return session.one(self._spelled(text(len(met), len(full))), wanted)

        return self._database.transact(work)

    def _spelled(self, sql: str) -> str:
        return spelled(self._database, sql)


def _full(session: Session, limits: RunLimits) -> tuple[str, ...]:
    """Return the labels that no further run may carry now, between their bars."""
    if not limits:
        return ()
    live = (labels_of(row[0]) for row in session.all(LABELS_LIVE))

    return tuple(f"|{label}|" for label in full_labels(live, limits))


def _numbered(name: str, values: Sequence[str]) -> dict[str, str]:
    return {f"{name}{number}": value for number, value in enumerate(values)}


# Every query about the sessions of agents, by name.


COLUMNS = """
session_id, adw_id, run_id, phase, attempt_number, agent, host, status, executor_session_id, reason, started_at,
ended_at
"""

#: Without a run of its own it belongs to the one that the workflow has now.
SESSION_OPEN = """
INSERT INTO sessions (session_id, adw_id, run_id, phase, attempt_number, agent, host, status, executor_session_id,
    reason, started_at, ended_at)
VALUES (:session_id, :adw_id,
    coalesce(CAST(:run_id AS BIGINT),
        (SELECT run_id FROM runs WHERE runs.adw_id = :adw_id AND slot = '' AND finished_at IS NULL)),
    :phase, :attempt_number, :agent, :host, :status, :executor_session_id, :reason, :started_at, NULL)
ON CONFLICT (session_id) DO UPDATE SET executor_session_id = excluded.executor_session_id
"""
SESSION_CLOSE = """
UPDATE sessions SET status = :status, reason = :reason, ended_at = :moment
WHERE session_id = :session_id AND ended_at IS NULL
"""
SESSIONS_FOLLOW = """
UPDATE sessions SET status = :status, reason = :reason, ended_at = :ended_at
WHERE run_id = :run_id AND ended_at IS NULL
"""
SESSIONS_OF_WORKFLOW = f"SELECT {COLUMNS} FROM sessions WHERE adw_id = :adw_id ORDER BY started_at, session_id"
SESSIONS_LIVE = f"SELECT {COLUMNS} FROM sessions WHERE ended_at IS NULL ORDER BY started_at, session_id"

#: For `adw db check`: whatever ends a run ends its sessions with it.
CHECK_SESSIONS = """
SELECT session_id, adw_id FROM sessions AS agent
WHERE ended_at IS NULL AND run_id IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = agent.run_id AND runs.finished_at IS NULL)
ORDER BY started_at, session_id
"""


# How the sessions of agents follow their run.
#
# Every statement that ends, takes back or stops a run calls `follow` in the same transaction, and only when the run has
# an agent that has not ended.


#: What a session is when its run is something; every other end is a failure.
_FOLLOWS = {
    RunState.STOPPING: SessionStatus.STOPPING,
    RunState.STOPPED: SessionStatus.STOPPED,
    RunState.COMPLETED: SessionStatus.FINISHED,
}
_WORKED_ON = frozenset({RunState.CLAIMED, RunState.RUNNING})


def status_with(state: RunState) -> SessionStatus | None:
    """Return what the open sessions of a run become that is in *state*; None: they stay as they are."""
    return None if state in _WORKED_ON else _FOLLOWS.get(state, SessionStatus.FAILED)


def follow(session: Session, run: Run, moment: str) -> None:
    """Have the open sessions of *run* follow it, inside the transaction *session*."""
    status = status_with(run.state)
    if status is None:
        return
    ended_at = None if status is SessionStatus.STOPPING else moment
    params = {"run_id": run.run_id, "status": status.value, "reason": run.reason, "ended_at": ended_at}
    session.run(SESSIONS_FOLLOW, params)


# Announcing a waiting run to workers, inside the transaction that makes it wait.
#
# SQLite shows every commit by itself. On PostgreSQL a run is announced by a job of Procrastinate that carries its id
# and nothing else, without a lock of its own: it exists when the run does, comes when the run is due, and is gone with
# a rollback. Its worker still has to claim the run, so one job too many is harmless. Procrastinate is not imported
# here: the row is inserted as its own function does, the table's trigger wakes its workers, and commands start fast.


#: Where the jobs wait, and what Procrastinate calls the task.
QUEUE = "adw_runs"
TASK = "adw.run"
#: How many runs one sweep announces again; the next sweep announces the rest.
MOST = 500

_INSERT = "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, scheduled_at) "
#: The job of a run: *run_id*, *rank* and *not_before* are SQL.
_JOB = (
    f"'{QUEUE}', '{TASK}', CAST(-({{rank}}) AS integer), jsonb_build_object('run_id', CAST({{run_id}} AS bigint)),"
    " CAST(nullif({not_before}, '') AS timestamptz)"
)

#: The same as a part of a statement that stores runs.
_JOBS_OF_STORED = (
    _INSERT + "SELECT " + _JOB.format(rank="rank", run_id="run_id", not_before="not_before") + " FROM stored"
)

JOB_OF_RUN = _INSERT + "SELECT " + _JOB.format(rank=":rank", run_id=":run_id", not_before=":not_before")

#: Runs are announced by the process that stores them; this is for what a crash, a copy or a worker that could not claim
#: it (another's requirements, a limit) left without a job.
JOBS_MISSING = (
    _INSERT
    + "SELECT "
    + _JOB.format(rank="run.rank", run_id="run.run_id", not_before="run.not_before")
    + f""" FROM runs AS run
WHERE run.state = 'pending' AND NOT EXISTS (
    SELECT 1 FROM procrastinate_jobs AS job
    WHERE job.queue_name = '{QUEUE}' AND job.status IN ('todo', 'doing')
      AND CAST(job.args ->> 'run_id' AS bigint) = run.run_id
)
ORDER BY run.rank, run.run_id LIMIT :most"""
)


def telling(database: Database, insert: str) -> str:
    """Return *insert*, which stores a waiting run and returns what it stored, so that it also announces it."""
    if database.dialect == "sqlite":
        return insert
    stored, shown = insert.split(" RETURNING ")

    return f"WITH stored AS ({stored} RETURNING *), told AS ({_JOBS_OF_STORED}) SELECT {shown} FROM stored"


def announce(database: Database, session: Session, run: Run) -> None:
    """Announce *run* when the transaction *session* commits, if it waits then."""
    if database.dialect == "sqlite" or run.state is not RunState.PENDING:
        return
    session.run(JOB_OF_RUN, {"run_id": run.run_id, "rank": -run.priority, "not_before": run.not_before})


def announce_missing(database: Database, session: Session, *, most: int = MOST) -> int:
    """Announce waiting runs that have no job (after a copy, a rebuild or a crash), and return how many."""
    if database.dialect == "sqlite":
        return 0

    return session.run(JOBS_MISSING, {"most": most})


#: The run in our way may end between our insert and our query; after this many times something else is wrong.
_LOOKS = 10


class RunStore:
    """A `RunQueue` in the table runs."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sql = _Texts.of(database)
        self._is_sqlite = isinstance(database, SqliteDatabase)
        self._claims = RunClaims(database, clock=clock)

    # --- waiting -----------------------------------------------------------------------------------------------

    def enqueue(self, run: NewRun) -> Run:
        """Store a run, durable when this returns; the workflow's unfinished run when it has one."""
        return self._database.transact(lambda session: self.enqueue_in(session, run))

    def enqueue_in(self, session: Session, run: NewRun) -> Run:
        """Do the same inside the transaction *session*: the run exists when that is committed."""
        params = {**self._now(), **new_run_params(run, self._moment(), self._database)}
        for _ in range(_LOOKS):
            row = session.one(self._sql.enqueue, params)
            if row is not None:
                return to_run(row)  # workers are told by the same statement
            row = session.one(self._sql.unfinished, params)
            if row is not None:
                return to_run(row)

        raise DatabaseError(f"the run of workflow {run.adw_id} could neither be stored nor be read: try again")

    def unfinished_in(self, session: Session, run_id: int) -> Run | None:
        """Return a run that is not over, inside the transaction *session*."""
        row = session.one(self._sql.get, {**self._now(), "run_id": run_id})
        run = None if row is None else to_run(row)

        return None if run is None or run.state in FINAL_RUNS else run

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: ClaimPolicy = NO_TERMS,
    ) -> Run | None:
        """
        Take the next run that is due (or *run_id*, if it still waits), None when there is none.

        What demands more than *terms* offer is passed over, and what carries a label that is full.
        """
        return self._claims.claim(
            Claimer(owner=owner, ttl_seconds=ttl_seconds, terms=terms), run_id=run_id, only_deliveries=only_deliveries
        )

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds the next waiting run is due (0 when one is), None when none waits."""
        with self._database.read() as session:
            row = session.one(self._sql.next_due)
        if row is None or row[0] is None:
            return None
        if not row[0]:
            return 0.0

        return max(0.0, (timestamps.parse(row[0]) - self._clock.now()).total_seconds())

    # --- with a worker -----------------------------------------------------------------------------------------

    def begin(self, run: Run) -> Run:
        """Say that work on a claimed run has begun; one that shall stop stays STOPPING."""
        return self._database.transact(self.beginning(run))

    def beginning(self, run: Run) -> Callable[[Session], Run]:
        """Return what does that in a transaction of the caller."""
        return self._changing(self._sql.begin, run)

    def renew(self, run: Run, *, ttl_seconds: float) -> Run:
        """Push the end of the claim out, also of one that is over and that nobody took back."""
        return self._database.transact(self._changing(self._sql.renew, run, ttl=ttl_seconds))

    def requeue(self, run: Run, *, not_before: str = "", reason: str = "", demands: Requirements | None = None) -> Run:
        """Give the run back, to its old place: PENDING again, STOPPED when it was to stop."""
        end = RunEnd(state=RunState.PENDING, reason=reason, not_before=not_before, demands=demands)

        return self._database.transact(self.ending(run, end))

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End the run: COMPLETED, FAILED or STOPPED."""
        return self._database.transact(self._finishing(run, state, self._said(reason)))

    def ending(self, run: Run, end: RunEnd) -> Callable[[Session], Run]:
        """Return what gives *run* back or ends it in a transaction of the caller; raise UsageError."""
        reason = self._said(end.reason)
        if end.state is RunState.PENDING:
            due, demands = check_due(end.not_before), run.demands if end.demands is None else end.demands
            waiting = replace(run, demands=demands)
            return self._changing(self._sql.requeue, waiting, not_before=due, reason=reason, demands=demands.to_text())

        return self._finishing(run, end.state, reason)

    def _finishing(self, run: Run, state: RunState, reason: str) -> Callable[[Session], Run]:
        return self._changing(self._sql.finish, run, state=check_final(state).value, reason=reason)

    def take_back(self, run: Run, *, reason: str) -> Run | None:
        """
        Make a run whose worker is gone PENDING again (STOPPED if it was stopping), None when it moved on.

        A claim that was over in *run* must still be over: its worker may have come back. For one that was not, the
        caller has proof that the worker is dead. Counts one more loss.
        """
        sql = self._sql.take_back if run.seconds_left > 0.0 else self._sql.take_back_if_over

        return self._without_worker(sql, run, reason)

    def bury(self, run: Run, *, reason: str) -> Run | None:
        """
        End a run that too many workers vanished with: DEAD (STOPPED if it was stopping), None when it moved on.

        The same care as with `take_back`, and one that waits can be buried, too.
        """
        sql = self._sql.bury if run.seconds_left > 0.0 else self._sql.bury_if_over

        return self._without_worker(sql, run, reason)

    def settle_lost(self, run: Run, end: RunEnd) -> Run | None:
        """Do what was decided about a run whose worker is gone, or that waits; None when it moved on."""
        return self._database.transact(self.settling(run, end))

    def settling(self, run: Run, end: RunEnd) -> Callable[[Session], Run | None]:
        """Return what does that in a transaction of the caller."""
        sql = self._sql.settle if run.seconds_left > 0.0 else self._sql.settle_if_over

        return self._unless_moved(sql, run, state=end.state.value, reason=self._said(end.reason))

    def _without_worker(self, sql: str, run: Run, reason: str) -> Run | None:
        return self._database.transact(self._unless_moved(sql, run, reason=self._said(reason)))

    def _unless_moved(self, sql: str, run: Run, **more: object) -> Callable[[Session], Run | None]:
        """Return what changes a run in a transaction; that answers None when it moved on."""
        params = {**self._ours(run), **more}

        def work(session: Session) -> Run | None:
            row = session.one(sql, params)
            return None if row is None else self._changed(session, run, row)

        return work

    def wake_in(self, session: Session, adw_id: str) -> Run | None:
        """
        Make the run that goes on with a workflow due, inside the transaction that ends what it waits for.

        One that a worker has this moment is due again when it is given back. None when there is none to wake.
        """
        row = session.one(self._sql.wake, {**self._now(), "adw_id": adw_id, "moment": self._moment()})

        return None if row is None else self._told(session, to_run(row))

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits is STOPPED at once, one with a worker becomes STOPPING. Idempotent."""
        if not 0 < run_id <= LAST_ID:
            raise RunNotFound(run_id)
        params = {**self._now(), "run_id": run_id, "reason": self._said(reason), "moment": self._moment()}
        changed = self._change(self._sql.stop, params)
        result = changed or self.get(run_id)
        if result is None:
            raise RunNotFound(run_id)

        return result

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, run_id: int) -> Run | None:
        """Return a run."""
        if not 0 < run_id <= LAST_ID:
            return None
        result = self._all(self._sql.get, {"run_id": run_id})

        return result[0] if result else None

    def of_workflow(self, adw_id: str, *, limit: int = 50) -> tuple[Run, ...]:
        """Return the runs of a workflow, newest first, without the lanes of its steps."""
        return self._all(self._sql.of_workflow, {"adw_id": check_adw_id(adw_id), "limit": _checked(limit)})

    def page(self, *, states: Sequence[RunState] = (), limit: int = 50, before: int | None = None) -> tuple[Run, ...]:
        """Return runs, newest first, those with a lower id than *before*."""
        upper = LAST_ID if before is None else min(max(before, 0), LAST_ID)
        params: dict[str, object] = {"before": upper, "limit": _checked(limit)}
        wanted = {f"state{number}": state.value for number, state in enumerate(dict.fromkeys(states))}
        if not wanted:
            return self._all(self._sql.page, params)
        # Each state is one walk along its index; a condition over all of them would sort every run there ever was.
        walks = " UNION ALL ".join(
            f"SELECT run_id FROM ({self._sql.page_of(state).format(state=name)}) AS {name}"
            for name, state in wanted.items()
        )
        result = f"{self._sql.shown} WHERE run_id IN ({walks}) ORDER BY run_id DESC LIMIT :limit"

        return self._all(result, {**params, **wanted})

    def live(self) -> tuple[Run, ...]:
        """Return every run that a worker has, or had when it died."""
        return self._all(self._sql.live, {})

    def demanding(self) -> tuple[Run, ...]:
        """Return every waiting run that demands something, the oldest first."""
        return self._all(self._sql.demanding, {})

    # --- how -----------------------------------------------------------------------------------------------------

    def _changing(self, sql: str, run: Run, **more: object) -> Callable[[Session], Run]:
        """Return what changes a run of ours in a transaction; that raises RunLost when it is not ours any more."""
        params = {**self._ours(run), **more}

        def work(session: Session) -> Run:
            row = session.one(sql, params)
            if row is None:
                raise RunLost(run.run_id)
            return self._changed(session, run, row)

        return work

    def _change(self, sql: str, params: Mapping[str, object]) -> Run | None:
        def work(session: Session) -> Run | None:
            row = session.one(sql, params)
            return None if row is None else self._told(session, to_run(row), has_agent=bool(row[-1]))

        return self._database.transact(work)

    def _changed(self, session: Session, run: Run, row: Row) -> Run:
        return self._told(session, changed(run, row), has_agent=has_agent(row))

    def _told(self, session: Session, run: Run, *, has_agent: bool = False) -> Run:
        """Announce *run* at the commit, if it waits, and have its agent sessions follow it, if it has any."""
        announce(self._database, session, run)
        if has_agent:
            follow(session, run, self._moment())

        return run

    def _all(self, sql: str, params: Mapping[str, object]) -> tuple[Run, ...]:
        with self._database.read() as session:
            rows = session.all(sql, {**self._now(), **params})

        return tuple(map(to_run, rows))

    def _ours(self, run: Run) -> dict[str, object]:
        return {
            **self._now(),
            "run_id": run.run_id,
            "token": run.token,
            "owner": run.owner,
            "moment": self._moment(),
        }

    def _said(self, text: str) -> str:
        """Return what somebody said as it is stored."""
        return connection.plain(self._database.clean(text)) if text else text

    def _now(self) -> Mapping[str, object]:
        return self._database.lease_clock()

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """The queries in the SQL of one dialect, rendered once."""

    enqueue: str
    unfinished: str
    next_due: str
    begin: str
    renew: str
    requeue: str
    finish: str
    take_back: str
    take_back_if_over: str
    bury: str
    bury_if_over: str
    settle: str
    settle_if_over: str
    stop: str
    wake: str
    get: str
    of_workflow: str
    page: str
    page_of_pending: str
    live: str
    demanding: str
    shown: str

    def page_of(self, state: str) -> str:
        """Return the query for the ids on a page of *state*; `{state}` is where the name of its parameter goes."""
        if state == RunState.PENDING.value:
            return self.page_of_pending
        if state == RunState.COMPLETED.value:
            return PAGE_OF_COMPLETED

        return PAGE_OF_STATE

    @classmethod
    def of(cls, database: Database) -> _Texts:
        def render(sql: str) -> str:
            return spelled(database, sql)

        return cls(
            enqueue=render(telling(database, RUN_ENQUEUE)),
            unfinished=render(RUN_UNFINISHED),
            next_due=render(RUN_NEXT_DUE),
            begin=render(RUN_BEGIN),
            renew=render(RUN_RENEW),
            requeue=render(RUN_REQUEUE),
            finish=render(RUN_FINISH),
            take_back=render(RUN_TAKE_BACK),
            take_back_if_over=render(RUN_TAKE_BACK_IF_OVER),
            bury=render(RUN_BURY),
            bury_if_over=render(RUN_BURY_IF_OVER),
            settle=render(RUN_SETTLE),
            settle_if_over=render(RUN_SETTLE_IF_OVER),
            stop=render(RUN_STOP),
            wake=render(RUN_WAKE),
            get=render(RUN_GET),
            of_workflow=render(RUNS_OF_WORKFLOW),
            page=render(RUNS_PAGE),
            page_of_pending=render(PAGE_OF_PENDING),
            live=render(RUNS_LIVE),
            demanding=render(RUNS_DEMANDING),
            shown=render(RUNS_SHOWN),
        )


def _checked(limit: int) -> int:
    if not 0 < limit <= LAST_ID:
        raise UsageError(f"a page needs a limit of at least 1, not {limit}")

    return limit
