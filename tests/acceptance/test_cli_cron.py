"""`adw cron` as a person, a crontab and two machines use it: each tick once, also when one is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.db.migrate import open_database
from tests import warm

ADW = warm.ADW
PATIENCE = 60.0

SHORT = """
[workflows.short]
[[workflows.short.phases]]
name = "plan"
shell = "true"

[workflows.broken]
[[workflows.broken.phases]]
name = "plan"
shell = "exit 1"
max_attempts = 1

[worktree]
enabled = false
"""
#: Everything but what a test is about is switched off.
QUIET = """
[cron]
jobs = ["notify"]
"""


def write(home: Path, *parts: str) -> None:
    (home / "adw.toml").write_text("\n".join(parts))


def notify(command: str) -> str:
    return f"[notify]\ncommand = '''{command}'''\n"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def where(request):
    """The variables that choose a database."""
    if request.param == "sqlite":
        return {}
    return {"ADW_DATABASE_URL": request.getfixturevalue("pg_url")}


@pytest.fixture
def look(home, where):
    """Look into the database of the home, past adw."""

    def read(sql: str):
        url = where.get("ADW_DATABASE_URL", f"sqlite:///{home}/state/adw.db")
        database = open_database(url, clock=SystemClock(), boot_id="")
        try:
            with database.write() as session:
                return session.all(sql) if sql.startswith("SELECT") else session.run(sql)
        finally:
            database.close()

    return read


def start(home: Path, where, *args: str) -> subprocess.Popen:
    return warm.Popen(
        [ADW, *args],
        cwd=home,
        env={**os.environ, "ADW_HOME": str(home), **where},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# --- as a person uses it ---------------------------------------------------------------------------------------


def test_a_new_home_does_every_entry_once_and_then_nothing_is_due(adw, home):
    first, again = adw("cron", "--once", "--json"), adw("cron", "--once", "--json")

    ran = {one["name"]: one["status"] for one in first.json()["ran"]}
    assert (first.rc, set(ran.values())) == (0, {"done"}), first.stdout
    assert set(ran) >= {"quota", "recover", "gc", "breakers", "report", "retention", "notify", "poll_issues"}
    assert not {one["name"] for one in again.json()["ran"]} & {
        "gc",
        "retention",
        "report",
    }  # another minute may have begun


def test_the_list_shows_when_each_is_due_and_its_last_result_without_doing_anything(adw, home):
    before = adw("cron", "--list", "--json").json()["entries"]
    assert not (home / "state" / "adw.db").exists()
    adw("cron", "--once")

    after = {one["name"]: one for one in adw("cron", "--list", "--json").json()["entries"]}

    assert [one["name"] for one in before] == list(after)
    assert after["poll_comments"]["when"] == "off"
    assert after["poll_comments"]["next"] is None
    assert (after["report"]["status"], after["report"]["outcome"]) == (
        "done",
        "0 workflows, 0 runs waiting, 0.00 USD in a day",
    )
    shown = {line.split()[0]: line for line in adw("cron", "--list").stdout.splitlines()}
    assert {"ENTRY", *after} == set(shown)
    assert re.search(r"0 6 \* \* \* +in \d+ \w+ .* done +0 workflows", shown["report"])
    assert re.search(r"off +- +- +- +-", shown["poll_comments"])


def test_a_variable_says_which_entries_there_are(adw, home):
    done = adw("cron", "--once", "--json", env={"ADW_CRON_JOBS": "notify, quota"})

    assert {one["name"] for one in done.json()["ran"]} <= {"notify", "quota"}


def test_an_entry_is_done_at_once_here_and_by_a_worker(adw, home, where):
    write(home, QUIET)

    here = adw("cron", "--now", "quota", env=where)
    left = adw("cron", "--now", "report", "--detach", "--json", env=where).json()
    worked = adw("worker", "--once", env=where)

    assert (here.rc, here.stdout) == (0, "quota done: no quota is used up\n")
    assert (left["entry"], left["state"], worked.rc) == ("report", "pending", 0)
    (run,) = adw("queue", "runs", "--json", env=where).json()["runs"]
    assert (run["run_id"], run["kind"], run["state"]) == (left["run_id"], "cron", "completed")
    rows = {row["name"]: row for row in adw("cron", "--list", "--json", env=where).json()["entries"]}
    assert (rows["report"]["status"], rows["report"]["outcome"]) == ("done", run["reason"])
    assert rows["quota"]["status"] == "done"
    assert rows["gc"]["status"] == ""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--now", "dance"], "'dance' is no entry of the schedule; use one of notify, recover,"),
        (["--now", "dance", "--detach"], "'dance' is no entry of the schedule"),
        (["--detach"], "say which with --now ENTRY"),
        (["--once", "--now", "gc"], "use one of them"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_in_one_sentence(adw, home, args, said):
    refused = adw("cron", *args)

    assert (refused.rc, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_quotas_are_told_once_when_used_up_and_once_when_free(adw, home):
    told = home / "told.txt"
    write(home, notify(f"sh -c 'echo $ADW_NOTIFY_KIND >> {told}'"), QUIET.replace('"]', '", "quota"]'))
    full = {"ADW_QUOTA_MIN_FREE_DISK": "900000 GiB"}

    first = adw("cron", "--once", "--json", env=full)
    exceeded = next(one for one in first.json()["ran"] if one["name"] == "quota")
    assert exceeded["outcome"].startswith("used up, so that new work waits: disk")
    _make_due(home)
    adw("cron", "--once", env=full)
    _make_due(home)
    adw("cron", "--once")

    assert told.read_text().split() == ["quota_exceeded", "quota_free"]


def _make_due(home: Path) -> None:
    database = open_database(f"sqlite:///{home}/state/adw.db", clock=SystemClock(), boot_id="")
    with database.write() as session:
        session.run("UPDATE schedule SET last_due = '2026-01-01T00:00:00.000000Z'")
    database.close()


# --- what people are told --------------------------------------------------------------------------------------


def test_each_transition_is_told_once_by_workers_and_crons_together(adw, home, where):
    told = home / "told.txt"
    write(home, SHORT, notify(f"sh -c 'echo $ADW_NOTIFY_KIND $ADW_NOTIFY_ADW_ID >> {told}'"), QUIET)
    for number, workflow in enumerate(("short", "broken", "short"), start=1):
        done = adw("run", str(number), "--detach", "--workflow", workflow, env=where)
        assert done.rc == 0, done.stderr
    crons = [start(home, where, "cron", "--once") for _ in range(2)]
    worker = adw("worker", "--once", env=where)
    crons += [start(home, where, "cron", "--once") for _ in range(2)]
    for cron in crons:
        cron.communicate(timeout=PATIENCE)
    assert worker.rc == 0, worker.stderr
    adw("cron", "--once", env=where)
    adw("worker", "--once", env=where)

    lines = told.read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == ["completed", "completed", "failed"]
    assert len(set(lines)) == 3


def test_a_channel_that_fails_stops_no_run(adw, home):
    write(home, SHORT, notify("false"), QUIET)
    adw("run", "1", "--detach", "--workflow", "short")

    worker = adw("worker", "--once", "--json")

    assert (worker.rc, worker.json()["completed"]) == (0, 1)
    assert adw("list", "--json").json()["workflows"][0]["state"] == "completed"


# --- two at once, and killed -----------------------------------------------------------------------------------


def test_of_many_crons_at_once_each_entry_is_done_by_one(home, where, look):
    first = start(home, where, "cron", "--list")  # makes nothing, but warms up
    first.communicate(timeout=PATIENCE)

    crons = [start(home, where, "cron", "--once", "--json") for _ in range(4)]
    for cron in crons:
        out, err = cron.communicate(timeout=PATIENCE)
        assert cron.returncode == 0, (out, err)

    claims = dict(look("SELECT name, token FROM schedule"))
    assert {name: claims[name] for name in ("gc", "retention", "report")} == {"gc": 1, "retention": 1, "report": 1}
    often = {name: claims[name] for name in ("notify", "recover", "quota", "breakers")}
    assert set(often.values()) <= {1, 2}, often  # twice where another minute begins meanwhile


def test_a_cron_that_is_killed_in_the_middle_holds_nothing_up_and_loses_nothing(adw, home, where, look):
    """
    It dies while it notifies: the next one takes the tick over at once, and what was not sent is sent.
    """
    begun, told = home / "begun", home / "told.txt"
    os.mkfifo(begun)
    command = f"sh -c 'test -e {home}/second && echo $ADW_NOTIFY_KIND >> {told} || {{ echo x > {begun}; sleep 600; }}'"
    write(home, notify(command), QUIET.replace('"]', '", "report"]'))
    cron = start(home, where, "cron", "--once")
    with begun.open() as pipe:
        pipe.readline()  # the command runs
    os.kill(cron.pid, signal.SIGKILL)
    cron.communicate(timeout=PATIENCE)
    (home / "second").touch()
    assert look("SELECT status FROM schedule WHERE name = 'notify'") == [("",)]
    look("UPDATE notifications SET claim_until = 0")  # what it had in hand is claimed for a while

    done = adw("cron", "--once", "--json", env=where)

    assert [(one["name"], one["status"]) for one in done.json()["ran"]] == [("notify", "done")], done.stdout
    assert told.read_text().split() == ["report"]
    assert look("SELECT token, status FROM schedule WHERE name = 'notify'") == [(2, "done")]


def test_it_runs_until_it_is_told_to_end(home, where):
    write(home, "[notify]", QUIET)
    cron = start(home, where, "cron")
    for line in cron.stderr:
        if "notify done" in line:
            break
    cron.send_signal(signal.SIGTERM)
    cron.communicate(timeout=PATIENCE)

    assert cron.returncode == 0
