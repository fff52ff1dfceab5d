"""
A real home for tests: unsynced SQLite in a temporary directory, with a clock that the test controls.

It costs a few milliseconds: the schema is made once per process and copied.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import weakref
from pathlib import Path

from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.store.database import marker_of
from adws.app import Home
from adws.config import load as config
from adws.testing.clock import FakeClock

#: Types of setting values; tuples are joined with commas, as in a variable.
SettingValue = str | int | float | Path | tuple[str, ...] | None


def home(path: Path | None = None, *, clock: Clock | None = None, **settings: SettingValue) -> Home:
    """
    Return a home in *path*, or in a temporary directory that is removed when the home is closed; use it with `with`.

    *settings* are settings of `adw config`, by name: `home(repository="acme/widget", max_attempts=2)`. An `adw.toml` in
    *path* applies, environment variables do not. Documents are in the database unless `store="files"` is given, and
    commands run without a sandbox unless `sandbox_mode` is given. The clock is a FakeClock unless *clock* is given.
    Parts are replaced by assignment before their first use: `home.forge = MemoryForge()`.
    """
    place = Path(tempfile.mkdtemp(prefix="adw-home-")).resolve() if path is None else path.resolve()
    given = {"store": "database", **settings}
    overrides = {name: _written(value) for name, value in given.items() if value is not None}
    loaded = config.load(env={"ADW_HOME": str(place), "ADW_SANDBOX_MODE": "off"}, cwd=place, overrides=overrides)
    file = loaded.database_file
    if file is not None and not file.exists():
        put_database(file)
        if loaded.store == "database":
            marker_of(file).touch()  # else the home makes it, with a sync
    made = _TemporaryHome(loaded, clock=clock or FakeClock(), role="library")
    if path is None:
        made.remove_directory = weakref.finalize(made, shutil.rmtree, place, ignore_errors=True)

    return made


class _TemporaryHome(Home):
    """A home with an unsynced database, whose directory may be removed with it."""

    is_synced = False
    remove_directory: weakref.finalize[..., _TemporaryHome] | None = None

    def close(self) -> None:
        super().close()
        if self.remove_directory is not None:
            self.remove_directory()


def put_database(path: Path) -> None:
    """Write a SQLite database with the schema and no rows to *path*, which must not exist."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(_empty_database())


@functools.cache
def _empty_database() -> bytes:
    """Return a SQLite database with the schema and no rows."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "adw.db"
        open_database(f"sqlite:///{path}", clock=FakeClock()).close()

        return path.read_bytes()


def _written(value: SettingValue) -> str:
    """Return *value* as a user would write it in a variable."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)

    return str(value)
