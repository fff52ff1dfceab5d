"""
Sandbox a command of a phase or gate: choose the backend, build the policy, open the proxy, clean up.

The command gets a home and a temporary directory of the workflow's own, proxy variables, and writable places for its
results. Denied connections are counted with the attempt.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules import durable_file
from adws.adw_modules.errors import AdwError, ConfigError, FailedRun, GitError, RunFailed
from adws.adw_modules.git.private_dir import config_text
from adws.adw_modules.process.run import Account, CommandLine, Limits, find_program
from adws.adw_modules.sandbox import account, bubblewrap, policy, probe, registries
from adws.adw_modules.sandbox.bubblewrap import BubblewrapSandbox
from adws.adw_modules.sandbox.egress import EgressProxy
from adws.adw_modules.sandbox.landlock import LandlockSandbox
from adws.adw_modules.sandbox.policy import GitPlaces, Policy, Surroundings

if TYPE_CHECKING:
    from adws.adw_modules.agent import AgentProfile, AgentTask
    from adws.adw_modules.document import WorkflowDocument
    from adws.app import Home

OFF, AUTO, LANDLOCK, BUBBLEWRAP, COMMAND = "off", "auto", "landlock", "bubblewrap", "command"
#: Sandbox directory inside the workflow's directory.
FOLDER = "box"
#: Variables that would lead a sandboxed command out of its own home directory.
_HOME_VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
#: Limits of one command besides memory: more than test suites and builds on large machines need, but low enough to stop
#: a runaway command before it takes the machine down. The first is for all processes together, the others for each.
MAX_PROCESSES = 4096
MAX_OPEN_FILES = 16_384
MAX_CPU_SECONDS = 4 * 60 * 60
MAX_FILE_BYTES = 16 * 2**30
_PORT_VARIABLES = ("ADW_BACKEND_PORT", "ADW_FRONTEND_PORT", "PORT")
_NO_PROXY = "localhost,127.0.0.1,::1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The backend chosen for a command."""

    backend: str
    why_none: str = ""  #: why there is no sandbox although one was wanted


class CommandSandbox:
    """The user's own wrapper program (`sandbox.command`); implements `Sandbox`."""

    name = COMMAND
    confines_thread = False

    def __init__(self, command: str) -> None:
        self._command = tuple(shlex.split(command))

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command line of the user's program that runs *argv*."""
        return (*self._command, *argv)

    def confine(self) -> None:
        """Do nothing: the user's program confines the command."""


class Sandboxes:
    """Sandboxes the commands of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._chosen: dict[str, Choice] = {}
        self._refusing: dict[tuple[str, str], str] = {}  #: (backend, program) -> why it does not start there, or ""
        self._warned: set[str] = set()  #: workflows already warned that there is no sandbox

    def is_required(self, document: WorkflowDocument | None = None) -> bool:
        """Return whether a command of *document* is refused if it should have a sandbox and cannot get one."""
        settings = self._home.settings
        if settings.sandbox_required is True or settings.sandbox_user is not None:
            return True

        return settings.sandbox_required is None and document is not None and bool(document.deliveries)

    @property
    def variables_of_user(self) -> Mapping[str, str]:
        """Variables that point an agent to the files of `sandbox.user`; empty if adw runs as that user."""
        with contextlib.suppress(ConfigError):
            name = self._home.settings.sandbox_user
            user = None if name is None else account.find(name)
            if user is not None:
                return {"HOME": str(user.home), "USER": user.name, "LOGNAME": user.name}

        return {}

    def task_inside(self, task: AgentTask, profile: AgentProfile, own: str = "") -> AgentTask:
        """Return *task*, with the agent's own sandbox off inside ours: there it would refuse every command."""
        is_boxed = self.choose(own, profile).backend in probe.BACKENDS

        return replace(task, permissions="all") if is_boxed and profile.capabilities.boxes_itself else task

    def check(self, *, is_required: bool) -> str:
        """
        Return what a person has to know about the sandbox before work starts, or "".

        Raises ConfigError if there is none and *is_required*, or if the settings contradict each other or name an
        unusable `sandbox.user`.
        """
        settings, choice = self._home.settings, self.choose()
        if settings.sandbox_user is not None:
            account.find(settings.sandbox_user)
        if choice.backend != OFF:
            return ""
        if choice.why_none and is_required and settings.sandbox_required is not False:
            raise ConfigError(
                f"there is no sandbox here: {choice.why_none}. adw doctor says what to do; "
                "without one only with sandbox.required = false"
            )
        if choice.why_none:
            return f"agents, commands and gates run without a sandbox: {choice.why_none}; see adw doctor"
        if settings.sandbox_required or settings.sandbox_user is not None:
            name = "sandbox.required" if settings.sandbox_required else "sandbox.user"
            raise ConfigError(f"{name} is set, and sandbox.mode is off: set sandbox.mode to auto, or take one back")

        return "agents, commands and gates run without a sandbox (sandbox.mode is off)"

    @property
    def limits(self) -> Limits:
        """The resource limits of one command."""
        settings = self._home.settings

        return Limits(
            memory_bytes=settings.sandbox_memory or None,
            processes=MAX_PROCESSES,
            open_files=MAX_OPEN_FILES,
            cpu_seconds=MAX_CPU_SECONDS,
            file_bytes=MAX_FILE_BYTES,
            free_disk_bytes=settings.quota_min_free_disk // 10,
        )

    def choose(self, own: str = "", agent: AgentProfile | None = None) -> Choice:
        """
        Return the backend for a phase or gate with the setting *own* ("": the general one); a found one is cached.

        For an *agent*, auto takes the strongest backend in which it starts, and the strongest of all if it starts in
        none: files that agents may write must not let them out.
        """
        mode = own or self._home.settings.sandbox_mode
        known = self._chosen.get(mode) or self._choose(mode)
        if not known.why_none:
            self._chosen[mode] = known
        if agent is None or mode != AUTO or known.backend != BUBBLEWRAP or not self.why_not_started(agent, BUBBLEWRAP):
            return known
        weaker = self.choose(LANDLOCK)
        starts = not weaker.why_none and not self.why_not_started(agent, LANDLOCK)

        return weaker if starts else known

    def why_not_started(self, agent: AgentProfile, backend: str) -> str:
        """Return why *agent* does not print its version in a sandbox of *backend*; "" if it does or is missing."""
        env = self._home.agent_variables(agent)
        program = shutil.which(self._home.agent_preflight.program(agent), path=env.get("PATH", os.defpath))
        if program is None:
            return ""
        if (backend, program) not in self._refusing:
            person = Path(env.get("HOME") or Path.home())
            argv = (program, "--version")
            why = probe.why_not_started(backend, argv, agent=agent.name, surroundings=self._surroundings(person, env))
            self._refusing[backend, program] = why

        return self._refusing[backend, program]

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
            why = probe.why_unusable(backend, probe.known(backend, env=self._home.env))
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
        denied: dict[str, int],
        own: str = "",
        agent: AgentProfile | None = None,
        may_write: bool = True,
        egress: Iterable[str] = (),
        files: Iterable[Path] = (),
        folders: Iterable[Path] = (),
        outputs: Mapping[str, Path] = MappingProxyType({}),
    ) -> Iterator[CommandLine]:
        """
        Yield *command* prepared for its sandbox; raise RunFailed if it requires one and cannot get one.

        It may also read *files* and write below *folders*. *outputs* maps variables to files that it writes and adw
        reads: inside, each variable names another file, which replaces the original at the end. Refused connections
        are added to *denied*, by host.
        """
        choice = self.choose(own, agent)
        name = agent.name if agent is not None else ""
        limited = replace(command, limits=self.limits)
        if choice.backend == OFF:
            is_wanted = choice.why_none or self._home.settings.sandbox_required or self._home.settings.sandbox_user
            if own != OFF and is_wanted and self.is_required(document):
                why = choice.why_none or "sandbox.mode is off"
                text = f"a sandbox is required, and there is none here: {why}; see adw doctor and sandbox.required"
                raise RunFailed(FailedRun(subtype="config", text=text), text)
            if choice.why_none and document.adw_id not in self._warned:
                self._warned.add(document.adw_id)
                say(f"runs without a sandbox: {choice.why_none}; see adw doctor")
            yield limited
            return
        if choice.backend == COMMAND:
            yield replace(limited, sandbox=CommandSandbox(self._home.settings.sandbox_command or ""))
            return

        user = self._account()
        command = replace(command, env={**command.env, **self.variables_of_user})
        scratch = self._home.folder_of(document.adw_id) / FOLDER
        hosts = [*egress, *(self._home.settings.sandbox_egress or ())]
        person = Path(command.env.get("HOME") or Path.home())  #: home directory it would have without a sandbox
        own_files = policy.agent_files(name, home=person, env=command.env)
        logins = [person / name for name in registries.files_of(hosts)]
        for path in own_files:
            if "." not in path.name.lstrip(".") and not path.exists():  # names with an extension are files
                path.mkdir(parents=True, mode=0o700)
        env = self._prepare(scratch, person, [*own_files, *logins], command.env, user)
        env["ADW_SANDBOX"] = choice.backend
        read = [*files, *([command.stdin_path] if command.stdin_path else ())]
        moved = {variable: scratch / "out" / path.name for variable, path in outputs.items()}
        for variable, path in outputs.items():
            moved[variable].unlink(missing_ok=True)
            if path.is_file() and not path.is_symlink():
                moved[variable].write_bytes(path.read_bytes())
        env |= {variable: str(path) for variable, path in moved.items()}
        rules = policy.build(
            self._surroundings(person, command.env),
            cwd=command.cwd,
            scratch=scratch,
            program=find_program(command),
            agent=name,
            git=self._git_places(command.cwd, document.branch_name or ""),
            may_write=may_write,
            files=[*read, *logins],
            results=folders,
            egress=registries.expanded(hosts, env=command.env),
            ports=[int(env[name]) for name in _PORT_VARIABLES if env.get(name, "").isdigit()],
        )
        if user is not None:
            self._hand_over(user, choice.backend, rules, command, read)
        try:
            with self._open(choice.backend, rules, replace(limited, env=env), denied, user) as ready:
                yield ready
        finally:
            for host, times in denied.items():
                say(f"the sandbox denied connections to {host} ({times}); sandbox.egress allows hosts")
            for variable, path in outputs.items():
                with contextlib.suppress(FileNotFoundError):
                    os.replace(moved[variable], path)  # noqa: PTH105 - a link stays a link and is refused on reading

    @contextlib.contextmanager
    def _open(
        self, backend: str, rules: Policy, command: CommandLine, denied: dict[str, int], user: Account | None
    ) -> Iterator[CommandLine]:
        """Yield *command* in a sandbox of *backend* with its proxy; afterwards add refused hosts to *denied*."""
        with tempfile.TemporaryDirectory(prefix="adw-box-") as place:  # short: socket paths have about 100 characters
            socket_path = Path(place, "proxy") if backend == BUBBLEWRAP else None
            proxy = EgressProxy(rules.egress, socket_path=socket_path)
            port = proxy.port or bubblewrap.PROXY_PORT
            address = f"http://127.0.0.1:{port}"
            variables = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
            env = {**command.env, **dict.fromkeys(variables, address), "NO_PROXY": _NO_PROXY, "no_proxy": _NO_PROXY}
            env["NODE_USE_ENV_PROXY"] = "1"
            try:
                if socket_path is None:
                    yield replace(command, env=env, sandbox=LandlockSandbox(rules, proxy_port=proxy.port), account=user)
                    return
                if user is not None:
                    account.give(socket_path.parent, user)
                yield replace(
                    command, env=env, sandbox=BubblewrapSandbox(rules, proxy_socket=socket_path, account=user)
                )
            finally:
                proxy.close()
                for host, count in proxy.denied.items():
                    denied[host] = denied.get(host, 0) + count

    def _account(self) -> Account | None:
        """Return the account that commands run as, or None for adw's own user; raise RunFailed if it is unusable."""
        name = self._home.settings.sandbox_user
        try:
            return None if name is None else account.find(name)
        except ConfigError as exc:
            raise RunFailed(FailedRun(subtype="config", text=str(exc)), str(exc)) from exc

    def _hand_over(
        self, user: Account, backend: str, rules: Policy, command: CommandLine, files: Iterable[Path]
    ) -> None:
        """Give *user* the file owners and modes that *rules* need; raise RunFailed if that is impossible."""
        home = self._home
        if not home.has_worktrees:
            text = "sandbox.user needs worktrees: where work is done in place, all of the home would become that user's"
            raise RunFailed(FailedRun(subtype="config", text=text), text)
        shared = home.git.common_dir
        for path in rules.write:
            if path.is_relative_to(shared) and not path.is_relative_to(shared / "worktrees"):
                account.open_directories(path, user)
                for log in path.glob("*") if path.is_relative_to(shared / "logs") else ():
                    account.give(log, user)
            elif not any(path == Path(own) for own in home.settings.sandbox_write or ()):
                account.give(path, user)
        account.let_read(files, user)
        if backend == BUBBLEWRAP:
            return  # its mounts have parents of their own
        for path in (rules.cwd, rules.scratch / "home", *files, *rules.write):
            account.let_pass(path, [home.settings.state_dir, home.settings.trees_dir])
        for path in (rules.cwd, rules.scratch, Path(find_program(command))):
            if why := account.why_unreachable(path, user):
                text = f"{why} on the way to {path}: move it, or install bubblewrap"
                raise RunFailed(FailedRun(subtype="config", text=text), text)

    def _prepare(
        self, scratch: Path, person: Path, owned: Iterable[Path], env: Mapping[str, str], user: Account | None
    ) -> dict[str, str]:
        """Make a workflow's sandbox directories, with links to the person's *owned* files; return the variables."""
        for name in policy.SCRATCH:
            durable_file.make_directory(str(scratch / name))
        home = scratch / "home"
        try:
            name, _, address = self._home.git_commands.author().partition("<")
        except AdwError:
            name = address = ""
        known = [("user.name", name.strip()), ("user.email", address.strip(" >"))] if name else []
        if user is not None:  # the worktree is the user's, the shared git directory is not
            known.append(("safe.directory", "*"))
        # Replaced atomically: a sandboxed command may have put a link there, and another one may be reading it.
        with tempfile.NamedTemporaryFile("w", dir=scratch, delete=False, encoding="utf-8") as file:
            file.write(config_text(known))
        Path(file.name).replace(home / ".gitconfig")
        for real in owned:
            if not real.is_relative_to(person):
                continue  # a variable names its place
            link = home / real.relative_to(person)
            for part in reversed(link.relative_to(home).parents[:-1]):
                if (home / part).is_symlink():  # a sandboxed command may have put it there: make nothing behind it
                    (home / part).unlink()
            link.parent.mkdir(parents=True, exist_ok=True)
            if real.exists() and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(real)
        kept = {name: value for name, value in env.items() if name not in _HOME_VARIABLES}

        return {**kept, "HOME": str(home), "TMPDIR": str(scratch / "tmp")}

    def _surroundings(self, person: Path, env: Mapping[str, str]) -> Surroundings:
        settings = self._home.settings

        return Surroundings(
            home=person,
            env=env,
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
        if branch:  # directories that the first commit would make
            for place in ("refs/heads", "logs/refs/heads"):
                (common / place / branch).parent.mkdir(parents=True, exist_ok=True)

        return GitPlaces(common=common, own=own, branch=branch)
