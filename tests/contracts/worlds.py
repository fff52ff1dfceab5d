"""
One set of parts for each place they can live in, so that one suite can ask the same of all.

The server's clock cannot be turned from a test: where leases are measured by it, time passes by moving their ends back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adws.adw_modules import document as documents
from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.catalogue import DatabaseCatalogue
from adws.adw_modules.db.counters import DatabaseCounters
from adws.adw_modules.db.events import DatabaseEventLog
from adws.adw_modules.db.issue_locks import DatabaseIssueLocks
from adws.adw_modules.db.leases import DatabaseLeases
from adws.adw_modules.db.registry import DatabaseRegistry
from adws.adw_modules.db.reports import DatabaseReports
from adws.adw_modules.db.requests import DatabaseRequests
from adws.adw_modules.db.run_queue import DatabaseRunQueue
from adws.adw_modules.db.runners import DatabaseRunners
from adws.adw_modules.db.session import Database
from adws.adw_modules.db.sessions import DatabaseSessions
from adws.adw_modules.db.state_store import DatabaseStateStore
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.state_revision import summary_of
from adws.testing import (
    FakeClock,
    MemoryCatalogue,
    MemoryCounters,
    MemoryEventLog,
    MemoryIssueLocks,
    MemoryLeases,
    MemoryRegistry,
    MemoryReports,
    MemoryRequests,
    MemoryRunners,
    MemoryRunQueue,
    MemorySessions,
    MemoryStore,
)

MOMENT = "2026-01-31T09:00:00.000000Z"
FIRST, SECOND, THIRD = "1a2b3c4d", "5e6f7a8b", "9c0d1e2f"


def make_document(adw_id: str = FIRST, **changes: Any) -> WorkflowDocument:
    """Return a small document; *changes* are its fields."""
    title, workflow = changes.pop("title", "Add a button"), changes.pop("workflow", "sdlc")
    fields = {"issue_number": 42, "repository": "acme/widget", "created_at": MOMENT, "updated_at": MOMENT, **changes}

    return WorkflowDocument(
        adw_id=adw_id,
        issue=documents.FrozenIssue(title=title),
        workflow=documents.WorkflowRef(name=workflow),
        **fields,
    )


def make_owner(name: str = "one") -> OwnerRecord:
    """Return the record of an owner; equal names are the same owner."""
    return OwnerRecord(
        token=f"token-of-{name}",
        host="testhost",
        machine="machine-1",
        boot_id="boot-1",
        pid_namespace="pid:[1]",
        pid=4711,
        start_ticks=99,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Parts that belong together."""

    clock: FakeClock
    store: Any
    leases: Any
    locks: Any
    requests: Any
    registry: Any
    catalogue: Any
    events: Any
    runs: Any
    runners: Any
    counters: Any
    sessions: Any
    reports: Any
    add_row: Callable[[str], None]  #: make the row of a workflow that nobody owns
    let_pass: Callable[[float], None]  #: let seconds pass for leases


def memory_world(clock: FakeClock, *, repository: str = "") -> World:
    """Return parts in memory, of a home whose own repository is *repository*."""
    store, runs = MemoryStore(clock=clock), MemoryRunQueue(clock)
    locks = MemoryIssueLocks(clock, repository=repository)
    leases = MemoryLeases(clock, runs, locks)
    runners = MemoryRunners(clock)

    return World(
        clock=clock,
        store=store,
        leases=leases,
        locks=locks,
        requests=MemoryRequests(clock),
        registry=MemoryRegistry(leases, locks, runs),
        catalogue=MemoryCatalogue(store, repository=repository),
        events=MemoryEventLog(store),
        runs=runs,
        runners=runners,
        counters=MemoryCounters(),
        sessions=MemorySessions(clock, runs),
        reports=MemoryReports(clock, store, runs=runs, leases=leases, runners=runners),
        add_row=leases.add,
        let_pass=clock.advance,
    )


def database_world(database: Database, clock: FakeClock, *, repository: str = "") -> World:
    """Return parts in *database*, of a home whose own repository is *repository*."""

    def add_row(adw_id: str) -> None:
        params = rows.summary_params(summary_of(make_document(adw_id)))
        extra = {"fence": 0, "home": "database", "schema_version": "3.0", "body": ""}
        with database.write() as session:
            session.run(statements.STATE_INSERT, {**params, **extra})

    def let_pass(seconds: float) -> None:
        clock.advance(seconds)
        if database.dialect == "postgresql":
            with database.write() as session:
                session.run("UPDATE workflow_states SET lease_until = lease_until - :seconds", {"seconds": seconds})
                session.run("UPDATE runs SET claim_until = claim_until - :seconds", {"seconds": seconds})
                session.run("UPDATE runners SET beat = beat - :seconds", {"seconds": seconds})

    return World(
        clock=clock,
        store=DatabaseStateStore(database, clock=clock, parse=documents.parse),
        leases=DatabaseLeases(database, clock=clock),
        locks=DatabaseIssueLocks(database, clock=clock, repository=repository),
        requests=DatabaseRequests(database, clock=clock),
        registry=DatabaseRegistry(database, clock=clock, home="database", repository=repository),
        catalogue=DatabaseCatalogue(database, repository=repository),
        events=DatabaseEventLog(database),
        runs=DatabaseRunQueue(database, clock=clock),
        runners=DatabaseRunners(database, clock=clock),
        counters=DatabaseCounters(database),
        sessions=DatabaseSessions(database, clock=clock),
        reports=DatabaseReports(database, clock=clock),
        add_row=add_row,
        let_pass=let_pass,
    )
