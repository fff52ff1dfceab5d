"""
Runs inside a bubblewrap sandbox before the command and forwards loopback ports to the proxy outside.

`forwarder.py SOCKET PORT[=HOST:PORT],... UID:GID COMMAND...`: connections to a bare PORT (the first) reach the proxy
itself, others are tunnelled through it to HOST:PORT. With UID:GID the forwarder switches to that user first; any of the
three may be empty. Standard library only: no package of adw is visible there.
"""

from __future__ import annotations

import _socket
import os
import sys


def relay(source: _socket.socket, sink: _socket.socket) -> None:
    import socket  # noqa: PLC0415 - see main

    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def forward(client: _socket.socket, path: str, target: str) -> None:
    import socket  # noqa: PLC0415 - see main
    import threading  # noqa: PLC0415 - see main

    proxy = socket.socket(socket.AF_UNIX)
    try:
        proxy.connect(path)
        if target:
            proxy.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            answer = b""
            while b"\r\n\r\n" not in answer:
                piece = proxy.recv(1)
                if not piece:
                    return
                answer += piece
            if b" 200 " not in answer.split(b"\r\n", 1)[0]:
                return
        back = threading.Thread(target=relay, args=(proxy, client), daemon=True)
        back.start()
        relay(client, proxy)
        back.join()
    except OSError:
        pass
    finally:
        proxy.close()
        client.close()


def serve(number: int, path: str, target: str) -> None:
    import socket  # noqa: PLC0415 - see main
    import threading  # noqa: PLC0415 - see main

    listener = socket.socket(fileno=number)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=forward, args=(client, path, target), daemon=True).start()


def main() -> None:
    path, ports, who, argv = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    if who:
        uid, gid = map(int, who.split(":"))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if not ports:
        os.execv(argv[0], argv)  # noqa: S606 - becoming the command is what this is for
    # Importing socket and threading takes longer than all the rest: the command does not wait for it.
    listeners = []
    for entry in ports.split(","):
        number, _, target = entry.partition("=")
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(number)))
        listener.listen(64)
        listeners.append((listener, target))
    if os.fork():
        for listener, _ in listeners:
            listener.close()
        os.execv(argv[0], argv)  # noqa: S606 - becoming the command is what this is for
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    import threading  # noqa: PLC0415 - see above

    for listener, target in listeners:
        threading.Thread(target=serve, args=(listener.detach(), path, target)).start()


if __name__ == "__main__":
    main()
