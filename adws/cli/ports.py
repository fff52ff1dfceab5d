"""
`adw ports`: which workflow has which ports, and what listens there.

Only looks: nothing is freed, and no process is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from adws.adw_modules.json_value import JsonObject
from adws.cli import main, output

if TYPE_CHECKING:
    from datetime import datetime

    from adws.app import App


@click.command()
@output.json_option
def ports(*, as_json: bool) -> None:
    """Show which workflow has which ports."""
    with main.open_home() as app:
        rows = _rows(app) if app.has_database() else []
        lines = _lines(rows, app.clock.now())

        output.emit({"ports": list(rows)}, lines, as_json=as_json)


def _rows(app: App) -> list[JsonObject]:
    from adws.adw_modules.resources.ports import is_free  # noqa: PLC0415 - only when there is a database

    here = app.processes.me("cli").host

    return [
        {
            "port": row.port,
            "adw_id": row.adw_id,
            "purpose": row.purpose,
            "host": row.host,
            "reserved_at": row.reserved_at,
            "in_use": not is_free(row.port) if row.host == here else None,
        }
        for row in app.ports.all()
    ]


def _lines(rows: list[JsonObject], now: datetime) -> list[str]:
    if not rows:
        return ["no workflow has ports"]
    cells = [
        (
            str(row["port"]),
            str(row["purpose"]),
            str(row["adw_id"]),
            str(row["host"]),
            {True: "held or used", False: "free", None: "not seen from here"}[_use(row["in_use"])],
            output.moment(str(row["reserved_at"]), now),
        )
        for row in rows
    ]

    return output.table(("PORT", "FOR", "WORKFLOW", "HOST", "SOCKET", "SINCE"), cells)


def _use(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
