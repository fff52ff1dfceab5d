"""
What people are told of a rollback: its plan, and the comments that it leaves.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adws.adw_modules.rollback_rules import Step, kept

_MARKS = {"doing": "cut off, again"}


def plan_lines(steps: Iterable[Step], *, will: str = "will: ") -> list[str]:
    """Return the plan for people, one line for each step; *will* begins those that are to be done."""
    return [f"{_mark(step, will)}{step.what}{_because(step)}" for step in steps]


def summary_text(adw_id: str, reason: str, steps: Sequence[Step]) -> str:
    """Return the comment that tells of a rollback, without its marker."""
    done = [f"- {step.what}{_because(step)}" for step in steps if step.status == "done" and step.kind != "salvage"]
    left = [f"- {line}" for line in kept(steps)]
    parts = [f"Workflow {adw_id} was rolled back.", f"**Reason:** {reason}"]
    if done:
        parts.append("\n".join(["**Undone:**", *done]))
    if left:
        parts.append("\n".join(["**Left:**", *left]))

    return "\n\n".join(parts)


def closing_text(adw_id: str, reason: str) -> str:
    """Return the comment that a pull request is closed with, without its marker."""
    return f"Closed because workflow {adw_id} was rolled back: {reason}"


def _mark(step: Step, will: str) -> str:
    return will if step.status == "planned" else f"{_MARKS.get(step.status, step.status)}: "


def _because(step: Step) -> str:
    return f" ({step.detail})" if step.detail else ""
