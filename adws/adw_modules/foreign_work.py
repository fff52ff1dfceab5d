"""
Whether a workflow works on what somebody else has written: a branch that adw did not begin from the default branch.

Pure. Whoever opened a pull request wrote its files, those among them that tell agents what to do and what they may.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from adws.adw_modules import diff_gate, effect_rules, path_patterns
from adws.adw_modules.workflow import AGENT, AGENTS

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.workflow import PhaseSpec


def is_foreign(document: WorkflowDocument) -> bool:
    """Say whether the branch of a workflow was begun by somebody else, or where it began is not known."""
    if not document.branch_name:
        return False
    branch = effect_rules.effect(document, f"branch:{document.branch_name}")

    return branch is None or branch.outcome == "adopted" or not branch.undo.get("start")


def is_guarded(document: WorkflowDocument, phase: PhaseSpec) -> bool:
    """Say whether an agent that works on *phase* gets the configuration of the base branch."""
    return phase.runner in (AGENT, *AGENTS) and is_foreign(document)


def configuration(files: Iterable[str]) -> tuple[str, ...]:
    """Return those of *files* that tell agents what to do."""
    return path_patterns.matching(sorted(set(files)), diff_gate.AGENT_FILES)
