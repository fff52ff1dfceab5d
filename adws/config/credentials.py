"""
adw's own secrets: from variables, from files that variables name (`ADW_GITHUB_TOKEN_FILE`), or from systemd.

They are taken once, when a command starts, and removed from the environment of the process and from what
`/proc/PID/environ` shows, so that no child process inherits them and no other process reads them there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.identifiers import OWN_SECRETS

#: The most bytes read from a file with a secret.
MAX_BYTES = 64 * 1024

_taken: dict[str, str] = {}


def taken() -> Mapping[str, str]:
    """Return the secrets taken, by the names of their variables."""
    return _taken


def take() -> None:
    """Move this process's secrets out of its environment; raise ConfigError if a file cannot be read."""
    secrets = read(os.environ)
    _taken.update(secrets)
    for name in [*secrets, *(f"{name}_FILE" for name in OWN_SECRETS)]:
        os.environ.pop(name, None)
    _wipe(frozenset(secrets))


def read(env: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets in *env* or in files it names; a variable wins over its file, and that over systemd's."""
    found: dict[str, str] = {}
    folder = env.get("CREDENTIALS_DIRECTORY", "")
    for name in sorted(OWN_SECRETS):
        given = Path(folder, name.lower()) if folder else None
        if name in env:
            found[name] = env[name]
        elif env.get(f"{name}_FILE"):
            found[name] = _content(Path(env[f"{name}_FILE"]), f"{name}_FILE", is_private=True)
        elif given is not None and given.is_file():
            found[name] = _content(given, str(given), is_private=False)

    return found


def _content(path: Path, name: str, *, is_private: bool) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{name} names {path}, which cannot be read: {exc}") from exc
    if is_private and mode & 0o077:
        raise ConfigError(f"{name} names {path}, which others may read: chmod 600 {path}")

    return text.strip()


def _wipe(names: frozenset[str]) -> None:
    """Overwrite the values of *names* in the memory that the kernel shows as the environment."""
    try:
        stat = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
        start, end = int(stat[47]), int(stat[48])  # env_start and env_end, fields 50 and 51
        block = ctypes.string_at(start, end - start)
    except (OSError, ValueError, IndexError):
        return  # not Linux, or no /proc, so nobody can read it there either
    place = start
    for entry in block.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if value and name.decode("utf-8", "replace") in names:
            ctypes.memset(place + len(name) + 1, 0, len(value))
        place += len(entry) + 1
