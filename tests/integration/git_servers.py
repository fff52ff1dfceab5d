"""Servers on loopback for git over HTTPS: one that stands for GitHub, a thief with another certificate, and a proxy."""

from __future__ import annotations

import base64
import datetime as dt
import os
import select
import socket
import socketserver
import ssl
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "github.com"
#: Addresses that are in no network; the proxy maps them to ports. git finds them by `http.curloptResolve`.
GITHUB_IP, THIEF_IP = "192.0.2.1", "192.0.2.2"


def certificate(folder: Path, name: str) -> Path:
    """Return a file with a key and a certificate for github.com that it signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))

    return path


class _Recorder(BaseHTTPRequestHandler):
    """Keeps the credentials it is shown; with a repository it serves that to those who have the token."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        shown = self.headers.get("Authorization", "")
        self.server.shown.append(shown)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.root is None or shown != self.server.wanted:
            self._send(401, {"WWW-Authenticate": "Basic"}, b"")
            return
        there = urlsplit(self.path)
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "adw",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": there.path,
            "QUERY_STRING": there.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self._send(int(fields.pop("Status", "200 OK").split()[0]), fields, content)

    def _send(self, status: int, fields: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, pem: Path, root: Path | None, token: str) -> None:
        super().__init__(("127.0.0.1", 0), _Recorder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.root = root
        self.wanted = "Basic " + base64.b64encode(f"x-access-token:{token}".encode()).decode()
        self.shown: list[str] = []

    def handle_error(self, *_args: object) -> None:
        """A client that does not trust the certificate hangs up: that is what it should do."""


class _Socks(socketserver.BaseRequestHandler):
    """As much of SOCKS5 as curl speaks: no log-in, CONNECT to an IPv4 address."""

    def handle(self) -> None:
        methods = self._exactly(2)[1]
        self._exactly(methods)
        self.request.sendall(b"\x05\x00")
        _, _, _, kind = self._exactly(4)
        there = socket.inet_ntoa(self._exactly(4)) if kind == 1 else ""
        if kind != 1:
            return
        self._exactly(2)
        port = self.server.ports.get(there)
        if port is None:
            self.request.sendall(b"\x05\x04\x00\x01" + b"\0" * 6)
            return
        with socket.create_connection(("127.0.0.1", port)) as upstream, suppress(OSError):
            self.request.sendall(b"\x05\x00\x00\x01" + b"\0" * 6)
            pairs = {self.request: upstream, upstream: self.request}
            while True:
                for end in select.select(list(pairs), [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    pairs[end].sendall(data)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.request.recv(count - len(data))
            if not more:
                raise ConnectionError("it hung up")
            data += more

        return data


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, *_args: object) -> None:
        """A client that hangs up is no trouble here."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """What runs, and what the person's own configuration of git says about it."""

    config: str
    github: list[str] = field(default_factory=list)  #: what GitHub was shown as credentials
    thief: list[str] = field(default_factory=list)  #: what the thief was


@contextmanager
def running(folder: Path, root: Path, token: str):
    """Serve the repositories below *root* as github.com to clients with *token*, and have a thief beside it."""
    good, bad = certificate(folder, "github"), certificate(folder, "thief")
    with ExitStack() as stack:
        github, thief = (_Server(pem, place, token) for pem, place in ((good, root), (bad, None)))
        proxy = _Proxy(("127.0.0.1", 0), _Socks)
        proxy.ports = {GITHUB_IP: github.server_port, THIEF_IP: thief.server_port}
        for server in (github, thief, proxy):
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        config = (
            f"[http]\n proxy = socks5://127.0.0.1:{proxy.server_address[1]}\n sslCAInfo = {good}\n"
            f" curloptResolve = {HOST}:443:{GITHUB_IP}\n"
        )
        yield Servers(config=config, github=github.shown, thief=thief.shown)
