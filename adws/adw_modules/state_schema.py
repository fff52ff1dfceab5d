"""
Versions of a workflow's document, and the migration of any old one to the current one.

Pure and free of pydantic, so that viewers can read old files. `migrate` runs the shortest chain of registered steps,
never changes its argument, and reports which step failed.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from adws.adw_modules.errors import MigrationFailed, NewerVersion, NoMigrationPath, StateInvalid, UsageError
from adws.adw_modules.identifiers import JsonObject, JsonValue
from adws.adw_modules.state_migrations import FIELDS_V2, v1_to_v2, v2_to_v3

Migration: TypeAlias = Callable[[JsonObject], JsonObject]
Step: TypeAlias = tuple[str, str]

#: Version of the schema in `document.py`, the only one ever written.
CURRENT_VERSION = "3.0"
#: Version of a document that names none.
UNVERSIONED = "1.0"

_VERSION = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?")


class StateSchema:
    """The readable versions and the one that is written."""

    CURRENT_VERSION = CURRENT_VERSION

    @staticmethod
    def get_schema_v2() -> dict[str, str]:
        """Return the fields of version 2.0 with their types; `| None` marks those that may be null."""
        return dict(FIELDS_V2)

    @staticmethod
    def versions() -> tuple[str, ...]:
        """Return every version that can be read, oldest first."""
        result = {version for step in StateMigration.registered() for version in step} | {CURRENT_VERSION}

        return tuple(sorted(result, key=_rank))


def normalise_version(value: JsonValue) -> str:
    """Return "2.0" for 2, 2.0, "2" and "2.0"; raise NoMigrationPath if *value* is not a version."""
    match = None if isinstance(value, bool) else _VERSION.fullmatch(str(value).strip())
    if match is None:
        raise NoMigrationPath(f"{value!r} is not a schema version: one looks like {CURRENT_VERSION!r}")

    return f"{int(match[1])}.{int(match[2] or 0)}"


def version_of(data: Mapping[str, JsonValue]) -> str:
    """Return the version of a document; without one it is the oldest, whose files never have a version."""
    result = data.get("state_version")

    return UNVERSIONED if result is None else normalise_version(result)


def backup_name(file_name: str, version: str, number: int = 1) -> str:
    """
    Return the name of the backup beside a file that is upgraded from *version*.

    A backup is never overwritten: if the name is taken by different bytes, use the next *number*.
    """
    counted = "" if number == 1 else f".{number}"

    return f"{file_name}.v{normalise_version(version)}{counted}.bak"


def _rank(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class MigrationRegistry:
    """
    Migration steps between versions, and the migration along them.

    `StateMigration` is the registry that documents are loaded with. Make another one, or a `copy()`, to try steps out
    without registering them there.
    """

    def __init__(self, current_version: str = CURRENT_VERSION) -> None:
        self.current_version = normalise_version(current_version)
        self._steps: dict[Step, Migration] = {}

    @property
    def MIGRATIONS(self) -> Mapping[str, Migration]:  # noqa: N802 - the public name of this table
        """The steps as a read-only mapping, with keys such as `1.0->2.0`."""
        return MappingProxyType({f"{start}->{end}": step for (start, end), step in self._steps.items()})

    def register_migration(self, from_version: str, to_version: str) -> Callable[[Migration], Migration]:
        """Return a decorator that adds a step; it must lead to a higher version, and each pair has only one step."""
        start, end = normalise_version(from_version), normalise_version(to_version)
        if _rank(start) >= _rank(end):
            raise UsageError(f"a migration leads to a higher version, but {start} -> {end} does not")

        def register(migration: Migration) -> Migration:
            if (start, end) in self._steps:
                raise UsageError(f"a migration {start} -> {end} is registered already: each step has one")
            self._steps[start, end] = migration
            return migration

        return register

    def registered(self) -> tuple[Step, ...]:
        """Return all steps, lowest first."""
        return tuple(sorted(self._steps, key=lambda step: (_rank(step[0]), _rank(step[1]))))

    def path(self, from_version: str, to_version: str) -> list[Step]:
        """Return the shortest chain of steps between two versions; raise NoMigrationPath."""
        start, end = normalise_version(from_version), normalise_version(to_version)
        ways: dict[str, list[Step]] = {start: []}
        waiting = deque([start])
        while waiting and end not in ways:
            here = waiting.popleft()
            for step in self.registered():
                if step[0] == here and step[1] not in ways:
                    ways[step[1]] = [*ways[here], step]
                    waiting.append(step[1])

        if end not in ways:
            raise NoMigrationPath(f"no migration leads from {start} to {end}; registered: {self._names()}")
        return ways[end]

    def migrate(self, data: JsonObject) -> JsonObject:
        """Return *data* in the current version as a new object; current data is returned equal."""
        if not isinstance(data, dict):
            raise StateInvalid(f"a document is a JSON object, not {type(data).__name__}")
        try:
            version = version_of(data)
        except NoMigrationPath as exc:
            raise NoMigrationPath(f"{exc}; registered: {self._names()}") from None
        if _rank(version) > _rank(self.current_version):
            raise NewerVersion(version, self.current_version)

        try:
            migrated = copy.deepcopy(data)
        except RecursionError:
            raise StateInvalid("the document is nested too deeply to be the state of a workflow") from None
        for step in self.path(version, self.current_version):
            try:
                migrated = {**self._steps[step](migrated), "state_version": step[1]}
            except Exception as exc:  # whatever a step raises, the error must name the step
                raise MigrationFailed(*step, exc) from exc
        if version == self.current_version:
            migrated["state_version"] = version

        return migrated

    def copy(self, current_version: str | None = None) -> MigrationRegistry:
        """Return a registry with the same steps that can be extended without changing this one."""
        twin = MigrationRegistry(current_version or self.current_version)
        twin._steps = dict(self._steps)

        return twin

    def _names(self) -> str:
        return ", ".join(f"{start} -> {end}" for start, end in self.registered()) or "none"


#: The migrations that documents are loaded with.
StateMigration = MigrationRegistry()
StateMigration.register_migration("1.0", "2.0")(v1_to_v2)
StateMigration.register_migration("2.0", "3.0")(v2_to_v3)

#: The name of this step in older code.
migrate_v1_to_v2 = v1_to_v2
