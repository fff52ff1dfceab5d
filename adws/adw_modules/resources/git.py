"""
Run git, and nothing but git: the only home of GitPython.

Every command has the same surroundings: no hooks, no prompts, no pager, no file monitor, everything it writes synced,
nothing inherited that would lead it to another repository, and an end by a time-out. The person's own configuration is
read for commands that talk to a remote, because credentials and proxies are there; all others see of it only who the
person is and which directories are trusted.
"""

from __future__ import annotations

import base64
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from adws.adw_modules.errors import GitError, GitUnreachable
from adws.adw_modules.own_secrets import OWN_SECRETS

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

        *author* commits, as `NAME <ADDRESS>`; without one it is whoever git's own configuration names.
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
        found = {name: shutil.which(name) for name in ("git", "env", "false")}
        if missing := [name for name, path in found.items() if path is None]:
            raise GitError(f"{', '.join(missing)} cannot be found: install it, and see that it is in PATH")

        return {name: str(path) for name, path in found.items()}

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
    found = re.search(r"(\d+)\.(\d+)", version)

    return (int(found[1]), int(found[2])) if found else (0, 0)


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
