"""
What the script names of older ADW set-ups say about a workflow.

Pure. `all_adws` lists the scripts that were *started*, so the last one that names a phase says where the work stood,
not what was finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from adws.adw_modules.json_value import JsonValue

#: What a script does -> the state it runs under. `patch` plans before it builds; `validate` runs after the plan.
PHASE_OF_WORD: Mapping[str, str] = MappingProxyType(
    {
        "plan": "planning",
        "patch": "planning",
        "validate": "building",
        "build": "building",
        "lint": "linting",
        "test": "testing",
        "review": "reviewing",
        "document": "documenting",
        "ship": "shipping",
        "cleanup": "cleaning",
        "verify": "cleaning",
    }
)
PHASE_STATES = frozenset(PHASE_OF_WORD.values())
#: Every state a workflow can be in, by value.
STATES = PHASE_STATES | {"pending", "completed", "failed", "paused", "rolled_back", "abandoned"}
#: Scripts that run a whole pipeline without naming its phases: all that is known is that it was begun.
WHOLE_PIPELINES = frozenset({"sdlc", "sdlc_zte", "sdlc_complete", "sdlc_complete_zte", "lightweight", "stepwise"})


def state_named(value: JsonValue) -> str | None:
    """Return the state that *value* names, whatever its case; None when it names none."""
    word = value.strip().lower().removeprefix("workflowstate.") if isinstance(value, str) else ""

    return word if word in STATES else None


def short_name(script: str) -> str:
    """Return `plan_build` for `adw_plan_build_iso`, `adw_plan_build.py` and the like."""
    return script.strip().lower().removesuffix(".py").removeprefix("adw_").removesuffix("_iso")


def phase_of(scripts: Sequence[str]) -> str | None:
    """Return the state of the last script that names a phase; a chain stands where its last element does."""
    names = [short_name(script) for script in scripts]
    for name in reversed(names):
        phase = PHASE_OF_WORD.get(name.rpartition("_")[2])
        if phase is not None:
            return phase

    return "planning" if WHOLE_PIPELINES.intersection(names) else None


def workflow_name(template: JsonValue, scripts: Sequence[str]) -> str | None:
    """Return the likely name of the workflow: its template, else the last chain that ran, else its steps in order."""
    if isinstance(template, str) and short_name(template):
        return short_name(template)

    names = [short_name(script) for script in scripts]
    chains = [name for name in names if name in WHOLE_PIPELINES or _is_chain(name)]
    if chains:
        return chains[-1]

    return "_".join(dict.fromkeys(name for name in names if name in PHASE_OF_WORD)) or None


def _is_chain(name: str) -> bool:
    words = name.split("_")
    return len(words) > 1 and words[-1] in PHASE_OF_WORD
