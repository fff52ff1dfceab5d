"""
The run queue in the database: the row is the truth about a run, and a claim is one statement.

The position in the queue is (priority, run_id), and a requeued run keeps its id, so older runs stay in front even after
a restart. Every report of a worker names its claim; after a newer claim, such a report changes nothing.

Each change is a method that takes a caller's session (`*_in`), so that a run changes in the same transaction as its
workflow's lease, its document or a delivery; the methods without a session open a transaction of their own.
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

#: The highest id a row can have.
LAST_ID = 2**63 - 1
#: The conflicting run may end between our insert and our query; after this many times something else is wrong.
_LOOKS = 10

NO_LABELS: frozenset[str] = frozenset()
#: Takes a third of the time of `RunState(text)`.
_STATES = {state.value: state for state in RunState}

#: All columns except `woken`, which only the queue itself reads.
RUN_COLUMNS = (
    *("run_id", "adw_id", "kind", "state", "rank", "not_before", "attempts", "token", "owner", "claim_until"),
    *("claim_boot", "reason", "payload", "asked_by", "created_at", "updated_at", "started_at", "finished_at"),
    *("demands", "labels", "losses", "slot", "parent_run_id"),
)

#: Number of columns of `{shown}`.
_SHOWN = 22
#: Parts of queries, by placeholder. A claim has expired if it belongs to another boot of the machine or its time is up.
_PARTS = {
    # A run as read by `to_run`.
    "{shown}": (
        "run_id, adw_id, kind, state, -rank, not_before, attempts, token, owner,"
        " CASE WHEN owner = '' THEN 0 WHEN claim_boot = :boot THEN claim_until - {now} ELSE -1 END,"
        " reason, payload, asked_by, created_at, updated_at, started_at, finished_at, demands, labels, losses, slot,"
        " parent_run_id"
    ),
    # Whether the run has an agent session that has not ended. Nearly free: the index has only open sessions.
    "{has_session}": (
        "EXISTS (SELECT 1 FROM sessions WHERE sessions.run_id = runs.run_id AND sessions.ended_at IS NULL)"
    ),
    # A worker has the run. Worded like the condition of the index of states, as SQLite requires to use it.
    "{is_live}": "state IN ('claimed', 'running', 'stopping') AND state NOT IN ('pending', 'completed')",
    # The caller has the run: the token alone would do, unless the table was recreated since. A run neither pending nor
    # finished is claimed, running or stopping; SQLite takes longer for a list of the three.
    "{is_ours}": (
        "run_id = :run_id AND token = :token AND owner = :owner AND state <> 'pending' AND finished_at IS NULL"
    ),
    "{nobody}": "owner = '', claim_until = 0, claim_boot = '', updated_at = :moment",
}
#: On SQLite the index is named: without statistics it takes another one and sorts all waiting runs.
_SQLITE = {
    "{waiting}": "runs INDEXED BY ix_runs_waiting",
    "{demanding}": "runs INDEXED BY ix_runs_demanding",
    "{skip_locked}": "",
}
#: Without SKIP LOCKED, a second claim would wait for the first to commit, and then find its row taken.
_POSTGRESQL = {"{waiting}": "runs", "{demanding}": "runs", "{skip_locked}": "FOR UPDATE SKIP LOCKED"}

#: Conditions on runs that may be claimed.
_IS_DUE = "state = 'pending' AND not_before <= :moment"
#: The rank keeps the scan short if many workflows wait: no delivery has a higher rank.
_IS_DUE_DELIVERY = f"{_IS_DUE} AND rank <= :rank AND kind = 'delivery'"
_IS_ONE = "run_id = :run_id AND state = 'pending'"
_CLAIM = """
UPDATE runs
SET state = 'claimed', attempts = attempts + 1, token = token + 1, owner = :owner, claim_until = {now} + :ttl,
    claim_boot = :boot, reason = '', updated_at = :moment
"""


def render(database: Database, sql: str) -> str:
    """Return *sql* in the dialect of *database*, with the shared parts of run queries filled in."""
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
    """The run queue in the table runs."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_sqlite = database.dialect == "sqlite"
        self._rendered: dict[str, str] = {}
        # A reader waits for nobody, but a claim waits for every writer before it: so a claim that would find nothing is
        # avoided. If the last claim found a run, the next one probably will too.
        self._looks_first = self._is_sqlite
        self._demands_wait = False  #: as of the last query; a wrong value only costs a statement

    # --- waiting -----------------------------------------------------------------------------------------------

    def enqueue(self, run: NewRun) -> Run:
        """Store a run durably and return it, or return the workflow's unfinished run if there is one."""
        return self._database.transact(lambda session: self.enqueue_in(session, run))

    def enqueue_in(self, session: Session, run: NewRun) -> Run:
        """
        Enqueue inside the transaction *session*: the run exists once that is committed.

        Raises UsageError or StateUnserialisable if the run is invalid.
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
        else:  # stored and announced in one statement
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
        """Return a run that has not ended, or None, inside the transaction *session*."""
        sql = self._sql("SELECT {shown} FROM runs WHERE run_id = :run_id")
        row = session.one(sql, {**self._database.lease_clock(), "run_id": run_id})
        run = None if row is None else to_run(row)

        return None if run is None or run.state in FINAL_RUNS else run

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next waiting run is due (0 if one is due), or None if no run waits."""
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
        Claim the next due run (or *run_id*, if it still waits); return None if no run matches.

        Runs that require more than *terms* offer, or that carry a full label, are passed over.
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
        """Say whether a claim may find a run. Only reads, where a claim would have to wait for every writer."""
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
        Claim inside the transaction *session*, like `claim`.

        The usual case is one statement: no waiting run has requirements, and nothing is limited. Requirements are read
        and matched only while a run with some waits; labels are counted only under limits.
        """
        params: dict[str, object] = {
            **self._database.lease_clock(),
            "owner": owner.to_text(),
            "ttl": ttl_seconds,
            "moment": self._moment(),
        }
        # Deliveries carry no labels: they are short, and a stop request must not wait for the work it stops.
        limits = NO_LIMITS if only_deliveries else terms.limits
        if limits and not self._is_sqlite:
            # Claims that check labels take turns: the counts must not change before the claim is made.
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
                # The position in the queue is (rank, run_id), and no requeue changes either.
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
        """Return the condition that a run's requirements are met and none of its labels is full; adds to *params*."""
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
        # Both dialects have replace, which never takes a character of a label for a pattern.
        labels = "".join(f" AND replace(labels, :full{number}, '') = labels" for number in range(len(full)))

        return f" AND demands IN ({demands}){labels}"

    # --- with a worker -----------------------------------------------------------------------------------------

    def begin(self, run: Run) -> Run:
        """Record that work on a claimed run has begun; a run in STOPPING stays so. Raises RunLost."""
        return self._database.transact(lambda session: self.begin_in(session, run))

    def begin_in(self, session: Session, run: Run) -> Run:
        """Begin the run inside the transaction *session*."""
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
        """Extend the claim, even one that has expired but was not reclaimed; raise RunLost."""
        return self._database.transact(lambda session: self.renew_in(session, run, ttl_seconds=ttl_seconds))

    def renew_in(self, session: Session, run: Run, *, ttl_seconds: float) -> Run:
        """Extend the claim inside the transaction *session*."""
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
        """Requeue the run at its old position: it becomes PENDING, or STOPPED if a stop was requested."""
        end = RunEnd(state=RunState.PENDING, reason=reason, not_before=not_before, demands=demands)

        return self._database.transact(lambda session: self.end_in(session, run, end))

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End the run as COMPLETED, FAILED or STOPPED."""
        end = RunEnd(state=check_final(state), reason=reason)

        return self._database.transact(lambda session: self.end_in(session, run, end))

    def end_in(self, session: Session, run: Run, end: RunEnd) -> Run:
        """Requeue or end *run* inside the transaction *session*; raise RunLost, or UsageError for an invalid end."""
        params = {**self._claim_of(run), "reason": self._redacted(end.reason)}
        if end.state is RunState.PENDING:
            # A run to be stopped does not wait again. And the event it would wait for may have happened while its
            # worker was recording the wait.
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
        """Requeue a run whose worker is gone (STOPPED if it was stopping); return None if the run has moved on."""
        return self.settle_lost(run, RunEnd(state=RunState.PENDING, reason=reason)) if run.state in LIVE_RUNS else None

    def settle_lost(self, run: Run, end: RunEnd) -> Run | None:
        """
        Apply the decision about a run that waits or whose worker is gone; return None if the run has moved on.

        A run to be stopped becomes STOPPED regardless. If the claim in *run* has expired, it must still be expired now,
        as its worker may have come back; otherwise the caller has proof that the worker is dead. Counts a loss, unless
        the run waits.
        """
        return self._database.transact(lambda session: self.settle_in(session, run, end))

    def settle_in(self, session: Session, run: Run, end: RunEnd) -> Run | None:
        """Apply the decision inside the transaction *session*."""
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
        Make the run that continues a workflow due, inside the transaction that ends what the run waits for.

        If a worker has the run at the moment, it becomes due when requeued. Returns None if there is no run to wake.
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
        """Stop a run: a waiting run becomes STOPPED at once, one with a worker becomes STOPPING. Idempotent."""
        if not 0 < run_id <= LAST_ID:
            raise RunNotFound(run_id)
        result = self._database.transact(lambda session: self.stop_in(session, run_id, reason=reason))
        result = result or self.get(run_id)
        if result is None:
            raise RunNotFound(run_id)

        return result

    def stop_in(self, session: Session, run_id: int, *, reason: str = "") -> Run | None:
        """Stop the run inside the transaction *session*; return None if there is nothing to stop."""
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

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, run_id: int) -> Run | None:
        """Return a run, or None."""
        if not 0 < run_id <= LAST_ID:
            return None
        result = self._all("SELECT {shown} FROM runs WHERE run_id = :run_id", {"run_id": run_id})

        return result[0] if result else None

    def of_workflow(self, adw_id: str, *, limit: int = 50) -> tuple[Run, ...]:
        """Return the runs of a workflow, newest first, without its steps' lanes."""
        return self._all(
            "SELECT {shown} FROM runs WHERE adw_id = :adw_id AND kind <> 'iteration' ORDER BY run_id DESC LIMIT :limit",
            {"adw_id": check_adw_id(adw_id), "limit": _checked(limit)},
        )

    def page(self, *, states: Sequence[RunState] = (), limit: int = 50, before: int | None = None) -> tuple[Run, ...]:
        """Return runs, newest first; with *before*, those with a lower id."""
        upper = LAST_ID if before is None else min(max(before, 0), LAST_ID)
        params: dict[str, object] = {"before": upper, "limit": _checked(limit)}
        if not states:
            return self._all(
                "SELECT {shown} FROM runs WHERE run_id < :before ORDER BY run_id DESC LIMIT :limit", params
            )
        # Each state is scanned along its own index; one condition over all states would sort every run ever made.
        # Completed runs are found among all runs.
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
        """Return the live runs inside the transaction *session*."""
        sql = self._sql("SELECT {shown} FROM runs WHERE {is_live} ORDER BY run_id")

        return tuple(map(to_run, session.all(sql, self._database.lease_clock())))

    def unfinished(self) -> tuple[Run, ...]:
        """Return every run that has not ended, oldest first."""
        return self._all("SELECT {shown} FROM runs WHERE finished_at IS NULL ORDER BY run_id", {})

    def demanding(self) -> tuple[Run, ...]:
        """Return every waiting run with requirements, oldest first."""
        return self._all(
            "SELECT {shown} FROM {demanding} WHERE demands <> '' AND state = 'pending' ORDER BY run_id", {}
        )

    # --- helpers -----------------------------------------------------------------------------------------------

    def _stored(self, session: Session, row: Row) -> Run:
        """Return the run in *row*, announced at the commit if it waits; update its open agent sessions, if any."""
        run = to_run(row)
        announce(self._database, session, run)
        if len(row) > _SHOWN and row[_SHOWN]:  # `{has_session}` was queried
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


# --- agent sessions follow their run ---------------------------------------------------------------------------
#
# Every statement that ends, requeues or stops a run with an open session calls `follow` in the same transaction.


#: State of the run -> status of its open sessions; every other end is a failure.
_FOLLOWS = {
    RunState.STOPPING: SessionStatus.STOPPING,
    RunState.STOPPED: SessionStatus.STOPPED,
    RunState.COMPLETED: SessionStatus.FINISHED,
}
_WORKED_ON = frozenset({RunState.CLAIMED, RunState.RUNNING})


def status_with(state: RunState) -> SessionStatus | None:
    """Return the new status of open sessions when their run is in *state*; None: unchanged."""
    return None if state in _WORKED_ON else _FOLLOWS.get(state, SessionStatus.FAILED)


def follow(session: Session, run: Run, moment: str) -> None:
    """Update the open sessions of *run* to its state, inside the transaction *session*."""
    status = status_with(run.state)
    if status is None:
        return
    ended_at = None if status is SessionStatus.STOPPING else moment
    session.run(
        "UPDATE sessions SET status = :status, reason = :reason, ended_at = :ended_at"
        " WHERE run_id = :run_id AND ended_at IS NULL",
        {"run_id": run.run_id, "status": status.value, "reason": run.reason, "ended_at": ended_at},
    )


# --- announcing waiting runs to workers, in the transaction that makes them wait -------------------------------
#
# On SQLite every commit is visible to workers anyway. On PostgreSQL a run is announced by a Procrastinate job that
# carries only its id: the job is stored with the run, comes when the run is due, and disappears with a rollback. The
# worker still has to claim the run, so a superfluous job is harmless. Procrastinate is not imported here, for the
# start-up time of commands: the row is inserted as Procrastinate does it, and the table's trigger wakes its workers.


#: The queue of the jobs, and the name of Procrastinate's task.
QUEUE = "adw_runs"
TASK = "adw.run"
#: How many runs one sweep announces again; the next sweep announces the rest.
MOST = 500

_INSERT_JOBS = "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args, scheduled_at) "
JOB_OF_RUN = (
    f"{_INSERT_JOBS} VALUES ('{QUEUE}', '{TASK}', CAST(-(:rank) AS integer),"
    " jsonb_build_object('run_id', CAST(:run_id AS bigint)), CAST(nullif(:not_before, '') AS timestamptz))"
)
#: The jobs for rows of `runs`; the FROM clause follows.
_JOBS = (
    f"{_INSERT_JOBS} SELECT '{QUEUE}', '{TASK}', CAST(-rank AS integer),"
    " jsonb_build_object('run_id', run_id), CAST(nullif(not_before, '') AS timestamptz)"
)


def announce(database: Database, session: Session, run: Run) -> None:
    """Announce *run* if it waits, when the transaction *session* commits."""
    if database.dialect == "sqlite" or run.state is not RunState.PENDING:
        return
    session.run(JOB_OF_RUN, {"run_id": run.run_id, "rank": -run.priority, "not_before": run.not_before})


def announce_missing(database: Database, session: Session, *, most: int = MOST) -> int:
    """
    Announce waiting runs that have no job, and return their number.

    Runs are announced by the process that stores them. This is for runs left without a job by a crash, a copy, or a
    worker that could not claim the run (because of requirements or a limit).
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
