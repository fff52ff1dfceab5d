"""What a rollback left of the sample's workflow: looked for, not remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from adws.adw_modules.json_value import JsonObject
from adws.cli import output

if TYPE_CHECKING:
    from adws.app import App


def look(app: App, adw_id: str) -> dict[str, list[str]]:
    """Return every kind of thing that a workflow makes, and what is there of it."""
    seen = app.tidy.look()
    branch = app.store.load(adw_id).document.branch_name or ""
    default = app.git.default_branch()
    remote = app.git_room.remote_refs.all("refs/heads/*")

    return {
        "worktrees": [str(tree.path) for tree in app.git.worktrees()],
        "local branches": _branches(app.git.refs(), default),
        "branches at the remote": _branches(remote, default),
        "open pull requests": [f"#{one.number}" for one in app.forge.pull_requests_of(branch, state="open")],
        "ports": [str(row.port) for row in seen.ports],
        "processes": [str(one.stat.pid) for one in seen.processes],
        "locked issues": [f"#{lock.issue_number}" for lock in seen.locks],
    }


def lines(found: dict[str, list[str]], adw_id: str) -> list[str]:
    """Return the same in words."""
    pairs = [(name, ", ".join(things) or "none") for name, things in found.items()]

    return [f"What is left of workflow {adw_id}, besides main:", *(f"  {line}" for line in output.facts(pairs))]


def to_json(found: dict[str, list[str]]) -> JsonObject:
    """Return the same for programs."""
    return {name.replace(" ", "_"): list(things) for name, things in found.items()}


def _branches(refs: Mapping[str, str], default: str) -> list[str]:
    heads = [name.removeprefix("refs/heads/") for name in refs if name.startswith("refs/heads/")]

    return [name for name in heads if name != default]
