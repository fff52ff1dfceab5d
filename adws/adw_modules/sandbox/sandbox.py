"""
Puts a command of a phase or a gate into a box: chooses the backend, makes the policy, opens the proxy, cleans up.

The command gets a home directory and a temporary directory of the workflow's own, proxy variables, and places for its
result that it can write to. What it tried to reach and may not is counted with the attempt.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import durable_file
from adws.adw_modules.errors import AdwError, FailedRun, GitError, RunFailed
from adws.adw_modules.git.private_dir import config_text
from adws.adw_modules.process.run import CommandLine, Limits, find_program
from adws.adw_modules.sandbox import bubblewrap, policy, probe
from adws.adw_modules.sandbox.bubblewrap import BubblewrapSandbox
from adws.adw_modules.sandbox.egress import EgressProxy
from adws.adw_modules.sandbox.landlock import LandlockSandbox
from adws.adw_modules.sandbox.policy import GitPlaces, Policy, Surroundings

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

OFF, AUTO, LANDLOCK, BUBBLEWRAP, COMMAND = "off", "auto", "landlock", "bubblewrap", "command"
#: Directory of a workflow's box, below its own.
FOLDER = "box"
#: Variables that would lead a boxed command out of the home directory of its box.
_HOME_VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
_PORT_VARIABLES = ("ADW_BACKEND_PORT", "ADW_FRONTEND_PORT", "PORT")
_NO_PROXY = "localhost,127.0.0.1,::1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The backend of a command."""

    backend: str
    why_none: str = ""  #: why there is no box though one was asked for


class CommandSandbox:
    """A program of the user's in front of the command (`sandbox.command`); implements `Sandbox`."""

    name = COMMAND
    confines_thread = False

    def __init__(self, command: str) -> None:
        self._command = tuple(shlex.split(command))

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the call of the user's program that runs *argv*."""
        return (*self._command, *argv)

    def confine(self) -> None:
        """Do nothing: the user's program does it."""


class Sandboxes:
    """Makes boxes for the commands of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._chosen: dict[str, Choice] = {}

    @property
    def is_required(self) -> bool:
        """Whether a command that should have a box, and cannot have one, is refused."""
        return self._home.settings.sandbox_required

    @property
    def limits(self) -> Limits:
        """What one command may use."""
        settings = self._home.settings

        return Limits(
            memory_bytes=settings.sandbox_memory or None,
            processes=settings.sandbox_processes or None,
            open_files=settings.sandbox_open_files or None,
            cpu_seconds=settings.sandbox_cpu_seconds or None,
            file_bytes=settings.sandbox_file_bytes or None,
        )

    def choose(self, own: str = "") -> Choice:
        """Return the backend for a phase or gate that says *own*, "" when it says nothing; probed once."""
        mode = own or self._home.settings.sandbox_mode
        if mode not in self._chosen:
            self._chosen[mode] = self._choose(mode)

        return self._chosen[mode]

    def _choose(self, mode: str) -> Choice:
        if mode == OFF:
            return Choice(backend=OFF)
        if self._home.settings.sandbox_command and mode == AUTO:
            return Choice(backend=COMMAND)
        if platform.system() != "Linux":
            return Choice(backend=OFF, why_none="there is no backend for this system: set sandbox.command")
        wanted = probe.BACKENDS if mode == AUTO else (mode,)
        reasons = []
        for backend in wanted:
            why = probe.why_unusable(backend, probe.run(backend, env=self._home.env))
            if not why:
                return Choice(backend=backend)
            reasons.append(f"{backend}: {why}")

        return Choice(backend=OFF, why_none="; ".join(reasons))

    @contextlib.contextmanager
    def boxed(
        self,
        command: CommandLine,
        document: WorkflowDocument,
        *,
        say: Callable[[str], None],
        denied: dict[str, int] | None = None,
        own: str = "",
        agent: str = "",
        may_write: bool = True,
        egress: Iterable[str] = (),
        files: Iterable[Path] = (),
        folders: Iterable[Path] = (),
        outputs: Mapping[str, Path] | None = None,
    ) -> Iterator[CommandLine]:
        """
        Yield *command* as it is run in its box; raise RunFailed when it needs one and there is none.

        It may read *files* and write below *folders* too. *outputs* are variables that name a file which it writes and
        adw reads: inside, each is another file, which takes its place at the end. Connections that were refused are
        added to *denied*, by host.
        """
        choice = self.choose(own)
        limited = replace(command, limits=self.limits)
        if choice.backend == OFF:
            if choice.why_none and self.is_required:
                text = f"sandbox.required is set, and there is no sandbox here: {choice.why_none}; see adw doctor"
                raise RunFailed(FailedRun(subtype="config", text=text), text)
            if choice.why_none:
                say(f"runs without a sandbox: {choice.why_none}; see adw doctor")
            yield limited
            return
        if choice.backend == COMMAND:
            yield replace(limited, sandbox=CommandSandbox(self._home.settings.sandbox_command or ""))
            return

        scratch = self._home.folder_of(document.adw_id) / FOLDER
        env = self._prepare(scratch, command, agent)
        moved = {variable: scratch / "out" / path.name for variable, path in (outputs or {}).items()}
        for variable, path in (outputs or {}).items():
            moved[variable].unlink(missing_ok=True)
            if path.is_file() and not path.is_symlink():
                moved[variable].write_bytes(path.read_bytes())
        env |= {variable: str(path) for variable, path in moved.items()}
        rules = policy.build(
            self._surroundings(command),
            cwd=command.cwd,
            scratch=scratch,
            program=find_program(command),
            agent=agent,
            git=self._git_places(command.cwd, document.branch_name or ""),
            may_write=may_write,
            files=[*files, *([command.stdin_path] if command.stdin_path else ())],
            results=folders,
            egress=[*egress, *(self._home.settings.sandbox_egress or ())],
            ports=[int(env[name]) for name in _PORT_VARIABLES if env.get(name, "").isdigit()],
        )
        refused: dict[str, int] = {} if denied is None else denied
        try:
            with self._open(choice.backend, rules, replace(limited, env=env), refused) as ready:
                yield ready
        finally:
            for host, times in refused.items():
                say(f"the sandbox denied connections to {host} ({times}); sandbox.egress allows hosts")
            for variable, path in (outputs or {}).items():
                with contextlib.suppress(FileNotFoundError):
                    os.replace(moved[variable], path)  # noqa: PTH105 - a link stays a link, and is refused when it is read

    @contextlib.contextmanager
    def _open(self, backend: str, rules: Policy, command: CommandLine, denied: dict[str, int]) -> Iterator[CommandLine]:
        """Yield *command* in a box of *backend* with its proxy, and count afterwards what was denied to it."""
        with tempfile.TemporaryDirectory(prefix="adw-box-") as place:  # short: the name of a socket has 100 characters
            socket_path = Path(place, "proxy") if backend == BUBBLEWRAP else None
            proxy = EgressProxy(rules.egress, socket_path=socket_path)
            port = proxy.port or bubblewrap.PROXY_PORT
            address = f"http://127.0.0.1:{port}"
            variables = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
            env = {**command.env, **dict.fromkeys(variables, address), "NO_PROXY": _NO_PROXY, "no_proxy": _NO_PROXY}
            env["NODE_USE_ENV_PROXY"] = "1"
            try:
                if socket_path is not None:
                    box: BubblewrapSandbox | LandlockSandbox = BubblewrapSandbox(rules, proxy_socket=socket_path)
                else:
                    box = LandlockSandbox(rules, proxy_port=proxy.port)
                yield replace(command, env=env, sandbox=box)
            finally:
                proxy.close()
                for host, count in proxy.denied.items():
                    denied[host] = denied.get(host, 0) + count

    def _prepare(self, scratch: Path, command: CommandLine, agent: str) -> dict[str, str]:
        """Make the directories of a workflow's box, and return the environment inside."""
        for name in ("home", "tmp", "out"):
            durable_file.make_directory(str(scratch / name))
        home = scratch / "home"
        person = Path(command.env.get("HOME") or Path.home())
        try:
            name, _, address = self._home.git_commands.author().partition("<")
        except AdwError:
            name = address = ""
        known = [("user.name", name.strip()), ("user.email", address.strip(" >"))] if name else []
        # Replaced as a whole: a boxed command may have put a link there, and another one may be reading it.
        with tempfile.NamedTemporaryFile("w", dir=scratch, delete=False, encoding="utf-8") as file:
            file.write(config_text(known))
        Path(file.name).replace(home / ".gitconfig")
        for own in policy.AGENT_HOMES.get(agent, ()):
            real, link = person / own, home / own
            if not real.exists() and "." not in own.lstrip("."):
                real.mkdir(parents=True, mode=0o700)
            link.parent.mkdir(parents=True, exist_ok=True)
            if real.exists() and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(real)
        kept = {name: value for name, value in command.env.items() if name not in _HOME_VARIABLES}

        return {**kept, "HOME": str(home), "TMPDIR": str(scratch / "tmp"), "ADW_SANDBOX": self.choose().backend}

    def _surroundings(self, command: CommandLine) -> Surroundings:
        settings = self._home.settings

        return Surroundings(
            home=Path(command.env.get("HOME") or Path.home()),
            env=command.env,
            read=settings.sandbox_read or (),
            write=settings.sandbox_write or (),
            hidden=(settings.home, settings.state_dir, settings.trees_dir),
        )

    def _git_places(self, cwd: Path, branch: str) -> GitPlaces | None:
        home = self._home
        if not home.has_worktrees:
            return None
        try:
            own = home.workplace.git_dir(cwd)
        except GitError:
            return None
        common = home.git.common_dir
        if branch:  # the directories that a first commit would make
            for place in ("refs/heads", "logs/refs/heads"):
                (common / place / branch).parent.mkdir(parents=True, exist_ok=True)

        return GitPlaces(common=common, own=own, branch=branch)
