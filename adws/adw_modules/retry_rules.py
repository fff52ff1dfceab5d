"""
Retries of phases that wait for their time: which they are, and giving one up.

Pure. A phase whose attempt waits for work that others do is no retry: that attempt is not over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import attempt_rules
from adws.adw_modules.attempt_rules import Loss
from adws.adw_modules.errors import UsageError
from adws.adw_modules.phase_choice import WAITING, waiting_attempt
from adws.adw_modules.plain_document import last_attempt, objects
from adws.adw_modules.state_table import ACTIVE_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.document_draft import Draft
    from adws.adw_modules.executions import ScheduledRetry
    from adws.adw_modules.json_value import JsonObject, JsonValue
    from adws.adw_modules.outcome import Outcome
    from adws.adw_modules.workflow import WorkflowSpec

_ACTIVE = frozenset(state.value for state in ACTIVE_STATES)
#: Why a phase has failed whose next attempt a person did not want.
CANCELLED = "RETRY_CANCELLED"


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingRetry:
    """Something that is tried again at a moment: a phase, or a call of a step."""

    kind: str  #: phase | call
    retry_id: str  #: what `adw retries cancel` takes: the workflow, or the execution
    adw_id: str
    phase: str
    next_at: str
    why: str
    step: str = ""
    index: int | None = None  #: of a call's iteration
    attempt_number: int = 0  #: attempts so far
    page: int | None = None
    error: str = ""

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return asdict(self)


def of_call(retry: ScheduledRetry) -> WaitingRetry:
    """Return a call of a step that waits."""
    return WaitingRetry(
        kind="call",
        retry_id=retry.execution_id,
        adw_id=retry.adw_id,
        phase=retry.phase,
        step=retry.step,
        index=retry.index,
        attempt_number=retry.attempt_number,
        page=retry.page,
        next_at=retry.next_at,
        why=retry.why,
        error=retry.error,
    )


def of_phase(data: Mapping[str, JsonValue]) -> WaitingRetry | None:
    """Return the retry that the workflow in the plain document *data* waits for, None when it waits for none."""
    for phase in objects(data.get("phases")) if data.get("current_state") in _ACTIVE else ():
        if phase.get("status") != "retry_wait" or not phase.get("retry_at"):
            continue
        if last_attempt(phase).get("status") == WAITING:
            continue
        used = phase.get("attempts_used")
        return WaitingRetry(
            kind="phase",
            retry_id=str(data.get("adw_id") or ""),
            adw_id=str(data.get("adw_id") or ""),
            phase=str(phase.get("name") or ""),
            next_at=str(phase.get("retry_at")),
            why=str(phase.get("wait_reason") or "it failed"),
            attempt_number=used if isinstance(used, int) else 0,
            error=str(phase.get("last_failure_reason") or ""),
        )

    return None


def waiting_phase(document: WorkflowDocument) -> int:
    """Return the place of the phase that waits to be tried again; raise UsageError when none does."""
    for index, record in enumerate(document.phases if document.current_state in _ACTIVE else ()):
        if record.status == "retry_wait" and waiting_attempt(record) is None:
            return index

    raise UsageError(f"workflow {document.adw_id} has no phase that waits to be tried again: adw retries shows them")


def cancel(draft: Draft, spec: WorkflowSpec, index: int, *, by: str, reason: str = "") -> Outcome:
    """Fail the phase at *index* instead of trying it again; the workflow goes on without one that is not required."""
    why = f"{by} cancelled its next attempt" + (f": {reason}" if reason else "")

    return attempt_rules.fail_waiting(draft, spec, index, Loss(reason=CANCELLED, message=why))
