"""
Runners and orders for tests, with scripted results.

A `ScriptedRunner` runs nothing: it plays a phase's script, one entry per attempt, and records its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from adws.adw_modules.errors import UsageError
from adws.adw_modules.phase import Order, PhaseContext, RunReport, Suspended, WaitingForChildren
from adws.adw_modules.workflow.model import PhaseSpec

#: One attempt in a script: a report, an error to raise, or a function that is called with the context and gives either.
ScriptEntry: TypeAlias = (
    "RunReport | Suspended | WaitingForChildren | BaseException"
    " | Callable[[PhaseContext], RunReport | Suspended | WaitingForChildren]"
)

#: The report of a phase without a script, or after its end.
WELL = RunReport(ok=True, summary="as scripted")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedCall:
    """One attempt requested from a `ScriptedRunner`."""

    phase: str
    context: PhaseContext


class ScriptedRunner:
    """
    A `Runner` that plays scripts.

    *scripts* lists the attempts of each phase in order. After the end of a script, or without one, attempts succeed;
    with *is_strict* they raise UsageError.
    """

    def __init__(self, scripts: Mapping[str, Sequence[ScriptEntry]] | None = None, *, is_strict: bool = False) -> None:
        self._left = {phase: list(entries) for phase, entries in (scripts or {}).items()}
        self._is_strict = is_strict
        self.calls: list[ScriptedCall] = []  #: every requested attempt, oldest first

    def add(self, phase: str, *entries: ScriptEntry) -> None:
        """Append *entries* to the script of *phase*."""
        self._left.setdefault(phase, []).extend(entries)

    def check(self, phase: PhaseSpec) -> str:
        """Return "": a script can play any phase."""
        del phase

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Play the next entry of the phase's script; raise UsageError after the end of a strict script."""
        self.calls.append(ScriptedCall(phase=phase.name, context=context))
        left = self._left.get(phase.name)
        if not left and self._is_strict:
            raise UsageError(f"the script of phase {phase.name} has no entry for attempt {context.attempt_number}")
        entry = left.pop(0) if left else WELL
        if isinstance(entry, BaseException):
            raise entry
        if isinstance(entry, RunReport | Suspended | WaitingForChildren):
            return entry

        return entry(context)

    def numbers(self, phase: str) -> list[int]:
        """Return the numbers of the requested attempts of *phase*."""
        return [call.context.attempt_number for call in self.calls if call.phase == phase]


class MemoryOrders:
    """`Orders` set and cleared by a test."""

    def __init__(self, order: Order | None = None) -> None:
        self._order = order
        self.waited: list[float] = []  #: every requested wait, in order

    def give(self, order: Order) -> None:
        """Give an order, valid until `clear`."""
        self._order = order

    def clear(self) -> None:
        """Withdraw the order."""
        self._order = None

    def current(self) -> Order | None:
        """Return the current order."""
        return self._order

    def wait(self, seconds: float) -> Order | None:
        """Return the current order, without waiting."""
        self.waited.append(seconds)

        return self._order
