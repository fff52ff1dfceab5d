"""`adw verify`: the ten things that must always hold, checked against what is there."""

from __future__ import annotations

import click

from adws.adw_modules import verify_rules
from adws.adw_modules.verify_rules import INVARIANTS, Violation
from adws.cli import main, output

EXIT_BROKEN = 1


@click.command()
@output.json_option
def verify(*, as_json: bool) -> int:
    """Check what must always hold against documents, database, git, ports and processes; exit 1 when it does not."""
    with main.open_home() as app:
        found = app.tidy.verifier.check() if app.has_database() else ()
        counts = {str(number): count for number, count in verify_rules.count_by_invariant(found).items()}
        data: output.Printable = {"violations": [broken.to_json() for broken in found], "by_invariant": counts}
        output.emit(data, _lines(found), as_json=as_json)

    return EXIT_BROKEN if found else 0


def _lines(found: tuple[Violation, ...]) -> list[str]:
    if not found:
        return [f"all {len(INVARIANTS)} invariants hold"]
    lines: list[str] = []
    for number, rule in INVARIANTS.items():
        broken = [violation for violation in found if violation.invariant == number]
        if broken:
            lines += [f"{number}. {rule}", *(f"   {violation.where}: {violation.what}" for violation in broken)]

    return [*lines, f"{len(found)} violation{'s' if len(found) > 1 else ''}"]
