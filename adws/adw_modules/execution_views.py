"""
What people see of steps whose calls are spread over workers: executions, their iterations, the calls of one of these.

Nouns only, and light: the views start without the libraries that check documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from adws.adw_modules.errors import AdwError
from adws.adw_modules.json_value import JsonObject, JsonValue

#: Most characters of an element or a result that a list shows.
SHOWN_CHARACTERS = 200


class ExecutionNotFound(AdwError):
    """There is no such execution, or no such iteration of it, or nothing of one of its pages."""

    def __init__(self, execution_id: str, index: int | None = None, page: int | None = None) -> None:
        what = f"execution {execution_id}" if index is None else f"iteration {index} of execution {execution_id}"
        what = what if page is None else f"page {page} of {what}"
        super().__init__(f"there is no {what}: adw executions ID lists those of a workflow")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionLine:
    """An execution and its counts."""

    execution_id: str
    adw_id: str
    phase: str
    attempt_number: int
    step: str
    state: str
    reason: str
    total: int | None  #: None while its elements are being stored
    succeeded: int
    failed: int
    cancelled: int
    running: int  #: calls in flight
    waiting: int  #: calls that wait for their time
    next_retry: str | None
    created_at: str
    ended_at: str | None

    @property
    def done(self) -> int:
        """How many iterations are over."""
        return self.succeeded + self.failed + self.cancelled

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {**asdict(self), "done": self.done}


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationLine:
    """An iteration in a list; of what it got and gave only the beginning."""

    index: int
    state: str
    attempts: int  #: calls so far, over all pages
    page: int
    next_at: str | None  #: of one that waits
    why: str  #: on_error | on_success, of one that waits
    error: str
    started_at: str | None
    ended_at: str | None
    element: str  #: the beginning of its JSON
    result: str

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationDetail:
    """All about one iteration."""

    line: IterationLine
    element: JsonValue
    result: JsonValue
    call: JsonObject  #: inputs that the page before asked for
    pages: tuple[int, ...]  #: characters of what was kept of each page
    calls: tuple[JsonObject, ...]  #: events of its calls, in order

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {
            **self.line.to_json(),
            "element": self.element,
            "result": self.result,
            "call": self.call,
            "pages": list(self.pages),
            "calls": list(self.calls),
        }


class ExecutionViews(Protocol):
    """Looking at executions."""

    def of_workflow(self, adw_id: str, *, step: str = "", limit: int = 100) -> tuple[ExecutionLine, ...]:
        """Return the executions of a workflow, the newest first."""

    def get(self, execution_id: str) -> ExecutionLine:
        """Return one; raise ExecutionNotFound."""

    def iterations(
        self, execution_id: str, *, states: Sequence[str] = (), after: int = -1, limit: int = 100
    ) -> tuple[IterationLine, ...]:
        """Return iterations in the order of the collection, those with a higher index than *after*."""

    def page(self, execution_id: str, index: int, page: int, *, limit: int) -> tuple[str, int]:
        """
        Return the first *limit* characters of what was kept of one page, and how many there are.

        Raises ExecutionNotFound when nothing was.
        """

    def iteration(self, execution_id: str, index: int) -> IterationDetail:
        """Return all about one iteration; raise ExecutionNotFound."""
