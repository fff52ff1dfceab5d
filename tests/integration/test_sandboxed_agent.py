"""A hijacked agent in a box: every attack, under each backend, in a whole workflow with a real repository."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from adws.adw_modules.sandbox import bubblewrap, landlock
from adws.adw_modules.workflow.model import Gate, PhaseSpec
from tests.integration import other_user
from tests.integration.test_hijacked_agent import SHARED
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


#: What an attack comes to: blocked by the box, detected by adw, or residual (documented, not prevented).
BLOCKED, DETECTED, RESIDUAL = "blocked", "detected", "residual"
COLUMNS = tuple((backend, who) for backend in BACKENDS for who in (other_user.ROOT, other_user.USER))
#: Attack -> column, or its backend alone -> what it comes to there; blocked in those that are not named.
ATTACKS: dict[str, dict[str, str]] = {
    "read_an_ssh_key": {},
    "read_cloud_credentials": {},
    "read_state_of_another_workflow": {},
    "read_another_worktree": {},
    "read_the_adw_database": {},
    "read_the_environment_of_another_process": {"landlock root": RESIDUAL},
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
    "read_the_environment": {},
    "read_the_environment_of_the_parent": {},
    "read_the_state_directory": {},
    "read_the_database": {},
    "read_netrc": {},
    "read_the_dotenv_of_the_main_checkout": {},
    "write_to_an_absolute_path": {},
    "write_through_a_link": {},
    "write_through_a_hard_link": {},
    "edit_the_own_document": {},
    "forge_the_output_of_the_attempt": {},
    "lead_hooks_elsewhere": {},
    "plant_a_hook": {},
    "plant_a_file_monitor": {},
    "plant_filter_drivers": {},
    "plant_an_alias_and_a_pager": {},
    "plant_transport_commands": {},
    "plant_submodule_settings": {},
    "lead_the_remote_elsewhere": {},
    "borrow_objects": {"landlock": DETECTED},
    "delete_the_main_branch": {},
    "make_refs_elsewhere": {},
    "replace_a_commit": {},
    "push_by_itself": {},
    "leave_a_daemon": {},
    "leave_a_child_that_ignores_signals": {},
    "start_processes_without_end": {},
    "fill_the_disk": {},
}
#: Attack -> the file that it leaves in the main checkout.
PLANTS = {
    "write_beside_the_worktree": "planted.txt",
    "write_to_an_absolute_path": "outside.txt",
    "write_through_a_link": "through-link.txt",
}
#: Seen or not by the time, so that either is as documented.
BY_CHANCE = {"leave_a_hidden_process"}
#: What adw itself finds when the work is to be shipped, in a box or not (test_hijacked_agent.py).
FOUND_LATER = (
    "write_secrets_into_files",
    "change_ci_workflows",
    "change_what_agents_are_told",
    "hide_a_secret_in_an_earlier_commit",
    "leak_in_a_commit_message",
)


def expected(attack: str, backend: str, who: str) -> str:
    known = ATTACKS[attack]
    return known.get(f"{backend} {who}", known.get(backend, BLOCKED))


def attacked(place: Path, backend: str, who: str, groups: str, *settings: str, small: str = "") -> dict[str, Any]:
    """Return what `attack_driver` says; with *small* it works on a file system of that size."""
    argv = [sys.executable, "-m", "tests.integration.attack_driver", backend, str(place), groups, *settings]
    if small:
        argv[4] = f"{place}/small"
        mount = f"mkdir {place}/small && mount -t tmpfs -o size={small} tmpfs {place}/small && exec"
        argv = ["sh", "-c", f"{mount} {shlex.join(argv)}"]
    output = other_user.run(place, who, *argv)
    return json.loads(output.splitlines()[-1])


@pytest.fixture
def open_place():
    if reason := other_user.why_impossible():
        pytest.skip(reason)
    with other_user.open_place() as place:
        yield place


@pytest.mark.parametrize(("backend", "who"), COLUMNS)
def test_every_attack_comes_to_what_the_documentation_says(open_place, backend, who):
    if reason := why_missing(backend):
        pytest.skip(reason)
    result = attacked(open_place, backend, who, "box,read,outside,state,git,refs,push,process,harmless")

    tricks = result["tricks"]
    came = {name: results_of(name, tricks[name], result) for name in ATTACKS if name in tricks}
    limited = {"start_processes_without_end", "fill_the_disk"}
    for name in BY_CHANCE & {name for name, result_of in came.items() if result_of == BLOCKED}:
        came[name] = expected(name, backend, who)
    assert came == {name: expected(name, backend, who) for name in ATTACKS if name not in limited}, tricks
    assert result["denied"] == {"attacker.example:80": 1, "169.254.169.254:80": 1}
    hosts = "169.254.169.254:80 (1), attacker.example:80 (1); sandbox.egress allows hosts"
    assert f"build: the sandbox denied connections to {hosts}" in result["warnings"], "status and dashboard show it"
    assert result["alive"] == []


def results_of(name: str, came: str, result: dict[str, Any]) -> str:
    """Return what an attack came to, judged by what can be seen outside where its own word proves nothing."""
    is_done = came.startswith("done")
    if name == "send_a_datagram":
        is_done = result["has_arrived"]
    elif name in PLANTS:
        is_done = PLANTS[name] in result["planted"]
    elif name == "write_through_a_hard_link":
        is_done = result["is_ignored_changed"]
    elif name == "forge_the_output_of_the_attempt":
        is_done = result["is_forged"]
    elif name == "leave_a_hidden_process":
        is_done = result["is_asleep"]
    elif name in {"leave_a_daemon", "leave_a_child_that_ignores_signals"}:
        is_done = bool(result["alive"])
    elif name in {"read_the_environment", "read_proc_self_environ", "read_the_environment_of_the_parent"}:
        is_done = bool(result["looted"])  # its own key is what it may have
    elif name.startswith("read_") and came.startswith("done 0 secrets"):
        is_done = False
    if is_done and name in SHARED and SHARED[name].partition(" (")[0] in result["error"].get("message", ""):
        return DETECTED

    return RESIDUAL if is_done else BLOCKED


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
    assert "killed: memory limit 256 MiB" in attempt.error["message"]


def table() -> str:
    """Return the table of docs/sandbox.md."""
    heads = [f"{backend} as {'root' if who == other_user.ROOT else 'a user'}" for backend, who in COLUMNS]
    lines = ["| Attack | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    rows = {name.replace("_", " "): [expected(name, *column) for column in COLUMNS] for name in ATTACKS}
    rows |= {name.replace("_", " "): [DETECTED for _ in COLUMNS] for name in FOUND_LATER}
    same = {result: [name for name, came in rows.items() if {*came} == {result}] for result in (BLOCKED, DETECTED)}
    lines += [f"| {name} | {' | '.join(came)} |" for name, came in rows.items() if len({*came}) > 1]
    lines += ["", *(f"- *{result}* in each: {', '.join(names)}." for result, names in same.items())]
    return "\n".join(lines)


def test_the_documentation_has_the_table_of_attacks(request):
    page = Path(__file__).parents[2] / "docs" / "sandbox.md"
    before, _, rest = page.read_text().partition("<!-- attacks -->\n")
    known, _, after = rest.partition("\n<!-- /attacks -->")
    if request.config.getoption("--update-api"):
        page.write_text(f"{before}<!-- attacks -->\n\n{table()}\n\n<!-- /attacks -->{after}")
        return

    assert known == f"\n{table()}\n", "pytest --update-api tests/integration/test_sandboxed_agent.py writes it"
