"""Measuring a worktree between phases: once for each boundary, not at all without a limit, and never for long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.work_lab import BUILD, CLEAN, PLAN, make_work_lab, step

PHASES = (PLAN, BUILD, step("test", "true", "testing"), CLEAN)


class Listings:
    """Counts how often the files of a worktree are listed; a hook of Python itself, so nothing is replaced."""

    def __init__(self, below: Path) -> None:
        self._below, self.count, self._is_on = str(below), 0, True
        sys.addaudithook(self._heard)  # cannot be removed: it is switched off

    def _heard(self, event: str, args: tuple[object, ...]) -> None:
        if self._is_on and event == "os.scandir" and isinstance(args[0], str) and Path(args[0]).name == "node_modules":
            self.count += args[0].startswith(self._below)

    def end(self) -> int:
        self._is_on = False
        return self.count


@pytest.mark.parametrize(("limit", "measured"), [("5 GiB", 2), ("off", 0)], ids=["limited", "off"])
def test_a_worktree_is_measured_once_before_each_phase_that_finds_one_and_never_without_a_limit(
    tmp_path, limit, measured
):
    lab = make_work_lab(tmp_path, ADW_QUOTA_MAX_WORKTREE_SIZE=limit)
    fill = step("plan", "mkdir -p node_modules/a; echo x > node_modules/a/b; echo steps > plan.md", "planning")
    adw_id = lab.start(fill, *PHASES[1:])
    listings = Listings(lab.home / "trees")

    lab.work()

    assert lab.document(adw_id).current_state == "completed"
    assert listings.end() == measured, "before build and test: plan has no worktree yet, and clean removes it"
