"""docs/github.md says what the table of commands says."""

from __future__ import annotations

from pathlib import Path

from adws.adw_modules.deliveries.commands import MEANINGS, WorkflowStanding
from adws.adw_modules.deliveries.handler import FIRST_SECONDS, MAX_SECONDS, MAX_TRIES

PAGE = (Path(__file__).parents[3] / "docs" / "github.md").read_text()


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def test_the_page_has_the_table_of_commands():
    head = row("command", *(standing.value for standing in WorkflowStanding))
    made = [
        row(kind, *(what[one].value.replace("_", " ") if one in what else "-" for one in WorkflowStanding))
        for kind, what in MEANINGS.items()
    ]

    assert "\n".join([head, "|---" * (len(WorkflowStanding) + 1) + "|", *made]) in PAGE


def test_the_page_has_the_times_of_the_code():
    flat = " ".join(PAGE.split())

    assert (
        f"after {FIRST_SECONDS:.0f} seconds, then twice as long each time, at most {MAX_SECONDS / 60:.0f} minutes"
        in flat
    )
    assert f"After {MAX_TRIES} tries" in flat
