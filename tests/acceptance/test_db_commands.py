"""`adw db` as a person uses it."""

from __future__ import annotations

import sqlite3

import pytest

from adws import app as app_module
from adws.adw_modules.db import migrate
from adws.adw_modules.errors import DatabaseUnavailable
from adws.adw_modules.ownership.issue_locks import acquire_lock
from adws.config import load as config_load
from tests.contracts.worlds import FIRST, SECOND, make_document


def test_a_new_home_is_upgraded_checked_and_rebuilt(adw, home):
    assert adw("db", "check").rc == 0

    first = adw("db", "upgrade")
    assert first.rc == 0, first.stderr
    assert f"schema none -> {migrate.HEAD}" in first.stdout
    assert adw("db", "upgrade", "--json").json() == {
        "from": migrate.HEAD,
        "to": migrate.HEAD,
        "backup": None,
        "views": [],
    }

    assert adw("db", "check").stdout == "no problems found\n"
    rebuilt = adw("db", "rebuild", "--json")
    assert rebuilt.rc == 0, rebuilt.stderr
    assert rebuilt.json()["workflows"] == 0


def test_a_check_that_finds_something_exits_with_one(adw, home):
    adw("db", "upgrade")
    with sqlite3.connect(home / "state" / "adw.db") as plain:
        plain.execute("INSERT INTO adw_locks VALUES ('', 42, '1a2b3c4d', '2026-01-31T09:00:00.000000Z')")
    plain.close()

    done = adw("db", "check", "--json")

    assert done.rc == 1
    assert done.json() == {
        "ok": False,
        "problems": [
            {
                "adw_id": "1a2b3c4d",
                "hint": "adw admin locks release 42",
                "kind": "lock",
                "text": "issue 42 is locked for a workflow that is gone",
            }
        ],
    }
    text = adw("db", "check")
    assert text.rc == 1
    assert "adw admin locks release 42" in text.stdout


def create_workflow(home, store: str, adw_id: str = FIRST, **fields) -> None:
    settings = config_load.load(env={"ADW_HOME": str(home), "ADW_STATE_STORE": store}, cwd=home)
    with app_module.open_home(settings) as app, app.ownership.create(make_document(adw_id, **fields)) as owned:
        owned.save(owned.document)


@pytest.mark.parametrize("store", ["files", "database"])
def test_a_workflow_as_it_is_created_has_no_problem(adw, home, store):
    create_workflow(home, store)
    env = {"ADW_STATE_STORE": store}

    done = adw("db", "check", env=env)

    assert done.stdout == "no problems found\n"
    assert done.rc == 0
    listed = adw("list", "--json", env=env)
    assert FIRST in listed.stdout


def lose_database(home) -> None:
    for name in ("adw.db", "adw.db-wal", "adw.db-shm"):
        (home / "state" / name).unlink(missing_ok=True)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_lost_database_gives_no_issue_away(home, is_empty):
    create_workflow(home, "files")
    lose_database(home)
    if is_empty:
        (home / "state" / "adw.db").touch()

    settings = config_load.load(env={"ADW_HOME": str(home)}, cwd=home)
    with (
        app_module.open_home(settings) as app,
        pytest.raises(DatabaseUnavailable, match="adw db rebuild makes it again"),
    ):
        acquire_lock(42, "deadbeef", locks=app.locks)


def test_a_lost_database_that_had_the_documents_is_a_problem(adw, home):
    create_workflow(home, "database")
    lose_database(home)

    done = adw("db", "check", env={"ADW_STATE_STORE": "database"})

    assert done.rc == 1
    assert "adw db restore" in done.stdout


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("store", ["database", "files"])
def test_no_empty_database_takes_the_place_of_one_that_had_the_documents(adw, home, store, is_empty):
    create_workflow(home, "database")
    lose_database(home)
    if is_empty:
        (home / "state" / "adw.db").touch()
    before = sorted(path.name for path in (home / "state").iterdir())

    with pytest.raises(
        DatabaseUnavailable, match=r"adw db restore, or delete .*adw\.db\.has-documents to start afresh"
    ):
        create_workflow(home, store, SECOND)
    for args in (("list",), ("admin", "locks"), ("db", "upgrade")):
        done = adw(*args, env={"ADW_STATE_STORE": store})
        assert done.rc == 1, args
        assert "adw db restore" in done.stderr, args

    assert sorted(path.name for path in (home / "state").iterdir()) == before


@pytest.mark.parametrize("is_empty", [False, True])
def test_what_is_left_of_a_home_can_be_backed_up_and_no_database_is_made_for_that(adw, home, is_empty):
    create_workflow(home, "files")
    lose_database(home)
    if is_empty:
        (home / "state" / "adw.db").touch()

    done = adw("db", "backup")

    assert (done.rc, "1 workflow, 0 events, without a database" in done.stdout) == (0, True), done
    assert adw("list").rc == 1, "it is still lost"


def test_a_lost_database_that_had_the_documents_comes_back_with_a_backup(adw, home, tmp_path):
    create_workflow(home, "database")
    env = {"ADW_STATE_STORE": "database"}
    assert adw("db", "backup", str(tmp_path / "b.tar.gz"), env=env).rc == 0
    lose_database(home)

    restored = adw("db", "restore", str(tmp_path / "b.tar.gz"), env=env)

    assert restored.rc == 0, restored.stderr
    assert adw("status", FIRST, env=env).rc == 0


def test_who_lost_the_documents_may_start_afresh(home):
    create_workflow(home, "database")
    lose_database(home)
    (home / "state" / "adw.db.has-documents").unlink()

    create_workflow(home, "database", SECOND)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_home_that_had_its_documents_in_files_may_change_to_the_database(home, is_lost):
    create_workflow(home, "files")
    if is_lost:
        lose_database(home)

    create_workflow(home, "database", SECOND, issue_number=43)


@pytest.mark.parametrize("damage", ["truncated", "truncated twice", "changed by hand", "of another workflow"])
def test_a_damaged_document_is_a_problem_though_a_copy_stands_in(adw, home, damage):
    create_workflow(home, "files")
    file = home / "state" / FIRST / "adw_state.json"
    text = file.read_text()
    if damage == "truncated twice":
        (file.parent / "adw_state.json.prev").write_text("{")
    if damage == "changed by hand":
        file.write_text(text.replace('"pending"', '"paused"'))
    elif damage == "of another workflow":
        file.write_text(text.replace(FIRST, "deadbeef"))
    else:
        file.write_text(text[: len(text) // 2])

    done = adw("db", "check", "--json")

    assert done.rc == 1
    assert any(str(file) in problem["text"] for problem in done.json()["problems"])


def test_a_rebuild_that_leaves_a_document_out_exits_with_one(adw, home):
    create_workflow(home, "files")
    for file in (home / "state" / FIRST).glob("adw_state.json*"):
        file.write_text("torn")
    lose_database(home)

    done = adw("db", "rebuild")

    assert done.rc == 1
    assert f"cannot be read, left out: {FIRST}" in done.stdout


def test_a_document_that_the_database_lost_comes_back_with_a_rebuild(adw, home):
    create_workflow(home, "files")
    lose_database(home)

    refused = adw("db", "upgrade")
    assert refused.rc == 1
    assert "adw db rebuild makes it again" in refused.stderr
    result = adw("db", "check", "--json")
    assert result.rc == 1
    (problem,) = result.json()["problems"]
    assert problem["hint"] == "adw db rebuild makes it again from the documents"
    assert not (home / "state" / "adw.db").exists()

    rebuilt = adw("db", "rebuild")
    assert rebuilt.rc == 0, rebuilt.stderr
    assert rebuilt.stdout.startswith("1 workflow, 1 issue lock")
    assert adw("db", "check").rc == 0


def test_a_document_that_cannot_be_read_is_named(adw, home):
    create_workflow(home, "files")
    for file in (home / "state" / FIRST).glob("adw_state.json*"):
        file.write_text("torn")
    with sqlite3.connect(home / "state" / "adw.db") as plain:
        plain.execute("UPDATE workflow_states SET body = 'torn too'")
    plain.close()

    done = adw("db", "check", "--json")

    assert done.rc == 1
    (problem,) = done.json()["problems"]
    assert problem["text"].startswith("its document cannot be read: ")
    assert "restore it from a backup" in problem["text"]


def test_a_link_in_the_place_of_a_workflow_is_named(adw, home):
    create_workflow(home, "files")
    (home / "state" / FIRST).rename(home / "elsewhere")
    (home / "state" / FIRST).symlink_to(home / "elsewhere")

    done = adw("db", "check", "--json")

    assert done.rc == 1
    (problem,) = done.json()["problems"]
    place = home / "state" / FIRST
    assert problem["text"] == (
        f"its document cannot be read: {place} is not a real directory: adw never follows it, move it away"
    )
    assert problem["adw_id"] == FIRST


def test_a_newer_database_is_refused_in_one_sentence(adw, home):
    adw("db", "upgrade")
    with sqlite3.connect(home / "state" / "adw.db") as plain:
        plain.execute("UPDATE alembic_version SET version_num = '9999'")
    plain.close()

    for command in (("db", "upgrade"), ("list",)):
        done = adw(*command)
        assert done.rc == 1
        assert "has schema 9999" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert adw("db", "check").rc == 1


def test_a_damaged_database_is_said_to_be_damaged(adw, home):
    (home / "state").mkdir(exist_ok=True)
    (home / "state" / "adw.db").write_bytes(b"no database" * 1000)

    done = adw("db", "check")

    assert done.rc == 1
    assert "storage" in done.stdout


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["files", "database"])
def test_a_home_is_moved_to_postgresql(adw, home, empty_pg_url, store):
    create_workflow(home, store)
    url = empty_pg_url.replace("postgres:@", "postgres:hush@")
    old = {"ADW_STATE_STORE": store}

    planned = adw("db", "move", url, "--dry-run", env=old)
    assert (planned.rc, "1 workflow_states" in planned.stdout) == (0, True), planned.stderr
    moved = adw("db", "move", url, env=old)
    assert moved.rc == 0, moved.stderr
    assert "ADW_STATE_STORE=database" in moved.stdout
    assert "ADW_DATABASE_URL=postgresql://postgres:***@" in moved.stdout
    again = adw("db", "move", url, "--json", env=old)
    assert (again.json()["was_done"], again.json()["tables"]["workflow_states"]) == (True, 1)
    for said in (planned, moved, again):
        assert "hush" not in said.stdout + said.stderr

    looks = (["list"], ["status", FIRST], ["state", "show", FIRST], ["report", FIRST])
    for command in (*looks, ["db", "upgrade"], ["db", "rebuild"], ["db", "backup"]):
        refused = adw(*command, env=old)
        assert (refused.rc, refused.stderr.count("\n")) == (1, 1)
        assert "has moved to postgresql://postgres:***@" in refused.stderr
    assert "all of it has moved to" in adw("db", "check", env=old).stdout
    new = {"ADW_DATABASE_URL": url, "ADW_STATE_STORE": "database"}
    assert FIRST in adw("list", env=new).stdout
    assert adw("db", "check", env=new).stdout == "no problems found\n"


def test_a_home_without_a_database_has_nothing_to_move(adw, home):
    done = adw("db", "move", "postgresql://nobody:hush@localhost/none")

    assert done.rc == 2
    assert "there is nothing to move" in done.stderr
    assert "hush" not in done.stderr


@pytest.mark.postgres
def test_the_same_works_on_postgresql(adw, empty_pg_url):
    env = {"ADW_DATABASE_URL": empty_pg_url}

    assert f"schema none -> {migrate.HEAD}" in adw("db", "upgrade", env=env).stdout
    assert adw("db", "check", env=env).stdout == "no problems found\n"
    assert adw("db", "rebuild", env=env).rc == 0
