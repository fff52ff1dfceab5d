"""
Say whether the definition of a workflow is sound.

Pure: it is told which runners there are and whether a file is there. All that is wrong is reported at once, each with
the key it stands at. Each phase in itself is checked in `phase_checks`; how they hang together, here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from adws.adw_modules.errors import BadWorkflowGraph, UsageError
from adws.adw_modules.phase_checks import MAX_DEPTH, NAME, NAME_RULE, check_phase, is_json, shape_problems
from adws.adw_modules.spelling import hint
from adws.adw_modules.state_table import PIPELINE, REWORKABLE_STATES, WorkflowState, derive_table, state_named
from adws.adw_modules.step_checks import check_steps
from adws.adw_modules.step_templates import Surroundings
from adws.adw_modules.steps import SINK_TOOLS
from adws.adw_modules.workflow import PhaseSpec, Problem, WorkflowSpec

__all__ = ["Problem", "check_workflow"]

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


def check_workflow(
    spec: WorkflowSpec,
    *,
    runners: Collection[str],
    has_file: Callable[[str], bool],
    connections: Mapping[str, str] | None = None,
    sinks: Collection[str] = SINK_TOOLS,
) -> list[Problem]:
    """
    Return all that is wrong with *spec*; a definition without a problem can be started.

    *connections* has the type of each named connection; None: which there are is not known here. *sinks* are those
    there are.
    """
    problems = list(_own_problems(spec))
    for index, phase in enumerate(spec.phases):
        for found in check_phase(phase, runners=runners, has_file=has_file):
            named = Problem(path=found.path, message=f"phase {phase.name!r}: {found.message}")
            problems.append(named.below("phases", index))
    if any(shape_problems(phase) for phase in spec.phases):
        return problems  # a need that is a number, a name that is none: how they hang together cannot be asked
    problems += _steps(spec, has_file, Surroundings(connections=connections, sinks=sinks))

    return problems + [
        problem.below("phases")
        for check in (_names, _states, _tiers, _needs, _reworks)
        for problem in check(spec.phases)
    ]


def _steps(spec: WorkflowSpec, has_file: Callable[[str], bool], home: Surroundings) -> Iterator[Problem]:
    """Yield what is wrong with the steps of phases: they know the workload, and what phases before them have done."""
    for index, phase in enumerate(spec.phases):
        earlier = spec.phases[:index]
        around = replace(
            home,
            workload=frozenset(spec.workload),
            phases=frozenset(one.name for one in earlier),
            vars=frozenset(name for one in earlier for step in one.steps for name in step.vars),
        )
        for found in check_steps(phase.steps, has_file=has_file, around=around):
            named = Problem(path=found.path, message=f"phase {phase.name!r}: {found.message}")
            yield named.below("phases", index)


def _at(index: int, key: str, message: str) -> Problem:
    return Problem(path=(index, key), message=message)


# --- the workflow itself ---------------------------------------------------------------------------------------


def _own_problems(spec: WorkflowSpec) -> Iterator[Problem]:
    if not _fits(NAME, spec.name):
        yield Problem(path=(), message=f"{spec.name!r} cannot be the name of a workflow: {NAME_RULE}")
    if not _fits(_VERSION, spec.version):
        yield Problem(
            path=("version",),
            message=f"{spec.version!r} cannot be a version: use letters, digits, '.', '_', '+' and '-' (at most 64)",
        )
    if not is_json(spec.workload, MAX_DEPTH):
        yield Problem(path=("workload",), message="workload cannot be kept as JSON: write texts and numbers")
    if not spec.phases:
        yield Problem(path=("phases",), message=_graph_problem([]))


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _names(phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, phase in enumerate(phases):
        if phase.name in seen:
            yield _at(index, "name", f"there are two phases called {phase.name!r}: give one of them another name")
        seen.add(phase.name)


# --- states ----------------------------------------------------------------------------------------------------


def _states(phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    """Yield what the table of states refuses: looked at one by one and in pairs, so that all of it is said."""
    sound: list[tuple[int, tuple[str, WorkflowState]]] = []
    for index, phase in enumerate(phases):
        try:
            place = (phase.name, state_named(phase.state))
        except UsageError:
            known = [state.value for state in PIPELINE]
            why = f"phase {phase.name!r}: {phase.state!r} is no state{hint(phase.state, known, 'a phase runs under')}"
            yield _at(index, "state", why)
            continue
        if why := _graph_problem([place]):
            yield _at(index, "state", why)
        else:
            sound.append((index, place))
    for (_, before), (index, place) in pairwise(sound):
        if why := _graph_problem([before, place]):
            yield _at(index, "state", why)


def _graph_problem(phases: Sequence[tuple[str, WorkflowState]]) -> str:
    try:
        derive_table(phases)
    except BadWorkflowGraph as exc:
        return str(exc)

    return ""


# --- the order of phases ---------------------------------------------------------------------------------------


def _tiers(phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    for index, (before, phase) in enumerate(pairwise(phases), 1):
        if phase.tier < before.tier:
            yield _at(
                index,
                "tier",
                f"phase {phase.name!r} (tier {phase.tier}) comes after {before.name!r} (tier {before.tier}): "
                "a tier can only be followed by itself or a later one",
            )


def _needs(phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    places = {phase.name: index for index, phase in reversed([*enumerate(phases)])}
    circles = _circles(phases)
    for circle in circles:
        first = min(places[name] for name in circle)
        yield _at(first, "needs", _said_circle(sorted(circle, key=places.__getitem__)))
    for index, phase in enumerate(phases):
        for number, name in enumerate(phase.needs):
            if any({name, phase.name} <= circle for circle in circles):
                continue
            if why := _why_unmet(phase, index, phases[places[name]] if name in places else None, name, places):
                yield Problem(path=(index, "needs", number), message=f"phase {phase.name!r} needs {name!r}{why}")


def _why_unmet(phase: PhaseSpec, index: int, needed: PhaseSpec | None, name: str, places: Mapping[str, int]) -> str:
    """Return why the need of *name* can never be met, or not for sure; "" when it can."""
    if needed is None:
        return f", but there is no such phase{hint(name, sorted(places, key=places.__getitem__))}"
    if needed.tier > phase.tier:
        return f" of the later tier {needed.tier}, so it could never start: move it to a tier that is no earlier"
    if places[name] > index:
        return ", which comes later, so it could never start: phases run in the order they are written"
    if phase.is_required and not needed.is_required:
        return (
            ", which may fail without ending the workflow, and then it could never start: "
            f"make {name!r} required, or take the need away"
        )

    return ""


def _said_circle(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"phase {names[0]!r} needs itself, so it could never start: take that away"

    return f"the phases {', '.join(map(repr, names))} need each other, so none could ever start: take one need away"


def _circles(phases: Sequence[PhaseSpec]) -> list[frozenset[str]]:
    """Return the groups of phases that wait for each other."""
    needs = {phase.name: phase.needs for phase in phases}
    reached = {name: _reached(name, needs) for name in needs}
    found = [
        frozenset(other for other in reached[name] if name in reached.get(other, ()))
        for name in needs
        if name in reached[name]
    ]

    return list(dict.fromkeys(found))


def _reached(start: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return everything *start* waits for, directly or not."""
    found: set[str] = set()
    queue = list(needs[start])
    for name in queue:  # the list grows while it is walked
        if name not in found:
            found.add(name)
            queue.extend(needs.get(name, ()))

    return found


# --- rework ----------------------------------------------------------------------------------------------------


def _reworks(phases: Sequence[PhaseSpec]) -> Iterator[Problem]:
    for index, phase in enumerate(phases):
        if phase.on_rework and (why := _why_no_rework(phase, phases[:index], phases)):
            yield _at(index, "on_rework", f"phase {phase.name!r} cannot go back to {phase.on_rework!r}: {why}")


def _why_no_rework(phase: PhaseSpec, earlier: Sequence[PhaseSpec], phases: Sequence[PhaseSpec]) -> str:
    target = next((found for found in earlier if found.name == phase.on_rework), None)
    if target is None:
        names = [found.name for found in phases]
        if phase.on_rework in names:
            return "it does not come earlier"
        return f"there is no such phase{hint(phase.on_rework, names)}"
    reworkable = sorted(state.value for state in REWORKABLE_STATES)
    if phase.state not in reworkable:
        return f"only phases under {' or '.join(reworkable)} can ask for rework, and it runs under {phase.state}"
    if target.state != WorkflowState.BUILDING.value:
        return f"rework goes to a phase under building, and {target.name!r} runs under {target.state}"

    return ""
