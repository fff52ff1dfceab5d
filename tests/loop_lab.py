"""
Homes with steps, and what must hold of every execution in them, whatever happened to its workers.

Read straight from the tables, by drivers of their own: what is looked at is what was stored, not what our code says
about it. Counting the events must come to what the rows say.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adws.adw_modules.events import CONTEXT_KEYS, META_KEYS, Event

#: Event that ends an iteration, an execution.
ENDS = ("iteration_completed", "iteration_failed", "iteration_cancelled")
EXECUTION_ENDS = ("iterator_completed", "iterator_failed", "iterator_cancelled")
SEQUENCE_ENDS = ("retry_sequence_completed", "retry_sequence_exhausted", "retry_sequence_failed")


@dataclass(frozen=True, kw_only=True)
class Told:
    """An execution as its tables tell it."""

    row: dict[str, Any]
    iterations: list[dict[str, Any]]
    events: list[Event] = field(default_factory=list)

    @property
    def step(self) -> str:
        """Name of the step."""
        return str(self.row["step"])

    @property
    def results(self) -> list[Any]:
        """What each iteration gave, in the order of the collection."""
        return [json.loads(row["result"]) for row in self.iterations]

    def of_type(self, *types: str) -> list[Event]:
        """Return the events of these types, in their order."""
        return [event for event in self.events if event.event_type in types]

    def count(self) -> Counter[str]:
        """Return how often each type of event came."""
        return Counter(event.event_type for event in self.events)


def select(url: str, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query; *url* is a path of SQLite or an address of PostgreSQL."""
    if url.startswith("postgres"):
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(url, row_factory=dict_row) as connection:
            return connection.execute(sql).fetchall()
    connection = sqlite3.connect(url)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(sql)]
    finally:
        connection.close()


def address(home: Path, pg_url: str = "") -> str:
    """Return what `select` takes for the database of *home*."""
    return pg_url or str(home / "state" / "adw.db")


def document(home: Path, url: str, adw_id: str) -> dict[str, Any]:
    """Return what is stored about a workflow: its file, or on PostgreSQL its row."""
    if not url.startswith("postgres"):
        text = (home / "state" / adw_id / "adw_state.json").read_text()
    else:
        text = select(url, f"SELECT body FROM workflow_states WHERE adw_id = '{adw_id}'")[0]["body"]
    result: dict[str, Any] = json.loads(text)

    return result


def executions(url: str) -> list[Told]:
    """Return every execution, the oldest first."""
    rows = select(url, "SELECT * FROM executions ORDER BY created_at, execution_id")
    parts = defaultdict(list)
    for one in select(url, "SELECT * FROM iterations ORDER BY execution_id, idx"):
        parts[one["execution_id"]].append(one)
    known = {row["execution_id"] for row in rows}
    events = defaultdict(list)
    for one in select(url, "SELECT * FROM events"):
        if one["execution_id"] in known:
            events[one["execution_id"]].append(_event(one))
    for item in events.values():
        item.sort(key=lambda event: int(event.event_id.rpartition(".")[2]))

    return [Told(row=row, iterations=parts[row["execution_id"]], events=events[row["execution_id"]]) for row in rows]


def _event(row: dict[str, Any]) -> Event:
    data = {}
    for name, value in row.items():
        is_json = name in {"result", "context", "data", "meta"}
        data[name] = json.loads(value) if is_json and isinstance(value, str) else value

    return Event.from_json({name: value for name, value in data.items() if value is not None})


# --- what must hold --------------------------------------------------------------------------------------------


def problems(told: Told) -> list[str]:
    """Return what is wrong with an execution that has ended: empty when the log, the rows and the counts agree."""
    result = [*_numbers(told), *_counts(told), *_ends(told), *_calls(told), *_keys(told), *_replayed(told)]

    return [f"{told.row['execution_id']}: {problem}" for problem in result]


def _numbers(told: Told) -> list[str]:
    numbers = [int(event.event_id.rpartition(".")[2]) for event in told.events]
    if numbers != list(range(1, told.row["last_event"] + 1)):
        return [f"events {numbers[:5]}...{numbers[-5:]}, the row says {told.row['last_event']}"]

    return []


def _counts(told: Told) -> list[str]:
    row = told.row
    states = Counter(one["state"] for one in told.iterations)
    result = []
    if row["state"] == "running" or not row["ended_at"]:
        result.append(f"it is {row['state']}, ended at {row['ended_at']}")
    if [one["idx"] for one in told.iterations] != list(range(row["total"] or 0)):
        result.append(f"{len(told.iterations)} iterations of {row['total']}")
    stored = (row["succeeded"], row["failed"], row["cancelled"])
    if stored != (states["completed"], states["failed"], states["cancelled"]):
        result.append(f"counts {stored}, rows {dict(states)}")
    if sum(stored) != row["total"]:
        result.append(f"{stored} do not make {row['total']}")

    return result


def _ends(told: Told) -> list[str]:
    """Exactly one end of each iteration and of the whole, and nothing after that."""
    result = []
    ended = Counter((event.iteration_index, event.event_type) for event in told.of_type(*ENDS))
    wanted = Counter((one["idx"], f"iteration_{one['state']}") for one in told.iterations)
    if ended != wanted:
        result.append(f"ends of iterations: {ended - wanted} too many, {wanted - ended} too few")
    over = [event.event_type for event in told.of_type(*EXECUTION_ENDS)]
    if over != [f"iterator_{told.row['state']}"]:
        result.append(f"it was ended by {over}, the row says {told.row['state']}")
    if told.events and told.events[-1].event_type not in EXECUTION_ENDS:
        result.append(f"{told.events[-1].event_type} came after its end")
    sequences = Counter(event.iteration_index for event in told.of_type(*SEQUENCE_ENDS))
    has_retry = bool(json.loads(told.row["spec"]).get("retry"))
    called = {one["idx"] for one in told.iterations if one["attempts"]} if has_retry else set()
    if sequences != Counter(called):
        result.append(f"ends of sequences {dict(sequences)}, called were {sorted(called)[:20]}")

    return result


def _calls(told: Told) -> list[str]:
    """Every call that was begun was ended, and the row counts them."""
    begun = Counter(event.iteration_index for event in told.of_type("action_started"))
    ended = Counter(event.iteration_index for event in told.of_type("action_completed", "action_failed"))
    put_back = Counter(event.iteration_index for event in told.of_type("action_suspended"))
    counted = Counter({one["idx"]: one["attempts"] for one in told.iterations if one["attempts"]})
    result = []
    if begun != ended + put_back:
        result.append(f"calls begun and not ended, or ended and not begun: {begun - (ended + put_back)}")
    if counted != ended:
        result.append(f"the rows count {dict(counted - ended)} more and {dict(ended - counted)} fewer calls")
    numbers = defaultdict(list)
    for event in told.of_type("action_completed", "action_failed"):
        numbers[event.iteration_index].append(event.attempt_number)
    wrong = {index: seen for index, seen in numbers.items() if seen != list(range(1, len(seen) + 1))}
    if wrong:
        result.append(f"numbers of attempts: {wrong}")

    return result


def _keys(told: Told) -> list[str]:
    """Events have the keys that the page about events explains, and no others; calls have all they need."""
    result = []
    for event in told.events:
        unknown = (event.context.keys() - CONTEXT_KEYS.keys()) | (event.meta.keys() - META_KEYS.keys())
        if unknown:
            result.append(f"{event.event_type} has the unknown keys {sorted(unknown)}")
        wanted = {"execution_id", "parent_execution_id", "catalog_id", "_step_results"}
        if not event.context.keys() >= wanted:
            result.append(f"{event.event_type} has the context {sorted(event.context)}")
    for event in told.of_type("action_completed", "action_failed"):
        wanted = {"retry", "queue"} | ({"error"} if event.event_type == "action_failed" else {"execution"})
        if not event.meta.keys() >= wanted:
            result.append(f"{event.event_type} has only {sorted(event.meta)} in meta")

    return result


def _replayed(told: Told) -> list[str]:
    """Counting the log gives the rows; and every end of an iteration was decided by its last call."""
    row = told.row
    result = []
    stored = tuple(row[name] for name in ("state", "total", "succeeded", "failed", "cancelled"))
    if counted(told.events) != stored:
        result.append(f"the log says {counted(told.events)}, the row {stored}")
    if told.events and told.events[0].event_id != row["first_event_id"]:
        result.append(f"the first event is {told.events[0].event_id}, the row says {row['first_event_id']}")
    calls = told.of_type("action_completed", "action_failed")
    over = Counter(event.iteration_index for event in calls if not event.data.get("retry", {}).get("again"))
    wanted = Counter(event.iteration_index for event in told.of_type("iteration_completed", "iteration_failed"))
    if over != wanted:
        result.append(f"the log leads to the ends of {over}, told were {wanted}")

    return result


def counted(events: list[Event]) -> tuple[str, int | None, int, int, int]:
    """Return state, total and the counts of ended iterations that the events of an execution lead to."""
    counts = Counter(event.event_type for event in events)
    total = next((event.total_iterations for event in events if event.event_type == "iterator_started"), None)
    ends = [event.event_type.removeprefix("iterator_") for event in events if event.event_type in EXECUTION_ENDS]
    succeeded, failed, cancelled = (counts[name] for name in ENDS)

    return ends[-1] if ends else "running", total, succeeded, failed, cancelled
