"""
Why a run waits, which workers can execute it, and when no worker ever will.

Pure. A run whose requirements no worker meets fails after a while, but not before the last suitable worker has been
away for as long: a worker that restarts is not lost.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import TracebackType
from typing import Self

from adws.adw_modules import timestamps
from adws.adw_modules.db.connection import Database, Row, Session
from adws.adw_modules.errors import AdwError
from adws.adw_modules.interfaces import Clock, OwnerRecord, RegisteredWorker, Verdict
from adws.adw_modules.queue.model import Run, RunLimits, RunState
from adws.adw_modules.workflow.requirements import Capabilities, meets

# --- queries about workers and counters ------------------------------------------------------------------------
#
# Heartbeats are measured by the lease clock, so that no machine's wall clock decides.


#: A worker that registers again stays the same worker and keeps its start time.
RUNNER_REGISTER = """
INSERT INTO runners (runner_id, owner, host, tags, concurrency, busy, version, is_draining, started_at, heartbeat_at,
    beat, beat_boot)
VALUES (:runner_id, :owner, :host, :tags, :concurrency, 0, :version, 0, :moment, :moment, {now}, :boot)
ON CONFLICT (runner_id) DO UPDATE SET tags = excluded.tags, concurrency = excluded.concurrency,
    version = excluded.version, heartbeat_at = excluded.heartbeat_at, beat = excluded.beat,
    beat_boot = excluded.beat_boot
"""
RUNNER_BEAT = """
UPDATE runners
SET busy = :busy, is_draining = :is_draining, heartbeat_at = :moment, beat = {now}, beat_boot = :boot
WHERE runner_id = :runner_id AND concurrency > 0
"""
#: Its row stays, with no slots, until it is forgotten, so that people see that and when it left.
RUNNER_LEAVE = """
UPDATE runners
SET concurrency = 0, busy = 0, is_draining = 0, heartbeat_at = :moment, beat = {now}, beat_boot = :boot
WHERE runner_id = :runner_id AND concurrency > 0
"""
#: NULL if the machine was restarted since: its boot clock cannot measure the time before.
RUNNERS_ALL = """
SELECT runner_id, owner, tags, concurrency, busy, version, is_draining, started_at, heartbeat_at,
    CASE WHEN beat_boot = :boot THEN {now} - beat END
FROM runners ORDER BY started_at, runner_id
"""
RUNNER_FORGET = "DELETE FROM runners WHERE runner_id = :runner_id AND heartbeat_at = :heartbeat_at"

CHECK_RUNNERS = "SELECT runner_id, owner FROM runners ORDER BY runner_id"

COUNTER_ADD = """
INSERT INTO counters (name, labels, value) VALUES (:name, :labels, :amount)
ON CONFLICT (name, labels) DO UPDATE SET value = counters.value + excluded.value
"""
COUNTERS_ALL = "SELECT name, labels, value FROM counters ORDER BY name, labels"


# --- registered workers: the table runners ---------------------------------------------------------------------
#
# A row is what a worker reports about itself every few seconds. A worker that left stays listed with no slots until it
# is forgotten, so that a restart is not mistaken for the loss of its capabilities.


class WorkerRegistry:
    """The workers registered in the database."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def register(self, owner: OwnerRecord, offer: Capabilities, *, concurrency: int, version: str) -> None:
        """Register a worker; registering again acts as a heartbeat."""
        self._run(
            RUNNER_REGISTER,
            owner,
            owner=owner.to_text(),
            host=offer.host,
            tags=json.dumps(sorted(offer.tags)),
            concurrency=concurrency,
            version=version,
        )

    def beat(self, owner: OwnerRecord, *, busy: int, is_draining: bool = False) -> bool:
        """Record a heartbeat; False if the worker is no longer registered, and must register again."""
        return self._run(RUNNER_BEAT, owner, busy=busy, is_draining=int(is_draining)) == 1

    def leave(self, owner: OwnerRecord) -> None:
        """Record that the worker ends. Idempotent."""
        self._run(RUNNER_LEAVE, owner)

    def all(self) -> tuple[RegisteredWorker, ...]:
        """Return every worker, oldest first."""
        sql = self._database.render(RUNNERS_ALL)
        with self._database.read() as session:
            rows = session.all(sql, self._database.lease_clock())

        return tuple(runner for row in rows if (runner := self._runner(row)) is not None)

    def forget(self, *, silent_seconds: float) -> int:
        """Delete workers silent for longer than *silent_seconds*, and return their number."""
        silent = [runner for runner in self.all() if runner.silent_seconds > silent_seconds]
        if not silent:
            return 0
        params = [{"runner_id": runner.runner_id, "heartbeat_at": runner.heartbeat_at} for runner in silent]

        def work(session: Session) -> int:
            # A worker that reported since our read is kept: its row has another time.
            return sum(session.run(RUNNER_FORGET, one) for one in params)

        return self._database.transact(work)

    def _run(self, sql: str, who: OwnerRecord, **more: object) -> int:
        params = {
            **self._database.lease_clock(),
            **more,
            "runner_id": who.token,
            "moment": timestamps.to_text(self._clock.now()),
        }
        spelled = self._database.render(sql)

        return self._database.transact(lambda session: session.run(spelled, params))

    def _runner(self, row: Row) -> RegisteredWorker | None:
        runner_id, text, tags, concurrency, busy, version, is_draining, started_at, heartbeat_at, silent = row
        owner = OwnerRecord.from_text(text)
        if owner is None:
            return None  # not written by us: `adw db check` reports it

        return RegisteredWorker(
            runner_id=runner_id,
            owner=owner,
            tags=frozenset(json.loads(tags)),
            concurrency=concurrency,
            busy=busy,
            version=version,
            is_draining=bool(is_draining),
            started_at=started_at,
            heartbeat_at=heartbeat_at,
            silent_seconds=float(silent) if silent is not None else self._age(heartbeat_at),
        )

    def _age(self, moment: str) -> float:
        return max(0.0, (self._clock.now() - timestamps.parse(moment)).total_seconds())


# --- heartbeats: a worker registers, reports every few seconds, and signs off ----------------------------------
#
# Each worker has a thread for this: work may block for an hour, and waiting runs depend on the capabilities of workers.
# A heartbeat that cannot be stored is sent with the next one; nothing depends on a single one.


logger = logging.getLogger("adw.worker")

#: Seconds between two checks for something to report.
LOOK_SECONDS = 0.5


class WorkerHeartbeat:
    """
    One worker's heartbeat, registered inside the block.

    `busy` and `is_draining` are plain attributes, read by the next heartbeat, so signal handlers may set them too.
    """

    def __init__(
        self,
        runners: WorkerRegistry,
        *,
        me: OwnerRecord,
        offer: Capabilities,
        places: int,
        version: str,
        clock: Clock,
        every_seconds: float = 10.0,
    ) -> None:
        self._runners = runners
        self._me = me
        self._offer = offer
        self._places = places
        self._version = version
        self._clock = clock
        self._every_seconds = every_seconds
        self._told: tuple[float, bool] = (float("-inf"), False)  #: last heartbeat: when, and if draining
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.busy = 0
        self.is_draining = False

    def __enter__(self) -> Self:
        self.tell()
        self._thread = threading.Thread(target=self._keep, name="adw-presence", daemon=True)
        self._thread.start()

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._runners.leave(self._me)
        except (AdwError, OSError):
            # It is then listed as silent; the reason for its end matters more.
            logger.debug("Could not say goodbye", extra={"action": "presence_trouble"}, exc_info=True)

    def _keep(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Send a heartbeat if one is due, or at once if draining began."""
        told_at, was_draining = self._told
        if self._clock.monotonic() - told_at >= self._every_seconds or self.is_draining != was_draining:
            self.tell()

    def tell(self) -> None:
        """Send a heartbeat; register if the worker is unknown or was forgotten."""
        busy, is_draining = self.busy, self.is_draining
        try:
            if not self._runners.beat(self._me, busy=busy, is_draining=is_draining):
                self._runners.register(self._me, self._offer, concurrency=self._places, version=self._version)
                if busy or is_draining:
                    self._runners.beat(self._me, busy=busy, is_draining=is_draining)
        except (AdwError, OSError) as exc:
            # The worker itself reports a lost database; this explains why the worker is listed as silent.
            said = {"action": "presence_trouble", "why": str(exc)}
            logger.info("Could not tell that the worker lives", extra=said)
        self._told = (self._clock.monotonic(), is_draining)


#: A worker that is silent for this many leases is not counted on.
STALE_LEASES = 2.0


class RunnerState(Enum):
    """What is known about a worker."""

    ONLINE = "online"
    DRAINING = "draining"  #: finishes its runs and takes no more
    SILENT = "silent"  #: no heartbeat for a while; nothing proves that it is gone
    GONE = "gone"  #: it left, or its process is dead


def state_of(runner: RegisteredWorker, *, verdict: Verdict, lease_seconds: float) -> RunnerState:
    """Return the state of a worker; *verdict* is about its process."""
    if runner.concurrency == 0 or verdict is Verdict.DEAD:
        return RunnerState.GONE
    if runner.silent_seconds > STALE_LEASES * lease_seconds:
        return RunnerState.SILENT

    return RunnerState.DRAINING if runner.is_draining else RunnerState.ONLINE


def offer_of(runner: RegisteredWorker) -> Capabilities:
    """Return the capabilities of a worker."""
    return Capabilities(host=runner.owner.host, tags=runner.tags)


# --- runs that no worker can execute ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long runs wait for a suitable worker, in seconds."""

    no_match: float = 300.0
    lease: float = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmatched:
    """A run that fails because no worker meets its requirements."""

    run: Run
    why: str


def plan_unmatched(
    waiting: Iterable[Run], runners: Sequence[RegisteredWorker], *, now: datetime, patience: Patience
) -> tuple[Unmatched, ...]:
    """Return the runs that were due too long while no known worker met their requirements."""
    heard = [offer_of(runner) for runner in runners if _counts(runner, patience)]

    return tuple(
        Unmatched(run=run, why=_nobody(run, patience))
        for run in waiting
        if run.state is RunState.PENDING
        and run.demands.to_text()
        and due_seconds(run, now=now) >= patience.no_match
        and not any(meets(offer, run.demands) for offer in heard)
    )


def due_seconds(run: Run, *, now: datetime) -> float:
    """Return how long a waiting run has been due (negative: not yet), since its time or since it began to wait."""
    since = max(run.not_before, run.updated_at)  # one format, so texts sort like times

    return (now - timestamps.parse(since)).total_seconds()


def _counts(runner: RegisteredWorker, patience: Patience) -> bool:
    """Say whether a worker's capabilities count; those of a worker that left count for as long as a run waits."""
    longest = patience.no_match if runner.concurrency == 0 else max(patience.no_match, STALE_LEASES * patience.lease)

    return runner.silent_seconds <= longest


def _nobody(run: Run, patience: Patience) -> str:
    return (
        f"it demands {run.demands.describe()}, and for {patience.no_match:.0f} s there was no worker that has that: "
        "start one (adw queue workers lists those there are), then adw resume"
    )


# --- why a run waits, as text ----------------------------------------------------------------------------------


#: Begins the text that no worker meets the requirements of a run.
NO_WORKER = "no worker that is there has "


def why_held(run: Run, *, offers: Iterable[Capabilities], full: Collection[str], limits: RunLimits) -> str:
    """Return why a due run cannot be claimed now, or "" if any worker with a free slot may claim it."""
    if run.demands.to_text() and not any(meets(offer, run.demands) for offer in offers):
        return f"{NO_WORKER}{run.demands.describe()}"
    held = sorted(run.labels & set(full))
    if held:
        return "; ".join(_is_full(label, limits) for label in held)

    return ""


def _is_full(label: str, limits: RunLimits) -> str:
    scope, _, name = label.partition(":")

    return f"the limit of {limits.of(label)} for {scope} {name} is reached"
