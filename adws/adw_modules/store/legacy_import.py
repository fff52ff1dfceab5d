"""
Migrate a tree of old workflow documents into a home: plan first, then apply.

Planning only reads, and predicts conflicts: issues that are already locked, and files of the plan that want the same
issue. A document in the home's own state directory is upgraded in place by its next owner (this process, briefly); the
store keeps the old file beside it. Documents of older set-ups (`agents/<id>/adw_state.json`) and of other homes are
imported as new documents, and the originals stay. Nothing existing is overwritten, and one file that cannot be imported
does not stop the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import document, durable_file
from adws.adw_modules.errors import (
    AdwError,
    IssueLocked,
    NewerVersion,
    StateCorrupt,
    StateInvalid,
    StateReadFailed,
    UsageError,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import JsonObject, check_adw_id, in_home, normalise
from adws.adw_modules.interfaces import LoadedState, LoadNotice, StateStore
from adws.adw_modules.state_machine import is_terminal
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration, version_of
from adws.adw_modules.store import serialization
from adws.adw_modules.store.files import FILE_NAME
from adws.adw_modules.store.serialization import Seal

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.ownership.issue_locks import IssueLocks
    from adws.adw_modules.ownership.leases import Leases
    from adws.adw_modules.ownership.ownership import WorkflowOwnership


#: Directories whose children are workflows: ours, and those of older set-ups.
HOMES_OF_DOCUMENTS = frozenset({"state", "agents"})
#: Never searched: copies of the repository, and directories of other tools.
SKIPPED_DIRECTORIES = frozenset({".git", ".venv", "__pycache__", "node_modules", "trees"})
#: Key in an imported document for the path it came from.
ORIGIN_KEY = "imported_from"


class ImportAction(Enum):
    """The action planned for a file."""

    UP_TO_DATE = "up to date"
    MIGRATE = "migrate in place"
    IMPORT = "import"
    NEWER = "refused: newer version"
    EXISTS = "refused: exists already"
    LOCKED = "refused: issue taken"
    CORRUPT = "not usable"

    @property
    def is_change(self) -> bool:
        """Whether applying the plan changes something."""
        return self in (ImportAction.MIGRATE, ImportAction.IMPORT)

    @property
    def is_trouble(self) -> bool:
        """Whether a person has to check the file."""
        return self in (ImportAction.NEWER, ImportAction.EXISTS, ImportAction.LOCKED, ImportAction.CORRUPT)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedFile:
    """One file, what it is, and what will happen to it."""

    path: Path
    adw_id: str  #: "" if the file does not say
    version: str  #: "" if unreadable
    action: ImportAction
    detail: str = ""
    notices: tuple[LoadNotice, ...] = ()  #: notices from reading it


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationPlan:
    """Every document below a path, the most recently changed first."""

    root: Path
    files: tuple[PlannedFile, ...]

    @property
    def has_trouble(self) -> bool:
        """Whether a person has to check any of the files."""
        return any(file.action.is_trouble for file in self.files)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedFile:
    """The result of one planned file."""

    file: PlannedFile
    is_done: bool  #: False: it was refused, and nothing was changed
    detail: str


class TreePlanner:
    """
    Examines a tree, for the home of *store*.

    *state_dir* is the directory in which *store* keeps files, or None if it keeps no files: then there is nothing to
    migrate in place, and everything found is imported. A database store, *locks* and *leases* are None while the home
    has no database: then it has no workflows, and planning creates none. *repository* is the home's repository.
    """

    def __init__(
        self,
        *,
        store: StateStore | None,
        state_dir: Path | None,
        locks: IssueLocks | None = None,
        leases: Leases | None = None,
        repository: str = "",
        max_bytes: int = serialization.MAX_BYTES,
    ) -> None:
        self._store = store
        self._state_dir = state_dir.resolve() if state_dir is not None else None
        self._locks = locks
        self._leases = leases
        self._repository = repository
        self._max_bytes = max_bytes

    def plan_migration(self, path: Path, *further: Path) -> MigrationPlan:
        """
        Return what applying would do to every document at or below *path* and existing *further* paths. Only reads.

        Raises UsageError if *path* does not exist.
        """
        root = path.resolve()
        if not root.exists():
            raise UsageError(f"{path} does not exist: name a directory or a document")

        issues = _Issues(self._locks, self._repository)
        claimed: set[str] = set()
        closed: list[OSError] = []
        roots = (root, *(more.resolve() for more in further if more.exists()))
        found_paths = {item for start in roots for item in find_documents(start, closed.append, self._state_dir)}
        files = [*{error.filename: _closed_directory(error) for error in closed}.values()]
        for item in sorted(found_paths, key=_newest_first):
            if self._store is not None and self._is_ours(item):
                planned = self._plan_in_place(item, self._store, issues)
            else:
                planned = self._plan_import(item, claimed, issues)
            if planned.action is ImportAction.IMPORT:
                claimed.add(planned.adw_id)
            files.append(planned)

        return MigrationPlan(root=root, files=tuple(files))

    def _is_ours(self, path: Path) -> bool:
        return path.parent.parent == self._state_dir and path.name == FILE_NAME

    def _plan_in_place(self, path: Path, store: StateStore, issues: _Issues) -> PlannedFile:
        adw_id, version = path.parent.name, ""
        try:
            version = version_of(_read(path, self._max_bytes))
            action, detail = self._migrate_or_refuse(store.load(adw_id), issues)
        except NewerVersion as exc:
            return PlannedFile(path=path, adw_id=adw_id, version=exc.found, action=ImportAction.NEWER, detail=str(exc))
        except AdwError as exc:
            action, detail = ImportAction.CORRUPT, str(exc)

        return PlannedFile(
            path=path, adw_id=adw_id, version=version, action=action, detail=detail, notices=_notices_of(store, adw_id)
        )

    def _migrate_or_refuse(self, loaded: LoadedState, issues: _Issues) -> tuple[ImportAction, str]:
        trouble = [notice.reason for notice in loaded.notices if notice.kind not in {"migrated", "recovered"}]
        if trouble:
            return ImportAction.CORRUPT, "; ".join(trouble)
        if all(notice.kind != "migrated" for notice in loaded.notices):
            return ImportAction.UP_TO_DATE, ""
        if self._is_registered(loaded.document.adw_id):
            return ImportAction.MIGRATE, ""  # it holds its issue, or lost it long ago; migrating changes neither
        refusal = issues.refusal(loaded.document)

        return (ImportAction.LOCKED, refusal) if refusal else (ImportAction.MIGRATE, "")

    def _plan_import(self, path: Path, claimed: set[str], issues: _Issues) -> PlannedFile:
        version = ""
        try:
            data = _read(path, self._max_bytes)
            version = version_of(data)
            document = _document_to_import(path, data)
            action, detail = self._import_or_refuse(path, document, claimed, issues)
        except NewerVersion as exc:
            return PlannedFile(path=path, adw_id="", version=exc.found, action=ImportAction.NEWER, detail=str(exc))
        except AdwError as exc:
            return PlannedFile(path=path, adw_id="", version=version, action=ImportAction.CORRUPT, detail=str(exc))

        return PlannedFile(path=path, adw_id=document.adw_id, version=version, action=action, detail=detail)

    def _import_or_refuse(
        self, path: Path, document: WorkflowDocument, claimed: set[str], issues: _Issues
    ) -> tuple[ImportAction, str]:
        adw_id = document.adw_id
        if adw_id in claimed:
            return ImportAction.EXISTS, f"a more recently changed file of workflow {adw_id} is imported"
        if self._store is not None and self._store.exists(adw_id):
            if _was_imported_from(path, self._store, adw_id):
                return ImportAction.UP_TO_DATE, "imported before"
            return ImportAction.EXISTS, f"workflow {adw_id} exists in this home and is not overwritten"
        if self._is_registered(adw_id):
            return ImportAction.EXISTS, f"the database knows a workflow {adw_id} without a document: see adw db check"
        refusal = issues.refusal(document)

        return (ImportAction.LOCKED, refusal) if refusal else (ImportAction.IMPORT, f"as {document.current_state}")

    def _is_registered(self, adw_id: str) -> bool:
        return self._leases is not None and self._leases.read(adw_id) is not None


def _notices_of(store: StateStore, adw_id: str) -> tuple[LoadNotice, ...]:
    try:
        return store.load(adw_id).notices
    except AdwError:
        return ()  # there is no other copy to use


def _was_imported_from(path: Path, store: StateStore, adw_id: str) -> bool:
    try:
        return store.load(adw_id).data.get(ORIGIN_KEY) == str(path)
    except AdwError:
        return False


class _Issues:
    """The holder of each issue when a file's turn comes: by its lock, or through an earlier file of the plan."""

    def __init__(self, locks: IssueLocks | None, repository: str) -> None:
        self._locks = locks
        self._repository = repository
        self._planned: dict[tuple[str, int], str] = {}

    def refusal(self, document: WorkflowDocument) -> str:
        """Return why *document* cannot get its issue, or "" if it can: it then holds it for the rest of the plan."""
        number = document.issue_number
        if number is None or is_terminal(document.current_state):
            return ""  # an ended workflow has no claim to its issue
        normalise(document.repository)
        key = in_home(document.repository, self._repository), number
        holder = self._planned.setdefault(key, self._holder_of(document, number) or document.adw_id)

        return "" if holder == document.adw_id else _taken(IssueLocked(number, holder, document.repository))

    def _holder_of(self, document: WorkflowDocument, number: int) -> str:
        held = self._locks.holder(number, document.repository) if self._locks is not None else None

        return held.adw_id if held is not None else ""


def _taken(error: IssueLocked) -> str:
    return f"{error}; finish or abandon that one, then migrate again"


class TreeMigration:
    """Applies a plan in the home of *store* and *ownership*."""

    def __init__(
        self,
        *,
        store: StateStore,
        ownership: WorkflowOwnership,
        max_bytes: int = serialization.MAX_BYTES,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._max_bytes = max_bytes

    def apply_migration(self, plan: MigrationPlan) -> Iterator[ImportedFile]:
        """Apply the plan file by file and yield the result of each. The files are read again."""
        for file in plan.files:
            if not file.action.is_change:
                yield ImportedFile(file=file, is_done=not file.action.is_trouble, detail=file.detail)
                continue
            try:
                detail = self._migrate(file) if file.action is ImportAction.MIGRATE else self._import(file)
            except IssueLocked as exc:  # taken since the plan was made
                yield ImportedFile(file=file, is_done=False, detail=_taken(exc))
            except AdwError as exc:
                yield ImportedFile(file=file, is_done=False, detail=str(exc))
            else:
                yield ImportedFile(file=file, is_done=True, detail=detail)

    def _migrate(self, file: PlannedFile) -> str:
        """Write the document back as its owner; the store keeps the old file beside the new one and reports it."""
        before = _names_in(file.path.parent)
        with self._ownership.own(file.adw_id) as owned:
            owned.save(owned.document)

        kept = sorted(name for name in _names_in(file.path.parent) - before if name.endswith(".bak"))
        return "; ".join(
            (f"{file.version} -> {CURRENT_VERSION}", *(f"the old file is kept as {name}" for name in kept))
        )

    def _import(self, file: PlannedFile) -> str:
        document = _document_to_import(file.path, _read(file.path, self._max_bytes))
        origin: JsonObject = {"path": str(file.path), "version": file.version}
        events = (Event(event_type="workflow_imported", status=document.current_state, data=origin),)
        if is_terminal(document.current_state):
            # An ended workflow has no claim to its issue, so it takes no part in ownership.
            self._store.create(document, events=events)
            return f"imported as {document.current_state}"

        with self._ownership.create(document, events=events):
            return f"imported as {document.current_state}"


# --- files -----------------------------------------------------------------------------------------------------


def find_documents(root: Path, on_error: Callable[[OSError], object], state_dir: Path | None = None) -> Iterator[Path]:
    """Yield every document at or below *root*. Links to directories are skipped; unreadable ones go to *on_error*."""
    if root.is_file():
        yield root
        return
    for folder, children, names in os.walk(root, onerror=on_error):
        children[:] = [child for child in children if child not in SKIPPED_DIRECTORIES]
        above = Path(folder).parent
        if FILE_NAME in names and (above.name in HOMES_OF_DOCUMENTS or above == state_dir):
            yield Path(folder) / FILE_NAME


def _read(path: Path, max_bytes: int) -> JsonObject:
    """Return the JSON object in a file; raise StateCorrupt, UnsafePath or StateReadFailed."""
    try:
        text, _ = durable_file.read_file(str(path), max_bytes=max_bytes)
    except durable_file.TooLarge as exc:
        raise StateCorrupt(str(path), str(exc)) from exc
    except OSError as exc:
        raise StateReadFailed(str(path), exc) from exc
    if serialization.verify_checksum(text) is Seal.BROKEN:
        raise StateCorrupt(str(path), "its checksum does not match: it was changed by hand or damaged")
    try:
        return serialization.parse(text)
    except serialization.Unreadable as exc:
        raise StateCorrupt(str(path), str(exc)) from exc


def _document_to_import(path: Path, data: JsonObject) -> WorkflowDocument:
    """Return the document to import; a file that names no workflow gets the name of its directory."""
    named = data.get("adw_id") or path.parent.name
    migrated = StateMigration.migrate({**data, "adw_id": named})
    if named != path.parent.name and path.parent.parent.name in HOMES_OF_DOCUMENTS:
        raise StateInvalid(f"{path} is the document of {named!r}, but its directory is {path.parent.name!r}")
    check_adw_id(named)

    return document.parse({**migrated, "revision": 0, "fence": 0, "outbox": [], ORIGIN_KEY: str(path)})


def _newest_first(path: Path) -> tuple[float, str]:
    # Old files have no creation time. If several workflows have the same issue, the one changed last gets it.
    return -path.lstat().st_mtime, str(path)


def _closed_directory(error: OSError) -> PlannedFile:
    path = Path(os.fsdecode(error.filename or ""))
    detail = f"the directory cannot be looked into: {error.strerror or error}"

    return PlannedFile(path=path, adw_id="", version="", action=ImportAction.CORRUPT, detail=detail)


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
