"""Limits of memory and processes by the kernel, below a control group that was delegated to an ordinary user."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adws.adw_modules.process.cgroup import MOUNT
from tests.integration import other_user


def why_missing() -> str:
    if reason := other_user.why_impossible():
        return reason
    try:
        offered = set((MOUNT / "cgroup.controllers").read_text().split())
    except OSError:
        return "no cgroup v2 is mounted at /sys/fs/cgroup"

    return "" if {"memory", "pids"} <= offered else "the controllers memory and pids are not of cgroup v2 here"


@pytest.fixture
def group() -> Iterator[Path]:
    """The group of a service, as `Delegate=memory pids` and `DelegateSubgroup=worker` leave it: nothing is enabled."""
    if reason := why_missing():
        pytest.skip(reason)
    (MOUNT / "cgroup.subtree_control").write_text("+memory +pids")
    place = MOUNT / f"adw-test-{os.getpid()}.service"
    (place / "worker").mkdir(parents=True)
    for own in (place, place / "worker"):
        for path in (own, *(own / f"cgroup.{name}" for name in ("procs", "threads", "subtree_control"))):
            shutil.chown(path, other_user.UID, other_user.UID)
    (place / "worker" / "cgroup.procs").write_text(
        str(os.getpid())
    )  # all that is started from here on is of the service
    yield place
    (MOUNT / "cgroup.procs").write_text(str(os.getpid()))
    for left in (*(path for path in place.iterdir() if path.is_dir()), place):
        with contextlib.suppress(OSError):
            left.rmdir()


@pytest.mark.parametrize(
    ("kind", "said"),
    [("memory", "memory limit 64 MiB"), ("processes", "process limit 20")],
    ids=["memory", "processes"],
)
def test_the_kernel_enforces_limits_below_a_delegated_group(group, kind, said):
    with other_user.open_place() as place:
        driver = (sys.executable, "-m", "tests.integration.control_group_driver", kind)
        result = json.loads(other_user.run(place, other_user.USER, *driver).splitlines()[-1])

    assert result["place"] == str(group), "adw makes its groups there"
    assert result["exceeded"] == said, result
    assert result["left"] == ["worker"], "the group of the command is removed"
    assert result["survivors"] == []
