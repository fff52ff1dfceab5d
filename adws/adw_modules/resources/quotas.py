"""
Limits that stop work before the disk, the memory or the budget does.

What can be counted only by all together (worktrees, runs, money) is decided inside the transaction that takes the
place; the rest is measured right before. A limit that cannot be told says so: it is never left out in silence.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from adws.adw_modules.errors import QuotaExceeded, UsageError
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces_resources import QuotaStatus, Reservation, Spending
from adws.adw_modules.machine_facts import nearest
from adws.adw_modules.resources.sizes import size_of

#: Bytes in what people call a GB of disk or memory here.
GB = 2**30
#: Past workflows an estimate is taken from.
PAST_WORKFLOWS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much may be used; sizes in bytes, money in US dollars."""

    min_free_disk: int = 10 * GB
    min_free_memory: int = 1 * GB
    max_worktrees: int = 15
    max_worktree_size: int = 5 * GB
    max_cost: float = 10.0  #: of one workflow
    max_cost_per_day: float = 100.0  #: of all together, from midnight UTC
    max_runs: int = 15  #: workflows that are worked on at once


class QuotaBook(Protocol):
    """Where places are, and what workflows have cost."""

    def reserve(self, wanted: Reservation, decide: Callable[[Spending], None]) -> None:
        """Take a place unless *decide*, which sees all others, raises; asking again changes the estimate only."""

    def release(self, adw_id: str) -> bool:
        """Give a place back; False when there was none."""

    def free_left_behind(self) -> int:
        """Free the places of workflows that are parked or over and that nobody works on, and return how many."""

    def spending(self, adw_id: str = "") -> Spending:
        """Return the places that are taken and what was spent; of *adw_id* what it has cost itself."""

    def places(self) -> tuple[Reservation, ...]:
        """Return the places that are taken."""

    def completed_costs(self, workflow: str, *, limit: int) -> tuple[float, ...]:
        """Return what the last *limit* workflows of this name cost that came to their end."""

    def workflow_of(self, adw_id: str) -> str:
        """Return the name of the workflow that *adw_id* runs, "" when it is not known."""


class EmptyBook:
    """A `QuotaBook` of a home where nobody worked yet: looking at its limits must not make a database."""

    def reserve(self, wanted: Reservation, decide: Callable[[Spending], None]) -> None:
        """Refuse: a place in here would be forgotten."""
        del decide
        raise UsageError(f"workflow {wanted.adw_id} cannot get a place: the home has no database yet")

    def release(self, adw_id: str) -> bool:
        """Return False: nobody has a place."""
        del adw_id
        return False

    def free_left_behind(self) -> int:
        """Return 0: nobody has a place."""
        return 0

    def spending(self, adw_id: str = "") -> Spending:
        """Return that nothing is taken or spent."""
        del adw_id
        return Spending()

    def places(self) -> tuple[Reservation, ...]:
        """Return nothing: nobody has a place."""
        return ()

    def completed_costs(self, workflow: str, *, limit: int) -> tuple[float, ...]:
        """Return nothing: no workflow came to its end."""
        del workflow, limit
        return ()

    def workflow_of(self, adw_id: str) -> str:
        """Return that no workflow is known."""
        del adw_id
        return ""


class Meters(Protocol):
    """What this machine has."""

    def free_disk(self, path: Path) -> int:
        """Return the bytes that may still be written where *path* is."""

    def free_memory(self) -> int:
        """Return the bytes of memory that programs can still get."""


class MachineMeters:
    """The meters of this machine."""

    def free_disk(self, path: Path) -> int:
        """Return the bytes that may still be written where *path* is, or will be when it is made."""
        return shutil.disk_usage(nearest(path)).free

    def free_memory(self) -> int:
        """Return the bytes of memory that programs can still get without anything being swapped out."""
        return int(psutil.virtual_memory().available)


class MachineQuotas:
    """`Quotas` of this machine and of everybody who shares its database."""

    def __init__(
        self, book: QuotaBook, *, trees: Path, host: str, limits: Limits | None = None, meters: Meters | None = None
    ) -> None:
        """Count in *book*; *trees* is where worktrees are, whose file system must not run full."""
        self._book = book
        self._trees = trees
        self._host = host
        self.limits = limits or Limits()
        self._meters = meters or MachineMeters()

    def estimate(self, workflow: str) -> float | None:
        """Return what a workflow of this name will cost, from those that came to their end; None when none did."""
        costs = self._book.completed_costs(workflow, limit=PAST_WORKFLOWS)

        return statistics.median(costs) if costs else None

    def status(self, *, estimated_cost: float | None = None) -> tuple[QuotaStatus, ...]:
        """Return every limit."""
        return tuple(self._all(self._book.spending(), estimated_cost))

    def admit(
        self,
        adw_id: str,
        *,
        estimated_cost: float | None = None,
        spent: float | None = None,
        cap: float | None = None,
    ) -> None:
        """
        Reserve a place for a workflow, atomically; raise QuotaExceeded naming the limit and what to do.

        Without an estimate one is made from past workflows. Whoever has a place already keeps it. To be called by the
        owner of the workflow: the place of one that is parked, and that nobody owns, is given to others. What the
        owner knows of the workflow's cost (*spent*, *cap*) comes first: the copy of its document may be older.
        """
        estimated = estimated_cost
        if estimated is None and (workflow := self._book.workflow_of(check_adw_id(adw_id))):
            estimated = self.estimate(workflow)
        wanted = Reservation(adw_id=check_adw_id(adw_id), host=self._host, estimated_cost=estimated)
        for status in (self._disk(), self._memory(), self._size(self.sizes(adw_id))):
            _refuse(status)

        def decide(found: Spending) -> None:
            known = found if spent is None else replace(found, spent_by_asker=spent, cap_of_asker=cap)
            self._decide(wanted, known)

        self._book.reserve(wanted, decide)

    def release(self, adw_id: str) -> None:
        """Give the place back."""
        self._book.release(check_adw_id(adw_id))

    def free_left_behind(self) -> int:
        """Free the places of workflows that are parked or over and that nobody works on, and return how many."""
        return self._book.free_left_behind()

    def gauges(self, *, spent_today: float, sizes: Mapping[str, int] | None) -> tuple[QuotaStatus, ...]:
        """
        Return the limits that all workflows share, without what takes long to find out.

        *spent_today* is known to whoever keeps sums, and *sizes* are what `sizes` said a while ago; None: nobody knows.
        """
        spending = Spending(places=self._book.places(), spent_today=spent_today)

        return (
            self._disk(),
            self._memory(),
            self._worktrees(spending, asking=""),
            self._size(sizes) if sizes is not None else self._unknown_size(),
            self._cost_per_day(spending, asking="", more=0.0),
            self._runs(spending, asking=""),
        )

    def rest_of_day(self) -> float:
        """Return what all workflows together may still spend until midnight UTC; never below 0."""
        return max(0.0, self.limits.max_cost_per_day - self._book.spending().spent_today)

    def worktrees(self) -> tuple[str, ...]:
        """Return the workflows that have a worktree here: a directory that is none is not counted."""
        if not self._trees.is_dir():
            return ()

        return tuple(sorted(path.name for path in self._trees.iterdir() if (path / ".git").is_file()))

    def sizes(self, adw_id: str = "") -> dict[str, int]:
        """Return the size of each worktree, or of the one of *adw_id*; every file in it is looked at."""
        return {name: size_of(self._trees / name) for name in self.worktrees() if adw_id in {"", name}}

    # --- how ---------------------------------------------------------------------------------------------------

    def _all(self, spending: Spending, estimated_cost: float | None) -> Iterator[QuotaStatus]:
        yield self._disk()
        yield self._memory()
        yield self._worktrees(spending, asking="")
        yield self._size(self.sizes())
        yield self._cost(estimated_cost, spending.spent_by_asker)
        yield self._cost_per_day(spending, asking="", more=estimated_cost or 0.0)
        yield self._runs(spending, asking="")

    def _decide(self, wanted: Reservation, spending: Spending) -> None:
        """Raise QuotaExceeded when there is no room for *wanted* besides the others."""
        spent = spending.spent_by_asker
        to_come = max(0.0, (wanted.estimated_cost or 0.0) - spent)
        _refuse(self._worktrees(spending, asking=wanted.adw_id))
        _refuse(self._runs(spending, asking=wanted.adw_id))
        _refuse(self._cost(wanted.estimated_cost, spent, cap=spending.cap_of_asker, asking=wanted.adw_id))
        _refuse(self._cost_per_day(spending, asking=wanted.adw_id, more=to_come))

    def _disk(self) -> QuotaStatus:
        free, limit = self._meters.free_disk(self._trees), self.limits.min_free_disk

        return QuotaStatus(
            name="disk",
            used=_gb(free),
            limit=_gb(limit),
            unit="GB free",
            is_exceeded=free < limit,
            detail=f"{_gb(free):g} GB are free on the file system of {self._trees}, {_gb(limit):g} GB must be: "
            "remove worktrees with adw gc, make room, or lower quota.min_free_disk",
        )

    def _memory(self) -> QuotaStatus:
        free, limit = self._meters.free_memory(), self.limits.min_free_memory

        return QuotaStatus(
            name="memory",
            used=_gb(free),
            limit=_gb(limit),
            unit="GB free",
            is_exceeded=free < limit,
            detail=f"{_gb(free):g} GB of memory are free, {_gb(limit):g} GB must be: "
            "wait for other work to end, or lower quota.min_free_memory",
        )

    def _worktrees(self, spending: Spending, *, asking: str) -> QuotaStatus:
        reserved = {place.adw_id for place in spending.places if place.host == self._host}
        others = (reserved | set(self.worktrees())) - {asking}
        limit = self.limits.max_worktrees

        return QuotaStatus(
            name="worktrees",
            used=len(others),
            limit=limit,
            unit="worktrees",
            is_exceeded=_is_full(len(others), limit, asking),
            detail=f"{len(others)} of {limit} worktrees are in use: finish or roll back a workflow (adw list), remove "
            "left-overs with adw gc, or raise quota.max_worktrees",
        )

    def _runs(self, spending: Spending, *, asking: str) -> QuotaStatus:
        others, limit = len({place.adw_id for place in spending.places} - {asking}), self.limits.max_runs

        return QuotaStatus(
            name="runs",
            used=others,
            limit=limit,
            unit="workflows",
            is_exceeded=_is_full(others, limit, asking),
            detail=f"{others} of {limit} workflows are being worked on: wait for one to end, pause one with adw pause, "
            "or raise quota.max_runs",
        )

    def _unknown_size(self) -> QuotaStatus:
        return replace(self._size({}), detail="the worktrees are being measured", is_known=False)

    def _size(self, sizes: Mapping[str, int]) -> QuotaStatus:
        limit = self.limits.max_worktree_size
        largest = max(sizes, key=lambda name: sizes[name], default="")
        used = sizes.get(largest, 0)
        whose = f"the largest worktree, {self._trees / largest}, has" if largest else "there is no worktree, which has"

        return QuotaStatus(
            name="worktree_size",
            used=_gb(used),
            limit=_gb(limit),
            unit="GB",
            is_exceeded=used > limit,
            detail=f"{whose} {_gb(used):g} GB of {_gb(limit):g} GB: "
            "remove what was built in it, or raise quota.max_worktree_size",
        )

    def _cost(
        self, estimated: float | None, spent: float, *, cap: float | None = None, asking: str = ""
    ) -> QuotaStatus:
        """Return the limit of one workflow; a *cap* of its own, which a person gave it, takes the place of ours."""
        limit = self.limits.max_cost if cap is None else cap
        if estimated is None and not spent:
            detail = "what the workflow will cost is not known: no workflow of this name has come to its end yet"
            return QuotaStatus(
                name="cost", used=0.0, limit=limit, unit="USD", is_exceeded=False, detail=detail, is_known=False
            )
        used = max(estimated or 0.0, spent)
        what = "has cost" if spent >= (estimated or 0.0) else "is expected to cost"

        return QuotaStatus(
            name="cost",
            used=used,
            limit=limit,
            unit="USD",
            is_exceeded=used > limit or 0 < limit <= spent,
            detail=f"the workflow {what} {used:.2f} of {limit:.2f} USD: split the issue, choose a smaller workflow, "
            f"allow it more (adw resume {asking or 'ID'} --budget USD), or raise quota.max_cost",
        )

    def _cost_per_day(self, spending: Spending, *, asking: str, more: float) -> QuotaStatus:
        limit = self.limits.max_cost_per_day
        open_places = (place for place in spending.places if place.adw_id != asking)
        to_come = sum(max(0.0, (place.estimated_cost or 0.0) - place.spent) for place in open_places)
        used = spending.spent_today + to_come + more

        return QuotaStatus(
            name="cost_per_day",
            used=round(used, 4),
            limit=limit,
            unit="USD",
            is_exceeded=used > limit,
            detail=f"{spending.spent_today:.2f} USD were spent today{_shares(spending)} and "
            f"{to_come + more:.2f} USD are to come, "
            f"of {limit:.2f} USD: wait until midnight UTC, or raise quota.max_cost_per_day",
        )


def _shares(spending: Spending) -> str:
    """Return who got how much of what was spent today, "" when it was one."""
    shares = sorted(spending.spent_today_by_provider.items(), key=lambda item: (-item[1], item[0]))

    return f" ({', '.join(f'{name} {usd:.2f}' for name, usd in shares)})" if len(shares) > 1 else ""


def _is_full(others: int, limit: int, asking: str) -> bool:
    """Say whether there is no room: for one more when somebody asks, else whether it is more than allowed."""
    return others >= limit if asking else others > limit


def _refuse(status: QuotaStatus) -> None:
    if status.is_exceeded:
        raise QuotaExceeded(status.name, f"the quota {status.name} is used up: {status.detail}")


def _gb(size: int) -> float:
    return round(size / GB, 2)
