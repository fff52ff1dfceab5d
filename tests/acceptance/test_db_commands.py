"""`adw db` as a person uses it."""

from __future__ import annotations

import sqlite3

import pytest


def test_a_new_home_is_upgraded_checked_and_rebuilt(adw, home):
    assert adw("db", "check").rc == 0

    first = adw("db", "upgrade")
    assert first.rc == 0, first.stderr
    assert "schema none -> 0001" in first.stdout
    assert adw("db", "upgrade", "--json").json() == {"from": "0001", "to": "0001", "backup": None}

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
                "hint": "adw locks release 42",
                "kind": "lock",
                "text": "issue 42 is locked for a workflow that is gone",
            }
        ],
    }
    text = adw("db", "check")
    assert text.rc == 1
    assert "adw locks release 42" in text.stdout


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
def test_the_same_works_on_postgresql(adw, empty_pg_url):
    env = {"ADW_DATABASE_URL": empty_pg_url}

    assert "schema none -> 0001" in adw("db", "upgrade", env=env).stdout
    assert adw("db", "check", env=env).stdout == "no problems found\n"
    assert adw("db", "rebuild", env=env).rc == 0
