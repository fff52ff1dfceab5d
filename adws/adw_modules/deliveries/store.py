"""
Deliveries in the database, each with the run that it asks for in one transaction.

The same delivery sent again, also at the same moment and under another guid, gets the answer of the first: unique
indexes decide which is first, not a query before the insert.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Params, Row, Session
from adws.adw_modules.deliveries.commands import (
    Accepted,
    AskedBefore,
    DeliveryRow,
    KeptDelivery,
    NewDelivery,
    PendingDelivery,
)
from adws.adw_modules.errors import AdwError, DatabaseError, DeliveryConflict, DeliveryNotFound, UsageError
from adws.adw_modules.identifiers import JsonObject, JsonValue, check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.queue.model import DELIVERY, DELIVERY_PRIORITY, NewRun, Run
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.reports import metrics
from adws.adw_modules.reports.metrics import DELIVERIES, REPEATED

# The queries about deliveries, by name.
#
# Placeholders as in `db.connection`. A delivery is the same as another by its guid, by its body or by its intent: three
# unique indexes decide, also between two that arrive at once.


#: A delivery as `to_delivery` reads it.
SHOWN = """
guid, event, action, sender, repository, number, verdict, reason, status, outcome, run_id, adw_id, received_at,
finished_at, deliveries
"""
_KEPT = "hook, intent, body_hash, request, body"

#: Nothing is returned when it was here before.
DELIVERY_INSERT = """
INSERT INTO deliveries
  (guid, event, action, hook, sender, repository, number, intent, body_hash, verdict, reason, status, outcome, adw_id,
   received_at, finished_at, deliveries, request, body)
VALUES
  (:guid, :event, :action, :hook, :sender, :repository, :number, :intent, :body_hash, :verdict, :reason, :status,
   :outcome, :adw_id, :moment, :finished_at, 1, :request, :body)
ON CONFLICT DO NOTHING RETURNING guid
"""
#: By its guid first: that is what the caller has.
DELIVERY_BEFORE = f"""
SELECT body_hash, {SHOWN} FROM deliveries
WHERE guid = :guid OR body_hash = :body_hash OR (intent = :intent AND intent <> '')
ORDER BY CASE WHEN guid = :guid THEN 0 ELSE 1 END, seq LIMIT 1
"""
DELIVERY_CAME_AGAIN = "UPDATE deliveries SET deliveries = deliveries + 1 WHERE guid = :guid"
DELIVERY_SET_RUN = "UPDATE deliveries SET run_id = :run_id WHERE guid = :guid"
DELIVERY_GET = f"SELECT {SHOWN} FROM deliveries WHERE guid = :guid"
#: The same, and nobody else changes it before the end of the transaction.
DELIVERY_TAKE = f"SELECT {SHOWN} FROM deliveries WHERE guid = :guid {{row_lock}}"
DELIVERY_REQUEST = "SELECT request FROM deliveries WHERE guid = :guid"
DELIVERY_BODY = "SELECT body FROM deliveries WHERE guid = :guid"
DELIVERY_FINISH = """
UPDATE deliveries
SET status = :status, outcome = :outcome, finished_at = :moment,
    adw_id = CASE WHEN :adw_id = '' AND NOT (verdict = 'command' AND :status = 'refused') THEN adw_id ELSE :adw_id END
WHERE guid = :guid
"""
DELIVERY_AGAIN = """
UPDATE deliveries
SET status = 'received', outcome = '', finished_at = NULL, run_id = :run_id, verdict = :verdict, reason = :reason,
    request = :request, adw_id = :adw_id
WHERE guid = :guid
"""
#: `{verdicts}` are the names of parameters.
DELIVERIES_PAGE = f"""
SELECT {SHOWN} FROM deliveries
WHERE (:before = '' OR seq < (SELECT seq FROM deliveries WHERE guid = :before)) {{verdicts}}
ORDER BY seq DESC LIMIT :limit
"""
IS_OF_VERDICTS = "AND verdict IN ({names})"
DELIVERIES_COUNT = "SELECT count(*) FROM deliveries WHERE verdict <> 'ignored' AND received_at >= :since"
OF_SENDER = "AND sender = :sender"
OF_REPOSITORY = "AND repository = :repository"
OF_NUMBER = "AND number = :number"
#: Of a sender, and of an issue.
ASKED_SINCE = f"SELECT ({DELIVERIES_COUNT} {OF_SENDER}), ({DELIVERIES_COUNT} {OF_REPOSITORY} {OF_NUMBER})"
#: What is still to be done stays, however old.
_IS_OLD = """
received_at < :moment AND NOT EXISTS (
  SELECT 1 FROM runs WHERE runs.run_id = deliveries.run_id AND runs.finished_at IS NULL)
"""
DELIVERIES_OLD = f"SELECT count(*) FROM deliveries WHERE {_IS_OLD}"
#: Some at a time: their bodies are long, and others wait meanwhile.
DELIVERIES_FORGET = f"""
DELETE FROM deliveries WHERE seq IN (SELECT seq FROM deliveries WHERE {_IS_OLD} ORDER BY seq LIMIT :limit)
"""

# --- making a database again -----------------------------------------------------------------------------------

DELIVERIES_ALL = f"SELECT {SHOWN}, {_KEPT} FROM deliveries ORDER BY seq"
#: Brings back the row of another database; one that is there stays. Its run has another number now.
DELIVERY_BRING = """
INSERT INTO deliveries
  (guid, event, action, hook, sender, repository, number, intent, body_hash, verdict, reason, status, outcome, adw_id,
   received_at, finished_at, deliveries, request, body)
VALUES
  (:guid, :event, :action, :hook, :sender, :repository, :number, :intent, :body_hash, :verdict, :reason, :status,
   :outcome, :adw_id, :moment, :finished_at, :deliveries, :request, :body)
ON CONFLICT DO NOTHING
"""

# --- checks ----------------------------------------------------------------------------------------------------

#: Accepted, and no run is left that would do it.
CHECK_DELIVERIES = """
SELECT guid, adw_id FROM deliveries AS kept
WHERE status = 'received' AND NOT EXISTS (
  SELECT 1 FROM runs WHERE runs.run_id = kept.run_id AND runs.finished_at IS NULL)
ORDER BY seq
"""


# What every store of deliveries does alike: which run a delivery gets, what is kept of it, what is refused.
#
# Pure, so that the store in memory and the one in a database cannot disagree.


#: Bytes of a delivery that nothing is done about which are kept; of others all are.
IGNORED_BYTES = 65_536
VERDICTS = ("run", "command", "ignored")
#: How a delivery can end.
ENDS = ("done", "refused", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a delivery that is done again is to hold."""

    verdict: str
    reason: str
    request: JsonObject
    adw_id: str


def new_run(delivery: NewDelivery, *, run_id_of: str, adw_id: str) -> NewRun | None:
    """Return the run that *delivery* asks for, None when it asks for nothing; raise UsageError or InvalidAdwId."""
    if delivery.verdict not in VERDICTS:
        raise UsageError(f"{delivery.verdict!r} is no verdict; use one of {', '.join(VERDICTS)}")
    if delivery.verdict == "ignored":
        return None
    check_adw_id(adw_id)

    return _run(delivery.guid, run_id_of, asked_by=delivery.sender)


def again_run(guid: str, *, run_id_of: str, asked_by: str) -> NewRun:
    """Return the run of a delivery that is done again."""
    return _run(guid, run_id_of, asked_by=asked_by)


def _run(guid: str, run_id_of: str, *, asked_by: str) -> NewRun:
    return NewRun(
        adw_id=check_adw_id(run_id_of),
        kind=DELIVERY,
        priority=DELIVERY_PRIORITY,
        payload={"guid": guid},
        asked_by=asked_by,
    )


def refuse_taken_id(stored: Run, wanted: NewRun) -> None:
    """Raise UsageError when the queue gave the run of somebody else: the id was no fresh one."""
    if stored.payload.get("guid") != wanted.payload.get("guid"):
        raise UsageError(
            f"the id {wanted.adw_id} has an unfinished run already: give the run of a delivery a fresh one"
        )


def refuse_other_body(delivery: NewDelivery, guid: str, body_hash: str) -> None:
    """Raise DeliveryConflict when one guid comes with two bodies: one of them is not what it says."""
    if guid == delivery.guid and body_hash != delivery.body_hash:
        raise DeliveryConflict(guid)


def intent_of(delivery: NewDelivery) -> str:
    """Return what two deliveries of one wish have in common, "" for none."""
    intent = delivery.request.get("intent")

    return intent if isinstance(intent, str) else ""


def kept_body(delivery: NewDelivery) -> bytes | None:
    """Return the bytes to keep: none of a long delivery that nothing is done about."""
    if delivery.verdict == "ignored" and len(delivery.body) > IGNORED_BYTES:
        return None

    return delivery.body


def check_finish(status: str, adw_id: str) -> None:
    """Raise UsageError or InvalidAdwId when a delivery cannot end like this."""
    if status not in ENDS:
        raise UsageError(f"a delivery cannot end as {status!r}; it ends as one of {', '.join(ENDS)}")
    if adw_id:
        check_adw_id(adw_id)


def finished_id(row: DeliveryRow, status: str, adw_id: str) -> str:
    """Return the workflow that *row* names when it ends; the one it was to start, unless that was for nothing."""
    if not adw_id and row.verdict == "command" and status == "refused":
        return ""

    return adw_id or row.adw_id


def meant_id(row: DeliveryRow) -> str:
    """Return the workflow that *row* started or meant, "" while that is not known: a worker finds it."""
    return "" if row.verdict == "command" and row.status == "received" else row.adw_id


def check_again(row: DeliveryRow, request: JsonObject, instead: NewDelivery | None, adw_id: str) -> Wanted:
    """Return what the delivery *row* is to ask for when it is done again; raise UsageError when that is nothing."""
    verdict, reason, wanted = row.verdict, row.reason, request
    if instead is not None:
        verdict, reason, wanted = instead.verdict, instead.reason, instead.request
    if verdict == "ignored":
        raise UsageError(f"delivery {row.guid} asks for nothing: {reason}")

    # A refused delivery has started nothing, and its row names the workflow that was in the way.
    chosen = (adw_id or row.adw_id) if row.status == "refused" else (row.adw_id or adw_id)
    named = str(wanted.get("adw_id") or "")

    return Wanted(verdict=verdict, reason=reason, request=wanted, adw_id=check_adw_id(named or chosen))


def check_limit(limit: int) -> int:
    """Return *limit* when a page can have that many rows; raise UsageError."""
    if not 0 < limit < 2**31:
        raise UsageError(f"a page needs a limit of at least 1, not {limit}")

    return limit


#: What keeps a delivery in a transaction, or why it cannot be kept.
_Work: TypeAlias = Callable[[Session], Accepted] | AdwError

#: What stands in a delivery as its sender wrote it.
_SAID = ("event", "action", "hook", "sender", "repository", "reason")
#: Deliveries that are deleted in one transaction.
FORGOTTEN_AT_ONCE = 200


class DeliveryStore:
    """`Deliveries` in the table deliveries."""

    def __init__(
        self, database: Database, *, clock: Clock, scrub: Callable[[bytes], bytes] = lambda payload: payload
    ) -> None:
        """*scrub* takes out of each delivery what must not be stored."""
        self._database = database
        self._clock = clock
        self._scrub = scrub
        self._queue = RunStore(database, clock=clock)
        self._take = database.render(DELIVERY_TAKE)

    def accept(self, delivery: NewDelivery, *, run_id_of: str, adw_id: str) -> Accepted:
        """Keep *delivery* and, when it asks for work, enqueue its run; the answer of the first when it came before."""
        work = self._accepting(PendingDelivery(delivery=delivery, run_id_of=run_id_of, adw_id=adw_id))

        return self._database.transact(lambda session: _counted(session, (work(session),))[0])

    def accept_all(self, offers: Sequence[PendingDelivery]) -> tuple[Accepted | AdwError, ...]:
        """Return `accept` of each, or what that raises, in their order; all of them in one commit."""
        works = [self._tried(offer) for offer in offers]
        try:
            return self._database.transact(lambda session: _counted(session, _together(session, works)))
        except _OneIsWrongError:  # seldom: then each is put where it can be taken back without the others
            return self._database.transact(
                lambda session: _counted(session, tuple(_apart(session, work) for work in works))
            )

    def _tried(self, offer: PendingDelivery) -> _Work:
        try:
            return self._accepting(offer)
        except AdwError as exc:
            return exc

    def _accepting(self, offer: PendingDelivery) -> Callable[[Session], Accepted]:
        """Return what keeps a delivery in a transaction; raise what is wrong with it."""
        delivery = offer.delivery
        run = new_run(delivery, run_id_of=offer.run_id_of, adw_id=offer.adw_id)
        params = self._params(delivery, offer.adw_id if run else "")

        def work(session: Session) -> Accepted:
            if session.one(DELIVERY_INSERT, params) is None:
                return self._answer_again(session, delivery, params)
            run_id = None
            if run is not None:
                stored = self._queue.enqueue_in(session, run)
                refuse_taken_id(stored, run)
                run_id = stored.run_id
                session.run(DELIVERY_SET_RUN, {"guid": delivery.guid, "run_id": run_id})

            return Accepted(row=_new_row(params, run_id), is_new=True)

        return work

    def get(self, guid: str) -> DeliveryRow | None:
        """Return a delivery."""
        result = self._one(DELIVERY_GET, {"guid": guid})

        return None if result is None else to_delivery(result)

    def request_of(self, guid: str) -> JsonObject | None:
        """Return what was made of it, as JSON."""
        result = self._one(DELIVERY_REQUEST, {"guid": guid})

        return None if result is None else _json(result[0], guid)

    def body_of(self, guid: str) -> bytes | None:
        """Return its bytes, None when they are not kept."""
        result = self._one(DELIVERY_BODY, {"guid": guid})

        return None if result is None or result[0] is None else bytes(result[0])

    def finish(self, guid: str, *, status: str, outcome: str, adw_id: str = "") -> None:
        """Record the result; raise DeliveryNotFound."""
        check_finish(status, adw_id)
        params = {
            "guid": guid,
            "status": status,
            "outcome": self._said(outcome),
            "adw_id": adw_id,
            "moment": self._moment(),
        }
        if self._database.transact(lambda session: session.run(DELIVERY_FINISH, params)) == 0:
            raise DeliveryNotFound(guid)

    def again(
        self, guid: str, *, run_id_of: str, asked_by: str, instead: NewDelivery | None = None, adw_id: str = ""
    ) -> Run:
        """Enqueue a run for a delivery that is kept; the one it has when that is not over."""

        def work(session: Session) -> Run:
            result = session.one(self._take, {"guid": guid})
            if result is None:
                raise DeliveryNotFound(guid)
            row = to_delivery(result)
            stored = session.one(DELIVERY_REQUEST, {"guid": guid}) or ("{}",)
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
            session.run(DELIVERY_AGAIN, params)

            return made

        return self._database.transact(work)

    def page(self, *, limit: int = 50, before: str = "", verdicts: Sequence[str] = ()) -> tuple[DeliveryRow, ...]:
        """Return deliveries, newest first; *before* is the guid of the last one seen."""
        named = {f"verdict{number}": verdict for number, verdict in enumerate(dict.fromkeys(verdicts))}
        condition = IS_OF_VERDICTS.format(names=", ".join(f":{name}" for name in named)) if named else ""
        params = {"limit": check_limit(limit), "before": before, **named}
        with self._database.read() as session:
            rows = session.all(DELIVERIES_PAGE.format(verdicts=condition), params)

        return tuple(map(to_delivery, rows))

    def count_since(self, since: str, *, sender: str = "", repository: str = "", number: int | None = None) -> int:
        """Return how many asked for work since a moment."""
        conditions = [
            condition
            for condition, value in ((OF_SENDER, sender), (OF_REPOSITORY, repository), (OF_NUMBER, number))
            if value
        ]
        params = {"since": since, "sender": sender, "repository": repository, "number": number}
        result = self._one(" ".join([DELIVERIES_COUNT, *conditions]), params)

        return int(result[0]) if result else 0

    def asked_since(self, since: str, arrived: Sequence[NewDelivery]) -> tuple[AskedBefore, ...]:
        """Return the same for the sender and for the issue of each delivery."""
        with self._database.read() as session:
            result = [
                session.one(
                    ASKED_SINCE,
                    {"since": since, "sender": one.sender, "repository": one.repository, "number": one.number},
                )
                for one in arrived
            ]

        return tuple(
            AskedBefore(by_sender=row[0] if row and one.sender else 0, about_issue=row[1] if row else 0)
            for one, row in zip(arrived, result, strict=True)
        )

    def forget_before(self, moment: str) -> int:
        """Delete those older than *moment*, but for those whose run is not over, and return how many."""
        deleted, params = 0, {"moment": moment, "limit": FORGOTTEN_AT_ONCE}
        while some := self._database.transact(lambda session: session.run(DELIVERIES_FORGET, params)):
            deleted += some

        return deleted

    # --- how -----------------------------------------------------------------------------------------------------

    def _answer_again(self, session: Session, delivery: NewDelivery, params: Params) -> Accepted:
        result = session.one(DELIVERY_BEFORE, params)
        if result is None:
            raise DatabaseError(f"delivery {delivery.guid} could neither be stored nor be read: try again")
        row = to_delivery(result[1:])
        refuse_other_body(delivery, row.guid, result[0])
        session.run(DELIVERY_CAME_AGAIN, {"guid": row.guid})

        return Accepted(row=row, is_new=False)

    def _params(self, delivery: NewDelivery, adw_id: str) -> dict[str, object]:
        moment, is_ignored = self._moment(), delivery.verdict == "ignored"
        body = kept_body(delivery)
        request = _text_of(delivery.request, delivery.guid)
        is_clean = self._is_clean(delivery, request)
        say = connection.plain if is_clean else self._said

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
        """Return whether neither the sender's text nor what is made of it holds a secret: one check of all of it."""
        whole = f"[{_text_of([getattr(delivery, name) for name in _SAID], delivery.guid)}, {request}]"

        return self._database.clean_json(whole) == whole

    def _said(self, text: str) -> str:
        """Return a text of the sender as it is stored: anybody who may sign can put anything there."""
        return connection.plain(self._database.clean(text))

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
    metrics.add_in(session, {DELIVERIES: {labels: float(count) for labels, count in counts.items()}})

    return results


def to_delivery(row: Row) -> DeliveryRow:
    """Return the delivery in a row of `store.SHOWN`."""
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
    """Return the delivery in a row of `store.DELIVERIES_ALL`, with all that is kept of it."""
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
        "request": connection.json_text(kept.request, f"what delivery {row.guid} asks for"),
        "body": kept.body,
    }


def _new_row(params: Params, run_id: int | None) -> DeliveryRow:
    shown = ("guid", "event", "action", "sender", "repository", "number", "verdict", "reason", "status", "outcome")

    return to_delivery(
        (*(params[name] for name in shown), run_id, params["adw_id"], params["moment"], params["finished_at"], 1)
    )


def _text_of(value: JsonValue, guid: str) -> str:
    return connection.json_text(value, f"what delivery {guid} asks for")


def _json(text: str, guid: str) -> JsonObject:
    try:
        loaded = json.loads(text)
    except ValueError as exc:
        raise DatabaseError(f"what delivery {guid} asks for cannot be read ({exc})") from exc
    if not isinstance(loaded, dict):
        raise DatabaseError(f"what delivery {guid} asks for is no object")

    return loaded
