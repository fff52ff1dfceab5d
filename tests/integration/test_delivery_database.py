"""Deliveries in a real database: what is stored, what a check says, what is left when it is made again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws import app
from adws.adw_modules.deliveries.store import DeliveryStore
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.maintenance.check import find_problems
from adws.adw_modules.maintenance.rebuild import Reconstruction, plan_rebuild
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.queue.store import RunStore
from adws.config import load as config_load
from adws.testing import FakeClock, FakeProcesses
from tests.contracts.delivery_contract import WORKER, accepted, delivery, ignored

TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def deliveries(database, clock):
    return DeliveryStore(database, clock=clock)


@pytest.fixture
def runs(database, clock):
    return RunStore(database, clock=clock)


def accept(deliveries, made, number=1):
    return accepted(deliveries, replace(made, adw_id=f"a000000{number}"))


def look(database):
    problems = find_problems(database, home="files", documents=dict, processes=FakeProcesses(FakeClock().token))
    return [(problem.kind, problem.adw_id, problem.text, problem.hint) for problem in problems]


# --- check -----------------------------------------------------------------------------------------------------


def test_a_delivery_that_waits_is_no_problem_and_its_run_has_no_workflow(deliveries, database):
    accept(deliveries, delivery("g1"))
    accept(deliveries, ignored("g2"))

    assert look(database) == []


def test_a_delivery_whose_run_ended_without_a_word_is_named(deliveries, runs, database):
    accept(deliveries, delivery("g1"))
    run = runs.begin(runs.claim(WORKER, ttl_seconds=30))
    runs.finish(run, RunState.STOPPED, reason="stopped")

    said = "delivery g1 was accepted, and no run is left that does what it asks for"
    assert look(database) == [("delivery", "a0000001", said, "adw webhook replay g1 does it")]
    deliveries.finish("g1", status="done", outcome="x")
    assert look(database) == []


def test_what_stands_in_a_row_and_is_no_request_is_named(deliveries, database):
    accept(deliveries, delivery("g1"))
    for text in ("{", "[]"):
        database.transact(
            lambda session, text=text: session.run("UPDATE deliveries SET request = :text", {"text": text})
        )
        with pytest.raises(DatabaseError, match="what delivery g1 asks for"):
            deliveries.request_of("g1")


# --- what is stored --------------------------------------------------------------------------------------------


def test_no_secret_is_stored(tmp_path):
    settings = config_load.load(env={"ADW_HOME": str(tmp_path), "ADW_GITHUB_TOKEN": TOKEN}, cwd=tmp_path)
    with app.open_home(settings) as opened:
        made = delivery("g1", body=f'{{"body": "use {TOKEN}"}}'.encode())
        wish = {**made.request, "hint": f"use {TOKEN}"}
        answer = accepted(opened.deliveries, replace(made, request=wish, adw_id="a0000001"))

        assert answer.is_new
        assert TOKEN.encode() not in opened.deliveries.body_of("g1")
        assert TOKEN not in str(opened.deliveries.request_of("g1"))
        assert opened.runs.get(answer.run_id).kind == "delivery"
        again = accepted(opened.deliveries, replace(made, guid="g2", adw_id="a0000002"))
        assert not again.is_new, "what was sent is compared, not what is kept of it"
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# --- made again ------------------------------------------------------------------------------------------------


def test_a_database_that_is_made_again_keeps_deliveries_with_their_runs(
    sqlite_url, open_db, clock, tmp_path, monkeypatch
):
    before = open_db(sqlite_url)
    old, queue = DeliveryStore(before, clock=clock), RunStore(before, clock=clock)
    accept(old, delivery("done"), 1)
    queue.finish(queue.begin(queue.claim(WORKER, ttl_seconds=30)), RunState.COMPLETED)
    old.finish("done", status="done", outcome="started")
    accept(old, ignored("ignored"))
    accept(old, delivery("waiting"), 2)
    accept(old, delivery("waiting"), 3)
    monkeypatch.setattr(
        "adws.adw_modules.db.sqlite.SqliteDatabase.integrity_problems", lambda self: ["row 1 missing from index"]
    )
    reconstruction = Reconstruction(sqlite_url, clock=clock, boot_id="boot-1")
    salvage = reconstruction.salvage()
    reconstruction.close()
    monkeypatch.undo()

    url = f"sqlite:///{tmp_path}/new.db"
    made = Reconstruction(url, clock=clock, boot_id="boot-1")
    made.put(plan_rebuild((), salvage)[0])
    made.put(plan_rebuild((), salvage)[0])
    made.close()

    after = open_db(url)
    new, runs = DeliveryStore(after, clock=clock), RunStore(after, clock=clock)
    for row in old.page():
        assert replace(new.get(row.guid), run_id=None) == replace(row, run_id=None)
        assert new.request_of(row.guid) == old.request_of(row.guid)
        assert new.body_of(row.guid) == old.body_of(row.guid)
    assert [row.guid for row in new.page()] == ["waiting", "ignored", "done"]
    assert [(run.run_id, run.payload) for run in runs.page()] == [(new.get("waiting").run_id, {"guid": "waiting"})]
    assert new.get("done").run_id is None, "a run that is over is not brought back"
    assert not accept(new, delivery("other", intent="of done"), 4).is_new
    assert not accept(new, delivery("other", body=b"ignored"), 4).is_new
    assert look(after) == []
