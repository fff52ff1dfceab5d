"""
Numbers that only grow, in the table counters: whatever process counts, one page shows them all.

One statement adds; nothing is read to count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from adws.adw_modules.db import rows, runner_statements
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import UsageError
from adws.adw_modules.metric_names import Readings
from adws.adw_modules.metric_rules import labels_of


class DatabaseCounters:
    """`Counters` in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, labels: Mapping[str, str], amount: float = 1.0) -> None:
        """Count; raise UsageError for an amount below nothing."""
        if not amount >= 0.0:
            raise UsageError(f"the counter {name} only grows: {amount} cannot be added")
        params = {
            "name": rows.plain(name),
            "labels": rows.plain(json.dumps(dict(labels), sort_keys=True)),
            "amount": amount,
        }
        self._database.transact(lambda session: session.run(runner_statements.COUNTER_ADD, params))

    def all(self) -> tuple[tuple[str, Mapping[str, str], float], ...]:
        """Return name, labels and value of each, in a fixed order."""
        with self._database.read() as session:
            found = session.all(runner_statements.COUNTERS_ALL)

        return tuple((name, json.loads(labels), float(value)) for name, labels, value in found)


def add_in(session: Session, added: Readings) -> None:
    """Add to the counters of metrics, in a fixed order: two who add never wait for each other in a circle."""
    params = [
        {"name": metric, "labels": _labels_text(metric, labels), "amount": amount}
        for metric, values in sorted(added.items())
        for labels, amount in sorted(values.items())
    ]
    session.run_each(runner_statements.COUNTER_ADD, params)


def read_in(session: Session) -> Readings:
    """Return every counter of a metric; what is none, or has other labels than it should, is left out."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for name, text, value in session.all(runner_statements.COUNTERS_ALL):
        labels = _labels_in(name, text)
        if labels is not None:
            found.setdefault(name, {})[labels] = float(value)

    return found


def _labels_text(metric: str, labels: tuple[str, ...]) -> str:
    return json.dumps(dict(zip(labels_of(metric), labels, strict=True)), sort_keys=True)


def _labels_in(metric: str, text: str) -> tuple[str, ...] | None:
    names, said = labels_of(metric), json.loads(text)
    if not names or not isinstance(said, dict) or said.keys() != set(names):
        return None

    return tuple(str(said[name]) for name in names)
