"""
The tools that steps call: command, python, http and agent.

A tool gets the rendered inputs of a call and returns plain JSON of a bounded size; an exception is a failed call. A
call may be made more than once: its worker may vanish before the report is stored. Processes of calls are started like
every process of adw: recorded before they run, with few variables, ended on order, and leaving nothing running.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from adws.adw_modules import costs, durable_file, error_tables
from adws.adw_modules.agent import AgentProfile, AgentTask
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.preflight import variables_of
from adws.adw_modules.clock import uuid_of
from adws.adw_modules.costs import BudgetWatch
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine import runner_agent, runner_command
from adws.adw_modules.engine.runner_agent import BUDGET, answered_result
from adws.adw_modules.engine.runner_command import ALLOWED_VARIABLES
from adws.adw_modules.engine.runner_python import Callables
from adws.adw_modules.errors import FailedRun, OwnershipError, RepositoryTampered, RunFailed, UsageError
from adws.adw_modules.expressions import expressions
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.git import change_policy
from adws.adw_modules.identifiers import OWN_SECRETS, JsonObject, JsonValue
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.phase import Order, Orders
from adws.adw_modules.process.run import CommandLine, ProcessEnd, run_process
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.steps.http_client import HttpRequest, shown
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.checks import METHODS
from adws.adw_modules.workflow.model import AgentOptions, PhaseSpec, Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

#: Most bytes of a result as JSON: it is a database row and an input of later steps. A larger one belongs in a file or
#: comes in pages.
MAX_RESULT_BYTES = 8 * 1024 * 1024
#: Directory for the files of running calls, below the workflow's own.
FOLDER = "calls"
#: Bytes allowed beyond the limit of an output file, for the truncation note and the end.
_BESIDES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class CallContext:
    """Everything that a call may know and do."""

    document: WorkflowDocument  #: as last stored; a call never changes it
    phase: str
    phase_attempt: int  #: number of the phase's attempt
    #: Template values: issue, workload, vars, steps, phases, attempt, page, and in a loop the element and index.
    values: Mapping[str, Value]
    cwd: Path  #: working directory: the worktree or the repository
    folder: Path  #: the workflow's own directory for output
    orders: Orders  #: a tool that sees an order ends the call and reports it as suspended
    record_process: Callable[[ProcessRecord], None]  #: returns when the record is durable
    say: Callable[[str], None] = lambda _line: None  #: shows a line of progress; never raises
    env: Mapping[str, str] = field(default_factory=dict)  #: variables for its process, besides the allowed ones
    spent: Callable[[], float] = lambda: 0.0  #: US dollars spent on calls and not in the document yet
    model: str = ""  #: the model with which the phase attempt began; "": the agent's own choice
    denied: dict[str, int] = field(default_factory=dict)  #: hosts that the sandbox denied, with counts


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    value: JsonValue = None
    facts: JsonObject = field(default_factory=dict)  #: also reported: exit code, status, cost
    ordered: str = ""  #: kind of the order that ended the call, which then has no value


class Tool(Protocol):
    """A tool that steps can call."""

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Make one call; an exception is a failed call."""


# --- inputs and results ----------------------------------------------------------------------------------------


def checked(value: object) -> JsonValue:
    """Return *value* if it is plain JSON of at most MAX_RESULT_BYTES; else raise RunFailed."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise _failed("bad_output", f"the result cannot be written as JSON: {exc}") from exc
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_RESULT_BYTES:
        raise _too_long(size)
    if not _is_plain(value):
        raise _failed(
            "bad_output", "the result would not come back from JSON as it is: use text keys, and lists, not tuples"
        )

    return value  # type: ignore[return-value]  # checked above


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))

    return value is None or type(value) in {bool, int, float, str}


def _parse(payload: bytes, what: str) -> JsonValue:
    """Return the JSON in *payload*; raise RunFailed if it is not JSON."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON")

    try:
        result: JsonValue = json.loads(payload, parse_constant=refuse)
    except (ValueError, RecursionError) as exc:
        raise _failed("bad_output", f"{what} is not JSON: {exc}") from exc

    return result


def _texts(value: object, what: str) -> Mapping[str, str]:
    """Return a table of texts and numbers with all values as texts; raise RunFailed for anything else."""
    if not isinstance(value, Mapping):
        raise _wrong_input(f"{what} must be a table, and is {json.dumps(value)[:80]}")

    return {str(name): _text(one, f"{what}.{name}") for name, one in value.items()}


def _text(value: object, what: str) -> str:
    """Return a text, number or boolean as text; raise RunFailed for a list, a table or null."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _wrong_input(f"{what} must be a text, and is {json.dumps(value)[:80]}: use |tojson or |string")


def _wrong_input(text: str) -> RunFailed:
    """Return the error for an input that a tool cannot use."""
    return _failed("config", text)


def _too_long(size: int) -> RunFailed:
    """Return the error for a result that exceeds the limit."""
    return _failed(
        "invalid",
        f"the result has {size} bytes, and the limit is {MAX_RESULT_BYTES}: let the call give back less, or in pages",
    )


def _failed(subtype: str, text: str) -> RunFailed:
    return RunFailed(FailedRun(subtype=subtype, text=text), text)


# --- processes -------------------------------------------------------------------------------------------------


@contextmanager
def _call_folder(home: Home, context: CallContext) -> Iterator[Path]:
    """Make a directory for the files of a call, and remove it with them afterwards."""
    folder = context.folder / FOLDER / home.clock.token()
    durable_file.make_directory(str(folder.parent))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        for path in folder.iterdir():
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # directories that a program made there are removed with the workflow
            folder.rmdir()


@contextmanager
def _watched(home: Home, context: CallContext) -> Iterator[None]:
    """Fail the call if the git state shared by all worktrees changes while it runs foreign code."""
    if not home.has_worktrees:
        yield
        return
    before, failure = home.git.marks(), None
    try:
        yield
    except OwnershipError:
        raise
    except Exception as exc:  # noqa: BLE001 - raised again below
        failure = exc
    after = home.git.marks()
    changed = change_policy.differences(before, after, is_forward=home.git.is_ancestor)
    if changed:
        raise RepositoryTampered(context.phase, change_policy.described(changed, after)) from failure
    if failure is not None:
        raise failure


def _environment(home: Home, context: CallContext, names: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of a call's process; raise RunFailed if the call requests adw's own secrets."""
    wanted = {*ALLOWED_VARIABLES, *names}
    if kept := sorted(OWN_SECRETS.intersection(wanted)):
        raise _wrong_input(f"env asks for {', '.join(kept)}, which adw keeps to itself: take it out")
    given = {name: value for name, value in home.env.items() if name in wanted or name.startswith("LC_")}
    allowed = {name: one for name, one in (given | dict(context.env)).items() if name not in OWN_SECRETS}

    return {
        **allowed,
        "PWD": os.fspath(context.cwd),
        "ADW_ID": context.document.adw_id,
        "ADW_PHASE": context.phase,
        "ADW_ATTEMPT": str(context.phase_attempt),
    }


def _run(
    home: Home,
    argv: tuple[str, ...],
    context: CallContext,
    folder: Path,
    *,
    timeout_seconds: float,
    stdin: bytes | None = None,
    names: Iterable[str] = (),
) -> ProcessEnd:
    """Run *argv* in the working directory with output to `stdout`; *names* are further variables. Raises RunFailed."""
    if stdin is not None:
        (folder / "stdin").write_bytes(stdin)
    command = CommandLine(
        argv=argv,
        cwd=context.cwd,
        env=_environment(home, context, names),
        timeouts=Timeouts(wall=timeout_seconds, idle=None, after_result=None),
        stdout_path=folder / "stdout",
        # One byte above the limit, so that truncated output is recognised as too long.
        max_output_bytes=MAX_RESULT_BYTES + 1,
        grace_seconds=home.settings.grace_seconds,
        stdin_path=folder / "stdin" if stdin is not None else None,
    )

    phase = _phase_of(context)
    with home.sandboxes.boxed(
        command,
        context.document,
        say=context.say,
        denied=context.denied,
        own=phase.sandbox,
        egress=phase.egress,
        folders=[folder],
    ) as boxed:
        return run_process(
            boxed,
            clock=home.clock,
            processes=home.processes,
            orders=context.orders,
            record=context.record_process,
            redactor=home.redactor,
            on_line=lambda _stream, line: context.say(line),
        )


def _phase_of(context: CallContext) -> PhaseSpec:
    """Return the phase of a call as the document defines it."""
    frozen = context.document.workflow
    known = workflow_model.thaw(frozen).phase(context.phase) if frozen is not None and frozen.phases else None

    return known or PhaseSpec(name=context.phase, state="", runner=workflow_model.STEPS)


def _read(path: Path) -> bytes | None:
    """Return the content of a call's file, or None if it does not exist; raise RunFailed if it is too long."""
    try:
        return durable_file.read_file(str(path), max_bytes=MAX_RESULT_BYTES + _BESIDES)[0]
    except FileNotFoundError:
        return None
    except TooLarge:
        raise _too_long(path.stat().st_size) from None


# --- command ---------------------------------------------------------------------------------------------------

#: Most characters of a shell line in a message.
MAX_NAME = 60


class CommandTool:
    """
    Runs a program or a shell line whose output is the result.

    Values reach a program as its arguments, each of them whole. In a shell line each value ends with `|quote`, checked
    when the definition is loaded.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Run the command; raise RunFailed unless it exits with 0 and readable output."""
        home, given = self._home, inputs.get("command")
        argv: tuple[str, ...]
        if given is None:
            line = _text(inputs.get("shell"), "shell")
            argv, tool, name = ("/bin/sh", "-c", line), "sh", " ".join(line.split())
            name = f"`{name if len(name) <= MAX_NAME else f'{name[:MAX_NAME].rstrip()}...'}`"
        elif isinstance(given, list | tuple) and given:
            argv = tuple(_text(one, f"command[{index}]") for index, one in enumerate(given))
            tool = name = argv[0].rpartition("/")[2]
        else:
            raise _wrong_input("command must be a list of texts that is not empty")
        stdin, names = inputs.get("stdin"), inputs.get("env") or []
        with _watched(home, context), _call_folder(home, context) as folder:
            end = _run(
                home,
                argv,
                context,
                folder,
                timeout_seconds=timeout_seconds,
                stdin=None if stdin is None else _text(stdin, "stdin").encode("utf-8", "replace"),
                names=[str(one) for one in names] if isinstance(names, list | tuple) else (),
            )
            if end.ordered:
                return ToolResult(ordered=end.ordered.kind)
            if failure := runner_command.failure_of(end, tool=tool, name=name):
                raise failure
            printed = _read(folder / "stdout") or b""
        # Output may have one byte above the limit, followed by a note.
        if len(printed) > MAX_RESULT_BYTES:
            raise _too_long(len(printed))
        output, text = inputs.get("output"), printed.decode("utf-8", "replace").rstrip("\n")
        value: JsonValue = text
        if output == "lines":
            value = list(text.split("\n")) if text else []
        elif output == "json":
            value = _parse(printed, "what the command printed")
        elif not output and text.lstrip()[:1] in {"{", "["}:  # a JSON list or table is parsed, anything else is text
            with suppress(RunFailed):
                value = _parse(printed, "what the command printed")

        return ToolResult(value=value, facts={"exit_code": end.exit_code})


# --- python ----------------------------------------------------------------------------------------------------

#: The program of the interpreter: reads code and arguments from stdin, and writes the result or error to a file.
CHILD = """
import json, os, sys, traceback
def leave(path, found):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, allow_nan=False, ensure_ascii=False)
def run(path):
    given = json.load(sys.stdin)
    sys.stdin = open(os.devnull)
    names = {"__name__": "__adw_step__"}
    try:
        exec(compile(given["code"], "<code of the step>", "exec"), names)
        found = names["main"](**given["args"])
    except BaseException as exc:
        traceback.print_exc()
        leave(path, {"type": type(exc).__name__, "message": str(exc)[:4000]})
        return 1
    try:
        leave(path, {"result": found})
    except (TypeError, ValueError, RecursionError) as exc:
        leave(path, {"type": "BadResult", "message": "main gave back what is no JSON: " + str(exc)[:1000]})
        return 1
    return 0
sys.exit(run(sys.argv[1]))
"""


class CodeFailed(RunFailed):
    """The code of a step raised an exception."""

    def __init__(self, type_name: str, message: str, run: FailedRun) -> None:
        super().__init__(run, f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name  #: of that exception


class PythonTool:
    """
    Calls a function of an installed module, or code with a function `main`.

    `call` runs in adw's own process, without a time limit: it is the user's own module, as for a phase with the runner
    `python`. `code` never runs in our process: a separate interpreter runs it in the working directory, without the
    user's settings and paths (`-I`), and is ended with everything it started once its time is up.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._callables = Callables(home.settings.home)

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Call the function with `args`; raise what it raises, or RunFailed."""
        args = inputs.get("args") or {}
        if not isinstance(args, dict):
            raise _wrong_input(f"args must be a table, and is {json.dumps(args)[:80]}")
        code, call = inputs.get("code"), str(inputs.get("call") or "")
        with _watched(self._home, context):
            if code is not None:
                return self._run(str(code), args, context, timeout_seconds)
            function = self._callables.find(call)
            try:
                return ToolResult(value=function(**args))  # type: ignore[arg-type]  # checked by the caller
            except SystemExit as exc:  # the function means to end its program, not ours
                exit_code = exc.code if isinstance(exc.code, int) else 1
                text = f"{call} called sys.exit({exc.code!r})"
                raise RunFailed(FailedRun(exit_code=exit_code, text=text, tool=call), text) from exc

    def _run(self, code: str, args: JsonObject, context: CallContext, timeout_seconds: float) -> ToolResult:
        left: JsonValue = None
        with _call_folder(self._home, context) as folder:
            file = folder / "result.json"
            end = _run(
                self._home,
                (sys.executable, "-I", "-X", "utf8", "-c", CHILD, str(file)),
                context,
                folder,
                timeout_seconds=timeout_seconds,
                stdin=json.dumps({"code": code, "args": args}).encode(),
            )
            if end.ordered:
                return ToolResult(ordered=end.ordered.kind)
            failure = runner_command.failure_of(end, tool="python", name="the code of the step")
            if failure is None or end.exit_code == 1:
                raw = _read(file)
                if raw is not None:
                    left = _parse(self._home.redactor.scrub_bytes(raw), "what the code of the step gave back")
        result = left if isinstance(left, dict) else {}
        if failure is None and "result" in result:
            return ToolResult(value=result["result"])
        name, message = result.get("type"), str(result.get("message") or "")
        if name == "BadResult":
            raise _failed("bad_output", message)
        if isinstance(name, str):
            raise CodeFailed(name, message, FailedRun(exit_code=1, text=end.tail or message, tool="python"))
        if failure is not None:
            raise failure

        raise _failed(
            "bad_output", "the code of the step ended without a result: it must not end its interpreter by itself"
        )


# --- http ------------------------------------------------------------------------------------------------------

#: Characters of a response in a message.
EXCERPT = 200
#: Shorter credentials are not masked in responses: they could be any text.
SHORTEST_SECRET = 8


class HttpTool:
    """
    Makes one request whose response is the result: JSON as a value, anything else as text.

    A final status of 300 or more is a failure, with the server's retry advice. Credentials come from environment
    variables (`headers_env`) and appear in no message or result.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Make the request; raise RunFailed if it gets no response, or one that is a failure."""
        home = self._home
        request = self._request(inputs, timeout_seconds)
        answer = home.step_http.ask(request, context.orders)
        if isinstance(answer, Order):
            return ToolResult(ordered=answer.kind)
        body = answer.body
        for secret in request.secret_headers.values():  # a server may echo a credential
            for part in (secret, secret.rpartition(" ")[2]):  # "Bearer" is not secret
                if len(part) >= SHORTEST_SECRET:
                    body = body.replace(part.encode(), MASK.encode())
        text = body.decode("utf-8", "replace")
        if answer.status >= 300:
            excerpt = " ".join(home.redactor.redact_text(text)[: EXCERPT * 4].split())[:EXCERPT]
            said = f"{request.method} {shown(request.url)} was answered with {answer.status}"
            said += f": {excerpt}" if excerpt else ""
            wait = error_tables.by_headers(answer.headers)
            seconds = (wait.at - home.clock.now()).total_seconds() if wait.at else wait.seconds
            failure = FailedRun(
                http_status=answer.status,
                subtype="invalid" if answer.status < 400 else "",
                text=said,
                retry_after_seconds=None if seconds is None else max(0.0, seconds),
                tool="http",
            )
            raise RunFailed(failure, said)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        value: JsonValue = text if body.strip() else None
        if body.strip() and (kind == "application/json" or kind.endswith("+json")):
            value = _parse(body, f"the answer from {shown(answer.url)}")

        return ToolResult(value=value, facts={"status": answer.status})

    def _request(self, inputs: Mapping[str, JsonValue], timeout_seconds: float) -> HttpRequest:
        method = _text(inputs.get("method", "GET"), "method").upper()
        if method not in METHODS:
            raise _wrong_input(f"method is {method!r}, which is no method of HTTP")
        body, headers = None, {}
        if "json" in inputs:
            body, headers = json.dumps(inputs["json"]).encode(), {"Content-Type": "application/json"}
        elif inputs.get("body") is not None:
            body = _text(inputs["body"], "body").encode("utf-8", "replace")
            headers = {"Content-Type": "text/plain; charset=utf-8"}
        given = inputs.get("params") or {}
        if not isinstance(given, Mapping):
            raise _wrong_input(f"params must be a table, and is {json.dumps(given)[:80]}")
        params = [  # a list gives one parameter for each element, null none
            (str(name), _text(one, f"params.{name}"))
            for name, value in given.items()
            for one in (value if isinstance(value, list) else [value])
            if one is not None
        ]
        secrets: dict[str, str] = {}
        for header, variable in _texts(inputs.get("headers_env") or {}, "headers_env").items():
            if variable in OWN_SECRETS:
                raise _wrong_input(f"the variable {variable} is for adw itself: name another one in headers_env")
            if not self._home.env.get(variable):
                raise _wrong_input(f"the environment variable {variable} of the header {header} is not set: set it")
            secrets[header] = self._home.env[variable]

        return HttpRequest(
            method=method,
            url=_text(inputs.get("url"), "url"),
            params=tuple(params),
            headers={**headers, **_texts(inputs.get("headers") or {}, "headers")},
            secret_headers=secrets,
            body=body,
            timeout_seconds=timeout_seconds,
            max_bytes=MAX_RESULT_BYTES,
        )


# --- agent -----------------------------------------------------------------------------------------------------

#: Permissions of an agent whose step does not specify them.
PERMISSIONS = "read"
#: Options of a phase that are useless for a single question.
NO_OPTIONS = ("evidence", "session", "models")


class AgentCallFailed(RunFailed):
    """An agent called by a step failed; its usage still counts."""

    def __init__(self, run: FailedRun, facts: JsonObject, message: str | None = None) -> None:
        super().__init__(run, message)
        self.facts = facts


class AgentTool:
    """
    Asks a coding agent one question; its last answer is the result.

    Each call is a new conversation, started through the agent's profile like that of a phase. It may only read unless
    `options.permissions` says more: calls of a loop share one working directory. Its usage is reported however it
    ended; it is ended once the rest of the workflow's budget is used up.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Ask the agent; raise RunFailed if it fails, exceeds its budget, or cannot be asked."""
        home, settings = self._home, self._home.settings
        profile = agents_base.profile(str(inputs.get("agent") or settings.agent_name))
        able = profile.capabilities
        options = _options(inputs.get("options") or {}, profile)
        prompt = self._prompt(inputs, context)
        with _watched(home, context), _call_folder(home, context) as folder:
            (folder / "stdin").write_text(home.redactor.redact_text(prompt), "utf-8", "replace")
            model = inputs.get("model")
            task = AgentTask(
                prompt_file=folder / "stdin",
                cwd=context.cwd,
                folder=folder,
                model=context.model if model is None else _text(model, "model"),
                session_id=uuid_of(home.clock.token()) if able.chooses_session else "",
                max_turns=options.max_turns,
                permissions=options.permissions or PERMISSIONS,
                arguments=options.arguments,
            )
            return self._ask(profile, task, context, options, timeout_seconds)

    def _prompt(self, inputs: Mapping[str, JsonValue], context: CallContext) -> str:
        name = inputs.get("prompt_file")
        if name is None:
            text: JsonValue = _text(inputs.get("prompt"), "prompt")
        else:
            try:
                text = expressions.render(self._home.prompts.read(str(name)).text, context.values)
            except UsageError as exc:
                raise _wrong_input(str(exc)) from exc
        if not isinstance(text, str) or not text.strip():
            raise _wrong_input("the prompt came out empty: say what the agent shall do")

        return text

    def _ask(
        self,
        profile: AgentProfile,
        task: AgentTask,
        context: CallContext,
        options: AgentOptions,
        timeout_seconds: float,
    ) -> ToolResult:
        home, settings, billing = self._home, self._home.settings, self._home.settings.agent_billing
        allowed = home.agent_runner.allowance(context.document, options.budget_usd)
        if allowed:
            allowed = replace(allowed, usd=max(0.0, allowed.usd - context.spent()))
        if profile.capabilities.limits_budget:
            task = replace(task, budget_usd=costs.budget_for_agent(allowed, billing))
        watch = BudgetWatch(allowed, profile, cost_of=home.cost_of, model=task.model, billing=billing)
        parser = profile.parser()

        def line(stream: str, text: str) -> None:
            for said in (parser.line(text) if stream == "stdout" else text).splitlines():
                context.say(said)
            watch.take(parser.reading)

        names = (*variables_of(profile, home.env), *(settings.agent_env or ()))
        env = _environment(home, context, [name for name in names if name not in OWN_SECRETS])
        end = runner_agent.run_agent(
            home,
            profile,
            task,
            _phase_of(context),
            context,
            watch=watch,
            env=env,
            timeouts=Timeouts(wall=timeout_seconds, idle=None),
            on_line=line,
            saw_result=lambda: parser.reading.has_result,
        )
        reading = parser.reading
        facts: JsonObject = {
            "agent": profile.name,
            "permissions": task.permissions,
            "session_id": reading.session_id or task.session_id,
            "usage": watch.usage.to_json(),
            "cost_usd": costs.counted(watch.usage),
        }
        if end.ordered is not None and end.ordered.kind != BUDGET:
            return ToolResult(ordered=end.ordered.kind, facts=facts)
        if end.ordered is not None:
            raise AgentCallFailed(FailedRun(subtype=BUDGET, text=end.ordered.reason), facts, end.ordered.reason)
        failure = runner_agent.failure_of(profile, reading, end, now=home.clock.now().astimezone())
        if failure is not None and failure.subtype != "denied":
            raise AgentCallFailed(failure, facts)
        try:
            value: JsonValue = answered_result(reading) or reading.text
        except RunFailed as exc:
            raise AgentCallFailed(exc.run, facts, str(exc)) from exc
        if end.leftovers:
            facts["leftovers"] = list(end.leftovers)

        return ToolResult(value=value, facts=facts)


def _options(given: JsonValue, profile: AgentProfile) -> AgentOptions:
    if not isinstance(given, dict):
        raise _wrong_input("options must be a table")
    phase = PhaseSpec(name="step", state="building", runner=profile.name, options=given)
    wrong = [*workflow_model.problems_of(phase)]
    wrong += [f"the option {name} is for whole phases" for name in NO_OPTIONS if name in given]
    if "max_turns" in given and not profile.capabilities.limits_turns:
        wrong.append(f"{profile.name} cannot limit its turns")
    if wrong:
        raise _wrong_input("; ".join(wrong))

    return AgentOptions.model_validate(given)
