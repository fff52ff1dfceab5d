"""The proxy of a box, over real sockets."""

from __future__ import annotations

import http.server
import socket
import threading
import urllib.error
import urllib.request

import pytest

from adws.adw_modules.sandbox import egress
from adws.adw_modules.sandbox.egress import EgressProxy


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = f"{self.path} {self.headers['Host']}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


@pytest.fixture
def proxied():
    made = []

    def make(*hosts: str, **options) -> EgressProxy:
        made.append(EgressProxy(hosts, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def fetch(proxy: EgressProxy, url: str) -> str:
    handler = urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{proxy.port}"})
    with urllib.request.build_opener(handler).open(url, timeout=5) as answer:
        return answer.read().decode()


def test_plain_http_reaches_a_listed_host(proxied, server):
    proxy = proxied(f"index.example:{server}", resolver=lambda host, port: ["127.0.0.1"])
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(proxy, f"http://index.example:{server}/a?b=1")  # it resolves to a loopback address

    assert fetch(proxied(f"localhost:{server}"), f"http://localhost:{server}/a?b=1") == f"/a?b=1 localhost:{server}"
    assert proxy.denied == {f"index.example:{server}": 1}


def test_a_tunnel_carries_bytes_both_ways(proxied, server):
    proxy = proxied(f"127.0.0.1:{server}")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
        client.sendall(f"CONNECT 127.0.0.1:{server} HTTP/1.1\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"GET /x HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(1000), b""))

    assert answer.endswith(b"/x None")
    assert not proxy.denied


def test_a_host_that_is_not_listed_is_denied_and_counted(proxied):
    proxy = proxied("example.com")
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            fetch(proxy, "http://attacker.example/")

    assert proxy.denied == {"attacker.example:80": 2}


def test_denials_of_many_hosts_are_counted_together(proxied, monkeypatch):
    monkeypatch.setattr(egress, "MAX_HOSTS", 1)
    proxy = proxied()
    for number in range(3):
        with pytest.raises(urllib.error.HTTPError):
            fetch(proxy, f"http://{number}.example/")

    assert proxy.denied == {"0.example:80": 1, egress.OTHER_HOSTS: 2}


def test_a_connection_beyond_the_most_waits_for_another_to_end(proxied, monkeypatch):
    monkeypatch.setattr(egress, "MAX_CONNECTIONS", 1)
    proxy = proxied()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as first:
        first.sendall(b"CONNECT x:443 ")
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as second:
            second.sendall(b"CONNECT y:443 HTTP/1.1\r\n\r\n")
            first.sendall(b"HTTP/1.1\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 403")
            assert second.recv(100).startswith(b"HTTP/1.1 403")

    assert list(proxy.denied) == ["x:443", "y:443"]


def test_it_listens_on_a_file_and_ends_when_it_is_closed(proxied, tmp_path):
    proxy = proxied(socket_path=tmp_path / "p")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(tmp_path / "p"))
        client.sendall(b"CONNECT x:443 HTTP/1.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 403")
    proxy.close()
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(OSError, match="refused"):
        client.connect(str(tmp_path / "p"))
