"""
What a phase may change, and what may leave this machine. Pure, and fails closed.

Three parts: what a phase changed in the git directory that all worktrees share, patterns of allowed paths, and the
check of a diff before it is pushed. Only added lines are searched for secrets: one that is taken out is out already,
and has to be renewed anyway.
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


# --- what all worktrees share --------------------------------------------------------------------------------------
#
# What makes git run programs or believe other things for everybody (configuration, hooks, attributes, replaced objects,
# the default branch, tags) is kept as marks: a name and a hash, never a value, which could be a secret. What git itself
# records about branches every day is left out.

#: What there is -> its hash, or the commit of a ref.
Marks: TypeAlias = Mapping[str, str]

#: What is kept with an attempt: the marks before it, and of what it changed the marks as they were.
BEFORE, CHANGED = "before", "changed"
#: Where the marks of configuration begin.
CONFIG = "config "
#: Refs that only ever come, but for tags: what is new among them is recorded as an effect.
TAGS, HEADS = "refs/tags/", "refs/heads/"

_SECTION = re.compile(r'\s*\[([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\]\s*')
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:=(.*))?")
#: What git and tools write down about a branch when it is made, pushed or pulled.
_OF_BRANCHES = frozenset({"remote", "merge", "rebase", "pushremote", "description", "vscode-merge-base"})
_HASH_LENGTH = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitText:
    """All of a commit that others get to read."""

    sha: str
    person: str  #: who wrote it and who committed it
    message: str
    patch: str


def mark(content: bytes) -> str:
    """Return the mark of *content*."""
    return hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]


def marks_of_config(text: str, *, where: str = "") -> dict[str, str]:
    """Return a mark for every key of a configuration file; *where* says which file it is, "": the repository's own."""
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
            # Lines that are no plain entry count together, as they are: git may read more into them.
            values.setdefault(f"{prefix}(other lines)", []).append(line)

    return {name: mark("\n".join(item).encode("utf-8", "replace")) for name, item in values.items()}


def differences(before: Marks, after: Marks, *, is_forward: Callable[[str, str], bool] = lambda _o, _n: False) -> Marks:
    """
    Return what was changed, with the marks as they were before, "" for what is new.

    *is_forward* says whether a branch may have gone from one commit to another in the ordinary course of work.
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
    """Return what was changed in words."""
    how = {name: "new" if not was else "changed" if name in after else "gone" for name, was in changed.items()}

    return ", ".join(f"{name} ({what})" for name, what in how.items())


def still(changed: Marks, now: Marks) -> Marks:
    """Return what of *changed* has not been put back."""
    return {name: was for name, was in changed.items() if now.get(name, "") != was}


def unsettled(document: WorkflowDocument) -> tuple[str, int, Marks] | None:
    """
    Return the newest attempt under guard if it changed what is shared, or was cut off before anybody looked.

    That is its phase, its number, and the marks as they were. A later attempt settles it: only a person starts one
    after such a change.
    """
    attempts = [(record.name, one) for record in document.phases for one in record.attempts if one.shared is not None]
    if not attempts:
        return None
    phase, newest = max(attempts, key=lambda found: found[1].started_at or "")
    changed = _marks(newest, CHANGED)
    if not changed and newest.status == "interrupted":  # branches go on meanwhile
        changed = {name: was for name, was in _marks(newest, BEFORE).items() if not name.startswith(HEADS)}

    return (phase, newest.number, changed) if changed else None


def _marks(attempt: AttemptRecord, name: str) -> Marks:
    result = (attempt.shared or {}).get(name)

    return {key: str(value) for key, value in result.items()} if isinstance(result, dict) else {}


# --- patterns of paths, such as `src/**`, `docs/`, `*.md` or `.github/workflows` -----------------------------------
#
# A pattern without a wildcard means that file, or everything below that directory. `*` stays inside one name,
# `**` goes through any number of directories; a pattern without a slash means names at any depth.


def matching(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that one of *patterns* means, in order."""
    wanted = [_compiled(pattern) for pattern in patterns]

    return tuple(path for path in paths if any(one.fullmatch(path) for one in wanted))


def outside(paths: Iterable[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that none of *patterns* means; none when there are no patterns, which allows all."""
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

    # What stands for a directory stands for all that is in it.
    return re.compile(f"{text}(?:/.*)?", re.DOTALL)


# --- the check before a push ---------------------------------------------------------------------------------------

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

    allow_workflow_files: bool = False
    allow_agent_files: bool = False
    allowed_paths: tuple[str, ...] = ()  #: patterns of files that are let through whatever they are
    max_files: int = 300
    max_lines: int = 20_000  #: added and removed


def check_diff(
    diff: str, files: Sequence[str], rules: DiffRules, *, has_secret: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return why *diff*, which changes *files*, may not be pushed, one sentence each; nothing when it may."""
    problems = []
    if len(files) > rules.max_files:
        problems.append(f"it changes {len(files)} files, more than the {rules.max_files} that ship.max_files allows")
    lines = sum(1 for line in diff.split("\n") if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")))
    if lines > rules.max_lines:
        problems.append(f"it changes {lines} lines, more than the {rules.max_lines} that ship.max_lines allows")
    guarded = outside(files, rules.allowed_paths) if rules.allowed_paths else files
    for what, patterns, is_allowed, key in (
        ("workflow files", WORKFLOW_FILES, rules.allow_workflow_files, "ship.allow_workflow_files"),
        ("agent configuration", AGENT_FILES, rules.allow_agent_files, "ship.allow_agent_files"),
    ):
        if not is_allowed and (changed := matching(guarded, patterns)):
            problems.append(f"it changes {what} ({_listed(changed)}), which {key} does not allow")
    if places := _secret_places(diff, rules, has_secret):
        problems.append(
            f"it adds what looks like a secret at {_listed(places)}: take it out, or allow it with ship.allow_paths"
        )

    return tuple(problems)


def check_commits(
    commits: Sequence[CommitText], rules: DiffRules, *, has_secret: Callable[[str], bool]
) -> tuple[str, ...]:
    """
    Return why *commits* may not be pushed, one sentence each; nothing when they may.

    What one commit adds and a later one takes out is in no diff of the whole, and is pushed all the same.
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
    """Yield file, number and text of every line that *diff* adds."""
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
    """Return where *diff* adds secrets: lines by themselves, and files whose lines make one up together."""
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
