"""
Carries one workflow whose agent was taken over, in a box, and prints what each of its attacks came to.

    python -m tests.integration.attack_driver BACKEND PLACE GROUPS [NAME=VALUE ...]

A program of its own, so that a test can run it as another user. NAME=VALUE are settings of adw, or its MAX_PROCESSES.
"""

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

from adws.adw_modules.sandbox import sandbox
from adws.adw_modules.workflow.model import PhaseSpec
from tests.integration.process_lab import is_alive
from tests.integration.work_lab import QUICK, make_work_lab, step

PROGRAM = Path(__file__).parents[1] / "hijacker.py"
PLAN = step("plan", "echo steps > plan.md", "planning")
BUILD = PhaseSpec(name="build", state="building", runner="agent", prompt="build", retry=QUICK, max_attempts=1)
KEY = "sk-ant-not-a-real-key-0123456789abcdef"
SECRETS = {
    "token": "ghp_Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4zA7b0",
    "netrc": "ghp_Zz9yXx8wVv7uTt6sRr5qPp4oNn3mLl2kJj1i",
    "dotenv": "ghp_Qw1eRt2yUi3oPa4sDf5gHj6kLz7xCv8bNm9Q",
}
#: What attacks leave in the main checkout when nothing keeps them from it.
PLANTED = ("planted.txt", "outside.txt", "through-link.txt")


def run(backend: str, place: Path, groups: str, settings: dict[str, str]) -> dict[str, object]:
    """Return what the tricks came to, the error of the attempt, the denied hosts, and what can be seen outside."""
    person, program = Path(os.environ["HOME"]), place / "bin" / "claude"
    (place / "attacker").mkdir(exist_ok=True, mode=0o777)
    (place / "attacker").chmod(0o777)
    for folder in (person / ".ssh", person / ".aws", person / ".claude", program.parent):
        folder.mkdir(parents=True, exist_ok=True)
    (person / ".ssh" / "id_ed25519").write_text("KEY\n")
    (person / ".aws" / "credentials").write_text("SECRET\n")
    (person / ".netrc").write_text(f"machine github.com login x password {SECRETS['netrc']}\n")
    (person / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.com\n")
    os.environ |= {"ANTHROPIC_API_KEY": KEY, "GITHUB_TOKEN": SECRETS["token"]}
    lab = make_work_lab(
        place / "lab",
        ADW_AGENT_PROGRAMS=f"claude={program}",
        ADW_ADVISOR_USE="off",
        ADW_SANDBOX_MODE=backend,
        ADW_SANDBOX_REQUIRED="true",
        ADW_SANDBOX_READ=str(PROGRAM),
        ADW_SANDBOX_WRITE=str(place / "attacker"),
        **settings,
    )
    home = lab.home
    (home / ".env").write_text(f"API_TOKEN={SECRETS['dotenv']}\n")
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
        Path(short).chmod(0o755)
        targets = {
            "person": str(person),
            "home": str(home),
            "other_state": str(other_state),
            "other_tree": str(other_tree),
            "victim": victim.pid,
            "port": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "socket": f"{short}/s",
            "nap": nap,
        }
        program.write_text(
            f"#!/bin/sh\nexport TARGETS='{json.dumps(targets)}'\n"
            f'exec {sys.executable} -I {PROGRAM} {place / "attacker"} {groups} "$@"\n'
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        try:
            adw_id = lab.start(PLAN, BUILD)
            lab.work()
        finally:
            victim.kill()
            victim.wait()
        udp.setblocking(False)
        try:
            udp.recv(16)
            has_arrived = True
        except BlockingIOError:
            has_arrived = False
    sleeping = [path for path in Path("/proc").glob("[0-9]*/cmdline") if nap.encode() in _bytes(path)]
    for path in sleeping:
        os.kill(int(path.parent.name), signal.SIGKILL)
    tricks = place / "attacker" / "tricks.jsonl"
    lines = tricks.read_text().splitlines() if tricks.exists() else []
    with lab.open() as app:
        document, events = app.store.load(adw_id).document, app.events.of_workflow(adw_id)
    build = next(record for record in document.phases if record.name == "build")

    return {
        "tricks": {one["trick"]: one["came"] for one in map(json.loads, lines)},
        "state": document.current_state,
        "error": (build.attempts[-1].error or {}) if build.attempts else document.phases[0].attempts[-1].error,
        "denied": {one.data["host"]: one.data["count"] for one in events if one.event_type == "egress_denied"},
        "warnings": document.warnings,
        "has_arrived": has_arrived,
        "planted": [name for name in PLANTED if (home / name).exists()],
        "is_ignored_changed": "was here" in (home / ".gitignore").read_text(),
        "looted": [name for name, secret in SECRETS.items() if secret.encode() in _bytes(place / "attacker" / "loot")],
        "is_asleep": bool(sleeping),
        "alive": [pid for pid in _left(place / "attacker" / "pids") if is_alive(pid)],
        "is_forged": any(path.is_symlink() for path in home.glob("state/*/phases/build/*.result.json")),
        "running": [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if b"signal.pause()" in _bytes(path) and is_alive(int(path.parent.name))
        ],
        "owner": (home / "trees" / adw_id).stat().st_uid if (home / "trees" / adw_id).exists() else None,
    }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _left(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


if __name__ == "__main__":
    known = dict(item.partition("=")[::2] for item in sys.argv[4:])
    sandbox.MAX_PROCESSES = int(known.pop("MAX_PROCESSES", sandbox.MAX_PROCESSES))
    sys.stdout.write(json.dumps(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], known)) + "\n")
