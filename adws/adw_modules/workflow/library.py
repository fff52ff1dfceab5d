"""
All known workflows: those built into adw, those of `adw.toml`, and those registered in Python.

Pure: the caller passes the content of the file and the available runners. A definition is checked when it is added, and
again when it is frozen for a start; all problems in the file are reported at once, each with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules.errors import UnknownWorkflow, UsageError, WorkflowInvalid
from adws.adw_modules.identifiers import JsonObject, hint, nearest
from adws.adw_modules.state_machine import WorkflowState, rank
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.checks import StepScope, check_phase, check_steps, check_workflow
from adws.adw_modules.workflow.load import (
    Definition,
    Overlay,
    read_overlay,
    read_workflow,
    written_path,
)
from adws.adw_modules.workflow.model import (
    AGENT,
    CLEAN,
    DEFAULT_MAX_ATTEMPTS,
    SHIP,
    SINK_TOOLS,
    STATE_OF_PHASE,
    DefinitionProblem,
    PhaseSpec,
    WorkflowSpec,
)

if TYPE_CHECKING:
    from adws.config.toml_file import ConfigSection

# --- the built-in workflows, and the names under which users of ADW scripts know them -------------------------------
#
# adw itself ships and cleans up; the other phases are meant for an agent, and without one `[phases.NAME]` in `adw.toml`
# gives them a command (`overlaid`). A workflow under a known name does what it did there: one that never shipped does
# not ship here either.


BUILT_IN = "built in"

_EIGHT = tuple(STATE_OF_PHASE)
#: The phases that adw runs itself.
_OWN_RUNNERS: Mapping[str, str] = MappingProxyType({"ship": SHIP, "clean": CLEAN})
#: Built-in phases that can ask for rework, and the phase they send the work back to.
_REWORKED, _REWORK = frozenset({"test", "review", "ship"}), "build"


#: Name -> description.
_DESCRIPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "sdlc": "The whole way from an issue to a cleaned-up, shipped change.",
        "plan_build": "Plan a change and build it.",
        "plan_build_test": "Plan, build and test a change.",
        "plan_build_test_review": "Plan, build, test and review a change.",
        "plan_build_review": "Plan, build and review a change, without tests.",
        "plan_build_document": "Plan, build and document a change.",
        "plan_build_test_review_document": "Everything up to the documentation; ships nothing.",
        "sdlc_ZTE": "Zero touch: everything up to the documentation, then ships.",
        "sdlc_from_build": "The whole way for work that is planned already.",
        "patch": "A small change asked for in a comment.",
        "plan": "Plan a change.",
        "build": "Build what is planned.",
        "lint": "Check the style of what is built.",
        "test": "Test what is built.",
        "review": "Review what is built.",
        "document": "Document what is built.",
        "ship": "Ship what is built.",
        "clean": "Clean up after a change.",
    }
)
#: The phases of workflows whose names do not list them.
_PHASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sdlc": _EIGHT,
        "sdlc_ZTE": ("plan", "build", "test", "review", "document", "ship"),
        "sdlc_from_build": _EIGHT[1:],
        "patch": ("plan", "build"),
    }
)

#: Workflow and phase -> the prompt, if it is not the name of the phase.
_PROMPTS: Mapping[tuple[str, str], str] = MappingProxyType({("patch", "plan"): "patch"})

#: Name of an ADW script, without `adw_` and `_iso` -> the built-in workflow of the same shape.
_SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in _DESCRIPTIONS
            if name not in {"sdlc", "clean", "plan_build_test_review_document"}  # no script has these names or shapes
        },
        "sdlc": "plan_build_test_review_document",
        # Shipping without review needs capitals: the lower-case name means the chain that does not ship.
        "sdlc_zte": "plan_build_test_review_document",
        "sdlc_complete": "sdlc",
        "sdlc_complete_ZTE": "sdlc",
        "sdlc_complete_zte": "sdlc",
        "lightweight": "plan_build_test",
        "cleanup": "clean",
    }
)

#: Every known ADW name -> the built-in workflow. `_iso` means that a script works in a worktree, as adw always does.
ALIASES: Mapping[str, str] = MappingProxyType(
    {f"adw_{script}{ending}": name for script, name in _SCRIPTS.items() for ending in ("_iso", "")}
)


def built_in_names() -> tuple[str, ...]:
    """Return the names of the built-in workflows."""
    return tuple(_DESCRIPTIONS)


def built_ins(
    overlays: Mapping[str, Mapping[str, object]] | None = None, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS
) -> dict[str, WorkflowSpec]:
    """Return the built-in workflows by name; *overlays* has fields to replace, by name of the phase."""
    overlays = overlays or {}
    result = {}
    for name, description in _DESCRIPTIONS.items():
        names = _PHASES.get(name) or tuple(name.split("_"))
        phases = [
            overlaid(
                PhaseSpec(
                    name=phase,
                    state=STATE_OF_PHASE[phase],
                    runner=_OWN_RUNNERS.get(phase, AGENT),
                    prompt="" if phase in _OWN_RUNNERS else _PROMPTS.get((name, phase), phase),
                    # Nothing ships without the explicit success of every required phase before it.
                    needs=names[: names.index(phase)] if phase == "ship" else (),
                    # Shipped work stays shipped, whether or not the clean-up succeeds.
                    is_required=phase != "clean",
                    # Shipping asks for rework if the base moved and conflicts with the change.
                    on_rework=_REWORK if phase in _REWORKED and _REWORK in names[: names.index(phase)] else "",
                    max_attempts=max_attempts,
                ),
                overlays.get(phase, {}),
            )
            for phase in names
        ]
        # A required phase can only need required phases, and an overlay may have made one optional.
        optional = {phase.name for phase in phases if not phase.is_required}
        phases = [replace(one, needs=tuple(need for need in one.needs if need not in optional)) for one in phases]
        result[name] = WorkflowSpec(name=name, description=description, phases=tuple(phases), source=BUILT_IN)

    return result


def overlaid(phase: PhaseSpec, fields: Mapping[str, object]) -> PhaseSpec:
    """Return *phase* with *fields* replaced; a new runner clears what the old one ran."""
    bare = replace(phase, command=(), shell="", call="", prompt="") if "runner" in fields else phase

    return replace(bare, **fields)  # type: ignore[arg-type]  # load.py checked names and types


class Workflows:
    """The workflows of a home, by name."""

    def __init__(
        self,
        *,
        runners: Collection[str],
        has_file: Callable[[str], bool],
        definitions: ConfigSection | None = None,
        phases: ConfigSection | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        why_idle: Callable[[PhaseSpec], str] = lambda _phase: "",
        connections: Mapping[str, str] | None = None,
        sinks: Collection[str] = SINK_TOOLS,
    ) -> None:
        """
        Read the tables `[workflows]` and `[phases]` of the file; raise WorkflowInvalid with all problems.

        *max_attempts* is the default for phases. *has_file* says whether a prompt file exists. *why_idle* says why a
        phase cannot run on this machine, or "": such a phase is no mistake in the file, and is reported when its
        workflow is started. *connections* has the type of each named connection. *runners* and *sinks* are those
        available.
        """
        self._sinks = sinks
        self._why_idle = why_idle
        self._connections = connections
        self._runners = runners
        self._found_sound: WorkflowSpec | None = None  #: the last definition found ready to start
        self._has_file = has_file
        self._own: dict[str, WorkflowSpec] = {}
        overlays: dict[str, Overlay] = {}
        problems: list[str] = []
        if phases is not None:
            overlays = {name: read_overlay(name, raw) for name, raw in phases.data.items()}
            problems += (problem for one in overlays.values() for problem in self._problems_of_overlay(one, phases))
        if definitions is not None:
            for name, raw in definitions.data.items():
                definition = read_workflow(name, raw, source=definitions.where(name), max_attempts=max_attempts)
                problems += _placed(definitions, "workflows", name, self._problems_of(definition))
                self._own[name] = definition.spec
        if problems:
            raise WorkflowInvalid(*problems)
        self._built_in = built_ins(
            {name: overlay.fields for name, overlay in overlays.items()}, max_attempts=max_attempts
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Return the names of all workflows, built-in ones first, without aliases."""
        return tuple(dict.fromkeys((*self._built_in, *self._own)))

    def aliases(self) -> Mapping[str, str]:
        """Return the aliases and the workflows they mean."""
        return MappingProxyType({alias: name for alias, name in ALIASES.items() if alias not in self._own})

    def get(self, name: str) -> WorkflowSpec:
        """Return the workflow that *name* means; raise UnknownWorkflow, which lists the known ones."""
        known = {**self._built_in, **self._own}
        meant = name if name in known else ALIASES.get(name, name)
        if meant not in known:
            raise UnknownWorkflow(name, self.names(), meant=nearest(name, (*known, *self.aliases())))

        return known[meant]

    def all(self) -> tuple[WorkflowSpec, ...]:
        """Return every workflow, in the order of `names`."""
        return tuple(self.get(name) for name in self.names())

    def is_dependent(self, spec: WorkflowSpec) -> bool:
        """Return whether *spec* continues the work of an earlier workflow: a built-in one that does not plan."""
        return self._is_built_in(spec) and spec.phases[0].state != STATE_OF_PHASE["plan"]

    def joined(self, known: WorkflowSpec, named: WorkflowSpec) -> WorkflowSpec:
        """
        Return *named* with those phases of *known* that it lacks, in pipeline order.

        Raises UsageError if a phase has two states, and WorkflowInvalid if the phases do not fit together.
        """
        for phase in named.phases:
            other = known.phase(phase.name)
            if other is not None and other.state != phase.state:
                raise UsageError(
                    f"phase {phase.name} runs under {phase.state} in {named.name}, and ran under {other.state} in"
                    f" {known.name}: give it another name in one of them"
                )
        names = {phase.name for phase in named.phases}
        phases = sorted(
            (*(phase for phase in known.phases if phase.name not in names), *named.phases),
            key=lambda phase: (rank(WorkflowState(phase.state)), phase.name in names),
        )
        there = {phase.name for phase in phases}
        builds = any(phase.name == _REWORK and phase.state == STATE_OF_PHASE[_REWORK] for phase in phases)
        can_rework = builds and self._is_built_in(named)
        spec = replace(
            named,
            phases=tuple(
                replace(
                    phase,
                    tier=0,
                    needs=tuple(name for name in phase.needs if name in there),
                    on_rework=_REWORK if can_rework and phase.name in _REWORKED & names else phase.on_rework,
                )
                for phase in phases
            ),
        )
        self._refuse(spec)

        return spec

    def _is_built_in(self, spec: WorkflowSpec) -> bool:
        return spec.name in self._built_in and spec.name not in self._own

    def without_runner(self, spec: WorkflowSpec) -> Mapping[str, str]:
        """Return the phases that cannot run here, each with the reason."""
        is_set_up = AGENT in self._runners
        result = {
            phase.name: self._why_idle(phase) if phase.runner != AGENT or is_set_up else "no agent is set up"
            for phase in spec.phases
        }

        return MappingProxyType({name: why for name, why in result.items() if why})

    # --- changing ----------------------------------------------------------------------------------------------

    def register(self, spec: WorkflowSpec, *, replace: bool = False) -> None:
        """Add a definition made in Python; raise WorkflowInvalid if it is invalid or its name is taken."""
        if not replace and (taken := self._why_taken(spec.name)):
            raise WorkflowInvalid(f"{taken}: choose another name, or register it with replace=True")
        self._refuse(spec)
        self._own[spec.name] = spec

    # --- starting ----------------------------------------------------------------------------------------------

    def check_ready(self, spec: WorkflowSpec) -> None:
        """Raise WorkflowInvalid if *spec* cannot be started: a phase lacks a runner, or the definition is invalid."""
        idle = self.without_runner(spec)
        if idle:
            raise WorkflowInvalid(_no_runner(spec, idle))
        # Every start checks, mostly the same definition, of which only a prompt's file can have gone since.
        if spec is not self._found_sound:
            self._refuse(spec)
            self._found_sound = None if any(phase.prompt for phase in spec.phases) else spec

    def freeze(self, spec: WorkflowSpec) -> JsonObject:
        """Return *spec* as stored in the document of a new workflow; raise WorkflowInvalid like `check_ready`."""
        self.check_ready(spec)

        return workflow_model.freeze(spec)

    # --- problems --------------------------------------------------------------------------------------------------

    def _refuse(self, spec: WorkflowSpec) -> None:
        problems = self._check(spec)
        if problems:
            raise WorkflowInvalid(*(f"workflow {spec.name}: {problem.message}" for problem in problems))

    def _check(self, spec: WorkflowSpec) -> list[DefinitionProblem]:
        return check_workflow(
            spec, runners=self._runners, has_file=self._has_file, connections=self._connections, sinks=self._sinks
        )

    def _why_taken(self, name: str) -> str:
        if name in self._own:
            return f"there is a workflow {name} already ({self._own[name].source})"
        if name in built_in_names() or name in ALIASES:
            return f"{name} is the name of a workflow that comes with adw"

        return ""

    def _problems_of_overlay(self, overlay: Overlay, table: ConfigSection) -> Iterator[str]:
        problems = [*overlay.problems]
        if not problems:
            phase = built_ins({overlay.name: overlay.fields})[overlay.name].phases[0]
            # A phase still left to the built-in agent is reported when a workflow with it is started.
            is_left = "runner" not in overlay.fields
            runners = (*self._runners, AGENT) if is_left else self._runners
            has_file = (lambda _name: True) if is_left else self._has_file
            around = StepScope(connections=self._connections, sinks=self._sinks)
            problems += check_phase(phase, runners=runners, has_file=has_file)
            problems += check_steps(phase.steps, has_file=has_file, around=around)
        yield from _placed(table, "phases", overlay.name, problems)

    def _problems_of(self, definition: Definition) -> Iterator[DefinitionProblem]:
        name = definition.spec.name
        taken = self._why_taken(name)
        if taken and not definition.is_replacement:
            yield DefinitionProblem((), f"{taken}: choose another name, or say replace = true")
        if definition.is_replacement and not taken:
            message = f"there is no workflow {name!r} to replace{hint(name, built_in_names())}"
            yield DefinitionProblem(("replace",), message)
        yield from definition.problems
        # Parts that could not be read get no further complaints.
        unread = {problem.path[:2] for problem in definition.problems}
        if not unread & {(), ("phases",)}:
            yield from (problem for problem in self._check(definition.spec) if problem.path[:2] not in unread)


def _no_runner(spec: WorkflowSpec, idle: Mapping[str, str]) -> str:
    """Return the message about phases without a runner, with each reason once."""
    names, why = list(idle), "; ".join(dict.fromkeys(idle.values()))
    whole = (
        f"phase {names[0]} of {spec.name} has no runner"
        if len(names) == 1
        else f"the phases {', '.join(names)} of {spec.name} have no runner"
    )
    built_in = [name for name in names if name in STATE_OF_PHASE]
    tables = ", ".join(f"[phases.{name}]" for name in built_in)
    rest = f"; or give {'it' if len(names) == 1 else 'each'} a command in adw.toml under {tables}" if built_in else ""

    return f"{whole}: {why}{rest}"


def _placed(table: ConfigSection, section: str, name: str, problems: Iterable[DefinitionProblem]) -> Iterator[str]:
    """Yield each problem as a sentence that begins with file and line."""
    for problem in problems:
        place = table.where(name, *written_path(table.data[name], problem.path))
        yield f"{place}: [{section}.{name}] {problem.message}"
