"""
Structured logging for workflows: one JSON line for each record, without secrets.

Values are made plain and redacted before any handler sees them, the traceback too. All workflows share one logger,
`adw`: the standard library keeps every logger it ever made, so one for each id and phase would fill the memory of a
daemon. The name `adw.<id>.<phase>` is in the record (`record.name`) all the same.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from pythonjsonlogger.json import JsonFormatter

from adws.adw_modules import log_text, timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.log_handlers import LogFile, QuietHandler, StreamLog
from adws.adw_modules.log_values import cut, fields_to_plain, say
from adws.adw_modules.redaction import Redactor

#: The one logger that every handler hangs on.
ROOT = "adw"
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
#: Fields of every line, in this order. A caller's field of the same name is kept as `extra_<name>`.
HEAD_FIELDS = ("timestamp", "adw_id", "phase", "level", "message")
RESERVED_FIELDS = frozenset({*HEAD_FIELDS, "exception", "_truncated"})
#: Bytes of one line, its line break included.
MAX_LINE_BYTES = 65_536
_MAX_MESSAGE, _MAX_TRACEBACK, _MAX_FIELD = 8_192, 16_384, 1_024

_bound: ContextVar[Mapping[str, object]] = ContextVar("adw_log_fields", default=MappingProxyType({}))


class _Setup:
    """What `configure` left for every logger of this process, beside the handlers that logging itself keeps."""

    redactor = Redactor()
    console: QuietHandler | None = None


@contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Add *fields* to every record made inside the block, by this task or thread and the tasks it starts."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


class StructuredLogger:
    """
    Logs for one phase of one workflow.

    An empty *adw_id* is for what belongs to no workflow. Nothing but an unknown level is ever raised by a log call.
    """

    def __init__(
        self, adw_id: str, phase: str, *, logger: logging.Logger | None = None, redactor: Redactor | None = None
    ) -> None:
        self.adw_id = check_adw_id(adw_id) if adw_id else ""
        self.phase = phase
        self.name = ".".join(part for part in (ROOT, self.adw_id, phase) if part)
        self.logger = logger or logging.getLogger(ROOT)
        self._redactor = redactor

    # `level` and `message` are positional, so that fields may have these names too; alone they also work as keywords.

    def log(self, level: str | None = None, message: object = None, /, **fields: object) -> None:
        """Log *message* with *fields*; raise UsageError when there is no such level."""
        if level is None:
            level = say(fields.pop("level", ""))
        self._write(_number_of(level), message, fields)

    def debug(self, message: object = None, /, **fields: object) -> None:
        """Log what only a developer wants to know."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: object = None, /, **fields: object) -> None:
        """Log what happened."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: object = None, /, **fields: object) -> None:
        """Log what may need attention."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: object = None, /, **fields: object) -> None:
        """Log what failed."""
        self._write(logging.ERROR, message, fields)

    def critical(self, message: object = None, /, **fields: object) -> None:
        """Log what stops everything."""
        self._write(logging.CRITICAL, message, fields)

    def exception(self, message: object = None, /, **fields: object) -> None:
        """Log an error with the exception that is being handled."""
        self._write(logging.ERROR, message, {"exc_info": True, **fields})

    def _write(self, level: int, message: object, fields: dict[str, object]) -> None:
        if not self.logger.isEnabledFor(level):
            return
        if message is None:
            message = fields.pop("message", "")

        redactor = self._redactor or _Setup.redactor
        exception = _take_exception(fields)
        path, line, function = self._caller()
        record = self.logger.makeRecord(
            self.name, level, path, line, redactor.redact_text(say(message)), (), None, function
        )
        clean = _clean_fields({**_bound.get(), **fields}, redactor)
        if exception is not None:
            clean["exception"] = described = _describe(exception, redactor)
            record.exc_text = str(described["traceback"])
        vars(record).update(
            adw_id=self.adw_id, phase=redactor.redact_text(say(self.phase)), fields=clean, is_redacted=True
        )
        self.logger.handle(record)

    def _caller(self) -> tuple[str, int, str]:
        """Return where the log call stands, if anybody may show it: our own handlers do not, and finding it is slow."""
        if not _reaches_strangers(self.logger):
            return "", 0, ""
        path, line, function, _ = self.logger.findCaller(stacklevel=4)

        return path, line, function


def _reaches_strangers(logger: logging.Logger) -> bool:
    """Say whether a record of *logger* comes to a handler that is not one of ours."""
    each: logging.Logger | None = logger
    while each is not None:
        if not all(isinstance(handler, QuietHandler) for handler in each.handlers):
            return True
        each = each.parent if each.propagate else None

    return False


def configure(
    level: str = "INFO",
    format: str = "auto",  # noqa: A002 - the name a user of the command line knows
    stream: TextIO | None = None,
    *,
    no_color: bool = False,
    redactor: Redactor | None = None,
) -> QuietHandler:
    """
    Send the log to *stream* (standard error), for people on a terminal and as JSON lines elsewhere.

    Calling it again replaces what it set up before. *no_color* is the wish of the user (NO_COLOR); only a terminal gets
    colours anyway. *redactor* is used by every logger that has none of its own.
    """
    number = _number_of(level)
    if format not in {"auto", "json", "text"}:
        raise UsageError(f"{format!r} is not a log format: use auto, json or text")

    target = sys.stderr if stream is None else stream
    is_terminal = _is_terminal(target)
    shutdown()
    handler = StreamLog(target)
    is_text = format == "text" or (format == "auto" and is_terminal)
    handler.setFormatter(TextFormatter(colour=is_terminal and not no_color) if is_text else JsonLineFormatter())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(number)
    logger.propagate = False
    _Setup.console, _Setup.redactor = handler, redactor or Redactor()
    return handler


def shutdown() -> None:
    """Take back what `configure` set up; files opened with `open_log` stay."""
    logger = logging.getLogger(ROOT)
    if _Setup.console is not None:
        logger.removeHandler(_Setup.console)
        _Setup.console.close()
        logger.setLevel(logging.NOTSET)
    logger.propagate = True
    _Setup.console, _Setup.redactor = None, Redactor()
    _settle_level(logger)


@contextmanager
def open_log(path: Path, *, max_bytes: int = 10_485_760, backups: int = 3, adw_id: str = "") -> Iterator[LogFile]:
    """Write the records of *adw_id* (of all when "") to *path* inside the block, as JSON lines, mode 0600."""
    logger = logging.getLogger(ROOT)
    with LogFile(path, max_bytes=max_bytes, backups=backups, adw_id=adw_id) as handler:
        handler.open()
        handler.setFormatter(JsonLineFormatter())
        logger.addHandler(handler)
        _settle_level(logger)
        try:
            yield handler
        finally:
            logger.removeHandler(handler)
            _settle_level(logger)


def _settle_level(logger: logging.Logger) -> None:
    """Without a level from `configure` or the caller, files get INFO; without files nothing is asked of the logger."""
    if _Setup.console is not None or logger.level not in {logging.NOTSET, logging.INFO}:
        return

    has_files = any(isinstance(handler, LogFile) for handler in logger.handlers)
    logger.setLevel(logging.INFO if has_files else logging.NOTSET)


class JsonLineFormatter(JsonFormatter):
    """One record, one line of ASCII JSON: nothing in a value can end the line or start another."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break."""
        return self.jsonify_log_record(entry_of(record))

    def jsonify_log_record(self, log_data: JsonObject) -> str:
        """Return *log_data* as JSON, at most MAX_LINE_BYTES long with the line break."""
        line = _dump(log_data)

        return line if len(line) < MAX_LINE_BYTES else _dump(_shortened(log_data))


class TextFormatter(logging.Formatter):
    """A line for people: time, level, id, phase, message, fields; the traceback indented below."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the text; control characters and those that turn the direction of writing are taken out."""
        return log_text.to_text(entry_of(record), colour=self._colour)


def entry_of(record: logging.LogRecord) -> JsonObject:
    """Return what *record* says, in the order of the fields, redacted; also for records of plain `logging` calls."""
    is_ours = getattr(record, "is_redacted", False)
    head: JsonObject = {
        "timestamp": timestamps.to_text(datetime.fromtimestamp(record.created, UTC)),
        "adw_id": getattr(record, "adw_id", "") if is_ours else say(_bound.get().get("adw_id", "")),
        "phase": getattr(record, "phase", "") if is_ours else say(_bound.get().get("phase", record.name)),
        "level": record.levelname,
    }
    if is_ours:
        return {**head, "message": record.getMessage(), **vars(record)["fields"]}

    redactor = _Setup.redactor
    fields = _clean_fields({**_without_place(_bound.get()), **_extras_of(record)}, redactor)
    if record.exc_info:
        fields["exception"] = _describe(record.exc_info[1], redactor)
    return {**head, "message": redactor.redact_text(_message_of(record)), **fields}


def _message_of(record: logging.LogRecord) -> str:
    """Return the message with its arguments; one whose arguments do not fit is shown with them, not lost."""
    try:
        return cut(record.getMessage())
    except Exception:  # noqa: BLE001 - a stranger's arguments may raise anything when they are put in
        return f"{say(record.msg)} {say(record.args)}"


_PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras_of(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN_RECORD}


def _without_place(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if name not in {"adw_id", "phase"}}


def _clean_fields(fields: Mapping[str, object], redactor: Redactor) -> JsonObject:
    """Return *fields* plain and redacted; names that are taken get `extra_` in front, so nothing is lost."""
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
    """Take `exc_info` out of *fields* when it means an exception; anything else stays an ordinary field."""
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
    """Return type, message and traceback of *error*, redacted; of a long traceback the end counts."""
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


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (ValueError, AttributeError):  # closed, or not quite a stream
        return False


#: Made once: json.dumps builds a new encoder for every call that does not use its defaults.
_dump = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode


def _shortened(entry: JsonObject) -> JsonObject:
    """Return *entry* cut to fit a line: long fields first, then those at the end; `_truncated` says how long it was."""
    short: JsonObject = {"_truncated": len(_dump(entry))}
    left = MAX_LINE_BYTES - len(_dump(short)) - 2
    for name, value in entry.items():
        limit = _MAX_MESSAGE if name in RESERVED_FIELDS else _MAX_FIELD
        small = _small(value, limit)
        cost = len(_dump({name[:_MAX_FIELD]: small}))
        if cost < left:
            short[name[:_MAX_FIELD]] = small
            left -= cost

    return {**{name: short[name] for name in short if name != "_truncated"}, "_truncated": short["_truncated"]}


def _small(value: JsonValue, limit: int) -> JsonValue:
    if isinstance(value, dict) and limit == _MAX_MESSAGE:
        return {name: _small(item, limit // 2) for name, item in value.items()}
    text = value if isinstance(value, str) else json.dumps(value)
    # A character can take twelve bytes when it is escaped.
    return value if len(json.dumps(text)) <= limit else cut(text, limit // 12)
