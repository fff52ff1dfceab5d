"""
What an agent gives back: a file in a place of its own, or an object at the end of its last answer.

It fails closed: a result that was asked for and does not say whether the phase reached what it is for counts as none.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.agent import AgentReading
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine.gates import VERDICT_KEYS
from adws.adw_modules.engine.runners.phase_result import MAX_RESULT_BYTES, bad_result, parse_result
from adws.adw_modules.errors import UnsafePath
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.json_value import JsonObject

#: Longest line of a summary.
MAX_LINE = 200

_BLOCK = re.compile(r"^```json[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFolder:
    """A directory that the agent may write to, apart from the files of adw: a sandbox can be opened for it alone."""

    path: Path

    @classmethod
    def make(cls, files: AttemptFiles) -> AgentFolder:
        """Return the folder of an attempt, without a result in it."""
        folder = cls(path=files.path("agent"))
        durable_file.make_directory(str(folder.path))
        if folder.path.is_symlink() or not folder.path.is_dir():
            raise UnsafePath(f"{folder.path} is not a directory of its own: move it away, adw makes it again")
        with contextlib.suppress(FileNotFoundError):
            folder.result.unlink()

        return folder

    @property
    def result(self) -> Path:
        """Where the agent writes its result."""
        return self.path / "result.json"

    def keep(self, files: AttemptFiles) -> None:
        """Take the result over into the files of the attempt, if there is one; raise RunFailed."""
        try:
            payload = durable_file.read_file(str(self.result), max_bytes=MAX_RESULT_BYTES)[0]
        except FileNotFoundError:
            return
        except (TooLarge, UnsafePath, OSError) as exc:
            raise bad_result(str(exc)) from exc
        finally:
            with contextlib.suppress(OSError):  # nobody reads it any more, and secrets may stand in it
                self.result.unlink()

        files.write("result.json", payload)


def answered_result(reading: AgentReading) -> JsonObject:
    """Return the object that the agent's last answer ends with, {} when it has none; raise RunFailed."""
    if reading.structured is not None:
        return reading.structured
    blocks = _BLOCK.findall(reading.text)

    return parse_result(blocks[-1].encode()) if blocks else {}


def verdict_problem(result: JsonObject) -> FailedRun | None:
    """Return what is wrong with a result that has to say whether the phase succeeded, None when it says so."""
    if result.get("rework") is True:
        return None
    said = [result[key] for key in VERDICT_KEYS if key in result]
    if not result:
        return FailedRun(subtype="no_effect", text="it gave back no result, though the phase asks for one")
    if len(said) != 1 or not isinstance(said[0], bool):
        keys = " or ".join(VERDICT_KEYS)
        return FailedRun(subtype="bad_output", text=f"its result does not say {keys} with true or false")
    if said[0]:
        return None
    summary = result.get("summary")

    return FailedRun(subtype="gate", text=f"it says itself that it did not succeed: {summary or 'it does not say why'}")


def first_line(text: str) -> str:
    """Return the first line of *text* that says something, short enough for a summary."""
    found = next((line.strip() for line in text.splitlines() if line.strip()), "")

    return found if len(found) <= MAX_LINE else f"{found[: MAX_LINE - 3]}..."
