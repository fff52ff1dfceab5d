"""A secret that a phase is given, and tells everybody, stays a secret."""

from __future__ import annotations

import sqlite3

import pytest

from tests import templates

SECRET = "Zk3vQ9xLm2Tt7pR5wYb8HnJ4"

#: Says it in every way a command has: output, result, and the reason of a failure.
LEAKY = """
[[workflows.leaky.phases]]
name = "plan"
env = ["NPM_TOKEN"]
max_attempts = 1
shell = '''
echo "out $NPM_TOKEN"
echo "err $NPM_TOKEN" >&2
printf '{{"summary": "with %s", "token_used": "%s"}}' "$NPM_TOKEN" "$NPM_TOKEN" > "$ADW_RESULT_FILE"
exit {code}
'''
"""


@pytest.mark.parametrize(("store", "code"), [("files", 0), ("files", 7), ("database", 7)])
def test_a_secret_that_a_command_prints_is_in_no_file_row_or_line(adw, home, store, code):
    templates.prepare_home(home)
    (home / "adw.toml").write_text(LEAKY.format(code=code))
    env = {"ADW_STATE_STORE": store}

    done = adw("run", "7", "--workflow", "leaky", env={**env, "NPM_TOKEN": SECRET})

    adw_id = adw("list", "--json", env=env).json()["workflows"][0]["adw_id"]
    shown = [adw(command, adw_id, env=env) for command in ("status", "events", "logs")]
    assert done.rc == (1 if code else 0), done
    assert SECRET not in "".join(one.stdout + one.stderr for one in (done, *shown))
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in _dump(home / "state" / "adw.db")
    # It was really printed, and taken out on the way.
    assert [path.read_text() for path in files if "stdout" in path.name] == ["out [redacted]\n"]
    assert (home / "state" / adw_id / "adw.log") in files


def _dump(database):
    connection = sqlite3.connect(database)
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()
