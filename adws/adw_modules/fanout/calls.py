"""
Making one call of a step: what whoever makes it gets, and what is asked of it.

A call may be made more than once: its worker may vanish before the report is stored. What it saves it saves under
`Assignment.sink_key`, so that a repeated call saves nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from adws.adw_modules.expressions import Value
from adws.adw_modules.interfaces_engine import Orders, ProcessRecord

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.executions import Assignment, CallReport
    from adws.adw_modules.steps import StepSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class CallContext:
    """All that a call may know and do."""

    document: WorkflowDocument  #: as it was stored last; a call never changes it
    phase: str
    phase_attempt: int  #: number of the phase's attempt
    #: What templates know: issue, workload, vars, steps, phases, attempt, page, and of a loop the element and index.
    values: Mapping[str, Value]
    cwd: Path  #: where the work is: the worktree, or the repository
    folder: Path  #: the workflow's own directory for output
    orders: Orders  #: whoever sees one ends the call and reports it as suspended
    record_process: Callable[[ProcessRecord], None]  #: returns when the record is durable
    say: Callable[[str], None] = lambda _line: None  #: shows a line of progress; never raises
    env: Mapping[str, str] = field(default_factory=dict)  #: variables for its process, besides the allowed ones
    spent: Callable[[], float] = lambda: 0.0  #: US dollars that calls have cost and the document does not know of yet
    model: str = ""  #: the model the phase's attempt was begun with, "": the agent's own choice


class CallMaker(Protocol):
    """Makes calls: the tool, and then the sink."""

    def make(self, step: StepSpec, assignment: Assignment, context: CallContext) -> CallReport:
        """
        Make one call and say what came of it.

        Its inputs are `call_rules.inputs_of(step, assignment, context.values)`. A failure is a report with an error
        of the one classifier: `ErrorFacts.to_json()` with `type`, `status` and `has_stack_trace` beside it. Only what
        says that the run is not ours any more is raised.
        """
