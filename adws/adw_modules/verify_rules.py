"""
What must hold of a workflow's document, whatever was killed or cut off; and the ten things that must always hold.

Pure. Each check returns what breaks its rule, in one sentence that names the place; nothing is repaired here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.doctor_rules import MAX_CALLS, MAX_CALLS_PER_PHASE, MAX_REPLANS
from adws.adw_modules.effect_rules import open_effects
from adws.adw_modules.errors import AdwError
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.phase_choice import NOT_COUNTED, limit
from adws.adw_modules.resume_rules import definition_of
from adws.adw_modules.retry_decision import MAX_PARKS
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.state_table import is_terminal

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument

#: number -> what must always hold.
INVARIANTS: Mapping[int, str] = {
    1: "What is loaded is a whole, valid revision, never torn and never older.",
    2: "Every change of state is an edge of the table.",
    3: "An attempt is recorded before it runs, and totals only grow.",
    4: "A phase runs at most as often as it may.",
    5: "A workflow has one live owner, and an issue one live workflow.",
    6: "Everything made outside is in the ledger.",
    7: "Rolled back means that nothing is left but what was kept.",
    8: "Only processes that adw started, and recorded, are its own.",
    9: "Nothing is completed without the success of every required phase.",
    10: "No secret is in what adw writes.",
}
_ENDED = frozenset({"complete", "skipped", "failed"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """Something that breaks an invariant."""

    invariant: int
    where: str  #: the workflow, file, branch or process
    what: str

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {"invariant": self.invariant, "rule": INVARIANTS[self.invariant], "where": self.where, "what": self.what}


def check_document(document: WorkflowDocument) -> tuple[Violation, ...]:
    """Return everything in a document that breaks a rule."""
    checks: tuple[Callable[[WorkflowDocument], Iterator[Violation]], ...] = (
        _moves,
        _attempts,
        _limits,
        _rollback,
        _required,
    )

    return tuple(found for check in checks for found in check(document))


def _moves(document: WorkflowDocument) -> Iterator[Violation]:
    try:
        WorkflowStateMachine.of(document)
    except AdwError as exc:
        yield _broken(2, document, str(exc))


def _attempts(document: WorkflowDocument) -> Iterator[Violation]:
    for record in document.phases:
        numbers = [attempt.number for attempt in record.attempts]
        if numbers != list(range(1, len(numbers) + 1)):
            yield _broken(3, document, f"the attempts of {record.name} are numbered {numbers}")
        if document.current_state in {"completed", "paused", "failed", "abandoned", "rolled_back"} and any(
            attempt.status == "running" for attempt in record.attempts
        ):
            yield _broken(3, document, f"{record.name} has an attempt that runs, though it is {document.current_state}")


def _limits(document: WorkflowDocument) -> Iterator[Violation]:
    for record in document.phases:
        if record.attempts_used > limit(record):
            yield _broken(4, document, f"{record.name} used {record.attempts_used} of {limit(record)} attempts")
        made = _counted(record)
        if made > record.attempts_used:
            what = (
                f"{record.name} was tried {made} times in round {record.round}, and {record.attempts_used} are counted"
            )
            yield _broken(4, document, what)
        if record.parks > MAX_PARKS:
            yield _broken(4, document, f"{record.name} waited for a quota {record.parks} of {MAX_PARKS} times in a row")
        if len(record.doctor) > MAX_CALLS_PER_PHASE:
            asked = f"{len(record.doctor)} of {MAX_CALLS_PER_PHASE}"
            yield _broken(4, document, f"the doctor was asked about {record.name} {asked} times")
    if document.reworks > document.max_reworks:
        yield _broken(4, document, f"it was sent back {document.reworks} of {document.max_reworks} times")
    if document.replans > MAX_REPLANS:
        yield _broken(4, document, f"it was planned again {document.replans} of {MAX_REPLANS} times")
    if document.doctor_calls > MAX_CALLS:
        yield _broken(4, document, f"the doctor was asked {document.doctor_calls} of {MAX_CALLS} times")


def _counted(record: PhaseRecord) -> int:
    return sum(1 for made in record.attempts if made.round == record.round and made.status not in NOT_COUNTED)


def _rollback(document: WorkflowDocument) -> Iterator[Violation]:
    if document.current_state != WorkflowState.ROLLED_BACK.value:
        return
    left = ", ".join(effect.key for effect in open_effects(document))
    if left:
        yield _broken(7, document, f"it is rolled back, and its ledger still has: {left}")
    if document.pr_merged:
        yield _broken(7, document, "it is rolled back, though its pull request is merged")
    record = document.rollback
    if record is not None and record.blocked_by:
        yield _broken(7, document, f"it is rolled back, and blocked by: {'; '.join(record.blocked_by)}")


def _required(document: WorkflowDocument) -> Iterator[Violation]:
    if document.current_state != WorkflowState.COMPLETED.value or document.workflow is None:
        return
    try:
        required = {phase.name for phase in definition_of(document).phases if phase.is_required}
    except AdwError as exc:
        yield _broken(9, document, str(exc))
        return
    for record in document.phases:
        # A clean-up that fails after a merge is a warning.
        is_forgiven = document.pr_merged and record.state == WorkflowState.CLEANING.value
        is_bad = record.name in required and record.status != "complete" and not is_forgiven
        if is_bad or record.status not in _ENDED:
            yield _broken(9, document, f"it is completed, and {record.name} is {record.status}")


def check_issues(documents: Iterable[WorkflowDocument], key: Callable[[str], str]) -> tuple[Violation, ...]:
    """Return the issues that more than one live workflow has; *key* makes one name of all a repository has."""
    live: dict[tuple[str, int], list[str]] = defaultdict(list)
    for document in documents:
        if document.issue_number is not None and not is_terminal(document.current_state):
            live[key(document.repository), document.issue_number].append(document.adw_id)

    return tuple(
        Violation(
            invariant=5,
            where=f"issue {number}" + (f" of {repository}" if repository else ""),
            what=f"more than one live workflow has it: {', '.join(sorted(ids))}",
        )
        for (repository, number), ids in live.items()
        if len(ids) > 1
    )


def count_by_invariant(found: Iterable[Violation]) -> dict[int, int]:
    """Return how many violations each invariant has, those without any included."""
    counted = Counter(violation.invariant for violation in found)

    return {number: counted[number] for number in INVARIANTS}


def _broken(invariant: int, document: WorkflowDocument, what: str) -> Violation:
    return Violation(invariant=invariant, where=document.adw_id, what=what)
