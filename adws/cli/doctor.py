"""`adw doctor`: what work stands on; each line says how it is, what is wrong, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from adws.adw_modules.checkup import PROBLEM, WARNING, Finding, count
from adws.adw_modules.errors import ConfigError
from adws.cli import main, output

EXIT_PROBLEM = 1
_WIDTHS = (8, 9)  #: of level and area


@click.command()
@click.option("--diagram", is_flag=True, help="Print the states of a workflow and its moves as a Mermaid diagram.")
@output.json_option
def doctor(*, diagram: bool, as_json: bool) -> int:
    """
    Look at all that work stands on, and say what is wrong and what mends it. Nothing is changed.

    Python, git, settings, agents and their log-in, forge and token, webhooks, database, locks, file system, disk,
    ports, clock. The exit code is 1 when there is a problem; warnings do not count.
    """
    if diagram:
        return _show_diagram(as_json=as_json)
    found: list[Finding] = []
    for finding in _findings():
        found.append(finding)
        if not as_json:
            _show(finding)
    problems, warnings = count(found, PROBLEM), count(found, WARNING)
    data: output.Printable = {
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "findings": [finding.to_json() for finding in found],
    }
    output.emit(data, ["", _summary(problems, warnings)], as_json=as_json)

    return EXIT_PROBLEM if problems else main.EXIT_OK


def _findings() -> Iterator[Finding]:
    """Yield what is found; settings that cannot be read are all there is to say then."""
    from adws.app_checkup import Checkup  # noqa: PLC0415 - `adw doctor --help` must start without it

    try:
        opened = main.open_home()
    except ConfigError as exc:
        for problem in exc.problems:
            yield Finding(area="settings", level=PROBLEM, what=problem, mend="correct it, then adw doctor again")
        return
    with opened as app:
        yield from Checkup(app).findings()


def _show(finding: Finding) -> None:
    level, area = finding.level.ljust(_WIDTHS[0]), finding.area.ljust(_WIDTHS[1])
    output.emit(None, f"{level} {area} {finding.what}", as_json=False)
    if finding.mend:
        output.emit(None, f"{' ' * (sum(_WIDTHS) + 2)}mend: {finding.mend}", as_json=False)


def _summary(problems: int, warnings: int) -> str:
    if not problems and not warnings:
        return "all is well"
    parts = [
        f"{number} {name}{'s' if number > 1 else ''}"
        for number, name in ((problems, PROBLEM), (warnings, WARNING))
        if number
    ]

    return ", ".join(parts)


def _show_diagram(*, as_json: bool) -> int:
    from adws.adw_modules.state_diagram import mermaid  # noqa: PLC0415 - only for this option
    from adws.adw_modules.state_table import StateTransition  # noqa: PLC0415 - only for this option

    text = mermaid(StateTransition.TRANSITIONS)
    output.emit({"diagram": text}, text.rstrip("\n"), as_json=as_json)

    return main.EXIT_OK
