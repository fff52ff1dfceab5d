"""
`adw agents`: which agents can be used here, and what each of them can do.

Asks every installed agent for its version and whether it is logged in; starts no work.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from adws.adw_modules.json_value import JsonObject
from adws.cli import main, output

if TYPE_CHECKING:
    from adws.adw_modules.agent import Capabilities
    from adws.app import App

#: What an agent can do -> how it is said in the list.
_WORDS = {
    "resumes": "resumes",
    "tells_cost": "cost",
    "limits_turns": "turns",
    "limits_budget": "budget",
    "commits": "commits",
}


@click.command()
@output.json_option
def agents(*, as_json: bool) -> None:
    """
    Show which agents can be used here: program, version, log-in, and what each can do.

    The one of the setting agent.name works on phases that name none.
    """
    with main.open_home() as app:
        rows = _rows(app)

        output.emit({"agents": list(rows)}, _lines(rows), as_json=as_json)


def _rows(app: App) -> list[JsonObject]:
    from adws.adw_modules.workflow import AGENTS  # noqa: PLC0415 - `adw --help` must start without it

    rows: list[JsonObject] = []
    for name in AGENTS:
        profile, state = app.agents.look(name)
        rows.append(
            {
                **state.to_json(),
                "provider": profile.provider,
                "usual": name == app.settings.agent_name,
                "capabilities": _abilities(profile.capabilities),
            }
        )

    return rows


def _abilities(able: Capabilities) -> JsonObject:
    return {name: bool(value) for name, value in asdict(able).items()}


def _lines(rows: list[JsonObject]) -> list[str]:
    cells = [
        (
            f"{row['name']}{' *' if row['usual'] else ''}",
            str(row["path"]) or "not installed",
            str(row["version"]) or "-",
            {True: "yes", False: "no", None: "not asked"}[_answer(row["logged_in"])] if row["path"] else "-",
            _can(row["capabilities"]),
        )
        for row in rows
    ]
    # That an agent nobody asked for is not installed is no problem.
    problems = [f"{row['name']}: {row['problem']}." for row in rows if row["problem"] and (row["path"] or row["usual"])]
    table = output.table(("AGENT", "PROGRAM", "VERSION", "LOGGED IN", "CAN"), cells)

    return [*table, "", "* works on phases that name no agent", *([""] if problems else []), *problems]


def _can(abilities: object) -> str:
    known = abilities if isinstance(abilities, dict) else {}

    return ", ".join(word for name, word in _WORDS.items() if known.get(name)) or "-"


def _answer(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
