"""`ADWState`, for scripts: on memory parts, and on files with a real ownership around them."""

from __future__ import annotations

import logging
import re

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.errors import (
    InvalidAdwId,
    IssueLocked,
    StateConflict,
    StateCorrupt,
    StateExists,
    StateInvalid,
    StateNotFound,
    StateUnserialisable,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.state import RESERVED_FIELDS, ADWState
from adws.adw_modules.store.files import FileStateStore
from tests.contracts.store_contract import ADW_ID, BAD_IDS, new_document
from tests.homes import lab_home


@pytest.fixture(params=["database", "files"])
def parts(request):
    return lab_home(store=request.param)


@pytest.fixture
def made(parts):
    with parts.ownership.create(new_document(fence=0, plan_file="plan.md", odd={"kept": [1]})):
        pass
    return parts


def test_a_workflow_is_loaded_with_every_key(made):
    state = ADWState.load(ADW_ID, home=made)

    assert state.adw_id == ADW_ID
    assert state.get("plan_file") == "plan.md"
    assert state.get("odd") == {"kept": [1]}
    assert state.get("missing") is None
    assert state.get("missing", "default") == "default"
    assert state.get("branch_name", "none yet") == "none yet"
    assert state.data["issue_number"] == 7
    assert state.document.revision == 1


def test_the_parts_in_force_are_used_when_none_are_named(made):
    with default_home.using(made):
        assert ADWState.load(ADW_ID).get("plan_file") == "plan.md"
        assert [row.adw_id for row in ADWState.list().rows] == [ADW_ID]
        assert [row.adw_id for row in ADWState.find_by_issue(7)] == [ADW_ID]


def test_what_is_not_there_raises_and_is_never_none(parts):
    with pytest.raises(StateNotFound, match=ADW_ID):
        ADWState.load(ADW_ID, home=parts)


def test_an_id_that_is_no_safe_name_is_refused(parts):
    for bad in BAD_IDS:
        with pytest.raises(InvalidAdwId):
            ADWState.load(bad, home=parts)


def test_a_workflow_is_created_in_one_call_with_its_lock(parts):
    state = ADWState.create(7, home=parts, plan_file="plan.md", odd={"kept": [1]})

    assert re.fullmatch("[0-9a-f]{8}", state.adw_id)
    assert parts.locks.verify(7, state.adw_id)
    assert ADWState.load(state.adw_id, home=parts).document == state.document
    assert (state.get("plan_file"), state.get("odd"), state.get("current_state")) == (
        "plan.md",
        {"kept": [1]},
        "pending",
    )
    assert ADWState.create(home=parts).update(note="has no issue").get("issue_number") is None


def test_a_workflow_is_not_created_over_another_one_or_with_what_it_may_not_set(parts):
    ADWState.create(7, adw_id=ADW_ID, home=parts)

    with pytest.raises(IssueLocked, match=ADW_ID):
        ADWState.create(7, home=parts)
    with pytest.raises(StateExists):
        ADWState.create(8, adw_id=ADW_ID, home=parts)
    with pytest.raises(UsageError, match="current_state cannot be set here"):
        ADWState.create(9, home=parts, current_state="shipping")
    with pytest.raises(StateInvalid, match="backend_port"):
        ADWState.create(9, home=parts, backend_port="none")
    with pytest.raises(UsageError, match="not an issue number"):
        ADWState.create("x", home=parts)
    with pytest.raises(InvalidAdwId):
        ADWState.create(9, adw_id="", home=parts)
    assert [row.adw_id for row in ADWState.list(home=parts).rows] == [ADW_ID]


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [((), {}), ((ADW_ID,), {}), ((ADW_ID, logging.getLogger()), {}), ((), {"adw_id": ADW_ID, "issue_number": 7})],
    ids=["nothing", "id", "id-and-logger", "fields"],
)
def test_the_constructor_says_what_to_call_instead(arguments, fields):
    with pytest.raises(UsageError, match=r"use ADWState\.load\(.*\) .* and ADWState\.create\(issue_number=\.\.\.\)"):
        ADWState(*arguments, **fields)


def test_an_update_is_stored_at_once_and_keeps_every_other_key(made):
    state = ADWState.load(ADW_ID, home=made).update(branch_name="feature-x", backend_port=9100, mine={"a": [1, 2]})
    stored = made.store.load(ADW_ID).document

    assert state.document == stored
    assert (stored.branch_name, stored.backend_port, stored.plan_file) == ("feature-x", 9100, "plan.md")
    assert stored.model_extra == {"odd": {"kept": [1]}, "mine": {"a": [1, 2]}}
    assert stored.revision == 2


def test_an_update_works_on_the_newest_revision_so_that_two_users_lose_nothing(made):
    first, second = ADWState.load(ADW_ID, home=made), ADWState.load(ADW_ID, home=made)
    first.update(branch_name="feature-x")
    second.update(plan_file="other.md")
    stored = made.store.load(ADW_ID).document

    assert (stored.branch_name, stored.plan_file) == ("feature-x", "other.md")


def test_what_the_machine_or_the_store_sets_is_refused(made):
    state = ADWState.load(ADW_ID, home=made)

    for field in RESERVED_FIELDS:
        with pytest.raises(UsageError, match=f"{field} cannot be set here"):
            state.update(**{field: "1"})
    assert made.store.load(ADW_ID).document.revision == 1


def test_a_value_of_the_wrong_kind_is_refused_by_name(made):
    state = ADWState.load(ADW_ID, home=made)

    with pytest.raises(StateInvalid, match="backend_port"):
        state.update(backend_port="a word")
    with pytest.raises(StateUnserialisable, match="when is a tuple"):
        state.update(when=(1, 2))
    assert made.store.load(ADW_ID).document.revision == 1


def test_an_update_that_changes_nothing_writes_nothing(made):
    ADWState.load(ADW_ID, home=made).update(plan_file="plan.md")

    assert made.store.load(ADW_ID).document.revision == 1


def test_changes_of_the_document_are_stored_by_save(made):
    state = ADWState.load(ADW_ID, home=made)
    state.document.branch_name = "feature-y"
    state.save()

    assert made.store.load(ADW_ID).document.branch_name == "feature-y"
    assert state.document.revision == 2
    assert state.save().document.revision == 2, "nothing was changed since"


def test_save_refuses_to_overwrite_what_another_one_stored(made):
    state = ADWState.load(ADW_ID, home=made)
    ADWState.load(ADW_ID, home=made).update(plan_file="other.md")
    state.document.branch_name = "late"

    with pytest.raises(StateConflict):
        state.save()
    assert made.store.load(ADW_ID).document.branch_name is None


def test_save_refuses_a_state_that_did_not_come_from_the_machine(made):
    state = ADWState.load(ADW_ID, home=made)
    state.document.current_state = "completed"

    with pytest.raises(UsageError, match="state machine sets it"):
        state.save()
    assert made.store.load(ADW_ID).document.current_state == "pending"


def test_a_live_owner_is_never_overwritten(made):
    state = ADWState.load(ADW_ID, home=made)
    state.document.branch_name = "mine"
    with made.ownership.own(ADW_ID):
        for call in (state.save, lambda: state.update(plan_file="mine")):
            with pytest.raises(WorkflowBusy):
                call()

    assert made.store.load(ADW_ID).document.revision == 1


def test_the_old_values_are_in_an_event(made):
    state = ADWState.load(ADW_ID, home=made).update(plan_file="other.md")
    events = state.document.outbox or [event.to_json() for event in made.events.of_workflow(ADW_ID)]

    assert events[-1]["event_type"] == "state_set"
    assert events[-1]["data"] == {"old": {"plan_file": "plan.md"}, "new": {"plan_file": "other.md"}}


def test_data_is_a_copy(made):
    state = ADWState.load(ADW_ID, home=made)
    state.data["odd"]["kept"].append(2)

    assert state.get("odd") == {"kept": [1]}


def test_workflows_are_listed_and_found_by_issue():
    parts = lab_home()
    for adw_id, issue in (("00000001", 7), ("00000002", 8)):
        with parts.ownership.create(new_document(adw_id, issue_number=issue, fence=0)):
            pass

    assert [row.adw_id for row in ADWState.find_by_issue(7, home=parts)] == ["00000001"]
    assert ADWState.find_by_issue(7, "octo/repo", home=parts) == ()
    assert len(ADWState.list(home=parts).rows) == 2
    assert len(ADWState.list(PageQuery(limit=1), home=parts).rows) == 1


# --- files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(tmp_path):
    """A home without a copy of its documents in the database."""
    parts = lab_home(tmp_path, store="files", state_dir=tmp_path)
    parts.store = FileStateStore(tmp_path, clock=parts.clock)
    with parts.ownership.create(new_document(fence=0)):
        pass
    return parts


def test_what_was_noticed_is_told_to_the_logger_and_kept(on_disk, tmp_path, caplog):
    ADWState.load(ADW_ID, home=on_disk).update(plan_file="x")
    (tmp_path / ADW_ID / "adw_state.json").write_text("{ torn")
    with caplog.at_level(logging.WARNING):
        state = ADWState.load(ADW_ID, logging.getLogger("test"), home=on_disk)

    assert [notice.kind for notice in state.notices] == ["corrupt", "recovered"]
    assert [record.action for record in caplog.records] == ["state_corrupt", "state_recovered"]
    assert state.document.revision == 1


def test_a_corrupt_state_raises_and_is_never_taken_for_no_state(on_disk, tmp_path):
    (tmp_path / ADW_ID / "adw_state.json").write_text("")

    with pytest.raises(StateCorrupt, match="empty"):
        ADWState.load(ADW_ID, home=on_disk)


def test_an_old_file_is_written_back_by_the_first_update(on_disk, tmp_path):
    path = tmp_path / "0ld00000" / "adw_state.json"
    with on_disk.ownership.create(new_document("0ld00000", issue_number=42, fence=0)):
        pass
    path.with_name("adw_state.json.prev").unlink(missing_ok=True)
    path.write_text('{"adw_id": "0ld00000", "issue_number": "42"}')
    state = ADWState.load("0ld00000", home=on_disk)
    assert [notice.kind for notice in state.notices] == ["migrated"]
    state.update(plan_file="x")

    assert ADWState.load("0ld00000", home=on_disk).notices == ()
    assert path.with_name("adw_state.json.v1.0.bak").exists()
