"""Output in pieces becomes text without secrets, whole lines and a short tail."""

from __future__ import annotations

import pytest

from adws.adw_modules.process.output import CUT_MARK, Lines, OutputStream, Tail
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.redaction.redactor import Redactor

SECRET = "correct-horse-battery"


def stream(lines: list[str], tail: Tail | None = None, redactor: Redactor | None = None) -> OutputStream:
    return OutputStream(
        path=None, redactor=redactor or Redactor(), max_bytes=100, on_line=lines.append, tail=tail or Tail()
    )


@pytest.mark.parametrize("cut", range(1, len(SECRET) + 4))
def test_a_secret_is_hidden_wherever_the_pieces_are_cut(cut):
    text = f"is {SECRET}\n"
    lines: list[str] = []
    tail = Tail()
    output = stream(lines, tail, Redactor([SECRET]))

    output.feed(text[:cut].encode())
    output.feed(text[cut:].encode())
    output.finish()

    assert lines == [f"is {MASK}"]
    assert tail.text == f"is {MASK}\n"


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_letter_that_is_cut_in_two_comes_out_whole(cut):
    payload = "a€\n".encode()
    lines: list[str] = []
    output = stream(lines)

    output.feed(payload[:cut])
    output.feed(payload[cut:])
    output.finish()

    assert lines == ["a€"]


def test_a_letter_that_never_ends_is_replaced():
    lines: list[str] = []
    output = stream(lines)

    output.feed(b"a\xe2\x82")
    output.finish()

    assert lines == ["a�"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (("one\r\ntw", "o\n\nthr", "ee"), ["one", "two", "", "three"]),
        (("one\n",), ["one"]),
        (("abc", "defgh", "ijk\nok\n12345\n"), ["abcde" + CUT_MARK, "ok", "12345"]),
    ],
    ids=["in-pieces", "nothing-after-the-last-break", "without-end"],
)
def test_lines_come_whole_and_without_their_breaks_and_one_without_end_is_cut(pieces, expected):
    result: list[str] = []
    lines = Lines(result.append, limit=5)

    for piece in pieces:
        lines.add(piece)
    lines.close()

    assert result == expected


def test_a_tail_keeps_the_end():
    tail = Tail(5)

    for piece in ("abc", "def", "0123456789"):
        tail.add(piece)

    assert tail.text == "56789"
