"""
What a rollback works with, and what comes of one of its steps.

The hands are a part of what the resources offer: a rollback never makes anything but salvage and a comment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adws.adw_modules.forge import Forge
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_resources import Ports, RemoteRefs, Worktree
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.process_tree import Ending


class Repository(Protocol):
    """What a rollback asks of git (`GitRepository`, a part of it)."""

    @property
    def root(self) -> Path: ...
    def default_branch(self) -> str: ...
    def commit_of(self, ref: str) -> str | None: ...
    def worktrees(self) -> tuple[Worktree, ...]: ...
    def remove_worktree(self, path: Path, *, reason: str) -> bool: ...
    def delete_branch(self, branch: str, *, expected: str) -> bool: ...
    def save_ref(self, ref: str, commit: str) -> None: ...
    def delete_remote_branch(self, branch: str, *, expected: str) -> bool: ...
    def remote_commit(self, branch: str) -> str | None: ...


class Workplace(Protocol):
    """What a rollback asks of a worktree (`GitWorkplace`, a part of it)."""

    def patch_of_changes(self, path: Path) -> bytes: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Hands:
    """What a rollback undoes things with."""

    clock: Clock
    host: str  #: the name of this machine, as effects carry it
    folder_of: Callable[[str], Path]  #: a workflow's own directory
    end_process: Callable[[Mapping[str, object]], Ending]  #: ends what is left of a recorded process
    git: Repository | None = None  #: None: the home is in no repository
    refs: RemoteRefs | None = None  #: None as well
    is_shared: bool = False  #: other machines work on the same workflows, and undo what is theirs
    workplace: Workplace | None = None
    ports: Ports | None = None
    forge: Forge | None = None
    forge_key: bytes = b""  #: of the markers
    scrub: Callable[[str], str] = str  #: takes secrets out of what goes to a forge
    release: Callable[[str], object] = lambda _adw_id: None  #: gives its place among the running workflows back
    is_listened_on: Callable[[int], bool] = lambda _port: False  #: whether anybody holds a port of this machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What came of a step."""

    status: str  #: done | gone | kept | left
    detail: str = ""
    facts: JsonObject | None = None  #: learnt, for later steps
