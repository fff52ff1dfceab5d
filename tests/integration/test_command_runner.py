"""A phase as a command: what it is told, what it may know, and what its end is taken for."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.document import FrozenIssue, WorkflowDocument
from adws.adw_modules.engine.gates import Gates
from adws.adw_modules.engine.git_guard import Guard
from adws.adw_modules.engine.runner_command import CommandRunner
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.phase import Order, PhaseContext, RunReport, Suspended
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.process.tree import GRACE_SECONDS
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import Gate, PhaseSpec, Timeouts
from adws.testing import FakeClock
from tests.homes import NO_SANDBOX
from tests.integration.process_lab import LabOrders, is_alive

SECRET = "correct-horse-battery"
ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/person",
    "LC_ALL": "C",
    "GITHUB_TOKEN": "ghp_ours",
    "GITHUB_PAT": "ghp_ours",
    "ADW_WEBHOOK_SECRET": "ours",
    "ANTHROPIC_API_KEY": SECRET,
    "MY_SETTING": "mine",
    "OTHER": "not asked for",
}
DOCUMENT = WorkflowDocument(
    adw_id="1a2b3c4d",
    issue_number=7,
    repository="octo/cat",
    issue=FrozenIssue(title="Fix it", body=f"with {SECRET}", labels=["bug"]),
    created_at="2026-01-31T09:00:00.000000Z",
    updated_at="2026-01-31T09:00:00.000000Z",
)


class World:
    """A runner, and what one attempt of it is given."""

    def __init__(self, place):
        self.cwd, self.folder = place / "work", place / "state"
        self.cwd.mkdir()
        self.folder.mkdir()
        self.clock = FakeClock()
        self.orders = LabOrders()
        self.said: list[str] = []
        self.on_say = lambda: None
        self.records = []
        self.runner = CommandRunner(
            SimpleNamespace(
                clock=self.clock,
                processes=SystemProcesses(clock=SystemClock()),
                redactor=Redactor([SECRET]),
                env=ENV,
                settings=SimpleNamespace(grace_seconds=GRACE_SECONDS),
                checkpoint_manager=None,
                sandboxes=NO_SANDBOX,
            )
        )
        self.context = PhaseContext(
            document=DOCUMENT,
            phase="build",
            attempt_number=3,
            round=1,
            cwd=self.cwd,
            folder=self.folder,
            orders=self.orders,
            record_process=self.records.append,
            say=self.say,
            hints=("use the other door",),
            env={"GIVEN": "by the engine", "GH_TOKEN": "ghp_ours"},
        )

    def say(self, line):
        self.said.append(line)
        self.on_say()

    def run(self, shell="", **changes) -> RunReport | Suspended:
        return self.runner.run(phase(shell=shell, **changes), self.context)

    def file(self, kind):
        return self.folder / "phases/build" / f"attempt-3.{kind}"


def phase(**changes) -> PhaseSpec:
    return PhaseSpec(name="build", state="building", runner="command", **changes)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# --- what it is told -------------------------------------------------------------------------------------------


def test_a_command_knows_what_it_needs_and_no_secret_of_ours(world):
    names = ("MY_SETTING", "ANTHROPIC_API_KEY", "NOT_SET")
    report = world.run(
        command=(sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"), env=names
    )

    assert report.ok
    given = json.loads(world.file("stdout.log").read_text())
    ours = {name for name in given if not name.startswith("ADW_")} - {"OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert ours == {"PATH", "HOME", "LC_ALL", "MY_SETTING", "ANTHROPIC_API_KEY", "GIVEN", "PWD"}
    assert given["PWD"] == str(world.cwd)
    assert given["ANTHROPIC_API_KEY"] == MASK, "named in env it is given, but never kept"


def test_a_command_is_told_what_it_works_on(world):
    world.run(command=(sys.executable, "-c", "import os, json; json.dump(dict(os.environ), open('told', 'w'))"))

    told = {k: v for k, v in json.loads((world.cwd / "told").read_text()).items() if k.startswith("ADW_")}
    assert told.pop("ADW_PROCESS_TOKEN") == world.records[0].token
    assert told == {
        "ADW_ID": "1a2b3c4d",
        "ADW_ISSUE_NUMBER": "7",
        "ADW_PHASE": "build",
        "ADW_ATTEMPT": "3",
        "ADW_RESULT_FILE": str(world.file("result.json")),
        "ADW_ISSUE_FILE": str(world.file("issue.json")),
        "ADW_HINTS_FILE": str(world.file("hints.json")),
        "ADW_CHECKPOINT_FILE": str(world.file("checkpoint.json")),
    }
    issue = json.loads(world.file("issue.json").read_text())
    assert (issue["number"], issue["title"], issue["repository"]) == (7, "Fix it", "octo/cat")
    assert issue["body"] == f"with {MASK}"
    assert json.loads(world.file("hints.json").read_text()) == ["use the other door"]


def test_a_workflow_without_an_issue_can_be_worked_on(world):
    document = DOCUMENT.model_copy(update={"issue": None, "issue_number": None})
    world.context = replace(world.context, document=document)

    assert world.run('test -z "$ADW_ISSUE_NUMBER"').ok
    assert json.loads(world.file("issue.json").read_text())["number"] is None


def test_a_command_runs_where_the_work_is_under_the_name_that_it_has_for_us(world, tmp_path):
    (tmp_path / "link").symlink_to(world.cwd)
    world.context = replace(world.context, cwd=tmp_path / "link")

    world.run('pwd -P; echo "$PWD"')

    assert world.said == [str(world.cwd.resolve()), str(tmp_path / "link")]


# --- what its end is taken for ---------------------------------------------------------------------------------


def test_a_command_that_works_is_a_success(world):
    report = world.run("echo first; echo all good")

    assert (report.ok, report.exit_code, report.summary, report.error) == (True, 0, "all good", None)
    assert "phases/build/attempt-3.stdout.log" in report.output_files
    assert len(world.records) == 1


def test_a_command_without_a_word_still_has_a_summary(world):
    assert world.run(command=("/bin/true",)).summary == "true ended well"


def test_a_failed_command_tells_how_and_what_it_said_last(world):
    report = world.run("echo it broke >&2; exit 3")

    assert (report.ok, report.exit_code) == (False, 3)
    assert isinstance(report.error, RunFailed)
    assert (report.error.run.exit_code, report.error.run.text) == (3, "it broke\n")
    assert "it broke" in report.summary
    report = world.run("kill -9 $$")
    assert (report.error.run.signal, report.exit_code) == (signal.SIGKILL, None)


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("cd .  &&\n  exit 3", "`cd . && exit 3`"),
        ("exit 3 # " + "x" * 100, f"`exit 3 # {'x' * 51}...`"),
    ],
    ids=["whole", "shortened"],
)
def test_a_line_of_shell_is_named_by_itself_and_not_by_its_first_word(world, shell, name):
    assert str(world.run(shell).error) == f"{name} ended with exit code 3"


def test_the_first_word_still_says_whose_exit_codes_they_are(world):
    assert world.run("exit 3").error.run.tool == "exit"
    assert str(world.run(command=("/bin/false",)).error) == "false ended with exit code 1"


def test_a_command_that_takes_too_long_tells_which_clock(world):
    world.orders.on_look = lambda: world.clock.advance(10)

    report = world.run("sleep 1000", timeouts=Timeouts(wall=60))

    assert (report.ok, report.error.run.timed_out) == (False, "wall")


def test_a_command_that_is_killed_too_late_to_fail_is_still_late(world):
    """
    It ends with 0 when it is asked to: that is no success.
    """
    world.on_say = lambda: world.clock.advance(601)
    script = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); os.write(1, b'1\\n')"

    report = world.run(
        command=(sys.executable, "-c", f"{script}\nwhile True: signal.pause()"), timeouts=Timeouts(wall=600)
    )

    assert (report.ok, report.exit_code, report.error.run.timed_out) == (False, 0, "wall")


def test_an_order_suspends_the_attempt(world):
    world.orders.order = Order(kind="drain")

    assert world.run("touch made") == Suspended(reason="drain")
    assert not (world.cwd / "made").exists()


def test_what_it_leaves_running_is_ended_and_told(world):
    report = world.run("sleep 1000 >/dev/null 2>&1 & echo $!")

    assert report.ok
    assert f"{world.said[0]} (" in report.summary  # by its name, which it may have had no time to get from the shell
    assert not is_alive(int(world.said[0]))


# --- its result ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "code", "expected"),
    [
        ('{"passed": true, "summary": "3 of 3", "cost_usd": 0.5}', 0, {"summary": "3 of 3", "cost_usd": 0.5}),
        ('{"rework": true}', 0, {"wants_rework": True}),
        # A failed command may still say something, and what it cost counts when it is an amount.
        ('{"failed_tests": 2}', 1, {}),
        ('{"cost_usd": 0.5}', 4, {"cost_usd": 0.5}),
        ('{"cost_usd": "much"}', 4, {"cost_usd": None}),
    ],
)
def test_what_it_writes_to_its_result_file_is_its_result(world, written, code, expected):
    report = world.run(f"""echo '{written}' > "$ADW_RESULT_FILE"; exit {code}""")

    assert (report.ok, report.exit_code, report.result) == (code == 0, code, json.loads(written))
    assert {name: getattr(report, name) for name in expected} == expected
    assert "phases/build/attempt-3.result.json" in report.output_files


def test_a_failure_is_not_hidden_by_a_bad_result(world):
    assert world.run("""echo '{' > "$ADW_RESULT_FILE"; exit 4""").error.run.exit_code == 4


@pytest.mark.parametrize(
    "script",
    [
        """echo '{"passed": tru' > "$ADW_RESULT_FILE" """,
        """echo '[1]' > "$ADW_RESULT_FILE" """,
        """: > "$ADW_RESULT_FILE" """,
        """head -c 2000000 /dev/zero > "$ADW_RESULT_FILE" """,
        """ln -s /etc/passwd "$ADW_RESULT_FILE" """,
        """mkdir "$ADW_RESULT_FILE" """,
        """echo '{"rework": "yes"}' > "$ADW_RESULT_FILE" """,
    ],
    ids=["torn", "list", "empty", "too-large", "link", "directory", "wrong-type"],
)
def test_a_result_that_cannot_be_read_fails_the_attempt(world, script):
    report = world.run(script)

    assert (report.ok, report.exit_code) == (False, 0)
    assert report.error.run.subtype == "bad_output"
    assert report.summary.startswith("the result of the phase cannot be used")


def test_a_secret_in_the_result_is_neither_kept_nor_handed_on(world):
    report = world.run(f"""echo '{{"key": "{SECRET}"}}' > "$ADW_RESULT_FILE" """)

    assert SECRET not in json.dumps(report.result)
    assert SECRET not in world.file("result.json").read_text()


def test_a_secret_in_a_result_that_nobody_asks_for_is_not_kept(world):
    """
    The command was ended by an order after it had written its result.
    """
    world.on_say = lambda: setattr(world.orders, "order", Order(kind="drain"))

    done = world.run(f"""echo '{{"key": "{SECRET}"}}' > "$ADW_RESULT_FILE"; echo said; while :; do sleep 1000; done""")

    assert isinstance(done, Suspended)
    assert SECRET not in world.file("result.json").read_text()


def test_a_result_that_is_too_long_to_be_read_is_not_left_with_its_secrets(world):
    report = world.run(f"""(echo {SECRET}; head -c 2000000 /dev/zero) > "$ADW_RESULT_FILE" """)

    assert not report.ok
    assert not world.file("result.json").exists()


def test_the_result_of_an_earlier_try_is_not_taken_for_this_one(world):
    world.run("""echo '{"passed": true}' > "$ADW_RESULT_FILE" """)

    assert world.run("true").result == {}


# --- checks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "either command"),
        ({"command": ("a",), "shell": "a"}, "either command"),
        ({"shell": " "}, "either command"),
        ({"shell": "true", "env": ("GITHUB_TOKEN",)}, "asks for GITHUB_TOKEN, which adw keeps to itself"),
    ],
)
def test_what_cannot_be_run_is_found_by_the_check(world, changes, words):
    assert words in world.runner.check(phase(**changes))
    with pytest.raises(RunFailed, match="phase build"):
        world.run(**changes)


def test_what_can_be_run_passes_the_check_and_a_command_that_is_not_there_is_a_failed_attempt(world):
    assert world.runner.check(phase(shell="true", env=("ANTHROPIC_API_KEY",))) == ""
    with pytest.raises(RunFailed, match="no command 'no-such-tool' in PATH"):
        world.run(command=("no-such-tool",))


# --- gates -----------------------------------------------------------------------------------------------------


def gate(world, *gates):
    return Gates(world.runner, Guard(None)).check(phase(shell="true", gates=gates), world.context, RunReport(ok=True))


def test_a_gate_runs_in_the_same_place_with_the_same_words(world):
    shell = 'echo "$ADW_ID $PWD"; test "$ADW_PHASE" = build'

    assert gate(world, Gate(kind="command", shell=shell)).passed
    assert world.file("gate-1.stdout.log").read_text() == f"1a2b3c4d {world.cwd}\n"


def test_a_gate_keeps_its_own_time(world):
    world.orders.on_look = lambda: world.clock.advance(10)

    verdict = gate(world, Gate(kind="command", shell="sleep 1000", timeout_seconds=30))

    assert not verdict.passed
    assert "took too long" in verdict.reason


@pytest.mark.parametrize("argv", [("false",), ("no-such-tool",), ("./not-executable",)])
def test_a_gate_that_fails_or_cannot_be_run_does_not_hold(world, argv):
    (world.cwd / "not-executable").write_text("x")

    assert not gate(world, Gate(kind="command", command=argv)).passed


@pytest.mark.parametrize("pattern", ["plan.md", "specs/*.md", "**/deep.md", "inside.md"])
def test_an_artifact_that_is_there_passes(world, pattern):
    (world.cwd / "specs/a").mkdir(parents=True)
    for name in ("plan.md", "specs/plan.md", "specs/a/deep.md"):
        (world.cwd / name).write_text("x")
    (world.cwd / "inside.md").symlink_to("plan.md")

    assert gate(world, Gate(kind="artifact", artifact=pattern)).passed


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("missing.md", "is not there"),
        ("*.txt", "is not there"),
        ("empty.md", "is empty"),
        ("folder", "not a regular file"),
        ("fifo", "not a regular file"),
        ("escape.md", "leaves the working directory"),
        ("out/secret.md", "leaves the working directory"),
        ("dangling.m*", "link to nothing"),
        ("circle.m*", "link to nothing"),
    ],
)
def test_an_artifact_that_does_not_count_fails(world, tmp_path, pattern, words):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("x")
    (world.cwd / "empty.md").touch()
    (world.cwd / "folder").mkdir()
    os.mkfifo(world.cwd / "fifo")
    links = {"escape.md": outside / "secret.md", "out": outside, "dangling.md": "nothing", "circle.md": "circle.md"}
    for name, target in links.items():
        (world.cwd / name).symlink_to(target)

    verdict = gate(world, Gate(kind="artifact", artifact=pattern))

    assert not verdict.passed
    assert words in verdict.reason


def test_one_good_artifact_among_bad_ones_is_enough(world):
    (world.cwd / "a.md").symlink_to("nothing")
    (world.cwd / "b.md").touch()
    (world.cwd / "c.md").write_text("x")

    assert gate(world, Gate(kind="artifact", artifact="*.md")).passed
