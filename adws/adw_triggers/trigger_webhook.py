"""
The ingress of webhooks: a delivery is read from its socket, handed over, and answered.

Only I/O: what the bytes mean is decided by `deliveries`, what becomes of them by `ingress`. The database is asked in
a thread, so that nothing else waits for it, and an answer comes in time for the sender, whatever the database does: one
that is late is 503, and the same delivery can come again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from adws.adw_modules.json_value import JsonObject
from adws.adw_triggers.asgi import Budget, Receive, Scope, Send, head_of, read_body, send_json, send_problem
from adws.adw_triggers.delivery_queue import DeliveryQueue
from adws.adw_triggers.delivery_rules import rules_of
from adws.adw_triggers.direct_trigger import handle_webhook_trigger
from adws.adw_triggers.ingress import Ingress, IngressLimits
from adws.adw_triggers.problems import RETRY_SECONDS, Problem

if TYPE_CHECKING:
    from adws.adw_modules.trigger import Deliveries, NewDelivery
    from adws.app import App

__all__ = ["PATHS", "WebhookDoor", "handle_webhook_trigger"]

#: Where deliveries come in; the second is the name that ADW set-ups know.
PATHS = ("/webhooks/github", "/gh-webhook")
#: Seconds after which a sender is answered whatever happens; GitHub waits 10.
ANSWER_SECONDS = 8.0
#: Deliveries of the largest size that may be in memory at a time.
_LARGEST_AT_A_TIME = 4
#: Bytes that are read in no time.
_SMALL_BYTES = 65_536

_CLOSED = Problem(
    status=403,
    code="webhook_closed",
    message="deliveries are not taken because no webhook secret is set",
    advice="Set ADW_WEBHOOK_SECRET to the secret that the forge signs with, and restart.",
)
_WRONG_METHOD = Problem(
    status=405, code="method_not_allowed", message="deliveries are posted", advice="Use POST with a signed body."
)
_LATE = Problem(
    status=503,
    code="database_late",
    message=f"the delivery could not be stored within {ANSWER_SECONDS:g} s",
    advice="Redeliver it: the same delivery is stored once.",
    retry_after=RETRY_SECONDS,
)


class WebhookDoor:
    """Answers deliveries, as an ASGI application."""

    def __init__(self, ingress: Ingress, *, body_seconds: float, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._ingress = ingress
        self._body_seconds = body_seconds
        self._answer_seconds = answer_seconds
        self._budget = Budget(_LARGEST_AT_A_TIME * ingress.rules.max_body_bytes)
        self.refused: Counter[str] = Counter()  #: code of the problem -> how often it was the answer
        self._queue: DeliveryQueue[NewDelivery, JsonObject | Problem] = DeliveryQueue(ingress.keep)

    @classmethod
    def of(cls, app: App, *, store: Callable[[], Deliveries]) -> Self:
        """Return the door of a home; *store* opens what keeps its deliveries. Raises what is wrong with workflows."""
        settings = app.settings
        ingress = Ingress(
            rules=rules_of(settings, workflows=app.workflows.names()),
            limits=IngressLimits(per_sender=settings.webhook_sender_limit, per_issue=settings.webhook_issue_limit),
            store=store,
            clock=app.clock,
        )

        return cls(ingress, body_seconds=settings.web_body_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        if scope["method"] != "POST":
            await self._refuse(send, _WRONG_METHOD, {"Allow": "POST"})
            return
        if not self._ingress.rules.secrets:
            await self._refuse(send, _CLOSED, {"Connection": "close"})
            return
        with self._budget.share() as share:
            head = head_of(scope)
            most_bytes = self._ingress.rules.max_body_bytes
            body = await read_body(receive, head, most_bytes=most_bytes, seconds=self._body_seconds, share=share)
            answer = body if isinstance(body, Problem) else await self._take(head, body)
        if isinstance(answer, Problem):
            await self._refuse(send, answer)
        else:
            await send_json(send, 202, answer)

    async def _refuse(self, send: Send, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        self.refused[problem.code] += 1
        await send_problem(send, problem, headers)

    async def _take(self, head: dict[str, str], body: bytes) -> JsonObject | Problem:
        try:
            async with asyncio.timeout(self._answer_seconds):
                found = await self._read(head, body)
                return found if isinstance(found, Problem) else await self._queue.put(found)
        except TimeoutError:
            return _LATE

    async def _read(self, head: dict[str, str], body: bytes) -> NewDelivery | Problem:
        """Read a delivery; a large one in a thread, for it takes long, a small one here, for a thread takes longer."""
        if len(body) <= _SMALL_BYTES:
            return self._ingress.read(head, body)

        return await asyncio.to_thread(self._ingress.read, head, body)

    def close(self) -> None:
        """Let go of the thread."""
        self._queue.close()
