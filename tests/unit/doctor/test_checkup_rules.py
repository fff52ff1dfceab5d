"""What the facts of `adw doctor` mean: how bad it is, and how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.db import sqlite
from adws.adw_modules.forge.model import ForgeAccess
from adws.adw_modules.maintenance.check import Inconsistency
from adws.doctor import checks
from adws.doctor.checks import OK, PROBLEM, WARNING, Finding, count

GIB = 2**30
BASE = {
    checks.python: {"version": (3, 11, 7), "has_proc": True},
    checks.clock: {"year": 2026},
    checks.ports: {"described": "9100 to 9114", "count": 15, "free": 14, "reserved": 1},
    checks.disk: {
        "where": "worktrees in /w",
        "free_bytes": 50 * GIB,
        "least_bytes": 10 * GIB,
        "free_inodes": 10**6,
        "all_inodes": 10**7,
    },
    checks.file_system: {"path": Path("/s"), "kind": "ext4", "has_sqlite": True},
    checks.github: {"repository": "acme/shop"},
    checks.database: {"name": "sqlite:////s/adw.db", "schema": "0012", "troubles": ()},
}
ACCESS = {"login": "ada", "may_push": True, "scopes": ("repo",), "requests_left": 4999}


def judged(judge, facts: dict) -> list[Finding]:
    known = {**BASE[judge], **facts}
    if judge is checks.github:
        known = {name: known.pop(name) for name in ("repository", "pushes_workflow_files") if name in known} | {
            "access": ForgeAccess(**{**ACCESS, **known})
        }
    result = judge(**known)
    return [result] if isinstance(result, Finding) else list(result)


@pytest.mark.parametrize(
    ("judge", "facts"),
    [
        *((judge, {}) for judge in BASE),
        (checks.disk, {"all_inodes": 0, "free_inodes": 0}),
        (checks.file_system, {"kind": ""}),
        (checks.clock, {"skews": (("GitHub", 0.6), ("the database", -0.2))}),
        (checks.ports, {"count": 1, "free": 1, "reserved": 0}),
        (checks.github, {"scopes": None, "may_push": None, "requests_left": None}),
        (checks.github, {"scopes": ("public_repo",)}),
    ],
)
def test_what_is_well_is_told_and_needs_nothing(judge, facts):
    result = judged(judge, facts)

    assert result
    assert {(one.level, one.fix) for one in result} == {(OK, "")}


@pytest.mark.parametrize(
    ("judge", "facts", "level", "what", "fix"),
    [
        (checks.python, {"version": (3, 9, 2)}, PROBLEM, "Python 3.9.2 is too old", "install Python"),
        (checks.python, {"has_proc": False}, WARNING, "no processes in /proc", "use Linux"),
        (checks.disk, {"free_bytes": 9 * GIB}, PROBLEM, "no work starts below 10 GB", "adw admin gc"),
        (checks.disk, {"free_bytes": 11 * GIB}, WARNING, "11 GB free", "quota.min_free_disk"),
        (checks.disk, {"free_inodes": 100}, WARNING, "100 inodes left", "adw admin gc"),
        (checks.disk, {"free_inodes": 0}, PROBLEM, "0 inodes left", "adw admin gc"),
        (checks.file_system, {"kind": "tmpfs"}, WARNING, "gone after a restart", "set state.dir"),
        (checks.file_system, {"kind": "overlay"}, WARNING, "gone with the container", "mount a volume"),
        (checks.file_system, {"kind": "nfs4"}, PROBLEM, "where SQLite loses data", "PostgreSQL"),
        (checks.file_system, {"kind": "nfs4", "has_sqlite": False}, WARNING, "syncs may not hold", "local disk"),
        (checks.file_system, {"kind": "9p"}, WARNING, "locks and syncs may not hold", "local disk"),
        (checks.clock, {"year": 1970}, PROBLEM, "the year 1970", "timedatectl"),
        (checks.clock, {"goes_back": True}, PROBLEM, "goes back", "restart"),
        (checks.clock, {"skews": (("GitHub", 7.0),)}, WARNING, "7 s ahead of that of GitHub", "time"),
        (checks.clock, {"skews": (("GitHub", -90.0),)}, PROBLEM, "90 s behind that", "timedatectl"),
        (checks.ports, {"free": 0}, PROBLEM, "0 of 15 pairs free", "adw admin ports"),
        (checks.ports, {"free": 2}, WARNING, "2 of 15 pairs free", "ports.backend_start"),
        (checks.github, {"may_push": False}, PROBLEM, "ada may not push branches in", "write access"),
        (
            checks.github,
            {"may_push": False, "may_write_issues": False},
            PROBLEM,
            "may not push branches or write issues and comments",
            "write access",
        ),
        (checks.github, {"scopes": ()}, PROBLEM, "scopes none, and needs public_repo or repo", "token"),
        (
            checks.github,
            {"scopes": ("public_repo",), "is_private": True},
            PROBLEM,
            "and needs repo",
            "ADW_GITHUB_TOKEN",
        ),
        (checks.github, {"pushes_workflow_files": True}, PROBLEM, "not the scope workflow", "token"),
        (checks.github, {"requests_left": 3}, WARNING, "3 more requests this hour", "wait"),
    ],
)
def test_what_is_not_well_says_what_is_wrong_and_how_to_fix_it(judge, facts, level, what, fix):
    (result,) = [one for one in judged(judge, facts) if one.level != OK]

    assert result.level == level
    assert what in result.what
    assert fix in result.fix


# --- the database ----------------------------------------------------------------------------------------------


def trouble(kind: str, text: str = "it is wrong", adw_id: str = "") -> Inconsistency:
    return Inconsistency(kind=kind, text=text, hint="do this", adw_id=adw_id)


@pytest.mark.parametrize(
    ("kind", "area", "level"),
    [
        ("storage", "database", PROBLEM),
        ("moved", "database", PROBLEM),
        ("schema", "database", WARNING),
        ("document", "database", PROBLEM),
        ("copy", "database", WARNING),
        ("lock", "locks", PROBLEM),
        ("owner", "locks", WARNING),
        ("run", "locks", WARNING),
        ("delivery", "database", WARNING),
    ],
)
def test_each_trouble_of_the_database_has_its_area_and_its_hint(kind, area, level):
    troubles = (trouble(kind, adw_id="1a2b3c4d"),)

    (result,) = [one for one in judged(checks.database, {"troubles": troubles}) if one.level != OK]

    assert result == Finding(area=area, level=level, what="1a2b3c4d: it is wrong", fix="do this")


@pytest.mark.parametrize("kind", ["storage", "schema", "moved"])
def test_locks_are_not_called_well_when_nobody_could_look(kind):
    assert "locks" not in {one.area for one in judged(checks.database, {"troubles": (trouble(kind),)})}


def test_the_worst_troubles_are_told_first_and_the_rest_is_counted():
    troubles = (*(trouble("owner", f"{number}") for number in range(6)), trouble("lock", "locked"))

    *told, rest = [one for one in judged(checks.database, {"troubles": troubles}) if one.area == "locks"]

    assert [one.what for one in told] == ["locked", "0", "1", "2", "3"]
    assert (rest.what, rest.fix) == ("2 more like these", "adw db check")


def test_findings_are_counted_by_level_and_told_to_programs():
    result = [Finding(area="git", level=PROBLEM, what="x", fix="y"), Finding(area="git", level=OK, what="z")]

    assert (count(result, PROBLEM), count(result, WARNING)) == (1, 0)
    assert result[0].to_json() == {"area": "git", "level": "problem", "what": "x", "fix": "y"}


# --- file systems ----------------------------------------------------------------------------------------------

MOUNTS = r"""
22 28 0:21 / / rw - ext4 /dev/sda1 rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:27 / /mnt/my\040disk rw - nfs4 server:/x rw
32 22 0:28 / /tmp rw - xfs /dev/sdb rw
no mount at all
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/ada", "ext4"), ("/tmp/x", "xfs"), ("/mnt/my disk/x", "nfs4"), ("/tmpfile", "ext4")],
    ids=["root", "the-later-mount-is-on-top", "space", "name-that-begins-so"],
)
def test_a_path_is_on_the_file_system_of_the_nearest_mount(path, kind):
    assert sqlite.file_system_of(Path(path), MOUNTS) == kind


def test_without_a_table_of_mounts_nothing_is_known():
    assert sqlite.file_system_of(Path("/x"), "") == ""
