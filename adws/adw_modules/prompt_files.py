"""
Where prompts are: those of the user in the home, and those that come with adw.

A prompt is looked for by its name, `<home>/prompts/<name>.md` first; what names a file is that file, below the home. It
is read again for every attempt, so that a correction counts at once; never from a worktree, which an agent can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

from adws.adw_modules import prompt_text
from adws.adw_modules.errors import UsageError

#: Directory of the user's prompts, below the home.
FOLDER = "prompts"
#: Most bytes of a prompt.
MAX_BYTES = 256 * 1024
#: Where the prompts are that come with adw.
PACKAGE = "adws.prompts"
#: Their names: the eight phases, and the small change that a comment asks for.
DEFAULTS = ("plan", "build", "lint", "test", "review", "document", "ship", "clean", "patch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A template, and where it stands."""

    name: str
    text: str
    source: str  #: a path, or `adw` for one that comes with it


class PromptFiles:
    """The prompts of one home."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def has(self, name: str) -> bool:
        """Say whether there is a prompt called *name*, whatever is in it."""
        return self._own(name) is not None or name in DEFAULTS

    def problem(self, name: str) -> str:
        """Return what is wrong with the prompt called *name*, "" when nothing is."""
        try:
            found = self.read(name)
        except UsageError as exc:
            return str(exc)
        wrong = "; ".join(prompt_text.problems_of(found.text))

        return f"the prompt {found.source} cannot be used: {wrong}" if wrong else ""

    def read(self, name: str) -> Prompt:
        """Return the prompt called *name*; raise UsageError when there is none, or when it cannot be read."""
        path = self._own(name)
        if path is not None:
            return Prompt(name=name, text=_read(path), source=str(path))
        if name in DEFAULTS:
            return Prompt(name=name, text=self.shipped(name), source="adw")

        raise UsageError(
            f"there is no prompt {name!r}: write {self._home / FOLDER / f'{name}.md'}, or name one of "
            f"{', '.join(DEFAULTS)}"
        )

    @staticmethod
    def shipped(name: str) -> str:
        """Return the text of a prompt that comes with adw, one of DEFAULTS."""
        return (resources.files(PACKAGE) / f"{name}.md").read_text(encoding="utf-8")

    def _own(self, name: str) -> Path | None:
        """Return the user's file for *name*, None when there is none."""
        pure = PurePosixPath(name)
        if not name or "\0" in name or ".." in pure.parts:
            return None
        places = [self._home / FOLDER / f"{name}.md", self._home / name]

        return next((place for place in places if place.is_file()), None)


def _read(path: Path) -> str:
    try:
        payload = path.read_bytes()
        text = payload.decode("utf-8")
    except OSError as exc:
        raise UsageError(f"the prompt {path} cannot be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"the prompt {path} is no UTF-8 text: save it as one") from exc
    if len(payload) > MAX_BYTES:
        raise UsageError(f"the prompt {path} has {len(payload)} bytes, the limit is {MAX_BYTES}: make it shorter")
    if not text.strip():
        raise UsageError(f"the prompt {path} is empty: write what the agent shall do")

    return text
