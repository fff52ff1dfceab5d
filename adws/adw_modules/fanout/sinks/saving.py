"""
Save what a call gave back, in the job that made the call.

Once for each key, but for functions: those get the key and may be called again with it. A sink that cannot save raises,
and the call has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from adws.adw_modules import expressions, sink_rows
from adws.adw_modules.connections import CONNECTION_TYPES, Connection, chosen
from adws.adw_modules.errors import RunFailed, SinkRefused
from adws.adw_modules.expressions import Value
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.fanout.callables import Callables
from adws.adw_modules.fanout.sinks.line_files import LineFiles
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.plugin import RowSink
from adws.adw_modules.spelling import hint
from adws.adw_modules.steps import SINK_OPTIONS, SinkSpec


class TableSink(Protocol):
    """A database that rows are saved to (`db.sqlite_sink`, `db.postgres_sink`)."""

    def save(self, table: str, rows: Sequence[JsonObject], *, sink_key: str, key: tuple[str, ...]) -> bool:
        """Save rows once for *sink_key*; say whether this did it."""

    def close(self) -> None:
        """Let go of it."""


def _open_none(name: str) -> RowSink:
    raise SinkRefused(f"there is no sink {name} here")


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkParts:
    """What sinks are made of."""

    files: LineFiles
    callables: Callables
    open_table_sink: Callable[[Connection], TableSink]  #: raises what says why it cannot be used
    connections: Mapping[str, Connection] = field(default_factory=dict)
    open_own_sink: Callable[[str], RowSink] = _open_none  #: of a plugin; raises what says why it cannot be used


class Sinks:
    """The sinks of one home. One thread at a time uses them."""

    def __init__(self, parts: SinkParts) -> None:
        self._parts = parts
        self._open: dict[str, TableSink] = {}
        self._own: dict[str, RowSink] = {}

    def save(self, sink: SinkSpec, result: JsonValue, *, values: Mapping[str, Value], root: Path, sink_key: str) -> int:
        """
        Save *result* and return how many rows it made; what is saved under *sink_key* already is not saved again.

        *values* is what templates know, *root* the working directory. Raises ExpressionError, SinkRefused,
        DatabaseError, or whatever a function of the user raises.
        """
        known = {**values, "result": result}
        rows = sink_rows.rows_of(_rows(sink, result, known))
        given = _given(sink, known)
        if not rows:
            return 0
        if sink.tool == "python":
            function = self._parts.callables.find(sink.call)
            _stay(sink.call, lambda: function(rows, sink_key, **given.options))
        elif sink.tool in {"jsonl", "csv"}:
            self._to_file(sink, rows, root, sink_key, given)
        elif sink.tool in CONNECTION_TYPES:
            self._table_sink(sink).save(sink.table, rows, sink_key=sink_key, key=sink.key)
        else:
            own = self._own_sink(sink.tool)
            _stay(sink.tool, lambda: own.save(rows, sink_key=sink_key, options=given.options))

        return len(rows)

    def close(self) -> None:
        """Let go of all that is open."""
        self._parts.files.close()
        while self._open:
            self._open.popitem()[1].close()
        while self._own:
            close = getattr(self._own.popitem()[1], "close", None)
            if close is not None:
                close()

    def _to_file(self, sink: SinkSpec, rows: list[JsonObject], root: Path, sink_key: str, given: _Given) -> None:
        if sink.tool == "jsonl":
            self._parts.files.save_json(rows, root=root, path=given.path, sink_key=sink_key)
            return
        delimiter = given.options.get("delimiter", ",")
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"':
            raise SinkRefused(f"the option delimiter is {delimiter!r}, and must be one character")
        self._parts.files.save_csv(rows, root=root, path=given.path, sink_key=sink_key, delimiter=delimiter)

    def _table_sink(self, sink: SinkSpec) -> TableSink:
        connections = self._parts.connections
        name = chosen(sink.connection, sink.tool, {one.name: one.type for one in connections.values()})
        if not name:
            wanted = sink.connection or f"of the type {sink.tool}"
            raise SinkRefused(f"there is no connection {wanted} here: write [connections.NAME] into adw.toml")
        if name not in self._open:
            self._open[name] = self._parts.open_table_sink(connections[name])

        return self._open[name]

    def _own_sink(self, name: str) -> RowSink:
        if name not in self._own:
            self._own[name] = self._parts.open_own_sink(name)

        return self._own[name]


def _stay(name: str, save: Callable[[], object]) -> None:
    """Call *save* of a stranger, who may mean to end a program, but not ours."""
    try:
        save()
    except SystemExit as exc:
        text = f"{name} called sys.exit({exc.code!r})"
        raise RunFailed(FailedRun(exit_code=1, text=text, tool=name), text) from exc


def _rows(sink: SinkSpec, result: JsonValue, known: Mapping[str, Value]) -> Value:
    return expressions.evaluate(sink.rows, known) if sink.rows else result


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """What a sink says besides, filled in."""

    path: str
    options: Mapping[str, JsonValue]


def _given(sink: SinkSpec, known: Mapping[str, Value]) -> _Given:
    options = {name: expressions.render(value, known) for name, value in sink.options.items()}
    allowed = SINK_OPTIONS.get(sink.tool)
    for name in options:
        if allowed is not None and name not in allowed:
            which = hint(name, allowed) if allowed else ", which has none"
            raise SinkRefused(f"{name!r} is no option of the sink {sink.tool}{which}")
    path = expressions.render(sink.path, known)
    if not isinstance(path, str):
        raise SinkRefused(f"the path of the sink is {path!r}, and must be a text")

    return _Given(path=path, options=options)
