"""
Run git commands that trust nothing a phase can write.

They run in a git directory of adw's own (`private_dir`): no hooks, prompts, pager or file monitor; no programs,
includes or addresses from the repository's configuration; all writes synced; few variables and no secret in the
environment; and a time limit. The person's own configuration is read in full only by commands that talk to a remote,
because it has the credentials and proxies; all others take from it only the person's identity, the trusted directories
and the person's filters.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
import unicodedata
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from adws.adw_modules.errors import GitError, GitUnreachable, RemoteChanged, RemoteRefused, RepositoryNotTrusted
from adws.adw_modules.git import private_dir
from adws.adw_modules.git.private_dir import PrivateDir, without_password
from adws.adw_modules.identifiers import check_adw_id
from adws.adw_modules.process.run import capture

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument


#: The oldest git whose list of worktrees adw can read.
OLDEST = (2, 36)
#: Time limits of a local command, such as a checkout, and of one that talks to a remote.
LOCAL_SECONDS, NETWORK_SECONDS = 900.0, 300.0
#: Hosts that get the GitHub token.
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
#: Variables passed on to git, besides all that begin with LC_: none of them is a secret.
_LOCAL_VARIABLES = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TERM TMPDIR TZ XDG_CONFIG_HOME EMAIL LD_LIBRARY_PATH LD_PRELOAD"  # noqa: SIM905 - 24 names would be 24 lines
    " GIT_EXEC_PATH GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_NOSYSTEM GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL"
    " GIT_AUTHOR_DATE GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL GIT_COMMITTER_DATE".split()
)
#: Variables also passed on to commands that talk to a remote: the person's SSH agent, proxies, certificates, and the
#: places where credential helpers keep their data.
_REMOTE_VARIABLES = frozenset(
    "SSH_AUTH_SOCK SSH_AGENT_PID GIT_SSH GIT_SSH_COMMAND GIT_SSH_VARIANT GIT_PROXY_COMMAND http_proxy https_proxy"  # noqa: SIM905 - 31 names would be 31 lines
    " HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY SSL_CERT_FILE SSL_CERT_DIR GIT_SSL_CAINFO GIT_SSL_CAPATH"
    " GIT_SSL_CERT GIT_SSL_KEY GIT_ALLOW_PROTOCOL KRB5CCNAME KRB5_CONFIG DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR"
    " XDG_DATA_HOME XDG_CACHE_HOME XDG_STATE_HOME GNUPGHOME PASSWORD_STORE_DIR GCM_CREDENTIAL_STORE"
    " GH_CONFIG_DIR".split()
)
#: Only commands meant for a remote may contact one, not even git's own fetch of missing objects.
_NO_TRANSPORT = {"GIT_ALLOW_PROTOCOL": "none"}
_PERSON = r"^(user\.(name|email)|safe\.directory|filter\..*\.(clean|smudge|process|required))$"
#: Scopes of configuration that are the person's and not the repository's.
_OF_PERSON = frozenset({"system", "global", "command"})
#: Not run even if the person set it up: its output has to be uploaded by a hook on push.
_LFS = "lfs"
#: Keys that decide how a remote is reached; adw takes them from the person's configuration, never the repository's.
_NOT_USED = (
    r"^(core\.(sshcommand|gitproxy)|ssh\.|credential\.|http\.|url\.|remote\..*\.(uploadpack|receivepack|proxy|vcs)$)"
)
_TIMED_OUT = "Timeout: the command"
#: git's messages about a temporary outage; a push exits with 1 if the server fails in the middle of it.
_OUTAGE = re.compile(
    r"no answer within|resolve host|name resolution|timed out|(?:failed to|unable to|could not) connect|"
    r"connection (?:was )?(?:refused|reset|closed)|network is unreachable|no route to host|hung up unexpectedly|"
    r"early eof|empty reply|unexpected disconnect|handshake|(?:returned error:|rpc failed; http) (?:429|5\d\d)",
    re.IGNORECASE,
)
#: git's messages about a remote problem that a person has to fix.
_REFUSED = re.compile(
    r"authentication failed|could not read (?:username|password)|terminal prompts disabled|permission denied|"
    r"host key verification failed|returned error: 40[134]|repository .*not found|transport .* not allowed",
    re.IGNORECASE,
)
#: Objects per command: a command line has a limited length.
_AT_ONCE = 500
#: Keeps the person's configuration out of a command.
_QUIET_CONFIG: Mapping[str, str] = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
_TRUST = re.compile(r"^\s*git config --global --add safe\.directory .+$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of a command."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """The output; bytes that are not UTF-8 are replaced."""
        return self.out.decode(errors="replace")

    @property
    def parts(self) -> tuple[str, ...]:
        """The output, split at null characters; names that are not UTF-8 keep their bytes."""
        return tuple(part for part in self.out.decode(errors="surrogateescape").split("\0") if part)

    @property
    def reason(self) -> str:
        """The line that says why git failed, without credentials; with git's advice about an untrusted directory."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
        why = without_password(said.removeprefix("fatal: ").removeprefix("error: ")) or f"exit {self.status}"

        return f"{why}; allow it with: {advice}" if (advice := self.trust_advice) else why

    @property
    def trust_advice(self) -> str:
        """The command by which git suggests to trust another user's directory, "" if that is not the cause."""
        match = _TRUST.search(self.err)

        return match[0].strip() if match else ""


class GitCommands:
    """Runs git for one home."""

    def __init__(
        self,
        home: Path,
        *,
        private: Path | None = None,
        remote: str = "origin",
        token: str | None = None,
        author: str = "",
        variables: Sequence[str] = (),
        common_dir: Path | None = None,
    ) -> None:
        """
        Run for the repository that contains *home*; *token* is sent to TOKEN_HOSTS only.

        *private* is adw's own git directory, by default below `state/` of the home. *author* is the author of commits
        as `NAME <ADDRESS>`, by default the one of git's own configuration. *variables* are names of additional
        variables passed on to git. *common_dir* is the repository's git directory if it cannot be found from *home*, as
        for a bare repository.
        """
        self.home = home
        self.remote = remote
        self._private_path = private or home / "state" / private_dir.NAME
        self._author = author
        self._token = token
        self._variables = frozenset(variables)
        #: content of the repository's configuration when it was last read, and its entries
        self._read_before: tuple[bytes, Sequence[tuple[str, str]]] = (b"", ())
        if common_dir is not None:
            vars(self)["common_dir"] = common_dir

    # --- on the repository and its worktrees -------------------------------------------------------------------

    def run(
        self,
        *args: str,
        cwd: Path | None = None,
        tree: Path | None = None,
        env: Mapping[str, str] | None = None,
        ok: Sequence[int] | None = (0,),
        seconds: float = LOCAL_SECONDS,
        keep: Sequence[int] = (),
    ) -> Answer:
        """
        Run `git *args` on the repository, or in its linked worktree *tree*, without the repository's configuration.

        Raises GitError for an exit code not in *ok*; None accepts every code. *env* adds variables, and the descriptors
        *keep* stay open in git.
        """
        git_dir = self.common_dir if tree is None else self.tree_dir(tree)
        place = {**self._place(git_dir), "GIT_OBJECT_DIRECTORY": str(self.common_dir / "objects")}
        if (work := tree or cwd) is not None:
            place["GIT_WORK_TREE"] = str(work)
        sparse = ("-c", "core.sparseCheckout=true") if (git_dir / "info" / "sparse-checkout").is_file() else ()
        answer = self._execute(
            [*self._options, *self._person, *sparse, *args],
            cwd=work,
            env={**_QUIET_CONFIG, **_NO_TRANSPORT, **place, **(env or {})},
            seconds=seconds,
            keep=keep,
        )

        return _checked(args, answer, ok, seconds)

    def commit_of(self, ref: str, *, tree: Path | None = None) -> str | None:
        """Return the commit that *ref* names, in the worktree *tree* or the repository; None if it names no commit."""
        if not ref or "\0" in ref:
            return None
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")

        return self.run(*asked, tree=tree, ok=(0, 1, 128)).text.strip() or None

    def plain(self, *args: str, ok: Sequence[int] | None = (0,), keep: Sequence[int] = ()) -> Answer:
        """
        Run a command that reads the repository's own configuration; raise GitError as `run` does.

        For the few commands that make a repository or a worktree, or report where one is: they read no file of a
        worktree and start no program.
        """
        env = {**_QUIET_CONFIG, **_NO_TRANSPORT}
        answer = self._execute([*self._options, *self._person, *args], env=env, keep=keep)

        return _checked(args, answer, ok, LOCAL_SECONDS)

    @cached_property
    def common_dir(self) -> Path:
        """The git directory shared by all worktrees; raises GitError if there is no repository."""
        result = self.plain("rev-parse", "--path-format=absolute", "--git-common-dir", ok=None)
        if result.trust_advice:
            raise RepositoryNotTrusted(f"git does not trust the repository of {self.home}: {result.reason}")
        if result.status != 0:
            raise GitError(
                f"{self.home} is in no git repository ({result.reason}): run adw inside one, or set ADW_HOME"
            )

        return Path(os.fsdecode(result.out).rstrip("\n"))

    def tree_dir(self, tree: Path) -> Path:
        """Return the private git directory of the linked worktree *tree*; both have to name each other."""
        try:
            if not (tree / ".git").is_file():
                raise GitError(f"{tree} is no linked worktree: adw works in those only")
            said = (tree / ".git").read_text("utf-8", "surrogateescape").strip()
            git_dir = (tree / said.removeprefix("gitdir:").strip()).resolve()
            back = (git_dir / "gitdir").read_text("utf-8", "surrogateescape").strip()
        except (OSError, ValueError) as exc:
            raise GitError(f"the git directory of {tree} cannot be found: {exc}") from exc
        is_ours = git_dir.parent == (self.common_dir / "worktrees").resolve()
        if not is_ours or (git_dir / back).resolve() != (tree / ".git").resolve():
            raise GitError(f"{tree} is not a worktree of its own: it belongs to {git_dir}")

        return git_dir

    # --- talking to the remote ---------------------------------------------------------------------------------

    def ask_remote(
        self, *args: str, url: str, ok: Sequence[int] = (0,), seconds: float = NETWORK_SECONDS, records: bool = True
    ) -> Answer:
        """
        Run a command that talks to the remote at *url*; raise GitUnreachable if the remote does not answer.

        git exits with 128 if it could not reach the remote; a refused push has another code, and so has a push during
        which the server failed. With *records* the remote's address is recorded when it first answers.
        """
        place = self._place(makes=records)
        if args[0] == "fetch":  # fetched objects go to the repository; all other commands only read its objects
            place["GIT_OBJECT_DIRECTORY"] = str(self.common_dir / "objects")
        with self._credentials(url, place) as (options, keep):
            command = [*self._options, *options, *args]
            answer = self._execute(command, env=place, seconds=seconds, keep=keep, allowed=_REMOTE_VARIABLES)
        is_away = answer.status and is_outage(answer.err)
        if answer.status == 128 or is_away:
            is_late = answer.err.startswith(_TIMED_OUT)
            why = f"no answer within {seconds:.0f} s" if is_late else answer.reason
            problem = f"the remote {without_password(url)} cannot be reached: {why}"
            if unused := sorted({key for key, _ in self._configured(_NOT_USED)}):
                problem += (
                    f"; adw does not use what the repository's own configuration says ({', '.join(unused)}): "
                    "set it with git config --global"
                )
            raise RemoteRefused(problem) if not is_away and _REFUSED.search(answer.err) else GitUnreachable(problem)

        if records:
            private = self._private(makes=True)
            if not private.recorded()[0] and url in (urls := self._remote_here()):
                private.record(urls)

        return _checked(args, answer, ok, seconds)

    def fetch(self, url: str, *refspecs: str) -> None:
        """Fetch only *refspecs* from the remote at *url*, without tags or submodules; raise GitUnreachable."""
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--end-of-options")
        self.ask_remote("fetch", *options, url, *refspecs, url=url)

    def fetch_missing(self, commit: str) -> None:
        """Fetch what a partial clone left out of *commit*, which git does not do here itself; raise GitUnreachable."""
        asked = ("rev-list", "--objects", "--no-walk", "--missing=print", commit)
        while self._configured(r"^(remote\..*\.promisor|extensions\.partialclone)$"):
            missing = [line[1:] for line in self.run(*asked).text.splitlines() if line.startswith("?")]
            urls = self.remote_urls() if missing else None
            if urls is None:
                return
            for first in range(0, len(missing), _AT_ONCE):
                self.fetch(urls[0], *missing[first : first + _AT_ONCE])

    def remote_urls(self) -> tuple[str, str] | None:
        """
        Return the addresses that adw fetches from and pushes to, or None without a remote.

        Raises RemoteChanged if the repository's configuration names another address than the recorded one: a phase may
        have written it. An address is recorded when it first answers.
        """
        urls = self._remote_here()
        recorded, shown = self._private().recorded()
        if recorded and recorded != private_dir.digest(urls):
            raise RemoteChanged(self.remote, ", ".join(map(without_password, urls)), shown)

        return (urls[0], urls[-1]) if urls else None

    def record_remote(self) -> None:
        """Record the remote's address in the repository's current configuration as the right one."""
        self._private(makes=True).record(self._remote_here())

    def _remote_here(self) -> tuple[str, ...]:
        """Return the remote's configured address, and its address for pushes if it has one."""
        name = re.escape(self.remote)
        said = dict(reversed(self._configured(rf"^remote\.{name}\.(url|pushurl)$")))  # the first of several wins
        urls = (said.get(f"remote.{self.remote}.url", ""), said.get(f"remote.{self.remote}.pushurl", ""))

        return tuple(filter(None, urls)) if urls[0] else ()

    def version(self) -> str:
        """Return git's version line, however old git is; raise GitError if git is missing."""
        return self._execute(["version"]).text.strip()

    def author(self) -> str:
        """Return the author of commits as `NAME <ADDRESS>`, or "" if none is configured."""
        if self._author:
            return self._author
        said = {key: value for _, key, value in self._said_by_person}
        name, address = said.get("user.name", ""), said.get("user.email", "")

        return f"{name} <{address}>" if name and address else ""

    @cached_property
    def filters_not_run(self) -> frozenset[str]:
        """Configured filter drivers that adw does not run: git-lfs, and those of the repository's own configuration."""
        run = {_driver(key) for key in self._filters}

        return frozenset(driver for _, key, _ in self._said_by_person if (driver := _driver(key)) and driver not in run)

    # --- internals ---------------------------------------------------------------------------------------------

    def _private(self, *, makes: bool = False) -> PrivateDir:
        """
        Return adw's own git directory: that of the home if it exists, or if this command *makes* it.

        Otherwise a temporary one of this process: reading then leaves nothing behind and needs no write permission.
        """
        path = self._private_path
        place = path.parent if makes else path
        is_usable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)

        return PrivateDir(path=path if is_usable else self._spare, common=self.common_dir)

    @cached_property
    def _spare(self) -> Path:
        folder = tempfile.mkdtemp(prefix="adw-git-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # removed with this object or process

        return Path(folder).resolve() / private_dir.NAME

    @cached_property
    def _settings(self) -> Sequence[tuple[str, str]]:
        """The configuration that commands run with, as read when this process first used git."""
        return (*self._configured(private_dir.PLAIN_KEYS), *self._filters.items())

    @cached_property
    def _filters(self) -> Mapping[str, str]:
        """The filters of the person's own configuration, except git-lfs."""
        said = [one for one in self._said_by_person if one[0] in _OF_PERSON and _driver(one[1]) not in {"", _LFS}]

        return {key: value for _, key, value in said}

    def _place(self, git_dir: Path | None = None, *, makes: bool = False) -> dict[str, str]:
        """Return the variables that make git work in *git_dir* (default: adw's own) with adw's own configuration."""
        private = self._private(makes=makes)
        private.prepare(self._settings)

        return {"GIT_DIR": str(git_dir or private.path), "GIT_COMMON_DIR": str(private.path)}

    def _configured(self, pattern: str) -> Sequence[tuple[str, str]]:
        """Return the entries of the repository's configuration whose key matches *pattern*; includes are not read."""
        file = self.common_dir / "config"
        content = file.read_bytes() if file.is_file() else b""
        known, entries = self._read_before
        if known != content:  # reread only a changed file
            said = self._execute(["config", "--file", str(file), "--no-includes", "-z", "--list"], env=_QUIET_CONFIG)
            pairs = (entry.partition("\n") for entry in said.parts)
            entries = tuple((key, value if mark else "true") for key, mark, value in pairs)
            self._read_before = content, entries

        return [(key, value) for key, value in entries if re.search(pattern, key)]

    def _execute(
        self,
        args: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        seconds: float = LOCAL_SECONDS,
        keep: Sequence[int] = (),
        allowed: frozenset[str] = frozenset(),
    ) -> Answer:
        """Run git with a minimal environment: only the listed variables are inherited."""
        wanted = {*_LOCAL_VARIABLES, *allowed, *self._variables}
        kept = {name: value for name, value in os.environ.items() if name in wanted or name.startswith("LC_")}
        # adw parses the messages, so they have to be those of the C locale.
        given = {**kept, **self._quiet, "LC_ALL": "C", "LANGUAGE": "C", **env}
        command = [self._programs["git"], "--no-pager", *args]
        try:
            done = capture(command, cwd=cwd or self.home, env=given, seconds=seconds, keep=keep)
        except OSError as exc:  # for example the directory is gone
            raise GitError(f"git could not be started: {exc}") from exc
        if done is None:
            return Answer(status=-9, out=b"", err=_TIMED_OUT)
        status, out, err = done

        return Answer(status=status, out=out, err=err.decode("utf-8", "replace").removesuffix("\n"))

    @cached_property
    def _programs(self) -> Mapping[str, str]:
        result = {name: shutil.which(name) or "" for name in ("git", "false")}
        if missing := [name for name, path in result.items() if not path]:
            raise GitError(f"{', '.join(missing)} cannot be found: install it, and see that it is in PATH")

        return result

    @cached_property
    def _quiet(self) -> Mapping[str, str]:
        """Variables that keep git and ssh from prompting, keep reads from taking locks, and set the author."""
        refuse = self._programs["false"]
        result = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ASKPASS": refuse,
            "SSH_ASKPASS": refuse,
            "SSH_ASKPASS_REQUIRE": "force",
            "GIT_EDITOR": "true",
            "GIT_SEQUENCE_EDITOR": "true",
        }
        name, _, address = self._author.partition("<")
        if address:  # variables override every configuration
            for role in ("AUTHOR", "COMMITTER"):
                result |= {f"GIT_{role}_NAME": name.strip(), f"GIT_{role}_EMAIL": address.rstrip("> ")}

        return result

    @cached_property
    def _options(self) -> Sequence[str]:
        said = self.version()
        if numbers_of(said) < OLDEST:
            wanted = ".".join(map(str, OLDEST))
            raise GitError(f"this git is too old ({said}): adw needs git {wanted} or later")

        return [part for option in _OPTIONS for part in ("-c", option)]

    @cached_property
    def _said_by_person(self) -> Sequence[tuple[str, str, str]]:
        """Scope, key and value of each entry taken from git's configuration; the repository may set only the author."""
        asked = ("config", "--show-scope", "-z", "--get-regexp", _PERSON)
        parts = self._execute(asked).out.decode(errors="surrogateescape").split("\0")
        entries = zip(parts[::2], (entry.partition("\n") for entry in parts[1::2]), strict=False)

        return tuple((scope, key, value if mark else "true") for scope, (key, mark, value) in entries)

    @cached_property
    def _person(self) -> Sequence[str]:
        """Options that set the author and the trusted directories of other users."""
        known = [
            part
            for scope, key, value in self._said_by_person
            if key.startswith("user.") or (key.startswith("safe.") and scope in _OF_PERSON)
            for part in ("-c", f"{key}={value}")
        ]
        # git refuses to commit without an author: these defaults come first and configured values override them.
        return ["-c", "user.name=adw", "-c", "user.email=adw@localhost", *known]

    @contextmanager
    def _credentials(self, url: str, place: Mapping[str, str]) -> Iterator[tuple[Sequence[str], Sequence[int]]]:
        """
        Yield the options and descriptors that give the token to the host of *url* alone, for one command.

        The header is in a file without a name, or one that is removed after the command: it appears neither in the
        environment nor on a command line.
        """
        host = ""
        if self._token is not None:  # the host after the person's configuration has rewritten *url*
            asked = ("ls-remote", "--get-url", "--end-of-options", url)
            there = urlsplit(self._execute(asked, env=place).text.strip())
            host = (there.hostname or "").casefold() if there.scheme == "https" else ""
        if host not in TOKEN_HOSTS:
            yield (), ()
            return
        secret = base64.b64encode(f"x-access-token:{self._token}".encode()).decode()
        entries = [(f"http.https://{host}/.extraHeader", f"Authorization: Basic {secret}"), ("http.sslVerify", "true")]
        if hasattr(os, "memfd_create"):
            fd, path = os.memfd_create("adw"), ""  # in memory: it vanishes with this process, however that ends
        else:  # pragma: no cover - Linux has it
            fd, path = tempfile.mkstemp(dir=place["GIT_DIR"])
        try:
            os.write(fd, private_dir.config_text(entries).encode())
            yield ("-c", f"include.path={path or f'/proc/self/fd/{fd}'}"), (fd,)
        finally:
            os.close(fd)
            if path:  # pragma: no cover - Linux has a file without a name
                Path(path).unlink(missing_ok=True)


def _driver(key: str) -> str:
    """Return the filter driver that a key configures, or "" for any other key."""
    return key.removeprefix("filter.").rpartition(".")[0] if key.startswith("filter.") else ""


def numbers_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of git's version line, such as `git version 2.43.0`; zeros if it has none."""
    match = re.search(r"(\d+)\.(\d+)", version)

    return (int(match[1]), int(match[2])) if match else (0, 0)


def is_outage(said: str) -> bool:
    """Say whether git reports a temporary outage; output of the remote's hooks does not count."""
    own = "\n".join(line for line in said.splitlines() if not line.startswith("remote:"))

    return own.startswith(_TIMED_OUT) or _OUTAGE.search(own) is not None


def _checked(args: Sequence[str], answer: Answer, ok: Sequence[int] | None, seconds: float) -> Answer:
    if ok is None:
        return answer
    # The command without its options and values.
    name = " ".join(["git", *[arg for arg in args if re.fullmatch(r"[a-z][a-z-]*", arg)][:2]])
    if answer.err.startswith(_TIMED_OUT):
        raise GitError(f"{name} did not end within {seconds:.0f} s and was killed")
    if answer.status not in ok:
        raise GitError(f"{name} failed: {answer.reason}")

    return answer


# Names that others see: issue classes, commit messages, lock reasons and refs.
#
# Pure, and always the same for the same document: an effect that a crash kept from being recorded is found by its name.


#: Classes of issues; branch names begin with one.
CLASSES = ("feature", "bug", "chore", "patch", "test")
#: The class of an issue without a recorded class or a telling label.
DEFAULT_CLASS = "feature"
#: Labels that imply a class, besides the classes themselves.
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
#: Characters of a title in the first line of a commit.
MAX_SUBJECT = 50
#: Types of commits, as Conventional Commits spell them.
TYPES: Mapping[str, str] = MappingProxyType({"feature": "feat", "bug": "fix", "patch": "fix"})
#: Default of the setting git.commit_message: the first line of a commit that adw makes.
COMMIT_MESSAGE = "<type>: <summary> (#<issue>)"


def issue_class(document: WorkflowDocument) -> str:
    """Return the class of a workflow's issue: the recorded one, else one implied by its labels, else `feature`."""
    recorded = (document.issue_class or "").strip("/ ").lower()
    labels = document.issue.labels if document.issue else []
    for word in (recorded, *(label.strip().lower() for label in labels)):
        result = LABELS.get(word, word)
        if result in CLASSES:
            return result

    return DEFAULT_CLASS


def commit_message(document: WorkflowDocument, phase: str, template: str = COMMIT_MESSAGE) -> str:
    """Return the message of the commit after *phase*: the filled-in *template*, and trailers by which adw finds it."""
    title = " ".join((document.issue.title if document.issue else "").split()).rstrip(".")
    short = title if len(title) <= MAX_SUBJECT else title[:MAX_SUBJECT].rsplit(" ", 1)[0]
    kind, number = issue_class(document), document.issue_number
    if number is None:  # the placeholder goes with its brackets
        template = re.sub(r"\s*\(#?<issue>\)|\s*#?<issue>", "", template)
    values = {
        "type": TYPES.get(kind, kind),
        "summary": short or f"work of {document.adw_id}",
        "issue": str(number),
        "phase": phase,
        "id": document.adw_id,
    }
    subject = re.sub(r"<(\w+)>", lambda match: values.get(match[1], match[0]), template)
    issue = [] if number is None else [f"ADW-Issue: #{number}"]

    return "\n".join([subject, "", *issue, f"ADW-ID: {document.adw_id}", f"ADW-Phase: {phase}", ""])


def lock_reason(adw_id: str) -> str:
    """Return the lock reason that names a worktree's workflow."""
    return f"adw {adw_id}"


def owner_of_lock(reason: str) -> str:
    """Return the workflow that `lock_reason` named, or "" if the worktree is not locked by adw."""
    match = re.fullmatch(r"adw ([A-Za-z0-9][A-Za-z0-9_-]{0,63})", reason)

    return match[1] if match else ""


def is_of_another(ref: str, adw_id: str) -> bool:
    """Say whether the name of *ref* belongs to another workflow."""
    named = re.search(r"-adw-([A-Za-z0-9_]+)-", ref)

    return named is not None and named[1] != adw_id


def salvage_ref(adw_id: str, number: int = 1) -> str:
    """Return the ref that keeps the commits of a workflow; the second and later ones have a number."""
    return f"refs/adw/salvage/{adw_id}" + (f".{number}" if number > 1 else "")


_BRANCH = re.compile(r"(?:^|-)adw-([0-9a-f]{8,32})(?:-|$)")


def workflow_of(branch: str, known: Mapping[str, object]) -> str:
    """Return the workflow that a branch is named for, or "" if its name has none."""
    by_name = next((adw_id for adw_id in known if f"adw-{adw_id}-" in f"{branch}-"), "")
    match = _BRANCH.search(branch)

    return by_name or (match[1] if match else "")


# Rules for branch names.
#
# A name becomes an argument of git and a file, so git's own rules are applied before git gets it. The branch name of a
# workflow is derived from its issue's title by rule, never from free text.


#: Words of a title that carry no meaning.
_EMPTY_WORDS = frozenset("a an and are as at be by for from in into is it of on or so that the to was with".split())  # noqa: SIM905 - a list of 25 words would be 25 lines
_MAX_WORDS, _MIN_WORDS, _MAX_CHARACTERS = 6, 3, 60
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def check_branch(name: str) -> str:
    """Return *name* if git accepts it as a branch name and nothing else; otherwise raise GitError."""
    is_bad = _FORBIDDEN.search(name) or name.startswith(("-", ".", "/")) or name.endswith((".", "/"))
    if not name or is_bad or name == "@" or len(name.encode(errors="surrogateescape")) > 200:
        raise GitError(f"{name[:80]!r} cannot be the name of a branch")

    return name


def branch_name(adw_id: str, *, issue_number: int | None, title: str, issue_class: str | None = None) -> str:
    """Return `<class>-issue-<n>-adw-<id>-<slug>`, always the same for the same workflow."""
    kind = (issue_class or "").strip().lstrip("/").casefold()
    number = "" if issue_number is None else f"issue-{issue_number}-"

    return check_branch(
        f"{kind if kind in CLASSES else DEFAULT_CLASS}-{number}adw-{check_adw_id(adw_id)}-{slug(title)}"
    )


def slug(title: str) -> str:
    """Return three to six words of *title* that are safe in a name, or `work` if it has none."""
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
