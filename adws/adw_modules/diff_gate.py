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
from adws.adw_modules.interfaces_resources import CommitText

#: Files that decide what runs with the rights of the repository.
WORKFLOW_FILES = (".github/workflows", ".github/actions", ".gitlab-ci.yml", ".circleci")
#: Files that decide what an agent may do and is told.
AGENT_FILES = (
    ".claude",
    "CLAUDE.md",
    "CLAUDE.local.md",
    "AGENTS.md",
    "AGENTS.override.md",
    ".codex",
    "GEMINI.md",
    ".gemini",
    ".opencode",
    "opencode.json",
    "opencode.jsonc",
    ".aider.conf.yml",
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


def check_commits(
    commits: Sequence[CommitText], rules: DiffRules, *, has_secret: Callable[[str], bool]
) -> tuple[str, ...]:
    """
    Return why *commits* may not be pushed, one sentence each; nothing when they may.

    What one commit adds and a later one takes out is in no diff of the whole, and is pushed all the same.
    """
    if rules.allow_secrets:
        return ()
    told = [commit.sha[:12] for commit in commits if has_secret(f"{commit.person}\n{commit.message}")]
    kept = [
        f"{place} in {commit.sha[:12]}"
        for commit in commits
        for place in _secret_places(commit.patch, rules, has_secret)
    ]

    return (
        *([f"the message of {_listed(told)} has what looks like a secret: reword it"] if told else []),
        *([f"a commit adds what looks like a secret at {_listed(kept)}: squash it away"] if kept else []),
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
    found = _secret_places(diff, rules, has_secret)
    if found:
        yield f"it adds what looks like a secret at {_listed(found)}: take it out, or allow it with ship.allow_paths"


def _secret_places(diff: str, rules: DiffRules, has_secret: Callable[[str], bool]) -> list[str]:
    """Return where *diff* adds secrets: lines by themselves, and files whose lines make one up together."""
    files: dict[str, list[Added]] = {}
    for line in added_lines(diff):
        files.setdefault(line.file, []).append(line)
    found: list[str] = []
    for file in path_patterns.outside(files, rules.allowed_paths) if rules.allowed_paths else files:
        lines = [line for line in files[file] if has_secret(line.text)]
        if lines or has_secret("\n".join(line.text for line in files[file])):
            found += [f"{file}:{line.number}" for line in lines or files[file][:1]]

    return found


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - MAX_TOLD} more" if len(found) > MAX_TOLD else ""

    return ", ".join(found[:MAX_TOLD]) + more
