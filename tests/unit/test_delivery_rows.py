"""What every store of deliveries does alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules import delivery_rows
from adws.adw_modules.errors import DeliveryConflict, InvalidAdwId, UsageError
from adws.adw_modules.runs import DELIVERY, NewRun
from adws.adw_modules.trigger import DeliveryRow
from adws.testing import FakeClock, MemoryRunQueue
from tests.contracts.delivery_contract import delivery, ignored

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
    run = delivery_rows.new_run(delivery("g1"), run_id_of="d0000001", adw_id="a0000001")

    assert run == NewRun(adw_id="d0000001", kind=DELIVERY, priority=100, payload={"guid": "g1"}, asked_by="octocat")
    assert delivery_rows.new_run(ignored("g1"), run_id_of="", adw_id="") is None
    assert delivery_rows.again_run("g1", run_id_of="d0000001", asked_by="octocat") == run


@pytest.mark.parametrize(("run_id_of", "adw_id"), [("", "a0000001"), ("d0000001", "")])
def test_both_ids_must_be_ids(run_id_of, adw_id):
    with pytest.raises(InvalidAdwId):
        delivery_rows.new_run(delivery("g1"), run_id_of=run_id_of, adw_id=adw_id)


def test_a_verdict_of_another_version_is_refused():
    with pytest.raises(UsageError, match="'perhaps' is no verdict; use one of run, command, ignored"):
        delivery_rows.new_run(delivery("g1", verdict="perhaps"), run_id_of="d0000001", adw_id="a0000001")


def test_a_run_of_somebody_else_is_not_taken_for_ours():
    wanted = NewRun(adw_id="d0000001", kind=DELIVERY, payload={"guid": "g1"})
    runs = MemoryRunQueue(FakeClock())

    delivery_rows.refuse_taken_id(runs.enqueue(wanted), wanted)
    with pytest.raises(UsageError, match="fresh one"):
        delivery_rows.refuse_taken_id(runs.enqueue(wanted), replace(wanted, payload={"guid": "g2"}))


def test_one_guid_has_one_body():
    made = delivery("g1")

    delivery_rows.refuse_other_body(made, "g1", made.body_hash)
    delivery_rows.refuse_other_body(made, "g2", "of another one with the same intent")
    with pytest.raises(DeliveryConflict, match="'g1' came before with another body"):
        delivery_rows.refuse_other_body(made, "g1", "another")


def test_the_intent_is_that_of_the_request():
    assert delivery_rows.intent_of(delivery("g1", intent="x")) == "x"
    assert delivery_rows.intent_of(ignored("g1")) == ""


def test_long_bodies_are_kept_of_what_asks_for_work():
    long = b"x" * (delivery_rows.IGNORED_BYTES + 1)

    assert delivery_rows.kept_body(delivery("g1", body=long)) == long
    assert delivery_rows.kept_body(ignored("g1", body=long)) is None
    assert delivery_rows.kept_body(ignored("g1", body=long[1:])) == long[1:]


def test_a_delivery_ends_in_three_ways():
    for status in ("done", "refused", "failed"):
        delivery_rows.check_finish(status, "")
        delivery_rows.check_finish(status, "a0000001")
    with pytest.raises(UsageError, match="'received'; it ends as one of done, refused, failed"):
        delivery_rows.check_finish("received", "")
    with pytest.raises(InvalidAdwId):
        delivery_rows.check_finish("done", "../x")


def test_what_is_done_again_is_what_was_asked_for_or_what_is_made_of_it_now():
    stored = {"type": "run"}
    now = delivery("g1")

    assert delivery_rows.check_again(ROW, stored, None, "b0000001") == delivery_rows.Wanted(
        verdict="command", reason="stop the workflow of 8", request=stored, adw_id="a0000001"
    )
    assert delivery_rows.check_again(replace(ROW, adw_id=""), stored, now, "b0000001") == delivery_rows.Wanted(
        verdict="run", reason=now.reason, request=now.request, adw_id="b0000001"
    )
    with pytest.raises(UsageError, match="delivery g1 asks for nothing: the comment asks for nothing"):
        delivery_rows.check_again(ROW, stored, ignored("g1"), "b0000001")
    with pytest.raises(InvalidAdwId):
        delivery_rows.check_again(replace(ROW, adw_id=""), stored, None, "")


def test_what_was_refused_is_done_again_under_an_id_of_its_own():
    """Its row names who was in the way: that one would be taken for what it has started."""
    refused = replace(ROW, status="refused")

    assert delivery_rows.check_again(refused, {"type": "run"}, None, "b0000001").adw_id == "b0000001"
    assert delivery_rows.check_again(refused, {"type": "run"}, None, "").adw_id == "a0000001"
    named = {"type": "run", "adw_id": "c0000001"}
    assert delivery_rows.check_again(refused, named, None, "b0000001").adw_id == "c0000001", "it is to go on"


def test_a_command_names_the_workflow_that_it_meant_and_none_that_was_never_there():
    waiting, run = replace(ROW, status="received"), replace(ROW, verdict="run")

    assert delivery_rows.meant_id(waiting) == ""
    assert delivery_rows.meant_id(ROW) == delivery_rows.meant_id(replace(run, status="received")) == "a0000001"
    assert delivery_rows.finished_id(waiting, "refused", "") == ""
    assert delivery_rows.finished_id(waiting, "refused", "b0000001") == "b0000001"
    assert delivery_rows.finished_id(waiting, "done", "") == "a0000001"
    assert delivery_rows.finished_id(run, "refused", "") == "a0000001", "it was told so when it came"


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_a_page_has_at_least_one_row(limit):
    assert delivery_rows.check_limit(1) == 1
    with pytest.raises(UsageError, match="at least 1"):
        delivery_rows.check_limit(limit)
