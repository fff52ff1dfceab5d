"""
Deleting old data: events, logs, deliveries, and finished workflows as a whole.

The settings say what is old; days count from the last change, and 0 means forever. A workflow is deleted under its
lease: it is checked again, its directory is set aside in one step, its rows are deleted in one transaction, and its
directory afterwards. After a crash in between, the next run finds the directory and completes the deletion.

Rows are deleted in small batches, so that nobody waits long for one of our transactions. The newest row of a table
that numbers its rows stays, whatever its age, because SQLite would reuse its number. Events also stay from the last one
that notifications, reports or counters have read: it marks their position.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import attempt_files, durable_file, timestamps
from adws.adw_modules.db.connection import Database, Session
from adws.adw_modules.deliveries import store as deliveries_store
from adws.adw_modules.effects import OPEN_OUTCOMES
from adws.adw_modules.errors import AdwError, DatabaseError, OwnershipError, StateNotFound
from adws.adw_modules.housekeeping import inventory
from adws.adw_modules.housekeeping.inventory import Orphan
from adws.adw_modules.identifiers import FOREIGN, check_adw_id, counted
from adws.adw_modules.reports.store import ReportSums
from adws.adw_modules.state_machine import TERMINAL_STATES

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

#: The states of finished workflows, as rows and documents have them.
OVER = frozenset(state.value for state in TERMINAL_STATES)
#: Kinds of effects that a merge made part of the repository or its history, so that nobody will undo them.
MERGED_KINDS = frozenset({"branch", "remote_branch", "pull_request", "comment", "label"})
#: Days to keep the events of finished workflows, and deliveries: a delivery repeated within this time starts nothing.
EVENTS_DAYS, DELIVERIES_DAYS = 365, 14
#: Rows read or deleted in one transaction.
AT_ONCE = 500


def limit(days: int, now: datetime) -> str:
    """Return the moment before which data is old, or "" if it never is."""
    return timestamps.to_text(now - timedelta(days=days)) if days else ""


def why_kept(document: WorkflowDocument, *, before: str, has_issue: bool = False, has_run: bool = False) -> str:
    """
    Return why the workflow of a document is kept, or "" if it may be deleted.

    Pure. A workflow may go only if it left nothing that somebody may want to undo, inspect or release.
    """
    known = inventory.known_from(document, is_live=False)
    if known.state not in OVER:
        return f"it is {known.state.replace('_', ' ') or 'in a state that nobody knows'}"
    if not before or not known.updated_at or known.updated_at >= before:
        return "it is not old enough"
    if known.is_rolling_back and known.state != "rolled_back":
        return "its rollback is not finished"
    if has_issue:
        return "it has its issue"
    if has_run:
        return "a run of it waits for a worker"
    if known.kept:
        return f"it keeps {', '.join(sorted(known.kept))}, which gc would take for left over"
    standing = [
        entry.key
        for entry in document.resources
        if entry.outcome in OPEN_OUTCOMES and not (document.pr_merged and entry.kind in MERGED_KINDS)
    ]

    return f"what it made still stands: {', '.join(standing)}" if standing else ""


class Retention:
    """Finds and deletes old data."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._rows = OldRows(home.database)
        self._files = OldFiles(home.settings.state_dir)
        self._has_counted = False

    def find(self) -> tuple[Orphan, ...]:
        """Return the old data, each entry of one of `inventory.OLD_KINDS`; changes nothing."""
        interrupted, why = self._files.set_aside_ids(), "it was being forgotten, and that was cut off"
        old = [Orphan(kind="workflow_old", name=adw_id, adw_id=adw_id, why=why) for adw_id in interrupted]
        before = self._before("workflows")
        finished = [adw_id for adw_id in self._rows.finished(before) if adw_id not in interrupted]
        old += [self._old("workflows", one, adw_id=one) for one in finished if not self._why_kept(one, before)]
        before = self._before("events")
        events, workflows = self._rows.old_events(before) if before else (0, 0)
        if events:
            name = f"{counted(events, 'event')} of {counted(workflows, 'finished workflow')}"
            old.append(self._old("events", name))
        before = self._before("logs")
        files = [len(self._files.output_of(adw_id)) for adw_id in self._rows.finished(before)]
        if any(files):
            name = f"{counted(sum(files), 'file')} of {counted(sum(map(bool, files)), 'finished workflow')}"
            old.append(self._old("logs", name))
        before = self._before("deliveries")
        if before:
            with self._home.database.read() as session:
                row = session.one(deliveries_store.DELIVERIES_OLD, {"moment": before})
            if row and row[0]:
                old.append(self._old("deliveries", counted(int(row[0]), "delivery", "deliveries")))

        return tuple(old)

    def _old(self, setting: str, name: str, *, adw_id: str = "") -> Orphan:
        kind = "workflow_old" if setting == "workflows" else f"{setting}_old"
        key = f" (retention.{setting}_days)" if setting in {"logs", "workflows"} else ""
        why = f"older than {counted(self._days(setting), 'day')}{key}"

        return Orphan(kind=kind, name=name, adw_id=adw_id, why=why, since=self._before(setting))

    def forget(self, old: Orphan) -> str:
        """Delete *old* and return what was done; raise AdwError if it cannot be deleted now."""
        if not self._has_counted:  # once: what is deleted here ended long ago
            self._home.tally.catch_up()
            self._has_counted = True
        if old.kind == "workflow_old":
            self._forget_workflow(old.adw_id)
            return "forgotten"
        if old.kind == "events_old":
            return f"{self._rows.forget_events(self._before('events'))} forgotten"
        if old.kind == "logs_old":
            finished = self._rows.finished(self._before("logs"))
            return f"{sum(self._files.forget_output(adw_id) for adw_id in finished)} deleted"
        before = self._before("deliveries")
        deleted = self._home.deliveries.forget_before(before)
        self._rows.forget_errands(before)

        return f"{deleted} forgotten"

    def forget_all(self) -> tuple[int, tuple[str, ...]]:
        """Delete all old data; return the number of workflows, and a line for each other kind and for what stayed."""
        workflows, lines = 0, []
        for old in self.find():
            try:
                result = self.forget(old)
            except AdwError as exc:
                lines.append(f"{old.name} stays: {exc}")
                continue
            if old.kind == "workflow_old":
                workflows += 1
            else:
                lines.append(f"{old.name}: {result}")

        return workflows, tuple(lines)

    def _forget_workflow(self, adw_id: str) -> None:
        if adw_id in self._files.set_aside_ids():
            self._finish(adw_id)
            return
        with self._home.ownership.own(adw_id) as owned:
            why = self._why_kept(adw_id, self._before("workflows"))
            if why:
                raise OwnershipError(f"workflow {adw_id} is not forgotten: {why}")
            self._files.set_aside(adw_id)
            try:
                is_gone = self._rows.forget_workflow(adw_id, fence=owned.lease.fence)
            except DatabaseError:
                self._files.put_back(adw_id)
                raise
            if not is_gone:
                self._files.put_back(adw_id)
                raise OwnershipError(f"workflow {adw_id} is not forgotten: it was taken up again")
        self._files.remove_set_aside(adw_id)

    def _finish(self, adw_id: str) -> None:
        """Complete an interrupted deletion: the rows, if they exist, then the directory that was set aside."""
        if self._home.inventory.is_live(adw_id):
            raise OwnershipError(f"workflow {adw_id} is not forgotten: somebody works on it again")
        with self._home.database.read() as session:
            row = session.one("SELECT fence FROM workflow_states WHERE adw_id = :adw_id", {"adw_id": adw_id})
        # If it has a directory again, it was used since, and continues without the old one.
        if row is not None and not self._files.is_there(adw_id):
            self._rows.forget_workflow(adw_id, fence=int(row[0]))
        self._files.remove_set_aside(adw_id)

    def _why_kept(self, adw_id: str, before: str) -> str:
        try:
            document = self._home.store.load(adw_id).document
        except StateNotFound:
            return "its document is gone"
        except DatabaseError:
            raise
        except AdwError as exc:
            return str(exc)
        has_issue, has_run = self._rows.holds(adw_id)

        return why_kept(document, before=before, has_issue=has_issue, has_run=has_run)

    def _before(self, setting: str) -> str:
        return limit(self._days(setting), self._home.clock.now())

    def _days(self, setting: str) -> int:
        """Return for how many days data of *setting* is kept; 0: forever."""
        settings = self._home.settings
        days = {
            "events": EVENTS_DAYS,
            "logs": settings.retention_logs_days,
            "deliveries": DELIVERIES_DAYS,
            "workflows": settings.retention_workflows_days,
        }

        return days[setting]


#: Prefix of the name of a directory that is being deleted; no workflow can have such a name.
PREFIX = ".removed-"


class OldFiles:
    """
    The directories of workflows below *root*: logs, output of attempts, and whole directories.

    A directory is renamed before it is deleted, so a workflow is there as a whole or not at all, and a crash leaves
    visible what was to be deleted. Symbolic links are never followed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def output_of(self, adw_id: str) -> tuple[str, ...]:
        """Return the logs and the files of attempts of a workflow, relative to its directory."""
        folder = self._folder(adw_id)
        if folder.is_symlink() or not folder.is_dir():
            return ()
        logs = [path for path in folder.glob(f"{attempt_files.LOG_NAME}*") if path.is_file() and not path.is_symlink()]

        return (*sorted(path.name for path in logs), *(file.name for file in attempt_files.list_files(folder)))

    def forget_output(self, adw_id: str) -> int:
        """Delete the logs and files of `output_of`, and return how many there were."""
        folder, names = self._folder(adw_id), self.output_of(adw_id)
        for name in names:
            (folder / name).unlink(missing_ok=True)
        for place in {(folder / name).parent for name in names} - {folder}:
            with suppress(OSError):  # other files are in it
                place.rmdir()
                place.parent.rmdir()

        return len(names)

    def set_aside(self, adw_id: str) -> None:
        """Rename the directory of a workflow, in one step, so that it is set aside."""
        with suppress(FileNotFoundError):  # with documents in the database there may be none
            self._folder(adw_id).rename(self._aside(adw_id))
            durable_file.sync_directory_at(str(self._root))

    def put_back(self, adw_id: str) -> None:
        """Undo `set_aside`."""
        with suppress(FileNotFoundError):
            self._aside(adw_id).rename(self._folder(adw_id))
            durable_file.sync_directory_at(str(self._root))

    def is_there(self, adw_id: str) -> bool:
        """Return whether a workflow has a directory."""
        return self._folder(adw_id).exists()

    def set_aside_ids(self) -> tuple[str, ...]:
        """Return the workflows whose directories are set aside."""
        names = sorted(path.name.removeprefix(PREFIX) for path in self._root.glob(f"{PREFIX}*") if path.is_dir())

        return tuple(name for name in names if FOREIGN.fullmatch(name))

    def remove_set_aside(self, adw_id: str) -> None:
        """Delete the directory that was set aside."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._aside(adw_id))

    def _folder(self, adw_id: str) -> Path:
        return self._root / check_adw_id(adw_id)

    def _aside(self, adw_id: str) -> Path:
        return self._root / f"{PREFIX}{check_adw_id(adw_id)}"


_OVER = ", ".join(f"'{state}'" for state in sorted(OVER))
#: Old events, except those of unfinished workflows.
_OLD_EVENT = f"""
created_at < :before AND NOT EXISTS (
  SELECT 1 FROM workflow_states AS flow WHERE flow.adw_id = events.adw_id AND flow.state NOT IN ({_OVER}))
"""
#: Deletes the rest of a workflow in the same transaction.
_WITH_WORKFLOW = (
    "DELETE FROM runs WHERE adw_id = :adw_id AND run_id < (SELECT max(run_id) FROM runs)",
    "DELETE FROM requests WHERE adw_id = :adw_id AND request_id < (SELECT max(request_id) FROM requests)",
    "DELETE FROM sessions WHERE adw_id = :adw_id",
    "DELETE FROM task_checkpoints WHERE adw_id = :adw_id",
    "DELETE FROM quota_reservations WHERE adw_id = :adw_id",
    "DELETE FROM ports WHERE adw_id = :adw_id",
    "DELETE FROM external_tasks WHERE adw_id = :adw_id",
    "DELETE FROM report_workflows WHERE adw_id = :adw_id",  # the sums stay
)
_EXECUTIONS_OF = "SELECT execution_id FROM executions WHERE adw_id = :adw_id"
#: Deletes what its steps left, in batches; rows that others refer to come last. Large results of single calls belong to
#: no execution, but their keys begin with the workflow's id.
_STEPS_OF_WORKFLOW = (
    f"""
DELETE FROM iteration_pages WHERE (execution_id, idx, page) IN (
  SELECT execution_id, idx, page FROM iteration_pages
  WHERE execution_id IN ({_EXECUTIONS_OF}) OR execution_id LIKE :adw_id || '.%' LIMIT :limit)
""",
    f"""
DELETE FROM iterations WHERE (execution_id, idx) IN (
  SELECT execution_id, idx FROM iterations WHERE execution_id IN ({_EXECUTIONS_OF}) LIMIT :limit)
""",
    f"DELETE FROM executions WHERE execution_id IN ({_EXECUTIONS_OF} LIMIT :limit)",
)


class OldRows:
    """Old rows of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sums = ReportSums(database)

    def old_events(self, before: str) -> tuple[int, int]:
        """Return how many events of finished workflows are older than *before*, and of how many workflows."""
        with self._database.read() as session:
            row = session.one(
                f"SELECT count(*), count(DISTINCT adw_id) FROM events WHERE seq < :ending AND {_OLD_EVENT}",
                {"before": before, "ending": _first_kept_event(session)},
            )

        return (int(row[0]), int(row[1])) if row else (0, 0)

    def forget_events(self, before: str) -> int:
        """Delete the events that `old_events` counts, and return how many."""
        self._sums.catch_up()
        deleted = after = 0
        while True:
            with self._database.read() as session:
                page = session.one(
                    "SELECT max(seq), min(created_at) FROM ("
                    " SELECT seq, created_at FROM events WHERE seq > :after AND seq < :ending"
                    " ORDER BY seq LIMIT :limit) AS page",
                    {"after": after, "ending": _first_kept_event(session), "limit": AT_ONCE},
                )
            last, oldest = page or (None, None)
            if last is None or oldest >= before:
                return deleted
            delete = f"DELETE FROM events WHERE seq > :after AND seq <= :last AND {_OLD_EVENT}"
            deleted += self._delete(delete, {"after": after, "last": last, "before": before})
            after = last

    def finished(self, before: str) -> tuple[str, ...]:
        """Return the finished workflows that have not changed since *before*; none if that is ""."""
        finished: list[str] = []
        if not before:
            return ()
        with self._database.read() as session:
            while True:
                page = session.all(
                    f"SELECT adw_id FROM workflow_states WHERE state IN ({_OVER}) AND revision > 0"
                    " AND updated_at < :before AND adw_id > :after ORDER BY adw_id LIMIT :limit",
                    {"before": before, "after": finished[-1] if finished else "", "limit": AT_ONCE},
                )
                finished.extend(row[0] for row in page)
                if len(page) < AT_ONCE:
                    return tuple(finished)

    def holds(self, adw_id: str) -> tuple[bool, bool]:
        """Return whether a workflow has its issue, and whether it has an unfinished run."""
        with self._database.read() as session:
            params = {"adw_id": adw_id}
            issue = session.one("SELECT 1 FROM adw_locks WHERE adw_id = :adw_id LIMIT 1", params)
            run = session.one("SELECT 1 FROM runs WHERE adw_id = :adw_id AND finished_at IS NULL LIMIT 1", params)

        return issue is not None, run is not None

    def forget_workflow(self, adw_id: str, *, fence: int) -> bool:
        """
        Delete all rows of a finished workflow.

        Return False, with nothing deleted, if it was taken over, or got a run or its issue again.
        """

        def forget(session: Session) -> bool:
            self._sums.look_at([adw_id], session)
            deleted = session.run(
                f"DELETE FROM workflow_states WHERE adw_id = :adw_id AND fence = :fence AND state IN ({_OVER})"
                " AND NOT EXISTS (SELECT 1 FROM adw_locks AS held WHERE held.adw_id = workflow_states.adw_id)"
                " AND NOT EXISTS ("
                "  SELECT 1 FROM runs WHERE runs.adw_id = workflow_states.adw_id AND runs.finished_at IS NULL)",
                {"adw_id": adw_id, "fence": fence},
            )
            if deleted != 1:
                return False
            for statement in _WITH_WORKFLOW:
                session.run(statement, {"adw_id": adw_id})
            return True

        def forget_events(session: Session) -> int:
            return session.run(
                "DELETE FROM events WHERE seq IN ("
                " SELECT seq FROM events WHERE adw_id = :adw_id AND seq < :ending ORDER BY seq LIMIT :limit)",
                {"adw_id": adw_id, "ending": _first_kept_event(session), "limit": AT_ONCE},
            )

        if not self._database.transact(forget):
            return False
        # Its events come last: there may be many, and nobody needs them any more.
        while self._database.transact(forget_events):
            pass
        for statement in _STEPS_OF_WORKFLOW:
            while self._delete(statement, {"adw_id": adw_id, "limit": AT_ONCE}):
                pass

        return True

    def forget_errands(self, before: str) -> None:
        """Delete the runs of deliveries and of the schedule, which have no workflow, that ended before *before*."""
        statement = """
DELETE FROM runs WHERE run_id IN (
  SELECT run_id FROM runs WHERE kind IN ('delivery', 'cron') AND finished_at < :before
    AND run_id < (SELECT max(run_id) FROM runs)
    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE deliveries.run_id = runs.run_id)
  ORDER BY run_id LIMIT :limit)
"""
        while self._delete(statement, {"before": before, "limit": AT_ONCE}):
            pass

    def _delete(self, statement: str, params: dict[str, object]) -> int:
        return self._database.transact(lambda session: session.run(statement, params))


def _first_kept_event(session: Session) -> int:
    """Return the first event to keep: the newest one, or the last one that notifications or reports have read."""
    row = session.one("""
SELECT min(seq) FROM (
  SELECT max(seq) AS seq FROM events
  UNION ALL SELECT seq FROM notification_cursor WHERE seq >= 0
) AS kept
""")

    return int(row[0]) if row and row[0] is not None else 0
