"""
The workflows that come with adw, and the names under which users of ADW scripts know them.

Words only. Shipping and cleaning up adw does itself; the other phases are meant for an agent, and where none is set up,
`[phases.NAME]` in `adw.toml` gives them a command (`overlaid`). A known name keeps its shape: one that never shipped
does not ship here either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from adws.adw_modules.workflow import (
    AGENT,
    CLEAN,
    DEFAULT_MAX_ATTEMPTS,
    SHIP,
    STATE_OF_PHASE,
    PhaseSpec,
    WorkflowSpec,
)

BUILT_IN = "built in"

_EIGHT = tuple(STATE_OF_PHASE)
#: The phases that adw does itself.
_OWN_RUNNERS: Mapping[str, str] = MappingProxyType({"ship": SHIP, "clean": CLEAN})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """A built-in workflow before its phases are made."""

    phases: tuple[str, ...]
    description: str
    prompts: Mapping[str, str] = field(default_factory=dict)  #: phase -> prompt, where it is not its name


_SHAPES: Mapping[str, _Shape] = MappingProxyType(
    {
        "sdlc": _Shape(phases=_EIGHT, description="The whole way from an issue to a cleaned-up, shipped change."),
        "plan_build": _Shape(phases=("plan", "build"), description="Plan a change and build it."),
        "plan_build_test": _Shape(phases=("plan", "build", "test"), description="Plan, build and test a change."),
        "plan_build_test_review": _Shape(
            phases=("plan", "build", "test", "review"), description="Plan, build, test and review a change."
        ),
        "plan_build_review": _Shape(
            phases=("plan", "build", "review"), description="Plan, build and review a change, without tests."
        ),
        "plan_build_document": _Shape(
            phases=("plan", "build", "document"), description="Plan, build and document a change."
        ),
        "plan_build_test_review_document": _Shape(
            phases=("plan", "build", "test", "review", "document"),
            description="Everything up to the documentation; ships nothing.",
        ),
        "sdlc_ZTE": _Shape(
            phases=("plan", "build", "test", "review", "document", "ship"),
            description="Zero touch: everything up to the documentation, then ships.",
        ),
        "sdlc_from_build": _Shape(phases=_EIGHT[1:], description="The whole way for work that is planned already."),
        "patch": _Shape(
            phases=("plan", "build"), description="A small change asked for in a comment.", prompts={"plan": "patch"}
        ),
        "plan": _Shape(phases=("plan",), description="Plan a change."),
        "build": _Shape(phases=("build",), description="Build what is planned."),
        "lint": _Shape(phases=("lint",), description="Check the style of what is built."),
        "test": _Shape(phases=("test",), description="Test what is built."),
        "review": _Shape(phases=("review",), description="Review what is built."),
        "document": _Shape(phases=("document",), description="Document what is built."),
        "ship": _Shape(phases=("ship",), description="Ship what is built."),
        "clean": _Shape(phases=("clean",), description="Clean up after a change."),
    }
)

#: Name of an ADW script, without `adw_` and `_iso` -> the built-in of its shape.
_SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: name
            for name in _SHAPES
            if name not in {"sdlc", "clean", "plan_build_test_review_document"}  # no script has these names or shapes
        },
        "sdlc": "plan_build_test_review_document",
        # Shipping without a look has to be asked for in capitals: in lower case it means the chain that does not ship.
        "sdlc_zte": "plan_build_test_review_document",
        "sdlc_complete": "sdlc",
        "sdlc_complete_ZTE": "sdlc",
        "sdlc_complete_zte": "sdlc",
        "lightweight": "plan_build_test",
        "cleanup": "clean",
    }
)

#: Every known ADW name -> the built-in it means. `_iso` says that a script works in a worktree, as adw always does.
ALIASES: Mapping[str, str] = MappingProxyType(
    {f"adw_{script}{ending}": name for script, name in _SCRIPTS.items() for ending in ("_iso", "")}
)


def built_in_names() -> tuple[str, ...]:
    """Return the names of the workflows that come with adw."""
    return tuple(_SHAPES)


def built_ins(
    overlays: Mapping[str, Mapping[str, object]] | None = None, *, max_attempts: int = DEFAULT_MAX_ATTEMPTS
) -> dict[str, WorkflowSpec]:
    """Return every built-in by name; *overlays* are the fields that replace those of the phase of that name."""
    return {name: _made(name, shape, overlays or {}, max_attempts) for name, shape in _SHAPES.items()}


def overlaid(phase: PhaseSpec, fields: Mapping[str, object]) -> PhaseSpec:
    """Return *phase* with *fields* of its own replaced; a new runner leaves nothing of what the old one ran."""
    bare = replace(phase, command=(), shell="", call="", prompt="") if "runner" in fields else phase

    return replace(bare, **fields)  # type: ignore[arg-type]  # workflow_file saw to names and types


def _made(name: str, shape: _Shape, overlays: Mapping[str, Mapping[str, object]], max_attempts: int) -> WorkflowSpec:
    phases = tuple(
        overlaid(
            replace(_phase(phase, shape), max_attempts=max_attempts),
            overlays.get(phase, {}),
        )
        for phase in shape.phases
    )

    return WorkflowSpec(name=name, description=shape.description, phases=_without_lost_needs(phases), source=BUILT_IN)


def _phase(name: str, shape: _Shape) -> PhaseSpec:
    """Return the built-in phase *name* of *shape*."""
    earlier = shape.phases[: shape.phases.index(name)]
    runner = _OWN_RUNNERS.get(name, AGENT)

    return PhaseSpec(
        name=name,
        state=STATE_OF_PHASE[name],
        runner=runner,
        prompt=shape.prompts.get(name, name) if runner == AGENT else "",
        # Nothing ships without an explicit success of what was there to be done.
        needs=earlier if name == "ship" else (),
        # What is shipped stays shipped, whether or not the clean-up works.
        is_required=name != "clean",
        # Shipping sends work back when the base moved and conflicts with it.
        on_rework="build" if name in {"test", "review", "ship"} and "build" in earlier else "",
    )


def _without_lost_needs(phases: tuple[PhaseSpec, ...]) -> tuple[PhaseSpec, ...]:
    """Take back the need of a phase that an overlay made optional: a required phase can only need required ones."""
    optional = {phase.name for phase in phases if not phase.is_required}

    return tuple(replace(phase, needs=tuple(name for name in phase.needs if name not in optional)) for phase in phases)
