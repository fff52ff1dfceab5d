"""
What `adw doctor` looks at, and what it says about it.

Words only: facts as they were measured, and findings. Each finding says what is there, and, when that is not well, what
is wrong and the command that mends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adws.adw_modules.json_value import JsonObject

#: How a thing stands: as it should; it works and may not for long, or not wholly; work cannot be done.
OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the doctor."""

    area: str  #: git | agents | forge | ...
    level: str  #: ok | warning | problem
    what: str  #: what is there, or what is wrong
    mend: str = ""  #: the command, or what a person has to do; "" when all is well

    def to_json(self) -> JsonObject:
        """Return it for programs."""
        return {"area": self.area, "level": self.level, "what": self.what, "mend": self.mend}


def count(findings: Iterable[Finding], level: str) -> int:
    """Return how many findings are of *level*."""
    return sum(1 for finding in findings if finding.level == level)


# --- facts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonFacts:
    """The Python that adw runs on."""

    version: tuple[int, int, int]
    executable: str
    has_proc: bool  #: whether /proc shows processes


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
    is_needed: bool  #: a phase, or the doctor of the engine, is to be done by it


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgeFacts:
    """Where issues and pull requests are."""

    kind: str  #: github | local | none | the name of a plug-in
    repository: str = ""
    login: str = ""
    problem: str = ""  #: why it cannot be used
    mend: str = ""
    may_push: bool | None = None  #: None: it cannot be told
    may_write_issues: bool | None = None
    scopes: tuple[str, ...] | None = None  #: of a classic token; None: the token has none to show
    is_private: bool = False
    pushes_workflow_files: bool = False  #: as the settings say
    requests_left: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookFacts:
    """The door for webhooks."""

    has_secret: bool
    address: str  #: where adw serve listens
    is_answering: bool
    says: str = ""  #: what it said when it was not well
    public_url: str = ""
    public_problem: str | None = None  #: why it did not answer there, "" when it did; None: it was not asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """Something in the database that does not fit, as `adw db check` tells it."""

    kind: str  #: storage | schema | moved | document | copy | lock | request | owner | run | ...
    text: str
    hint: str
    adw_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseFacts:
    """The database."""

    name: str
    is_made: bool = True
    schema: str | None = None
    problem: str = ""  #: why it cannot be reached
    troubles: tuple[Trouble, ...] = ()


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
class ClockFacts:
    """The clock of this machine."""

    year: int
    goes_back: bool = False  #: the clock for spans went back
    skews: tuple[tuple[str, float], ...] = ()  #: of whom, and seconds that our clock is ahead of theirs


@dataclass(frozen=True, kw_only=True, slots=True)
class PortFacts:
    """The ports that workflows get theirs from."""

    described: str
    count: int
    free: int  #: pairs that nobody has, and nobody listens on
    reserved: int  #: pairs that workflows have


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsFacts:
    """The settings in force."""

    file: str
    has_file: bool
    ignored: tuple[str, ...] = ()  #: variables that are set and mean nothing
    default_workflow: str = ""
    idle_phases: tuple[str, ...] = ()  #: of the default workflow, which nothing can run
    missing_programs: tuple[tuple[str, str], ...] = ()  #: phase, and a program it needs that is not in PATH
