"""
The git directory that adw's own git runs in: below the state directory, with a configuration that only adw writes.

What a phase can write into the repository's git directory (configuration, includes, hooks, promisor remotes, grafts)
decides nothing here. Refs are the repository's own, by links; its objects are borrowed by alternates. Of the
repository's configuration only plain values are taken over that name no program, file or address.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.errors import GitError

#: Its name in the state directory.
NAME = ".gitdir"
#: What is the repository's own: refs in every format, where history was cut off, what is ignored and how files are
#: treated. A driver that attributes name runs only when it is configured, which it is not by the repository.
LINKS = ("refs", "packed-refs", "reftable", "shallow", "logs", "info/exclude", "info/attributes")
#: Keys of the repository's configuration that are taken over, whatever their value.
PLAIN_KEYS = (
    r"^(core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|safecrlf|sharedrepository)"
    r"|extensions\.(objectformat|refstorage))$"
)

_RECORD = "remote.json"
_HEAD = "ref: refs/heads/adw-private\n"  # no such branch is ever made
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def without_password(url: str) -> str:
    """Return *url* as it may be shown."""
    return _PASSWORD.sub("***@", url)


def config_text(entries: Iterable[tuple[str, str]]) -> str:
    """Return a configuration file with *entries*, each a whole key such as `filter.x.clean` and its value."""
    lines = []
    for key, value in entries:
        section, _, rest = key.partition(".")
        subsection, _, name = rest.rpartition(".")
        lines.append(f'[{section} "{_escaped(subsection)}"]' if subsection else f"[{section}]")
        lines.append(f'\t{name} = "{_escaped(value)}"')

    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateDir:
    """The directory *path*, in front of the shared git directory *common*."""

    path: Path
    common: Path

    def prepare(self, settings: Iterable[tuple[str, str]]) -> None:
        """Have it there as it has to be, with the configuration *settings*, whatever was done to it meanwhile."""
        known = [*settings]
        version = "1" if any(key.startswith("extensions.") for key, _ in known) else "0"
        own = [("core.repositoryformatversion", version), ("core.bare", "false")]
        try:
            for name in ("info", "objects/info"):
                (self.path / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.common.is_dir():
                (self.common / "logs").mkdir(exist_ok=True)  # git makes no directory through a link that leads nowhere
            for name in LINKS:
                _link(self.path / name, self.common / name)
            _write(self.path / "HEAD", _HEAD)
            _write(self.path / "objects/info/alternates", f"{self.common / 'objects'}\n")
            _write(self.path / "config", config_text([*own, *known]))
        except OSError as exc:
            raise GitError(f"{self.path} cannot be made: {exc.strerror or exc}; adw's git runs in it") from exc

    # --- the remote --------------------------------------------------------------------------------------------

    def recorded(self) -> tuple[str, str]:
        """Return the digest of the remote's addresses that were recorded, and how to show them; "" for none."""
        try:
            said = json.loads((self.path / _RECORD).read_bytes())
            return str(said["digest"]), str(said["shown"])
        except FileNotFoundError:
            return "", ""
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise GitError(f"{self.path / _RECORD} cannot be read ({exc}): write it again with adw init") from exc

    def record(self, urls: tuple[str, ...]) -> None:
        """Remember the addresses of the remote; none: that there is no remote. A password in one is not kept."""
        durable_file.make_directory(str(self.path))
        shown = ", ".join(map(without_password, urls))
        _write(self.path / _RECORD, json.dumps({"digest": digest(urls) if urls else "", "shown": shown}) + "\n")


def digest(urls: tuple[str, ...]) -> str:
    """Return what tells the addresses of a remote from others, also when there are none."""
    return hashlib.sha256("\0".join(urls).encode("utf-8", "surrogateescape")).hexdigest()


def _link(place: Path, target: Path) -> None:
    try:
        if place.is_symlink() and place.readlink() == target:
            return
    except FileNotFoundError:
        pass  # another process of adw is replacing it
    temp = _beside(place)
    temp.symlink_to(target)
    _replace(temp, place)


def _write(place: Path, text: str) -> None:
    try:
        if not place.is_symlink() and place.read_text("utf-8", "surrogateescape") == text:
            return
    except (OSError, ValueError):
        pass
    temp = _beside(place)
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _replace(temp, place)


def _beside(place: Path) -> Path:
    """Return a free name beside *place*: processes of adw may prepare the same directory at once."""
    temp = place.with_name(f".{place.name}.{os.getpid()}.{id(place):x}")
    temp.unlink(missing_ok=True)

    return temp


def _replace(temp: Path, place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)  # a directory in the place of a link or a file of ours
    temp.replace(place)
