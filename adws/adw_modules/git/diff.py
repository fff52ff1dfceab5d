"""
The changes of commits, file by file, for reviewers.

They are read from commits alone, not from a working tree or an index. Attributes, which an agent may write, cannot hide
a file: its content decides whether it is binary. External diff drivers and text conversion are off. Whatever is too
large is cut and marked as cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from adws.adw_modules.git.git import Answer, GitCommands
from adws.adw_modules.interfaces import Clock

#: Time limit of each git command: a page does not wait for a busy repository.
SECONDS = 5.0
#: Seconds for which the position of a branch is cached.
FRESH_SECONDS = 5.0
#: Most files that are listed.
MOST_FILES = 500
#: Size of a file, before or after, above which only its name is listed.
MOST_BLOB_BYTES = 512 * 1024
#: Most bytes of one file's patch, and of all patches.
MOST_PATCH_BYTES, MOST_BYTES = 64 * 1024, 400 * 1024
#: Files per git command that makes patches.
_AT_ONCE = 25
#: Cached diffs (pairs of commits) and cached branch positions.
_KEPT_DIFFS, _KEPT_COMMITS = 30, 200
_STATUSES = {"A": "added", "D": "deleted"}
_SECTION = re.compile(rb"^diff --git ", re.MULTILINE)
_HUNK = re.compile(rb"^@@ ", re.MULTILINE)
_QUOTED = re.compile(r'[\x00-\x1f"\\\x7f]')
_ADDED, _DELETED = re.compile(rb"^\+", re.MULTILINE), re.compile(rb"^-", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDiff:
    """The change of one file."""

    name: str
    status: str  #: added | changed | deleted
    added: int | None  #: lines; None: the file is binary
    deleted: int | None
    patch: str = ""  #: hunks of a unified diff, redacted
    left_out: str = ""  #: why the patch is missing or cut, "" when it is complete


@dataclass(frozen=True, kw_only=True, slots=True)
class Diff:
    """What one commit changes against another."""

    base: str  #: commit
    head: str  #: commit
    files: tuple[FileDiff, ...]  #: the first MOST_FILES, by name
    file_count: int
    added: int  #: lines of all files
    deleted: int

    @property
    def is_cut(self) -> bool:
        """Whether any text is left out."""
        return self.file_count > len(self.files) or any(one.left_out and one.added is not None for one in self.files)

    def shortened(self, most_bytes: int) -> Diff:
        """Return the diff with only its first patches, at most *most_bytes* characters in all."""
        left, files = most_bytes, []
        for file in self.files:
            left -= len(file.patch)
            is_fitting = left >= 0 or not file.patch
            files.append(file if is_fitting else replace(file, patch="", left_out="see the whole diff"))

        return replace(self, files=tuple(files))


class Diffs:
    """Reads and caches the diffs of pairs of commits. Thread-safe."""

    def __init__(self, commands: GitCommands, *, clock: Clock, redact: Callable[[str], str]) -> None:
        self._commands = commands
        self._clock = clock
        self._redact = redact
        self._commits = lru_cache(maxsize=_KEPT_COMMITS)(self._ask_commits)
        self._diffs = lru_cache(maxsize=_KEPT_DIFFS)(self._read)

    def between(self, base: str, heads: Sequence[str], *, mark: int = 0) -> Diff | None:
        """
        Return the changes of the first existing commit of *heads* since it left *base*; raise GitError.

        None if *base* or every head is missing in this repository. A new *mark*, such as the revision of the workflow,
        makes git look the branch up at once; otherwise a lookup is cached for FRESH_SECONDS.
        """
        start, head = self._commits(base, tuple(heads), mark, self._clock.monotonic() // FRESH_SECONDS)

        return self._diffs(start, head) if start and head else None

    def _ask_commits(self, base: str, heads: tuple[str, ...], _mark: int, _moment: float) -> tuple[str, str]:
        head = next((commit for name in heads if (commit := self._commands.commit_of(name))), "")
        start = (self._commands.commit_of(base) or "") if head else ""
        if start:  # leave out what was added to the base since
            start = self._git("merge-base", start, head, ok=(0, 1)).text.strip() or start

        return start, head

    def _read(self, base: str, head: str) -> Diff:
        """Return the diff of two commits: names and counts of all files first, then patches while there is room."""
        listed: dict[str, FileDiff] = {}
        kinds: dict[str, str] = {}
        parts = iter(self._diff(base, head, "--raw", "--numstat", "-z").parts)
        for part in parts:
            if part.startswith(":"):  # `:100644 100644 1a2b 3c4d M`, and the name in the next part
                kinds[next(parts)] = part[-1]
                continue
            added, deleted, name = part.split("\t", 2)
            counts = [int(text) if text.isdigit() else None for text in (added, deleted)]  # "-" for a binary file
            listed[name] = FileDiff(
                name=self._redact(name.encode(errors="surrogateescape").decode(errors="replace")),
                status=_STATUSES.get(kinds.get(name, ""), "changed"),
                added=counts[0],
                deleted=counts[1],
                left_out="binary file" if counts[0] is None else "",
            )
        names = sorted(listed)[:MOST_FILES]
        too_large = f"larger than {MOST_BLOB_BYTES // 1024} KiB"
        full = f"the diff is larger than {MOST_BYTES // 1024} KiB"
        room = MOST_BYTES
        for first in range(0, len(names), _AT_ONCE):
            batch = names[first : first + _AT_ONCE]
            if room <= 0:
                listed |= {name: replace(listed[name], left_out=listed[name].left_out or full) for name in batch}
                continue
            large = self._large(base, batch) | self._large(head, batch)
            listed |= {name: replace(listed[name], left_out=listed[name].left_out or too_large) for name in large}
            shown = [name for name in batch if name not in large]
            for name, patch in self._patches(base, head, shown, kinds).items():
                if b"\0" in patch:  # git's own test for binary files; attributes may claim otherwise
                    listed[name] = replace(listed[name], added=None, deleted=None, left_out="binary file")
                    continue
                if listed[name].added is None:  # only attributes call it binary
                    lines = len(_ADDED.findall(patch)), len(_DELETED.findall(patch))
                    listed[name] = replace(listed[name], added=lines[0], deleted=lines[1], left_out="")
                text, left_out = self._bounded(patch)
                room -= len(text)
                listed[name] = replace(
                    listed[name], patch="" if room < 0 else text, left_out=full if room < 0 else left_out
                )

        return Diff(
            base=base,
            head=head,
            files=tuple(listed[name] for name in names),
            file_count=len(listed),
            added=sum(file.added or 0 for file in listed.values()),
            deleted=sum(file.deleted or 0 for file in listed.values()),
        )

    def _large(self, commit: str, names: Sequence[str]) -> set[str]:
        """Return which files are too large to compare in *commit*."""
        entries = (part.split("\t", 1) for part in self._git("ls-tree", "-rlz", commit, "--", *names).parts)
        sizes = ((facts.split()[-1], name) for facts, name in entries)

        return {name for size, name in sizes if size.isdigit() and int(size) > MOST_BLOB_BYTES}

    def _patches(self, base: str, head: str, names: Sequence[str], kinds: Mapping[str, str]) -> Mapping[str, bytes]:
        """Return the hunks of each file; a file that becomes a link has two sections, one deleted and one added."""
        if not names:
            return {}
        headers = {f"a/{name} b/{name}".encode(errors="surrogateescape"): name for name in names}
        # git quotes such names; their sections come in the order of the names.
        quoted = iter([name for name in names if _QUOTED.search(name) for _ in range(1 + (kinds.get(name) == "T"))])
        hunks = dict.fromkeys(names, b"")
        for section in _SECTION.split(self._diff(base, head, "--text", "--", *names).out)[1:]:
            header = section.partition(b"\n")[0]
            name = next(quoted, None) if header.startswith(b'"') else headers.get(header)
            if name is not None and (start := _HUNK.search(section)):  # skip a directory with the name of a file
                hunks[name] += section[start.start() :]

        return hunks

    def _bounded(self, patch: bytes) -> tuple[str, str]:
        """Return the redacted patch, and why it is cut; redacting comes first, so that no half token remains."""
        text = self._redact(patch[: 2 * MOST_PATCH_BYTES].decode(errors="replace"))
        if len(text) <= MOST_PATCH_BYTES and len(patch) <= 2 * MOST_PATCH_BYTES:
            return text, ""
        shown = text[:MOST_PATCH_BYTES].rpartition("\n")[0] + "\n"
        lines = patch.count(b"\n") - shown.count("\n")

        return shown, f"{lines:,} more lines are not shown"

    def _diff(self, base: str, head: str, *options: str) -> Answer:
        fixed = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--submodule=short")

        return self._git("diff", *fixed, options[0], base, head, *options[1:])

    def _git(self, *args: str, ok: Sequence[int] = (0,)) -> Answer:
        # An empty directory as the working tree, and no index: git reads attributes from both.
        folder = self._commands.common_dir
        env = {"GIT_INDEX_FILE": str(folder / "adw-no-index"), "GIT_LITERAL_PATHSPECS": "1"}

        return self._commands.run(*args, cwd=folder, env=env, ok=ok, seconds=SECONDS)
