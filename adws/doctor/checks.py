"""
`adw doctor`: measures facts about the machine, the home and the services it needs, and judges them.

Each finding says what is there and, when that is not well, what is wrong and how to fix it. A problem keeps work from
being done; a warning does not, but may become a problem later. Read-only: the database is opened as it is, never made
and never upgraded. What cannot be checked is a finding itself. Judging is pure: facts in, findings out.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
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
from adws.adw_modules.identifiers import JsonObject, counted, size_text
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.maintenance import check
from adws.adw_modules.phase import NoOrders
from adws.adw_modules.resources import ports as resources_ports
from adws.adw_modules.resources import quotas
from adws.adw_modules.resources.ports import reservations
from adws.adw_modules.resources.quotas import nearest
from adws.adw_modules.sandbox import probe as sandbox_probe
from adws.adw_modules.steps.http_client import HttpAnswer, HttpClient, HttpRequest
from adws.adw_modules.worker.preflight import StartRequest
from adws.config import load as config_load

if TYPE_CHECKING:
    from adws.adw_modules.db.connection import Database
    from adws.adw_modules.interfaces import LoadedState
    from adws.adw_modules.maintenance.check import Inconsistency
    from adws.adw_modules.workflow.model import WorkflowSpec
    from adws.app import Home


#: How a thing stands: as it should; it works and may not for long, or not wholly; work cannot be done.
OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the doctor."""

    area: str  #: git | agents | forge | ...
    level: str  #: ok | warning | problem
    what: str  #: what is there, or what is wrong
    fix: str = ""  #: the command, or what a person has to do; "" when all is well

    def to_json(self) -> JsonObject:
        """Return it for programs."""
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


# --- facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class GitFacts:
    """git and the repository of the home."""

    version: str  #: as git says it; "": there is none
    numbers: tuple[int, int] = (0, 0)
    oldest: tuple[int, int] = (2, 36)  #: what adw needs
    author: str = ""  #: who commits, as `NAME <ADDRESS>`; "": nobody said
    is_repository: bool = False
    has_commits: bool = False
    works_in_worktrees: bool = True  #: as the settings say
    lost_worktrees: tuple[str, ...] = ()  #: whose directory is gone
    damaged_worktrees: tuple[tuple[str, str], ...] = ()  #: with what is wrong with each
    unreadable: str = ""  #: why git cannot list the worktrees
    unignored: tuple[str, ...] = ()  #: directories of adw that git does not ignore
    remote: str = "origin"
    remote_problem: str | None = None  #: why it did not answer, "" when it did; None: there is none
    stale_locks: tuple[str, ...] = ()  #: lock files that no process uses


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentFacts:
    """One agent."""

    name: str
    path: str  #: "": not installed
    version: str
    is_logged_in: bool | None
    problem: str
    is_needed: bool  #: a phase, or the advisor of the engine, is to be done by it


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgeFacts:
    """Where issues and pull requests are."""

    kind: str  #: github | local | none | the name of a plug-in
    repository: str = ""
    login: str = ""
    problem: str = ""  #: why it cannot be used
    fix: str = ""
    may_push: bool | None = None  #: None: it cannot be told
    may_write_issues: bool | None = None
    scopes: tuple[str, ...] | None = None  #: of a classic token; None: the token has none to show
    is_private: bool = False
    pushes_workflow_files: bool = False  #: as the settings say
    requests_left: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookFacts:
    """The receiver of webhooks."""

    has_secret: bool
    address: str  #: where adw serve listens
    is_answering: bool
    says: str = ""  #: what it said when it was not well
    public_url: str = ""
    public_problem: str | None = None  #: why it did not answer there, "" when it did; None: it was not asked


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseFacts:
    """The database."""

    name: str
    is_made: bool = True
    schema: str | None = None
    problem: str = ""  #: why it cannot be reached
    troubles: tuple[Inconsistency, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskFacts:
    """The file system of a directory."""

    name: str  #: what is kept there
    path: str
    free_bytes: int
    min_free_bytes: int  #: below which no work starts
    free_inodes: int
    all_inodes: int  #: 0: this file system does not count them


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageFacts:
    """How the state directory keeps what is written."""

    path: str
    kind: str  #: type of the file system, "" when it cannot be told
    has_sqlite: bool  #: the database is a file in it
    sync_problem: str = ""  #: why what was written could not be brought to the disk
    sync_seconds: float | None = None  #: None: it was not tried
    is_writable: bool = True
    owner_problem: str = ""  #: a file that belongs to somebody else
    open_files: tuple[str, ...] = ()  #: what others can read or write


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsFacts:
    """The settings in force."""

    file: str
    has_file: bool
    ignored: tuple[str, ...] = ()  #: variables that are set and mean nothing
    default_workflow: str = ""
    idle_phases: tuple[str, ...] = ()  #: of the default workflow, which nothing can run
    missing_programs: tuple[tuple[str, str], ...] = ()  #: phase, and a program it needs that is not in PATH


# --- judging -----------------------------------------------------------------------------------------------------

#: The oldest Python that adw runs on.
OLDEST_PYTHON = (3, 11)
#: Inodes below which a worktree may not fit.
FEW_INODES = 50_000
#: Seconds that our clock may be ahead or behind: what is odd, and what GitHub does not accept from an app any more.
ODD_SKEW, WRONG_SKEW = 5.0, 60.0
#: Before this year adw was not there: the clock was never set.
FIRST_YEAR = 2025
#: Pairs of ports below which the next workflows may find none.
FEW_PORTS = 3
#: Seconds a sync may take before every step of a workflow is slow.
SLOW_SYNC = 0.25
#: Most troubles of one area that are told one by one.
MOST = 5

#: Kind of trouble -> its area and how bad it is; others are warnings about the database.
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

#: Kinds that keep everything else from being looked at.
_UNREADABLE = frozenset({"storage", "schema", "moved"})


def database(facts: DatabaseFacts) -> Iterator[Finding]:
    """Judge whether the database can be used, and whether what is in it fits together."""
    if facts.problem:
        what, _, fix = facts.problem.rpartition(": ")
        yield _problem("database", what or facts.problem, fix if what else "adw db check")
        return
    if not facts.is_made:
        yield _ok("database", f"{facts.name} is not there yet: the first run makes it")
        return
    areas = {"database": list[Finding](), "locks": list[Finding]()}
    for trouble in facts.troubles:
        area, level = _KINDS.get(trouble.kind, ("database", WARNING))
        what = f"{trouble.adw_id}: {trouble.text}" if trouble.adw_id else trouble.text
        areas[area].append(Finding(area=area, level=level, what=what, fix=trouble.hint))
    if not areas["database"]:
        yield _ok("database", f"{facts.name}, schema {facts.schema}: whole")
    if not areas["locks"] and not any(trouble.kind in _UNREADABLE for trouble in facts.troubles):
        yield _ok("locks", "no lock, lease or run is left behind")
    for area, findings in areas.items():
        worst_first = sorted(findings, key=lambda one: one.level != PROBLEM)
        yield from worst_first[:MOST]
        if rest := worst_first[MOST:]:
            yield Finding(area=area, level=rest[0].level, what=f"{len(rest)} more like these", fix="adw db check")


#: Requests below which work may have to wait for the next hour.
FEW_REQUESTS = 200

_NEW_TOKEN = "make a token that has them, and export ADW_GITHUB_TOKEN=..."  # noqa: S105 - a sentence, no token


def forge(facts: ForgeFacts) -> Iterator[Finding]:
    """Judge whether issues can be read, and pull requests be made."""
    if facts.problem:
        yield _problem("forge", facts.problem, facts.fix)
        return
    if facts.kind == "none":
        yield _warning(
            "forge",
            "no forge is configured: issues come from the command line, and no pull request is made",
            "set github.repository in adw.toml and export ADW_GITHUB_TOKEN=...; adw init looks for it",
        )
        return
    if facts.kind == "local":
        yield _ok("forge", "issues and pull requests are files (local forge)")
        return
    if facts.kind != "github":
        yield _ok("forge", f"{facts.kind} knows us as {facts.login}")
        return
    yield _ok("forge", f"GitHub knows us as {facts.login}, and shows {facts.repository}")
    yield from _rights(facts)
    yield from _scopes(facts)
    if facts.requests_left is not None and facts.requests_left < FEW_REQUESTS:
        what = f"GitHub answers {counted(facts.requests_left, 'more request')} this hour"
        yield _warning("forge", what, "wait, or use a token that others do not use")


def _rights(facts: ForgeFacts) -> Iterator[Finding]:
    missing = [
        what
        for what, may in (("push branches", facts.may_push), ("write issues and comments", facts.may_write_issues))
        if may is False
    ]
    if missing:
        what = f"{facts.login} may not {' or '.join(missing)} in {facts.repository}"
        yield _problem("forge", what, f"ask its owner for write access, or {_NEW_TOKEN}")
    elif facts.may_push:
        yield _ok("forge", f"{facts.login} may push to {facts.repository}")


def _scopes(facts: ForgeFacts) -> Iterator[Finding]:
    if facts.scopes is None:
        return
    enough = {"repo"} if facts.is_private else {"repo", "public_repo"}
    if not enough & set(facts.scopes):
        what = f"the token has the scopes {', '.join(facts.scopes) or 'none'}, and needs {' or '.join(sorted(enough))}"
        yield _problem("forge", what, _NEW_TOKEN)
    elif facts.pushes_workflow_files and "workflow" not in facts.scopes:
        what = "the token has not the scope workflow, and ship.allow_workflow_files needs it"
        yield _problem("forge", what, _NEW_TOKEN)
    else:
        yield _ok("forge", f"the token has the scopes {', '.join(facts.scopes)}")


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


# --- git -------------------------------------------------------------------------------------------------------


def git(facts: GitFacts) -> Iterator[Finding]:
    """Judge git and the repository."""
    wanted = ".".join(map(str, facts.oldest))
    if not facts.version:
        yield _problem("git", "there is no git in PATH", f"install git {wanted} or later")
        return
    if facts.numbers < facts.oldest:
        yield _problem("git", f"{facts.version} is too old", f"install git {wanted} or later")
        return
    yield _ok("git", facts.version)
    yield _author(facts)
    if not facts.is_repository:
        yield _warning("git", "the home is in no git repository: work is done in place, nothing is shipped", "git init")
        return
    if facts.unreadable:
        yield _problem("git", facts.unreadable, "git worktree list")
        return
    yield from _repository(facts)
    yield from _remote(facts)


def _author(facts: GitFacts) -> Finding:
    if facts.author:
        return _ok("git", f"commits are made by {facts.author}")

    return _warning(
        "git",
        "git does not know who you are: commits are made by adw <adw@localhost>",
        'git config --global user.name "NAME" && git config --global user.email ADDRESS',
    )


def _repository(facts: GitFacts) -> Iterator[Finding]:
    if not facts.has_commits:
        yield _problem("git", "the repository has no commit to begin with", 'git commit --allow-empty -m "Begin"')
    elif facts.works_in_worktrees:
        yield _ok("git", "worktrees can be made")
    if facts.lost_worktrees:
        names = _some(facts.lost_worktrees)
        yield _warning("git", f"worktrees whose directory is gone: {names}", "adw admin gc, then git worktree prune")
    for path, why in facts.damaged_worktrees:
        adw_id = Path(path).name
        again = f"adw retry {adw_id} or adw resume {adw_id} makes it again, adw rollback {adw_id} removes it"
        yield _problem("git", f"the worktree {path} is damaged: {why}", again)
    if facts.unignored:
        yield _warning("git", f"git does not ignore {_some(facts.unignored)}, which adw makes at run time", "adw init")
    if facts.stale_locks:
        names = shlex.join(facts.stale_locks)
        yield _problem("git", f"locks that a killed git left: {_some(facts.stale_locks)}", f"rm {names}")


def _remote(facts: GitFacts) -> Iterator[Finding]:
    if facts.remote_problem is None:
        yield _warning(
            "git",
            f"there is no remote {facts.remote}: work ends on a local branch",
            f"git remote add {facts.remote} URL",
        )
    elif facts.remote_problem:
        yield _problem("git", f"{facts.remote}: {facts.remote_problem}", f"git ls-remote {facts.remote} HEAD")
    else:
        yield _ok("git", f"the remote {facts.remote} answers")


# --- agents ----------------------------------------------------------------------------------------------------


def agents(facts: tuple[AgentFacts, ...]) -> Iterator[Finding]:
    """Judge the agents that are installed or needed; one that nobody asked for is not missed."""
    for one in facts:
        if not one.path and not one.is_needed:
            continue
        level = PROBLEM if one.is_needed else WARNING
        if one.problem:
            what, fix = _split(one.problem)
            yield Finding(area="agents", level=level, what=f"{one.name}: {what}", fix=fix or "adw workflow agents")
            continue
        login = {True: ", logged in", False: "", None: ", log-in cannot be asked"}[one.is_logged_in]
        yield _ok("agents", f"{one.name}: {one.version or one.path}{login}")
    if not any(one.path or one.is_needed for one in facts):
        yield _ok("agents", "no agent is installed, and no phase needs one")


# --- webhooks --------------------------------------------------------------------------------------------------


def webhook(facts: WebhookFacts) -> Iterator[Finding]:
    """Judge whether deliveries can come in."""
    if not facts.has_secret and not facts.is_answering and not facts.public_url:
        yield _ok("webhook", "not used: adw run, and adw cron with polling, work without")
        return
    if not facts.has_secret:
        yield _warning(
            "webhook", "ADW_WEBHOOK_SECRET is not set: deliveries are not taken", "export ADW_WEBHOOK_SECRET=..."
        )
    else:
        yield _ok("webhook", "the secret is set")
    if facts.says:
        yield _problem("webhook", f"adw serve at {facts.address} is not well: {facts.says}", "adw db check")
    elif facts.is_answering:
        yield _ok("webhook", f"adw serve answers at {facts.address}")
    else:
        yield _warning("webhook", f"nothing answers at {facts.address}", "adw serve")
    if facts.public_problem:
        yield _problem(
            "webhook",
            f"{facts.public_url} does not lead here: {facts.public_problem}",
            "see docs/deploy/README.md about the proxy, or correct web.public_url",
        )
    elif facts.public_problem is not None:
        yield _ok("webhook", f"{facts.public_url} leads here")


# --- the machine -----------------------------------------------------------------------------------------------


def disk(facts: DiskFacts) -> Iterator[Finding]:
    """Judge the free disk space."""
    free, least = size_text(facts.free_bytes), size_text(facts.min_free_bytes)
    fix = "free some space (adw admin gc finds what nobody needs), or lower quota.min_free_disk in adw.toml"
    if facts.free_bytes < facts.min_free_bytes:
        yield _problem("disk", f"{free} free for {facts.name} in {facts.path}: no work starts below {least}", fix)
    elif facts.free_bytes < facts.min_free_bytes * 1.2:
        yield _warning("disk", f"{free} free for {facts.name} in {facts.path}: no work starts below {least}", fix)
    else:
        yield _ok("disk", f"{free} free for {facts.name} in {facts.path}")
    if facts.all_inodes and facts.free_inodes < FEW_INODES:
        level = PROBLEM if facts.free_inodes == 0 else WARNING
        what = f"{facts.free_inodes} inodes left for {facts.name} in {facts.path}: no more files can be made soon"
        yield Finding(area="disk", level=level, what=what, fix="delete files that nobody needs: adw admin gc, caches")


def storage(facts: StorageFacts) -> Iterator[Finding]:
    """Judge whether what is written stays, and who can read it."""
    yield _file_system(facts)
    if facts.owner_problem:
        yield _problem("files", facts.owner_problem, f"sudo chown -R $(id -u) {facts.path}")
    if not facts.is_writable:
        yield _problem("files", f"{facts.path} cannot be written", f"chmod u+rwx {facts.path}, or set state.dir")
        return
    if facts.sync_problem:
        yield _problem(
            "files", f"what is written in {facts.path} cannot be synced: {facts.sync_problem}", "set state.dir"
        )
    elif facts.sync_seconds is not None and facts.sync_seconds > SLOW_SYNC:
        what = f"a sync in {facts.path} takes {facts.sync_seconds:.2f} s, and every step of a workflow makes some"
        yield _warning("files", what, "use a faster disk: set state.dir")
    elif facts.sync_seconds is not None:
        yield _ok("files", f"what is written in {facts.path} is synced in {facts.sync_seconds * 1000:.1f} ms")
    if facts.open_files:
        what = f"others on this machine can read {_some(facts.open_files)}"
        yield _warning("files", what, f"chmod -R go-rwx {facts.path}")


def _file_system(facts: StorageFacts) -> Finding:
    fix = "set state.dir to a directory on a local disk"
    if facts.kind in sqlite.VOLATILE_TYPES:
        return _warning("files", f"{facts.path} is in memory ({facts.kind}): all is gone after a restart", fix)
    if facts.kind in sqlite.LAYERED_TYPES:
        what = f"{facts.path} is in the layer of a container ({facts.kind}): all is gone with the container"
        return _warning("files", what, f"mount a volume for it, or {fix}")
    if facts.kind in sqlite.NETWORK_TYPES and facts.has_sqlite:
        what = f"{facts.path} is on a network file system ({facts.kind}), where SQLite loses data"
        return _problem("files", what, f"{fix}, or use PostgreSQL")
    if facts.kind in sqlite.NETWORK_TYPES | sqlite.SHARED_TYPES:
        what = f"{facts.path} is shared with other machines ({facts.kind}): locks and syncs may not hold"
        return _warning("files", what, fix)

    return _ok("files", f"{facts.path} is on {facts.kind or 'a file system that cannot be told'}")


def clock(year: int, *, goes_back: bool = False, skews: Sequence[tuple[str, float]] = ()) -> Iterator[Finding]:
    """Judge the clock of this machine; *skews* says of whom, and how many seconds our clock is ahead of theirs."""
    fix = "sudo timedatectl set-ntp true"
    if year < FIRST_YEAR:
        yield _problem("clock", f"the clock says the year {year}", fix)
        return
    if goes_back:
        yield _problem("clock", "the clock for spans of time goes back", "restart the machine, or see to its kernel")
    for who, ahead in skews:
        way = "ahead of" if ahead > 0 else "behind"
        what = f"the clock is {abs(ahead):.0f} s {way} that of {who}"
        if abs(ahead) >= WRONG_SKEW:
            yield _problem("clock", what, fix)
        elif abs(ahead) >= ODD_SKEW:
            yield _warning("clock", what, fix)
        else:
            yield _ok("clock", f"the clock agrees with that of {who}")
    if not skews and not goes_back:
        yield _ok("clock", "the clock is set; nobody was there to compare it with")


def ports(described: str, *, count: int, free: int, reserved: int) -> Iterator[Finding]:
    """Judge how many pairs of ports are free: that nobody has, and nobody listens on; workflows have *reserved*."""
    what = f"{free} of {count} pairs free ({described}), {reserved} with workflows"
    fix = "adw admin ports, and set ports.backend_start and ports.frontend_start to ranges that nobody else uses"
    if free == 0:
        yield _problem("ports", what, fix)
    elif free < min(FEW_PORTS, count):
        yield _warning("ports", what, fix)
    else:
        yield _ok("ports", what)


def settings(facts: SettingsFacts) -> Iterator[Finding]:
    """Judge the settings and the workflow that is started when nobody names one."""
    if facts.has_file:
        yield _ok("settings", facts.file)
    else:
        yield _warning("settings", f"there is no {facts.file}: every setting has its default", "adw init")
    if facts.ignored:
        names = ", ".join(facts.ignored)
        yield _warning("settings", f"{names}: set, and without a meaning here", f"unset {' '.join(facts.ignored)}")
    if facts.idle_phases:
        what = f"the workflow {facts.default_workflow} cannot be run: nothing does {', '.join(facts.idle_phases)}"
        yield _problem("settings", what, f"adw workflow show {facts.default_workflow}")
    elif facts.default_workflow:
        yield _ok("settings", f"the workflow {facts.default_workflow} can be run")
    for phase, program in facts.missing_programs:
        yield _problem("settings", f"{phase} needs {program}, which is not in PATH", f"install {program}")


def _split(problem: str) -> tuple[str, str]:
    """Return what is wrong and what to do, of a sentence that says both; the second is "" where it says one."""
    for mark in ("; ", ": "):
        what, result, fix = problem.rpartition(mark)
        if result:
            return what, fix

    return problem, ""


def _some(names: tuple[str, ...], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""

    return f"{', '.join(names[:most])}{more}"


# --- measuring this machine --------------------------------------------------------------------------------------
#
# Whether a sync works is tried with a file that has no name and is gone with its descriptor.


PROC = Path("/proc")
MOUNT_TABLE = PROC / "self/mountinfo"
#: Files of the state directory whose permissions are looked at, at most.
MOST_FILES = 2_000
#: What a file system answers that has no files without a name.
_NO_NAMELESS = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


def disk_facts(name: str, path: Path, *, min_free_bytes: int) -> DiskFacts:
    """Return the space where *path* is, or will be when it is made; *name* says what is kept there."""
    result = os.statvfs(nearest(path))

    return DiskFacts(
        name=name,
        path=str(path),
        free_bytes=result.f_bavail * result.f_frsize,
        min_free_bytes=min_free_bytes,
        free_inodes=result.f_favail,
        all_inodes=result.f_files,
    )


def storage_facts(path: Path, *, has_sqlite: bool, clock: Clock) -> StorageFacts:
    """Return how the directory *path* keeps what is written, or the one above it when it is not made yet."""
    place = nearest(path)
    is_writable = os.access(place, os.R_OK | os.W_OK | os.X_OK)
    problem, seconds = _try_sync(place, clock) if is_writable else ("", None)
    files, me = tuple(_files(path)), os.geteuid()
    other = next((item for item, _, owner in files if owner != me), None) if me != 0 else None

    return StorageFacts(
        path=str(path),
        kind=_mounted(place),
        has_sqlite=has_sqlite,
        sync_problem=problem,
        sync_seconds=seconds,
        is_writable=is_writable,
        owner_problem=f"{other} belongs to another user than the one who runs adw" if other else "",
        open_files=tuple(str(item) for item, mode, _ in files if mode & (0o022 if item == path else 0o077)),
    )


def _mounted(place: Path) -> str:
    try:
        return file_system_of(place.resolve(), MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return ""


def _try_sync(place: Path, clock: Clock) -> tuple[str, float | None]:
    """Return why a sync failed and how long it took; where there are no files without a name, only of the directory."""
    began = clock.monotonic()
    try:
        nameless = _nameless_file(place)
        if nameless is not None:
            _write_and_sync(nameless, b"adw doctor")
        _write_and_sync(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as exc:
        return exc.strerror or str(exc), None

    return "", clock.monotonic() - began


def _nameless_file(place: Path) -> int | None:
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return None
    try:
        return os.open(place, flag | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno in _NO_NAMELESS:
            return None
        raise


def _write_and_sync(fd: int, text: bytes = b"") -> None:
    try:
        if text:
            os.write(fd, text)
        os.fsync(fd)
    finally:
        os.close(fd)


def _files(path: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the directory, what is in it and the documents of workflows, each with its mode and owner."""
    patterns = ("adw.db*", ".home-key", "*/adw_state.json")
    places = [path, *(item for pattern in patterns for item in path.glob(pattern))] if path.is_dir() else []
    for item in places[:MOST_FILES]:
        try:
            known = item.lstat()
        except OSError:
            continue  # gone meanwhile
        if not stat.S_ISLNK(known.st_mode):
            yield item, stat.S_IMODE(known.st_mode), known.st_uid


#: Seconds that a server has to answer.
ANSWER_SECONDS = 10.0


# --- the database ----------------------------------------------------------------------------------------------


def connect(app: Home) -> Database:
    """Return the database as it is: `app.database` would upgrade it on the way."""
    return migrate.connect(app.settings.database_url, clock=app.clock, boot_id=app.processes.boot_id)


def database_problems(app: Home) -> tuple[Inconsistency, ...]:
    """Return what does not fit in the database, or between it and the documents."""
    try:
        app.has_database()
    except DatabaseUnavailable as exc:
        # It is gone: then there is nothing else to check.
        text, _, hint = str(exc).rpartition(": ")
        return (check.Inconsistency(kind="storage", text=text, hint=hint),)
    with closing(connect(app)) as database:
        return check.find_problems(
            database,
            home=app.settings.store,
            documents=lambda: _documents(app),
            repository=app.settings.repository or "",
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
        self._skews: list[tuple[str, float]] = []  #: of whom, and seconds that our clock is ahead of theirs
        self._http = HttpClient(app.clock)
        self._search_path = config_load.process_environment().get("PATH", "")
        self._is_current = True  #: the database can be used as it is, or there is none yet
        self._reserved: frozenset[int] = frozenset()  #: ports that workflows have, as far as the database told

    def findings(self) -> Iterator[Finding]:
        """Yield what is found, area by area, as it is found."""
        with closing(self._http):
            for area, look in self._areas():
                try:
                    yield from look()
                except AdwError as exc:
                    yield Finding(area=area, level=PROBLEM, what=str(exc), fix="fix that, then adw doctor again")

    def _areas(self) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
        yield "python", lambda: python(sys.version_info[:3], has_proc=(PROC / "self/stat").is_file())
        yield "git", lambda: git(self._git())
        yield "settings", lambda: settings(self._settings())
        yield "agents", lambda: agents(tuple(self._agents()))
        yield "sandbox", self._sandbox
        yield "forge", lambda: forge(self._forge())
        yield "webhook", lambda: webhook(self._webhook())
        yield "database", lambda: database(self._database())
        yield "start", self._start
        yield "files", lambda: storage(self._storage())
        yield "disk", self._disks
        yield "ports", self._ports
        yield "clock", self._clock

    # --- the sandbox -------------------------------------------------------------------------------------------

    def _sandbox(self) -> Iterator[Finding]:
        """Yield the backend in force, and each of its promises, tried for real."""
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
        probed = sandbox_probe.run(choice.backend, env=app.env)
        for name, (promise, fix) in sandbox_probe.PROMISES.items():
            if probed.kept.get(name):
                yield _ok("sandbox", f"{choice.backend}: {promise}")
            else:
                yield _warning("sandbox", f"{choice.backend} does not promise this: {promise}", fix)

    # --- git ---------------------------------------------------------------------------------------------------

    def _git(self) -> GitFacts:
        settings = self._app.settings
        try:
            from adws.adw_modules.git.git import OLDEST, numbers_of  # noqa: PLC0415 - it looks for git

            version = self._app.git_commands.version()
        except GitError:
            return GitFacts(version="")
        known = GitFacts(
            version=version,
            numbers=numbers_of(version),
            oldest=OLDEST,
            remote=settings.git_remote,
            works_in_worktrees=settings.worktree_enabled,
        )
        if known.numbers < known.oldest:
            return known

        return self._repository(known)

    def _repository(self, known: GitFacts) -> GitFacts:
        git = self._app.git
        author = self._app.git_commands.author()
        if not config_load.is_in_repository(self._app.settings.home):
            return replace(known, author=author)
        known = replace(
            known,
            author=author,
            is_repository=True,
            damaged_worktrees=tuple((str(path), why) for path, why in git.damaged_worktrees().items()),
        )
        try:
            _ = git.root
        except GitError as exc:
            return replace(known, unreadable=str(exc))

        return replace(
            known,
            has_commits=git.commit_of("HEAD") is not None,
            lost_worktrees=tuple(str(tree.path) for tree in git.worktrees() if tree.is_prunable),
            unignored=tuple(self._unignored()),
            remote_problem=git.remote_problem(seconds=ANSWER_SECONDS),
            stale_locks=tuple(map(str, git.dead_locks())),
        )

    def _unignored(self) -> Iterator[str]:
        settings = self._app.settings
        for path in (settings.state_dir, settings.trees_dir):
            if path.is_relative_to(settings.home):
                name = str(path.relative_to(settings.home))
                if not self._app.git.is_ignored(f"{name}/x"):
                    yield f"{name}/"

    # --- settings and agents -----------------------------------------------------------------------------------

    def _settings(self) -> SettingsFacts:
        settings = self._app.settings
        known = self._app.workflows  # raises WorkflowInvalid when one is not sound
        spec = known.get(settings.default_workflow)

        return SettingsFacts(
            file=str(settings.file.path),
            has_file=settings.file.path.is_file(),
            ignored=settings.ignored,
            default_workflow=spec.name,
            idle_phases=tuple(known.without_runner(spec)),
            missing_programs=tuple(self._missing(spec)),
        )

    def _missing(self, spec: WorkflowSpec) -> Iterator[tuple[str, str]]:
        """Yield the phases whose command, or that of a gate, is not there; one below the home may be made later."""
        for phase in spec.phases:
            commands = [phase.command, *(gate.command for gate in phase.gates)]
            for program in dict.fromkeys(command[0] for command in commands if command):
                if "/" not in program and shutil.which(program, path=self._search_path) is None:
                    yield phase.name, program

    def _agents(self) -> Iterator[AgentFacts]:
        needed = self._needed_agents()
        for name in agents_base.names():
            if name not in needed and self._app.agent_preflight.missing(agents_base.profile(name)):
                continue
            _, state = self._app.look_at_agent(name)
            yield AgentFacts(
                name=name,
                path=state.path,
                version=state.version,
                is_logged_in=state.is_logged_in,
                problem=state.problem,
                is_needed=name in needed,
            )

    def _needed_agents(self) -> frozenset[str]:
        """Return the agents of the default workflow and of those of adw.toml, and that of the engine's advisor."""
        settings, known = self._app.settings, self._app.workflows
        own = [spec for spec in known.all() if spec.name in settings.section("workflows").data]
        runners = {phase.runner for spec in (known.get(settings.default_workflow), *own) for phase in spec.phases}
        usual = {settings.agent_name} if "agent" in runners else set[str]()

        return frozenset(
            (runners & set(agents_base.names())) | usual | ({settings.advisor_use} & set(agents_base.names()))
        )

    # --- the outside -------------------------------------------------------------------------------------------

    def _forge(self) -> ForgeFacts:
        settings = self._app.settings
        kind, repository = settings.forge_kind, settings.repository or ""
        if kind in {"none", "local"}:
            return ForgeFacts(kind=kind, repository=repository)
        try:
            access = self._app.preflight.access()
        except (ConfigError, StartRefused) as exc:
            what, fix = _split(str(exc))
            return ForgeFacts(kind=kind, problem=what, fix=fix)
        except AdwError as exc:
            return ForgeFacts(kind=kind, problem=str(exc), fix="see whether github.api_url can be reached from here")
        if access.server_time:
            self._compare("GitHub", parsedate_to_datetime(access.server_time).timestamp())

        return ForgeFacts(
            kind=kind,
            repository=repository,
            login=access.login,
            may_push=access.may_push,
            may_write_issues=access.may_write_issues,
            scopes=access.scopes,
            is_private=access.is_private,
            pushes_workflow_files=settings.ship_allow_workflow_files,
            requests_left=access.requests_left,
        )

    def _start(self) -> Iterator[Finding]:
        """Ask what every start asks, for the default workflow and no issue in particular."""
        settings = self._app.settings
        spec = self._app.workflows.get(settings.default_workflow)
        if not self._is_current or (settings.forge_kind == "local" and not settings.local_forge_dir.is_dir()):
            return  # to ask would make or upgrade them
        try:
            self._app.preflight.check(StartRequest(spec=spec))
        except AdwError as exc:
            what, fix = _split(str(exc))
            yield _problem(
                "start", f"adw run would refuse {spec.name}: {what}", fix or "do that, then adw doctor again"
            )
        else:
            yield _ok("start", f"adw run can start {spec.name}")

    def _webhook(self) -> WebhookFacts:
        settings = self._app.settings
        host = f"[{settings.web_host}]" if ":" in settings.web_host else settings.web_host
        address = f"http://{host}:{settings.web_port}"
        answer = self._health(address)
        public = settings.web_public_url or ""

        return WebhookFacts(
            has_secret=bool(settings.webhook_secret),
            address=address,
            is_answering=isinstance(answer, HttpAnswer),
            says=_trouble(answer) if isinstance(answer, HttpAnswer) else "",
            public_url=public,
            public_problem=_trouble(self._health(public)) if public else None,
        )

    def _health(self, address: str) -> HttpAnswer | str:
        """Return the answer of a server about itself, or why there is none."""
        request = HttpRequest(method="GET", url=f"{address}/health", timeout_seconds=ANSWER_SECONDS, max_bytes=65_536)
        try:
            answer = self._http.ask(request, NoOrders())
        except RunFailed as exc:
            return str(exc)

        return answer if isinstance(answer, HttpAnswer) else "it was not asked"

    # --- the machine -------------------------------------------------------------------------------------------

    def _database(self) -> DatabaseFacts:
        app = self._app
        name = str(app.settings.shown("database_url"))
        try:
            is_made = app.has_database()
            result = database_problems(app) if is_made else ()
            schema = self._look_into_database() if is_made else None
        except AdwError as exc:
            self._is_current = False
            return DatabaseFacts(name=name, problem=str(exc))
        self._is_current = not is_made or schema == migrate.HEAD

        return DatabaseFacts(name=name, is_made=is_made, schema=schema, troubles=tuple(result))

    def _look_into_database(self) -> str | None:
        with closing(connect(self._app)) as database:
            server_time = database.server_time()
            if server_time is not None:
                self._compare("the database", server_time)
            schema = database.schema_version()
            if schema == migrate.HEAD:
                here = self._app.processes.me("cli").host
                rows = reservations(database)
                self._reserved = frozenset(row.port for row, _ in rows if row.host == here)

            return schema

    def _storage(self) -> StorageFacts:
        settings = self._app.settings
        file = settings.database_file

        return storage_facts(
            settings.state_dir,
            has_sqlite=file is not None and file.is_relative_to(settings.state_dir),
            clock=self._app.clock,
        )

    def _disks(self) -> Iterator[Finding]:
        settings, least = self._app.settings, self._app.settings.quota_min_free_disk
        places: dict[int, tuple[str, Path]] = {}  # by device: two directories on one disk are told of once
        for name, path in (("worktrees", settings.trees_dir), ("state", settings.state_dir)):
            places.setdefault(quotas.nearest(path).stat().st_dev, (name, path))
        for name, path in places.values():
            yield from disk(disk_facts(name, path, min_free_bytes=least))

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
    """Return what is wrong with an answer, "" when nothing is."""
    if isinstance(answer, str):
        return answer

    return "" if answer.status == 200 else f"it answers {answer.status}"
