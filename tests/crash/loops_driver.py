"""
Kill workers at every point of loops, retries and sinks, and let two orchestrators race for the end of a loop.

Run by test_crash_loops.py as a program of its own, so that forking is safe. A point is a moment just before or just
after something lasting: a commit, a call, what a sink saves. A worker counts its points and kills itself (SIGKILL) at
the one it is told; the next worker finds what it left. Prints one JSON object; `problems` is empty when all is well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adws import app as app_module
from adws.adw_modules.db.postgres import PostgresDatabase
from adws.adw_modules.db.sqlite import SqliteDatabase
from adws.adw_modules.steps.iteration_worker import ToolCalls
from adws.adw_modules.steps.sinks import Sinks
from adws.adw_modules.worker.create_workflow import NewWorkflow
from adws.adw_modules.worker.worker import WorkerOptions
from adws.config import load as config_load
from tests import loop_lab, templates

RENEWER_THREAD = "adw-lease-renewer"
UNEXPECTED = 99
#: Longest time that a worker may take for what is left.
PATIENCE = 120

#: What steps call; the home has it as a module.
CALLS = """
import json, os

def _note(**facts):
    line = json.dumps(facts) + "\\n"
    fd = os.open(os.path.join(os.path.dirname(__file__), "calls.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)

def alone():
    _note(step="alone", index=0, page=1)
    return {"k": "alone"}

def once(item):
    _note(step="loop", index=item, page=1)
    return {"k": f"loop-{item}"}

def page(step, index, number, attempt):
    _note(step=step, index=index, page=number)
    if attempt == 1:
        raise ConnectionResetError("connection reset by peer")
    return {"rows": [{"k": f"{step}-{index}-{number}-{n}"} for n in range(2)], "number": number, "more": number < 3}

def save(rows, key):
    line = json.dumps({"key": key, "rows": rows}) + "\\n"
    fd = os.open(os.path.join(os.path.dirname(__file__), "saved.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)
"""

WORKFLOW = """
[workflows.crash]
[[workflows.crash.phases]]
name = "build"
max_attempts = 40
retry = {{ base_seconds = 0.01, strategy = "fixed" }}

[[workflows.crash.phases.steps]]
name = "alone"
tool = "python"
call = "crash_calls:alone"
sink = {{{sink_alone}}}

[[workflows.crash.phases.steps]]
name = "loop"
tool = "python"
call = "crash_calls:once"
args = {{item = "{{{{ i }}}}"}}
loop = {{collection = [0, 1, 2, 3, 4], element = "i", mode = "async", concurrency = 2}}
sink = {{{sink_loop}}}

[[workflows.crash.phases.steps]]
name = "pages"
tool = "python"
call = "crash_calls:page"
args = {{step = "pages", index = 0, number = 1, attempt = "{{{{ attempt }}}}"}}
retry = {{{retry}}}
sink = {{{sink_pages}, rows = "{{{{ result.rows }}}}"}}

[[workflows.crash.phases.steps]]
name = "both"
tool = "python"
call = "crash_calls:page"
args = {{step = "both", index = "{{{{ i }}}}", number = 1, attempt = "{{{{ attempt }}}}"}}
loop = {{collection = [0, 1], element = "i"}}
retry = {{{retry}}}
sink = {{{sink_both}, rows = "{{{{ result.rows }}}}"}}

[connections.main]
{connection}
"""
RETRY = (
    "on_error = {max_attempts = 30, max_same_failures = 30, base_seconds = 0.01, max_seconds = 0.01}, "
    'on_success = {while = "response.more", collect = "append", merge_path = "rows", base_seconds = 0.01,'
    ' next_call = {args = {number = "{{ response.number + 1 }}"}}}'
)
#: Every step saves to a place of its own.
STEPS = ("alone", "loop", "pages", "both")
WANTED = sorted(
    ["alone"]
    + [f"loop-{index}" for index in range(5)]
    + [f"pages-0-{page}-{n}" for page in (1, 2, 3) for n in range(2)]
    + [f"both-{index}-{page}-{n}" for index in (0, 1) for page in (1, 2, 3) for n in range(2)]
)
#: Calls that end well, each of a page of its own.
PAGES = [("alone", 0, 1), *(("loop", index, 1) for index in range(5))] + [
    (step, index, page) for step, index in (("pages", 0), ("both", 0), ("both", 1)) for page in (1, 2, 3)
]


# --- points ----------------------------------------------------------------------------------------------------


class Points:
    """Counts the points of this process, and ends it at one of them."""

    def __init__(self) -> None:
        self.kill_at = 0
        self.passed: list[str] = []
        self._lock = threading.Lock()

    def passed_by(self, label: str) -> None:
        """Note a point."""
        if threading.current_thread().name == RENEWER_THREAD:
            return  # it comes and goes with the clock
        with self._lock:
            self.passed.append(label)
            if len(self.passed) == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


POINTS = Points()


def put_points(owner: type, name: str) -> None:
    """Make the method *name* of *owner* a thing with a point before and one after it."""
    method = getattr(owner, name)

    def between(self: Any, *args: Any, **options: Any) -> Any:
        POINTS.passed_by(f"before {owner.__name__}.{name}")
        result = method(self, *args, **options)
        POINTS.passed_by(f"after {owner.__name__}.{name}")
        return result

    setattr(owner, name, between)


for _owner, _name in ((SqliteDatabase, "commit"), (PostgresDatabase, "_commit"), (ToolCalls, "make"), (Sinks, "save")):
    put_points(_owner, _name)


# --- homes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where rounds are played."""

    root: Path
    url: str  #: of PostgreSQL, "": the home has SQLite
    sink: str
    numbers: Counter[str] = field(default_factory=Counter)

    def fresh_home(self) -> Path:
        """Return a home in which nothing has happened."""
        self.numbers["home"] += 1
        home = self.root / f"home{self.numbers['home']}"
        home.mkdir(parents=True)
        if self.url:
            forget_everything(self.url)
        else:
            templates.prepare_home(home)
        (home / "crash_calls.py").write_text(CALLS)
        (home / "adw.toml").write_text(self._definition())

        return home

    def _definition(self) -> str:
        def sink_of(step: str) -> str:
            if self.sink in {"jsonl", "csv"}:
                return f'tool = "{self.sink}", path = "{step}.{self.sink}"'
            if self.sink == "python":
                return 'tool = "python", call = "crash_calls:save"'
            return f'tool = "{self.sink}", table = "saved_{step}"'

        connection = 'type = "postgres"\nurl_env = "SINK_URL"' if self.sink == "postgres" else None
        return WORKFLOW.format(
            retry=RETRY,
            connection=connection or 'type = "sqlite"\npath = "saved.db"',
            **{f"sink_{step}": sink_of(step) for step in STEPS},
        )

    def open(self, home: Path) -> app_module.Home:
        """Open *home* as a worker would."""
        env = {"ADW_HOME": str(home), "ADW_FORGE_KIND": "none"}
        if self.url:
            env["ADW_DATABASE_URL"] = self.url
        os.environ.update(env)

        return app_module.open_home(config_load.load(env=dict(os.environ), cwd=home), role="worker")

    def saved(self, home: Path) -> list[str]:
        """Return the keys of all rows that were saved, sorted."""
        if self.sink == "python":
            return self._saved_by_function(home)
        result: list[str] = []
        for step in STEPS:
            result += self._saved_by(home, step)

        return sorted(result)

    def _saved_by_function(self, home: Path) -> list[str]:
        """Return the same of a function, which saves at least once: under one key, and the same each time."""
        parts: dict[str, str] = {}
        result = []
        for line in (home / "saved.log").read_text().splitlines():
            part = json.loads(line)
            known = parts.setdefault(part["key"], json.dumps(part["rows"]))
            if known != json.dumps(part["rows"]):
                result.append(f"{part['key']} came with other rows")

        return sorted([*result, *(row["k"] for text in parts.values() for row in json.loads(text))])

    def _saved_by(self, home: Path, step: str) -> list[str]:
        if self.sink == "jsonl":
            return [json.loads(line)["k"] for line in (home / f"{step}.jsonl").read_text().splitlines()]
        if self.sink == "csv":
            head, *lines = (home / f"{step}.csv").read_text().splitlines()
            return [*lines, *([f"head {head}"] if head != "k" else [])]
        where = os.environ["SINK_URL"] if self.sink == "postgres" else str(home / "saved.db")

        return [row["k"] for row in loop_lab.select(where, f"SELECT k FROM saved_{step}")]


def forget_everything(url: str) -> None:
    """Empty every table of ours, and drop those of sinks."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        names = [row[0] for row in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        ours = [name for name in names if name != "alembic_version" and not name.startswith(("saved_", "_adw"))]
        for name in names:
            if name.startswith(("saved_", "_adw")):
                connection.execute(f"DROP TABLE {name}")
        if ours:
            connection.execute(f"TRUNCATE {', '.join(ours)} RESTART IDENTITY CASCADE")


# --- workers ---------------------------------------------------------------------------------------------------


def work(place: Place, home: Path, adw_id: str, concurrency: int) -> None:
    """Be a worker until the workflow is over."""
    with place.open(home) as app:
        worker = app.worker(WorkerOptions(recover_seconds=3600.0, concurrency=concurrency))
        ended = threading.Event()

        def watch() -> None:
            while not is_over(place, home, adw_id) and not ended.wait(0.02):
                pass
            worker.drain()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        worker.run()
        ended.set()
        watcher.join()


def tidy(place: Place, home: Path) -> None:
    """Be a worker that looks once: the last kill may have come after the last write of the workflow."""
    with place.open(home) as app:
        app.recovery.recover(every_document=True)
        app.worker(WorkerOptions(once=True)).run()


def is_over(place: Place, home: Path, adw_id: str) -> bool:
    """Say whether the workflow has ended."""
    data = loop_lab.document(home, loop_lab.address(home, place.url), adw_id)

    return data["current_state"] in {"completed", "failed", "paused"}


def forked(action: Callable[[], None], *, kill_at: int = 0) -> tuple[int, list[str]]:
    """Run *action* in a child that dies at point *kill_at*; return how it ended, and the points it passed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            POINTS.passed, POINTS.kill_at = [], kill_at  # those of the parent are not its own
            signal.alarm(PATIENCE)
            action()
            with os.fdopen(writing, "w") as told:
                json.dump(POINTS.passed, told)
            os._exit(0)
        except BaseException:
            logging.getLogger("loops").exception("a worker broke")
            os._exit(UNEXPECTED)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    _, status = os.waitpid(pid, 0)

    return os.waitstatus_to_exitcode(status), json.loads(text) if text else []


def play(place: Place, kill_at: list[int], concurrency: int) -> tuple[int, list[str], list[str]]:
    """Carry a workflow through, its workers killed at these points; return kills, problems and the last points."""
    home = place.fresh_home()
    with place.open(home) as app:
        spec = app.workflows.get("crash")
        adw_id = app.workflow_creator.start(NewWorkflow(issue_number=1, spec=spec, max_total_attempts=None)).adw_id
    kills, points = 0, []
    for number in [*kill_at, 0]:
        code, points = forked(lambda: work(place, home, adw_id, concurrency), kill_at=number)
        if code == -signal.SIGKILL:
            kills += 1
        elif code != 0:
            return kills, [f"{home.name}: a worker ended with {code} (kill at {kill_at})"], points
    problems = [f"{home.name}, killed at {kill_at}: {problem}" for problem in check(place, home, adw_id, kills)]
    if not problems:
        shutil.rmtree(home)

    return kills, problems, points


def check(place: Place, home: Path, adw_id: str, kills: int) -> list[str]:
    """Return what is wrong with a workflow that was carried through."""
    code, _ = forked(lambda: tidy(place, home))
    if code != 0:
        return [f"the worker that tidies up ended with {code}"]
    data = loop_lab.document(home, loop_lab.address(home, place.url), adw_id)
    result = []
    if data["current_state"] != "completed":
        result.append(f"it is {data['current_state']}: {data.get('terminal_reason')}")
    saved = Counter(place.saved(home))
    if saved != Counter(WANTED):
        result.append(f"saved too often {dict(saved - Counter(WANTED))}, too seldom {dict(Counter(WANTED) - saved)}")
    told = loop_lab.executions(loop_lab.address(home, place.url))
    for one in told:
        result += loop_lab.problems(one)
    completed = Counter(one.step for one in told if one.row["state"] == "completed")
    if completed != Counter(("loop", "pages", "both")):
        result.append(f"completed {dict(completed)}")
    calls = Counter((one["step"], one["index"], one["page"]) for one in _calls(home))
    most = 2 + kills  # the first call of a sequence fails
    wrong = {call: calls[call] for call in {*PAGES, *calls} if call not in PAGES or not 1 <= calls[call] <= most}
    if wrong:
        result.append(f"calls: {wrong}")

    return [*result, *left_over(place, home)]


def _calls(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "calls.log").read_text().splitlines()]


def left_over(place: Place, home: Path) -> list[str]:
    """Return runs that are not over."""
    rows = loop_lab.select(
        loop_lab.address(home, place.url), "SELECT run_id, kind, slot, state FROM runs WHERE finished_at IS NULL"
    )

    return [f"left over: {rows}"] if rows else []


def drawn(points: list[str], count: int, rng: random.Random) -> list[int]:
    """
    Draw points: half of them around calls and sinks, where something could be done twice, the rest anywhere.

    One of them is after the last call: who dies there must not begin all over again.
    """
    every = range(1, len(points) + 1)
    last = max(number for number in every if "commit" not in points[number - 1])
    around = {number + n for number in every if "commit" not in points[number - 1] for n in range(3)} & {*every}
    chosen = {rng.randint(last, len(points)), *rng.sample(sorted(around), min(count // 2, len(around)))}
    others = [number for number in every if number not in chosen]

    return sorted([*chosen, *rng.sample(others, min(count - len(chosen), len(others)))])


def kills(given: argparse.Namespace) -> dict[str, Any]:
    """Kill a worker at points of a workflow: all of them, or *count* drawn ones, or several in a row."""
    place = Place(root=given.home, url=given.url, sink=given.sink)
    rng = random.Random(given.seed)
    _, problems, points = play(place, [], given.concurrency)
    if problems:
        return {"kills": 0, "points": len(points), "problems": [f"without a kill: {one}" for one in problems]}
    first = int(given.since * len(points)) + 1
    numbers = drawn(points, given.count, rng) if given.count else list(range(first, len(points) + 1))
    done, missed = 0, []
    for number in numbers:
        # Points drawn from the share of the work that is left: the workers after the first reach theirs and die too.
        share = max(1, (len(points) - number) // max(1, given.more))
        more = [rng.randint(1, share) for _ in range(given.more)]
        killed, result, _ = play(place, [number, *more], given.concurrency)
        done += killed
        missed += [] if killed else [number]
        problems += result
        if len(problems) > 5:
            break

    return {
        "rounds": len(numbers),
        "kills": done,
        "missed": missed,
        "points": len(points),
        "labels": dict(Counter(points)),
        "problems": problems,
    }


def main() -> int:
    """Run one command and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--url", default="", help="of PostgreSQL; without it, each home has SQLite")
    parser.add_argument("--sink", choices=("sqlite", "postgres", "jsonl", "csv", "python"), default="sqlite")
    parser.add_argument("--count", type=int, default=0, help="so many points; 0: all")
    parser.add_argument("--since", type=float, default=0.0, help="with all points: only those after this share of them")
    parser.add_argument("--more", type=int, default=0, help="so many workers after the first are killed too")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.getLogger("adw").addHandler(logging.NullHandler())
    sys.stdout.write(json.dumps(kills(given)) + "\n")

    return 0


if __name__ == "__main__":
    sys.exit(main())
