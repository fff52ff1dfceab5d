"""
docs/plugins.md: its package works as it stands there, by real commands, and each plugin is short.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import threading
import tomllib
from pathlib import Path

import pytest

from tests import plugin_lab
from tests.acceptance import cli_lab

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
#: Most lines of a plugin.
MOST_LINES = 30


@pytest.fixture
def site(tmp_path):
    points = tomllib.loads(TOML[0])["project"]["entry-points"]
    return plugin_lab.install(tmp_path / "site", "acme_adw", "\n".join(PYTHON), points)


@pytest.fixture
def home(tmp_path):
    path = tmp_path.resolve() / "home"
    path.mkdir()
    return path


@pytest.fixture
def ask(home, site):
    # Started, not forked: what is installed is read from a path that only a new interpreter looks at.
    def run(*args: str, rc: int = 0):
        done = subprocess.run(
            [cli_lab.ADW, "--home", str(home), *args],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in args else done.stdout + done.stderr

    return run


@pytest.mark.parametrize("source", PYTHON, ids=["runner", "sink", "forge"])
def test_each_plugin_is_short(source):
    assert len(source.strip().splitlines()) < MOST_LINES


def test_the_package_is_shown_with_all_that_it_brings(ask):
    told = ask("workflow", "plugins", "--json")["plugins"]

    assert [(row["kind"], row["name"], row["package"], row["problem"]) for row in told] == [
        ("runner", "probe", "acme_adw", ""),
        ("sink", "notebook", "acme_adw", ""),
        ("forge", "folder", "acme_adw", ""),
    ]
    assert "probe" in ask("workflow", "plugins")


def test_a_plugin_that_cannot_be_used_is_named_and_the_command_fails(ask, site):
    (site / "acme_adw.py").write_text("raise ImportError('half an installation')")

    said = ask("workflow", "plugins", rc=1)

    assert "the runner probe (acme_adw:ProbeRunner) cannot be used: ImportError: half an installation" in said


def test_without_plugins_that_is_said(adw):
    assert adw("workflow", "plugins").stdout == "No package brings a runner, a sink or a forge.\n"


def test_the_runner_waits_until_the_service_answers(ask, home):
    with _Service(refusals=1) as url:
        (home / "adw.toml").write_text(TOML[1].replace("http://127.0.0.1:8080/health", url))

        done = ask("run", "7", "--in-place", "--workflow", "deploy", "--json")

    document = cli_lab.document(home, done["adw_id"])
    assert document["current_state"] == "completed"
    assert document["phases"][0]["result"] == {"status": 200, "tries": 2}


def test_a_phase_that_lacks_an_option_of_its_runner_is_refused_before_anything_starts(ask, home):
    (home / "adw.toml").write_text(TOML[1].replace('url = "http://127.0.0.1:8080/health"', ""))

    assert "the runner probe needs options.url" in ask("run", "7", "--in-place", "--workflow", "deploy", rc=2)


def test_the_sink_saves_each_part_once(ask, home):
    (home / "adw.toml").write_text(TOML[2])

    ask("run", "7", "--in-place", "--workflow", "notes", "--json")

    lines = (home / "notes" / "sizes.md").read_text().splitlines()
    assert sorted(line for line in lines if line.startswith("- ")) == ["- size: 3", "- size: 5"]
    assert sum(line.startswith("<!-- ") for line in lines) == 2


def test_the_forge_reads_issues_from_files(ask, home):
    (home / "adw.toml").write_text(
        TOML[3] + '[[workflows.look.phases]]\nname = "plan"\nshell = "cat $ADW_ISSUE_FILE"\n'
    )
    (home / "requests").mkdir()
    (home / "requests" / "42.md").write_text("# Shout louder\n\nNobody hears it.\n")

    done = ask("run", "42", "--in-place", "--workflow", "look", "--json")

    assert cli_lab.document(home, done["adw_id"])["issue"]["title"] == "Shout louder"
    assert "there is no issue 43" in ask("run", "43", "--in-place", "--workflow", "look", rc=2)


class _Service:
    """A service that refuses the first requests."""

    def __init__(self, *, refusals: int) -> None:
        left = [refusals]

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status = 503 if left[0] > 0 else 200
                left[0] -= 1
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}/health"

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
