"""
The thread that keeps what a worker owns: renews leases and claims, and brings orders.

Work may block for an hour, so neither is left to it. What could not be renewed for a while is given up before anybody
else may take it: the work is ordered to stop, and its late writes would be refused anyway.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from adws.adw_modules.errors import AdwError, LeaseLost, RunLost
from adws.adw_modules.interfaces import Clock, Owned, Request, Requests
from adws.adw_modules.interfaces_engine import Order, RunQueue
from adws.adw_modules.runs import Run, RunState

logger = logging.getLogger("adw.keeper")

#: Requests that end the attempt under way; others wait until it has ended.
ENDING_REQUESTS = frozenset({"pause", "stop", "abandon", "rollback"})


@dataclass(frozen=True, kw_only=True, slots=True)
class KeeperTimes:
    """How often the keeper does what, in seconds."""

    look: float = 0.5  #: for requests
    renew: float = 10.0
    give_up: float = 20.0  #: without a renewal
    ttl: float = 30.0


class Charge:
    """A workflow in the keeper's care: the orders for it, and the requests nobody has answered yet."""

    def __init__(self, owned: Owned, run: Run | None, *, now: float) -> None:
        self.owned = owned
        self.run = run
        self.renewed_at = now
        self._order: Order | None = None
        self._given = threading.Event()
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}

    def current(self) -> Order | None:
        """Return the order to obey, None while the work may go on."""
        return self._order

    def wait(self, seconds: float) -> Order | None:
        """Wait for an order, at most that long."""
        self._given.wait(seconds)

        return self._order

    def give(self, order: Order) -> None:
        """Give an order; only a more urgent one replaces what was ordered before."""
        with self._lock:
            if self._order is None or (order.is_urgent and not self._order.is_urgent):
                self._order = order
        self._given.set()

    def note(self, request: Request) -> None:
        """Keep a request until it is answered; one that ends the attempt becomes an order."""
        with self._lock:
            is_new = request.request_id not in self._requests
            self._requests[request.request_id] = request
        if is_new and request.kind in ENDING_REQUESTS:
            self.give(
                Order(
                    kind=request.kind,
                    reason=str(request.payload.get("reason") or f"{request.kind} asked by {request.asked_by}"),
                    asked_by=request.asked_by,
                    request_id=request.request_id,
                    is_urgent=bool(request.payload.get("is_urgent")),
                )
            )

    def open_requests(self) -> tuple[Request, ...]:
        """Return the requests that wait for an answer, oldest first."""
        with self._lock:
            return tuple(self._requests[key] for key in sorted(self._requests))

    def answered(self, request_id: int) -> None:
        """Forget a request."""
        with self._lock:
            self._requests.pop(request_id, None)

    def has_business(self) -> bool:
        """Say whether something waits that has to be looked at between two phases."""
        return self._order is not None or bool(self._requests)


class Keeper:
    """Looks after everything a process owns; one thread, started with the first charge."""

    def __init__(self, *, clock: Clock, requests: Requests, runs: RunQueue, times: KeeperTimes | None = None) -> None:
        self._clock = clock
        self._requests = requests
        self._runs = runs
        self._times = times or KeeperTimes()
        self._charges: set[Charge] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._standing: Order | None = None

    @contextmanager
    def charge(self, owned: Owned, run: Run | None = None) -> Iterator[Charge]:
        """Look after *owned* (and the claim of *run*) inside the block."""
        charge = Charge(owned, run, now=self._clock.boottime())
        with self._lock:
            self._charges.add(charge)
            standing = self._standing
            self._start()
        if standing is not None:
            charge.give(standing)
        try:
            yield charge
        finally:
            with self._lock:
                self._charges.discard(charge)

    def order_all(self, order: Order) -> None:
        """Give an order to everything there is and will be: a drain."""
        with self._lock:
            self._standing = order
            charges = tuple(self._charges)
        for charge in charges:
            charge.give(order)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join()

    # --- the thread --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._keep, name="adw-keeper", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        while not self._wake.wait(self._times.look):
            self.look()

    def look(self) -> None:
        """Do one round: renew what is due, bring what was asked. Trouble is logged and tried again."""
        with self._lock:
            charges = tuple(self._charges)
        for charge in charges:
            try:
                self._renew(charge)
                for request in self._requests.open_for(charge.owned.lease.adw_id):
                    charge.note(request)
            except (LeaseLost, RunLost) as exc:
                charge.give(Order(kind="lost_lease", reason=str(exc), is_urgent=True))
            except (AdwError, OSError) as exc:
                self._give_up_if_late(charge, exc)

    def _renew(self, charge: Charge) -> None:
        now = self._clock.boottime()
        if now - charge.renewed_at < self._times.renew:
            return
        charge.owned.renew()
        if charge.run is not None:
            run = self._runs.renew(charge.run, ttl_seconds=self._times.ttl)
            if run.state is RunState.STOPPING:
                charge.give(Order(kind="stop", reason=run.reason or "asked to stop"))
        charge.renewed_at = now

    def _give_up_if_late(self, charge: Charge, cause: Exception) -> None:
        silent = self._clock.boottime() - charge.renewed_at
        logger.warning(
            "Could not look after a workflow",
            extra={"action": "keeper_trouble", "workflow": charge.owned.lease.adw_id, "silent_seconds": silent},
            exc_info=cause,
        )
        if silent >= self._times.give_up:
            reason = f"the lease could not be renewed for {silent:.0f} s: {cause}"
            charge.give(Order(kind="lost_lease", reason=reason, is_urgent=True))
