"""
Bringing a backup back: checked as a whole first, then put in place, with tokens above everything seen.

Nothing in the home is touched before every file of the archive has the hash its manifest says. What is replaced is kept
aside. A workflow never goes back to a lower revision or fence: its old document comes back as its newest revision.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from adws.adw_modules import backup_archive, durable_file, state_reading, state_text
from adws.adw_modules.backup_archive import DATABASE, DOCUMENTS, EVENTS
from adws.adw_modules.coordination.rebuild import rebuild, refuse_while_owners_live, set_old_aside
from adws.adw_modules.coordination.rebuild_plan import LockConflict, StoredDocument, plan_rebuild
from adws.adw_modules.errors import (
    AdwError,
    BackupError,
    MigrationError,
    NewerVersion,
    OwnershipError,
    StateError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import Clock, LocalLock, Ownership, Processes, StateStore
from adws.adw_modules.interfaces_rebuild import NewContents, Reconstruction, Salvage
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.run_making import RunMaker
from adws.adw_modules.state_folders import StateFolders
from adws.adw_modules.state_reading import FILE_NAME, Kind
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration

logger = logging.getLogger("adw.restore")


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreReport:
    """What came back."""

    workflows: tuple[str, ...]
    replaced: tuple[str, ...]  #: of these, those that were there before
    events: int  #: that the home did not have
    has_database: bool  #: the database of the backup is in use now
    conflicts: tuple[LockConflict, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: workflow -> what is wrong with its document
    untold: tuple[str, ...] = ()  #: restored, but an owner came before the event that tells of it

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {
            "workflows": list(self.workflows),
            "replaced": list(self.replaced),
            "events": self.events,
            "has_database": self.has_database,
            "lock_conflicts": [conflict.to_json() for conflict in self.conflicts],
            "unreadable": dict(self.unreadable),
            "untold": list(self.untold),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The parts of a home that a restore needs."""

    store: Callable[[], StateStore]  #: a store of rows is asked for when the database is in place
    store_kind: str  #: files | database
    folders: StateFolders
    reconstruction: Reconstruction
    local_lock: LocalLock
    processes: Processes
    clock: Clock
    ownership: Callable[[], Ownership]  #: asked for when the database is in place
    repository: str = ""  #: whose issues are meant by documents that name none
    maker: RunMaker | None = None  #: knows the labels of runs


def restore(path: Path, home: Home, *, force: bool = False) -> RestoreReport:
    """Bring the backup *path* back; raise BackupError or OwnershipError, and then the home is as it was."""
    if not path.is_file():
        raise BackupError(f"there is no backup {path}")
    with _staging(home) as staging:
        manifest = backup_archive.unpack(path, staging)
        _refuse_newer(path, manifest)
        documents, unreadable = _read(staging)
        salvage = home.reconstruction.salvage()
        present = _present(home, salvage)
        replaced = tuple(sorted(documents.keys() & present.keys()))
        if replaced and not force:
            raise BackupError(
                f"{', '.join(replaced[:5])}{' and more' if len(replaced) > 5 else ''} exist already: "
                "add --force to replace them by what the backup has"
            )
        _refuse_owners(home, present, salvage)
        _takes_database(home, staging, salvage)  # raises for a bad one while nothing is touched: a lock is a file
        with _held(home, present.keys() | documents.keys()):
            # Once more: an owner may have come and gone before we held the locks.
            salvage = home.reconstruction.salvage()
            _refuse_owners(home, (), salvage)
            report = _put_in_place(home, staging, documents, salvage, _present(home, salvage))
        untold = _tell(home, path, manifest, documents)

        return replace(report, replaced=replaced, unreadable=unreadable, untold=untold)


def _refuse_owners(home: Home, ids: Iterable[str], salvage: Salvage) -> None:
    refuse_while_owners_live(
        ids, salvage.workflows, local_lock=home.local_lock, processes=home.processes, hint="stop them first"
    )


@contextmanager
def _held(home: Home, ids: Iterable[str]) -> Iterator[None]:
    """Hold the file locks of all *ids*, so that nobody begins to work on what is being replaced."""
    with ExitStack() as held:
        for adw_id in sorted(ids):
            if not home.local_lock.try_hold(adw_id):
                raise OwnershipError(f"workflow {adw_id} is being worked on by another process: stop it first")
            held.callback(home.local_lock.let_go, adw_id)
        yield


@contextmanager
def _staging(home: Home) -> Iterator[Path]:
    """Give an empty directory on the disk of the home; its name is none that a workflow can have."""
    staging = home.folders.root / f".restore-{home.clock.token()[:12]}"
    try:
        staging.mkdir(mode=0o700, parents=True)
    except OSError as exc:
        raise BackupError(f"cannot make {staging}: {exc.strerror}") from exc
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _refuse_newer(path: Path, manifest: JsonObject) -> None:
    version = str(manifest.get("document_version"))
    try:
        StateMigration.path(version, CURRENT_VERSION)
    except MigrationError as exc:
        raise BackupError(
            f"{path} has documents of version {version}, this adw knows up to {CURRENT_VERSION}: upgrade adw"
        ) from exc


def _read(staging: Path) -> tuple[dict[str, JsonObject], dict[str, str]]:
    """Return the documents of the backup by workflow, brought to the current version, and those that cannot be read."""
    documents: dict[str, JsonObject] = {}
    unreadable: dict[str, str] = {}
    for folder in sorted((staging / DOCUMENTS).glob("*")):
        try:
            found = _examine(folder)
        except NewerVersion as exc:
            raise BackupError(f"workflow {folder.name} of the backup: {exc}") from exc
        except StateError as exc:
            unreadable[folder.name] = str(exc)
            continue
        if found.data is None:
            unreadable[folder.name] = _why_unusable(found)
        else:
            documents[folder.name] = found.data

    return documents, unreadable


def _examine(folder: Path) -> state_reading.Found:
    """Return what the document in *folder* is, by the rules of the store that will read it when it is back."""
    directory = durable_file.open_directory(str(folder), follow=False)
    try:
        return state_reading.examine(directory, str(folder), FILE_NAME, folder.name, max_bytes=state_text.MAX_BYTES)
    finally:
        durable_file.close_quietly(directory)


def _why_unusable(found: state_reading.Found) -> str:
    if found.kind is Kind.MISSING:
        return "the backup has files of it, but no document"

    return f"its document is corrupt: {found.reason}" if found.kind is Kind.CORRUPT else found.reason


# --- putting it in place ---------------------------------------------------------------------------------------


def _present(home: Home, salvage: Salvage) -> dict[str, int]:
    """Return every workflow the home has, with the highest revision that was seen of it."""
    known = {workflow.adw_id: workflow.revision for workflow in salvage.workflows}
    if home.store_kind == "database":
        return {adw_id: revision for adw_id, revision in known.items() if revision > 0}
    present = {}
    for adw_id in home.store().ids():
        present[adw_id] = known.get(adw_id, 0)
        with suppress(AdwError):  # what cannot be read tells no revision
            present[adw_id] = max(present[adw_id], _whole(home.store().peek(adw_id).data.get("revision")))

    return present


def _takes_database(home: Home, staging: Path, salvage: Salvage) -> bool:
    """Say whether the home, having nothing of its own, gets the whole database: also what no document tells of."""
    is_empty = salvage.is_missing or bool(salvage.problems) or not salvage.workflows

    return is_empty and home.reconstruction.may_install(str(staging / DATABASE))


def _put_in_place(
    home: Home, staging: Path, documents: dict[str, JsonObject], salvage: Salvage, present: Mapping[str, int]
) -> RestoreReport:
    has_database = _takes_database(home, staging, salvage)
    raised = {adw_id: _raised(data, present.get(adw_id, 0)) for adw_id, data in documents.items()}
    if home.store_kind == "files":
        for adw_id, data in raised.items():
            _put_files(home, staging, adw_id, is_same=data is documents[adw_id], data=data)
    if has_database:
        home.reconstruction.install(str(staging / DATABASE))
    else:
        set_old_aside(home.reconstruction, salvage)
    brought = tuple(_events(staging, documents))
    stored = home.reconstruction.put(NewContents(events=brought))
    if home.store_kind == "files":
        conflicts = rebuild(
            store=home.store(),
            fences=home.folders,
            reconstruction=home.reconstruction,
            local_lock=home.local_lock,
            processes=home.processes,
            repository=home.repository,
            maker=home.maker,
            force=True,
            replace_rows=True,  # the backup may be of a home that had its documents in the database
        ).conflicts
    else:
        conflicts = _put_rows(home, raised)

    return RestoreReport(
        workflows=tuple(sorted(documents)),
        replaced=(),
        events=len(brought) if has_database else stored,  # the database of the backup had them already
        has_database=has_database,
        conflicts=conflicts,
    )


def _raised(data: JsonObject, seen: int) -> JsonObject:
    """Return *data* at no lower revision than was *seen*: events are known by it, so it never goes back."""
    return data if seen <= _whole(data.get("revision")) else {**data, "revision": seen}


def _put_files(home: Home, staging: Path, adw_id: str, *, is_same: bool, data: JsonObject) -> None:
    source, folders = staging / DOCUMENTS / adw_id, home.folders
    old = folders.read(adw_id, FILE_NAME)
    if old is not None:
        folders.put(adw_id, f"{FILE_NAME}.replaced-{home.clock.now():%Y%m%dT%H%M%SZ}", old)
    names = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file()]
    for name in names:
        if name != FILE_NAME:
            folders.put(adw_id, name, (source / name).read_bytes())
    # Last: from here on it is the workflow of the backup.
    text = (source / FILE_NAME).read_bytes() if is_same else state_text.seal(state_text.to_bytes(data))
    folders.put(adw_id, FILE_NAME, text)


def _put_rows(home: Home, documents: dict[str, JsonObject]) -> tuple[LockConflict, ...]:
    store = home.store()
    others = [store.peek(adw_id).data for adw_id in store.ids() if adw_id not in documents]
    stored = [StoredDocument(data=data, highest_fence=_whole(data.get("fence"))) for data in documents.values()]
    beside = [StoredDocument(data=data, highest_fence=_whole(data.get("fence"))) for data in others]
    plan = plan_rebuild([*stored, *beside], home.reconstruction.salvage(), repository=home.repository, maker=home.maker)
    rows = tuple(row for row in plan.contents.rows if row.adw_id in documents)
    runs = tuple(run for run in plan.contents.runs if run.adw_id in documents)
    home.reconstruction.put(NewContents(home="database", rows=rows, locks=plan.contents.locks, runs=runs))

    return plan.conflicts


def _events(staging: Path, documents: Mapping[str, JsonObject]) -> Iterator[Event]:
    path = staging / EVENTS
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            event = Event.from_json(json.loads(line))
            if event.adw_id in documents:
                yield event


def _tell(home: Home, path: Path, manifest: JsonObject, documents: Mapping[str, JsonObject]) -> tuple[str, ...]:
    """Leave an event in each workflow that came back; return those that an owner took first, restored all the same."""
    untold: list[str] = []
    for adw_id, data in sorted(documents.items()):
        restored = Event(
            event_type="backup_restored",
            data={"backup": path.name, "written_at": manifest.get("created_at"), "revision": data.get("revision")},
        )
        try:
            with home.ownership().own(adw_id) as owned:
                owned.save(owned.document, events=(restored,))
        except WorkflowBusy:
            logger.warning("Restored, but not told of", extra={"action": "restore_untold", "workflow": adw_id})
            untold.append(adw_id)

    return tuple(untold)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
