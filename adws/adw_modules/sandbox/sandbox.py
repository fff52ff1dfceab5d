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
#: Directory of a workflow's box, below its own.
FOLDER = "box"
#: Variables that would lead a boxed command out of the home directory of its box.
_HOME_VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
#: Directories of agents, which are made when they are missing; the rest are files.
_AGENT_FOLDERS = {name for names in policy.AGENT_HOMES.values() for name in names if "." not in name.lstrip(".")}
#: What one command may use besides memory: more than test suites and builds on large machines do, and little enough
#: that one which has run wild ends before the machine does. The first counts what an attempt has at once, the others
#: are for each of its processes.
MAX_PROCESSES = 4096
MAX_OPEN_FILES = 16_384
MAX_CPU_SECONDS = 4 * 60 * 60
MAX_FILE_BYTES = 16 * 2**30
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
        self._warned: set[str] = set()  #: workflows that were told that there is no box

    def is_required(self, document: WorkflowDocument | None = None) -> bool:
        """Say whether a command of *document* that should have a box, and cannot have one, is refused."""
        settings = self._home.settings
        if settings.sandbox_required is not None or settings.sandbox_user is not None:
            return settings.sandbox_required is True or settings.sandbox_user is not None

        return document is not None and bool(document.deliveries)

    @property
    def variables_of_user(self) -> Mapping[str, str]:
        """Variables that lead an agent to the files of the user of `sandbox.user`; none where that is nobody else."""
        with contextlib.suppress(ConfigError):
            name = self._home.settings.sandbox_user
            user = None if name is None else account.find(name)
            if user is not None:
                return {"HOME": str(user.home), "USER": user.name, "LOGNAME": user.name}

        return {}

    def task_inside(self, task: AgentTask, profile: AgentProfile, own: str = "") -> AgentTask:
        """Return *task* for an agent whose own sandbox has to be off: inside of ours it would refuse every command."""
        is_boxed = self.choose(own).backend in probe.BACKENDS

        return replace(task, permissions="all") if is_boxed and profile.capabilities.boxes_itself else task

    def check(self, *, is_required: bool) -> str:
        """
        Return what a person has to know of the box before work starts, "" for nothing.

        Raises ConfigError when there is none and *is_required*, and for a `sandbox.user` that is of no use.
        """
        settings = self._home.settings
        choice = self.choose()
        if settings.sandbox_user is not None:
            account.find(settings.sandbox_user)
        wants = settings.sandbox_required is True or settings.sandbox_user is not None
        if choice.backend == OFF and not choice.why_none and wants:
            name = "sandbox.required" if settings.sandbox_required else "sandbox.user"
            raise ConfigError(f"{name} is set, and sandbox.mode is off: set sandbox.mode to auto, or take one back")
        if choice.why_none and (is_required and settings.sandbox_required is not False):
            raise ConfigError(
                f"there is no sandbox here: {choice.why_none}. adw doctor says what to do; "
                "without one only with sandbox.required = false"
            )
        if choice.why_none:
            return f"agents, commands and gates run without a sandbox: {choice.why_none}; see adw doctor"

        return "" if choice.backend != OFF else "agents, commands and gates run without a sandbox (sandbox.mode is off)"

    @property
    def limits(self) -> Limits:
        """What one command may use."""
        settings = self._home.settings

        return Limits(
            memory_bytes=settings.sandbox_memory or None,
            processes=MAX_PROCESSES,
            open_files=MAX_OPEN_FILES,
            cpu_seconds=MAX_CPU_SECONDS,
            file_bytes=MAX_FILE_BYTES,
            free_disk_bytes=settings.quota_min_free_disk // 10,
        )

    def choose(self, own: str = "") -> Choice:
        """Return the backend for a phase or gate that says *own*, "" when it says nothing; probed once."""
        mode = own or self._home.settings.sandbox_mode
        known = self._chosen.get(mode) or self._choose(mode)
        if not known.why_none:
            self._chosen[mode] = known

        return known

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
        if user is not None:
            command = replace(
                command, env={**command.env, "HOME": str(user.home), "USER": user.name, "LOGNAME": user.name}
            )
        scratch = self._home.folder_of(document.adw_id) / FOLDER
        hosts = [*egress, *(self._home.settings.sandbox_egress or ())]
        owned = [*policy.AGENT_HOMES.get(agent, ()), *registries.files_of(hosts)]
        env = self._prepare(scratch, command, owned, user)
        read = [*files, *([command.stdin_path] if command.stdin_path else ())]
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
            files=[*read, *(_person(command) / name for name in registries.files_of(hosts))],
            results=folders,
            egress=registries.expanded(hosts, env=command.env),
            ports=[int(env[name]) for name in _PORT_VARIABLES if env.get(name, "").isdigit()],
        )
        if user is not None:
            self._hand_over(user, choice.backend, rules, command, read)
        refused: dict[str, int] = {} if denied is None else denied
        try:
            with self._open(choice.backend, rules, replace(limited, env=env), refused, user) as ready:
                yield ready
        finally:
            for host, times in refused.items():
                say(f"the sandbox denied connections to {host} ({times}); sandbox.egress allows hosts")
            for variable, path in (outputs or {}).items():
                with contextlib.suppress(FileNotFoundError):
                    os.replace(moved[variable], path)  # noqa: PTH105 - a link stays a link, and is refused when it is read

    @contextlib.contextmanager
    def _open(
        self, backend: str, rules: Policy, command: CommandLine, denied: dict[str, int], user: Account | None
    ) -> Iterator[CommandLine]:
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
        """Return whom commands are run as, None for the user that adw has; raise RunFailed."""
        name = self._home.settings.sandbox_user
        try:
            return None if name is None else account.find(name)
        except ConfigError as exc:
            raise RunFailed(FailedRun(subtype="config", text=str(exc)), str(exc)) from exc

    def _hand_over(
        self, user: Account, backend: str, rules: Policy, command: CommandLine, files: Iterable[Path]
    ) -> None:
        """Let *user* do what *rules* allow, by owner and mode of the files; raise RunFailed when that cannot be."""
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
            return  # what leads to a place is made anew in its mounts
        for path in (rules.cwd, rules.scratch / "home", *files, *rules.write):
            account.let_pass(path, [home.settings.state_dir, home.settings.trees_dir])
        for path in (rules.cwd, rules.scratch, Path(find_program(command))):
            if why := account.why_unreachable(path, user):
                text = f"{why} on the way to {path}: move it, or install bubblewrap"
                raise RunFailed(FailedRun(subtype="config", text=text), text)

    def _prepare(
        self, scratch: Path, command: CommandLine, owned: Iterable[str], user: Account | None
    ) -> dict[str, str]:
        """Make the directories of a workflow's box, with links to *owned* files of the person; return its variables."""
        for name in policy.SCRATCH:
            durable_file.make_directory(str(scratch / name))
        home = scratch / "home"
        person = _person(command)
        try:
            name, _, address = self._home.git_commands.author().partition("<")
        except AdwError:
            name = address = ""
        known = [("user.name", name.strip()), ("user.email", address.strip(" >"))] if name else []
        if user is not None:  # the worktree is the user's, its git directory is not
            known.append(("safe.directory", "*"))
        # Replaced as a whole: a boxed command may have put a link there, and another one may be reading it.
        with tempfile.NamedTemporaryFile("w", dir=scratch, delete=False, encoding="utf-8") as file:
            file.write(config_text(known))
        Path(file.name).replace(home / ".gitconfig")
        for own in owned:
            real, link = person / own, home / own
            if own in _AGENT_FOLDERS and not real.exists():
                real.mkdir(parents=True, mode=0o700)
            for part in reversed(link.relative_to(home).parents[:-1]):
                if (home / part).is_symlink():  # a boxed command may have put it there: nothing is made behind it
                    (home / part).unlink()
            link.parent.mkdir(parents=True, exist_ok=True)
            if real.exists() and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(real)
        kept = {name: value for name, value in command.env.items() if name not in _HOME_VARIABLES}

        return {**kept, "HOME": str(home), "TMPDIR": str(scratch / "tmp"), "ADW_SANDBOX": self.choose().backend}

    def _surroundings(self, command: CommandLine) -> Surroundings:
        settings = self._home.settings

        return Surroundings(
            home=_person(command),
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


def _person(command: CommandLine) -> Path:
    """Return the home directory of the person whom *command* would be run by without a box."""
    return Path(command.env.get("HOME") or Path.home())
