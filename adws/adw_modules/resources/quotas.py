"""
Limits that stop work before the disk, the memory or the budget does.

What can be counted only by all together (worktrees, runs, money) is decided inside the transaction that takes the
place; the rest is measured right before. A limit that cannot be told says so: it is never left out in silence.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from adws.adw_modules import costs, timestamps
from adws.adw_modules.costs import CostEntry, entries_of, money
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.errors import QuotaExceeded, UsageError
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.resources import ports
from adws.adw_modules.resources.model import QuotaStatus, Reservation, Spending

# What attempts cost, from the documents' rows.
#
# Most rows are skipped by a check of their text: only a report with a cost names one, only the record of an agent names
# a provider. They are read a few hundred at a time, so that ten thousand of them are never in memory at once.


#: What stands in the text of a document in which something cost money, and of one that an agent worked on.
COSTING, OF_AGENTS = '%"cost_usd"%', '%"provider"%'
#: Rows that are read at once.
CHUNK = 500


class CostStore:
    """Reads what was spent."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._costs = database.render(ports.COSTS_SINCE)

    def entries(self, since: str = "") -> Iterator[CostEntry]:
        """Yield what each attempt cost that ended at or after *since*, workflow by workflow."""
        params: dict[str, object] = {"since": since, "costing": COSTING, "of_agents": OF_AGENTS, "limit": CHUNK}
        after = ""
        with self._database.read() as session:
            while rows := session.all(self._costs, {**params, "after": after}):
                for adw_id, workflow, body in rows:
                    phases = json.loads(body).get("phases")
                    yield from (one for one in entries_of(adw_id, workflow, phases) if one.ended_at >= since)
                after = rows[-1][0]


def render(database: Database, text: str) -> str:
    """Return *text* in the SQL of the dialect, the parts of a document included."""
    for word, spelled in ports.DOCUMENT_PARTS[database.dialect].items():
        text = text.replace(word, spelled)

    return database.render(text)


# Places of workflows, and what workflows have cost.
#
# A reservation is decided inside the transaction that makes it, one after the other: so of two that race for the last
# place one gets it. What was spent is read from the documents' rows, attempt by attempt; nothing counts twice, and
# flat-rate usage counts nothing.


#: A place whose workflow never came to be is given up after this long.
ABANDONED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Texts:
    """The queries in the SQL of one dialect."""

    free_left: str
    cost_of: str
    costs: str
    phases: str


class QuotaStore:
    """Quota reservations in the table quota_reservations."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._texts = _texts(database)

    def reserve(self, wanted: Reservation, decide: Callable[[Spending], None]) -> None:
        """Take a place unless *decide*, which sees all others, raises; asking again changes the estimate only."""

        def work(session: Session) -> None:
            if self._database.dialect == "postgresql":
                session.one(ports.QUOTA_LOCK)
            session.run(self._texts.free_left, self._left_params())
            decide(self._spending(session, wanted.adw_id))
            session.run(
                ports.QUOTA_RESERVE,
                {
                    "adw_id": wanted.adw_id,
                    "host": wanted.host,
                    "estimated_cost": wanted.estimated_cost,
                    "reserved_at": timestamps.to_text(self._clock.now()),
                },
            )

        self._database.transact(work)

    def release(self, adw_id: str) -> bool:
        """Give a place back; False when there was none."""
        return self._database.transact(lambda session: session.run(ports.QUOTA_RELEASE, {"adw_id": adw_id})) == 1

    def free_left_behind(self) -> int:
        """Free the places of workflows that are parked or over and that nobody works on, and return how many."""
        return self._database.transact(lambda session: session.run(self._texts.free_left, self._left_params()))

    def spending(self, adw_id: str = "") -> Spending:
        """Return the places that are taken and what was spent; of *adw_id* what it has cost itself."""
        with self._database.read() as session:
            return self._spending(session, adw_id)

    def places(self) -> tuple[Reservation, ...]:
        """Return the places that are taken."""
        with self._database.read() as session:
            return self._places(session)

    def completed_costs(self, workflow: str, *, limit: int) -> tuple[float, ...]:
        """Return what the last *limit* workflows of this name cost that came to their end."""
        with self._database.read() as session:
            rows = session.all(self._texts.costs, {"workflow": workflow, "limit": limit})

        return tuple(money(row[0]) or 0.0 for row in rows)

    def workflow_of(self, adw_id: str) -> str:
        """Return the name of the workflow that *adw_id* runs, "" when it is not known."""
        with self._database.read() as session:
            row = session.one(ports.WORKFLOW_OF, {"adw_id": adw_id})

        return "" if row is None else str(row[0])

    def _spending(self, session: Session, adw_id: str) -> Spending:
        midnight = timestamps.to_text(self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0))
        texts = session.all(self._texts.phases, {"since": midnight})
        entries = (entry for text in texts for entry in costs.entries_in(*text) if entry.ended_at >= midnight)
        today = _by_provider(entry for entry in entries if entry.cost_usd is not None)
        spent, cap = self._cost_of(session, adw_id) if adw_id else (0.0, None)

        return Spending(
            places=self._places(session),
            spent_today=math.fsum(today.values()),
            spent_today_by_provider=today,
            spent_by_asker=spent,
            cap_of_asker=cap,
        )

    def _places(self, session: Session) -> tuple[Reservation, ...]:
        return tuple(
            Reservation(adw_id=row[0], host=row[1], estimated_cost=row[2], spent=self._cost_of(session, row[0])[0])
            for row in session.all(ports.QUOTA_ALL)
        )

    def _cost_of(self, session: Session, adw_id: str) -> tuple[float, float | None]:
        """Return what a workflow has cost, and the cap that a person gave it."""
        row = session.one(self._texts.cost_of, {"adw_id": adw_id})

        return (0.0, None) if row is None else (money(row[0]) or 0.0, money(row[1]))

    def _left_params(self) -> dict[str, object]:
        long_ago = timestamps.to_text(self._clock.now() - ABANDONED_AFTER)

        return {**self._database.lease_clock(), "long_ago": long_ago}


def _by_provider(spent: Iterable[CostEntry]) -> dict[str, float]:
    lines, _ = costs.grouped(spent, "provider")

    return {line.key: line.cost_usd for line in lines}


def _texts(database: Database) -> _Texts:
    return _Texts(
        free_left=render(database, ports.QUOTA_FREE_LEFT),
        cost_of=render(database, ports.COST_OF),
        costs=render(database, ports.COSTS_OF_COMPLETED),
        phases=render(database, ports.PHASES_SINCE),
    )


# How much of a disk a directory takes.


#: The unit of st_blocks, whatever the file system's own is.
_BLOCK_BYTES = 512


def size_of(path: Path) -> int:
    """Return the bytes that a directory takes on its disk; what vanishes or cannot be read meanwhile is left out."""
    total, seen = 0, set()
    for folder, names, files in os.walk(path, followlinks=False):
        for name in (*names, *files):
            try:
                result = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - there may be a hundred thousand of them
            except OSError:
                continue
            if result.st_nlink > 1 and not stat.S_ISDIR(result.st_mode):
                if (result.st_dev, result.st_ino) in seen:
                    continue
                seen.add((result.st_dev, result.st_ino))
            total += result.st_blocks * _BLOCK_BYTES

    return total


def nearest(path: Path) -> Path:
    """Return *path*, or the closest directory above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent

    return path


#: Bytes in what people call a GB of disk or memory here.
GB = 2**30
#: Stands for a workflow that has no id yet.
_NEW = "new"
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


#: Where Linux says how much memory there is.
MEMINFO = Path("/proc/meminfo")


class Meters:
    """The meters of this machine."""

    def free_disk(self, path: Path) -> int:
        """Return the bytes that may still be written where *path* is, or will be when it is made."""
        return shutil.disk_usage(nearest(path)).free

    def free_memory(self) -> int:
        """Return the bytes of memory that programs can still get without anything being swapped out."""
        if MEMINFO.exists():  # what psutil reads too, without the time to load it
            facts = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
            return int(facts["MemAvailable"].split()[0]) * 1024
        import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 - no types of its own; takes time to load

        return int(psutil.virtual_memory().available)


class Quotas:
    """`Quotas` of this machine and of everybody who shares its database."""

    def __init__(
        self, book: QuotaBook, *, trees: Path, host: str, limits: Limits | None = None, meters: Meters | None = None
    ) -> None:
        """Count in *book*; *trees* is where worktrees are, whose file system must not run full."""
        self._book = book
        self._trees = trees
        self._host = host
        self.limits = limits or Limits()
        self._meters = meters or Meters()

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

        Without an estimate one is made from past workflows. A workflow that has a place keeps it. To be called by the
        owner of the workflow: the place of one that is parked, and that nobody owns, is given to others. What the owner
        knows of the workflow's cost (*spent*, *cap*) comes first: the copy of its document may be older.
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

    def check_start(self, workflow: str) -> None:
        """
        Raise QuotaExceeded when a new workflow of this name could not begin until somebody frees a limit.

        Nothing is reserved. Memory and the number of runs become free by themselves: then a start waits in the queue.
        """
        spending, estimated = self._book.spending(), self.estimate(workflow)
        for status in (
            self._disk(),
            self._worktrees(spending, asking=_NEW),
            self._cost(estimated, 0.0),
            self._cost_per_day(spending, asking=_NEW, more=estimated or 0.0),
        ):
            _refuse(status)

    def release(self, adw_id: str) -> None:
        """Give the place back."""
        self._book.release(check_adw_id(adw_id))

    def workflows(self) -> tuple[str, ...]:
        """Return the workflows that have a place."""
        return tuple(place.adw_id for place in self._book.places())

    def free_left_behind(self) -> int:
        """Free the places of workflows that are parked or over and that nobody works on, and return how many."""
        return self._book.free_left_behind()

    def gauges(self, *, spent_today: float, sizes: Mapping[str, int] | None) -> tuple[QuotaStatus, ...]:
        """
        Return the limits that all workflows share, without what is slow to measure.

        *spent_today* comes from the stored sums, and *sizes* are a recent result of `sizes`; None: unknown.
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

    def reached(self) -> tuple[QuotaStatus, ...]:
        """Return the limits that stop new work now, without measuring the worktrees."""
        spending = self._book.spending()
        shared = (self._disk(), self._memory(), self._worktrees(spending, asking=""), self._runs(spending, asking=""))

        return tuple(
            status
            for status in (*shared, self._cost_per_day(spending, asking="", more=0.0))
            if status.is_known and status.is_exceeded
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
        """Raise QuotaExceeded when there is no capacity for *wanted* besides the others."""
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
        places, there = {place.adw_id for place in spending.places if place.host == self._host}, set(self.worktrees())
        others = (places | there) - {asking}
        limit = self.limits.max_worktrees

        return QuotaStatus(
            name="worktrees",
            used=len(others),
            limit=limit,
            unit="worktrees",
            is_exceeded=len(others) >= limit,
            detail=f"{len(others)} of {limit} worktrees are in use: finish or roll back a workflow (adw list), remove "
            "left-overs with adw gc, or raise quota.max_worktrees",
            reserved=len(others - there),
        )

    def _runs(self, spending: Spending, *, asking: str) -> QuotaStatus:
        others, limit = len({place.adw_id for place in spending.places} - {asking}), self.limits.max_runs

        return QuotaStatus(
            name="runs",
            used=others,
            limit=limit,
            unit="workflows",
            is_exceeded=others >= limit,
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
            is_exceeded=used > limit or 0 < limit <= spending.spent_today,
            detail=f"{spending.spent_today:.2f} USD were spent today{_shares(spending)} and "
            f"{to_come + more:.2f} USD are to come, "
            f"of {limit:.2f} USD: wait until midnight UTC, or raise quota.max_cost_per_day",
            reserved=round(to_come, 4),
            expected=round(more, 4),
        )


def _shares(spending: Spending) -> str:
    """Return who got how much of what was spent today, "" when it was one."""
    shares = sorted(spending.spent_today_by_provider.items(), key=lambda item: (-item[1], item[0]))

    return f" ({', '.join(f'{name} {usd:.2f}' for name, usd in shares)})" if len(shares) > 1 else ""


def _refuse(status: QuotaStatus) -> None:
    if status.is_exceeded:
        raise QuotaExceeded(status.name, f"the quota {status.name} is used up: {status.detail}")


def _gb(size: int) -> float:
    return round(size / GB, 2)
