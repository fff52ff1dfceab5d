"""The attacks of test_git_attacks.py by an agent, a command, a step and a gate that run in a box."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sampling
from tests.integration.test_git_attacks import CARRIERS, World, write_config
from tests.integration.test_sandboxed_agent import BACKENDS, why_missing
from tests.integration.work_lab import git

TESTS = Path(__file__).parents[1]
#: Functions of the runner `python` run in adw's own process, without a box.
BOXED = tuple(one for one in CARRIERS if one != "python")


def attacks(world: World, place: Path) -> dict[str, list[str]]:
    """Attack -> what it does, as lines of shell."""
    other = place / "work" / "other"
    return {
        "lead_the_token_elsewhere": write_config(
            "http.https://github.com/.sslVerify false", "http.curloptResolve github.com:443:127.0.0.2"
        ),
        "give_a_credential_helper": write_config(f"credential.helper {world.evil}"),
        "bring_a_transport": write_config(f"core.sshCommand {world.evil}", f"remote.origin.uploadpack {world.evil}"),
        "bring_a_filter": [
            *write_config(f"filter.x.process {world.evil}", f"filter.x.clean {world.evil}"),
            "echo '*.py filter=x' > .gitattributes",
        ],
        "bring_a_file_monitor": write_config(f"core.fsmonitor {world.evil}", f"core.hooksPath {place}"),
        "push_elsewhere": write_config(f"remote.origin.url {place}/elsewhere.git"),
        "plant_a_hook": [f'cp {world.evil} "$(git rev-parse --git-common-dir)/hooks/pre-push"'],
        "borrow_objects": [f'echo {place} > "$(git rev-parse --git-common-dir)/objects/info/alternates"'],
        "lead_the_worktree_to_another_repository": [
            f"git init -q {other}",
            f"git -C {other} config filter.x.clean {world.evil}",
            "echo '* filter=x' > .gitattributes",
            f"echo 'gitdir: {other}/.git' > .git",
        ],
    }


NAMES = (
    "lead_the_token_elsewhere",
    "give_a_credential_helper",
    "bring_a_transport",
    "bring_a_filter",
    "bring_a_file_monitor",
    "push_elsewhere",
    "plant_a_hook",
    "borrow_objects",
    "lead_the_worktree_to_another_repository",
)


@pytest.fixture
def boxed(backend, tmp_path, monkeypatch):
    if reason := why_missing(backend):
        pytest.skip(reason)
    world = World(tmp_path, monkeypatch)
    (tmp_path / "work").mkdir()
    world.attack_script.touch()
    world.lab.env |= {
        "ADW_SANDBOX_MODE": backend,
        "ADW_SANDBOX_REQUIRED": "true",
        "ADW_SANDBOX_READ": f"{TESTS},{world.attack_script},{world.evil}",
        "ADW_SANDBOX_WRITE": f"{tmp_path}/agent,{tmp_path}/work",
    }
    return world


@pytest.mark.parametrize(("backend", "carrier"), sampling.each_value_once(BACKENDS, BOXED))
def test_what_is_no_attack_is_done_in_the_box(boxed, carrier):
    boxed.attack(carrier, "git status > /dev/null", "echo more >> app.py")

    assert boxed.document.current_state == "completed", boxed.error()


@pytest.mark.parametrize(("attack", "backend"), sampling.each_value_once(NAMES, BACKENDS))
def test_a_boxed_attack_on_git_changes_nothing_that_is_shared_and_runs_nothing(boxed, attack, tmp_path):
    before = shared(boxed)
    [carrier] = sampling.share(BOXED, NAMES.index(attack))[:1]
    boxed.attack(carrier, *attacks(boxed, tmp_path)[attack])

    assert boxed.document.current_state == "failed", "the attack failed, or what it did was found"
    assert boxed.ran == ""
    if (boxed.lab.env["ADW_SANDBOX_MODE"], attack) == ("landlock", "borrow_objects"):
        assert "objects/info/alternates (new)" in boxed.error()
    else:
        assert shared(boxed) == before


def shared(world: World) -> tuple[object, ...]:
    """Return what of the git directory decides what runs."""
    common = world.lab.home / ".git"
    hooks = sorted(path.name for path in (common / "hooks").glob("*"))
    borrows, main = (common / "objects" / "info" / "alternates").exists(), git(world.lab.home, "rev-parse", "main")

    return (common / "config").read_bytes(), hooks, borrows, main
