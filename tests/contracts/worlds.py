"""
One set of parts for each place they can live in, so that one suite can ask the same of all.

The server's clock cannot be turned from a test: where leases are measured by it, time passes by moving their ends back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adws.adw_modules import document
from adws.adw_modules.agents.sessions import AgentSessions
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database
from adws.adw_modules.db.listing import Catalogue, EventLog
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.ownership.issue_locks import IssueLocks, WorkflowRegistry
from adws.adw_modules.ownership.leases import Leases, Requests
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.queue.workers import WorkerRegistry
from adws.adw_modules.reports.store import ReportStore
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.serialization import summary_of
from adws.testing import FakeClock

MOMENT = "2026-01-31T09:00:00.000000Z"
FIRST, SECOND, THIRD = "1a2b3c4d", "5e6f7a8b", "9c0d1e2f"


def make_document(adw_id: str = FIRST, **changes: Any) -> WorkflowDocument:
    """Return a small document; *changes* are its fields."""
    title, workflow = changes.pop("title", "Add a button"), changes.pop("workflow", "sdlc")
    fields = {"issue_number": 42, "repository": "acme/widget", "created_at": MOMENT, "updated_at": MOMENT, **changes}

    return WorkflowDocument(
        adw_id=adw_id,
        issue=document.FrozenIssue(title=title),
        workflow=document.WorkflowRef(name=workflow),
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
    sessions: Any
    reports: Any
    add_row: Callable[[str], None]  #: make the row of a workflow that nobody owns
    let_pass: Callable[[float], None]  #: let seconds pass for leases


#: A row that nobody owns.
INSERT_WORKFLOW = """
INSERT INTO workflow_states (
    adw_id, repository, issue_number, title, workflow, state, revision, fence, owner, lease_until, lease_boot, taken_at,
    home, schema_version, is_costing, created_at, updated_at, body)
VALUES (
    :adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence, '', 0, '', '',
    :home, :schema_version, CASE replace(:body, '"cost_usd"', '') WHEN :body THEN 0 ELSE 1 END, :created_at,
    :updated_at, :body)
"""


def database_world(database: Database, clock: FakeClock, *, repository: str = "") -> World:
    """Return parts in *database*, of a home whose own repository is *repository*."""

    def add_row(adw_id: str) -> None:
        params = connection.summary_params(summary_of(make_document(adw_id)))
        extra = {"fence": 0, "home": "database", "schema_version": "3.0", "body": ""}
        with database.write() as session:
            session.run(INSERT_WORKFLOW, {**params, **extra})

    def let_pass(seconds: float) -> None:
        clock.advance(seconds)
        if database.dialect == "postgresql":
            with database.write() as session:
                session.run("UPDATE workflow_states SET lease_until = lease_until - :seconds", {"seconds": seconds})
                session.run("UPDATE runs SET claim_until = claim_until - :seconds", {"seconds": seconds})
                session.run("UPDATE runners SET beat = beat - :seconds", {"seconds": seconds})

    return World(
        clock=clock,
        store=DatabaseStateStore(database, clock=clock),
        leases=Leases(database, clock=clock),
        locks=IssueLocks(database, clock=clock, repository=repository),
        requests=Requests(database, clock=clock),
        registry=WorkflowRegistry(database, clock=clock, home="database", repository=repository),
        catalogue=Catalogue(database, repository=repository),
        events=EventLog(database),
        runs=RunStore(database, clock=clock),
        runners=WorkerRegistry(database, clock=clock),
        sessions=AgentSessions(database, clock=clock),
        reports=ReportStore(database, clock=clock),
        add_row=add_row,
        let_pass=let_pass,
    )
