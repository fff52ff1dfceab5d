from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import document, state_machine, state_migrations
from adws.adw_modules.state_machine import PHASE_STATES, WorkflowState
from adws.adw_modules.state_migrations import moment_in, repository_in, v1_to_v2, whole_number_in
from adws.adw_modules.state_schema import StateMigration
from adws.adw_modules.timestamps import UNKNOWN_MOMENT

V1 = {"adw_id": "1a2b3c4d", "issue_number": "42", "created_at": "2025-06-01T10:00:00Z"}
V2 = {**V1, "state_version": "2.0", "current_state": "building", "state_history": [], "retry_count": 0}


def migrated(base, **changes):
    return StateMigration.migrate({**base, **changes})


# --- where the work stood --------------------------------------------------------------------------------------


def test_running_is_placed_by_the_last_script_that_names_a_phase():
    for scripts, state in [
        (["adw_plan_iso"], "planning"),
        (["adw_plan_iso", "adw_build_iso"], "building"),
        (["adw_lint_iso"], "linting"),
        (["adw_test"], "testing"),
        (["adw_review_iso"], "reviewing"),
        (["adw_document_iso"], "documenting"),
        (["adw_ship_iso"], "shipping"),
        (["adw_cleanup_iso"], "cleaning"),
        (["adw_plan_build_test_iso"], "testing"),
        (["adw_plan_build_document"], "documenting"),
        (["adw_sdlc_from_build_iso"], "building"),
        (["adw_build_iso", "adw_something_else"], "building"),
        (["adw_sdlc_ZTE_iso"], "planning"),
        (["adw_plan_iso", "adw_test_iso", "adw_sdlc_iso"], "testing"),
        (["adw_patch_iso.py"], "planning"),
    ]:
        result = migrated(V1, status="running", all_adws=scripts)

        assert result["current_state"] == state, scripts
        assert result["warnings"] == [], scripts
        assert "status" not in result, scripts


def test_running_without_a_known_script_is_paused_with_the_reason():
    """
    Nothing says where it stood, so nothing may run it on without a person.
    """
    result = migrated(V1, status="running", all_adws=["adw_mystery"])

    assert (result["current_state"], result["resume_state"]) == ("paused", "pending")
    assert result["warnings"] == ["imported as running, but all_adws names no phase"]


def test_a_status_becomes_one_state():
    for status, state, resume, failed in [
        ("completed", "completed", None, None),
        ("failed", "failed", None, "building"),
        ("Failed", "failed", None, "building"),
        ("abandoned", "abandoned", None, None),
        ("paused", "paused", "building", None),
        ("WorkflowState.TESTING", "testing", None, None),
        ("halted", "paused", "building", None),
        (7, "paused", "building", None),
        ("", "paused", "building", None),
        (None, "paused", "building", None),
    ]:
        result = migrated(V1, status=status, all_adws=["adw_plan_iso", "adw_build_iso"])

        assert (result["current_state"], result["resume_state"], result["failed_phase"]) == (state, resume, failed), (
            status
        )


def test_failed_without_a_known_script_names_no_phase():
    assert migrated(V1, status="failed")["failed_phase"] is None


def test_the_old_status_is_kept_in_the_history_and_nowhere_else():
    result = migrated(V1, status="halted")

    assert "status" not in result
    assert result["state_history"] == [
        {
            "from": "pending",
            "to": "paused",
            "timestamp": "2025-06-01T10:00:00.000000Z",
            "metadata": {
                "source": "v1_migration",
                "status": "halted",
                "reason": "imported with the unknown status 'halted'",
            },
        }
    ]


def test_a_long_unknown_status_is_cut_in_the_message_and_whole_in_the_history():
    result = migrated(V1, status="x" * 500)

    assert len(result["warnings"][0]) < 120
    assert result["state_history"][0]["metadata"]["status"] == "x" * 500


def test_a_file_without_version_and_status_is_placed_by_its_current_state():
    """
    A 2.0 file whose version was lost is not thrown back to paused.
    """
    result = migrated(V1, current_state="REVIEWING")

    assert result["current_state"] == "reviewing"
    assert result["state_history"][0]["metadata"]["current_state"] == "REVIEWING"


def test_our_list_of_states_is_the_state_machines():
    assert {state.value for state in WorkflowState} == state_migrations.STATES
    assert {state.value for state in PHASE_STATES} == state_migrations.PHASE_STATES


@pytest.mark.parametrize(
    ("template", "scripts", "name"),
    [
        ("adw_sdlc_complete_iso", ["adw_plan_iso"], "sdlc_complete"),
        (None, ["adw_plan_iso", "adw_build_iso", "adw_plan_iso"], "plan_build"),
        ("", ["adw_plan_build_iso", "adw_plan_iso"], "plan_build"),
        (5, ["adw_sdlc", "adw_plan"], "sdlc"),
        (None, ["mystery"], None),
        (None, [], None),
    ],
)
def test_the_workflow_is_named_by_template_then_chain_then_steps(template, scripts, name):
    assert state_migrations.workflow_name(template, scripts) == name


# --- single values ---------------------------------------------------------------------------------------------


def test_an_issue_number_is_read_from_a_number_or_a_text():
    for value, number in [
        ("42", 42),
        (42, 42),
        ("#42", 42),
        (" 42 ", 42),
        ("0", None),
        (-1, None),
        ("4x", None),
        (True, None),
        (4.0, None),
    ]:
        assert whole_number_in(value) == number, value


def test_an_issue_number_that_is_none_is_set_aside_with_a_warning():
    result = migrated(V1, issue_number="soon", status="completed")

    assert result["issue_number"] is None
    assert result["legacy_issue_number"] == "soon"
    assert result["warnings"] == ["issue_number was not a whole number; its old value is kept as legacy_issue_number"]


@pytest.mark.parametrize("base", [{"adw_id": "1a2b3c4d"}, {"adw_id": "1a2b3c4d", "issue_number": None}])
def test_a_missing_issue_number_is_said_once(base):
    warnings = migrated(base, status="completed", created_at="2025-01-01")["warnings"]

    assert warnings == ["the issue number is not known: none was recorded"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2025-06-01T10:00:00+02:00", "2025-06-01T08:00:00.000000Z"),
        (" 2025-06-01T10:00:00.5Z ", "2025-06-01T10:00:00.500000Z"),
        ("2025-06-01", "2025-06-01T00:00:00.000000Z"),
        ("", None),
        ("yesterday", None),
        ("0001-01-01T00:00:00+23:00", None),
        (1700000000, None),
    ],
)
def test_timestamps_get_one_spelling(text, moment):
    assert moment_in(text) == moment


@pytest.mark.parametrize(
    ("times", "born"),
    [
        ({"start_time": "2025-01-02", "updated_at": "2025-01-03"}, "2025-01-02T00:00:00.000000Z"),
        ({"updated_at": "2025-01-03"}, "2025-01-03T00:00:00.000000Z"),
        ({"created_at": "", "worktree_created_at": "2025-01-01"}, "2025-01-01T00:00:00.000000Z"),
    ],
)
def test_a_missing_creation_is_taken_from_the_next_best_moment(times, born):
    result = StateMigration.migrate({"adw_id": "1a2b3c4d", "issue_number": 1, "status": "completed", **times})

    assert result["created_at"] == result["state_history"][0]["timestamp"] == born
    assert result["warnings"] == []


def test_without_any_moment_the_creation_is_marked_as_unknown():
    result = StateMigration.migrate({"adw_id": "1a2b3c4d", "issue_number": 1, "status": "completed"})

    assert result["created_at"] == result["updated_at"] == UNKNOWN_MOMENT
    assert result["warnings"] == ["when the workflow was created is not known: no timestamp was recorded"]


def test_a_repository_is_read_from_any_address():
    for address, repository in [
        ("https://github.com/acme/web", "acme/web"),
        ("https://github.com/acme/web.git", "acme/web"),
        ("https://github.com/acme/acme.github.io", "acme/acme.github.io"),
        ("https://github.com/acme/acme.github.io.git", "acme/acme.github.io"),
        ("https://git.example.com/acme/web/issues/5", "acme/web"),
        ("https://someone@github.com/acme/web/", "acme/web"),
        ("git@github.com:acme/web.git", "acme/web"),
        ("ssh://git@github.com/acme/web.git", "acme/web"),
        ("acme/web", "acme/web"),
        ("https://github.com/acme", None),
        ("https://github.com/acme/..", None),
        ("../../etc", None),
        ("", None),
        (None, None),
    ]:
        assert repository_in(address) == repository, address


# --- 2.0 -> 3.0 ------------------------------------------------------------------------------------------------


def test_a_failed_workflow_names_the_phase_its_history_says():
    history = [
        {"from": "planning", "to": "failed", "timestamp": "2025-01-01", "metadata": None},
        {"from": "Testing", "to": "FAILED", "timestamp": "2025-01-02", "metadata": {}},
    ]
    result = migrated(V2, current_state="failed", state_history=history)

    assert result["failed_phase"] == result["furthest_failed"] == "testing"


def test_a_paused_workflow_goes_back_to_the_phase_it_left():
    history = [{"from": "linting", "to": "paused", "timestamp": "2025-01-02"}]

    assert migrated(V2, current_state="paused", state_history=history)["resume_state"] == "linting"


def test_what_a_document_says_itself_about_its_way_on_is_believed():
    assert migrated(V2, current_state="paused", resume_state="pending")["resume_state"] == "pending"
    assert migrated(V2, current_state="failed", failed_phase="Shipping")["failed_phase"] == "shipping"


def test_a_way_on_that_is_no_phase_is_set_aside():
    result = migrated(V2, current_state="failed", failed_phase="pending", resume_state="completed")

    assert (result["failed_phase"], result["resume_state"]) == (None, None)
    assert (result["legacy_failed_phase"], result["legacy_resume_state"]) == ("pending", "completed")


def test_moving_from_a_place_that_is_no_phase_says_nothing_about_the_way_back():
    history = [{"from": "pending", "to": "paused", "timestamp": "2025-01-02"}]
    result = migrated(V2, current_state="paused", state_history=history, all_adws=["adw_ship_iso"])

    assert result["resume_state"] == "shipping"


@pytest.mark.parametrize("field", ["branch_name", "worktree_path", "backend_port", "frontend_port", "pr_number"])
def test_what_the_workflow_made_becomes_a_resource_that_rollback_knows(field):
    value = 9100 if field.endswith(("port", "number")) else "made/by/us"

    resource = migrated(V2, **{field: value})["resources"]

    assert [entry["outcome"] for entry in resource] == ["adopted"]
    assert resource[0]["key"] == f"{resource[0]['kind']}:{value}"
    assert value in resource[0]["undo"].values()


def test_a_rolled_back_workflow_has_nothing_left_to_adopt():
    assert migrated(V2, current_state="rolled_back", branch_name="b")["resources"] == []


@pytest.mark.parametrize(
    ("sign", "is_merged"),
    [
        ({"merge_status": "success"}, True),
        ({"merge_status": "conflict"}, False),
        ({"ship_timestamp": "2025-01-01T00:00:00"}, True),
        ({"ship_timestamp": None}, False),
        ({"pr_merged": True}, True),
        ({"pr_merged": "maybe"}, False),
    ],
)
def test_a_merged_pull_request_stays_merged(sign, is_merged):
    """
    Were it forgotten, a rollback would be offered for work that is already in main.
    """
    assert migrated(V2, **sign)["pr_merged"] is is_merged


@pytest.mark.parametrize(
    ("total", "breakdown", "cost"),
    [
        (1.5, {"plan": 1, "build": 0.5}, {"total_usd": 1.5, "by_phase": {"plan": 1.0, "build": 0.5}}),
        (None, {"plan": 0.1, "build": 0.2}, {"total_usd": 0.3, "by_phase": {"plan": 0.1, "build": 0.2}}),
        ("a lot", {"plan": "some", "build": True, "test": -1}, {"total_usd": 0.0, "by_phase": {}}),
        (0, ["plan"], {"total_usd": 0.0, "by_phase": {}}),
    ],
)
def test_cost_is_taken_from_the_estimates_that_are_numbers(total, breakdown, cost):
    assert migrated(V2, estimated_cost_total=total, estimated_cost_breakdown=breakdown)["cost"] == cost


@pytest.mark.parametrize(("request_text", "title"), [("Fix it\nplease", "Fix it"), ("  ", None), (5, None)])
def test_the_request_in_plain_words_gives_the_issue_its_title(request_text, title):
    issue = migrated(V2, nl_input=request_text)["issue"]

    assert (issue and issue["title"]) == title


@pytest.mark.parametrize("spelled", ["acme/web", "https://github.com/acme/web.git"])
def test_a_repository_that_is_named_wins_over_the_address(spelled):
    assert migrated(V2, repository=spelled, github_url="https://github.com/other/one")["repository"] == "acme/web"


def test_a_repository_that_names_none_is_set_aside():
    result = migrated(V2, repository={"id": 5})

    assert (result["repository"], result["legacy_repository"]) == ("", {"id": 5})


def test_an_old_key_with_the_name_of_a_new_field_is_set_aside_under_a_free_name():
    result = migrated(V2, revision=9, legacy_revision="mine", outbox=None, phases=[])

    assert (result["revision"], result["legacy_revision"], result["legacy_legacy_revision"]) == (0, "mine", 9)
    assert "legacy_outbox" not in result
    assert "legacy_phases" not in result


@pytest.mark.parametrize("base", [V1, V2], ids=["1.0", "2.0"])
def test_limits_reasons_and_hints_of_another_tool_are_set_aside(base):
    result = migrated(base, max_total_attempts="many", max_minutes=5, pause_reason="lunch", hints=None)

    assert (result["max_total_attempts"], result["legacy_max_total_attempts"]) == (None, "many")
    assert (result["max_minutes"], result["legacy_max_minutes"]) == (None, 5)
    assert (result["pause_reason"], result["legacy_pause_reason"]) == (None, "lunch")
    assert result["hints"] == []
    assert "legacy_hints" not in result


def test_a_history_that_is_no_list_is_set_aside():
    result = migrated(V2, state_history="long", current_state="pending")

    assert (result["state_history"], result["legacy_state_history"]) == ([], ["long"])


def test_a_key_with_the_name_of_our_checksum_is_set_aside():
    assert migrated(V2, checksum="md5:1")["legacy_checksum"] == "md5:1"


def test_a_retry_count_and_its_limit_survive():
    result = migrated(V2, retry_count=2, max_retries=5)

    assert (result["retry_count"], result["max_retries"]) == (2, 5)


def test_warnings_that_were_there_stay_first():
    result = migrated(V2, warnings=["old"], current_state="deploying")

    assert result["warnings"] == ["old", "migrated with the unknown state 'deploying'"]


# --- the history of a migrated document ------------------------------------------------------------------------


def test_a_2_0_history_ends_with_a_move_that_says_it_was_migrated():
    """
    Older tools had other tables: without the mark their moves would be held against ours.
    """
    history = [{"from": "testing", "to": "shipping", "timestamp": "2025-01-02", "metadata": {}}]
    result = migrated(V2, current_state="shipping", state_history=history, updated_at="2025-01-03")

    assert result["state_history"][-1] == {
        "from": "shipping",
        "to": "shipping",
        "timestamp": "2025-01-03T00:00:00.000000Z",
        "metadata": {"source": "v2_migration"},
    }


def test_a_2_0_document_that_never_moved_gets_no_move():
    assert migrated(V2, current_state="pending")["state_history"] == []


def test_a_1_0_document_gets_one_move_not_two():
    assert [move["metadata"]["source"] for move in migrated(V1)["state_history"]] == ["v1_migration"]


def test_a_status_beside_the_current_state_moves_to_the_history():
    result = migrated(V2, status="running", current_state="testing")

    assert "status" not in result
    assert result["state_history"][-1]["metadata"] == {"source": "v2_migration", "status": "running"}


@pytest.mark.parametrize("state", sorted(state_migrations.STATES))
@pytest.mark.parametrize("base", [V1, V2], ids=["1.0", "2.0"])
def test_the_state_machine_takes_every_migrated_document(base, state):
    """
    Also one whose history has gaps and moves that are no edges.
    """
    moves = [{"from": "planning", "to": "shipping", "timestamp": ""}, {"from": "pending", "to": "linting"}]
    result = migrated(base, status=state, current_state=state, state_history=moves, failed_phase="testing")

    assert machine_reads(result) == state


def machine_reads(result):
    """Return the state in which the state machine finds the document."""
    parsed = document.parse(result)
    table = state_machine.read_table(parsed)
    history = state_machine.read_history(parsed, table)
    position = state_machine.read_position(parsed, table)

    assert not history or history[-1]["to"] == position.state.value
    return position.state.value


# --- anything at all -------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KNOWN = sorted(
    {*document.WorkflowDocument.model_fields, "status", "start_time", "end_time", "worktree_created_at", "nl_input"}
    | {"github_url", "estimated_cost_total", "estimated_cost_breakdown", "workflow_template", "merge_status"}
    | {"ship_timestamp", "checksum"}
)
extra_keys = st.text(min_size=1, max_size=12).filter(lambda key: key not in KNOWN and not key.startswith("legacy_"))
versions = st.sampled_from([{}, {"state_version": "1.0"}, {"state_version": 2}, {"state_version": "2.0"}])
likely = st.sampled_from(
    [
        *("running", "failed", "paused", "building", "", "adw_plan_iso", ["adw_plan_iso"], "2025-01-01T00:00:00Z"),
        *([{"from": "planning", "to": "failed", "timestamp": "x"}], {"total_usd": "x"}, {"plan": 1.5}, "acme/web", 7),
    ]
)


@given(
    version=versions,
    known=st.dictionaries(st.sampled_from([key for key in KNOWN if key != "state_version"]), json_values | likely),
    extra=st.dictionaries(extra_keys, json_values, max_size=4),
)
def test_any_object_migrates_to_a_valid_document_and_keeps_its_extra_keys(version, known, extra):
    """
    Whatever stands in an old file: nothing is lost, the result parses, a second migration changes nothing.
    """
    given_data = {**known, **version, **extra, "adw_id": "1a2b3c4d"}
    before = copy.deepcopy(given_data)

    result = StateMigration.migrate(given_data)

    assert given_data == before
    assert {key: result[key] for key in extra} == extra
    assert StateMigration.migrate(result) == result
    assert json.loads(document.to_bytes(document.parse(result)))["current_state"] == machine_reads(result)


@given(known=st.dictionaries(st.sampled_from(KNOWN), json_values | likely))
def test_a_step_called_by_hand_does_not_change_its_argument(known):
    before = copy.deepcopy(known)

    v1_to_v2(known)

    assert known == before
