"""
Make `.venv` of this checkout and install adw in it, pinned by constraints.txt.

Runs on a bare Python. When the stamp in `.venv` says that all is as it should be, nothing is started: no pip, no
network. Several may run at once: one works, the others wait for it.

Use: environment.py runtime|dev
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: what to install -> the requirement that says so
TARGETS: Mapping[str, str] = {"runtime": ".", "dev": ".[dev]"}

#: The build tools are installed like everything else, so that constraints.txt pins them too.
BUILD_TOOLS = ("hatchling", "editables")


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def prepare(root: Path, target: str) -> None:
    """Return when `.venv` of *root* has what *target* needs."""
    with _one_at_a_time(root / ".venv.lock"):
        if is_ready(root, target):
            return
        print(f"Setting up {root / '.venv'} ({target}); this happens once.", file=sys.stderr, flush=True)
        _make_venv(root)
        _install(root, target)
        _write_stamps(root, target)


def is_ready(root: Path, target: str) -> bool:
    """Say whether a stamp proves that *target* is installed; development includes what is needed at run time."""
    enough = [name for name in TARGETS if name in {target, "dev"}]

    return any(_read_stamp(root, name) == fingerprint(root, name) for name in enough)


def fingerprint(root: Path, target: str) -> str:
    """Return a hash of all that decides what is installed: the two files, the target, the Python, the place."""
    digest = hashlib.sha256()
    for part in (
        (root / "pyproject.toml").read_bytes(),
        (root / "constraints.txt").read_bytes(),
        target.encode(),
        _version_of(root).encode(),
        str(root).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())

    return digest.hexdigest()


def _version_of(root: Path) -> str:
    # pyvenv.cfg is read instead of starting .venv/bin/python: it is rewritten whenever the venv is made again.
    config = root / ".venv" / "pyvenv.cfg"
    return config.read_text() if config.exists() and (root / ".venv" / "bin" / "python").exists() else ""


def _stamp_of(root: Path, target: str) -> Path:
    return root / ".venv" / f"adw-{target}.stamp"


def _read_stamp(root: Path, target: str) -> str:
    path = _stamp_of(root, target)
    return path.read_text() if path.exists() else ""


def _write_stamps(root: Path, target: str) -> None:
    _stamp_of(root, target).write_text(fingerprint(root, target))


def _make_venv(root: Path) -> None:
    python = root / ".venv" / "bin" / "python"
    if python.exists() and _runs(python):
        return
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(root / ".venv")], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        said = (made.stdout + made.stderr).strip()
        raise SetupError(
            f"{sys.executable} could not make a virtual environment; on Debian and Ubuntu: apt install python3-venv\n"
            f"{said}"
        )


def _runs(python: Path) -> bool:
    asked = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-c", asked], capture_output=True, check=False).returncode == 0


def _install(root: Path, target: str) -> None:
    _pip(root, *BUILD_TOOLS)
    _pip(root, "--no-build-isolation", "--editable", TARGETS[target])


def _pip(root: Path, *what: str) -> None:
    command = [root / ".venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    done = subprocess.run(
        [*command, *what], cwd=root, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        raise SetupError("pip could not install what adw needs; its message is above. Is the package index reachable?")


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in TARGETS:
        print(f"use: environment.py {'|'.join(TARGETS)}", file=sys.stderr)
        return 2
    try:
        prepare(ROOT, arguments[0])
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
