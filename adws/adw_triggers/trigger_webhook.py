"""
The ingress of webhooks: a delivery is read from its socket, stored, and answered.

What the bytes mean is decided in `adw_triggers.delivery`, what becomes of them by `Ingress`. The database is used in a
thread, so that nothing else waits for it, and an answer comes in time for the sender, whatever the database does: a
late one is 503, and the same delivery can be sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Accepted, AskedBefore, DeliveryRow, NewDelivery, PendingDelivery
from adws.adw_modules.errors import (
    AdwError,
    IssueLocked,
    NotTheLockOwner,
    OwnershipError,
    PullRequestOpen,
    StateError,
    StateNotFound,
    UsageError,
)
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.ownership.issue_locks import check_issue_number
from adws.adw_modules.worker.control import last_workflow
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.preflight import StartRequest
from adws.adw_triggers import delivery
from adws.adw_triggers.delivery import RefusedDelivery
from adws.adw_triggers.github_events import rules_of
from adws.adw_triggers.http import (
    RETRY_SECONDS,
    BodyBudget,
    Problem,
    Receive,
    Scope,
    Send,
    head_of,
    problem_of,
    read_body,
    send_json,
    send_problem,
)
from adws.app import Home

if TYPE_CHECKING:
    from adws.adw_modules.deliveries.store import DeliveryStore

__all__ = ["PATHS", "WebhookReceiver", "handle_webhook_trigger"]


# Taking deliveries: checked, counted, and stored with their run before they are answered.
#
# An answer of success means that the delivery and its run are committed. The same delivery gets the same answer however
# often it comes. Too many requests are rate-limited: a sender gets 429, so that the delivery is not lost; requests
# about one issue are ignored, because a loop would only send them again.


logger = logging.getLogger("adw.webhook")

#: What limits are counted over.
WINDOW = timedelta(hours=1)

_CODES = {400: "bad_delivery", 401: "bad_signature", 413: "too_large", 415: "bad_media_type"}


class Ingress:
    """Takes deliveries for one home."""

    def __init__(self, home: Home) -> None:
        """Raises ConfigError when the workflows of *home* cannot be used."""
        self.rules = rules_of(home.settings, workflows=home.workflows.names())
        self._home = home

    def read(self, head: Mapping[str, str], body: bytes) -> NewDelivery | Problem:
        """Return the delivery to store, or why it is not taken; asks nobody."""
        content = delivery.read(head, body, self.rules)
        if not isinstance(content, RefusedDelivery):
            return content
        logger.warning("Delivery refused", extra={"action": "delivery_refused", "status": content.status})

        return Problem(status=content.status, code=_CODES.get(content.status, "bad_delivery"), message=content.reason)

    def keep(self, arrived: Sequence[NewDelivery]) -> list[JsonObject | Problem]:
        """Return the answer to each, in their order: all that is stored is stored in one commit."""
        try:
            store = self._home.deliveries  # opened by the first delivery, and not while the database is away
            judged = self._judged(store, arrived)
            offers = [self._offer(item) for item in judged if not isinstance(item, Problem)]
            results = iter(store.accept_all(offers) if offers else ())
        except AdwError as exc:
            return [_not_stored(exc)] * len(arrived)

        return [item if isinstance(item, Problem) else _told(next(results)) for item in judged]

    def _judged(self, store: DeliveryStore, arrived: Sequence[NewDelivery]) -> list[NewDelivery | Problem]:
        """Return what is to be stored of each, or why nothing is."""
        asking = [item for item in arrived if item.verdict != "ignored"]
        since = timestamps.to_text(self._home.clock.now() - WINDOW)
        before = iter(store.asked_since(since, asking) if asking else ())

        return [item if item.verdict == "ignored" else self._judge(store, item, next(before)) for item in arrived]

    def _judge(self, store: DeliveryStore, found: NewDelivery, before: AskedBefore) -> NewDelivery | Problem:
        if self._asks_too_often(store, found, before.by_sender):
            return _slow_down(found.sender)

        return self._without_loop(store, found, before.about_issue)

    def _offer(self, found: NewDelivery) -> PendingDelivery:
        """Return *found* with its ids: a new workflow gets its own now, so that every answer names the same."""
        adw_id = str(found.request.get("adw_id") or "") or self._home.clock.token()[:8]

        return PendingDelivery(delivery=found, run_id_of=self._home.clock.token()[:8], adw_id=adw_id)

    def _asks_too_often(self, store: DeliveryStore, found: NewDelivery, count: int) -> bool:
        most = self._home.settings.webhook_sender_limit
        if not most or not found.sender or count < most:
            return False

        return store.get(found.guid) is None  # a repeat asks for nothing more

    def _without_loop(self, store: DeliveryStore, found: NewDelivery, count: int) -> NewDelivery:
        """Return *found*, to be ignored when its issue was asked about too often: something answers itself."""
        most = self._home.settings.webhook_issue_limit
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


# Deliveries on their way into the database: those that come while others are stored go together next.
#
# One thread stores; a commit costs the same for one delivery and for many, because the disk is what is waited for. Each
# is answered after the commit that has it, and gets its own answer.


_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

#: Deliveries of one commit, at most: the first does not wait for a crowd.
MOST_AT_A_TIME = 32
#: Deliveries that wait, at most; more means that the database hangs.
MOST_WAITING = 500

_FULL = Problem(
    status=503,
    code="too_much_at_once",
    message="too many deliveries wait to be stored",
    advice="Redeliver it: the same delivery is stored once.",
    retry_after=1,
)


class DeliveryQueue(Generic[_Item, _Answer]):
    """Passes waiting items to one thread, as many at a time as there are."""

    def __init__(self, store: Callable[[Sequence[_Item]], Sequence[_Answer]]) -> None:
        """*store* answers each item, in their order, when all of them are stored."""
        self._store = store
        self._waiting: list[tuple[_Item, asyncio.Future[_Answer]]] = []
        self._is_storing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adw-ingress")

    async def put(self, item: _Item) -> _Answer | Problem:
        """Return the answer to *item*."""
        if len(self._waiting) >= MOST_WAITING:
            return _FULL
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        self._waiting.append((item, answer))
        loop.call_soon(self._go_on)  # soon, not now: those that arrived with it come along

        return await answer

    def _go_on(self) -> None:
        if self._is_storing or not self._waiting:
            return
        batch, self._waiting = self._waiting[:MOST_AT_A_TIME], self._waiting[MOST_AT_A_TIME:]
        self._is_storing = True
        items = [item for item, _ in batch]
        storing = asyncio.get_running_loop().run_in_executor(self._thread, self._store, items)
        storing.add_done_callback(partial(self._answer, batch))

    def _answer(
        self, batch: Sequence[tuple[_Item, asyncio.Future[_Answer]]], storing: asyncio.Future[Sequence[_Answer]]
    ) -> None:
        self._is_storing = False
        self._go_on()
        error = storing.exception()
        answers = () if error else storing.result()
        for number, (_, waiting) in enumerate(batch):
            if waiting.done():
                continue  # its sender was told that it takes too long
            if error:
                waiting.set_exception(error)
            else:
                waiting.set_result(answers[number])

    def close(self) -> None:
        """Shut the thread down."""
        self._thread.shutdown(wait=False)


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


class WebhookReceiver:
    """Answers deliveries, as an ASGI application."""

    def __init__(self, ingress: Ingress, *, body_seconds: float, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._ingress = ingress
        self._body_seconds = body_seconds
        self._answer_seconds = answer_seconds
        self._budget = BodyBudget(_LARGEST_AT_A_TIME * ingress.rules.max_body_bytes)
        self.refused: Counter[str] = Counter()  #: code of the problem -> how often it was the answer
        self._queue: DeliveryQueue[NewDelivery, JsonObject | Problem] = DeliveryQueue(ingress.keep)

    @classmethod
    def of(cls, home: Home) -> Self:
        """Return the receiver of *home*. Raises what is wrong with its workflows."""
        return cls(Ingress(home), body_seconds=home.settings.web_body_seconds)

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
                result = await self._read(head, body)
                return result if isinstance(result, Problem) else await self._queue.put(result)
        except TimeoutError:
            return _LATE

    async def _read(self, head: dict[str, str], body: bytes) -> NewDelivery | Problem:
        """Read a delivery; a large one in a thread, for it takes long, a small one here, for a thread takes longer."""
        if len(body) <= _SMALL_BYTES:
            return self._ingress.read(head, body)

        return await asyncio.to_thread(self._ingress.read, head, body)

    def close(self) -> None:
        """Shut the thread down."""
        self._queue.close()


# `handle_webhook_trigger`: what a webhook asks for, as one plain call of a program that has checked it itself.
#
# A new workflow takes the issue's lock with its first write, or a comment says which workflow has it. One that is to go
# on must own the lock, and its document must name the issue: an id alone opens nothing. The work is left to a worker.


#: Who asks, for the history.
ASKED_BY = "a webhook"


def handle_webhook_trigger(
    issue_number: int | str, provided_adw_id: str | None = None, workflow: str | None = None
) -> str | None:
    """
    Start a workflow for an issue, or make the given one go on, and return its id.

    With *workflow* that one is started, or the given one is carried on with its phases. None when the issue's lock does
    not allow it, or the issue has an open pull request of ours: then a comment on the issue says so. Raises UsageError
    for what makes no sense, and for a workflow that cannot go on; and what `Preflight.check` raises for one that could
    not be carried to its end.
    """
    number, home = check_issue_number(issue_number), _home()
    try:
        if provided_adw_id:
            return _go_on(home, number, check_adw_id(provided_adw_id), workflow)
        return _start(home, number, workflow)
    except (IssueLocked, NotTheLockOwner, PullRequestOpen) as exc:
        _say_no(home, number, exc)
    except StateNotFound as exc:
        _say_no(home, number, NotTheLockOwner(provided_adw_id or "", number, str(exc)))

    return None


def _home() -> Home:
    parts = default_home.get()
    if not isinstance(parts, Home):
        raise UsageError(
            "starting workflows needs an open home: use adws.app.open_home, or call this where one is found"
        )

    return parts


def _start(home: Home, number: int, workflow: str | None) -> str:
    settings = home.settings
    spec = home.workflows.get(workflow or settings.default_workflow)
    if home.workflows.is_dependent(spec):
        return _go_on(home, number, last_workflow(home, number, "", spec).adw_id, spec.name)
    start = NewWorkflow(
        issue_number=number,
        spec=spec,
        repository=settings.repository or "",
        issue=home.preflight.check(StartRequest(spec=spec, issue_number=number)),
        asked_by=ASKED_BY,
        max_retries=settings.max_retries,
        max_reworks=settings.max_reworks,
        max_total_attempts=settings.max_total_attempts,
        max_minutes=settings.max_minutes,
    )

    return home.workflow_creator.start(start).adw_id


def _go_on(home: Home, number: int, adw_id: str, workflow: str | None) -> str:
    if workflow:
        spec = home.workflows.get(workflow)
        home.control.continue_with(adw_id, spec, by=ASKED_BY, issue_number=number)
        return adw_id
    home.ownership.prove_continuing(adw_id, number)
    home.control.resume(adw_id, by=ASKED_BY)

    return adw_id


def _say_no(home: Home, number: int, why: OwnershipError | PullRequestOpen) -> None:
    logger.warning("A trigger was refused", extra={"action": "trigger_refused", "issue": number, "why": str(why)})
    if home.settings.forge_kind == "none":
        return
    home.answers().say(number, _sentence(home, why), delivery=f"trigger {number} {_holder(why)}")


def _sentence(home: Home, why: OwnershipError | PullRequestOpen) -> str:
    if not isinstance(why, IssueLocked):
        return f"Nothing was done: {why}."
    try:
        holder = home.load(why.holder)
    except StateError:
        holder = None  # it is being made, or cannot be read

    return f"{commands.why_no_second(why.holder, holder)}."


def _holder(why: OwnershipError | PullRequestOpen) -> str:
    return why.holder if isinstance(why, IssueLocked) else str(getattr(why, "adw_id", ""))
