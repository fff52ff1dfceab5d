"""Work in a box: limits, users, programs of one's own, set-up commands, package registries, git, and what is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adws.adw_modules.sandbox import probe, sandbox
from adws.adw_modules.worker.worker import WorkerOptions
from adws.adw_modules.workflow.model import Gate, LoopSpec, PhaseSpec, StepSpec
from tests.agents.test_real_agents import WORKER
from tests.integration import other_user
from tests.integration.process_lab import is_alive
from tests.integration.test_sandboxed_agent import BACKENDS, attacked, why_missing
from tests.integration.work_lab import PLAN, QUICK, make_work_lab, step


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    if reason := why_missing(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def lab(backend, tmp_path):
    return make_work_lab(tmp_path, ADW_SANDBOX_MODE=backend, ADW_SANDBOX_REQUIRED="true", ADW_ADVISOR_USE="off")


def error_of(lab, adw_id: str) -> str:
    record = next(one for one in lab.document(adw_id).phases if one.attempts and one.attempts[-1].error)
    return record.attempts[-1].error["message"]


def ran(lab, *phases: PhaseSpec) -> str:
    adw_id = lab.start(*phases)
    lab.work()
    return adw_id


# --- limits ------------------------------------------------------------------------------------------------------

#: At most 2 ** 8 processes, each of which ends by itself: what is limited is what the box lets live at once.
_BOMB = "import os, signal; [os.fork() for _ in range(8)]; signal.alarm(20); signal.pause()"
_SPIN = "while True: pass"
_WRITE = "import signal; signal.signal(25, 0); open('big', 'wb').write(bytes(2 ** 22))"


@pytest.mark.parametrize(
    ("limit", "code", "said"),
    [
        ("MAX_PROCESSES=40", _BOMB, "killed: process limit 40"),
        ("ADW_SANDBOX_MEMORY=128 MiB", "x = bytearray(2 ** 29); import signal; signal.pause()", "memory limit"),
        ("MAX_CPU_SECONDS=1", _SPIN, "killed: CPU time limit 1 second"),
        ("MAX_FILE_BYTES=1048576", _WRITE, "file size limit 1 MiB"),
        ("MAX_OPEN_FILES=64", "x = [open('/dev/null') for _ in range(100)]", "Too many open files"),
    ],
    ids=["processes", "memory", "cpu", "file", "open-files"],
)  # fmt: skip
def test_the_limit_that_was_hit_is_named(lab, monkeypatch, limit, code, said):
    name, _, value = limit.partition("=")
    if name.startswith("ADW_"):
        lab.env[name] = value
    else:
        monkeypatch.setattr(sandbox, name, int(value))
    adw_id = ran(lab, step("plan", f'exec {sys.executable} -c "{code}"', "planning", max_attempts=1))

    assert said in error_of(lab, adw_id)


def test_a_fork_bomb_and_a_full_disk_end_the_attempt_alone(backend):
    """On a small file system of their own, in a process namespace that ends with them."""
    if reason := other_user.why_impossible():
        pytest.skip(reason)
    limits = ("MAX_PROCESSES=40", "ADW_QUOTA_MIN_FREE_DISK=400 MiB")
    for trick, said in (
        ("start_processes_without_end", "killed: process limit 40"),
        ("fill_the_disk", "killed: disk limit, less than 40 MiB is free"),
    ):
        with other_user.open_place() as place:
            result = attacked(place, backend, other_user.ROOT, trick, *limits, small="512m")
        assert said in result["error"]["message"], trick
        assert result["running"] == []


# --- what was denied -------------------------------------------------------------------------------------------------

#: Asks the proxy for a host, and goes on whatever it answers.
_ASK = "import os, urllib.request as u\ntry: u.urlopen('http://%s.example/')\nexcept OSError as e: print(e)\n%s"


def asking(host: str, then: str = "") -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", _ASK % (host, then))


def told(lab, adw_id: str) -> tuple[dict[str, int], list[str]]:
    """Return the events about denied hosts, and the warnings of the document."""
    with lab.open() as app:
        events = [one for one in app.events.of_workflow(adw_id) if one.event_type == "egress_denied"]
    return {one.data["host"]: one.data["count"] for one in events}, lab.document(adw_id).warnings


def test_hosts_denied_to_the_calls_of_steps_are_told_once_with_their_sum(lab):
    once = StepSpec(name="once", tool="command", inputs={"command": list(asking("single"))})
    loop = StepSpec(
        name="each", tool="command", inputs={"command": list(asking("looped"))}, loop=LoopSpec(collection=[1, 2, 3])
    )
    fails = StepSpec(name="fails", tool="command", inputs={"command": list(asking("last", "raise SystemExit(3)"))})
    adw_id = ran(lab, PhaseSpec(name="plan", state="planning", runner="steps", steps=(once, loop), retry=QUICK))
    events, warnings = told(lab, adw_id)

    assert lab.document(adw_id).current_state == "completed", error_of(lab, adw_id)
    assert events == {"single.example:80": 1, "looped.example:80": 3}
    hosts = "looped.example:80 (3), single.example:80 (1)"
    assert warnings == [f"plan: the sandbox denied connections to {hosts}; sandbox.egress allows hosts"]

    phase = PhaseSpec(name="plan", state="planning", runner="steps", steps=(fails,), retry=QUICK, max_attempts=1)
    assert told(lab, ran(lab, phase))[0] == {"last.example:80": 1}


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("cat", "/home/ada/.ssh/id"), "or its sandbox ({backend}) does not show it"),
        (("touch", "/usr/planted"), "or its sandbox ({backend}) does not allow this"),
        (("touch", "/planted"), "or its sandbox ({backend}) does not allow this"),
        (
            asking("news", "raise SystemExit('HTTP Error 403: Forbidden')"),
            "The sandbox denied connections to news.example:80 (1): add them to sandbox.egress",
        ),
    ],
    ids=["read", "write", "write-above-the-worktree", "connect"],
)
def test_a_failure_that_the_sandbox_may_have_made_says_so(lab, backend, command, advice):
    phase = PhaseSpec(name="plan", state="planning", runner="command", command=command, retry=QUICK, max_attempts=1)
    adw_id = ran(lab, phase)
    [attempt] = lab.document(adw_id).phases[0].attempts

    assert advice.format(backend=backend) in attempt.error["advice"], attempt.error


# --- another user --------------------------------------------------------------------------------------------------


def test_as_root_agents_run_as_the_user_of_the_settings(backend):
    if reason := other_user.why_impossible():
        pytest.skip(reason)
    with other_user.open_place() as place:
        result = attacked(place, backend, other_user.ROOT, "box,read,harmless", f"ADW_SANDBOX_USER={other_user.NAME}")

    assert result["state"] == "completed", result["error"]
    assert result["tricks"]["commit_the_work"].startswith("done")
    assert result["owner"] == other_user.UID
    assert result["looted"] == []
    assert result["tricks"]["read_the_environment_of_another_process"].startswith("refused")


@pytest.mark.parametrize(("name", "said"), [("nobody-here", "no such user"), ("root", "is root")])
def test_a_user_of_no_use_is_refused(lab, name, said):
    lab.env["ADW_SANDBOX_USER"] = name

    assert said in error_of(lab, ran(lab, PLAN))


# --- a program of one's own ------------------------------------------------------------------------------------------


def test_a_program_of_ones_own_is_put_in_front_of_each_command(tmp_path):
    wrapper, seen = tmp_path / "wrap", tmp_path / "seen"
    wrapper.write_text(f'#!/bin/sh\necho "$1" >> {seen}\nshift\nexec "$@"\n')
    wrapper.chmod(0o755)
    lab = make_work_lab(
        tmp_path, ADW_SANDBOX_MODE="auto", ADW_SANDBOX_COMMAND=f"{wrapper} boxed", ADW_SANDBOX_REQUIRED="true"
    )
    phase = step("plan", "echo steps > plan.md", "planning", gates=(Gate(kind="command", shell="test -e plan.md"),))
    adw_id = ran(lab, phase, step("build", "echo x >> app.py", "building", sandbox="off"))

    assert lab.document(adw_id).current_state == "completed"
    assert seen.read_text().splitlines() == ["boxed", "boxed"], "the phase and its gate; the one that is let out is not"


# --- no box here -----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_backend(monkeypatch):
    """A machine that has neither backend."""
    monkeypatch.setattr("adws.adw_modules.sandbox.bubblewrap.program", lambda: "")
    monkeypatch.setattr("adws.adw_modules.sandbox.landlock.abi", lambda: 0)
    monkeypatch.setattr("adws.adw_modules.sandbox.probe._KNOWN", {})


def test_without_a_backend_work_is_done_and_says_so_once(no_backend, tmp_path):
    lab = make_work_lab(tmp_path, ADW_SANDBOX_MODE="auto")
    said: list[str] = []
    adw_id = lab.start(PLAN, step("build", "echo x >> app.py", "building"))
    with lab.open() as app:
        app.say = lambda _adw_id, line: said.append(line)
        app.worker(WorkerOptions(once=True, recover_seconds=3600.0)).run()

    assert lab.document(adw_id).current_state == "completed"
    assert sum("runs without a sandbox: bubblewrap: bwrap is not installed" in one for one in said) == 1, said


def test_a_system_without_backends_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with make_work_lab(tmp_path, ADW_SANDBOX_MODE="auto").open() as app:
        said = app.sandboxes.check(is_required=False)

    assert "run without a sandbox: there is no backend for this system: set sandbox.command" in said


@pytest.mark.parametrize(
    ("settings", "delivery", "is_refused"),
    [
        ({}, "", False),
        ({"ADW_SANDBOX_REQUIRED": "true"}, "", True),
        ({}, "11111111-2222-3333-4444-555555555555", True),
        ({"ADW_SANDBOX_REQUIRED": "false"}, "11111111-2222-3333-4444-555555555555", False),
        ({"ADW_SANDBOX_MODE": "bubblewrap", "ADW_SANDBOX_REQUIRED": "true"}, "", True),
        ({"ADW_SANDBOX_MODE": "off", "ADW_SANDBOX_REQUIRED": "true"}, "", True),
        ({"ADW_SANDBOX_MODE": "off"}, "11111111-2222-3333-4444-555555555555", False),
    ],
)
def test_where_there_is_no_box_work_is_refused_if_one_is_required(no_backend, tmp_path, settings, delivery, is_refused):
    lab = make_work_lab(tmp_path, **{"ADW_SANDBOX_MODE": "auto", **settings})
    adw_id = lab.start(PLAN, delivery=delivery)
    lab.work()

    assert lab.document(adw_id).current_state == ("failed" if is_refused else "completed")
    if is_refused:
        assert "a sandbox is required, and there is none here" in error_of(lab, adw_id)


@pytest.mark.parametrize(
    ("version", "lost"), [(1, {"tcp", "signal"}), (3, {"tcp", "signal"}), (4, {"signal"}), (6, set())]
)
def test_what_an_older_landlock_cannot_do_is_not_promised(monkeypatch, version, lost):
    if reason := why_missing("landlock"):
        pytest.skip(reason)
    monkeypatch.setattr("adws.adw_modules.sandbox.landlock.abi", lambda: version)
    probed = probe.run("landlock", env=os.environ)

    assert probe.why_unusable("landlock", probed) == ""
    # Sockets of other programs are reached with every version, and root reads the environment of others.
    assert {name for name, is_kept in probed.kept.items() if not is_kept} - {"unix", "environ"} == lost


# --- set-up commands and registries ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_registry_is_known(monkeypatch):
    monkeypatch.setattr("adws.adw_modules.sandbox.registries._KNOWN", {})


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server that has *files*, and the paths that it was asked for through a proxy or not."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = files.get(self.path.rstrip("/"))
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


#: Listens and connects to a port of the workflow, and connects without the proxy to one that is listed.
_USE_PORTS = """
import http.client, os, socket, sys
own = ("127.0.0.1", int(os.environ["ADW_BACKEND_PORT"]))
with socket.create_server(own) as server, socket.create_connection(own):
    server.accept()
listed = http.client.HTTPConnection(sys.argv[1], timeout=20)
listed.request("GET", "/x")
assert listed.getresponse().read() == b"there"
"""


def test_ports_of_the_workflow_and_listed_ones_are_used_directly(lab):
    with served({"/x": b"there"}) as (address, asked):
        command = (sys.executable, "-I", "-c", _USE_PORTS, address)
        phase = PhaseSpec(
            name="plan", state="planning", runner="command", command=command, egress=(address,), max_attempts=1
        )
        adw_id = ran(lab, phase, step("build", "echo x >> app.py", "building"))

    assert lab.document(adw_id).current_state == "completed", error_of(lab, adw_id)
    assert asked == ["/x"]


def wheel(folder: Path) -> bytes:
    """Return a package `greeting` as pip installs it."""
    path = folder / "greeting-1.0-py3-none-any.whl"
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("greeting.py", "WORD = 'hello'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


PIP = f"{sys.executable} -m pip install -q --no-cache-dir --disable-pip-version-check"


def test_a_python_project_installs_from_an_index_through_the_proxy_and_runs_its_tests(lab, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    name = "greeting-1.0-py3-none-any.whl"
    page = f'<a href="/files/{name}">{name}</a>'.encode()
    with served({"/simple/greeting": page, f"/files/{name}": wheel(tmp_path)}) as (address, asked):
        config = Path(os.environ["HOME"]) / ".config" / "pip" / "pip.conf"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f"[global]\nindex-url = http://{address}/simple\n")
        try:
            adw_id = ran(
                lab,
                step(
                    "test",
                    f"PYTHONPATH=libs {sys.executable} -c 'import greeting; assert greeting.WORD == \"hello\"'",
                    "testing",
                    max_attempts=1,
                    setup=(f"NO_PROXY= no_proxy= {PIP} --target libs greeting",),
                    setup_egress=("pypi",),
                ),
            )
        finally:
            config.unlink()

    assert lab.document(adw_id).current_state == "completed", error_of(lab, adw_id)
    assert asked[0] == "/simple/greeting/"


def tarball(folder: Path) -> bytes:
    """Return a package `greeting` as npm installs it."""
    package = folder / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "greeting", "version": "1.0.0", "main": "index.js"}')
    (package / "index.js").write_text("module.exports = 'hello'\n")
    with tarfile.open(folder / "greeting.tgz", "w:gz") as archive:
        archive.add(package, "package")
    return (folder / "greeting.tgz").read_bytes()


def test_a_node_project_installs_from_a_registry_through_the_proxy_and_runs_its_tests(lab, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    files: dict[str, bytes] = {"/greeting/-/greeting.tgz": tarball(tmp_path)}
    with served(files) as (address, asked):
        dist = {"tarball": f"http://{address}/greeting/-/greeting.tgz"}
        version = {"name": "greeting", "version": "1.0.0", "dist": dist}
        page = {"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        files["/greeting"] = json.dumps(page).encode()
        config = Path(os.environ["HOME"]) / ".npmrc"
        config.write_text(f"registry=http://{address}/\n")
        install = "NO_PROXY= no_proxy= npm install --no-audit --no-fund --no-save --fetch-retries=0 greeting"
        test = """node -e 'require("assert").equal(require("greeting"), "hello")'"""
        try:
            phase = step("test", test, "testing", max_attempts=1, setup=(install,), setup_egress=("npm",))
            adw_id = ran(lab, phase)
        finally:
            config.unlink()

    assert lab.document(adw_id).current_state == "completed", error_of(lab, adw_id)
    assert "/greeting" in asked


def test_set_up_commands_run_once_for_the_same_lock_files(lab):
    count = 'echo x >> "$HOME/count"'
    failing = 'test "$(wc -l < $HOME/count)" -eq 1 && test -e $HOME/once || { touch $HOME/once; exit 1; }'
    again = step("plan", failing, "planning", max_attempts=2, setup=(count,), setup_egress=("x.example",))
    lock = step("build", "echo new > requirements.txt", "building")
    changed = step("test", 'test "$(wc -l < $HOME/count)" -eq 2', "testing", max_attempts=1, setup=(count,))
    adw_id = ran(lab, again, lock, changed)

    assert lab.document(adw_id).current_state == "completed", error_of(lab, adw_id)


def test_set_up_commands_run_again_in_a_worktree_that_is_made_again(lab):
    installs = 'mkdir -p node_modules; echo "*" > node_modules/.gitignore'
    ruins = (
        'test -e node_modules || exit 9; test -e "$HOME/x" && exit; touch "$HOME/x"; rm -rf .git node_modules; exit 1'
    )
    adw_id = ran(lab, step("plan", ruins, "planning", max_attempts=2, setup=(installs,)))

    assert lab.document(adw_id).current_state == "completed", error_of(lab, adw_id)


# --- nothing is left -------------------------------------------------------------------------------------------------


def running(seconds: int) -> list[int]:
    """Return the processes that sleep for exactly that long."""
    wanted = [b"sleep", str(seconds).encode()]
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if bytes_of(path).split(b"\0")[:2] == wanted and is_alive(int(path.parent.name))
    ]


def bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_until(is_so: Callable[[], object]) -> bool:
    """Say whether it becomes so, within a minute."""
    for _ in range(6000):
        if is_so():
            return True
        threading.Event().wait(0.01)
    return False


@pytest.fixture
def nap() -> Iterator[int]:
    """A number of seconds that no other process sleeps for; whoever does is ended when the test is over."""
    seconds = 100_000_000 + os.getpid()
    yield seconds
    for pid in running(seconds):
        os.kill(pid, signal.SIGKILL)


def test_no_process_outlives_its_attempt(lab, nap):
    left = f"sleep {nap} & setsid sleep {nap} & echo done"
    adw_id = ran(lab, step("plan", left, "planning"))

    assert lab.document(adw_id).current_state in {"completed", "failed"}
    assert wait_until(lambda: not running(nap))


def test_no_process_is_left_after_kill_9_of_the_worker(lab, backend, nap):
    lab.start(step("plan", f"sleep {nap} & setsid sleep {nap} & exec sleep {nap}", "planning"))
    env = {**os.environ, **lab.env, "ADW_HOME": str(lab.home), "ADW_FORGE_KIND": "local"}
    with subprocess.Popen([sys.executable, "-c", WORKER], cwd=lab.home, env=env) as worker:
        try:
            assert wait_until(lambda: len(running(nap)) == 3)
        finally:
            worker.kill()
    if backend == "landlock":
        with lab.open() as app:
            app.recovery.recover(every_document=True)

    assert wait_until(lambda: not running(nap))
