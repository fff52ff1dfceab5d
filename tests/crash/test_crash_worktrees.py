"""Power cuts under workflows at work: what their phases finished is shipped as it was finished."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.crash.driving import drive

pytestmark = [pytest.mark.root, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True)
def _needs_loop_devices() -> None:
    missing = [name for name in ("losetup", "mkfs.ext4") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: install them with the packages of your system")
    asked = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        pytest.skip(f"needs a loop device: {asked.stderr.strip()}")


@pytest.mark.parametrize("store", ["files", "database"])
def test_files_of_a_finished_phase_are_shipped_whole_after_a_power_cut(store, tmp_path, seed, repeat):
    """
    The power is cut 0.2 to 1 s after phase build was recorded complete: its 10 new and 10 changed files are shipped.
    """
    count = repeat(1, 20)
    report = drive("worktree_driver", "after-phase", tmp_path, store, "--count", count, "--seed", seed)

    assert report["problems"] == []
    assert report["completed"] == count


def test_power_cuts_at_any_moment_of_a_workflow_empty_no_file_and_lose_no_phase(tmp_path, seed, repeat):
    """
    40 cuts in the soak, between the making of a worktree and the end: each completes by itself, or is named.
    """
    count = repeat(2, 40)
    report = drive("worktree_driver", "cuts", tmp_path, "files", "--count", count, "--seed", seed)

    assert report["problems"] == []
    assert report["completed"] + len(report["named"]) == count


def test_the_harness_catches_a_build_that_does_not_sync_worktrees(tmp_path, seed):
    """
    The same cuts with syncing and comparing taken out must ship emptied files, or the harness proves nothing.
    """
    report = drive("worktree_driver", "after-phase", tmp_path, "files", "--count", 2, "--seed", seed, "--without-sync")

    assert any("was shipped empty" in problem for problem in report["problems"])
