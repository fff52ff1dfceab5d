"""`adw logs`, `adw path`: the output of attempts, the log of a workflow, and where it works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adws.adw_modules import attempt_files, attempt_output
from adws.adw_modules.attempt_files import AttemptFile
from adws.adw_modules.attempt_output import Source
from adws.adw_modules.errors import UsageError
from adws.cli import arguments, log_text, looking, main, output

if TYPE_CHECKING:
    from adws.app import App

#: Seconds between two looks at what is followed.
_LOOK_SECONDS = 0.1
_LOG_NAME = "adw.log"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which output somebody wants to see."""

    phase: str | None
    attempt: int | None
    is_all: bool
    is_log: bool  #: the workflow's own log instead


@click.command()
@arguments.adw_id_argument
@click.option("--phase", metavar="NAME", help="Only this phase.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt.")
@click.option("--all", "show_all", is_flag=True, help="Every attempt, not only the last one.")
@click.option("--log", "show_log", is_flag=True, help="The workflow's own log instead: one JSON object a line.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more comes, through all phases, until the workflow stops.")
@output.json_option
def logs(
    *, adw_id: str, phase: str | None, attempt: int | None, show_all: bool, show_log: bool, follow: bool, as_json: bool
) -> None:
    """Show what the last attempt of a workflow wrote; with -f and --json one document a line."""
    if show_log and (phase is not None or attempt is not None or show_all):
        raise UsageError("--log shows the log of the whole workflow: leave --phase, --attempt and --all out")
    choice = Choice(phase=phase, attempt=attempt, is_all=show_all, is_log=show_log)
    with main.open_home() as app:
        looking.peek(app, adw_id)
        if follow:
            _follow(app, adw_id, choice, as_json=as_json)
            return
        found = _chosen(app, adw_id, choice)
        if not found:
            raise UsageError(_nothing(app, adw_id, choice))
        data = [log_text.source_data(_folder(app, adw_id), source) for source in found] if as_json else []
        output.emit({"adw_id": adw_id, "files": data}, _lines(_folder(app, adw_id), found), as_json=as_json)


def _lines(folder: Path, found: tuple[Source, ...]) -> Iterator[str]:
    """Yield all that the files hold, under a heading each; what is empty is left out, unless all is."""
    filled = [source for source in found if source.size] or list(found[:1])
    for source in filled:
        if source.heading:
            yield source.heading
        with (folder / source.name).open(encoding="utf-8", errors="replace", newline="\n") as file:
            yield from (line.rstrip("\n") for line in file)
        if not source.size:
            yield "(nothing was written)"


def _chosen(app: App, adw_id: str, choice: Choice) -> tuple[Source, ...]:
    """Return the files that are meant, in the order in which they were begun."""
    folder = _folder(app, adw_id)
    if choice.is_log:
        path = folder / _LOG_NAME
        return (Source(name=_LOG_NAME, size=path.stat().st_size),) if path.is_file() else ()
    wanted = [file for file in _outputs(folder) if _is_meant(file, choice)]
    ordered = attempt_output.in_order(looking.peek(app, adw_id).data, wanted)
    if not ordered or choice.is_all or choice.attempt is not None:
        return ordered
    last = ordered[-1]

    return tuple(source for source in ordered if (source.phase, source.attempt) == (last.phase, last.attempt))


def _outputs(folder: Path) -> list[AttemptFile]:
    return [file for file in attempt_files.list_files(folder) if file.kind.endswith(".log")]


def _is_meant(file: AttemptFile, choice: Choice) -> bool:
    return choice.phase in (None, file.phase) and choice.attempt in (None, file.attempt)


def _nothing(app: App, adw_id: str, choice: Choice) -> str:
    if choice.is_log:
        return f"workflow {adw_id} has no log yet: nobody has worked on it"
    files = _outputs(_folder(app, adw_id))
    if not files:
        return f"workflow {adw_id} has no output yet: none of its phases has run (adw explain {adw_id})"
    there = dict.fromkeys(f"{file.phase} {file.attempt}" for file in files)

    return f"workflow {adw_id} has no such output; there is (phase and attempt): {', '.join(there)}"


def _folder(app: App, adw_id: str) -> Path:
    return app.settings.state_dir / adw_id


# --- following -------------------------------------------------------------------------------------------------


def _follow(app: App, adw_id: str, choice: Choice, *, as_json: bool) -> None:
    """Print what is there and what comes, of this attempt and all after it, until the workflow has stopped."""
    everything = replace(choice, is_all=True)
    wanted = {source.name for source in _chosen(app, adw_id, choice)}
    old = {source.name for source in _chosen(app, adw_id, everything)} - wanted
    tails: dict[str, log_text.Tail] = {}
    shown = ""
    while True:
        has_stopped = looking.has_stopped(app, adw_id)  # asked first: what was written before is read below
        for source in _chosen(app, adw_id, everything):
            if source.name in old:
                continue
            tail = tails.setdefault(source.name, log_text.Tail(_folder(app, adw_id) / source.name))
            for line in tail.lines(is_last=has_stopped):
                if source.heading != shown and not as_json:
                    output.emit_line(None, source.heading, as_json=False)
                shown = source.heading
                output.emit_line(log_text.line_data(source, line), line, as_json=as_json)
        if has_stopped:
            return
        app.clock.sleep(_LOOK_SECONDS)


@click.command()
@arguments.adw_id_argument
@click.option("--state", "want_state", is_flag=True, help="The directory of its document, log and output instead.")
@output.json_option
def path(*, adw_id: str, want_state: bool, as_json: bool) -> None:
    """Print the directory a workflow works in, so that you can cd into it."""
    with main.open_home() as app:
        data = looking.peek(app, adw_id).data
        worktree = data.get("worktree_path")
        place = Path(worktree) if isinstance(worktree, str) and worktree else app.settings.home
        shown = _folder(app, adw_id) if want_state else place

        output.emit({"adw_id": adw_id, "path": str(shown)}, str(shown), as_json=as_json)
