"""
The tool `command`: a program, or a line for the shell, whose output is the result.

Values reach a program as its arguments, each of them whole. In a line for the shell each ends with `|quote`, which is
checked when the definition is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from adws.adw_modules.engine.runners.command import failure_of
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.fanout.calls import CallContext
from adws.adw_modules.fanout.tools.processes import CallProcesses, call_files
from adws.adw_modules.fanout.tools.results import ToolResult, as_text, parse, text_of, too_long, wrong_input
from adws.adw_modules.json_value import JsonValue

#: Characters of a line of shell that a message names it by.
MAX_NAME = 60
#: Bytes of the note, and of the end, that a file of output has behind its limit.
_BESIDES = 1 << 16


class CommandTool:
    """Runs commands."""

    def __init__(self, processes: CallProcesses) -> None:
        self._processes = processes

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Run the command; raise RunFailed unless it ends with 0 and what it printed can be read."""
        argv, name = _argv(inputs)
        stdin = inputs.get("stdin")
        names = inputs.get("env") or []
        with call_files(context, self._processes.parts.clock.token()) as files:
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
            if failure := failure_of(end, tool=argv[0].rpartition("/")[2] if "command" in inputs else "sh", name=name):
                raise failure
            # One byte more than may be was let through, and a note behind it: that is seen here.
            limit = self._processes.parts.max_bytes
            printed = files.read(files.stdout, max_bytes=limit, besides=_BESIDES) or b""
        if len(printed) > limit:
            raise too_long(len(printed), limit)

        return ToolResult(value=_value(printed, str(inputs.get("output") or "")), facts={"exit_code": end.exit_code})


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


def _value(printed: bytes, output: str) -> JsonValue:
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
