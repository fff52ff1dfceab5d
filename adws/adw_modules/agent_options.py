"""
What a phase says to its agent in `options`, and what has to be seen before its success counts.

Pure. An option that does not exist, or that has a value it cannot have, is told; none is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from adws.adw_modules.spelling import hint
from adws.adw_modules.workflow import PhaseSpec

#: What an agent may do without asking.
PERMISSIONS = ("read", "edit", "all")
#: Whether an attempt goes on with the conversation of the one before.
SESSIONS = ("continue", "fresh")
#: What is looked for after the agent said that it worked: a change in the repository, a result, or nothing more.
EVIDENCE = ("change", "result", "none")

#: Most turns and most dollars of one attempt that make sense.
MAX_TURNS = 10_000
MAX_BUDGET_USD = 100_000.0

#: States whose phases must leave something behind -> what, when the phase itself does not say.
_EVIDENCE_OF_STATE: Mapping[str, str] = MappingProxyType(
    {"planning": "change", "building": "change", "testing": "result", "reviewing": "result"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentOptions:
    """The options of a phase, read."""

    max_turns: int | None = None
    arguments: tuple[str, ...] = ()
    session: str = "continue"
    budget_usd: float | None = None
    permissions: str = ""  #: "": as the settings say
    evidence: str = ""  #: "": by the state and the gates of the phase


def read_options(phase: PhaseSpec) -> AgentOptions:
    """Return the options of *phase*, in which `problems_of` finds nothing."""
    given = phase.options
    turns, budget, arguments = given.get("max_turns"), given.get("budget_usd"), given.get("arguments")

    return AgentOptions(
        max_turns=turns if isinstance(turns, int) else None,
        arguments=tuple(map(str, arguments)) if isinstance(arguments, list | tuple) else (),
        session=str(given.get("session") or "continue"),
        budget_usd=float(budget) if isinstance(budget, int | float) else None,
        permissions=str(given.get("permissions") or ""),
        evidence=str(given.get("evidence") or ""),
    )


def evidence_of(phase: PhaseSpec) -> str:
    """Return what has to be seen after the agent said that it worked: change | result | none."""
    said = phase.options.get("evidence")
    if isinstance(said, str) and said:
        return said
    kinds = {gate.kind for gate in phase.gates} - {"human"}
    if "result" in kinds:
        return "result"
    # What is built is a change, whatever gates say; elsewhere a gate is what shows that the work is done.
    if kinds and phase.state != "building":
        return "none"

    return _EVIDENCE_OF_STATE.get(phase.state, "none")


def problems_of(phase: PhaseSpec) -> Iterator[str]:
    """Yield a sentence for each option of *phase* that is not known or has a value it cannot have."""
    for name, value in phase.options.items():
        if name not in _RULES:
            yield f"{name!r} is no option of an agent{hint(str(name), _RULES)}"
            continue
        is_right, rule = _RULES[name]
        if not is_right(value):
            yield f"the option {name} is {_shown(value)} and must be {rule}"


def _shown(value: object) -> str:
    text = repr(value)

    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _is_model(value: object) -> bool:
    return _is_text(value) and not str(value).startswith("-")


def _is_list(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list | tuple) and bool(value) and all(is_right(one) for one in value)


def _is_number(value: object, *, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


_RULES: Mapping[str, tuple[Callable[[object], bool], str]] = MappingProxyType(
    {
        "model": (_is_model, "the name of a model"),
        "models": (_is_list(_is_model), "a list of names of models, one for each attempt"),
        "max_turns": (
            lambda value: _is_number(value, most=MAX_TURNS) and isinstance(value, int),
            f"a whole number from 1 to {MAX_TURNS}",
        ),
        "arguments": (
            _is_list(lambda one: isinstance(one, str) and "\0" not in one),
            "a list of texts, further arguments of the agent",
        ),
        "session": (lambda value: value in SESSIONS, f"one of {', '.join(SESSIONS)}"),
        "budget_usd": (
            lambda value: _is_number(value, most=MAX_BUDGET_USD),
            "an amount of US dollars, more than 0",
        ),
        "permissions": (lambda value: value in PERMISSIONS, f"one of {', '.join(PERMISSIONS)}"),
        "evidence": (lambda value: value in EVIDENCE, f"one of {', '.join(EVIDENCE)}"),
    }
)
#: Every option there is, for the documentation.
OPTIONS = tuple(_RULES)
