"""
The git directory in which adw runs git: below the state directory, with a configuration that only adw writes.

Whatever a phase can write into the repository's git directory (configuration, includes, hooks, promisor remotes,
grafts) has no effect here. Refs are links to the repository's own; its objects are borrowed through alternates. Of the
repository's configuration, only plain values are copied that name no program, file or address.
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
#: Linked to the repository's own: refs in every format, the boundary of a shallow history, ignored files and
#: attributes. A driver that attributes name runs only if it is configured, which the repository cannot do here.
LINKS = ("refs", "packed-refs", "reftable", "shallow", "logs", "info/exclude", "info/attributes")
#: Keys of the repository's configuration that are copied, whatever their value.
PLAIN_KEYS = (
    r"^(core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|safecrlf|sharedrepository)"
    r"|extensions\.(objectformat|refstorage))$"
)

_RECORD = "remote.json"
_HEAD = "ref: refs/heads/adw-private\n"  # this branch is never created
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def without_password(url: str) -> str:
    """Return *url* without its password, for display."""
    return _PASSWORD.sub("***@", url)


def config_text(entries: Iterable[tuple[str, str]]) -> str:
    """Return a configuration file of *entries*, each a full key such as `filter.x.clean` and its value."""
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
        """Create or repair the directory, with the configuration *settings*."""
        known = [*settings]
        version = "1" if any(key.startswith("extensions.") for key, _ in known) else "0"
        own = [("core.repositoryformatversion", version), ("core.bare", "false")]
        try:
            for name in ("info", "objects/info"):
                (self.path / name).mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.common.is_dir():
                (self.common / "logs").mkdir(exist_ok=True)  # git does not create a directory through a dangling link
            for name in LINKS:
                _link(self.path / name, self.common / name)
            _write(self.path / "HEAD", _HEAD)
            _write(self.path / "objects/info/alternates", f"{self.common / 'objects'}\n")
            _write(self.path / "config", config_text([*own, *known]))
        except OSError as exc:
            raise GitError(f"{self.path} cannot be made: {exc.strerror or exc}; adw's git runs in it") from exc

    # --- the remote --------------------------------------------------------------------------------------------

    def recorded(self) -> tuple[str, str]:
        """Return the recorded digest of the remote's addresses and their text for display; "" if none is recorded."""
        try:
            said = json.loads((self.path / _RECORD).read_bytes())
            return str(said["digest"]), str(said["shown"])
        except FileNotFoundError:
            return "", ""
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise GitError(f"{self.path / _RECORD} cannot be read ({exc}): write it again with adw init") from exc

    def record(self, urls: tuple[str, ...]) -> None:
        """Record the addresses of the remote, or, without any, that there is no remote. Passwords are not stored."""
        durable_file.make_directory(str(self.path))
        shown = ", ".join(map(without_password, urls))
        _write(self.path / _RECORD, json.dumps({"digest": digest(urls) if urls else "", "shown": shown}) + "\n")


def digest(urls: tuple[str, ...]) -> str:
    """Return a digest that identifies the addresses of a remote, also if there are none."""
    return hashlib.sha256("\0".join(urls).encode("utf-8", "surrogateescape")).hexdigest()


def _link(place: Path, target: Path) -> None:
    try:
        if place.is_symlink() and place.readlink() == target:
            return
    except FileNotFoundError:
        pass  # another adw process is replacing it
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
    """Return a free name beside *place*: several adw processes may prepare the same directory at once."""
    temp = place.with_name(f".{place.name}.{os.getpid()}.{id(place):x}")
    temp.unlink(missing_ok=True)

    return temp


def _replace(temp: Path, place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)  # a directory where a link or a file of ours belongs
    temp.replace(place)
