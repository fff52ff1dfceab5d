"""
The only way out of a sandbox: an HTTP proxy in the worker with the allow-list of a phase.

It accepts CONNECT, and plain HTTP with an absolute URL. The host is resolved here, its addresses are checked, and the
connection goes to the checked address itself, so that a second DNS answer changes nothing.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from adws.adw_modules.sandbox import policy

#: Maximum bytes of a request head; seconds to send it and to reach a host.
_MAX_HEAD, _SECONDS = 65_536, 30.0
#: Concurrent connections; more wait. Each is a thread of the worker, whose threads a sandbox must not use up.
MAX_CONNECTIONS = 256
#: Hosts counted by name; all others are counted together.
MAX_HOSTS = 50
OTHER_HOSTS = "(other hosts)"

Resolve = Callable[[str, int], Iterable[str]]


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of *host*; raise OSError if it has none."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class EgressProxy:
    """A proxy for one sandbox with its own allow-list; `denied` counts refused connections by host."""

    def __init__(
        self, egress: tuple[str, ...], *, socket_path: Path | None = None, resolver: Resolve = resolve
    ) -> None:
        """Listen on *socket_path*, or on a free port of the loopback interface."""
        self._egress = egress
        self._resolve = resolver
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self.denied: Counter[str] = Counter()
        if socket_path is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(socket_path))
            self._listener.listen(64)
        else:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, name="adw-egress", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on; 0 for a socket file."""
        name = self._listener.getsockname()

        return int(name[1]) if isinstance(name, tuple) else 0

    def close(self) -> None:
        """Stop listening and shut every connection down."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def check(self, host: str, port: int) -> tuple[str, str]:
        """Return the address to connect to and "", or "" and the reason for refusing."""
        entry = policy.match(self._egress, host, port)
        if not entry:
            return "", f"{host}:{port} is not among the hosts that this phase may reach (sandbox.egress)"
        why = "it has no address"
        for address in self._resolve(host, port):
            why = policy.refusal(entry, address)
            if not why:
                return address, ""

        return "", f"{host}:{port}: {why}"

    def _serve(self) -> None:
        while True:
            self._free.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client,), name="adw-egress", daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, ValueError):
            stack.callback(self._free.release)
            stack.enter_context(self._tracked(client))
            client.settimeout(_SECONDS)
            head, rest = _read_head(client)
            method, target, _version = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            is_tunnel = method == "CONNECT"
            parts = urlsplit(f"//{target}" if is_tunnel else target)
            host, port = parts.hostname or "", parts.port or (443 if is_tunnel else 80)
            try:
                address, why = self.check(host, port)
            except OSError as exc:
                _answer(client, "502 Bad Gateway", f"{host} cannot be resolved: {exc}")
                return
            if not address:
                name = f"{host}:{port}"
                with self._lock:
                    is_counted = name in self.denied or len(self.denied) < MAX_HOSTS
                    self.denied[name if is_counted else OTHER_HOSTS] += 1
                # Clients that tunnel show only the status line of the answer.
                _answer(client, "403 Denied by sandbox.egress", f"adw: {why}")
                return
            try:
                upstream = stack.enter_context(
                    self._tracked(socket.create_connection((address, port), timeout=_SECONDS))
                )
            except OSError as exc:
                _answer(client, "502 Bad Gateway", f"{host}:{port} does not answer: {exc}")
                return
            if is_tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                upstream.sendall(rest)
            else:
                upstream.sendall(_direct(head, method, parts.path or "/", parts.query) + rest)
            _relay(client, upstream)

    @contextlib.contextmanager
    def _tracked(self, one: socket.socket) -> Iterator[socket.socket]:
        with self._lock:
            self._open.add(one)
        try:
            yield one
        finally:
            with self._lock:
                self._open.discard(one)
            one.close()


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(8192)
        if not piece or len(data) > _MAX_HEAD:
            raise ValueError("no request")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")

    return head, rest


def _direct(head: bytes, method: str, path: str, query: str) -> bytes:
    """Return the request head for the host itself: one request per connection, so that each is checked."""
    lines = [line for line in head.split(b"\r\n")[1:] if not line.lower().startswith((b"proxy-", b"connection:"))]
    first = f"{method} {path}{'?' + query if query else ''} HTTP/1.1".encode("latin-1")

    return b"\r\n".join([first, *lines, b"Connection: close", b"", b""])


def _answer(client: socket.socket, status: str, text: str) -> None:
    body = f"{text}\n".encode()
    client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Copy in both directions until both sides have ended."""
    one.settimeout(None)
    other.settimeout(None)
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while selector.get_map():
            for key, _ in selector.select():
                source, sink = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                data = source.recv(65_536)
                if data:
                    sink.sendall(data)
                else:
                    selector.unregister(source)
                    with contextlib.suppress(OSError):
                        sink.shutdown(socket.SHUT_WR)
