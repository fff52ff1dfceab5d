"""
State files for library users: written atomically, read strictly.

`AtomicStateWriter` is the plain interface to `durable_file` and `store.serialization`: mappings in and out, without
ownership and revisions. Workflows are stored by `store.files.FileStateStore`, which writes the same format.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from adws.adw_modules import durable_file
from adws.adw_modules.durable_file import replace_file
from adws.adw_modules.errors import (
    AdwError,
    StateCorrupt,
    StateInvalid,
    StateNotFound,
    StateReadFailed,
    StateUnserialisable,
    StateWriteFailed,
    UnsafePath,
    UsageError,
)
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.state_schema import StateMigration
from adws.adw_modules.store import serialization
from adws.adw_modules.store.serialization import Seal

#: Required fields of a state file; only a file of the oldest version, which is unversioned, may lack the last.
REQUIRED_FIELDS = ("adw_id", "issue_number", "state_version")


class AtomicStateWriter:
    """Write and read one state file so that neither a crash nor a concurrent reader ever sees half of it."""

    @staticmethod
    def write(
        state_path: str | os.PathLike[str],
        state_data: Mapping[str, JsonValue],
        *,
        max_bytes: int = serialization.MAX_BYTES,
    ) -> None:
        """
        Replace the file at *state_path* durably by *state_data*, any JSON object; make missing directories (0700).

        Raises StateUnserialisable for values that JSON would change (tuples, dates, NaN, keys that are not strings) or
        if the state is too large, UnsafePath for a symbolic link or anything but a regular file, StateWriteFailed if
        the old file is intact, and DurabilityUnknown if the new one is in place but may not be on the disk.
        """
        given: object = state_data
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            raise StateUnserialisable(f"the state is a {kind}, not a mapping: give a dict with the fields of the state")
        payload = serialization.add_checksum(serialization.to_bytes(state_data))
        if len(payload) > max_bytes:
            raise StateUnserialisable(f"the state has {len(payload)} bytes, the limit is {max_bytes}: write less")
        path = os.fspath(state_path)
        parent, name = os.path.split(path)
        if name in {"", ".", ".."}:
            raise UsageError(f"{path!r} names no file: give the path of a state file")

        try:
            durable_file.make_directory(parent or ".")
            directory = durable_file.open_directory(parent or ".")
        except OSError as exc:
            raise StateWriteFailed(path, exc) from exc
        try:
            replace_file(directory, name, payload, path=path, mode=lambda: _mode_of(directory, name, path))
        finally:
            durable_file.close_quietly(directory)

    @staticmethod
    def read(state_path: str | os.PathLike[str], *, max_bytes: int = serialization.MAX_BYTES) -> JsonObject:
        """
        Return the content of the file at *state_path*, a workflow document migrated in memory to the current version.

        Any other object that `write` wrote is returned unchanged. Takes no lock and writes nothing. Raises
        StateNotFound, StateCorrupt (torn, not JSON, wrong checksum), UnsafePath, StateReadFailed, a MigrationError, or
        StateInvalid naming all required fields that a document lacks.
        """
        path = os.fspath(state_path)
        text = _read(path, max_bytes)
        checksum = serialization.verify_checksum(text)
        if checksum is Seal.BROKEN:
            raise StateCorrupt(path, "its checksum does not match, so some byte of it was changed")
        try:
            data = serialization.parse(text)
        except serialization.Unreadable as exc:
            raise StateCorrupt(path, str(exc)) from exc
        # Checked before the migration, which fills in fields and a version, which the oldest documents do not have.
        missing = [field for field in REQUIRED_FIELDS if field not in {*data, "state_version"}]
        if missing and checksum is Seal.GOOD and "state_version" not in data:
            return data  # written by `write` and not a document: those have a version
        migrated = StateMigration.migrate(data)
        if missing:
            raise StateInvalid(f"{path} lacks required fields: {', '.join(missing)}")

        return migrated


def _mode_of(directory: int, name: str, path: str) -> int:
    """Return the mode of the new file: that of the old one, which must be a regular file."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return durable_file.NEW_FILE_MODE
    if not stat.S_ISREG(info.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "not a regular file"
        raise UnsafePath(f"{path} is {what}: adw does not replace it, give the path of the file itself")

    return info.st_mode & 0o777


def _read(path: str, max_bytes: int) -> bytes:
    try:
        return durable_file.read_file(path, max_bytes=max_bytes)[0]
    except FileNotFoundError:
        raise StateNotFound(path, "check the path") from None
    except durable_file.TooLarge as exc:
        raise StateCorrupt(path, str(exc)) from exc
    except AdwError:
        raise
    except OSError as exc:
        raise StateReadFailed(path, exc) from exc
