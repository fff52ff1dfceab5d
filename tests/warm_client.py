"""
Be `adw` for a shell: ask the process that has loaded adw for a fork, pass signals on to it, and end as it ends.

A program of its own, which loads next to nothing. tests/warm.py writes it into a directory for PATH, with three lines
in front: where the server listens, the environment it was started with, and the real command.
"""

import _signal
import _socket
import json
import os
import sys

# Written in front: ADDRESS, FIXED, FIXED_PREFIXES, FIXED_NAMES, REAL.


def main() -> None:
    """Run the command that the arguments say."""
    fixed = {n: v for n, v in os.environ.items() if n.startswith(FIXED_PREFIXES) or n in FIXED_NAMES}  # noqa: F821 - written in front
    if fixed != FIXED:  # noqa: F821 - written in front
        os.execv(REAL, [REAL, *sys.argv[1:]])  # noqa: F821 - written in front
    umask = os.umask(0o77)
    place = os.getcwd()  # noqa: PTH109 - pathlib takes longer to load than all of this takes to run
    asked = {"argv": [REAL, *sys.argv[1:]], "cwd": place, "env": dict(os.environ), "umask": umask}  # noqa: F821 - written in front
    body = json.dumps(asked).encode()
    told, tell = os.pipe()
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(ADDRESS)  # noqa: F821 - written in front
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, tell))
    server.sendmsg([len(body).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    server.sendall(body)
    os.close(tell)
    status = os.fdopen(told, "rb", buffering=0)
    pid = int(status.readline())
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, lambda number, _frame: os.kill(pid, number))
    code = int(status.readline())
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
