"""
`adw workflows`: which workflows there are to run, and what each of them does.

A built-in phase that nothing can run yet is shown as such: that is an error only when its workflow is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.workflow import Gate, PhaseSpec, WorkflowSpec, phase_to_json
from adws.cli import arguments, main, output

if TYPE_CHECKING:
    from adws.adw_modules.workflows import Workflows


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=arguments.offer_names)
@output.json_option
def workflows(*, name: str | None, as_json: bool) -> None:
    """
    List the workflows there are to run, or show the one called NAME.

    There are those that come with adw, under their own names and those of ADW scripts, and those of adw.toml.
    """
    with main.open_home() as app:
        known = app.workflows
        if name is None:
            output.emit({"workflows": [_data(known, spec) for spec in known.all()]}, _list(known), as_json=as_json)
            return
        spec = known.get(name)

        output.emit(_data(known, spec), _shown(known, spec), as_json=as_json)


def _data(known: Workflows, spec: WorkflowSpec) -> output.Printable:
    idle = known.without_runner(spec)

    return {
        "name": spec.name,
        "version": spec.version,
        "description": spec.description,
        "source": spec.source,
        "aliases": _aliases(known, spec),
        "phases": [_phase_data(phase, is_ready=phase.name not in idle) for phase in spec.phases],
        "ready": not idle,
    }


def _phase_data(phase: PhaseSpec, *, is_ready: bool) -> JsonObject:
    return {**phase_to_json(phase), "ready": is_ready}


def _aliases(known: Workflows, spec: WorkflowSpec) -> list[str]:
    return sorted(alias for alias, name in known.aliases().items() if name == spec.name)


def _list(known: Workflows) -> list[str]:
    rows = [
        (spec.name, " ".join(phase.name for phase in spec.phases), _readiness(known, spec), spec.source)
        for spec in known.all()
    ]

    return output.table(("WORKFLOW", "PHASES", "READY", "SOURCE"), rows)


def _readiness(known: Workflows, spec: WorkflowSpec) -> str:
    idle = len(known.without_runner(spec))

    return f"no, {idle} of {len(spec.phases)} without a runner" if idle else "yes"


def _shown(known: Workflows, spec: WorkflowSpec) -> list[str]:
    idle = known.without_runner(spec)
    facts = output.facts(
        [
            ("Workflow", spec.catalog_id),
            ("Description", spec.description),
            ("Source", spec.source),
            ("Also called", ", ".join(_aliases(known, spec))),
        ]
    )
    rows = [
        (
            phase.name,
            phase.state,
            "none" if phase.name in idle else phase.runner,
            _what(phase),
            str(phase.max_attempts),
            "yes" if phase.is_required else "no",
            ", ".join(_gate(gate) for gate in phase.gates) or "-",
            ", ".join(phase.needs) or "-",
        )
        for phase in spec.phases
    ]
    table = output.table(("PHASE", "STATE", "RUNNER", "RUNS", "ATTEMPTS", "REQUIRED", "GATES", "NEEDS"), rows)
    advice = [
        f"No runner yet: {', '.join(names)}; {why}. A command in adw.toml under [phases.NAME] does, too."
        for why, names in _by_reason(idle).items()
    ]

    return [*facts, "", *table, *([""] if advice else []), *advice]


def _by_reason(idle: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the phases that nothing can run, by the reason."""
    found: dict[str, list[str]] = {}
    for name, why in idle.items():
        found.setdefault(why, []).append(name)

    return found


def _what(phase: PhaseSpec) -> str:
    said = phase.shell or phase.call or " ".join(phase.command) or f"prompt {phase.prompt}"

    return output.shorten(said, 40)


def _gate(gate: Gate) -> str:
    about = gate.shell or gate.artifact or " ".join(gate.command)

    return output.shorten(f"{gate.kind} {about}".strip(), 40)
