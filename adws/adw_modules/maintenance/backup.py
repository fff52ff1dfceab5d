"""
Backing a home up into one archive, and restoring it.

An archive is a .tar.gz whose last member is a manifest with the hash of every other member. It appears under its name
only when it is complete and on the disk. Reading writes only below the given directory: a member is copied under a
checked name, never unpacked by the archive's own paths, links or modes.

A restore does not touch the home before every file of the archive has matched its hash in the manifest. Replaced files
are kept aside. A workflow never goes back to a lower revision or fence: its old document becomes its newest revision.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from adws.adw_modules import document, durable_file, timestamps
from adws.adw_modules.errors import (
    AdwError,
    BackupError,
    MigrationError,
    NewerVersion,
    StateError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.identifiers import FOREIGN, JsonObject
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.maintenance.rebuild import (
    LockConflict,
    NewContents,
    Salvage,
    hold_file_locks,
    plan_rebuild,
    rebuild,
    refuse_while_owners_live,
    set_old_aside,
)
from adws.adw_modules.state_schema import CURRENT_VERSION, StateMigration
from adws.adw_modules.store import files, serialization
from adws.adw_modules.store.files import FILE_NAME, Kind

if TYPE_CHECKING:
    from adws.app import Home

MANIFEST = "manifest.json"
DATABASE = "adw.db"
EVENTS = "events.jsonl"
DOCUMENTS = "state"
#: Version of the archive format.
FORMAT = 1

#: One part of a path: no separators, no control characters, not "." or "..".
_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._:+ -]{1,255}")
_MAX_MANIFEST_BYTES = 256 * 1024 * 1024
_CHUNK = 1 << 20


class ArchiveWriter:
    """Adds files to an archive that does not have its final name yet."""

    def __init__(self, archive: tarfile.TarFile, modified_at: int) -> None:
        self._archive = archive
        self._modified_at = modified_at
        self.files: JsonObject = {}

    def add(self, name: str, source: io.BufferedIOBase) -> None:
        """Add the whole content of *source*, which nobody may change meanwhile, as the file *name*."""
        digest, size = hashlib.file_digest(source, "sha256").hexdigest(), source.seek(0, os.SEEK_END)
        source.seek(0)
        self._add(name, source, size)
        self.files[name] = {"sha256": digest, "size": size}

    def finish(self, facts: JsonObject) -> None:
        """Add the manifest: *facts* and the hash of every file."""
        manifest: JsonObject = {"format": FORMAT, **facts, "files": self.files}
        payload = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False).encode()
        self._add(MANIFEST, io.BytesIO(payload), len(payload))

    def _add(self, name: str, source: io.BufferedIOBase, size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o600, self._modified_at
        self._archive.addfile(member, source)


@contextmanager
def write_archive(path: Path, *, modified_at: int) -> Iterator[ArchiveWriter]:
    """Make the archive *path*, whole or not at all; raise BackupError if it exists or cannot be written."""
    temp = path.with_name(f".{path.name}.part")
    try:
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise BackupError(f"cannot write {temp}: {exc.strerror}; choose a directory that may be written") from exc
    try:
        with os.fdopen(fd, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
                yield ArchiveWriter(archive, modified_at)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(temp, path)  # a rename would overwrite
        durable_file.sync_directory_at(str(path.parent))
    except FileExistsError:
        raise BackupError(f"{path} exists already: choose another name") from None
    except OSError as exc:
        raise BackupError(f"cannot write the backup {path}: {exc.strerror or exc}") from exc
    finally:
        temp.unlink(missing_ok=True)


def unpack(path: Path, into: Path) -> JsonObject:
    """Copy every file of the archive into *into* and return the manifest; raise BackupError unless it is whole."""
    digests: dict[str, str] = {}
    manifest: JsonObject | None = None
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or manifest is not None or member.name in digests:
                    raise BackupError(f"{path} is not a backup of adw: {member.name!r} does not belong there")
                if member.name == MANIFEST:
                    manifest = _manifest(path, source)
                else:
                    digests[member.name] = _copy(source, into / checked_name(path, member.name))
            while stream.read(_CHUNK):  # up to the checksum at the very end
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError) as exc:
        raise BackupError(f"cannot read the backup {path}: {exc}; it may be cut off or damaged") from exc
    if manifest is None:
        raise BackupError(f"{path} has no manifest: it is cut off, or not a backup of adw")
    files = manifest["files"]
    listed = files.items() if isinstance(files, dict) else ()
    expected = {name: entry.get("sha256") for name, entry in listed if isinstance(entry, dict)}
    wrong = sorted(name for name in expected.keys() | digests.keys() if expected.get(name) != digests.get(name))
    if wrong:
        raise BackupError(f"{path} is damaged: {', '.join(wrong[:5])} is missing or not what the manifest says")

    return manifest


def checked_name(path: Path, name: str) -> str:
    """Return *name* if a backup may contain such a file; raise BackupError if not."""
    parts = name.split("/")
    is_safe = all(_PART.fullmatch(part) for part in parts)
    is_ours = name in {DATABASE, EVENTS} or (len(parts) > 2 and parts[0] == DOCUMENTS and FOREIGN.fullmatch(parts[1]))
    if not is_safe or not is_ours:
        raise BackupError(f"{path} is not a backup of adw: it holds a file {name!r}")

    return name


def _copy(source: IO[bytes], target: Path) -> str:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as stream:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            stream.write(chunk)

    return digest.hexdigest()


def _manifest(path: Path, source: IO[bytes]) -> JsonObject:
    text = source.read(_MAX_MANIFEST_BYTES + 1)
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        manifest = None
    if len(text) > _MAX_MANIFEST_BYTES or not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise BackupError(f"the manifest of {path} cannot be read: the backup is damaged")
    if manifest.get("format") != FORMAT:
        raise BackupError(
            f"{path} has format {manifest.get('format')!r}, this adw reads format {FORMAT}: upgrade adw to restore it"
        )

    return manifest


# --- backup ----------------------------------------------------------------------------------------------------


#: The archive lacks what a server's database has besides documents and events.
SERVER_NOTE = "the archive holds documents and events; back up the rest of the database with the server's own pg_dump"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupReport:
    """The result of a backup."""

    path: Path
    workflows: int
    files: int
    events: int
    bytes: int
    has_database: bool
    left_out: tuple[str, ...] = ()  #: files with names that a backup does not accept
    note: str = ""

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {**asdict(self), "path": str(self.path), "left_out": list(self.left_out)}


def archive_path(wanted: Path | None, *, here: Path, clock: Clock) -> Path:
    """Return the file to write: *wanted*, or a name with the time in that directory or in *here*."""
    name = f"adw-backup-{clock.now():%Y%m%dT%H%M%SZ}.tar.gz"
    path = here / name if wanted is None else here / wanted
    if path.is_dir():
        path /= name
    if not path.parent.is_dir():
        raise BackupError(f"there is no directory {path.parent}: make it first")
    if path.exists():
        raise BackupError(f"{path} exists already: choose another name")

    return path


def make_backup(path: Path, home: Home, *, adw_version: str) -> BackupReport:
    """
    Write the content of *home* to the archive *path*; nothing is stopped or locked meanwhile.

    The database is copied first, then the documents, then the events: so each document is as new as its copy or newer,
    and an event is in its document's outbox or among the events. Events of revisions that came after the document was
    read are left out.
    """
    reconstruction, now = home.reconstruction, home.clock.now()
    salvage = reconstruction.salvage()
    if salvage.problems:
        raise BackupError(f"the database is damaged ({salvage.problems[0]}): run adw db rebuild first")
    left_out: list[str] = []
    revisions: dict[str, int | None] = {}
    with write_archive(path, modified_at=int(now.timestamp())) as archive:
        copy, lines = path.with_name(f".{path.name}.db"), path.with_name(f".{path.name}.events")
        copy.unlink(missing_ok=True)  # left by a backup that was killed
        try:
            has_database = not salvage.is_missing and reconstruction.copy_to(str(copy))
            if has_database:
                with copy.open("rb") as source:
                    archive.add(DATABASE, source)
        finally:
            copy.unlink(missing_ok=True)
        for adw_id in sorted(home.store.ids()):
            revisions[adw_id] = None
            for name, payload in _documents(home, adw_id):
                member = f"{DOCUMENTS}/{adw_id}/{name}"
                try:
                    archive.add(checked_name(path, member), io.BytesIO(payload))
                except BackupError:
                    left_out.append(member)
                if name == FILE_NAME:
                    with suppress(ValueError):  # an unreadable document is backed up as it is, without a revision
                        data = json.loads(payload)
                        revision = data.get("revision") if isinstance(data, dict) else None
                        revisions[adw_id] = revision if isinstance(revision, int) else None
        events = 0
        try:
            with lines.open("w+b") as stream:
                for event in () if salvage.is_missing else reconstruction.all_events():
                    newest = revisions.get(event.adw_id)
                    if newest is None or event.revision <= newest:
                        stream.write(json.dumps(event.to_json(), ensure_ascii=False).encode() + b"\n")
                        events += 1
                stream.seek(0)
                if not salvage.is_missing:
                    archive.add(EVENTS, stream)
        finally:
            lines.unlink(missing_ok=True)
        archive.finish(
            {
                "adw_version": adw_version,
                "created_at": timestamps.to_text(home.clock.now()),
                "document_version": CURRENT_VERSION,
                "store": home.settings.store,
                "workflows": len(revisions),
                "events": events,
            }
        )

    return BackupReport(
        path=path,
        workflows=len(revisions),
        files=len(archive.files),
        events=events,
        bytes=path.stat().st_size,
        has_database=has_database,
        left_out=tuple(left_out),
        note="" if has_database or salvage.is_missing else SERVER_NOTE,
    )


def _documents(home: Home, adw_id: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a workflow; only the document, if that is in the database."""
    if home.settings.store == "database":
        yield FILE_NAME, serialization.add_checksum(home.store.load(adw_id).document.to_bytes())
        return
    for name in home.folders.files(adw_id):
        payload = home.folders.read(adw_id, name)
        if payload is not None:
            yield name, payload


# --- restore ---------------------------------------------------------------------------------------------------


logger = logging.getLogger("adw.restore")


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreReport:
    """The result of a restore."""

    workflows: tuple[str, ...]
    replaced: tuple[str, ...]  #: of these, those that existed before
    events: int  #: that the home did not have
    has_database: bool  #: whether the database of the backup is now in use
    conflicts: tuple[LockConflict, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)  #: workflow -> the problem with its document
    untold: tuple[str, ...] = ()  #: restored, but an owner took it before the event was stored

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        facts: JsonObject = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }
        del facts["conflicts"]

        return {**facts, "lock_conflicts": [conflict.to_json() for conflict in self.conflicts]}


def restore(path: Path, home: Home, *, force: bool = False) -> RestoreReport:
    """Restore the backup *path*; raise BackupError or OwnershipError, and then the home is unchanged."""
    if not path.is_file():
        raise BackupError(f"there is no backup {path}")
    with _staging(home) as staging:
        manifest = unpack(path, staging)
        version = str(manifest.get("document_version"))
        try:
            StateMigration.path(version, CURRENT_VERSION)
        except MigrationError as exc:
            raise BackupError(
                f"{path} has documents of version {version}, this adw knows up to {CURRENT_VERSION}: upgrade adw"
            ) from exc
        documents, unreadable = _read(staging)
        salvage = home.reconstruction.salvage()
        present = _present(home, salvage)
        replaced = tuple(sorted(documents.keys() & present.keys()))
        if replaced and not force:
            raise BackupError(
                f"{', '.join(replaced[:5])}{' and more' if len(replaced) > 5 else ''} exist already: "
                "add --force to replace them by what the backup has"
            )
        refuse_while_owners_live(home, present, salvage.workflows, hint="stop them first")
        _takes_database(home, staging, salvage)  # raises for a bad one before anything, such as lock files, is written
        with hold_file_locks(home, present.keys() | documents.keys()):
            # Checked again: an owner may have come and gone before we held the locks.
            salvage = home.reconstruction.salvage()
            refuse_while_owners_live(home, (), salvage.workflows, hint="stop them first")
            report = _put_in_place(home, staging, documents, salvage, _present(home, salvage))
        untold = _tell(home, path, manifest, documents)

        return replace(report, replaced=replaced, unreadable=unreadable, untold=untold)


@contextmanager
def _staging(home: Home) -> Iterator[Path]:
    """Yield an empty directory on the disk of the home, with a name that no workflow can have."""
    staging = home.folders.root / f".restore-{home.clock.token()[:12]}"
    try:
        staging.mkdir(mode=0o700, parents=True)
    except OSError as exc:
        raise BackupError(f"cannot make {staging}: {exc.strerror}") from exc
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _read(staging: Path) -> tuple[dict[str, JsonObject], dict[str, str]]:
    """Return the backup's documents by workflow, in the current version, and why others cannot be read."""
    documents: dict[str, JsonObject] = {}
    unreadable: dict[str, str] = {}
    for folder in sorted((staging / DOCUMENTS).glob("*")):
        adw_id = folder.name
        directory = durable_file.open_directory(str(folder), follow=False)
        try:  # by the rules of the store that will read it after the restore
            copy = files.examine(directory, str(folder), FILE_NAME, adw_id, max_bytes=serialization.MAX_BYTES)
        except NewerVersion as exc:
            raise BackupError(f"workflow {adw_id} of the backup: {exc}") from exc
        except StateError as exc:
            unreadable[adw_id] = str(exc)
            continue
        finally:
            durable_file.close_quietly(directory)
        if copy.data is not None:
            documents[adw_id] = copy.data
        elif copy.kind is Kind.MISSING:
            unreadable[adw_id] = "the backup has files of it, but no document"
        else:
            is_corrupt = copy.kind is Kind.CORRUPT
            unreadable[adw_id] = f"its document is corrupt: {copy.reason}" if is_corrupt else copy.reason

    return documents, unreadable


# --- putting files and rows in place ---------------------------------------------------------------------------


def _present(home: Home, salvage: Salvage) -> dict[str, int]:
    """Return every workflow of the home, with its highest revision seen."""
    known = {workflow.adw_id: workflow.revision for workflow in salvage.workflows}
    if home.settings.store == "database":
        return {adw_id: revision for adw_id, revision in known.items() if revision > 0}
    present = {}
    for adw_id in home.store.ids():
        present[adw_id] = known.get(adw_id, 0)
        with suppress(AdwError):  # unreadable documents have no revision
            present[adw_id] = max(present[adw_id], home.store.load(adw_id).document.revision)

    return present


def _takes_database(home: Home, staging: Path, salvage: Salvage) -> bool:
    """Return whether the home, without rows of its own, gets the whole database: also what is in no document."""
    is_empty = salvage.is_missing or bool(salvage.problems) or not salvage.workflows

    return is_empty and home.reconstruction.may_install(str(staging / DATABASE))


def _put_in_place(
    home: Home, staging: Path, documents: dict[str, JsonObject], salvage: Salvage, present: Mapping[str, int]
) -> RestoreReport:
    has_database = _takes_database(home, staging, salvage)
    raised = dict(documents)
    for adw_id, data in documents.items():
        # Never below a revision seen before: events are identified by it.
        revision = data.get("revision")
        if present.get(adw_id, 0) > (revision if isinstance(revision, int) else 0):
            raised[adw_id] = {**data, "revision": present[adw_id]}
    if home.settings.store == "files":
        folders = home.folders
        for adw_id, data in raised.items():
            source, old = staging / DOCUMENTS / adw_id, folders.read(adw_id, FILE_NAME)
            if old is not None:
                folders.put(adw_id, f"{FILE_NAME}.replaced-{home.clock.now():%Y%m%dT%H%M%SZ}", old)
            for file in sorted(source.rglob("*")):
                if file.is_file() and file != source / FILE_NAME:
                    folders.put(adw_id, file.relative_to(source).as_posix(), file.read_bytes())
            # Last: from here on it is the workflow of the backup.
            text = (source / FILE_NAME).read_bytes()
            if data is not documents[adw_id]:
                text = serialization.add_checksum(serialization.to_bytes(data))
            folders.put(adw_id, FILE_NAME, text)
    if has_database:
        home.reconstruction.install(str(staging / DATABASE))
    else:
        set_old_aside(home.reconstruction, salvage)
    brought = tuple(_events(staging, documents))
    stored = home.reconstruction.put(NewContents(events=brought))
    if home.settings.store == "files":
        # Rows are replaced, because the backed up home may have had its documents in the database.
        conflicts = rebuild(home, force=True, replace_rows=True).conflicts
    else:
        conflicts = _put_rows(home, raised)

    return RestoreReport(
        workflows=tuple(sorted(documents)),
        replaced=(),
        events=len(brought) if has_database else stored,  # the database of the backup had them already
        has_database=has_database,
        conflicts=conflicts,
    )


def _put_rows(home: Home, documents: dict[str, JsonObject]) -> tuple[LockConflict, ...]:
    restored = [document.parse(data) for data in documents.values()]
    others = [home.load(adw_id) for adw_id in home.store.ids() if adw_id not in documents]
    repository = home.settings.repository or ""
    salvage = home.reconstruction.salvage()
    contents, conflicts = plan_rebuild([*restored, *others], salvage, repository=repository, maker=home.run_factory)
    rows = tuple(row for row in contents.rows if row.adw_id in documents)
    runs = tuple(run for run in contents.runs if run.adw_id in documents)
    home.reconstruction.put(NewContents(home="database", rows=rows, locks=contents.locks, runs=runs))

    return conflicts


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
    """Store an event in each restored workflow; return those that an owner took first, which are restored too."""
    untold: list[str] = []
    for adw_id, data in sorted(documents.items()):
        restored = Event(
            event_type="backup_restored",
            data={"backup": path.name, "written_at": manifest.get("created_at"), "revision": data.get("revision")},
        )
        try:
            with home.ownership.own(adw_id) as owned:
                owned.save(owned.document, events=(restored,))
        except WorkflowBusy:
            logger.warning("Restored, but not told of", extra={"action": "restore_untold", "workflow": adw_id})
            untold.append(adw_id)

    return tuple(untold)
