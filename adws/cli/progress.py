"""
What a person sees while a workflow runs: one line that lives on a terminal, plain lines anywhere else.

Goes to standard error, so that the output stays what the command answers. Never in the way: a terminal that cannot be
written to is not written to any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.phase_choice import limit
from adws.cli.output import clean, say, shorten

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.interfaces import Clock

#: Events that people are told of, and how.
_SENTENCES = {
    "attempt_started": "{phase}: attempt {used}/{limit}",
    "attempt_failed": "{phase}: attempt {used}/{limit} failed: {message}",
    "attempt_interrupted": "{phase}: attempt {used}/{limit} was cut off",
    "attempt_suspended": "{phase}: suspended, the attempt does not count",
    "phase_completed": "{phase}: complete",
    "phase_failed": "{phase}: failed ({terminal_reason})",
    "phase_skipped": "{phase}: left out: {message}",
    "retry_scheduled": "{phase}: again at {at}",
    "rework_asked": "{phase}: sends the work back to {back_to}",
    "approval_asked": "{phase}: waits for a person",
}


class Progress(Protocol):
    """Shows what happens."""

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show what was just stored."""

    def say(self, adw_id: str, line: str) -> None:
        """Show a line of a phase's output."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def make(clock: Clock, *, is_quiet: bool = False) -> Progress:
    """Return what fits where standard error goes."""
    if is_quiet:
        return Silent()
    if sys.stderr is not None and sys.stderr.isatty():
        return LiveLine(clock)

    return PlainLines()


class Silent:
    """Shows nothing."""

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show nothing."""

    def say(self, adw_id: str, line: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing is open."""


class PlainLines:
    """One line for each thing that happens; the output of phases is in their files."""

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show what was just stored."""
        for line in sentences(document, events):
            with suppress(OSError, ValueError):
                say(line)

    def say(self, adw_id: str, line: str) -> None:
        """Leave output where it is."""

    def close(self) -> None:
        """Nothing is open."""


class LiveLine:
    """A line that shows phase, attempt, time and the last line of output; what happened scrolls above it."""

    def __init__(self, clock: Clock) -> None:
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
        from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

        self._clock = clock
        self._lock = threading.Lock()
        self._head = ""
        self._last = ""
        self._since = clock.monotonic()
        self._console: Console = Console(stderr=True, highlight=False)
        self._live: Live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True)
        self._live.start()

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show what was just stored."""
        for line in sentences(document, events):
            self._console.print(line, markup=False)
        running = next((record for record in document.phases if record.status == "running"), None)
        with self._lock:
            head = _head(running) if running else document.current_state
            if head != self._head:
                self._head, self._last, self._since = head, "", self._clock.monotonic()

    def say(self, adw_id: str, line: str) -> None:
        """Keep the last line of output."""
        del adw_id
        with self._lock:
            self._last = clean(line)

    def close(self) -> None:
        """Take the line away."""
        self._live.stop()

    def _line(self) -> RenderableType:
        from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

        with self._lock:
            seconds = int(self._clock.monotonic() - self._since)
            text = f"{self._head}  {seconds // 60:02d}:{seconds % 60:02d}  {self._last}"

        return Text(shorten(text, max(20, self._console.width - 1)), no_wrap=True)


def sentences(document: WorkflowDocument, events: Sequence[Event]) -> list[str]:
    """Return what *events* say to a person."""
    phases = {record.name: record for record in document.phases}

    return [_sentence(event, phases) for event in events if event.event_type in _SENTENCES]


def _sentence(event: Event, phases: dict[str, PhaseRecord]) -> str:
    record = phases.get(event.node_name or "")
    error = event.data.get("error")
    facts = {
        "phase": event.node_name or "",
        "used": record.attempts_used if record else 0,
        "limit": limit(record) if record else 0,
        "message": error.get("message", "") if isinstance(error, dict) else event.data.get("message", ""),
        "terminal_reason": event.data.get("terminal_reason", ""),
        "at": event.data.get("at", ""),
        "back_to": event.data.get("back_to", ""),
    }

    return clean(_SENTENCES[event.event_type].format(**facts))


def _head(record: PhaseRecord) -> str:
    return f"{record.name}  attempt {record.attempts_used}/{limit(record)}"
