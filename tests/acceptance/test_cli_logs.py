"""`adw logs`, `adw state path`, `adw events -f` as a person uses them."""

from __future__ import annotations

import json

import pytest

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


def start(adw, workflow, *args):
    return adw("run", "7", "--workflow", workflow, "--json", *args).json()["adw_id"]


def test_the_output_of_the_last_attempt_is_shown_or_the_one_that_is_asked_for(adw):
    adw_id = start(adw, "flaky")

    last, first = adw("logs", adw_id), adw("logs", adw_id, "--attempt", "1", "--phase", "build")
    everything = adw("logs", adw_id, "--all")

    shown = "== build, attempt {0}, stdout\ntry {0}\n== build, attempt {0}, stderr\nconnection reset by peer\n"
    assert last.stdout == shown.format(2)
    assert first.stdout == shown.format(1)
    assert everything.stdout == shown.format(1) + shown.format(2)


def test_all_output_comes_in_the_order_of_the_phases_and_empty_streams_are_left_out(adw):
    adw_id = start(adw, "short")

    assert [line for line in adw("logs", adw_id, "--all").stdout.splitlines() if line.startswith("==")] == [
        "== plan, attempt 1, stdout",
        "== build, attempt 1, stdout",
        "== build, attempt 1, stderr",
    ]
    told = adw("logs", adw_id, "--json").json()
    assert [(file["phase"], file["stream"], file["text"]) for file in told["files"]] == [
        ("build", "stdout", "built\n"),
        ("build", "stderr", "careful\n"),
    ]


def test_the_log_of_a_workflow_is_json_lines_and_with_json_one_document(adw):
    adw_id = start(adw, "short")

    lines = adw("logs", adw_id, "--log").stdout.splitlines()
    told = adw("logs", adw_id, "--log", "--json").json()

    assert json.loads(lines[0])["adw_id"] == adw_id
    assert told["files"][0]["text"].splitlines() == lines
    refused = adw("logs", adw_id, "--log", "--phase", "plan")
    assert refused.rc == 2
    assert "--log shows the log of the whole workflow" in refused.stderr


def test_output_that_is_not_there_is_said_with_what_there_is(adw):
    adw_id = start(adw, "short")
    waiting = adw("run", "8", "--workflow", "short", "--detach", "--json").json()["adw_id"]

    missing = adw("logs", adw_id, "--phase", "biuld")
    nothing = adw("logs", waiting)

    assert missing.rc == nothing.rc == 2
    assert missing.stderr == (
        f"adw: workflow {adw_id} has no such output; there is (phase and attempt): build 1, plan 1\n"
    )
    assert nothing.stderr == (
        f"adw: workflow {waiting} has no output yet: none of its phases has run (adw status {waiting})\n"
    )
    assert "nobody has worked on it" in adw("logs", waiting, "--log").stderr


def test_logs_are_followed_through_attempts_until_the_workflow_stops(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        with Beside(home, "logs", adw_id, "-f") as shown, Beside(home, "logs", adw_id, "-f", "--json") as told:
            assert shown.line("== build, attempt 1, stdout")
            assert shown.line("attempt 1 begins")
            first = json.loads(told.line("attempt 1 begins"))
            cli_lab.let_go(home)
            assert (running.end(), shown.end(), told.end()) == (0, 0, 0)

    assert shown.stdout == "attempt 1 ends\n"
    assert first == {"phase": "build", "attempt": 1, "stream": "stdout", "line": "attempt 1 begins"}
    assert json.loads(told.stdout)["line"] == "attempt 1 ends"


def test_events_are_followed_until_the_workflow_stops(adw, home):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        adw_id = cli_lab.newest(home)
        with Beside(home, "events", adw_id, "-f", "--json") as told:
            assert json.loads(told.line("attempt_started"))["node_name"] == "build"
            cli_lab.let_go(home)
            assert (running.end(), told.end()) == (0, 0)

    types = [json.loads(line)["event_type"] for line in told.stdout.splitlines()]
    assert types == ["attempt_succeeded", "phase_completed", "state_changed"]


def test_events_are_told_in_few_words_and_whole_as_json(adw):
    adw_id = start(adw, "flaky")

    shown = adw("events", adw_id).stdout
    told = adw("events", adw_id, "--json").json()["events"]

    failed = next(line for line in shown.splitlines() if "attempt_failed" in line)
    assert "connection reset by peer" in failed
    assert "metadata" not in failed
    assert (
        next(one for one in told if one["event_type"] == "attempt_failed")["data"]["error"]["category"] == "transient"
    )


def test_path_prints_where_a_workflow_works_and_where_its_files_are(adw, home):
    adw_id = start(adw, "short")

    assert adw("state", "path", adw_id).stdout == f"{home}\n"
    assert adw("state", "path", adw_id, "--state").stdout == f"{home}/state/{adw_id}\n"
    assert adw("state", "path", adw_id, "--json").json() == {"adw_id": adw_id, "path": str(home)}
