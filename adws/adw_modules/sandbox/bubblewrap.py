"""
The stronger sandbox, where bubblewrap is installed: its own mounts, processes and network.

Only paths that the policy names are mounted. The network has only a loopback interface; a forwarder inside connects one
of its ports to the worker's proxy through a socket file. When the worker dies, everything inside dies with it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from adws.adw_modules.process.run import Account
from adws.adw_modules.sandbox.policy import ETC_HIDDEN, Policy

#: Port of the proxy inside the sandbox, named by the proxy variables.
PROXY_PORT = 3128
#: Directories that are symbolic links into /usr on most systems.
_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
FORWARDER = Path(__file__).with_name("forwarder.py")


def program() -> str:
    """Return the path of bubblewrap, or "" if it is not installed."""
    return shutil.which("bwrap") or ""


class BubblewrapSandbox:
    """A sandbox of Linux namespaces; implements `Sandbox`."""

    name = "bubblewrap"
    confines_thread = False

    def __init__(self, policy: Policy, *, proxy_socket: Path | None = None, account: Account | None = None) -> None:
        """Run commands as *account* if given, which only root can do."""
        self._policy = policy
        self._account = account
        self._proxy_socket = proxy_socket

    def confine(self) -> None:
        """Do nothing: bwrap itself confines the process it starts."""

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the bwrap command line that runs *argv*."""
        bridge: tuple[str, ...] = ()
        if self._proxy_socket is not None or self._account is not None:
            # Ports that the command itself listens on are in its own network: not forwarded.
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
        else:  # root makes the mounts; the forwarder switches to the user before it starts the command
            yield from ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/run")
        for place in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - inside the sandbox
            yield from ("--perms", "1777", "--tmpfs", place)
        links = [path for path in map(Path, _LINKS) if path.is_symlink()]
        for path in links:
            yield from ("--symlink", str(path.readlink()), str(path))
        # One mount of /etc with its hidden entries covered is faster than one mount per entry.
        made = (Path("/proc"), Path("/dev"), Path("/etc"), *links)
        mounts = {path: "--ro-bind-try" for path in policy.read if not any(path.is_relative_to(one) for one in made)}
        mounts[Path("/etc")] = mounts[FORWARDER] = "--ro-bind-try"
        if self._proxy_socket is not None:
            mounts[self._proxy_socket.parent] = "--ro-bind-try"
        mounts.update({path: "--bind-try" for path in policy.write if not path.is_relative_to("/dev")})
        mounts.update(dict.fromkeys(policy.protected, "--ro-bind-try"))
        for path in sorted(mounts):  # a directory before its contents
            around = next((parent for parent in path.parents if parent in mounts), None)
            is_there = around is not None and (mounts[around] == mounts[path] or path != path.resolve())
            if around is None and self._account is not None:  # bwrap would make the parents accessible to root alone
                for parent in reversed(path.parents[:-1]):
                    yield from ("--perms", "0755", "--dir", str(parent))
            if not is_there:  # a symbolic link is already in the mount around it
                yield from (mounts[path], str(path), str(path))
        for path in (Path("/etc", name) for name in sorted(ETC_HIDDEN)):
            if path.is_dir():
                yield from ("--tmpfs", str(path))
            elif path.exists():
                yield from ("--ro-bind", "/dev/null", str(path))
        # The parents of the mounts exist in the sandbox alone: files written there would be lost silently.
        yield from ("--remount-ro", "/", "--chdir", str(policy.cwd))


def _python() -> str:
    return str(Path(sys.executable).resolve())
