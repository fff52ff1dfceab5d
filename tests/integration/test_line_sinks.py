"""Rows in files: each part once, torn ends cut and written again, and nothing of the user is ever cut."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adws.adw_modules.errors import DatabaseUnavailable, SinkRefused, UnsafePath
from adws.adw_modules.steps.sinks import LEDGERS, LineFiles, SinkLedger
from tests import forked


@pytest.fixture
def files() -> Iterator[LineFiles]:
    made = LineFiles()
    yield made
    made.close()


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_part_is_in_the_file_once_however_often_it_is_saved(files, tmp_path):
    rows = [{"id": 1}, {"id": 2}]
    saved = [files.save(rows, root=tmp_path, path="out/rows.jsonl", sink_key="e#0#1") for _ in range(3)]
    files.save([{"id": 3}], root=tmp_path, path="out/rows.jsonl", sink_key="e#0#2")

    assert saved == [True, False, False]
    assert _read(tmp_path / "out" / "rows.jsonl") == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_csv_file_has_its_header_once_and_its_columns_are_fixed(files, tmp_path):
    files.save([{"id": 1, "name": "a,b"}], root=tmp_path, path="t.csv", sink_key="e#0#1", delimiter=",")
    files.save([{"name": "x\ny"}, {"id": 2}], root=tmp_path, path="t.csv", sink_key="e#1#1", delimiter=",")

    with pytest.raises(SinkRefused, match=r"t\.csv has no column age \(it has id, name\)"):
        files.save([{"id": 3, "age": 1}], root=tmp_path, path="t.csv", sink_key="e#2#1", delimiter=",")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["id", "name"], ["1", "a,b"], ["", "x\ny"], ["2", ""]]


def test_git_does_not_see_the_ledger(files, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    files.save([{"id": 1}], root=tmp_path, path="rows.jsonl", sink_key="e#0#1")

    result = subprocess.run(
        ["git", "-C", tmp_path, "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True
    )
    assert result.stdout == "?? rows.jsonl\n"


def _intend(root: Path, key: str, start: int, payload: bytes) -> None:
    """Leave what a writer leaves that vanished after it had written down what it was about to do."""
    import hashlib

    (root / LEDGERS).mkdir(exist_ok=True)
    ledger = SinkLedger(root / LEDGERS / "rows.jsonl.db")
    part = (key, start, len(payload), hashlib.sha256(payload).hexdigest())
    ledger.run("INSERT INTO parts (sink_key, start, length, sha256) VALUES (?, ?, ?, ?)", *part)
    ledger.close()


@pytest.mark.parametrize("written", [0, 1, 5, 10], ids=["nothing", "one-byte", "half", "all-but-the-end"])
def test_a_torn_end_is_cut_and_written_again(files, tmp_path, written):
    path, payload = tmp_path / "rows.jsonl", b'{"id":2}\n\n\n'
    path.write_bytes(b'{"id":1}\n' + payload[:written])
    _intend(tmp_path, "e#1#1", 9, payload)

    files.save([{"id": 3}], root=tmp_path, path="rows.jsonl", sink_key="e#2#1")
    files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1")

    assert _read(path) == [{"id": 1}, {"id": 3}, {"id": 2}]


def test_a_part_that_is_whole_is_kept_though_nobody_said_so(files, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id":1}\n{"id":2}\n')
    _intend(tmp_path, "e#1#1", 9, b'{"id":2}\n')

    assert files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1") is False
    assert _read(path) == [{"id": 1}, {"id": 2}]


def test_what_somebody_wrote_behind_a_torn_part_is_not_cut(files, tmp_path):
    path = tmp_path / "rows.jsonl"
    before = b'{"id":1}\n{"i' + b'{"mine": "and this is longer than the part was"}\n'
    path.write_bytes(before)
    _intend(tmp_path, "e#1#1", 9, b'{"id":2}\n')

    with pytest.raises(SinkRefused, match=r"rows\.jsonl was changed while a part of it .* \(at byte 9\)"):
        files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1")
    assert path.read_bytes() == before


def test_a_file_that_was_emptied_or_edited_by_hand_is_gone_on_with(files, tmp_path):
    path = tmp_path / "rows.jsonl"
    files.save([{"id": 1}, {"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#0#1")
    path.write_text('{"id":1, "by": "hand"}')  # without an end of the line
    files.save([{"id": 3}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1")
    _intend(tmp_path, "e#2#1", 10_000, b"x")  # the file was cut to less than where this began
    files.save([{"id": 4}], root=tmp_path, path="rows.jsonl", sink_key="e#3#1")

    assert _read(path) == [{"id": 1, "by": "hand"}, {"id": 3}, {"id": 4}]


def test_a_file_that_was_moved_away_begins_anew(files, tmp_path):
    files.save([{"id": 1}], root=tmp_path, path="rows.jsonl", sink_key="e#0#1")
    (tmp_path / "rows.jsonl").rename(tmp_path / "old.jsonl")
    files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1")
    (tmp_path / LEDGERS / "rows.jsonl.db").unlink()  # and a ledger that is gone is made again
    files.save([{"id": 3}], root=tmp_path, path="rows.jsonl", sink_key="e#2#1")

    assert _read(tmp_path / "rows.jsonl") == [{"id": 2}, {"id": 3}]


def test_a_file_that_is_moved_away_while_its_lock_is_waited_for_is_left_alone(files, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id":1}\n')
    real = fcntl.flock

    def moved(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not (tmp_path / "old.jsonl").exists():
            path.rename(tmp_path / "old.jsonl")
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", moved)
    files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1")

    assert (_read(tmp_path / "old.jsonl"), _read(path)) == ([{"id": 1}], [{"id": 2}])


@pytest.mark.parametrize("path", ["/etc/rows.jsonl", "../rows.jsonl", "a/../../rows.jsonl", "", "~/x"])
def test_a_path_outside_of_the_working_directory_is_refused(files, tmp_path, path):
    with pytest.raises(SinkRefused, match="path"):
        files.save([{"id": 1}], root=tmp_path, path=path, sink_key="e#0#1")


def test_no_link_is_followed(files, tmp_path):
    root, outside = tmp_path / "work", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "rows.jsonl").symlink_to(outside / "target")
    (root / "folder").symlink_to(outside)
    (root / LEDGERS).symlink_to(outside)
    os.mkfifo(root / "fifo")

    with pytest.raises(UnsafePath, match=r"rows\.jsonl cannot be written"):
        files.save([{"id": 1}], root=root, path="rows.jsonl", sink_key="e#0#1")
    with pytest.raises(SinkRefused, match="by a link"):
        files.save([{"id": 1}], root=root, path="folder/rows.jsonl", sink_key="e#0#1")
    with pytest.raises(SinkRefused, match="is a link: move it away"):
        files.save([{"id": 1}], root=root, path="other.jsonl", sink_key="e#0#1")
    with pytest.raises(UnsafePath, match="not a regular file"):
        files.save([{"id": 1}], root=root, path="fifo", sink_key="e#0#1")
    assert list(outside.iterdir()) == []


def test_a_ledger_that_cannot_be_read_is_named(files, tmp_path):
    (tmp_path / LEDGERS).mkdir()
    (tmp_path / LEDGERS / "rows.jsonl.db").write_bytes(b"no database, and long enough to be seen as none" * 50)

    with pytest.raises(DatabaseUnavailable, match=r"rows\.jsonl\.db, which knows what the file beside it holds"):
        files.save([{"id": 1}], root=tmp_path, path="rows.jsonl", sink_key="e#0#1")


def test_many_processes_save_to_one_file_and_each_part_is_there_once_and_whole(files, tmp_path):
    files.save([{"key": "first"}], root=tmp_path, path="rows.jsonl", sink_key="first")

    def work() -> None:
        own = LineFiles()
        for number in range(12):
            rows = [{"key": number, "row": row, "filler": "x" * 3000} for row in range(3)]
            own.save(rows, root=tmp_path, path="rows.jsonl", sink_key=f"e#{number}#1")

    children = [forked.start(work) for _ in range(4)]

    assert [forked.is_well(child) for child in children] == [True] * 4
    result = [(row["key"], row["row"]) for row in _read(tmp_path / "rows.jsonl")[1:]]
    assert sorted(result) == [(number, row) for number in range(12) for row in range(3)]
    assert [result[start : start + 3] for start in range(0, 36, 3)] == [
        [(key, 0), (key, 1), (key, 2)] for key, _ in result[::3]
    ]


def test_a_forked_child_opens_ledgers_of_its_own(files, tmp_path):
    files.save([{"id": 1}], root=tmp_path, path="rows.jsonl", sink_key="e#0#1")
    child = forked.start(lambda: files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1") and None)

    assert forked.is_well(child)
    assert files.save([{"id": 2}], root=tmp_path, path="rows.jsonl", sink_key="e#1#1") is False
