"""
What a person sees while a workflow runs: one line that lives on a terminal, plain lines anywhere else.

Goes to standard error, so that the output stays what the command answers. Never in the way: a terminal that cannot be
written to is not written to any more.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules import timestamps
from adws.adw_modules.phase_choice import limit
from adws.adw_modules.time_words import span
from adws.cli.output import clean, say, shorten

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.interfaces import Clock

#: Events that people are told of, and how.
_SENTENCES = {
    "attempt_started": "{phase}: attempt {used}/{limit}{with_model}",
    "attempt_failed": "{phase}: attempt {used}/{limit} failed: {message}",
    "attempt_interrupted": "{phase}: attempt {used}/{limit} was cut off",
    "attempt_suspended": "{phase}: suspended, the attempt does not count",
    "attempt_parked": "{phase}: {why}; goes on {wait}, the attempt does not count",
    "attempt_waits": "{phase}: {why}",
    "attempt_went_on": "{phase}: goes on",
    "breaker_waited": "{phase}: waits, {why}; goes on {wait}",
    "doctor_decided": "{phase}: the doctor says {decision}{with_model}: {why}",
    "phase_completed": "{phase}: complete{took}",
    "phase_failed": "{phase}: failed ({terminal_reason})",
    "phase_skipped": "{phase}: left out: {message}",
    "retry_scheduled": "{phase}: tried again {wait}",
    "rework_asked": "{phase}: sends the work back to {back_to}",
    "approval_asked": "{phase}: waits for approval",
    "hint_given": "hint noted: {text}",
}
_STDERR = 2


class Progress(Protocol):
    """Shows what happens."""

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show what was just stored."""

    def say(self, adw_id: str, line: str) -> None:
        """Show a line of a phase's output."""

    def interject(self, text: str) -> None:
        """Show *text* from a signal handler: takes no lock and touches no buffer."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def make(clock: Clock, redact: Callable[[str], str]) -> Progress:
    """Return what fits where standard error goes; *redact* takes secrets out of what is shown."""
    if sys.stderr is not None and sys.stderr.isatty():
        return LiveLine(clock, redact)

    return PlainLines(redact)


class PlainLines:
    """One line for each thing that happens; the output of phases is in their files."""

    def __init__(self, redact: Callable[[str], str], *, with_ids: bool = False) -> None:
        """*with_ids* puts the workflow in front, where there may be several."""
        self._redact = redact
        self._with_ids = with_ids

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show what was just stored."""
        prefix = f"{document.adw_id} " if self._with_ids else ""
        for line in sentences(document, events):
            with suppress(OSError, ValueError):
                say(f"{prefix}{self._redact(line)}")

    def say(self, adw_id: str, line: str) -> None:
        """Leave output where it is."""

    def interject(self, text: str) -> None:
        """Show *text* from a signal handler."""
        with suppress(OSError):
            os.write(_STDERR, f"{text}\n".encode())

    def close(self) -> None:
        """Nothing is open."""


class LiveLine:
    """A line that shows phase, attempt, time and the last line of output; what happened scrolls above it."""

    def __init__(self, clock: Clock, redact: Callable[[str], str]) -> None:
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it

        self._clock = clock
        self._redact = redact
        self._lock = threading.Lock()
        self._head = ""
        self._last = ""
        self._since = clock.monotonic()
        self._console: Console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show what was just stored."""
        head = headline(document)
        with self._lock:
            if head != self._head:
                self._head, self._last, self._since = head, "", self._clock.monotonic()
        self._start()
        for line in sentences(document, events):
            self._console.print(self._redact(line), markup=False, soft_wrap=True)

    def say(self, adw_id: str, line: str) -> None:
        """Keep the last line of output."""
        del adw_id
        with self._lock:
            self._last = clean(self._redact(line))

    def interject(self, text: str) -> None:
        """Show *text* from a signal handler, in place of the line that lives."""
        with suppress(OSError):
            os.write(_STDERR, f"\r\x1b[2K{text}\n".encode())

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        if self._live is None:
            from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

            self._live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def _line(self) -> RenderableType:
        from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

        with self._lock:
            seconds = int(self._clock.monotonic() - self._since)
            text = f"{self._head}  {seconds // 60:02d}:{seconds % 60:02d}  {self._last}"

        return Text(shorten(text, max(20, self._console.width - 1)), no_wrap=True)


def restore_terminal() -> None:
    """Take away what a killed process left on the terminal: its line, and the cursor that it had hidden."""
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError):
            os.write(_STDERR, b"\r\x1b[2K\x1b[?25h")


def headline(document: WorkflowDocument) -> str:
    """Return what the workflow is doing, in a few words."""
    for record in document.phases:
        if record.status == "running":
            return f"{record.name}  attempt {record.attempts_used}/{limit(record)}"
        if record.status == "retry_wait":
            at = f" at {timestamps.parse(record.retry_at):%H:%M:%S} UTC" if record.retry_at else ""
            return f"{record.name}  attempt {record.attempts_used + 1}/{limit(record)}{at}"

    return document.current_state


def sentences(document: WorkflowDocument, events: Sequence[Event]) -> list[str]:
    """Return what *events* say to a person."""
    phases = {record.name: record for record in document.phases}

    return [_sentence(event, phases, document.updated_at) for event in events if event.event_type in _SENTENCES]


def _sentence(event: Event, phases: dict[str, PhaseRecord], stored_at: str) -> str:
    record = phases.get(event.node_name or "")
    error = event.data.get("error")
    facts = {
        "phase": event.node_name or "",
        "used": event.data.get("attempts_used", record.attempts_used if record else 0),
        "limit": event.data.get("limit", limit(record) if record else 0),
        "message": error.get("message", "") if isinstance(error, dict) else event.data.get("message", ""),
        "terminal_reason": event.data.get("terminal_reason", ""),
        "back_to": event.data.get("back_to", ""),
        "text": event.data.get("text", ""),
        "why": event.data.get("why") or event.data.get("reason", ""),
        "decision": event.data.get("decision", ""),
        "with_model": f" with {model}" if (model := event.data.get("model")) else "",
        "took": _took(record),
        "wait": _wait(str(event.data.get("at", "")), event.created_at or stored_at),
    }

    return clean(_SENTENCES[event.event_type].format(**facts))


def _took(record: PhaseRecord | None) -> str:
    duration = record.attempts[-1].duration if record is not None and record.attempts else None

    return "" if duration is None else f" in {span(duration)}"


def _wait(at: str, now: str) -> str:
    """Return how long it is from *now* until *at*, in words."""
    try:
        seconds = (timestamps.parse(at) - timestamps.parse(now)).total_seconds()
    except ValueError:
        return f"at {at}"

    return "at once" if seconds <= 0.0 else f"in {span(seconds)}"
