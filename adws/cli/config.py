"""`adw workflow` and `adw config`: the workflows, agents, plugins and settings here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from adws.adw_modules import identifiers
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.phase import EXTERNAL
from adws.adw_modules.workflow.model import AGENT, CLEAN, SHIP, Gate, PhaseSpec, WorkflowSpec, to_json
from adws.cli import common as cli_common
from adws.cli import main, output
from adws.config.settings import COMMON, SETTINGS

if TYPE_CHECKING:
    from adws.adw_modules.workflow.library import Workflows


# --- `adw workflow list`: the workflows, and what each does ----------------------------------------------------
#
# A built-in phase without a runner is shown as such; it is an error only when its workflow is started.


@click.command("list")
@output.json_option
def list_workflows(*, as_json: bool) -> None:
    """List the workflows that can be run: those that come with adw, and those of adw.toml."""
    with main.open_home() as app:
        known, agent = app.workflows, app.settings.agent_name
        rows = []
        for spec in known.all():
            idle = len(known.without_runner(spec))
            readiness = f"no, {idle} of {len(spec.phases)} without a runner" if idle else "yes"
            rows.append((spec.name, " ".join(phase.name for phase in spec.phases), readiness, spec.source))
        data = [_workflow_data(known, spec, agent) for spec in known.all()]
        output.emit({"workflows": data}, output.table(("WORKFLOW", "PHASES", "READY", "SOURCE"), rows), as_json=as_json)


@click.command("show")
@click.argument("name", metavar="NAME", shell_complete=cli_common.offer_names)
@output.json_option
def show_workflow(*, name: str, as_json: bool) -> None:
    """Show the phases of the workflow NAME, and what runs them here; names of ADW scripts are known, too."""
    with main.open_home() as app:
        known, agent = app.workflows, app.settings.agent_name
        spec = known.get(name)
        output.emit(_workflow_data(known, spec, agent), _workflow_lines(known, spec, agent), as_json=as_json)


def _workflow_data(known: Workflows, spec: WorkflowSpec, agent: str) -> output.Printable:
    idle = known.without_runner(spec)

    return {
        "name": spec.name,
        "version": spec.version,
        "description": spec.description,
        "source": spec.source,
        "aliases": _aliases(known, spec),
        "phases": [
            {**to_json(phase), "ready": phase.name not in idle, "runs": what_runs(phase, agent=agent)}
            for phase in spec.phases
        ],
        "ready": not idle,
    }


def _aliases(known: Workflows, spec: WorkflowSpec) -> list[str]:
    return sorted(alias for alias, name in known.aliases().items() if name == spec.name)


def _workflow_lines(known: Workflows, spec: WorkflowSpec, agent: str) -> list[str]:
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
            identifiers.shortened(what_runs(phase, agent=agent), 60),
            str(phase.max_attempts),
            "yes" if phase.is_required else "no",
            ", ".join(_gate(gate) for gate in phase.gates) or "-",
            ", ".join(phase.needs) or "-",
        )
        for phase in spec.phases
    ]
    table = output.table(("PHASE", "STATE", "RUNNER", "RUNS", "ATTEMPTS", "REQUIRED", "GATES", "NEEDS"), rows)
    names_by_reason: dict[str, list[str]] = {}
    for name, why in idle.items():
        names_by_reason.setdefault(why, []).append(name)
    advice = [
        f"No runner yet: {', '.join(names)}; {why}. A command in adw.toml under [phases.NAME] does, too."
        for why, names in names_by_reason.items()
    ]

    return [*facts, "", *table, *([""] if advice else []), *advice]


#: What adw's own runners do.
_OWN_RUNNERS = {
    SHIP: "adw: push the branch, open the pull request",
    CLEAN: "adw: remove the worktree",
    EXTERNAL: "a program outside of adw, which reports over HTTP",
}


def what_runs(phase: PhaseSpec, *, agent: str) -> str:
    """Return what runs a phase, in one line; *agent* is the default for phases without an agent of their own."""
    typed = phase.shell or phase.call or " ".join(phase.command)
    if typed or phase.runner in _OWN_RUNNERS:
        return typed or _OWN_RUNNERS[phase.runner]
    if phase.steps:
        return f"{identifiers.counted(len(phase.steps), 'step')}: {', '.join(step.name for step in phase.steps)}"
    runner = agent if phase.runner == AGENT else phase.runner

    return f"{runner}, prompt {phase.prompt}" if phase.prompt else runner


def _gate(gate: Gate) -> str:
    about = gate.shell or gate.artifact or " ".join(gate.command)

    return identifiers.shortened(f"{gate.kind} {about}".strip(), 40)


# --- `adw workflow agents`: the agents that can be used here, and what each can do -----------------------------
#
# It asks every installed agent for its version and login state, and starts no work.


#: Capability of an agent -> its label in the list.
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
    from adws.adw_modules.workflow.model import AGENTS

    rows: list[JsonObject] = []
    cells, problems = [], []
    with main.open_home() as app:
        for name in AGENTS:
            profile, state = app.look_at_agent(name)
            is_usual = name == app.settings.agent_name
            able = {ability: bool(value) for ability, value in asdict(profile.capabilities).items()}
            rows.append(
                {**state.to_json(), "provider": profile.provider, "usual": is_usual, "capabilities": dict(able)}
            )
            cells.append(
                (
                    f"{name}{' *' if is_usual else ''}",
                    state.path or "not installed",
                    state.version or "-",
                    {True: "yes", False: "no", None: "not asked"}[state.is_logged_in] if state.path else "-",
                    ", ".join(word for ability, word in _WORDS.items() if able.get(ability)) or "-",
                )
            )
            # A missing agent is a problem only if it is the default.
            if state.problem and (state.path or is_usual):
                problems.append(f"{name}: {state.problem}.")
    table = output.table(("AGENT", "PROGRAM", "VERSION", "LOGGED IN", "CAN"), cells)
    lines = [*table, "", "* works on phases that name no agent", *([""] if problems else []), *problems]

    output.emit({"agents": rows}, lines, as_json=as_json)


# --- `adw workflow plugins`: the installed plugins, and whether they can be used -------------------------------


@click.command("plugins")
@output.json_option
def plugins_(*, as_json: bool) -> int:
    """
    Show the runners, sinks and forges that other packages bring, and whether each can be used.

    Makes each of them once, which imports its package; starts no work.
    """
    from adws.adw_modules.plugins import KIND_OF_GROUP, installed

    with main.open_home() as app:
        rows: list[JsonObject] = [
            {
                "kind": KIND_OF_GROUP[item.group],
                "name": item.name,
                "package": item.package,
                "version": item.version,
                "object": item.value,
                "problem": app.plugins.try_out(item),
            }
            for item in installed()
        ]
    cells = [
        (str(row["kind"]), str(row["name"]), f"{row['package']} {row['version']}".strip(), str(row["object"]))
        for row in rows
    ]
    problems = [str(row["problem"]) for row in rows if row["problem"]]
    lines = [*output.table(("KIND", "NAME", "PACKAGE", "OBJECT"), cells), *([""] if problems else []), *problems]
    none = "No package brings a runner, a sink or a forge."
    output.emit({"plugins": rows}, lines if rows else none, as_json=as_json)

    return 1 if problems else main.EXIT_OK


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Show every setting, not only the common and the changed ones.")
@output.json_option
def config(*, is_all: bool, as_json: bool) -> None:
    """
    Show the settings in force and where each comes from: the common ones, and those that are not at their default.

    The command line wins over the environment, that over adw.toml in the home, that over the default.
    """
    settings = main.load_settings()
    rows = [
        (setting.key, settings.shown(setting.name), settings.origin(setting.name))
        for setting in SETTINGS
        if is_all or setting.name in COMMON or not settings.origin(setting.name).startswith("default")
    ]
    data: dict[str, output.Printable] = {name: {"origin": origin, "value": value} for name, value, origin in rows}
    shown = [(name, "not set" if value is None else str(value), origin) for name, value, origin in rows]
    limits = settings.run_limits.scopes
    if limits:
        data["limits"] = {scope: dict(names) for scope, names in limits.items()}
        shown += [
            (f"limits.{scope}", f"{name}: {most}", settings.section(f"limits.{scope}").where())
            for scope, names in limits.items()
            for name, most in names.items()
        ]
    if settings.ignored:
        data["ignored"] = settings.ignored
        shown += [(name, "ignored", "set, and without a meaning in this version") for name in settings.ignored]

    lines = output.table(("SETTING", "VALUE", "ORIGIN"), shown)
    if not is_all:
        lines = [*lines, "", f"{len(rows)} of {len(SETTINGS)} settings; adw config --all shows the rest."]
    output.emit(data, lines, as_json=as_json)
