"""
`adw doctor`: measure facts about the machine, the home and the services it needs, and judge them.

Each finding says what is there and, if needed, what is wrong and how to fix it. A problem prevents work; a warning does
not, but may become a problem. Everything is read-only: the database is opened as it is, never created or upgraded. What
cannot be checked is a finding itself. The judging functions are pure: facts in, findings out.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws import app as app_module
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.db import migrate, sqlite
from adws.adw_modules.db.sqlite import file_system_of
from adws.adw_modules.errors import (
    AdwError,
    ConfigError,
    DatabaseUnavailable,
    GitError,
    RunFailed,
    StartRefused,
)
from adws.adw_modules.git.change_policy import A_WORKFLOW_FILE, matching
from adws.adw_modules.identifiers import JsonObject, counted, size_text
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.maintenance import check
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.process import cgroup
from adws.adw_modules.resources import ports as resources_ports
from adws.adw_modules.resources.ports import reservations
from adws.adw_modules.resources.quotas import nearest
from adws.adw_modules.sandbox import probe as sandbox_probe
from adws.adw_modules.steps.http_client import HttpAnswer, HttpClient, HttpRequest
from adws.adw_modules.worker.preflight import StartRequest
from adws.config import load as config_load

if TYPE_CHECKING:
    from adws.adw_modules.db.connection import Database
    from adws.adw_modules.forge.model import ForgeAccess
    from adws.adw_modules.interfaces import LoadedState
    from adws.adw_modules.maintenance.check import Inconsistency
    from adws.app import Home


#: Levels: as it should be; works, but perhaps not for long or not completely; work cannot be done.
OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the doctor's output."""

    area: str  #: git | agents | forge | ...
    level: str  #: ok | warning | problem
    what: str  #: what is there, or what is wrong
    fix: str = ""  #: the command, or what a person has to do; "" if all is well

    def to_json(self) -> JsonObject:
        """Return the finding for programs."""
        return {"area": self.area, "level": self.level, "what": self.what, "fix": self.fix}


def count(findings: Iterable[Finding], level: str) -> int:
    """Return how many findings are of *level*."""
    return sum(1 for finding in findings if finding.level == level)


def _ok(area: str, what: str) -> Finding:
    return Finding(area=area, level=OK, what=what)


def _warning(area: str, what: str, fix: str) -> Finding:
    return Finding(area=area, level=WARNING, what=what, fix=fix)


def _problem(area: str, what: str, fix: str) -> Finding:
    return Finding(area=area, level=PROBLEM, what=what, fix=fix)


# --- judging ---------------------------------------------------------------------------------------------------

#: The oldest Python that adw runs on.
OLDEST_PYTHON = (3, 11)
#: With fewer inodes a worktree may not fit.
FEW_INODES = 50_000
#: Clock skews in seconds: what is odd, and what GitHub does not accept from an app.
ODD_SKEW, WRONG_SKEW = 5.0, 60.0
#: adw did not exist before this year, so an earlier clock was never set.
FIRST_YEAR = 2025
#: With fewer free pairs of ports the next workflows may find none.
FEW_PORTS = 3
#: With fewer requests left work may have to wait for the next hour.
FEW_REQUESTS = 200
#: A sync of more seconds makes every step of a workflow slow.
SLOW_SYNC = 0.25
#: The most problems of one area that are listed one by one.
MOST = 5

_NEW_TOKEN = "make a token that has them, and export ADW_GITHUB_TOKEN=..."  # noqa: S105 - a sentence, no token
#: Kind of inconsistency -> area and level; other kinds are warnings about the database.
_KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "storage": ("database", PROBLEM),
        "moved": ("database", PROBLEM),
        "document": ("database", PROBLEM),
        "lock": ("locks", PROBLEM),
        "owner": ("locks", WARNING),
        "request": ("locks", WARNING),
        "run": ("locks", WARNING),
        "runner": ("locks", WARNING),
    }
)

#: Kinds that prevent all other checks.
_UNREADABLE = frozenset({"storage", "schema", "moved"})


def database(name: str, schema: str | None, troubles: Sequence[Inconsistency]) -> Iterator[Finding]:
    """Judge the consistency of the database."""
    areas = {"database": list[Finding](), "locks": list[Finding]()}
    for trouble in troubles:
        area, level = _KINDS.get(trouble.kind, ("database", WARNING))
        what = f"{trouble.adw_id}: {trouble.text}" if trouble.adw_id else trouble.text
        areas[area].append(Finding(area=area, level=level, what=what, fix=trouble.hint))
    if not areas["database"]:
        yield _ok("database", f"{name}, schema {schema}: whole")
    if not areas["locks"] and not any(trouble.kind in _UNREADABLE for trouble in troubles):
        yield _ok("locks", "no lock, lease or run is left behind")
    for area, findings in areas.items():
        worst_first = sorted(findings, key=lambda one: one.level != PROBLEM)
        yield from worst_first[:MOST]
        if rest := worst_first[MOST:]:
            yield Finding(area=area, level=rest[0].level, what=f"{len(rest)} more like these", fix="adw db check")


def github(access: ForgeAccess, repository: str, *, pushes_workflow_files: bool = False) -> Iterator[Finding]:
    """Judge our permissions at GitHub."""
    yield _ok("forge", f"GitHub knows us as {access.login}, and shows {repository}")
    wanted = (("push branches", access.may_push), ("write issues and comments", access.may_write_issues))
    missing = [what for what, may in wanted if may is False]
    if missing:
        what = f"{access.login} may not {' or '.join(missing)} in {repository}"
        yield _problem("forge", what, f"ask its owner for write access, or {_NEW_TOKEN}")
    elif access.may_push:
        yield _ok("forge", f"{access.login} may push to {repository}")
    scopes, enough = access.scopes, {"repo"} if access.is_private else {"repo", "public_repo"}
    if scopes is not None and not enough & set(scopes):
        what = f"the token has the scopes {', '.join(scopes) or 'none'}, and needs {' or '.join(sorted(enough))}"
        yield _problem("forge", what, _NEW_TOKEN)
    elif scopes is not None and pushes_workflow_files and "workflow" not in scopes:
        yield _problem(
            "forge", "the token has not the scope workflow, and ship.allow_paths has workflow files", _NEW_TOKEN
        )
    elif scopes is not None:
        yield _ok("forge", f"the token has the scopes {', '.join(scopes)}")
    if access.requests_left is not None and access.requests_left < FEW_REQUESTS:
        what = f"GitHub answers {counted(access.requests_left, 'more request')} this hour"
        yield _warning("forge", what, "wait, or use a token that others do not use")


def python(version: tuple[int, int, int], *, has_proc: bool) -> Iterator[Finding]:
    """Judge the Python that adw runs on, and whether /proc shows processes."""
    named = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        yield _problem("python", f"Python {named} is too old", f"install Python {wanted} or newer, and adw with it")
    else:
        yield _ok("python", f"Python {named} at {sys.executable}")
    if not has_proc:
        yield _warning(
            "python",
            "this system shows no processes in /proc: that a worker is dead cannot be proven, a takeover waits for its "
            "lease to end",
            "use Linux where that matters",
        )


def disk(where: str, *, free_bytes: int, least_bytes: int, free_inodes: int, all_inodes: int) -> Iterator[Finding]:
    """Judge the free space; *where* names content and place. *all_inodes* is 0 if the file system counts none."""
    free, least = size_text(free_bytes), size_text(least_bytes)
    fix = "free some space (adw admin gc finds what nobody needs), or lower quota.min_free_disk in adw.toml"
    if free_bytes < least_bytes * 1.2:
        judged = _problem if free_bytes < least_bytes else _warning
        yield judged("disk", f"{free} free for {where}: no work starts below {least}", fix)
    else:
        yield _ok("disk", f"{free} free for {where}")
    if all_inodes and free_inodes < FEW_INODES:
        level = PROBLEM if free_inodes == 0 else WARNING
        what = f"{free_inodes} inodes left for {where}: no more files can be made soon"
        yield Finding(area="disk", level=level, what=what, fix="delete files that nobody needs: adw admin gc, caches")


def file_system(path: Path, kind: str, *, has_sqlite: bool) -> Finding:
    """Judge the type of *path*'s file system; *kind* is "" if it is unknown."""
    fix = "set state.dir to a directory on a local disk"
    if kind in sqlite.VOLATILE_TYPES:
        return _warning("files", f"{path} is in memory ({kind}): all is gone after a restart", fix)
    if kind in sqlite.LAYERED_TYPES:
        what = f"{path} is in the layer of a container ({kind}): all is gone with the container"
        return _warning("files", what, f"mount a volume for it, or {fix}")
    if kind in sqlite.NETWORK_TYPES and has_sqlite:
        what = f"{path} is on a network file system ({kind}), where SQLite loses data"
        return _problem("files", what, f"{fix}, or use PostgreSQL")
    if kind in sqlite.NETWORK_TYPES | sqlite.SHARED_TYPES:
        what = f"{path} is shared with other machines ({kind}): locks and syncs may not hold"
        return _warning("files", what, fix)

    return _ok("files", f"{path} is on {kind or 'a file system that cannot be told'}")


def clock(year: int, *, goes_back: bool = False, skews: Sequence[tuple[str, float]] = ()) -> Iterator[Finding]:
    """Judge this machine's clock; *skews* names other clocks and how many seconds ours is ahead of each."""
    fix = "sudo timedatectl set-ntp true"
    if year < FIRST_YEAR:
        yield _problem("clock", f"the clock says the year {year}", fix)
        return
    if goes_back:
        yield _problem("clock", "the clock for spans of time goes back", "restart the machine, or see to its kernel")
    for who, ahead in skews:
        way = "ahead of" if ahead > 0 else "behind"
        what = f"the clock is {abs(ahead):.0f} s {way} that of {who}"
        if abs(ahead) >= ODD_SKEW:
            yield (_problem if abs(ahead) >= WRONG_SKEW else _warning)("clock", what, fix)
        else:
            yield _ok("clock", f"the clock agrees with that of {who}")
    if not skews and not goes_back:
        yield _ok("clock", "the clock is set; nobody was there to compare it with")


def ports(described: str, *, count: int, free: int, reserved: int) -> Iterator[Finding]:
    """Judge how many pairs of ports are *free*, neither reserved nor listened on; workflows have *reserved* pairs."""
    what = f"{free} of {count} pairs free ({described}), {reserved} with workflows"
    fix = "adw admin ports, and set ports.backend_start to where nobody else listens"
    if free < min(FEW_PORTS, count):
        yield (_warning if free else _problem)("ports", what, fix)
    else:
        yield _ok("ports", what)


def _split(problem: str) -> tuple[str, str]:
    """Split a sentence into what is wrong and what to do; the second is "" if it only says what is wrong."""
    for mark in ("; ", ": "):
        what, result, fix = problem.rpartition(mark)
        if result:
            return what, fix

    return problem, ""


def _some(names: tuple[str, ...], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""

    return f"{', '.join(names[:most])}{more}"


# --- measuring this machine ------------------------------------------------------------------------------------


PROC = Path("/proc")
MOUNT_TABLE = PROC / "self/mountinfo"
#: The most files of the state directory whose permissions are checked.
MOST_FILES = 2_000
#: Errors of a file system that does not support unnamed files.
_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


def storage(path: Path, *, has_sqlite: bool, clock: Clock) -> Iterator[Finding]:
    """Judge whether files in *path* survive, and who can read them; if it does not exist, judge where it will be."""
    place, kind = nearest(path), ""
    with suppress(OSError):
        kind = file_system_of(place.resolve(), MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape"))
    yield file_system(path, kind, has_sqlite=has_sqlite)
    files, me = tuple(_files(path)), os.geteuid()
    other = next((item for item, _, owner in files if owner != me), None) if me != 0 else None
    if other:
        what = f"{other} belongs to another user than the one who runs adw"
        yield _problem("files", what, f"sudo chown -R $(id -u) {path}")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield _problem("files", f"{path} cannot be written", f"chmod u+rwx {path}, or set state.dir")
        return
    began = clock.monotonic()
    try:
        _try_sync(place)
    except OSError as exc:
        what = f"what is written in {path} cannot be synced: {exc.strerror or exc}"
        yield _problem("files", what, "set state.dir")
    else:
        seconds = clock.monotonic() - began
        if seconds > SLOW_SYNC:
            what = f"a sync in {path} takes {seconds:.2f} s, and every step of a workflow makes some"
            yield _warning("files", what, "use a faster disk: set state.dir")
        else:
            yield _ok("files", f"what is written in {path} is synced in {seconds * 1000:.1f} ms")
    open_files = tuple(str(item) for item, mode, _ in files if mode & (0o022 if item == path else 0o077))
    if open_files:
        yield _warning("files", f"others on this machine can read {_some(open_files)}", f"chmod -R go-rwx {path}")


def _try_sync(place: Path) -> None:
    """Sync an unnamed file, which vanishes when closed, if the file system supports that; then sync the directory."""
    try:
        # O_TMPFILE exists only on Linux; without it, opening a directory to write fails with EISDIR.
        fd = os.open(place, getattr(os, "O_TMPFILE", 0) | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in _NO_NAMELESS:
            raise
    else:
        with os.fdopen(fd, "wb", buffering=0) as file:
            os.write(fd, b"adw doctor")
            os.fsync(file)
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _files(path: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the directory, its database, its key and the workflows' documents, each with its mode and owner."""
    patterns = ("adw.db*", ".home-key", "*/adw_state.json")
    places = [path, *(item for pattern in patterns for item in path.glob(pattern))] if path.is_dir() else []
    for item in places[:MOST_FILES]:
        try:
            known = item.lstat()
        except OSError:
            continue  # deleted meanwhile
        if not stat.S_ISLNK(known.st_mode):
            yield item, stat.S_IMODE(known.st_mode), known.st_uid


#: Seconds within which a server has to answer.
ANSWER_SECONDS = 10.0


# --- the database ----------------------------------------------------------------------------------------------


def connect(app: Home) -> Database:
    """Connect to the database as it is; `app.database` would upgrade it."""
    return migrate.connect(app.settings.database_url, clock=app.clock, boot_id=app.processes.boot_id)


def database_problems(app: Home) -> tuple[Inconsistency, ...]:
    """Return the inconsistencies in the database, or between it and the documents."""
    try:
        app.has_database()
    except DatabaseUnavailable as exc:
        # Without a database there is nothing else to check.
        text, _, hint = str(exc).rpartition(": ")
        return (check.Inconsistency(kind="storage", text=text, hint=hint),)
    with closing(connect(app)) as database:
        return check.find_problems(
            database,
            home=app.settings.store,
            documents=lambda: _documents(app),
            repository=app.repository,
            processes=app.processes,
        )


def _documents(app: Home) -> dict[str, LoadedState | str]:
    """Return every document, or why it cannot be read."""
    links = app.folders.links() if app.settings.store == "files" else ()
    result: dict[str, LoadedState | str] = {}
    for adw_id in (*app.store.ids(), *links):
        try:
            result[adw_id] = app.store.load(adw_id)
        except AdwError as exc:
            result[adw_id] = str(exc)

    return result


# --- everything ------------------------------------------------------------------------------------------------


class Checkup:
    """Checks one home and its environment."""

    def __init__(self, app: Home) -> None:
        self._app = app
        self._skews: list[tuple[str, float]] = []  #: another clock, and the seconds that ours is ahead of it
        self._http = HttpClient(app.clock)
        self._is_current = True  #: the database needs no upgrade, or there is none yet
        self._reserved: frozenset[int] = frozenset()  #: ports of workflows, as far as the database told

    def findings(self) -> Iterator[Finding]:
        """Yield the findings area by area, as they are made."""
        areas: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
            ("python", lambda: python(sys.version_info[:3], has_proc=(PROC / "self/stat").is_file())),
            ("git", self._git),
            ("settings", self._settings),
            ("agents", self._agents),
            ("sandbox", self._sandbox),
            ("forge", self._forge),
            ("webhook", self._webhook),
            ("database", self._database),
            ("start", self._start),
            ("files", self._storage),
            ("disk", self._disks),
            ("ports", self._ports),
            ("clock", self._clock),
        )
        told: set[str] = set()
        with closing(self._http):
            for area, look in areas:
                try:
                    yield from look()
                except AdwError as exc:
                    # A cause that prevents several checks, such as an invalid workflow, is reported once.
                    problems = exc.problems if isinstance(exc, ConfigError) else (str(exc),)
                    for problem in dict.fromkeys(problems):
                        if problem not in told:
                            yield _problem(area, problem, "fix that, then adw doctor again")
                    told |= {*problems}

    def _sandbox(self) -> Iterator[Finding]:
        """Yield the backend in use, and each of its promises, tested for real."""
        app = self._app
        choice = app.sandboxes.choose()
        if choice.why_none:
            level = PROBLEM if app.sandboxes.is_required() else WARNING
            fix = (
                "install bubblewrap, use a kernel with Landlock, or set sandbox.command; "
                "adw serve needs one unless sandbox.required is false"
            )
            yield Finding(area="sandbox", level=level, what=f"no sandbox: {choice.why_none}", fix=fix)
        elif choice.backend == "off":
            yield _ok("sandbox", "off by sandbox.mode: agents, commands and gates can do what this user can")
        else:
            yield _ok("sandbox", f"agents, commands and gates run in {choice.backend}")
        try:
            app.sandboxes.check(is_required=False)
        except ConfigError as exc:
            yield Finding(area="sandbox", level=PROBLEM, what=str(exc), fix="correct the settings of the sandbox")
        if choice.backend not in sandbox_probe.BACKENDS:
            return
        if os.geteuid() == 0 and app.settings.sandbox_user is None:
            fix = "run adw as an ordinary user, or set sandbox.user to one"
            yield _warning("sandbox", "adw is root, and so are agents and commands in their box", fix)
        for stronger in sandbox_probe.BACKENDS[: sandbox_probe.BACKENDS.index(choice.backend)]:
            if app.settings.sandbox_mode == "auto":
                why = sandbox_probe.why_unusable(stronger, sandbox_probe.known(stronger, env=app.env))
                fix = "install it, and let this user make namespaces, as docs/sandbox.md says"
                yield _warning("sandbox", f"{stronger} is stronger, and cannot be used: {why}", fix)
        for agent in sorted(self._needed_agents()):
            if why := app.sandboxes.why_not_started(agents_base.profile(agent), choice.backend):
                fix = "add where it is installed to sandbox.read"
                yield _warning("sandbox", f"{agent} does not start in {choice.backend}: {why}", fix)
        probed = sandbox_probe.run(choice.backend, env=app.env)
        for name, (promise, fix) in sandbox_probe.PROMISES.items():
            if probed.kept.get(name):
                yield _ok("sandbox", f"{choice.backend}: {promise}")
            else:
                yield _warning("sandbox", f"{choice.backend} does not promise this: {promise}", fix)
        by = "enforced by the kernel" if cgroup.usable_place() is not None else "measured ten times a second"
        yield _ok("sandbox", f"limits of memory and processes are {by}")

    def _git(self) -> Iterator[Finding]:
        """Yield the state of git and of the home's repository."""
        app, settings = self._app, self._app.settings
        from adws.adw_modules.git.git import OLDEST, numbers_of  # noqa: PLC0415 - importing it searches for git

        wanted = ".".join(map(str, OLDEST))
        try:
            version = app.git_commands.version()
        except GitError:
            yield _problem("git", "there is no git in PATH", f"install git {wanted} or later")
            return
        if numbers_of(version) < OLDEST:
            yield _problem("git", f"{version} is too old", f"install git {wanted} or later")
            return
        yield _ok("git", version)
        if author := app.git_commands.author():
            yield _ok("git", f"commits are made by {author}")
        else:
            yield _warning(
                "git",
                "git does not know who you are: commits are made by adw <adw@localhost>",
                'git config --global user.name "NAME" && git config --global user.email ADDRESS',
            )
        if not config_load.is_in_repository(settings.home):
            what = "the home is in no git repository: work is done in place, nothing is shipped"
            yield _warning("git", what, "git init")
            return

        git = app.git
        damaged = git.damaged_worktrees()
        try:
            _ = git.root
        except GitError as exc:
            yield _problem("git", str(exc), "git worktree list")
            return
        if git.commit_of("HEAD") is None:
            yield _problem("git", "the repository has no commit to begin with", 'git commit --allow-empty -m "Begin"')
        elif settings.worktree_enabled:
            yield _ok("git", "worktrees can be made")
        if lost := tuple(str(tree.path) for tree in git.worktrees() if tree.is_prunable):
            what = f"worktrees whose directory is gone: {_some(lost)}"
            yield _warning("git", what, "adw admin gc, then git worktree prune")
        for path, why in damaged.items():
            again = f"adw retry {path.name} or adw resume {path.name} makes it again"
            yield _problem(
                "git", f"the worktree {path} is damaged: {why}", f"{again}, adw rollback {path.name} removes it"
            )
        ours = [path for path in (settings.state_dir, settings.trees_dir) if path.is_relative_to(settings.home)]
        names = [str(path.relative_to(settings.home)) for path in ours]
        if unignored := tuple(f"{name}/" for name in names if not git.is_ignored(f"{name}/x")):
            yield _warning("git", f"git does not ignore {_some(unignored)}, which adw makes at run time", "adw init")
        if locks := tuple(map(str, git.dead_locks())):
            yield _problem("git", f"locks that a killed git left: {_some(locks)}", f"rm {shlex.join(locks)}")
        remote, problem = settings.git_remote, git.remote_problem(seconds=ANSWER_SECONDS)
        if problem is None:
            what = f"there is no remote {remote}: work ends on a local branch"
            yield _warning("git", what, f"git remote add {remote} URL")
        elif problem:
            yield _problem("git", f"{remote}: {problem}", f"git ls-remote {remote} HEAD")
        else:
            yield _ok("git", f"the remote {remote} answers")

    def _settings(self) -> Iterator[Finding]:
        """Yield the state of the settings and of the default workflow."""
        settings = self._app.settings
        known = self._app.workflows  # raises WorkflowInvalid if a workflow is invalid
        spec, file = known.get(settings.default_workflow), settings.file.path
        if file.is_file():
            yield _ok("settings", str(file))
        else:
            yield _warning("settings", f"there is no {file}: every setting has its default", "adw init")
        if settings.ignored:
            what = f"{', '.join(settings.ignored)}: set, and without a meaning here"
            yield _warning("settings", what, f"unset {' '.join(settings.ignored)}")
        if idle := known.without_runner(spec):
            what = f"the workflow {spec.name} cannot be run: nothing does {', '.join(idle)}"
            yield _problem("settings", what, f"adw workflow show {spec.name}")
        else:
            yield _ok("settings", f"the workflow {spec.name} can be run")
        search_path = config_load.process_environment().get("PATH", "")
        for phase in spec.phases:
            commands = [phase.command, *(gate.command for gate in phase.gates)]
            for program in dict.fromkeys(command[0] for command in commands if command):
                # A program below the home may be created later.
                if "/" not in program and shutil.which(program, path=search_path) is None:
                    what = f"{phase.name} needs {program}, which is not in PATH"
                    yield _problem("settings", what, f"install {program}")

    def _agents(self) -> Iterator[Finding]:
        """Yield the state of agents that are needed or installed; a missing agent counts only if it is needed."""
        app, needed, is_any = self._app, self._needed_agents(), False
        for name in agents_base.names():
            if name not in needed and app.agent_preflight.missing(agents_base.profile(name)):
                continue
            _, state = app.look_at_agent(name)
            if not state.path and name not in needed:
                continue
            is_any = True
            if state.problem:
                what, fix = _split(state.problem)
                level = PROBLEM if name in needed else WARNING
                yield Finding(area="agents", level=level, what=f"{name}: {what}", fix=fix or "adw workflow agents")
            else:
                login = {True: ", logged in", False: "", None: ", log-in cannot be asked"}[state.is_logged_in]
                yield _ok("agents", f"{name}: {state.version or state.path}{login}")
        if not is_any:
            yield _ok("agents", "no agent is installed, and no phase needs one")

    def _needed_agents(self) -> frozenset[str]:
        """Return the agents of the default workflow, of the workflows in adw.toml, and of the advisor."""
        settings, known = self._app.settings, self._app.workflows
        own = [spec for spec in known.all() if spec.name in settings.section("workflows").data]
        runners = {phase.runner for spec in (known.get(settings.default_workflow), *own) for phase in spec.phases}
        usual = {settings.agent_name} if "agent" in runners else set[str]()

        return frozenset(
            (runners & set(agents_base.names())) | usual | ({settings.advisor_use} & set(agents_base.names()))
        )

    def _forge(self) -> Iterator[Finding]:
        """Yield whether issues can be read and pull requests created."""
        settings, kind = self._app.settings, self._app.settings.forge_kind
        if kind == "none":
            yield _warning(
                "forge",
                "no forge is configured: issues come from the command line, and no pull request is made",
                "set github.repository in adw.toml and export ADW_GITHUB_TOKEN=...; adw init looks for it",
            )
            return
        if kind == "local":
            yield _ok("forge", "issues and pull requests are files (local forge)")
            return
        try:
            access = self._app.preflight.access()
        except (ConfigError, StartRefused) as exc:
            yield _problem("forge", *_split(str(exc)))
            return
        except AdwError as exc:
            yield _problem("forge", str(exc), "see whether github.api_url can be reached from here")
            return
        if access.server_time:
            self._compare("GitHub", parsedate_to_datetime(access.server_time).timestamp())
        if kind == "github":
            pushes = bool(matching([A_WORKFLOW_FILE], settings.ship_allow_paths or ()))
            yield from github(access, self._app.repository, pushes_workflow_files=pushes)
        else:
            yield _ok("forge", f"{kind} knows us as {access.login}")

    def _start(self) -> Iterator[Finding]:
        """Run the preflight check of every start, for the default workflow and without an issue."""
        settings = self._app.settings
        spec = self._app.workflows.get(settings.default_workflow)
        if not self._is_current or (settings.forge_kind == "local" and not settings.local_forge_dir.is_dir()):
            return  # the check would create or upgrade them
        try:
            self._app.preflight.check(StartRequest(spec=spec))
        except AdwError as exc:
            what, fix = _split(str(exc))
            yield _problem(
                "start", f"adw run would refuse {spec.name}: {what}", fix or "do that, then adw doctor again"
            )
        else:
            yield _ok("start", f"adw run can start {spec.name}")

    def _webhook(self) -> Iterator[Finding]:
        """Yield whether deliveries can arrive."""
        settings = self._app.settings
        host = f"[{settings.web_host}]" if ":" in settings.web_host else settings.web_host
        address, public = f"http://{host}:{settings.web_port}", settings.web_public_url or ""
        answer = self._health(address)
        is_answering = isinstance(answer, HttpAnswer)
        if not settings.webhook_secret and not is_answering and not public:
            yield _ok("webhook", "not used: adw run, and adw cron with polling, work without")
            return
        if settings.webhook_secret:
            yield _ok("webhook", "the secret is set")
        else:
            what = "ADW_WEBHOOK_SECRET is not set: deliveries are not taken"
            yield _warning("webhook", what, "export ADW_WEBHOOK_SECRET=...")
        if not is_answering:
            yield _warning("webhook", f"nothing answers at {address}", "adw serve")
        elif trouble := _trouble(answer):
            yield _problem("webhook", f"adw serve at {address} is not well: {trouble}", "adw db check")
        else:
            yield _ok("webhook", f"adw serve answers at {address}")
        if not public:
            return
        if trouble := _trouble(self._health(public)):
            fix = "see docs/deployment.md about the proxy, or correct web.public_url"
            yield _problem("webhook", f"{public} does not lead here: {trouble}", fix)
        else:
            yield _ok("webhook", f"{public} leads here")

    def _health(self, address: str) -> HttpAnswer | str:
        """Return the answer of a server's /health, or why it could not be asked."""
        request = HttpRequest(method="GET", url=f"{address}/health", timeout_seconds=ANSWER_SECONDS, max_bytes=65_536)
        try:
            answer = self._http.ask(request, NoOrders())
        except RunFailed as exc:
            return str(exc)

        return answer if isinstance(answer, HttpAnswer) else "it was not asked"

    # --- the machine -------------------------------------------------------------------------------------------

    def _database(self) -> Iterator[Finding]:
        """Yield whether the database can be used, and whether it is consistent."""
        app = self._app
        name = str(app.settings.shown("database_url"))
        try:
            is_made = app.has_database()
            troubles = database_problems(app) if is_made else ()
            schema = self._look_into_database() if is_made else None
        except AdwError as exc:
            self._is_current = False
            what, _, fix = str(exc).rpartition(": ")
            yield _problem("database", what or str(exc), fix if what else "adw db check")
            return
        self._is_current = not is_made or schema == migrate.HEAD
        if is_made:
            yield from database(name, schema, troubles)
        else:
            yield _ok("database", f"{name} is not there yet: the first run makes it")

    def _look_into_database(self) -> str | None:
        with closing(connect(self._app)) as database:
            server_time = database.server_time()
            if server_time is not None:
                self._compare("the database", server_time)
            schema = database.schema_version()
            if schema == migrate.HEAD:
                here = self._app.processes.me("cli").host
                rows = reservations(database)
                self._reserved = frozenset(row.port for row in rows if row.host == here)

            return schema

    def _storage(self) -> Iterator[Finding]:
        place, file = self._app.settings.state_dir, self._app.settings.database_file

        return storage(place, has_sqlite=file is not None and file.is_relative_to(place), clock=self._app.clock)

    def _disks(self) -> Iterator[Finding]:
        settings = self._app.settings
        places: dict[int, tuple[str, Path]] = {}  # by device: two directories on one disk are reported once
        for name, path in (("worktrees", settings.trees_dir), ("state", settings.state_dir)):
            places.setdefault(nearest(path).stat().st_dev, (name, path))
        for name, path in places.values():
            stats = os.statvfs(nearest(path))
            yield from disk(
                f"{name} in {path}",
                free_bytes=stats.f_bavail * stats.f_frsize,
                least_bytes=settings.quota_min_free_disk,
                free_inodes=stats.f_favail,
                all_inodes=stats.f_files,
            )

    def _ports(self) -> Iterator[Finding]:
        described = app_module.port_range(self._app.settings)
        pairs = [described.pair(index) for index in range(described.count)]
        taken = [pair for pair in pairs if {pair.backend, pair.frontend} & self._reserved]
        free = [
            pair
            for pair in pairs
            if pair not in taken and resources_ports.is_free(pair.backend) and resources_ports.is_free(pair.frontend)
        ]

        return ports(str(described), count=described.count, free=len(free), reserved=len(taken))

    def _clock(self) -> Iterator[Finding]:
        before = self._app.clock.monotonic()
        goes_back = self._app.clock.monotonic() < before

        return clock(self._app.clock.now().year, goes_back=goes_back, skews=self._skews)

    def _compare(self, who: str, seconds: float) -> None:
        self._skews.append((who, self._app.clock.now().timestamp() - seconds))


def _trouble(answer: HttpAnswer | str) -> str:
    """Return what is wrong with an answer, or ""."""
    if isinstance(answer, str):
        return answer

    return "" if answer.status == 200 else f"it answers {answer.status}"
