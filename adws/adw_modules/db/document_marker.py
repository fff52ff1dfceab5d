"""
A file beside a SQLite database that says: documents live in there.

Whoever lost such a database lost its documents, and must not go on with an empty one in silence. The file is made after
the database and before its first document, and stays: so one without the other means that the database is gone.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.errors import DatabaseUnavailable

_TEXT = """\
The SQLite database beside this file holds workflow documents. While this file is there, adw makes no empty database in
the place of a lost one. Bring a backup back with adw restore, or delete this file to start afresh.
"""


def marker_of(database: Path) -> Path:
    """Return the path of the file that goes with *database*."""
    return database.with_name(f"{database.name}.has-documents")


def leave(database: Path) -> None:
    """
    Make the file, durably, unless it is there; raise DatabaseUnavailable when that cannot be done.

    Where this process may not write it makes no documents either, and only looks: then the file is not needed.
    """
    path = marker_of(database)
    if path.exists():
        return
    try:
        with suppress(FileExistsError):  # another process was faster
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as stream:
                stream.write(_TEXT)
        durable_file.sync_directory_at(str(path.parent))
    except OSError as exc:
        if exc.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            return
        raise DatabaseUnavailable(
            f"cannot make {path}: {exc.strerror or exc}; look at the directory and the disk of the database"
        ) from exc
