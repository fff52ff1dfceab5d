"""`adw db check` names what does not fit, and leaves alone what a live owner is doing."""

from __future__ import annotations

import pytest

from adws.adw_modules.checkpoint import CheckpointStore
from adws.adw_modules.db import migrate, schema
from adws.adw_modules.interfaces import LoadedState, LoadNotice
from adws.adw_modules.maintenance import check
from adws.adw_modules.ownership.issue_locks import WorkflowRegistry
from adws.adw_modules.queue.model import NewRun
from adws.adw_modules.workflow.requirements import Capabilities
from adws.testing import FakeProcesses
from tests.contracts.projection_contract import projected, projection_on
from tests.contracts.worlds import FIRST, SECOND, database_world, make_document, make_owner


def loaded(revision: int = 3, *, notices=(), **fields):
    """A document as it was read; without an issue unless *fields* name one."""
    return LoadedState(document=make_document(revision=revision, **{"issue_number": None, **fields}), notices=notices)


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


@pytest.fixture
def processes(clock):
    return FakeProcesses(clock.token)


@pytest.fixture
def copies(database, clock):
    """Copies of documents that live in files."""
    projection = projection_on(database)
    yield projection
    projection.close()


@pytest.fixture
def look(database, processes):
    """`look({"1a2b3c4d": 3})` returns (kind, workflow, text) of each problem, with these documents in files."""

    def find(documents=None, home="files"):
        read = {key: loaded(one) if isinstance(one, int) else one for key, one in (documents or {}).items()}
        problems = check.find_problems(database, home=home, documents=lambda: read, processes=processes)
        assert all(problem.hint for problem in problems)
        return [(problem.kind, problem.adw_id, problem.text) for problem in problems]

    return find


def test_a_database_that_fits_has_no_problem(look, copies):
    copies.update(projected(3))

    assert look({FIRST: 3}) == []


def test_a_document_that_is_newer_than_its_copy_is_named(look, copies):
    copies.update(projected(3))

    assert look({FIRST: 5}) == [("copy", FIRST, "the database has revision 3, the document is at 5")]


def test_a_document_that_went_back_is_named(look, copies):
    copies.update(projected(3))

    ((kind, _, text),) = look({FIRST: 2})
    assert kind == "copy"
    assert "an older file was put back" in text


def test_a_row_whose_document_is_gone_is_named(look, copies):
    copies.update(projected(3))

    assert look() == [("document", FIRST, "its document is gone; the database has a copy of revision 3")]


def test_a_document_that_cannot_be_read_is_named(look, copies):
    copies.update(projected(3))

    assert look({FIRST: "it is torn"}) == [("document", FIRST, "its document cannot be read: it is torn")]


@pytest.mark.parametrize("home", ["files", "database"])
def test_a_creation_that_was_cut_short_is_named_once_its_lease_is_over(look, world, database, processes, home):
    registry = WorkflowRegistry(database, clock=world.clock, home=home)
    registry.register(make_document(), processes.me("cli"), ttl_seconds=30.0)
    assert look(home=home) == [], "it may be on its way"

    world.let_pass(31.0)

    assert look(home=home) == [("document", FIRST, "it was registered and its document was never written")]


def test_a_live_owner_may_be_a_moment_ahead_of_the_copy(look, copies, world, processes):
    copies.update(projected(3))
    world.leases.take(FIRST, processes.me("worker"), ttl_seconds=30.0)

    assert look({FIRST: 5}) == []


def test_a_dead_owner_is_named(look, copies, world, processes):
    copies.update(projected(3))
    owner = processes.me("worker")
    world.leases.take(FIRST, owner, ttl_seconds=30.0)
    processes.kill(owner)

    assert look({FIRST: 3}) == [("owner", FIRST, f"its owner {owner.describe()} is dead and did not release it")]


def test_a_document_of_the_other_home_is_named(look, copies):
    copies.update(projected(3))

    ((kind, adw_id, text),) = look(home="database")
    assert (kind, adw_id) == ("document", FIRST)
    assert "lives in the files store" in text


def test_a_lock_and_a_request_of_nobody_are_named(look, world):
    world.locks.acquire(42, FIRST, "acme/widget")
    asked = world.requests.ask(SECOND, "pause")

    assert look() == [
        ("lock", FIRST, "issue 42 of acme/widget is locked for a workflow that is gone"),
        ("request", SECOND, f"request {asked.request_id} waits for a workflow that is gone"),
    ]

    world.requests.handled(asked.request_id, "too late")
    world.locks.release(42, FIRST, "acme/widget")
    assert look() == []


@pytest.mark.parametrize(("count", "words"), [(1, "1 checkpoint is"), (2, "2 checkpoints are")])
def test_checkpoints_of_nobody_are_named(look, world, database, count, words):
    checkpoints = CheckpointStore(database, clock=world.clock)
    world.add_row(FIRST)
    for number in range(count):
        checkpoints.add(f"id-{number}", f"{FIRST}/build", "{}", step_name=None, keep=9, fence=0)
    checkpoints.add("mine", f"{SECOND}/mine", "{}", step_name=None, keep=9)
    with database.write() as session:
        session.run("DELETE FROM workflow_states")

    assert look() == [("checkpoint", FIRST, f"{words} of a workflow that is gone")]

    checkpoints.forget(FIRST)
    assert look() == []


def test_another_schema_is_all_that_is_said(sqlite_url, open_db, processes):
    database = open_db(sqlite_url)
    with database.write() as session:
        session.run("UPDATE alembic_version SET version_num = '9999'")

    (problem,) = check.find_problems(database, home="files", documents=lambda: {FIRST: loaded(1)}, processes=processes)
    assert problem.kind == "schema"
    assert "upgrade adw" in problem.hint


def test_no_database_is_a_problem_when_there_are_documents(tmp_path, clock, processes):
    database = migrate.connect(f"sqlite:///{tmp_path}/adw.db", clock=clock)

    def find(documents):
        return check.find_problems(database, home="files", documents=lambda: documents, processes=processes)

    assert find({}) == ()
    (problem,) = find({FIRST: loaded(1)})
    assert problem.kind == "schema"
    assert "adw db rebuild" in problem.hint
    assert not (tmp_path / "adw.db").exists(), "looking makes nothing"


@pytest.mark.parametrize("kind", ["recovered", "foreign", "corrupt"])
def test_a_file_that_another_copy_stands_in_for_is_named(look, copies, kind):
    copies.update(projected(3))
    notice = LoadNotice(kind=kind, path="state/x/adw_state.json", reason="it is not as adw wrote it")

    assert look({FIRST: loaded(3, notices=(notice,))}) == [
        ("document", FIRST, "state/x/adw_state.json: it is not as adw wrote it")
    ]


def test_a_document_of_an_older_version_is_no_damage(look, copies):
    copies.update(projected(3))
    notice = LoadNotice(kind="migrated", path="x", reason="brought up in memory")

    assert look({FIRST: loaded(3, notices=(notice,))}) == []


def test_an_unfinished_workflow_without_its_issue_is_named(look, copies, world):
    copies.update(projected(3))
    documents = {FIRST: loaded(3, issue_number=12, repository="acme/widget", current_state="paused")}

    missing = "it is unfinished, and nobody has the lock of its issue 12 of acme/widget"
    assert look(documents) == [("lock", FIRST, missing)]

    world.locks.acquire(12, SECOND, "acme/widget")
    taken = f"it is unfinished, and its issue 12 of acme/widget is locked for workflow {SECOND}"
    assert ("lock", FIRST, taken) in look(documents)

    world.locks.release(12, SECOND, "acme/widget")
    world.locks.acquire(12, FIRST, "acme/widget")
    assert look(documents) == []


def test_a_session_of_an_agent_whose_run_is_over_is_named(look, world, database):
    run = world.runs.enqueue(NewRun(adw_id=FIRST, kind="cron"))
    for name, run_id in (("open", run.run_id), ("left", run.run_id + 1), ("no-run", None)):
        with database.write() as session:
            session.run(
                "INSERT INTO sessions VALUES (:name, :adw_id, :run_id, 'plan', 1, 'claude', 'h', 'running', '', '', '',"
                " NULL)",
                {"name": name, "adw_id": FIRST, "run_id": run_id},
            )

    assert look() == [("session", FIRST, "session left of an agent has not ended, and its run is over")]


def test_a_database_that_has_moved_says_only_that(look, world, database):
    world.requests.ask(FIRST, "pause")
    with database.write() as session:
        migrate.write_fact(session, migrate.MOVED_TO, '{"target": "postgresql://there/adw"}', moment="")

    assert look() == [("moved", "", "all of it has moved to postgresql://there/adw")]


def test_a_worker_whose_record_cannot_be_read_is_named(world, database, look):
    world.runners.register(make_owner("one"), Capabilities(host="testhost"), concurrency=1, version="1")
    assert look() == []
    with database.write() as session:
        session.run("UPDATE runners SET owner = 'nobody'")

    assert look() == [("runner", "", f"runner {make_owner('one').token}: its record cannot be read")]


def test_a_view_that_somebody_dropped_is_named_and_made_again(look, database):
    with database.write() as session:
        session.run("DROP VIEW run_status")
    assert look() == [("schema", "", "the view run_status is missing")]

    assert schema.make_missing(database) == ("run_status",)

    assert look() == []
    assert schema.make_missing(database) == ()
