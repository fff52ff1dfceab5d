"""What people and programs say goes into the shared tables without secrets, on both databases."""

from __future__ import annotations

import json

import pytest

from adws.adw_modules.deliveries.commands import Delivery
from adws.adw_modules.deliveries.store import DeliveryStore
from adws.adw_modules.queue.model import NewRun, RunState
from adws.adw_modules.redaction.redactor import Redactor
from tests.contracts.worlds import FIRST, SECOND, database_world, make_owner

SECRET = "correct-horse-battery-staple"


@pytest.fixture(autouse=True)
def redactor(database):
    known = Redactor([SECRET])
    database.scrub_text, database.scrub_json = known.scrub_text, known.scrub_json
    return known


@pytest.fixture
def world(database, clock):
    return database_world(database, clock)


def cells(database, table):
    with database.read() as session:
        return [cell for row in session.all(f"SELECT * FROM {table}") for cell in row]


def test_no_secret_of_an_order_is_in_the_requests(world, database):
    request = world.requests.ask(FIRST, "pause", payload={"reason": f"{SECRET} leaks", "n": 1}, asked_by=f"me {SECRET}")
    world.requests.handled(request.request_id, f"done with {SECRET}")

    assert request.payload == {"reason": "[redacted] leaks", "n": 1}
    assert SECRET not in str(cells(database, "requests"))
    assert world.requests.get(request.request_id).outcome == "done with [redacted]"


def test_no_secret_is_in_the_runs_whoever_asks_and_whatever_came_of_them(world, database):
    world.runs.enqueue(NewRun(adw_id=FIRST, asked_by=f"me {SECRET}", payload={"reason": SECRET}))
    world.runs.enqueue(NewRun(adw_id=SECOND))
    run = world.runs.claim(make_owner(), ttl_seconds=60.0)
    world.runs.requeue(run, reason=f"waits for {SECRET}")
    again = world.runs.claim(make_owner(), ttl_seconds=60.0)
    assert SECRET not in str(cells(database, "runs"))
    world.runs.finish(again, RunState.FAILED, reason=f"failed with {SECRET}")
    world.runs.ask_to_stop(world.runs.of_workflow(SECOND)[0].run_id, reason=SECRET)

    assert SECRET not in str(cells(database, "runs"))
    assert (run.asked_by, run.payload) == ("me [redacted]", {"reason": "[redacted]"})
    assert world.runs.get(run.run_id).reason == "failed with [redacted]"


def test_no_secret_of_a_delivery_is_kept_in_any_column(database, clock, redactor):
    deliveries = DeliveryStore(database, clock=clock, scrub=redactor.scrub_bytes)
    said = {name: f"{name} {SECRET}" for name in ("event", "action", "hook", "sender", "repository", "reason")}
    new = Delivery(
        guid="guid-1",
        body=f'{{"title": "{SECRET}"}}'.encode(),
        body_hash="0" * 64,
        number=7,
        verdict="run",
        request={"intent": f"intent {SECRET}", "hint": SECRET},
        **said,
    )

    deliveries.accept([new])
    deliveries.finish("guid-1", status="failed", outcome=f"no {SECRET}")

    result = cells(database, "deliveries") + cells(database, "runs")
    assert SECRET not in str([bytes(cell) if isinstance(cell, memoryview) else cell for cell in result])
    assert "sender [redacted]" in result


@pytest.mark.parametrize("where", ["event", "action", "hook", "sender", "repository", "reason", "intent", "hint"])
def test_one_secret_anywhere_in_a_delivery_is_found(database, clock, redactor, where):
    deliveries = DeliveryStore(database, clock=clock, scrub=redactor.scrub_bytes)
    said = {name: f"the {name}" for name in ("event", "action", "hook", "sender", "repository", "reason")}
    request = {"intent": "the intent", "hint": "the hint"}
    (said if where in said else request)[where] += f" {SECRET}"
    new = Delivery(guid="guid-1", body=b"{}", body_hash="0" * 64, number=7, verdict="run", request=request, **said)

    deliveries.accept([new])

    result = str(cells(database, "deliveries"))
    assert SECRET not in result
    assert f"the {where} [redacted]" in result


def test_a_part_of_a_secret_that_was_cut_is_not_kept_either(world, database):
    world.runs.enqueue(NewRun(adw_id=FIRST, asked_by=f"me {SECRET[:-4]}"))

    assert SECRET[:12] not in str(cells(database, "runs"))


def test_a_secret_in_json_that_somebody_said_is_not_kept_nor_a_part_of_it(world, database):
    """
    A reason may be an error that was pasted: JSON in JSON, and its blanks are not those of the secret any more.
    """
    secret = 'Tür  "5" Schlüssel-€'
    known = Redactor([secret])
    database.scrub_text, database.scrub_json = known.scrub_text, known.scrub_json
    reason = json.dumps({"x": json.dumps([secret])})

    whole = world.requests.ask(FIRST, "pause", payload={"reason": reason})
    cut = world.requests.ask(FIRST, "hint", payload={"text": " ".join(reason.split())})

    assert json.loads(json.loads(whole.payload["reason"])["x"]) == ["[redacted]"]
    assert "chlüssel" not in json.loads(json.loads(cut.payload["text"])["x"])[0]


def test_what_holds_no_secret_is_stored_as_it_was_said(world):
    request = world.requests.ask(FIRST, "hint", payload={"text": "use the öther door"}, asked_by="Zoë")

    assert (request.payload, request.asked_by) == ({"text": "use the öther door"}, "Zoë")
