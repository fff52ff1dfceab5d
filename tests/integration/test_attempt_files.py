"""The files of attempts are numbered, private, and never links."""

from __future__ import annotations

import os
import stat

import pytest

from adws.adw_modules.attempt_files import AttemptFiles, list_files, read_tail
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.errors import UnsafePath, UsageError
from adws.adw_modules.process.output import CappedFile


@pytest.fixture
def files(tmp_path):
    made = AttemptFiles(tmp_path, "build", 2)
    made.make_folder()
    return made


def test_names_say_phase_and_attempt(files, tmp_path):
    assert files.relative(files.stdout) == "phases/build/attempt-2.stdout.log"
    assert files.relative(files.stderr) == "phases/build/attempt-2.stderr.log"
    assert files.relative(files.result) == "phases/build/attempt-2.result.json"


def test_directories_and_files_are_for_their_owner_alone(files, tmp_path):
    path = files.write("issue.json", b"{}")

    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "phases", path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("phase", ["", ".", "..", "a/b", "../x", ".hidden", "a\0b", "x" * 200, "a b"])
def test_a_phase_that_could_lead_elsewhere_is_refused(tmp_path, phase):
    with pytest.raises(UsageError):
        AttemptFiles(tmp_path, phase, 1)


@pytest.mark.parametrize("kind", ["", "../x", "A.log", "x/y", ".log", "a."])
def test_an_ending_that_could_lead_elsewhere_is_refused(files, kind):
    with pytest.raises(UsageError):
        files.path(kind)


def test_attempts_are_counted_from_1(tmp_path):
    with pytest.raises(UsageError):
        AttemptFiles(tmp_path, "build", 0)


@pytest.mark.parametrize("name", ["phases", "phases/build"])
def test_a_link_in_place_of_the_directory_is_refused(tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(elsewhere)

    with pytest.raises(UnsafePath):
        AttemptFiles(tmp_path, "build", 1).make_folder()


def test_writing_replaces_a_link_and_leaves_its_target_alone(files, tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    files.path("issue.json").symlink_to(target)

    files.write("issue.json", b"{}")

    assert target.read_text() == "precious"
    assert files.read("issue.json", max_bytes=10) == b"{}"


def test_what_is_not_there_is_none_and_what_is_too_large_is_refused(files):
    assert files.read("result.json", max_bytes=10) is None
    files.write("result.json", b"x" * 11)

    with pytest.raises(TooLarge):
        files.read("result.json", max_bytes=10)


def test_a_link_or_a_pipe_as_result_is_refused(files, tmp_path):
    files.result.symlink_to(tmp_path / "target")
    with pytest.raises(UnsafePath):
        files.read("result.json", max_bytes=10)
    files.discard("result.json")
    os.mkfifo(files.result)
    with pytest.raises(UnsafePath):
        files.read("result.json", max_bytes=10)


def test_all_files_of_attempts_are_listed_in_order_and_nothing_else(tmp_path):
    for phase, attempt, kind in [("test", 1, "stdout.log"), ("build", 10, "stdout.log"), ("build", 9, "result.json")]:
        files = AttemptFiles(tmp_path, phase, attempt)
        files.make_folder()
        files.write(kind, b"12345")
    (tmp_path / "phases/build/notes.txt").write_text("x")
    (tmp_path / "phases/build/attempt-3.stdout.log").symlink_to("/etc/passwd")
    (tmp_path / "phases/linked").symlink_to("/etc")

    assert [file.name for file in list_files(tmp_path)] == [
        "phases/build/attempt-9.result.json",
        "phases/build/attempt-10.stdout.log",
        "phases/test/attempt-1.stdout.log",
    ]
    assert {file.size for file in list_files(tmp_path)} == {5}
    assert AttemptFiles(tmp_path, "build", 1).existing() == ()
    assert AttemptFiles(tmp_path, "build", 10).existing() == ("phases/build/attempt-10.stdout.log",)


def test_a_workflow_without_attempts_has_no_files(tmp_path):
    assert list_files(tmp_path) == ()


def test_the_tail_begins_at_a_line(files, tmp_path):
    files.write("stdout.log", b"first line\nsecond line\nthird\n")
    name = files.relative(files.stdout)

    assert read_tail(tmp_path, name) == "first line\nsecond line\nthird\n"
    assert read_tail(tmp_path, name, max_bytes=9) == "third\n"
    assert read_tail(tmp_path, name, max_bytes=3) == "rd\n"


@pytest.mark.parametrize("name", ["adw_state.json", "phases/../../x", "/etc/passwd", "phases/build/notes.txt", ""])
def test_the_tail_of_other_files_is_not_read(tmp_path, name):
    with pytest.raises(UnsafePath):
        read_tail(tmp_path, name)


def test_a_full_file_ends_with_a_note_and_the_last_words(tmp_path):
    file = CappedFile(tmp_path / "out", max_bytes=10)

    file.add("12345")
    file.add("678€€€")
    file.add("the end\n")
    file.close()

    note = "\n[adw: the limit of this file is reached; 0 bytes are left out, then comes the end]\n"
    assert (tmp_path / "out").read_bytes().startswith(b"12345678")
    assert note in (tmp_path / "out").read_text()
    assert (tmp_path / "out").read_text().endswith("€€the end\n")


def test_what_is_neither_at_the_beginning_nor_at_the_end_is_counted(tmp_path):
    file = CappedFile(tmp_path / "out", max_bytes=10)

    file.add("x" * 20_010)
    file.close()

    assert f"; {20_000 - 8192} bytes are left out, then comes the end]" in (tmp_path / "out").read_text()


def test_a_file_that_is_not_full_has_no_note(tmp_path):
    file = CappedFile(tmp_path / "out", max_bytes=10)

    file.add("1234567890")
    file.close()

    assert (tmp_path / "out").read_text() == "1234567890"
