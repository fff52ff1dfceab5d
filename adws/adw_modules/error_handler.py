"""
The error classifier: the category of a failure, and advice about it.

Every exception gets an answer. An exception classified once keeps its class; the original stays as the cause, with its
own traceback. What the class requires (`retry_delay`, `requires_cleanup`, `requires_manual_intervention`) is in the
metadata, read only by `retry_handler`.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from adws.adw_modules import error_tables, errors
from adws.adw_modules.error_tables import (
    BOXED_ADVICE,
    CATEGORY_ADVICE,
    CLASSES,
    ERRNOS,
    EXIT_CODES,
    HTTP_STATUSES,
    NOT_SAID,
    OUTAGES,
    RETRYABLE,
    SIGNALS,
    SUBTYPES,
    TOOL_EXIT_CODES,
    TYPE_NAMES,
    ErrorCategory,
    ServerWait,
    class_of_text,
    last_part,
    refined,
    worst,
)
from adws.adw_modules.errors import AdwError, FailedRun, RunFailed, StateInvalid
from adws.adw_modules.identifiers import JsonObject, JsonValue, said
from adws.adw_modules.timestamps import to_text

__all__ = [
    "CLASSES",
    "RETRYABLE",
    "ErrorCategory",
    "ErrorClassifier",
    "ErrorFacts",
    "FailedRun",
    "RunFailed",
    "WorkflowError",
    "describe",
    "facts_of",
]


# --- the class of an exception, and when the server allows a retry ---------------------------------------------------
#
# Structure comes first: adw's own errors, a failed run, an HTTP response, an errno, the type; then the same for the
# errors that caused it. The text comes last. However a foreign exception behaves when it is read, there is an answer.


#: How far the chain of causes is followed.
MAX_CAUSES = 8

#: adw's own errors, subclasses before their bases; errors with their own errno are classified by that.
OWN_TYPES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    ((errors.NewerVersion, errors.SchemaMismatch), "version"),
    ((errors.Fenced, errors.LeaseLost, errors.RunLost, errors.NotTheLockOwner), "ownership"),
    ((errors.StateConflict, errors.DeliveryConflict), "conflict"),
    (errors.WorkflowBusy, "busy"),
    (errors.IssueLocked, "taken"),
    ((errors.IllegalTransition, errors.RetriesExhausted), "illegal"),
    (errors.CommitUnknown, "commit_unknown"),
    (errors.DurabilityUnknown, "storage"),
    ((errors.DatabaseUnavailable, errors.TransactionAborted), "database"),
    ((errors.DatabaseCorrupt, errors.MigrationError, errors.StateCorrupt, errors.UnsafePath), "state"),
    ((errors.StateNotFound, errors.StateInvalid, errors.StateUnserialisable, errors.StateExists), "state"),
    ((errors.ConfigError, errors.UsageError, errors.InvalidAdwId, errors.BadWorkflowGraph), "config"),
    (errors.DatabaseMoved, "config"),
    ((errors.PlatformUnsupported, errors.UnknownWorkflow, errors.RunNotFound, errors.DeliveryNotFound), "config"),
    ((errors.DemandsUnmet, errors.StartRefused, errors.RepositoryNotTrusted), "config"),
    ((errors.ExpressionError, errors.SinkRefused), "config"),
    ((errors.GateFailed, errors.PathsNotAllowed), "gate"),
    (errors.BaseRed, "base"),
    ((errors.ShippingRefused, errors.NotOurs, errors.PullRequestMerged, errors.RepositoryTampered), "config"),
    ((errors.RollbackBlocked, errors.WorkElsewhere), "busy"),
    ((errors.RemoteChanged, errors.FilterNotRun), "config"),
    (errors.RemoteRefused, "auth"),
    (errors.GitUnreachable, "network"),
    (errors.PortsExhausted, "port"),
    (errors.QuotaExceeded, "busy"),
    (errors.SetupFailed, "failed"),
    ((errors.ForgeBusy, errors.TooManyRequests), "rate_limited"),
    (errors.CircuitOpen, "overloaded"),
    ((errors.ForgeUnavailable, errors.NotifyFailed), "server"),
    (errors.ForgeNotFound, "missing"),
    ((errors.ClaimLost, errors.ForeignToken), "ownership"),
    (errors.EventRefused, "illegal"),
    (errors.ClaimHeld, "busy"),
    (errors.Overdue, "timeout"),
    ((errors.TaskNotFound, errors.ExecutionNotFound), "config"),
)

#: Built-in types, for exceptions without an errno.
BUILT_IN_TYPES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (KeyboardInterrupt, "interrupted"),
    (TimeoutError, "timeout"),
    (ConnectionError, "network"),
    ((InterruptedError, BlockingIOError), "busy"),
    (FileNotFoundError, "missing"),
    (PermissionError, "permission"),
    (MemoryError, "memory"),
    (ImportError, "dependency"),
    ((TypeError, AttributeError, NameError, AssertionError, LookupError, ArithmeticError, SyntaxError), "bug"),
    ((NotImplementedError, RecursionError, ReferenceError, StopIteration), "bug"),
)

#: Classes whose text may say how long they last; elsewhere "try again in a minute" is only talk.
TIMED_CLASSES = frozenset({"rate_limited", "quota_window", "overloaded", "server"})


class _Recognised(NamedTuple):
    """The result of recognising an exception."""

    klass: str  #: name of a class in `error_tables`
    error: BaseException  #: the error of the chain that gave the class
    by_text: bool = False  #: only its text gave the class


def _recognise(exception: BaseException) -> _Recognised:
    """Return the class that *exception* or one of its causes gives."""
    chain: list[BaseException] = []
    cause: object = exception
    while isinstance(cause, BaseException) and len(chain) < MAX_CAUSES and all(cause is not one for one in chain):
        chain.append(cause)
        cause = cause.__cause__ or _attribute(cause, "reason")  # where urllib keeps the cause
    for error in chain:
        result = _by_structure(error)
        # `raise NoAnswer() from KeyError()` is how a program says what it expected, not that it has a bug.
        if result is not None and (result.klass != "bug" or error is exception):
            return result
    for error in chain:
        name = class_of_text(text_of(error))
        if name is not None:
            return _Recognised(name, error, by_text=True)

    # The failure of a program, git included, is a known one.
    has_failed = any(_run_of(error) is not None or isinstance(error, errors.GitError) for error in chain)
    return _Recognised("failed" if has_failed else "unknown", exception)


def _by_structure(error: BaseException) -> _Recognised | None:
    if isinstance(error, BaseExceptionGroup):
        members = [_recognise(member) for member in error.exceptions]
        most = worst([member.klass for member in members])
        return next(member for member in members if member.klass == most)

    name = _by_type(error, OWN_TYPES) or _by_run(error) or _by_answer(error) or _by_system(error)
    return None if name is None else _Recognised(name, error)


def _by_type(
    error: BaseException, table: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...]
) -> str | None:
    return next((name for types, name in table if isinstance(error, types)), None)


def _by_run(error: BaseException) -> str | None:
    """Return the class of a failed run: by the failure's name, by the HTTP status, or by how the process ended."""
    run = _run_of(error)
    if run is None:
        return None
    if run.subtype in CLASSES and run.subtype not in {"unknown", "failed"}:
        name: str | None = run.subtype
    else:
        name = SUBTYPES.get(run.subtype.lower()) or _class_of_status(run.http_status)
    if name is None and run.timed_out is not None:
        name = "timeout"
    elif name is None and run.signal is not None:
        name = SIGNALS.get(run.signal, "killed")
    elif name is None and run.exit_code is not None:
        name = TOOL_EXIT_CODES.get(run.tool, {}).get(run.exit_code) or EXIT_CODES.get(run.exit_code)

    return None if name is None else refined(name, run.text)


def _by_answer(error: BaseException) -> str | None:
    """Return the class of the HTTP response in *error*, or None without one."""
    name, headers = _class_of_status(_status_of(error)), _headers_of(error)
    # GitHub uses 403 both for a refusal and for a rate limit.
    if name == "auth" and ("retry-after" in headers or headers.get("x-ratelimit-remaining") == "0"):
        return "rate_limited"

    return None if name is None else refined(name, text_of(error))


def _class_of_status(status: int | None) -> str | None:
    """Return the class of an HTTP status, or None for one that is not a failure."""
    if status is None or not 300 <= status <= 599:
        return None

    return HTTP_STATUSES.get(status, "server" if status >= 500 else "invalid")


def _by_system(error: BaseException) -> str | None:
    number = _attribute(error, "errno")
    if isinstance(error, OSError) and isinstance(number, int) and number in ERRNOS:
        return ERRNOS[number]
    names = (TYPE_NAMES.get(kind.__name__) for kind in type(error).__mro__)

    return _by_type(error, BUILT_IN_TYPES) or next(filter(None, names), None)


# --- the data of an exception ----------------------------------------------------------------------------------


def _attribute(error: object, name: str) -> object:
    """Return an attribute of a foreign object, or None if it is missing or cannot be read."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a foreign property may raise anything, and a classifier always answers
        return None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _run_of(error: BaseException) -> FailedRun | None:
    """Return the failed run in *error*: ours, a call of sys.exit, or one like subprocess.CalledProcessError."""
    if isinstance(error, RunFailed):
        return error.run
    if isinstance(error, SystemExit):
        return FailedRun(exit_code=_number(error.code), text=_as_text(error.code))
    code = _number(_attribute(error, "returncode"))
    if code is None:
        return None
    text = _as_text(_attribute(error, "stderr")) or _as_text(_attribute(error, "stdout")) or said(error)

    return FailedRun(exit_code=None if code < 0 else code, signal=-code if code < 0 else None, text=text)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")

    return value if isinstance(value, str) else ""


def text_of(error: BaseException) -> str:
    """Return the message of *error*, or the last output of the run in it."""
    run = _run_of(error)
    return last_part(run.text) if run is not None and run.text else said(error)


def _status_of(error: BaseException) -> int | None:
    for carrier in (error, _attribute(error, "response")):
        for name in ("status_code", "status", "http_status"):
            status = _number(_attribute(carrier, name))
            if status is not None:
                return status

    # urllib has the status as `code`, a name with many other uses: only an HTTP response has headers.
    return _number(_attribute(error, "code")) if _attribute(error, "headers") is not None else None


def _headers_of(error: BaseException) -> Mapping[str, str]:
    """Return the headers of the response, with names in lower case; {} if there are none."""
    own = _attribute(error, "headers")
    result = _attribute(_attribute(error, "response"), "headers") if own is None else own
    try:
        return {str(name).lower(): str(value) for name, value in result.items()}  # type: ignore[attr-defined]  # asked by trying
    except Exception:  # noqa: BLE001 - headers may be any object of any library, or missing
        return {}


# --- the record ------------------------------------------------------------------------------------------------


#: Types that say that something took long, and nothing about a connection.
_SLOW_TYPES = ("TimeoutError", "TimeoutExpired", "Overdue")
#: The exit code of timeout(1).
_TIMEOUT_EXIT = 124


def _metadata(found: _Recognised) -> dict[str, object]:
    """Return the facts of a failure besides its message."""
    kind, error, run = CLASSES[found.klass], found.error, _run_of(found.error)
    metadata: dict[str, object] = {"class": kind.name, "advice": kind.advice}
    if run is not None and run.box and kind.name in BOXED_ADVICE:
        metadata["advice"] = BOXED_ADVICE[kind.name].format(box=run.box)
    if kind.category is ErrorCategory.RESOURCE:
        metadata["requires_cleanup"] = True
    if kind.needs_person:
        metadata["requires_manual_intervention"] = True
    if kind.name == "context":
        metadata["fresh_session"] = True
    if kind.max_retries is not None:
        metadata["max_retries"] = kind.max_retries
    if kind.is_recoverable and kind.retry_delay is not None:
        metadata["retry_delay"] = kind.retry_delay
    wait = _wait_of(kind.name, error)
    if wait.seconds is not None:
        metadata |= {"retry_delay": wait.seconds, "retry_delay_from": "server"}
    if wait.at is not None:
        metadata["retry_at"] = to_text(wait.at)
    details: dict[str, object] = {
        **({key: getattr(run, key) for key in ("exit_code", "signal", "timed_out", "subtype")} if run else {}),
        "http_status": _status_of(error) if run is None else run.http_status,
        "errno": _number(_attribute(error, "errno")),
    }
    metadata |= {key: value for key, value in details.items() if value not in {None, ""}}
    # A timeout of ours, or of timeout(1), only means that something took long, and tells nothing about a connection.
    is_outage = kind.name in OUTAGES
    if kind.name == "timeout" and run is not None:
        is_outage = run.timed_out is None and run.exit_code != _TIMEOUT_EXIT
    elif kind.name == "timeout":
        is_outage = type(error).__name__ not in _SLOW_TYPES or "errno" in metadata
    if is_outage:
        metadata["outage"] = "by_text" if found.by_text else "by_structure"

    return metadata


def _wait_of(name: str, error: BaseException) -> ServerWait:
    """Return when the server allows a retry."""
    if isinstance(error, errors.ForgeBusy):
        return error_tables.in_seconds(error.seconds)
    if isinstance(error, errors.CircuitOpen):
        return ServerWait(at=error.until)
    run, is_timed = _run_of(error), name in TIMED_CLASSES
    waits = (
        error_tables.at_epoch(run.resets_at) if run is not None and is_timed else NOT_SAID,
        error_tables.in_seconds(run.retry_after_seconds) if run is not None else NOT_SAID,
        error_tables.by_headers(_headers_of(error)),
        error_tables.by_text(text_of(error)) if is_timed else NOT_SAID,
    )

    return next((wait for wait in waits if wait is not NOT_SAID), NOT_SAID)


#: Characters of a message and of a traceback in a record; the middle of longer ones is left out.
MAX_MESSAGE = 4_000
MAX_TRACEBACK = 16_000


class WorkflowError(AdwError):
    """A failure of a phase, with its category."""

    def __init__(
        self,
        message: str,
        category: ErrorCategory,
        phase: str,
        recoverable: bool = False,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.category = ErrorCategory(category)  # also accepts the value of a category
        self.phase = phase
        self.recoverable = recoverable  #: whether a retry can help
        self.metadata: dict[str, object] = dict(metadata or {})

    @property
    def error_class(self) -> str:
        """The name of its finer class, such as rate_limited; without one, that of the category."""
        return _text(self.metadata, "class") or self.category.value

    @property
    def advice(self) -> str:
        """What a person can do about it, in one or two sentences."""
        return _text(self.metadata, "advice") or CATEGORY_ADVICE[self.category]

    @property
    def traceback(self) -> str:
        """The traceback of the cause if there is one, else of this error."""
        return "".join(tracebacks.format_exception(self.__cause__ or self))


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorFacts:
    """A classified failure as plain values, for the record of an attempt and for `retry_handler.decide`."""

    category: ErrorCategory
    klass: str  #: name of the finer class; without one, that of the category
    message: str
    advice: str = ""  #: for the person
    recoverable: bool = False
    retry_delay: float | None = None  #: least seconds to wait, as required by the server or the class
    phase: str = ""
    error_type: str = ""  #: name of the exception's type
    traceback: str = ""  #: not redacted: that happens where it is written
    metadata: JsonObject = field(default_factory=dict)

    @property
    def needs_cleanup(self) -> bool:
        """Whether resources must be freed before the next attempt."""
        return self.metadata.get("requires_cleanup", self.category is ErrorCategory.RESOURCE) is True

    @property
    def needs_person(self) -> bool:
        """Whether a person must change something before a retry."""
        return self.metadata.get("requires_manual_intervention", self.category is ErrorCategory.CONFIGURATION) is True

    @property
    def is_outage(self) -> bool:
        """Whether the network or a service failed, and not the work."""
        return "outage" in self.metadata

    @property
    def is_guess(self) -> bool:
        """Whether only the text suggests an outage, which the text of a test may do as well."""
        return self.metadata.get("outage") == "by_text"

    def to_json(self) -> JsonObject:
        """Return the facts as JSON; `from_json` reads them back."""
        return {**asdict(self), "category": self.category.value}

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> ErrorFacts:
        """Return the facts written by `to_json`; raise StateInvalid if *data* is invalid."""
        try:
            category = ErrorCategory(data.get("category"))
        except ValueError as exc:
            known = ", ".join(member.value for member in ErrorCategory)
            raise StateInvalid(f"an error's category is {data.get('category')!r}, not one of {known}") from exc
        metadata = data.get("metadata")

        return cls(
            category=category,
            klass=_text(data, "klass") or category.value,
            message=_text(data, "message"),
            advice=_text(data, "advice"),
            recoverable=data.get("recoverable") is True,
            retry_delay=_delay(data.get("retry_delay")),
            phase=_text(data, "phase"),
            error_type=_text(data, "error_type"),
            traceback=_text(data, "traceback"),
            metadata=dict(metadata) if isinstance(metadata, dict) else {},
        )


class ErrorClassifier:
    """Classify exceptions."""

    @staticmethod
    def classify(exception: BaseException, phase: str) -> WorkflowError:
        """Return *exception* as a WorkflowError with it as its cause; a WorkflowError is returned unchanged."""
        if isinstance(exception, WorkflowError):
            return exception

        # A cause classified before passes its class on.
        known, causes = exception.__cause__, 1
        while known is not None and not isinstance(known, WorkflowError):
            known, causes = (known.__cause__ if causes < MAX_CAUSES else None), causes + 1
        if known is None:
            result = _recognise(exception)
            kind = CLASSES[result.klass]
            category, recoverable, metadata = kind.category, kind.is_recoverable, _metadata(result)
        else:
            category, recoverable, metadata = known.category, known.recoverable, known.metadata
        message = said(exception) or f"{type(exception).__name__} without a message"

        error = WorkflowError(message, category, phase, recoverable=recoverable, metadata=metadata)
        error.__cause__ = exception
        return error


def facts_of(error: WorkflowError) -> ErrorFacts:
    """Return *error* as plain values; metadata that JSON cannot represent becomes text."""
    from adws.adw_modules.structured_logger import to_plain  # noqa: PLC0415 - needed only when something failed

    metadata = to_plain(error.metadata)
    plain = metadata if isinstance(metadata, dict) else {}

    return ErrorFacts(
        category=error.category,
        klass=error.error_class,
        message=_shortened(error.message, MAX_MESSAGE),
        advice=error.advice,
        recoverable=error.recoverable,
        retry_delay=_delay(plain.get("retry_delay")),
        phase=error.phase,
        error_type=type(error.__cause__ or error).__name__,
        traceback=_shortened(error.traceback, MAX_TRACEBACK),
        metadata=plain,
    )


def describe(exception: BaseException, phase: str) -> ErrorFacts:
    """Return the facts of *exception*, classified."""
    return facts_of(ErrorClassifier.classify(exception, phase))


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _delay(value: JsonValue) -> float | None:
    """Return *value* as seconds, or None unless it is a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An int of any length compares with a float, but may be too large to convert.
    if not 0 <= value < float("inf") or (isinstance(value, int) and value.bit_length() > 1000):
        return None

    return float(value)


def _shortened(text: str, limit: int) -> str:
    """Return *text*, or its two ends: the beginning says what was done, the end what went wrong."""
    if len(text) <= limit:
        return text
    half = limit // 2

    return f"{text[:half]}\n... [{len(text) - 2 * half} characters left out] ...\n{text[-half:]}"
