"""
The tool `agent`: one question to a coding agent, whose last answer is the result.

A fresh conversation for each call, started through the profile of the agent like that of a phase. It may read and
nothing else unless `options.permissions` says more: calls of a loop share one working directory. What it used is told
with the report, however it ended; what is left of the workflow's budget ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from adws.adw_modules import costs, durable_file, error_tables
from adws.adw_modules.agent import AgentProfile, AgentReading, AgentTask, Usage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.preflight import variables_of
from adws.adw_modules.clock import uuid_of
from adws.adw_modules.costs import Allowance, BudgetWatch
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine.runner_agent import (
    BUDGET,
    GIT_VARIABLES,
    BudgetOrders,
    answered_result,
    failure_of,
)
from adws.adw_modules.engine.runner_command import ALLOWED_VARIABLES
from adws.adw_modules.engine.runner_command import failure_of as runner_command_failure_of
from adws.adw_modules.errors import ConfigError, FailedRun, OwnershipError, RepositoryTampered, RunFailed, UsageError
from adws.adw_modules.expressions import expressions
from adws.adw_modules.expressions.values import Value
from adws.adw_modules.git import change_policy
from adws.adw_modules.identifiers import OWN_SECRETS, JsonObject, JsonValue
from adws.adw_modules.interfaces import ProcessRecord
from adws.adw_modules.phase import Order, Orders
from adws.adw_modules.process.run import CommandLine, ProcessEnd, run_process
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.retry_handler import is_async
from adws.adw_modules.steps.http_client import HttpAnswer, HttpRequest, shown
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import AgentOptions, PhaseSpec, Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home


# What a tool gives back, and how it is read: plain JSON of a bounded size.
#
# Pure.


#: Most bytes of a result, as JSON.
MAX_RESULT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a call of a tool came to."""

    value: JsonValue = None
    facts: JsonObject = field(default_factory=dict)  #: besides: exit code, status, cost
    ordered: str = ""  #: the kind of the order that ended it; then there is no value


def parse(payload: bytes, what: str) -> JsonValue:
    """Return the JSON in *payload*; raise RunFailed when it is none."""
    try:
        result: JsonValue = json.loads(payload, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise bad(f"{what} is not JSON: {exc}") from exc

    return result


def text_of(payload: bytes) -> str:
    """Return bytes as text; what is no UTF-8 is replaced."""
    return payload.decode("utf-8", "replace")


def checked(value: object, *, max_bytes: int) -> JsonValue:
    """Return what a tool gave back when it is plain JSON of at most *max_bytes*; raise RunFailed."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise bad(f"the result cannot be written as JSON: {exc}") from exc
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise too_long(size, max_bytes)
    if not _is_plain(value):
        raise bad("the result would not come back from JSON as it is: use text keys, and lists, not tuples")

    return value  # type: ignore[return-value]  # it was looked at


def too_long(size: int, max_bytes: int) -> RunFailed:
    """Return the error for a result of more bytes than are kept."""
    text = (
        f"the result has {size} bytes, and the limit is {max_bytes} (steps.max_result_bytes): let the call give back"
        " less, or in pages"
    )

    return RunFailed(FailedRun(subtype="invalid", text=text), text)


def bad(text: str) -> RunFailed:
    """Return the error for a result that cannot be used."""
    return RunFailed(FailedRun(subtype="bad_output", text=text), text)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))

    return value is None or type(value) in {bool, int, float, str}


def texts(value: object, what: str) -> Mapping[str, str]:
    """Return a table of texts and numbers as texts; raise RunFailed for anything else."""
    if not isinstance(value, Mapping):
        raise wrong_input(f"{what} must be a table, and is {json.dumps(value)[:80]}")

    return {str(name): as_text(one, f"{what}.{name}") for name, one in value.items()}


def as_text(value: object, what: str) -> str:
    """Return a text, a number or a truth as text; raise RunFailed for a list, a table or nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise wrong_input(f"{what} must be a text, and is {json.dumps(value)[:80]}: use |tojson or |string")


def wrong_input(text: str) -> RunFailed:
    """Return the error for an input that came out as something a tool cannot use."""
    return RunFailed(FailedRun(subtype="config", text=text), text)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# The tool `http`: one request, whose answer is the result.
#
# JSON becomes a value, anything else a text. A status of 400 and more is a failure, with what the server says about
# waiting. Credentials come from environment variables (`headers_env`) and are in no message and no result.


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Characters of an answer that a message shows.
EXCERPT = 200
#: Shorter credentials are not looked for in answers: they could be anything.
SHORTEST_SECRET = 8


class HttpTool:
    """Asks over HTTP."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Make the request; raise RunFailed when it has no answer, or one that is a failure."""
        request = self._request(inputs, timeout_seconds)
        answer = self._home.step_http.ask(request, context.orders)
        if isinstance(answer, Order):
            return ToolResult(ordered=answer.kind)
        if answer.status >= 400 or 300 <= answer.status < 400:
            raise self._failure(request, answer)
        body = _without(answer.body, request.secret_headers.values())

        return ToolResult(value=_value(answer, body), facts={"status": answer.status})

    def _request(self, inputs: Mapping[str, JsonValue], timeout_seconds: float) -> HttpRequest:
        method = as_text(inputs.get("method", "GET"), "method").upper()
        if method not in METHODS:
            raise wrong_input(f"method is {method!r}, which is no method of HTTP")
        body, headers = _body(inputs)

        return HttpRequest(
            method=method,
            url=as_text(inputs.get("url"), "url"),
            params=tuple(_params(inputs.get("params") or {})),
            headers={**headers, **texts(inputs.get("headers") or {}, "headers")},
            secret_headers=self._secrets(inputs.get("headers_env") or {}),
            body=body,
            timeout_seconds=timeout_seconds,
            max_bytes=self._home.settings.steps_max_result_bytes,
        )

    def _secrets(self, names: JsonValue) -> dict[str, str]:
        headers: dict[str, str] = {}
        for header, variable in texts(names, "headers_env").items():
            if variable in OWN_SECRETS:
                raise wrong_input(f"the variable {variable} is for adw itself: name another one in headers_env")
            if not self._home.env.get(variable):
                raise wrong_input(f"the environment variable {variable} of the header {header} is not set: set it")
            headers[header] = self._home.env[variable]

        return headers

    def _failure(self, request: HttpRequest, answer: HttpAnswer) -> RunFailed:
        said = self._home.redactor.redact_text(text_of(_without(answer.body, request.secret_headers.values())))
        excerpt = " ".join(said[: EXCERPT * 4].split())[:EXCERPT]
        name = f"{request.method} {shown(request.url)}"
        text = f"{name} was answered with {answer.status}{f': {excerpt}' if excerpt else ''}"
        wait = error_tables.by_headers(answer.headers)
        seconds = (wait.at - self._home.clock.now()).total_seconds() if wait.at else wait.seconds

        return RunFailed(
            FailedRun(
                http_status=answer.status,
                subtype="invalid" if answer.status < 400 else "",
                text=text,
                retry_after_seconds=None if seconds is None else max(0.0, seconds),
                tool="http",
            ),
            text,
        )


def _params(given: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a query: a list gives one for each element, null none."""
    if not isinstance(given, Mapping):
        raise wrong_input(f"params must be a table, and is {json.dumps(given)[:80]}")
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                yield str(name), as_text(one, f"params.{name}")


def _body(inputs: Mapping[str, JsonValue]) -> tuple[bytes | None, dict[str, str]]:
    if "json" in inputs:
        return json.dumps(inputs["json"]).encode(), {"Content-Type": "application/json"}
    if inputs.get("body") is None:
        return None, {}

    return as_text(inputs["body"], "body").encode("utf-8", "replace"), {"Content-Type": "text/plain; charset=utf-8"}


def _value(answer: HttpAnswer, body: bytes) -> JsonValue:
    if not body.strip():
        return None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return parse(body, f"the answer from {shown(answer.url)}")

    return text_of(body)


def _without(body: bytes, secrets: Iterable[str]) -> bytes:
    """Return *body* without what was sent as a credential, which a server may send back; "Bearer" is none."""
    for secret in secrets:
        for part in (secret, secret.rpartition(" ")[2]):
            if len(part) >= SHORTEST_SECRET:
                body = body.replace(part.encode(), MASK.encode())

    return body


# Run a process for one call, within its time, and return all that it printed.
#
# By the same `process.run` as every process of adw: it is recorded before it runs, gets few variables, obeys orders,
# and nothing of it is left running. What it printed is without secrets. Its files go when the call is over.


#: Directory of the files of calls that are under way, below the workflow's own.
FOLDER = "calls"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFiles:
    """The files of one call."""

    folder: Path

    @property
    def stdout(self) -> Path:
        """What it printed."""
        return self.folder / "stdout"

    @property
    def stdin(self) -> Path:
        """What it reads."""
        return self.folder / "stdin"

    @property
    def result(self) -> Path:
        """What it gave back, when it does not print that."""
        return self.folder / "result.json"

    def read(self, path: Path, *, max_bytes: int, besides: int) -> bytes | None:
        """
        Return what is in one of them, None when it is not there.

        Raises RunFailed for a file of more than *max_bytes* and what may stand *besides*.
        """
        try:
            return durable_file.read_file(str(path), max_bytes=max_bytes + besides)[0]
        except FileNotFoundError:
            return None
        except TooLarge:
            raise too_long(path.stat().st_size, max_bytes) from None


@contextmanager
def call_files(context: CallContext, token: str) -> Iterator[CallFiles]:
    """Make a directory for a call, and remove it with what is in it."""
    folder = context.folder / FOLDER / token
    durable_file.make_directory(str(folder.parent))
    folder.mkdir(mode=0o700)
    try:
        yield CallFiles(folder=folder)
    finally:
        for path in folder.iterdir():
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # what a program made there is removed with the workflow
            folder.rmdir()


@contextmanager
def watched(home: Home, context: CallContext) -> Iterator[None]:
    """Fail the call when what all worktrees share is changed while it runs what others wrote."""
    if not home.has_worktrees:
        yield
        return
    before, failure = home.shared_git.marks(), None
    try:
        yield
    except OwnershipError:
        raise
    except Exception as exc:  # noqa: BLE001 - looked at below, and raised again
        failure = exc
    after = home.shared_git.marks()
    changed = change_policy.differences(before, after, is_forward=home.shared_git.is_ancestor)
    if changed:
        raise RepositoryTampered(context.phase, change_policy.described(changed, after)) from failure
    if failure is not None:
        raise failure


class CallProcesses:
    """Runs processes for calls."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def run(
        self,
        argv: tuple[str, ...],
        context: CallContext,
        files: CallFiles,
        *,
        timeout_seconds: float,
        stdin: bytes | None = None,
        names: Iterable[str] = (),
    ) -> ProcessEnd:
        """Run *argv* in the working directory; *names* are variables it gets besides. Raises RunFailed."""
        if stdin is not None:
            files.stdin.write_bytes(stdin)
        home = self._home
        command = CommandLine(
            argv=argv,
            cwd=context.cwd,
            env=self.environment(context, names),
            timeouts=Timeouts(wall=timeout_seconds, idle=None, after_result=None),
            stdout_path=files.stdout,
            # One more than may be: what is cut shall be seen to be too long.
            max_output_bytes=home.settings.steps_max_result_bytes + 1,
            grace_seconds=home.settings.grace_seconds,
            stdin_path=files.stdin if stdin is not None else None,
        )

        return run_process(
            command,
            clock=home.clock,
            processes=home.processes,
            orders=context.orders,
            record=context.record_process,
            redactor=home.redactor,
            on_line=lambda _stream, line: context.say(line),
        )

    def environment(self, context: CallContext, names: Iterable[str] = ()) -> dict[str, str]:
        """Return the variables that a process of a call gets; raise RunFailed when it asks for those of adw."""
        wanted = {*ALLOWED_VARIABLES, *names}
        if kept := sorted(OWN_SECRETS.intersection(wanted)):
            raise wrong_input(f"env asks for {', '.join(kept)}, which adw keeps to itself: take it out")
        given = {name: value for name, value in self._home.env.items() if name in wanted or name.startswith("LC_")}
        allowed = {name: one for name, one in (given | dict(context.env)).items() if name not in OWN_SECRETS}

        return {
            **allowed,
            "PWD": os.fspath(context.cwd),
            "ADW_ID": context.document.adw_id,
            "ADW_PHASE": context.phase,
            "ADW_ATTEMPT": str(context.phase_attempt),
        }


#: What an agent may do when its step does not say.
PERMISSIONS = "read"
#: Options of a phase that a single question has no use for.
NO_OPTIONS = ("evidence", "session", "models")


class AgentCallFailed(RunFailed):
    """An agent that a step asked failed; what it used counts all the same."""

    def __init__(self, run: FailedRun, facts: JsonObject, message: str | None = None) -> None:
        super().__init__(run, message)
        self.facts = facts


class AgentTool:
    """Asks agents."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._processes = CallProcesses(home)

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Ask the agent; raise RunFailed when it failed, when its budget is used up, or when it cannot be asked."""
        home = self._home
        profile = agents_base.profile(str(inputs.get("agent") or home.settings.agent_name))
        options = _options(inputs.get("options") or {}, profile)
        prompt = self._prompt(inputs, context)
        with watched(home, context), call_files(context, home.clock.token()) as files:
            files.stdin.write_text(home.redactor.redact_text(prompt), "utf-8", "replace")
            task = self._task(inputs, context, profile, options, files)
            return self._ask(profile, task, context, options, timeout_seconds)

    # --- before ------------------------------------------------------------------------------------------------

    def _prompt(self, inputs: Mapping[str, JsonValue], context: CallContext) -> str:
        name = inputs.get("prompt_file")
        if name is None:
            text: JsonValue = as_text(inputs.get("prompt"), "prompt")
        else:
            try:
                text = expressions.render(self._home.prompts.read(str(name)).text, context.values)
            except UsageError as exc:
                raise wrong_input(str(exc)) from exc
        if not isinstance(text, str) or not text.strip():
            raise wrong_input("the prompt came out empty: say what the agent shall do")

        return text

    def _task(
        self,
        inputs: Mapping[str, JsonValue],
        context: CallContext,
        profile: AgentProfile,
        options: AgentOptions,
        files: CallFiles,
    ) -> AgentTask:
        able = profile.capabilities
        model = inputs.get("model")

        return AgentTask(
            prompt_file=files.stdin,
            cwd=context.cwd,
            folder=files.folder,
            model=context.model if model is None else as_text(model, "model"),
            session_id=uuid_of(self._home.clock.token()) if able.chooses_session else "",
            max_turns=options.max_turns or (self._home.settings.agent_max_turns if able.limits_turns else None),
            permissions=options.permissions or PERMISSIONS,
            arguments=options.arguments,
        )

    # --- the question ------------------------------------------------------------------------------------------

    def _ask(
        self,
        profile: AgentProfile,
        task: AgentTask,
        context: CallContext,
        options: AgentOptions,
        timeout_seconds: float,
    ) -> ToolResult:
        home, billing = self._home, self._home.settings.agent_billing
        allowed = self._allowance(context, options)
        budget = costs.budget_for_agent(allowed, billing) if profile.capabilities.limits_budget else None
        task = replace(task, budget_usd=budget)
        watch = BudgetWatch(allowed, profile, cost_of=home.cost_of, model=task.model, billing=billing)
        parser = profile.parser()

        def line(stream: str, text: str) -> None:
            for said in (parser.line(text) if stream == "stdout" else text).splitlines():
                context.say(said)
            watch.take(parser.reading)

        end = run_process(
            self._command(profile, task, context, timeout_seconds),
            clock=home.clock,
            processes=home.processes,
            orders=BudgetOrders(context.orders, watch),
            record=context.record_process,
            redactor=home.redactor,
            on_line=line,
            saw_result=lambda: parser.reading.has_result,
        )

        return self._answer(profile, parser.reading, end, _facts(profile, task, watch.usage, parser.reading.session_id))

    def _answer(self, profile: AgentProfile, reading: AgentReading, end: ProcessEnd, facts: JsonObject) -> ToolResult:
        """Return the result of the question; raise AgentCallFailed when that is no answer."""
        if end.ordered is not None and end.ordered.kind != BUDGET:
            return ToolResult(ordered=end.ordered.kind, facts=facts)
        if end.ordered is not None:
            raise AgentCallFailed(FailedRun(subtype=BUDGET, text=end.ordered.reason), facts, end.ordered.reason)
        failure = failure_of(profile, reading, end, now=self._home.clock.now().astimezone())
        if failure is not None and failure.subtype != "denied":
            raise AgentCallFailed(failure, facts)
        try:
            value: JsonValue = answered_result(reading) or reading.text
        except RunFailed as exc:
            raise AgentCallFailed(exc.run, facts, str(exc)) from exc

        return ToolResult(value=value, facts={**facts, **_left(end)})

    def _allowance(self, context: CallContext, options: AgentOptions) -> Allowance | None:
        allowed = self._home.agent_runner.allowance(context.document, options.budget_usd)

        return allowed and replace(allowed, usd=max(0.0, allowed.usd - context.spent()))

    def _command(
        self, profile: AgentProfile, task: AgentTask, context: CallContext, timeout_seconds: float
    ) -> CommandLine:
        home, settings = self._home, self._home.settings
        names = (*variables_of(profile, home.env), *(settings.agent_env or ()))
        env = self._processes.environment(context, [name for name in names if name not in OWN_SECRETS])

        return CommandLine(
            argv=(home.agent_preflight.program(profile), *profile.argv(task)),
            cwd=Path(task.cwd),
            env={**env, **profile.settings, **GIT_VARIABLES},
            timeouts=Timeouts(wall=timeout_seconds, idle=None),
            max_output_bytes=settings.max_output_bytes,
            grace_seconds=settings.grace_seconds,
            stdin_path=task.prompt_file if profile.capabilities.reads_stdin else None,
        )


def _options(given: JsonValue, profile: AgentProfile) -> AgentOptions:
    if not isinstance(given, dict):
        raise wrong_input("options must be a table")
    phase = PhaseSpec(name="step", state="building", runner=profile.name, options=given)
    wrong = [*workflow_model.problems_of(phase)]
    wrong += [f"the option {name} is for whole phases" for name in NO_OPTIONS if name in given]
    if "max_turns" in given and not profile.capabilities.limits_turns:
        wrong.append(f"{profile.name} cannot limit its turns")
    if wrong:
        raise wrong_input("; ".join(wrong))

    return workflow_model.read_options(phase)


def _facts(profile: AgentProfile, task: AgentTask, usage: Usage, session_id: str) -> JsonObject:
    return {
        "agent": profile.name,
        "permissions": task.permissions,
        "session_id": session_id or task.session_id,
        "usage": usage.to_json(),
        "cost_usd": costs.counted(usage),
    }


def _left(end: ProcessEnd) -> JsonObject:
    return {"leftovers": list(end.leftovers)} if end.leftovers else {}


# The tool `command`: a program, or a line for the shell, whose output is the result.
#
# Values reach a program as its arguments, each of them whole. In a line for the shell each ends with `|quote`, which is
# checked when the definition is loaded.


#: Characters of a line of shell that a message names it by.
MAX_NAME = 60
#: Bytes of the note, and of the end, that a file of output has behind its limit.
_BESIDES = 1 << 16


class CommandTool:
    """Runs commands."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._processes = CallProcesses(home)

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Run the command; raise RunFailed unless it ends with 0 and what it printed can be read."""
        argv, name = _argv(inputs)
        stdin = inputs.get("stdin")
        names = inputs.get("env") or []
        with watched(self._home, context), call_files(context, self._home.clock.token()) as files:
            end = self._processes.run(
                argv,
                context,
                files,
                timeout_seconds=timeout_seconds,
                stdin=None if stdin is None else as_text(stdin, "stdin").encode("utf-8", "replace"),
                names=[str(one) for one in names] if isinstance(names, list | tuple) else (),
            )
            if end.ordered:
                return ToolResult(ordered=end.ordered.kind)
            if failure := runner_command_failure_of(
                end, tool=argv[0].rpartition("/")[2] if "command" in inputs else "sh", name=name
            ):
                raise failure
            # One byte more than may be was let through, and a note behind it: that is seen here.
            limit = self._home.settings.steps_max_result_bytes
            printed = files.read(files.stdout, max_bytes=limit, besides=_BESIDES) or b""
        if len(printed) > limit:
            raise too_long(len(printed), limit)

        return ToolResult(
            value=_value_command(printed, str(inputs.get("output") or "")), facts={"exit_code": end.exit_code}
        )


def _argv(inputs: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], str]:
    """Return what to run, and what people know it by."""
    given = inputs.get("command")
    if given is None:
        line = as_text(inputs.get("shell"), "shell")
        name = " ".join(line.split())
        return ("/bin/sh", "-c", line), f"`{name if len(name) <= MAX_NAME else f'{name[:MAX_NAME].rstrip()}...'}`"
    if not isinstance(given, list | tuple) or not given:
        raise wrong_input("command must be a list of texts that is not empty")
    argv = tuple(as_text(one, f"command[{index}]") for index, one in enumerate(given))

    return argv, argv[0].rpartition("/")[2]


def _value_command(printed: bytes, output: str) -> JsonValue:
    """Return what was printed as *output* says; without it a list or a table of JSON is read, all else is a text."""
    text = text_of(printed).rstrip("\n")
    if output == "lines":
        return list(text.split("\n")) if text else []
    if output == "json":
        return parse(printed, "what the command printed")
    if not output and text.lstrip()[:1] in {"{", "["}:
        try:
            return parse(printed, "what the command printed")
        except RunFailed:
            return text

    return text


# The tool `python`: a function of an installed module, or code with a function `main`.
#
# `call` is called in adw's own process and no clock ends it: it is the user's own module, like a phase with the runner
# `python`. `code` never runs in our process: an interpreter of its own gets it, without the user's settings and paths
# (`-I`), in the working directory, and is ended with all that it started when its time is over.


#: What the interpreter runs: reads code and arguments from its input, and leaves result or error in a file.
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
    """The code of a step raised something."""

    def __init__(self, type_name: str, message: str, run: FailedRun) -> None:
        super().__init__(run, f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name  #: of what it raised


class PythonTool:
    """Calls Python."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._processes = CallProcesses(home)
        self._callables = Callables((home.settings.home,))

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Call the function with `args`; raise what it raises, or RunFailed."""
        args = inputs.get("args") or {}
        if not isinstance(args, dict):
            raise wrong_input(f"args must be a table, and is {json.dumps(args)[:80]}")
        code = inputs.get("code")
        with watched(self._home, context):
            if code is None:
                return self._call(str(inputs.get("call") or ""), args)
            return self._run(str(code), args, context, timeout_seconds)

    def _call(self, call: str, args: JsonObject) -> ToolResult:
        function = self._callables.find(call)
        try:
            return ToolResult(value=function(**args))  # type: ignore[arg-type]  # checked by the caller
        except SystemExit as exc:  # it means to end its program, not ours
            code = exc.code if isinstance(exc.code, int) else 1
            text = f"{call} called sys.exit({exc.code!r})"
            raise RunFailed(FailedRun(exit_code=code, text=text, tool=call), text) from exc

    def _run(self, code: str, args: JsonObject, context: CallContext, timeout_seconds: float) -> ToolResult:
        with call_files(context, self._home.clock.token()) as files:
            end = self._processes.run(
                (sys.executable, "-I", "-X", "utf8", "-c", CHILD, str(files.result)),
                context,
                files,
                timeout_seconds=timeout_seconds,
                stdin=json.dumps({"code": code, "args": args}).encode(),
            )
            if end.ordered:
                return ToolResult(ordered=end.ordered.kind)
            failure = runner_command_failure_of(end, tool="python", name="the code of the step")
            result = self._found(files) if failure is None or end.exit_code == 1 else None
        if failure is None and result is not None and "result" in result:
            return ToolResult(value=result["result"])
        if result is not None and isinstance(result.get("type"), str):
            raise _raised(result, end.tail)
        if failure is not None:
            raise failure

        raise bad("the code of the step ended without a result: it must not end its interpreter by itself")

    def _found(self, files: CallFiles) -> JsonObject | None:
        """Return what the interpreter left, without secrets; None when it left nothing."""
        limit = self._home.settings.steps_max_result_bytes
        raw = files.read(files.result, max_bytes=limit, besides=_BESIDES)
        if raw is None:
            return None
        result = parse(self._home.redactor.scrub_bytes(raw), "what the code of the step gave back")

        return result if isinstance(result, dict) else None


def _raised(found: JsonObject, tail: str) -> RunFailed:
    name, message = str(found["type"]), str(found.get("message") or "")
    if name == "BadResult":
        return bad(message)

    return CodeFailed(name, message, FailedRun(exit_code=1, text=tail or message, tool="python"))


# What a call of a step may know and do.
#
# A call may be made more than once: its worker may vanish before the report is stored. What it saves it saves under
# `Assignment.sink_key`, so that a repeated call saves nothing twice.


@dataclass(frozen=True, kw_only=True, slots=True)
class CallContext:
    """All that a call may know and do."""

    document: WorkflowDocument  #: as it was stored last; a call never changes it
    phase: str
    phase_attempt: int  #: number of the phase's attempt
    #: What templates know: issue, workload, vars, steps, phases, attempt, page, and of a loop the element and index.
    values: Mapping[str, Value]
    cwd: Path  #: where the work is: the worktree, or the repository
    folder: Path  #: the workflow's own directory for output
    orders: Orders  #: a tool that sees one ends the call and reports it as suspended
    record_process: Callable[[ProcessRecord], None]  #: returns when the record is durable
    say: Callable[[str], None] = lambda _line: None  #: shows a line of progress; never raises
    env: Mapping[str, str] = field(default_factory=dict)  #: variables for its process, besides the allowed ones
    spent: Callable[[], float] = lambda: 0.0  #: US dollars that calls have cost and the document does not know of yet
    model: str = ""  #: the model the phase's attempt was begun with, "": the agent's own choice


# Find the function that `package.module:function` names.
#
# It is looked for where Python looks and, after that, in the home. Importing runs the module: a stranger's code, which
# may raise anything; what it raises becomes one sentence.


class Callables:
    """The functions that steps call."""

    def __init__(self, search: Sequence[Path] = ()) -> None:
        """Look for modules in *search* too, after everything that is installed."""
        self._search = tuple(str(path) for path in search)

    def find(self, call: str) -> Callable[..., object]:
        """Return the function *call*; raise ConfigError that says why there is none."""
        module_name, _, name = call.partition(":")
        if not module_name or not name.isidentifier():
            raise ConfigError(f"the call {call!r} cannot be read: write it as package.module:function")
        sys.path.extend(path for path in self._search if path not in sys.path)
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as exc:
            raise ConfigError(
                f"cannot import {module_name}: {type(exc).__name__}: {exc}; install it, or correct the call {call}"
            ) from exc
        function = getattr(module, name, None)
        if not callable(function):
            raise ConfigError(f"{module_name} has no function {name}: correct the call {call}")
        if is_async(function):
            raise ConfigError(f"{call} is async, and adw calls it as a plain function: call asyncio.run inside of it")

        return function  # type: ignore[no-any-return]  # what it returns is looked at when it did
