"""`adw logs`, `adw state path`: the output of attempts, the log of a workflow, and its paths."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adws.adw_modules import attempt_files, identifiers
from adws.adw_modules.agents import transcript
from adws.adw_modules.attempt_files import AttemptFile
from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import JsonObject
from adws.cli import common as cli_common
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.app import Home


# --- the output of attempts in order, line by line, also while it grows ----------------------------------------
#
# Starts without SQLAlchemy and the like, as all views do.


#: Bytes read at a time from a growing file.
_CHUNK = 65_536


def _name_data(source: AttemptFile) -> JsonObject:
    """Return phase, attempt and stream of a file, for programs."""
    return {"phase": source.phase or None, "attempt": source.attempt or None, "stream": source.stream or None}


def _source_data(folder: Path, source: AttemptFile) -> JsonObject:
    """Return a file and the end of its text, for programs."""
    path = folder / source.name
    text = attempt_files.read_tail(folder, source.name) if source.phase else path.read_text("utf-8", "replace")

    return {**_name_data(source), "path": str(path), "size": source.size, "text": text}


class FollowedFile:
    """Reads what was added to a file since the last read; a file that replaced it is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""

    def lines(self, *, is_last: bool) -> Iterator[str]:
        """Yield the complete lines; with *is_last* also the last one without a line break."""
        for piece in self._pieces():
            *whole, self._rest = (self._rest + piece).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
        if is_last and self._rest:
            yield self._rest.decode("utf-8", "replace")
            self._rest = b""

    def _pieces(self) -> Iterator[bytes]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            result = os.fstat(file.fileno())
            if result.st_ino != self._inode or result.st_size < self._offset:
                self._inode, self._offset, self._rest = result.st_ino, 0, b""
            file.seek(self._offset)
            while piece := file.read(_CHUNK):
                self._offset += len(piece)
                yield piece


#: Seconds between two polls of followed files.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which output to show."""

    phase: str | None
    attempt: int | None
    is_all: bool
    is_log: bool  #: the workflow's own log instead of output
    is_raw: bool  #: the raw stream of an agent instead of its transcript
    is_full: bool = False  #: fold nothing, and show the prompt too


@click.command()
@cli_common.adw_id_argument
@click.option("--phase", metavar="NAME", help="Only this phase.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt.")
@click.option("--all", "show_all", is_flag=True, help="Every attempt, not only the last one.")
@click.option("--log", "show_log", is_flag=True, help="The workflow's own log instead: one JSON object a line.")
@click.option("--full", is_flag=True, help="Fold nothing: whole results of tools, and the prompt of the agent.")
@click.option("--raw", is_flag=True, help="What an agent wrote as it came, instead of the readable transcript.")
@click.option(
    "-f", "--follow", is_flag=True, help="Keep printing what is written, through all phases, until the workflow stops."
)
@output.json_option
def logs(
    *,
    adw_id: str,
    phase: str | None,
    attempt: int | None,
    show_all: bool,
    show_log: bool,
    full: bool,
    raw: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """
    Show what the last attempt of a workflow wrote: the transcript of an agent, or the output of a command.

    A transcript has who said what, and a line for each call of a tool with its result; long texts are folded.

    With -f and --json one document a line.
    """
    if show_log and (phase is not None or attempt is not None or show_all):
        raise UsageError("--log shows the log of the whole workflow: leave --phase, --attempt and --all out")
    choice = Choice(phase=phase, attempt=attempt, is_all=show_all, is_log=show_log, is_raw=raw, is_full=full)
    with main.open_home() as app:
        document = cli_common.load(app, adw_id).document
        if follow:
            _follow(app, adw_id, choice, as_json=as_json)
            return
        result, folder = _chosen(app, adw_id, choice), app.folder_of(adw_id)
        if not result:
            raise UsageError(_nothing(app, adw_id, choice))
        data = [_source_data(folder, source) for source in result] if as_json else []
        lines = _lines(folder, result, choice, document.worktree_path or "")
        output.emit({"adw_id": adw_id, "files": data}, lines, as_json=as_json)


def _lines(folder: Path, found: tuple[AttemptFile, ...], choice: Choice, worktree: str) -> Iterator[str]:
    """Yield the content of the files, each under its heading; omit empty files unless all are empty."""
    filled = [source for source in found if source.size] or list(found[:1])
    for source in filled:
        if source.heading:
            yield source.heading
        if source.kind == attempt_files.TRANSCRIPT and (told := _transcript(folder, source, choice, worktree)):
            yield from told
            continue
        with (folder / source.name).open(encoding="utf-8", errors="replace", newline="\n") as file:
            yield from (line.rstrip("\n") for line in file)
        if not source.size:
            yield "(nothing was written)"


def _transcript(folder: Path, source: AttemptFile, choice: Choice, worktree: str) -> list[str]:
    """Return the transcript of an attempt from the stream of its agent, or nothing if it is not a known stream."""
    stem = source.name.removesuffix(attempt_files.TRANSCRIPT)
    stream, prompt = folder / f"{stem}stdout.log", folder / f"{stem}prompt.md"
    if not stream.is_file():
        return []
    with stream.open(encoding="utf-8", errors="replace", newline="\n") as file:
        first = file.readline()
        if not transcript.is_stream(first):
            return []
        entries = list(transcript.entries([first, *file]))
    asked: list[str] = []
    if prompt.is_file():
        text = prompt.read_text("utf-8", "replace")
        asked = [f"adw: {identifiers.counted(len(text.splitlines()), 'line')} of prompt (--full shows them)"]
        if choice.is_full:
            asked = ["adw:", *(f"  {line}" for line in text.splitlines())]
    shown = [transcript.lines_of(entry, worktree=worktree, is_full=choice.is_full) for entry in entries]

    return [*asked, *(line for lines in shown for line in lines)]


def _chosen(app: Home, adw_id: str, choice: Choice) -> tuple[AttemptFile, ...]:
    """Return the chosen files, in the order in which they were begun."""
    folder = app.folder_of(adw_id)
    if choice.is_log:
        path = folder / attempt_files.LOG_NAME
        return (AttemptFile(name=attempt_files.LOG_NAME, size=path.stat().st_size),) if path.is_file() else ()
    files = attempt_files.outputs(folder, cli_common.load(app, adw_id).document, is_raw=choice.is_raw)
    wanted = [one for one in files if choice.phase in (None, one.phase) and choice.attempt in (None, one.attempt)]
    if not wanted or choice.is_all or choice.attempt is not None:
        return tuple(wanted)
    last = wanted[-1]

    return tuple(source for source in wanted if (source.phase, source.attempt) == (last.phase, last.attempt))


def _nothing(app: Home, adw_id: str, choice: Choice) -> str:
    if choice.is_log:
        return f"workflow {adw_id} has no log yet: nobody has worked on it"
    files = [file for file in attempt_files.list_files(app.folder_of(adw_id)) if file.kind.endswith(".log")]
    if not files:
        return f"workflow {adw_id} has no output yet: none of its phases has run (adw status {adw_id})"
    there = dict.fromkeys(f"{file.phase} {file.attempt}" for file in files)

    return f"workflow {adw_id} has no such output; there is (phase and attempt): {', '.join(there)}"


# --- following -------------------------------------------------------------------------------------------------


def _follow(app: Home, adw_id: str, choice: Choice, *, as_json: bool) -> None:
    """Print existing and new output of the chosen attempt and all later ones, until the workflow has stopped."""
    everything = replace(choice, is_all=True)
    wanted = {source.name for source in _chosen(app, adw_id, choice)}
    old = {source.name for source in _chosen(app, adw_id, everything)} - wanted
    tails: dict[str, FollowedFile] = {}
    shown = ""
    while True:
        has_stopped = cli_common.has_stopped(app, adw_id)  # first, so that all written before is read below
        for source in _chosen(app, adw_id, everything):
            if source.name in old:
                continue
            tail = tails.setdefault(source.name, FollowedFile(app.folder_of(adw_id) / source.name))
            for line in tail.lines(is_last=has_stopped):
                if source.heading != shown and not as_json:
                    output.emit_line(None, source.heading, as_json=False)
                shown = source.heading
                output.emit_line({**_name_data(source), "line": line}, line, as_json=as_json)
        if has_stopped:
            return
        app.clock.sleep(_LOOK_SECONDS)
