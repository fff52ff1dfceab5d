"""
The output of a process: bytes in; redacted text out to a file, a line reader and a short tail.

Invalid UTF-8 is replaced, a secret split across two chunks is still found, a file stops growing at its limit and says
so, and an endless line is cut.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path

from adws.adw_modules.durable_file import NEW_FILE_MODE
from adws.adw_modules.redaction.redactor import Redactor, StreamRedactor

#: Longest line that is passed on, in characters.
MAX_LINE = 1_000_000
#: Length of the kept tail, in characters.
TAIL_LENGTH = 8192
#: Appended to a line that was cut.
CUT_MARK = " [adw: the rest of this line is left out]"

_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Tail:
    """The last characters of a text that arrives in pieces."""

    def __init__(self, length: int = TAIL_LENGTH) -> None:
        self._length = length
        self._text = ""

    def add(self, text: str) -> None:
        """Append *text*."""
        self._text = (self._text + text[-self._length :])[-self._length :]

    @property
    def text(self) -> str:
        """The characters kept."""
        return self._text


class Lines:
    """Joins pieces of text into whole lines and passes each to *on_line*, without its line break."""

    def __init__(self, on_line: Callable[[str], None], *, limit: int = MAX_LINE) -> None:
        self._on_line = on_line
        self._limit = limit
        self._parts: list[str] = []
        self._length = 0
        self._is_cut = False

    def add(self, text: str) -> None:
        """Take the next piece."""
        *whole, rest = text.split("\n")
        for part in whole:
            self._take(part)
            self._hand_on()
        self._take(rest)

    def close(self) -> None:
        """Pass on a last line that has no line break."""
        if self._length:
            self._hand_on()

    def _take(self, part: str) -> None:
        kept = part[: self._limit - self._length]
        self._is_cut = self._is_cut or len(kept) < len(part)
        if kept:
            self._parts.append(kept)
            self._length += len(kept)

    def _hand_on(self) -> None:
        line = "".join(self._parts).removesuffix("\r") + (CUT_MARK if self._is_cut else "")
        self._parts, self._length, self._is_cut = [], 0, False
        self._on_line(line)


class CappedFile:
    """A file that takes *max_bytes*; the rest is left out except for a note and the last part, added at close."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self._fd = os.open(path, _FILE_FLAGS, NEW_FILE_MODE)
        self._room = max_bytes
        self._left_out = 0
        self._tail = Tail()

    def add(self, text: str) -> None:
        """Write *text* as far as the limit allows."""
        payload = text.encode("utf-8", "replace")
        if self._left_out == 0 and len(payload) <= self._room:
            self._write(payload)
            self._room -= len(payload)
            return
        if self._left_out == 0:
            fitting = payload[: self._room].decode("utf-8", "ignore")  # without a character that is cut in two
            self._write(fitting.encode())
            text = text[len(fitting) :]
        self._left_out += len(text.encode("utf-8", "replace"))
        self._tail.add(text)

    def close(self) -> None:
        """Write the note and the tail if text was left out, and close the file."""
        try:
            if self._left_out:
                shown = self._tail.text.encode()
                hidden = max(0, self._left_out - len(shown))
                self._write(
                    b"\n[adw: the limit of this file is reached; %d bytes are left out, then comes the end]\n" % hidden
                )
                self._write(shown)
        finally:
            os.close(self._fd)

    def _write(self, payload: bytes) -> None:
        left = memoryview(payload)
        while left:
            left = left[os.write(self._fd, left) :]


class OutputStream:
    """Passes one output of a process to its file, its line reader and its tail."""

    def __init__(
        self,
        *,
        path: Path | None,
        redactor: Redactor,
        max_bytes: int,
        on_line: Callable[[str], None],
        tail: Tail,
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._scrub = StreamRedactor(redactor)
        self._file = CappedFile(path, max_bytes=max_bytes) if path else None
        self._lines = Lines(on_line)
        self._tail = tail

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._pass_on(self._scrub.feed(self._decoder.decode(chunk)))

    def finish(self) -> None:
        """Pass on the text that was held back; nothing may follow."""
        self._pass_on(self._scrub.feed(self._decoder.decode(b"", final=True)) + self._scrub.close())
        self._lines.close()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
            self._file = None

    def _pass_on(self, text: str) -> None:
        if not text:
            return
        if self._file:
            self._file.add(text)
        self._tail.add(text)
        self._lines.add(text)
