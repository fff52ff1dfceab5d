"""Control groups of commands, in a directory that stands for the tree of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.process.cgroup import ControlGroup, usable_place
from adws.adw_modules.process.run import Limits


class Tree:
    """A process in the group *own*, and groups with the controllers that their children may use."""

    def __init__(self, place: Path, own: str, **given: str) -> None:
        self.proc, self.mount = place / "proc", place / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"1:name=other:/x\n0::{own}\n")
        for name, controllers in {"": "", **given}.items():
            group = self.mount / name.replace("__", "/").strip("/")
            group.mkdir(parents=True, exist_ok=True)
            (group / "cgroup.subtree_control").write_text(f"{controllers}\n")
            (group / "cgroup.procs").touch()

    def make(self, **limits: int | None) -> ControlGroup | None:
        limits = {"memory_bytes": None, "processes": None, **limits}
        return ControlGroup.make("token", proc=self.proc, mount=self.mount, **limits)


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("/", {"": "memory pids"}, ""),
        ("/", {"": "memory"}, None),
        ("/adw", {"adw": "cpu memory pids"}, "adw"),
        ("/system/adw.service/worker", {"system__adw.service": "memory pids"}, "system/adw.service"),
        ("/system/adw.service", {"system": "memory pids", "system__adw.service": ""}, None),
        ("/gone", {}, None),
    ],
    ids=["root", "half", "own", "delegated", "not-of-the-unit", "gone"],
)
def test_groups_are_made_only_where_they_may_have_limits(tmp_path, own, given, expected):
    tree = Tree(tmp_path, own, **given)

    place = usable_place(proc=tree.proc, mount=tree.mount)
    assert place == (None if expected is None else tree.mount / expected)


def test_a_group_has_the_limits_and_says_which_was_hit(tmp_path):
    tree = Tree(tmp_path, "/", **{"": "memory pids"})
    group = tree.make(memory_bytes=2**30, processes=10)
    assert group is not None
    folder = tree.mount / "adw-token"
    group.add(4711)

    assert (folder / "memory.max").read_text() == str(2**30)
    assert (folder / "pids.max").read_text() == "40"
    assert (folder / "cgroup.procs").read_text() == "4711"
    assert group.limit_hit() == ""
    (folder / "pids.events").write_text("max 3\n")
    assert group.limit_hit() == "processes"
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert group.limit_hit() == "memory"
    assert Limits(memory_bytes=8 * 2**30).describe("memory") == "memory limit 8 GiB"


def test_no_group_is_made_for_a_command_without_limits_or_in_a_tree_of_others(tmp_path):
    assert Tree(tmp_path / "a", "/", **{"": "memory pids"}).make() is None
    assert Tree(tmp_path / "b", "/").make(memory_bytes=1) is None
