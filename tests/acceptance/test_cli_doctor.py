"""`adw doctor`: each line says how a thing is and how to fix it, and nothing is changed by checking."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adws.adw_modules.clock import SystemClock
from tests import templates
from tests.acceptance.cli_lab import Beside
from tests.git_http import serving_git
from tests.integration.agent_lab import FakeAgent

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-tests"
GOOD = {"private": True, "permissions": {"push": True}}


def git(home: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=home, capture_output=True, text=True, check=True).stdout


class Stub(ThreadingHTTPServer):
    """A server that answers each path with a status, a body and headers."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, object, dict[str, str]]] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body, headers = self.server.answers.get(self.path, (404, {"message": "Not Found"}, {}))
        if self.path != "/health" and TOKEN not in self.headers.get("Authorization", ""):
            status, body, headers = 401, {"message": "Bad credentials"}, {}
        payload = json.dumps(body).encode()
        self.send_response_only(status)
        for name, value in {"Date": format_datetime(SystemClock().now(), usegmt=True), **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def server():
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield stub
        stub.shutdown()
        thread.join()


@pytest.fixture
def github(server, home, monkeypatch):
    """A GitHub that knows the token, and a home that uses it."""
    server.answers = {
        "/user": (200, {"login": "ada"}, {}),
        "/repos/acme/shop": (200, GOOD, {"X-OAuth-Scopes": "repo", "X-RateLimit-Remaining": "4321"}),
    }
    monkeypatch.setenv("ADW_GITHUB_API_URL", server.url)
    monkeypatch.setenv("ADW_GITHUB_TOKEN", TOKEN)
    (home / "adw.toml").write_text('[github]\nrepository = "acme/shop"\n')
    return server


@pytest.fixture
def claude(tmp_path, monkeypatch) -> FakeAgent:
    agent = FakeAgent(tmp_path / "agents")
    others = "".join(f", {name}=no-such-agent" for name in ("codex", "gemini", "opencode", "aider"))
    monkeypatch.setenv("ADW_AGENT_PROGRAMS", f"claude={agent.program}{others}")
    return agent


@pytest.fixture
def doctor(adw):
    """`doctor()` returns what is found, by area, and the exit code."""

    def look(**env: str):
        done = adw("doctor", "--json", env={"ADW_QUOTA_MIN_FREE_DISK": "1 MiB", **env})
        assert "Traceback" not in done.stderr, done.stderr
        told = done.json()
        assert done.rc == (0 if told["ok"] else 1)
        assert told["ok"] == (told["problems"] == 0)
        return told["findings"]

    return look


def of(findings: list[dict], area: str) -> list[dict]:
    return [one for one in findings if one["area"] == area]


def bad(findings: list[dict], area: str) -> dict:
    """Return the one finding of *area* that is not ok."""
    (result,) = [one for one in of(findings, area) if one["level"] != "ok"]
    return result


def everything(home: Path) -> dict[str, tuple]:
    """Return what can be seen of every file and directory below *home*; SQLite makes and removes files to look."""
    seen = {path: path.lstat() for path in [home, *home.rglob("*")] if not path.name.endswith(("-shm", "-wal"))}
    return {str(path): (one.st_mode, path.is_file() and one.st_mtime_ns) for path, one in seen.items()}


# --- a machine that is well --------------------------------------------------------------------------------------


def test_a_machine_that_is_well_has_no_problem(doctor, github, claude, home, tmp_path):
    (home / ".gitignore").write_text("/state/\n/trees/\n")
    remote = tmp_path.resolve() / "remote.git"
    git(home, "init", "-q", "--bare", str(remote))

    with serving_git(remote, "acme/shop") as origin:
        git(home, "remote", "add", "origin", origin)
        findings = doctor()

    assert [one for one in findings if one["level"] == "problem"] == []
    told = [one["what"] for one in findings if one["level"] == "ok"]
    for words in (
        "claude: 9.9.9 (fake claude), logged in",
        "GitHub knows us as ada, and shows acme/shop",
        "ada may push to acme/shop",
        "the token has the scopes repo",
        "the clock agrees with that of GitHub",
        "commits are made by adw tests <tests@adw.invalid>",
        "the workflow sdlc can be run",
        "worktrees can be made",
        "adw run can start sdlc",
    ):
        assert words in told
    assert {one["area"] for one in findings} == {
        *("python", "git", "settings", "agents", "forge", "webhook", "database", "files", "disk", "ports", "clock"),
        *("sandbox", "start"),
    }


def test_the_doctor_changes_nothing(adw, doctor, home, claude):
    """
    Neither in a home where nobody worked yet, nor in one that has a database.
    """
    before = everything(home)
    doctor()
    assert everything(home) == before
    templates.prepare_home(home)
    before = everything(home)

    doctor()

    assert everything(home) == before


def test_people_read_lines_with_the_fix_below(adw, home, claude):
    done = adw("doctor")

    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("warning  forge     no forge"))
    assert lines[at + 1].strip().startswith("fix: set github.repository in adw.toml")
    assert lines[-1].endswith("warnings")


# --- what is wrong ------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_workflows_is_told_once(doctor, home, claude):
    (home / "adw.toml").write_text('[[workflows.own.phases]]\nname = "build"\nshel = "true"\n')

    problems = [one for one in doctor() if one["level"] == "problem"]

    assert [one["area"] for one in problems] == ["settings", "settings"]
    assert "did you mean shell?" in problems[0]["what"]
    assert "has no runner" in problems[1]["what"]


def test_an_agent_that_is_missing_or_not_logged_in_is_a_problem(doctor, claude):
    (claude.place / "logged-out").touch()
    result = bad(doctor(), "agents")
    assert (result["level"], result["fix"]) == ("problem", f"start {claude.program} once, and log in")
    claude.program.unlink()

    result = bad(doctor(), "agents")

    assert result["level"] == "problem"
    assert "is not a file" in result["what"]


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/user", (401, {"message": "Bad credentials"}, {}), ("does not accept our token", "make a new token")),
        ("/repos/acme/shop", (404, {}, {}), ("shows us no repository acme/shop", "correct github.repository")),
        ("/repos/acme/shop", (200, {"permissions": {"push": False}}, {}), ("ada may not push", "write access")),
        ("/repos/acme/shop", (200, GOOD, {"X-OAuth-Scopes": "gist"}), ("and needs repo", "ADW_GITHUB_TOKEN")),
        ("/user", (500, {}, {}), ("GitHub", "github.api_url")),
    ],
    ids=["token", "repository", "rights", "scopes", "down"],
)
def test_a_forge_that_cannot_be_used_says_why(doctor, github, path, answer, told):
    github.answers[path] = answer

    result = bad(doctor(), "forge")

    assert result["level"] == "problem"
    assert told[0] in result["what"]
    assert told[1] in result["fix"]


def test_a_forge_that_does_not_answer_is_a_problem(doctor, github, claude):
    result = bad(doctor(ADW_GITHUB_API_URL=f"http://127.0.0.1:{free_port()}"), "forge")

    assert result["level"] == "problem"
    assert "did not answer" in result["what"]


def test_a_clock_that_is_wrong_is_seen_by_that_of_the_forge(doctor, github, claude):
    status, body, headers = github.answers["/repos/acme/shop"]
    github.answers["/repos/acme/shop"] = status, body, {**headers, "Date": "Sat, 31 Jan 2026 09:00:00 GMT"}

    result = bad(doctor(), "clock")

    assert result["level"] == "problem"
    assert "of GitHub" in result["what"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("status", "level", "words"),
    [(200, "ok", "adw serve answers at"), (503, "problem", "is not well: it answers 503")],
)
def test_a_server_that_answers_is_asked_how_it_is(doctor, server, status, level, words):
    server.answers["/health"] = (status, {}, {})

    findings = of(doctor(ADW_WEB_PORT=str(server.server_port), ADW_WEBHOOK_SECRET="a-secret-of-ours"), "webhook")

    assert [one["level"] for one in findings] == ["ok", level]
    assert words in findings[1]["what"]


def test_the_server_of_adw_itself_is_found(doctor, home, claude):
    port = free_port()
    with Beside(home, "serve", "--port", str(port), "--workers", "0", "--json") as serving:
        serving.process.stdout.readline()
        findings = of(doctor(ADW_WEB_PORT=str(port)), "webhook")

    assert [one["level"] for one in findings] == ["warning", "ok"]
    assert findings[0]["fix"] == "export ADW_WEBHOOK_SECRET=..."


def test_a_public_address_that_does_not_lead_here_is_a_problem(doctor, server, claude):
    findings = of(doctor(ADW_WEB_PUBLIC_URL=server.url, ADW_WEB_PORT=str(free_port())), "webhook")
    assert "does not lead here: it answers 404" in findings[-1]["what"]
    server.answers["/health"] = (200, {}, {})

    findings = of(doctor(ADW_WEB_PUBLIC_URL=server.url, ADW_WEB_PORT=str(free_port())), "webhook")

    assert findings[-1]["what"] == f"{server.url} leads here"


def test_a_database_with_an_unknown_schema_is_reported_and_left_alone(doctor, home, claude):
    templates.prepare_home(home)
    with sqlite3.connect(home / "state/adw.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '0010'")
    database.close()

    result = bad(doctor(), "database")

    assert (result["level"], result["fix"]) == (
        "warning",
        "another version made this database: upgrade adw, or move it away and run adw db rebuild",
    )
    with sqlite3.connect(home / "state/adw.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0010",)]
    database.close()


def test_a_damaged_database_is_a_problem(doctor, home, claude):
    templates.prepare_home(home)
    (home / "state/adw.db").write_bytes(b"this is no database" * 1000)

    result = bad(doctor(), "database")

    assert result["level"] == "problem"
    assert "adw db restore" in result["fix"]


def test_what_a_killed_worker_left_is_told(adw, doctor, home, claude):
    (home / "adw.toml").write_text(
        '[workflows.long]\n[[workflows.long.phases]]\nname = "build"\nshell = "echo up > up; cat go"\n'
        "[worktree]\nenabled = false\n"
    )
    for name in ("up", "go"):
        os.mkfifo(home / name)
    with Beside(home, "run", "7", "--workflow", "long") as run:
        with (home / "up").open() as up:
            assert up.read() == "up\n"
        run.process.kill()
        run.end()
    try:
        findings = of(doctor(), "locks")
    finally:
        adw("admin", "recover")

    assert {one["level"] for one in findings} == {"warning"}
    assert any("is dead and did not release it" in one["what"] for one in findings)


def test_files_that_others_can_read_are_named(doctor, home, claude):
    templates.prepare_home(home)
    (home / "state/adw.db").chmod(0o644)

    result = [one for one in of(doctor(), "files") if "can read" in one["what"]]

    assert [(one["level"], one["fix"]) for one in result] == [("warning", f"chmod -R go-rwx {home / 'state'}")]


def test_too_little_room_is_a_problem(doctor, claude):
    result = bad(doctor(ADW_QUOTA_MIN_FREE_DISK="9000000 GiB"), "disk")

    assert result["level"] == "problem"
    assert "no work starts below 9000000 GB" in result["what"]


def test_ports_that_others_use_are_not_free(doctor, claude):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        result = bad(doctor(ADW_PORTS_BACKEND_START=str(port), ADW_QUOTA_MAX_WORKTREES="1"), "ports")

    assert (result["level"], "0 of 1 pairs free" in result["what"]) == ("problem", True)


def test_a_lock_that_a_killed_git_left_is_told_and_left_there(doctor, home, claude):
    (home / ".git/index.lock").touch()

    result = [one for one in of(doctor(), "git") if one["level"] == "problem"]

    assert [one["fix"] for one in result] == [f"rm {home / '.git/index.lock'}"]
    assert (home / ".git/index.lock").exists()


def test_without_git_that_is_told_in_a_line(doctor, claude, tmp_path):
    folder = tmp_path / "few"
    folder.mkdir()
    for name in ("sh", "env", "cat"):
        (folder / name).symlink_to(shutil.which(name))

    result = bad(doctor(PATH=str(folder)), "git")

    assert (result["level"], result["fix"]) == ("problem", "install git 2.36 or later")


def lose_a_worktree(home: Path) -> None:
    git(home, "worktree", "add", "-q", str(home / "trees/lost"))
    shutil.rmtree(home / "trees/lost")


def begin_again(home: Path) -> None:
    shutil.rmtree(home / ".git")
    git(home, "init", "-q")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda home: shutil.rmtree(home / ".git"), ("warning", "in no git repository", "git init")),
        (begin_again, ("problem", "has no commit", "git commit --allow-empty")),
        (lose_a_worktree, ("warning", "gone: {home}/trees/lost", "git worktree prune")),
        (lambda _home: None, ("warning", "does not ignore state/, trees/", "adw init")),
        (lambda _home: None, ("warning", "no remote origin", "git remote add origin URL")),
        (
            lambda home: git(home, "remote", "add", "origin", str(home / "nowhere")),
            ("problem", "origin: ", "git ls-remote origin HEAD"),
        ),
        (
            lambda home: (home / ".git/config").write_text("[user]\n\tuseConfigOnly = true\n"),
            ("warning", "does not know who you are", "git config --global"),
        ),
    ],
    ids=["no-repository", "no-commit", "lost", "unignored", "no-remote", "silent-remote", "nobody"],
)
@pytest.mark.usefixtures("claude")
def test_each_trouble_with_git_says_how_to_fix_it(doctor, home, change, told):
    level, what, fix = told
    change(home)
    nobody = {f"GIT_{who}_{name}": "" for who in ("AUTHOR", "COMMITTER") for name in ("NAME", "EMAIL")}

    findings = of(doctor(GIT_CONFIG_GLOBAL=os.devnull, **nobody), "git")

    result = [one for one in findings if what.format(home=home) in one["what"]]
    assert [one["level"] for one in result] == [level]
    assert fix in result[0]["fix"]


def test_settings_without_a_meaning_and_a_missing_file_are_warnings(doctor, home, claude):
    result = [one for one in of(doctor(ADW_AUTO_MERGE="1"), "settings") if one["level"] == "warning"]

    assert [one["fix"] for one in result] == ["adw init", "unset ADW_AUTO_MERGE"]


def test_an_agent_that_nobody_needs_is_a_warning_when_it_does_not_start(doctor, claude, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    others = "".join(f", {name}=no-such-agent" for name in ("gemini", "opencode", "aider"))

    programs = f"claude={claude.program}, codex={broken}{others}"
    findings = of(doctor(ADW_AGENT_PROGRAMS=programs), "agents")

    assert [one["level"] for one in findings] == ["ok", "warning"]


def test_a_program_of_a_gate_that_is_missing_is_a_problem(doctor, home, claude):
    (home / "adw.toml").write_text('[phases.test]\ngates = [{ command = ["no-such-program", "x"] }]\n')

    result = [one for one in of(doctor(), "settings") if one["level"] == "problem"]

    assert [one["what"] for one in result] == ["test needs no-such-program, which is not in PATH"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[nonsense]\nx = 1\n", "nonsense.x is not a setting"),
        ("this is not TOML", "is not TOML"),
        ('[[workflows.x.phases]]\nname = "build"\nrunner = "nobody"\n', "nobody"),
    ],
)
def test_settings_that_cannot_be_read_are_a_finding(doctor, home, claude, text, words):
    (home / "adw.toml").write_text(text)

    result = [one for one in doctor() if one["level"] == "problem"]

    assert any(words in one["what"] for one in result)


# --- PostgreSQL ---------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_server_is_looked_into_and_its_clock_compared(doctor, claude, pg_url):
    findings = doctor(ADW_DATABASE_URL=pg_url)

    assert [one["level"] for one in of(findings, "database")] == ["ok"]
    assert "the clock agrees with that of the database" in [one["what"] for one in of(findings, "clock")]


@pytest.mark.postgres
def test_a_server_that_is_gone_is_a_problem_and_its_password_is_not_shown(adw, claude):
    url = f"postgresql://adw:hunter2-secret@127.0.0.1:{free_port()}/adw"

    done = adw("doctor", env={"ADW_DATABASE_URL": url})

    assert done.rc == 1
    assert "problem  database" in done.stdout
    assert "hunter2-secret" not in done.stdout + done.stderr


# --- the diagram --------------------------------------------------------------------------------------------------


def test_the_diagram_is_that_of_the_documentation(adw):
    done = adw("doctor", "--diagram")

    assert done.rc == 0
    assert done.stdout.strip() in (ROOT / "docs/workflows.md").read_text()
    assert adw("doctor", "--diagram", "--json").json()["diagram"].strip() == done.stdout.strip()
