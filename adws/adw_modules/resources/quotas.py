"""
Limits that stop work before disk, memory or budget run out, and the costs of attempts.

Limits shared by all (worktrees, runs, money) are checked inside the transaction that reserves a place, one at a time,
so only one of two that race for the last place gets it; the others are measured right before. A limit that cannot be
determined is reported as unknown, never left out. Spending is read from the documents' rows, attempt by attempt;
nothing counts twice, and flat-rate usage counts nothing.

A limit is reached when as much as it allows is used, or less than it requires is free. Then new work waits; a worktree
that reaches its size limit stops only its own workflow, which pauses (`Workspace.why_too_large`, and cron).
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from adws.adw_modules import costs, timestamps
from adws.adw_modules.costs import CostEntry, entries_of, money
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.errors import QuotaExceeded, UsageError
from adws.adw_modules.identifiers import check_adw_id, size_text
from adws.adw_modules.interfaces import Clock

#: Bytes in a GB of disk or memory.
GB = 2**30
#: The file with the amount of memory on Linux.
MEMINFO = Path("/proc/meminfo")
#: A place whose workflow was never created is released after this long.
ABANDONED_AFTER = timedelta(hours=1)
#: Number of past workflows from which an estimate is made.
PAST_WORKFLOWS = 50
#: How long an estimate is reused for claims: making one reads the documents of fifty workflows.
ESTIMATE_SECONDS = 60.0
#: Maximum number of large worktrees that are named.
MOST_NAMED = 5
#: How to fix a worktree that is too large.
_SMALLER = "remove what was built in it, or raise quota.max_worktree_size"
#: Placeholder for a workflow without an id yet.
_NEW = "new"
_Read = TypeVar("_Read")
#: The unit of st_blocks, independent of the file system's.
_BLOCK_BYTES = 512
#: Patterns of documents in which something cost money, and of those that an agent worked on.
COSTING, OF_AGENTS = '%"cost_usd"%', '%"provider"%'
#: Rows read at a time.
CHUNK = 500
#: SQL of each dialect that reads parts of a document in its row.
_DOCUMENT_SQL: Mapping[str, Mapping[str, str]] = {
    "sqlite": {
        "cost": "CAST(json_extract(body, '$.cost.total_usd') AS REAL)",
        "cap": "CAST(json_extract(body, '$.max_cost_usd') AS REAL)",
        "phases": "json_extract(body, '$.phases')",
    },
    "postgresql": {
        "cost": "CAST(body::json -> 'cost' ->> 'total_usd' AS float8)",
        "cap": "CAST(body::json ->> 'max_cost_usd' AS float8)",
        "phases": "CAST(body::json -> 'phases' AS text)",
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaStatus:
    """A limit, and how much of it is used."""

    name: str  #: disk | memory | worktrees | worktree_size | cost | cost_per_day | runs
    used: float
    limit: float
    unit: str
    is_exceeded: bool  #: reached, so new work waits
    detail: str = ""  #: in a sentence, with what to do
    is_known: bool = True  #: False: unknown here, and *detail* says why
    reserved: float = 0.0  #: part of *used* that workflows with a place are expected to need but do not use yet
    expected: float = 0.0  #: part of *used* that one more workflow is expected to need

    def shown(self, value: float) -> str:
        """Return an amount of this limit for people: a size with its unit, anything else as a number."""
        return size_text(value * 2**30) if self.unit.startswith("GB") else f"{value:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """The place of a workflow."""

    adw_id: str
    host: str
    estimated_cost: float | None = None  #: US dollars; None if unknown
    spent: float = 0.0  #: US dollars so far


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """What is reserved and spent at one moment."""

    places: tuple[Reservation, ...] = ()
    spent_today: float = 0.0  #: US dollars since midnight UTC, by all workflows
    spent_today_by_provider: Mapping[str, float] = field(default_factory=dict)
    spent_by_asker: float = 0.0  #: US dollars of the workflow that asks, in total
    cap_of_asker: float | None = None  #: its own limit set by a person; None: that of the settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits; sizes in bytes, money in US dollars."""

    min_free_disk: int = 10 * GB
    min_free_memory: int = 1 * GB
    max_worktrees: int = 15
    max_worktree_size: int = 5 * GB  #: 0: no limit, and worktrees are not measured
    max_cost: float = 10.0  #: of one workflow
    max_cost_per_day: float = 100.0  #: of all workflows, from midnight UTC
    max_runs: int = 15  #: workflows running at a time


class Meters:
    """Measures this machine."""

    def free_disk(self, path: Path) -> int:
        """Return the bytes that can still be written at *path*, which need not exist yet."""
        status = os.statvfs(nearest(path))

        return status.f_bavail * status.f_frsize

    def free_memory(self) -> int:
        """Return the bytes of memory available to programs without swapping."""
        if MEMINFO.exists():  # what psutil reads too, without the time to load it
            _, _, available = MEMINFO.read_bytes().partition(b"MemAvailable:")
            return int(available.split(maxsplit=1)[0]) * 1024
        import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 - no types of its own; takes time to load

        return int(psutil.virtual_memory().available)


class Quotas:
    """The limits of this machine and those shared by all that use its database."""

    def __init__(
        self,
        database: Database | None,
        *,
        clock: Clock,
        trees: Path,
        host: str,
        limits: Limits | None = None,
        meters: Meters | None = None,
    ) -> None:
        """
        Count in *database*; *trees* is the directory of the worktrees, whose file system must not run full.

        Without a database (a home where nobody has worked yet) nothing is counted: reading limits must not create one.
        """
        self._database = database
        self._clock = clock
        self._trees = trees
        self._host = host
        self.limits = limits or Limits()
        self._meters = meters or Meters()
        self._estimates: dict[str, tuple[float, float | None]] = {}  #: workflow -> Clock.monotonic, its estimate then

    @property
    def _shared(self) -> Database:
        if self._database is None:
            raise UsageError("no workflow can get a place: the home has no database yet")

        return self._database

    # --- taking a place ----------------------------------------------------------------------------------------

    def admit(
        self,
        adw_id: str,
        *,
        estimated_cost: float | None = None,
        spent: float | None = None,
        cap: float | None = None,
    ) -> None:
        """
        Reserve a place for a workflow, atomically; raise QuotaExceeded with the limit and what to do.

        By default *estimated_cost* comes from past workflows. A workflow that has a place keeps it. Only the owner of
        the workflow may call this: the place of a parked workflow without an owner is given to others. What the owner
        knows of its cost (*spent*, *cap*) takes precedence: the copy of its document may be older.
        """
        database = self._shared
        check_adw_id(adw_id)
        for status in (self._disk(), self._memory()):
            _refuse(status)
        known = None if spent is None else (spent, cap)
        database.transact(lambda session: self._reserve(session, adw_id, estimated=estimated_cost, known=known))

    def reserve_in(self, session: Session, adw_id: str, workflow: str) -> tuple[float, float | None]:
        """
        Reserve a place inside the transaction that claims the run, on a machine that is not full; raise QuotaExceeded.

        Returns the workflow's cost and its own cap, as used for the decision.
        """
        return self._reserve(session, adw_id, workflow=workflow)

    def _reserve(
        self,
        session: Session,
        adw_id: str,
        *,
        workflow: str = "",
        estimated: float | None = None,
        known: tuple[float, float | None] | None = None,
    ) -> tuple[float, float | None]:
        """Reserve a place unless a limit is reached; return cost and cap. Repeating it only changes the estimate."""
        if self._shared.dialect == "postgresql":  # SQLite has only one writer
            session.one("SELECT pg_advisory_xact_lock(hashtext('adw.quota_reservations'))")
        self._free_abandoned(session)
        spending = self._read_spending(session, adw_id)
        if estimated is None:
            if not workflow:
                row = session.one("SELECT workflow FROM workflow_states WHERE adw_id = :adw_id", {"adw_id": adw_id})
                workflow = str(row[0]) if row else ""
            now = self._clock.monotonic()
            made_at, estimated = self._estimates.get(workflow, (-math.inf, None))
            if workflow and now - made_at >= ESTIMATE_SECONDS:
                estimated = self._estimate(session, workflow)
                self._estimates[workflow] = (now, estimated)
        spent, cap = known or (spending.spent_by_asker, spending.cap_of_asker)
        _refuse(self._worktrees(spending, asking=adw_id))
        _refuse(self._runs(spending, asking=adw_id))
        _refuse(self._cost(estimated, spent, cap=cap, asking=adw_id))
        _refuse(self._cost_per_day(spending, asking=adw_id, more=max(0.0, (estimated or 0.0) - spent)))
        session.run(
            "INSERT INTO quota_reservations (adw_id, host, estimated_cost, reserved_at) "
            "VALUES (:adw_id, :host, :estimated_cost, :reserved_at) "
            "ON CONFLICT (adw_id) DO UPDATE SET host = excluded.host, estimated_cost = excluded.estimated_cost",
            {
                "adw_id": adw_id,
                "host": self._host,
                "estimated_cost": estimated,
                "reserved_at": timestamps.to_text(self._clock.now()),
            },
        )

        return spent, cap

    def check_start(self, workflow: str) -> None:
        """
        Raise QuotaExceeded if a new workflow of this name could not begin until a person frees a limit.

        Nothing is reserved. Memory and the number of runs become free by themselves, so then a start waits in the
        queue. A worktree that is too large stops only its own workflow (`why_too_large`).
        """
        spending, estimated = self._spending(), self.estimate(workflow)
        for status in (
            self._disk(),
            self._worktrees(spending, asking=_NEW),
            self._cost(estimated, 0.0),
            self._cost_per_day(spending, asking=_NEW, more=estimated or 0.0),
        ):
            _refuse(status)

    def is_machine_full(self) -> bool:
        """Return whether too little disk or memory is free for new work."""
        limits, meters = self.limits, self._meters

        return meters.free_disk(self._trees) < limits.min_free_disk or meters.free_memory() < limits.min_free_memory

    def release(self, adw_id: str) -> None:
        """Release the place of a workflow."""
        sql = "DELETE FROM quota_reservations WHERE adw_id = :adw_id"
        params = {"adw_id": check_adw_id(adw_id)}
        if self._database is not None:
            self._database.transact(lambda session: session.run(sql, params))

    def free_left_behind(self) -> int:
        """Free the places of parked and ended workflows without a live owner, and return how many."""
        return self._database.transact(self._free_abandoned) if self._database is not None else 0

    def _free_abandoned(self, session: Session) -> int:
        """Free places whose worker died before releasing them, and those of workflows that were never created."""
        sql = """
            DELETE FROM quota_reservations WHERE EXISTS (
              SELECT 1 FROM workflow_states AS known
              WHERE known.adw_id = quota_reservations.adw_id
                AND known.state IN ('paused', 'failed', 'completed', 'abandoned', 'rolled_back')
                AND (known.owner = '' OR known.lease_boot <> :boot OR known.lease_until <= {now})
            )
            OR (reserved_at < :long_ago AND NOT EXISTS (
              SELECT 1 FROM workflow_states AS known WHERE known.adw_id = quota_reservations.adw_id
            ))
        """
        long_ago = timestamps.to_text(self._clock.now() - ABANDONED_AFTER)

        return session.run(self._shared.render(sql), {**self._shared.lease_clock(), "long_ago": long_ago})

    # --- reading -----------------------------------------------------------------------------------------------

    def status(
        self, *, estimated_cost: float | None = None, sizes: Mapping[str, int] | None = None
    ) -> tuple[QuotaStatus, ...]:
        """Return every limit; *sizes* is a result of `sizes`, None: measure the worktrees now."""
        spending = self._spending()

        return (
            self._disk(),
            self._memory(),
            self._worktrees(spending, asking=""),
            self._size(self.sizes() if sizes is None else sizes),
            self._cost(estimated_cost, spending.spent_by_asker),
            self._cost_per_day(spending, asking="", more=estimated_cost or 0.0),
            self._runs(spending, asking=""),
        )

    def gauges(self, *, spent_today: float, sizes: Mapping[str, int] | None) -> tuple[QuotaStatus, ...]:
        """
        Return the limits that all workflows share, without slow measurements.

        *spent_today* comes from the stored sums, and *sizes* is a recent result of `sizes`; None: unknown.
        """
        limits = self._shared_limits(
            Spending(places=self._read(self._places, tuple[Reservation, ...]()), spent_today=spent_today)
        )
        if not self.limits.max_worktree_size:
            return limits
        size = self._size(sizes or {})
        if sizes is None:
            size = replace(size, detail="the worktrees are being measured", is_known=False)

        return (*limits[:3], size, *limits[3:])

    def reached(self) -> tuple[QuotaStatus, ...]:
        """Return the limits that stop new work now, without measuring the worktrees."""
        shared = self._shared_limits(self._spending())

        return tuple(status for status in shared if status.is_known and status.is_exceeded)

    def _shared_limits(self, spending: Spending) -> tuple[QuotaStatus, ...]:
        """Return the limits that all workflows share and that are quickly determined."""
        return (
            self._disk(),
            self._memory(),
            self._worktrees(spending, asking=""),
            self._cost_per_day(spending, asking="", more=0.0),
            self._runs(spending, asking=""),
        )

    def rest_of_day(self) -> float:
        """Return what all workflows together may still spend until midnight UTC; never below 0."""
        return max(0.0, self.limits.max_cost_per_day - self._spending().spent_today)

    def workflows(self) -> tuple[str, ...]:
        """Return the workflows that have a place."""
        return tuple(place.adw_id for place in self._read(self._places, tuple[Reservation, ...]()))

    def worktrees(self) -> tuple[str, ...]:
        """Return the workflows that have a worktree here; directories that are not worktrees do not count."""
        if not self._trees.is_dir():
            return ()

        return tuple(sorted(path.name for path in self._trees.iterdir() if (path / ".git").is_file()))

    def sizes(self) -> dict[str, int]:
        """Return the size of each worktree, reading every file in them; empty if the size is not limited."""
        if not self.limits.max_worktree_size:
            return {}

        return {name: size_of(self._trees / name) for name in self.worktrees()}

    def too_large(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """Return the workflows whose worktree has reached the limit, with the reason to pause, the largest first."""
        limit = self.limits.max_worktree_size
        reached = sorted((name for name in sizes if 0 < limit <= sizes[name]), key=lambda name: (-sizes[name], name))

        return {name: f"{self._large(name, sizes[name])}: {_SMALLER}, then: adw resume {name}" for name in reached}

    def estimate(self, workflow: str) -> float | None:
        """Return the expected cost of a workflow of this name, from completed ones, or None without any."""
        return self._read(lambda session: self._estimate(session, workflow), None)

    def _spending(self) -> Spending:
        return self._read(lambda session: self._read_spending(session, ""), Spending())

    def _read(self, work: Callable[[Session], _Read], otherwise: _Read) -> _Read:
        """Return what *work* reads, or *otherwise* without a database."""
        if self._database is None:
            return otherwise
        with self._database.read() as session:
            return work(session)

    def _places(self, session: Session) -> tuple[Reservation, ...]:
        sql = f"""
            SELECT place.adw_id, place.host, place.estimated_cost, {_DOCUMENT_SQL[self._shared.dialect]["cost"]}
            FROM quota_reservations AS place
            LEFT JOIN workflow_states AS known ON known.adw_id = place.adw_id AND known.revision > 0
            ORDER BY place.reserved_at, place.adw_id
        """

        return tuple(
            Reservation(adw_id=adw_id, host=host, estimated_cost=estimated, spent=money(spent) or 0.0)
            for adw_id, host, estimated, spent in session.all(sql)
        )

    def _read_spending(self, session: Session, adw_id: str) -> Spending:
        """Return the reserved places and what was spent, and the cost and cap of *adw_id*."""
        midnight = timestamps.to_text(self._clock.now().replace(hour=0, minute=0, second=0, microsecond=0))
        rows = session.all(spent_since_sql(self._shared.dialect), {"since": midnight})
        entries = (entry for row in rows for entry in costs.entries_in(*row) if entry.ended_at >= midnight)
        lines, _ = costs.grouped((entry for entry in entries if entry.cost_usd is not None), "provider")
        today = {line.key: line.cost_usd for line in lines}
        part = _DOCUMENT_SQL[self._shared.dialect]
        sql = f"SELECT {part['cost']}, {part['cap']} FROM workflow_states WHERE adw_id = :adw_id AND revision > 0"
        asker = session.one(sql, {"adw_id": adw_id}) if adw_id else None

        return Spending(
            places=self._places(session),
            spent_today=math.fsum(today.values()),
            spent_today_by_provider=today,
            spent_by_asker=(money(asker[0]) or 0.0) if asker else 0.0,
            cap_of_asker=money(asker[1]) if asker else None,
        )

    def _estimate(self, session: Session, workflow: str) -> float | None:
        """Return the expected cost of a workflow of that name."""
        sql = f"""
            SELECT {_DOCUMENT_SQL[self._shared.dialect]["cost"]} FROM workflow_states
            WHERE workflow = :workflow AND state = 'completed' AND revision > 0
            ORDER BY created_at DESC, adw_id DESC LIMIT {PAST_WORKFLOWS}
        """
        rows = session.all(sql, {"workflow": workflow})

        return statistics.median([money(cost) or 0.0 for (cost,) in rows]) if rows else None

    # --- each limit --------------------------------------------------------------------------------------------

    def _disk(self) -> QuotaStatus:
        free, limit = self._meters.free_disk(self._trees), self.limits.min_free_disk
        detail = (
            f"{size_text(free)} are free on the file system of {self._trees}, {size_text(limit)} must be: "
            "remove worktrees with adw admin gc, make room, or lower quota.min_free_disk"
        )

        return _free("disk", free, limit, detail)

    def _memory(self) -> QuotaStatus:
        free, limit = self._meters.free_memory(), self.limits.min_free_memory
        detail = (
            f"{size_text(free)} of memory are free, {size_text(limit)} must be: "
            "wait for other work to end, or lower quota.min_free_memory"
        )

        return _free("memory", free, limit, detail)

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
            "orphans with adw admin gc, or raise quota.max_worktrees",
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

    def _size(self, sizes: Mapping[str, int]) -> QuotaStatus:
        limit = self.limits.max_worktree_size
        largest, reached = max(sizes, key=lambda name: sizes[name], default=""), tuple(self.too_large(sizes))
        if not limit:
            detail = "quota.max_worktree_size is off: worktrees are not measured"
        elif reached:
            named = ", ".join(self._large(name, sizes[name]) for name in reached[:MOST_NAMED])
            more = f" and {len(reached) - MOST_NAMED} more" if len(reached) > MOST_NAMED else ""
            detail = f"{named}{more}, and the workflow that works in it pauses: {_SMALLER}"
        elif largest:
            detail = f"the largest worktree, {self._trees / largest}, has {size_text(sizes[largest])} of "
            detail += size_text(limit)
        else:
            detail = f"there is no worktree; one may have up to {size_text(limit)}"

        return QuotaStatus(
            name="worktree_size",
            used=_gb(sizes.get(largest, 0)),
            limit=_gb(limit),
            unit="GB",
            is_exceeded=bool(reached),
            detail=detail,
            is_known=bool(limit),
        )

    def _large(self, name: str, size: int) -> str:
        return f"the worktree {self._trees / name} has {size_text(size)} of {size_text(self.limits.max_worktree_size)}"

    def _cost(
        self, estimated: float | None, spent: float, *, cap: float | None = None, asking: str = ""
    ) -> QuotaStatus:
        """Return the cost limit of one workflow; its own *cap*, set by a person, replaces the general one."""
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
        shares = sorted(spending.spent_today_by_provider.items(), key=lambda item: (-item[1], item[0]))
        shown = f" ({', '.join(f'{name} {usd:.2f}' for name, usd in shares)})" if len(shares) > 1 else ""

        return QuotaStatus(
            name="cost_per_day",
            used=round(used, 4),
            limit=limit,
            unit="USD",
            is_exceeded=used > limit or 0 < limit <= spending.spent_today,
            detail=f"{spending.spent_today:.2f} USD were spent today{shown} and "
            f"{to_come + more:.2f} USD are to come, "
            f"of {limit:.2f} USD: wait until midnight UTC, or raise quota.max_cost_per_day",
            reserved=round(to_come, 4),
            expected=round(more, 4),
        )


def spent_since_sql(dialect: str) -> str:
    """Return the query for workflows with costs that changed since a moment; their attempts say when costs arose."""
    part = _DOCUMENT_SQL[dialect]

    return (
        f"SELECT adw_id, workflow, {part['phases']} FROM workflow_states "
        "WHERE updated_at >= :since AND revision > 0 AND is_costing = 1"
    )


def _refuse(status: QuotaStatus) -> None:
    if status.is_exceeded:
        raise QuotaExceeded(status.name, f"the quota {status.name} is used up: {status.detail}")


def _free(name: str, free: int, limit: int, detail: str) -> QuotaStatus:
    used, most = _gb(free), _gb(limit)

    return QuotaStatus(name=name, used=used, limit=most, unit="GB free", is_exceeded=free < limit, detail=detail)


def _gb(size: int) -> float:
    """Return a size in GB, to the kilobyte."""
    return round(size / GB, 6)


class CostStore:
    """
    Reads what attempts cost from the documents' rows.

    Most rows are skipped by a pattern match: only a report with a cost has one, only the record of an agent has a
    provider. Rows are read a few hundred at a time, so that ten thousand are never in memory at once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, since: str = "") -> Iterator[CostEntry]:
        """Yield the costs of each attempt that ended at or after *since*, workflow by workflow."""
        # Whole documents: extracting the phases in the database takes longer than reading the rest.
        sql = """
            SELECT adw_id, workflow, body FROM workflow_states
            WHERE adw_id > :after AND updated_at >= :since AND revision > 0
              AND (body LIKE :costing OR body LIKE :of_agents)
            ORDER BY adw_id LIMIT :limit
        """
        params: dict[str, object] = {"since": since, "costing": COSTING, "of_agents": OF_AGENTS, "limit": CHUNK}
        after = ""
        with self._database.read() as session:
            while rows := session.all(sql, {**params, "after": after}):
                for adw_id, workflow, body in rows:
                    phases = json.loads(body).get("phases")
                    yield from (one for one in entries_of(adw_id, workflow, phases) if one.ended_at >= since)
                after = rows[-1][0]


def size_of(path: Path, *, may_go_on: Callable[[], bool] = lambda: True) -> int:
    """
    Return the bytes that a directory takes on its disk, without entries that vanish meanwhile or are unreadable.

    Takes about 3 seconds for a million files. *may_go_on* is called before each directory; once it returns False, the
    result is the sum so far.
    """
    total, folders = 0, [str(path)]
    seen: set[tuple[int, int]] = set()  #: hard-linked files, which count once
    while folders and may_go_on():
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                try:
                    result = entry.stat(follow_symlinks=False)
                    is_folder = entry.is_dir(follow_symlinks=False)
                except OSError:
                    continue
                if is_folder:
                    folders.append(entry.path)
                elif result.st_nlink > 1:
                    if (result.st_dev, result.st_ino) in seen:
                        continue
                    seen.add((result.st_dev, result.st_ino))
                total += result.st_blocks * _BLOCK_BYTES

    return total


def nearest(path: Path) -> Path:
    """Return *path*, or the closest existing directory above it."""
    while not path.exists() and path != path.parent:
        path = path.parent

    return path
