"""
The run queue in the database: the row is the truth about a run, and claiming it is one statement.

Its place is (priority, run_id), and a run keeps its id when it is given back: so what is older stays in front, also
after a restart. Whatever a worker says about a run names the claim it has; after another claim it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from adws.adw_modules import timestamps
from adws.adw_modules.db import announcing, rows, run_rows, run_statements, session_following
from adws.adw_modules.db.run_claims import LAST_ID, Claimer, RunClaims
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.demands import Demands
from adws.adw_modules.errors import DatabaseError, RunLost, RunNotFound, UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.runs import (
    FINAL_RUNS,
    NO_TERMS,
    NewRun,
    Run,
    RunEnd,
    RunState,
    Terms,
    check_due,
    check_final,
)

#: The run in our way may end between our insert and our look; after this many times something else is wrong.
_LOOKS = 10


class DatabaseRunQueue:
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
        params = {**self._now(), **run_rows.new_run_params(run, self._moment(), self._database)}
        for _ in range(_LOOKS):
            row = session.one(self._sql.enqueue, params)
            if row is not None:
                return run_rows.to_run(row)  # workers are told by the same statement
            row = session.one(self._sql.unfinished, params)
            if row is not None:
                return run_rows.to_run(row)

        raise DatabaseError(f"the run of workflow {run.adw_id} could neither be stored nor be read: try again")

    def unfinished_in(self, session: Session, run_id: int) -> Run | None:
        """Return a run that is not over, inside the transaction *session*."""
        row = session.one(self._sql.get, {**self._now(), "run_id": run_id})
        run = None if row is None else run_rows.to_run(row)

        return None if run is None or run.state in FINAL_RUNS else run

    def claim(
        self,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        run_id: int | None = None,
        only_deliveries: bool = False,
        terms: Terms = NO_TERMS,
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
        """Return what does that in a transaction of somebody else."""
        return self._changing(self._sql.begin, run)

    def renew(self, run: Run, *, ttl_seconds: float) -> Run:
        """Push the end of the claim out, also of one that is over and that nobody took back."""
        return self._database.transact(self._changing(self._sql.renew, run, ttl=ttl_seconds))

    def requeue(self, run: Run, *, not_before: str = "", reason: str = "", demands: Demands | None = None) -> Run:
        """Give the run back, to its old place: PENDING again, STOPPED when it was to stop."""
        end = RunEnd(state=RunState.PENDING, reason=reason, not_before=not_before, demands=demands)

        return self._database.transact(self.ending(run, end))

    def finish(self, run: Run, state: RunState, *, reason: str = "") -> Run:
        """End the run: COMPLETED, FAILED or STOPPED."""
        return self._database.transact(self._finishing(run, state, self._said(reason)))

    def ending(self, run: Run, end: RunEnd) -> Callable[[Session], Run]:
        """Return what gives *run* back or ends it in a transaction of somebody else; raise UsageError."""
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
        """Return what does that in a transaction of somebody else."""
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

        return None if row is None else self._told(session, run_rows.to_run(row))

    def ask_to_stop(self, run_id: int, *, reason: str = "") -> Run:
        """Stop a run: one that waits is STOPPED at once, one with a worker becomes STOPPING. Idempotent."""
        if not 0 < run_id <= LAST_ID:
            raise RunNotFound(run_id)
        params = {**self._now(), "run_id": run_id, "reason": self._said(reason), "moment": self._moment()}
        changed = self._change(self._sql.stop, params)
        found = changed or self.get(run_id)
        if found is None:
            raise RunNotFound(run_id)

        return found

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, run_id: int) -> Run | None:
        """Return a run."""
        if not 0 < run_id <= LAST_ID:
            return None
        found = self._all(self._sql.get, {"run_id": run_id})

        return found[0] if found else None

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
            f"SELECT run_id FROM ({self._sql.page_of(state).format(state=name)}) AS {name}"  # noqa: S608 - names made here
            for name, state in wanted.items()
        )
        found = f"{self._sql.shown} WHERE run_id IN ({walks}) ORDER BY run_id DESC LIMIT :limit"

        return self._all(found, {**params, **wanted})

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
            return None if row is None else self._told(session, run_rows.to_run(row), has_agent=bool(row[-1]))

        return self._database.transact(work)

    def _changed(self, session: Session, run: Run, row: Row) -> Run:
        return self._told(session, run_rows.changed(run, row), has_agent=run_rows.has_agent(row))

    def _told(self, session: Session, run: Run, *, has_agent: bool = False) -> Run:
        """Have workers told of *run* at the commit, if it waits, and its agents follow it, if it has any."""
        announcing.announce(self._database, session, run)
        if has_agent:
            session_following.follow(session, run, self._moment())

        return run

    def _all(self, sql: str, params: Mapping[str, object]) -> tuple[Run, ...]:
        with self._database.read() as session:
            found = session.all(sql, {**self._now(), **params})

        return tuple(map(run_rows.to_run, found))

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
        return rows.plain(self._database.clean(text)) if text else text

    def _now(self) -> Mapping[str, object]:
        return self._database.lease_clock()

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """The queries in the words of one dialect, spelled once."""

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
            return run_statements.PAGE_OF_COMPLETED

        return run_statements.PAGE_OF_STATE

    @classmethod
    def of(cls, database: Database) -> _Texts:
        def spell(sql: str) -> str:
            return run_statements.spelled(database, sql)

        return cls(
            enqueue=spell(announcing.telling(database, run_statements.RUN_ENQUEUE)),
            unfinished=spell(run_statements.RUN_UNFINISHED),
            next_due=spell(run_statements.RUN_NEXT_DUE),
            begin=spell(run_statements.RUN_BEGIN),
            renew=spell(run_statements.RUN_RENEW),
            requeue=spell(run_statements.RUN_REQUEUE),
            finish=spell(run_statements.RUN_FINISH),
            take_back=spell(run_statements.RUN_TAKE_BACK),
            take_back_if_over=spell(run_statements.RUN_TAKE_BACK_IF_OVER),
            bury=spell(run_statements.RUN_BURY),
            bury_if_over=spell(run_statements.RUN_BURY_IF_OVER),
            settle=spell(run_statements.RUN_SETTLE),
            settle_if_over=spell(run_statements.RUN_SETTLE_IF_OVER),
            stop=spell(run_statements.RUN_STOP),
            wake=spell(run_statements.RUN_WAKE),
            get=spell(run_statements.RUN_GET),
            of_workflow=spell(run_statements.RUNS_OF_WORKFLOW),
            page=spell(run_statements.RUNS_PAGE),
            page_of_pending=spell(run_statements.PAGE_OF_PENDING),
            live=spell(run_statements.RUNS_LIVE),
            demanding=spell(run_statements.RUNS_DEMANDING),
            shown=spell(run_statements.RUNS_SHOWN),
        )


def _checked(limit: int) -> int:
    if not 0 < limit <= LAST_ID:
        raise UsageError(f"a page needs a limit of at least 1, not {limit}")

    return limit
