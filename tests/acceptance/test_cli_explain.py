"""`adw status` says why a workflow does not move, in every situation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta

import pytest

from adws.app import open_home
from adws.config.load import load
from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside
from tests.integration.agent_lab import FakeAgent

#: What a view must not load: each takes longer than the view itself.
HEAVY = ("sqlalchemy", "alembic", "filelock", "rich", "psutil", "psycopg")


#: A phase that needs the provider of its agent.
ASKING = """
[workflows.asking]
[[workflows.asking.phases]]
name = "build"
runner = "claude"
prompt = "build"
"""


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


def start(adw, workflow, *args):
    done = adw("run", "7", "--workflow", workflow, "--json", *args)
    assert done.stdout, done.stderr
    return done.json()["adw_id"]


def explained(adw, adw_id):
    done = adw("status", adw_id)
    assert (done.rc, done.stderr) == (0, "")
    return f"{done.stdout.splitlines()[-1]}\n"  # what comes last: why, what happens next, what to type


def test_what_waits_for_a_worker_and_what_is_over(adw):
    adw_id = start(adw, "short", "--detach")

    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} is pending and waits for a worker. A worker takes it up."
        f" Type: adw worker, or adw resume {adw_id}.\n"
    )
    adw("worker", "--once")
    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} is completed. Nothing more happens to it, and its issue is free for another one."
        " Type: adw run 7 --workflow short.\n"
    )


def test_what_waits_for_a_person_and_what_a_person_paused(adw):
    adw_id = start(adw, "gated")

    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} waits for a person to approve plan. Nothing happens until somebody decides."
        f" Type: adw approve {adw_id}, or adw reject {adw_id} -m TEXT.\n"
    )
    assert adw("status", adw_id, "--json").json()["commands"] == [
        f"adw approve {adw_id}",
        f"adw reject {adw_id} -m TEXT",
    ]
    adw("approve", adw_id)
    adw("pause", adw_id, "-m", "a freeze")
    assert explained(adw, adw_id).startswith(f"Workflow {adw_id} is paused in planning: a freeze. ")


def test_what_has_failed_is_explained_with_commands_that_work(adw, home):
    adw_id = start(adw, "flaky")
    said = explained(adw, adw_id)

    assert f"Workflow {adw_id} failed in build (MAX_ATTEMPTS_EXHAUSTED): " in said
    (home / "mended").touch()
    offered = adw("status", adw_id, "--json").json()["commands"]
    assert f"adw retry {adw_id} --grant 3" in offered
    assert adw(*offered[1].split()[1:]).rc == 0


def test_what_is_being_worked_on_and_whose_worker_is_gone(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        moving = explained(adw, adw_id)
        running.process.kill()
        running.end()

    assert moving.startswith(f"Workflow {adw_id} is moving: cli ")
    assert " works on build, attempt 1/5. It goes on by itself. " in moving
    gone = explained(adw, adw_id)
    assert "but its worker is gone: its owner cli " in gone
    assert gone.endswith(f" Type: adw admin recover, or adw resume {adw_id}.\n")
    cli_lab.let_go(home)  # its command goes on without a worker, and would for ever


def test_what_waits_for_a_retry_says_until_when_and_why(adw, home):
    start_one = adw("run", "7", "--workflow", "patient", "--detach", "--json").json()["adw_id"]
    adw("worker", "--once")

    said = explained(adw, start_one)
    shown = adw("status", start_one).stdout

    assert f"Workflow {start_one} retries build at 20" in said
    assert " UTC (attempt 1/3 failed: " in said
    assert "build  retry_wait  1/3       1       " in shown
    assert re.search(r"\(in [3-6] min\)", shown)  # five minutes, a quarter more or less


def test_the_status_shows_attempts_totals_times_failure_and_hints(adw, home):
    adw_id = start(adw, "flaky")
    (home / "mended").touch()
    adw("retry", adw_id, "--grant", "1", "-m", "plug it in", "--detach")

    shown = adw("status", adw_id).stdout
    told = adw("status", adw_id, "--json").json()

    assert "last failure  build: " in shown
    assert "PHASE  STATUS  ATTEMPTS  IN ALL  TIME " in shown
    assert "build  queued  2/3       2       0." in shown
    assert "hint: plug it in [for build, by " in shown
    phase = told["phases"][0]
    assert (phase["total_attempts"], phase["attempts_used"], phase["max_attempts"]) == (2, 2, 3)
    assert phase["average_seconds"] == pytest.approx(phase["total_seconds"] / 2, abs=0.002)
    assert [attempt["category"] for attempt in phase["attempts"]] == ["transient", "transient"]


def test_a_run_that_demands_a_tag_is_explained_with_the_worker_that_takes_it(adw):
    adw_id = start(adw, "short", "--detach", "--tag", "gpu", "--tag", "big")

    said = explained(adw, adw_id)

    assert said == (
        f"Workflow {adw_id} is pending and waits for a worker: no worker that is there has tag big and tag gpu."
        " A worker that has that takes it up; without one for 300 s (runs.no_match_seconds) the workflow is paused."
        " Type: adw worker --tag big --tag gpu.\n"
    )
    (typed,) = adw("status", adw_id, "--json").json()["commands"]
    assert adw(*typed.split()[1:], "--once", "--json").json()["completed"] == 1


def test_a_run_that_demands_another_machine_is_explained_with_its_name(adw):
    adw_id = start(adw, "short", "--detach", "--host", "elsewhere")

    said = explained(adw, adw_id)

    assert ": no worker that is there has host elsewhere. A worker on elsewhere that has that takes it up;" in said
    assert said.endswith(" Type: adw queue workers.\n")


def test_a_run_that_a_limit_holds_back_is_explained_with_the_limit(adw, home):
    with (home / "adw.toml").open("a") as file:
        file.write("\n[limits.workflow]\nshort = 0\n")
    adw_id = start(adw, "short", "--detach")

    assert explained(adw, adw_id) == (
        f"Workflow {adw_id} is pending and waits for a worker: the limit of 0 for workflow short is reached."
        " It goes on when a run that counts there ends, or when the limit is raised in adw.toml."
        " Type: adw queue runs, or adw config.\n"
    )


def test_a_run_that_a_quota_refused_is_explained_with_the_quota(adw):
    adw_id = start(adw, "short", "--detach")
    adw("worker", "--once", env={"ADW_QUOTA_MIN_FREE_DISK": "1000000 GiB"})

    said = explained(adw, adw_id)

    assert " (the quota disk is used up: " in said
    assert said.endswith(f" Type: adw quota, or adw resume {adw_id}.\n")


def test_a_phase_that_waits_for_a_breaker_is_explained_with_its_reset(adw, home, tmp_path, monkeypatch):
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", f"claude={FakeAgent(tmp_path / 'agent').program}")
    with (home / "adw.toml").open("a") as file:
        file.write(ASKING)
    with open_home(load(env={"ADW_HOME": str(home)}, cwd=home)) as app:
        app.breakers.get("anthropic").open_until(app.clock.now() + timedelta(hours=2), "overloaded: 529")
    adw_id = start(adw, "asking", "--detach", "--title", "Ask", "--body", "Ask it.")
    adw("worker", "--once")

    held = explained(adw, adw_id)
    commands = adw("status", adw_id, "--json").json()["commands"]
    adw("admin", "breakers", "reset", "anthropic")
    closed = explained(adw, adw_id)

    assert f"Workflow {adw_id} waits with build until 20" in held
    assert ": anthropic is not called after it failed (overloaded: 529)" in held
    assert " Its circuit breaker lets a trial through at 20" in held
    assert commands[0] == "adw admin breakers reset anthropic"
    assert closed.startswith(f"Workflow {adw_id} waited with build for anthropic, whose breaker is closed again. ")
    assert closed.endswith(f" Type: adw resume {adw_id}, or adw worker.\n")


def test_every_view_starts_without_the_slow_libraries(adw, home):
    adw_id = start(adw, "short")
    views = [[*name.split(), adw_id] for name in ("status", "logs", "events", "state path")]
    views += [name.split() for name in ("list", "status", "queue runs", "admin locks")]
    # One process for all of them: whatever any of them loads stays loaded.
    script = (
        "import json, sys\n"
        "from adws.cli import main\n"
        f"codes = [main.run(args) for args in {views!r}]\n"
        f"print(json.dumps([codes, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=home,
        env={"ADW_HOME": str(home), "PATH": "/usr/bin:/bin"},
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [[0] * len(views), []], done.stderr
