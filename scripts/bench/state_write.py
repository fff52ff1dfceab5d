"""
What a durable step costs, beside a bare durable replace of the same bytes, in one interleaved run.

Bare: temp, write, fsync, rename, fsync of the directory. Ours, files store: transition, serialise, compare-and-set,
replace with the previous revision kept, update of the projection. Ours, database store: the same step as one SQLite
transaction. Then a step of a workflow with 200 attempts beside one with 10, on both stores. Then the list: one page out
of 1,000, 10,000 and 100,000 workflows.

    python scripts/bench/state_write.py [--rounds 600] [--directory DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import verdict

from adws import app as app_module
from adws.adw_modules import document, timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.ownership.ownership import OwnedWorkflow
from adws.adw_modules.state_machine import PIPELINE, WorkflowState, WorkflowStateMachine
from adws.config import load as config_load

FILES_LIMIT, DATABASE_LIMIT = 1.35, 0.7
#: Attempts of a short and of a long workflow, and what a step of the long one may cost beside the short one's.
SHORT, LONG, GROWTH_LIMIT = 10, 200, 1.5
PAGE_LIMIT_MS = 30.0
#: Turns in which a page of each list is read.
PAGES = 60
#: Flat: the page out of 100,000 may cost at most this many times the page out of 1,000.
FLAT_LIMIT = 1.5
START = datetime(2026, 1, 31, 9, tzinfo=UTC)


def bare_replace(directory: str, payload: bytes) -> None:
    """The yardstick: nothing but what durability asks for."""
    temp, final = f"{directory}/bare.tmp", f"{directory}/bare"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, payload)
    os.fsync(fd)
    os.close(fd)
    os.rename(temp, final)  # noqa: PTH104 - the bare system call is what is measured
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)


def new_document(clock_text: str, adw_id: str, issue_number: int) -> document.WorkflowDocument:
    """Return a document of the size a workflow has half-way."""
    attempt = document.AttemptRecord(number=1, started_at=clock_text)
    phases = [
        document.PhaseRecord(name=state.value, state=state.value, attempts=[attempt] if number < 4 else [])
        for number, state in enumerate(PIPELINE)
    ]
    return document.WorkflowDocument(
        adw_id=adw_id,
        issue_number=issue_number,
        created_at=clock_text,
        updated_at=clock_text,
        phases=phases,
        issue=document.FrozenIssue(title="Measure a step", body="word " * 200),
    )


WAY = [*PIPELINE, WorkflowState.COMPLETED]


class Stepper:
    """A workflow that is carried through all its states, and then the next one."""

    def __init__(self, app: app_module.Home, prefix: str) -> None:
        self.app, self.prefix, self.count = app, prefix, 0
        self.stack = ExitStack()
        self.start()

    def start(self) -> None:
        """Create the next workflow; not part of what is measured."""
        self.stack.close()
        self.count += 1
        new = new_document(timestamps.to_text(self.app.clock.now()), f"{self.prefix}{self.count:06x}", self.count)
        self.owned: OwnedWorkflow = self.stack.enter_context(self.app.ownership.create(new))
        self.stack.enter_context(self.app.lease_renewer.charge(self.owned))  # as a worker does
        self.machine = WorkflowStateMachine.of(self.owned.document, now=self.app.clock.now)
        self.left = list(WAY)

    def prepare(self) -> None:
        """Make sure that there is a step to make."""
        if not self.left:
            self.start()

    def step(self) -> None:
        """Make one whole step: transition, document, durable write, hand-over."""
        before, target = self.machine.current_state, self.left.pop(0)
        document = self.owned.document.model_copy()
        self.machine.transition(target)
        self.machine.write_into(document)
        event = Event(event_type="state_changed", data={"from": before.value, "to": target.value})
        self.owned.save(document, events=[event])


def measure(rounds: int, actions: dict[str, Callable[[], None]], prepare: Callable[[], None]) -> dict[str, list[float]]:
    """Run the actions in turn, *rounds* times, and return the seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 20):
        prepare()
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            if number >= 20:
                times[name].append(time.perf_counter() - start)
    return times


def open_store(home: Path, store: str) -> app_module.Home:
    """Open a home of its own for one store."""
    home.mkdir()
    return app_module.open_home(config_load.load(env={"ADW_HOME": str(home), "ADW_STATE_STORE": store}, cwd=home))


def bench_steps(rounds: int, root: Path) -> bool:
    """Print the cost of a step on both stores against the bare replace; say whether both are within their limits."""
    with open_store(root / "files", "files") as files, open_store(root / "database", "database") as database:
        file_stepper, row_stepper = Stepper(files, "aa"), Stepper(database, "bb")

        def prepare() -> None:
            file_stepper.prepare()
            row_stepper.prepare()

        file_stepper.step()
        payload = (root / "files" / "state" / file_stepper.owned.document.adw_id / "adw_state.json").read_bytes()
        (root / "bare").mkdir()
        times = measure(
            rounds,
            {
                "bare durable replace": lambda: bare_replace(str(root / "bare"), payload),
                "files store": file_stepper.step,
                "database store (SQLite)": row_stepper.step,
            },
            prepare,
        )
        file_stepper.stack.close()
        row_stepper.stack.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    yardstick = medians["bare durable replace"]
    print(f"{rounds} interleaved rounds, document of {len(payload)} bytes")
    for name, value in medians.items():
        p95 = sorted(times[name])[int(len(times[name]) * 0.95)]
        print(f"  {name:26} median {value * 1000:7.3f} ms   p95 {p95 * 1000:7.3f} ms   ratio {value / yardstick:5.2f}")
    ok = True
    for name, limit in (("files store", FILES_LIMIT), ("database store (SQLite)", DATABASE_LIMIT)):
        ok &= verdict.tell(
            f"a step with the {name} beside a bare durable replace", medians[name] / yardstick, most=limit
        )
    return ok


def grown_steppers(app: app_module.Home, stack: ExitStack) -> dict[int, Callable[[], None]]:
    """Return for a short and for a long workflow what changes the last attempt of it and saves."""
    steps: dict[int, Callable[[], None]] = {}
    for number, attempts in enumerate((SHORT, LONG), start=1):
        now = timestamps.to_text(app.clock.now())
        new = new_document(now, f"cc{number:06x}", 10_000 + number)
        each = attempts // len(new.phases) + 1
        for index, record in enumerate(new.phases):
            made = [
                document.AttemptRecord(number=one + 1, started_at=now, ended_at=now, report={"summary": "word " * 20})
                for one in range(min(each, attempts - index * each))
            ]
            new.phases[index] = record.changed(attempts=made)
        owned = stack.enter_context(app.ownership.create(new))
        stack.enter_context(app.lease_renewer.charge(owned))

        def step(owned: OwnedWorkflow = owned) -> None:
            phases = list(owned.document.phases)
            last = phases[0].attempts[-1].changed(duration=time.monotonic())
            phases[0] = phases[0].changed(attempts=[*phases[0].attempts[:-1], last])
            owned.save(owned.document.changed(phases=phases), events=[Event(event_type="state_set", data={})])

        steps[attempts] = step

    return steps


def bench_growth(rounds: int, root: Path) -> bool:
    """Print what a step of a long workflow costs beside one of a short one; say whether that is within the limit."""
    ok = True
    for store in ("files", "database"):
        with open_store(root / f"growth-{store}", store) as app, ExitStack() as stack:
            steps = grown_steppers(app, stack)
            actions = {f"{attempts} attempts": step for attempts, step in steps.items()}
            times = measure(rounds, actions, lambda: None)
        short, long = (statistics.median(values) for values in times.values())
        print(f"  {store}: {SHORT} attempts {short * 1000:.3f} ms, {LONG} attempts {long * 1000:.3f} ms")
        ok &= verdict.tell(
            f"a step after {LONG} attempts beside one after {SHORT}, {store} store", long / short, most=GROWTH_LIMIT
        )
    return ok


def fill_rows(app: app_module.Home, start: int, stop: int) -> None:
    """Put rows into the catalogue as the projector does, without files behind them."""
    with app.database.write() as session:
        for number in range(start, stop):
            created = timestamps.to_text(START + timedelta(seconds=number))
            session.run(
                "INSERT INTO workflow_states (adw_id, repository, issue_number, title, workflow, state, revision,"
                " fence, owner, lease_until, lease_boot, taken_at, home, schema_version, body, created_at, updated_at)"
                " VALUES (:adw_id, '', :issue, 'title', 'sdlc', :state, 1,"
                " 1, '', 0, '', '', 'database', '3.0', '{}', :at, :at)",
                {
                    "adw_id": f"{number:08x}",
                    "issue": number,
                    "state": ("completed", "failed", "planning")[number % 3],
                    "at": created,
                },
            )


def page_seconds(app: app_module.Home, query: PageQuery) -> float:
    """Return how long a page takes."""
    start = time.perf_counter()
    page = app.catalogue.page(query)
    taken = time.perf_counter() - start
    if len(page.rows) != 50:
        raise SystemExit(f"a page of 50 has {len(page.rows)} rows")

    return taken


def bench_list(root: Path) -> bool:
    """Print the time of one page out of more and more workflows, in turns; say whether it is short and flat."""
    queries = (PageQuery(limit=50), PageQuery(limit=50, state="failed"))
    times: dict[int, list[float]] = {1_000: [], 10_000: [], 100_000: []}
    with ExitStack() as stack:
        homes = {size: stack.enter_context(open_store(root / f"list-{size}", "database")) for size in times}
        for size, app in homes.items():
            fill_rows(app, 0, size)
        for _ in range(PAGES):
            for size, app in homes.items():
                times[size] += [page_seconds(app, query) for query in queries]
    results = {size: statistics.median(each) * 1000 for size, each in times.items()}
    for size, value in results.items():
        print(f"  list, one page of 50 out of {size:7,}: {value:6.2f} ms")
    is_short = verdict.tell("a page of a list of 10,000", results[10_000], most=PAGE_LIMIT_MS, unit="ms")
    flat = results[100_000] / results[1_000]

    return verdict.tell("a page of a list of 100,000 beside one of 1,000", flat, most=FLAT_LIMIT) and is_short


def main() -> int:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: a temporary directory)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as root:
        steps_ok = bench_steps(given.rounds, Path(root))
        growth_ok = bench_growth(given.rounds, Path(root))
        list_ok = bench_list(Path(root))
    return 0 if steps_ok and growth_ok and list_ok else 1


if __name__ == "__main__":
    sys.exit(main())
