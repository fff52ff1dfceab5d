"""
Looking at executions without changing them: how they stand, what they gave, what waits.

What is long is read in pieces, so memory does not grow with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from adws.adw_modules.db import execution_rows
from adws.adw_modules.db import execution_statements as sql
from adws.adw_modules.db.execution_shelf import Texts
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.errors import UsageError
from adws.adw_modules.execution_picking import shown_facts
from adws.adw_modules.execution_state import Head
from adws.adw_modules.execution_telling import failure_of
from adws.adw_modules.execution_words import IterationState
from adws.adw_modules.executions import Execution, NewExecution, ScheduledRetry
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.steps import StepSpec

#: Results and events that are read at a time.
READ_AT_ONCE = 100


class ExecutionLooks:
    """The half of `Executions` that only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = Texts.of(database)

    # --- looking -----------------------------------------------------------------------------------------------

    def get(self, execution_id: str) -> Execution | None:
        """Return an execution as it stands."""
        with self._database.read() as session:
            head = self._head(session, execution_id, self._sql.head)

        return None if head is None else head.execution

    def plan(self, execution_id: str) -> NewExecution | None:
        """Return what was asked for."""
        with self._database.read() as session:
            row = session.one(sql.PLAN, {"execution_id": execution_id})

        return None if row is None else execution_rows.to_new(row)

    def retries(self, *, adw_id: str = "", limit: int = 1000) -> tuple[ScheduledRetry, ...]:
        """Return the calls that wait for their time, the next one first."""
        with self._database.read() as session:
            found = session.all(sql.RETRIES, {"adw_id": adw_id, "limit": limit})

        return tuple(
            ScheduledRetry(
                execution_id=row[0],
                adw_id=row[1],
                phase=row[2],
                step=row[3],
                index=row[4],
                attempt_number=row[5],
                page=row[6],
                next_at=row[7],
                why=row[8],
                error=row[9],
            )
            for row in found
        )

    def results(self, execution_id: str, *, first: int = 0) -> Iterator[tuple[int, IterationState, JsonValue]]:
        """Yield index, state and result of each iteration in the order of the collection."""
        while True:
            params = {"execution_id": execution_id, "first": first, "most": READ_AT_ONCE}
            with self._database.read() as session:
                found = session.all(sql.RESULTS, params)
            for index, state, text in found:
                yield index, IterationState(state), json.loads(text)
            if len(found) < READ_AT_ONCE:
                return
            first = found[-1][0] + 1

    def results_size(self, execution_id: str) -> int:
        """Return about how many characters all results have as JSON."""
        with self._database.read() as session:
            row = session.one(sql.RESULTS_SIZE, {"execution_id": execution_id})

        return int(row[0]) if row else 0

    def facts(self, execution_id: str) -> Mapping[str, JsonValue]:
        """Return counts for people; empty for an execution that does not exist."""
        with self._database.read() as session:
            head = self._head(session, execution_id, self._sql.head)
            counts = session.one(self._sql.counts, {"execution_id": execution_id})
        if head is None or counts is None:
            return {}

        return shown_facts(head, running=counts[0], waiting=counts[1], next_at=counts[2])

    def last_error(self, execution_id: str) -> JsonObject | None:
        """Return why the last iteration that failed did; None when none has."""
        plan = self.plan(execution_id)
        if plan is None:
            return None
        which = {"execution_id": execution_id, "adw_id": plan.adw_id}
        with self._database.read() as session:
            failure = session.one(sql.LAST_FAILURE, which)
            call = None if failure is None else session.one(sql.LAST_CALL, {**which, "idx": failure[0]})
        if failure is None:
            return None
        failed_call = json.loads(call[1]) if call is not None and call[0] == "action_failed" else {}

        return failure_of(json.loads(failure[1]), failed_call)

    def metas(self, execution_id: str) -> Iterator[JsonObject]:
        """Yield the `meta` of each call that was reported."""
        return (json.loads(row[1]) for row in self._events(execution_id, sql.CALL_METAS))

    def _events(self, execution_id: str, text: str) -> Iterator[Row]:
        plan = self.plan(execution_id)
        after = 0
        while plan is not None:
            params = {"execution_id": execution_id, "adw_id": plan.adw_id, "after": after, "most": READ_AT_ONCE}
            with self._database.read() as session:
                found = session.all(text, params)
            yield from found
            if len(found) < READ_AT_ONCE:
                return
            after = found[-1][0]

    def _head(self, session: Session, execution_id: str, text: str) -> Head | None:
        row = session.one(text, {"execution_id": execution_id})

        return None if row is None else execution_rows.to_head(execution_id, self._step(session, execution_id), row)

    def _step(self, session: Session, execution_id: str) -> StepSpec:
        return self._asked(session, execution_id).step

    def _asked(self, session: Session, execution_id: str) -> NewExecution:
        row = session.one(sql.PLAN, {"execution_id": execution_id})
        if row is None:
            raise UsageError(f"there is no execution {execution_id}")

        return execution_rows.to_new(row)
