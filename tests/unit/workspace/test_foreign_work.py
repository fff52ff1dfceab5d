"""Whether a workflow works on a branch of somebody else, and which files tell agents what to do."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import Resource, WorkflowDocument
from adws.adw_modules.workflow.model import PhaseSpec
from adws.adw_modules.workspace import change_audit

AT = "2026-01-31T09:00:00.000000Z"
AGENT = PhaseSpec(name="build", state="building", runner="codex", prompt="build")
COMMAND = PhaseSpec(name="build", state="building", runner="command", command=("true",))


def document(branch: str | None = "mine", **resource) -> WorkflowDocument:
    fields = {"key": f"branch:{branch}", "kind": "branch", "outcome": "made", "undo": {"start": "c0"}, **resource}
    return WorkflowDocument(
        adw_id="1a2b3c4d",
        issue_number=7,
        branch_name=branch,
        resources=[Resource(**fields)],
        created_at=AT,
        updated_at=AT,
    )


@pytest.mark.parametrize(
    ("found", "is_foreign"),
    [
        (document(), False),
        (document(branch=None), False),
        (document(outcome="adopted"), True),
        (document(undo={"start": ""}), True),
        (document(undo={}), True),
        (document(key="branch:another"), True),
    ],
    ids=["made-by-us", "no-branch-yet", "adopted", "from-an-older-tool", "begin-unknown", "not-in-the-ledger"],
)
def test_a_branch_is_foreign_unless_we_began_it(found, is_foreign):
    assert change_audit.is_foreign(found) is is_foreign
    assert change_audit.is_guarded(found, AGENT) is is_foreign
    assert not change_audit.is_guarded(found, COMMAND), "a command reads no configuration of agents"


def test_files_that_tell_agents_what_to_do_are_known_at_any_depth():
    files = ["src/app.py", ".claude/settings.json", "docs/CLAUDE.md", ".mcp.json", "GEMINI.md", ".codex/config.toml"]

    result = change_audit.configuration([*files, ".mcp.json"])

    assert result == (".claude/settings.json", ".codex/config.toml", ".mcp.json", "GEMINI.md", "docs/CLAUDE.md")
