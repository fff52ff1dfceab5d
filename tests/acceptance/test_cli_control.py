"""`adw pause`, `stop`, `abandon`, `approve`, `reject`, while a workflow runs and while it does not."""

from __future__ import annotations

import signal

import pytest

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


def start(adw, workflow, *args):
    return adw("run", "7", "--workflow", workflow, "--json", *args).json()["adw_id"]


def test_a_pause_during_a_long_phase_loses_nothing(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        paused = adw("pause", adw_id, "-m", "lunch")
        code = running.end()
    again = adw("pause", adw_id)

    assert (paused.rc, paused.stdout) == (0, f"workflow {adw_id}: paused: lunch\n")
    assert (code, running.stdout) == (1, f"workflow {adw_id} is paused: lunch\nnext: adw resume {adw_id}\n")
    assert (again.rc, again.stdout) == (0, f"workflow {adw_id} is paused already\n")

    with Beside(home, "resume", adw_id, "--json") as resumed:
        cli_lab.has_begun(home)
        cli_lab.let_go(home)
        assert resumed.end() == 0
    stored = cli_lab.document(home, adw_id)
    assert resumed.json()["state"] == stored["current_state"] == "completed"
    assert [attempt["status"] for attempt in stored["phases"][0]["attempts"]] == ["suspended", "succeeded"]
    assert stored["phases"][0]["attempts_used"] == 1


def test_stop_now_kills_what_does_not_want_to_end(adw, home):
    with Beside(home, "run", "7", "--workflow", "stubborn") as running:
        cli_lab.has_begun(home)
        stopped = adw("pause", cli_lab.newest(home), "--now", "--json")
        assert running.end() == 1

    told = stopped.json()
    assert (stopped.rc, told["state"]) == (0, "paused")
    assert told["answer"].startswith("paused: stopped by ")
    assert told["asked"] is None


def test_a_request_that_nobody_answers_in_time_is_kept_and_said_to_be(adw, home):
    with Beside(home, "run", "7", "--workflow", "stubborn") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        asked = adw("pause", adw_id, "--wait", "0")
        explained = adw("status", adw_id)
        adw("pause", adw_id, "--now")
        running.end()

    assert asked.rc == 1
    assert asked.stdout.startswith("asked cli ")
    assert asked.stdout.endswith(f"who has not answered yet: the pause is kept; adw status {adw_id}\n")
    assert "It was asked to pause and has not answered yet." in explained.stdout


def test_a_stop_that_its_worker_dies_over_is_made_by_whoever_waits_for_it(adw, home):
    """The worker is frozen, then killed: what it left running is ended, and nobody has to ask again."""
    adw_id = start(adw, "long", "--detach")
    with Beside(home, "worker") as worker:
        cli_lab.has_begun(home)
        worker.process.send_signal(signal.SIGSTOP)
        with Beside(home, "pause", adw_id, "--now", "-m", "enough", "--wait", str(cli_lab.PATIENCE)) as stopping:
            while (run := adw("queue", "runs", "--json").json()["runs"][0])["state"] != "stopping":
                assert run["state"] == "running"
            worker.process.kill()
            worker.process.wait()
            assert stopping.end() == 0, stopping.stderr

    assert (run["reason"], stopping.stdout) == ("enough", f"workflow {adw_id} is paused\n")
    stored = cli_lab.document(home, adw_id)
    assert (stored["current_state"], stored["pause_reason"]) == ("paused", "enough")
    assert stored["phases"][0]["attempts"][-1]["status"] == "interrupted"
    adw("admin", "recover")
    assert adw("queue", "runs", "--json").json()["runs"][0]["state"] == "stopped"


def test_an_abandoned_workflow_frees_its_issue_and_fails_the_command_that_ran_it(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        given_up = adw("abandon", adw_id)
        code = running.end()

    assert (given_up.rc, given_up.stdout) == (0, f"workflow {adw_id}: abandoned\n")
    assert (code, running.stdout) == (1, f"workflow {adw_id} is abandoned\n")
    assert adw("run", "7", "--workflow", "short").rc == 0


def test_what_waits_for_a_worker_is_paused_and_abandoned_at_once(adw, home):
    adw_id = start(adw, "short", "--detach")

    paused = adw("pause", adw_id, "--json")
    given_up = adw("abandon", adw_id, "-m", "not needed")

    assert (paused.rc, paused.json()["state"]) == (0, "paused")
    assert paused.stderr == given_up.stderr == ""
    assert given_up.stdout == f"workflow {adw_id} is abandoned; what it made is kept\n"
    refused = adw("pause", adw_id)
    assert refused.rc == 2
    assert refused.stderr == f"adw: workflow {adw_id} is abandoned: there is nothing to pause\n"
    assert [run["state"] for run in adw("queue", "runs", "--json").json()["runs"]] == ["stopped"]


# --- the human gate --------------------------------------------------------------------------------------------


def test_an_approved_phase_passes_and_says_how_the_workflow_goes_on(adw, home):
    adw_id = start(adw, "gated")

    approved = adw("approve", adw_id, "-m", "well done")

    assert (approved.rc, approved.stderr) == (0, "")
    assert approved.stdout.splitlines() == [
        f"plan is approved; workflow {adw_id} waits for a worker",
        f"next: adw resume {adw_id}, or adw worker",
    ]
    assert adw("resume", adw_id).stdout == f"workflow {adw_id} is completed\n"
    assert "built" in (home / "state" / adw_id / "phases" / "build" / "attempt-1.stdout.log").read_text()


def test_a_rejected_phase_gets_the_message_as_a_hint_and_fails_when_its_attempts_are_used_up(adw, home):
    adw_id = start(adw, "gated")

    first = adw("reject", adw_id, "-m", "too vague", "--json").json()
    again = adw("resume", adw_id)
    second = adw("reject", adw_id, "-m", "still too vague")

    assert first == {"adw_id": adw_id, "phase": "plan", "queued": True, "state": "planning", "verdict": "rejected"}
    assert (again.rc, again.stdout.splitlines()[0]) == (0, f"workflow {adw_id} waits for approval of plan")
    assert "too vague" in (home / "state" / adw_id / "phases" / "plan" / "attempt-2.stdout.log").read_text()
    assert second.stdout == f"plan is rejected; workflow {adw_id} is failed\n"
    shown = adw("status", adw_id).stdout
    assert "reason        REJECTED" in shown
    assert "still too vague" in shown


def test_a_decision_about_what_does_not_wait_is_refused(adw):
    adw_id = start(adw, "short")

    for command in ("approve", "reject"):
        done = adw(command, adw_id)
        assert done.rc == 2
        assert done.stderr == f"adw: workflow {adw_id} does not wait for approval: it is completed\n"
