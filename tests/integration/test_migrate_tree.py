"""
Trees of old documents on a real disk, with the real stores and a real database.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from adws.adw_modules import document
from adws.adw_modules.errors import UsageError
from adws.adw_modules.store.legacy_import import ImportAction, MigrationPlan, TreeMigration, TreePlanner
from adws.app import open_home
from adws.config import load as config_load

CORE = {
    "adw_id": "a1b2c3d4",
    "issue_number": "42",
    "all_adws": ["adw_plan_iso", "adw_build_iso"],
    "mine": [1, {"x": 2}],
}
MOMENT = "2026-01-31T09:00:00.000000Z"


@pytest.fixture(params=["files", "database"])
def store_kind(request):
    return request.param


@pytest.fixture
def app(home, store_kind):
    with open_home(config_load.from_environment({"home": str(home), "store": store_kind})) as opened:
        yield opened


@pytest.fixture
def files_app(home):
    with open_home(config_load.from_environment({"home": str(home), "store": "files"})) as opened:
        yield opened


def planner(app):
    is_files, has_database = app.settings.store == "files", app.has_database()
    return TreePlanner(
        store=app.store if is_files or has_database else None,
        state_dir=app.settings.state_dir if is_files else None,
        locks=app.locks if has_database else None,
        leases=app.leases if has_database else None,
        repository=app.settings.repository or "",
    )


def plan(app, path):
    return planner(app).plan_migration(path)


def apply(app, planned):
    migration = TreeMigration(store=app.store, ownership=app.ownership)
    return {applied.file.adw_id: applied for applied in migration.apply_migration(planned)}


def put(root, data, *, under="agents", folder=None, age_seconds=0):
    """Write an old document as its tool did, and return its path."""
    path = root / under / (folder or data["adw_id"]) / "adw_state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2))
    os.utime(path, (1_700_000_000 - age_seconds,) * 2)
    return path


def snapshot(root):
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and ".git" not in path.parts]
    return {str(path): path.read_bytes() for path in files}


# --- planning --------------------------------------------------------------------------------------------------


def test_planning_reads_only(app, home):
    """
    It does not even make the database.
    """
    put(home, CORE)
    put(home, {**CORE, "adw_id": "b1b2c3d4"}, under="state")
    put(home, "{torn", folder="deadbeef")
    before = snapshot(home)

    assert plan(app, home).has_trouble

    assert snapshot(home) == before


def test_a_tree_without_documents_gives_an_empty_plan(app, home):
    assert plan(app, home).files == ()


@pytest.mark.parametrize(
    ("data", "action", "detail"),
    [
        (CORE, ImportAction.IMPORT, "as paused"),
        ({**CORE, "status": "completed"}, ImportAction.IMPORT, "as completed"),
        ({**CORE, "state_version": "4.0"}, ImportAction.NEWER, "upgrade adw"),
        ({**CORE, "state_version": "0.5"}, ImportAction.CORRUPT, "no migration leads from 0.5"),
        ({**CORE, "adw_id": "ffffffff"}, ImportAction.CORRUPT, "is the document of 'ffffffff'"),
        ({**CORE, "adw_id": 5}, ImportAction.CORRUPT, "is the document of 5"),
        ({key: CORE[key] for key in CORE if key != "adw_id"}, ImportAction.IMPORT, "as paused"),
        ("{torn", ImportAction.CORRUPT, "not JSON"),
        ("", ImportAction.CORRUPT, "empty"),
        ("[]", ImportAction.CORRUPT, "not an object"),
        ('{"adw_id": "a1b2c3d4", "adw_id": "x"}', ImportAction.CORRUPT, "stands twice"),
    ],
    ids=[
        *("old", "finished", "newer", "unknown-version", "other-id", "bad-id", "no-id"),
        *("torn", "empty", "list", "duplicate"),
    ],
)
def test_each_file_is_named_for_what_it_is(app, home, data, action, detail):
    path = put(home, data, folder="a1b2c3d4")

    (planned,) = plan(app, home).files

    assert (planned.path, planned.action) == (path, action)
    assert detail in planned.detail
    assert planned.action.is_trouble is (action not in (ImportAction.IMPORT, ImportAction.MIGRATE))


def test_a_bad_directory_name_is_refused_as_an_id(app, home):
    put(home, {"issue_number": 1}, folder="bad name!")

    (planned,) = plan(app, home).files

    assert planned.action is ImportAction.CORRUPT
    assert "is not a workflow id" in planned.detail


def test_a_symbolic_link_is_not_followed(app, home, tmp_path):
    outside = put(tmp_path, CORE)
    link = home / "agents" / "a1b2c3d4" / "adw_state.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)

    (planned,) = plan(app, home).files

    assert planned.action is ImportAction.CORRUPT


def test_a_file_too_large_is_reported(app, home):
    put(home, {**CORE, "blob": "x" * 5000})
    small = TreePlanner(store=app.store, state_dir=None, max_bytes=1000)

    (planned,) = small.plan_migration(home).files

    assert planned.action is ImportAction.CORRUPT
    assert "the limit is 1000" in planned.detail


def test_a_directory_that_cannot_be_looked_into_is_reported(app, home, monkeypatch):
    """
    Root may look everywhere, so the refusal is put in where os.walk meets it.
    """
    put(home, CORE)
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "agents":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        (planned,) = planner(app).plan_migration(home, home / "agents").files

    assert (planned.action, planned.path) == (ImportAction.CORRUPT, home / "agents")
    assert "Permission denied" in planned.detail


def test_worktrees_and_other_tools_directories_are_not_searched(app, home):
    for skipped in ("trees", ".git", "node_modules", ".venv"):
        put(home / skipped / "copy", CORE)
    put(home, CORE, under="elsewhere")

    assert plan(app, home).files == ()


def test_a_path_that_is_not_there_is_refused(app, home):
    with pytest.raises(UsageError, match="nowhere does not exist"):
        plan(app, home / "nowhere")


def test_a_further_path_that_is_not_there_is_no_trouble(app, home):
    assert planner(app).plan_migration(home, home / "nowhere").files == ()


@pytest.mark.parametrize("where", ["agents", "agents/a1b2c3d4", "agents/a1b2c3d4/adw_state.json"])
def test_the_path_may_point_anywhere_in_the_tree(app, home, where):
    path = put(home, CORE)

    assert [file.path for file in plan(app, home / where).files] == [path]


def test_of_two_files_of_one_workflow_the_last_changed_is_imported(app, home):
    older = put(home / "one", CORE, age_seconds=100)
    newer = put(home / "two", CORE)

    planned = plan(app, home)

    assert [(file.path, file.action) for file in planned.files] == [
        (newer, ImportAction.IMPORT),
        (older, ImportAction.EXISTS),
    ]


# --- importing -------------------------------------------------------------------------------------------------


def test_an_old_document_is_imported_and_its_file_stays_as_it_was(app, home):
    path = put(home, CORE)
    before = path.read_bytes()

    done = apply(app, plan(app, home))["a1b2c3d4"]

    stored = app.store.load("a1b2c3d4").document
    assert (done.is_done, done.detail) == (True, "imported as paused")
    assert (stored.revision, stored.current_state, stored.resume_state) == (1, "paused", "building")
    assert stored.mine == [1, {"x": 2}]
    assert path.read_bytes() == before


def test_an_imported_workflow_owns_its_issue_and_nobody_works_on_it(app, home):
    put(home, CORE)

    apply(app, plan(app, home))

    assert app.locks.verify(42, "a1b2c3d4")
    assert app.leases.read("a1b2c3d4").owner is None


def test_an_import_leaves_an_event_with_the_source(app, home):
    path = put(home, CORE)

    apply(app, plan(app, home))
    app.close()

    events = {event.event_type: event for event in app.events.of_workflow("a1b2c3d4")}
    assert events["workflow_imported"].data == {"path": str(path), "version": "1.0"}


def test_a_finished_workflow_is_imported_without_its_issue(app, home):
    put(home, {**CORE, "status": "completed"})

    apply(app, plan(app, home))

    assert app.store.load("a1b2c3d4").document.current_state == "completed"
    assert app.locks.all() == ()


def test_an_imported_workflow_can_be_owned_and_written(app, home):
    put(home, CORE)
    put(home, {**CORE, "adw_id": "b1b2c3d4", "status": "completed"})
    apply(app, plan(app, home))
    if app.settings.store == "files":
        app.projection.flush()

    for adw_id in ("a1b2c3d4", "b1b2c3d4"):
        with app.ownership.own(adw_id) as owned:
            owned.save(owned.document)

        assert app.store.load(adw_id).document.revision == 2


def test_of_several_workflows_of_one_issue_the_last_changed_gets_it_and_the_others_go_on(app, home):
    put(home, {**CORE, "adw_id": "00000001"}, age_seconds=100)
    put(home, {**CORE, "adw_id": "00000002"})
    put(home, {**CORE, "adw_id": "00000003", "issue_number": "7"}, age_seconds=200)

    done = apply(app, plan(app, home))

    assert {adw_id: applied.is_done for adw_id, applied in done.items()} == {
        "00000001": False,
        "00000002": True,
        "00000003": True,
    }
    assert "issue 42 belongs to workflow 00000002" in done["00000001"].detail
    assert "then migrate again" in done["00000001"].detail
    assert not app.store.exists("00000001")


def outcomes(planned):
    return {file.adw_id: (file.action, file.action.is_change) for file in planned.files}


def test_a_plan_foresees_that_two_files_of_one_issue_collide(app, home):
    put(home, {**CORE, "adw_id": "00000001"}, age_seconds=100)
    put(home, {**CORE, "adw_id": "00000002"})
    put(home, {**CORE, "adw_id": "00000003", "status": "completed"}, age_seconds=200)
    put(home, {**CORE, "adw_id": "00000004", "repository": "acme/web"}, age_seconds=300)
    put(home, {**CORE, "adw_id": "00000005", "repository": "https://github.com/Acme/Web"}, age_seconds=400)

    planned = plan(app, home)
    done = apply(app, planned)

    assert outcomes(planned) == {
        "00000001": (ImportAction.LOCKED, False),
        "00000002": (ImportAction.IMPORT, True),
        "00000003": (ImportAction.IMPORT, True),
        "00000004": (ImportAction.IMPORT, True),
        "00000005": (ImportAction.LOCKED, False),
    }
    assert {adw_id: applied.is_done for adw_id, applied in done.items()} == {
        file.adw_id: file.action.is_change for file in planned.files
    }
    assert {lock.adw_id for lock in app.locks.all()} == {"00000002", "00000004"}


def test_a_plan_foresees_what_the_home_refuses(app, home):
    fields = {"adw_id": "00000009", "issue_number": 42, "created_at": MOMENT, "updated_at": MOMENT}
    with app.ownership.create(document.parse(fields)):
        pass
    half_made = document.parse({**fields, "adw_id": "00000008", "issue_number": 8})
    app.registry.register(half_made, app.processes.me("cli"), ttl_seconds=30.0)
    put(home, {**CORE, "adw_id": "00000001"})
    put(home, {**CORE, "adw_id": "00000008", "issue_number": 80})

    planned = {file.adw_id: file for file in plan(app, home / "agents").files}
    done = apply(app, plan(app, home / "agents"))

    assert planned["00000001"].action is ImportAction.LOCKED
    assert "issue 42 belongs to workflow 00000009" in planned["00000001"].detail
    assert planned["00000008"].action is ImportAction.EXISTS
    assert "without a document: see adw db check" in planned["00000008"].detail
    assert not any(applied.is_done for applied in done.values())


def test_an_issue_that_goes_after_the_plan_was_made_is_refused_by_the_run(app, home):
    put(home, CORE)
    planned = plan(app, home)
    app.locks.acquire(42, "00000009")

    done = apply(app, planned)["a1b2c3d4"]

    assert not done.is_done
    assert "issue 42 belongs to workflow 00000009" in done.detail
    assert done.detail.endswith("; finish or abandon that one, then migrate again")


def test_a_plan_knows_that_no_repository_is_that_of_the_home(home, store_kind):
    put(home, {**CORE, "adw_id": "00000001", "repository": "Acme/Web"}, age_seconds=100)
    put(home, {**CORE, "adw_id": "00000002"})
    settings = config_load.from_environment({"home": str(home), "store": store_kind, "repository": "acme/web"})
    with open_home(settings) as app:
        planned = plan(app, home)
        done = apply(app, planned)

    assert {file.adw_id: file.action for file in planned.files} == {
        "00000001": ImportAction.LOCKED,
        "00000002": ImportAction.IMPORT,
    }
    assert {adw_id: applied.is_done for adw_id, applied in done.items()} == {"00000001": False, "00000002": True}


def test_a_refused_import_leaves_nothing_behind_and_works_later(app, home):
    put(home, {**CORE, "adw_id": "00000001"}, age_seconds=100)
    put(home, {**CORE, "adw_id": "00000002"})
    apply(app, plan(app, home))
    app.locks.release(42, "00000002")

    done = apply(app, plan(app, home))

    assert done["00000001"].is_done
    assert app.locks.verify(42, "00000001")


def test_a_second_run_finds_everything_up_to_date(app, home):
    put(home, CORE)
    apply(app, plan(app, home))
    before = app.store.load("a1b2c3d4").document

    again = plan(app, home)

    assert {file.action for file in again.files} == {ImportAction.UP_TO_DATE}
    assert all(applied.is_done for applied in apply(app, again).values())
    assert app.store.load("a1b2c3d4").document == before


def test_a_workflow_that_exists_is_not_overwritten(app, home):
    existing = {**CORE, "issue_number": 5, "created_at": MOMENT, "updated_at": MOMENT}
    with app.ownership.create(document.parse(existing)):
        pass
    put(home, CORE)

    planned = next(file for file in plan(app, home).files if "agents" in file.path.parts)
    done = apply(app, MigrationPlan(root=home, files=(planned,)))["a1b2c3d4"]

    assert (planned.action, done.is_done) == (ImportAction.EXISTS, False)
    assert app.store.load("a1b2c3d4").document.issue_number == 5


def test_a_workflow_that_exists_and_is_broken_is_not_overwritten_either(files_app, home):
    broken = put(home, "{torn", under="state", folder="a1b2c3d4")
    put(home, CORE)

    actions = {file.path.parts[-3]: file.action for file in plan(files_app, home).files}

    assert actions == {"state": ImportAction.CORRUPT, "agents": ImportAction.EXISTS}
    assert broken.read_text() == "{torn"


def test_a_file_that_vanished_after_planning_is_refused_and_the_others_go_on(app, home):
    path = put(home, CORE)
    put(home, {**CORE, "adw_id": "b1b2c3d4", "issue_number": 7})
    planned = plan(app, home)
    path.unlink()

    done = apply(app, planned)

    assert (done["a1b2c3d4"].is_done, done["b1b2c3d4"].is_done) == (False, True)


def test_a_foreign_id_is_imported_under_its_own_name(app, home):
    put(home / "automation", {**CORE, "adw_id": "orch-187-20251020140000"})

    apply(app, plan(app, home))

    assert app.store.exists("orch-187-20251020140000")


def made_elsewhere(root, **fields):
    """Make a home with one current document that had several owners, and return its path."""
    root.mkdir()
    moments = {"created_at": MOMENT, "updated_at": MOMENT}
    with open_home(config_load.from_environment({"home": str(root)})) as source:
        with source.ownership.create(document.parse({**CORE, "issue_number": 42, **moments, **fields})):
            pass
        for _ in range(3):
            with source.ownership.own("a1b2c3d4") as owned:
                owned.save(owned.document)
    return root / "state" / "a1b2c3d4" / "adw_state.json"


@pytest.mark.parametrize(("state", "fence"), [("paused", 1), ("completed", 0)])
def test_a_current_document_of_another_home_begins_anew_here(app, home, tmp_path, state, fence):
    """
    Its revisions and owners were counted there; here nobody has owned it but the one who imports it.
    """
    made_elsewhere(tmp_path / "other", current_state=state)

    done = apply(app, plan(app, tmp_path / "other"))["a1b2c3d4"]

    stored = app.store.load("a1b2c3d4").document
    assert done.is_done
    assert (stored.revision, stored.fence, stored.current_state) == (1, fence, state)


def test_a_current_document_that_was_changed_by_hand_is_not_imported(app, home, tmp_path):
    path = made_elsewhere(tmp_path / "other")
    path.write_bytes(path.read_bytes().replace(b'"issue_number": 42', b'"issue_number": 43'))

    (planned,) = plan(app, tmp_path / "other").files

    assert planned.action is ImportAction.CORRUPT
    assert "checksum" in planned.detail


# --- in place --------------------------------------------------------------------------------------------------


def test_a_document_of_this_home_is_migrated_in_place_with_a_backup(files_app, home):
    path = put(home, CORE, under="state")
    old = path.read_bytes()

    planned = plan(files_app, home)
    done = apply(files_app, planned)["a1b2c3d4"]

    assert [(file.version, file.action) for file in planned.files] == [("1.0", ImportAction.MIGRATE)]
    assert done.detail == "1.0 -> 3.0; the old file is kept as adw_state.json.v1.0.bak"
    assert path.with_name("adw_state.json.v1.0.bak").read_bytes() == old
    assert json.loads(path.read_bytes())["state_version"] == "3.0"
    assert files_app.locks.verify(42, "a1b2c3d4")
    assert plan(files_app, home).files[0].action is ImportAction.UP_TO_DATE


def test_a_backup_that_is_there_is_never_overwritten(files_app, home):
    path = put(home, CORE, under="state")
    earlier = path.with_name("adw_state.json.v1.0.bak")
    earlier.write_text("precious")
    old = path.read_bytes()

    done = apply(files_app, plan(files_app, home))["a1b2c3d4"]

    assert earlier.read_text() == "precious"
    assert path.with_name("adw_state.json.v1.0.2.bak").read_bytes() == old
    assert done.detail.endswith("adw_state.json.v1.0.2.bak")


def test_a_finished_document_of_this_home_is_migrated_without_its_issue(files_app, home):
    put(home, {**CORE, "status": "completed"}, under="state")

    done = apply(files_app, plan(files_app, home))["a1b2c3d4"]

    assert done.is_done
    assert files_app.locks.all() == ()


def test_a_document_of_this_home_whose_issue_is_taken_is_left_as_it_is(files_app, home):
    path = put(home, CORE, under="state")
    fields = {"adw_id": "00000009", "issue_number": 42, "created_at": MOMENT, "updated_at": MOMENT}
    with files_app.ownership.create(document.parse(fields)):
        pass
    old = path.read_bytes()

    done = apply(files_app, plan(files_app, home))["a1b2c3d4"]

    assert done.is_done is False
    assert "00000009" in done.detail
    assert path.read_bytes() == old


def test_a_plan_foresees_that_two_documents_of_this_home_want_one_issue(files_app, home):
    kept = put(home, {**CORE, "adw_id": "00000001"}, under="state", age_seconds=100)
    put(home, {**CORE, "adw_id": "00000002"}, under="state")
    old = kept.read_bytes()

    planned = plan(files_app, home)
    done = apply(files_app, planned)

    assert {file.adw_id: file.action for file in planned.files} == {
        "00000001": ImportAction.LOCKED,
        "00000002": ImportAction.MIGRATE,
    }
    assert {adw_id: applied.is_done for adw_id, applied in done.items()} == {"00000001": False, "00000002": True}
    assert kept.read_bytes() == old


def test_a_document_that_lost_its_issue_and_has_a_row_is_migrated_all_the_same(files_app, home):
    path = put(home, CORE, under="state")
    apply(files_app, plan(files_app, home))
    files_app.locks.release(42, "a1b2c3d4")
    files_app.locks.acquire(42, "00000009")
    path.write_text(json.dumps(CORE))

    planned = plan(files_app, home)

    assert [file.action for file in planned.files] == [ImportAction.MIGRATE]
    assert apply(files_app, planned)["a1b2c3d4"].is_done


def test_a_document_that_somebody_works_on_is_refused(files_app, home):
    path = put(home, CORE, under="state")
    apply(files_app, plan(files_app, home))
    path.write_text(json.dumps(CORE))

    planned = plan(files_app, home)
    with files_app.ownership.own("a1b2c3d4"):
        done = apply(files_app, planned)["a1b2c3d4"]

    assert done.is_done is False
    assert "is being worked on by" in done.detail


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (json.dumps({**CORE, "state_version": "9.0"}), ImportAction.NEWER),
        ("{torn", ImportAction.CORRUPT),
        (json.dumps({**CORE, "adw_id": "ffffffff"}), ImportAction.CORRUPT),
        (json.dumps({**CORE, "issue_number": 42, "state_version": "3.0"}), ImportAction.CORRUPT),
    ],
    ids=["newer", "torn", "other-id", "no-checksum"],
)
def test_trouble_in_this_home_is_reported_and_not_touched(files_app, home, text, action):
    path = put(home, text, under="state", folder="a1b2c3d4")

    planned = plan(files_app, home)
    done = list(apply(files_app, planned).values())

    assert [file.action for file in planned.files] == [action]
    assert [applied.is_done for applied in done] == [False]
    assert path.read_text() == text


def test_a_hand_edited_document_with_a_good_revision_before_it_is_reported(files_app, home):
    fields = {**CORE, "issue_number": 42, "created_at": MOMENT, "updated_at": MOMENT}
    with files_app.ownership.create(document.parse(fields)) as owned:
        owned.save(owned.document)
    path = home / "state" / "a1b2c3d4" / "adw_state.json"
    unsealed = json.loads(path.read_bytes())
    del unsealed["checksum"]
    path.write_text(json.dumps(unsealed))

    (planned,) = plan(files_app, home).files

    assert planned.action is ImportAction.CORRUPT
    assert "not written by adw" in planned.detail


def test_a_state_directory_with_another_name_is_known_as_ours(home, tmp_path):
    elsewhere = tmp_path / "documents"
    settings = config_load.from_environment({"home": str(home), "state_dir": str(elsewhere)})
    put(tmp_path, CORE, under="documents")
    with open_home(settings) as app:
        (planned,) = planner(app).plan_migration(home, elsewhere).files

    assert planned.action is ImportAction.MIGRATE
