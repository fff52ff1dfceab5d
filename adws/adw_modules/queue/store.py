"""
The run queue in the database: the row is the truth about a run, and claiming it is one statement.

Its place is (priority, run_id), and a run keeps its id when it is given back: so what is older stays in front, also
after a restart. Whatever a worker says about a run names the claim it has; after another claim it changes nothing.

Each change is a method that takes the session of a caller (`*_in`), so that a run changes in the same transaction as
the lease of its workflow, its document or a delivery; the methods without one are the same in a transaction alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.errors import DatabaseError, RunLost, RunNotFound, UsageError
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.interfaces import Clock, OwnerRecord, SessionStatus
from adws.adw_modules.queue.model import (
    DELIVERY_PRIORITY,
    FINAL_RUNS,
    LIVE_RUNS,
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

#: The highest number a row can have.
LAST_ID = 2**63 - 1
#: The run in our way may end between our insert and our query; after this many times something else is wrong.
_LOOKS = 10

NO_LABELS: frozenset[str] = frozenset()
#: A third of the time of `RunState(text)`.
_STATES = {state.value: state for state in RunState}

#: All but `woken`, which only the queue itself looks at.
RUN_COLUMNS = (
    *("run_id", "adw_id", "kind", "state", "rank", "not_before", "attempts", "token", "owner", "claim_until"),
    *("claim_boot", "reason", "payload", "asked_by", "created_at", "updated_at", "started_at", "finished_at"),
    *("demands", "labels", "losses", "slot", "parent_run_id"),
)

#: Columns of `{shown}`.
_SHOWN = 22
#: Parts of queries, by the placeholder that stands for them. A claim is over when it belongs to another start of the
#: machine or when its time is up.
_PARTS = {
    # A run as `to_run` reads it.
    "{shown}": (
        "run_id, adw_id, kind, state, -rank, not_before, attempts, token, owner,"
        " CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END,"
        " reason, payload, asked_by, created_at, updated_at, started_at, finished_at, demands, labels, losses, slot,"
        " parent_run_id"
    ),
    # Whether an agent of the run has not ended, looked up by an index that has only such: nearly free without one.
    "{has_session}": (
        "EXISTS (SELECT 1 FROM sessions WHERE sessions.run_id = runs.run_id AND sessions.ended_at IS NULL)"
    ),
    # A worker has it, in the words of the index of states: SQLite uses that only for queries that say so.
    "{is_live}": "state IN ('claimed', 'running', 'stopping') AND state NOT IN ('pending', 'completed')",
    # The worker that asks has it: the number of the claim alone would do, unless the table was made again since. What
    # is neither pending nor finished is claimed, running or stopping; SQLite takes longer for a list of the three.
    "{is_ours}": (
        "run_id = :run_id AND token = :token AND owner = :owner AND state <> 'pending' AND finished_at IS NULL"
    ),
    "{nobody}": "owner = '', claim_until = 0, claim_boot = '', updated_at = :moment",
}
#: On SQLite the index is named, because without statistics it takes another one and sorts all waiting runs.
_SQLITE = {
    "{waiting}": "runs INDEXED BY ix_runs_waiting",
    "{demanding}": "runs INDEXED BY ix_runs_demanding",
    "{skip_locked}": "",
}
#: Without the last a second claim would wait for the first one to commit, and then find its row taken.
_POSTGRESQL = {"{waiting}": "runs", "{demanding}": "runs", "{skip_locked}": "FOR UPDATE SKIP LOCKED"}

#: Conditions on what may be claimed.
_IS_DUE = "state = 'pending' AND not_before <= :moment"
#: The rank keeps the walk short where many workflows wait: nothing behind it is a delivery.
_IS_DUE_DELIVERY = f"{_IS_DUE} AND rank <= :rank AND kind = 'delivery'"
_IS_ONE = "run_id = :run_id AND state = 'pending'"
_CLAIM = """
UPDATE runs
SET state = 'claimed', attempts = attempts + 1, token = token + 1, owner = :owner, claim_until = {now} + :ttl,
    claim_boot = :boot, reason = '', updated_at = :moment
"""


def render(database: Database, sql: str) -> str:
    """Return *sql* in the SQL of the dialect of *database*, with the parts that queries about runs share."""
    words = _POSTGRESQL if database.dialect == "postgresql" else _SQLITE
    for word, meaning in (*_PARTS.items(), *words.items()):
        sql = sql.replace(word, meaning)

    return database.render(sql)


def to_run(row: Row) -> Run:
    """Return the run in a row of `{shown}`."""
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


class RunStore:
    """A `RunQueue` in the table runs."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_sqlite = database.dialect == "sqlite"
        self._rendered: dict[str, str] = {}
        # A reader waits for nobody, a claim for every writer before it: so one that will find nothing is not made.
        # Where the last one found something, the next one will too.
        self._looks_first = self._is_sqlite
        self._demands_wait = False  #: when it was last looked at; what is wrong here costs a statement, no more

    # --- waiting -----------------------------------------------------------------------------------------------

    def enqueue(self, run: NewRun) -> Run:
        """Store a run, durable when this returns; the workflow's unfinished run when it has one."""
        return self._database.transact(lambda session: self.enqueue_in(session, run))

    def enqueue_in(self, session: Session, run: NewRun) -> Run:
        """
        Do the same inside the transaction *session*: the run exists when that is committed.

        Raises UsageError or StateUnserialisable when it cannot be one.
        """
        run = check_new_run(run)
        database = self._database
        params = {
            **database.lease_clock(),
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
            "moment": self._moment(),
        }
        insert = (
            "INSERT INTO runs (adw_id, kind, state, rank, not_before, attempts, token, owner, claim_until, claim_boot,"
            " reason, payload, asked_by, created_at, updated_at, demands, labels, losses, slot, parent_run_id)"
            " VALUES (:adw_id, :kind, 'pending', :rank, :not_before, 0, 0, '', 0, '', '', :payload, :asked_by, :moment,"
            " :moment, :demands, :labels, 0, :slot, :parent_run_id)"
            " ON CONFLICT (adw_id, slot) WHERE finished_at IS NULL DO NOTHING RETURNING "
        )
        if self._is_sqlite:
            insert += "{shown}"
        else:  # stored and announced by one statement
            insert = f"WITH stored AS ({insert} *), told AS ({_JOBS} FROM stored) SELECT {{shown}} FROM stored"
        for _ in range(_LOOKS):
            row = session.one(self._sql(insert), params)
            if row is not None:
                return to_run(row)
            row = session.one(
                self._sql("SELECT {shown} FROM runs WHERE adw_id = :adw_id AND slot = :slot AND finished_at IS NULL"),
                params,
            )
            if row is not None:
                return to_run(row)

        raise DatabaseError(f"the run of workflow {run.adw_id} could neither be stored nor be read: try again")

    def unfinished_in(self, session: Session, run_id: int) -> Run | None:
        """Return a run that is not over, inside the transaction *session*."""
        sql = self._sql("SELECT {shown} FROM runs WHERE run_id = :run_id")
        row = session.one(sql, {**self._database.lease_clock(), "run_id": run_id})
        run = None if row is None else to_run(row)

        return None if run is None or run.state in FINAL_RUNS else run

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds the next waiting run is due (0 when one is), None when none waits."""
        with self._database.read() as session:
            row = session.one(self._sql("SELECT min(not_before) FROM {waiting} WHERE state = 'pending'"))
        if row is None or row[0] is None:
            return None
        if not row[0]:
            return 0.0

        return max(0.0, (timestamps.parse(row[0]) - self._clock.now()).total_seconds())

    # --- claiming ----------------------------------------------------------------------------------------------

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
        if not self.may_claim(owner, run_id=run_id, only_deliveries=only_deliveries, terms=terms):
            return None

        return self._database.transact(
            lambda session: self.claim_in(
                session, owner, ttl_seconds=ttl_seconds, run_id=run_id, only_deliveries=only_deliveries, terms=terms
            )
        )

    def may_claim(
        self,
        owner: OwnerRecord,
        *,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: ClaimPolicy = NO_TERMS,
    ) -> bool:
        """Say whether a claim may find something: asked by reading, where claiming means to wait for every writer."""
        if run_id is not None:
            return 0 < run_id <= LAST_ID
        limits = NO_LIMITS if only_deliveries else terms.limits
        is_usual = not limits and not self._demands_wait
        if not self._is_sqlite or (is_usual and not only_deliveries and not self._looks_first):
            return True
        due = _IS_DUE_DELIVERY if only_deliveries else _IS_DUE
        params: dict[str, object] = {"moment": self._moment(), "rank": -DELIVERY_PRIORITY}
        with self._database.read() as session:
            if is_usual:
                return session.one(self._sql(f"SELECT 1 FROM {{waiting}} WHERE {due} LIMIT 1"), params) is not None
            terms_met = self._terms(session, owner, terms, limits, params)

            return (
                session.one(self._sql(f"SELECT 1 FROM {{waiting}} WHERE {due}{terms_met} LIMIT 1"), params) is not None
            )

    def claim_in(
        self,
        session: Session,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: ClaimPolicy = NO_TERMS,
    ) -> Run | None:
        """
        Do what `claim` does inside the transaction *session*.

        The usual case is one statement: nothing demands anything, and nothing is limited. Only while something waits
        that demands something are demands read and matched; only under limits are labels counted.
        """
        params: dict[str, object] = {
            **self._database.lease_clock(),
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "moment": self._moment(),
        }
        # Deliveries carry no labels: what they ask for is short, and a stop is not to wait for what it stops.
        limits = NO_LIMITS if only_deliveries else terms.limits
        if limits and not self._is_sqlite:
            # Claims that look at labels take turns: what one of them counted must not change before it has claimed.
            session.one("SELECT pg_advisory_xact_lock(hashtext('adw.run_limits'))")
        if run_id is not None:
            params["run_id"] = run_id
            terms_met = self._terms(session, owner, terms, limits, params)
            row = session.one(self._sql(f"{_CLAIM} WHERE {_IS_ONE}{terms_met} RETURNING {{shown}}"), params)
            return None if row is None else to_run(row)
        due = _IS_DUE
        if only_deliveries:
            due, params["rank"] = _IS_DUE_DELIVERY, -DELIVERY_PRIORITY
        row = None
        is_usual = not limits and not self._demands_wait
        if is_usual:
            row = session.one(
                self._sql(
                    f"{_CLAIM} WHERE run_id = (SELECT run_id FROM {{waiting}} WHERE {due} AND demands = ''"
                    " ORDER BY rank, run_id LIMIT 1 {skip_locked})"
                    " AND NOT EXISTS (SELECT 1 FROM {demanding} WHERE demands <> '' AND state = 'pending')"
                    " RETURNING {shown}"
                ),
                params,
            )
        if row is None:
            terms_met = self._terms(session, owner, terms, limits, params)
            if not is_usual or self._demands_wait:
                # The place in the queue is (rank, run_id), and no requeue changes either.
                row = session.one(
                    self._sql(
                        f"{_CLAIM} WHERE run_id = (SELECT run_id FROM {{waiting}} WHERE {due}{terms_met}"
                        " ORDER BY rank, run_id LIMIT 1 {skip_locked}) RETURNING {shown}"
                    ),
                    params,
                )
        if not only_deliveries:
            self._looks_first = self._is_sqlite and row is None

        return None if row is None else to_run(row)

    def _terms(
        self, session: Session, owner: OwnerRecord, terms: ClaimPolicy, limits: RunLimits, params: dict[str, object]
    ) -> str:
        """Return the condition that all a run demands is met and none of its labels is full; adds to *params*."""
        if "run_id" in params:
            rows = session.all(f"SELECT demands FROM runs WHERE {_IS_ONE}", params)
        else:
            rows = session.all(
                self._sql("SELECT DISTINCT demands FROM {demanding} WHERE demands <> '' AND state = 'pending'")
            )
            self._demands_wait = bool(rows)
        offer = terms.offer or Capabilities(host=owner.host)
        met = [row[0] for row in rows if row[0] and meets(offer, Requirements.from_text(row[0]))]
        full: Sequence[str] = ()
        if limits:
            live = session.all(self._sql("SELECT labels FROM runs WHERE {is_live} AND labels <> ''"))
            full = full_labels((labels_of(row[0]) for row in live), limits)
        params.update((f"met{number}", text) for number, text in enumerate(met))
        params.update((f"full{number}", f"|{label}|") for number, label in enumerate(full))
        demands = ", ".join(["''", *(f":met{number}" for number in range(len(met)))])
        # Both dialects have replace, and neither takes a sign in the name of a label for a pattern.
        labels = "".join(f" AND replace(labels, :full{number}, '') = labels" for number in range(len(full)))

        return f" AND demands IN ({demands}){labels}"

    # --- with a worker -----------------------------------------------------------------------------------------

    def begin(self, run: Run) -> Run:
        """Say that work on a claimed run has begun; one that shall stop stays STOPPING. Raises RunLost."""
        return self._database.transact(lambda session: self.begin_in(session, run))

    def begin_in(self, session: Session, run: Run) -> Run:
        """Do the same inside the transaction *session*."""
        row = session.one(
            self._sql("""
                UPDATE runs
                SET state = CASE state WHEN 'claimed' THEN 'running' ELSE state END,
                    started_at = coalesce(started_at, :moment), updated_at = :moment
                WHERE {is_ours} RETURNING {shown}
            """),
            self._claim_of(run),
        )
        if row is None:
            raise RunLost(run.run_id)

        return to_run(row)

    def renew(self, run: Run, *, ttl_seconds: float) -> Run:
        """Push the end of the claim out, also of one that is over and that nobody took back; raise RunLost."""
        return self._database.transact(lambda session: self.renew_in(session, run, ttl_seconds=ttl_seconds))

    def renew_in(self, session: Session, run: Run, *, ttl_seconds: float) -> Run:
        """Do the same inside the transaction *session*."""
        row = session.one(
            self._sql("""
                UPDATE runs SET claim_until = {now} + :ttl, claim_boot = :boot WHERE {is_ours} RETURNING {shown}
            """),
            {**self._claim_of(run), "ttl": ttl_seconds},
        )
        if row is None:
            raise RunLost(run.run_id)

        return to_run(row)

    def requeue(self, run: Run, *, not_before: str = "", reason: str = "", demands: Requirements | None = None) -> Run:
        """Give the run back, to its old place: PENDING again, STOPPED when it was to stop."""
        end = RunEnd(state=RunState.PENDING, reason=reason, not_before=not_before, demands=demands)

        return self._database.transact(lambda session: self.end_in(session, run, end))

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End the run: COMPLETED, FAILED or STOPPED."""
        end = RunEnd(state=check_final(state), reason=reason)

        return self._database.transact(lambda session: self.end_in(session, run, end))

    def end_in(self, session: Session, run: Run, end: RunEnd) -> Run:
        """Give *run* back or end it inside the transaction *session*; raise RunLost, or UsageError for no end."""
        params = {**self._claim_of(run), "reason": self._redacted(end.reason)}
        if end.state is RunState.PENDING:
            # What somebody stops does not wait again, and what it is to wait for may have ended while its worker was
            # writing that it waits.
            sql = """
                UPDATE runs
                SET state = CASE state WHEN 'stopping' THEN 'stopped' ELSE 'pending' END,
                    finished_at = CASE state WHEN 'stopping' THEN :moment END,
                    reason = CASE WHEN state = 'stopping' AND reason <> '' THEN reason ELSE :reason END, {nobody},
                    not_before = CASE WHEN woken = token THEN '' ELSE :not_before END, demands = :demands
                WHERE {is_ours} RETURNING {shown}, {has_session}
            """
            demands = run.demands if end.demands is None else end.demands
            params.update(not_before=check_due(end.not_before), demands=demands.to_text())
        else:
            sql = """
                UPDATE runs
                SET state = :state, finished_at = :moment,
                    reason = CASE WHEN :state = 'stopped' AND :reason = '' THEN reason ELSE :reason END, {nobody}
                WHERE {is_ours} RETURNING {shown}, {has_session}
            """
            params["state"] = check_final(end.state).value
        row = session.one(self._sql(sql), params)
        if row is None:
            raise RunLost(run.run_id)

        return self._stored(session, row)

    # --- without a worker --------------------------------------------------------------------------------------

    def take_back(self, run: Run, *, reason: str) -> Run | None:
        """Make a run whose worker is gone PENDING again (STOPPED if it was stopping), None when it moved on."""
        return self.settle_lost(run, RunEnd(state=RunState.PENDING, reason=reason)) if run.state in LIVE_RUNS else None

    def settle_lost(self, run: Run, end: RunEnd) -> Run | None:
        """
        Do what was decided about a run whose worker is gone, or that waits; None when it moved on.

        One that was to stop is STOPPED all the same. A claim that was over in *run* must still be over: its worker may
        have come back. For one that was not, the caller has proof that the worker is dead. Counts one more loss, unless
        it waits.
        """
        return self._database.transact(lambda session: self.settle_in(session, run, end))

    def settle_in(self, session: Session, run: Run, end: RunEnd) -> Run | None:
        """Do the same inside the transaction *session*."""
        sql = """
            UPDATE runs
            SET state = CASE WHEN state = 'stopping' THEN 'stopped' ELSE :state END,
                finished_at = CASE WHEN state <> 'stopping' AND :state = 'pending' THEN NULL ELSE :moment END,
                losses = CASE state WHEN 'pending' THEN losses ELSE losses + 1 END,
                reason = CASE WHEN state = 'stopping' AND reason <> '' AND :state <> 'stopped' THEN reason
                         ELSE :reason END,
                {nobody}
            WHERE run_id = :run_id AND token = :token AND owner = :owner AND finished_at IS NULL
              AND (:is_proven = 1 OR claim_boot <> :boot OR claim_until <= {now})
            RETURNING {shown}, {has_session}
        """
        params = {
            **self._claim_of(run),
            "state": end.state.value,
            "reason": self._redacted(end.reason),
            "is_proven": int(run.seconds_left > 0.0),
        }
        row = session.one(self._sql(sql), params)

        return None if row is None else self._stored(session, row)

    def wake_in(self, session: Session, adw_id: str) -> Run | None:
        """
        Make the run that goes on with a workflow due, inside the transaction that ends what it waits for.

        One that a worker has this moment is due again when it is given back. None when there is none to wake.
        """
        row = session.one(
            self._sql("""
                UPDATE runs
                SET not_before = CASE state WHEN 'pending' THEN '' ELSE not_before END, woken = token,
                    updated_at = :moment
                WHERE adw_id = :adw_id AND slot = '' AND finished_at IS NULL RETURNING {shown}
            """),
            {**self._database.lease_clock(), "adw_id": adw_id, "moment": self._moment()},
        )

        return None if row is None else self._stored(session, row)

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits is STOPPED at once, one with a worker becomes STOPPING. Idempotent."""
        if not 0 < run_id <= LAST_ID:
            raise RunNotFound(run_id)
        result = self._database.transact(lambda session: self.stop_in(session, run_id, reason=reason))
        result = result or self.get(run_id)
        if result is None:
            raise RunNotFound(run_id)

        return result

    def stop_in(self, session: Session, run_id: int, *, reason: str = "") -> Run | None:
        """Do the same inside the transaction *session*; None when there is nothing to stop."""
        row = session.one(
            self._sql("""
                UPDATE runs
                SET state = CASE state WHEN 'pending' THEN 'stopped' ELSE 'stopping' END,
                    finished_at = CASE state WHEN 'pending' THEN :moment END, reason = :reason, updated_at = :moment
                WHERE run_id = :run_id AND state IN ('pending', 'claimed', 'running')
                RETURNING {shown}, {has_session}
            """),
            {
                **self._database.lease_clock(),
                "run_id": run_id,
                "reason": self._redacted(reason),
                "moment": self._moment(),
            },
        )

        return None if row is None else self._stored(session, row)

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, run_id: int) -> Run | None:
        """Return a run."""
        if not 0 < run_id <= LAST_ID:
            return None
        result = self._all("SELECT {shown} FROM runs WHERE run_id = :run_id", {"run_id": run_id})

        return result[0] if result else None

    def of_workflow(self, adw_id: str, *, limit: int = 50) -> tuple[Run, ...]:
        """Return the runs of a workflow, newest first, without the lanes of its steps."""
        return self._all(
            "SELECT {shown} FROM runs WHERE adw_id = :adw_id AND kind <> 'iteration' ORDER BY run_id DESC LIMIT :limit",
            {"adw_id": check_adw_id(adw_id), "limit": _checked(limit)},
        )

    def page(self, *, states: Sequence[RunState] = (), limit: int = 50, before: int | None = None) -> tuple[Run, ...]:
        """Return runs, newest first, those with a lower id than *before*."""
        upper = LAST_ID if before is None else min(max(before, 0), LAST_ID)
        params: dict[str, object] = {"before": upper, "limit": _checked(limit)}
        if not states:
            return self._all(
                "SELECT {shown} FROM runs WHERE run_id < :before ORDER BY run_id DESC LIMIT :limit", params
            )
        # Each state is one walk along the index that has it; a condition over all of them would sort every run there
        # ever was. Those that went well are found among all there are.
        walks = []
        for number, state in enumerate(dict.fromkeys(states)):
            params[f"state{number}"] = state.value
            table = "{waiting}" if state is RunState.PENDING else "runs"
            is_state = {
                RunState.PENDING: "state = 'pending'",
                RunState.COMPLETED: "state = 'completed'",
            }.get(state, f"state = :state{number} AND state NOT IN ('pending', 'completed')")
            walks.append(
                f"SELECT run_id FROM (SELECT run_id FROM {table} WHERE {is_state} AND run_id < :before"
                f" ORDER BY run_id DESC LIMIT :limit) AS walk{number}"
            )

        return self._all(
            f"SELECT {{shown}} FROM runs WHERE run_id IN ({' UNION ALL '.join(walks)})"
            " ORDER BY run_id DESC LIMIT :limit",
            params,
        )

    def live(self) -> tuple[Run, ...]:
        """Return every run that a worker has, or had when it died."""
        with self._database.read() as session:
            return self.live_in(session)

    def live_in(self, session: Session) -> tuple[Run, ...]:
        """Return the same inside the transaction *session*."""
        sql = self._sql("SELECT {shown} FROM runs WHERE {is_live} ORDER BY run_id")

        return tuple(map(to_run, session.all(sql, self._database.lease_clock())))

    def unfinished(self) -> tuple[Run, ...]:
        """Return every run that is not over, the oldest first."""
        return self._all("SELECT {shown} FROM runs WHERE finished_at IS NULL ORDER BY run_id", {})

    def demanding(self) -> tuple[Run, ...]:
        """Return every waiting run that demands something, the oldest first."""
        return self._all(
            "SELECT {shown} FROM {demanding} WHERE demands <> '' AND state = 'pending' ORDER BY run_id", {}
        )

    # --- how -----------------------------------------------------------------------------------------------------

    def _stored(self, session: Session, row: Row) -> Run:
        """Return the run in *row*, announced at the commit if it waits; its open agent sessions, if any, follow it."""
        run = to_run(row)
        announce(self._database, session, run)
        if len(row) > _SHOWN and row[_SHOWN]:  # `{has_session}` was asked for
            follow(session, run, self._moment())

        return run

    def _all(self, sql: str, params: Mapping[str, object]) -> tuple[Run, ...]:
        with self._database.read() as session:
            rows = session.all(self._sql(sql), {**self._database.lease_clock(), **params})

        return tuple(map(to_run, rows))

    def _sql(self, sql: str) -> str:
        rendered = self._rendered.get(sql)
        if rendered is None:
            rendered = self._rendered[sql] = render(self._database, sql)

        return rendered

    def _claim_of(self, run: Run) -> dict[str, object]:
        return {
            **self._database.lease_clock(),
            "run_id": run.run_id,
            "token": run.token,
            "owner": run.owner,
            "moment": self._moment(),
        }

    def _redacted(self, text: str) -> str:
        return connection.plain(self._database.clean(text)) if text else text

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


def _checked(limit: int) -> int:
    if not 0 < limit <= LAST_ID:
        raise UsageError(f"a page needs a limit of at least 1, not {limit}")

    return limit


# How the sessions of agents follow their run: every statement that ends, takes back or stops a run calls `follow` in
# the same transaction, and only when the run has an agent that has not ended.


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
    session.run(
        "UPDATE sessions SET status = :status, reason = :reason, ended_at = :ended_at"
        " WHERE run_id = :run_id AND ended_at IS NULL",
        {"run_id": run.run_id, "status": status.value, "reason": run.reason, "ended_at": ended_at},
    )


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

_INSERT_JOBS = "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, scheduled_at) "
JOB_OF_RUN = (
    f"{_INSERT_JOBS} VALUES ('{QUEUE}', '{TASK}', CAST(-(:rank) AS integer),"
    " jsonb_build_object('run_id', CAST(:run_id AS bigint)), CAST(nullif(:not_before, '') AS timestamptz))"
)
#: The jobs of rows of `runs`; where they come from follows.
_JOBS = (
    f"{_INSERT_JOBS} SELECT '{QUEUE}', '{TASK}', CAST(-rank AS integer),"
    " jsonb_build_object('run_id', run_id), CAST(nullif(not_before, '') AS timestamptz)"
)


def announce(database: Database, session: Session, run: Run) -> None:
    """Announce *run* when the transaction *session* commits, if it waits then."""
    if database.dialect == "sqlite" or run.state is not RunState.PENDING:
        return
    session.run(JOB_OF_RUN, {"run_id": run.run_id, "rank": -run.priority, "not_before": run.not_before})


def announce_missing(database: Database, session: Session, *, most: int = MOST) -> int:
    """
    Announce waiting runs that have no job, and return how many.

    Runs are announced by the process that stores them; this is for what a crash, a copy or a worker that could not
    claim it (another's requirements, a limit) left without a job.
    """
    if database.dialect == "sqlite":
        return 0

    return session.run(
        f"""
        {_JOBS} FROM runs AS run
        WHERE run.state = 'pending' AND NOT EXISTS (
            SELECT 1 FROM procrastinate_jobs AS job
            WHERE job.queue_name = '{QUEUE}' AND job.status IN ('todo', 'doing')
              AND CAST(job.args ->> 'run_id' AS bigint) = run.run_id
        )
        ORDER BY run.rank, run.run_id LIMIT :most
        """,
        {"most": most},
    )
