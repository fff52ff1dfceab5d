"""
Runners and orders for tests: what each attempt reports is written down beforehand.

A `ScriptedRunner` runs nothing: it plays the script of a phase, an entry for each attempt, and keeps what it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from adws.adw_modules.errors import UsageError
from adws.adw_modules.phase import Order, PhaseContext, RunReport, Suspended, WaitingForChildren
from adws.adw_modules.workflow.model import PhaseSpec

#: One attempt of a script: a report, an error to raise, or a function that is called with the context and gives either.
ScriptEntry: TypeAlias = (
    "RunReport | Suspended | WaitingForChildren | BaseException"
    " | Callable[[PhaseContext], RunReport | Suspended | WaitingForChildren]"
)

#: What a phase without a script, or at the end of one, reports.
WELL = RunReport(ok=True, summary="as scripted")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedCall:
    """One attempt that a `ScriptedRunner` was asked for."""

    phase: str
    context: PhaseContext


class ScriptedRunner:
    """
    A `Runner` that plays scripts.

    *scripts* has the attempts of each phase in their order. Where a script ends, or a phase has none, the attempt
    succeeds; with *is_strict* that is a mistake of the test.
    """

    def __init__(self, scripts: Mapping[str, Sequence[ScriptEntry]] | None = None, *, is_strict: bool = False) -> None:
        self._left = {phase: list(entries) for phase, entries in (scripts or {}).items()}
        self._is_strict = is_strict
        self.calls: list[ScriptedCall] = []  #: every attempt that was asked for, oldest first

    def add(self, phase: str, *entries: ScriptEntry) -> None:
        """Put *entries* at the end of the script of *phase*."""
        self._left.setdefault(phase, []).extend(entries)

    def check(self, phase: PhaseSpec) -> str:
        """Return "": whatever a phase says, a script can play it."""
        del phase

        return ""

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended | WaitingForChildren:
        """Play the next entry of the phase's script; raise UsageError when a strict script is over."""
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
        """Return the numbers of the attempts of *phase* that were asked for."""
        return [call.context.attempt_number for call in self.calls if call.phase == phase]


class MemoryOrders:
    """`Orders` that a test gives and takes back."""

    def __init__(self, order: Order | None = None) -> None:
        self._order = order
        self.waited: list[float] = []  #: every wait that was asked for, in order

    def give(self, order: Order) -> None:
        """Give an order; it stands until `clear`."""
        self._order = order

    def clear(self) -> None:
        """Take the order back."""
        self._order = None

    def current(self) -> Order | None:
        """Return the order that stands."""
        return self._order

    def wait(self, seconds: float) -> Order | None:
        """Return the order that stands, without waiting."""
        self.waited.append(seconds)

        return self._order
