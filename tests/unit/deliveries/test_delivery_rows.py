"""What every store of deliveries does alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.deliveries import store as deliveries_store
from adws.adw_modules.deliveries.commands import DeliveryRow
from adws.adw_modules.errors import DeliveryConflict, InvalidAdwId, UsageError
from adws.adw_modules.queue.model import DELIVERY, NewRun
from tests.contracts.delivery_contract import delivery, ignored
from tests.homes import lab_home

ROW = DeliveryRow(
    guid="g1",
    event="issue_comment",
    action="created",
    sender="octocat",
    repository="acme/widget",
    number=8,
    verdict="command",
    reason="stop the workflow of 8",
    status="done",
    outcome="stopped",
    run_id=1,
    adw_id="a0000001",
    received_at="2026-01-31T09:00:00.000000Z",
)


def test_only_what_asks_for_work_gets_a_run():
    run = deliveries_store.new_run(delivery("g1"), run_id_of="d0000001", adw_id="a0000001")

    assert run == NewRun(adw_id="d0000001", kind=DELIVERY, priority=100, payload={"guid": "g1"}, asked_by="octocat")
    assert deliveries_store.new_run(ignored("g1"), run_id_of="", adw_id="") is None
    assert deliveries_store.again_run("g1", run_id_of="d0000001", asked_by="octocat") == run


@pytest.mark.parametrize(("run_id_of", "adw_id"), [("", "a0000001"), ("d0000001", "")])
def test_both_ids_must_be_ids(run_id_of, adw_id):
    with pytest.raises(InvalidAdwId):
        deliveries_store.new_run(delivery("g1"), run_id_of=run_id_of, adw_id=adw_id)


def test_a_verdict_of_another_version_is_refused():
    with pytest.raises(UsageError, match="'perhaps' is no verdict; use one of run, command, ignored"):
        deliveries_store.new_run(delivery("g1", verdict="perhaps"), run_id_of="d0000001", adw_id="a0000001")


def test_a_run_of_somebody_else_is_not_taken_for_ours():
    wanted = NewRun(adw_id="d0000001", kind=DELIVERY, payload={"guid": "g1"})
    runs = lab_home().runs

    deliveries_store.refuse_taken_id(runs.enqueue(wanted), wanted)
    with pytest.raises(UsageError, match="fresh one"):
        deliveries_store.refuse_taken_id(runs.enqueue(wanted), replace(wanted, payload={"guid": "g2"}))


def test_one_guid_has_one_body():
    made = delivery("g1")

    deliveries_store.refuse_other_body(made, "g1", made.body_hash)
    deliveries_store.refuse_other_body(made, "g2", "of another one with the same intent")
    with pytest.raises(DeliveryConflict, match="'g1' came before with another body"):
        deliveries_store.refuse_other_body(made, "g1", "another")


def test_the_intent_is_that_of_the_request():
    assert deliveries_store.intent_of(delivery("g1", intent="x")) == "x"
    assert deliveries_store.intent_of(ignored("g1")) == ""


def test_long_bodies_are_kept_of_what_asks_for_work():
    long = b"x" * (deliveries_store.IGNORED_BYTES + 1)

    assert deliveries_store.kept_body(delivery("g1", body=long)) == long
    assert deliveries_store.kept_body(ignored("g1", body=long)) is None
    assert deliveries_store.kept_body(ignored("g1", body=long[1:])) == long[1:]


def test_a_delivery_ends_in_three_ways():
    for status in ("done", "refused", "failed"):
        deliveries_store.check_finish(status, "")
        deliveries_store.check_finish(status, "a0000001")
    with pytest.raises(UsageError, match="'received'; it ends as one of done, refused, failed"):
        deliveries_store.check_finish("received", "")
    with pytest.raises(InvalidAdwId):
        deliveries_store.check_finish("done", "../x")


def test_what_is_done_again_is_what_was_asked_for_or_what_is_made_of_it_now():
    stored = {"type": "run"}
    now = delivery("g1")

    assert deliveries_store.check_again(ROW, stored, None, "b0000001") == deliveries_store.Wanted(
        verdict="command", reason="stop the workflow of 8", request=stored, adw_id="a0000001"
    )
    assert deliveries_store.check_again(replace(ROW, adw_id=""), stored, now, "b0000001") == deliveries_store.Wanted(
        verdict="run", reason=now.reason, request=now.request, adw_id="b0000001"
    )
    with pytest.raises(UsageError, match="delivery g1 asks for nothing: the comment asks for nothing"):
        deliveries_store.check_again(ROW, stored, ignored("g1"), "b0000001")
    with pytest.raises(InvalidAdwId):
        deliveries_store.check_again(replace(ROW, adw_id=""), stored, None, "")


def test_what_was_refused_is_done_again_under_an_id_of_its_own():
    """Its row names who was in the way: that one would be taken for what it has started."""
    refused = replace(ROW, status="refused")

    assert deliveries_store.check_again(refused, {"type": "run"}, None, "b0000001").adw_id == "b0000001"
    assert deliveries_store.check_again(refused, {"type": "run"}, None, "").adw_id == "a0000001"
    named = {"type": "run", "adw_id": "c0000001"}
    assert deliveries_store.check_again(refused, named, None, "b0000001").adw_id == "c0000001", "it is to go on"


def test_a_command_names_the_workflow_that_it_meant_and_none_that_was_never_there():
    waiting, run = replace(ROW, status="received"), replace(ROW, verdict="run")

    assert deliveries_store.meant_id(waiting) == ""
    assert deliveries_store.meant_id(ROW) == deliveries_store.meant_id(replace(run, status="received")) == "a0000001"
    assert deliveries_store.finished_id(waiting, "refused", "") == ""
    assert deliveries_store.finished_id(waiting, "refused", "b0000001") == "b0000001"
    assert deliveries_store.finished_id(waiting, "done", "") == "a0000001"
    assert deliveries_store.finished_id(run, "refused", "") == "a0000001", "it was told so when it came"


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_page_has_at_least_one_row(limit):
    assert deliveries_store.check_limit(1) == 1
    with pytest.raises(UsageError, match="at least 1"):
        deliveries_store.check_limit(limit)
