"""A hijacked agent in a box: every attack, under each backend, in a whole workflow with a real repository."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adws.adw_modules.sandbox import bubblewrap, landlock
from adws.adw_modules.workflow.model import Gate, PhaseSpec
from tests.integration.work_lab import CLEAN, QUICK, SHIP, git, make_work_lab, step

PROGRAM = Path(__file__).parents[1] / "hijacker.py"
PLAN = step("plan", "echo steps > plan.md", "planning")
BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=1)
BACKENDS = ("landlock", "bubblewrap")


def why_missing(backend: str) -> str:
    if backend == "bubblewrap":
        return "" if bubblewrap.program() else "bubblewrap is not installed"
    return "" if landlock.abi() >= 6 else "this kernel has no Landlock, or an older one"


class Boxed:
    """A home whose agent was taken over, and works in a box."""

    def __init__(self, place: Path, monkeypatch, backend: str) -> None:
        self.person, self.bin = place / "person", place / "bin"
        for folder in (self.person / ".ssh", self.person / ".claude", self.bin, place / "elsewhere"):
            folder.mkdir(parents=True)
        (self.person / ".ssh" / "id_ed25519").write_text("KEY\n")
        (self.person / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.com\n")
        monkeypatch.setenv("HOME", str(self.person))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-not-a-real-key-0123456789abcdef")
        self.program = self.bin / "claude"
        self.place, self.loot = place, self.person / ".claude"
        self.lab = make_work_lab(
            place,
            ADW_AGENT_PROGRAMS=f"claude={self.program}",
            ADW_ADVISOR_USE="off",
            ADW_SANDBOX_MODE=backend,
            ADW_SANDBOX_REQUIRED="true",
            ADW_SANDBOX_READ=str(PROGRAM),
        )
        self.adw_id = ""

    def run(self, groups: str, *phases: PhaseSpec, **env: str) -> None:
        told = "".join(f"export {name}={value}\n" for name, value in env.items())
        self.program.write_text(f'#!/bin/sh\n{told}exec {sys.executable} -I {PROGRAM} {self.loot} {groups} "$@"\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.adw_id = self.lab.start(*(phases or (PLAN, BUILD)))
        self.lab.work()

    @property
    def tricks(self) -> dict[str, str]:
        lines = (self.loot / "tricks.jsonl").read_text().splitlines()
        return {one["trick"]: one["came"] for one in map(json.loads, lines)}

    @property
    def events(self):
        with self.lab.open() as app:
            return app.events.of_workflow(self.adw_id)


@pytest.fixture(params=BACKENDS)
def boxed(request, tmp_path, monkeypatch):
    if reason := why_missing(request.param):
        pytest.skip(reason)
    return Boxed(tmp_path, monkeypatch, request.param)


def test_an_honest_agent_works_commits_and_ships_in_its_box(boxed):
    boxed.run("harmless", PLAN, BUILD, SHIP, CLEAN)

    document = boxed.lab.document(boxed.adw_id)
    build = next(record for record in document.phases if record.name == "build")
    assert document.current_state == "completed", build.attempts[-1].error
    assert boxed.tricks["commit_the_work"].startswith("done"), boxed.tricks
    assert git(boxed.lab.remote, "log", "--format=%s", "--all").count("Add a library") == 1


#: Attack -> what it comes to: blocked by the box, detected by adw, or residual (documented, not prevented).
BLOCKED, DETECTED, RESIDUAL = "blocked", "detected", "residual"
ATTACKS: dict[str, dict[str, str]] = {
    "read_an_ssh_key": {},
    "read_cloud_credentials": {},
    "read_state_of_another_workflow": {},
    "read_another_worktree": {},
    "read_the_adw_database": {},
    "read_the_environment_of_another_process": {"landlock as root": RESIDUAL},
    "write_beside_the_worktree": {},
    "change_the_git_configuration": {},
    "plant_a_git_hook": {},
    "change_shared_attributes": {},
    "signal_another_process": {},
    "connect_to_another_service": {},
    "ask_the_proxy_for_another_host": {},
    "ask_the_proxy_for_the_metadata_address": {},
    "reach_a_unix_socket": {"landlock": RESIDUAL},
    "send_a_datagram": {},
    "trace_another_process": {},
    "leave_a_hidden_process": {"landlock": RESIDUAL},
}


def expected(attack: str, backend: str) -> str:
    who = f"{backend} as root" if os.geteuid() == 0 else backend
    return ATTACKS[attack].get(who, ATTACKS[attack].get(backend, BLOCKED))


def test_every_attack_comes_to_what_the_documentation_says(boxed, request):
    backend, home = request.node.callspec.params["boxed"], boxed.lab.home
    (boxed.person / ".aws").mkdir()
    (boxed.person / ".aws" / "credentials").write_text("SECRET\n")
    other_state, other_tree = home / "state" / "0ther" / "adw_state.json", home / "trees" / "0ther" / "app.py"
    for path in (other_state, other_tree):
        path.parent.mkdir(parents=True)
        path.write_text("SECRET\n")
    victim = subprocess.Popen(["/bin/sleep", "600"], env={"PLANTED": "SECRET"}, start_new_session=True)
    nap = f"{600 + os.getpid() % 100}.{victim.pid}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        tempfile.TemporaryDirectory(prefix="adw-") as short,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(f"{short}/s")
        unix.listen()
        targets = {
            "person": str(boxed.person),
            "home": str(home),
            "other_state": str(other_state),
            "other_tree": str(other_tree),
            "victim": victim.pid,
            "port": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "socket": f"{short}/s",
            "nap": nap,
        }
        try:
            boxed.run("box,harmless", TARGETS=f"'{json.dumps(targets)}'")
        finally:
            victim.kill()
            victim.wait()
        udp.setblocking(False)
        arrived = True
        try:
            udp.recv(16)
        except BlockingIOError:
            arrived = False
    tricks = boxed.tricks
    came = {name: BLOCKED if tricks[name].startswith("refused") else RESIDUAL for name in ATTACKS}
    came["send_a_datagram"] = RESIDUAL if arrived else BLOCKED
    came["write_beside_the_worktree"] = RESIDUAL if (home / "planted.txt").exists() else BLOCKED
    sleeping = [p for p in Path("/proc").glob("[0-9]*/cmdline") if nap.encode() in _bytes(p)]
    came["leave_a_hidden_process"] = RESIDUAL if sleeping else BLOCKED
    for path in sleeping:
        os.kill(int(path.parent.name), signal.SIGKILL)

    assert came == {name: expected(name, backend) for name in ATTACKS}, tricks
    document = boxed.lab.document(boxed.adw_id)
    assert document.current_state == "completed", "the work itself was done"
    denied = {event.data["host"]: event.data["count"] for event in boxed.events if event.event_type == "egress_denied"}
    assert denied == {"attacker.example:80": 1, "169.254.169.254:80": 1}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_an_agent_that_may_only_read_has_a_read_only_worktree(boxed):
    review = PhaseSpec(
        name="review", state="reviewing", runner="agent", prompt="review", options={"permissions": "read"},
        max_attempts=1, retry=QUICK,
    )  # fmt: skip
    boxed.run("do_the_work,report", PLAN, step("build", "echo x >> app.py", "building"), review)

    assert boxed.tricks["do_the_work"].startswith("refused"), boxed.tricks
    document = boxed.lab.document(boxed.adw_id)
    assert document.current_state == "completed", document.phases[-1].attempts[-1].error


def test_commands_and_gates_are_boxed_and_may_be_let_out(boxed):
    key = boxed.person / ".ssh" / "id_ed25519"
    phase = step(
        "build", f'cat {key} && exit 3; echo x >> app.py; echo \'{{"summary": "boxed"}}\' > "$ADW_RESULT_FILE"',
        "building", gates=(
            Gate(kind="command", shell=f"! cat {key}"),
            Gate(kind="command", shell=f"cat {key}", sandbox="off"),
        ),
    )  # fmt: skip
    boxed.adw_id = boxed.lab.start(PLAN, phase)
    boxed.lab.work()

    document = boxed.lab.document(boxed.adw_id)
    build = next(record for record in document.phases if record.name == "build")
    assert document.current_state == "completed", build.attempts[-1].error
    assert build.result == {"summary": "boxed"}


def test_memory_is_limited_and_named(boxed):
    boxed.lab.env["ADW_SANDBOX_MEMORY"] = "256 MiB"
    code = "x = bytearray(2 ** 30); import signal; signal.pause()"
    boxed.adw_id = boxed.lab.start(step("plan", f"{sys.executable} -c '{code}'", "planning", max_attempts=1))
    boxed.lab.work()

    [attempt] = boxed.lab.document(boxed.adw_id).phases[0].attempts
    assert "killed: memory limit 0.25 GiB" in attempt.error["message"]


def table() -> str:
    """Return the table of docs/sandbox.md."""
    columns = ("landlock as root", "bubblewrap as root")
    lines = ["| Attack | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name, known in ATTACKS.items():
        came = [known.get(column) or known.get(column.partition(" ")[0]) or BLOCKED for column in columns]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(came)} |")
    return "\n".join(lines)


def test_the_documentation_has_the_table_of_attacks():
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()

    assert page.partition("<!-- attacks -->\n")[2].partition("\n<!-- /attacks -->")[0] == f"\n{table()}\n"
