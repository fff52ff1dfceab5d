"""
What attempts cost, from the documents' rows.

Most rows are passed over by a look at their text: only a report with a cost names one, only the record of an agent
names a provider. They are read a few hundred at a time, so that ten thousand of them are never in memory at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from adws.adw_modules.cost_entries import CostEntry, entries_of
from adws.adw_modules.db import resource_statements as sql
from adws.adw_modules.db.session import Database

#: What stands in the text of a document in which something cost money, and of one that an agent worked on.
COSTING, OF_AGENTS = '%"cost_usd"%', '%"provider"%'
#: Rows that are read at once.
CHUNK = 500


class DatabaseCostBook:
    """Looks at what was spent."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._costs = database.spell(sql.COSTS_SINCE)

    def entries(self, since: str = "") -> Iterator[CostEntry]:
        """Yield what each attempt cost that ended at or after *since*, workflow by workflow."""
        params: dict[str, object] = {"since": since, "costing": COSTING, "of_agents": OF_AGENTS, "limit": CHUNK}
        after = ""
        with self._database.read() as session:
            while found := session.all(self._costs, {**params, "after": after}):
                for adw_id, workflow, body in found:
                    phases = json.loads(body).get("phases")
                    yield from (one for one in entries_of(adw_id, workflow, phases) if one.ended_at >= since)
                after = found[-1][0]


def spell(database: Database, text: str) -> str:
    """Return *text* in the words of the dialect, the parts of a document included."""
    for word, spelled in sql.DOCUMENT_PARTS[database.dialect].items():
        text = text.replace(word, spelled)

    return database.spell(text)
