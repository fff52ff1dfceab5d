"""docs/github.md says what the table of commands says."""

from __future__ import annotations

from pathlib import Path

from adws.adw_modules.deliveries.commands import MEANINGS, WorkflowStanding
from adws.adw_modules.deliveries.handler import FIRST_SECONDS, MAX_SECONDS, MAX_TRIES

PAGE = (Path(__file__).parents[3] / "docs" / "github.md").read_text()


def line(kind: str) -> str:
    """Return what a command does, and in which states."""
    states: dict[str, list[str]] = {}
    for standing, action in MEANINGS[kind].items():
        states.setdefault(action.value.replace("_", " "), []).append(standing.value)
    is_always = len(MEANINGS[kind]) == len(WorkflowStanding)
    parts = (f"{action} ({'always' if is_always else ', '.join(names)})" for action, names in states.items())
    return f"- `{kind}`: {', '.join(parts)}"


def test_the_page_says_what_each_command_does_in_which_state():
    assert "\n".join(map(line, MEANINGS)) in PAGE


def test_the_page_has_the_times_of_the_code():
    flat = " ".join(PAGE.split())

    assert (
        f"after {FIRST_SECONDS:.0f} seconds, then twice as long each time, at most {MAX_SECONDS / 60:.0f} minutes"
        in flat
    )
    assert f"After {MAX_TRIES} tries" in flat
