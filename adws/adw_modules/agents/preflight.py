"""
Check that an agent is installed, which version it is, and whether it is logged in, before it gets work.

Finding the program starts nothing. Version and log-in are requested from the program itself, once per process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules.agent import AgentProfile
from adws.adw_modules.errors import RunFailed
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.process.run import CommandLine, ProcessEnd, find_program, run_process
from adws.adw_modules.workflow.model import Timeouts

if TYPE_CHECKING:
    from adws.app import Home

#: Time limit for an agent to report its version or log-in.
ASK_SECONDS = 20.0
#: Time limit of the log-in check before a start: a person waits for it.
LOGIN_SECONDS = 5.0
#: Variables passed on to every agent besides those of all processes: where the user's settings are.
AGENT_VARIABLES = (
    "NODE_EXTRA_CA_CERTS",
    "NO_PROXY",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "no_proxy",
)
#: Likewise, but with a password in its value such a variable has to be named in `agent.env`.
PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentState:
    """The state of an agent on this machine."""

    name: str
    program: str  #: as in the settings
    path: str = ""  #: "": it is not installed
    version: str = ""  #: "": not reported
    is_logged_in: bool | None = None  #: None: it cannot be checked, or did not answer
    problem: str = ""  #: what is wrong and what to do

    def to_json(self) -> JsonObject:
        """Return it as JSON for programs."""
        return {
            "name": self.name,
            "program": self.program,
            "path": self.path,
            "version": self.version,
            "logged_in": self.is_logged_in,
            "problem": self.problem,
        }


class AgentPreflight:
    """Finds installed agents."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, AgentState] = {}

    def program(self, profile: AgentProfile) -> str:
        """Return the program of an agent, from the settings."""
        return (self._home.settings.agent_programs or {}).get(profile.name, profile.name)

    def missing(self, profile: AgentProfile) -> str:
        """Return why the agent cannot be started, "" if its program was found."""
        return self._find(profile)[1]

    def look(self, profile: AgentProfile, env: Mapping[str, str]) -> AgentState:
        """Return the state of the agent run with *env*; checked once."""
        if (known := self._known.get(profile.name)) is not None:
            return known
        path, problem = self._find(profile)
        state = AgentState(name=profile.name, program=self.program(profile), path=path, problem=problem)
        if not problem:
            end = self._run((path, "--version"), env)
            if end.exit_code != 0:
                how = f"exit code {end.exit_code}" if end.exit_code is not None else f"signal {end.signal}"
                how = f"it took longer than {ASK_SECONDS:g} seconds" if end.timed_out else how
                state = replace(state, problem=f"{path} does not say its version ({how}): install it again")
            else:
                said = next((line.strip() for line in end.tail.splitlines() if line.strip()), "")
                asked = profile.login_argv
                is_logged_in = self._run((path, *asked), env).exit_code == 0 if asked else None
                problem = _log_in(profile, path) if is_logged_in is False else ""
                state = replace(state, version=said[:100], is_logged_in=is_logged_in, problem=problem)

        return self._known.setdefault(profile.name, state)

    def why_logged_out(self, profile: AgentProfile, env: Mapping[str, str]) -> str:
        """Return what to do if the agent reports that it is not logged in, else ""; checked each time."""
        path, problem = self._find(profile)
        if problem or not profile.login_argv:
            return problem
        end = self._run((path, *profile.login_argv), env, seconds=LOGIN_SECONDS)
        # An agent that does not answer in time may still work.
        return "" if end.timed_out or end.exit_code == 0 else _log_in(profile, path)

    def _find(self, profile: AgentProfile) -> tuple[str, str]:
        program = self.program(profile)
        try:
            env = {"PATH": self._home.env.get("PATH", "")}
            path = find_program(CommandLine(argv=(program,), cwd=Path("/"), env=env))
        except RunFailed as exc:
            setting = "say where it is with agent.programs"
            if "/" in program:
                return "", f"{exc}; {setting}"
            return "", f"there is no program {program!r} in PATH: install it, or {setting}"

        return path, ""

    def _run(self, argv: tuple[str, ...], env: Mapping[str, str], *, seconds: float = ASK_SECONDS) -> ProcessEnd:
        # Not in our own directory: an agent may read its settings from there.
        with tempfile.TemporaryDirectory(prefix="adw-agent-") as place:
            return run_process(
                CommandLine(
                    argv=argv,
                    cwd=Path(place),
                    env=env,
                    timeouts=Timeouts(wall=seconds, idle=None, after_result=None),
                    grace_seconds=1.0,
                ),
                clock=self._home.clock,
                processes=self._home.processes,
                orders=NoOrders(),
                record=lambda _record: None,
                redactor=self._home.redactor,
            )


def variables_of(profile: AgentProfile, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables of *env* passed on to the agent besides those of every process."""
    open_proxies = (name for name in PROXY_VARIABLES if "@" not in env.get(name, ""))

    return (*AGENT_VARIABLES, *open_proxies, *profile.variables)


def _log_in(profile: AgentProfile, path: str) -> str:
    return f"{profile.name} is not logged in: start {path} once, and log in"
