"""
Numbers that only grow, in the table counters: whatever process counts, one page shows them all.

One statement adds; nothing is read to count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from adws.adw_modules.db import rows, runner_statements
from adws.adw_modules.db.session import Database
from adws.adw_modules.errors import UsageError


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
