"""
Runs inside a bubblewrap box, before the command: lets ports of its loopback interface lead to the proxy outside.

`forwarder.py SOCKET PORT[=HOST:PORT],... COMMAND...`: what connects to the first port talks to the proxy itself, what
connects to another one is led to HOST:PORT through it. Standard library only: no package of adw can be seen there.
"""

import os
import socket
import sys
import threading


def relay(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def forward(client: socket.socket, path: str, target: str) -> None:
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


def serve(listener: socket.socket, path: str, target: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=forward, args=(client, path, target), daemon=True).start()


def main() -> None:
    path, ports, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
    listeners = []
    for entry in ports.split(","):
        number, _, target = entry.partition("=")
        listeners.append((socket.create_server(("127.0.0.1", int(number)), backlog=64), target))
    if os.fork():
        for listener, _ in listeners:
            listener.close()
        os.execv(argv[0], argv)  # noqa: S606 - becoming the command is what this is for
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    threads = [threading.Thread(target=serve, args=(one, path, target)) for one, target in listeners]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
