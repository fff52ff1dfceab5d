"""
The key of a home: a secret of its own, made once, by which it knows what it wrote.

It is in a file that only its owner reads. Two processes that make it at the same time end up with the same one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from adws.adw_modules import durable_file
from adws.adw_modules.errors import StateCorrupt, StateReadFailed, StateWriteFailed, UnsafePath
from adws.adw_modules.interfaces import Clock

#: Name of the file in the directory of the state.
KEY_NAME = ".home-key"

_HEX_DIGITS = 64


def read_or_make(path: Path, *, clock: Clock) -> bytes:
    """Return the key in the file *path*, made when there is none; raise StateCorrupt for a file that holds no key."""
    key = _read(path)
    if key is not None:
        return key
    try:
        _make(path, (clock.token() + clock.token()).encode())
    except durable_file.TempBlocked:
        raise UnsafePath(f"a directory stands at {path}.tmp: move it away") from None
    except OSError as exc:
        raise StateWriteFailed(str(path), exc) from exc
    made = _read(path)
    if made is None:
        raise StateCorrupt(str(path), "it is gone again", "leave it where it is")

    return made


def _read(path: Path) -> bytes | None:
    try:
        text, _ = durable_file.read_file(str(path), max_bytes=4096)
    except FileNotFoundError:
        return None
    except durable_file.TooLarge as exc:
        raise StateCorrupt(str(path), str(exc), "bring the old file back") from exc
    except OSError as exc:
        raise StateReadFailed(str(path), exc) from exc
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) * 2 != _HEX_DIGITS:
        raise StateCorrupt(
            str(path), "it holds no key", "bring the old file back; without it adw does not know its own pull requests"
        )

    return key


def _make(path: Path, key: bytes) -> None:
    durable_file.make_directory(str(path.parent))
    directory = durable_file.open_directory(str(path.parent))
    try:
        temp = f"{path.name}.tmp"
        fd = durable_file.claim_temp(directory, temp, wait=True)
        try:
            durable_file.fill(fd, key + b"\n", mode=durable_file.NEW_FILE_MODE)
            # A link, not a rename: whoever was first keeps its key.
            with suppress(FileExistsError):
                os.link(temp, path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        finally:
            durable_file.discard_temp(directory, temp, fd)
        os.fsync(directory)
    finally:
        durable_file.close_quietly(directory)
