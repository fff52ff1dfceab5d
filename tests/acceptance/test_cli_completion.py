"""
`adw completion`: a real shell completes commands, options, ids and names; what cannot be looked up is not offered.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance import cli_lab


@pytest.fixture
def home(tmp_path):
    return cli_lab.make_home(tmp_path)


@pytest.fixture
def offer(home):
    """Return what is offered for the last word of a line."""

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        env = {**os.environ, "_ADW_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        done = subprocess.run([cli_lab.ADW], env=env, cwd=home, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return [row.partition(",")[2] for row in done.stdout.split()]

    return ask


def test_commands_options_states_and_names_are_offered(offer, home):
    assert offer("adw sta") == ["status", "state"]
    assert "--keep-branch" in offer("adw rollback --")
    assert offer(f"adw --home {home} list --state pa") == ["paused"]
    assert offer(f"adw --home {home} run 5 --workflow sho") == ["short"]


def test_ids_are_offered_as_they_are_typed(offer, home, adw):
    adw_id = adw("--home", str(home), "run", "5", "--workflow", "short", "--detach", "--json").json()["adw_id"]

    assert offer(f"adw --home {home} status ") == [adw_id]
    assert offer(f"adw --home {home} status adw-") == [f"adw-{adw_id}"]
    assert offer(f"adw --home {home} status zz") == []


def test_where_nothing_can_be_looked_up_nothing_is_offered_and_nothing_is_made(offer, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adw.toml").write_text("this is not TOML")

    assert offer(f"adw --home {empty} status ") == []
    assert offer(f"adw --home {broken} status ") == []
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_one_that_it_reads(adw, shell, tmp_path):
    script = adw("completion", shell).stdout

    assert "_ADW_COMPLETE" in script
    program = shutil.which(shell)
    if program:
        (tmp_path / "script").write_text(script)
        assert subprocess.run([program, "-n", tmp_path / "script"], check=False, timeout=60).returncode == 0


@pytest.mark.bash
def test_bash_completes_with_the_script(adw, home):
    script = adw("completion", "bash").stdout
    line = (
        f'PATH="{Path(cli_lab.ADW).parent}:$PATH"\n{script}\n'
        'COMP_WORDS=(adw even) COMP_CWORD=1; _adw_completion adw; echo "${COMPREPLY[@]}"'
    )

    done = subprocess.run(["bash", "-c", line], cwd=home, capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["events"]


def test_a_shell_that_is_not_known_is_refused_in_a_sentence(adw):
    done = adw("completion", "tcsh")

    assert done.rc == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
