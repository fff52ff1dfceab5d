"""`adw status`, `adw queue retries`, `adw queue external` and what `adw status` says of a phase that waits."""

from __future__ import annotations

import json

import pytest

from tests.acceptance import cli_lab

WORKFLOWS = """
[worktree]
enabled = false

[workflows.looping]
[[workflows.looping.phases]]
name = "build"
max_attempts = 1
[[workflows.looping.phases.steps]]
name = "fetch"
tool = "command"
command = ["sh", "-c", "test $0 != two", "{{ item }}"]
[workflows.looping.phases.steps.loop]
collection = ["one", "two", "three"]
mode = "async"
concurrency = 2
on_failure = "continue"
[workflows.looping.phases.steps.retry.on_error]
max_attempts = 3
base_seconds = 3600
max_seconds = 3600

[workflows.outside]
[[workflows.outside.phases]]
name = "build"
runner = "external"
"""


@pytest.fixture
def home(tmp_path):
    made = cli_lab.make_home(tmp_path)
    (made / "adw.toml").write_text(WORKFLOWS)
    return made


@pytest.fixture
def ask(home, adw):
    def run(*args: str, rc: int = 0):
        done = adw("--home", str(home), *args)
        assert done.rc == rc, done.stderr + done.stdout
        return json.loads(done.stdout) if "--json" in args else done.stdout if rc == 0 else done.stderr

    return run


@pytest.fixture
def begun(ask):
    """Begin a workflow and work until it waits; return its id."""

    def start(workflow: str, issue: int = 5) -> str:
        adw_id = ask("run", str(issue), "--workflow", workflow, "--detach", "--json")["adw_id"]
        ask("worker", "--once")
        return adw_id

    return start


def test_a_phase_that_waits_for_its_step_says_how_far_that_is(ask, begun):
    adw_id = begun("looping")

    shown = ask("status", adw_id)

    assert "waiting: build: waits for" in shown
    assert "step fetch: 2 of 3 done, 0 failed, 0 in flight, 1 wait for another call, next retry" in shown
    (execution,) = ask("status", adw_id, "--json")["executions"]
    assert (execution["step"], execution["done"], execution["total"], execution["waiting"]) == ("fetch", 2, 3, 1)
    assert "is in build, which waits for" in ask("status", adw_id)


def test_executions_iterations_and_calls_are_shown_one_inside_the_other(ask, begun):
    adw_id = begun("looping")
    assert "step fetch: 2 of 3 done" in ask("status", adw_id)
    (execution,) = ask("status", adw_id, "--json")["executions"]
    execution_id = execution["execution_id"]

    page = ask("status", execution_id, "--limit", "2", "--json")
    rest = ask("status", execution_id, "--after", str(page["next_after"]), "--json")
    one = ask("status", execution_id, "--index", "1", "--json")

    assert [row["state"] for row in page["iterations"] + rest["iterations"]] == ["completed", "retry_wait", "completed"]
    assert rest["next_after"] is None
    assert (one["element"], [call["event_type"] for call in one["calls"]]) == (
        "two",
        ["action_started", "action_failed"],
    )
    assert "more: --after 1" in ask("status", execution_id, "--limit", "2")
    assert "action_failed" in ask("status", execution_id, "--index", "1")
    assert "No iteration is to be shown." in ask("status", execution_id, "--failed")
    assert "--failed, --index and --after are for a step" in ask("status", adw_id, "--failed", rc=2)


def test_what_is_not_there_is_said_in_one_sentence(ask, begun):
    adw_id = begun("outside")

    assert "1a2b3c4d" in ask("status", "1a2b3c4d", rc=1)
    assert "there is no execution 1a2b3c4d.build.1.x" in ask("status", "1a2b3c4d.build.1.x", rc=1)
    assert "there is no task x" in ask("queue", "external", "show", "x", rc=1)
    assert "no scheduled retry" in ask("queue", "retries", "cancel", adw_id, rc=2)


def test_a_retry_is_listed_and_cancelled(ask, begun):
    adw_id = begun("looping")
    assert "on_error" in ask("queue", "retries")
    (retry,) = ask("queue", "retries", "--workflow", adw_id, "--json")["retries"]
    assert (retry["kind"], retry["step"], retry["index"]) == ("call", "fetch", 1)

    done = ask("queue", "retries", "cancel", retry["retry_id"], "--index", "1", "-m", "not needed", "--json")

    assert "iteration 1" in done["message"]
    assert ask("queue", "retries") == "No retries are scheduled.\n"
    ask("worker", "--once")
    assert ask("status", retry["retry_id"], "--json")["iterations"][1]["state"] == "cancelled"


def test_a_task_is_listed_and_its_token_is_shown_only_when_it_is_asked_for(ask, begun):
    assert ask("queue", "external") == "Nothing is waited for that is done outside of adw.\n"
    adw_id = begun("outside")

    (task,) = ask("queue", "external", "--json")["tasks"]
    shown = ask("queue", "external", "show", adw_id, "--json")
    with_token = ask("queue", "external", "show", task["task_id"], "--token", "--json")

    assert (task["task_id"], task["state"], task["claim"]) == (f"{adw_id}.build.1", "open", 0)
    assert shown == task
    assert with_token.pop("token").startswith(f"adwx_{adw_id}.build.1_")
    assert with_token == task
    assert "adwx_" not in ask("queue", "external") + ask("queue", "external", "show", adw_id) + ask("events", adw_id)
    assert "nobody" in ask("queue", "external")
    assert "waiting: build: waits until" in ask("status", adw_id)
