"""
Deliveries in the database, each with the run that it asks for in one transaction.

Whoever sends the same again, also at the same moment and under another guid, gets the answer of the first: unique
indexes decide who is first, not a look before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from adws.adw_modules import timestamps
from adws.adw_modules.db import counters, rows
from adws.adw_modules.db import delivery_statements as sql
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.session import Database, Params, Row, Session
from adws.adw_modules.delivery_rows import (
    again_run,
    check_again,
    check_finish,
    check_limit,
    intent_of,
    kept_body,
    new_run,
    refuse_other_body,
    refuse_taken_id,
)
from adws.adw_modules.errors import AdwError, DatabaseError, DeliveryNotFound
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.metric_rules import DELIVERIES, REPEATED
from adws.adw_modules.runs import Run
from adws.adw_modules.trigger import Accepted, AskedBefore, DeliveryRow, KeptDelivery, NewDelivery, Offer

#: What keeps a delivery in a transaction, or why it cannot be kept.
_Work: TypeAlias = Callable[[Session], Accepted] | AdwError

#: What stands in a delivery as its sender wrote it.
_SAID = ("event", "action", "hook", "sender", "repository", "reason")
#: Deliveries that are deleted in one transaction.
FORGOTTEN_AT_ONCE = 200


class DatabaseDeliveries:
    """`Deliveries` in the table deliveries."""

    def __init__(
        self, database: Database, *, clock: Clock, scrub: Callable[[bytes], bytes] = lambda payload: payload
    ) -> None:
        """*scrub* takes out of each delivery what must not be stored."""
        self._database = database
        self._clock = clock
        self._scrub = scrub
        self._queue = DatabaseRunQueue(database, clock=clock)
        self._take = database.spell(sql.DELIVERY_TAKE)

    def accept(self, delivery: NewDelivery, *, run_id_of: str, adw_id: str) -> Accepted:
        """Keep *delivery* and, when it asks for work, enqueue its run; the answer of the first when it came before."""
        work = self._accepting(Offer(delivery=delivery, run_id_of=run_id_of, adw_id=adw_id))

        return self._database.transact(lambda session: _counted(session, (work(session),))[0])

    def accept_all(self, offers: Sequence[Offer]) -> tuple[Accepted | AdwError, ...]:
        """Return `accept` of each, or what that raises, in their order; all of them in one commit."""
        works = [self._tried(offer) for offer in offers]
        try:
            return self._database.transact(lambda session: _counted(session, _together(session, works)))
        except _OneIsWrongError:  # seldom: then each is put where it can be taken back without the others
            return self._database.transact(
                lambda session: _counted(session, tuple(_apart(session, work) for work in works))
            )

    def _tried(self, offer: Offer) -> _Work:
        try:
            return self._accepting(offer)
        except AdwError as exc:
            return exc

    def _accepting(self, offer: Offer) -> Callable[[Session], Accepted]:
        """Return what keeps a delivery in a transaction; raise what is wrong with it."""
        delivery = offer.delivery
        run = new_run(delivery, run_id_of=offer.run_id_of, adw_id=offer.adw_id)
        params = self._params(delivery, offer.adw_id if run else "")

        def work(session: Session) -> Accepted:
            if session.one(sql.DELIVERY_INSERT, params) is None:
                return self._answer_again(session, delivery, params)
            run_id = None
            if run is not None:
                stored = self._queue.enqueue_in(session, run)
                refuse_taken_id(stored, run)
                run_id = stored.run_id
                session.run(sql.DELIVERY_SET_RUN, {"guid": delivery.guid, "run_id": run_id})

            return Accepted(row=_new_row(params, run_id), is_new=True)

        return work

    def get(self, guid: str) -> DeliveryRow | None:
        """Return a delivery."""
        found = self._one(sql.DELIVERY_GET, {"guid": guid})

        return None if found is None else to_delivery(found)

    def request_of(self, guid: str) -> JsonObject | None:
        """Return what was made of it, as JSON."""
        found = self._one(sql.DELIVERY_REQUEST, {"guid": guid})

        return None if found is None else _json(found[0], guid)

    def body_of(self, guid: str) -> bytes | None:
        """Return its bytes, None when they are not kept."""
        found = self._one(sql.DELIVERY_BODY, {"guid": guid})

        return None if found is None or found[0] is None else bytes(found[0])

    def finish(self, guid: str, *, status: str, outcome: str, adw_id: str = "") -> None:
        """Write down what came of it; raise DeliveryNotFound."""
        check_finish(status, adw_id)
        params = {
            "guid": guid,
            "status": status,
            "outcome": self._said(outcome),
            "adw_id": adw_id,
            "moment": self._moment(),
        }
        if self._database.transact(lambda session: session.run(sql.DELIVERY_FINISH, params)) == 0:
            raise DeliveryNotFound(guid)

    def again(
        self, guid: str, *, run_id_of: str, asked_by: str, instead: NewDelivery | None = None, adw_id: str = ""
    ) -> Run:
        """Enqueue a run for a delivery that is kept; the one it has when that is not over."""

        def work(session: Session) -> Run:
            found = session.one(self._take, {"guid": guid})
            if found is None:
                raise DeliveryNotFound(guid)
            row = to_delivery(found)
            stored = session.one(sql.DELIVERY_REQUEST, {"guid": guid}) or ("{}",)
            wanted = check_again(row, _json(stored[0], guid), instead, adw_id)
            unfinished = self._queue.unfinished_in(session, row.run_id) if row.run_id is not None else None
            if unfinished is not None:
                return unfinished
            run = again_run(guid, run_id_of=run_id_of, asked_by=asked_by)
            made = self._queue.enqueue_in(session, run)
            refuse_taken_id(made, run)
            params = {
                "guid": guid,
                "run_id": made.run_id,
                "verdict": wanted.verdict,
                "reason": self._said(wanted.reason),
                "request": self._database.clean_json(_text_of(wanted.request, guid)),
                "adw_id": wanted.adw_id,
            }
            session.run(sql.DELIVERY_AGAIN, params)

            return made

        return self._database.transact(work)

    def page(self, *, limit: int = 50, before: str = "", verdicts: Sequence[str] = ()) -> tuple[DeliveryRow, ...]:
        """Return deliveries, newest first; *before* is the guid of the last one seen."""
        named = {f"verdict{number}": verdict for number, verdict in enumerate(dict.fromkeys(verdicts))}
        condition = sql.IS_OF_VERDICTS.format(names=", ".join(f":{name}" for name in named)) if named else ""
        params = {"limit": check_limit(limit), "before": before, **named}
        with self._database.read() as session:
            found = session.all(sql.DELIVERIES_PAGE.format(verdicts=condition), params)

        return tuple(map(to_delivery, found))

    def count_since(self, since: str, *, sender: str = "", repository: str = "", number: int | None = None) -> int:
        """Return how many asked for work since a moment."""
        conditions = [
            condition
            for condition, value in ((sql.OF_SENDER, sender), (sql.OF_REPOSITORY, repository), (sql.OF_NUMBER, number))
            if value
        ]
        params = {"since": since, "sender": sender, "repository": repository, "number": number}
        found = self._one(" ".join([sql.DELIVERIES_COUNT, *conditions]), params)

        return int(found[0]) if found else 0

    def asked_since(self, since: str, arrived: Sequence[NewDelivery]) -> tuple[AskedBefore, ...]:
        """Return the same for the sender and for the issue of each delivery."""
        with self._database.read() as session:
            found = [
                session.one(
                    sql.ASKED_SINCE,
                    {"since": since, "sender": one.sender, "repository": one.repository, "number": one.number},
                )
                for one in arrived
            ]

        return tuple(
            AskedBefore(by_sender=row[0] if row and one.sender else 0, about_issue=row[1] if row else 0)
            for one, row in zip(arrived, found, strict=True)
        )

    def forget_before(self, moment: str) -> int:
        """Delete those older than *moment*, but for those whose run is not over, and return how many."""
        deleted, params = 0, {"moment": moment, "limit": FORGOTTEN_AT_ONCE}
        while some := self._database.transact(lambda session: session.run(sql.DELIVERIES_FORGET, params)):
            deleted += some

        return deleted

    # --- how -----------------------------------------------------------------------------------------------------

    def _answer_again(self, session: Session, delivery: NewDelivery, params: Params) -> Accepted:
        found = session.one(sql.DELIVERY_BEFORE, params)
        if found is None:
            raise DatabaseError(f"delivery {delivery.guid} could neither be stored nor be read: try again")
        row = to_delivery(found[1:])
        refuse_other_body(delivery, row.guid, found[0])
        session.run(sql.DELIVERY_CAME_AGAIN, {"guid": row.guid})

        return Accepted(row=row, is_new=False)

    def _params(self, delivery: NewDelivery, adw_id: str) -> dict[str, object]:
        moment, is_ignored = self._moment(), delivery.verdict == "ignored"
        body = kept_body(delivery)
        request = _text_of(delivery.request, delivery.guid)
        is_clean = self._is_clean(delivery, request)
        say = rows.plain if is_clean else self._said

        return {
            "guid": delivery.guid,
            **{name: say(getattr(delivery, name)) for name in _SAID},
            "number": delivery.number,
            "intent": say(intent_of(delivery)),
            "body_hash": delivery.body_hash,
            "verdict": delivery.verdict,
            "status": "done" if is_ignored else "received",
            "outcome": say(delivery.reason) if is_ignored else "",
            "adw_id": adw_id,
            "moment": moment,
            "finished_at": moment if is_ignored else None,
            "request": request if is_clean else self._database.clean_json(request),
            "body": None if body is None else self._scrub(body),
        }

    def _is_clean(self, delivery: NewDelivery, request: str) -> bool:
        """Say whether there is no secret in what its sender wrote, nor in what is made of it: one look at all of it."""
        whole = f"[{_text_of([getattr(delivery, name) for name in _SAID], delivery.guid)}, {request}]"

        return self._database.clean_json(whole) == whole

    def _said(self, text: str) -> str:
        """Return what somebody said as it is stored: anybody who may sign can put anything there."""
        return rows.plain(self._database.clean(text))

    def _one(self, statement: str, params: Params) -> Row | None:
        with self._database.read() as session:
            return session.one(statement, params)

    def _moment(self) -> str:
        return timestamps.to_text(self._clock.now())


class _OneIsWrongError(Exception):
    """Something is wrong with one of several deliveries."""


def _together(session: Session, works: Sequence[_Work]) -> tuple[Accepted | AdwError, ...]:
    """Return what all of *works* give back; raise _OneIsWrongError."""
    try:
        return tuple(work if isinstance(work, AdwError) else work(session) for work in works)
    except AdwError as exc:
        raise _OneIsWrongError from exc


def _apart(session: Session, work: _Work) -> Accepted | AdwError:
    """Return what *work* gives back or raises; what raises is undone without the others."""
    if isinstance(work, AdwError):
        return work
    session.run("SAVEPOINT one_delivery")
    try:
        return work(session)
    except AdwError as exc:
        session.run("ROLLBACK TO SAVEPOINT one_delivery")
        return exc
    finally:
        session.run("RELEASE SAVEPOINT one_delivery")


_Results = TypeVar("_Results", bound="tuple[Accepted | AdwError, ...]")


def _counted(session: Session, results: _Results) -> _Results:
    """Count what was made of deliveries, in the transaction that stores them, and return them."""
    taken = [result for result in results if isinstance(result, Accepted)]
    counts = Counter((one.row.verdict if one.is_new else REPEATED,) for one in taken)
    counters.add_in(session, {DELIVERIES: {labels: float(count) for labels, count in counts.items()}})

    return results


def to_delivery(row: Row) -> DeliveryRow:
    """Return the delivery in a row of `delivery_statements.SHOWN`."""
    guid, event, action, sender, repository, number, verdict, reason, status, outcome, run_id, adw_id, *rest = row
    received_at, finished_at, deliveries = rest

    return DeliveryRow(
        guid=guid,
        event=event,
        action=action,
        sender=sender,
        repository=repository,
        number=number,
        verdict=verdict,
        reason=reason,
        status=status,
        outcome=outcome,
        run_id=run_id,
        adw_id=adw_id,
        received_at=received_at,
        finished_at=finished_at,
        deliveries=deliveries,
    )


def to_kept(row: Row) -> KeptDelivery:
    """Return the delivery in a row of `delivery_statements.DELIVERIES_ALL`, with all that is kept of it."""
    *shown, hook, intent, body_hash, request, body = row

    return KeptDelivery(
        row=to_delivery(tuple(shown)),
        hook=hook,
        intent=intent,
        body_hash=body_hash,
        request=_json(request, shown[0]),
        body=None if body is None else bytes(body),
    )


def kept_params(kept: KeptDelivery) -> dict[str, object]:
    """Return the columns of a delivery that is brought back, but for its run."""
    row = kept.row

    return {
        **{name: getattr(row, name) for name in ("guid", "event", "action", "sender", "repository", "number")},
        **{name: getattr(row, name) for name in ("verdict", "reason", "status", "outcome", "adw_id", "deliveries")},
        "moment": row.received_at,
        "finished_at": row.finished_at,
        "hook": kept.hook,
        "intent": kept.intent,
        "body_hash": kept.body_hash,
        "request": rows.json_text(kept.request, f"what delivery {row.guid} asks for"),
        "body": kept.body,
    }


def _new_row(params: Params, run_id: int | None) -> DeliveryRow:
    shown = ("guid", "event", "action", "sender", "repository", "number", "verdict", "reason", "status", "outcome")

    return to_delivery(
        (*(params[name] for name in shown), run_id, params["adw_id"], params["moment"], params["finished_at"], 1)
    )


def _text_of(value: JsonValue, guid: str) -> str:
    return rows.json_text(value, f"what delivery {guid} asks for")


def _json(text: str, guid: str) -> JsonObject:
    try:
        loaded = json.loads(text)
    except ValueError as exc:
        raise DatabaseError(f"what delivery {guid} asks for cannot be read ({exc})") from exc
    if not isinstance(loaded, dict):
        raise DatabaseError(f"what delivery {guid} asks for is no object")

    return loaded
