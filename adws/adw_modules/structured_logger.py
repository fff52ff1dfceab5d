"""
Structured logging for workflows: one JSON line per record, without secrets.

Values, tracebacks included, are converted to plain JSON and redacted before any handler sees them. All workflows share
one logger, `adw`: the standard library never frees loggers, so one per id and phase would fill the memory of a daemon.
The record still has the name `adw.<id>.<phase>` (`record.name`), and an application that asked for the logger of that
name gets its records there. For handlers that are not adw's, the message of a record is its JSON line.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import logging
import math
import os
import re
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, date, datetime, time
from enum import Enum
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TextIO

from adws.adw_modules import timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject, JsonValue, check_adw_id, said, strict_json
from adws.adw_modules.redaction.redactor import Redactor

# --- handlers: a file for each workflow, and a terminal or a pipe --------------------------------------------------
#
# Logging never stops the work. A full disk, a broken pipe, a deleted directory or a closed stream is counted and
# reported once on stderr. Several processes may write the same file: each line is one append, and the file is rotated
# only under a lock.


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class QuietHandler(logging.Handler, ABC):
    """An adw handler that writes lines to one target: failures are counted and reported once, never raised."""

    #: Name of the target, for messages.
    target = "the log"

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0  #: records that could not be written

    @abstractmethod
    def write_line(self, line: str) -> None:
        """Write one line, or several separated by line breaks; may raise."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record*, or count the failure."""
        try:
            self.write_line(self.format(record))
        except Exception as exc:  # noqa: BLE001 - an error of the log must not reach the work
            self._count(1, exc)

    def emit_lines(self, adw_id: str, lines: Sequence[str]) -> None:
        """Write several lines at once, whatever their workflow, or count the failures."""
        del adw_id
        try:
            self.write_line("\n".join(lines))
        except Exception as exc:  # noqa: BLE001 - an error of the log must not reach the work
            self._count(len(lines), exc)

    def _count(self, failures: int, exc: Exception) -> None:
        if not self.failures:
            _say_on_stderr(f"adw: cannot write {self.target}: {_reason(exc)}; the work goes on without it")
        self.failures += failures


#: Size at which a log file is rotated, and the number of rotated files kept.
MAX_LOG_BYTES = 10 * 2**20
LOG_BACKUPS = 3


class StreamLog(QuietHandler):
    """Writes lines to a stream, directly to its file descriptor if it has one, one line per write."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.target = f"the log to {getattr(stream, 'name', 'its stream')}"

    def write_line(self, line: str) -> None:
        """Bypass the stream's buffer: data left in the buffer of a broken pipe would fail again at exit."""
        self.stream.flush()
        try:
            descriptor = self.stream.fileno()
        except (OSError, AttributeError):
            self.stream.write(line + "\n")
            self.stream.flush()
            return

        data = (line + "\n").encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]


class LogFile(QuietHandler):
    """
    Writes lines to a file that is rotated when it is full: `adw.log`, `adw.log.1`, ...

    A writer holds a shared lock while it appends and an exclusive one while it rotates; it tries both without waiting,
    because a stopped process must not block another. If the lock is busy the line is written anyway.
    """

    def __init__(self, path: str, *, max_bytes: int, backups: int) -> None:
        if max_bytes < 1024 or backups < 1:
            raise UsageError(f"a log needs at least 1024 bytes and 1 backup, not {max_bytes} and {backups}")

        super().__init__()
        self.max_bytes, self.backups = max_bytes, backups
        self._name = path  #: a text, because a Path would be converted for every line
        self.target = f"the log {self._name}"
        self._file = self._lock_file = -1
        self._opened = (0, 0)  #: device and inode of the file that is open
        self._owner = 0  #: pid that opened the files: a forked child opens its own, so that locks are not shared
        self._is_torn = False

    def open(self) -> None:
        """Make the directory; the first line opens the file, and counts a failure."""
        folder = self._name.rpartition("/")[0] or "."
        if os.access(folder, os.F_OK):
            return
        try:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            _say_on_stderr(f"adw: cannot make {folder}: {_reason(exc)}; the work goes on without this log")

    def write_line(self, line: str) -> None:
        """Append in one write to the file that currently has the name."""
        data = (line + "\n").encode("utf-8", "backslashreplace")
        is_locked = self._try_lock(fcntl.LOCK_SH)  # fast path of nearly every line, with as few calls as possible
        try:
            if self._follow_name() + len(data) <= self.max_bytes:
                self._append(data)
                return
        finally:
            if is_locked:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        self._rotate(len(data))
        with self._locked(fcntl.LOCK_SH):
            self._follow_name()
            self._append(data)

    def close(self) -> None:
        """Close the file; another line would open it again."""
        self._close_files()
        super().close()

    def _append(self, data: bytes) -> None:
        """Write in one call. After a partial write the next line starts on a new line."""
        prefix = b"\n" if self._is_torn else b""
        written = os.write(self._file, prefix + data)
        self._is_torn = written != len(prefix + data)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow_name(self) -> int:
        """Reopen the file if another process rotated or deleted it; return its size."""
        if self._file >= 0:
            try:
                named = os.lstat(self._name)
            except FileNotFoundError:
                named = None
            if named is not None and (named.st_dev, named.st_ino) == self._opened:
                return named.st_size
            os.close(self._file)
            self._file = -1
        self._file = os.open(self._name, _FLAGS, 0o600)
        result = os.fstat(self._file)
        self._opened = (result.st_dev, result.st_ino)

        return result.st_size

    def _rotate(self, needed: int) -> None:
        """Rotate the files by one number, unless another process just did."""
        with self._locked(fcntl.LOCK_EX) as is_ours:
            size = self._follow_name()
            if not is_ours or size == 0 or size + needed <= self.max_bytes:
                return
            for number in range(self.backups - 1, 0, -1):
                if self._numbered(number).exists():
                    self._numbered(number).replace(self._numbered(number + 1))
            Path(self._name).replace(self._numbered(1))
            self._follow_name()

    def _numbered(self, number: int) -> Path:
        return Path(f"{self._name}.{number}")

    @contextmanager
    def _locked(self, kind: int) -> Iterator[bool]:
        """Hold the lock inside the block if it is free; yield whether it is held."""
        is_locked = self._try_lock(kind)
        try:
            yield is_locked
        finally:
            if is_locked:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _try_lock(self, kind: int) -> bool:
        if self._owner != os.getpid():
            self._close_files()
        if self._lock_file < 0:
            self._owner = os.getpid()
            self._lock_file = os.open(f"{self._name}.lock", _FLAGS, 0o600)
        try:
            fcntl.flock(self._lock_file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False

        return True

    def _close_files(self) -> None:
        for descriptor in (self._file, self._lock_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock_file = -1


class WorkflowLogs(logging.Handler):
    """
    The logs of a home's workflows: each record goes to the file of its workflow, if that is open.

    One handler serves all of them, from the first opened log until the home is closed: adding a handler and setting the
    level costs more than all the lines of a short run.
    """

    def __init__(self, folder: Path, name: str, *, max_bytes: int = MAX_LOG_BYTES, backups: int = LOG_BACKUPS) -> None:
        """Write the log of a workflow to *name* in its own directory below *folder*."""
        super().__init__()
        self.setFormatter(_JSON_LINES)
        self._folder = os.fspath(folder)
        self._log_name = name
        self._max_bytes, self._backups = max_bytes, backups
        self._files: dict[str, LogFile] = {}

    @contextmanager
    def open(self, adw_id: str) -> Iterator[LogFile]:
        """Log records about *adw_id* to its file inside the block; an already open file stays open afterwards."""
        known = self._files.get(adw_id)
        if known is not None:
            yield known
            return
        if self not in _LOGGER.handlers:
            _LOGGER.addHandler(self)
            _settle_level()
        path = f"{self._folder}/{adw_id}/{self._log_name}"
        file = LogFile(path, max_bytes=self._max_bytes, backups=self._backups)
        file.open()
        file.setFormatter(_JSON_LINES)
        self._files[adw_id] = file
        try:
            yield file
        finally:
            self.acquire()  # no thread writes to it while it is closed
            del self._files[adw_id]
            self.release()
            file.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write *record* to the file of its workflow, as JSON."""
        file = self._files.get(getattr(record, "adw_id", ""))
        if file is not None:
            file.emit(record)

    def emit_lines(self, adw_id: str, lines: Sequence[str]) -> None:
        """Write *lines* to the file of *adw_id*."""
        file = self._files.get(adw_id)
        if file is not None:
            file.emit_lines(adw_id, lines)

    def close(self) -> None:
        """Remove the handler; open files stay open until their blocks end."""
        if self in _LOGGER.handlers:
            _LOGGER.removeHandler(self)
            _settle_level()
        super().close()


def _reason(exc: Exception) -> str:
    return str(getattr(exc, "strerror", None) or f"{type(exc).__name__}: {exc}")


def _say_on_stderr(text: str) -> None:
    """Write *text* to stderr if possible."""
    try:
        StreamLog(sys.stderr).write_line(text)
    except (OSError, ValueError, AttributeError):
        return


# --- records as text for a terminal --------------------------------------------------------------------------------
#
# No value can move the cursor, change colours, reverse the writing direction or fake another line: such characters are
# removed, and a line break inside a value is shown as `\n`.


_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_CODES = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]{0,512}+(?:\x07|\x1b\\)|[@-Z\\-_])")
#: C0, C1, direction marks, invisible characters, lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_BARE = re.compile(r"[^\s\"'=]+")


def printable(text: str) -> str:
    """Return *text* on one line, without terminal codes and unsafe characters."""
    plain = _CODES.sub("", text).replace("\r\n", "\\n").replace("\n", "\\n").replace("\t", " ")

    return _UNSAFE.sub("", plain)


# --- any value as plain JSON ---------------------------------------------------------------------------------------
#
# Never raises: a log line must not make a workflow fail. Sizes are limited, so a huge value becomes a short line with
# a note.


#: Maximum characters of one text, total items of one value, and nesting levels.
MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 65_536, 5_000, 32
#: Larger whole numbers are logged as their size: Python refuses to print them.
MAX_BITS = 2_048


def to_plain(value: object) -> JsonValue:
    """Return *value* as JSON that can always be written; values without a JSON form become text."""
    return _Converter().convert(value, inside=())


def fields_to_plain(fields: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return named values as JSON, each converted as by `to_plain`."""
    convert = _Converter().convert

    return {cut(name) if type(name) is str else say(name): convert(value, inside=()) for name, value in fields.items()}


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """Return *text*, or its beginning and a note on how much was cut."""
    if len(text) <= limit:
        return text

    return f"{text[:limit]}... [{len(text) - limit} characters cut]"


def say(value: object) -> str:
    """Return *value* as text, even if its `__str__` raises."""
    return cut(said(value))


class _Converter:
    """One conversion, which counts the items it has converted."""

    def __init__(self) -> None:
        self._items_left = MAX_ITEMS

    def convert(self, value: object, *, inside: tuple[int, ...]) -> JsonValue:
        """Return *value* as JSON; *inside* has the ids of the enclosing containers."""
        if value is None or isinstance(value, bool):
            return value
        if type(value) is str:  # fast path: most values are plain texts and numbers
            return cut(value)
        if type(value) is int:
            return _number(value)
        if isinstance(value, Enum):
            return self.convert(value.value, inside=inside)
        if isinstance(value, str):
            return cut(str(value))
        if isinstance(value, int | float):
            return _number(value)

        try:
            return self._convert_object(value, inside)
        except Exception:  # noqa: BLE001 - foreign properties and iterators may raise anything
            return say(value)

    def _convert_object(self, value: object, inside: tuple[int, ...]) -> JsonValue:
        text = None if type(value) is dict else _text_of(value)
        if text is not None:
            return text
        if id(value) in inside:
            return "[cycle]"
        if len(inside) >= MAX_DEPTH:
            return "[too deep]"

        inside = (*inside, id(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            fields: dict[str, JsonValue] = {}
            for key, item in value.items():
                if not self._may_take():
                    fields["[cut]"] = f"{len(value) - len(fields)} more"
                    break
                name = cut(key) if type(key) is str else say(key.value if isinstance(key, Enum) else key)
                while name in fields:  # 1 and "1" are two keys here and one in JSON
                    name += "'"
                fields[name] = self.convert(item, inside=inside)
            return fields
        if not isinstance(value, list | tuple | AbstractSet):
            return say(value)
        items: list[JsonValue] = []
        for item in sorted(value, key=say) if isinstance(value, AbstractSet) else value:
            if not self._may_take():
                items.append(f"[cut: {len(value) - len(items)} more]")
                break
            items.append(self.convert(item, inside=inside))

        return items

    def _may_take(self) -> bool:
        self._items_left -= 1

        return self._items_left >= 0


def _number(value: float) -> JsonValue:
    """Return a valid JSON number; NaN, infinity and huge numbers become text."""
    if isinstance(value, int):
        return int(value) if value.bit_length() <= MAX_BITS else f"[number of {value.bit_length()} bits]"

    return float(value) if math.isfinite(value) else str(float(value))


def _text_of(value: object) -> str | None:
    """Return the text of values with one obvious spelling, or None."""
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else timestamps.to_text(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return cut(bytes(value[:MAX_TEXT]).decode("utf-8", "backslashreplace"))
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {say(value)}"

    return None


#: Name of the one logger that all handlers are attached to.
ROOT = "adw"
_LOGGER = logging.getLogger(ROOT)
LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARNING": logging.WARNING,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "CRITICAL": logging.CRITICAL,
        "FATAL": logging.CRITICAL,
    }
)
#: Fields of every line, in this order. A caller's field with such a name is kept as `extra_<name>`.
HEAD_FIELDS = ("timestamp", "adw_id", "phase", "level", "message")
RESERVED_FIELDS = frozenset({*HEAD_FIELDS, "exception", "_truncated"})
#: Maximum bytes of one line, including its line break.
MAX_LINE_BYTES = 65_536
_MAX_MESSAGE, _MAX_TRACEBACK, _MAX_FIELD = 8_192, 16_384, 1_024

_bound: ContextVar[Mapping[str, object]] = ContextVar("adw_log_fields", default=MappingProxyType({}))


class _Setup:
    """Process-wide state of `configure`, besides the handlers that logging itself keeps."""

    redactor = Redactor()
    console: QuietHandler | None = None


@contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Add *fields* to every record made inside the block by this task or thread and tasks it starts."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


class StructuredLogger:
    """
    Logs for one phase of one workflow.

    An empty *adw_id* is for records without a workflow. A log call raises only for an unknown level.
    """

    def __init__(
        self, adw_id: str, phase: str, *, logger: logging.Logger | None = None, redactor: Redactor | None = None
    ) -> None:
        self.adw_id = check_adw_id(adw_id) if adw_id else ""
        self.phase = phase
        self.name = ".".join(part for part in (ROOT, self.adw_id, phase) if part)
        self.logger = logger or _LOGGER
        self._is_default = logger is None
        self._redactor = redactor

    # `level` and `message` are positional-only, so that fields may have these names; they also work as keywords alone.

    def log(self, level: str | None = None, message: object = None, /, **fields: object) -> None:
        """Log *message* with *fields*; raise UsageError if there is no such level."""
        if level is None:
            level = say(fields.pop("level", ""))
        self._write(_number_of(level), message, fields)

    def debug(self, message: object = None, /, **fields: object) -> None:
        """Log a detail for developers."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: object = None, /, **fields: object) -> None:
        """Log a normal event."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: object = None, /, **fields: object) -> None:
        """Log something that may need attention."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: object = None, /, **fields: object) -> None:
        """Log a failure."""
        self._write(logging.ERROR, message, fields)

    def critical(self, message: object = None, /, **fields: object) -> None:
        """Log a failure that stops everything."""
        self._write(logging.CRITICAL, message, fields)

    def exception(self, message: object = None, /, **fields: object) -> None:
        """Log an error with the exception being handled."""
        self._write(logging.ERROR, message, {"exc_info": True, **fields})

    def _write(self, level: int, message: object, fields: dict[str, object]) -> None:
        logger = _logger_of(self.name) if self._is_default else self.logger
        if not logger.isEnabledFor(level):
            return
        if message is None:
            message = fields.pop("message", "")

        redactor = self._redactor or _Setup.redactor
        exception = _take_exception(fields)
        # The caller's place and the JSON line are slow to compute, and only foreign handlers need them.
        has_others = _own_handlers(logger) is None
        path, line, function, _ = logger.findCaller(stacklevel=3) if has_others else ("", 0, "", None)
        text = redactor.redact_text(say(message))
        record = logger.makeRecord(self.name, level, path, line, text, (), None, function)
        clean = _clean_fields({**_bound.get(), **fields}, redactor)
        if exception is not None:
            clean["exception"] = _describe(exception, redactor)
        vars(record).update(
            adw_id=self.adw_id,
            phase=redactor.redact_text(say(self.phase)),
            text=text,
            fields=clean,
            is_redacted=True,
        )
        if has_others:
            record.msg = _json_line(entry_of(record))
        logger.handle(record)


def write_entries(adw_id: str, entries: Sequence[JsonObject], redactor: Redactor) -> None:
    """
    Write log lines for stored events of *adw_id*: plain redacted JSON that begins with HEAD_FIELDS.

    They go to the same handlers and have the same form as the records of a `StructuredLogger`, with their own
    timestamps. If only adw's handlers receive them, no record is made and the lines are written at once. *redactor* is
    for bound fields.
    """
    if bound := _bound.get():
        clean = _clean_fields(bound, redactor)
        entries = [{**{name: entry[name] for name in HEAD_FIELDS}, **clean, **entry} for entry in entries]
    # This name exists only if an application asked for a logger of this workflow or one of its phases.
    has_own_logger = f"{ROOT}.{adw_id}" in _LOGGER.manager.loggerDict
    handlers = None if has_own_logger else _own_handlers(_LOGGER)
    if handlers is None:
        for entry in entries:
            _handle_entry(entry)
        return
    is_enabled: dict[int, bool] = {}
    for handler in handlers:
        line_of = handler.formatter.line_of if isinstance(handler.formatter, TextFormatter) else _json_line
        lines: list[str] = []
        for entry in entries:
            level = LEVELS[str(entry["level"])]
            if level not in is_enabled:
                is_enabled[level] = _LOGGER.isEnabledFor(level)
            if is_enabled[level] and level >= handler.level:
                lines.append(line_of(entry))
        if not lines:
            continue
        with handler.lock or nullcontext():  # as Handler.acquire and release do
            handler.emit_lines(adw_id, lines)


def _handle_entry(entry: JsonObject) -> None:
    """Make a record of *entry*, for handlers that are not adw's."""
    name = f"{ROOT}.{entry['adw_id']}.{entry['phase']}"
    logger, level = _logger_of(name), LEVELS[str(entry["level"])]
    if not logger.isEnabledFor(level):
        return
    path, line, function, _ = logger.findCaller(stacklevel=3)
    record = logger.makeRecord(name, level, path, line, _json_line(entry), (), None, function)
    with suppress(ValueError):  # an unreadable timestamp: keep the record's own
        record.created = timestamps.parse(str(entry["timestamp"])).timestamp()
    vars(record).update(
        adw_id=entry["adw_id"],
        phase=entry["phase"],
        text=entry["message"],
        fields={field: value for field, value in entry.items() if field not in HEAD_FIELDS},
        is_redacted=True,
    )
    logger.handle(record)


def _logger_of(name: str) -> logging.Logger:
    """Return the logger *name*, or its nearest parent, if the application asked for one, else `adw`."""
    known = _LOGGER.manager.loggerDict
    while name != ROOT and name:
        if isinstance(logger := known.get(name), logging.Logger):
            return logger
        name = name.rpartition(".")[0]

    return _LOGGER


def _own_handlers(logger: logging.Logger) -> list[QuietHandler | WorkflowLogs] | None:
    """
    Return the handlers that a record of *logger* reaches, or None if one of them needs a real record.

    Foreign handlers, filters and foreign formatters on our handlers need one, and so does Python's last-resort handler,
    used when there is no other.
    """
    if logger.filters:
        return None
    own: list[QuietHandler | WorkflowLogs] = []
    each: logging.Logger | None = logger
    while each is not None:
        for handler in each.handlers:
            if not isinstance(handler, QuietHandler | WorkflowLogs) or handler.filters:
                return None
            if type(handler.formatter) not in _FORMATTERS:
                return None
            own.append(handler)
        each = each.parent if each.propagate else None

    return own or None


def configure(
    level: str = "INFO",
    format: str = "auto",  # noqa: A002 - the name on the command line
    stream: TextIO | None = None,
    *,
    no_color: bool = False,
    redactor: Redactor | None = None,
) -> QuietHandler:
    """
    Send the log to *stream* (default: stderr), as text on a terminal and as JSON lines elsewhere.

    Another call replaces the previous set-up. *no_color* is the user's preference (NO_COLOR); only a terminal gets
    colours anyway. *redactor* is used by every logger without one of its own.
    """
    number = _number_of(level)
    if format not in {"auto", "json", "text"}:
        raise UsageError(f"{format!r} is not a log format: use auto, json or text")

    target = sys.stderr if stream is None else stream
    try:
        is_terminal = target.isatty()
    except (ValueError, AttributeError):  # closed, or not a real stream
        is_terminal = False
    shutdown()
    handler = StreamLog(target)
    is_text = format == "text" or (format == "auto" and is_terminal)
    handler.setFormatter(TextFormatter(colour=is_terminal and not no_color) if is_text else JsonLineFormatter())
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(number)
    _LOGGER.propagate = False
    _Setup.console, _Setup.redactor = handler, redactor or Redactor()
    return handler


def shutdown() -> None:
    """Undo `configure`; the logs of a home stay."""
    if _Setup.console is not None:
        _LOGGER.removeHandler(_Setup.console)
        _Setup.console.close()
        _LOGGER.setLevel(logging.NOTSET)
    _LOGGER.propagate = True
    _Setup.console, _Setup.redactor = None, Redactor()
    _settle_level()


def _settle_level() -> None:
    """Without a level from `configure` or the caller, set INFO while there are log files, and no level otherwise."""
    if _Setup.console is not None or _LOGGER.level not in {logging.NOTSET, logging.INFO}:
        return

    has_files = any(isinstance(handler, WorkflowLogs) for handler in _LOGGER.handlers)
    _LOGGER.setLevel(logging.INFO if has_files else logging.NOTSET)


class JsonLineFormatter(logging.Formatter):
    """Formats a record as one line of ASCII JSON: no value can end the line or start another."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break, at most MAX_LINE_BYTES long with it."""
        return _json_line(entry_of(record))


_JSON_LINES = JsonLineFormatter()


class TextFormatter(logging.Formatter):
    """Formats a record for people: time, level, id, phase, message, fields; the traceback indented below."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the text without control characters and without characters that reverse the writing direction."""
        return self.line_of(entry_of(record))

    def line_of(self, entry: JsonObject) -> str:
        """Return *entry* as a line, with any traceback indented below."""
        fields = dict(entry)
        moment, adw_id, phase, level, message = (
            printable(str(fields.pop(name))) for name in ("timestamp", "adw_id", "phase", "level", "message")
        )
        exception = fields.pop("exception", None)
        shown_level = f"{level:<8}"
        if self._colour and level in _COLOURS:
            shown_level = f"\x1b[{_COLOURS[level]}m{shown_level}\x1b[0m"
        parts = [moment, shown_level, adw_id or "-", phase or "-", message]
        for name, value in fields.items():
            text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            if isinstance(value, str) and _BARE.fullmatch(text) is None:
                text = json.dumps(text, ensure_ascii=False)
            parts.append(f"{printable(name)}={text}")
        lines = [" ".join(parts)]
        if isinstance(exception, dict):
            lines += [f"    {printable(line)}" for line in str(exception.get("traceback", "")).split("\n")]

        return "\n".join(lines)


#: Formatters that work without a record.
_FORMATTERS = (JsonLineFormatter, TextFormatter)


def entry_of(record: logging.LogRecord) -> JsonObject:
    """Return the redacted fields of *record* in order; also for records of plain `logging` calls."""
    is_ours = getattr(record, "is_redacted", False)
    head: JsonObject = {
        "timestamp": timestamps.to_text(datetime.fromtimestamp(record.created, UTC)),
        "adw_id": getattr(record, "adw_id", "") if is_ours else say(_bound.get().get("adw_id", "")),
        "phase": getattr(record, "phase", "") if is_ours else say(_bound.get().get("phase", record.name)),
        "level": record.levelname,
    }
    if is_ours:
        return {**head, "message": vars(record)["text"], **vars(record)["fields"]}

    redactor = _Setup.redactor
    bound = {name: value for name, value in _bound.get().items() if name not in {"adw_id", "phase"}}
    extras = {name: value for name, value in vars(record).items() if name not in _PLAIN_RECORD}
    fields = _clean_fields({**bound, **extras}, redactor)
    if record.exc_info:
        fields["exception"] = _describe(record.exc_info[1], redactor)
    try:
        message = cut(record.getMessage())
    except Exception:  # noqa: BLE001 - foreign arguments may raise anything when formatted
        message = f"{say(record.msg)} {say(record.args)}"  # shown unformatted, not lost

    return {**head, "message": redactor.redact_text(message), **fields}


_PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _clean_fields(fields: Mapping[str, object], redactor: Redactor) -> JsonObject:
    """Return *fields* plain and redacted; reserved names get the prefix `extra_`, so nothing is lost."""
    named = redactor.redact_fields(fields_to_plain(fields))
    if RESERVED_FIELDS.isdisjoint(named):
        return named
    result: JsonObject = {}
    for name, value in named.items():
        free = f"extra_{name}" if name in RESERVED_FIELDS else name
        while free in result or (free != name and free in named):
            free = f"extra_{free}"
        result[free] = value

    return result


def _take_exception(fields: dict[str, object]) -> BaseException | None:
    """Remove `exc_info` from *fields* and return its exception; any other value stays an ordinary field."""
    given = fields.get("exc_info")
    if isinstance(given, tuple) and len(given) == 3 and isinstance(given[1], BaseException):
        given = given[1]
    if given is True:
        given = sys.exc_info()[1]
    elif given is not None and given is not False and not isinstance(given, BaseException):
        return None

    fields.pop("exc_info", None)
    return given if isinstance(given, BaseException) else None


def _describe(error: BaseException | None, redactor: Redactor) -> JsonObject:
    """Return type, message and traceback of *error*, redacted; of a long traceback the end is kept."""
    if error is None:
        return {"type": "", "message": "", "traceback": ""}

    lines = redactor.redact_text("".join(traceback.format_exception(error)).rstrip())
    if len(lines) > _MAX_TRACEBACK:
        lines = f"[{len(lines) - _MAX_TRACEBACK} characters cut] ...{lines[-_MAX_TRACEBACK:]}"
    return {"type": type(error).__name__, "message": redactor.redact_text(say(error)), "traceback": lines}


def _number_of(level: str) -> int:
    number = LEVELS.get(level.upper())
    if number is None:
        raise UsageError(f"{level!r} is not a log level: use debug, info, warning, error or critical")

    return number


def _json_line(entry: JsonObject) -> str:
    line = strict_json(entry)

    return line if len(line) < MAX_LINE_BYTES else strict_json(_shortened(entry))


def _shortened(entry: JsonObject) -> JsonObject:
    """Return *entry* cut to fit a line: long fields first, then those at the end; `_truncated` has the full length."""
    short: JsonObject = {"_truncated": len(strict_json(entry))}
    left = MAX_LINE_BYTES - len(strict_json(short)) - 2
    for name, value in entry.items():
        limit = _MAX_MESSAGE if name in RESERVED_FIELDS else _MAX_FIELD
        small = _small(value, limit)
        cost = len(strict_json({name[:_MAX_FIELD]: small}))
        if cost < left:
            short[name[:_MAX_FIELD]] = small
            left -= cost

    return {**{name: short[name] for name in short if name != "_truncated"}, "_truncated": short["_truncated"]}


def _small(value: JsonValue, limit: int) -> JsonValue:
    if isinstance(value, dict) and limit == _MAX_MESSAGE:
        return {name: _small(item, limit // 2) for name, item in value.items()}
    text = value if isinstance(value, str) else json.dumps(value)
    # An escaped character can take twelve bytes.
    return value if len(json.dumps(text)) <= limit else cut(text, limit // 12)
