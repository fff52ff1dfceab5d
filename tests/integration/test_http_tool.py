"""The tool `http` against a real server: results, failures, limits, and credentials that go no further."""

from __future__ import annotations

import gzip
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from adws.adw_modules.phase import Order
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.steps import tools
from tests import forked
from tests.integration.call_lab import SECRET, CallWorld, Web, serving

JSON = {"content_type": "application/json"}


@pytest.fixture
def world(tmp_path) -> Iterator[CallWorld]:
    made = CallWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as made:
        yield made


@pytest.mark.parametrize(
    ("body", "kind", "result"),
    [
        (b'{"a": [1, null]}', "application/json", {"a": [1, None]}),
        (b'{"a": 1}', "application/problem+json; charset=utf-8", {"a": 1}),
        (b'{"a": 1}', "text/plain", '{"a": 1}'),
        ("ä".encode(), "text/plain; charset=utf-8", "ä"),
        (b"", "application/json", None),
        (b" \n", "text/plain", None),
    ],
    ids=["json", "json-kind", "text", "utf-8", "nothing", "blank"],
)
def test_the_result_is_the_body_of_the_answer(world, web, body, kind, result):
    web.answer("/x", body, content_type=kind)

    report = world.make("http", url=f"{web.url}/x")

    assert (report.ok, report.result, report.meta) == (True, result, {"call": {"status": 200}})


def test_a_request_is_made_of_its_inputs(world, web):
    web.answer("/items/0", b"[]", **JSON)

    world.make(
        "http",
        url=web.url + "/items/{{ item.id }}?kept=1",
        method="post",
        params={"page": "{{ page }}", "name": "{{ issue.title }}", "tags": ["a", "b"], "no": None, "yes": True},
        headers={"X-Number": 7, "X-Name": "{{ workload.name }}"},
        headers_env={"Authorization": "API_TOKEN"},
        json={"title": "{{ issue.title }}", "id": "{{ item.id }}"},
    )

    asked = web.asked[0]
    assert (asked["method"], asked["path"]) == ("POST", "/items/0")
    assert asked["query"] == "kept=1&page=1&name=Fix+it%3B+rm+-rf+%2F&tags=a&tags=b&yes=true"
    assert (asked["X-Number"], asked["X-Name"], asked["Authorization"]) == ("7", "o'clock $HOME", f"Bearer {SECRET}")
    assert json.loads(asked["body"]) == {"title": "Fix it; rm -rf /", "id": 0}
    assert (asked["Content-Type"], asked["User-Agent"]) == ("application/json", "adw")


@pytest.mark.parametrize(
    ("status", "klass", "category"),
    [
        (400, "invalid", "configuration"),
        (401, "auth", "configuration"),
        (404, "invalid", "configuration"),
        (408, "timeout", "transient"),
        (429, "rate_limited", "rate_limit"),
        (500, "server", "transient"),
        (503, "overloaded", "transient"),
    ],
)
def test_a_status_from_400_up_is_a_failure_of_its_kind(world, web, status, klass, category):
    web.answer("/x", b'{"why": "because"}', status=status, **JSON)

    report = world.make("http", url=f"{web.url}/x?api_key=abc")

    error = report.error
    assert (error["status"], error["klass"], error["category"]) == (status, klass, category)
    assert error["message"] == f'GET {web.url}/x was answered with {status}: {{"why": "because"}}'


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_what_the_server_says_about_waiting_is_told(world, web, form):
    later = format_datetime(world.clock.now() + timedelta(seconds=120), usegmt=True)
    web.answer("/x", b"", status=429, Retry_After="120" if form == "seconds" else later)

    report = world.make("http", url=f"{web.url}/x")

    assert report.error["retry_delay"] == pytest.approx(120.0, abs=1.0)


def test_credentials_are_in_no_message_and_in_no_result(world, web):
    web.answer("/echo", json.dumps({"you": f"Bearer {SECRET}", "token": SECRET}).encode(), **JSON)
    web.answer("/fail", f"bad token {SECRET}".encode(), status=401)

    good = world.make("http", url=f"{web.url}/echo", headers_env={"Authorization": "API_TOKEN"})
    bad = world.make("http", url=f"{web.url}/fail", headers_env={"X-Api-Key": "API_TOKEN"})

    assert good.result == {"you": MASK, "token": MASK}
    assert SECRET not in json.dumps([bad.error, bad.meta, bad.fingerprint])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"Authorization": "NOT_SET"}, "the environment variable NOT_SET of the header Authorization is not set"),
        ({"Authorization": "GITHUB_TOKEN"}, "the variable GITHUB_TOKEN is for adw itself"),
    ],
)
def test_a_variable_that_is_not_there_or_not_for_steps_is_named(world, web, names, message):
    report = world.make("http", url=f"{web.url}/x", headers_env=names)

    assert message in report.error["message"]
    assert web.asked == []


def test_a_redirection_is_followed_and_credentials_stay_with_their_host(world, web):
    with serving() as other:
        web.answer("/a", b"", status=302, Location="/b")
        web.answer("/b", b"", status=307, Location=f"{other.url}/c")
        other.answer("/c", b'"there"', **JSON)

        report = world.make(
            "http",
            url=f"{web.url}/a",
            params={"q": "1"},
            headers={"X-Plain": "kept"},
            headers_env={"Authorization": "API_TOKEN", "X-Api-Key": "API_TOKEN"},
        )

    assert report.result == "there"
    assert [one["X-Api-Key"] for one in web.asked] == [f"Bearer {SECRET}"] * 2
    assert [one["query"] for one in web.asked] == ["q=1", ""]
    assert "Authorization" not in other.asked[0]
    assert "X-Api-Key" not in other.asked[0]
    assert other.asked[0]["X-Plain"] == "kept"


def test_redirections_without_end_and_those_of_a_post_are_failures(world, web):
    web.answer("/round", b"", status=302, Location="/round")
    web.answer("/posted", b"", status=303, Location="/elsewhere")

    assert "redirects more than 5 times" in world.make("http", url=f"{web.url}/round").error["message"]
    posted = world.make("http", url=f"{web.url}/posted", method="POST", body="x")
    assert posted.error["message"] == f"POST {web.url}/posted was answered with 303"
    assert posted.error["category"] == "configuration"
    assert [one["path"] for one in web.asked].count("/elsewhere") == 0


def test_only_hosts_that_are_allowed_are_asked_also_by_redirections(tmp_path, web):
    world = CallWorld(tmp_path, steps_settings='http_allow = "127.0.0.1"')
    web.answer("/x", b"", status=302, Location=web.url.replace("127.0.0.1", "localhost"))

    report = world.make("http", url=f"{web.url}/x")

    assert "localhost must not be asked: steps.http_allow does not name it" in report.error["message"]
    assert len(web.asked) == 1
    world.close()


def test_an_answer_that_is_too_long_is_a_failure_also_when_it_is_packed(world, web, monkeypatch):
    monkeypatch.setattr(tools, "MAX_RESULT_BYTES", 100_000)
    web.answer("/long", b"x" * 100_001)
    web.answer("/packed", gzip.compress(b"x" * 10_000_000), Content_Encoding="gzip")
    web.answer("/fits", b"x" * 50_000)

    for path in ("/long", "/packed"):
        report = world.make("http", url=web.url + path)
        assert "has more than 100000 bytes: " in report.error["message"]
    assert world.make("http", url=f"{web.url}/fits").ok is True


def test_a_server_that_does_not_answer_in_time_is_given_up(world, web):
    world.orders.on_look = lambda: world.clock.advance(1.0)

    report = world.make("http", url=f"{web.url}/hang", timeout=3)

    assert (report.error["klass"], report.error["message"]) == ("timeout", f"no answer from {web.url}/hang within 3 s")


def test_an_order_ends_a_request_that_waits(world, web):
    world.orders.order = Order(kind="drain")

    report = world.make("http", url=f"{web.url}/hang")

    assert (report.is_suspended, report.error, report.meta) == (True, None, {"call": {"ordered": "drain"}})


@pytest.mark.parametrize(
    ("url", "klass", "message"),
    [
        ("http://127.0.0.1:1/x?key=abc", "network", "no answer from http://127.0.0.1:1/x: ConnectError"),
        ("ftp://127.0.0.1/x", "invalid", "ftp://127.0.0.1/x is no address of HTTP"),
        ("http://user:pw@[bad/x", "invalid", "the address is no address of HTTP"),
        ("http://127.0.0.1:99999/x", "invalid", "the address is no address of HTTP"),
        ("nothing", "invalid", "is no address of HTTP"),
    ],
)
def test_what_never_became_an_answer_is_told_without_what_may_be_secret(world, url, klass, message):
    report = world.make("http", url=url)

    assert report.error["klass"] == klass
    assert message in report.error["message"]
    assert "abc" not in report.error["message"]
    assert "pw" not in report.error["message"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"params": "{{ [1] }}"}, "params must be a table"),
        ({"params": {"a": {"b": 1}}}, "params.a must be a text"),
        ({"headers": {"A": None}}, "headers.A must be a text"),
        ({"headers": "{{ 'x' }}"}, "headers must be a table"),
        ({"method": "{{ 'BREW' }}"}, "'BREW', which is no method of HTTP"),
        ({"headers": {"A": "x\r\nB: y"}}, "no answer from"),
    ],
)
def test_an_input_that_came_out_wrong_is_named(world, web, inputs, message):
    web.answer("/x", b"")

    report = world.make("http", url=f"{web.url}/x", **inputs)

    assert report.ok is False
    assert report.error["category"] == "configuration"
    assert message in report.error["message"]


def test_a_forked_child_makes_connections_of_its_own(world, web):
    web.answer("/x", b"1", **JSON)
    world.make("http", url=f"{web.url}/x")

    def ask() -> None:
        assert world.make("http", url=f"{web.url}/x").result == 1

    assert forked.is_well(forked.start(ask))
    assert world.make("http", url=f"{web.url}/x").result == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made with openssl")
def test_a_certificate_that_nobody_vouches_for_is_refused(world, tmp_path):
    files = [tmp_path / "key.pem", tmp_path / "cert.pem"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=localhost", "-keyout", files[0], "-out", files[1]),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_args: None  # it says nothing of what the client did
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        report = world.make("http", url=f"https://127.0.0.1:{server.server_port}/x")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

    assert report.error["klass"] == "tls"


def test_cookies_of_one_call_are_not_sent_with_the_next(world, web):
    web.answer("/x", b"", Set_Cookie="session=abc; Path=/")

    for _ in range(2):
        world.make("http", url=f"{web.url}/x")

    assert all("Cookie" not in one for one in web.asked)


def test_a_server_that_answers_for_ever_is_given_up(world, web):
    web.answer("/x", b"only this", Content_Length="1000")
    world.orders.on_look = lambda: world.clock.advance(1.0)

    report = world.make("http", url=f"{web.url}/x", timeout=2)

    assert report.error["klass"] == "timeout"


def test_a_redirection_to_another_scheme_is_not_followed(world, web):
    web.answer("/x", b"", status=302, Location="file:///etc/passwd")

    assert "is no address of HTTP" in world.make("http", url=f"{web.url}/x").error["message"]
