"""
ResourceQuota: whether there is capacity for another workflow.

This is the public interface of `resources/quotas.py`. The limits are settings, and the constants here are their
defaults. Disk space is that of the file system of the worktrees, wherever the call comes from.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from adws.adw_modules import default_home
from adws.adw_modules.errors import QuotaExceeded, UsageError

if TYPE_CHECKING:
    from adws.adw_modules.resources.quotas import Quotas, QuotaStatus

logger = logging.getLogger(__name__)

#: Name of a check -> name of its limit.
CHECKS = {
    "disk_space": "disk",
    "memory": "memory",
    "worktree_count": "worktrees",
    "worktree_size": "worktree_size",
    "api_budget": "cost",
    "api_budget_per_day": "cost_per_day",
    "concurrent_runs": "runs",
}


class ResourceQuota:
    """Limits of disk, memory, worktrees and money, checked for the default home or for *quotas*."""

    MAX_WORKTREES: ClassVar[int] = 15
    MAX_DISK_PER_WORKTREE_GB: ClassVar[int] = 5
    MAX_API_COST_PER_WORKFLOW: ClassVar[float] = 10.0
    MIN_FREE_DISK_GB: ClassVar[int] = 10

    @classmethod
    def check_disk_space(cls, *, quotas: Quotas | None = None) -> bool:
        """Return whether enough is free on the file system of the worktrees."""
        return not _status("disk", quotas).is_exceeded

    @classmethod
    def check_worktree_count(cls, *, quotas: Quotas | None = None) -> bool:
        """Return whether there is capacity for one more worktree."""
        return not _status("worktrees", quotas).is_exceeded

    @classmethod
    def check_api_budget(cls, estimated_cost: float, *, quotas: Quotas | None = None) -> bool:
        """Return whether a workflow may cost this much."""
        if not estimated_cost >= 0.0:
            raise UsageError(f"{estimated_cost} is no cost: give US dollars from 0 up")

        return not _status("cost", quotas, estimated_cost).is_exceeded

    @classmethod
    def enforce_quotas(cls, estimated_cost: float | None = None, *, quotas: Quotas | None = None) -> dict[str, bool]:
        """
        Return every check by name; raise QuotaExceeded, which says what to do, if new work has to wait for one.

        Only `worktree_size` may be false: a worktree that is too large stops only the workflow in it. An unknown limit
        counts as free, and is logged. This only reads: `Quotas.admit` reserves a place.
        """
        result = {status.name: status for status in _quotas(quotas).status(estimated_cost=estimated_cost)}
        for status in result.values():
            if status.is_exceeded and status.name != "worktree_size":
                raise QuotaExceeded(status.name, f"the quota {status.name} is used up: {status.detail}")
            if not status.is_known:
                facts = {"action": "quota_unknown", "quota": status.name, "detail": status.detail}
                logger.warning("Quota cannot be told", extra=facts)

        return {check: not result[name].is_exceeded for check, name in CHECKS.items()}


def _status(name: str, quotas: Quotas | None, estimated_cost: float | None = None) -> QuotaStatus:
    result = _quotas(quotas).status(estimated_cost=estimated_cost)

    return next(status for status in result if status.name == name)


def _quotas(quotas: Quotas | None) -> Quotas:
    return default_home.get().quotas if quotas is None else quotas
