"""What `adw db`, `adw db backup` and `adw db restore` say: nothing that a report tells is left out of the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from adws.adw_modules.interfaces import IssueLock
from adws.adw_modules.maintenance.backup import BackupReport, RestoreReport
from adws.adw_modules.maintenance.rebuild import LockConflict, RebuildReport
from adws.cli import maintenance

A, B, C = "aaaaaaaa", "bbbbbbbb", "cccccccc"
CONFLICT = LockConflict(repository="acme/web", issue_number=42, keeper=A, others=(B, C))


def test_a_restore_tells_everything_that_a_person_has_to_know():
    report = RestoreReport(
        workflows=(A, B),
        replaced=(B,),
        events=7,
        has_database=False,
        conflicts=(CONFLICT,),
        unreadable={C: "its document is corrupt: not JSON"},
        untold=(A,),
    )

    assert maintenance.restore_lines(report) == [
        "restored 2 workflows (1 replaced), 7 events",
        f"notice: issue 42 of acme/web is claimed by several: {A} keeps it, not {B}, {C}",
        f"notice: {C} was not restored: its document is corrupt: not JSON",
        f"notice: {A} is restored; an owner took it before its event",
    ]


@pytest.mark.parametrize(
    ("was_missing", "problems", "kept"),
    [
        (True, (), "the log that the lost database left is kept as /x"),
        (False, ("it is torn",), "the old database is kept as /x"),
    ],
)
def test_a_rebuild_tells_what_was_kept_and_what_is_lost(was_missing, problems, kept):
    report = RebuildReport(
        workflows=3,
        locks=2,
        freed=(IssueLock(repository="", issue_number=7, adw_id=C, acquired_at="then"),),
        conflicts=(CONFLICT,),
        events_kept=5,
        events_made=4,
        requests=1,
        runs_made=(A,),
        only_in_database=(A,),
        forgotten=(B,),
        unreadable={C: "torn"},
        problems=problems,
        was_missing=was_missing,
        set_aside="/x",
    )

    lines = maintenance.rebuild_lines(report)

    assert lines[0] == "3 workflows, 2 issue locks, 1 request; 5 events kept, 4 made again from documents"
    for line in (
        kept,
        f"cannot be read, left out: {C}: torn",
        f"has no document, its copy stays: {A}",
        f"was never written, forgotten: {B}",
        f"active without a run, queued again: {A}",
        f"freed issue 7, which {C} had",
        f"issue 42 of acme/web is claimed by several: {A} keeps it, not {B}, {C}",
        *(f"the old database had a problem: {text}" for text in problems),
        *(f"only a backup may still have: {text}" for text in report.lost),
    ):
        assert line in lines
    assert len(lines) == 8 + len(problems) + len(report.lost)


@pytest.mark.parametrize(
    ("name", "form"),
    [("b.tar.gz", ""), ("b.tgz", ""), ("b.zip", "a .tar.gz archive, "), ("b", "a .tar.gz archive, ")],
)
def test_a_backup_is_named_as_it_is_written(name, form):
    report = BackupReport(
        path=Path("/x", name), workflows=1, files=3, events=2, bytes=99, has_database=True, left_out=("odd",), note="n"
    )

    assert maintenance.backup_lines(report) == [
        f"wrote /x/{name} ({form}99 bytes): 1 workflow, 2 events, and the database",
        "left out: odd",
        "note: n",
    ]
