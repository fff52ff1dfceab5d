"""`adw logs`, `adw path`: the output of attempts, the log of a workflow, and where it works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adws.adw_modules import attempt_files
from adws.adw_modules.attempt_files import AttemptFile
from adws.adw_modules.errors import UsageError
from adws.cli import arguments, looking, main, output

if TYPE_CHECKING:
    from adws.app import App

#: Seconds between two looks at a file that is followed.
_LOOK_SECONDS = 0.25
_LOG_NAME = "adw.log"


@click.command()
@arguments.adw_id_argument
@click.option("--phase", metavar="NAME", help="Only this phase.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Only this attempt.")
@click.option("--all", "show_all", is_flag=True, help="Every attempt, not only the last one.")
@click.option("--log", "show_log", is_flag=True, help="The workflow's own log instead: one JSON object a line.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more comes, until the workflow stops.")
@output.json_option
def logs(
    *, adw_id: str, phase: str | None, attempt: int | None, show_all: bool, show_log: bool, follow: bool, as_json: bool
) -> None:
    """Show what the last attempt of a workflow wrote."""
    with main.open_home() as app:
        looking.peek(app, adw_id)
        folder = app.settings.state_dir / adw_id
        if show_log:
            _show(app, adw_id, [folder / _LOG_NAME], follow=follow)
            return
        found = _chosen(folder, adw_id, phase, attempt, show_all=show_all)
        if as_json:
            data = [_data(folder, file) for file in found]
            output.emit({"adw_id": adw_id, "files": data}, "", as_json=True)
            return
        for file in found:
            output.emit(None, f"== {file.phase}, attempt {file.attempt}, {file.kind}", as_json=False)
            _show(app, adw_id, [folder / file.name], follow=follow and file is found[-1])


def _chosen(
    folder: Path, adw_id: str, phase: str | None, attempt: int | None, *, show_all: bool
) -> tuple[AttemptFile, ...]:
    files = [file for file in attempt_files.list_files(folder) if file.kind.endswith(".log")]
    wanted = [
        file
        for file in files
        if (phase is None or file.phase == phase) and (attempt is None or file.attempt == attempt)
    ]
    if not wanted:
        there = ", ".join(sorted({f"{file.phase} {file.attempt}" for file in files})) or "nothing"
        raise UsageError(f"workflow {adw_id} has no such output; there is: {there}")
    if show_all or attempt is not None:
        return tuple(wanted)
    last = max(wanted, key=lambda file: (folder / file.name).stat().st_mtime)

    return tuple(file for file in wanted if (file.phase, file.attempt) == (last.phase, last.attempt))


def _data(folder: Path, file: AttemptFile) -> dict[str, output.Printable]:
    return {
        "phase": file.phase,
        "attempt": file.attempt,
        "kind": file.kind,
        "path": str(folder / file.name),
        "text": attempt_files.read_tail(folder, file.name),
    }


def _show(app: App, adw_id: str, paths: list[Path], *, follow: bool) -> None:
    for path in paths:
        for line in _lines(app, adw_id, path, follow=follow):
            output.emit(None, line, as_json=False)


def _lines(app: App, adw_id: str, path: Path, *, follow: bool) -> Iterator[str]:
    """Yield the lines of a file, and those that come while the workflow is at work."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            line = file.readline()
            if line:
                yield line.rstrip("\n")
            elif not follow or looking.has_stopped(app, adw_id):
                yield from (rest.rstrip("\n") for rest in file)
                return
            else:
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
        shown = app.settings.state_dir / adw_id if want_state else place

        output.emit({"adw_id": adw_id, "path": str(shown)}, str(shown), as_json=as_json)
