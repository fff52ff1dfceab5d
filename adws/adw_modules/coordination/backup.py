"""
Writing a backup: every document as a whole revision, the database, and a manifest.

The database is copied first, then the documents, then the events: so each document is as new as its copy or newer, and
an event is in its document's outbox or among the events. Events of revisions that came after the document was read are
left out. Nothing is stopped or locked meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules import state_text, timestamps
from adws.adw_modules.backup_archive import DATABASE, DOCUMENTS, EVENTS, ArchiveWriter, checked_name, write_archive
from adws.adw_modules.errors import BackupError
from adws.adw_modules.interfaces import Clock, StateStore
from adws.adw_modules.interfaces_rebuild import Reconstruction
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.state_folders import StateFolders
from adws.adw_modules.state_reading import FILE_NAME
from adws.adw_modules.state_schema import CURRENT_VERSION

#: What a server's database holds besides documents and events is not in the archive.
SERVER_NOTE = "the archive holds documents and events; back up the rest of the database with the server's own pg_dump"


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupReport:
    """What was backed up."""

    path: Path
    workflows: int
    files: int
    events: int
    bytes: int
    has_database: bool
    left_out: tuple[str, ...] = ()  #: files whose names a backup does not take
    note: str = ""

    def to_json(self) -> JsonObject:
        """Return the report as plain data."""
        return {
            "path": str(self.path),
            "workflows": self.workflows,
            "files": self.files,
            "events": self.events,
            "bytes": self.bytes,
            "has_database": self.has_database,
            "left_out": list(self.left_out),
            "note": self.note,
        }


def archive_path(wanted: Path | None, *, here: Path, clock: Clock) -> Path:
    """Return the file to write: *wanted*, or a name made of the moment in that directory or *here*."""
    name = f"adw-backup-{clock.now():%Y%m%dT%H%M%SZ}.tar.gz"
    path = here / name if wanted is None else here / wanted
    if path.is_dir():
        path /= name
    if not path.parent.is_dir():
        raise BackupError(f"there is no directory {path.parent}: make it first")
    if path.exists():
        raise BackupError(f"{path} exists already: choose another name")

    return path


def make_backup(
    path: Path,
    *,
    store: StateStore,
    store_kind: str,
    folders: StateFolders,
    reconstruction: Reconstruction,
    clock: Clock,
    adw_version: str,
) -> BackupReport:
    """Write the archive *path*; *store_kind* says whether documents are "files" or rows of the "database"."""
    salvage = reconstruction.salvage()
    if salvage.problems:
        raise BackupError(f"the database is damaged ({salvage.problems[0]}): run adw db rebuild first")
    left_out: list[str] = []
    with write_archive(path, modified_at=int(clock.now().timestamp())) as archive:
        has_database = not salvage.is_missing and _add_database(archive, path, reconstruction)
        revisions = {
            adw_id: _add_documents(archive, adw_id, _documents(adw_id, store, store_kind, folders), left_out)
            for adw_id in sorted(store.ids())
        }
        events = 0 if salvage.is_missing else _add_events(archive, path, reconstruction, revisions)
        made: JsonObject = {"adw_version": adw_version, "created_at": timestamps.to_text(clock.now())}
        kinds: JsonObject = {"document_version": CURRENT_VERSION, "store": store_kind}
        archive.finish({**made, **kinds, "workflows": len(revisions), "events": events})

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


def _documents(adw_id: str, store: StateStore, store_kind: str, folders: StateFolders) -> Iterator[tuple[str, bytes]]:
    if store_kind == "database":
        yield FILE_NAME, state_text.seal(state_text.to_bytes(store.peek(adw_id).data))
        return
    for name in folders.files(adw_id):
        payload = folders.read(adw_id, name)
        if payload is not None:
            yield name, payload


def _add_documents(
    archive: ArchiveWriter, adw_id: str, documents: Iterable[tuple[str, bytes]], left_out: list[str]
) -> int | None:
    """Add the files of a workflow, and return the revision of its document, None when that is not known."""
    revision = None
    for name, payload in documents:
        _add(archive, f"{DOCUMENTS}/{adw_id}/{name}", payload, left_out)
        if name == FILE_NAME:
            revision = _revision(payload)

    return revision


def _add(archive: ArchiveWriter, name: str, payload: bytes, left_out: list[str]) -> None:
    try:
        archive.add(checked_name(Path(name), name), payload)
    except BackupError:
        left_out.append(name)


def _add_database(archive: ArchiveWriter, path: Path, reconstruction: Reconstruction) -> bool:
    copy = path.with_name(f".{path.name}.db")
    copy.unlink(missing_ok=True)  # of a backup that was killed
    try:
        if not reconstruction.copy_to(str(copy)):
            return False
        archive.add_file(DATABASE, copy)
    finally:
        copy.unlink(missing_ok=True)

    return True


def _revision(payload: bytes) -> int | None:
    """Return the revision of a document, None when it cannot be read: the backup keeps it as it is."""
    try:
        data = json.loads(payload)
    except ValueError:
        return None
    revision = data.get("revision") if isinstance(data, dict) else None

    return revision if isinstance(revision, int) else None


def _add_events(
    archive: ArchiveWriter, path: Path, reconstruction: Reconstruction, revisions: Mapping[str, int | None]
) -> int:
    """Add every event but those that are newer than the document in the archive."""
    lines = path.with_name(f".{path.name}.events")
    count = 0
    try:
        with lines.open("wb") as stream:
            for event in reconstruction.all_events():
                newest = revisions.get(event.adw_id)
                if newest is not None and event.revision > newest:
                    continue
                stream.write(json.dumps(event.to_json(), ensure_ascii=False).encode() + b"\n")
                count += 1
        archive.add_file(EVENTS, lines)
    finally:
        lines.unlink(missing_ok=True)

    return count
