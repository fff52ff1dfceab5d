"""The run queue on real databases: competing processes, killed claimers, restarts, watches, and which index is used."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db import schema
from adws.adw_modules.db.connection import Database
from adws.adw_modules.db.migrate import open_database
from adws.adw_modules.db.sqlite import SqliteSession
from adws.adw_modules.errors import RunLost
from adws.adw_modules.interfaces import LeaseBusy, OwnerRecord, Verdict
from adws.adw_modules.ownership.issue_locks import WorkflowRegistry
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.queue.model import LIVE_RUNS, NO_DEMANDS, ClaimPolicy, NewRun, Run, RunLimits, RunState
from adws.adw_modules.queue.store import RunStore
from adws.adw_modules.workflow.requirements import Capabilities, Requirements
from adws.testing import FakeClock
from tests import forked, warm
from tests.contracts.worlds import FIRST, database_world, make_document, make_owner
from tests.integration import run_queue_worker

TTL = 30.0


def queue_on(database, clock) -> RunStore:
    return RunStore(database, clock=clock)


# --- processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def start(database_url):
    """Start a worker process; whatever still runs at the end is ended."""
    running = []

    def run(mode: str = "work") -> subprocess.Popen[str]:
        process = warm.Popen(
            [sys.executable, run_queue_worker.__file__, database_url, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with process:
            process.kill()


@pytest.fixture
def open_real():
    """Open a database by the time of this machine, which worker processes have too; closed after the test."""
    opened = []

    def open_it(url: str) -> Database:
        clock = SystemClock()
        opened.append(open_database(url, clock=clock, boot_id=SystemProcesses(clock=clock).boot_id))
        return opened[-1]

    yield open_it
    for database in opened:
        database.close()


def go(*workers: subprocess.Popen[str]) -> None:
    """Let *workers* begin at the same moment."""
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()


def said(worker: subprocess.Popen[str], word: str) -> list[tuple[int, int]]:
    """Return the numbers after *word* in all that *worker* says until its end."""
    output = worker.stdout.read()
    return [tuple(map(int, line.split()[1:])) for line in output.splitlines() if line.startswith(word)]


def test_processes_that_compete_never_get_the_same_run(database, clock, start):
    queue = queue_on(database, clock)
    ids = [queue.enqueue(NewRun(adw_id=f"{number:08x}")).run_id for number in range(120)]
    workers = [start() for _ in range(4)]
    go(*workers)

    claimed = [said(worker, "claimed") for worker in workers]

    assert sorted(run_id for item in claimed for run_id, _ in item) == ids
    assert all(token == 1 for item in claimed for _, token in item)
    for item in claimed:
        assert item == sorted(item), "each of them went from the oldest to the newest"
    assert {run.state for run in queue.page(limit=200)} == {RunState.COMPLETED}


def test_processes_that_ask_for_the_same_workflows_get_the_same_runs(database, clock, start):
    askers = [start("ask") for _ in range(4)]
    go(*askers)

    got = {tuple(said(asker, "got")) for asker in askers}

    assert len(got) == 1, "every process got the same run for the same workflow"
    assert len(queue_on(database, clock).page(limit=200)) == 40


def test_a_claimer_killed_at_any_moment_loses_no_run_and_doubles_none(database_url, open_real, start, seed, repeat):
    """
    Every run ends exactly once, whatever was killed in between; what a dead worker had is taken back and done again.
    """
    rng, kills = random.Random(seed), repeat(6, 100)
    processes = SystemProcesses(clock=SystemClock())
    queue = queue_on(open_real(database_url), SystemClock())
    count = 15 * kills
    ids = [queue.enqueue(NewRun(adw_id=f"{number:08x}")).run_id for number in range(count)]
    finished = Counter[int]()
    for _ in range(kills):
        victim = start()
        go(victim)
        for _ in range(rng.randrange(1, 25)):
            victim.stdout.readline()
        victim.kill()
        finished.update(run_id for run_id, _ in said(victim, "finished"))
        victim.wait()
        for run in queue.live():
            assert processes.verdict(OwnerRecord.from_text(run.owner)) is Verdict.DEAD
            back = queue.take_back(run, reason="its worker died")
            assert back.state is RunState.PENDING
            with pytest.raises(RunLost):
                queue.finish(run, RunState.COMPLETED)
    last = start()
    go(last)
    said(last, "finished")

    runs = queue.page(limit=count + 1)
    assert [run.run_id for run in reversed(runs)] == ids
    assert {run.state for run in runs} == {RunState.COMPLETED}
    assert max(finished.values(), default=1) == 1, "no run was finished twice"
    assert all(run.token == run.attempts >= 1 for run in runs)
    assert sum(run.attempts - 1 for run in runs) <= kills, "only what a dead worker had was claimed again"


# --- order, by chance ------------------------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: the queue on SQLite and a plain list agree."""

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock(seed=1)
        self.database = open_database(f"sqlite:///{self.new_file()}", clock=self.clock, boot_id="boot-1")
        self.queue = queue_on(self.database, self.clock)
        self.due: dict[int, int] = {}  #: what waits and is due: run id -> priority
        self.later: set[int] = set()  #: what waits for its time
        self.held: dict[int, Run] = {}  #: what workers have
        self.stopping: set[int] = set()
        self.number = 0

    @rule(priority=st.integers(-1, 1), not_before=st.sampled_from(["", "", "", "2100-01-01"]))
    def enqueue(self, priority: int, not_before: str) -> None:
        self.number += 1
        new = NewRun(adw_id=f"{self.number:08x}", priority=priority, not_before=not_before)
        run = self.queue.enqueue(new)
        assert (run.state, run.priority) == (RunState.PENDING, priority)
        if not_before:
            self.later.add(run.run_id)
        else:
            self.due[run.run_id] = priority

    @rule(name=st.sampled_from("abc"))
    def claim(self, name: str) -> None:
        first = min(self.due, key=lambda run_id: (-self.due[run_id], run_id), default=None)
        run = self.queue.claim(make_owner(name), ttl_seconds=TTL)
        assert (run and run.run_id) == first, "the highest priority, then the oldest"
        if run is None:
            return
        assert run.run_id not in self.held, "somebody has it already"
        del self.due[run.run_id]
        self.held[run.run_id] = run

    @precondition(lambda self: self.held)
    @rule(data=st.data(), end=st.sampled_from(["finish", "requeue", "take_back", "lose", "stop"]))
    def report(self, data: st.DataObject, end: str) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.held)))
        run = self.held[run_id]
        if end == "stop":
            assert self.queue.ask_to_stop(run_id, reason="stop").state is RunState.STOPPING
            self.stopping.add(run_id)
            return
        del self.held[run_id]
        if end == "finish":
            assert self.queue.finish(run, RunState.FAILED).state is RunState.FAILED
            return
        if end == "requeue":
            after, losses = self.queue.requeue(run, reason="again"), run.losses
        else:
            after, losses = self.queue.take_back(run, reason="gone"), run.losses + 1
        assert (after.losses, after.attempts, after.owner) == (losses, run.attempts, "")
        if run_id in self.stopping:
            assert (after.state, after.reason) == (RunState.STOPPED, "stop")
        else:
            assert after.state is RunState.PENDING
            self.due[run_id] = run.priority
        if end == "lose":
            with pytest.raises(RunLost):
                self.queue.renew(run, ttl_seconds=TTL)

    @rule(seconds=st.floats(0.1, 40.0))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        waiting = self.queue.page(states=[RunState.PENDING], limit=1000)
        assert {run.run_id for run in waiting} == {*self.due, *self.later}
        assert {run.run_id for run in self.queue.live()} == set(self.held)
        assert all(run.state in LIVE_RUNS for run in self.queue.live())

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()


def test_whatever_happens_each_run_has_one_worker_and_the_order_is_kept(sqlite_url, tmp_path):
    numbers = itertools.count()

    class Machine(QueueMachine):
        def new_file(self) -> Path:
            return Path(shutil.copy(tmp_path / "adw.db", tmp_path / f"{next(numbers)}.db"))

    run_state_machine_as_test(Machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))


# --- time ------------------------------------------------------------------------------------------------------


def test_a_claim_of_an_earlier_start_of_the_machine_is_over(sqlite_url, open_db, clock):
    before = queue_on(open_db(sqlite_url, boot_id="boot-1"), clock)
    before.enqueue(NewRun(adw_id=FIRST))
    claimed = before.claim(make_owner(), ttl_seconds=1e9)
    after = queue_on(open_db(sqlite_url, boot_id="boot-2"), clock)

    (result,) = after.live()

    assert result.seconds_left < 0
    assert after.take_back(result, reason="the machine was started anew").state is RunState.PENDING
    assert before.get(claimed.run_id).state is RunState.PENDING


def test_turning_the_wall_clock_ends_no_claim(database, clock):
    queue = queue_on(database, clock)
    queue.enqueue(NewRun(adw_id=FIRST))
    queue.claim(make_owner(), ttl_seconds=TTL)
    clock.set(clock.now().replace(year=2031))

    assert queue.live()[0].seconds_left == pytest.approx(TTL, abs=1.0)


# --- one transaction -------------------------------------------------------------------------------------------


def test_a_run_exists_when_the_transaction_around_it_is_committed(database, clock):
    queue = queue_on(database, clock)

    def work(session) -> None:
        queue.enqueue_in(session, NewRun(adw_id=FIRST))
        raise LookupError

    with pytest.raises(LookupError):
        database.transact(work)

    assert queue.page() == ()
    assert database.transact(lambda session: queue.enqueue_in(session, NewRun(adw_id=FIRST))) == queue.page()[0]


def test_a_registrar_killed_before_its_commit_leaves_neither_workflow_nor_run(sqlite_url, open_db, clock):
    database = open_db(sqlite_url)
    world = database_world(database, clock)

    def register_and_die() -> None:
        registry = WorkflowRegistry(database, clock=clock, home="database")
        registry._queue.enqueue_in = lambda session, run: os.kill(os.getpid(), 9)
        registry.register(make_document(FIRST), make_owner(), ttl_seconds=TTL, run=NewRun(adw_id=FIRST))

    assert not forked.is_well(forked.start(register_and_die))
    assert world.leases.read(FIRST) is None
    assert world.locks.all() == ()
    assert world.runs.page() == ()


def test_a_run_of_a_workflow_that_is_being_created_waits_for_its_creator(database, clock):
    """
    The run is there before the document is: a worker that is faster finds the workflow busy, not missing.
    """
    world = database_world(database, clock)
    world.registry.register(make_document(FIRST), make_owner("creator"), ttl_seconds=TTL, run=NewRun(adw_id=FIRST))
    claimed = world.runs.claim(make_owner("worker"), ttl_seconds=TTL)

    assert isinstance(world.leases.take(FIRST, make_owner("worker"), ttl_seconds=TTL), LeaseBusy)
    assert world.runs.requeue(claimed).state is RunState.PENDING


# --- indexes ---------------------------------------------------------------------------------------------------


def test_queries_name_every_column_of_the_table(sqlite_url, open_db):
    shown = queue_store.render(open_db(sqlite_url), "{shown}")

    assert tuple(column.name for column in schema.runs.columns) == (*queue_store.RUN_COLUMNS, "woken")
    for name in queue_store.RUN_COLUMNS:
        assert name in shown


#: What is asked -> the index that the query walks.
WALKS = {
    "next due": (lambda queue: queue.seconds_to_next(), "ix_runs_waiting"),
    "live": (lambda queue: queue.live(), "ix_runs_state"),
    "page": (lambda queue: queue.page(), "PRIMARY KEY"),
    "page of waiting": (lambda queue: queue.page(states=[RunState.PENDING]), "ix_runs_waiting"),
    "page of failed": (lambda queue: queue.page(states=[RunState.FAILED]), "ix_runs_state (state=? AND run_id<?)"),
    "page of completed": (lambda queue: queue.page(states=[RunState.COMPLETED]), "PRIMARY KEY (rowid<?)"),
    "of a workflow": (lambda queue: queue.of_workflow(FIRST), "ix_runs_workflow"),
    "unfinished": (lambda queue: [queue.enqueue(NewRun(adw_id=FIRST)) for _ in range(2)], "uq_runs_unfinished"),
    "demanding": (lambda queue: queue.demanding(), "ix_runs_demanding"),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_query_walks_its_index(sqlite_url, open_db, clock, name):
    database = open_db(sqlite_url)
    ask, index = WALKS[name]

    assert index in plan(database, queries_of(database, lambda: ask(queue_on(database, clock)))[-1])


TAGGED = Requirements(tags=frozenset({"gpu"}))
LIMITED = ClaimPolicy(limits=RunLimits(scopes={"workflow": {"*": 0, "x": 0}}))
#: What a worker claims by, while only deliveries are wanted, something demands something, or something is limited.
CLAIMS = {
    "usual": ({}, NO_DEMANDS),
    "delivery": ({"only_deliveries": True}, NO_DEMANDS),
    "demands": ({"terms": ClaimPolicy(offer=Capabilities(host="h", tags=TAGGED.tags))}, TAGGED),
    "limits": ({"terms": LIMITED}, NO_DEMANDS),
    "demands and limits": ({"terms": LIMITED}, TAGGED),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_walks_the_queue_in_its_order_and_sorts_nothing(sqlite_url, open_db, clock, name):
    """Also what looks before a claim; and demands that wait are found by an index of their own."""
    database = open_db(sqlite_url)
    how, demands = CLAIMS[name]
    queue = queue_on(database, clock)
    queue.enqueue(NewRun(adw_id=FIRST, demands=demands))

    def claim() -> None:
        for _ in range(3):  # the second one knows what waits, the third what the second did not find
            queue.claim(make_owner(), ttl_seconds=TTL, **how)

    queries = set(queries_of(database, claim))
    walked = {sql: plan(database, sql) for sql in queries}

    assert any("ix_runs_waiting" in steps for steps in walked.values())
    for sql, steps in walked.items():
        assert "TEMP B-TREE" not in steps or "DISTINCT" in sql
        assert "ix_runs_demanding" in steps or "demands <> ''" not in sql


def queries_of(database, action) -> list[str]:
    """Return the queries that *action* makes."""
    queries: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("one", "all", "run"):
            done = getattr(SqliteSession, name)

            def noted(self, sql, params=MappingProxyType({}), *, done=done):
                queries.append(sql)
                return done(self, sql, dict(params))

            patch.setattr(SqliteSession, name, noted)
        action()

    return queries


def plan(database, sql: str) -> str:
    params = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    with database.read() as session:
        return " ".join(str(row[3]) for row in session.all(f"EXPLAIN QUERY PLAN {sql}", params))


# --- waiting ---------------------------------------------------------------------------------------------------


def test_an_idle_claim_does_not_wait_for_writers(sqlite_url, open_db, clock):
    """
    A worker without work must not stand in the queue of those who write.
    """
    database, other = open_db(sqlite_url, patience_seconds=0.2), open_db(sqlite_url)
    with other.write() as session:
        session.run("DELETE FROM requests")
        assert queue_on(database, clock).claim(make_owner(), ttl_seconds=TTL) is None
