"""`adw queue workers`, `adw run --tag`, `adw worker --tag`, limits and `adw queue runs` as a person uses them."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from adws import app as app_module
from adws.adw_modules import timestamps
from adws.adw_modules.queue.model import NewRun, RunEnd, RunState
from adws.config import load as config_load
from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


def leave(adw, *more, issue="7", workflow="short"):
    return adw("run", issue, "--workflow", workflow, "--detach", "--json", *more).json()["adw_id"]


def runs(adw):
    return {run["adw_id"]: run for run in adw("queue", "runs", "--json").json()["runs"]}


def add(home, text):
    file = home / "adw.toml"
    file.write_text(file.read_text() + text)


def test_a_worker_is_listed_with_what_it_offers_and_as_gone_when_it_has_ended(adw, home):
    adw_id = leave(adw, workflow="long")
    beside = Beside(home, "worker", "--concurrency", "2", "--tag", "gpu", "--once")
    cli_lab.has_begun(home)

    (there,) = adw("queue", "workers", "--json").json()["runners"]
    lines = adw("queue", "workers").stdout.splitlines()
    cli_lab.let_go(home)
    assert beside.end() == 0

    assert (there["state"], there["places"], there["tags"]) == ("online", 2, ["gpu"])
    assert there["pid"] == beside.process.pid
    assert lines[0].split() == ["RUNNER", "HOST", "PID", "TAGS", "STATE", "BUSY", "SINCE", "HEARD"]
    assert lines[1].split()[:4] == [there["runner_id"][:8], there["host"], str(there["pid"]), "gpu"]
    (gone,) = adw("queue", "workers", "--json").json()["runners"]
    assert (gone["state"], gone["busy"]) == ("gone", 0)
    assert cli_lab.document(home, adw_id)["current_state"] == "completed"


def test_a_worker_that_was_killed_is_gone(adw, home):
    leave(adw, workflow="long")
    beside = Beside(home, "worker")
    cli_lab.has_begun(home)
    beside.process.send_signal(signal.SIGKILL)
    beside.end()

    assert [row["state"] for row in adw("queue", "workers", "--json").json()["runners"]] == ["gone"]


def test_where_nobody_worked_there_are_no_workers_and_no_database_is_made(adw, tmp_path):
    home = tmp_path / "other"
    home.mkdir()
    (home / "adw.toml").write_text("")

    done = adw("--home", str(home), "queue", "workers")

    assert (done.rc, done.stdout) == (0, "no workers; adw worker starts one\n")
    assert not (home / "state" / "adw.db").exists()


def test_a_run_that_demands_a_tag_waits_for_a_worker_that_has_it(adw, home):
    adw_id = leave(adw, "--tag", "gpu")

    assert adw("worker", "--once", "--json").json()["claimed"] == 0
    held = runs(adw)[adw_id]
    assert (held["demands"], held["held_by"]) == ({"tags": ["gpu"]}, "no worker that is there has tag gpu")
    assert "no worker that is there has tag gpu" in adw("queue", "runs").stdout
    assert adw("worker", "--once", "--json", "--tag", "gpu").json()["completed"] == 1


def test_what_a_definition_demands_is_frozen_and_demanded_again_by_a_retry(adw, home):
    add(home, '\n[workflows.picky]\ndemands = {host = "elsewhere"}\n[[workflows.picky.phases]]\nname = "plan"\n')
    add(home, 'shell = "exit 1"\nmax_attempts = 1\n')
    adw_id = leave(adw, workflow="picky")
    there = {"ADW_WORKER_HOST": "elsewhere"}

    assert adw("worker", "--once", "--json").json()["claimed"] == 0
    assert adw("worker", "--once", "--json", env=there).json()["failed"] == 1
    adw("retry", adw_id, "--grant", "1", "--detach")

    assert cli_lab.document(home, adw_id)["workflow"]["demands"] == {"host": "elsewhere"}
    assert runs(adw)[adw_id]["demands"] == {"host": "elsewhere"}
    assert adw("worker", "--once", "--json").json()["claimed"] == 0
    assert {row["host"] for row in adw("queue", "workers", "--json").json()["runners"]} >= {"elsewhere"}


@pytest.mark.parametrize("args", [("--tag", "a b"), ("--host", "a/b")])
def test_a_demand_that_no_worker_could_meet_is_wrong_use(adw, args):
    done = adw("run", "7", "--workflow", "short", "--detach", *args)

    assert done.rc == 2
    assert "use letters, digits and . _ : -" in done.stderr


def test_work_in_the_foreground_that_demands_another_machine_says_so_and_waits_for_its_worker(adw, home):
    beside = Beside(home, "run", "7", "--workflow", "short", "--tag", "gpu")
    said = beside.line("waiting", of="stderr")

    assert "it demands tag gpu, so it is left to a worker that has that" in said
    assert adw("worker", "--once", "--json", "--tag", "gpu").json()["completed"] == 1
    assert beside.end() == 0


def test_a_limit_holds_a_run_back_and_its_end_lets_the_next_one_go_on(adw, home):
    add(home, "\n[limits.workflow]\nlong = 1\n")
    first = Beside(home, "run", "7", "--workflow", "long")
    cli_lab.has_begun(home)
    second = Beside(home, "run", "8", "--workflow", "long")

    assert "the limit of 1 for workflow long is reached" in second.line("waiting", of="stderr")
    (held,) = [run for run in runs(adw).values() if run["state"] == "pending"]
    assert held["held_by"] == "the limit of 1 for workflow long is reached"
    assert "workflow:long" in held["labels"]
    cli_lab.let_go(home)
    assert first.end() == 0
    cli_lab.has_begun(home)
    cli_lab.let_go(home)
    assert second.end() == 0


def test_a_run_that_nobody_can_do_fails_and_its_workflow_is_parked(adw, home):
    adw_id = leave(adw, "--tag", "gpu")

    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home), role="worker") as app:
        then = timestamps.to_text(app.clock.now() - timedelta(minutes=6))
        sql = "UPDATE runs SET updated_at = :then, not_before = :then"
        app.database.transact(lambda session: session.run(sql, {"then": then}))

    adw("worker", "--once")

    ended = runs(adw)[adw_id]
    assert ended["state"] == "failed"
    assert ended["reason"].startswith("it demands tag gpu, and for 300 s there was no worker that has that")
    stored = cli_lab.document(home, adw_id)
    assert (stored["current_state"], stored["pause_reason"]) == ("paused", ended["reason"])


def test_a_dead_run_is_listed_with_what_to_do(adw, home):
    with app_module.open_home(config_load.load(env={"ADW_HOME": str(home)}, cwd=home), role="worker") as app:
        run = app.runs.enqueue(NewRun(adw_id="1a2b3c4d"))
        app.runs.settle_lost(run, RunEnd(state=RunState.DEAD, reason="5 workers vanished with it"))

    lines = adw("queue", "runs", "--state", "dead").stdout.splitlines()

    assert "5 workers vanished with it" in lines[1]
    assert lines[2].endswith("then adw retry 1a2b3c4d --grant 1")


def test_bad_limits_are_one_sentence(adw, home):
    add(home, '\n[limits.provider]\nanthropic = "two"\n')

    done = adw("queue", "runs")

    assert done.rc == 2
    assert done.stderr.count("\n") == 1
    assert "the limit of provider 'anthropic' must be a whole number, 0 or more" in done.stderr


def test_looking_at_runners_loads_nothing_heavy(home):
    script = (
        "import sys; from adws.cli import main; code = main.run(['queue', 'workers'])\n"
        "print(code, sorted({'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules)))"
    )
    env = {"ADW_HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env, cwd=home)

    assert done.stdout.splitlines()[-1] == "0 []", done.stdout


def test_stopping_twice_is_stopping_once(adw, home):
    adw_id = leave(adw)

    first, second = adw("pause", adw_id, "--json"), adw("pause", adw_id, "--json")

    assert (first.rc, second.rc) == (0, 0)
    assert runs(adw)[adw_id]["state"] == "stopped"
    assert [event["event_type"] for event in adw("events", adw_id, "--json").json()["events"]].count("paused") <= 1
