"""
Files of workflows that are over: logs and output of attempts, and whole directories.

A directory is renamed before it is deleted: so a workflow is there as a whole or not at all, and whoever comes later
sees what was meant to go. Symbolic links are never followed.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from adws.adw_modules import attempt_files, durable_file
from adws.adw_modules.ids import FOREIGN, check_adw_id

#: Beginning of the name of a directory that is on its way out; no workflow can have such a name.
PREFIX = ".removed-"


class StateDirectory:
    """The directories below *root*; implements `interfaces_retention.OldFiles`."""

    def __init__(self, root: Path, *, log_name: str) -> None:
        self._root = root
        self._log_name = log_name

    def output_of(self, adw_id: str) -> tuple[str, ...]:
        """Return the logs and the files of attempts of a workflow, relative to its directory."""
        folder = self._folder(adw_id)
        if folder.is_symlink() or not folder.is_dir():
            return ()
        logs = [path for path in folder.glob(f"{self._log_name}*") if path.is_file() and not path.is_symlink()]

        return (*sorted(path.name for path in logs), *(file.name for file in attempt_files.list_files(folder)))

    def forget_output(self, adw_id: str) -> int:
        """Delete them, and return how many there were."""
        folder, names = self._folder(adw_id), self.output_of(adw_id)
        for name in names:
            (folder / name).unlink(missing_ok=True)
        for place in {(folder / name).parent for name in names} - {folder}:
            with suppress(OSError):  # something else is in it
                place.rmdir()
                place.parent.rmdir()

        return len(names)

    def set_aside(self, adw_id: str) -> None:
        """Take the directory of a workflow out of the way, in one step."""
        with suppress(FileNotFoundError):  # one that lives in the database may have none
            self._folder(adw_id).rename(self._aside(adw_id))
            durable_file.sync_directory_at(str(self._root))

    def put_back(self, adw_id: str) -> None:
        """Undo that."""
        with suppress(FileNotFoundError):
            self._aside(adw_id).rename(self._folder(adw_id))
            durable_file.sync_directory_at(str(self._root))

    def is_there(self, adw_id: str) -> bool:
        """Say whether a workflow has a directory."""
        return self._folder(adw_id).exists()

    def set_aside_ids(self) -> tuple[str, ...]:
        """Return the workflows whose directories are set aside."""
        names = sorted(path.name.removeprefix(PREFIX) for path in self._root.glob(f"{PREFIX}*") if path.is_dir())

        return tuple(name for name in names if FOREIGN.fullmatch(name))

    def remove_set_aside(self, adw_id: str) -> None:
        """Delete what was set aside."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._aside(adw_id))

    def _folder(self, adw_id: str) -> Path:
        return self._root / check_adw_id(adw_id)

    def _aside(self, adw_id: str) -> Path:
        return self._root / f"{PREFIX}{check_adw_id(adw_id)}"
