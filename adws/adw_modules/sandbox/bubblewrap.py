"""
The stronger box, where bubblewrap is installed: its own mounts, processes and network.

Only what the policy names is mounted. The network has nothing but a loopback interface; a forwarder inside leads one of
its ports to the proxy of the worker, through a socket file. When the worker dies, everything inside dies with it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from adws.adw_modules.process.run import Account
from adws.adw_modules.sandbox.policy import ETC_HIDDEN, Policy

#: Where the proxy is inside the box, as the proxy variables say.
PROXY_PORT = 3128
#: Directories that are links into /usr on most systems.
_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
FORWARDER = Path(__file__).with_name("forwarder.py")


def program() -> str:
    """Return the bubblewrap of this machine, "" when it is not installed."""
    return shutil.which("bwrap") or ""


class BubblewrapSandbox:
    """A box of namespaces; implements `Sandbox`."""

    name = "bubblewrap"
    confines_thread = False

    def __init__(self, policy: Policy, *, proxy_socket: Path | None = None, account: Account | None = None) -> None:
        """Run commands as *account*; only root can."""
        self._policy = policy
        self._account = account
        self._proxy_socket = proxy_socket

    def confine(self) -> None:
        """Do nothing to the thread: bwrap itself confines what it starts."""

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the call of bwrap that runs *argv*."""
        bridge: tuple[str, ...] = ()
        if self._proxy_socket is not None or self._account is not None:
            # What the command itself listens on is inside of its own network.
            led = [port for port in self._policy.local_ports if port not in self._policy.bind_ports]
            local = [f"{port}=127.0.0.1:{port}" for port in led]
            ports = ",".join([str(PROXY_PORT), *local]) if self._proxy_socket is not None else ""
            who = "" if self._account is None else f"{self._account.uid}:{self._account.gid}"
            bridge = (_python(), "-I", "-S", str(FORWARDER), str(self._proxy_socket or ""), ports, who)

        return (program(), *self._options(), "--", *bridge, *argv)

    def _options(self) -> Iterator[str]:
        policy = self._policy
        yield from ("--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
        yield from ("--unshare-cgroup-try", "--unshare-net", "--cap-drop", "ALL")
        if self._account is None:
            yield "--unshare-user-try"
        else:  # root makes the mounts, and the forwarder turns into the user before it starts the command
            yield from ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/run")
        for place in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - inside of the box
            yield from ("--perms", "1777", "--tmpfs", place)
        links = [path for path in map(Path, _LINKS) if path.is_symlink()]
        for path in links:
            yield from ("--symlink", str(path.readlink()), str(path))
        # One mount of /etc, with its hidden entries covered, is faster than one for each entry.
        made = (Path("/proc"), Path("/dev"), Path("/etc"), *links)
        mounts = {path: "--ro-bind-try" for path in policy.read if not any(path.is_relative_to(one) for one in made)}
        mounts[Path("/etc")] = mounts[FORWARDER] = "--ro-bind-try"
        if self._proxy_socket is not None:
            mounts[self._proxy_socket.parent] = "--ro-bind-try"
        mounts.update({path: "--bind-try" for path in policy.write if not path.is_relative_to("/dev")})
        mounts.update(dict.fromkeys(policy.protected, "--ro-bind-try"))
        for path in sorted(mounts):  # a directory before what is in it
            around = next((parent for parent in path.parents if parent in mounts), None)
            is_there = around is not None and (mounts[around] == mounts[path] or path != path.resolve())
            if around is None and self._account is not None:  # bwrap makes what leads there for itself alone
                for parent in reversed(path.parents[:-1]):
                    yield from ("--perms", "0755", "--dir", str(parent))
            if not is_there:  # a name that leads elsewhere is in the mount around it
                yield from (mounts[path], str(path), str(path))
        for path in (Path("/etc", name) for name in sorted(ETC_HIDDEN)):
            if path.is_dir():
                yield from ("--tmpfs", str(path))
            elif path.exists():
                yield from ("--ro-bind", "/dev/null", str(path))
        # What leads to the mounts is made for the box alone: what is written there would be lost in silence.
        yield from ("--remount-ro", "/", "--chdir", str(policy.cwd))


def _python() -> str:
    return str(Path(sys.executable).resolve())
