"""
What an agent must not change in the git directory that all worktrees share, and whether it did.

Pure. What makes git run programs or believe other things for everybody (configuration, hooks, attributes, replaced
objects, the default branch, tags) is kept as marks: a name and a hash, never a value, which could be a secret. What git
itself writes down about branches every day is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument

#: What there is -> its hash, or the commit of a ref.
Marks: TypeAlias = Mapping[str, str]

#: Facts about an attempt of an agent: the marks before it, and of what it changed the marks as they were.
BEFORE, CHANGED = "shared", "shared_changed"
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
class Unsettled:
    """An attempt after which something shared was, or may be, no longer what it had been."""

    phase: str
    attempt: int
    before: Marks


def mark(content: bytes) -> str:
    """Return the mark of *content*."""
    return hashlib.sha256(content).hexdigest()[:_HASH_LENGTH]


def marks_of_config(text: str, *, where: str = "") -> dict[str, str]:
    """Return a mark for every key of a configuration file; *where* says which file it is, "": the repository's own."""
    prefix = f"{CONFIG}{where}: " if where else CONFIG
    values: dict[str, list[str]] = {}
    for name, value in _entries(text):
        values.setdefault(f"{prefix}{name}", []).append(value)

    return {name: mark("\n".join(found).encode("utf-8", "replace")) for name, found in values.items()}


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield key and value; lines that are no plain entry count together, as they are: git may read more into them."""
    section, is_continued = "", False
    for line in text.splitlines():
        plain, is_continued = not is_continued and not line.endswith("\\"), line.endswith("\\")
        header, entry = _SECTION.fullmatch(line), _KEY.fullmatch(line)
        if plain and header:
            section = header[1].lower() + (f".{header[2]}" if header[2] is not None else "")
        elif plain and entry and section:
            key = entry[1].lower()
            if not (section.startswith("branch.") and key in _OF_BRANCHES):
                yield f"{section}.{key}", (entry[2] or "").strip()
        elif line.strip() and not line.lstrip().startswith(("#", ";")):
            yield "(other lines)", line


def differences(before: Marks, after: Marks, *, is_forward: Callable[[str, str], bool] = lambda _o, _n: False) -> Marks:
    """
    Return what was changed, with the marks as they were before, "" for what is new.

    *is_forward* says whether a branch may have gone from one commit to another in the ordinary course of work.
    """
    found = {name: before.get(name, "") for name in {*before, *after} if before.get(name) != after.get(name)}

    return {name: found[name] for name in sorted(found) if not _is_usual(name, found[name], after, is_forward)}


def _is_usual(name: str, was: str, after: Marks, is_forward: Callable[[str, str], bool]) -> bool:
    if name.startswith(TAGS):
        return not was
    if name.startswith(HEADS):
        return not was or (name in after and is_forward(was, after[name]))

    return False


def described(changed: Marks, after: Marks) -> str:
    """Return what was changed in words."""
    return ", ".join(f"{name} ({_how(was, after.get(name))})" for name, was in changed.items())


def _how(was: str, now: str | None) -> str:
    if not was:
        return "new"

    return "changed" if now is not None else "gone"


def still(changed: Marks, now: Marks) -> Marks:
    """Return what of *changed* has not been put back."""
    return {name: was for name, was in changed.items() if now.get(name, "") != was}


def unsettled(document: WorkflowDocument) -> Unsettled | None:
    """
    Return the newest attempt of an agent if it changed what is shared, or was cut off before anybody looked.

    A later attempt settles it: only a person starts one after such a change.
    """
    attempts = [(record.name, one) for record in document.phases for one in record.attempts if _marks(one, BEFORE)]
    if not attempts:
        return None
    phase, newest = max(attempts, key=lambda found: found[1].started_at or "")
    changed = _marks(newest, CHANGED)
    if not changed and newest.status == "interrupted":  # branches go on meanwhile
        changed = {name: was for name, was in _marks(newest, BEFORE).items() if not name.startswith(HEADS)}

    return Unsettled(phase=phase, attempt=newest.number, before=changed) if changed else None


def _marks(attempt: AttemptRecord, name: str) -> Marks:
    found = (attempt.agent or {}).get(name)

    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}
