"""
`/live`: tells open pages when they are outdated.

One thread polls for all listeners, once a second while there are any. A listener learns that its topic
changed, not what changed: it fetches the page again. Each message carries the mark of the topic. A client that
reconnects with the last mark it saw (`Last-Event-ID`, or `since` in the URL) is told at once if the mark has changed.
The streams end when the server drains, when the login ends, and after an hour; browsers reconnect.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from adws.adw_modules.errors import AdwError, UsageError
from adws.adw_triggers.http import Problem
from adws.web.dashboard import frame

if TYPE_CHECKING:
    from adws.adw_modules.db.listing import ChangeFeed

logger = logging.getLogger("adw.web")

router = APIRouter(include_in_schema=False)

#: The most listeners at a time; further clients can still read pages.
MOST_LISTENERS = 200
LOOK_SECONDS = 1.0
#: After this time without a message a comment is sent, which detects a lost connection.
HEARTBEAT_SECONDS = 15.0
LONGEST_SECONDS = 3600.0
_TOPIC = re.compile(r"home|workflow:[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(eq=False)
class Subscriber:
    """A client that listens to a topic."""

    topic: str
    loop: asyncio.AbstractEventLoop
    mark: str = ""  #: the last mark the client saw
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Make the listener check for a change; may be called from any thread."""
        with suppress(RuntimeError):  # the event loop has ended, and the client with it
            self.loop.call_soon_threadsafe(self.woken.set)


class Live:
    """Notifies listeners of changes."""

    def __init__(self, changes: Callable[[], ChangeFeed], *, most: int = MOST_LISTENERS) -> None:
        """*changes* is opened by the polling thread, for the first listener."""
        self._open = changes
        self._most = most
        self._guard = threading.Lock()
        self._listeners: set[Subscriber] = set()
        self._marks: dict[str, str] = {}
        self._fresh = threading.Event()  #: a listener joined, or the server drains
        self._thread: threading.Thread | None = None
        self._changes: ChangeFeed | None = None
        self._is_due = False  #: something was written since the marks were last read
        self.is_draining = False

    def join(self, topic: str, *, mark: str = "") -> Subscriber | None:
        """Return a new listener, or None if there are too many or the server drains."""
        listener = Subscriber(topic=topic, loop=asyncio.get_running_loop(), mark=mark)
        with self._guard:
            if self.is_draining or len(self._listeners) >= self._most:
                return None
            self._listeners.add(listener)
            self._marks.pop(topic, None)  # to be read again for this listener
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="adw-live", daemon=True)
                self._thread.start()
        self._fresh.set()

        return listener

    def leave(self, listener: Subscriber) -> None:
        """Remove a listener."""
        with self._guard:
            self._listeners.discard(listener)

    def mark_of(self, topic: str) -> str:
        """Return the mark of a topic at the last poll, or "" before the first."""
        with self._guard:
            return self._marks.get(topic, "")

    def look(self) -> None:
        """Poll once and wake the listeners whose topic changed."""
        with self._guard:
            topics = {listener.topic for listener in self._listeners}
            unknown = topics - self._marks.keys()
        if self._changes is None:
            self._changes = self._open()
        self._is_due = self._changes.has_changed() or self._is_due
        if not self._is_due and not unknown:
            return
        result = self._changes.marks(topics)
        self._is_due = False
        with self._guard:
            changed = {topic for topic, mark in result.items() if self._marks.get(topic) != mark}
            self._marks = dict(result)
            woken = [listener for listener in self._listeners if listener.topic in changed]
        for listener in woken:
            listener.wake()

    def drain(self) -> None:
        """End every stream."""
        with self._guard:
            self.is_draining = True
            listeners = list(self._listeners)
        self._fresh.set()
        for listener in listeners:
            listener.wake()

    def close(self) -> None:
        """End every stream and wait for the polling thread."""
        self.drain()
        if self._thread is not None:
            self._thread.join()
        if self._changes is not None:
            self._changes.close()

    def _watch(self) -> None:
        is_well = True
        while self._wait():
            try:
                self.look()
                is_well = True
            except AdwError as exc:
                if is_well:  # log it once, not every second
                    logger.warning("Cannot look for changes", extra={"action": "live_blind", "reason": str(exc)})
                is_well = False

    def _wait(self) -> bool:
        """Wait for the next poll or, without listeners, for the first one; return False once the server drains."""
        self._fresh.wait(LOOK_SECONDS if self._listeners else None)
        self._fresh.clear()

        return not self.is_draining


@router.get("/live")
async def listen(
    request: Request, topic: Annotated[str, Query(max_length=100)], since: Annotated[str, Query(max_length=100)] = ""
) -> Response:
    """Send changes of *topic* until the client hangs up."""
    if _TOPIC.fullmatch(topic) is None:
        raise UsageError("a topic is home or workflow:ID")
    live = cast("Live", request.app.state.live)
    listener = live.join(topic, mark=request.headers.get("last-event-id", since))
    if listener is None:
        return _full(request)
    known = frame.known(request)

    def is_in() -> bool:
        return known is not None and request.app.state.page_auth.logins.is_good(known)

    headers = {"X-Accel-Buffering": "no"}

    return StreamingResponse(stream(live, listener, is_in), media_type="text/event-stream", headers=headers)


async def stream(live: Live, listener: Subscriber, is_in: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the messages to a listener; *is_in* returns whether the person is still logged in."""
    loop = listener.loop
    until = loop.time() + LONGEST_SECONDS
    try:
        yield "retry: 5000\n\n"
        while not live.is_draining and loop.time() < until and is_in():
            mark = live.mark_of(listener.topic)
            if mark and mark != listener.mark:
                listener.mark = mark
                yield f"id: {mark}\nevent: changed\ndata: {listener.topic}\n\n"
            try:
                await asyncio.wait_for(listener.woken.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"
            listener.woken.clear()
    finally:
        live.leave(listener)


def _full(request: Request) -> Response:
    problem = Problem(
        status=503,
        code="too_many_listeners",
        message="too many pages are open",
        advice="The pages can still be read.",
        retry_after=30,
    )

    return frame.error(request, problem, is_page=False)
