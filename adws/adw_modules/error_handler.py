"""
Say what kind of failure an exception is, and what that asks of adw and of the person.

Every exception has an answer. One that was classified once keeps its class; the original stays as the cause, with its
own traceback. What the answer asks for (`retry_delay`, `requires_cleanup`, `requires_manual_intervention`) stands in
its metadata and is read by `retry_handler` alone.
"""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Mapping
from dataclasses import dataclass, field

from adws.adw_modules.error_classes import (
    CATEGORY_ADVICE,
    CLASSES,
    RETRYABLE,
    ErrorCategory,
    ErrorClass,
)
from adws.adw_modules.error_evidence import MAX_CAUSES, Finding, find, say
from adws.adw_modules.errors import AdwError, RunFailed, StateInvalid
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.log_values import to_plain
from adws.adw_modules.timestamps import to_text

__all__ = [
    "CLASSES",
    "RETRYABLE",
    "ErrorCategory",
    "ErrorClass",
    "ErrorClassifier",
    "ErrorFacts",
    "FailedRun",
    "RunFailed",
    "WorkflowError",
    "describe",
    "facts_of",
]

#: Characters of a message and of a traceback that go into a record; beyond, the middle is left out.
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
        self.category = ErrorCategory(category)  # its value will do too
        self.phase = phase
        self.recoverable = recoverable  #: whether trying again can help
        self.metadata: dict[str, object] = dict(metadata or {})

    @property
    def traceback(self) -> str:
        """The traceback of what was raised: of the cause where there is one, else of this error."""
        return "".join(tracebacks.format_exception(self.__cause__ or self))


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorFacts:
    """A classified failure as plain values, for the record of an attempt and for `retry_handler.decide`."""

    category: ErrorCategory
    klass: str  #: name of the finer class; the category's own name where an error brought none
    message: str
    advice: str = ""  #: what to tell the person
    recoverable: bool = False
    retry_delay: float | None = None  #: least seconds to wait; from the server, or what the class asks for
    phase: str = ""
    error_type: str = ""  #: name of the exception's type
    traceback: str = ""  #: not redacted: that happens where it is written
    metadata: JsonObject = field(default_factory=dict)

    @property
    def needs_cleanup(self) -> bool:
        """Whether something has to be freed before the next attempt."""
        return self.metadata.get("requires_cleanup", self.category is ErrorCategory.RESOURCE) is True

    @property
    def needs_person(self) -> bool:
        """Whether nothing goes on before a person has changed something."""
        return self.metadata.get("requires_manual_intervention", self.category is ErrorCategory.CONFIGURATION) is True

    def to_json(self) -> JsonObject:
        """Return the facts as JSON; `from_json` reads them back."""
        return {
            "category": self.category.value,
            "klass": self.klass,
            "message": self.message,
            "advice": self.advice,
            "recoverable": self.recoverable,
            "retry_delay": self.retry_delay,
            "phase": self.phase,
            "error_type": self.error_type,
            "traceback": self.traceback,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> ErrorFacts:
        """Return the facts written by `to_json`; raise StateInvalid for what is none."""
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
        """Return *exception* as a WorkflowError with *exception* as its cause; one that is classified as it is."""
        if isinstance(exception, WorkflowError):
            return exception

        said = _said_before(exception)
        if said is None:
            found = find(exception)
            kind = CLASSES[found.klass]
            category, recoverable, metadata = kind.category, kind.is_recoverable, _metadata(kind, found)
        else:
            category, recoverable, metadata = said.category, said.recoverable, said.metadata
        message = say(exception) or f"{type(exception).__name__} without a message"

        error = WorkflowError(message, category, phase, recoverable=recoverable, metadata=metadata)
        error.__cause__ = exception
        return error


def _said_before(exception: BaseException) -> WorkflowError | None:
    """Return the classified error that caused *exception*, if one did: what somebody has said is not guessed again."""
    cause = exception.__cause__
    for _ in range(MAX_CAUSES):
        if cause is None or isinstance(cause, WorkflowError):
            return cause
        cause = cause.__cause__

    return None


def facts_of(error: WorkflowError) -> ErrorFacts:
    """Return *error* as plain values; metadata that JSON has no word for becomes text."""
    metadata = to_plain(error.metadata)
    plain = metadata if isinstance(metadata, dict) else {}

    return ErrorFacts(
        category=error.category,
        klass=_text(plain, "class") or error.category.value,
        message=_shortened(error.message, MAX_MESSAGE),
        advice=_text(plain, "advice") or CATEGORY_ADVICE[error.category],
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


def _metadata(kind: ErrorClass, found: Finding) -> dict[str, object]:
    metadata: dict[str, object] = {"class": kind.name, "advice": kind.advice}
    if kind.needs_cleanup:
        metadata["requires_cleanup"] = True
    if kind.needs_person:
        metadata["requires_manual_intervention"] = True
    if kind.name == "context":
        metadata["fresh_session"] = True
    if kind.max_retries is not None:
        metadata["max_retries"] = kind.max_retries
    if kind.is_recoverable and kind.retry_delay is not None:
        metadata["retry_delay"] = kind.retry_delay
    if found.wait.seconds is not None:
        metadata |= {"retry_delay": found.wait.seconds, "retry_delay_from": "server"}
    if found.wait.at is not None:
        metadata["retry_at"] = to_text(found.wait.at)

    return metadata | found.details


def _text(data: Mapping[str, JsonValue], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _delay(value: JsonValue) -> float | None:
    """Return *value* as seconds, None when it is no number from 0 up."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An int of any length compares with a float, but does not always become one.
    if not 0 <= value < float("inf") or (isinstance(value, int) and value.bit_length() > 1000):
        return None

    return float(value)


def _shortened(text: str, limit: int) -> str:
    """Return *text*, or its two ends: the beginning says what was done, the end what went wrong."""
    if len(text) <= limit:
        return text
    half = limit // 2

    return f"{text[:half]}\n... [{len(text) - 2 * half} characters left out] ...\n{text[-half:]}"
