"""`adw plugins`: what other packages bring, and whether it can be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.json_value import JsonObject


@click.command("plugins")
@output.json_option
def plugins_(*, as_json: bool) -> int:
    """
    Show the runners, sinks and forges that other packages bring, and whether each can be used.

    Makes each of them once, which imports its package; starts no work.
    """
    from adws.adw_modules.plugin import KIND_OF_GROUP  # noqa: PLC0415 - `adw --help` must start without it
    from adws.adw_modules.plugins import installed  # noqa: PLC0415 - the same

    with main.open_home() as app:
        rows: list[JsonObject] = [
            {
                "kind": KIND_OF_GROUP[found.group],
                "name": found.name,
                "package": found.package,
                "version": found.version,
                "object": found.value,
                "problem": app.plugins.try_out(found),
            }
            for found in installed()
        ]
    output.emit({"plugins": list(rows)}, _lines(rows), as_json=as_json)

    return 1 if any(row["problem"] for row in rows) else main.EXIT_OK


def _lines(rows: list[JsonObject]) -> list[str]:
    if not rows:
        return ["No package brings a runner, a sink or a forge."]
    cells = [
        (str(row["kind"]), str(row["name"]), f"{row['package']} {row['version']}".strip(), str(row["object"]))
        for row in rows
    ]
    problems = [str(row["problem"]) for row in rows if row["problem"]]

    return [*output.table(("KIND", "NAME", "PACKAGE", "OBJECT"), cells), *([""] if problems else []), *problems]
