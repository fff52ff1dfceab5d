"""The script that installs agents for tests: what it refuses, and what it leaves alone. Nothing is installed here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "install_agents"


def run(*args: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *args], capture_output=True, text=True, check=False, env={"PATH": path})


@pytest.mark.parametrize("args", [(), ("FOLDER",), ("FOLDER", "nobody")], ids=["nothing", "no-name", "unknown"])
def test_what_it_does_not_understand_is_told(tmp_path, args):
    done = run(*(str(tmp_path) if arg == "FOLDER" else arg for arg in args))

    assert done.returncode == 2
    assert "claude codex gemini opencode aider" in done.stderr


def test_an_agent_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").write_text("mine\n")

    done = run(str(tmp_path), "codex")

    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "bin" / "codex").read_text() == "mine\n"


def test_what_cannot_be_installed_is_told_with_its_reason(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "mkdir", "date", "rm", "sh"):
        (tools / name).symlink_to(
            next(place for place in (Path("/usr/bin") / name, Path("/bin") / name) if place.exists())
        )

    done = run(str(tmp_path / "agents"), "codex", path=str(tools))

    assert done.returncode == 0
    assert done.stdout == "codex could not be installed: npm is not installed; tests that need it are skipped\n"
