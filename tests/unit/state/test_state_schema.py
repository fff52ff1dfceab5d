from __future__ import annotations

import copy
import subprocess
import sys

import pytest

from adws.adw_modules import state_schema
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import MigrationFailed, NewerVersion, NoMigrationPath, StateInvalid, UsageError
from adws.adw_modules.state_schema import MigrationRegistry, StateMigration, StateSchema, backup_name, version_of

V1 = {"adw_id": "1a2b3c4d", "issue_number": "42", "status": "running", "all_adws": ["adw_plan_iso", "adw_build_iso"]}


def stepping(*pairs, current):
    """Return a registry whose steps write down that they were taken."""
    registry = MigrationRegistry(current)
    for start, end in pairs:
        registry.register_migration(start, end)(
            lambda data, way=f"{start}->{end}": {**data, "ways": [*data.get("ways", []), way]}
        )
    return registry


# --- versions --------------------------------------------------------------------------------------------------


def test_the_current_version_is_3_0_everywhere():
    assert StateSchema.CURRENT_VERSION == state_schema.CURRENT_VERSION == "3.0"
    assert WorkflowDocument.model_fields["state_version"].default == "3.0"
    assert StateSchema.versions() == ("1.0", "2.0", "3.0")


def test_the_schema_of_version_2_names_types_and_marks_what_may_be_null():
    schema = StateSchema.get_schema_v2()

    assert schema["state_version"] == schema["adw_id"] == "str"
    assert schema["pr_number"] == schema["issue_number"] == "int | None"
    assert schema["branch_name"] == "str | None"
    assert set(schema.values()) == {"str", "int", "list", "str | None", "int | None"}


def test_the_schema_of_version_2_is_true_of_a_migrated_document():
    """
    The description is held against what the step from 1.0 really makes.
    """
    names = {str: "str", int: "int", list: "list", type(None): "None"}
    migrated = state_schema.v1_to_v2(V1)

    for field, type_name in StateSchema.get_schema_v2().items():
        assert names[type(migrated[field])] in type_name.split(" | "), field


@pytest.mark.parametrize("spelling", [2, 2.0, "2", "2.0", " 2.0 ", "02.00"])
def test_every_spelling_of_a_version_is_the_same_version(spelling):
    assert version_of({"state_version": spelling}) == "2.0"


@pytest.mark.parametrize("data", [{}, {"state_version": None}], ids=["missing", "null"])
def test_a_document_without_a_version_is_version_1(data):
    assert version_of(data) == "1.0"


@pytest.mark.parametrize("found", ["two", "", "-1.0", "3.0.1", True, [], {}, "1e3", "٢"])
def test_what_is_not_a_version_is_refused_with_what_is_registered(found):
    with pytest.raises(NoMigrationPath, match=r"is not a schema version.*registered: 1\.0 -> 2\.0, 2\.0 -> 3\.0"):
        StateMigration.migrate({**V1, "state_version": found})


# --- registering -----------------------------------------------------------------------------------------------


def test_registering_the_same_step_twice_is_refused():
    registry = stepping(("1.0", "2.0"), current="2.0")

    with pytest.raises(UsageError, match=r"1\.0 -> 2\.0 is registered already"):
        registry.register_migration("1", "2.0")(dict)


@pytest.mark.parametrize(("start", "end"), [("2.0", "1.0"), ("2.0", "2"), ("10.0", "9.0")])
def test_a_step_that_does_not_lead_upwards_is_refused(start, end):
    with pytest.raises(UsageError, match="leads to a higher version"):
        MigrationRegistry().register_migration(start, end)


def test_a_copy_takes_steps_without_leaving_them_in_the_original():
    trial = StateMigration.copy(current_version="4.0")
    trial.register_migration("3.0", "4.0")(lambda data: {**data, "brand_new": True})

    assert trial.migrate(V1)["brand_new"] is True
    assert StateMigration.registered() == (("1.0", "2.0"), ("2.0", "3.0"))
    assert StateMigration.copy().current_version == "3.0"


# --- paths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_turned", [False, True])
def test_the_shortest_chain_is_taken(is_turned):
    """
    Two steps beat three, on whichever side the longer way lies and in whatever order they were registered.
    """
    pairs = [("1.0", "1.1"), ("1.1", "1.2"), ("1.2", "4.0"), ("1.0", "2.0"), ("2.0", "4.0"), ("1.1", "2.0")]
    pairs += [("1.0", "3.0"), ("3.0", "3.1"), ("3.1", "4.0")]
    registry = stepping(*(reversed(pairs) if is_turned else pairs), current="4.0")

    assert registry.migrate({})["ways"] == ["1.0->2.0", "2.0->4.0"]


def test_versions_are_ordered_as_numbers_not_as_text():
    registry = stepping(("9.0", "10.0"), ("1.0", "9.0"), current="10.0")

    assert registry.registered() == (("1.0", "9.0"), ("9.0", "10.0"))
    assert registry.migrate({"state_version": "9.0"})["state_version"] == "10.0"


@pytest.mark.parametrize(("start", "end"), [("0.9", "3.0"), ("3.0", "2.0"), ("1.0", "4.0")])
def test_where_no_chain_leads_the_error_names_what_is_registered(start, end):
    with pytest.raises(NoMigrationPath, match=rf"from {start} to {end}; registered: 1\.0 -> 2\.0, 2\.0 -> 3\.0"):
        StateMigration.path(start, end)


def test_an_unknown_old_version_is_refused():
    with pytest.raises(NoMigrationPath, match=r"from 0\.9 to 3\.0"):
        StateMigration.migrate({**V1, "state_version": "0.9"})


@pytest.mark.parametrize("newer", ["3.1", "4.0", 4, "10.0"])
def test_a_newer_version_is_refused_with_its_own_error(newer):
    with pytest.raises(NewerVersion, match=r"this adw knows up to 3\.0: upgrade adw"):
        StateMigration.migrate({**V1, "state_version": newer})


# --- migrating -------------------------------------------------------------------------------------------------


def test_the_argument_is_never_changed_not_even_by_a_step_that_tries():
    registry = MigrationRegistry("2.0")

    @registry.register_migration("1.0", "2.0")
    def careless(data):
        data["nested"]["list"].append("changed")
        return data

    given = {"nested": {"list": []}}
    before = copy.deepcopy(given)

    assert registry.migrate(given)["nested"]["list"] == ["changed"]
    assert given == before


def test_a_current_document_comes_back_as_an_equal_copy():
    current = {"state_version": "3.0", "adw_id": "1a2b3c4d", "deep": {"list": [1]}}

    result = StateMigration.migrate(current)

    assert result == current
    result["deep"]["list"].append(2)
    assert current["deep"]["list"] == [1]


def test_another_spelling_of_the_current_version_is_put_right():
    assert StateMigration.migrate({"state_version": 3})["state_version"] == "3.0"


def test_each_step_leaves_its_version_even_when_it_forgets_to():
    registry = stepping(("1.0", "2.0"), current="2.0")

    assert registry.migrate({})["state_version"] == "2.0"


def test_a_step_that_raises_is_named_and_its_cause_is_kept():
    registry = StateMigration.copy(current_version="4.0")

    @registry.register_migration("3.0", "4.0")
    def broken(data):
        raise KeyError("colour")

    with pytest.raises(MigrationFailed, match=r"migration 3\.0 -> 4\.0 failed: KeyError: 'colour'") as caught:
        registry.migrate(V1)

    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.from_version, caught.value.to_version) == ("3.0", "4.0")


@pytest.mark.parametrize("data", [[], "text", None, 3], ids=repr)
def test_what_is_not_an_object_is_refused(data):
    with pytest.raises(StateInvalid, match="a document is a JSON object, not"):
        StateMigration.migrate(data)


def test_a_document_nested_without_end_is_refused_in_one_sentence():
    deep = {}
    for _ in range(100_000):
        deep = {"in": deep}

    with pytest.raises(StateInvalid, match="nested too deeply"):
        StateMigration.migrate(deep)


# --- backups ---------------------------------------------------------------------------------------------------


def test_a_backup_is_named_after_the_version_it_holds():
    assert backup_name("adw_state.json", "1.0") == "adw_state.json.v1.0.bak"
    assert backup_name("adw_state.json", "2") == "adw_state.json.v2.0.bak"
    assert backup_name("adw_state.json", "1.0", 2) == "adw_state.json.v1.0.2.bak"


# --- start-up --------------------------------------------------------------------------------------------------


def test_reading_old_documents_does_not_load_pydantic():
    """
    Viewers show old files too, and have to start fast.
    """
    program = "import sys, adws.adw_modules.state_schema; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
