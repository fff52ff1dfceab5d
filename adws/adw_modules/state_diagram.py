"""
A state table as a Mermaid diagram.

Pure: text from a table. Every move of the table is in the picture and no other; a move that all phases share is drawn
once, from or to the box around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from adws.adw_modules.state_table import END_STATES, PHASE_STATES, Table, WorkflowState, is_rework

#: Name of the box around the phases.
BOX = "working"

_LABELS = {
    WorkflowState.PAUSED: "pause",
    WorkflowState.FAILED: "fail",
    WorkflowState.ABANDONED: "abandon",
    WorkflowState.ROLLED_BACK: "roll back",
}
_LABELS_BACK = {WorkflowState.PAUSED: "resume", WorkflowState.FAILED: "retry"}


def mermaid(table: Table) -> str:
    """Return *table* as the text of a Mermaid state diagram; the last line ends like the others."""
    phases = [state for state in table if state in PHASE_STATES]
    others = [state for state in table if state not in PHASE_STATES]
    lines = [
        "stateDiagram-v2",
        f"    [*] --> {WorkflowState.PENDING.value}",
        f"    state {BOX} {{",
        *(f"        {state.value}" for state in phases),
        *(f"        {line}" for line in _inner(table, phases)),
        "    }",
        *(f"    {line}" for line in _outer(table, phases, others)),
        *(f"    {state.value} --> [*]" for state in others if state in END_STATES),
    ]

    return "\n".join(lines) + "\n"


def block(table: Table) -> str:
    """Return the diagram in a Markdown fence, as it stands between the marks of a generated page."""
    return f"```mermaid\n{mermaid(table)}```\n"


def _inner(table: Table, phases: Iterable[WorkflowState]) -> Iterator[str]:
    for state in phases:
        for target in table[state]:
            if target in PHASE_STATES:
                yield _arrow(state.value, target.value, "rework" if is_rework(state, target) else "")


def _outer(table: Table, phases: list[WorkflowState], others: list[WorkflowState]) -> Iterator[str]:
    for other in others:
        if all(other in table[phase] for phase in phases):
            yield _arrow(BOX, other.value, _LABELS.get(other, ""))
        else:
            yield from (
                _arrow(phase.value, other.value, _LABELS.get(other, "")) for phase in phases if other in table[phase]
            )

    for other in others:
        back = _LABELS_BACK.get(other, "")
        if all(phase in table[other] for phase in phases):
            yield _arrow(other.value, BOX, back)
        else:
            yield from (_arrow(other.value, phase.value, back) for phase in phases if phase in table[other])
        yield from _between(table, other)


def _between(table: Table, state: WorkflowState) -> Iterator[str]:
    for target in table[state]:
        if target not in PHASE_STATES:
            default = _LABELS_BACK.get(state, "")
            yield _arrow(state.value, target.value, _LABELS.get(target, default))


def _arrow(source: str, target: str, label: str) -> str:
    return f"{source} --> {target} : {label}" if label else f"{source} --> {target}"
