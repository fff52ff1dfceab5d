"""A command that is forked from a process that has loaded adw behaves as one that is started."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import warm
from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Beside

WAYS = ["forked", "started"]


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


@pytest.fixture
def go_this_way(monkeypatch):
    """Choose the way for the commands to come; without a choice it is that of the tier."""

    def choose(way: str) -> None:
        monkeypatch.setenv("ADW_SOAK", "1" if way == "started" else "0")
        for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
            monkeypatch.delenv(name)

    return choose


@pytest.fixture
def forked(go_this_way):
    """Fork the commands to come."""
    go_this_way("forked")


def is_forked(pid: int) -> bool:
    return "warm_server.py" in Path(f"/proc/{pid}/cmdline").read_text()


def facts_about(pid: int) -> dict[str, object]:
    """Return what the system knows about a process, as far as its parent decides it."""
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
    return {
        **{name: status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Umask", "Threads", "Uid", "Gid", "Groups")},
        "cwd": (place / "cwd").readlink(),
        "session": os.getsid(pid),
        "group": os.getpgid(pid),
        "limits": (place / "limits").read_text(),
        "open": {fd.name: str(fd.readlink()).split("[")[0] for fd in (place / "fd").iterdir()},
    }


def facts_in_the_middle(home: Path, way: str) -> dict[str, object]:
    """Return the facts about a command that waits in the middle of its output."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    env = {**os.environ, "ADW_AGENT_PROGRAMS": "claude=" + "x" * size}
    command = [warm.ADW, "--home", str(home), "config"]
    process = warm.Popen(command, stdout=writer, cwd=home, env=env, preexec_fn=warm.default_interrupts)
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        assert output.read(1)
        facts = facts_about(process.pid)
        assert is_forked(process.pid) == (way == "forked")
        output.read()
    assert process.wait(timeout=cli_lab.PATIENCE) == 0

    return facts


def test_a_command_is_the_same_process_both_ways(home, go_this_way):
    """
    Signals, umask, threads, directory, session, group, limits, and no file is open but the streams.
    """
    seen = {}
    for way in WAYS:
        go_this_way(way)
        seen[way] = facts_in_the_middle(home, way)

    assert seen["forked"] == seen["started"]
    assert set(seen["forked"]["open"]) == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["config", "--json"], 0),
        (["status", "ffffffff"], 1),
        (["run", "7", "--workflow", "no-such-workflow"], 2),
    ],
)
def test_a_command_says_the_same_both_ways(home, go_this_way, args, code):
    said = {}
    for way in WAYS:
        go_this_way(way)
        done = warm.run(
            [warm.ADW, *args], cwd=home, env={**os.environ, "ADW_HOME": str(home)}, text=True, capture_output=True
        )
        said[way] = (done.returncode, done.stdout, done.stderr)

    assert said["forked"] == said["started"]
    assert said["forked"][0] == code


@pytest.mark.usefixtures("forked")
def test_environment_directory_and_umask_reach_what_a_command_starts(home):
    (home / "adw.toml").write_text(
        '[[workflows.tell.phases]]\nname = "build"\nshell = "echo $USER ${HOME-homeless}; pwd; umask"\n'
    )
    before = os.umask(0o027)
    try:
        env = {name: value for name, value in os.environ.items() if name != "HOME"}
        env |= {"ADW_HOME": str(home), "USER": "a value\udcff"}
        done = warm.run(
            [warm.ADW, "run", "7", "--in-place", "--workflow", "tell"], cwd=home, env=env, capture_output=True
        )
    finally:
        os.umask(before)

    assert done.returncode == 0, done.stderr
    said = warm.run([warm.ADW, "--home", str(home), "logs", cli_lab.newest(home)], capture_output=True)
    assert [
        "a value\N{REPLACEMENT CHARACTER} homeless".encode(),
        str(home).encode(),
        b"0027",
    ] == said.stdout.splitlines()[-3:]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("is_file", [True, False], ids=["file", "text"])
def test_a_helper_sees_its_arguments_its_place_and_itself(tmp_path, is_file):
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    program = """
import json, os, sys
import __main__
sys.path.insert(0, os.getcwd()) if sys.path[0] == "" else None
import beside
from tests import delivery_cases
print(json.dumps([sys.argv, __name__, __main__.__dict__ is globals(), sys.stdin.read(), beside.NAME]))
sys.exit(7)
"""
    (tmp_path / "helper.py").write_text(program)
    script = [str(tmp_path / "helper.py")] if is_file else ["-c", program]

    done = warm.run(
        [sys.executable, *script, "a", "b"],
        input="said",
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": warm.ROOT},
    )

    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == [[script[0], "a", "b"], "__main__", True, "said", "beside"]


@pytest.mark.usefixtures("forked")
def test_a_helper_that_breaks_tells_how():
    done = warm.run([sys.executable, "-c", "raise RuntimeError('broken')"], text=True, capture_output=True)

    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: broken\n")


@pytest.mark.usefixtures("forked")
def test_output_on_a_full_disk_is_an_error(home):
    with Path("/dev/full").open("wb") as full:
        done = warm.run([warm.ADW, "--home", str(home), "list"], stdout=full, stderr=subprocess.PIPE, text=True)

    assert (done.returncode, done.stderr) == (
        1,
        "adw: could not write the output: No space left on device\n",
    )


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
@pytest.mark.usefixtures("forked")
def test_a_signal_ends_a_command_with_the_code_of_one_that_was_started(home, sent, code):
    with Beside(home, "run", "7", "--workflow", "long") as running:
        cli_lab.has_begun(home)
        assert running.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(timeout=0)
        running.process.send_signal(sent)

        assert running.end() == code
        assert running.process.poll() == code


@pytest.mark.usefixtures("forked")
def test_commands_of_several_threads_keep_apart(home):
    answers: dict[str, str] = {}

    def ask(name: str) -> None:
        answers[name] = warm.run([warm.ADW, "--home", str(home), "status", name], text=True, capture_output=True).stderr

    threads = [threading.Thread(target=ask, args=(f"0000000{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == len(threads)
    assert all(name in answer for name, answer in answers.items())


@pytest.mark.parametrize("name", ["TZ", "PYTHONUTF8", "LC_ALL"])
def test_a_command_whose_environment_changes_the_interpreter_is_started(home, go_this_way, name):
    go_this_way("forked")

    assert warm.is_warm(os.environ)
    assert not warm.is_warm({**os.environ, name: "0"})


def test_commands_are_started_where_coverage_is_measured(go_this_way, monkeypatch):
    go_this_way("forked")
    monkeypatch.setenv("COVERAGE_PROCESS_CONFIG", "x")

    assert not warm.is_warm(os.environ)


def test_a_missing_directory_is_refused_as_ever(go_this_way, tmp_path):
    go_this_way("forked")

    with pytest.raises(FileNotFoundError):
        warm.run([warm.ADW, "list"], cwd=tmp_path / "missing")


# --- commands that a shell starts --------------------------------------------------------------------------------


def typed(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run *script* in a shell that finds `adw` where the tests of pages find it."""
    env = {**os.environ, "ADW_HOME": str(home), "PATH": f"{warm.bin_dir()}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", script], cwd=home, env=env, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("forked")
def test_a_command_of_a_shell_has_its_streams_its_variables_and_its_exit_code(home):
    done = typed(home, "echo $(adw --version); ADW_STATE_STORE=nowhere adw list; echo $?; adw status ffffffff | cat")

    version, code = done.stdout.splitlines()
    assert version.startswith("adw ")
    assert code == "2"
    assert "nowhere" in done.stderr
    assert "ffffffff" in done.stderr
    assert "adw-warm-" in warm.bin_dir()


@pytest.mark.usefixtures("forked")
def test_a_signal_to_a_command_of_a_shell_ends_it(home):
    serve = "mkfifo said; adw serve --port 0 --workers 0 > said & exec 3< said; read -r line <&3"

    done = typed(home, f"{serve}; kill $!; wait $!")

    assert done.returncode in {0, 143}, done.stderr
