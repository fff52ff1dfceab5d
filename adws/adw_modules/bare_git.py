"""
A bare git repository, for a forge that has no server: looked at and merged in without any checkout.

Merging makes a tree, a commit and one compare-and-set of the branch: nobody's working files are touched, and a crash
between two steps leaves an object that nothing names. git runs without the settings and hooks of anybody.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules.errors import GitError
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import NoOrders
from adws.adw_modules.process import SystemProcesses
from adws.adw_modules.process_run import CommandLine, run_process
from adws.adw_modules.redaction import Redactor
from adws.adw_modules.workflow import Timeouts

#: Seconds that one git command may take.
WALL_SECONDS = 30.0

_SETTINGS = (
    "core.fsync=all",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",
    "protocol.ext.allow=never",
    "commit.gpgSign=false",
)
_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{|\.lock(?:/|$)))[A-Za-z0-9_][\w./+@#-]*(?<![./])")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    code: int | None
    lines: tuple[str, ...]  #: of standard output
    tail: str


class BareRepository:
    """One bare repository; *search_path* is the PATH that git is looked for in."""

    def __init__(
        self, path: Path, *, clock: Clock, processes: SystemProcesses, search_path: str = "", author: str = "adw"
    ) -> None:
        self.path = path
        self._clock = clock
        self._processes = processes
        self._env = _environment(search_path or os.defpath, author)
        self._redactor = Redactor()

    def make(self, default_branch: str) -> None:
        """Make the repository; nothing happens when it is there."""
        if not (self.path / "HEAD").is_file():
            self._succeed("init", "--quiet", "--bare", f"--initial-branch={default_branch}", str(self.path))

    def default_branch(self) -> str:
        """Return the branch its HEAD names."""
        return self._succeed("symbolic-ref", "--short", "HEAD")

    def commit_of(self, branch: str) -> str | None:
        """Return the commit of a branch, None when there is no such branch."""
        if _BRANCH.fullmatch(branch) is None:
            return None
        answer = self._run("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}")

        return answer.lines[0] if answer.code == 0 and answer.lines else None

    def has(self, commit: str, *, inside: str) -> bool:
        """Say whether *commit* is part of the history of the commit *inside*."""
        return self._run("merge-base", "--is-ancestor", commit, inside).code == 0

    def merged_commit(self, head: str, *, onto: str, message: str, is_squash: bool) -> str | None:
        """Return a new commit that has *head* merged into *onto*, None when they conflict; no branch is moved."""
        answer = self._run("merge-tree", "--write-tree", "--name-only", onto, head)
        if answer.code == 1 and answer.lines:
            return None
        if answer.code != 0 or not answer.lines:
            raise GitError(f"git could not merge {head[:12]} into {onto[:12]}: {_last(answer.tail)}")
        parents = ("-p", onto) if is_squash else ("-p", onto, "-p", head)

        return self._succeed("commit-tree", *parents, "-m", message, answer.lines[0])

    def move(self, branch: str, commit: str, *, expected: str) -> bool:
        """Make *branch* name *commit* if it names *expected*; False when it does not."""
        return self._run("update-ref", f"refs/heads/{branch}", commit, expected).code == 0

    def _succeed(self, *args: str) -> str:
        answer = self._run(*args)
        if answer.code != 0:
            raise GitError(f"git {args[0]} failed in {self.path}: {_last(answer.tail)}")

        return answer.lines[0] if answer.lines else ""

    def _run(self, *args: str) -> _Answer:
        lines: list[str] = []

        def keep(stream: str, line: str) -> None:
            if stream == "stdout":
                lines.append(line)

        settings = [item for setting in _SETTINGS for item in ("-c", setting)]
        place = () if args[0] == "init" else (f"--git-dir={self.path}",)
        command = CommandLine(
            argv=("git", *settings, *place, *args),
            cwd=self.path.parent,
            env=self._env,
            timeouts=Timeouts(wall=WALL_SECONDS),
        )
        end = run_process(
            command,
            clock=self._clock,
            processes=self._processes,
            orders=NoOrders(),
            record=lambda _record: None,  # it ends by itself within its time limit
            redactor=self._redactor,
            on_line=keep,
        )

        return _Answer(code=end.exit_code, lines=tuple(lines), tail=end.tail)


def _environment(search_path: str, author: str) -> Mapping[str, str]:
    person = {f"GIT_{role}_NAME": author for role in ("AUTHOR", "COMMITTER")}
    address = {f"GIT_{role}_EMAIL": f"{author}@localhost" for role in ("AUTHOR", "COMMITTER")}

    return {
        "PATH": search_path,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        **person,
        **address,
    }


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")
