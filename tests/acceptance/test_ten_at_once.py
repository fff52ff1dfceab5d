"""Ten workflows started at once in one repository by ten commands, and rolled back at once by ten others."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests import templates, warm
from tests.acceptance.cli_lab import ADW, PATIENCE, Beside, document
from tests.integration.tidy_lab import git

TEN = 10
#: A command that says which ports it has and that it has begun, and goes on when the test lets go of the gate.
WORKING = """
import fcntl, os, sys
from pathlib import Path
place = Path(sys.argv[1])
Path("made.txt").write_text(os.environ["ADW_ID"])
told = " ".join(os.environ[name] for name in ("ADW_ID", "ADW_BACKEND_PORT", "ADW_FRONTEND_PORT"))
with (place / "up").open("w") as up:
    up.write(told + chr(10))
with (place / "gate").open() as gate:
    fcntl.flock(gate, fcntl.LOCK_SH)
"""
TOML = """
[forge]
kind = "local"
[quota]
min_free_disk = "1 MiB"
min_free_memory = "1 MiB"
[[workflows.waits.phases]]
name = "build"
command = {command}
[[workflows.waits.phases]]
name = "ship"
runner = "ship"
on_rework = "build"
"""


@pytest.fixture
def place(tmp_path) -> Path:
    """A home with a bare remote and ten issues, and beside it the gate and the pipe of the commands."""
    place = tmp_path.resolve()
    home = place / "home"
    home.mkdir()
    templates.prepare_home(home)
    (place / "working.py").write_text(WORKING)
    (place / "gate").touch()
    os.mkfifo(place / "up")
    git(home, "init", "-q", "-b", "main")
    command = json.dumps([sys.executable, str(place / "working.py"), str(place)])
    (home / "adw.toml").write_text(TOML.format(command=command))
    (home / ".gitignore").write_text("state/\ntrees/\n")
    git(home, "add", ".")
    git(home, "commit", "-q", "-m", "Begin")
    issues = home / "state" / "local.forge" / "issues"
    issues.mkdir(parents=True)
    for number in range(1, TEN + 1):
        (issues / f"{number}.json").write_text(json.dumps({"title": f"Make thing {number}"}))
    git(home, "init", "-q", "--bare", "-b", "main", str(home / "state" / "local.forge" / "remote.git"))
    git(home, "remote", "add", "origin", str(home / "state" / "local.forge" / "remote.git"))
    git(home, "push", "-q", "origin", "main")

    return place


def told_by_ten(place: Path) -> dict[str, tuple[int, int]]:
    """Return the ports of each workflow, as its process has them, when all ten have begun."""
    # Opened for both, so that it neither blocks here nor ends when a phase closes its side.
    fd = os.open(place / "up", os.O_RDWR | os.O_NONBLOCK)
    try:
        heard = b""
        while heard.count(b"\n") < TEN:
            assert select.select([fd], [], [], PATIENCE * 2)[0], f"only these have begun: {heard!r}"
            heard += os.read(fd, 4096)
    finally:
        os.close(fd)
    rows = [line.split() for line in heard.decode().splitlines()]

    return {adw_id: (int(backend), int(frontend)) for adw_id, backend, frontend in rows}


def adw(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return warm.run([ADW, "--home", str(home), *args], cwd=home, capture_output=True, text=True, check=False)


def heads(path: Path) -> set[str]:
    return set(git(path, "for-each-ref", "--format=%(refname:short)", "refs/heads").split())


def our_processes(home: Path) -> list[str]:
    """Return the processes that carry our variables, found without adw."""
    result = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"ADW_RESULT_FILE={home}".encode() in path.read_bytes():
                result.append(path.parent.name)
        except OSError:
            continue  # it has ended, or is not ours to look at
    return result


def all_end(commands: list[Beside]) -> list[tuple[int, str]]:
    """Return how each ended and what it said; ten at once take a while on a small machine."""
    said = ["".join(command.process.communicate(timeout=PATIENCE * 4)) for command in commands]

    return [(command.process.returncode, text) for command, text in zip(commands, said, strict=True)]


def test_ten_workflows_at_once_keep_apart_and_leave_nothing(place):
    """
    Five are rolled back while they work, and five when their pull requests are there.
    """
    home = place / "home"
    with (place / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        runs = [Beside(home, "run", str(number), "--workflow", "waits") for number in range(1, TEN + 1)]
        try:
            ports = told_by_ten(place)

            assert len(ports) == TEN
            assert len({port for pair in ports.values() for port in pair}) == 2 * TEN
            held = json.loads(adw(home, "admin", "ports", "--json").stdout)
            assert {row["port"] for row in held["ports"]} == {port for pair in ports.values() for port in pair}
            trees = git(home, "worktree", "list", "--porcelain").split("\n\n")
            assert {Path(tree.split()[1]).name for tree in trees[1:]} == set(ports)
            assert len(heads(home)) == TEN + 1
            assert len(our_processes(home)) == TEN
            assert adw(home, "admin", "verify").stdout == "all 11 invariants hold\n"

            by_issue = {document(home, adw_id)["issue_number"]: adw_id for adw_id in ports}
            at_work = [by_issue[number] for number in range(1, TEN // 2 + 1)]
            stopped = all_end([Beside(home, "rollback", adw_id, "--reason", "not now") for adw_id in at_work])
            assert [code for code, _ in stopped] == [0] * (TEN // 2), stopped
            fcntl.flock(gate, fcntl.LOCK_UN)
            ended = all_end(runs)
        finally:
            for run in runs:
                run.__exit__()

    shipped = [by_issue[number] for number in range(TEN // 2 + 1, TEN + 1)]
    assert [code for code, _ in ended[TEN // 2 :]] == [0] * (TEN // 2), ended
    assert [document(home, adw_id)["current_state"] for adw_id in shipped] == ["completed"] * (TEN // 2)
    assert len(heads(home / "state" / "local.forge" / "remote.git")) == TEN // 2 + 1
    assert_no_attempt_failed(home, shipped)

    undone = all_end([Beside(home, "rollback", adw_id) for adw_id in shipped])

    assert [code for code, _ in undone] == [0] * (TEN // 2), undone
    said = "".join(text for _, text in (*ended, *stopped, *undone))
    assert not [word for word in (".lock'", "cannot lock ref", "could not lock") if word in said]
    assert {document(home, adw_id)["current_state"] for adw_id in ports} == {"rolled_back"}
    assert_nothing_is_left(home)


def assert_no_attempt_failed(home: Path, adw_ids: list[str]) -> None:
    """One attempt for each phase: nobody was in the way of anybody, not even for a moment."""
    records = [record for adw_id in adw_ids for record in document(home, adw_id)["phases"]]
    assert {(len(record["attempts"]), record["status"]) for record in records} == {(1, "complete")}


def assert_nothing_is_left(home: Path) -> None:
    assert adw(home, "admin", "verify").stdout == "all 11 invariants hold\n"
    assert adw(home, "admin", "gc").stdout == "there is nothing left over\n"
    assert git(home, "worktree", "list").count("\n") == 0
    assert heads(home) == heads(home / "state" / "local.forge" / "remote.git") == {"main"}
    assert list((home / "trees").iterdir()) == []
    assert json.loads(adw(home, "admin", "ports", "--json").stdout)["ports"] == []
    assert our_processes(home) == []
    pulls = [json.loads(path.read_text()) for path in (home / "state" / "local.forge" / "pulls").glob("*.json")]
    assert [pull["state"] for pull in pulls] == ["closed"] * (TEN // 2)
