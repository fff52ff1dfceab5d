"""
Keeping commits that would otherwise be lost, under refs of ours that nothing collects.
"""

from __future__ import annotations

from typing import Protocol

from adws.adw_modules import rollback_rules
from adws.adw_modules.errors import RollbackBlocked

#: How many there may be of one workflow.
MOST = 99


class KeepingRepository(Protocol):
    """What keeping commits asks of git (`GitRepository`, a part of it)."""

    def commit_of(self, ref: str) -> str | None: ...
    def save_ref(self, ref: str, commit: str) -> None: ...


def keep_commits(git: KeepingRepository, adw_id: str, sha: str) -> str:
    """Keep *sha* under the first ref of the workflow that is free, or has it already; return that ref."""
    refs = (rollback_rules.salvage_ref(adw_id, number) for number in range(1, MOST + 1))
    ref = next((ref for ref in refs if git.commit_of(ref) in {None, sha}), "")
    if not ref:
        raise RollbackBlocked("there are too many salvaged commits of this workflow: delete some refs/adw/salvage")
    git.save_ref(ref, sha)

    return ref
