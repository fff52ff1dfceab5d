"""
One small session over the drivers' own connections.

Queries are SQL texts with `:name` parameters, the same for both dialects; `Database.spell` puts in the few words that
differ. `read()` sees one moment of the database, `write()` is one transaction, and neither hands a driver's error out.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeAlias, TypeVar

from adws.adw_modules.interfaces import Clock

#: One row, its values in the order of the query's columns.
Row: TypeAlias = tuple[Any, ...]
Params: TypeAlias = Mapping[str, object]

_Result = TypeVar("_Result")
_NOTHING: Params = {}

#: How long a statement waits for a lock before the caller hears of it.
PATIENCE_SECONDS = 30.0


class Session(ABC):
    """One transaction; valid inside the block that gave it."""

    @abstractmethod
    def all(self, sql: str, params: Params = _NOTHING) -> list[Row]:
        """Return every row."""

    @abstractmethod
    def one(self, sql: str, params: Params = _NOTHING) -> Row | None:
        """Return the first row, None when there is none."""

    @abstractmethod
    def run(self, sql: str, params: Params = _NOTHING) -> int:
        """Change rows and return how many."""

    @abstractmethod
    def run_each(self, sql: str, params: Sequence[Params]) -> None:
        """Run the same statement once for each of *params*."""


class Database(ABC):
    """An open database. Threads may share it; a forked child gets connections of its own."""

    dialect: ClassVar[str]
    #: The moment that leases are measured by, as SQL.
    now_sql: ClassVar[str]
    #: What makes a SELECT keep others from changing its rows until the end of the transaction.
    row_lock_sql: ClassVar[str]
    #: What compares a text with a pattern, whatever the case of its letters.
    like_sql: ClassVar[str]

    def __init__(self, *, name: str, clock: Clock) -> None:
        self.name = name  #: where it is, without a password: for messages
        self.clock = clock
        #: Take secrets out of what people and programs said, as text and as JSON, before it is stored; set by whoever
        #: knows some.
        self.scrub_text: Callable[[str], str] = lambda text: text
        self.scrub_json: Callable[[str], str] = lambda text: text
        _OPEN.add(self)

    def spell(self, sql: str) -> str:
        """Return *sql* with `{now}`, `{row_lock}` and `{like}` in the words of this dialect."""
        return (
            sql.replace("{now}", self.now_sql).replace("{row_lock}", self.row_lock_sql).replace("{like}", self.like_sql)
        )

    def clean(self, text: str) -> str:
        """Return *text*, which somebody said, without secrets."""
        return self.scrub_text(text) if text else text

    def clean_json(self, text: str) -> str:
        """Return *text*, which is JSON that somebody said, without secrets in its strings."""
        return self.scrub_json(text) if text != "{}" else text

    @abstractmethod
    def lease_clock(self) -> Params:
        """Return the parameters that `{now}` and `:boot` need."""

    def server_time(self) -> float | None:
        """Return the clock of the server in seconds since 1970, None when the database has no clock of its own."""
        return None

    @abstractmethod
    def read(self) -> AbstractContextManager[Session]:
        """Read inside the block; every query sees the same moment."""

    @abstractmethod
    def write(self) -> AbstractContextManager[Session]:
        """Change inside the block: all of it is durable after the block, or nothing is done."""

    def transact(self, work: Callable[[Session], _Result]) -> _Result:
        """Return *work* done in one transaction; it is repeated when another transaction was in the way."""
        with self.write() as session:
            return work(session)

    @abstractmethod
    def schema_version(self) -> str | None:
        """Return the revision of the schema, None when there is none yet."""

    @abstractmethod
    def integrity_problems(self) -> list[str]:
        """Return what the database itself finds wrong with its storage."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection; the database opens again when it is used again."""

    def before_fork(self) -> None:  # noqa: B027 - not every database has something to do
        """Make ready for a fork of this process."""

    def after_fork_in_parent(self) -> None:  # noqa: B027 - not every database has something to do
        """Go on after a fork."""

    @abstractmethod
    def after_fork_in_child(self) -> None:
        """Let go of what belongs to the parent of this process, without a word to the other side."""


#: Every database of this process.
_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()


def _before_fork() -> None:
    for database in list(_OPEN):
        database.before_fork()


def _after_fork_in_parent() -> None:
    for database in list(_OPEN):
        database.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for database in list(_OPEN):
        database.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
