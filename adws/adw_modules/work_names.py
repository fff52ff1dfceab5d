"""
What work is called outside: the class of its issue, its commits, whose worktree and whose ref something is.

Pure, and always the same for the same document: what a crash kept from being written down is found again by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument

#: Classes of issues, as branches are named by them.
CLASSES = ("feature", "bug", "chore", "patch", "test")
#: The class of an issue that nothing is known about.
DEFAULT_CLASS = "feature"
#: Labels that say what class an issue is of, besides the classes themselves.
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "enhancement": "feature",
        "feat": "feature",
        "fix": "bug",
        "defect": "bug",
        "maintenance": "chore",
        "refactor": "chore",
        "documentation": "chore",
        "docs": "chore",
        "dependencies": "chore",
        "tests": "test",
    }
)
#: Characters of a title that go into the first line of a commit.
MAX_SUBJECT = 50
#: Which agent does a phase, as commits name it.
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "plan": "sdlc_planner",
        "build": "sdlc_implementor",
        "test": "test_runner",
        "review": "reviewer",
        "document": "documenter",
        "ship": "shipper",
    }
)


def issue_class(document: WorkflowDocument) -> str:
    """Return the class of a workflow's issue: the recorded one, else what its labels say, else `feature`."""
    recorded = (document.issue_class or "").strip("/ ").lower()
    labels = document.issue.labels if document.issue else []
    for word in (recorded, *(label.strip().lower() for label in labels)):
        found = LABELS.get(word, word)
        if found in CLASSES:
            return found

    return DEFAULT_CLASS


def commit_message(document: WorkflowDocument, phase: str) -> str:
    """Return the message of the commit after *phase*: `<agent or phase>: <class>: <title>`, and whose work it is."""
    title = " ".join((document.issue.title if document.issue else "").split()).rstrip(".")
    short = title if len(title) <= MAX_SUBJECT else title[:MAX_SUBJECT].rsplit(" ", 1)[0]
    subject = f"{AGENTS.get(phase, phase)}: {issue_class(document)}: {short or f'work of {document.adw_id}'}"
    issue = [] if document.issue_number is None else [f"ADW-Issue: #{document.issue_number}"]

    return "\n".join([subject, "", *issue, f"ADW-ID: {document.adw_id}", f"ADW-Phase: {phase}", ""])


def lock_reason(adw_id: str) -> str:
    """Return whose worktree it is, as git keeps it."""
    return f"adw {adw_id}"


def owner_of_lock(reason: str) -> str:
    """Return the workflow that `lock_reason` named, "" when the worktree is locked by somebody else, or not at all."""
    found = re.fullmatch(r"adw ([A-Za-z0-9][A-Za-z0-9_-]{0,63})", reason)

    return found[1] if found else ""


def is_of_another(ref: str, adw_id: str) -> bool:
    """Say whether a ref is by its name the work of another workflow."""
    named = re.search(r"-adw-([A-Za-z0-9_]+)-", ref)

    return named is not None and named[1] != adw_id
