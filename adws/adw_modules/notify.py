"""
Telling people: by a command, by HTTP, by a comment on the issue.

Each channel sends one notice within a time limit and raises NotifyFailed when that did not work; whether and when it is
tried again is decided elsewhere. Nothing is sent that was not redacted. After a crash in the middle a notice may come
twice: it carries its key, so that whoever gets it can tell, and a comment is looked for before it is posted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import forge_texts
from adws.adw_modules.errors import ForgeError, NotifyFailed, RunFailed
from adws.adw_modules.forge_texts import Marker
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import NoOrders
from adws.adw_modules.interfaces_schedule import NotificationRow
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.process_run import CommandLine, run_process
from adws.adw_modules.workflow import Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.forge import Forge
    from adws.adw_modules.process import SystemProcesses
    from adws.adw_modules.redaction import Redactor

#: Variables of our own environment that the command gets. Secrets of its own it reads from a file of its own.
PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
#: What the marker of a comment that tells something stands for.
NOTICE = "notice"


class Channel(Protocol):
    """A way by which people are told."""

    def send(self, row: NotificationRow) -> None:
        """Tell it; raise NotifyFailed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandChannel:
    """Runs a command, which gets the notice in variables."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)  #: our own
    clock: Clock
    processes: SystemProcesses
    redactor: Redactor
    timeout_seconds: float

    def send(self, row: NotificationRow) -> None:
        """Run the command; raise NotifyFailed unless it ends with 0 in time."""
        shown = {f"ADW_NOTIFY_{name.upper()}": str(value) for name, value in message_of(row, self._redact).items()}
        command = CommandLine(
            argv=self.argv,
            cwd=self.cwd,
            env={**{name: self.env[name] for name in PASSED_ON if name in self.env}, **shown},
            timeouts=Timeouts(wall=self.timeout_seconds),
            grace_seconds=1.0,
        )
        try:
            end = run_process(
                command,
                clock=self.clock,
                processes=self.processes,
                orders=NoOrders(),
                record=lambda _record: None,
                redactor=self.redactor,
            )
        except RunFailed as exc:
            raise NotifyFailed(str(exc)) from exc
        if end.timed_out:
            raise NotifyFailed(f"the command did not end within {self.timeout_seconds:g} s and was ended")
        if end.exit_code != 0:
            last = next((line for line in reversed(end.tail.splitlines()) if line.strip()), "")
            how = f"exit code {end.exit_code}" if end.exit_code is not None else f"signal {end.signal}"
            raise NotifyFailed(f"the command ended with {how}{f': {last.strip()[:200]}' if last else ''}")

    def _redact(self, text: str) -> str:
        return self.redactor.redact_text(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpChannel:
    """Posts a notice as JSON."""

    url: str = field(repr=False)
    redact: Callable[[str], str]
    timeout_seconds: float

    def send(self, row: NotificationRow) -> None:
        """Post it; raise NotifyFailed unless the answer is 2xx and comes in time."""
        import httpx  # noqa: PLC0415 - takes a while to import, and few homes notify by HTTP

        try:
            # Not followed: a redirection would turn the POST into a GET, and the address is the user's own.
            answer = httpx.post(
                self.url,
                json=message_of(row, self.redact),
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
    """Comments on the issue of the workflow; a notice that is about none is not told there."""

    forge: Callable[[], Forge]
    key: Callable[[], bytes]
    issue_of: Callable[[str], int | None]  #: workflow -> its issue, None when it has none here
    redact: Callable[[str], str]

    def send(self, row: NotificationRow) -> None:
        """Post the comment unless it is there; raise NotifyFailed when the forge does not take it."""
        number = self.issue_of(row.adw_id) if row.adw_id else None
        if number is None:
            return
        try:
            self._post(self.forge(), number, row)
        except ForgeError as exc:
            raise NotifyFailed(str(exc)) from exc

    def _post(self, forge: Forge, number: int, row: NotificationRow) -> None:
        # An id has no room for a whole key; part of its hash tells notices of one issue apart.
        marker = Marker(adw_id=f"{row.adw_id[:40]}-{key_of(row)[:16]}", op=NOTICE)
        me = forge.login()
        for comment in forge.comments(number):
            found = forge_texts.read_marker(comment.body, key=self.key(), repository=forge.repository)
            if comment.author == me and found == marker:
                return
        said = forge_texts.bot_comment(self.redact(f"{row.title}\n\n{row.text}".strip()))
        written = forge_texts.make_marker(marker, key=self.key(), repository=forge.repository)
        forge.create_comment(number, forge_texts.with_marker(said, written))


def key_of(row: NotificationRow) -> str:
    """Return what is the same each time that this notice comes."""
    return hashlib.sha256(f"{row.key}\0{row.channel}".encode()).hexdigest()[:32]


def message_of(row: NotificationRow, redact: Callable[[str], str]) -> JsonObject:
    """Return a notice as whoever gets it reads it, without secrets."""
    return {
        "key": key_of(row),
        "kind": row.kind,
        "title": redact(row.title),
        "text": redact(row.text),
        "adw_id": row.adw_id,
        "created_at": row.created_at,
    }
