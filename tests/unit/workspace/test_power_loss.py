"""When a worktree is no longer believed to be what the last phase left."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
from adws.adw_modules.workspace.power_loss import why_unclean

MOMENT = "2026-01-31T09:00:00.000000Z"
HERE = {"boot_id": "boot 2", "mount": "7"}
RESTARTED = "the machine restarted since it was last worked on"


def after(status: str) -> WorkflowDocument:
    """Return a workflow whose last attempt ended as *status*, and whose next one runs."""
    attempts = [
        AttemptRecord(number=1, status=status, started_at=MOMENT),
        AttemptRecord(number=2, status="running", started_at=MOMENT),
    ]
    phases = [PhaseRecord(name="build", state="building", attempts=attempts)]

    return WorkflowDocument(adw_id="1a2b3c4d", issue_number=1, phases=phases, created_at=MOMENT, updated_at=MOMENT)


@pytest.mark.parametrize(
    ("status", "known", "now", "why"),
    [
        ("failed", HERE, HERE, ""),
        ("interrupted", HERE, HERE, ""),
        ("failed", {**HERE, "boot_id": "boot 1"}, HERE, RESTARTED),
        ("interrupted", {**HERE, "boot_id": "boot 1"}, HERE, RESTARTED),
        ("interrupted", {**HERE, "mount": "6"}, HERE, "build was cut off, and its file system was mounted again"),
        ("suspended", {**HERE, "mount": "6"}, HERE, ""),
        ("interrupted", {**HERE, "mount": ""}, HERE, ""),
        ("interrupted", HERE, {**HERE, "mount": ""}, ""),
        ("interrupted", {}, HERE, "build was cut off, and nobody can tell whether the machine restarted"),
        (
            "interrupted",
            HERE,
            {**HERE, "boot_id": ""},
            "build was cut off, and nobody can tell whether the machine restarted",
        ),
        ("failed", {}, HERE, ""),
    ],
)
def test_a_worktree_is_compared_after_a_restart_and_after_a_cut_with_a_new_mount(status, known, now, why):
    assert why_unclean(after(status), known, now) == why
