"""The rows of one execution inside a transaction: what a turn reads, and what it changed, in few statements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from adws.adw_modules.db import execution_rows, statements
from adws.adw_modules.db import execution_statements as sql
from adws.adw_modules.db.execution_rows import Scrub, to_iteration
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.execution_state import RUNNING, Iteration
from adws.adw_modules.execution_turn import ExecutionTurn
from adws.adw_modules.execution_words import IterationState
from adws.adw_modules.json_value import JsonValue

_COMPLETED = IterationState.COMPLETED.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Texts:
    """The queries in the words of one dialect, spelled once."""

    head: str
    head_to_change: str
    our_lane: str
    open_of_workflow: str
    of_lane: str
    orphans: str
    due: str
    waiting: str
    first_waiting: str
    next_at: str
    counts: str

    @classmethod
    def of(cls, database: Database) -> Texts:
        """Return them for *database*."""

        def spell(text: str) -> str:
            return sql.spelled(database, text)

        return cls(
            head=spell(sql.HEAD),
            head_to_change=spell(sql.HEAD_TO_CHANGE),
            our_lane=spell(sql.OUR_LANE),
            open_of_workflow=spell(sql.OPEN_OF_WORKFLOW),
            of_lane=spell(sql.OF_LANE),
            orphans=spell(sql.ORPHANS),
            due=spell(sql.DUE),
            waiting=spell(sql.WAITING),
            first_waiting=spell(sql.FIRST_WAITING),
            next_at=spell(sql.NEXT_AT),
            counts=spell(sql.COUNTS),
        )


class RowShelf:
    """A `Shelf` over the rows of one execution."""

    def __init__(self, session: Session, texts: Texts, execution_id: str) -> None:
        self._session = session
        self._texts = texts
        self._id = execution_id

    def of_lane(self, run_id: int) -> list[Iteration]:
        """Return what a lane has, under whichever token."""
        return self._all(self._texts.of_lane, run_id=run_id)

    def due(self, moment: str, most: int) -> list[Iteration]:
        """Return iterations whose next call is due, the earliest first."""
        return self._all(self._texts.due, moment=moment, most=most)

    def waiting(self, most: int) -> list[Iteration]:
        """Return iterations that wait for their next call, whenever that is."""
        return self._all(self._texts.waiting, most=most)

    def first_waiting(self) -> Iteration | None:
        """Return the first of those in the order of the collection."""
        return next(iter(self._all(self._texts.first_waiting)), None)

    def one_waiting(self, index: int) -> Iteration | None:
        """Return one of those."""
        return next(iter(self._all(sql.ONE_WAITING, idx=index)), None)

    def next_at(self) -> str | None:
        """Return when the next call is due, None when none waits."""
        row = self._session.one(self._texts.next_at, {"execution_id": self._id})

        return None if row is None else row[0]

    def not_begun(self, first: int, most: int) -> list[Iteration]:
        """Return iterations from number *first* on, which nobody has begun."""
        return self._all(sql.NOT_BEGUN, next_index=first, most=most)

    def orphans(self) -> list[Iteration]:
        """Return iterations that are being called by a lane which does not exist any more."""
        return self._all(self._texts.orphans)

    def parts(self, index: int) -> Iterator[JsonValue]:
        """Yield what was kept of the pages of an iteration."""
        found = self._session.all(sql.PAGES, {"execution_id": self._id, "idx": index})

        return (json.loads(row[0]) for row in found)

    def _all(self, text: str, **params: object) -> list[Iteration]:
        return [to_iteration(row) for row in self._session.all(text, {"execution_id": self._id, **params})]


def save_turn(session: Session, turn: ExecutionTurn, scrub: Scrub) -> None:
    """Write the rows and events of a turn."""
    execution_id = turn.head.execution.execution_id
    begun: list[dict[str, object]] = []
    changed: list[dict[str, object]] = []
    for row in turn.changed.values():
        if row.state == RUNNING and row.attempts == 1 and row.call == "{}" and not row.fingerprint:
            begun.append(_begun(execution_id, row))
        else:
            changed.append(execution_rows.iteration_params(execution_id, row, scrub))
    if begun:
        session.run_each(sql.CHANGE_BEGUN, begun)
    if changed:
        session.run_each(sql.CHANGE, changed)
    if turn.pages:
        session.run_each(
            sql.KEEP_PAGE,
            [
                {"execution_id": execution_id, "idx": index, "page": page, "part": execution_rows.scrubbed(part, scrub)}
                for index, page, part in turn.pages
            ],
        )
    if turn.events:
        session.run_each(statements.EVENT_INSERT, execution_rows.event_rows(turn.events))
    session.run(sql.UPDATE, execution_rows.head_params(turn.head))


def _begun(execution_id: str, row: Iteration) -> dict[str, object]:
    return {
        "execution_id": execution_id,
        "idx": row.index,
        "run_id": row.run_id,
        "token": row.token,
        "last_event_id": row.last_event_id,
        "sequence_id": row.sequence_id,
        "started_at": row.started_at,
    }
