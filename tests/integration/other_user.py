"""
Runs a program of the tests in namespaces of its own, as root or as an ordinary user who is made up for it.

The user exists only there: in a copy of /etc/passwd that is mounted over the real one. Where the interpreter or the
checkout is below a directory that only root may enter, that directory is hidden behind an empty one in which just these
are mounted. Everything that is left running ends with the process namespace.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME, UID = "adwtest", 64_321
ROOT, USER = "root", "user"
REPOSITORY = Path(__file__).parents[2]


def why_impossible() -> str:
    """Return why no program can be run like this, "" when it can."""
    if os.geteuid() != 0:
        return "only root can run a program as another user"
    tried = subprocess.run(["unshare", "-m", "-p", "-f", "--mount-proc", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no namespaces can be made here"


@contextlib.contextmanager
def open_place() -> Iterator[Path]:
    """Yield a new directory that everybody can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="adw-user-", dir="/tmp") as text:
        yield Path(text)


def run(place: Path, who: str, *argv: str, path: str = "", seconds: float = 240.0) -> str:
    """Run *argv* as *who*, with a home directory below *place*, and return its output."""
    person, temporary = place / "person", place / "tmp"
    person.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    shutil.chown(place, UID if who == USER else 0, UID if who == USER else 0)
    shutil.chown(person, UID, UID)
    place.chmod(0o755)
    (place / "passwd").write_text(
        f"{Path('/etc/passwd').read_text().rstrip()}\n{NAME}:x:{UID}:{UID}::{person}:/bin/sh\n"
    )
    (place / "group").write_text(f"{Path('/etc/group').read_text().rstrip()}\n{NAME}:x:{UID}:\n")
    home = place / "root" if who == ROOT else person
    home.mkdir(exist_ok=True)
    env = {
        "PATH": os.pathsep.join(part for part in (path, "/usr/local/bin:/usr/bin:/bin") if part),
        "HOME": str(home),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(temporary),
    }
    become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"] if who == USER else []
    script = "\n".join(["set -e", *_mounts(place), f"exec {shlex.join([*become, *argv])}"])
    done = subprocess.run(
        ["unshare", "-m", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", script],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    return done.stdout


def _mounts(place: Path) -> Iterator[str]:
    yield f"mount --bind {place}/passwd /etc/passwd"
    yield f"mount --bind {place}/group /etc/group"
    needed = {Path(os.path.realpath(path)) for path in (REPOSITORY, sys.prefix, sys.base_prefix)}
    hidden: dict[Path, list[Path]] = {}
    for one in sorted(needed):
        closed = next((parent for parent in reversed(one.parents) if not parent.stat().st_mode & 0o001), None)
        if closed is not None:
            hidden.setdefault(closed, []).append(one)
    for number, (closed, inside) in enumerate(hidden.items()):
        for index, one in enumerate(inside):
            keep = f"/tmp/adw-keep-{number}-{index}"
            yield f"mkdir -p {keep}; mount --bind {one} {keep}"
        yield f"mount -t tmpfs -o mode=755 tmpfs {closed}"
        for index, one in enumerate(inside):
            yield f"mkdir -p {one}; mount --bind /tmp/adw-keep-{number}-{index} {one}"
            yield f"umount /tmp/adw-keep-{number}-{index}; rmdir /tmp/adw-keep-{number}-{index}"
