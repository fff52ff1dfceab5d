"""
The only module that prints: text for people, one JSON document for programs.

Text on a terminal never carries control or bidirectional characters from a document, so that an issue title cannot
move the cursor, recolour the screen or reverse a line. Text is aligned without a library: views must start fast.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Union

import click

from adws.adw_modules import identifiers, timestamps
from adws.adw_modules.errors import AdwError
from adws.adw_modules.identifiers import shortened, span

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.events import Event
    from adws.adw_modules.interfaces import Clock, WorkflowResult
    from adws.adw_modules.views import WorkflowView


#: What can be printed as JSON. Wider than JsonValue: any mapping or sequence will do.
Printable: TypeAlias = Union[bool, int, float, str, Sequence["Printable"], Mapping[str, "Printable"], None]  # noqa: UP007 - a quoted name cannot stand in `X | Y` at run time
_Command = TypeVar("_Command", bound=Callable[..., object])

#: The message if the output cannot be written, for example to a full disk.
NOT_WRITTEN = "could not write the output: {}"

#: Invisible marks, embeddings, overrides and isolates that change the direction of text.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
#: Line and paragraph separators, at which a terminal may break the line.
_BREAKS = frozenset("\u2028\u2029")
#: Characters that JSON allows unescaped, but that do not belong on a terminal or in UTF-8 (lone surrogates).
_TO_ESCAPE = r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def json_option(command: _Command) -> _Command:
    """Add the `--json` switch to a command, as its argument *as_json*."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(command)


def emit(data: Printable, text: str | Iterable[str], *, as_json: bool) -> None:
    """Print *data* as JSON, or *text* (one text or lines) cleaned for a terminal."""
    if as_json:
        text = json.dumps(data, ensure_ascii=False, indent=2, sort_keys=True)
        _write(re.sub(_TO_ESCAPE, lambda found: f"\\u{ord(found[0]):04x}", text))
        return
    lines = text.split("\n") if isinstance(text, str) else text

    _write("\n".join(clean(line) for line in lines))


def emit_line(data: Printable, text: str, *, as_json: bool) -> None:
    """Print one item of a stream at once: JSON on one line, or *text*."""
    _write(json.dumps(data, sort_keys=True) if as_json else clean(text))


def emit_as_is(text: str) -> None:
    """Print a text for a program, such as a script or a page, unchanged."""
    _write(text)


def say(message: str) -> None:
    """Print a message for the person to stderr, where it does not mix with the output."""
    click.echo(clean(message), err=True)


def fail(message: str) -> None:
    """Print why the command failed, as one line on stderr."""
    say(f"adw: {' '.join(message.split())}")


def clean(text: str) -> str:
    """Return *text* without control (C0, C1) and bidirectional characters; tabs and line ends become spaces."""
    if text.isascii() and text.isprintable():
        return text

    return "".join(_shown(char) for char in text)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are aligned with spaces."""
    cells = [[clean(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(headers))]
    padded = ([cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)] for row in cells)

    return ["  ".join(row).rstrip() for row in padded]


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return an aligned line for each name and value; pairs without a value are omitted."""
    known = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in known), default=0)

    return [f"{name:<{width}}  {value}" for name, value in known]


def moment(text: str, now: datetime) -> str:
    """
    Return a timestamp of a document as UTC and its age, such as `2026-01-31 09:00:00 UTC (5 min ago)`.

    The timestamp for an unknown moment gives `unknown`.
    """
    if text == timestamps.UNKNOWN_MOMENT:
        return "unknown"
    try:
        then = timestamps.parse(text)
    except ValueError:
        return text  # written by another tool: show what it says

    return f"{then:%Y-%m-%d %H:%M:%S} UTC ({identifiers.age((now - then).total_seconds())})"


def age(text: str, now: datetime) -> str:
    """Return how long ago a timestamp of a document was, such as `5 min ago`."""
    if text in ("", timestamps.UNKNOWN_MOMENT):
        return "unknown" if text else "-"
    try:
        return identifiers.age((now - timestamps.parse(text)).total_seconds())
    except ValueError:
        return text  # written by another tool: show what it says


def result_line(result: WorkflowResult | WorkflowView) -> str:
    """Return the pull request, branch, cost and time of a workflow in one line, or ""."""
    made = [
        f"pull request #{result.pr_number} {result.pull_request_url}".rstrip() if result.pr_number else "",
        f"branch {result.branch_name}" if result.branch_name else "",
        f"{result.cost_usd:.2f} USD" if result.cost_usd else "",
    ]
    time = [span(result.work_seconds)] if result.work_seconds else []

    return ", ".join(filter(None, [*made, *time])) if any(made) else ""


def silence() -> None:
    """Discard buffered output: the reader is gone, and the interpreter flushes once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _write(text: str) -> None:
    """Print *text*; a full disk is an expected failure, and a closed pipe is left to `main`."""
    try:
        click.echo(text.encode())
    except BrokenPipeError:
        raise
    except OSError as exc:
        silence()
        raise AdwError(NOT_WRITTEN.format(exc.strerror or exc)) from exc


def _shown(char: str) -> str:
    """Return what is printed for *char*."""
    if char in "\t\n\r" or char in _BREAKS:
        return " "
    if char in _BIDI or unicodedata.category(char) in {"Cc", "Cs"}:
        return ""

    return char


def _width(text: str) -> int:
    """Return the width of *text* in terminal columns."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in {"W", "F"} for char in text if not unicodedata.combining(char))

    return sum(not unicodedata.combining(char) for char in text) + wide


# --- progress of a running workflow: a live line on a terminal, plain lines elsewhere --------------------------
#
# It goes to standard error, so that the output stays the answer of the command. It is never in the way: a terminal that
# cannot be written to is not written to any more.


#: Event that is shown to people -> its sentence.
_SENTENCES = {
    "attempt_started": "{phase}: attempt {used}/{limit}{with_model}",
    "attempt_failed": "{phase}: attempt {used}/{limit} failed: {message}",
    "attempt_interrupted": "{phase}: attempt {used}/{limit} was interrupted",
    "attempt_suspended": "{phase}: suspended, the attempt does not count",
    "attempt_parked": "{phase}: {why}; resuming {wait}, the attempt does not count",
    "attempt_waits": "{phase}: {why}",
    "attempt_went_on": "{phase}: resumed",
    "breaker_waited": "{phase}: waiting, {why}; resuming {wait}",
    "cost_unclear": "{phase}: {message}",
    "doctor_decided": "{phase}: the doctor says {decision}{with_model}: {why}",
    "phase_completed": "{phase}: complete{took}",
    "phase_failed": "{phase}: failed ({terminal_reason})",
    "phase_skipped": "{phase}: skipped: {message}",
    "retry_scheduled": "{phase}: retrying {wait}",
    "rework_asked": "{phase}: sends the work back to {back_to}",
    "base_checked": "{phase}: gates on the base commit: {base}",
    "work_discarded": "{phase}: discarded what is left beside the work: {files}",
    "approval_asked": "{phase}: waits for approval",
    "hint_given": "hint noted: {text}",
    "work_salvaged": "{why}: the worktree is restored to {commit}, and {ref} keeps what was there",
}
#: Tool of an agent -> its verb on the live line.
_VERBS = {
    **dict.fromkeys(("Edit", "MultiEdit", "NotebookEdit", "edit", "replace"), "edits"),
    **dict.fromkeys(("Write", "write", "write_file"), "writes"),
    **dict.fromkeys(("Read", "read", "read_file"), "reads"),
    **dict.fromkeys(("Bash", "bash", "run_shell_command"), "runs"),
    **dict.fromkeys(("Grep", "Glob", "grep", "glob", "search_file_content"), "searches"),
}
#: The most discarded files that are named.
_FILES = 5
_STDERR = 2


def make(clock: Clock, redact: Callable[[str], str]) -> LiveLine | PlainLines:
    """Return a live line if standard error is a terminal, else plain lines; *redact* removes secrets."""
    if sys.stderr is not None and sys.stderr.isatty():
        return LiveLine(clock, redact)

    return PlainLines(redact)


class PlainLines:
    """Prints one line per event; the output of phases is in their files."""

    def __init__(self, redact: Callable[[str], str], *, with_ids: bool = False) -> None:
        """*with_ids* puts the workflow's id in front, for several workflows at once."""
        self._redact = redact
        self._with_ids = with_ids

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show the events just stored."""
        prefix = f"{document.adw_id} " if self._with_ids else ""
        for line in sentences(document, events):
            with suppress(OSError, ValueError):
                say(f"{prefix}{self._redact(line)}")

    def say(self, adw_id: str, line: str) -> None:
        """Show no output of phases."""

    def interject(self, text: str) -> None:
        """Show *text* from a signal handler."""
        with suppress(OSError):
            os.write(_STDERR, f"{text}\n".encode())

    def close(self) -> None:
        """Do nothing: nothing is open."""


class LiveLine:
    """A line that shows phase, attempt, time and the last line of output; events scroll above it."""

    def __init__(self, clock: Clock, redact: Callable[[str], str]) -> None:
        from rich.console import Console

        self._clock = clock
        self._redact = redact
        self._lock = threading.Lock()
        self._head = ""
        self._last = ""
        self._worktree = ""  #: removed from paths
        self._since = clock.monotonic()
        self._console: Console = Console(stderr=True, highlight=False)
        self._live: Live | None = None

    def tell(self, document: WorkflowDocument, events: Sequence[Event]) -> None:
        """Show the events just stored."""
        head = headline(document)
        with self._lock:
            self._worktree = document.worktree_path or ""
            if head != self._head:
                self._head, self._last, self._since = head, "", self._clock.monotonic()
        if self._live is None:
            from rich.live import Live

            self._live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        for line in sentences(document, events):
            self._console.print(self._redact(line), markup=False, soft_wrap=True)

    def say(self, adw_id: str, line: str) -> None:
        """Show the last line of output."""
        del adw_id
        with self._lock:
            self._last = activity(clean(self._redact(line)), self._worktree)

    def interject(self, text: str) -> None:
        """Show *text* from a signal handler, in place of the live line."""
        with suppress(OSError):
            os.write(_STDERR, f"\r\x1b[2K{text}\n".encode())

    def close(self) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self) -> RenderableType:
        from rich.text import Text

        with self._lock:
            seconds = int(self._clock.monotonic() - self._since)
            head = f"{self._head}  {seconds // 60:02d}:{seconds % 60:02d}"
            text = f"{head}  {fitting(self._last, self._console.width - len(head) - 3)}"

        return Text(shortened(text, max(20, self._console.width - 1)), no_wrap=True)


def restore_terminal() -> None:
    """Remove the line that a killed process left on the terminal, and show the cursor that it hid."""
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(OSError):
            os.write(_STDERR, b"\r\x1b[2K\x1b[?25h")


def activity(line: str, worktree: str) -> str:
    """Return a line of output in short: tools as verbs, such as `edits src/app.py`, paths relative to the worktree."""
    short = line.replace(f"{worktree.rstrip('/')}/", "") if worktree else line
    tool, _, about = short.partition(" ")

    return f"{_VERBS[tool]} {about}" if about and tool in _VERBS else short


def fitting(activity: str, width: int) -> str:
    """Return an activity in *width* characters; a path that is too long loses its beginning, not its name."""
    verb, _, about = activity.partition(" ")
    room = width - len(verb) - len(" .../")
    if len(activity) <= width or "/" not in about or " " in about or room < len(about.rpartition("/")[2]):
        return shortened(activity, max(width, 4))

    return f"{verb} .../{about[-room:].partition('/')[2] or about.rpartition('/')[2]}"


def headline(document: WorkflowDocument) -> str:
    """Return the current phase and attempt of the workflow in a few words."""
    from adws.adw_modules.engine.transitions import limit

    for record in document.phases:
        if record.status == "running":
            return f"{record.name}  attempt {record.attempts_used}/{limit(record)}"
        if record.status == "retry_wait":
            at = f" at {timestamps.parse(record.retry_at):%H:%M:%S} UTC" if record.retry_at else ""
            return f"{record.name}  attempt {record.attempts_used + 1}/{limit(record)}{at}"

    return document.current_state


def sentences(document: WorkflowDocument, events: Sequence[Event]) -> list[str]:
    """Return the sentences for *events* that are shown to people."""
    phases = {record.name: record for record in document.phases}

    return [_sentence(event, phases, document.updated_at) for event in events if event.event_type in _SENTENCES]


def _sentence(event: Event, phases: dict[str, PhaseRecord], stored_at: str) -> str:
    from adws.adw_modules.engine.transitions import limit

    record, data = phases.get(event.node_name or ""), event.data
    error, gates, files, count = data.get("error"), data.get("gates"), data.get("files"), data.get("count")
    results = [one for one in gates if isinstance(one, dict)] if isinstance(gates, list) else []
    red = [f"`{one.get('gate')}` {one.get('reason')}" for one in results if not one.get("passed")]
    discarded = [str(name) for name in files[:_FILES]] if isinstance(files, list) else []
    more = count - len(discarded) if isinstance(count, int) else 0
    duration = record.attempts[-1].duration if record is not None and record.attempts else None
    facts = {
        "phase": event.node_name or data.get("phase", ""),
        "base": "; ".join(red) or "ok",
        "files": ", ".join(discarded) + (f" and {more} more" if more > 0 else "") if discarded else "commits",
        "used": data.get("attempts_used", record.attempts_used if record else 0),
        "limit": data.get("limit", limit(record) if record else 0),
        "message": error.get("message", "") if isinstance(error, dict) else data.get("message", ""),
        "terminal_reason": data.get("terminal_reason", ""),
        "back_to": data.get("back_to", ""),
        "commit": str(data.get("commit", ""))[:12],
        "ref": data.get("ref", ""),
        "text": data.get("text", ""),
        "why": data.get("why") or data.get("reason", ""),
        "decision": data.get("decision", ""),
        "with_model": f" with {model}" if (model := data.get("model")) else "",
        "took": "" if duration is None else f" in {span(duration)}",
        "wait": _wait(str(data.get("at", "")), event.created_at or stored_at),
    }

    return clean(_SENTENCES[event.event_type].format(**facts))


def _wait(at: str, now: str) -> str:
    """Return the time from *now* until *at*, in words."""
    try:
        seconds = (timestamps.parse(at) - timestamps.parse(now)).total_seconds()
    except ValueError:
        return f"at {at}"

    return "now" if seconds <= 0.0 else f"in {span(seconds)}"
