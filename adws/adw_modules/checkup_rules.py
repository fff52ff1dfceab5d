"""
What the facts that `adw doctor` measured mean: ok, a warning or a problem, and what mends it.

Pure: facts in, findings out. A problem keeps work from being done. A warning does not; one day somebody may be sorry.
"""

from __future__ import annotations

from collections.abc import Iterator

from adws.adw_modules import file_systems
from adws.adw_modules.checkup import (
    OK,
    PROBLEM,
    WARNING,
    AgentFacts,
    ClockFacts,
    DiskFacts,
    Finding,
    GitFacts,
    PortFacts,
    PythonFacts,
    SettingsFacts,
    StorageFacts,
    WebhookFacts,
)

#: The oldest Python that adw runs on.
OLDEST_PYTHON = (3, 11)
#: Inodes below which a worktree may not fit.
FEW_INODES = 50_000
#: Seconds that our clock may be ahead or behind: what is odd, and what GitHub does not accept from an App any more.
ODD_SKEW, WRONG_SKEW = 5.0, 60.0
#: Before this year adw was not there: the clock was never set.
FIRST_YEAR = 2025
#: Pairs of ports below which the next workflows may find none.
FEW_PORTS = 3
#: Seconds a sync may take before every step of a workflow is slow.
SLOW_SYNC = 0.25

_GIB = 2**30


def _ok(area: str, what: str) -> Finding:
    return Finding(area=area, level=OK, what=what)


def _warning(area: str, what: str, mend: str) -> Finding:
    return Finding(area=area, level=WARNING, what=what, mend=mend)


def _problem(area: str, what: str, mend: str) -> Finding:
    return Finding(area=area, level=PROBLEM, what=what, mend=mend)


def python(facts: PythonFacts) -> Iterator[Finding]:
    """Judge the Python that adw runs on."""
    version = ".".join(map(str, facts.version))
    if facts.version[:2] < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        yield _problem("python", f"Python {version} is too old", f"install Python {wanted} or newer, and adw with it")
    else:
        yield _ok("python", f"Python {version} at {facts.executable}")
    if not facts.has_proc:
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
        yield _warning("git", f"worktrees whose directory is gone: {names}", "adw gc, then git worktree prune")
    if facts.unignored:
        yield _warning("git", f"git does not ignore {_some(facts.unignored)}, which adw makes at run time", "adw init")
    if facts.stale_locks:
        names = " ".join(facts.stale_locks)
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
            what, mend = _split(one.problem)
            yield Finding(area="agents", level=level, what=f"{one.name}: {what}", mend=mend or "adw agents")
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
    """Judge the room that is left."""
    free, least = _gib(facts.free_bytes), _gib(facts.min_free_bytes)
    mend = "free some space (adw gc finds what nobody needs), or lower quota.min_free_disk in adw.toml"
    if facts.free_bytes < facts.min_free_bytes:
        yield _problem("disk", f"{free} free for {facts.name} in {facts.path}: no work starts below {least}", mend)
    elif facts.free_bytes < facts.min_free_bytes * 1.2:
        yield _warning("disk", f"{free} free for {facts.name} in {facts.path}: no work starts below {least}", mend)
    else:
        yield _ok("disk", f"{free} free for {facts.name} in {facts.path}")
    if facts.all_inodes and facts.free_inodes < FEW_INODES:
        level = PROBLEM if facts.free_inodes == 0 else WARNING
        what = f"{facts.free_inodes} inodes left for {facts.name} in {facts.path}: no more files can be made soon"
        yield Finding(area="disk", level=level, what=what, mend="delete files that nobody needs: adw gc, caches")


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
    mend = "set state.dir to a directory on a local disk"
    if facts.kind in file_systems.VOLATILE_TYPES:
        return _warning("files", f"{facts.path} is in memory ({facts.kind}): all is gone after a restart", mend)
    if facts.kind in file_systems.LAYERED_TYPES:
        what = f"{facts.path} is in the layer of a container ({facts.kind}): all is gone with the container"
        return _warning("files", what, f"mount a volume for it, or {mend}")
    if facts.kind in file_systems.NETWORK_TYPES and facts.has_sqlite:
        what = f"{facts.path} is on a network file system ({facts.kind}), where SQLite loses data"
        return _problem("files", what, f"{mend}, or use PostgreSQL")
    if facts.kind in file_systems.NETWORK_TYPES | file_systems.SHARED_TYPES:
        what = f"{facts.path} is shared with other machines ({facts.kind}): locks and syncs may not hold"
        return _warning("files", what, mend)

    return _ok("files", f"{facts.path} is on {facts.kind or 'a file system that cannot be told'}")


def clock(facts: ClockFacts) -> Iterator[Finding]:
    """Judge the clock of this machine."""
    mend = "sudo timedatectl set-ntp true"
    if facts.year < FIRST_YEAR:
        yield _problem("clock", f"the clock says the year {facts.year}", mend)
        return
    if facts.goes_back:
        yield _problem("clock", "the clock for spans of time goes back", "restart the machine, or see to its kernel")
    for who, ahead in facts.skews:
        way = "ahead of" if ahead > 0 else "behind"
        what = f"the clock is {abs(ahead):.0f} s {way} that of {who}"
        if abs(ahead) >= WRONG_SKEW:
            yield _problem("clock", what, mend)
        elif abs(ahead) >= ODD_SKEW:
            yield _warning("clock", what, mend)
        else:
            yield _ok("clock", f"the clock agrees with that of {who}")
    if not facts.skews and not facts.goes_back:
        yield _ok("clock", "the clock is set; nobody was there to compare it with")


def ports(facts: PortFacts) -> Iterator[Finding]:
    """Judge the ports that workflows get theirs from."""
    what = f"{facts.free} of {facts.count} pairs free ({facts.described}), {facts.reserved} with workflows"
    mend = "adw ports, and set ports.backend_start and ports.frontend_start to ranges that nobody else uses"
    if facts.free == 0:
        yield _problem("ports", what, mend)
    elif facts.free < min(FEW_PORTS, facts.count):
        yield _warning("ports", what, mend)
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
        yield _problem("settings", what, f"adw workflows {facts.default_workflow}")
    elif facts.default_workflow:
        yield _ok("settings", f"the workflow {facts.default_workflow} can be run")
    for phase, program in facts.missing_programs:
        yield _problem("settings", f"{phase} needs {program}, which is not in PATH", f"install {program}")


def _split(problem: str) -> tuple[str, str]:
    """Return what is wrong and what to do, of a sentence that says both; the second is "" where it says one."""
    for mark in ("; ", ": "):
        what, found, mend = problem.rpartition(mark)
        if found:
            return what, mend

    return problem, ""


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def _some(names: tuple[str, ...], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""

    return f"{', '.join(names[:most])}{more}"
