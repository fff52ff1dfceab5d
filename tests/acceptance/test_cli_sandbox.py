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
        '[forge]\nkind = "none"\n[agent]\nname = "claude"\n[web]\nport = 0\nworkers = 0\n'
        '[workflows.box]\nphases = [{name = "build", state = "building", runner = "command", shell = "echo x > y"}]\n'
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


#: Notes its box, asks for a host that is not listed, and reads what is beside the worktree.
_WORKFLOW = """
[workflows.box]
phases = [{name = "build", state = "building", runner = "command", max_attempts = 1, shell = "./try.sh MAIN/notes"}]
"""
_TRY = f"""#!/bin/sh
echo $ADW_SANDBOX > where
{sys.executable} -c "import urllib.request as u; u.urlopen('http://elsewhere.example')" 2> /dev/null
cat $1
"""


def test_from_init_to_a_run_the_box_is_on_and_says_what_it_kept_from_a_phase(tmp_path):
    box = "landlock" if why_missing("bubblewrap") else "bubblewrap"
    if reason := why_missing(box):
        pytest.skip(reason)
    home = tmp_path / "new"
    home.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=home, check=True)
    assert adw(home, "init").returncode == 0
    (home / "notes").write_text("mine\n")
    (home / "try.sh").write_text(_TRY)
    (home / "try.sh").chmod(0o755)
    with (home / "adw.toml").open("a") as file:
        file.write(_WORKFLOW.replace("MAIN", str(home)))
    for command in (["add", "adw.toml", "prompts", ".gitignore", "try.sh"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=home, check=True)
    done = adw(home, "run", "1", "--title", "T", "--body", "B", "--workflow", "box")

    [tree] = (home / "trees").iterdir()
    assert (tree / "where").read_text() == f"{box}\n"
    assert f"its sandbox ({box})" in done.stdout + done.stderr
    status = adw(home, "status", tree.name).stdout
    assert "build: the sandbox denied connections to elsewhere.example:80 (1); sandbox.egress allows hosts" in status


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
@pytest.mark.parametrize(
    "command",
    [("serve",), ("run", "1", "--title", "T", "--body", "B", "--workflow", "box")],
    ids=["serve", "run"],
)
def test_nothing_starts_without_the_box_that_is_required(home, tmp_path, command, env, said):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("git", "sh", "env", "false"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    if command[0] == "run":  # a server requires one by itself
        env = {"ADW_SANDBOX_REQUIRED": "true", **env}
    done = adw(home, *command, **{name: value.format(bin=tools) for name, value in env.items()})

    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (home / "trees").exists()
