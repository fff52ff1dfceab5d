"""
Rebuilding the database from the documents: their copies, events, locks, and fences above all seen before.

The documents are the truth and are not changed. What only the database had is kept as far as it is readable; unreadable
parts are reported. The contents are planned first and written in one transaction. A corrupt file is moved aside, never
deleted, because somebody may recover more from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from adws.adw_modules import durable_file, timestamps
from adws.adw_modules.db import connection, listing, migrate, schema
from adws.adw_modules.db.connection import Database, Params, Row, Session
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.deliveries import store as deliveries_store
from adws.adw_modules.errors import (
    AdwError,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseUnavailable,
    OwnershipError,
    StateNotFound,
    UsageError,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, in_home
from adws.adw_modules.interfaces import (
    Clock,
    IssueLock,
    OwnerRecord,
    ProjectedWrite,
    Request,
    Verdict,
)
from adws.adw_modules.ownership.issue_locks import IssueLocks, insert_lock
from adws.adw_modules.queue.model import DELIVERY, NewRun, Run, RunFactory, check_due
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.reports import metrics
from adws.adw_modules.reports import store as reports_store
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState, is_terminal
from adws.adw_modules.state_schema import CURRENT_VERSION
from adws.adw_modules.store.serialization import summary_of

if TYPE_CHECKING:
    from sqlalchemy import Table

    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

#: A row of a table that only the database has, by column.
KeptRow: TypeAlias = Mapping[str, object]

#: Tables that only the database has and no document describes.
KEPT_TABLES = (
    "task_checkpoints",
    "breakers",
    "deliveries",
    "schedule",
    "notifications",
    "sessions",
    "external_tasks",
    "counters",
    "home_facts",
    "report_sums",
    "report_workflows",
)


#: Rows of a table, or documents, read or written at a time.
AT_ONCE = 500


def read_rows(session: Session, table: Table) -> Iterator[dict[str, object]]:
    """Yield every row of *table*, in pages by its key."""
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key.columns]
    listed, key = ", ".join(names), ", ".join(keys)
    after = ", ".join(f":after_{name}" for name in keys)
    following = f"SELECT {listed} FROM {table.name} WHERE ({key}) > ({after}) ORDER BY {key} LIMIT :limit"
    page = session.all(f"SELECT {listed} FROM {table.name} ORDER BY {key} LIMIT :limit", {"limit": AT_ONCE})
    while page:
        rows = [dict(zip(names, row, strict=True)) for row in page]
        yield from rows
        if len(page) < AT_ONCE:
            return
        page = session.all(following, {"limit": AT_ONCE, **{f"after_{name}": rows[-1][name] for name in keys}})


def bring_back(session: Session, table: str, rows: Sequence[KeptRow], *, moment: str) -> None:
    """
    Insert *rows* into *table*; existing rows stay.

    Claims have expired, runs have new numbers, and agents' sessions have ended: their worker is gone, or starts new
    ones.
    """
    # Without numbers that the database assigns.
    names = [column.name for column in schema.metadata.tables[table].columns if column.identity is None]
    brought = [dict(row) for row in rows]
    for row in brought:
        if "claim_until" in row:
            row |= {"claim_until": 0.0, "claim_boot": ""}
        if "run_id" in row:
            row["run_id"] = None
        if table == "sessions" and row["ended_at"] is None:
            row |= {"status": "failed", "ended_at": moment, "reason": "the database was made again"}
    values = ", ".join(f":{name}" for name in names)
    session.run_each(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) ON CONFLICT DO NOTHING", brought)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseWorkflow:
    """The record of a workflow in a database, independent of its document."""

    adw_id: str
    home: str  #: files | database
    revision: int  #: 0: registered, but its document was never written
    fence: int
    owner: OwnerRecord | None = None
    seconds_left: float = 0.0  #: of its lease; negative if it has expired
    events: int = 0  #: how many the database has


def workflows_in(database: Database) -> Iterator[DatabaseWorkflow]:
    """Yield the record of each workflow in *database*, without its events."""
    sql = """
        SELECT adw_id, home, revision, fence, owner,
               CASE WHEN lease_boot = :boot THEN lease_until ELSE 0 END - {now}
        FROM workflow_states ORDER BY adw_id
    """
    with database.read() as session:
        rows = session.all(database.render(sql), database.lease_clock())
    for adw_id, home, revision, fence, owner, left in rows:
        yield DatabaseWorkflow(
            adw_id=adw_id,
            home=home,
            revision=revision,
            fence=fence,
            owner=OwnerRecord.from_text(owner),
            seconds_left=float(left) if owner else 0.0,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Salvage:
    """The readable content of a database."""

    is_missing: bool = False
    problems: tuple[str, ...] = ()  #: why it is unusable; if so, everything below is what could be saved
    workflows: tuple[DatabaseWorkflow, ...] = ()
    locks: tuple[IssueLock, ...] = ()
    requests: tuple[Request, ...] = ()  #: unanswered
    runs: tuple[Run, ...] = ()  #: unfinished, in queue order
    events: tuple[Event, ...] = ()  #: read only if there are problems, else they stay in the database
    kept: Mapping[str, tuple[KeptRow, ...]] = field(default_factory=dict)  #: by table; read like events


@dataclass(frozen=True, kw_only=True, slots=True)
class NewContents:
    """What a database is to hold about workflows; its events, requests, runs, checkpoints and so on stay."""

    home: str = "files"
    rows: tuple[ProjectedWrite, ...] = ()  #: each replaces the row of its workflow; the owner stays, its lease expires
    locks: tuple[IssueLock, ...] | None = None  #: all locks; None: those in the database stay
    events: tuple[Event, ...] = ()
    requests: tuple[Request, ...] = ()
    runs: tuple[NewRun, ...] = ()  #: each for a workflow without an unfinished run; else that one stays
    kept: Mapping[str, tuple[KeptRow, ...]] = field(default_factory=dict)  #: by table; existing rows stay
    forget: tuple[str, ...] = ()  #: workflows that were registered but never written


# --- the plan, pure: documents win over rows, locks and tokens that disagree with them -------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LockConflict:
    """Several unfinished workflows of one issue: one keeps it, a person decides about the others."""

    repository: str
    issue_number: int
    keeper: str
    others: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Return the conflict as plain data."""
        return {**asdict(self), "others": list(self.others)}


#: The active states, as documents have them.
_ACTIVE_NAMES = frozenset(state.value for state in ACTIVE_STATES)


def plan_rebuild(
    documents: Sequence[WorkflowDocument],
    salvage: Salvage,
    *,
    fences: Mapping[str, int] | None = None,
    unreadable: Sequence[str] = (),
    repository: str = "",
    maker: RunFactory | None = None,
) -> tuple[NewContents, tuple[LockConflict, ...]]:
    """
    Return the planned contents and the conflicts; *unreadable* documents keep their row and lock.

    *fences* are the highest found in the directories of workflows. *repository* is the home's, to which documents that
    name none belong; *maker* knows the labels of runs.
    """
    known = {workflow.adw_id: workflow for workflow in salvage.workflows}
    on_disk = {document.adw_id for document in documents} | set(unreadable)
    kept_for = set(unreadable) | set(lost_documents(salvage, on_disk))
    locks, conflicts = _plan_locks(documents, salvage.locks, kept_for=kept_for, repository=repository)
    is_new = salvage.is_missing or bool(salvage.problems)
    made = _plan_runs(documents, salvage.runs, maker or RunFactory(repository=repository))
    again = [
        NewRun(
            adw_id=run.adw_id,
            kind=run.kind,
            priority=run.priority,
            not_before=run.not_before,
            payload=run.payload,
            asked_by=run.asked_by,
            demands=run.demands,
            labels=run.labels,
            slot=run.slot,
        )
        for run in (salvage.runs if is_new else ())
    ]
    contents = NewContents(
        rows=tuple(
            _plan_row(one, known.get(one.adw_id), (fences or {}).get(one.adw_id, 0), salvage.events)
            for one in documents
        ),
        locks=locks,
        events=salvage.events,
        kept=salvage.kept,
        requests=salvage.requests if is_new else (),
        runs=(*again, *made),  # earlier runs come first: they waited longer
        forget=tuple(sorted(w.adw_id for w in known.values() if w.revision == 0 and w.adw_id not in on_disk)),
    )

    return contents, conflicts


def lost_documents(salvage: Salvage, on_disk: set[str]) -> list[str]:
    """Return the workflows whose document is missing although the database has a copy of it."""
    lost = (w.adw_id for w in salvage.workflows if w.home == "files" and w.revision > 0)

    return sorted(adw_id for adw_id in lost if adw_id not in on_disk)


def _plan_row(
    document: WorkflowDocument, row: DatabaseWorkflow | None, fence: int, salvaged: Sequence[Event]
) -> ProjectedWrite:
    adw_id = document.adw_id
    has_events = bool(row and row.events) or any(event.adw_id == adw_id for event in salvaged)
    waiting = tuple(map(Event.from_json, document.outbox))

    return ProjectedWrite(
        adw_id=adw_id,
        revision=document.revision,
        # Above all seen before, so that no earlier writer gets through.
        fence=max(row.fence if row else 0, document.fence, fence) + 1,
        body=document.to_bytes(),
        summary=summary_of(document),
        events=waiting if has_events else (*_events_of_history(document, waiting), *waiting),
    )


def _events_of_history(document: WorkflowDocument, waiting: Sequence[Event]) -> tuple[Event, ...]:
    """Return the moves in the history as events, without those that are still in the outbox."""
    adw_id = document.adw_id
    recent = {event.created_at for event in waiting if event.event_type == "state_changed"}
    first = min(recent, default="~")  # "~" sorts after every digit: the outbox has none

    return tuple(
        Event(
            event_type="state_changed",
            adw_id=adw_id,
            event_id=f"{adw_id}.0.{index}",  # no event of a revision has 0
            created_at=move.timestamp,
            status=move.to_state,
            execution_id=adw_id,
            data={"from": move.from_state, "to": move.to_state},
            meta={"rebuilt_from": "state_history"},
        )
        for index, move in enumerate(document.state_history)
        if move.timestamp < first
    )


def _plan_runs(
    documents: Sequence[WorkflowDocument], unfinished: Sequence[Run], maker: RunFactory
) -> tuple[NewRun, ...]:
    """Return a run for each active workflow that has none, in the order the workflows were created."""
    has_run = {run.adw_id for run in unfinished}
    going_on = [one for one in documents if one.current_state in _ACTIVE_NAMES and one.adw_id not in has_run]
    runs = []
    for document in sorted(going_on, key=lambda one: (one.created_at, one.adw_id)):
        kind = "start" if document.current_state == WorkflowState.PENDING.value else "resume"
        try:
            run = maker.of(document, kind, asked_by="rebuild")
        except UsageError:  # requirements not written by adw: the worker that claims the run reports the document
            run = NewRun(adw_id=document.adw_id, kind=kind, asked_by="rebuild")
        due = ""
        with suppress(UsageError):  # not a moment that we wrote: the phase itself decides when the run is due
            waiting = [record.retry_at or "" for record in document.phases if record.status == "retry_wait"]
            due = max(map(check_due, waiting), default="")
        runs.append(replace(run, not_before=due))

    return tuple(runs)


def _plan_locks(
    documents: Sequence[WorkflowDocument], held: Sequence[IssueLock], *, kept_for: set[str], repository: str
) -> tuple[tuple[IssueLock, ...], tuple[LockConflict, ...]]:
    # The oldest comes last: of two locks on what is now one issue, it counts.
    former = {(in_home(lock.repository, repository), lock.issue_number): lock for lock in reversed(held)}
    claims: dict[tuple[str, int], list[WorkflowDocument]] = defaultdict(list)
    for document in documents:
        if document.issue_number is not None and not is_terminal(document.current_state):
            claims[in_home(document.repository, repository), document.issue_number].append(document)
    locks = [
        replace(lock, repository=key[0])
        for key, lock in former.items()
        if lock.adw_id in kept_for and key not in claims
    ]
    conflicts = []
    for (where, number), rivals in sorted(claims.items()):
        holder = former.get((where, number))
        # The holder of the lock keeps it; without a known holder, the oldest workflow gets it.
        holder_id = holder.adw_id if holder is not None else ""
        first, *rest = sorted(rivals, key=lambda one: (one.adw_id != holder_id, one.created_at, one.adw_id))
        keeper, others = first.adw_id, tuple(one.adw_id for one in rest)
        moment = holder.acquired_at if holder is not None and holder_id == keeper else first.created_at
        locks.append(IssueLock(repository=where, issue_number=number, adw_id=keeper, acquired_at=moment))
        if others:
            conflicts.append(LockConflict(repository=where, issue_number=number, keeper=keeper, others=others))

    return tuple(locks), tuple(conflicts)


# --- rebuilding ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildReport:
    """What was rebuilt, and what could not be."""

    workflows: int
    locks: int
    freed: tuple[IssueLock, ...]  #: locks whose workflow has ended or is gone
    conflicts: tuple[LockConflict, ...]
    events_kept: int  #: that the database had
    events_made: int  #: that came from the documents
    requests: int  #: open ones that were kept
    runs_made: tuple[str, ...]  #: active workflows that had no run
    only_in_database: tuple[str, ...]  #: workflows whose document is missing; their copy stays
    forgotten: tuple[str, ...]  #: workflows that were registered but never written
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: workflow -> the problem with its document
    problems: tuple[str, ...] = ()  #: of the old database
    was_missing: bool = False
    set_aside: str | None = None  #: where the old database, or the rest of it, is now

    @property
    def lost(self) -> tuple[str, ...]:
        """Return what only a backup may still have, as text."""
        if not self.was_missing and not self.problems:
            return ()

        return (
            "events that were in no document any more (moves between states were made again from the histories)",
            "requests that could not be read from the old database",
            "runs that had ended, and starts that had no document yet",
            "checkpoints that could not be read from the old database (their phases begin at the beginning)",
            "breakers that could not be read from the old database (who fails again opens them again)",
            "deliveries that could not be read from the old database (one that is sent again counts as new)",
            "entries of the schedule, notifications and counters that could not be read from the old database",
            "sums of reports about workflows that were forgotten before, where those could not be read",
        )

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        facts = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        del facts["freed"], facts["conflicts"]

        return {
            **facts,
            "freed_locks": [
                {"repository": lock.repository, "issue_number": lock.issue_number, "adw_id": lock.adw_id}
                for lock in self.freed
            ],
            "lock_conflicts": [conflict.to_json() for conflict in self.conflicts],
            "lost": list(self.lost),
        }


def rebuild(home: Home, *, force: bool = False, replace_rows: bool = False) -> RebuildReport:
    """
    Rebuild the database of *home* from its documents; refused while there are live owners, unless *force*.

    Documents in the database itself are not replaced by files, unless *replace_rows*.
    """
    store, reconstruction = home.store, home.reconstruction
    salvage = reconstruction.salvage()
    if not replace_rows and any(workflow.home == "database" for workflow in salvage.workflows):
        raise UsageError(
            "documents live in this database itself, so there is nothing to make it again from: "
            "bring a backup back with adw db restore"
        )
    ids = sorted(store.ids())
    if not force:
        refuse_while_owners_live(home, ids, salvage.workflows)
    documents: list[WorkflowDocument] = []
    unreadable: dict[str, str] = {}
    for adw_id in ids:
        try:
            documents.append(store.load(adw_id).document)
        except StateNotFound:
            continue  # deleted since the list was made
        except AdwError as exc:
            unreadable[adw_id] = str(exc)
    fences = {document.adw_id: home.folders.highest_fence(document.adw_id) for document in documents}
    # Documents that name no repository belong to the home's.
    repository = home.settings.repository or ""
    contents, conflicts = plan_rebuild(
        documents,
        salvage,
        fences=fences,
        unreadable=tuple(unreadable),
        repository=repository,
        maker=home.run_factory,
    )
    # Only now: so far the documents may have needed their copies in the old database.
    aside = set_old_aside(reconstruction, salvage)
    stored = reconstruction.put(contents)
    salvaged, locks = len(salvage.events), contents.locks or ()
    kept = {(lock.issue_number, lock.adw_id) for lock in locks}  # a workflow has one issue, whatever the spelling
    on_disk = {one.adw_id for one in documents} | set(unreadable)
    has_run = {run.adw_id for run in salvage.runs}

    return RebuildReport(
        workflows=len(documents),
        locks=len(locks),
        freed=tuple(lock for lock in salvage.locks if (lock.issue_number, lock.adw_id) not in kept),
        conflicts=conflicts,
        events_kept=salvaged if salvage.problems else sum(workflow.events for workflow in salvage.workflows),
        events_made=stored - salvaged,
        requests=len(salvage.requests),
        runs_made=tuple(run.adw_id for run in contents.runs if run.adw_id not in has_run),
        only_in_database=tuple(lost_documents(salvage, on_disk)),
        forgotten=contents.forget,
        unreadable=unreadable,
        problems=salvage.problems,
        was_missing=salvage.is_missing,
        set_aside=aside,
    )


def set_old_aside(reconstruction: Reconstruction, salvage: Salvage) -> str | None:
    """Move a damaged database, or the rest of a lost one, aside, and return where it is now."""
    if salvage.problems:
        return reconstruction.set_aside()
    # An intact one stays, and its rows are overwritten. So does one that was created since we looked.
    return reconstruction.set_aside_left_overs() if salvage.is_missing else None


def refuse_while_owners_live(
    home: Home, ids: Iterable[str], known: Iterable[DatabaseWorkflow], *, hint: str = "stop them first, or add --force"
) -> None:
    """Raise OwnershipError if a workflow has a live owner, naming it: by its lease, or by its file lock."""
    working = {
        workflow.adw_id: workflow.owner.describe() if workflow.owner else "an owner whose record cannot be read"
        for workflow in known
        if workflow.seconds_left > 0.0 and home.processes.verdict(workflow.owner) is not Verdict.DEAD
    }
    for adw_id in ids:
        if adw_id not in working and home.local_lock.is_held(adw_id):
            working[adw_id] = "a process that holds its file lock"
    if not working:
        return
    names = ", ".join(f"{adw_id} ({owner})" for adw_id, owner in sorted(working.items())[:5])
    more = f" and {len(working) - 5} more" if len(working) > 5 else ""

    raise OwnershipError(f"workflows are being worked on: {names}{more}; {hint}")


@contextmanager
def hold_file_locks(home: Home, ids: Iterable[str]) -> Iterator[None]:
    """Hold the file locks of all *ids*, so that no work on them begins; raise OwnershipError if one is held."""
    with ExitStack() as held:
        for adw_id in sorted(ids):
            if not home.local_lock.try_hold(adw_id):
                raise OwnershipError(f"workflow {adw_id} is being worked on by another process: stop it first")
            held.callback(home.local_lock.let_go, adw_id)
        yield


#: Table -> its name in a report, if that differs.
_PART_NAMES = {"task_checkpoints": "checkpoints"}
#: Suffixes of the files of one SQLite database.
_COMPANIONS = ("", "-wal", "-shm")

_Item = TypeVar("_Item")


class Reconstruction:
    """The database at *url*, in whatever condition."""

    def __init__(self, url: str, *, clock: Clock, boot_id: str = "") -> None:
        self._url = url
        self._clock = clock
        self._boot_id = boot_id
        self._database: Database | None = None

    def close(self) -> None:
        """Close the database."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    # --- reading -----------------------------------------------------------------------------------------------

    def salvage(self) -> Salvage:
        """Return the readable content of the database; an old schema is upgraded first."""
        file = self._file_database()
        if file is not None and not _is_made(file):
            return Salvage(is_missing=True)
        try:
            problems = self._open().integrity_problems()
        except DatabaseCorrupt as exc:
            self.close()
            self._database = migrate.connect(self._url, clock=self._clock, boot_id=self._boot_id)  # without an upgrade
            problems = [exc.reason]
        events = self._part("events", self.all_events, problems) if problems else ()

        return Salvage(
            workflows=self._part("workflows", self._workflows, problems),
            locks=self._part("locks", IssueLocks(self._open(), clock=self._clock).all, problems),
            requests=self._part("requests", self._requests, problems),
            runs=self._part("runs", RunStore(self._open(), clock=self._clock).unfinished, problems),
            events=events,
            kept=self._kept(problems) if problems else {},
            problems=tuple(problems),
        )

    def all_events(self) -> Iterator[Event]:
        """Yield every event, in the order they were stored."""
        place = 0
        columns = ", ".join(connection.EVENT_COLUMNS)
        sql = f"SELECT seq, {columns} FROM events WHERE seq > :after ORDER BY seq LIMIT :limit"
        while result := self._all(sql, {"after": place, "limit": AT_ONCE}):
            yield from (connection.to_event(row[1:]) for row in result)
            place = result[-1][0]

    def copy_to(self, path: str) -> bool:
        """Copy the whole database to the new file *path*; return False if only its server can copy it."""
        database = self._open()
        if not isinstance(database, SqliteDatabase):
            return False
        database.copy_to(Path(path))

        return True

    def _part(self, name: str, read: Callable[[], Iterable[_Item]], problems: list[str]) -> tuple[_Item, ...]:
        result: list[_Item] = []
        try:
            result.extend(read())
        except DatabaseUnavailable:
            raise
        except (DatabaseError, ValueError, TypeError) as exc:
            problems.append(f"{name} can be read only in part: {exc}")

        return tuple(result)

    def _kept(self, problems: list[str]) -> dict[str, tuple[KeptRow, ...]]:
        def read(table: str) -> Iterator[KeptRow]:
            with self._open().read() as session:
                yield from read_rows(session, schema.metadata.tables[table])

        return {
            table: self._part(_PART_NAMES.get(table, table.replace("_", " ")), partial(read, table), problems)
            for table in KEPT_TABLES
        }

    def _workflows(self) -> Iterator[DatabaseWorkflow]:
        counts: dict[str, int] = dict(self._all("SELECT adw_id, count(*) FROM events GROUP BY adw_id"))
        for workflow in workflows_in(self._open()):
            yield replace(workflow, events=counts.get(workflow.adw_id, 0))

    def _requests(self) -> Iterator[Request]:
        rows = self._all(
            """
            SELECT request_id, adw_id, kind, payload, asked_by, created_at, handled_at, outcome FROM requests
            WHERE handled_at IS NULL ORDER BY request_id
            """
        )

        return map(connection.to_request, rows)

    def _all(self, sql: str, params: Params | None = None) -> list[Row]:
        with self._open().read() as session:
            return session.all(sql, params or {})

    # --- filling -----------------------------------------------------------------------------------------------

    def set_aside(self, label: str = "corrupt") -> str | None:
        """
        Move the files of a SQLite database aside and return where to; a server's database stays.

        A log without its database, left by an interrupted call, is moved too: SQLite would replay it into the next one.
        """
        self.close()
        path = self._file()
        if path is None:
            return None

        return self._move_away(path, _endings_there(path), label)

    def set_aside_left_overs(self) -> str | None:
        """
        Move aside what a lost database left in its place, and return where to; an existing database stays.

        Its log may have the only trace of the last writes, and SQLite deletes it when an empty database is opened.
        """
        self.close()
        database = self._file_database()
        if database is None or not any(_endings_there(database.path)):
            return None
        try:
            with database.writer_lock.held():  # nobody creates the database meanwhile
                left = [] if _is_made(database) else [ending for ending in _endings_there(database.path) if ending]
                return self._move_away(database.path, left, "lost")
        finally:
            database.close()

    def _move_away(self, path: Path, endings: Sequence[str], label: str) -> str | None:
        if not endings:
            return None
        moment = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
        target, number = path.with_name(f"{path.name}.{label}-{moment}"), 1
        while _endings_there(target):
            number += 1
            target = path.with_name(f"{path.name}.{label}-{moment}-{number}")
        for ending in endings:
            path.with_name(path.name + ending).rename(target.with_name(target.name + ending))
        durable_file.sync_directory_at(str(path.parent))

        return str(target) + endings[0]

    def may_install(self, path: str) -> bool:
        """Return whether the file *path* can become the database; raise DatabaseError if it is damaged or too new."""
        if self._file() is None or not Path(path).exists():
            return False
        copy = SqliteDatabase(Path(path), clock=self._clock, boot_id=self._boot_id)
        try:
            migrate.refuse_unknown(copy.name, copy.schema_version())
            problems = copy.integrity_problems()
        finally:
            copy.close()
        if problems:
            raise DatabaseCorrupt(path, problems[0])

        return True

    def install(self, path: str) -> None:
        """Move the file *path* into place as the database; the present one is kept aside."""
        place = self._file()
        if place is None:
            raise DatabaseError("a server's database is brought back with the server's own tools")
        self.set_aside("before-restore")
        Path(path).rename(place)
        durable_file.sync_directory_at(str(place.parent))
        self._open()

    def put(self, contents: NewContents) -> int:
        """Write *contents* in one transaction, creating a missing database; return the number of new events."""
        queue = RunStore(self._open(), clock=self._clock)
        metrics.EventTally(self._open()).catch_up()

        def work(session: Session) -> int:
            ((before,),) = session.all("SELECT count(*) FROM events")
            session.run_each(
                "DELETE FROM workflow_states WHERE adw_id = :adw_id AND revision = 0",
                [{"adw_id": adw_id} for adw_id in contents.forget],
            )
            # Whatever was there: the lease of a row expires, but its owner stays, so that the next one takes over.
            session.run_each(
                """
                INSERT INTO workflow_states (
                  adw_id, repository, issue_number, title, workflow, state, revision, fence,
                  owner, lease_until, lease_boot, taken_at, home, schema_version, is_costing, created_at, updated_at,
                  body)
                VALUES (:adw_id, :repository, :issue_number, :title, :workflow, :state, :revision, :fence,
                  '', 0, '', '', :home, :schema_version, :is_costing, :created_at, :updated_at, :body)
                ON CONFLICT (adw_id) DO UPDATE
                SET repository = excluded.repository, issue_number = excluded.issue_number, title = excluded.title,
                    workflow = excluded.workflow, state = excluded.state, revision = excluded.revision,
                    fence = excluded.fence, lease_until = 0, lease_boot = '', home = excluded.home,
                    schema_version = excluded.schema_version, is_costing = excluded.is_costing,
                    created_at = excluded.created_at, updated_at = excluded.updated_at, body = excluded.body
                """,
                [
                    {
                        **connection.summary_params(row.summary),
                        "fence": row.fence,
                        "home": contents.home,
                        "schema_version": CURRENT_VERSION,
                        "is_costing": int(connection.COSTING in row.body),
                        "body": row.body.decode(),
                    }
                    for row in contents.rows
                ],
            )
            if contents.locks is not None:
                session.run("DELETE FROM adw_locks")
                for lock in contents.locks:
                    insert_lock(session, lock)
            events = [*contents.events, *(event for row in contents.rows for event in row.events)]
            session.run_each(connection.EVENT_INSERT, [connection.event_params(event) for event in events])
            for request in contents.requests:
                session.run(
                    "INSERT INTO requests (adw_id, kind, payload, asked_by, created_at)"
                    " VALUES (:adw_id, :kind, :payload, :asked_by, :created_at)",
                    {
                        "adw_id": request.adw_id,
                        "kind": request.kind,
                        "payload": connection.json_text(request.payload, f"request {request.request_id}"),
                        "asked_by": request.asked_by,
                        "created_at": request.created_at,
                    },
                )
            for table, rows in contents.kept.items():
                bring_back(session, table, rows, moment=timestamps.to_text(self._clock.now()))
            for run in contents.runs:
                made = queue.enqueue_in(session, run)
                if made.kind == DELIVERY:  # its number has changed
                    session.run(
                        deliveries_store.DELIVERY_SET_RUN,
                        {"guid": made.payload.get("guid"), "run_id": made.run_id},
                    )
            listing.move(session, reports_store.CURSOR, -1)  # documents changed without an event: all are read again
            metrics.pass_over(self._open(), session)  # rebuilt events were counted when they happened
            ((after,),) = session.all("SELECT count(*) FROM events")

            return int(after) - int(before)

        return self._open().transact(work)

    def _open(self) -> Database:
        if self._database is None:
            self._database = migrate.open_database(self._url, clock=self._clock, boot_id=self._boot_id)

        return self._database

    def _file(self) -> Path | None:
        database = self._file_database()

        return None if database is None else database.path

    def _file_database(self) -> SqliteDatabase | None:
        database = self._database or migrate.connect(self._url, clock=self._clock, boot_id=self._boot_id)

        return database if isinstance(database, SqliteDatabase) else None


def _is_made(database: SqliteDatabase) -> bool:
    """Return whether the file has content: a lost database is often replaced by an empty one."""
    try:
        return database.is_there() and database.path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _endings_there(path: Path) -> list[str]:
    """Return the suffixes of the existing files of the database *path*."""
    return [ending for ending in _COMPANIONS if path.with_name(path.name + ending).exists()]
