"""
Leases, issue locks, requests and processes in memory.

Time comes from the clock that is passed in: advance it to let a lease run out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adws.adw_modules import timestamps
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import IssueLocked, LeaseLost, StateExists, StateNotFound
from adws.adw_modules.events import Event
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.interfaces import Clock, IssueLock, Lease, LeaseBusy, LeaseRow, LeaseTaken, Request
from adws.adw_modules.interfaces_coordination import HandBack, LeaseWish
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.owner_record import OwnerRecord, Verdict
from adws.adw_modules.repository_name import in_home, normalise
from adws.adw_modules.runs import NewRun, Run, RunEnd, check_run_of
from adws.testing.clock import FakeClock
from adws.testing.run_queue import MemoryRunQueue


@dataclass(kw_only=True, slots=True)
class _Row:
    fence: int = 0
    owner: OwnerRecord | None = None
    ends: float = 0.0  #: Clock.boottime
    taken_at: str = ""


class MemoryLeases:
    """A `LeaseBook`, and `MassLeases`, in memory."""

    def __init__(self, clock: Clock, runs: MemoryRunQueue | None = None, locks: MemoryIssueLocks | None = None) -> None:
        """Keep leases; *runs* and *locks* are what is begun, ended and freed with them."""
        self._clock = clock
        self._runs = runs or MemoryRunQueue(clock)
        self._locks = locks or MemoryIssueLocks(clock)
        self._guard = threading.Lock()
        self._rows: dict[str, _Row] = {}

    def add(self, adw_id: str, *, fence: int = 0) -> None:
        """Make the row of a workflow that nobody owns; raise StateExists when there is one."""
        with self._guard:
            if check_adw_id(adw_id) in self._rows:
                raise StateExists(adw_id)
            self._rows[adw_id] = _Row(fence=fence)

    def remove(self, adw_id: str) -> None:
        """Take the row of a workflow away."""
        with self._guard:
            self._rows.pop(adw_id, None)

    def take(
        self,
        adw_id: str,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        dead_fence: int | None = None,
        run: Run | None = None,
    ) -> LeaseTaken | LeaseBusy:
        """Take a free or ended lease, or the one with *dead_fence* whose owner is proven dead; begin *run*."""
        with self._guard:
            row = self._row(adw_id)
            now = self._clock.boottime()
            is_free = row.owner is None or row.ends <= now or row.fence == dead_fence
            if not is_free:
                return LeaseBusy(row=self._shown(adw_id, row))

            begun = self._runs.begin(run) if run is not None else None
            previous, previous_fence = row.owner, row.fence
            row.fence += 1
            row.owner = owner
            row.ends = now + ttl_seconds
            row.taken_at = timestamps.to_text(self._clock.now())
            lease = Lease(adw_id=adw_id, owner=owner, fence=row.fence)
            return LeaseTaken(
                lease=lease, previous=previous, previous_fence=previous_fence if previous is not None else 0, run=begun
            )

    def renew(self, lease: Lease, *, ttl_seconds: float) -> None:
        """Push the end out; raise LeaseLost when it is no longer ours or has ended."""
        with self._guard:
            row = self._rows.get(lease.adw_id)
            if row is None or not _is_ours(row, lease):
                raise LeaseLost(f"the lease of workflow {lease.adw_id} was taken over")
            if row.ends <= self._clock.boottime():
                raise LeaseLost(f"the lease of workflow {lease.adw_id} ran out")
            row.ends = self._clock.boottime() + ttl_seconds

    def release(self, lease: Lease) -> bool:
        """Give the lease back; False when it was not ours any more."""
        with self._guard:
            row = self._rows.get(lease.adw_id)
            if row is None or not _is_ours(row, lease):
                return False
            row.owner = None
            row.ends = 0.0
            return True

    def end_run(self, lease: Lease, run: Run, end: RunEnd, *, free_issue: int | None = None) -> Run:
        """End *run*, give the lease back and free the issue; raise RunLost, and then nothing of it is done."""
        ended = self._runs.end(run, end)
        self.release(lease)
        if free_issue is not None:
            self._locks.end(free_issue, lease.adw_id)
        return ended

    def take_all(
        self, wishes: Sequence[LeaseWish], owner: OwnerRecord, *, ttl_seconds: float
    ) -> tuple[LeaseTaken | LeaseBusy | None, ...]:
        """Take each lease as `take` does; None for a workflow that does not exist."""
        return tuple(
            self.take(wish.adw_id, owner, ttl_seconds=ttl_seconds, dead_fence=wish.dead_fence)
            if wish.adw_id in self._rows
            else None
            for wish in wishes
        )

    def hand_back(self, ends: Sequence[HandBack]) -> tuple[Run | None, ...]:
        """Give leases and runs back, and return each run as it stands then; None for one that had moved on."""
        return tuple(self._hand_back(end) for end in ends)

    def _hand_back(self, end: HandBack) -> Run | None:
        if end.lease is not None:
            self.release(end.lease)
            if end.free_issue is not None:
                self._locks.end(end.free_issue, end.lease.adw_id)
        if end.run is not None and end.end is not None:
            return self._runs.settle_lost(end.run, end.end)
        return None if end.new_run is None else self._runs.enqueue(end.new_run)

    def read_all(self, adw_ids: Sequence[str]) -> dict[str, LeaseRow]:
        """Return the rows of those workflows that there are."""
        found = {adw_id: self.read(adw_id) for adw_id in adw_ids}
        return {adw_id: row for adw_id, row in found.items() if row is not None}

    def read(self, adw_id: str) -> LeaseRow | None:
        """Return the row as it stands."""
        with self._guard:
            row = self._rows.get(check_adw_id(adw_id))
            return None if row is None else self._shown(adw_id, row)

    def _row(self, adw_id: str) -> _Row:
        row = self._rows.get(check_adw_id(adw_id))
        if row is None:
            raise StateNotFound(adw_id)
        return row

    def _shown(self, adw_id: str, row: _Row) -> LeaseRow:
        left = row.ends - self._clock.boottime() if row.owner is not None else 0.0
        return LeaseRow(adw_id=adw_id, fence=row.fence, owner=row.owner, seconds_left=left, taken_at=row.taken_at)


def _is_ours(row: _Row, lease: Lease) -> bool:
    return row.owner is not None and row.owner.token == lease.owner.token and row.fence == lease.fence


class MemoryIssueLocks:
    """`IssueLocks` in memory."""

    def __init__(self, clock: Clock, *, repository: str = "") -> None:
        """Keep locks for a home whose own repository, that "" stands for, is *repository*."""
        self._clock = clock
        self._repository = repository
        self._guard = threading.Lock()
        self._locks: dict[tuple[str, int], IssueLock] = {}

    def key(self, repository: str) -> str:
        """Return the repository as locks are compared by it."""
        return in_home(repository, self._repository)

    def acquire(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Take the lock; True when it is (or was already) ours, False when another workflow has it."""
        check_adw_id(adw_id)
        repository = self._checked(repository)
        with self._guard:
            held = self._locks.get((repository, issue_number))
            if held is not None:
                return held.adw_id == adw_id
            self._locks[repository, issue_number] = IssueLock(
                repository=repository,
                issue_number=issue_number,
                adw_id=adw_id,
                acquired_at=timestamps.to_text(self._clock.now()),
            )
            return True

    def verify(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Say whether *adw_id* has the lock."""
        check_adw_id(adw_id)
        held = self.holder(issue_number, repository)
        return held is not None and held.adw_id == adw_id

    def release(self, issue_number: int, adw_id: str, repository: str = "") -> bool:
        """Give it back; False, and nothing changed, when *adw_id* does not have it."""
        check_adw_id(adw_id)
        repository = self._checked(repository)
        with self._guard:
            held = self._locks.get((repository, issue_number))
            if held is None or held.adw_id != adw_id:
                return False
            del self._locks[repository, issue_number]
            return True

    def end(self, issue_number: int, adw_id: str) -> None:
        """Free the issue of a workflow that ended, whatever its repository; for `MemoryLeases`."""
        with self._guard:
            ours = [key for key, lock in self._locks.items() if key[1] == issue_number and lock.adw_id == adw_id]
            for key in ours:
                del self._locks[key]

    def holder(self, issue_number: int, repository: str = "") -> IssueLock | None:
        """Return who has it."""
        return self._locks.get((self._checked(repository), issue_number))

    def all(self) -> tuple[IssueLock, ...]:
        """Return every lock, oldest first."""
        return tuple(sorted(self._locks.values(), key=lambda lock: lock.acquired_at))

    def first(self, limit: int) -> tuple[IssueLock, ...]:
        """Return so many locks, by repository and issue."""
        return tuple(sorted(self._locks.values(), key=lambda lock: (lock.repository, lock.issue_number))[:limit])

    def _checked(self, repository: str) -> str:
        normalise(repository)

        return self.key(repository)


class MemoryRegistry:
    """A `Registry` over memory leases and issue locks."""

    def __init__(self, leases: MemoryLeases, locks: MemoryIssueLocks, runs: MemoryRunQueue | None = None) -> None:
        """Register workflows; without *runs* their runs go to a queue that nobody else has."""
        self._leases = leases
        self._locks = locks
        self._runs = runs or MemoryRunQueue(FakeClock())
        self._issues: dict[str, tuple[int, str]] = {}
        self.events: list[Event] = []  #: what was registered with, for tests to look at

    def register(
        self,
        document: WorkflowDocument,
        owner: OwnerRecord,
        *,
        ttl_seconds: float,
        events: Sequence[Event] = (),
        run: NewRun | None = None,
    ) -> Lease:
        """
        Lock the issue, make the row with fence 1 and enqueue *run*.

        Raises IssueLocked or StateExists, and then nothing is left.
        """
        adw_id = check_adw_id(document.adw_id)
        check_run_of(adw_id, run)
        self._leases.add(adw_id)
        if document.issue_number is not None:
            self._lock_issue(document.issue_number, adw_id, document.repository)
        taken = self._leases.take(adw_id, owner, ttl_seconds=ttl_seconds)
        if isinstance(taken, LeaseBusy):  # pragma: no cover - the row was made by us a moment ago and is free
            raise StateExists(adw_id)
        self.events.extend(events)
        if run is not None:
            self._runs.enqueue(run)

        return taken.lease

    def unregister(self, lease: Lease) -> None:
        """Take that back for a workflow whose document could not be written."""
        if not self._leases.release(lease):
            return
        self._leases.remove(lease.adw_id)
        self._runs.remove(lease.adw_id)
        issue = self._issues.pop(lease.adw_id, None)
        if issue is not None:
            self._locks.release(issue[0], lease.adw_id, issue[1])

    def _lock_issue(self, issue_number: int, adw_id: str, repository: str) -> None:
        if not self._locks.acquire(issue_number, adw_id, repository):
            self._leases.remove(adw_id)
            held = self._locks.holder(issue_number, repository)
            raise IssueLocked(issue_number, held.adw_id if held else "another workflow", repository)
        self._issues[adw_id] = (issue_number, repository)


class MemoryRequests:
    """`Requests` in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._requests: list[Request] = []

    def ask(self, adw_id: str, kind: str, *, payload: JsonObject | None = None, asked_by: str = "") -> Request:
        """Leave a request."""
        check_adw_id(adw_id)
        with self._guard:
            request = Request(
                request_id=len(self._requests) + 1,
                adw_id=adw_id,
                kind=kind,
                payload=dict(payload or {}),
                asked_by=asked_by,
                created_at=timestamps.to_text(self._clock.now()),
            )
            self._requests.append(request)
            return request

    def open_for(self, adw_id: str) -> tuple[Request, ...]:
        """Return what is not handled yet, oldest first."""
        check_adw_id(adw_id)
        return tuple(r for r in self._requests if r.adw_id == adw_id and r.handled_at is None)

    def get(self, request_id: int) -> Request | None:
        """Return a request, handled or not."""
        return self._requests[request_id - 1] if 1 <= request_id <= len(self._requests) else None

    def handled(self, request_id: int, outcome: str) -> bool:
        """Mark it handled; False when it was already, or never asked."""
        with self._guard:
            if not 1 <= request_id <= len(self._requests) or self._requests[request_id - 1].handled_at is not None:
                return False
            self._requests[request_id - 1] = replace(
                self._requests[request_id - 1], handled_at=timestamps.to_text(self._clock.now()), outcome=outcome
            )
            return True


class MemoryLocalLock:
    """
    A `LocalLock` in memory.

    Give several workers of one imagined machine the same *machine*, and each its own MemoryLocalLock: then one keeps
    the others out, as separate processes would.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        self._mine: set[str] = set()

    def try_hold(self, adw_id: str) -> bool:
        """Take it without waiting; False when anybody has it, we included."""
        with self._machine.guard:
            if check_adw_id(adw_id) in self._machine.held:
                return False
            self._machine.held.add(adw_id)
            self._mine.add(adw_id)
            return True

    def let_go(self, adw_id: str) -> None:
        """Free it; nothing happens when it was not ours."""
        with self._machine.guard:
            if check_adw_id(adw_id) in self._mine:
                self._mine.remove(adw_id)
                self._machine.held.discard(adw_id)

    def is_held(self, adw_id: str) -> bool:
        """Say whether anybody holds it."""
        return check_adw_id(adw_id) in self._machine.held


class Machine:
    """What the lock holders of one imagined machine share."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.guard = threading.Lock()


class FakeProcesses:
    """`Processes` whose owners live until they are killed here."""

    def __init__(self, token: Callable[[], str], *, host: str = "testhost") -> None:
        self._token = token
        self._host = host
        self._next_pid = 1000
        self._verdicts: dict[str, Verdict] = {}

    def me(self, role: str) -> OwnerRecord:
        """Return a fresh owner record; its owner is alive."""
        self._next_pid += 1
        record = OwnerRecord(
            token=self._token(),
            host=self._host,
            machine=f"machine-of-{self._host}",
            boot_id="boot-1",
            pid_namespace="pid:[1]",
            pid=self._next_pid,
            start_ticks=self._next_pid * 10,
            role=role,
        )
        self._verdicts[record.token] = Verdict.ALIVE
        return record

    def verdict(self, record: OwnerRecord | None) -> Verdict:
        """Return what was set for that owner; UNKNOWN for one that is not from here."""
        if record is None:
            return Verdict.UNKNOWN
        return self._verdicts.get(record.token, Verdict.UNKNOWN)

    def kill(self, record: OwnerRecord) -> None:
        """From now on that owner is proven dead."""
        self._verdicts[record.token] = Verdict.DEAD

    def lose_sight_of(self, record: OwnerRecord) -> None:
        """From now on nothing is known about that owner."""
        self._verdicts[record.token] = Verdict.UNKNOWN
