"""
The webhook ingress: read a delivery, store it with its run, answer (`WebhookReceiver.__call__`).

A success response means that the delivery and its run are committed. The same delivery gets the same answer however
often it is sent. The database is used in a thread, so it blocks nothing else. The sender is answered in time whatever
the database does: if it is late the answer is 503, and the same delivery can be sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from adws.adw_modules import default_home
from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Delivery
from adws.adw_modules.deliveries.store import WINDOW
from adws.adw_modules.errors import (
    AdwError,
    IssueLocked,
    NotTheLockOwner,
    OwnershipError,
    PullRequestOpen,
    StateError,
    StateNotFound,
    TooManyRequests,
    UsageError,
)
from adws.adw_modules.identifiers import JsonObject, check_adw_id
from adws.adw_modules.ownership.issue_locks import check_issue_number
from adws.adw_modules.worker.control import last_workflow
from adws.adw_modules.worker.preflight import StartRequest
from adws.adw_triggers import delivery
from adws.adw_triggers.github_events import rules_of
from adws.adw_triggers.http import (
    BODY_SECONDS,
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

__all__ = ["PATHS", "WebhookReceiver", "handle_webhook_trigger"]

logger = logging.getLogger("adw.webhook")

#: Requests for work that one sender may make in an hour; further ones are answered with 429.
SENDER_LIMIT = 100
#: Requests for work on one issue in an hour; further ones are stored and ignored, which ends any loop of replies.
ISSUE_LIMIT = 30

#: The paths of the endpoint; the second is for existing ADW set-ups.
PATHS = ("/webhooks/github", "/gh-webhook")
#: The sender is answered within this time whatever happens; GitHub waits 10 seconds.
ANSWER_SECONDS = 8.0
#: Most deliveries in one commit, so that the first of many is not delayed for long.
MOST_AT_A_TIME = 32
#: Most deliveries that may wait; more mean that the database hangs.
MOST_WAITING = 500
#: How many deliveries of the largest size may be in memory at a time.
_LARGEST_AT_A_TIME = 4
#: A body up to this size is parsed on the event loop: handing it to a thread would take longer.
_SMALL_BYTES = 65_536

_REDELIVER = "Redeliver it: the same delivery is stored once."
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
    advice=_REDELIVER,
    retry_after=RETRY_SECONDS,
)
_FULL = Problem(
    status=503,
    code="too_much_at_once",
    message="too many deliveries wait to be stored",
    advice=_REDELIVER,
    retry_after=1,
)
#: Status -> extra headers of the answer.
_HEADERS = {403: {"Connection": "close"}, 405: {"Allow": "POST"}}


#: The answer to a sender: the body of a 202, or a problem.
Answer: TypeAlias = JsonObject | Problem


class WebhookReceiver:
    """Answers deliveries, as an ASGI application."""

    def __init__(self, home: Home, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Raise ConfigError if the workflows of *home* cannot be used."""
        self._home = home
        self._answer_seconds = answer_seconds
        self._rules = rules_of(home.settings, workflows=home.workflows.names())
        self._budget = BodyBudget(_LARGEST_AT_A_TIME * self._rules.max_body_bytes)
        self._queue = DeliveryQueue(self.store)
        self.refused: Counter[str] = Counter()  #: code of the problem -> number of answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        answer = await self._answer(scope, receive)
        if isinstance(answer, Problem):
            self.refused[answer.code] += 1
            await send_problem(send, answer, _HEADERS.get(answer.status))
        else:
            await send_json(send, 202, answer)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        if scope["method"] != "POST":
            return _WRONG_METHOD
        if not self._rules.secrets:
            return _CLOSED
        head = head_of(scope)
        with self._budget.share() as share:
            body = await read_body(
                receive,
                head,
                most_bytes=self._rules.max_body_bytes,
                seconds=BODY_SECONDS,
                share=share,
            )
            if isinstance(body, Problem):
                return body
            try:
                async with asyncio.timeout(self._answer_seconds):
                    if len(body) <= _SMALL_BYTES:
                        arrived = self.read(head, body)
                    else:
                        arrived = await asyncio.to_thread(self.read, head, body)
                    return arrived if isinstance(arrived, Problem) else await self._queue.put(arrived)
            except TimeoutError:
                return _LATE

    def read(self, head: dict[str, str], body: bytes) -> Delivery | Problem:
        """Return the delivery to store, or why it is refused; uses no database."""
        arrived = delivery.read(head, body, self._rules)
        if isinstance(arrived, Problem):
            logger.warning("Delivery refused", extra={"action": "delivery_refused", "status": arrived.status})

        return arrived

    def store(self, arrived: Sequence[Delivery]) -> list[Answer]:
        """Store deliveries in one commit and return the answer to each, in the same order."""
        try:
            stored = self._home.deliveries.accept(arrived, sender_limit=SENDER_LIMIT, issue_limit=ISSUE_LIMIT)
        except AdwError as exc:
            stored = [exc] * len(arrived)

        return [_answer_to(result) for result in stored]

    def close(self) -> None:
        """Shut the thread down."""
        self._queue.close()


def _answer_to(result: Delivery | AdwError) -> Answer:
    if isinstance(result, TooManyRequests):
        return Problem(
            status=429,
            code="too_many_requests",
            message=str(result),
            advice=f"Redeliver it later; a sender may ask for work {SENDER_LIMIT} times an hour.",
            retry_after=int(WINDOW.total_seconds()),
        )
    if isinstance(result, AdwError):
        problem = problem_of(result)
        logger.warning("Delivery not stored", extra={"action": "delivery_not_stored", "code": problem.code})
        return problem
    logger.info(
        "Delivery taken",
        extra={
            "action": "delivery_taken",
            "guid": result.guid,
            "event": result.event,
            "verdict": result.verdict,
            "is_new": result.is_new,
        },
    )

    return {
        "status": "ignored" if result.verdict == "ignored" else "accepted",
        "guid": result.guid,
        "run_id": result.run_id,
        "adw_id": result.adw_id if result.verdict == "run" else None,  # a worker finds the workflow of a command
        "message": result.reason,
    }


class DeliveryQueue:
    """
    Passes waiting deliveries to one thread in batches.

    A commit costs the same for one delivery and for many, because most of it is the wait for the disk. So deliveries
    that arrive during a commit are stored together in the next one, and each is answered after its own commit.
    """

    def __init__(self, store: Callable[[Sequence[Delivery]], Sequence[Answer]]) -> None:
        """*store* stores all deliveries and returns the answer to each, in the same order."""
        self._store = store
        self._waiting: list[tuple[Delivery, asyncio.Future[Answer]]] = []
        self._is_storing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adw-ingress")

    async def put(self, item: Delivery) -> Answer:
        """Return the answer to *item*."""
        if len(self._waiting) >= MOST_WAITING:
            return _FULL
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, answer))
        loop.call_soon(self._store_next)  # soon, not now: deliveries that arrive together share the batch

        return await answer

    def _store_next(self) -> None:
        if self._is_storing or not self._waiting:
            return
        batch, self._waiting = self._waiting[:MOST_AT_A_TIME], self._waiting[MOST_AT_A_TIME:]
        self._is_storing = True
        items = [item for item, _ in batch]
        storing = asyncio.get_running_loop().run_in_executor(self._thread, self._store, items)
        storing.add_done_callback(partial(self._answer, batch))

    def _answer(
        self, batch: Sequence[tuple[Delivery, asyncio.Future[Answer]]], storing: asyncio.Future[Sequence[Answer]]
    ) -> None:
        self._is_storing = False
        self._store_next()
        error = storing.exception()
        answers = () if error else storing.result()
        for number, (_, waiting) in enumerate(batch):
            if waiting.done():
                continue  # its sender was already answered with 503
            if error:
                waiting.set_exception(error)
            else:
                waiting.set_result(answers[number])

    def close(self) -> None:
        """Shut the thread down."""
        self._thread.shutdown(wait=False)


# --- a webhook's request as one plain call, for programs that check requests themselves ------------------------

#: The requester named in the history.
ASKED_BY = "a webhook"


def handle_webhook_trigger(
    issue_number: int | str, provided_adw_id: str | None = None, workflow: str | None = None
) -> str | None:
    """
    Start a workflow for an issue, or resume the given one, and return its id.

    *workflow* names the workflow to start, or the phases with which the given one continues. The function queues the
    work for a worker.

    Return None if the issue's lock does not allow it or the issue has an open pull request of adw; a comment on the
    issue then says so. Raise UsageError for invalid arguments and for a workflow that cannot continue, and what
    `Preflight.check` raises for a workflow that could not be completed. A workflow that continues must own the issue's
    lock and its document must name the issue: an id alone is not enough.
    """
    number, home = check_issue_number(issue_number), default_home.get()
    if not isinstance(home, Home):
        raise UsageError(
            "starting workflows needs an open home: use adws.app.open_home, or call this where one is found"
        )
    try:
        if provided_adw_id:
            return _go_on(home, number, check_adw_id(provided_adw_id), workflow)
        return _start(home, number, workflow)
    except (IssueLocked, NotTheLockOwner, PullRequestOpen) as exc:
        _say_no(home, number, exc)
    except StateNotFound as exc:
        _say_no(home, number, NotTheLockOwner(provided_adw_id or "", number, str(exc)))

    return None


def _start(home: Home, number: int, workflow: str | None) -> str:
    settings = home.settings
    spec = home.workflows.get(workflow or settings.default_workflow)
    if home.workflows.is_dependent(spec):
        return _go_on(home, number, last_workflow(home, number, "", spec).adw_id, spec.name)
    start = home.preflight.accept(StartRequest(spec=spec, issue_number=number), asked_by=ASKED_BY)

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
    """Say in a comment on the issue why nothing was done."""
    logger.warning("A trigger was refused", extra={"action": "trigger_refused", "issue": number, "why": str(why)})
    if home.settings.forge_kind == "none":
        return
    sentence, subject = f"Nothing was done: {why}.", str(getattr(why, "adw_id", ""))
    if isinstance(why, IssueLocked):
        subject = why.holder
        try:
            holder = home.load(why.holder)
        except StateError:
            holder = None  # it is being created, or cannot be read
        sentence = f"{commands.why_no_second(why.holder, holder)}."
    home.forge_effects().answer(number, sentence, delivery=f"trigger {number} {subject}")
