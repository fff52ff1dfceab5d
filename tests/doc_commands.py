"""
The commands that pages show: found in their blocks and in their text, so that tests can parse and run them.

A block `sh` is typed as it stands. In a block `console` the lines behind `$ ` are typed; the others are what is shown.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = [ROOT / "examples" / f"{name}.md" for name in ("external_task", "own_agent", "sql", "steps")]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *EXAMPLES])

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(adw [^`]+)`")


@dataclass(frozen=True)
class Block:
    """Something to be typed."""

    page: str
    language: str
    text: str

    @property
    def typed(self) -> str:
        """What is typed of it."""
        if self.language != "console":
            return self.text
        return "".join(f"{line[2:]}\n" for line in self.text.splitlines() if line.startswith("$ "))


def name_of(page: Path) -> str:
    """Return a page's name, such as docs/operations.md."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the blocks of *page*, whatever they hold."""
    return [
        Block(page=name_of(page), language=item[2], text=re.sub(f"^{item[1]}", "", item[3], flags=re.MULTILINE))
        for item in _BLOCK.finditer(page.read_text())
    ]


def shell_blocks(page: Path) -> list[Block]:
    """Return the blocks of *page* that are typed."""
    return [block for block in blocks(page) if block.language in {"sh", "console"}]


def adw_commands(page: Path) -> list[list[str]]:
    """Return the words after `adw` of every command that *page* shows, in blocks and in its text."""
    text = page.read_text()
    shown = [line for block in shell_blocks(page) for line in _lines(block.typed)]
    prose = _BLOCK.sub("", text)
    shown += [" ".join(item.split()) for item in _INLINE.findall(prose)]
    return [words[1:] for line in shown if (words := _words(line)) and words[0] == "adw"]


def texts(page: Path) -> list[str]:
    """Return what *page* says: each line of its blocks that is typed, and its text without them, joined to one line."""
    prose = _BLOCK.sub("", page.read_text())
    typed = [line for block in shell_blocks(page) for line in _lines(block.typed)]
    return [*typed, *(" ".join(part.split()) for part in re.split(r"\n(?=\n|[|#-])", prose))]


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("adw ")]


def _words(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    for end in ("|", ">", ">>", "&", "&&", "||", ";"):
        if end in words:
            words = words[: words.index(end)]
    return words
