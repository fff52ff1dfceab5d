"""
Say whether the steps of a phase are sound: everything that can be known before anything runs.

Pure. Templates are looked at in `step_templates`, loops, rules of retry and sinks in `step_part_checks`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from adws.adw_modules.phase_checks import CALL, MAX_DEPTH, VARIABLE, is_json, is_seconds, shown
from adws.adw_modules.retry_policy import MAX_SECONDS
from adws.adw_modules.spelling import hint
from adws.adw_modules.step_part_checks import loop_problems, next_problems, retry_problems, sink_problems
from adws.adw_modules.step_shapes import shape_problems
from adws.adw_modules.step_templates import UNKNOWN, Surroundings, rule_paths, template_problems
from adws.adw_modules.steps import INPUTS_OF_TOOL, NO_TEMPLATES, OUTPUTS, TOOLS, StepSpec
from adws.adw_modules.workflow import AGENTS, KeyPath, Problem

#: Steps of a phase.
MAX_STEPS = 200
#: Names of steps and variables: they stand in templates, where `-` is minus.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
NAME_RULE = "use letters, digits and '_' (at most 64), a letter first"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: Headers whose value is a credential.
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"})


def check_steps(
    steps: Sequence[StepSpec], *, has_file: Callable[[str], bool], around: Surroundings = UNKNOWN
) -> list[Problem]:
    """Return all that is wrong with the steps of a phase; paths begin at the phase."""
    problems = [problem for index, step in enumerate(steps) for problem in _named(shape_problems(step), step, index)]
    if problems:
        return problems  # a name that is a number: what it is good for cannot be asked
    if len(steps) > MAX_STEPS:
        return [Problem(path=("steps",), message=f"there are {len(steps)} steps, and a phase has at most {MAX_STEPS}")]
    for index, step in enumerate(steps):
        found = [
            *_own_problems(step, steps[:index]),
            *_tool_problems(step, has_file),
            *loop_problems(step),
            *retry_problems(step),
            *_next_call_problems(step),
            *sink_problems(step, around.connections, around.sinks),
            *template_problems(step, steps, around),
        ]
        problems += _named(found, step, index)

    return problems + [problem.below("steps") for problem in next_problems(steps)]


def _named(problems: Sequence[Problem], step: StepSpec, index: int) -> list[Problem]:
    who = f"step {step.name!r}" if step.name else f"step number {index + 1}"

    return [Problem(path=("steps", index, *one.path), message=f"{who}: {one.message}") for one in problems]


def _problem(path: KeyPath, message: str) -> Problem:
    return Problem(path=path, message=message)


# --- the step itself -------------------------------------------------------------------------------------------


def _own_problems(step: StepSpec, before: Sequence[StepSpec]) -> Iterator[Problem]:
    if not NAME.fullmatch(step.name):
        yield _problem(("name",), f"{shown(step.name)} cannot be the name of a step: {NAME_RULE}")
    if step.name in {one.name for one in before}:
        yield _problem(("name",), "there are two steps of that name: give one of them another")
    if not (is_seconds(step.timeout_seconds) and step.timeout_seconds > 0):
        said = shown(step.timeout_seconds)
        yield _problem(
            ("timeout_seconds",), f"timeout_seconds is {said} and must be more than 0 seconds, at most {MAX_SECONDS:g}"
        )
    for name in step.vars:
        if not NAME.fullmatch(name):
            yield _problem(("vars", name), f"{shown(name)} cannot be the name of a variable: {NAME_RULE}")
    for key, value in (*step.inputs.items(), ("vars", dict(step.vars))):
        if not is_json(value, MAX_DEPTH):
            yield _problem((key,), f"{key} cannot be kept as JSON: write it as a text or a number")


def _tool_problems(step: StepSpec, has_file: Callable[[str], bool]) -> Iterator[Problem]:
    if step.tool not in TOOLS:
        yield _problem(("tool",), f"there is no tool {step.tool!r}{hint(step.tool, TOOLS)}")
        return
    known = INPUTS_OF_TOOL[step.tool]
    for key in step.inputs:
        if key not in known:
            yield _problem((key,), f"{key!r} is no input of the tool {step.tool}{hint(key, known)}")
    yield from _kind_problems(step.inputs)
    if step.tool == "agent":
        yield from _agent_problems(step.inputs, has_file)
    else:
        yield from _CHECKS[step.tool](step.inputs)


def _kind_problems(inputs: Mapping[str, object]) -> Iterator[Problem]:
    """Yield a problem for each input of the wrong kind; a template of one expression may give any."""
    for key, value in inputs.items():
        rule, is_right = _KINDS.get(key, ("", lambda _value: True))
        if not is_right(value):
            yield _problem((key,), f"{key} must be {rule}, not {shown(value)}")


def _next_call_problems(step: StepSpec) -> Iterator[Problem]:
    """Yield what is wrong with the inputs of later pages: they are made of responses, which strangers write."""
    for path, rule in rule_paths(step):
        fixed = [key for key in rule.next_call if key in NO_TEMPLATES]
        asked = {key: value for key, value in rule.next_call.items() if key not in fixed}
        found = [
            *(_problem((key,), f"{key} is the same for all calls of a step, so next_call has none") for key in fixed),
            *_kind_problems(asked),
            *(_http_values(asked) if step.tool == "http" else ()),
            *_second_choice(step.inputs, asked),
        ]
        yield from (problem.below(*path, "next_call") for problem in found)


def _second_choice(inputs: Mapping[str, object], asked: Mapping[str, object]) -> Iterator[Problem]:
    """Yield a problem where *asked* gives what *inputs* give in another way."""
    for pair in (("json", "body"), ("command", "shell"), ("prompt", "prompt_file")):
        for first, second in (pair, pair[::-1]):
            if first in inputs and second in asked:
                yield _problem((second,), f"the step has {first}, so its next call cannot have {second}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) or is_template(value)


def is_template(value: object) -> bool:
    """Whether *value* is a text that is filled in."""
    return isinstance(value, str) and "{{" in value


#: input -> what it must be, and whether a value is that
_KINDS: Mapping[str, tuple[str, Callable[[object], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("url", "method", "shell", "stdin", "output", "call", "code", "prompt", "prompt_file", "agent", "model"),
            ("a text", _is_text),
        ),
        **dict.fromkeys(("params", "headers", "args", "options"), ("a table, or a template of one", _is_table)),
        "headers_env": (
            "a table of headers and names of environment variables",
            lambda value: isinstance(value, Mapping) and all(_is_variable(name) for name in value.values()),
        ),
        "env": (
            "a list of names of environment variables",
            lambda value: isinstance(value, list | tuple) and all(map(_is_variable, value)),
        ),
        "command": (
            'a list of texts that is not empty, such as ["make", "plan"]; for one line use shell',
            lambda value: isinstance(value, list | tuple) and bool(value) and all(map(_is_text, value)),
        ),
    }
)


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and VARIABLE.fullmatch(value) is not None


def _one_of(inputs: Mapping[str, object], first: str, second: str, tool: str) -> Iterator[Problem]:
    """Yield a problem unless exactly one of two inputs is there, and not empty."""
    found = [key for key in (first, second) if key in inputs]
    if len(found) != 1:
        number = "both" if found else "neither"
        yield _problem((), f"the tool {tool} needs {first} or {second}, and has {number}")
    elif isinstance(inputs[found[0]], str) and not str(inputs[found[0]]).strip():
        yield _problem((found[0],), f"{found[0]} is empty")


# --- tools -----------------------------------------------------------------------------------------------------


def _http_problems(inputs: Mapping[str, object]) -> Iterator[Problem]:
    if not inputs.get("url", ""):
        yield _problem((), "the tool http needs url")
    if "json" in inputs and "body" in inputs:
        yield _problem(("body",), "give json or body, not both")
    yield from _http_values(inputs)


def _http_values(inputs: Mapping[str, object]) -> Iterator[Problem]:
    url = inputs.get("url", "")
    if isinstance(url, str) and url and (why := _why_no_address(url)):
        yield _problem(("url",), f"url {why}")
    method = inputs.get("method", "GET")
    if isinstance(method, str) and not is_template(method) and method.upper() not in METHODS:
        yield _problem(("method",), f"{method!r} is no method of HTTP{hint(method, METHODS)}")
    headers = inputs.get("headers")
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if str(name).lower() in SECRET_HEADERS and not is_template(value):
            rule = f"the header {name} stands here with its value: name an environment variable in headers_env instead"
            yield _problem(("headers", name), rule)


def _why_no_address(url: str) -> str:
    if url.startswith("{{"):
        return ""
    if not url.lower().startswith(("http://", "https://")):
        return f"is {shown(url)} and must begin with http:// or https://"
    try:
        has_password = urlsplit(url).password is not None
    except ValueError:
        return f"is {shown(url)}, which is no address"

    return "holds a password: name an environment variable in headers_env instead" if has_password else ""


def _command_problems(inputs: Mapping[str, object]) -> Iterator[Problem]:
    yield from _one_of(inputs, "command", "shell", "command")
    output = inputs.get("output", OUTPUTS[0])
    if isinstance(output, str) and output not in OUTPUTS:
        yield _problem(("output",), f"{output!r} is no form of output{hint(output, OUTPUTS)}")


def _python_problems(inputs: Mapping[str, object]) -> Iterator[Problem]:
    yield from _one_of(inputs, "call", "code", "python")
    call, code = inputs.get("call"), inputs.get("code")
    if isinstance(call, str) and call.strip() and not CALL.fullmatch(call):
        yield _problem(("call",), f"call is {shown(call)} and must be of the form package.module:function")
    if isinstance(code, str) and code.strip() and (why := _why_no_code(code)):
        yield _problem(("code",), f"code {why}")


def _why_no_code(code: str) -> str:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        return f"cannot be read as Python: {exc}"
    if not any(isinstance(one, ast.FunctionDef) and one.name == "main" for one in body):
        return "has no function main: that is what is called"

    return ""


def _agent_problems(inputs: Mapping[str, object], has_file: Callable[[str], bool]) -> Iterator[Problem]:
    yield from _one_of(inputs, "prompt", "prompt_file", "agent")
    name = inputs.get("prompt_file")
    if isinstance(name, str) and name.strip() and not has_file(name):
        yield _problem(("prompt_file",), f"there is no prompt file {name}: write it, or name another")
    agent = inputs.get("agent", AGENTS[0])
    if isinstance(agent, str) and agent not in AGENTS:
        yield _problem(("agent",), f"there is no agent {agent!r}{hint(agent, AGENTS)}")


_CHECKS: Mapping[str, Callable[[Mapping[str, object]], Iterator[Problem]]] = MappingProxyType(
    {"http": _http_problems, "command": _command_problems, "python": _python_problems}
)
