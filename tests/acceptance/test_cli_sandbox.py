"""The commands with the sandbox that is on by default: as root and as an ordinary user, with and without bubblewrap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.integration import other_user
from tests.integration.test_sandboxed_agent import why_missing


def adw(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the settings that it has by itself."""
    kept = {name: value for name, value in os.environ.items() if name != "ADW_SANDBOX_MODE"}
    variables = {**kept, "ADW_HOME": str(home), **env}
    return warm.run([warm.ADW, *args], cwd=home, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def home(tmp_path):
    place = tmp_path / "home"
    place.mkdir()
    for command in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=place, check=True)
    (place / "adw.toml").write_text(
        '[forge]\nkind = "local"\n[agent]\nname = "claude"\n[web]\nport = 0\nworkers = 0\n'
        '[workflows.box]\nphases = [{name = "build", state = "building", runner = "command",'
        " shell = 'echo $ADW_SANDBOX > where; cat ~/.netrc'}]\n"
    )
    return place


@pytest.mark.parametrize(
    ("who", "mode"), [(other_user.USER, "auto"), (other_user.USER, "landlock"), (other_user.ROOT, "landlock")]
)
def test_the_demo_works_in_a_box(who, mode):
    if reason := other_user.why_impossible() or why_missing(mode):
        pytest.skip(reason)
    with other_user.open_place() as place:
        said = other_user.run(place, who, "env", f"ADW_SANDBOX_MODE={mode}", sys.executable, "-m", "adws.cli", "demo")

    assert "8 of 8 phases" in said or "Timeline" in said


def test_doctor_shows_the_box_and_each_promise(home):
    found = json.loads(adw(home, "doctor", "--json").stdout)["findings"]
    said = [one["what"] for one in found if one["area"] == "sandbox"]

    assert any(one.startswith("agents, commands and gates run in ") for one in said), said
    assert any("keys and files of the person cannot be read" in one for one in said)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"ADW_SANDBOX_MODE": "off", "ADW_SANDBOX_REQUIRED": "true"}, "sandbox.required is set"),
        ({"ADW_SANDBOX_USER": "nobody-here"}, "this machine has no such user"),
        ({"ADW_SANDBOX_MODE": "bubblewrap", "PATH": "{bin}"}, "there is no sandbox here: bubblewrap: bwrap is not"),
    ],
    ids=["off", "user", "missing"],
)
def test_a_server_does_not_start_without_the_box_that_is_required(home, tmp_path, env, said):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("git", "sh", "env"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    done = adw(home, "serve", **{name: value.format(bin=tools) for name, value in env.items()})

    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
