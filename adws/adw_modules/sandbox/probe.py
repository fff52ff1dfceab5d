"""
Test which promises a backend keeps on this machine: a program in a real sandbox attempts each forbidden action.

`auto` takes the strongest backend that keeps the needed promises; `adw doctor` shows all of them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from adws.adw_modules import durable_file
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import AdwError, ConfigError
from adws.adw_modules.process.run import ChildProcess, Sandbox, start_boxed
from adws.adw_modules.sandbox import bubblewrap, landlock, policy
from adws.adw_modules.sandbox.policy import Policy, Surroundings

#: Promise -> its text, and how to get it where it is not kept.
PROMISES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "runs": ("git and Python run inside", "apt-get install bubblewrap, or a kernel with Landlock (Linux 5.13)"),
        "work": ("the worktree can be written", "let the user of the worker own the worktree"),
        "write": ("nothing else can be written", "Linux 5.13 with landlock in lsm=, or bubblewrap"),
        "read": ("keys and files of the person cannot be read", "Linux 5.13 with landlock in lsm=, or bubblewrap"),
        "tcp": ("connections only through the proxy", "Linux 6.7, or bubblewrap"),
        "udp": ("no datagrams", "bubblewrap"),
        "signal": ("the worker cannot be signalled", "Linux 6.12, or bubblewrap"),
        "environ": (
            "the environment of the worker cannot be read",
            "run the worker as an ordinary user, or bubblewrap",
        ),
        "unix": ("sockets of other programs (databases, docker) cannot be reached", "bubblewrap"),
    }
)
BACKENDS = ("bubblewrap", "landlock")  #: strongest first
#: Promises without which a backend does not count as a sandbox.
NEEDED = ("runs", "work", "write", "read")
_SECONDS = 20

_INSIDE = """
import json, os, socket, subprocess, sys
facts = json.loads(sys.argv[1])
def can(do):
    try:
        do()
    except OSError:
        return False
    return True
def listen(kind, address):
    with socket.socket(kind, socket.SOCK_STREAM) as one:
        one.settimeout(2)
        one.connect(address)
def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", facts["udp"]))
def git():
    subprocess.run(["git", "init", "-q", "probe"], check=True, capture_output=True)
def environ():
    with open(f"/proc/{facts['pid']}/environ", "rb") as file:
        if facts["planted"].encode() not in file.read():
            raise OSError
print(json.dumps({
    "runs": can(git),
    "work": can(lambda: open("written", "w").close()),
    "write": not can(lambda: open(facts["outside"], "w").close()),
    "read": not can(lambda: open(facts["key"]).close()),
    "tcp": not can(lambda: listen(socket.AF_INET, ("127.0.0.1", facts["port"]))),
    "udp": not can(datagram),
    "signal": not can(lambda: os.kill(facts["pid"], 0)),
    "environ": not can(environ),
    "unix": not can(lambda: listen(socket.AF_UNIX, facts["socket"])),
}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """The probe result of one backend."""

    backend: str
    kept: Mapping[str, bool]
    problem: str = ""  #: why nothing could be tested


def why_unusable(backend: str, probed: Probed) -> str:
    """Return why *backend* cannot be used, or "" if it can."""
    if probed.problem:
        return probed.problem
    broken = [PROMISES[name][0] for name in NEEDED if not probed.kept.get(name)]

    return f"{backend} does not hold that {broken[0]}" if broken else ""


def known(backend: str, *, env: Mapping[str, str]) -> Probed:
    """Return the result of `run`, cached by PATH for the life of the process if *backend* was usable."""
    key = (backend, env.get("PATH", os.defpath), bubblewrap.program())
    if key in _KNOWN:
        return _KNOWN[key]
    result = run(backend, env=env)
    if not why_unusable(backend, result):  # a failure may be a temporary shortage: test again next time
        _KNOWN[key] = result

    return result


_KNOWN: dict[tuple[str, str, str], Probed] = {}


def run(backend: str, *, env: Mapping[str, str]) -> Probed:
    """Test every promise in a sandbox of *backend* and return which it keeps."""
    if backend == "bubblewrap" and not bubblewrap.program():
        return Probed(backend=backend, kept={}, problem="bwrap is not installed (apt-get install bubblewrap)")
    if backend == "landlock" and not landlock.abi():
        return Probed(backend=backend, kept={}, problem="this kernel has no Landlock (Linux 5.13 or later)")
    planted = SystemClock().token()
    with tempfile.TemporaryDirectory(prefix="adw-probe-") as text:
        place = Path(text)
        for name in ("work", "scratch", "person"):
            durable_file.make_directory(str(place / name))
        (place / "person" / "id_ed25519").write_text("a planted key\n")
        rules = policy.build(
            Surroundings(home=place / "person", env=env), cwd=place / "work", scratch=place / "scratch"
        )
        box = _box(backend, rules)
        # A target process to read and to signal, with a planted environment variable.
        victim = ChildProcess(("/bin/sleep", str(_SECONDS)), env={"PLANTED": planted}, cwd=place)
        try:
            with (
                socket.create_server(("127.0.0.1", 0)) as tcp,
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
                socket.socket(socket.AF_UNIX) as unix,
            ):
                udp.bind(("127.0.0.1", 0))
                udp.setblocking(False)  # a local datagram has arrived by the time its sender has ended
                unix.bind(str(place / "s"))
                unix.listen()
                facts = {
                    "pid": victim.pid,
                    "planted": planted,
                    "outside": str(place / "outside"),
                    "key": str(place / "person" / "id_ed25519"),
                    "port": tcp.getsockname()[1],
                    "udp": udp.getsockname()[1],
                    "socket": str(place / "s"),
                }
                python = str(Path(sys.executable).resolve())
                inside = {"PATH": env.get("PATH", os.defpath), "HOME": str(place / "scratch")}
                said, errors = start_boxed(
                    box,
                    (python, "-I", "-S", "-c", _INSIDE, json.dumps(facts)),
                    cwd=place / "work",
                    env=inside,
                    seconds=_SECONDS,
                )
                if not said.strip():
                    raise ConfigError(errors.strip().rpartition("\n")[2] or "it said nothing")
                kept = {name: bool(value) for name, value in json.loads(said).items()}
                # In a file system or network of its own the attempt succeeds, but has no effect here.
                kept["write"] = not (place / "outside").exists()
                if not kept["udp"]:
                    try:
                        udp.recv(1)
                    except OSError:
                        kept["udp"] = True
        except (AdwError, OSError, ValueError) as exc:
            return Probed(backend=backend, kept={}, problem=f"a program cannot be run in it: {exc}")
        finally:
            victim.kill()
            victim.end()

    return Probed(backend=backend, kept=kept)


def why_not_started(backend: str, argv: tuple[str, ...], *, agent: str, surroundings: Surroundings) -> str:
    """Return why *argv*, the version command of *agent*, prints nothing in a sandbox of *backend*, or "" if it does."""
    with tempfile.TemporaryDirectory(prefix="adw-probe-") as text:
        place = Path(text)
        for name in ("work", *(f"scratch/{part}" for part in policy.SCRATCH)):
            durable_file.make_directory(str(place / name))
        rules = policy.build(surroundings, cwd=place / "work", scratch=place / "scratch", program=argv[0], agent=agent)
        inside = {**surroundings.env, "HOME": str(place / "scratch" / "home"), "TMPDIR": str(place / "scratch" / "tmp")}
        try:
            said, errors = start_boxed(_box(backend, rules), argv, cwd=place / "work", env=inside, seconds=_SECONDS)
        except (AdwError, OSError) as exc:
            return str(exc)

    return "" if said.strip() else errors.strip().rpartition("\n")[2] or "it said nothing"


def _box(backend: str, rules: Policy) -> Sandbox:
    is_bubblewrap = backend == "bubblewrap"

    return bubblewrap.BubblewrapSandbox(rules) if is_bubblewrap else landlock.LandlockSandbox(rules, proxy_port=1)
