"""
What the engine works with: everything it calls and does not decide itself.

Each part has a default that does nothing, so that a test, or a home without agents, leaves out what it has no use for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from adws.adw_modules.attempt_rules import Trouble
from adws.adw_modules.engine.gates import GateVerdict
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import EffectMaker, Harvest, PhaseContext, Runner, Wait
from adws.adw_modules.outcome import RunReport

if TYPE_CHECKING:
    from adws.adw_modules.doctor_rules import Case, Consultation
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.engine.parties import BreakerNews
    from adws.adw_modules.error_handler import ErrorFacts
    from adws.adw_modules.events import Event
    from adws.adw_modules.process_tree import Ending
    from adws.adw_modules.redaction import Redactor
    from adws.adw_modules.workflow import PhaseSpec

#: What stands for the work on one workflow (`engine.attempt.WorkSession`).
SessionT = TypeVar("SessionT")
_Session_contra = TypeVar("_Session_contra", contravariant=True)


class Judge(Protocol):
    """Classifies what went wrong and decides whether the phase is tried again."""

    def __call__(self, error: BaseException, phase: PhaseSpec, record: PhaseRecord) -> Trouble: ...


class GateKeeper(Protocol):
    """Says whether what a phase did may pass."""

    def __call__(self, phase: PhaseSpec, context: PhaseContext, report: RunReport) -> GateVerdict: ...


class Conclusion(Protocol[_Session_contra]):
    """Secures what a phase did after its own success and before its gates; what it raises is a failed attempt."""

    def __call__(
        self, session: _Session_contra, phase: PhaseSpec, context: PhaseContext, report: RunReport
    ) -> RunReport: ...


class Doctor(Protocol):
    """Looks at a failed attempt and says how to go on (`engine.doctor`)."""

    @property
    def name(self) -> str:
        """Who it is, for the record."""

    @property
    def is_free(self) -> bool:
        """Whether asking touches nothing: then the question need not be durable before the answer."""

    def ask(self, case: Case) -> Consultation:
        """Return what to do; never raises but for orders and lost ownership."""


@dataclass(frozen=True, kw_only=True)  # no slots: `EngineParts` adds none, and is made once
class Parts(Generic[SessionT]):
    """What the engine works with; `EngineParts` says which session that is."""

    clock: Clock
    runners: Mapping[str, Runner]
    judge: Judge
    gates: GateKeeper
    folder_of: Callable[[str], Path]  #: a workflow's own directory
    workplace_of: Callable[[WorkflowDocument], Path]  #: where its phases work
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what a crash left running, and says what it was
    say: Callable[[str, str], None] = lambda _adw_id, _line: None  #: shows a line of a phase's output
    tell: Callable[[WorkflowDocument, Sequence[Event]], None] = lambda _document, _events: None  #: shows what is stored
    log_of: Callable[[str], AbstractContextManager[object]] = nullcontext  #: opens the log of a workflow
    has_log: bool = True  #: whether the log is told of what is stored
    redactor: Redactor | None = None  #: keeps secrets out of the log
    clean_up: Callable[[PhaseSpec, PhaseContext], None] = lambda _phase, _context: None  #: frees what was short
    prepare: Callable[[SessionT], None] = lambda _session: None  #: makes the place an attempt works in
    #: Hands things over to the processes of a phase inside the block; gives the variables that say what.
    around: Callable[[WorkflowDocument], AbstractContextManager[Mapping[str, str]]] = lambda _document: nullcontext({})
    conclude: Conclusion[SessionT] = lambda _session, _phase, _context, report: report
    effects_of: Callable[[SessionT], EffectMaker | None] = lambda _session: None  #: the ledger, for runners
    #: Told after the finishing write that a phase was done: nothing goes on from its checkpoints. Never raises.
    phase_over: Callable[[WorkflowDocument, PhaseSpec, int], None] = lambda _document, _phase, _round: None
    release: Callable[[SessionT], None] = lambda _session: None  #: gives back what only work at hand may hold
    report: Callable[[SessionT], None] = lambda _session: None  #: tells the outside how the work stands
    max_cost_usd: float | None = None  #: what a workflow without a cap of its own may cost; None: no cap

    # --- agents: each is asked for every phase, and costs nothing for one that no agent works on
    #: The model of the attempt that is about to begin, "" for the agent's own choice; it stands on the attempt.
    model_for: Callable[[WorkflowDocument, PhaseSpec, PhaseRecord], str] = lambda _document, _phase, _record: ""
    #: Asked before an attempt is recorded: what it has to wait for, None when it may begin. Never raises: who cannot be
    #: asked holds nobody up.
    may_begin: Callable[[WorkflowDocument, PhaseSpec], Wait | None] = lambda _document, _phase: None
    #: Told while an attempt runs that its outside parties answer: others need not wait for its end. Never raises.
    answered: Callable[[WorkflowDocument, PhaseSpec], None] = lambda _document, _phase: None
    #: Told that a person wants a phase to go on: what only a person can mend is taken for mended. Never raises.
    mended: Callable[[PhaseSpec], None] = lambda _phase: None
    #: Told before the finishing write how an attempt ended for its outside parties: why it failed, None when it went
    #: well. Answers what that did to breakers, told as events in that write. Never raises.
    settle_parties: Callable[[WorkflowDocument, PhaseSpec, ErrorFacts | None], Sequence[BreakerNews]] = (
        lambda _document, _phase, _facts: ()
    )
    #: Gives back what `may_begin` took for an attempt that says nothing about its parties: one ended on order.
    let_go: Callable[[WorkflowDocument], None] = lambda _document: None
    #: What an attempt had achieved that was cut off or ended on order, read from what it left; never raises.
    harvest: Callable[[WorkflowDocument, PhaseSpec, AttemptRecord], Harvest | None] = (
        lambda _document, _phase, _attempt: None
    )
    #: Told that facts about the agent of an attempt are stored, and that such an attempt is over. Neither raises.
    agent_begun: Callable[[WorkflowDocument, str, AttemptRecord], None] = lambda _document, _phase, _attempt: None
    agent_ended: Callable[[WorkflowDocument, str, AttemptRecord], None] = lambda _document, _phase, _attempt: None
    doctor: Doctor | None = None  #: asked about failed attempts; None: what was judged is done
