"""
Deliveries in memory.

They enqueue into the `MemoryRunQueue` that is passed in, so that a worker of a test finds what they ask for.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from adws.adw_modules import timestamps
from adws.adw_modules.delivery_rows import (
    again_run,
    check_again,
    check_finish,
    check_limit,
    finished_id,
    intent_of,
    kept_body,
    new_run,
    refuse_other_body,
    refuse_taken_id,
)
from adws.adw_modules.errors import AdwError, DeliveryNotFound
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.runs import FINAL_RUNS, Run
from adws.adw_modules.trigger import Accepted, AskedBefore, DeliveryRow, NewDelivery, Offer
from adws.testing.run_queue import MemoryRunQueue


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    row: DeliveryRow
    body_hash: str
    intent: str
    request: JsonObject
    body: bytes | None


class MemoryDeliveries:
    """`Deliveries` in memory."""

    def __init__(self, clock: Clock, runs: MemoryRunQueue) -> None:
        self._clock = clock
        self._runs = runs
        self._guard = threading.RLock()
        self._kept: dict[str, _Kept] = {}  #: oldest first

    def accept(self, delivery: NewDelivery, *, run_id_of: str, adw_id: str) -> Accepted:
        """Keep *delivery* and, when it asks for work, enqueue its run; the answer of the first when it came before."""
        wanted = new_run(delivery, run_id_of=run_id_of, adw_id=adw_id)
        with self._guard:
            before = self._before(delivery)
            if before is not None:
                refuse_other_body(delivery, before.row.guid, before.body_hash)
                again = replace(before.row, deliveries=before.row.deliveries + 1)
                self._kept[again.guid] = replace(before, row=again)
                return Accepted(row=before.row, is_new=False)
            run = None
            if wanted is not None:
                run = self._runs.enqueue(wanted)
                refuse_taken_id(run, wanted)
            row = self._new_row(delivery, run, adw_id)
            self._kept[row.guid] = _Kept(
                row=row,
                body_hash=delivery.body_hash,
                intent=intent_of(delivery),
                request=copy.deepcopy(delivery.request),
                body=kept_body(delivery),
            )
            return Accepted(row=row, is_new=True)

    def accept_all(self, offers: Sequence[Offer]) -> tuple[Accepted | AdwError, ...]:
        """Return `accept` of each, or what that raises, in their order."""
        return tuple(map(self._tried, offers))

    def _tried(self, offer: Offer) -> Accepted | AdwError:
        try:
            return self.accept(offer.delivery, run_id_of=offer.run_id_of, adw_id=offer.adw_id)
        except AdwError as exc:
            return exc

    def get(self, guid: str) -> DeliveryRow | None:
        """Return a delivery."""
        kept = self._kept.get(guid)

        return None if kept is None else kept.row

    def request_of(self, guid: str) -> JsonObject | None:
        """Return what was made of it, as JSON."""
        kept = self._kept.get(guid)

        return None if kept is None else copy.deepcopy(kept.request)

    def body_of(self, guid: str) -> bytes | None:
        """Return its bytes, None when they are not kept."""
        kept = self._kept.get(guid)

        return None if kept is None else kept.body

    def finish(self, guid: str, *, status: str, outcome: str, adw_id: str = "") -> None:
        """Write down what came of it."""
        check_finish(status, adw_id)
        with self._guard:
            kept = self._found(guid)
            row = replace(
                kept.row,
                status=status,
                outcome=outcome,
                adw_id=finished_id(kept.row, status, adw_id),
                finished_at=timestamps.to_text(self._clock.now()),
            )
            self._kept[guid] = replace(kept, row=row)

    def again(
        self, guid: str, *, run_id_of: str, asked_by: str, instead: NewDelivery | None = None, adw_id: str = ""
    ) -> Run:
        """Enqueue a run for a delivery that is kept; the one it has when that is not over."""
        with self._guard:
            kept = self._found(guid)
            wanted = check_again(kept.row, kept.request, instead, adw_id)
            run = self._unfinished(kept.row)
            if run is not None:
                return run
            asked = again_run(guid, run_id_of=run_id_of, asked_by=asked_by)
            run = self._runs.enqueue(asked)
            refuse_taken_id(run, asked)
            row = replace(
                kept.row,
                status="received",
                outcome="",
                finished_at=None,
                run_id=run.run_id,
                verdict=wanted.verdict,
                reason=wanted.reason,
                adw_id=wanted.adw_id,
            )
            self._kept[guid] = replace(kept, row=row, request=copy.deepcopy(wanted.request))
            return run

    def page(self, *, limit: int = 50, before: str = "", verdicts: Sequence[str] = ()) -> tuple[DeliveryRow, ...]:
        """Return deliveries, newest first; *before* is the guid of the last one seen."""
        check_limit(limit)
        with self._guard:
            rows = [kept.row for kept in reversed(self._kept.values())]
        if before:
            places = [place for place, row in enumerate(rows) if row.guid == before]
            rows = rows[places[0] + 1 :] if places else []

        return tuple(row for row in rows if not verdicts or row.verdict in verdicts)[:limit]

    def count_since(self, since: str, *, sender: str = "", repository: str = "", number: int | None = None) -> int:
        """Return how many asked for work since a moment."""
        with self._guard:
            rows = [kept.row for kept in self._kept.values()]

        return sum(
            row.verdict != "ignored"
            and row.received_at >= since
            and sender in {"", row.sender}
            and repository in {"", row.repository}
            and number in {None, row.number}
            for row in rows
        )

    def asked_since(self, since: str, arrived: Sequence[NewDelivery]) -> tuple[AskedBefore, ...]:
        """Return the same for the sender and for the issue of each delivery."""
        return tuple(
            AskedBefore(
                by_sender=self.count_since(since, sender=one.sender) if one.sender else 0,
                about_issue=self.count_since(since, repository=one.repository, number=one.number) if one.number else 0,
            )
            for one in arrived
        )

    def forget_before(self, moment: str) -> int:
        """Delete those older than *moment*, but for those whose run is not over, and return how many."""
        with self._guard:
            old = [
                guid
                for guid, kept in self._kept.items()
                if kept.row.received_at < moment and self._unfinished(kept.row) is None
            ]
            for guid in old:
                del self._kept[guid]

        return len(old)

    # --- how -----------------------------------------------------------------------------------------------------

    def _before(self, delivery: NewDelivery) -> _Kept | None:
        if delivery.guid in self._kept:
            return self._kept[delivery.guid]
        intent = intent_of(delivery)
        for kept in self._kept.values():
            if kept.body_hash == delivery.body_hash or (intent and kept.intent == intent):
                return kept

        return None

    def _new_row(self, delivery: NewDelivery, run: Run | None, adw_id: str) -> DeliveryRow:
        moment = timestamps.to_text(self._clock.now())

        return DeliveryRow(
            guid=delivery.guid,
            event=delivery.event,
            action=delivery.action,
            sender=delivery.sender,
            repository=delivery.repository,
            number=delivery.number,
            verdict=delivery.verdict,
            reason=delivery.reason,
            status="done" if run is None else "received",
            outcome=delivery.reason if run is None else "",
            run_id=None if run is None else run.run_id,
            adw_id="" if run is None else adw_id,
            received_at=moment,
            finished_at=moment if run is None else None,
        )

    def _unfinished(self, row: DeliveryRow) -> Run | None:
        run = None if row.run_id is None else self._runs.get(row.run_id)

        return None if run is None or run.state in FINAL_RUNS else run

    def _found(self, guid: str) -> _Kept:
        kept = self._kept.get(guid)
        if kept is None:
            raise DeliveryNotFound(guid)

        return kept
