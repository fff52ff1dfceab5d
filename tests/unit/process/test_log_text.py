"""The output of attempts: its order, and what comes while it is followed."""

from __future__ import annotations

from adws.adw_modules import attempt_files
from adws.adw_modules.attempt_files import AttemptFile
from adws.cli import logs
from tests.unit.timeline_cases import document, phase, tried


def file(phase, attempt, kind):
    return AttemptFile(phase=phase, attempt=attempt, kind=kind, name=f"phases/{phase}/attempt-{attempt}.{kind}", size=1)


def test_files_come_as_their_attempts_were_begun_and_were_written():
    made = document(phase("plan", tried(1, 0, 9)), phase("build", tried(1, 10, 19), tried(2, 20)))
    files = [
        file("build", 2, "stdout.log"),
        file("build", 1, "gate-10.stdout.log"),
        file("build", 1, "gate-2.stdout.log"),
        file("build", 1, "setup-2.stdout.log"),
        file("build", 1, "setup-1.stderr.log"),
        file("build", 1, "setup-1.stdout.log"),
        file("build", 1, "cleanup.stdout.log"),
        file("build", 1, "stderr.log"),
        file("build", 1, "stdout.log"),
        file("plan", 1, "stdout.log"),
    ]

    ordered = attempt_files.in_order(made, files)

    assert [source.heading for source in ordered] == [
        "== plan, attempt 1, stdout",
        "== build, attempt 1, setup-1.stdout",
        "== build, attempt 1, setup-1.stderr",
        "== build, attempt 1, setup-2.stdout",
        "== build, attempt 1, cleanup.stdout",
        "== build, attempt 1, stdout",
        "== build, attempt 1, stderr",
        "== build, attempt 1, gate-2.stdout",
        "== build, attempt 1, gate-10.stdout",
        "== build, attempt 2, stdout",
    ]


def test_a_tail_gives_whole_lines_once_and_the_rest_at_the_end(tmp_path):
    path = tmp_path / "out"
    tail = logs.FollowedFile(path)

    assert list(tail.lines(is_last=False)) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.lines(is_last=False)) == ["one"]
    with path.open("ab") as out:
        out.write("o\nthr\N{LATIN SMALL LETTER E WITH ACUTE}e".encode())
    assert list(tail.lines(is_last=False)) == ["two"]
    assert list(tail.lines(is_last=True)) == ["thr\N{LATIN SMALL LETTER E WITH ACUTE}e"]
    assert list(tail.lines(is_last=True)) == []


def test_a_file_that_was_put_in_the_place_of_another_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(b"old line\n")
    tail = logs.FollowedFile(path)
    list(tail.lines(is_last=False))

    other = tmp_path / "other"
    other.write_bytes(b"new line, longer than the old one\n")
    other.rename(path)

    assert list(tail.lines(is_last=False)) == ["new line, longer than the old one"]
