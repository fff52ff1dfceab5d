"""
`adw state show | set | migrate`, as a person types them.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict

import pytest

from adws.adw_modules.interfaces import OwnerRecord
from adws.adw_modules.store import serialization
from adws.adw_modules.store.legacy_import import TreeMigration, TreePlanner
from adws.app import open_home
from adws.config import load as config_load

OLD = {
    "adw_id": "a1b2c3d4",
    "issue_number": "42",
    "branch_name": "feature-issue-42-adw-a1b2c3d4-export",
    "all_adws": ["adw_plan_iso", "adw_build_iso"],
    "team": "exports",
}


def put(root, data, *, under="agents", adw_id="a1b2c3d4"):
    path = root / under / adw_id / "adw_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps({**data, "adw_id": adw_id}))
    return path


@pytest.fixture
def imported(home):
    """A home with one imported workflow, made without starting a command."""
    put(home, OLD)
    with open_home(config_load.from_environment({"home": str(home)})) as app:
        plan = TreePlanner(store=app.store, state_dir=home / "state").plan_migration(home)
        (done,) = TreeMigration(store=app.store, ownership=app.ownership).apply_migration(plan)
    assert done.is_done
    return home


# --- migrate ---------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_plan_and_makes_nothing(adw, home):
    put(home, OLD)

    done = adw("state", "migrate", "--dry-run")

    assert done.rc == 0
    assert "agents/a1b2c3d4/adw_state.json  a1b2c3d4  1.0      import  as paused" in done.stdout
    assert not (home / "state").exists()


def test_migrate_imports_and_says_so(adw, home):
    put(home, OLD)

    done = adw("state", "migrate", "--json")

    assert done.rc == 0
    assert done.json() == {
        "root": str(home),
        "files": [
            {
                "path": "agents/a1b2c3d4/adw_state.json",
                "adw_id": "a1b2c3d4",
                "version": "1.0",
                "action": "done",
                "detail": "imported as paused",
            }
        ],
    }
    assert adw("status", "a1b2c3d4", "--json").rc == 0


def test_migrate_upgrades_in_place_with_a_backup(adw, home):
    path = put(home, OLD, under="state")
    old = path.read_bytes()

    done = adw("state", "migrate")

    assert done.rc == 0
    assert "1.0 -> 3.0; the old file is kept as adw_state.json.v1.0.bak" in done.stdout
    assert path.with_name("adw_state.json.v1.0.bak").read_bytes() == old
    assert "up to date" in adw("state", "migrate").stdout


def test_migrate_takes_a_path_outside_the_home(adw, home, tmp_path):
    put(tmp_path / "old", OLD)

    assert "imported as paused" in adw("state", "migrate", str(tmp_path / "old")).stdout
    assert adw("state", "migrate", str(tmp_path / "old" / "agents" / "a1b2c3d4" / "adw_state.json")).rc == 0


def test_migrate_ends_with_1_when_a_person_has_to_look(adw, home):
    put(home, "{torn")
    put(home, OLD, adw_id="b1b2c3d4")

    dry, done = adw("state", "migrate", "--dry-run"), adw("state", "migrate")

    assert (dry.rc, done.rc) == (1, 1)
    assert "not usable" in dry.stdout
    assert "imported as paused" in done.stdout


def test_migrate_refuses_what_another_workflow_has_and_ends_with_1(adw, imported):
    put(imported, OLD, adw_id="b1b2c3d4")

    done = adw("state", "migrate")

    assert done.rc == 1
    assert "issue 42 belongs to workflow a1b2c3d4" in done.stdout


def test_migrate_finds_nothing_in_an_empty_home(adw, home):
    done = adw("state", "migrate", "--dry-run")

    assert (done.rc, done.stdout) == (0, f"no workflow documents below {home}\n")


def test_migrate_refuses_a_path_that_is_not_there(adw, home):
    done = adw("state", "migrate", "nowhere")

    assert done.rc == 2
    assert "'nowhere' does not exist" in done.stderr


# --- show ------------------------------------------------------------------------------------------------------


def test_show_prints_each_key_with_its_value(adw, imported):
    done = adw("state", "show", "a1b2c3d4")

    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert done.rc == 0
    assert (lines["current_state"], lines["issue_number"], lines["failed_phase"]) == ("paused", "42", "null")
    assert (lines["team"], lines["repository"]) == ("exports", '""')


def test_show_prints_the_document_as_json(adw, imported):
    shown = adw("state", "show", "adw-a1b2c3d4", "--json").json()

    assert (shown["adw_id"], shown["state_version"], shown["team"]) == ("a1b2c3d4", "3.0", "exports")


def test_show_says_that_an_old_document_is_migrated_in_memory_and_leaves_it_alone(adw, home):
    path = put(home, OLD, under="state")
    old = path.read_bytes()

    done = adw("state", "show", "a1b2c3d4", "--json")

    assert done.json()["state_version"] == "3.0"
    assert "brought from version 1.0 to 3.0 in memory" in done.stderr
    assert path.read_bytes() == old


def test_show_shows_a_document_that_is_not_valid_and_says_why(adw, imported):
    """
    Who has to mend a document has to see it.
    """
    path = imported / "state" / "a1b2c3d4" / "adw_state.json"
    data = {**serialization.parse(path.read_bytes()), "pr_number": "soon"}
    path.write_bytes(serialization.add_checksum(serialization.to_bytes(data)))

    done = adw("state", "show", "a1b2c3d4", "--json")

    assert done.json()["pr_number"] == "soon"
    assert "pr_number: Input should be a valid integer" in done.stderr


def test_show_of_a_workflow_that_is_not_there_says_so(adw, home):
    done = adw("state", "show", "00000000")

    assert done.rc == 1
    assert "adw list shows the workflows there are" in done.stderr


# --- set -------------------------------------------------------------------------------------------------------


def test_set_changes_fields_and_leaves_an_event(adw, imported):
    done = adw("state", "set", "a1b2c3d4", "branch_name=fix", "pr_number=7", "-m", "wrong branch")

    shown = adw("state", "show", "a1b2c3d4", "--json").json()
    events = adw("events", "a1b2c3d4", "--json").json()
    assert done.rc == 0
    assert done.stdout.splitlines() == [
        "branch_name: feature-issue-42-adw-a1b2c3d4-export -> fix",
        "pr_number: null -> 7",
        "revision 2",
    ]
    assert (shown["branch_name"], shown["pr_number"], shown["revision"]) == ("fix", 7, 2)
    (event,) = [event for event in _events(events) if event["event_type"] == "state_set"]
    assert event["data"]["old"] == {"branch_name": OLD["branch_name"], "pr_number": None}
    assert event["data"]["reason"] == "wrong branch"


def _events(printed):
    return printed["events"] if isinstance(printed, dict) else printed


def test_set_prints_json(adw, imported):
    done = adw("state", "set", "a1b2c3d4", "team=imports", "--json")

    assert done.json() == {
        "adw_id": "a1b2c3d4",
        "revision": 2,
        "old": {"team": "exports"},
        "new": {"team": "imports"},
        "changed": True,
    }


def test_set_to_what_is_there_already_writes_nothing_and_says_so(adw, imported):
    done = adw("state", "set", "a1b2c3d4", "team=exports")
    data = adw("state", "set", "a1b2c3d4", "team=exports", "--json").json()

    assert (done.rc, done.stdout) == (0, "nothing changed, still revision 1\n")
    assert (data["changed"], data["revision"]) == (False, 1)
    assert adw("state", "show", "a1b2c3d4", "--json").json()["revision"] == 1
    assert "state_set" not in adw("events", "a1b2c3d4").stdout


def test_set_refuses_in_one_sentence_and_changes_nothing(adw, imported):
    sentences = {
        "current_state=completed": "use adw resume, retry, abandon or rollback",
        "retry_count=0": "adw retry ID --grant N",
        "brnach_name=x": "did you mean branch_name?",
        "nonsense": "write KEY=VALUE",
        "pr_number=-4": "pr_number must be a whole number from 1 to 2147483647, or null",
        "backend_port=70000": "backend_port must be a whole number from 1 to 65535, or null",
        "team=NaN": "'NaN' holds NaN, which is no number of JSON",
    }
    for assignment, sentence in sentences.items():
        done = adw("state", "set", "a1b2c3d4", assignment)

        assert (done.rc, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr
    assert adw("state", "show", "a1b2c3d4", "--json").json()["revision"] == 1


def test_set_adds_a_key_of_ones_own_only_on_request(adw, imported):
    assert adw("state", "set", "a1b2c3d4", "reviewer=ada").rc == 2
    assert adw("state", "set", "a1b2c3d4", "reviewer=ada", "--new").rc == 0
    assert adw("state", "show", "a1b2c3d4", "--json").json()["reviewer"] == "ada"


def test_set_of_a_document_that_the_database_does_not_know_says_how_it_gets_known(adw, imported):
    (database,) = imported.rglob("adw.db")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM workflow_states")
        connection.commit()

    done = adw("state", "set", "a1b2c3d4", "team=x")

    assert done.rc == 1
    assert done.stderr == (
        "adw: no workflow state at a1b2c3d4 in the database; its document is there: adw db rebuild registers it\n"
    )


def test_set_says_that_the_file_was_not_the_one_it_went_on_from(adw, imported):
    file = imported / "state" / "a1b2c3d4" / "adw_state.json"
    file.write_text(file.read_text().replace('"exports"', '"by hand"'))

    done = adw("state", "set", "a1b2c3d4", "pr_number=7")

    assert done.rc == 0
    assert f"{file}: its checksum does not match" in done.stderr
    assert "revision 1 was used" in done.stderr


def test_a_warning_is_a_line_of_the_log(adw, imported):
    with open_home(config_load.from_environment({"home": str(imported)})) as app:
        dead = OwnerRecord(**{**asdict(app.processes.me("worker")), "pid": 2**22 + 1, "start_ticks": 1})
        app.leases.take("a1b2c3d4", dead, ttl_seconds=0.001)

    done = adw("state", "set", "a1b2c3d4", "pr_number=7", env={"ADW_LOG_FORMAT": "json"})

    (line,) = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert (line["message"], line["level"], line["workflow"]) == ("Workflow taken over", "WARNING", "a1b2c3d4")


def test_set_without_an_assignment_is_wrong_use(adw, imported):
    assert adw("state", "set", "a1b2c3d4").rc == 2
