"""
The doctor: what to do after a failed attempt that simply trying again may not help.

Pure. A case comes in, a prescription comes out; what a prescription does to a document is one change together with the
end of the attempt. The doctor has a limited number of calls, for each phase and for the whole workflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.outcome import RunReport

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.error_handler import ErrorFacts
    from adws.adw_modules.interfaces_engine import PhaseContext
    from adws.adw_modules.workflow import PhaseSpec

#: Calls of the doctor, for one phase and for a whole workflow; and how often a workflow is planned again.
MAX_CALLS_PER_PHASE = 2
MAX_CALLS = 10
MAX_REPLANS = 2

RETRY, RETRY_MODEL, REPLAN, SKIP, HUMAN = "retry", "retry_model", "replan", "skip", "human"
#: What a doctor may decide.
DECISIONS = (RETRY, RETRY_MODEL, REPLAN, SKIP, HUMAN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A failed attempt, for the doctor to look at."""

    facts: ErrorFacts  #: why it failed
    phase: PhaseSpec
    record: PhaseRecord  #: its newest attempt is the failed one, still open
    document: WorkflowDocument
    context: PhaseContext  #: of that attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Prescription:
    """What the doctor decided."""

    decision: str  #: one of DECISIONS
    reason: str  #: one sentence for people, and for the next plan
    model: str = ""  #: retry_model: the one for the next attempts of the phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Consultation:
    """A prescription, and what it took to get it."""

    prescription: Prescription
    by: str  #: who decided: rules, or the name of a callable or an agent
    problem: str = ""  #: why the doctor's answer was no use, "" when it was
    report: RunReport | None = None  #: of an agent that was asked: what it used
