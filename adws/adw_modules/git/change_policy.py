"""
Rules for what a phase may change and what may leave this machine. Pure functions that fail closed.

Three parts: changes of a phase in the git directory that all worktrees share, patterns of allowed paths, and the check
of a diff before it is pushed. Only added lines are searched for secrets: a removed secret is published already and has
to be renewed anyway.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument


# --- changes of the shared git directory ---------------------------------------------------------------------------
#
# Whatever makes git run programs or see other content in every worktree (configuration, hooks, attributes, replaced
# objects, the default branch, tags) is recorded as marks: a name and a hash, never a value, which could be a secret.
# What git itself records about branches every day is left out.

#: Name of a watched item -> its hash, or the commit of a ref.
Marks: TypeAlias = Mapping[str, str]

#: Keys of an attempt's record: the marks before it, and the former marks of what it changed.
BEFORE, CHANGED = "before", "changed"
#: Prefix of the marks of configuration.
CONFIG = "config "
#: Refs whose creation is allowed: new ones are recorded as effects.
TAGS, HEADS = "refs/tags/", "refs/heads/"

_SECTION = re.compile(r'\s*\[([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\]\s*')
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:=(.*))?")
#: Keys that git and tools write when a branch is made, pushed or pulled.
_OF_BRANCHES = frozenset({"remote", "merge", "rebase", "pushremote", "description", "vscode-merge-base"})
_HASH_LENGTH = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitText:
    """The parts of a commit that others can read."""

    sha: str
    person: str  #: author and committer
    message: str
    patch: str


def mark(content: bytes) -> str:
    """Return the mark of *content*."""
    return hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]


def marks_of_config(text: str, *, where: str = "") -> dict[str, str]:
    """Return a mark for every key of a configuration file; *where* names the file, "" for the repository's own."""
    prefix = f"{CONFIG}{where}: " if where else CONFIG
    values: dict[str, list[str]] = {}
    section, is_continued = "", False
    for line in text.splitlines():
        plain, is_continued = not is_continued and not line.endswith("\\"), line.endswith("\\")
        header, entry = _SECTION.fullmatch(line), _KEY.fullmatch(line)
        if plain and header:
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
        elif plain and entry and section:
            key = entry[1].lower()
            if not (section.startswith("branch.") and key in _OF_BRANCHES):
                values.setdefault(f"{prefix}{section}.{key}", []).append((entry[2] or "").strip())
        elif line.strip() and not line.lstrip().startswith(("#", ";")):
            # Lines that are not plain entries get one common mark: git may interpret them differently.
            values.setdefault(f"{prefix}(other lines)", []).append(line)

    return {name: mark("\n".join(item).encode("utf-8", "replace")) for name, item in values.items()}


def differences(before: Marks, after: Marks, *, is_forward: Callable[[str, str], bool] = lambda _o, _n: False) -> Marks:
    """
    Return the changed names with their former marks, "" for a new name.

    *is_forward* tells whether a branch may have moved from one commit to the other in ordinary work.
    """
    result = {}
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        is_new_ref = was is None and name.startswith((TAGS, HEADS))
        has_moved_on = name.startswith(HEADS) and was and now and was != now and is_forward(was, now)
        if was != now and not is_new_ref and not has_moved_on:
            result[name] = was or ""

    return result


def described(changed: Marks, after: Marks) -> str:
    """Describe the changes in words."""
    how = {name: "new" if not was else "changed" if name in after else "gone" for name, was in changed.items()}

    return ", ".join(f"{name} ({what})" for name, what in how.items())


def still(changed: Marks, now: Marks) -> Marks:
    """Return the part of *changed* that has not been restored."""
    return {name: was for name, was in changed.items() if now.get(name, "") != was}


def unsettled(document: WorkflowDocument) -> tuple[str, int, Marks] | None:
    """
    Return the newest guarded attempt if it changed shared items, or was interrupted before the check.

    The result is its phase, its number and the former marks. A later attempt settles it: only a person starts one after
    such a change.
    """
    attempts = [(record.name, one) for record in document.phases for one in record.attempts if one.shared is not None]
    if not attempts:
        return None
    phase, newest = max(attempts, key=lambda found: found[1].started_at or "")
    changed = _marks(newest, CHANGED)
    if not changed and newest.status == "interrupted":  # branches move in the meantime
        changed = {name: was for name, was in _marks(newest, BEFORE).items() if not name.startswith(HEADS)}

    return (phase, newest.number, changed) if changed else None


def _marks(attempt: AttemptRecord, name: str) -> Marks:
    result = (attempt.shared or {}).get(name)

    return {key: str(value) for key, value in result.items()} if isinstance(result, dict) else {}


# --- patterns of paths, such as `src/**`, `docs/`, `*.md` or `.github/workflows` -----------------------------------
#
# A pattern without a wildcard matches that file, or everything below that directory. `*` stays within one name, `**`
# crosses any number of directories; a pattern without a slash matches names at any depth.


def matching(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that match one of *patterns*, in order."""
    wanted = [_compiled(pattern) for pattern in patterns]

    return tuple(path for path in paths if any(one.fullmatch(path) for one in wanted))


def outside(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that match none of *patterns*; without patterns every path is allowed."""
    known, wanted = tuple(paths), tuple(patterns)
    if not wanted:
        return ()
    inside = set(matching(known, wanted))

    return tuple(path for path in known if path not in inside)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = [part for part in pattern.removeprefix("./").split("/") if part]
    is_anchored = len(parts) > 1 or pattern.startswith("/")
    text = "" if is_anchored else r"(?:.*/)?"
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            text += ".+" if is_last else r"(?:.*/)?"
        else:
            text += re.escape(part).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
            text += "" if is_last else "/"

    # A match of a directory includes everything below it.
    return re.compile(f"{text}(?:/.*)?", re.DOTALL)


# --- the check before a push ---------------------------------------------------------------------------------------

#: Files that decide what runs with the rights of the repository.
WORKFLOW_FILES = (".github/workflows", ".github/actions", ".gitlab-ci.yml", ".circleci")
#: An example of them.
A_WORKFLOW_FILE = ".github/workflows/ci.yml"
#: Files that decide what an agent may do and which instructions it gets.
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
#: GitHub lists no more files of a pull request: nobody could review the others there.
MAX_FILES = 3000
#: Findings listed one by one; the others are only counted.
MAX_TOLD = 10

_FILE = re.compile(r'\+\+\+ (?:"?b/(.*?)"?|/dev/null)\s*')
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffRules:
    """The limits and exceptions of a home."""

    guards_files: bool = True  #: refuse files that decide what runs, or what an agent may do
    allowed_paths: tuple[str, ...] = ()  #: patterns of files whose content is exempt from the checks
    max_files: int = MAX_FILES
    max_lines: int = 20_000  #: added and removed


def check_diff(
    diff: str, files: Sequence[str], rules: DiffRules, *, has_secret: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return why *diff*, which changes *files*, may not be pushed, one sentence each; empty if it may."""
    problems = []
    if len(files) > rules.max_files:
        problems.append(f"it changes {len(files)} files, more than the {rules.max_files} that GitHub lists")
    lines = sum(1 for line in diff.split("\n") if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")))
    if lines > rules.max_lines:
        problems.append(f"it changes {lines} lines, more than the {rules.max_lines} that ship.max_lines allows")
    guarded = outside(files, rules.allowed_paths) if rules.allowed_paths else files
    for what, patterns in (("workflow files", WORKFLOW_FILES), ("agent configuration", AGENT_FILES)):
        if rules.guards_files and (changed := matching(guarded, patterns)):
            problems.append(f"it changes {what} ({_listed(changed)}), which ship.allow_paths does not allow")
    if places := _secret_places(diff, rules, has_secret):
        problems.append(
            f"it adds what looks like a secret at {_listed(places)}: take it out, or allow it with ship.allow_paths"
        )

    return tuple(problems)


def check_commits(
    commits: Sequence[CommitText], rules: DiffRules, *, has_secret: Callable[[str], bool]
) -> tuple[str, ...]:
    """
    Return why *commits* may not be pushed, one sentence each; empty if they may.

    The diff of the whole branch does not show what one commit adds and a later one removes, yet both are pushed.
    """
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


def added_lines(diff: str) -> Iterator[tuple[str, int, str]]:
    """Yield file, line number and text of every line that *diff* adds."""
    file, number, is_header = "", 0, True
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            is_header = True
        elif hunk := _HUNK.match(line):
            number, is_header = int(hunk[1]), False
        elif is_header and (named := _FILE.fullmatch(line)):
            file = named[1] or ""
        elif line.startswith("+") and not is_header:
            yield file, number, line[1:]
            number += 1
        elif line.startswith(" ") and not is_header:
            number += 1


def _secret_places(diff: str, rules: DiffRules, has_secret: Callable[[str], bool]) -> list[str]:
    """Return where *diff* adds secrets: single lines, and files whose added lines form one together."""
    files: dict[str, list[tuple[int, str]]] = {}
    for file, number, text in added_lines(diff):
        files.setdefault(file, []).append((number, text))
    result: list[str] = []
    for file in outside(files, rules.allowed_paths) if rules.allowed_paths else files:
        numbers = [number for number, text in files[file] if has_secret(text)]
        if numbers or has_secret("\n".join(text for _, text in files[file])):
            result += [f"{file}:{number}" for number in numbers or [files[file][0][0]]]

    return result


def _listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - MAX_TOLD} more" if len(found) > MAX_TOLD else ""

    return ", ".join(found[:MAX_TOLD]) + more
