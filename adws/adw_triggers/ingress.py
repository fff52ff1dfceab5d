"""
Taking deliveries: checked, counted, and stored with their run before they are answered.

An answer of success means that the delivery and its run are committed. The same delivery gets the same answer however
often it comes. What asks too often is held off: a sender by 429, so that it is not lost, an issue by ignoring what is
asked about it, because a loop would only come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from adws.adw_modules import timestamps
from adws.adw_modules.errors import AdwError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.trigger import Accepted, AskedBefore, Deliveries, DeliveryRow, NewDelivery, Offer
from adws.adw_triggers import deliveries
from adws.adw_triggers.deliveries import Refused
from adws.adw_triggers.delivery_rules import DeliveryRules
from adws.adw_triggers.problems import Problem, problem_of

logger = logging.getLogger("adw.webhook")

#: What limits are counted over.
WINDOW = timedelta(hours=1)

_CODES = {400: "bad_delivery", 401: "bad_signature", 413: "too_large", 415: "bad_media_type"}


@dataclass(frozen=True, kw_only=True, slots=True)
class IngressLimits:
    """How much may be asked for in an hour; 0: any number."""

    per_sender: int = 100
    per_issue: int = 30


class Ingress:
    """Takes deliveries for one home."""

    def __init__(
        self,
        *,
        rules: DeliveryRules,
        limits: IngressLimits,
        store: Callable[[], Deliveries],
        clock: Clock,
    ) -> None:
        """*store* opens what keeps deliveries; it is asked each time, because it may not be there yet."""
        self.rules = rules
        self._limits = limits
        self._store = store
        self._clock = clock

    def read(self, head: Mapping[str, str], body: bytes) -> NewDelivery | Problem:
        """Return the delivery to store, or why it is not taken; asks nobody."""
        found = deliveries.read(head, body, self.rules)
        if not isinstance(found, Refused):
            return found
        logger.warning("Delivery refused", extra={"action": "delivery_refused", "status": found.status})

        return Problem(status=found.status, code=_CODES.get(found.status, "bad_delivery"), message=found.reason)

    def keep(self, arrived: Sequence[NewDelivery]) -> list[JsonObject | Problem]:
        """Return the answer to each, in their order: all that is stored is stored in one commit."""
        try:
            store = self._store()
            judged = self._judged(store, arrived)
            offers = [self._offer(found) for found in judged if not isinstance(found, Problem)]
            results = iter(store.accept_all(offers) if offers else ())
        except AdwError as exc:
            return [_not_stored(exc)] * len(arrived)

        return [found if isinstance(found, Problem) else _told(next(results)) for found in judged]

    def _judged(self, store: Deliveries, arrived: Sequence[NewDelivery]) -> list[NewDelivery | Problem]:
        """Return what is to be stored of each, or why nothing is."""
        asking = [found for found in arrived if found.verdict != "ignored"]
        since = timestamps.to_text(self._clock.now() - WINDOW)
        before = iter(store.asked_since(since, asking) if asking else ())

        return [found if found.verdict == "ignored" else self._judge(store, found, next(before)) for found in arrived]

    def _judge(self, store: Deliveries, found: NewDelivery, before: AskedBefore) -> NewDelivery | Problem:
        if self._asks_too_often(store, found, before.by_sender):
            return _slow_down(found.sender)

        return self._without_loop(store, found, before.about_issue)

    def _offer(self, found: NewDelivery) -> Offer:
        """Return *found* with its ids: a new workflow gets its own now, so that every answer names the same."""
        adw_id = str(found.request.get("adw_id") or "") or self._clock.token()[:8]

        return Offer(delivery=found, run_id_of=self._clock.token()[:8], adw_id=adw_id)

    def _asks_too_often(self, store: Deliveries, found: NewDelivery, count: int) -> bool:
        most = self._limits.per_sender
        if not most or not found.sender or count < most:
            return False

        return store.get(found.guid) is None  # a repeat asks for nothing more

    def _without_loop(self, store: Deliveries, found: NewDelivery, count: int) -> NewDelivery:
        """Return *found*, to be ignored when its issue was asked about too often: something answers itself."""
        most = self._limits.per_issue
        if not most or found.number is None or count < most or store.get(found.guid) is not None:
            return found
        reason = f"issue {found.number} was asked about {count} times in an hour, and more may be a loop"

        return replace(found, verdict="ignored", reason=reason, request={})


def _told(result: Accepted | AdwError) -> JsonObject | Problem:
    if isinstance(result, AdwError):
        return _not_stored(result)
    row = result.row
    logger.info(
        "Delivery taken",
        extra={
            "action": "delivery_taken",
            "guid": row.guid,
            "event": row.event,
            "verdict": row.verdict,
            "is_new": result.is_new,
        },
    )

    return answer_of(row)


def _not_stored(error: AdwError) -> Problem:
    problem = problem_of(error)
    logger.warning("Delivery not stored", extra={"action": "delivery_not_stored", "code": problem.code})

    return problem


def answer_of(row: DeliveryRow) -> JsonObject:
    """Return what is answered to a delivery, each time that it comes."""
    return {
        "status": "ignored" if row.verdict == "ignored" else "accepted",
        "guid": row.guid,
        "run_id": row.run_id,
        "adw_id": row.adw_id if row.verdict == "run" else None,  # which one a command is about is found by a worker
        "message": row.reason,
    }


def _slow_down(sender: str) -> Problem:
    return Problem(
        status=429,
        code="too_many_requests",
        message=f"{sender} asked for work too often in the last hour; this delivery was not stored",
        advice="Redeliver it later; webhook.sender_limit is the limit.",
        retry_after=int(WINDOW.total_seconds()),
    )
