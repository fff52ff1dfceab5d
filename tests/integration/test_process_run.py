"""Real processes of every bad habit are run, and afterwards nothing of them is left."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.phase import Order
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.process.run import PIPE_SECONDS, ProcessEnd
from adws.adw_modules.process.tree import TOKEN_VARIABLE
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.workflow.model import Timeouts
from tests.integration.process_lab import LONG, Lab, is_alive, is_gone

STOP = Order(kind="stop", reason="enough")
URGENT = Order(kind="stop", reason="now", is_urgent=True)

#: Says that it is ready, does *act* when it is asked to end, and keeps running.
ON_TERM = """
import os, signal, time
def on_term(number, frame):
    {act}
signal.signal(signal.SIGTERM, on_term)
os.write(1, b"ready\\n")
while True:
    time.sleep(0.02)  # signal.pause() would miss one that comes right before it
"""
#: Starts a process in a session of its own whose parent is gone, waits until it is there, and says its pid.
DAEMON = """
import os, sys
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (1, 2):
            os.dup2(null, fd)
        os.write(tell, str(os.getpid()).encode())
        os.execve("/bin/sleep", ["sleep", "1000"], {environment})
    os.close(tell)
    os._exit(0)
os.wait()
os.close(tell)
pid = int(os.read(ready, 20))
os.read(ready, 1)  # its end of the pipe is closed when it has become the other program
print(pid, flush=True)
"""


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def give(lab: Lab, order: Order):
    """Return an `on_line` that gives *order* at the first line."""

    def on_line(_line: str) -> None:
        lab.orders.order = order

    return on_line


# --- the ordinary way ------------------------------------------------------------------------------------------


def test_a_command_that_works_says_so_and_keeps_its_output(lab):
    end = lab.sh("echo out; echo err >&2")

    assert (end.exit_code, end.signal, end.timed_out, end.ordered) == (0, None, None, None)
    assert (lab.stdout.read_text(), lab.stderr.read_text()) == ("out\n", "err\n")
    assert sorted(lab.lines) == [("stderr", "err"), ("stdout", "out")]
    assert sorted(end.tail.split()) == ["err", "out"]
    assert (end.leftovers, end.survivors) == ((), ())
    assert {stat.S_IMODE(path.stat().st_mode) for path in (lab.stdout, lab.stderr)} == {0o600}


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 7", 7, None), ("kill -9 $$", None, signal.SIGKILL), ("exit 125", 125, None)],
    ids=["exit-code", "signal", "the-code-of-our-own-shell"],
)
def test_how_a_command_ended_is_told(lab, script, code, number):
    end = lab.sh(script)

    assert (end.exit_code, end.signal) == (code, number)


def test_a_command_gets_the_environment_it_was_given_and_its_token(lab):
    lab.python(
        "import os; print(*sorted(os.environ))",
        env={"PATH": os.environ["PATH"], "MINE": "1"},
    )

    ours = set(lab.said[0].split()) - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}  # what shells and Python add
    assert ours == {"PATH", "MINE", TOKEN_VARIABLE}


def test_a_command_is_recorded_before_it_does_anything(lab):
    """
    The record already names the process that the command becomes: same pid, same start, in a session of its own.
    """
    made = lab.place / "made"
    seen = []
    lab.on_record = lambda record: seen.append((made.exists(), is_alive(record.identity.pid)))

    lab.python("import os; open('made', 'w'); print(os.getpid(), os.getsid(0), open('/proc/self/stat').read())")

    pid, session, *stat_line = lab.said[0].split()
    record = lab.records[0]
    assert seen == [(False, True)]
    assert made.exists()
    assert int(pid) == int(session) == record.identity.pid
    assert int(stat_line[21]) == record.identity.start_ticks > 0
    assert record.identity.boot_id == lab.processes.boot_id
    assert record.argv[0] == sys.executable
    assert record.token == record.identity.token


def test_the_record_holds_no_secret(lab):
    lab.redactor = Redactor(["correct-horse-battery"])

    lab.run("/bin/sh", "-c", "exit 0", "correct-horse-battery", "--token", "something-else")

    assert "correct-horse-battery" not in str(lab.records[0].to_json())
    assert "something-else" not in str(lab.records[0].to_json())


def test_a_command_that_cannot_be_recorded_does_not_run(lab):
    def refuse(_record):
        raise OSError("the disk is full")

    lab.on_record = refuse

    with pytest.raises(OSError, match="the disk is full"):
        lab.sh("touch made")

    assert not is_alive(lab.records[0].identity.pid)
    assert not (lab.place / "made").exists()


def test_a_command_whose_starter_dies_before_the_record_is_durable_never_runs(lab):
    driver = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.integration.process_lab import Lab
def die(record):
    print(record.identity.pid, flush=True)
    os.read(0, 1)
    os._exit(9)
Lab(Path({str(lab.place)!r}), on_record=die).sh("touch made")
"""
    with subprocess.Popen([sys.executable, "-c", driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        pid = int(starter.stdout.readline())
        watch = os.pidfd_open(pid)
        starter.stdin.write(b"x")
        starter.stdin.flush()
        assert starter.wait() == 9
        assert select.select([watch], [], [], 30)[0] == [watch], "the waiting process did not end"
        os.close(watch)

    assert not (lab.place / "made").exists()


def test_what_is_ordered_before_the_start_keeps_the_command_from_running(lab):
    lab.orders.order = STOP

    end = lab.sh("touch made")

    assert (end.ordered, end.exit_code, end.signal) == (STOP, None, None)
    assert not (lab.place / "made").exists()


def test_running_leaves_no_descriptor_and_no_zombie_behind(lab):
    lab.sh("exit 0")
    before = sorted(Path("/proc/self/fd").iterdir())

    lab.sh("echo x; exit 1")
    lab.on_line = give(lab, URGENT)
    lab.sh("echo x; sleep 1000")

    assert sorted(Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, lab.records[-1].identity.pid, os.WEXITED | os.WNOHANG)


@pytest.mark.parametrize("script", ["exit 0", "exit 3", "sleep 1000 & echo x; exit 0"])
def test_an_end_that_cannot_be_learnt_is_no_success(lab, script):
    """
    Under a parent that ignores SIGCHLD the system collects children by itself, and nobody learns their exit code.
    """
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        lab.advance_at_every_look(1)
        end = lab.sh(script)
    finally:
        signal.signal(signal.SIGCHLD, old)

    assert (end.exit_code, end.signal, end.survivors) == (None, None, ())
    assert is_over(end)


# --- commands that cannot be started ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "changes", "code", "words"),
    [
        (("no-such-command",), {}, 127, "no command 'no-such-command' in PATH"),
        (("./missing",), {}, 127, "is not a file"),
        (("./plain",), {}, 126, "chmod"),
        (("plain",), {"env": {"PATH": "."}}, 127, "in PATH"),
        (("sh",), {"cwd": Path("/dev/null")}, 127, "not a directory"),
        ((), {}, 127, "empty"),
        (("sh", "a\0b"), {}, 127, "null character"),
    ],
    ids=["not-in-path", "no-file", "not-executable", "not-executable-in-path", "no-directory", "empty", "null"],
)
def test_what_cannot_be_started_is_said_before_anything_is(lab, argv, changes, code, words):
    (lab.place / "plain").write_text("echo hello\n")

    with pytest.raises(RunFailed, match=words) as caught:
        lab.run(*argv, **changes)

    assert caught.value.run.exit_code == code
    assert lab.records == []


# --- clocks ----------------------------------------------------------------------------------------------------


def test_the_wall_clock_ends_a_command(lab):
    lab.on_line = lambda _line: lab.clock.advance(61)

    end = lab.sh("echo x; sleep 1000", timeouts=Timeouts(wall=60, idle=None))

    assert (end.timed_out, end.signal, end.ordered) == ("wall", signal.SIGTERM, None)
    assert end.duration >= 60


def test_the_idle_clock_ends_a_command_that_says_nothing(lab):
    lab.advance_at_every_look(50)

    end = lab.sh("sleep 1000", timeouts=Timeouts(wall=None, idle=120))

    assert end.timed_out == "idle"


def test_every_word_sets_the_idle_clock_back(lab):
    """
    Each line waits for the one before to be heard, so that they come one by one.
    """
    with lab.gate("heard") as release:

        def on_line(_line):
            lab.clock.advance(100)
            release()

        lab.on_line = on_line
        end = lab.sh("for i in 1 2 3 4; do echo $i; read -r x < heard; done", timeouts=Timeouts(wall=None, idle=120))

    assert (end.timed_out, end.exit_code) == (None, 0)
    assert lab.said == ["1", "2", "3", "4"]


def test_the_after_result_clock_runs_from_the_result_on(lab):
    lab.saw_result = lambda: "done" in lab.said
    lab.advance_at_every_look(5)

    end = lab.sh("echo start; echo done; sleep 1000", timeouts=Timeouts(wall=None, after_result=30))

    assert end.timed_out == "after_result"
    assert 30 <= end.duration < 100


# --- orders ----------------------------------------------------------------------------------------------------


def test_an_order_lets_a_command_end_in_its_own_way(lab):
    lab.on_line = give(lab, STOP)

    end = lab.python(ON_TERM.format(act=r"os.write(1, b'cleaning\n'); os._exit(3)"))

    assert (end.ordered, end.exit_code) == (STOP, 3)
    assert lab.said == ["ready", "cleaning"]


@pytest.mark.parametrize("first", [None, STOP], ids=["at-once", "after-a-graceful-one"])
def test_an_urgent_order_waits_for_nothing(lab, first):
    """
    The clock stands still here: a grace that was waited for would never be over.
    """
    looks = []

    def on_look():
        looks.append(1)
        if lab.said and len(looks) > 5:
            lab.orders.order = URGENT

    lab.orders.on_look = on_look
    if first:
        lab.on_line = give(lab, first)

    end = lab.python(ON_TERM.format(act="pass"))

    assert (end.ordered, end.signal) == (URGENT, signal.SIGKILL)


def test_a_stopped_command_can_still_be_asked_to_end(lab):
    lab.advance_at_every_look(1)

    end = lab.sh("kill -STOP $$; sleep 1000", timeouts=Timeouts(wall=5), grace_seconds=LONG)

    assert end.signal == signal.SIGTERM


def test_an_order_after_the_end_does_not_take_the_result_away(lab):
    """
    The command is done; only what it left holds the pipes.
    """

    def on_look():
        if not is_alive(lab.records[0].identity.pid):
            lab.orders.order = STOP

    lab.orders.on_look = on_look

    end = lab.sh("sleep 1000 & echo done; exit 4")

    assert (end.exit_code, end.ordered) == (4, None)
    assert is_over(end)


def is_over(end: ProcessEnd) -> bool:
    return not end.survivors and not any(is_alive(int(name.split()[0])) for name in end.leftovers)


# --- what it leaves running ------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", ["os.environ", "{}"], ids=["with-token", "clean-environment-but-a-child"])
def test_what_a_command_leaves_running_is_ended(lab, environment):
    """
    A daemon is found by its token; a child without it while its parent still runs.
    """
    script = DAEMON.replace("{environment}", environment)
    if environment == "{}":
        script = script.replace("    if os.fork() == 0:\n", "    if True:\n").replace("os.wait()\n", "")
        lab.on_line = give(lab, URGENT)
        script += "import signal; signal.pause()\n"

    end = lab.python(script)

    daemon = int(lab.said[0])
    assert is_gone(daemon)
    assert end.survivors == ()
    if environment != "{}":
        assert end.exit_code == 0
        assert end.leftovers == (f"{daemon} (sleep)",)


def test_a_daemon_without_the_token_is_known_when_it_was_seen_with_its_parent(lab):
    """
    It was seen as a grandchild; then its parent ends, and nothing on it says any more where it came from.
    """
    script = (
        DAEMON.replace("{environment}", "{}")
        .replace("    os._exit(0)", "    open('go-on').readline(); os._exit(0)")
        .replace("os.wait()\n", "")
    )
    with lab.gate("go-on") as release:
        at_look(lab, 5, release)
        lab.python(script + "os.wait()\n")

    assert not is_alive(int(lab.said[0]))


def at_look(lab: Lab, number: int, act) -> None:
    """Call *act* at the look of that number for orders after the first line."""
    looks = []

    def on_look():
        looks.extend([1] if lab.said else [])
        if len(looks) == number and lab.said:
            act()

    lab.orders.on_look = on_look


def test_a_chain_of_processes_that_fork_and_end_is_ended(lab):
    """
    Each generation starts the next one in a session of its own and ends; the last one stays.
    """
    lab.advance_at_every_look(1)

    end = lab.python(
        "import os, signal\n"
        "for _ in range(60):\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "os.execve('/bin/sleep', ['sleep', '1000'], os.environ)\n",
        grace_seconds=LONG,
    )

    assert is_over(end)
    token = lab.records[0].token
    assert [pid for pid in lab.processes.all() if lab.processes.has_variable(pid, TOKEN_VARIABLE, token)] == []


def test_a_command_that_has_ended_is_not_waited_for_because_others_hold_its_output(lab):
    lab.advance_at_every_look(PIPE_SECONDS / 2)

    end = lab.sh("sleep 1000 & echo started; exit 4")

    assert (end.exit_code, end.timed_out, end.ordered) == (4, None, None)
    assert len(end.leftovers) == 1
    assert is_over(end)


def test_output_of_what_was_left_is_read_while_it_may_still_come(lab):
    """
    The clock stands still, so there is time: the child's words after its parent's end are not lost.
    """
    with lab.gate("gone") as release:
        at_look(lab, 4, release)
        end = lab.sh("(read -r x < gone; echo late) & echo early; exit 0")

    assert lab.said == ["early", "late"]
    assert len(end.leftovers) <= 1, "the shell that has said its last may still be in the middle of ending"
    assert end.survivors == ()


def test_leftovers_are_asked_before_they_are_killed(lab):
    with lab.gate("go") as release:

        def on_line(line):
            if line == "ready":
                release()
                lab.advance_at_every_look(1)  # the time for the pipes goes by

        lab.on_line = on_line
        (lab.place / "left.py").write_text(ON_TERM.format(act=r"os.write(1, b'asked\n'); os._exit(0)"))
        end = lab.sh(f"{sys.executable} left.py & read -r x < go; exit 0", grace_seconds=LONG)

    assert lab.said == ["ready", "asked"]
    assert end.exit_code == 0


def test_nobody_else_is_touched(lab):
    """
    A process with the same program, the same arguments and a token of its own keeps running.
    """
    with subprocess.Popen(["sleep", "1000"], env={TOKEN_VARIABLE: "f" * 32}, start_new_session=True) as decoy:
        lab.on_line = give(lab, URGENT)
        end = lab.sh("sleep 1000 & echo x; wait")

        assert is_over(end)
        assert is_alive(decoy.pid)
        decoy.kill()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_is_raised_on_the_way_nothing_is_left_running(lab, error):
    def fail(_line):
        raise error

    lab.on_line = fail

    with pytest.raises(error):
        lab.sh("trap '' TERM; sleep 1000 & echo $!; wait")

    assert not is_alive(lab.records[0].identity.pid)
    assert not is_alive(int(lab.said[0]))


def test_without_proc_the_group_of_our_own_child_is_ended(lab, tmp_path):
    empty = tmp_path / "proc"
    empty.mkdir()
    lab.processes = SystemProcesses(clock=SystemClock(), root=empty)
    watched = []

    def on_line(line):
        watched.append(os.pidfd_open(int(line)))
        lab.orders.order = STOP

    lab.on_line = on_line
    lab.advance_at_every_look(20)

    end = lab.sh("trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000")

    assert end.ordered == STOP
    assert select.select(watched, [], [], 30)[0] == watched, "its child keeps running"
    os.close(watched[0])
    assert lab.records[0].identity.start_ticks == 0


# --- output ----------------------------------------------------------------------------------------------------


def test_output_without_end_stops_at_the_limit_of_its_file_and_says_so(lab):
    lab.advance_at_every_look(1)

    end = lab.sh("yes 'the same line again'", timeouts=Timeouts(wall=20, idle=None), max_output_bytes=100_000)

    text = lab.stdout.read_text()
    assert end.timed_out == "wall"
    assert 100_000 <= len(text) < 120_000
    assert "[adw: the limit of this file is reached;" in text
    assert text.endswith("the same line again\n")


def test_the_last_words_before_a_kill_are_kept(lab):
    """
    They are said while the urgent order comes, so they are still in the pipe when all has ended.
    """
    act = r"open('go').readline(); os.write(1, b'late\n'); os.write(os.open('said', os.O_RDWR), b'x')"
    os.mkfifo(lab.place / "said")
    said = os.open(lab.place / "said", os.O_RDWR)
    looks = []

    def on_look():
        looks.extend([1] if lab.orders.order else [])
        if len(looks) == 2:  # it was asked at the first
            release()
            select.select([said], [], [], 30)
            lab.orders.order = URGENT

    lab.on_line = give(lab, STOP)
    lab.orders.on_look = on_look
    with lab.gate("go") as release:
        end = lab.python(ON_TERM.format(act=act))
    os.close(said)

    assert end.signal == signal.SIGKILL
    assert lab.said == ["ready", "late"]


def test_a_secret_that_comes_in_two_pieces_is_not_kept(lab):
    lab.redactor = Redactor(["correct-horse-battery"])

    end = lab.python(
        "import os\nfor fd in (1, 2):\n    os.write(fd, b'it is correct-hor')\n    os.write(fd, b'se-battery\\n')\n"
    )

    for text in (lab.stdout.read_text(), lab.stderr.read_text(), end.tail, *lab.said):
        assert "horse" not in text
        assert MASK in text


def test_a_link_in_place_of_an_output_file_is_not_followed(lab, tmp_path):
    target = tmp_path / "elsewhere"
    lab.stdout.symlink_to(target)

    with pytest.raises(OSError, match=r"stdout\.log"):
        lab.sh("echo x")

    assert not target.exists()
    assert lab.records == []


# --- what it reads ---------------------------------------------------------------------------------------------


def test_a_command_reads_the_file_it_was_given_and_nothing_of_ours(lab):
    """
    The shell line that waits for our word reads one line of its input: it must not eat a line of the file.
    """
    told = lab.place / "a file; with 'marks'"
    told.write_text("first\nsecond\n")

    end = lab.sh(
        "cat; for name in $(env | cut -d = -f 1); do case $name in adw_*) echo $name; esac; done", stdin_path=told
    )

    assert (end.exit_code, lab.said) == (0, ["first", "second"])


def test_an_input_that_is_gone_is_a_failure(lab):
    end = lab.sh("echo ran", stdin_path=lab.place / "missing")

    assert end.exit_code not in {0, None}
    assert "ran" not in lab.said
