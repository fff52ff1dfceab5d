"""A real server on a real socket: slow clients and large bodies are cut off, others are served meanwhile."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest

from adws.adw_modules.errors import UsageError
from adws.adw_triggers import trigger_webhook
from adws.web import middleware, server
from tests.integration.web_lab import TOKEN, WebLab, labelled

PATIENCE = 30.0


@contextmanager
def served(lab: WebLab):
    """Serve the door of *lab* in a thread; give its address."""
    listening = server.bind("127.0.0.1", 0)
    made = server.make_server(lab.door, lab.app.settings)
    thread = threading.Thread(target=lambda: asyncio.run(made.serve(sockets=[listening])))
    address = listening.getsockname()
    thread.start()
    try:
        yield address
    finally:
        made.should_exit = True
        thread.join(PATIENCE)
        listening.close()
    assert not thread.is_alive()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    for module, name in ((server, "HEADER_SECONDS"), (trigger_webhook, "BODY_SECONDS"), (middleware, "BODY_SECONDS")):
        monkeypatch.setattr(module, name, 0.3)
    with WebLab(tmp_path / "home") as made:
        yield made


def answer_to(address, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send *pieces*, each after a look for an answer; return all that comes until the other side closes."""
    with socket.create_connection(address, timeout=PATIENCE) as client:
        for piece in pieces:
            if select.select([client], [], [], pause)[0]:
                break
            client.sendall(piece)
        return _rest(client)


def _rest(client: socket.socket) -> bytes:
    heard = b""
    while True:
        try:
            chunk = client.recv(65536)
        except ConnectionResetError:
            return heard
        if not chunk:
            return heard
        heard += chunk


def head(path: str, length: int | str, *lines: str, method: str = "POST") -> bytes:
    text = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines, "", ""]
    return "\r\n".join(text).encode()


AUTHORIZED = f"Authorization: Bearer {TOKEN}"


# --- slow clients ----------------------------------------------------------------------------------------------


def test_a_head_that_comes_byte_by_byte_is_cut_off_all_the_same(lab):
    """The deadline is for the whole head: a byte now and then does not move it."""
    with served(lab) as address:
        heard = answer_to(address, *(b"x" for _ in range(100)), pause=0.05)

    assert not heard.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/webhooks/github", "/gh-webhook", "/health", "/api/v1/workflows"])
def test_a_body_that_comes_byte_by_byte_is_cut_off(lab, path):
    with served(lab) as address:
        heard = answer_to(address, head(path, 1000, AUTHORIZED), *(b"x" for _ in range(100)), pause=0.05)

    assert heard.startswith(b"HTTP/1.1 408")
    assert b"too_slow" in heard


def test_the_second_head_of_a_connection_has_a_deadline_too(lab):
    with served(lab) as address:
        heard = answer_to(address, head("/health", 0, method="GET"), b"GET /health HTTP/1.1\r\nX-A: ")

    assert heard.count(b"HTTP/1.1") == 1
    assert heard.startswith(b"HTTP/1.1 200")


def test_slow_clients_do_not_keep_others_waiting(lab):
    with served(lab) as address:
        slow = [socket.create_connection(address, timeout=PATIENCE) for _ in range(50)]
        try:
            for client in slow:
                client.sendall(head("/webhooks/github", 1000))
            started = time.monotonic()
            answer = httpx.get(f"http://{address[0]}:{address[1]}/health", timeout=PATIENCE)
            assert answer.status_code == 200
            assert time.monotonic() - started < 10.0, "one after the other, they would take longer"
            assert all(_rest(client).startswith(b"HTTP/1.1 408") for client in slow)
        finally:
            for client in slow:
                client.close()


# --- large bodies ----------------------------------------------------------------------------------------------


def test_a_chunked_body_of_30_mb_is_cut_off_while_it_comes(tmp_path):
    megabyte = b"%x\r\n%s\r\n" % (2**20, b"x" * 2**20)
    request = b"POST /webhooks/github HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = 0
    with WebLab(tmp_path / "home") as lab, served(lab) as address:
        with socket.create_connection(address, timeout=PATIENCE) as client:
            client.sendall(request)
            try:
                for _ in range(30):
                    client.sendall(megabyte)
                    sent += 1
            except OSError:
                pass  # cut off
            heard = _rest(client)
        assert lab.get("/api/v1/deliveries")["deliveries"] == []

    # What it still could send after the limit fitted into the buffers of the connection.
    assert sent < 30 or heard.startswith(b"HTTP/1.1 413")
    assert b"HTTP/1.1 2" not in heard


def test_a_whole_delivery_over_a_real_connection_is_stored(lab):
    body, headers = labelled()
    with served(lab) as address:
        answer = httpx.post(f"http://{address[0]}:{address[1]}/gh-webhook", content=body, headers=headers)

    assert answer.status_code == 202
    assert lab.get("/api/v1/deliveries")["deliveries"][0]["run_id"] == answer.json()["run_id"]


def test_connections_above_the_limit_are_answered_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with WebLab(tmp_path / "home") as lab, served(lab) as address:
        idle = [socket.create_connection(address, timeout=PATIENCE) for _ in range(3)]
        try:
            assert answer_to(address, head("/health", 0, "Connection: close", method="GET")).startswith(b"HTTP/1.1 503")
        finally:
            for client in idle:
                client.close()


@pytest.mark.parametrize("junk", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"\xff" * 100_000])
def test_malformed_http_is_refused_and_the_server_continues(lab, junk):
    with served(lab) as address:
        assert not answer_to(address, junk).startswith(b"HTTP/1.1 2")
        assert httpx.get(f"http://{address[0]}:{address[1]}/health").status_code == 200


# --- where it listens ------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_said_in_one_sentence():
    taken = server.bind("127.0.0.1", 0)
    try:
        with pytest.raises(UsageError, match=r"cannot listen at 127\.0\.0\.1 port .* choose another"):
            server.bind("127.0.0.1", taken.getsockname()[1])
    finally:
        taken.close()


def test_an_address_of_another_machine_is_said_in_one_sentence():
    with pytest.raises(UsageError, match=r"cannot listen at 192\.0\.2\.1"):
        server.bind("192.0.2.1", 0)
