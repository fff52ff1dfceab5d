from __future__ import annotations

import pytest

from adws.adw_modules import document
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import (
    DurabilityUnknown,
    IssueLocked,
    StateError,
    StateInvalid,
    StateWriteFailed,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.store import field_edits
from adws.adw_modules.store.database import DatabaseStateStore
from adws.adw_modules.store.files import FileStateStore
from tests.homes import lab_home, use_store

MOMENT = "2026-01-31T09:00:00.000000Z"
ADW_ID = "1a2b3c4d"


def a_document(adw_id=ADW_ID, **fields):
    return document.parse(
        {"adw_id": adw_id, "issue_number": 42, "created_at": MOMENT, "updated_at": MOMENT, "team": "exports", **fields}
    )


def created(parts, **fields):
    with parts.ownership.create(a_document(**fields)):
        pass


def change(parts, *assignments, adw_id=ADW_ID, **options):
    return field_edits.apply_change(adw_id, field_edits.parse_assignments(assignments), home=parts, **options)


@pytest.fixture
def parts():
    return lab_home()


# --- what may be set -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(field_edits.REFUSED))
def test_what_adw_keeps_itself_is_refused_with_what_to_use_instead(key):
    with pytest.raises(UsageError, match=f"^{key} is not set by hand: .*(adw|start) ") as caught:
        field_edits.plan_change(a_document(), {key: "1"})

    assert field_edits.REFUSED[key] in str(caught.value)


def test_states_counters_and_ledgers_are_among_the_refused():
    for key in [
        *("current_state", "revision", "fence", "adw_id", "state_version", "state_history", "outbox", "retry_count"),
        *("retry_marks", "retries_granted", "reworks", "history_dropped", "phases", "resources", "updated_at"),
    ]:
        assert key in field_edits.REFUSED, key


def test_a_key_that_is_not_there_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match=r"no key 'brnach_name'; did you mean branch_name\? --new adds"):
        field_edits.plan_change(a_document(), {"brnach_name": "x"})

    with pytest.raises(UsageError, match="no key 'zzzzzz'; --new adds a key of your own"):
        field_edits.plan_change(a_document(), {"zzzzzz": "x"})


def test_a_new_key_is_added_on_request():
    planned = field_edits.plan_change(a_document(), {"reviewer": "ada"}, allow_new=True)

    assert (planned.old, planned.new) == ({"reviewer": None}, {"reviewer": "ada"})


# --- values ----------------------------------------------------------------------------------------------------


def test_a_value_is_json_when_it_parses_and_a_text_when_not():
    for text, value in [
        ("7", 7),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ('{"a": [1]}', {"a": [1]}),
        ('"7"', "7"),
        ("plain words", "plain words"),
        ("", ""),
        ('"NaN"', "NaN"),
        ("nano", "nano"),
        ("[" * 100_000, "[" * 100_000),
    ]:
        assert field_edits.parse_value(text) == value, text
        assert type(field_edits.parse_value(text)) is type(value), text


def test_a_field_that_holds_text_takes_text():
    for assignment, value in [
        ("branch_name=123", "123"),
        ("branch_name=null", None),
        ("plan_file=a=b", "a=b"),
        ("repository=acme/web", "acme/web"),
        ("pr_number=7", 7),
        ("issue_number=43", 43),
        ("pr_merged=true", True),
        ("max_reworks=5", 5),
        ("team=[1,2]", [1, 2]),
        ("created_at=2026-01-01T10:00:00+01:00", "2026-01-01T09:00:00.000000Z"),
    ]:
        wanted = field_edits.parse_assignments([assignment])
        planned = field_edits.plan_change(a_document(), wanted)

        assert planned.new == {next(iter(wanted)): value}, assignment


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "[1, NaN]", '{"a": -1e999}'])
def test_a_value_that_is_no_number_of_json_is_refused_and_no_text(text):
    with pytest.raises(UsageError, match="which is no number of JSON: give a number, null, or a text in quotes"):
        field_edits.plan_change(a_document(), {"team": text})


def test_a_value_that_does_not_fit_is_refused_by_its_field():
    with pytest.raises(StateInvalid, match="warnings: "):
        field_edits.plan_change(a_document(), {"warnings": "soon"})


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("pr_number=-4", "a whole number from 1 to 2147483647, or null"),
        ("pr_number=0", "a whole number from 1"),
        ("pr_number=true", "a whole number from 1"),
        ("pr_number=7.0", "a whole number from 1"),
        ('pr_number="7"', "a whole number from 1"),
        ("pr_number=soon", "a whole number from 1"),
        ("issue_number=-1", "a whole number from 1"),
        ("issue_number=99999999999999999999", "a whole number from 1"),
        ("backend_port=0", "a whole number from 1 to 65535, or null"),
        ("backend_port=65536", "a whole number from 1 to 65535"),
        ("frontend_port=-1", "a whole number from 1 to 65535"),
        ("max_reworks=-1", "a whole number from 0"),
        ("max_reworks=null", "a whole number from 0 to 2147483647$"),
        ("max_total_attempts=0", "a whole number from 1"),
        ("max_minutes=0", "a number above 0, or null"),
        ("max_minutes=nan", "a number above 0"),
        ("max_minutes=true", "a number above 0"),
        ("max_cost_usd=-1", "a number of US dollars from 0 up, or null"),
        ("max_cost_usd=nan", "a number of US dollars from 0 up"),
        ("pr_merged=1", "true or false"),
        ("pr_merged=yes", "true or false"),
        ("cost=5", "an object of amounts"),
        ('cost={"total_usd": -1}', "amounts of 0 or more"),
        ('cost={"total_usd": "nan"}', "amounts of 0 or more"),
        ('cost={"by_phase": {"plan": -1}}', "amounts of 0 or more"),
        ('cost={"by_phase": []}', "amounts of 0 or more"),
        ('cost={"by_provider": {"robots": -1}}', "amounts of 0 or more"),
        ('cost={"token_counts": 7}', "amounts of 0 or more"),
        ("branch_name=", "the name of a branch"),
        ("branch_name=--force", "the name of a branch"),
        ("branch_name=a b", "the name of a branch"),
        ("branch_name=a..b", "the name of a branch"),
        ("branch_name=a.lock", "the name of a branch"),
        ("branch_name=a/.b", "the name of a branch"),
        ("branch_name=a\nb", "the name of a branch"),
        ("worktree_path=trees/x", "an absolute path"),
        ("worktree_path=/trees/\0x", "an absolute path"),
        ("repository=shop", "owner/name"),
        ("repository=null", "owner/name"),
    ],
)
def test_a_value_that_no_workflow_can_have_is_refused_with_what_the_field_may_hold(assignment, words):
    wanted = field_edits.parse_assignments([assignment])

    with pytest.raises(UsageError, match=f"^{next(iter(wanted))} must be .*{words}"):
        field_edits.plan_change(a_document(), wanted)


def test_every_field_with_a_rule_exists_and_may_be_set():
    assert set(field_edits.RULES) <= set(WorkflowDocument.model_fields) - set(field_edits.REFUSED)


def test_every_number_that_may_be_set_has_a_rule():
    """
    A number nobody looked at could be negative.
    """
    numbers = {
        name
        for name, field in WorkflowDocument.model_fields.items()
        if field.annotation in (int, float, int | None, float | None, bool)
    }

    assert numbers - set(field_edits.REFUSED) <= set(field_edits.RULES)


def test_a_creation_that_is_no_moment_is_refused():
    with pytest.raises(UsageError, match="'yesterday' is not a timestamp"):
        field_edits.plan_change(a_document(), {"created_at": "yesterday"})


@pytest.mark.parametrize("text", ["branch_name", "=x", " =x", ""])
def test_what_is_no_assignment_is_refused(text):
    with pytest.raises(UsageError, match="write KEY=VALUE"):
        field_edits.parse_assignments([text])


def test_a_key_given_twice_is_refused():
    with pytest.raises(UsageError, match="team is given twice"):
        field_edits.parse_assignments(["team=a", " team =b"])


# --- storing ---------------------------------------------------------------------------------------------------


def test_the_change_is_the_next_revision_and_leaves_an_event_with_the_old_values(parts):
    created(parts, branch_name="old")

    done = change(parts, "branch_name=new", "team=imports", reason="typo")

    stored = parts.store.load(ADW_ID).document
    event = parts.events.of_workflow(ADW_ID)[-1]
    assert (done.document.revision, stored.revision) == (2, 2)
    assert (stored.branch_name, stored.team) == ("new", "imports")
    assert (event.event_type, event.revision) == ("state_set", 2)
    assert event.data == {
        "old": {"branch_name": "old", "team": "exports"},
        "new": {"branch_name": "new", "team": "imports"},
        "reason": "typo",
    }


def test_values_that_are_there_already_are_not_written_again(parts):
    created(parts, branch_name="main", reviewer=None)

    done = change(parts, "branch_name=main", "team=exports", "issue_number=42", "reviewer=null")

    assert not done.has_effect
    assert done.document.revision == 1
    assert parts.store.load(ADW_ID).document.revision == 1


def test_a_refused_change_writes_nothing(parts):
    created(parts)

    with pytest.raises(UsageError):
        change(parts, "branch_name=x", "current_state=completed")

    assert parts.store.load(ADW_ID).document.revision == 1


def test_a_workflow_that_somebody_works_on_is_left_alone(parts):
    created(parts)

    with parts.ownership.own(ADW_ID), pytest.raises(WorkflowBusy):
        change(parts, "branch_name=x")


def test_a_document_nobody_registered_is_told_apart():
    parts = lab_home(store="files")
    assert parts.database.schema_version(), "there is a database, and it does not know the document"
    FileStateStore(parts.settings.state_dir, clock=parts.clock).create(a_document())

    with pytest.raises(StateError, match=r"in the database; its document is there: adw db rebuild registers it"):
        change(parts, "branch_name=x")


# --- the issue goes with its document --------------------------------------------------------------------------


def test_another_issue_number_moves_the_lock(parts):
    created(parts)

    change(parts, "issue_number=43")

    assert parts.locks.verify(43, ADW_ID)
    assert parts.locks.holder(42) is None


def test_an_issue_that_another_workflow_has_is_refused_and_nothing_changes(parts):
    created(parts)
    created(parts, adw_id="5e6f7a8b", issue_number=43)

    with pytest.raises(IssueLocked, match="5e6f7a8b"):
        change(parts, "issue_number=43")

    assert parts.store.load(ADW_ID).document.issue_number == 42
    assert parts.locks.verify(42, ADW_ID)


def test_an_issue_number_can_be_taken_away_and_given(parts):
    created(parts)

    change(parts, "issue_number=null")
    assert parts.locks.all() == ()

    change(parts, "issue_number=44")
    assert parts.locks.verify(44, ADW_ID)


def test_another_repository_moves_the_lock_too(parts):
    created(parts)

    change(parts, "repository=acme/web")

    assert parts.locks.verify(42, ADW_ID, "acme/web")
    assert parts.locks.holder(42) is None


def test_a_finished_workflow_claims_no_issue(parts):
    created(parts, current_state="completed")
    parts.locks.release(42, ADW_ID)

    change(parts, "issue_number=43")

    assert parts.locks.all() == ()


class BadDisk(DatabaseStateStore):
    """A store whose writes fail with `error`."""

    def save(self, document, **_options):
        raise self.error


def test_a_write_that_failed_leaves_the_old_lock_and_not_the_new_one():
    error = StateWriteFailed("adw_state.json", OSError(28, "No space left on device"))
    parts = lab_home()
    use_store(parts, BadDisk).error = error
    created(parts)

    with pytest.raises(StateWriteFailed):
        change(parts, "issue_number=43")

    assert parts.locks.verify(42, ADW_ID)
    assert parts.locks.holder(43) is None


def test_a_write_that_may_have_been_made_keeps_both_locks():
    """
    Nobody else may start on either issue before somebody has read which one the document names.
    """
    parts = lab_home()
    use_store(parts, BadDisk).error = DurabilityUnknown("adw_state.json", OSError(5, "Input/output error"))
    created(parts)

    with pytest.raises(DurabilityUnknown):
        change(parts, "issue_number=43")

    assert parts.locks.verify(42, ADW_ID)
    assert parts.locks.verify(43, ADW_ID)
