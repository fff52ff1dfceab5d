"""
The third-party GitHub emulator (npm package `emulate`), started for tests.

It needs Node and the package; `.ci/run` installs it and says where in ADW_TEST_EMULATE. Without it the tests that use
it are skipped, with the reason.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VERSION = "0.11.2"
TOKEN = "tok_bot"
SEED = """\
tokens:
  tok_bot: {login: adw-bot, scopes: [repo, user, "admin:repo_hook"]}
github:
  users: [{login: adw-bot, email: bot@example.com}]
  repos:
    - {owner: adw-bot, name: first, auto_init: true}
"""
#: Seconds until it must be up.
START_SECONDS = 60.0


def why_not() -> str:
    """Return what is missing to run it, "" when nothing is."""
    if shutil.which("node") is None:
        return "needs Node: install it to run the GitHub emulator"
    place = os.environ.get("ADW_TEST_EMULATE", "")
    if not place or not (Path(place) / "dist" / "index.js").is_file():
        return (
            f"needs the GitHub emulator: npm i --ignore-scripts emulate@{VERSION} somewhere outside the repository, "
            "and set ADW_TEST_EMULATE to its node_modules/emulate"
        )
    return ""


class Emulator:
    """A running emulator, and what people and git do to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = TOKEN
        self._count = itertools.count(1)

    @classmethod
    @contextmanager
    def start(cls, folder: Path) -> Iterator[Emulator]:
        """Start it, or skip the test with the reason."""
        reason = why_not()
        if reason:
            pytest.skip(reason)
        (folder / "seed.yaml").write_text(SEED)
        port = _free_port()
        program = Path(os.environ["ADW_TEST_EMULATE"]) / "dist" / "index.js"
        command = ["node", str(program), "start", "--service", "github", "--port", str(port), "--seed", "seed.yaml"]
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        late = threading.Timer(START_SECONDS, process.kill)
        late.start()
        try:
            said = _read_until_up(process)
            late.cancel()
            assert process.poll() is None, f"the emulator ended: {said}"
            yield cls(f"http://localhost:{port}")
        finally:
            late.cancel()
            process.terminate()
            process.wait()
            process.stdout.close()

    def new_repository(self) -> str:
        name = f"widget-{next(self._count)}"
        self._call("POST", "/user/repos", {"name": name, "auto_init": True})
        return f"adw-bot/{name}"

    def create_issue(self, repository: str, title: str, body: str, labels: tuple[str, ...]) -> int:
        made = self._call("POST", f"/repos/{repository}/issues", {"title": title, "body": body})
        if labels:
            self._call("POST", f"/repos/{repository}/issues/{made['number']}/labels", {"labels": list(labels)})
        return made["number"]

    def push(self, repository: str, branch: str) -> str:
        """Put a new commit on a branch, made from main when it is new."""
        place = f"/repos/{repository}"
        branches = {one["name"] for one in self._call("GET", f"{place}/branches?per_page=100")}
        if branch not in branches:
            tip = self._call("GET", f"{place}/git/ref/heads/main")["object"]["sha"]
            self._call("POST", f"{place}/git/refs", {"ref": f"refs/heads/{branch}", "sha": tip})
        content = base64.b64encode(b"text").decode()
        name = f"file-{next(self._count)}"
        self._call("PUT", f"{place}/contents/{name}", {"message": "Work", "content": content, "branch": branch})
        return self._call("GET", f"{place}/git/ref/heads/{branch}")["object"]["sha"]

    def _call(self, verb: str, path: str, payload: object = None):
        request = urllib.request.Request(
            self.url + path,
            method=verb,
            data=None if payload is None else json.dumps(payload).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _read_until_up(process: subprocess.Popen[str]) -> str:
    """Read what it says until it has said everything it says at its start."""
    said = ""
    for line in process.stdout:
        said += line
        if "Config:" in line:
            break
    return said
