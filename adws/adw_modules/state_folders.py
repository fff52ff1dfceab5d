"""
Workflow directories as a whole: which files are in them, and putting files back.

Lock files and the temps of writers are never part of it: a copied lock locks nothing, and a copied temp is half a
write. Symbolic links are neither followed nor copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.errors import BackupError, StateWriteFailed
from adws.adw_modules.fenced_write import TEMP_PREFIX
from adws.adw_modules.ids import FOREIGN, check_adw_id
from adws.adw_modules.local_lock import LOCK_NAME

#: Largest file that is copied; documents have a smaller limit of their own.
MAX_FILE_BYTES = 1 << 30


class StateFolders:
    """The directories below *root*, one for each workflow."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def highest_fence(self, adw_id: str) -> int:
        """Return the highest fence of any temp or tombstone, 0 when there is none."""
        try:
            names = [path.name for path in (self.root / check_adw_id(adw_id)).iterdir()]
        except FileNotFoundError:
            return 0
        endings = (name.removeprefix(f"{TEMP_PREFIX}.") for name in names if name.startswith(f"{TEMP_PREFIX}."))

        return max((int(ending) for ending in endings if ending.isascii() and ending.isdigit()), default=0)

    def links(self) -> tuple[str, ...]:
        """Return the workflows in whose place a symbolic link stands: adw does not follow it, so it sees nothing."""
        try:
            with os.scandir(self.root) as entries:
                return tuple(sorted(e.name for e in entries if e.is_symlink() and FOREIGN.fullmatch(e.name)))
        except FileNotFoundError:
            return ()

    def files(self, adw_id: str) -> Iterator[str]:
        """Yield the name of every regular file, relative to the workflow's directory, in order."""
        folder = self.root / check_adw_id(adw_id)
        for place, directories, names in os.walk(folder, followlinks=False):
            directories[:] = sorted(name for name in directories if not name.startswith(TEMP_PREFIX))
            for name in sorted(names):
                path = Path(place, name)
                if name != LOCK_NAME and not name.startswith(TEMP_PREFIX) and path.is_file() and not path.is_symlink():
                    yield path.relative_to(folder).as_posix()

    def read(self, adw_id: str, name: str) -> bytes | None:
        """Return the bytes of a file, None when it is gone; what a rename puts there meanwhile is whole too."""
        path = self.root / check_adw_id(adw_id) / name
        try:
            return durable_file.read_file(str(path), max_bytes=MAX_FILE_BYTES)[0]
        except FileNotFoundError:
            return None
        except (OSError, durable_file.TooLarge) as exc:
            raise BackupError(f"cannot read {path}: {exc}; move it away or make it readable") from exc

    def put(self, adw_id: str, name: str, payload: bytes) -> None:
        """Replace the file *name* durably by *payload*, readable by its owner alone; missing directories are made."""
        path = self.root / check_adw_id(adw_id) / name
        try:
            durable_file.make_directory(str(path.parent))
            directory = durable_file.open_directory(str(path.parent), follow=False)
        except OSError as exc:
            raise StateWriteFailed(str(path), exc) from exc
        try:
            _replace(directory, path.name, payload)
        except OSError as exc:
            raise StateWriteFailed(str(path), exc) from exc
        finally:
            durable_file.close_quietly(directory)


def _replace(directory: int, name: str, payload: bytes) -> None:
    temp = f".{name}.restoring"
    fd = durable_file.claim_temp(directory, temp, wait=True)
    try:
        durable_file.fill(fd, payload, mode=durable_file.NEW_FILE_MODE)
        os.rename(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        durable_file.discard_temp(directory, temp, fd)
        raise
    durable_file.settle(directory, fd)
