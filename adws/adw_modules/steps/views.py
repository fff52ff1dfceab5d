"""
Views of executions, their iterations and calls for people; the cost of a page does not depend on how many there are.

Light: importing it loads none of the libraries that validate documents.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row
from adws.adw_modules.errors import ExecutionNotFound
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.steps.model import CUT, IterationState

#: Most characters of an element or a result that a list shows.
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class ExecutionLine:
    """An execution and its counts, in the order of the columns of `_EXECUTIONS`."""

    execution_id: str
    adw_id: str
    phase: str
    attempt_number: int
    step: str
    state: str
    reason: str
    total: int | None  #: None while its elements are being stored
    succeeded: int
    failed: int
    cancelled: int
    running: int  #: calls in flight
    waiting: int  #: calls that wait for their next attempt or page
    next_retry: str | None
    created_at: str
    ended_at: str | None

    @property
    def done(self) -> int:
        """Number of iterations that have ended."""
        return self.succeeded + self.failed + self.cancelled

    def to_json(self) -> JsonObject:
        """Return the line as JSON."""
        return {**asdict(self), "done": self.done}


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationLine:
    """An iteration in a list, with only the beginning of its element and result."""

    index: int
    state: str
    attempts: int  #: calls so far, over all pages
    page: int
    next_at: str | None  #: of a waiting iteration
    why: str  #: on_error | on_success, of a waiting iteration
    is_cut: bool = False  #: completed at max_attempts: its result lacks the later pages
    error: str
    started_at: str | None
    ended_at: str | None
    element: str  #: the beginning of its JSON
    result: str

    def to_json(self) -> JsonObject:
        """Return the line as JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationDetail:
    """Everything stored about one iteration."""

    line: IterationLine
    element: JsonValue
    result: JsonValue
    call: JsonObject  #: inputs requested by the previous page
    pages: tuple[int, ...]  #: characters of the stored part of each page
    calls: tuple[JsonObject, ...]  #: events of its calls, in order

    def to_json(self) -> JsonObject:
        """Return the details as JSON."""
        return {
            **self.line.to_json(),
            "element": self.element,
            "result": self.result,
            "call": self.call,
            "pages": list(self.pages),
            "calls": list(self.calls),
        }


#: Most calls of an iteration shown.
MOST_CALLS = 200
#: Iterations in a call or waiting are few, and have their own index.
_EXECUTIONS = """
SELECT execution_id, adw_id, phase, attempt_number, step, state, reason, total, succeeded, failed, cancelled,
    (SELECT count(*) FROM iterations WHERE execution_id = found.execution_id AND state = 'running'),
    (SELECT count(*) FROM iterations WHERE execution_id = found.execution_id AND state = 'retry_wait'),
    (SELECT min(next_at) FROM iterations WHERE execution_id = found.execution_id AND state = 'retry_wait'),
    created_at, ended_at
FROM executions AS found
"""
_LINE = """
idx, state, attempts, page, next_at, why, error, started_at, ended_at, substr(element, 1, :shown),
substr(result, 1, :shown)
"""
#: States for which `why` is the reason even if the last call succeeded.
_UNWELL = (IterationState.FAILED.value, IterationState.CANCELLED.value)


class ExecutionViews:
    """Reads executions from their tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_workflow(self, adw_id: str, *, step: str = "", limit: int = 100) -> tuple[ExecutionLine, ...]:
        """Return the executions of a workflow, newest first."""
        sql = f"""
        {_EXECUTIONS} WHERE adw_id = :adw_id AND (:step = '' OR step = :step)
        ORDER BY created_at DESC, execution_id DESC LIMIT :limit
        """
        params = {"adw_id": adw_id, "step": connection.plain(step), "limit": limit}
        with self._database.read() as session:
            return tuple(ExecutionLine(*row) for row in session.all(sql, params))

    def get(self, execution_id: str) -> ExecutionLine:
        """Return one execution; raise ExecutionNotFound."""
        sql = f"{_EXECUTIONS} WHERE execution_id = :execution_id"
        with self._database.read() as session:
            row = session.one(sql, {"execution_id": connection.plain(execution_id)})
        if row is None:
            raise ExecutionNotFound(execution_id)

        return ExecutionLine(*row)

    def iterations(
        self, execution_id: str, *, states: Sequence[str] = (), after: int = -1, limit: int = 100
    ) -> tuple[IterationLine, ...]:
        """Return iterations with an index above *after*, in collection order."""
        wanted = {f"state{number}": IterationState(state).value for number, state in enumerate(dict.fromkeys(states))}
        among = f"AND state IN ({', '.join(f':{name}' for name in wanted)})" if wanted else ""
        sql = f"""
        SELECT {_LINE} FROM iterations WHERE execution_id = :execution_id AND idx > :after {among}
        ORDER BY idx LIMIT :limit
        """
        which = {"execution_id": connection.plain(execution_id), "after": after, "limit": limit, **wanted}
        with self._database.read() as session:
            return tuple(map(_line, session.all(sql, {**which, "shown": SHOWN_CHARACTERS})))

    def page(self, execution_id: str, index: int, page: int, *, limit: int) -> tuple[str, int]:
        """
        Return the first *limit* characters of the stored part of a page, and its full length.

        Raises ExecutionNotFound if nothing is stored.
        """
        sql = """
        SELECT substr(part, 1, :shown), length(part) FROM iteration_pages
        WHERE execution_id = :execution_id AND idx = :idx AND page = :page
        """
        which = {"execution_id": connection.plain(execution_id), "idx": index, "page": page, "shown": limit}
        with self._database.read() as session:
            row = session.one(sql, which)
        if row is None:
            raise ExecutionNotFound(execution_id, index, page)

        return str(row[0]), int(row[1])

    def iteration(self, execution_id: str, index: int) -> IterationDetail:
        """Return everything stored about one iteration; raise ExecutionNotFound."""
        execution = self.get(execution_id)
        which = {"execution_id": execution_id, "idx": index}
        one = "WHERE execution_id = :execution_id AND idx = :idx"
        calls = f"""
        SELECT {", ".join(connection.EVENT_COLUMNS)} FROM events
        WHERE adw_id = :adw_id AND execution_id = :execution_id AND iteration_index = :idx
          AND event_type IN ('action_started', 'action_completed', 'action_failed', 'action_suspended')
        ORDER BY seq LIMIT :limit
        """
        with self._database.read() as session:
            sql = f"SELECT {_LINE}, element, result, call FROM iterations {one}"
            row = session.one(sql, {**which, "shown": SHOWN_CHARACTERS})
            if row is None:
                raise ExecutionNotFound(execution_id, index)
            pages = session.all(f"SELECT length(part) FROM iteration_pages {one} ORDER BY page", which)
            events = session.all(calls, {**which, "adw_id": execution.adw_id, "limit": MOST_CALLS})

        return IterationDetail(
            line=_line(row[:-3]),
            element=json.loads(row[-3]),
            result=json.loads(row[-2]),
            call=json.loads(row[-1]),
            pages=tuple(int(page[0]) for page in pages),
            calls=tuple(connection.to_event(event).to_json() for event in events),
        )


def _line(row: Row) -> IterationLine:
    index, state, attempts, page, next_at, why, error, started_at, ended_at, element, result = row
    is_cut = state == IterationState.COMPLETED.value and why == CUT

    return IterationLine(
        index=index,
        state=state,
        attempts=attempts,
        page=page,
        next_at=next_at or None,
        why="" if is_cut else why,
        is_cut=is_cut,
        error=error or (why if state in _UNWELL else ""),
        started_at=started_at,
        ended_at=ended_at,
        element=element,
        result="" if result == "null" else result,
    )
