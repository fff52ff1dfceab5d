"""Every command that a message advises is run, on a workflow in a state in which it is advised."""

from __future__ import annotations

import pytest

from tests import advice
from tests.acceptance import cli_lab

#: Run until they are ended, ask, or need another home: tests of their own run them.
ELSEWHERE = {
    ("serve",): "test_cli_serve",
    ("worker",): "test_cli_worker",
    ("cron",): "test_cli_cron",
    ("demo",): "test_demo",
    ("init",): "test_cli_init",
    ("db", "restore"): "test_cli_backup",
    ("resume", "{}", "--workflow", "NAME"): "test_doc_pages",  # for documents of older versions
    ("resume", "{}", "--workflow", "build"): "test_cli_continue",
    ("rollback", "{}", "--forget-host", "{}"): "test_two_hosts",
}
#: The workflow, and what is done to it, for a command that changes it; others are run on one that failed.
STATES = {
    "approve": ("gated", ""),
    "reject": ("gated", ""),
    "pause": ("patient", ""),
    "stop": ("patient", ""),
    "resume": ("patient", "pause"),
    "abandon": ("patient", "pause"),
    "retry": ("broken", ""),
    "rollback": ("broken", ""),
    "state": ("broken", ""),
}
#: What a placeholder stands for; any other is the id of the workflow.
VALUES = {
    ("queue", "runs", "--before", "{}"): ["queue", "runs", "--before", "1000"],
    ("workflow", "show", "{}"): ["workflow", "show", "short"],
    ("resume", "{}", "--from", "{}"): ["resume", "ID", "--from", "build"],
    ("state", "set", "{}", "max_total_attempts=N"): ["state", "set", "ID", "max_total_attempts=50"],
}
SAMPLES = {"N": "2", "USD": "50", "TEXT": "why", "PHASE": "build", "NAME": "github"}
#: What keeps a command from working until the end; the attempts of `broken` are used up.
MORE = {"resume": ["--detach"], "retry": ["--detach", "--grant", "1"]}


BROKEN = """
[workflows.broken]
[[workflows.broken.phases]]
name = "build"
shell = "exit 1"
max_attempts = 1
"""


@pytest.fixture
def home(tmp_path):
    made = cli_lab.make_home(tmp_path)
    with (made / "adw.toml").open("a") as file:
        file.write(BROKEN)
    return made


def test_every_command_that_a_message_advises_runs(adw, home):
    issues = iter(range(100, 1000))

    def workflow(name: str, order: str) -> str:
        adw_id = adw("run", str(next(issues)), "--workflow", name, "--detach", "--json").json()["adw_id"]
        adw("worker", "--once")
        assert not order or adw(order, adw_id).rc == 0
        return adw_id

    failed, refused, done_before = workflow("broken", ""), [], set()
    for typed in advice.typed_in_messages():
        filled = VALUES.get(typed) or [SAMPLES.get(word, word) for word in typed]
        filled = ["ID" if word in {"{}", "{id}", "1a2b3c4d"} else word for word in filled]
        if typed in ELSEWHERE or tuple(filled) in done_before:
            continue
        done_before.add(tuple(filled))
        adw_id = workflow(*STATES[typed[0]]) if typed[0] in STATES and len(typed) > 1 else failed
        words = [adw_id if word == "ID" else word for word in filled]
        if typed[0] == "run" and len(typed) > 1:
            words = ["run", str(next(issues)), "--workflow", "short", "--dry-run"]
        done = adw(*words, *(MORE.get(typed[0], []) if len(typed) > 1 else []))
        is_only_named = (
            "Missing argument" in done.stderr
            or "nothing to work on" in done.stderr
            or ("Error:" not in done.stderr and "COMMAND" in done.stderr)
        )
        if done.rc not in {0, 1} and not is_only_named:
            refused.append(f"adw {' '.join(words)}: {done.rc}: {done.stderr}")

    assert not refused, "\n".join(refused)
