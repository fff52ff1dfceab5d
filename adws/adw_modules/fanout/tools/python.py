"""
The tool `python`: a function of an installed module, or code with a function `main`.

`call` is called in adw's own process and no clock ends it: it is the user's own module, like a phase with the runner
`python`. `code` never runs in our process: an interpreter of its own gets it, without the user's settings and paths
(`-I`), in the working directory, and is ended with all that it started when its time is over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from adws.adw_modules.engine.runners.command import failure_of
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.fanout.callables import Callables
from adws.adw_modules.fanout.calls import CallContext
from adws.adw_modules.fanout.tools.processes import CallFiles, CallProcesses, call_files
from adws.adw_modules.fanout.tools.results import ToolResult, bad, parse, wrong_input
from adws.adw_modules.json_value import JsonObject, JsonValue

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
#: Bytes around a result in its file, and of an error there.
_BESIDES = 1 << 16


class CodeFailed(RunFailed):
    """The code of a step raised something."""

    def __init__(self, type_name: str, message: str, run: FailedRun) -> None:
        super().__init__(run, f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name  #: of what it raised


class PythonTool:
    """Calls Python."""

    def __init__(self, processes: CallProcesses, callables: Callables) -> None:
        self._processes = processes
        self._callables = callables

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Call the function with `args`; raise what it raises, or RunFailed."""
        args = inputs.get("args") or {}
        if not isinstance(args, dict):
            raise wrong_input(f"args must be a table, and is {json.dumps(args)[:80]}")
        code = inputs.get("code")
        if code is None:
            return self._call(str(inputs.get("call") or ""), args)

        return self._run(str(code), args, context, timeout_seconds)

    def _call(self, call: str, args: JsonObject) -> ToolResult:
        function = self._callables.find(call)
        try:
            return ToolResult(value=function(**args))  # type: ignore[arg-type]  # looked at by whoever gets it
        except SystemExit as exc:  # it means to end its program, not ours
            code = exc.code if isinstance(exc.code, int) else 1
            text = f"{call} called sys.exit({exc.code!r})"
            raise RunFailed(FailedRun(exit_code=code, text=text, tool=call), text) from exc

    def _run(self, code: str, args: JsonObject, context: CallContext, timeout_seconds: float) -> ToolResult:
        parts = self._processes.parts
        with call_files(context, parts.clock.token()) as files:
            end = self._processes.run(
                (sys.executable, "-I", "-X", "utf8", "-c", CHILD, str(files.result)),
                context,
                files,
                timeout_seconds=timeout_seconds,
                stdin=json.dumps({"code": code, "args": args}).encode(),
            )
            if end.ordered:
                return ToolResult(ordered=end.ordered.kind)
            failure = failure_of(end, tool="python", name="the code of the step")
            found = self._found(files) if failure is None or end.exit_code == 1 else None
        if failure is None and found is not None and "result" in found:
            return ToolResult(value=found["result"])
        if found is not None and isinstance(found.get("type"), str):
            raise _raised(found, end.tail)
        if failure is not None:
            raise failure

        raise bad("the code of the step ended without a result: it must not end its interpreter by itself")

    def _found(self, files: CallFiles) -> JsonObject | None:
        """Return what the interpreter left, without secrets; None when it left nothing."""
        limit = self._processes.parts.max_bytes
        raw = files.read(files.result, max_bytes=limit, besides=_BESIDES)
        if raw is None:
            return None
        found = parse(self._processes.parts.redactor.scrub_bytes(raw), "what the code of the step gave back")

        return found if isinstance(found, dict) else None


def _raised(found: JsonObject, tail: str) -> RunFailed:
    name, message = str(found["type"]), str(found.get("message") or "")
    if name == "BadResult":
        return bad(message)

    return CodeFailed(name, message, FailedRun(exit_code=1, text=tail or message, tool="python"))
