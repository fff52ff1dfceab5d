"""
Notifications: by a command, by HTTP, by a comment on the issue.

Each channel sends one notice within a time limit and raises NotifyFailed if it cannot; its caller decides on retries.
Everything sent is redacted. After a crash a notice may be sent twice: it has a key by which the receiver can recognise
it, and a comment is looked up before it is posted.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import timestamps
from adws.adw_modules.errors import AdwError, ForgeError, NotifyFailed, RunFailed, StateError
from adws.adw_modules.events import Event
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.text import Marker
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.process.run import CommandLine, run_process
from adws.adw_modules.schedule.store import Notice, NotificationRow
from adws.adw_modules.workflow.model import Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.redaction.redactor import Redactor
    from adws.app import Home


#: Our environment variables that the command gets. It reads its own secrets from a file of its own.
PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
#: The operation in the marker of a notice's comment.
NOTICE = "notice"
#: Time limit of one notification.
TIMEOUT_SECONDS = 10.0


class Channel(Protocol):
    """A way to send notices."""

    def send(self, row: NotificationRow) -> None:
        """Send a notice; raise NotifyFailed if that fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandChannel:
    """Runs a command with the notice in its environment variables."""

    argv: tuple[str, ...]
    home: Home = field(repr=False)

    def send(self, row: NotificationRow) -> None:
        """Run the command; raise NotifyFailed unless it exits with 0 in time."""
        home, seconds = self.home, TIMEOUT_SECONDS
        message = message_of(row, home.redactor.redact_text)
        shown = {f"ADW_NOTIFY_{name.upper()}": str(value) for name, value in message.items()}
        command = CommandLine(
            argv=self.argv,
            cwd=home.settings.home,
            env={**{name: home.env[name] for name in PASSED_ON if name in home.env}, **shown},
            timeouts=Timeouts(wall=seconds),
            grace_seconds=1.0,
        )
        try:
            end = run_process(
                command,
                clock=home.clock,
                processes=home.processes,
                orders=NoOrders(),
                record=lambda _record: None,
                redactor=home.redactor,
            )
        except RunFailed as exc:
            raise NotifyFailed(str(exc)) from exc
        if end.timed_out:
            raise NotifyFailed(f"the command did not end within {seconds:g} s and was ended")
        if end.exit_code != 0:
            last = next((line for line in reversed(end.tail.splitlines()) if line.strip()), "")
            how = f"exit code {end.exit_code}" if end.exit_code is not None else f"signal {end.signal}"
            raise NotifyFailed(f"the command ended with {how}{f': {last.strip()[:200]}' if last else ''}")


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpChannel:
    """Posts a notice as JSON."""

    url: str = field(repr=False)
    redactor: Redactor
    timeout_seconds: float = TIMEOUT_SECONDS

    def send(self, row: NotificationRow) -> None:
        """Post the notice; raise NotifyFailed unless the answer is 2xx and in time."""
        import httpx  # noqa: PLC0415 - slow to import, and few homes notify by HTTP

        try:
            # Redirects are not followed: one would turn the POST into a GET, and the address is the user's own.
            answer = httpx.post(
                self.url,
                json=message_of(row, self.redactor.redact_text),
                headers={"Idempotency-Key": key_of(row), "User-Agent": "adw"},
                timeout=self.timeout_seconds,
                follow_redirects=False,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise NotifyFailed(f"no answer to the POST: {type(exc).__name__}") from exc
        if not answer.is_success:
            raise NotifyFailed(f"the POST was answered with {answer.status_code}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommentChannel:
    """Comments on the issue of the workflow; a notice without a workflow is not sent."""

    home: Home

    def send(self, row: NotificationRow) -> None:
        """Post the comment unless it exists; raise NotifyFailed if the forge rejects it."""
        home = self.home
        try:
            number = home.store.load(row.adw_id).document.issue_number if row.adw_id else None
        except StateError:
            return
        if number is None:
            return
        # A marker's id has no space for the whole key; part of its hash distinguishes the notices of an issue.
        marker = Marker(adw_id=f"{row.adw_id[:40]}-{key_of(row)[:16]}", op=NOTICE)
        try:
            forge, key = home.forge, home.forge_key
            me = forge.login()
            for comment in forge.comments(number):
                known = forge_text.read_marker(comment.body, key=key, repository=forge.repository)
                if comment.author == me and known == marker:
                    return
            said = forge_text.bot_comment(home.redactor.redact_text(f"{row.title}\n\n{row.text}".strip()))
            written = forge_text.make_marker(marker, key=key, repository=forge.repository)
            forge.create_comment(number, forge_text.with_marker(said, written))
        except ForgeError as exc:
            raise NotifyFailed(str(exc)) from exc


def key_of(row: NotificationRow) -> str:
    """Return the key of this notice, the same each time it is sent."""
    return hashlib.sha256(f"{row.key}\0{row.channel}".encode()).hexdigest()[:32]


def message_of(row: NotificationRow, redact: Callable[[str], str]) -> JsonObject:
    """Return a notice as it is sent, without secrets."""
    return {
        "key": key_of(row),
        "kind": row.kind,
        "title": redact(row.title),
        "text": redact(row.text),
        "adw_id": row.adw_id,
        "created_at": row.created_at,
    }


# --- notices and their texts -----------------------------------------------------------------------------------
#
# Pure. An event makes at most one notice, and its key is that of the event: so one transition makes one notice, however
# often events are read. A notice without an event (a quota, a stuck workflow) has a key made from its subject.


#: The channels.
COMMAND, HTTP, COMMENT = "command", "http", "comment"
#: Kind of a notice -> the word that enables it (`notify.events`).
KINDS = {
    "failed": "failed",
    "paused": "paused",
    "approval": "approval",
    "completed": "completed",
    "quota_exceeded": "quota",
    "quota_free": "quota",
    "breaker_opened": "breaker",
    "stuck": "stuck",
    "report": "report",
}
SWITCHES = tuple(dict.fromkeys(KINDS.values()))
#: Maximum number of tries of a notice by one channel.
MAX_ATTEMPTS = 5
#: Seconds before the second try; doubled with each try.
FIRST_RETRY_SECONDS = 60.0
#: Maximum length of a title and a text.
MAX_TITLE, MAX_TEXT = 200, 4000

#: States that make a notice when a workflow enters them.
_STATES = {"failed": "failed", "completed": "completed", "paused": "paused"}
#: The reason of a pause that `approval_asked` reports already.
_AWAITING = "awaiting_approval"
_SAID = {"failed": "failed", "paused": "is paused", "approval": "waits for approval", "completed": "is completed"}
_HINTS = {
    "failed": "adw status {id} shows why and what to do",
    "paused": "adw status {id} shows what it waits for, adw resume {id} continues it",
    "approval": "adw approve {id} approves it, adw reject {id} sends it back",
    "stuck": "adw status {id} shows what it waits for",
}

ChannelsOf = Callable[[str], tuple[str, ...]]  #: kind -> the channels that send it


def notice_of(event: Event, channels_of: ChannelsOf) -> Notice | None:
    """Return the notice that *event* makes, or None."""
    kind = kind_of(event)
    channels = channels_of(kind) if kind else ()
    if not channels:
        return None
    data = event.data
    if kind == "breaker_opened":
        until, why = data.get("reopens_at"), data.get("reason")
        told = f"Circuit breaker open for {data.get('party')} until {until or 'it answers again'}"
        told += f": {why}" if why else ""
    else:
        where = data.get("phase") or event.node_name
        why = data.get("message") or data.get("reason") or data.get("terminal_reason")
        told = f"workflow {event.adw_id} {_SAID[kind]}"
        if kind != "completed":
            told += f"{f' in {where}' if where else ''}{f': {why}'.replace('_', ' ') if why else ''}"

    return Notice(
        key=event.event_id,
        kind=kind,
        title=_line(told, MAX_TITLE),
        text=hint_of(kind, event.adw_id),
        adw_id=event.adw_id,
        channels=channels,
    )


def kind_of(event: Event) -> str:
    """Return the kind of notice that *event* makes, or ""."""
    if event.event_type == "approval_asked":
        return "approval"
    if event.event_type == "breaker_opened":
        return "breaker_opened"
    if event.event_type != "state_changed" or event.data.get("reason") == _AWAITING:
        return ""

    return _STATES.get(event.status, "")


def hint_of(kind: str, adw_id: str) -> str:
    """Return what a person can type about a notice, or ""."""
    return _HINTS.get(kind, "").format(id=adw_id)


def quota_notice(name: str, *, is_exceeded: bool, detail: str, key: str, channels: tuple[str, ...]) -> Notice:
    """Return the notice that a limit is reached, or free again."""
    kind = "quota_exceeded" if is_exceeded else "quota_free"
    if name.startswith("worktree_size"):
        said = "is used up: workflows with such a worktree pause" if is_exceeded else "is free again"
    else:
        said = "is used up: new work waits" if is_exceeded else "is free again: work goes on"

    return Notice(key=key, kind=kind, title=f"the quota {name} {said}", text=_line(detail, MAX_TEXT), channels=channels)


def stuck_notice(adw_id: str, *, since: str, why: str, key: str, channels: tuple[str, ...]) -> Notice:
    """Return the notice about a workflow that does not move."""
    return Notice(
        key=key,
        kind="stuck",
        title=_line(f"workflow {adw_id} has not moved since {since}{f': {why}' if why else ''}", MAX_TITLE),
        text=hint_of("stuck", adw_id),
        adw_id=adw_id,
        channels=channels,
    )


def retry_at(attempts: int, now: datetime, *, most: int = MAX_ATTEMPTS) -> datetime | None:
    """Return when a notice is retried after *attempts* failures, or None if it is not."""
    if attempts >= most:
        return None

    return now + timedelta(seconds=FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 10))


def _line(text: str, limit: int) -> str:
    line = " ".join(text.split())

    return line if len(line) <= limit else line[: limit - 3] + "..."


# --- sending ---------------------------------------------------------------------------------------------------
#
# Events are read from the database, after their commit, so a crash loses none. An error of a channel is recorded with
# the notice, which is retried a few times; no error reaches the work that the notice is about.


logger = logging.getLogger("adw.notify")

#: How far back the first read goes: old events make no notices.
FIRST_LOOK = timedelta(hours=1)
#: Maximum number of notices sent in one call, so that a flood does not delay other work.
MOST_AT_ONCE = 50
#: Seconds that a claim lasts beyond the time limit of a channel.
CLAIM_RESERVE_SECONDS = 30.0
#: Seconds that the end of a process waits for a notice that is being sent.
JOIN_SECONDS = 15.0


class Notifier:
    """Makes notices and sends them."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def channels_of(self, kind: str) -> tuple[str, ...]:
        """Return the channels that send a notice of this kind."""
        return tuple(self._home.channels) if KINDS[kind] in self._home.settings.notify_events else ()

    def gather(self) -> int:
        """Make notices of the events since the last call, and return the number of new rows."""
        home = self._home
        if not home.channels:
            return 0
        home.flush_projection()  # brings the events of documents in files into their table
        since = timestamps.to_text(home.clock.now() - FIRST_LOOK)

        return home.notifications.gather(lambda event: notice_of(event, self.channels_of), since=since)

    def send(self) -> dict[str, int]:
        """Send due notices, and count those sent, still pending and given_up; errors of channels are not raised."""
        counts = {"sent": 0, "pending": 0, "given_up": 0}
        ttl_seconds = TIMEOUT_SECONDS + CLAIM_RESERVE_SECONDS
        for _ in range(MOST_AT_ONCE):
            row = self._home.notifications.take(ttl_seconds=ttl_seconds)
            if row is None:
                break
            counts[self._send(row)] += 1

        return counts

    def _send(self, row: NotificationRow) -> str:
        home, error = self._home, ""
        channel, max_attempts = home.channels.get(row.channel), MAX_ATTEMPTS
        if row.attempts > max_attempts:
            error = row.error or "the sender died each time"
        elif channel is None:
            error = f"the channel {row.channel} is not set up any more"
        else:
            try:
                channel.send(row)
            except AdwError as exc:
                error = str(exc)
            except Exception as exc:  # a bug of a channel must not stop other notices or work
                logger.exception("A channel broke", extra={"action": "notify_broke", "channel": row.channel})
                error = f"{type(exc).__name__}: {exc}"
        again = retry_at(row.attempts, home.clock.now(), most=max_attempts) if channel else None
        status = "pending" if error and again else "given_up" if error else "sent"
        if error:
            said = {"action": "notify_failed", "channel": row.channel, "notice": row.key, "error": error}
            logger.warning("A notification could not be sent", extra=said)
        later = timestamps.to_text(again) if error and again else ""
        home.notifications.settle(row, status=status, error=error[:500], not_before=later)

        return status


class NotifyThread:
    """Sends notices in a thread beside the work of a process; `poke` wakes it and never waits."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._poked = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Have notices sent soon, if there is a channel; never waits, never raises."""
        if not self._home.channels:
            return
        if self._thread is None and not self._is_closing:
            self._thread = threading.Thread(target=self._run, name="adw-notify", daemon=True)
            self._thread.start()
        self._poked.set()

    def close(self) -> None:
        """Wait a little for notices being sent; the next worker or cron sends the rest."""
        self._is_closing = True
        self._poked.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            self._poked.wait()
            self._poked.clear()
            try:
                self._home.notifier.gather()
                self._home.notifier.send()
            except Exception:  # a notice must never stop the work; the next poke retries
                logger.exception("Could not notify", extra={"action": "notify_broke"})
            if self._is_closing and not self._poked.is_set():  # poked meanwhile: once more, for the last event
                return
