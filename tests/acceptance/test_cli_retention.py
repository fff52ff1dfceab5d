"""`adw admin gc` and what is older than the settings say, as a person uses it."""

from __future__ import annotations

import sqlite3

LONG_AGO = "2020-01-01T00:00:00.000000Z"


def test_old_deliveries_are_listed_and_only_forgotten_when_that_is_asked_for(adw, home):
    adw("db", "upgrade")
    with sqlite3.connect(home / "state" / "adw.db") as plain:
        plain.execute(
            "INSERT INTO deliveries (guid, event, action, hook, sender, repository, intent, body_hash, verdict, reason,"
            " status, outcome, adw_id, received_at, deliveries, request)"
            " VALUES ('g', '', '', '', '', '', '', 'h', 'ignored', '', 'done', '', '', ?, 1, '{}')",
            (LONG_AGO,),
        )
    plain.close()

    for option in ((), ("--dry-run",)):
        listed = adw("admin", "gc", *option)
        assert listed.rc == 0, listed.stderr
        assert "1 delivery" in listed.stdout
        assert "older than 14 days" in listed.stdout

    assert "1 forgotten" in adw("admin", "gc", "--execute").stdout
    assert adw("admin", "gc").stdout == "there is nothing left over\n"


def test_asking_for_both_is_refused(adw, home):
    done = adw("admin", "gc", "--execute", "--dry-run")

    assert (done.rc, done.stderr.count("\n")) == (2, 1)
    assert "exclude each other" in done.stderr
