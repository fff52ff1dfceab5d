"""
Comparing the database with the documents and live owners: every mismatch is reported, nothing is changed.

What a live owner is doing is no mismatch: its copy may be a moment behind, its document not written yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules import checkpoint
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.db.connection import Database
from adws.adw_modules.deliveries import store as deliveries_store
from adws.adw_modules.errors import DatabaseCorrupt
from adws.adw_modules.identifiers import in_home
from adws.adw_modules.interfaces import LoadedState, OwnerRecord, Verdict
from adws.adw_modules.maintenance.rebuild import DatabaseWorkflow, workflows_in
from adws.adw_modules.queue import workers
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.state_schema import CURRENT_VERSION

if TYPE_CHECKING:
    from adws.adw_modules.process.identity import SystemProcesses


@dataclass(frozen=True, slots=True)
class Inconsistency:
    """A mismatch, and how to fix it."""

    #: storage | schema | moved | document | copy | lock | request | owner | run | runner | session | checkpoint |
    #: delivery
    kind: str
    text: str
    hint: str
    adw_id: str = ""  #: its workflow; "" if it concerns the database


def find_problems(
    database: Database,
    *,
    home: str,
    documents: Callable[[], Mapping[str, LoadedState | str]],
    processes: SystemProcesses,
    repository: str = "",
) -> tuple[Inconsistency, ...]:
    """
    Return the problems of *database*; if it is damaged or has another schema, only that.

    *home* is where documents are stored now. *documents* returns each of them, or why it cannot be read; it is called
    only if the database is usable. *repository* is the home's; a document without one means it.
    """
    unusable = _why_unusable(database, is_empty=lambda: home == "database" or not documents())
    if unusable is not None:
        return unusable
    known = {row.adw_id: row for row in workflows_in(database)}
    verdicts = {adw_id: processes.verdict(row.owner) for adw_id, row in known.items()}
    living = {
        adw_id
        for adw_id, row in known.items()
        if row.owner is not None and row.seconds_left > 0.0 and verdicts[adw_id] is not Verdict.DEAD
    }
    loaded = documents()
    views = [f"the view {name} is missing" for name in schema.missing(database)]

    return (
        *(Inconsistency("schema", text, "adw db upgrade makes it again") for text in views),
        *_document_problems(known, living, home, loaded),
        *_lock_problems(database, known.keys() - living, loaded, repository),
        *_owner_problems(database, known, verdicts, processes),
        *_loose_ends(database),
    )


def _why_unusable(database: Database, *, is_empty: Callable[[], bool]) -> tuple[Inconsistency, ...] | None:
    """Return why nothing more can be checked: () if no database is needed yet, None if everything can be checked."""
    version: str | None = None
    try:
        version = database.schema_version()
        damage = database.integrity_problems() if version is not None else []
    except DatabaseCorrupt as exc:
        damage = [exc.reason]
    if damage:
        hint = "adw db restore brings a backup back; with documents in files, adw db rebuild"
        return tuple(Inconsistency("storage", text, hint) for text in damage)
    if version is None:
        hint = "adw db rebuild makes it from the documents"
        return () if is_empty() else (Inconsistency("schema", "there is no schema yet", hint),)
    if version != migrate.HEAD:
        hint = "another version made this database: upgrade adw, or move it away and run adw db rebuild"
        if version in migrate.KNOWN:
            hint = "adw db upgrade brings it up"
        return (Inconsistency("schema", f"the schema is {version}, this adw needs {migrate.HEAD}", hint),)
    moved_to = migrate.moved_to(database)
    if moved_to:
        hint = "set database.url to that one, and state.store to database"
        return (Inconsistency("moved", f"all of it has moved to {moved_to}", hint),)

    return None


def _document_problems(
    known: Mapping[str, DatabaseWorkflow],
    living: Collection[str],
    home: str,
    documents: Mapping[str, LoadedState | str],
) -> Iterator[Inconsistency]:
    for adw_id, row in known.items():
        if row.home != home:
            text = f"its document lives in the {row.home} store, and the setting store is {home}"
            yield Inconsistency("document", text, f"set store to {row.home} to work on it", adw_id)
        elif adw_id not in documents and adw_id not in living:
            text = "it was registered and its document was never written"
            hint = "adw db rebuild forgets it and frees its issue"
            if row.revision:
                text = f"its document is gone; the database has a copy of revision {row.revision}"
                hint = f"adw status {adw_id} shows the copy; the next owner brings it back"
            yield Inconsistency("document", text, hint, adw_id)
    for adw_id, loaded in sorted(documents.items()):
        if isinstance(loaded, str):
            hint = "put that right, or bring a backup back with adw db restore"
            yield Inconsistency("document", f"its document cannot be read: {loaded}", hint, adw_id)
            continue
        revision, copy = loaded.document.revision, known.get(adw_id)
        if copy is None:
            is_old = any(notice.kind == "migrated" for notice in loaded.notices)
            hint = f"adw state migrate stores it in version {CURRENT_VERSION}" if is_old else "adw db rebuild"
            yield Inconsistency("copy", "the database does not know it", hint, adw_id)
        elif copy.home == home and copy.revision != revision and adw_id not in living:
            text = f"the document is at revision {revision}, the database has seen {copy.revision}: "
            text, hint = f"{text}an older file was put back", f"compare them with adw events {adw_id} before you go on"
            if copy.revision < revision:
                text = f"the database has revision {copy.revision}, the document is at {revision}"
                hint = "adw db rebuild"
            yield Inconsistency("copy", text, hint, adw_id)
        if adw_id not in living:
            # Files replaced by another copy; an older version is no damage.
            hint = f"adw state show {adw_id} shows what is used; the next write keeps the bad file aside"
            bad = (notice for notice in loaded.notices if notice.kind != "migrated")
            yield from (Inconsistency("document", f"{one.path}: {one.reason}", hint, adw_id) for one in bad)


def _lock_problems(
    database: Database, at_rest: Collection[str], documents: Mapping[str, LoadedState | str], home: str
) -> Iterator[Inconsistency]:
    """
    Yield unfinished workflows that do not have their issue; *home* is the repository that "" means.

    Workflows that the database does not know are reported elsewhere, and a live owner may not have written the lock
    yet.
    """
    holders: dict[tuple[str, int], str] = {}
    with database.read() as session:
        rows = session.all("SELECT repository, issue_number, adw_id FROM adw_locks ORDER BY acquired_at, repository")
        for repository, number, adw_id in rows:
            holders.setdefault((in_home(repository, home), number), adw_id)  # the oldest lock counts
    for adw_id, loaded in sorted(documents.items()):
        if isinstance(loaded, str) or adw_id not in at_rest:
            continue
        number, where = loaded.document.issue_number, loaded.document.repository
        if number is None or is_terminal(loaded.document.current_state):
            continue
        holder = holders.get((in_home(where, home), number))
        issue = f"{number}{f' of {where}' if where else ''}"
        if holder is None:
            text = f"it is unfinished, and nobody has the lock of its issue {issue}"
            yield Inconsistency("lock", text, "adw db rebuild takes it again", adw_id)
        elif holder != adw_id:
            text = f"it is unfinished, and its issue {issue} is locked for workflow {holder}"
            hint = f"decide which of the two goes on: see adw status {adw_id} and adw status {holder}"
            yield Inconsistency("lock", text, hint, adw_id)


def _owner_problems(
    database: Database,
    known: Mapping[str, DatabaseWorkflow],
    verdicts: Mapping[str, Verdict],
    processes: SystemProcesses,
) -> Iterator[Inconsistency]:
    """Yield workflows and runs whose worker is gone, runs whose workflow is gone, and unreadable worker records."""
    for adw_id, row in known.items():
        if row.owner is not None and verdicts[adw_id] is Verdict.DEAD:
            text = f"its owner {row.owner.describe()} is dead and did not release it"
            yield Inconsistency("owner", text, "the next command that works on it takes it over", adw_id)
    with database.read() as session:
        runners = session.all(workers.CHECK_RUNNERS)
        live = RunStore(database, clock=database.clock).live_in(session)
        # The run of a start is stored before its workflow exists; runs of the schedule and of deliveries have no
        # workflow.
        orphans = session.all("""
            SELECT run_id, adw_id FROM runs AS asked
            WHERE finished_at IS NULL AND kind NOT IN ('start', 'cron', 'delivery')
              AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = asked.adw_id)
            ORDER BY run_id
        """)
    for run in live:
        owner = OwnerRecord.from_text(run.owner)
        name = owner.describe() if owner else "whose record cannot be read"
        if processes.verdict(owner) is Verdict.DEAD:
            text = f"run {run.run_id}: its worker {name} is dead and did not release it"
        elif run.seconds_left <= 0.0:
            text = f"run {run.run_id}: the claim of its worker {name} is over and was not renewed"
        else:
            continue
        yield Inconsistency("run", text, "adw admin recover gives it to another worker", run.adw_id)
    for run_id, adw_id in orphans:
        text, hint = f"run {run_id} is of a workflow that is gone", "the next worker ends it: adw worker --once"
        yield Inconsistency("run", text, hint, adw_id)
    for runner_id, text in runners:  # such a worker is in no list; a silent one is deleted anyway
        if OwnerRecord.from_text(text) is None:
            hint = "delete its row: a worker that lives registers again"
            yield Inconsistency("runner", f"runner {runner_id}: its record cannot be read", hint)


def _loose_ends(database: Database) -> Iterator[Inconsistency]:
    """Yield rows whose workflow or run is gone."""
    with database.read() as session:
        locks = session.all("""
            SELECT repository, issue_number, adw_id FROM adw_locks AS held
            WHERE NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = held.adw_id)
            ORDER BY acquired_at
        """)
        requests = session.all("""
            SELECT request_id, adw_id FROM requests AS asked WHERE handled_at IS NULL
              AND NOT EXISTS (SELECT 1 FROM workflow_states AS known WHERE known.adw_id = asked.adw_id)
            ORDER BY request_id
        """)
        # Ending a run also ends its sessions.
        sessions = session.all("""
            SELECT session_id, adw_id FROM sessions AS agent
            WHERE ended_at IS NULL AND run_id IS NOT NULL
              AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_id = agent.run_id AND runs.finished_at IS NULL)
            ORDER BY started_at, session_id
        """)
        checkpoints = session.all(checkpoint.CHECK_CHECKPOINTS)
        deliveries = session.all(deliveries_store.CHECK_DELIVERIES)
    for repository, number, adw_id in locks:
        where, option = (f" of {repository}", f" --repository {repository}") if repository else ("", "")
        text = f"issue {number}{where} is locked for a workflow that is gone"
        yield Inconsistency("lock", text, f"adw admin locks release {number}{option}", adw_id)
    for request_id, adw_id in requests:
        text = f"request {request_id} waits for a workflow that is gone"
        yield Inconsistency("request", text, "adw db rebuild", adw_id)
    for session_id, adw_id in sessions:
        text = f"session {session_id} of an agent has not ended, and its run is over"
        hint = f"it hinders nothing; adw events {adw_id} shows how its attempt ended"
        yield Inconsistency("session", text, hint, adw_id)
    for adw_id, count in checkpoints:
        text = f"{count} {'checkpoint is' if count == 1 else 'checkpoints are'} of a workflow that is gone"
        yield Inconsistency("checkpoint", text, "adw admin gc --execute deletes them", adw_id)
    for guid, adw_id in deliveries:
        text = f"delivery {guid} was accepted, and no run is left that does what it asks for"
        yield Inconsistency("delivery", text, f"adw webhook replay {guid} does it", adw_id)
