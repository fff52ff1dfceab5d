"""
What may leave this machine: the check of a diff before it is pushed.

Pure, and fails closed: a diff whose size cannot be told is too large. Only what was added is looked at for secrets: one
that is taken out is out already, and has to be renewed anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from adws.adw_modules import path_patterns

#: Files that decide what runs with the rights of the repository.
WORKFLOW_FILES = (".github/workflows", ".github/actions", ".gitlab-ci.yml", ".circleci")
#: Files that decide what an agent may do and is told.
AGENT_FILES = (
    ".claude",
    "CLAUDE.md",
    "AGENTS.md",
    ".mcp.json",
    ".cursor",
    ".cursorrules",
    ".github/copilot-instructions.md",
    "adw.toml",
)
#: Findings that are told one by one; beyond, their number.
MAX_TOLD = 10

_FILE = re.compile(r'\+\+\+ (?:"?b/(.*?)"?|/dev/null)\s*')
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffRules:
    """What a home lets through."""

    allow_secrets: bool = False
    allow_workflow_files: bool = False
    allow_agent_files: bool = False
    allowed_paths: tuple[str, ...] = ()  #: patterns of files that are let through whatever they are
    max_files: int = 300
    max_lines: int = 20_000  #: added and removed


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    """A line that a diff adds."""

    file: str
    number: int
    text: str


def check_diff(
    diff: str, files: Sequence[str], rules: DiffRules, *, has_secret: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return why *diff*, which changes *files*, may not be pushed, one sentence each; nothing when it may."""
    guarded = path_patterns.outside(files, rules.allowed_paths) if rules.allowed_paths else tuple(files)

    return (
        *_size_problems(diff, files, rules),
        *_file_problems(guarded, rules),
        *([] if rules.allow_secrets else _secret_problems(diff, rules, has_secret)),
    )


def added_lines(diff: str) -> Iterator[Added]:
    """Yield every line that *diff* adds, with its place in the new file."""
    file, number, is_header = "", 0, True
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            is_header = True
        elif hunk := _HUNK.match(line):
            number, is_header = int(hunk[1]), False
        elif is_header and (named := _FILE.fullmatch(line)):
            file = named[1] or ""
        elif line.startswith("+") and not is_header:
            yield Added(file=file, number=number, text=line[1:])
            number += 1
        elif line.startswith(" ") and not is_header:
            number += 1


def _size_problems(diff: str, files: Sequence[str], rules: DiffRules) -> Iterator[str]:
    if len(files) > rules.max_files:
        yield f"it changes {len(files)} files, more than the {rules.max_files} that ship.max_files allows"
    lines = sum(1 for line in diff.split("\n") if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")))
    if lines > rules.max_lines:
        yield f"it changes {lines} lines, more than the {rules.max_lines} that ship.max_lines allows"


def _file_problems(files: Sequence[str], rules: DiffRules) -> Iterator[str]:
    kinds = (
        ("workflow files", WORKFLOW_FILES, rules.allow_workflow_files, "ship.allow_workflow_files"),
        ("agent configuration", AGENT_FILES, rules.allow_agent_files, "ship.allow_agent_files"),
    )
    for what, patterns, is_allowed, key in kinds:
        found = () if is_allowed else path_patterns.matching(files, patterns)
        if found:
            yield f"it changes {what} ({_listed(found)}), which {key} does not allow"


def _secret_problems(diff: str, rules: DiffRules, has_secret: Callable[[str], bool]) -> Iterator[str]:
    found = [
        f"{line.file}:{line.number}"
        for line in added_lines(diff)
        if has_secret(line.text) and not path_patterns.matching((line.file,), rules.allowed_paths)
    ]
    if found:
        yield f"it adds what looks like a secret at {_listed(found)}: take it out, or allow it with ship.allow_paths"


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - MAX_TOLD} more" if len(found) > MAX_TOLD else ""

    return ", ".join(found[:MAX_TOLD]) + more
