"""
What the dashboard costs with many workflows: the overview and the first page of the list, at 1,000 and at 100,000.

Three workflows are really carried out by a worker: one that is completed, one that fails, one that waits for a person.
Their rows (documents, events, runs, locks) are then put into the database again and again, under other ids and on
other days, until there are as many as wanted. Both homes are asked in the same process, without sockets, through the
whole door of the server, in turns, so that whatever else the machine does slows both. The first look at a home counts
what it did not count before, and is shown apart: each workflow is counted once in its life.

    python scripts/bench/dashboard.py [--few 1000] [--many 100000] [--rounds 20] [--directory DIR]

Exit code 1: a limit was not met.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import httpx
import verdict

from adws import app as app_module
from adws.adw_modules.db.connection import Row, Session
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.config import load as config_load
from adws.web.app import create_app

#: How much longer a page may take with many workflows than with few.
LIMIT = 3.0
TOKEN = "the-token-of-the-benchmark"
ORIGIN = "http://127.0.0.1:8001"
#: Page -> its address.
PAGES = {
    "the overview": "/",
    "the first page of the list": "/workflows",
    "the first page of those that failed": "/workflows?state=failed",
}
#: The same for what is shown and has no limit.
OTHERS = {"a search that finds": "/workflows?search=thing", "a search that finds nothing": "/workflows?search=nothing"}
#: Of a hundred workflows, so many are of each definition.
SHARES = {"good": 94, "bad": 4, "asks": 2}
DAYS = 120
DEFINITIONS = """
[workflows.good]
phases = [
  {name = "plan", shell = "echo a plan"},
  {name = "build", shell = "echo built"},
  {name = "test", shell = "echo tested"},
  {name = "review", shell = "echo reviewed"},
]
[workflows.bad]
phases = [{name = "plan", shell = "echo a plan"}, {name = "build", shell = "exit 7", max_attempts = 1}]
[workflows.asks]
phases = [{name = "plan", shell = "echo a plan", gate = "human"}]
"""


@dataclass(frozen=True)
class Pattern:
    """The rows of a workflow that was carried out, table by table: columns, and rows of text and numbers."""

    adw_id: str
    issue: int
    day: str
    tables: dict[str, tuple[tuple[str, ...], list[Row]]]


def open_home(place: Path) -> app_module.Home:
    """Return a home with its documents in the database."""
    place.mkdir()
    (place / "adw.toml").write_text(DEFINITIONS)
    env = {
        "ADW_HOME": str(place),
        "ADW_STATE_STORE": "database",
        "ADW_FORGE_KIND": "none",
        "ADW_GITHUB_REPOSITORY": "acme/shop",
        "ADW_WEB_TOKEN": TOKEN,
        "ADW_WORKTREE_ENABLED": "false",
    }

    return app_module.open_home(config_load.load(env=env, cwd=place), role="web")


def carry_out(app: app_module.Home) -> dict[str, Pattern]:
    """Carry one workflow of each definition out, and return what it left."""
    made = {}
    for issue, name in enumerate(SHARES, 1):
        spec = app.workflows.get(name)
        start = NewWorkflow(
            issue_number=issue, spec=spec, repository="acme/shop", issue=FrozenIssue(title=f"A thing: {name}")
        )
        made[name] = (app.workflow_creator.start(start).adw_id, issue)
    app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()
    with app.database.read() as session:
        return {name: pattern_of(session, adw_id, issue) for name, (adw_id, issue) in made.items()}


def pattern_of(session: Session, adw_id: str, issue: int) -> Pattern:
    """Return the rows of a workflow."""
    tables = {}
    for table, own in (("workflow_states", ""), ("events", "seq"), ("runs", "run_id"), ("adw_locks", "")):
        columns = tuple(row[1] for row in session.all(f"PRAGMA table_info({table})") if row[1] != own)
        rows = session.all(f"SELECT {', '.join(columns)} FROM {table} WHERE adw_id = :adw_id", {"adw_id": adw_id})
        tables[table] = (columns, rows)
    day = str(tables["workflow_states"][1][0][tables["workflow_states"][0].index("created_at")])[:10]

    return Pattern(adw_id=adw_id, issue=issue, day=day, tables=tables)


def fill(app: app_module.Home, patterns: dict[str, Pattern], count: int) -> None:
    """Put workflows in until there are *count*."""
    names = [name for name, share in SHARES.items() for _ in range(share)]
    today = datetime.fromisoformat(patterns["good"].day).replace(tzinfo=UTC)
    for start in range(len(SHARES), count, 2000):
        batch: dict[tuple[str, tuple[str, ...]], list[dict[str, object]]] = {}
        for number in range(start, min(count, start + 2000)):
            pattern = patterns[names[number * 37 % 100]]
            day = f"{today - timedelta(days=number * DAYS // count):%Y-%m-%d}"
            for table, columns, row in copies(pattern, number, day):
                batch.setdefault((table, columns), []).append(dict(zip(columns, row, strict=True)))
        with app.database.write() as session:
            for (table, columns), rows in batch.items():
                places = ", ".join(f":{name}" for name in columns)
                session.run_each(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", rows)


def copies(pattern: Pattern, number: int, day: str) -> Iterator[tuple[str, tuple[str, ...], list[object]]]:
    """Yield the rows of a workflow like *pattern*, under another id and on another day."""
    adw_id, issue = f"{number:08x}", 1000 + number
    for table, (columns, rows) in pattern.tables.items():
        for row in rows:
            copy: list[object] = [
                value.replace(pattern.adw_id, adw_id).replace(pattern.day, day) if isinstance(value, str) else value
                for value in row
            ]
            if "issue_number" in columns:
                copy[columns.index("issue_number")] = issue
            if "body" in columns:
                body = str(copy[columns.index("body")])
                copy[columns.index("body")] = re.sub(r'"issue_number":\s*\d+', f'"issue_number":{issue}', body, count=1)
            yield table, columns, copy


class Visitor:
    """Somebody who is logged in."""

    def __init__(self, app: app_module.Home) -> None:
        self.door = create_app(app)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.door), base_url=ORIGIN)

    async def log_in(self) -> None:
        """Log in."""
        head = {"Origin": ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}
        answer = await self._client.post("/login", content=urlencode({"token": TOKEN}), headers=head)
        if answer.status_code != 303:
            raise SystemExit(f"the login was answered with {answer.status_code}")

    async def seconds(self, path: str) -> float:
        """Return how long a page takes."""
        began = time.perf_counter()
        answer = await self._client.get(path, headers={"Accept": "text/html"})
        seconds = time.perf_counter() - began
        if answer.status_code != 200:
            raise SystemExit(f"{path} was answered with {answer.status_code}: {answer.text[:2000]}")

        return seconds

    async def close(self) -> None:
        """Go."""
        await self._client.aclose()
        self.door.close()


async def compare(few: Visitor, many: Visitor, *, rounds: int) -> bool:
    """Ask both in turns, print what came of it, and say whether the limits were met."""
    for visitor, name in ((few, "few"), (many, "many")):
        await visitor.log_in()
        print(f"the first look at {name} workflows took {await visitor.seconds('/'):.2f} s", flush=True)
    is_met = True
    for what, path in {**PAGES, **OTHERS}.items():
        times: dict[str, list[float]] = {"few": [], "many": []}
        for number in range(rounds + 2):
            turns = [("few", few), ("many", many)]
            for name, visitor in turns if number % 2 else turns[::-1]:
                took = await visitor.seconds(path)
                if number >= 2:  # after a warm-up
                    times[name].append(took)
        medians = {name: statistics.median(each) * 1000 for name, each in times.items()}
        print(f"{what}: {medians['few']:.1f} ms with few workflows, {medians['many']:.1f} ms with many")
        if what in PAGES:
            ratio = statistics.median(many / few for few, many in zip(times["few"], times["many"], strict=True))
            is_met = verdict.tell(f"{what} with many workflows beside few", ratio, most=LIMIT) and is_met

    return is_met


async def measure(few: app_module.Home, many: app_module.Home, *, rounds: int) -> bool:
    """Measure both homes."""
    visitors = [Visitor(few), Visitor(many)]
    try:
        return await compare(*visitors, rounds=rounds)
    finally:
        for visitor in visitors:
            await visitor.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the dashboard of a large home with that of a small one.")
    parser.add_argument("--few", type=int, default=1000, help="workflows of the small home")
    parser.add_argument("--many", type=int, default=100_000, help="workflows of the large one")
    parser.add_argument("--rounds", type=int, default=20, help="looks at each page")
    parser.add_argument("--directory", type=Path, help="where the homes are made; by default a temporary place")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=chosen.directory) as place,
        open_home(Path(place) / "few") as few,
        open_home(Path(place) / "many") as many,
    ):
        for app, count in ((few, chosen.few), (many, chosen.many)):
            began = time.perf_counter()
            fill(app, carry_out(app), count)
            print(f"made a home of {count} workflows in {time.perf_counter() - began:.0f} s", flush=True)
        is_met = asyncio.run(measure(few, many, rounds=chosen.rounds))

    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
