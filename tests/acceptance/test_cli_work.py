"""`adw run`, `adw resume`, `adw retry` as a person uses them."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import ADW, Beside, Terminal


@pytest.fixture
def home(request, tmp_path):
    return cli_lab.make_home(tmp_path, is_used=not hasattr(request, "param"))


def start(adw, workflow, issue="7"):
    """Run a workflow to its end and return its id."""
    return adw("run", issue, "--workflow", workflow, "--json").json()["adw_id"]


# --- running ---------------------------------------------------------------------------------------------------


def test_a_run_tells_its_progress_on_stderr_and_its_end_on_stdout(adw, home):
    done = adw("run", "7", "--workflow", "short")

    assert done.rc == 0
    adw_id = cli_lab.newest(home)
    assert done.stdout == f"workflow {adw_id} is completed\n"
    lines = done.stderr.splitlines()
    assert lines[0] == f"workflow {adw_id}: short for issue 7"
    assert lines[1] == "plan: attempt 1/5"
    assert lines[2].startswith("plan: complete in ")
    assert lines[3] == "build: attempt 1/5"
    assert len(lines) == 5


def test_a_git_repository_is_a_home_too(adw, home):
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=home, check=True, capture_output=True)

    done = adw("run", "7", "--workflow", "short", "--json", env={"ADW_WORKTREE_ENABLED": "true"})

    assert (done.rc, done.json()["state"]) == (0, "completed")


def test_without_memory_a_run_ends_with_1_and_says_that_the_workflow_waits_and_why(adw, home):
    full = {"ADW_QUOTA_MIN_FREE_MEMORY": "1000000 GiB"}

    done = adw("run", "7", "--workflow", "short", env=full)

    adw_id = cli_lab.newest(home)
    first, second = done.stdout.splitlines()
    assert done.rc == 1
    assert first.startswith(f"workflow {adw_id} is pending and waits for a worker (the quota memory is used up: ")
    assert "wait for other work to end, or lower quota.min_free_memory" in first
    assert second == f"next: adw resume {adw_id}, or adw worker"
    again = adw("resume", adw_id, "--json", env=full)
    assert (again.rc, again.json()["state"]) == (1, "pending")
    assert "the quota memory is used up" in again.json()["message"]

    assert adw("resume", adw_id).rc == 0, "there is memory again"


def test_json_is_one_document_for_every_end_and_has_always_the_same_keys(adw):
    ends = [adw("run", issue, "--workflow", name, "--json") for issue, name in (("1", "short"), ("2", "flaky"))]
    ends.append(adw("run", "3", "--workflow", "gated", "--json"))

    told = [end.json() for end in ends]

    assert [(end.rc, one["state"]) for end, one in zip(ends, told, strict=True)] == [
        (0, "completed"),
        (1, "failed"),
        (0, "paused"),
    ]
    assert len({tuple(sorted(one)) for one in told}) == 1
    assert told[1]["reason"] == "MAX_ATTEMPTS_EXHAUSTED"
    assert told[1]["phase"] == "build"
    assert "connection reset by peer" in told[1]["message"]
    assert told[1]["advice"]
    assert told[2]["phase"] == "plan"
    assert told[2]["next"][0] == f"adw approve {told[2]['adw_id']}"


def test_a_failed_run_says_where_why_and_what_to_type(adw, home):
    done = adw("run", "7", "--workflow", "flaky")

    adw_id = cli_lab.newest(home)
    assert done.rc == 1
    first, advice, following = done.stdout.splitlines()
    assert first.startswith(f"workflow {adw_id} failed in build (MAX_ATTEMPTS_EXHAUSTED): ")
    assert first.endswith("connection reset by peer")
    assert advice
    assert following == f"next: adw logs {adw_id}, or adw status {adw_id}"
    assert "build: attempt 1/2 failed: " in done.stderr
    assert re.search(r"build: retrying (in 0\.0|now)", done.stderr)  # now where the machine is slow
    assert "build: failed (MAX_ATTEMPTS_EXHAUSTED)" in done.stderr


def test_an_issue_that_has_a_workflow_is_refused_without_a_word_of_a_new_one(adw):
    adw_id = start(adw, "gated")

    done = adw("run", "7", "--workflow", "short")

    assert (done.rc, done.stdout) == (1, "")
    assert done.stderr == f"adw: issue 7 belongs to workflow {adw_id}: adw status {adw_id} shows it\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["x"], "'x' is not an issue number: use a whole number from 1 up"),
        (["0"], "'0' is not an issue number"),
        (["7", "--workflow", "shrot"], "there is no workflow 'shrot' (did you mean short?); there are: "),
        (
            ["7", "--workflow", "sdlc"],
            "have no runner: there is no program 'no-such-agent' in PATH: install it, or say where it is with",
        ),
        (["7", "--workflow", "short", "--priority", "1000001"], "a priority is a number from"),
        (["7", "--workflow", "short", "--repository", "no/such/name"], "'no/such/name' names no repository"),
    ],
    ids=["not-a-number", "zero", "misspelt", "no-runner", "priority", "repository"],
)
def test_wrong_use_of_run_is_one_sentence_and_leaves_nothing(adw, home, monkeypatch, args, words):
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", "claude=no-such-agent")

    done = adw("run", *args)

    assert (done.rc, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(home.glob("state/*/adw_state.json"))


@pytest.mark.parametrize("home", ["never used"], indirect=True)
def test_a_dry_run_shows_the_phases_and_starts_nothing(adw, home):
    shown = adw("run", "7", "--workflow", "short", "--dry-run")

    assert shown.rc == 0
    assert shown.stdout.splitlines()[0].startswith("issue 7 would go through short (")
    assert "echo the plan" in shown.stdout
    told = adw("run", "7", "--workflow", "short", "--dry-run", "--json").json()
    assert [phase["name"] for phase in told["phases"]] == ["plan", "build"]
    assert not (home / "state").exists()


def test_the_output_of_a_run_may_go_to_a_reader_who_leaves(home):
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [ADW, "--home", str(home), "run", "7", "--workflow", "short"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)

    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "build: complete" in done.stderr


@pytest.mark.parametrize("home", ["never used"], indirect=True)
def test_a_home_that_cannot_be_written_is_refused_in_one_line(adw, home, tmp_path):
    place = tmp_path / "home"
    (place / "state").write_text("in the way")

    done = adw("run", "7", "--workflow", "short", cwd=place)

    assert done.rc == 1
    assert done.stderr.startswith("adw: ")
    assert done.stderr.count("\n") == 1


# --- signals ---------------------------------------------------------------------------------------------------


def test_a_terminal_shows_phase_attempt_time_and_last_line_in_a_line_that_goes_away(adw, home):
    with Terminal(home, "run", "7", "--workflow", "long") as terminal:
        terminal.until("build  attempt 1/5  00:00  attempt 1 begins")
        cli_lab.has_begun(home)
        cli_lab.let_go(home)
        assert terminal.end() == 0

    assert "\x1b[2Kworkflow " in terminal.text  # the line was taken away before the end was told
    assert terminal.text.endswith(f"workflow {cli_lab.newest(home)} is completed\r\n")
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") == 1  # the cursor is back


def test_ctrl_c_suspends_the_attempt_pauses_the_workflow_and_ends_with_130(adw, home):
    with Terminal(home, "run", "7", "--workflow", "long") as terminal:
        cli_lab.has_begun(home)
        terminal.ctrl_c()
        assert terminal.end() == 130

    adw_id = cli_lab.newest(home)
    assert "adw: suspending; Ctrl-C again ends its processes at once" in terminal.text
    assert f"workflow {adw_id} is paused: Ctrl-C\r\nnext: adw resume {adw_id}\r\n" in terminal.text
    stored = cli_lab.document(home, adw_id)
    assert (stored["current_state"], stored["phases"][0]["attempts_used"]) == ("paused", 0)
    assert [attempt["status"] for attempt in stored["phases"][0]["attempts"]] == ["suspended"]


def test_a_second_ctrl_c_kills_what_does_not_want_to_end(adw, home):
    with Terminal(home, "run", "7", "--workflow", "stubborn") as terminal:
        cli_lab.has_begun(home)
        terminal.ctrl_c()
        terminal.until("suspending")
        terminal.ctrl_c()
        terminal.until("adw: ending its processes now")
        assert terminal.end() == 130

    assert cli_lab.document(home, cli_lab.newest(home))["current_state"] == "paused"


def test_sigterm_suspends_and_leaves_the_workflow_to_the_next_worker(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        running.process.send_signal(signal.SIGTERM)
        assert running.end() == 143

    adw_id = cli_lab.newest(home)
    assert f"workflow {adw_id} is building and waits for a worker (asked to end by SIGTERM)" in running.stdout
    assert [run["state"] for run in adw("queue", "runs", "--json").json()["runs"]] == ["pending"]


@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGINT, 130, "paused"), (signal.SIGTERM, 143, "building")]
)
def test_a_signal_while_a_retry_is_waited_for_ends_the_wait_at_once(adw, home, number, code, state):
    with Beside(home, "run", "7", "--workflow", "patient") as running:
        running.line("retrying in", of="stderr")
        running.process.send_signal(number)
        assert running.end() == code

    stored = cli_lab.document(home, cli_lab.newest(home))
    assert (stored["current_state"], stored["phases"][0]["attempts_used"]) == (state, 1)


def test_a_pause_while_a_retry_is_waited_for_ends_the_command_that_waits(adw, home):
    with Beside(home, "run", "7", "--workflow", "patient") as running:
        running.line("retrying in", of="stderr")
        paused = adw("pause", adw_id := cli_lab.newest(home), "-m", "lunch")
        assert running.end() == 1

    assert (paused.rc, paused.stdout) == (0, f"workflow {adw_id} is paused\n")
    assert running.stdout == f"workflow {adw_id} is paused: lunch\nnext: adw resume {adw_id}\n"


# --- going on --------------------------------------------------------------------------------------------------


def test_resume_after_kill_9_counts_the_attempt_and_goes_on(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        running.process.kill()
        running.end()
    adw_id = cli_lab.newest(home)

    with Beside(home, "resume", adw_id) as resumed:
        cli_lab.has_begun(home)
        cli_lab.let_go(home)
        assert resumed.end() == 0

    assert resumed.stdout == f"workflow {adw_id} is completed\n"
    assert resumed.stderr.splitlines()[:3] == [
        "build: attempt 1/5 was interrupted",
        f"workflow {adw_id} continues with build",
        "build: attempt 2/5",
    ]
    statuses = [attempt["status"] for attempt in cli_lab.document(home, adw_id)["phases"][0]["attempts"]]
    assert statuses == ["interrupted", "succeeded"]


def test_a_resumed_workflow_is_shown_on_a_terminal_like_a_new_one(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        running.process.send_signal(signal.SIGTERM)
        running.end()

    with Terminal(home, "resume", cli_lab.newest(home)) as terminal:
        terminal.until("build  attempt 1/5  00:00  attempt 2 begins")
        cli_lab.has_begun(home)
        cli_lab.let_go(home)
        assert terminal.end() == 0


def test_retry_needs_a_grant_when_the_attempts_are_used_up(adw, home):
    adw_id = start(adw, "flaky")

    refused = adw("retry", adw_id)
    (home / "mended").touch()
    granted = adw("retry", adw_id, "--grant", "1", "-m", "be careful")

    assert (refused.rc, refused.stdout) == (2, "")
    assert f"build used 2 of 2 attempts: allow more with adw retry {adw_id} --grant N" in refused.stderr
    assert (granted.rc, granted.stdout) == (0, f"workflow {adw_id} is completed\n")
    assert "hint noted: be careful" in granted.stderr
    assert f"workflow {adw_id} continues with build, with 1 more attempt\n" in granted.stderr
    assert "build: attempt 3/3" in granted.stderr


def test_resume_from_a_phase_starts_it_afresh(adw, home):
    adw_id = start(adw, "flaky")
    (home / "mended").touch()

    planned = adw("resume", adw_id, "--from", "build", "--dry-run")
    done = adw("resume", adw_id, "--from", "build", "--json")

    assert planned.stdout == f"workflow {adw_id} continues with build, from its beginning\n"
    assert (done.rc, done.json()["state"]) == (0, "completed")
    assert "build: attempt 1/2" in done.stderr


@pytest.mark.parametrize(
    ("situation", "words", "typed"),
    [
        (
            ("short", ""),
            "is completed and cannot go on: adw resume ID --workflow NAME carries it on, adw run 7 starts anew",
            "resume ID --workflow short --detach",
        ),
        (("short", "abandon"), "is abandoned and cannot go on: adw run 7 starts anew", "run 7 --detach"),
        (("gated", ""), "waits for approval of plan: adw approve ID, or adw reject ID -m TEXT", "reject ID -m TEXT"),
        (("patient", "pause"), "is paused, not failed: adw resume ID continues it", "resume ID --detach"),
        (("patient", ""), "is building, not failed: adw status ID says what it waits for", "status ID"),
    ],
    ids=["completed", "abandoned", "gate", "paused", "waiting"],
)
def test_retry_of_what_has_not_failed_is_refused_with_a_command_that_works(adw, home, situation, words, typed):
    workflow, order = situation
    with (home / "adw.toml").open("a") as file:
        file.write('\n[workflow]\ndefault = "short"\n')
    adw_id = adw("run", "7", "--workflow", workflow, "--detach", "--json").json()["adw_id"]
    if order != "abandon":
        adw("worker", "--once")
    if order:
        adw(order, adw_id)

    done = adw("retry", adw_id)

    assert (done.rc, done.stderr) == (2, f"adw: workflow {adw_id} {words.replace('ID', adw_id)}\n")
    assert adw(*typed.replace("ID", adw_id).split()).rc == 0


@pytest.mark.parametrize(
    ("workflow", "args", "words"),
    [
        ("flaky", ["--from", "biuld"], "has no phase 'biuld'; it has: build"),
        ("flaky", ["--workflow", "plan"], "is failed in build, which plan does not have: adw retry"),
        ("short", [], "is completed and cannot go on: adw resume"),
        ("gated", [], "waits for approval of plan: adw approve"),
    ],
    ids=["unknown-phase", "workflow-without-the-phase", "completed", "gate"],
)
def test_a_resume_that_cannot_be_is_refused_with_what_to_do(adw, workflow, args, words):
    adw_id = start(adw, workflow)

    done = adw("resume", adw_id, *args)

    assert (done.rc, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_hint_for_a_workflow_at_work_is_left_for_its_next_attempt(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        refused, left = adw("resume", adw_id), adw("resume", adw_id, "-m", "use less memory", "--json")
        paused = adw("pause", adw_id)
        running.end()

    assert refused.rc == 1
    assert f"workflow {adw_id} is being worked on by cli " in refused.stderr
    assert (left.rc, paused.rc) == (0, 0)
    assert left.json()["state"] == "building"
    assert [hint["text"] for hint in adw("status", adw_id, "--json").json()["hints"]] == ["use less memory"]


@pytest.mark.parametrize("home", ["never used"], indirect=True)
@pytest.mark.parametrize("command", ["resume", "retry", "pause", "abandon", "approve", "reject"])
def test_a_command_for_a_workflow_that_is_not_there_says_so_and_makes_nothing(adw, home, command):
    missing, bad = adw(command, "1a2b3c4d"), adw(command, "../up")

    assert missing.rc == 1
    assert missing.stderr == "adw: no workflow state at 1a2b3c4d; adw list shows the workflows there are\n"
    assert bad.rc == 2
    assert "is not a workflow id" in bad.stderr
    assert not (home / "state").exists()


def test_every_number_that_makes_no_sense_is_wrong_use(adw):
    for args in (("retry", "1a2b3c4d", "--grant", "0"), ("retry", "1a2b3c4d", "--grant", "many"), ("retry",)):
        done = adw(*args)
        assert (done.rc, done.stdout) == (2, "")
        assert "Error: " in done.stderr
