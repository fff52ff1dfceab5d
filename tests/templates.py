"""
What takes long to make is made once for each test process, and copied for each test.

A database gets its schema by libraries that take half a second to load: a command that finds the schema there does
not load them. That a home without a database gets one is tested where the homes are left empty.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from adws.testing.temporary_home import put_database


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
