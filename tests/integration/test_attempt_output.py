"""What attempts wrote, read on from where somebody was: nothing twice, nothing left out, nothing endless."""

from __future__ import annotations

import pytest

from adws.adw_modules import attempt_files
from adws.adw_modules.attempt_files import AttemptFiles, Spot, begin, clipped, follow, outputs, spot_in
from adws.adw_modules.errors import UsageError
from tests.unit.timeline_cases import document, phase, tried

DOCUMENT = document(phase("plan", tried(1, 0, 9)), phase("build", tried(1, 60)))


@pytest.fixture
def write(tmp_path):
    """Add text to what an attempt wrote."""

    def add(text: str, phase: str = "plan", attempt: int = 1, kind: str = "stdout.log") -> None:
        files = AttemptFiles(tmp_path, phase, attempt)
        files.make_folder()
        with files.path(kind).open("a") as file:
            file.write(text)

    return add


@pytest.fixture
def log(tmp_path):
    class Log:
        spot: Spot | None = None

        def begin(self, **which) -> str:
            followed = begin(tmp_path, outputs(tmp_path, DOCUMENT), **which)
            self.spot, self.left_out = followed.spot, followed.left_out
            return followed.text

        def more(self, *, has_ended: bool = False) -> str:
            spot = spot_in(str(self.spot))
            followed = follow(tmp_path, outputs(tmp_path, DOCUMENT), spot, has_ended=has_ended)
            self.spot = followed.spot
            return followed.text

    return Log()


def test_where_nothing_was_written_there_is_no_spot(log):
    assert (log.begin(), log.spot) == ("", None)


def test_the_newest_attempt_is_shown_unless_another_is_asked_for(log, write):
    write("the plan\n")
    write("the build\n", "build")

    assert log.begin() == "== build, attempt 1, stdout\nthe build\n"
    assert log.begin(phase="plan", attempt=1) == "== plan, attempt 1, stdout\nthe plan\n"
    assert log.begin(phase="ship") == ""


def test_reading_on_gives_what_came_since_and_nothing_twice(log, write):
    write("one\n")
    log.begin()

    assert log.more() == ""
    write("two\n")
    write("oh\n", kind="stderr.log")
    assert log.more() == "== plan, attempt 1, stdout\ntwo\n== plan, attempt 1, stderr\noh\n"
    assert log.more() == ""


def test_a_line_is_shown_when_it_is_whole_or_nothing_more_comes(log, write):
    write("half a li")

    assert log.begin() == ""
    assert log.more() == ""
    assert log.more(has_ended=True) == "== plan, attempt 1, stdout\nhalf a li\n"


def test_after_the_end_of_an_attempt_comes_the_next_one(log, write):
    write("the plan")
    log.begin()
    write("the build\n", "build")

    assert log.more() == "== plan, attempt 1, stdout\nthe plan\n"
    assert log.more() == "== build, attempt 1, stdout\nthe build\n"
    assert log.more() == ""


def test_of_much_output_the_end_is_shown_from_the_beginning_of_a_line(log, write):
    write("".join(f"line {number}\n" for number in range(20_000)))

    shown = log.begin().splitlines()

    assert shown[-1] == "line 19999"
    assert shown[1].startswith("line 1")
    assert len("\n".join(shown[1:])) < attempt_files.FIRST_BYTES
    assert log.left_out + len("\n".join(shown[1:])) + 1 == sum(len(f"line {n}\n") for n in range(20_000))


def test_a_line_of_a_megabyte_is_clipped_and_read_past(log, write):
    write("x" * (1 << 20))
    first = log.begin()

    assert len(first) < attempt_files.LINE_CHARACTERS + 100
    write("\nthe next\n")
    rest = log.more()
    assert len(rest) < 2 * attempt_files.LINE_CHARACTERS
    assert rest.endswith("the next\n")


def test_a_long_file_is_read_in_parts_until_its_end(log, write, monkeypatch):
    monkeypatch.setattr(attempt_files, "PART_BYTES", 16)
    log.spot = Spot(phase="plan", attempt=1)
    write("".join(f"line {number}\n" for number in range(9)))

    read = ""
    while more := log.more():
        read += more.partition("\n")[2]

    assert read == "".join(f"line {number}\n" for number in range(9))


def test_output_that_was_forgotten_gives_nothing(log):
    log.spot = Spot(phase="plan", attempt=1)

    assert log.more() == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plan",
        "plan~0",
        "../x~1",
        "plan~1~stdout",
        "plan~1~stdout:-1",
        "plan~1~../x:1",
        f"plan~1~a:{'9' * 16}",
        "~1",
    ],
)
def test_a_spot_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="no place in the output"):
        spot_in(text)


def test_long_lines_are_clipped_and_say_how_much_is_left_out():
    assert clipped("a\n" + "b" * 4010) == "a\n" + "b" * 4000 + " [10 more]\n"
