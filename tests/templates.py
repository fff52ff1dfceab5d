"""
What takes long to make is made once for each test process, and copied for each test.

A database gets its schema by libraries that take half a second to load: a command that finds the schema there does
not load them. That a home without a database gets one is tested where the homes are left empty.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from adws.adw_modules.db.opening import open_database
from adws.testing import FakeClock


@functools.cache
def _database_file() -> bytes:
    """The bytes of a SQLite database that has the schema and no rows."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "adw.db"
        open_database(f"sqlite:///{path}", clock=FakeClock()).close()

        return path.read_bytes()


def put_database(path: Path) -> None:
    """Write a SQLite database that has the schema and no rows to *path*, which is not there yet."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(_database_file())


def prepare_home(home: Path) -> None:
    """Give *home* the database that the first command would make."""
    put_database(home / "state" / "adw.db")


def copy_repositories(template: Path, place: Path, make: Callable[[Path], object]) -> None:
    """
    Fill *place* with what *make* makes; it is asked once, and what it made is kept at *template*.

    Remotes are copied with what they are the remotes of, and are found in the copy.
    """
    draft = template.with_name(f"{template.name}.draft")
    if not template.exists():
        shutil.rmtree(draft, ignore_errors=True)  # of a test that was ended in the middle
        draft.mkdir()
        make(draft)
        for sample in draft.glob("**/hooks/*.sample"):
            sample.unlink()
        draft.rename(template)
    shutil.copytree(template, place, symlinks=True, dirs_exist_ok=True)
    for config in place.glob("**/.git/config"):
        config.write_text(config.read_text().replace(str(draft), str(place)))
        # The index knows files by inode and time, and these are new.
        subprocess.run(["git", "status"], cwd=config.parents[1], check=True, capture_output=True)
