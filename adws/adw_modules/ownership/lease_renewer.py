"""
The thread that renews the leases and claims of this process, and fetches orders.

Work may block for an hour, so it cannot do this itself. If a lease could not be renewed for a while, it is treated as
lost before anyone else may take it: the work is ordered to stop, and its late writes would be refused anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.errors import AdwError, DatabaseError, LeaseLost, RunLost
from adws.adw_modules.interfaces import Clock, Request, StateStore
from adws.adw_modules.phase import Order
from adws.adw_modules.queue.model import Run, RunState

if TYPE_CHECKING:
    from adws.adw_modules.db.sqlite import CommitWatcher
    from adws.adw_modules.ownership.leases import Requests
    from adws.adw_modules.ownership.ownership import OwnedWorkflow
    from adws.adw_modules.queue.store import RunStore

logger = logging.getLogger("adw.leases")

#: Requests that end the running attempt; others wait until it has ended.
ENDING_REQUESTS = frozenset({"pause", "stop", "abandon", "rollback"})
#: The reason work stops on a part of a workflow that does not continue.
NOT_WANTED = "the workflow does not go on"
#: Seconds between two checks while code waits for an order.
SLICE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class RenewalTimes:
    """Intervals of the lease renewer, in seconds."""

    look: float = 0.5  #: between two checks for requests
    renew: float = 10.0
    give_up: float = 20.0  #: without a renewal, before the lease counts as lost
    ttl: float = 30.0


class RunOnly:
    """A run fenced by its own token instead of a workflow's lease; used in place of an OwnedWorkflow."""

    def __init__(self, run: Run, runs: RunStore, *, clock: Clock, ttl_seconds: float) -> None:
        self.adw_id = run.adw_id
        self.run: Run | None = run
        self.renewed_at = clock.boottime()
        self._runs = runs
        self._clock = clock
        self._ttl_seconds = ttl_seconds

    def renew(self) -> None:
        """Extend the claim; raise RunLost."""
        asked_at = self._clock.boottime()
        if self.run is not None:
            self.run = self._runs.renew(self.run, ttl_seconds=self._ttl_seconds)
        self.renewed_at = asked_at


class LeaseHandle:
    """
    A workflow under renewal: the orders for it, and its unanswered requests.

    Each query for orders also checks whether the lease is still valid: the renewal thread may itself hang in a database
    that does not respond.
    """

    def __init__(
        self,
        owned: OwnedWorkflow | RunOnly,
        *,
        clock: Clock,
        give_up_seconds: float,
        order_to_all: Callable[[], Order | None] = lambda: None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        """*order_to_all* returns the order for this whole process; *is_wanted* says whether the work may continue."""
        self.owned = owned
        self.is_wanted = is_wanted
        self._clock = clock
        self._give_up_seconds = give_up_seconds
        self._order_to_all = order_to_all
        self._order: Order | None = None
        self._given = threading.Event()
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._answered: set[int] = set()

    @property
    def adw_id(self) -> str:
        """The id of the workflow."""
        return self.owned.adw_id if isinstance(self.owned, RunOnly) else self.owned.lease.adw_id

    @property
    def silent_seconds(self) -> float:
        """Seconds since the lease was last renewed, by the renewer or by a write."""
        return self._clock.boottime() - self.owned.renewed_at

    def current(self) -> Order | None:
        """Return the order to obey, or None while the work may continue."""
        if self._clock.boottime() - self.owned.renewed_at >= self._give_up_seconds:
            reason = f"the lease could not be renewed for {self.silent_seconds:.0f} s"
            self.give(Order(kind="lost_lease", reason=reason, is_urgent=True))
        own, common = self._order, self._order_to_all()
        if own is None or common is None:
            return own or common

        return common if common.is_urgent and not own.is_urgent else own

    def wait(self, seconds: float) -> Order | None:
        """Wait up to *seconds* for an order."""
        left = seconds
        while (order := self.current()) is None and left > 0.0:
            # In slices: a signal handler gives the order for everything, and may not touch any lock.
            self._given.wait(min(left, SLICE_SECONDS))
            left -= SLICE_SECONDS

        return order

    def give(self, order: Order) -> None:
        """Give an order; only a more urgent one replaces an earlier one."""
        with self._lock:
            if self._order is None or (order.is_urgent and not self._order.is_urgent):
                self._order = order
        self._given.set()

    def note(self, request: Request) -> None:
        """Keep a request until it is answered; a request that ends the attempt becomes an order."""
        with self._lock:
            # A fetch that began before the answer was stored may return the request after it.
            is_new = request.request_id not in self._requests and request.request_id not in self._answered
            if is_new:
                self._requests[request.request_id] = request
        if is_new and request.kind in ENDING_REQUESTS:
            self.give(
                Order(
                    kind=request.kind,
                    reason=reason_of(request),
                    asked_by=request.asked_by,
                    request_id=request.request_id,
                    is_urgent=bool(request.payload.get("is_urgent")),
                )
            )

    def open_requests(self) -> tuple[Request, ...]:
        """Return the unanswered requests, oldest first."""
        if not self._requests:
            return ()
        with self._lock:
            return tuple(self._requests[key] for key in sorted(self._requests))

    def answered(self, request_id: int) -> None:
        """Forget a request."""
        with self._lock:
            self._requests.pop(request_id, None)
            self._answered.add(request_id)

    @property
    def has_requests(self) -> bool:
        """Whether there are unanswered requests."""
        return bool(self._requests)

    def has_business(self) -> bool:
        """Say whether an order or a request must be handled between two phases."""
        return self.current() is not None or self.has_requests


def reason_of(request: Request) -> str:
    """Return the reason of a request, as text."""
    return str(request.payload.get("reason") or f"{request.kind} asked by {request.asked_by}")


class LeaseRenewer:
    """Renews everything this process owns that no write has renewed; one thread, started with the first handle."""

    def __init__(
        self,
        *,
        clock: Clock,
        requests: Requests,
        runs: RunStore,
        store: StateStore,
        times: RenewalTimes | None = None,
        watcher: CommitWatcher | None = None,
    ) -> None:
        """*watcher* sees commits: while there are none, requests are not queried."""
        self._clock = clock
        self._requests = requests
        self._runs = runs
        self._store = store
        self._times = times or RenewalTimes()
        self._watcher = watcher
        self._charges: set[LeaseHandle] = set()
        self._is_new = False  #: whether a handle was added since requests were queried
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._order_to_all: Order | None = None

    def charge(self, owned: OwnedWorkflow, run: Run | None = None) -> AbstractContextManager[LeaseHandle]:
        """Renew *owned* (and the claim of *run*) inside the block."""
        if run is not None:
            owned.run = run
        owned.is_renewed = True

        return self._looked_after(owned)

    def keep(self, run: Run, *, is_wanted: Callable[[], bool]) -> AbstractContextManager[LeaseHandle]:
        """Renew only the claim of *run* inside the block; the run is stopped once *is_wanted* returns False."""
        alone = RunOnly(run, self._runs, clock=self._clock, ttl_seconds=self._times.ttl)

        return self._looked_after(alone, is_wanted)

    @contextmanager
    def _looked_after(
        self, owned: OwnedWorkflow | RunOnly, is_wanted: Callable[[], bool] | None = None
    ) -> Iterator[LeaseHandle]:
        handle = LeaseHandle(
            owned,
            clock=self._clock,
            give_up_seconds=self._times.give_up,
            order_to_all=lambda: self._order_to_all,
            is_wanted=is_wanted,
        )
        with self._lock:
            self._charges.add(handle)
            self._is_new = True
            self._start()
        try:
            yield handle
        finally:
            with self._lock:
                self._charges.discard(handle)

    def order_all(self, order: Order) -> None:
        """
        Give an order to all current and future handles: a drain.

        Called by signal handlers at any point, even inside our own code, so it takes no lock and wakes no thread.
        """
        standing = self._order_to_all
        if standing is None or (order.is_urgent and not standing.is_urgent):
            self._order_to_all = order

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join()
        if self._watcher is not None:
            self._watcher.close()

    # --- the thread --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._keep, name="adw-lease-renewer", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while not self._wake.wait(self._times.look):
            try:
                self.look()
            except Exception:
                # A bug; but everything this process owns depends on this thread.
                logger.exception("The lease renewer failed", extra={"action": "lease_renewer_failed"})

    def look(self) -> None:
        """Do one round: renew what is due, fetch requests. Errors are logged and retried in the next round."""
        with self._lock:
            handles = tuple(self._charges)
            is_new, self._is_new = self._is_new, False
        for handle in handles:
            try:
                self._renew(handle)
                if handle.is_wanted is not None and not handle.is_wanted():
                    handle.give(Order(kind="stop", reason=NOT_WANTED))
            except (LeaseLost, RunLost) as exc:
                handle.give(Order(kind="lost_lease", reason=str(exc), is_urgent=True))
            except (AdwError, OSError) as exc:
                self._give_up_if_late(handle, exc)
        with suppress(DatabaseError):  # logged by the step; documents keep their events until they are stored
            self._store.flush()
        has_news = self._watcher is None or self._watcher.has_changed()
        if handles and (has_news or is_new):
            self._fetch(handles)

    def _renew(self, handle: LeaseHandle) -> None:
        if handle.silent_seconds >= self._times.renew:
            handle.owned.renew()
        run = handle.owned.run
        if run is not None and run.state is RunState.STOPPING:
            handle.give(Order(kind="stop", reason=run.reason or "asked to stop"))

    def _fetch(self, handles: Sequence[LeaseHandle]) -> None:
        """Fetch the requests to all handles with one query."""
        try:
            requests = self._requests.open_for(*{handle.adw_id for handle in handles})
        except (AdwError, OSError) as exc:
            self._is_new = True  # queried again in the next round
            for handle in handles:
                self._give_up_if_late(handle, exc)
            return
        for request in requests:
            for handle in handles:
                if handle.adw_id == request.adw_id:
                    handle.note(request)

    def _give_up_if_late(self, charge: LeaseHandle, cause: Exception) -> None:
        silent = charge.silent_seconds
        logger.warning(
            "Could not look after a workflow",
            extra={"action": "lease_trouble", "workflow": charge.adw_id, "silent_seconds": silent},
            exc_info=cause,
        )
        if silent >= self._times.give_up:
            reason = f"the lease could not be renewed for {silent:.0f} s: {cause}"
            charge.give(Order(kind="lost_lease", reason=reason, is_urgent=True))
