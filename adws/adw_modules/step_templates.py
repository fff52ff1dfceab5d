"""
Say whether the templates and conditions of a step can be read, and whether what they name can be there.

Pure. Which names a template knows depends on where it stands: that table is here, for those who check templates and for
those who fill them in. Names that are asked for with `default` or `is defined` need not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adws.adw_modules import expressions
from adws.adw_modules.errors import ExpressionError
from adws.adw_modules.spelling import hint
from adws.adw_modules.steps import NO_TEMPLATES, ON_ERROR, SINK_TOOLS, RetryRule, StepSpec
from adws.adw_modules.workflow import KeyPath, Problem

#: What every template knows: the frozen issue, `[workflows.NAME.workload]`, values that steps have set, and the results
#: of steps and of phases that are done.
EVERYWHERE = ("issue", "workload", "vars", "steps", "phases")
#: What a call knows besides: the number of the element, and of the call.
OF_A_LOOP = ("index",)
OF_A_CALL = ("attempt", "page")
#: What came of a call: for on_error, for on_success, and for all that is done with a result.
OF_A_FAILURE, OF_A_RESPONSE, OF_A_RESULT = ("error",), ("response",), ("result",)
#: Names that no element can have.
RESERVED = frozenset((*EVERYWHERE, *OF_A_LOOP, *OF_A_CALL, *OF_A_FAILURE, *OF_A_RESPONSE, *OF_A_RESULT))


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What is known around the steps of a phase; None: not known, and not checked."""

    workload: frozenset[str] | None = None
    phases: frozenset[str] | None = None  #: phases before this one
    vars: frozenset[str] = field(default_factory=frozenset)  #: that steps of phases before may have set
    connections: Mapping[str, str] | None = None  #: name -> type
    sinks: Collection[str] = SINK_TOOLS  #: the sinks there are


#: Nothing is known.
UNKNOWN = Surroundings()


def template_problems(step: StepSpec, steps: Sequence[StepSpec], around: Surroundings) -> Iterator[Problem]:
    """Yield a problem for each template or condition of *step*, one of *steps*, that cannot be filled in."""
    known = _known_below(step, steps, around)
    for path, text, names, is_condition in _templates(step):
        try:
            used = expressions.paths_of(text, is_condition=is_condition)
        except ExpressionError as exc:
            yield Problem(path=path, message=f"{_said(path)} {str(exc)[:1].lower()}{str(exc)[1:]}")
            continue
        for why in _unknown(used, names, known):
            yield Problem(path=path, message=f"{_said(path)} names {why}")
    yield from _unquoted(step)


def _said(path: KeyPath) -> str:
    return ".".join(str(key) for key in path)


# --- where templates stand -------------------------------------------------------------------------------------


class _Template(NamedTuple):
    path: KeyPath
    text: str
    names: frozenset[str]  #: that are known there
    is_condition: bool


def _templates(step: StepSpec) -> Iterator[_Template]:
    """Yield every template of *step*."""
    base = frozenset(EVERYWHERE)
    call = base | {*OF_A_CALL} if step.loop is None else base | {*OF_A_CALL, *OF_A_LOOP, step.loop.element}
    if step.when:
        yield _Template(("when",), step.when, base, is_condition=True)
    yield from _of_loop(step)
    for key, value in step.inputs.items():
        if key not in NO_TEMPLATES:
            yield from _texts((key,), value, call)
    for path, rule in rule_paths(step):
        yield from _of_rule(path, rule, call)
    yield from _of_sink(step, call | {*OF_A_RESULT})
    yield from _texts(("vars",), step.vars, base | {*OF_A_RESULT})
    for index, following in enumerate(step.next):
        if following.when:
            yield _Template(("next", index, "when"), following.when, base | {*OF_A_RESULT}, is_condition=True)


def _of_rule(path: KeyPath, rule: RetryRule, call: frozenset[str]) -> Iterator[_Template]:
    names = call | {*(OF_A_FAILURE if rule.kind == ON_ERROR else OF_A_RESPONSE)}
    if rule.when:
        key = "when" if rule.kind == ON_ERROR else "while"
        yield _Template((*path, key), rule.when, names, is_condition=True)
    yield from _texts((*path, "next_call"), rule.next_call, names)


def _of_sink(step: StepSpec, names: frozenset[str]) -> Iterator[_Template]:
    if step.sink is not None:
        for key in ("path", "rows", "options"):
            yield from _texts(("sink", key), getattr(step.sink, key), names)


def rule_paths(step: StepSpec) -> Iterator[tuple[KeyPath, RetryRule]]:
    """Yield each rule of retry with its place in the file: by its kind, or in the list."""
    kinds = [rule.kind for rule in step.retry]
    for index, rule in enumerate(step.retry):
        yield ("retry", rule.kind if len({*kinds}) == len(kinds) else index), rule


def _of_loop(step: StepSpec) -> Iterator[_Template]:
    loop = step.loop
    if loop is None:
        return
    base = frozenset(EVERYWHERE)
    yield from _texts(("loop", "collection"), loop.collection, base)
    if loop.where:
        yield _Template(("loop", "where"), loop.where, base | {loop.element}, is_condition=True)
    if loop.order_by:
        yield _Template(("loop", "order_by"), loop.order_by, base | {loop.element}, is_condition=True)


def _texts(path: KeyPath, value: object, names: frozenset[str]) -> Iterator[_Template]:
    """Yield each template in *value*, however deep it stands."""
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        yield _Template(path, value, names, is_condition=False)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts((*path, key), item, names)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts((*path, index), item, names)


# --- what they name --------------------------------------------------------------------------------------------


def _unknown(used: frozenset[expressions.Path], names: frozenset[str], known: Mapping[str, _Below]) -> Iterator[str]:
    for path in sorted(used):
        if path[0] not in names:
            where = " (it is known elsewhere, not here)" if path[0] in RESERVED else ""
            yield f"{path[0]}, which is not known here{where}{hint(path[0], sorted(names))}"
        elif len(path) > 1 and path[0] in known and (why := known[path[0]](path[1])):
            yield f"{path[0]}.{path[1]}, {why}"


#: Says why a key cannot be there, "" when it can.
_Below = Callable[[str], str]


def _known_below(step: StepSpec, steps: Sequence[StepSpec], around: Surroundings) -> Mapping[str, _Below]:
    """Return for each name whose keys are known what says whether one of them can be there."""
    found: dict[str, _Below] = {"steps": lambda name: _why_no_step(name, step, steps)}
    if around.workload is not None:
        found["workload"] = _among(around.workload, "and the workload of the workflow has no such value")
    if around.phases is not None:
        found["phases"] = _among(around.phases, "and no phase before this one is called so")
    variables = around.vars | {name for one in steps for name in one.vars}
    found["vars"] = _among(frozenset(variables), "and no step sets it in vars")

    return found


def _among(names: frozenset[str], otherwise: str) -> _Below:
    return lambda name: "" if name in names else f"{otherwise}{hint(name, sorted(names)) if names else ''}"


def _why_no_step(name: str, step: StepSpec, steps: Sequence[StepSpec]) -> str:
    names = [one.name for one in steps]
    if name not in names:
        return f"and there is no such step{hint(name, names)}"
    if name == step.name or names.index(name) < names.index(step.name):
        return ""
    # A step that goes back makes later ones earlier.
    places = {one.name: index for index, one in enumerate(steps)}
    goes_back = any(rule.step in places and places[rule.step] <= places[one.name] for one in steps for rule in one.next)

    return "" if goes_back else "which comes later"


def _unquoted(step: StepSpec) -> Iterator[Problem]:
    """Yield a problem when a value would be read by the shell as part of the line, whatever it holds."""
    lines: list[tuple[KeyPath, object]] = [(("shell",), step.inputs.get("shell"))]
    lines += [((*path, "next_call", "shell"), rule.next_call.get("shell")) for path, rule in rule_paths(step)]
    for path, line in lines:
        if isinstance(line, str) and "{{" in line and not _is_quoted(line):
            rule = "shell puts a value into a line for the shell: end it with |quote, or use command with a list"
            yield Problem(path=path, message=rule)


def _is_quoted(line: str) -> bool:
    try:
        return all(name == "quote" for name in expressions.filters_of(line))
    except ExpressionError:
        return True  # told already
