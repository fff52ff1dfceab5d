"""
Deliveries in the database; each is stored in one transaction with the run it requests.

A repeated delivery, even at the same moment and under another guid, gets the answer of the first. Unique indexes on
guid, body and intent decide which is first, not a query before the insert.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.deliveries.commands import SHOWN, Delivery
from adws.adw_modules.errors import (
    AdwError,
    DatabaseError,
    DeliveryConflict,
    DeliveryNotFound,
    TooManyRequests,
    UsageError,
)
from adws.adw_modules.identifiers import JsonObject, JsonValue, check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.queue.model import DELIVERY, DELIVERY_PRIORITY, NewRun, Run, RunEnd
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.reports import metrics
from adws.adw_modules.reports.metrics import DELIVERIES, REPEATED

VERDICTS = ("run", "command", "ignored")
#: How a delivery can end.
ENDS = ("done", "refused", "failed")
#: The body of an ignored delivery is kept up to this size; longer bodies are dropped.
IGNORED_BYTES = 65_536
#: Requests for work are limited over this period.
WINDOW = timedelta(hours=1)
#: Deliveries deleted in one transaction: bodies are long, and other writers wait meanwhile.
FORGOTTEN_AT_ONCE = 200

#: All columns except `seq`.
_COLUMNS = (*SHOWN, "hook", "intent", "body_hash", "request", "body")
#: Fields stored as the sender wrote them, which may hold a secret.
_SAID = ("event", "action", "hook", "sender", "repository", "reason", "intent")
_SELECT = f"SELECT {', '.join(SHOWN)} FROM deliveries"
_GET = f"{_SELECT} WHERE guid = :guid"
_COUNT = "SELECT count(*) FROM deliveries WHERE verdict <> 'ignored' AND received_at >= :since"
_COUNT_OF_ISSUE = f"{_COUNT} AND repository = :repository AND number = :number"
#: The number of requests for work by a sender, and on an issue.
_ASKED_BEFORE = f"SELECT ({_COUNT} AND sender = :sender), ({_COUNT_OF_ISSUE})"
_HAS_NO_RUN = """
NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = deliveries.run_id AND runs.finished_at IS NULL)
"""
#: Older than a moment, and without an unfinished run.
_IS_OLD = f"received_at < :moment AND {_HAS_NO_RUN}"

# Queries of other packages: rebuild the table, check it, count old rows.
DELIVERY_SET_RUN = "UPDATE deliveries SET run_id = :run_id WHERE guid = :guid"
#: Accepted deliveries without an unfinished run that would carry them out.
CHECK_DELIVERIES = f"SELECT guid, adw_id FROM deliveries WHERE status = 'received' AND {_HAS_NO_RUN} ORDER BY seq"
DELIVERIES_OLD = f"SELECT count(*) FROM deliveries WHERE {_IS_OLD}"

#: Leaves an existing row as it is.
_ACCEPT = (
    f"INSERT INTO deliveries ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
    " ON CONFLICT DO NOTHING RETURNING guid"
)


class DeliveryStore:
    """The table deliveries."""

    def __init__(
        self, database: Database, *, clock: Clock, scrub: Callable[[bytes], bytes] = lambda payload: payload
    ) -> None:
        """*scrub* removes from each body what must not be stored."""
        self._database = database
        self._clock = clock
        self._scrub = scrub
        self._queue = RunStore(database, clock=clock)

    # --- accepting ---------------------------------------------------------------------------------------------

    def accept(
        self, arrived: Sequence[Delivery], *, sender_limit: int = 0, issue_limit: int = 0
    ) -> list[Delivery | AdwError]:
        """
        Store deliveries and the runs they request in one commit; return each stored delivery, or its error.

        A repeated delivery is counted and returned as first stored. Requests for work are limited per hour: beyond
        *sender_limit* a sender's next one is not stored and gives TooManyRequests; beyond *issue_limit* requests on one
        issue are stored as ignored. 0 means no limit.
        """
        now = self._clock.now()
        moment, since = timestamps.to_text(now), timestamps.to_text(now - WINDOW)
        offered = [self._offered(delivery) for delivery in arrived]

        def work(session: Session) -> list[Delivery | AdwError]:
            results: list[Delivery | AdwError] = []
            for delivery in offered:
                offer = delivery
                if isinstance(offer, Delivery) and (sender_limit or issue_limit) and offer.verdict != "ignored":
                    offer = self._limited(session, offer, since, sender_limit, issue_limit)
                results.append(self._accept(session, offer, moment) if isinstance(offer, Delivery) else offer)
            taken = [result for result in results if isinstance(result, Delivery)]
            counts = Counter((one.verdict if one.is_new else REPEATED,) for one in taken)
            metrics.add_in(session, {DELIVERIES: {labels: float(count) for labels, count in counts.items()}})

            return results

        return self._database.transact(work)

    def _offered(self, delivery: Delivery) -> Delivery | AdwError:
        """Return *delivery* in the form to store, without secrets, or the error in it."""
        if delivery.verdict not in VERDICTS:
            return UsageError(f"{delivery.verdict!r} is no verdict; use one of {', '.join(VERDICTS)}")
        if named := _named_id(delivery):
            try:
                check_adw_id(named)
            except AdwError as exc:
                return exc
        if delivery.verdict == "ignored" and delivery.body is not None and len(delivery.body) > IGNORED_BYTES:
            delivery = replace(delivery, body=None)
        # Remove secrets and characters that no database stores; usually one scan finds that there are none.
        if delivery.body is not None and (body := self._scrub(delivery.body)) is not delivery.body:
            delivery = replace(delivery, body=body)
        text = " ".join([*(getattr(delivery, name) for name in _SAID), *_strings_in(delivery.request)])
        if self._database.clean(text) == text and connection.plain(text) == text:
            return delivery
        said = {name: self._said(getattr(delivery, name)) for name in _SAID}

        return replace(
            delivery,
            **said,  # type: ignore[arg-type]  # the names in _SAID are fields with text
            request=_json(self._database.clean_json(_json_text(delivery.request, delivery.guid)), delivery.guid),
        )

    def _limited(
        self, session: Session, delivery: Delivery, since: str, sender_limit: int, issue_limit: int
    ) -> Delivery | AdwError:
        """Apply the limits to *delivery*; one too many on an issue is ignored: something may answer itself."""
        row = session.one(
            _ASKED_BEFORE,
            {"since": since, "sender": delivery.sender, "repository": delivery.repository, "number": delivery.number},
        )
        by_sender, about_issue = row or (0, 0)
        is_sender_over = 0 < sender_limit <= by_sender and bool(delivery.sender)
        is_issue_over = 0 < issue_limit <= about_issue
        if not (is_sender_over or is_issue_over) or session.one(_GET, {"guid": delivery.guid}):
            return delivery  # a repeat requests no further work
        if is_sender_over:
            return TooManyRequests(delivery.sender)
        reason = f"issue {delivery.number} was asked about {about_issue} times in an hour, and more may be a loop"

        return replace(delivery, verdict="ignored", reason=reason, request={}, intent="")

    def _accept(self, session: Session, delivery: Delivery, moment: str) -> Delivery | AdwError:
        if delivery.verdict == "ignored":
            stored = replace(delivery, status="done", outcome=delivery.reason, adw_id="")
            stored = replace(stored, received_at=moment, finished_at=moment)
        else:
            run = self._enqueue(session, delivery.guid, asked_by=delivery.sender)
            if isinstance(run, AdwError):
                return run
            adw_id = _named_id(delivery) or self._clock.token()[:8]  # chosen now: every answer names the same id
            stored = replace(delivery, adw_id=adw_id, received_at=moment, run_id=run.run_id)
        params = _params(stored)
        if session.one(_ACCEPT, params) is not None:
            return stored

        # A repeated delivery: keep the run of the first.
        if stored.run_id is not None:
            session.run("DELETE FROM runs WHERE run_id = :run_id", params)
        row = session.one(
            "SELECT guid, body_hash FROM deliveries"
            " WHERE guid = :guid OR body_hash = :body_hash OR (intent = :intent AND intent <> '')"
            " ORDER BY CASE WHEN guid = :guid THEN 0 ELSE 1 END, seq LIMIT 1",  # a match by guid comes first
            params,
        )
        if row is None:
            raise DatabaseError(f"delivery {delivery.guid} could neither be stored nor be read: try again")
        if row[0] == delivery.guid and row[1] != delivery.body_hash:
            return DeliveryConflict(delivery.guid)
        sql = "UPDATE deliveries SET deliveries = deliveries + 1 WHERE guid = :guid RETURNING "

        return to_delivery(session.all(sql + ", ".join(SHOWN), {"guid": row[0]})[0])

    def _enqueue(self, session: Session, guid: str, *, asked_by: str) -> Run | AdwError:
        """Enqueue the run of a delivery under a new id, or return an error if that id has an unfinished run."""
        new = NewRun(
            adw_id=self._clock.token()[:8],
            kind=DELIVERY,
            priority=DELIVERY_PRIORITY,
            payload={"guid": guid},
            asked_by=asked_by,
        )
        run = self._queue.enqueue_in(session, new)
        if run.payload.get("guid") != guid:
            return UsageError(
                f"the id {new.adw_id} has an unfinished run already: give the run of a delivery a fresh one"
            )

        return run

    # --- carrying out ------------------------------------------------------------------------------------------

    def get(self, guid: str) -> Delivery | None:
        """Return a delivery, without its request and its body."""
        row = self._one(_GET, guid)

        return None if row is None else to_delivery(row)

    def request_of(self, guid: str) -> JsonObject | None:
        """Return the request of a delivery as JSON, or None if there is no such delivery."""
        row = self._one("SELECT request FROM deliveries WHERE guid = :guid", guid)

        return None if row is None else _json(row[0], guid)

    def body_of(self, guid: str) -> bytes | None:
        """Return the body of a delivery, or None if it was not kept."""
        row = self._one("SELECT body FROM deliveries WHERE guid = :guid", guid)

        return None if row is None or row[0] is None else bytes(row[0])

    def finish(self, guid: str, *, status: str, outcome: str, adw_id: str = "") -> None:
        """Record the result of a delivery; raise DeliveryNotFound."""
        self._database.transact(
            lambda session: self._finish(session, guid, status=status, outcome=outcome, adw_id=adw_id)
        )

    def finish_with_run(self, run: Run, end: RunEnd, *, status: str, outcome: str, adw_id: str = "") -> Run:
        """Record the result of the delivery of *run* and end that run, in one transaction; raise RunLost."""

        def work(session: Session) -> Run:
            guid = str(run.payload.get("guid") or "")
            self._finish(session, guid, status=status, outcome=outcome, adw_id=adw_id)

            return self._queue.end_in(session, run, end)

        return self._database.transact(work)

    def _finish(self, session: Session, guid: str, *, status: str, outcome: str, adw_id: str) -> None:
        if status not in ENDS:
            raise UsageError(f"a delivery cannot end as {status!r}; it ends as one of {', '.join(ENDS)}")
        params = {
            "guid": guid,
            "status": status,
            "outcome": self._said(outcome),
            "adw_id": check_adw_id(adw_id) if adw_id else "",
            "moment": timestamps.to_text(self._clock.now()),
        }
        # A command refused without an id was about no known workflow, so its row must name none.
        sql = """
            UPDATE deliveries
            SET status = :status, outcome = :outcome, finished_at = :moment,
                adw_id = CASE WHEN :adw_id = '' AND NOT (verdict = 'command' AND :status = 'refused') THEN adw_id
                         ELSE :adw_id END
            WHERE guid = :guid
        """
        if session.run(sql, params) == 0:
            raise DeliveryNotFound(guid)

    def again(self, guid: str, *, asked_by: str, instead: Delivery | None = None, adw_id: str = "") -> Run:
        """
        Enqueue a run for a stored delivery and return it, or return its unfinished run.

        *instead* is the delivery judged anew. A new workflow gets the id chosen when the delivery was accepted, or
        *adw_id* if it has none or was refused. Raise DeliveryNotFound, or UsageError if the delivery requests nothing.
        """

        def work(session: Session) -> Run:
            row = session.one(self._database.render(f"{_GET} {{row_lock}}"), {"guid": guid})
            if row is None:
                raise DeliveryNotFound(guid)
            kept = to_delivery(row)
            stored = session.all("SELECT request FROM deliveries WHERE guid = :guid", {"guid": guid})[0]
            wanted = instead or replace(kept, request=_json(stored[0], guid))
            if wanted.verdict == "ignored":
                raise UsageError(f"delivery {guid} asks for nothing: {wanted.reason}")
            # A refused delivery started nothing, and its row names the workflow that was in the way.
            chosen = (adw_id or kept.adw_id) if kept.status == "refused" else (kept.adw_id or adw_id)
            params = {
                "guid": guid,
                "verdict": wanted.verdict,
                "reason": self._said(wanted.reason),
                "request": self._database.clean_json(_json_text(wanted.request, guid)),
                "adw_id": check_adw_id(str(wanted.request.get("adw_id") or "") or chosen),
            }
            unfinished = self._queue.unfinished_in(session, kept.run_id) if kept.run_id is not None else None
            if unfinished is not None:
                return unfinished
            run = self._enqueue(session, guid, asked_by=asked_by)
            if isinstance(run, AdwError):
                raise run
            session.run(
                "UPDATE deliveries SET status = 'received', outcome = '', finished_at = NULL, run_id = :run_id,"
                " verdict = :verdict, reason = :reason, request = :request, adw_id = :adw_id WHERE guid = :guid",
                {**params, "run_id": run.run_id},
            )

            return run

        return self._database.transact(work)

    # --- lists -------------------------------------------------------------------------------------------------

    def page(self, *, limit: int = 50, before: str = "", verdicts: Sequence[str] = ()) -> tuple[Delivery, ...]:
        """Return deliveries, newest first, after the one with the guid *before*."""
        if not 0 < limit < 2**31:
            raise UsageError(f"a page needs a limit of at least 1, not {limit}")
        named = {f"verdict{number}": verdict for number, verdict in enumerate(dict.fromkeys(verdicts))}
        of_verdicts = f"AND verdict IN ({', '.join(f':{name}' for name in named)})" if named else ""
        sql = f"""
            {_SELECT} WHERE (:before = '' OR seq < (SELECT seq FROM deliveries WHERE guid = :before)) {of_verdicts}
            ORDER BY seq DESC LIMIT :limit
        """
        with self._database.read() as session:
            rows = session.all(sql, {"limit": limit, "before": before, **named})

        return tuple(map(to_delivery, rows))

    def has_requests_about(self, repository: str, number: int) -> bool:
        """Return whether work on an issue was ever requested."""
        with self._database.read() as session:
            row = session.one(
                _COUNT_OF_ISSUE,
                {"since": "", "repository": repository, "number": number},
            )

        return bool(row and row[0])

    def forget_before(self, moment: str) -> int:
        """Delete deliveries older than *moment* unless their run is unfinished; return how many."""
        some_old = f"SELECT seq FROM deliveries WHERE {_IS_OLD} ORDER BY seq LIMIT :limit"
        sql = f"DELETE FROM deliveries WHERE seq IN ({some_old})"
        deleted, params = 0, {"moment": moment, "limit": FORGOTTEN_AT_ONCE}
        while some := self._database.transact(lambda session: session.run(sql, params)):
            deleted += some

        return deleted

    def _one(self, sql: str, guid: str) -> Row | None:
        with self._database.read() as session:
            return session.one(sql, {"guid": guid})

    def _said(self, text: str) -> str:
        """Return a text of the sender in the form to store: anyone who can sign can put anything there."""
        return connection.plain(self._database.clean(text))


def to_delivery(row: Row) -> Delivery:
    """Return the delivery of a row with the columns `SHOWN`."""
    return Delivery(**dict(zip(SHOWN, row, strict=True)))


def _named_id(delivery: Delivery) -> str:
    """Return the workflow id that *delivery* was given or names, or "" for a new workflow."""
    return delivery.adw_id or str(delivery.request.get("adw_id") or "")


def _params(delivery: Delivery) -> dict[str, object]:
    return {
        **{name: getattr(delivery, name) for name in _COLUMNS},
        "request": _json_text(delivery.request, delivery.guid),
    }


def _strings_in(value: JsonValue) -> list[str]:
    """Return every text in *value*, without the names of fields, which are ours."""
    texts: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list):
            left += item

    return texts


def _json_text(value: JsonValue, guid: str) -> str:
    return connection.json_text(value, f"what delivery {guid} asks for")


def _json(text: str, guid: str) -> JsonObject:
    try:
        loaded = json.loads(text)
    except ValueError as exc:
        raise DatabaseError(f"what delivery {guid} asks for cannot be read ({exc})") from exc
    if not isinstance(loaded, dict):
        raise DatabaseError(f"what delivery {guid} asks for is no object")

    return loaded
