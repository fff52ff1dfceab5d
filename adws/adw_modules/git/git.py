"""
Run git, and nothing but git: the only home of GitPython.

Every command has the same surroundings: no hooks, no prompts, no pager, no file monitor, everything it writes synced,
nothing inherited that would lead it to another repository, and an end by a time-out. The person's own configuration is
read for commands that talk to a remote, because credentials and proxies are there; all others see of it only who the
person is and which directories are trusted.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from adws.adw_modules.errors import GitError, GitUnreachable
from adws.adw_modules.git import change_policy
from adws.adw_modules.git.change_policy import HEADS, TAGS, Marks
from adws.adw_modules.identifiers import OWN_SECRETS, check_adw_id

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.git.repository import Repository


try:
    import git
except ImportError as exc:  # pragma: no cover - GitPython looks for git when it is imported
    raise GitError("git cannot be used: install git 2.36 or later, and see that it is in PATH") from exc

#: The oldest git that lists worktrees as adw reads them.
OLDEST = (2, 36)
#: Seconds after which a command is killed: one that only this machine is asked for, a checkout, one that asks a remote.
LOCAL_SECONDS, CHECKOUT_SECONDS, NETWORK_SECONDS = 120.0, 900.0, 300.0
#: Hosts that are given the GitHub token.
TOKEN_HOSTS = ("github.com",)

_OPTIONS = (
    "core.fsync=all",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "protocol.ext.allow=never",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "push.gpgSign=false",
    "rebase.autoStash=false",
    "rebase.updateRefs=false",
    "color.ui=false",
)
#: What a hook or a shell may have set, and what would make git look at another repository, index or configuration.
_FOREIGN = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_ATTR_SOURCE",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DEFAULT_HASH",
    "GIT_DIFF_OPTS",
    "GIT_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_GLOB_PATHSPECS",
    "GIT_GRAFT_FILE",
    "GIT_ICASE_PATHSPECS",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_LITERAL_PATHSPECS",
    "GIT_NAMESPACE",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_TEMPLATE_DIR",
    "GIT_TRACE",
    "GIT_WORK_TREE",
)
_PERSON = r"^(user\.(name|email)|safe\.directory)$"
_TIMED_OUT = "Timeout: the command"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command said."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Its output; bytes that are no UTF-8 are replaced."""
        return self.out.decode(errors="replace")

    @property
    def parts(self) -> tuple[str, ...]:
        """Its output where null characters separate; names that are no UTF-8 keep their bytes."""
        return tuple(part for part in self.out.decode(errors="surrogateescape").split("\0") if part)

    @property
    def reason(self) -> str:
        """The line that says why it failed, without credentials."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")

        return _PASSWORD.sub("***@", said.removeprefix("fatal: ").removeprefix("error: ")) or f"exit {self.status}"


class GitCommands:
    """Runs git for one home."""

    def __init__(
        self, home: Path, *, token: str | None = None, token_hosts: Sequence[str] = TOKEN_HOSTS, author: str = ""
    ) -> None:
        """
        Run in *home* unless told otherwise; *token* is shown to *token_hosts* alone.

        *author* commits, as `NAME <ADDRESS>`; without one it is the author of git's own configuration.
        """
        self.home = home
        self._author = author
        self._token = token
        self._token_hosts = frozenset(host.casefold() for host in token_hosts)

    def run(
        self,
        *args: str,
        cwd: Path | None = None,
        ok: Sequence[int] = (0,),
        seconds: float = LOCAL_SECONDS,
        keep: Sequence[int] = (),
    ) -> Answer:
        """Return what `git *args` said; raise GitError when it ended with another code than *ok*."""
        return self._checked(args, self.ask(*args, cwd=cwd, seconds=seconds, keep=keep), ok, seconds)

    def ask(
        self,
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        seconds: float = LOCAL_SECONDS,
        keep: Sequence[int] = (),
    ) -> Answer:
        """Do the same, whatever it ends with; *env* is set for it, and the descriptors *keep* are open in it."""
        quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", **(env or {})}

        return self._execute(
            [*self._options, *self._person, *args], cwd or self.home, quiet, seconds, keep, hidden=sorted(OWN_SECRETS)
        )

    def ask_remote(self, *args: str, url: str, ok: Sequence[int] = (0,), seconds: float = NETWORK_SECONDS) -> Answer:
        """
        Return what a command said that talks to the remote at *url*; raise GitUnreachable when it got no answer.

        128 is how git ends when it could not even ask; a refusal has another code.
        """
        answer = self._execute([*self._options, *args], self.home, self._credentials(url), seconds)
        if answer.status == 128 or answer.err.startswith(_TIMED_OUT):
            raise GitUnreachable(f"the remote {_PASSWORD.sub('***@', url)} cannot be reached: {_why(answer, seconds)}")

        return self._checked(args, answer, ok, seconds)

    def version(self) -> str:
        """Return what git calls itself, however old it is; raise GitError when there is none."""
        return self._execute(["version"], self.home, {}, LOCAL_SECONDS).text.strip()

    def author(self) -> str:
        """Return who commits, as `NAME <ADDRESS>`; "" when nobody said who they are."""
        if self._author:
            return self._author
        said = dict(entry.partition("\n")[::2] for entry in self._said_by_person)
        name, address = said.get("user.name", ""), said.get("user.email", "")

        return f"{name} <{address}>" if name and address else ""

    def _checked(self, args: Sequence[str], answer: Answer, ok: Sequence[int], seconds: float) -> Answer:
        if answer.err.startswith(_TIMED_OUT):
            raise GitError(f"{_named(args)} did not end within {seconds:.0f} s and was killed")
        if answer.status not in ok:
            raise GitError(f"{_named(args)} failed: {answer.reason}")

        return answer

    def _execute(
        self,
        args: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        seconds: float,
        keep: Sequence[int] = (),
        *,
        hidden: Sequence[str] = (),
    ) -> Answer:
        """Run it through env(1), the only way to take variables away from what GitPython starts."""
        given = {**self._quiet, **env}
        foreign = [part for name in (*_FOREIGN, *hidden) if name not in given for part in ("-u", name)]
        command = [self._programs["env"], *foreign, self._programs["git"], "--no-pager", *args]
        try:
            process = git.Git(str(cwd)).execute(command, as_process=True, env=given, shell=False, pass_fds=tuple(keep))
        except (git.GitCommandError, OSError) as exc:  # pragma: no cover - env and git were there a moment ago
            raise GitError(f"git could not be started: {exc}") from exc

        return _answer_of(process, seconds)

    @cached_property
    def _programs(self) -> Mapping[str, str]:
        result = {name: shutil.which(name) for name in ("git", "env", "false")}
        if missing := [name for name, path in result.items() if path is None]:
            raise GitError(f"{', '.join(missing)} cannot be found: install it, and see that it is in PATH")

        return {name: str(path) for name, path in result.items()}

    @cached_property
    def _quiet(self) -> Mapping[str, str]:
        """What keeps git and ssh from asking a person, and from taking locks only to look."""
        refuse = self._programs["false"]

        return {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ASKPASS": refuse,
            "SSH_ASKPASS": refuse,
            "SSH_ASKPASS_REQUIRE": "force",
            "GIT_EDITOR": "true",
            "GIT_SEQUENCE_EDITOR": "true",
            **_identity(self._author),
        }

    @cached_property
    def _options(self) -> Sequence[str]:
        self._check_version()

        return [part for option in _OPTIONS for part in ("-c", option)]

    def _check_version(self) -> None:
        said = self.version()
        if numbers_of(said) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise GitError(f"this git is too old ({said}): adw needs git {wanted} or later")

    @cached_property
    def _said_by_person(self) -> Sequence[str]:
        return self._execute(["config", "-z", "--get-regexp", _PERSON], self.home, {}, LOCAL_SECONDS).parts

    @cached_property
    def _person(self) -> Sequence[str]:
        """Who commits, and which directories of others are trusted: all that is taken of the person's configuration."""
        pairs = [entry.partition("\n") for entry in self._said_by_person]
        known = [part for key, _, value in pairs for part in ("-c", f"{key}={value}")]
        # Where nobody said who they are git would refuse to commit: what comes first is overruled by what is known.
        return ["-c", "user.name=adw", "-c", "user.email=adw@localhost", *known]

    def _credentials(self, url: str) -> Mapping[str, str]:
        """Return the token as a header for the host of *url* alone, in the environment of that one command."""
        place = urlsplit(url)
        if self._token is None or place.scheme != "https" or (place.hostname or "").casefold() not in self._token_hosts:
            return {}
        secret = base64.b64encode(f"x-access-token:{self._token}".encode()).decode()

        return {
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"http.https://{place.hostname}/.extraHeader",
            "GIT_CONFIG_VALUE_0": f"Authorization: Basic {secret}",
            "GIT_CONFIG_KEY_1": "http.sslVerify",
            "GIT_CONFIG_VALUE_1": "true",
        }


def numbers_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of what git calls itself, such as `git version 2.43.0`; zeros when it has none."""
    match = re.search(r"(\d+)\.(\d+)", version)

    return (int(match[1]), int(match[2])) if match else (0, 0)


def _identity(author: str) -> Mapping[str, str]:
    """Return the variables that make *author* the one who commits; they win over every configuration."""
    name, _, rest = author.partition("<")
    if not rest:
        return {}
    name, address = name.strip(), rest.rstrip("> ")

    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": address,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": address,
    }


def _named(args: Sequence[str]) -> str:
    """Return the command without its options and values, for a message."""
    words = [arg for arg in args if re.fullmatch(r"[a-z][a-z-]*", arg)]

    return " ".join(["git", *words[:2]])


def _answer_of(process: git.Git.AutoInterrupt, seconds: float) -> Answer:
    """
    Return what a command said; after *seconds* it is killed with all that it started.

    GitPython's own time limit asks ps(1) for the children, which small machines do not have, and then waits for ever.
    """
    late = threading.Event()

    def end() -> None:
        if process.poll() is None:
            late.set()
            _kill_tree(process.pid)

    watchdog = threading.Timer(seconds, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        out, err = process.communicate()
    finally:
        watchdog.cancel()
    said = _TIMED_OUT if late.is_set() else err.decode("utf-8", "replace").removesuffix("\n")

    return Answer(status=int(process.returncode), out=bytes(out), err=said)


def _kill_tree(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for each in (*parent.children(recursive=True), parent):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _why(answer: Answer, seconds: float) -> str:
    if answer.err.startswith(_TIMED_OUT):
        return f"no answer within {seconds:.0f} s"

    return answer.reason


# The git directory that all worktrees of a repository share, read without running anything that stands in it.
#
# Files are read as files, so that a configuration that somebody planted is seen before git acts on it. No link is
# followed: where one leads is its content.


#: Files below the common directory that make git run something, or see something else; directories count as a whole.
_PLACES = ("hooks", "info", "objects/info/alternates")
#: Most bytes of one file that are read.
_MAX_BYTES = 1 << 20
_NOT_OURS = (".sample",)
_USUAL_NAMES = ("main", "master")


class SharedGit:
    """Observes what all worktrees of *repository* share; raises GitError where there is none."""

    def __init__(self, commands: GitCommands, repository: Repository, *, remote: str = "origin") -> None:
        self._commands = commands
        self._repository = repository
        self._remote = remote

    def marks(self) -> Marks:
        """Return the marks of everything that is watched."""
        common = self._repository.common_dir

        return {**self._configs(common), **dict(_files(common)), **self._refs(common)}

    def is_ancestor(self, old: str, new: str) -> bool:
        """Say whether the commit *old* is part of the history of *new*."""
        return self._commands.ask("merge-base", "--is-ancestor", old, new).status == 0

    def _configs(self, common: Path) -> dict[str, str]:
        result = change_policy.marks_of_config(_read(common / "config").decode("utf-8", "surrogateescape"))
        for path in (common / "config.worktree", *sorted(common.glob("worktrees/*/config.worktree"))):
            if os.path.lexists(path):
                text = _read(path).decode("utf-8", "surrogateescape")
                result |= change_policy.marks_of_config(text, where=str(path.relative_to(common)))

        return result

    def _refs(self, common: Path) -> dict[str, str]:
        watched = (f"{HEADS}{self._default(common)}", TAGS.rstrip("/"), "refs/replace")
        said = self._commands.run("for-each-ref", "--format=%(refname)%00%(objectname)", *watched)

        return dict(line.split("\0", 1) for line in os.fsdecode(said.out).splitlines())

    def _default(self, common: Path) -> str:
        """Return the default branch as far as it is known without asking the remote."""
        known = _read(common / "refs" / "remotes" / self._remote / "HEAD").decode("utf-8", "replace").strip()
        begin = f"ref: refs/remotes/{self._remote}/"
        if known.startswith(begin):
            return known.removeprefix(begin)
        said = self._commands.run("for-each-ref", "--format=%(refname:lstrip=2)", *(HEADS + n for n in _USUAL_NAMES))

        return next(iter(said.text.split()), _USUAL_NAMES[0])


def _files(common: Path) -> Iterator[tuple[str, str]]:
    for name in _PLACES:
        place = common / name
        inside = sorted(place.rglob("*")) if place.is_dir() and not place.is_symlink() else [place]
        for path in inside:
            is_file = path.is_symlink() or path.is_file()
            if is_file and not path.name.endswith(_NOT_OURS):
                yield str(path.relative_to(common)), change_policy.mark(_read(path))


def _read(path: Path) -> bytes:
    """Return the content of a file, where it leads to for a link, nothing when it is not there."""
    try:
        if path.is_symlink():
            return b"link to " + os.fsencode(path.readlink())
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as exc:
        return f"cannot be read: {exc.strerror}".encode()


# Lock files of git whose process is gone.
#
# git names a lock after the file it protects and writes nobody's name into it, so a killed git leaves one that nobody
# frees. It is removed only when the death is proven: no git of this machine that was there when the lock was made works
# in that place, and no process has the file open. Where that cannot be seen, the file stays.


#: Locks in the private git directory of a worktree.
_NAMES = ("index.lock", "HEAD.lock")
_PROC = Path("/proc")
#: Seconds by which the start of a process and the time of a file may differ although they belong together.
_SLACK_SECONDS = 5.0


def clear(git_dir: Path, worktree: Path, *, proc: Path = _PROC) -> tuple[Path, ...]:
    """Remove the locks in *git_dir*, that of *worktree*, which no process can be using; return those removed."""
    locks = dead([git_dir / name for name in _NAMES], (git_dir, worktree), proc=proc)
    for path in locks:
        path.unlink(missing_ok=True)

    return locks


def dead(locks: Sequence[Path], places: tuple[Path, ...], *, proc: Path = _PROC) -> tuple[Path, ...]:
    """Return those of *locks* that no process can be using: it would have them open, or be a git in one of *places*."""
    there = [path for path in locks if path.is_file() and not path.is_symlink()]

    return tuple(path for path in there if _is_dead(path, places, proc))


def boot_time() -> float:
    """Return when this machine started, in seconds since 1970."""
    return float(psutil.boot_time())


def _is_dead(lock: Path, places: tuple[Path, ...], proc: Path) -> bool:
    try:
        made = lock.stat()
        pids = [entry for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return False
    if made.st_uid != os.geteuid() or proc / str(os.getpid()) not in pids:
        return False  # somebody else's lock, no /proc, or one that shows the processes of others

    return not any(_may_use(process, lock, places, made) for process in pids)


def _may_use(process: Path, lock: Path, places: tuple[Path, ...], made: os.stat_result) -> bool:
    """Return whether *process* may have taken *lock*: it is a git that works there, or has the file open."""
    try:
        if process.stat().st_uid != made.st_uid:
            return False  # it could not have made this lock
        is_git = (process / "comm").read_text(errors="replace").startswith("git")
        works_there = is_git and _is_below((process / "cwd").readlink(), places)
        if works_there and _started_at(process) <= made.st_mtime + _SLACK_SECONDS:
            return True
        return any(_target(entry) == str(lock) for entry in (process / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended meanwhile
    except OSError:
        return True  # of the same person, and it cannot be seen what it does


def _started_at(process: Path) -> float:
    """Return when *process* started, in seconds since 1970; long ago when that cannot be seen."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return boot_time() + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, IndexError, ValueError):
        return float("-inf")


def _is_below(path: Path, places: tuple[Path, ...]) -> bool:
    return any(path == place or place in path.parents for place in places)


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""  # closed meanwhile


# What work is called outside: the class of its issue, its commits, whose worktree and whose ref something is.
#
# Pure, and always the same for the same document: what a crash kept from being written down is found again by its name.


#: Classes of issues, as branches are named by them.
CLASSES = ("feature", "bug", "chore", "patch", "test")
#: The class of an issue that nothing is known about.
DEFAULT_CLASS = "feature"
#: Labels that say what class an issue is of, besides the classes themselves.
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "enhancement": "feature",
        "feat": "feature",
        "fix": "bug",
        "defect": "bug",
        "maintenance": "chore",
        "refactor": "chore",
        "documentation": "chore",
        "docs": "chore",
        "dependencies": "chore",
        "tests": "test",
    }
)
#: Characters of a title that go into the first line of a commit.
MAX_SUBJECT = 50
#: Which agent does a phase, as commits name it.
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "plan": "sdlc_planner",
        "build": "sdlc_implementor",
        "test": "test_runner",
        "review": "reviewer",
        "document": "documenter",
        "ship": "shipper",
    }
)


def issue_class(document: WorkflowDocument) -> str:
    """Return the class of a workflow's issue: the recorded one, else what its labels say, else `feature`."""
    recorded = (document.issue_class or "").strip("/ ").lower()
    labels = document.issue.labels if document.issue else []
    for word in (recorded, *(label.strip().lower() for label in labels)):
        result = LABELS.get(word, word)
        if result in CLASSES:
            return result

    return DEFAULT_CLASS


def commit_message(document: WorkflowDocument, phase: str) -> str:
    """Return the message of the commit after *phase*: `<agent or phase>: <class>: <title>`, and whose work it is."""
    title = " ".join((document.issue.title if document.issue else "").split()).rstrip(".")
    short = title if len(title) <= MAX_SUBJECT else title[:MAX_SUBJECT].rsplit(" ", 1)[0]
    subject = f"{AGENTS.get(phase, phase)}: {issue_class(document)}: {short or f'work of {document.adw_id}'}"
    issue = [] if document.issue_number is None else [f"ADW-Issue: #{document.issue_number}"]

    return "\n".join([subject, "", *issue, f"ADW-ID: {document.adw_id}", f"ADW-Phase: {phase}", ""])


def lock_reason(adw_id: str) -> str:
    """Return whose worktree it is, as git keeps it."""
    return f"adw {adw_id}"


def owner_of_lock(reason: str) -> str:
    """Return the workflow that `lock_reason` named, "" when the worktree is locked by somebody else, or not at all."""
    match = re.fullmatch(r"adw ([A-Za-z0-9][A-Za-z0-9_-]{0,63})", reason)

    return match[1] if match else ""


def is_of_another(ref: str, adw_id: str) -> bool:
    """Say whether a ref is by its name the work of another workflow."""
    named = re.search(r"-adw-([A-Za-z0-9_]+)-", ref)

    return named is not None and named[1] != adw_id


def salvage_ref(adw_id: str, number: int = 1) -> str:
    """Return the ref that keeps the commits of a workflow; the second branch and later ones have a number."""
    return f"refs/adw/salvage/{adw_id}" + (f".{number}" if number > 1 else "")


_BRANCH = re.compile(r"(?:^|-)adw-([0-9a-f]{8,32})(?:-|$)")


def workflow_of(branch: str, known: Mapping[str, object]) -> str:
    """Return the workflow that a branch is named for, "" when it is named for none."""
    by_name = next((adw_id for adw_id in known if f"adw-{adw_id}-" in f"{branch}-"), "")
    match = _BRANCH.search(branch)

    return by_name or (match[1] if match else "")


# What the names of branches may look like, and how ours are made.
#
# A name goes to git as an argument and becomes a file, so git's own rules are applied before git sees it; the name of a
# workflow's branch comes from its issue's title by rule, never from somebody's free text.


#: Words of a title that say nothing about it.
_EMPTY_WORDS = frozenset("a an and are as at be by for from in into is it of on or so that the to was with".split())  # noqa: SIM905 - a list of 25 words would be 25 lines
_MAX_WORDS, _MIN_WORDS, _MAX_CHARACTERS = 6, 3, 60
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def check_branch(name: str) -> str:
    """Return *name* when git takes it as the name of a branch and cannot read it as anything else."""
    is_bad = _FORBIDDEN.search(name) or name.startswith(("-", ".", "/")) or name.endswith((".", "/"))
    if not name or is_bad or name == "@" or len(name.encode(errors="surrogateescape")) > 200:
        raise GitError(f"{name[:80]!r} cannot be the name of a branch")

    return name


def branch_name(adw_id: str, *, issue_number: int | None, title: str, issue_class: str | None = None) -> str:
    """Return `<class>-issue-<n>-adw-<id>-<slug>`: the same for the same workflow, whenever it is asked for."""
    kind = (issue_class or "").strip().lstrip("/").casefold()
    number = "" if issue_number is None else f"issue-{issue_number}-"

    return check_branch(
        f"{kind if kind in CLASSES else DEFAULT_CLASS}-{number}adw-{check_adw_id(adw_id)}-{slug(title)}"
    )


def slug(title: str) -> str:
    """Return three to six words of *title* that are safe in a name, `work` when it has none."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().casefold()
    words = re.findall(r"[a-z0-9]+", plain.replace("'", ""))
    telling = [word for word in words if word not in _EMPTY_WORDS]
    chosen = telling if len(telling) >= _MIN_WORDS else words

    made = ""
    for word in chosen[:_MAX_WORDS]:
        longer = f"{made}-{word}" if made else word[:_MAX_CHARACTERS]
        if len(longer) > _MAX_CHARACTERS:
            break
        made = longer

    return made or "work"
