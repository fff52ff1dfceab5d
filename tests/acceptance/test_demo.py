"""`adw demo`: an issue becomes a pull request, through a crash, and back to nothing; without an account or a key."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from tests import warm

ROOT = Path(__file__).parents[2]


def demo(place: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `adw demo` as somebody whose home is *place*, on a machine with nothing but git and coreutils in PATH."""
    return subprocess.run(
        [warm.ADW, "demo", *args],
        env={
            **{name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")},
            "PATH": "/usr/bin:/bin",
            "TMPDIR": str(place),
            "HOME": str(place),
            **env,
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def git(home: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=home, capture_output=True, text=True, check=True).stdout


def document_in(home: Path) -> dict:
    (document,) = (json.loads(path.read_text()) for path in home.glob("state/*/adw_state.json"))
    return document


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The sample that the demo leaves, and what it prints, for somebody whose settings would lead elsewhere."""
    place = tmp_path_factory.mktemp("demo")
    done = demo(place, ADW_FORGE_KIND="none", ADW_GITHUB_TOKEN="not-to-be-used", ADW_HOME="/dev/null")
    assert done.returncode == 0, done.stdout + done.stderr
    (home,) = place.glob("adw-demo-*")
    return home, done


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """The same for a demo that is killed in the middle and undone at the end, with its JSON."""
    home = tmp_path_factory.mktemp("crash") / "sample"
    done = demo(home.parent, "--crash", "--rollback", "--keep", "--json", "--directory", str(home))
    assert done.returncode == 0, done.stdout + done.stderr
    return home, done


def test_the_demo_carries_the_issue_through_every_phase_with_one_retry(said):
    home, _ = said
    document = document_in(home)

    assert document["current_state"] == "completed"
    assert {phase["name"]: phase["attempts_used"] for phase in document["phases"]} == {
        "plan": 1,
        "build": 2,
        "lint": 1,
        "test": 1,
        "review": 1,
        "document": 1,
        "ship": 1,
        "clean": 1,
    }


def test_the_demo_uses_the_driver_of_agents_and_not_a_way_around_it(said):
    home, _ = said
    plan, build, *_ = document_in(home)["phases"]

    assert plan["attempts"][0]["agent"]["name"] == "claude"
    first, second = build["attempts"]
    assert first["agent"]["session_id"] == second["agent"]["session_id"], "the conversation goes on"
    prompts = sorted(home.glob("state/*/phases/build/attempt-*.prompt.md"))
    assert "AssertionError" in prompts[-1].read_text(), "the second attempt is told what was wrong with the first"


def test_the_demo_shows_what_happens_as_it_happens_and_the_wait_before_the_retry(said):
    _, done = said
    lines = done.stderr.splitlines()
    failed = next(line for line in lines if "attempt 1/5 failed" in line)

    assert "build did not pass its gate" in failed
    assert re.search(r"^build: retrying in [\d.]+ s$", done.stderr, flags=re.MULTILINE)
    assert lines.index("build: attempt 2/5") > lines.index(failed)


def test_the_demo_ends_with_the_pull_request_and_its_diff_and_the_timeline(said):
    _, done = said

    assert "Pull request #2 (draft): feature: #1 - Greet with an exclamation mark" in done.stdout
    assert "Closes #1" in done.stdout
    assert '+    return "Hello, " + (name or "you") + "!"' in done.stdout
    assert re.search(r"^build     \| *x[x #]*\|  .*, 2 attempts$", done.stdout, flags=re.MULTILINE)


def test_the_demo_leaves_the_checkout_as_it_was_and_no_worktree(said):
    home, _ = said

    assert git(home, "status", "--porcelain") == ""
    assert git(home, "branch", "--show-current").strip() == "main"
    assert "!" not in (home / "greet.py").read_text()
    assert len(git(home, "worktree", "list").splitlines()) == 1


def test_what_the_demo_says_to_type_next_works(said):
    home, done = said
    commands = re.findall(r"^  (.*/adw --home \S+ .+)$", done.stdout, flags=re.MULTILINE)
    words = [shlex.split(command)[3] for command in commands]
    assert words == ["status", "logs", "admin", "serve", "rollback"]
    assert "  unset ADW_FORGE_KIND  " in done.stdout, "what would lead these commands elsewhere is told"
    assert f"rm -rf {home}" in done.stdout

    for command in [one for one in commands if " serve" not in one]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ADW_")}
        typed = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, check=False)
        assert typed.returncode == 0, (command, typed.stdout, typed.stderr)


def test_a_crash_in_the_middle_costs_one_attempt_and_nothing_else(crashed):
    home, done = crashed
    build = next(phase for phase in document_in(home)["phases"] if phase["name"] == "build")

    assert [one["status"] for one in build["attempts"]] == ["interrupted", "failed", "succeeded"]
    assert re.search(r"^\$ kill -9 \d+$", done.stderr, flags=re.MULTILINE)
    assert "its worker is gone" in done.stderr
    # With bubblewrap it dies with the worker; else it is ended before the work is resumed.
    (pid,) = re.findall(r"^its agent, process (\d+), (?:still runs|is gone too)", done.stderr, flags=re.MULTILINE)
    assert not Path("/proc", pid, "cmdline").exists() or b"adw-demo" not in Path("/proc", pid, "cmdline").read_bytes()


def test_after_a_rollback_nothing_is_left_and_the_demo_proves_it(crashed):
    home, done = crashed
    told = json.loads(done.stdout)

    assert told["left"] == {
        "worktrees": [],
        "local_branches": [],
        "branches_at_the_remote": [],
        "open_pull_requests": [],
        "ports": [],
        "processes": [],
        "locked_issues": [],
    }
    assert re.search(r"^  branches at the remote +none$", done.stderr, flags=re.MULTILINE)
    assert (told["home"], told["kept"], told["pull_request"]) == (str(home), True, 2)
    # Looked for once more, without adw.
    assert git(home, "for-each-ref", "--format=%(refname)", "refs/heads").split() == ["refs/heads/main"]
    assert git(home, "ls-remote", "--heads", "origin").split()[1:] == ["refs/heads/main"]
    assert len(git(home, "worktree", "list").splitlines()) == 1
    assert json.loads((home / "state/local.forge/pulls/2.json").read_text())["state"] == "closed"
    assert document_in(home)["current_state"] == "rolled_back"


def test_a_demo_that_is_undone_deletes_its_sample(tmp_path):
    done = demo(tmp_path, "--rollback")

    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("adw-demo-*")) == []
    assert "The sample is deleted: " in done.stdout


def test_a_directory_with_something_in_it_is_refused_and_left_alone(tmp_path):
    place = tmp_path / "mine"
    place.mkdir()
    (place / "notes").write_text("mine")

    done = demo(tmp_path, "--directory", str(place))

    assert done.returncode == 2
    assert done.stderr == (
        f"adw: {place} is not empty, and nothing is overwritten: name a directory that does not exist yet\n"
    )
    assert [path.name for path in place.iterdir()] == ["notes"]


def test_a_place_where_no_directory_can_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()

    done = demo(tmp_path, "--directory", str(tmp_path / "file" / "sample"))

    assert done.returncode == 2
    assert "the sample cannot be made in" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_git_the_demo_says_so_in_one_sentence(tmp_path):
    done = demo(tmp_path, PATH=str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "adw: the demo needs git: install it, and type adw demo again\n"
    assert list(tmp_path.iterdir()) == []


def test_the_demo_takes_no_home_of_somebody(adw, home):
    done = adw("--home", str(home), "demo")

    assert done.rc == 2
    assert "adw demo makes a home of its own: use adw demo --directory DIR" in done.stderr


def test_a_sample_that_is_not_carried_through_is_kept_and_says_where(tmp_path):
    done = demo(tmp_path, PATH=broken_git(tmp_path))

    assert done.returncode == 1
    assert re.search(
        r"The sample is kept in (\S+/adw-demo-\w+)\. Commands on it begin with: .* --home \1$", done.stdout
    )
    assert "Traceback" not in done.stderr


def broken_git(tmp_path: Path) -> str:
    """Return a PATH with a git that cannot push."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = (
        'for word; do [ "$word" = push ] && { echo "fatal: no room" >&2; exit 128; }; done\nexec /usr/bin/git "$@"\n'
    )
    (folder / "git").write_text(f"#!/bin/sh\n{script}")
    (folder / "git").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


# --- the dashboard ------------------------------------------------------------------------------------------------


def watched(place: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    """Start `adw demo --dashboard` beside the test."""
    return subprocess.Popen(
        [warm.ADW, "demo", "--dashboard", *args],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(place), "HOME": str(place), **env},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=warm.default_interrupts,  # noqa: PLW1509 - no threads before exec
    )


def test_the_dashboard_is_opened_in_the_browser_and_served_until_ctrl_c(tmp_path):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)

    with watched(tmp_path, BROWSER=str(browser)) as process:
        said = ""
        for line in process.stdout:
            said += line
            if "is served until Ctrl-C" in line:
                break
        login = opened.read_text()
        page = seen(login)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        code = process.wait(timeout=60)

    assert (code, rest) == (0, "")
    assert "The dashboard is open in your browser: http://127.0.0.1:" in said
    assert page.status_code == 200
    assert "Greet with an exclamation mark" in page.text
    with pytest.raises(httpx.ConnectError):
        httpx.get(login)


def test_without_a_browser_the_link_is_printed(tmp_path):
    """
    Whoever started it is killed, and the server ends with it.
    """
    with watched(tmp_path) as process:
        link = next(line.strip() for line in process.stdout if line.startswith("  http://127.0.0.1:"))
        assert seen(link).status_code == 200
        process.kill()
        process.wait()
        while process.stdout.readline():
            pass
    until_gone(link)


def seen(link: str) -> httpx.Response:
    """Return the list of workflows as somebody sees it who follows *link*."""
    with httpx.Client() as client:
        client.get(link)
        return client.get(httpx.URL(link).join("/workflows"))


def until_gone(link: str) -> None:
    """Return when nobody answers any more: the server notices that its starter is gone."""
    for _ in range(600):
        try:
            httpx.get(link)
        except httpx.TransportError:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the server goes on without its starter")


def test_a_dashboard_on_what_is_deleted_is_refused(tmp_path):
    done = demo(tmp_path, "--dashboard", "--rollback")

    assert done.returncode == 2
    assert "--dashboard shows what --rollback deletes at the end: add --keep" in done.stderr
    assert list(tmp_path.iterdir()) == []
