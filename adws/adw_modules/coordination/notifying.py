"""
Bringing people what they are to be told: a sink of the event stream.

Events are looked through where they are stored, after their commit, so a crash loses none. Whatever goes wrong with a
channel is written down with the notice and tried again a few times; nothing of it reaches the work that is told about.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from adws.adw_modules import notify_rules, timestamps
from adws.adw_modules.errors import AdwError
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_schedule import Notice, NotificationBook, NotificationRow
from adws.adw_modules.notify import Channel

logger = logging.getLogger("adw.notify")

#: The first look takes in what happened this long ago: whoever starts to notify hears of today, not of last year.
FIRST_LOOK = timedelta(hours=1)
#: Most notices sent in one go, so that a flood holds nothing else up.
MOST_AT_ONCE = 50
#: Seconds beyond the time limit of a channel that a claim lasts.
CLAIM_RESERVE_SECONDS = 30.0
#: Seconds that the end of a process waits for a notice that is under way.
JOIN_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifyParts:
    """What notifying needs."""

    book: NotificationBook
    clock: Clock
    channels: Mapping[str, Channel] = field(default_factory=dict)
    switches: frozenset[str] = frozenset()  #: of notify_rules.SWITCHES: what is told at all
    max_attempts: int = notify_rules.MAX_ATTEMPTS
    timeout_seconds: float = 10.0
    flush: Callable[[], None] = lambda: None  #: brings what was written to the table of events


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What came of one go."""

    sent: int = 0
    failed: int = 0
    given_up: int = 0


class Notifier:
    """Gathers notices and sends them."""

    def __init__(self, parts: NotifyParts) -> None:
        self._parts = parts

    def channels_of(self, kind: str) -> tuple[str, ...]:
        """Return the channels that a notice of this kind is told by."""
        return tuple(self._parts.channels) if notify_rules.KINDS[kind] in self._parts.switches else ()

    def gather(self) -> int:
        """Make notices of what happened since the last time, and return how many rows that made."""
        parts = self._parts
        if not parts.channels:
            return 0
        parts.flush()
        since = timestamps.to_text(parts.clock.now() - FIRST_LOOK)

        return parts.book.gather(self._pick, since=since)

    def _pick(self, event: Event) -> Notice | None:
        return notify_rules.notice_of(event, self.channels_of)

    def send(self) -> Sent:
        """Send what is due, and return what came of it; what a channel does wrong stays here."""
        counts = {"sent": 0, "pending": 0, "given_up": 0}
        for _ in range(MOST_AT_ONCE):
            row = self._parts.book.take(ttl_seconds=self._parts.timeout_seconds + CLAIM_RESERVE_SECONDS)
            if row is None:
                break
            counts[self._send(row)] += 1

        return Sent(sent=counts["sent"], failed=counts["pending"], given_up=counts["given_up"])

    def _send(self, row: NotificationRow) -> str:
        parts, error = self._parts, ""
        channel = parts.channels.get(row.channel)
        if row.attempts > parts.max_attempts:
            error = row.error or "whoever sent it died each time"
        elif channel is None:
            error = f"the channel {row.channel} is not set up any more"
        else:
            try:
                channel.send(row)
            except AdwError as exc:
                error = str(exc)
            except Exception as exc:  # a bug of a channel must not keep other notices, or work, from going on
                logger.exception("A channel broke", extra={"action": "notify_broke", "channel": row.channel})
                error = f"{type(exc).__name__}: {exc}"
        again = notify_rules.retry_at(row.attempts, parts.clock.now(), most=parts.max_attempts) if channel else None
        status = "pending" if error and again else "given_up" if error else "sent"
        if error:
            said = {"action": "notify_failed", "channel": row.channel, "notice": row.key, "error": error}
            logger.warning("A notification could not be sent", extra=said)
        later = timestamps.to_text(again) if error and again else ""
        parts.book.settle(row, status=status, error=error[:500], not_before=later)

        return status


class NotifyThread:
    """Notifies beside the work of a process: `poke` says that something may have happened, and never waits."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._poked = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Have people told soon."""
        if self._thread is None and not self._is_closing:
            self._thread = threading.Thread(target=self._run, name="adw-notify", daemon=True)
            self._thread.start()
        self._poked.set()

    def close(self) -> None:
        """Wait a little for what is under way; what is left is sent by the next worker, or by cron."""
        self._is_closing = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            self._poked.wait()
            self._poked.clear()
            self._notify()
            if self._is_closing:
                return

    def _notify(self) -> None:
        try:
            self._notifier.gather()
            self._notifier.send()
        except Exception:  # told about work must never end the work; the next poke tries again
            logger.exception("Could not notify", extra={"action": "notify_broke"})
