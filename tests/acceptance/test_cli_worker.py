"""`adw run --detach`, `adw worker`, `adw admin recover` as a person uses them."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests import sampling
from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside


@pytest.fixture
def home(request, tmp_path):
    return cli_lab.make_home(tmp_path, is_used=not hasattr(request, "param"))


#: What `adw run` does after it has stored a workflow, for one that a worker has taken up already.
FOLLOW = """
import sys
from adws.config import load as config
from adws.app import open_home
from adws.cli import work as ending_text, work as foreground

home, adw_id = sys.argv[1:]
with open_home(config.load(env={"ADW_HOME": home}, cwd=home)) as app, foreground.Foreground(app) as here:
    end = here.carry(foreground.run_of(app, adw_id))
print("\\n".join(ending_text.lines(end)))
sys.exit(ending_text.exit_code(end))
"""


#: Fails once, waits five minutes, and then says that it has begun.
HANDED_OVER = """
[workflows.handed_over]
[[workflows.handed_over.phases]]
name = "build"
shell = "test -e mended || exit 1; echo up > up; cat go"
max_attempts = 3
retry = { base_seconds = 300, max_seconds = 300, strategy = "fixed" }
"""


def leave(adw, workflow, issue="7"):
    """Leave a workflow to a worker and return its id."""
    return adw("run", issue, "--workflow", workflow, "--detach", "--json").json()["adw_id"]


def test_a_detached_run_waits_for_a_worker_which_tells_what_it_does(adw, home):
    accepted = adw("run", "7", "--workflow", "short", "--detach")
    adw_id = cli_lab.newest(home)
    assert accepted.stdout.splitlines() == [
        f"workflow {adw_id} waits for a worker",
        f"next: adw worker, or adw status {adw_id}",
    ]

    done = adw("worker", "--once")

    assert (done.rc, done.stdout) == (0, "claimed 1, completed 1, failed 0, requeued 0, stopped 0, lost 0\n")
    lines = done.stderr.splitlines()
    assert lines[0] == f"{adw_id} plan: attempt 1/5"
    assert lines[-1] == f"{adw_id} completed"
    assert adw("worker", "--once", "--json").json()["claimed"] == 0


def test_a_worker_whose_log_is_json_writes_nothing_else_to_stderr(adw):
    leave(adw, "short")

    done = adw("worker", "--once", "--json", env={"ADW_LOG_FORMAT": "json"})

    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert done.json()["completed"] == 1
    assert {"attempt_started", "attempt_succeeded"} <= {record.get("event_type") for record in records}


def test_sigterm_drains_a_worker_its_attempt_does_not_count_and_its_run_goes_back(adw, home):
    adw_id = leave(adw, "long")
    with Beside(home, "worker") as worker:
        cli_lab.has_begun(home)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0

    assert worker.stdout == "claimed 1, completed 0, failed 0, requeued 1, stopped 0, lost 0\n"
    stored = cli_lab.document(home, adw_id)
    assert (stored["current_state"], stored["phases"][0]["attempts_used"]) == ("building", 0)
    assert [run["state"] for run in adw("queue", "runs", "--json").json()["runs"]] == ["pending"]


def test_ctrl_c_ends_an_idle_worker_with_130(home):
    with Beside(home, "worker") as worker:
        worker.line("worker is ready", of="stderr")
        worker.process.send_signal(signal.SIGINT)
        assert worker.end() == 130

    assert "claimed 0" in worker.stdout


def test_two_workers_share_what_waits_and_nothing_is_done_twice(adw, home):
    ids = {leave(adw, "short", str(number)) for number in range(1, 5)}
    with Beside(home, "worker", "--once", "--json") as one, Beside(home, "worker", "--once", "--json") as other:
        assert (one.end(), other.end()) == (0, 0)

    assert one.json()["completed"] + other.json()["completed"] == 4
    for adw_id in ids:
        stored = cli_lab.document(home, adw_id)
        assert stored["current_state"] == "completed"
        assert [len(phase["attempts"]) for phase in stored["phases"]] == [1, 1]


def test_a_worker_works_on_as_many_workflows_at_a_time_as_it_is_told(adw, home):
    for number in ("1", "2"):
        leave(adw, "long", number)
    with Beside(home, "worker", "--once", "--concurrency", "2", "--json") as worker:
        cli_lab.has_begun(home, phases=2)  # none is let go: both are under way
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0

    assert worker.json()["requeued"] == 2


def test_a_worker_stops_after_as_many_runs_or_at_the_first_failure_when_told_to(adw):
    leave(adw, "gated", "1")
    leave(adw, "flaky", "2")

    first = adw("worker", "--max-runs", "1", "--json")
    done = adw("worker", "--stop-on-first-failure", "--json")

    assert (first.rc, first.json()["claimed"], first.json()["stopped"]) == (0, 1, 1)
    assert (done.rc, done.json()["failed"]) == (1, 1)


def test_a_worker_that_waits_takes_up_what_comes_and_nobody_else_gets_it(adw, home):
    with Beside(home, "worker", "--max-runs", "1") as worker:
        worker.line("worker is ready", of="stderr")
        adw_id = leave(adw, "long")
        cli_lab.has_begun(home)
        refused = adw("resume", adw_id)
        cli_lab.let_go(home)
        assert worker.end() == 0

    assert refused.rc == 1
    assert "is being worked on by worker " in refused.stderr
    assert cli_lab.document(home, adw_id)["current_state"] == "completed"


def test_who_wants_to_work_on_what_a_worker_has_sees_what_it_does_and_ctrl_c_leaves_it_alone(adw, home):
    adw_id = leave(adw, "long")
    with Beside(home, "worker", "--once") as worker:
        cli_lab.has_begun(home)
        with Beside(home, str(home), adw_id, program=(sys.executable, "-c", FOLLOW)) as one:
            one.line("build: attempt 1/5", of="stderr")
            one.process.send_signal(signal.SIGINT)
            assert one.end() == 130
        with Beside(home, str(home), adw_id, program=(sys.executable, "-c", FOLLOW)) as other:
            other.line("build: attempt 1/5", of="stderr")
            cli_lab.let_go(home)
            assert other.end() == 0
        assert worker.end() == 0

    assert one.stdout.splitlines() == [
        f"workflow {adw_id} is building, and a worker continues it",
        f"next: adw status {adw_id}, or adw pause {adw_id}",
    ]
    assert other.stdout == f"workflow {adw_id} is completed\n"
    assert "build: complete in " in other.stderr
    statuses = [attempt["status"] for attempt in cli_lab.document(home, adw_id)["phases"][0]["attempts"]]
    assert statuses == ["succeeded"]


def test_a_run_beside_a_worker_follows_the_workflow_to_its_end_whichever_of_them_makes_the_retry(adw, home):
    with (home / "adw.toml").open("a") as file:
        file.write(HANDED_OVER)
    with Beside(home, "run", "7", "--workflow", "handed_over") as run:
        run.line("build: retrying in ", of="stderr")
        (home / "mended").touch()
        adw_id = cli_lab.newest(home)
        with Beside(home, "worker") as worker:
            while adw("resume", adw_id, "--detach").rc != 0:
                pass  # the command still has the workflow; it lets go before it waits
            cli_lab.has_begun(home)
            shown = run.line("build: attempt 2/3", of="stderr")
            cli_lab.let_go(home)
            code = run.end()
            worker.process.send_signal(signal.SIGTERM)
            worker.end()

    assert (code, run.stdout) == (0, f"workflow {adw_id} is completed\n")
    assert shown == "build: attempt 2/3\n"
    assert "attempt 1/3" not in run.stderr, "what was shown is not shown again"
    assert "build: complete in " in run.stderr


def test_a_run_that_a_quota_refuses_is_followed_while_there_is_a_worker(adw, home):
    full = {"ADW_QUOTA_MIN_FREE_DISK": "1000000 GiB"}
    leave(adw, "long")
    with Beside(home, "worker", "--once") as worker:
        cli_lab.has_begun(home)  # so the worker has no place for another one
        adw_id = leave(adw, "short", issue="8")
        with Beside(home, "resume", adw_id, env=full) as waiting:
            said = waiting.line("waiting: ", of="stderr")
            assert adw("abandon", adw_id).rc == 0
            assert waiting.end() == 1
        cli_lab.let_go(home)
        assert worker.end() == 0

    assert said.startswith("adw: waiting: the quota disk is used up: ")
    assert waiting.stdout == f"workflow {adw_id} is abandoned\n"


def test_recover_shows_its_plan_makes_it_true_and_finds_nothing_more(adw, home):
    adw_id = leave(adw, "long")
    with Beside(home, "worker") as worker:
        cli_lab.has_begun(home)
        worker.process.kill()
        worker.end()

    planned = adw("admin", "recover", "--dry-run", "--json").json()
    before = cli_lab.document(home, adw_id)["revision"]
    done = adw("admin", "recover")
    again = adw("admin", "recover")

    assert planned["dry_run"] is True
    # Before that its database copy may have to be brought up: the worker died before it did that itself.
    assert [(step["adw_id"], step["action"]) for step in planned["steps"]][-2:] == [
        (adw_id, "interrupt"),
        (adw_id, "requeue"),
    ]
    assert before < cli_lab.document(home, adw_id)["revision"]
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].split() == ["WORKFLOW", "ACTION", "WHY"]
    assert "build was cut off: its owner worker " in done.stdout
    assert again.stdout == "there is nothing to recover\n"
    assert cli_lab.document(home, adw_id)["phases"][0]["status"] == "interrupted"


@pytest.mark.parametrize("home", ["never used"], indirect=True)
def test_nothing_is_recovered_and_no_database_made_where_nobody_worked(adw, home):
    done = adw("admin", "recover", "--json")

    assert (done.rc, done.json()) == (
        0,
        {
            "mode": "stale",
            "dry_run": False,
            "reset_to_pending": 0,
            "marked_failed": 0,
            "marked_stopped": 0,
            "run_ids": {"reset_to_pending": [], "marked_failed": [], "marked_stopped": []},
            "steps": [],
        },
    )
    assert not (home / "state").exists()


def test_recover_in_mode_none_says_what_it_would_do_and_changes_nothing(adw, home):
    adw_id = leave(adw, "long")
    with Beside(home, "worker") as worker:
        cli_lab.has_begun(home)
        worker.process.kill()
        worker.end()
    before = cli_lab.document(home, adw_id)

    done = adw("admin", "recover", "--mode", "none")

    assert done.stdout.splitlines()[-1] == "nothing was changed: recovery is off (mode none)"
    assert f"{adw_id}  requeue" in " ".join(done.stdout.split(" ")).replace("   ", "  ")
    assert cli_lab.document(home, adw_id) == before
    reset = adw("admin", "recover", "--mode", "all", "--json").json()
    assert (reset["mode"], reset["reset_to_pending"], len(reset["run_ids"]["reset_to_pending"])) == ("all", 1, 1)


#: Where each count of a recovery leaves its runs.
COUNTED = {"reset_to_pending": {"pending"}, "marked_failed": {"failed", "dead"}, "marked_stopped": {"stopped"}}


@pytest.mark.parametrize(
    ("worker_is", "attempts", "store"),
    sampling.each_value_once(["working", "stopped", "dead"], [5, 1], ["files", "database"]),
)
def test_what_a_forced_recovery_counts_is_what_its_steps_say(adw, home, monkeypatch, store, attempts, worker_is):  # noqa: PLR0917 - fixtures and parameters
    """
    Also where closing the attempt used up the last one, and where the worker gives the run back in that very moment.
    """
    monkeypatch.setenv("ADW_STATE_STORE", store)
    shell = "echo up > up; cat go"
    (home / "adw.toml").write_text(
        "[worktree]\nenabled = false\n[workflows.long]\n"
        f'phases = [{{ name = "build", shell = "{shell}", max_attempts = {attempts} }}]\n'
    )
    adw_id = leave(adw, "long")
    waiting = leave(adw, "long", issue="8")
    with Beside(home, "worker", "--concurrency", "1") as worker:
        cli_lab.has_begun(home)
        if worker_is == "stopped":
            worker.process.send_signal(signal.SIGSTOP)
        if worker_is == "dead":
            worker.process.kill()
            worker.end()
        told = adw("admin", "recover", "--mode", "all", "--force", "--json").json()
        if worker_is != "dead":
            worker.process.kill()
            worker.end()

    for key, states in COUNTED.items():
        by_steps = sorted(step["run_id"] for step in told["steps"] if step["to"] in states)
        assert told["run_ids"][key] == by_steps
        assert told[key] == len(by_steps)
    if worker_is == "working":
        return  # it may have the run again by now, or the other one
    runs = {run["run_id"]: run for run in adw("queue", "runs", "--json").json()["runs"]}
    taken = [step for step in told["steps"] if step["adw_id"] == adw_id and step["to"]]
    assert [(step["action"], step["to"]) for step in taken] == [
        ("requeue", "pending") if attempts > 1 else ("fail", "failed")
    ]
    assert runs[taken[0]["run_id"]]["state"] == taken[0]["to"]
    assert [step for step in told["steps"] if step["adw_id"] == waiting and step["to"]] == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--mode", "some"], "'some' is no mode of recovery; use one of none, stale, all"),
        (["--threshold", "nan"], "'nan' is not a number that can be counted with"),
        (["--threshold", "inf"], "'inf' is not a number that can be counted with"),
        (["--force"], "--force takes work from owners that live: use it with --mode all, or leave it out"),
    ],
)
def test_a_recovery_that_makes_no_sense_is_refused_in_one_sentence(adw, args, said):
    done = adw("admin", "recover", *args)

    assert (done.rc, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    "args", [["--concurrency", "0"], ["--poll-interval", "0"], ["--poll-interval", "nan"], ["--max-runs", "x"]]
)
def test_a_number_of_a_worker_that_makes_no_sense_is_wrong_use(adw, args):
    done = adw("worker", *args)

    assert (done.rc, done.stdout) == (2, "")
    assert f"Invalid value for '{args[0]}'" in done.stderr
