"""`adw backup` and `adw restore`: the whole home in one file, and back."""

from __future__ import annotations

from pathlib import Path

import click

import adws
from adws.adw_modules.coordination import backup as backups
from adws.adw_modules.coordination import restore as restoring
from adws.cli import main, output, report_text


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@output.json_option
def backup(*, path: Path | None, as_json: bool) -> None:
    """Write documents and database to PATH, a new .tar.gz or a directory; work may go on meanwhile."""
    with main.open_home() as app:
        target = backups.archive_path(path, here=Path.cwd(), clock=app.clock)
        report = backups.make_backup(
            target,
            store=app.store,
            store_kind=app.settings.store,
            folders=app.folders,
            reconstruction=app.reconstruction,
            clock=app.clock,
            adw_version=adws.__version__,
        )

    output.emit(report.to_json(), report_text.backup_lines(report), as_json=as_json)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace workflows that exist; their documents are kept aside.")
@output.json_option
def restore(*, path: Path, force: bool, as_json: bool) -> None:
    """Bring the workflows of the backup PATH back. Nothing is changed unless all of it is good."""
    with main.open_home() as app:
        home = restoring.Home(
            store=lambda: app.store,
            store_kind=app.settings.store,
            folders=app.folders,
            reconstruction=app.reconstruction,
            local_lock=app.local_lock,
            processes=app.processes,
            clock=app.clock,
            ownership=lambda: app.ownership,
            repository=app.settings.repository or "",
            maker=app.run_maker,
        )
        report = restoring.restore(path, home, force=force)

    output.emit(report.to_json(), report_text.restore_lines(report), as_json=as_json)
