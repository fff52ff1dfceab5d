"""
The wiring of the calls of steps: tools, sinks, and what they are given.

Apart from `app_work` because only workers that have steps to do need it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, cast

from adws import config
from adws.adw_modules.db.sink_ledger import SinkLedger
from adws.adw_modules.errors import ConfigError
from adws.adw_modules.fanout.call_making import Tool, ToolCalls
from adws.adw_modules.fanout.callables import Callables
from adws.adw_modules.fanout.sinks.line_files import LineFiles
from adws.adw_modules.fanout.sinks.saving import SinkParts, Sinks, TableSink
from adws.adw_modules.fanout.tools.agent import AgentTool
from adws.adw_modules.fanout.tools.command import CommandTool
from adws.adw_modules.fanout.tools.http import HttpParts, HttpTool
from adws.adw_modules.fanout.tools.processes import CallProcesses, ProcessParts
from adws.adw_modules.fanout.tools.python import PythonTool
from adws.adw_modules.http_client import HttpClient
from adws.app_home import Home

if TYPE_CHECKING:
    from adws.adw_modules.connections import Connection
    from adws.adw_modules.executions import Assignment, CallReport
    from adws.adw_modules.fanout.calls import CallContext
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.plugins import Plugins
    from adws.adw_modules.redaction import Redactor
    from adws.adw_modules.steps import StepSpec
    from adws.app_agents import AgentRoom


class HomeCalls(Home, Protocol):
    """What the parts of a home are to the calls of its steps (`app.App`)."""

    @property
    def agents(self) -> AgentRoom: ...
    @property
    def plugins(self) -> Plugins: ...


class _Limits(TypedDict):
    clock: Clock
    redactor: Redactor
    max_bytes: int


class ThreadCalls:
    """
    A maker of calls for each thread of a worker; implements `CallMaker`.

    Sinks keep connections and transactions, which two threads must not share.
    """

    def __init__(self, build: Callable[[], ToolCalls]) -> None:
        self._build = build
        self._of_thread = threading.local()
        self._made: list[ToolCalls] = []

    def make(self, step: StepSpec, assignment: Assignment, context: CallContext) -> CallReport:
        """Make one call and say what came of it."""
        calls: ToolCalls | None = getattr(self._of_thread, "calls", None)
        if calls is None:
            calls = self._of_thread.calls = self._build()
            self._made.append(calls)

        return calls.make(step, assignment, context)

    def close(self) -> None:
        """Let go of connections and files; no thread makes calls any more."""
        while self._made:
            self._made.pop().close()


class CallRoom:
    """What makes the calls of the steps of one home."""

    def __init__(
        self,
        app: HomeCalls,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """*env* is where variables come from."""
        self._app = app
        self._env = config.process_environment() if env is None else env

    @cached_property
    def calls(self) -> ThreadCalls:
        """What makes calls, in any thread of a worker."""
        return ThreadCalls(lambda: ToolCalls(self._tools, self._new_sinks(), **self._limits))

    @cached_property
    def _limits(self) -> _Limits:
        app = self._app

        return {"clock": app.clock, "redactor": app.redactor, "max_bytes": app.settings.steps_max_result_bytes}

    @cached_property
    def _tools(self) -> Mapping[str, Tool]:
        app = self._app
        limit = app.settings.steps_max_result_bytes
        processes = CallProcesses(
            ProcessParts(
                clock=app.clock,
                processes=app.processes,
                redactor=app.redactor,
                env=self._env,
                grace_seconds=app.settings.grace_seconds,
                max_bytes=limit,
            )
        )
        http = HttpParts(
            client=self._http, now=app.clock.now, redact=app.redactor.redact_text, env=self._env, max_bytes=limit
        )
        agent = AgentTool(app.agents.parts, processes, shared=app.agents.shared_place)

        return {
            "command": CommandTool(processes),
            "python": PythonTool(processes, self._callables),
            "http": HttpTool(http),
            "agent": agent,
        }

    def close(self) -> None:
        """Let go of connections and files."""
        if "calls" in self.__dict__:
            self.calls.close()
            self._http.close()

    @cached_property
    def _http(self) -> HttpClient:
        return HttpClient(self._app.clock, may_ask=self._why_not)

    def _why_not(self, host: str) -> str:
        allowed = self._app.settings.steps_http_allow
        if allowed is None or any(_is_meant(host.lower(), name) for name in allowed):
            return ""

        return "steps.http_allow does not name it"

    @cached_property
    def _callables(self) -> Callables:
        return Callables((self._app.settings.home,))

    def _new_sinks(self) -> Sinks:
        return Sinks(
            SinkParts(
                files=LineFiles(SinkLedger),
                callables=self._callables,
                open_table_sink=self._table_sink,
                open_own_sink=self._app.plugins.new_sink,
                connections=self._app.settings.connections,
            )
        )

    def _table_sink(self, connection: Connection) -> TableSink:
        if connection.type == "sqlite":
            module = importlib.import_module("adws.adw_modules.db.sqlite_sink")
            return cast("TableSink", module.SqliteSink(self._app.settings.home / Path(connection.path).expanduser()))
        try:
            # Late: the driver is an extra, and those who use SQLite do not have it.
            module = importlib.import_module("adws.adw_modules.db.postgres_sink")
        except ImportError as exc:
            raise ConfigError(
                f"PostgreSQL needs a driver that is missing ({exc}): pip install 'adw[postgres]'"
            ) from exc
        url = connection.url or self._variable(connection, connection.url_env)
        password = self._variable(connection, connection.password_env) if connection.password_env else ""

        return cast("TableSink", module.PostgresSink(url, password=password, name=connection.name))

    def _variable(self, connection: Connection, name: str) -> str:
        value = self._env.get(name)
        if not value:
            raise ConfigError(f"the environment variable {name} of the connection {connection.name} is not set: set it")

        return value


def _is_meant(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
