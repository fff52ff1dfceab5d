"""
A GitHub for tests that can fail: the REST subset adw uses, over a forge in memory, on a port of this machine.

Each fault is armed for one request, counted from the next one, and either lets the request take effect or not. What the
server did is seen in the forge behind it; what was asked of it in `requests`.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from adws.adw_modules.errors import ForgeBusy, ForgeNotFound, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge.model import Comment, Issue, NewPullRequest, PullRequest
from adws.testing import MemoryForge

TOKENS = {"tok_bot": "adw-bot", "tok_mallory": "mallory"}
RESET_AT = 4_000_000_000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to fail."""

    error: type[Exception]  #: what the forge must raise
    has_effect: bool = False  #: the request is carried out
    status: int = 0
    headers: Mapping[str, str] | None = None
    body: str = ""
    wire: str = ""  #: reset | slow | half


LIMITED = json.dumps({"message": "API rate limit exceeded for user ID 1."})
SECONDARY = json.dumps({"message": "You have exceeded a secondary rate limit. Please wait a few minutes."})

#: name -> fault. "after" ones have done what was asked.
FAULTS: Mapping[str, Fault] = {
    "500 before": Fault(error=ForgeUnavailable, status=500, body="{}"),
    "502 after": Fault(error=ForgeUnavailable, has_effect=True, status=502, body="<html>Bad gateway</html>"),
    "503 before": Fault(error=ForgeUnavailable, status=503),
    "reset before": Fault(error=ForgeUnavailable, wire="reset"),
    "reset after": Fault(error=ForgeUnavailable, has_effect=True, wire="reset"),
    "slow before": Fault(error=ForgeUnavailable, wire="slow"),
    "slow after": Fault(error=ForgeUnavailable, has_effect=True, wire="slow"),
    "half an answer": Fault(error=ForgeUnavailable, has_effect=True, wire="half"),
    "no JSON": Fault(error=ForgeUnavailable, has_effect=True, status=200, body="<html>Welcome</html>"),
    "broken JSON": Fault(error=ForgeUnavailable, has_effect=True, status=200, body='{"number": '),
    "403 retry-after": Fault(error=ForgeBusy, status=403, headers={"Retry-After": "30"}, body="{}"),
    "429 retry-after": Fault(error=ForgeBusy, status=429, headers={"Retry-After": "30"}, body="{}"),
    "429 bare": Fault(error=ForgeBusy, status=429),
    "403 used up": Fault(
        error=ForgeBusy,
        status=403,
        headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(RESET_AT)},
        body=LIMITED,
    ),
    "403 secondary": Fault(error=ForgeBusy, status=403, body=SECONDARY),
    "401": Fault(error=ForgeRefused, status=401, body='{"message": "Bad credentials"}'),
    "403 forbidden": Fault(error=ForgeRefused, status=403, body='{"message": "Resource not accessible"}'),
    "422": Fault(error=ForgeRefused, status=422, body='{"message": "Validation Failed", "errors": ["no"]}'),
    "301 elsewhere": Fault(error=ForgeRefused, status=301, headers={"Location": "http://elsewhere.invalid/x"}),
    "307": Fault(error=ForgeRefused, status=307, headers={"Location": "http://elsewhere.invalid/x"}, body="{}"),
}


class FaultForge:
    """The server; use it with `with`."""

    def __init__(self, forge: MemoryForge) -> None:
        self.forge = forge
        self.requests: list[tuple[str, str]] = []
        self.authorizations: list[str] = []
        self.hidden_looks = 0  #: so many lists do not show yet what was made last
        self.extra: dict[tuple[str, str], Callable[[str], tuple[int, object]]] = {}  #: (verb, path) -> by authorization
        self._armed: dict[int, Fault] = {}
        self._over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.place = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def arm(self, fault: Fault, *, request: int = 0) -> None:
        """Let the request that comes after *request* others fail, once."""
        self._armed[len(self.requests) + request] = fault

    def disarm(self) -> None:
        self._armed.clear()

    def take(self, verb: str, path: str) -> Fault | None:
        fault = self._armed.pop(len(self.requests), None)
        self.requests.append((verb, path))
        return fault

    def wait_for_the_end(self) -> None:
        self._over.wait(20)


class _Server(ThreadingHTTPServer):
    place: FaultForge
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for an acknowledgement

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server calls them by these names

    def log_message(self, *_: object) -> None:
        pass

    def _handle(self) -> None:
        place = self.server.place
        length = int(self.headers.get("Content-Length") or 0)
        payload = json.loads(self.rfile.read(length) or b"{}")
        authorization = self.headers.get("Authorization", "")
        place.authorizations.append(authorization)
        fault = place.take(self.command, self.path)
        answer: tuple[int, object, dict[str, str]] = (200, {}, {})
        if fault is None or fault.has_effect:
            answer = self._answer(authorization, payload)
        if fault is None:
            self._send(answer[0], json.dumps(answer[1]) if answer[1] is not None else "", answer[2])
        else:
            self._fail(fault)

    def _answer(self, authorization: str, payload: dict) -> tuple[int, object, dict[str, str]]:
        place = self.server.place
        parts = urlsplit(self.path)
        special = place.extra.get((self.command, parts.path))
        if special:
            return (*special(authorization), {})
        login = TOKENS.get(authorization.rsplit(maxsplit=1)[-1] if authorization else "")
        if login is None:
            return 401, {"message": "Bad credentials"}, {}
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        site = Site(place, place.forge if login == place.forge.login() else place.forge.seen_by(login))
        try:
            return site.answer(self.command, parts.path, query, payload)
        except ForgeNotFound:
            return 404, {"message": "Not Found"}, {}
        except ForgeRefused as refused:
            return refused.status, {"message": "Validation Failed", "errors": [{"message": str(refused)}]}, {}

    def _fail(self, fault: Fault) -> None:
        if fault.wire == "slow":
            self.server.place.wait_for_the_end()
        if fault.wire in {"slow", "reset"}:
            linger = struct.pack("ii", 1, 0)  # closed at once, with a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
        elif fault.wire == "half":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"number": 1')
            self.close_connection = True
        else:
            self._send(fault.status, fault.body, dict(fault.headers or {}))

    def _send(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


class Site:
    """The REST subset, over a forge in memory."""

    def __init__(self, place: FaultForge, forge: MemoryForge) -> None:
        self._place = place
        self._forge = forge

    def answer(self, verb: str, path: str, query: dict, payload: dict) -> tuple[int, object, dict[str, str]]:
        if path == "/user":
            return 200, {"login": self._forge.login()}, {}
        if path == "/graphql":
            return 200, self._graphql(payload), {}
        inside = path.removeprefix(f"/repos/{self._forge.repository}")
        if inside == path:
            return 404, {"message": "Not Found"}, {}
        for pattern, name in ROUTES[verb]:
            match = re.fullmatch(pattern, inside)
            if match:
                return self._paged(getattr(self, f"_{name}")(query, payload, *map(unquote, match.groups())), query)

        return 404, {"message": f"no route {verb} {inside}"}, {}

    @staticmethod
    def _paged(result: object, query: dict) -> tuple[int, object, dict[str, str]]:
        if not isinstance(result, list):
            return 200, result, {}
        page, size = int(query.get("page", 1)), int(query.get("per_page", 30))
        headers = {"Link": '<http://elsewhere.invalid/next>; rel="next"'} if len(result) > page * size else {}
        return 200, result[(page - 1) * size : page * size], headers

    def _graphql(self, payload: dict) -> dict:
        number = int(payload["variables"]["id"].removeprefix("PR_"))
        self._forge.edit_pull_request(number, is_draft="convertPullRequestToDraft" in payload["query"])
        return {"data": {}}

    def _repository(self, _query, _payload) -> dict:
        return {"default_branch": self._forge.default_branch()}

    def _permission(self, _query, _payload, login) -> dict:
        permission = self._forge.permission(login)
        if permission == "none":
            raise ForgeNotFound(login)
        return {"permission": permission, "role_name": permission}

    def _issue(self, _query, _payload, number) -> dict:
        try:
            return to_issue(self._forge.issue(int(number)))
        except ForgeNotFound:
            pull = self._forge.pull_request(int(number))
            return {"number": pull.number, "title": pull.title, "pull_request": {"url": pull.url}}

    def _issues(self, query, _payload) -> list:
        result = self._forge.issues(label=query.get("labels", ""), state=query["state"], limit=10_000)
        return [to_issue(one) for one in result]

    def _labels(self, _query, _payload, number) -> list:
        return [{"name": name} for name in self._forge.labels_of(int(number))]

    def _add_labels(self, _query, payload, number) -> list:
        self._forge.add_labels(int(number), tuple(payload["labels"]))
        return self._labels({}, {}, number)

    def _remove_label(self, _query, _payload, number, label) -> list:
        if label not in self._forge.labels_of(int(number)):
            raise ForgeNotFound(label)
        self._forge.remove_label(int(number), label)
        return self._labels({}, {}, number)

    def _comments(self, query, _payload, number) -> list:
        return self._shown([to_comment(one) for one in self._forge.comments(int(number), since=query.get("since", ""))])

    def _create_comment(self, _query, payload, number) -> dict:
        return to_comment(self._forge.create_comment(int(number), payload["body"]))

    def _edit_comment(self, _query, payload, comment_id) -> dict:
        return to_comment(self._forge.edit_comment(int(comment_id), payload["body"]))

    def _delete_comment(self, _query, _payload, comment_id) -> None:
        self._forge.edit_comment(int(comment_id), "going")  # not found when it is gone, as GitHub says
        self._forge.delete_comment(int(comment_id))

    def _pull(self, _query, _payload, number) -> dict:
        return to_pull(self._forge.pull_request(int(number)), self._forge.repository)

    def _pulls(self, query, _payload) -> list:
        branch = query["head"].partition(":")[2]
        pull_requests = self._forge.pull_requests_of(branch, state=query["state"])
        return self._shown([to_pull(one, self._forge.repository) for one in pull_requests][::-1])[::-1]

    def _create_pull(self, _query, payload) -> dict:
        new = NewPullRequest(
            title=payload["title"],
            body=payload["body"],
            head=payload["head"],
            base=payload["base"],
            is_draft=payload["draft"],
        )
        return to_pull(self._forge.create_pull_request(new), self._forge.repository)

    def _edit_pull(self, _query, payload, number) -> dict:
        if payload.get("state") == "closed":
            return to_pull(self._forge.close_pull_request(int(number)), self._forge.repository)
        made = self._forge.edit_pull_request(int(number), title=payload.get("title"), body=payload.get("body"))
        return to_pull(made, self._forge.repository)

    def _merge(self, _query, payload, number) -> dict:
        if self._forge.pull_request(int(number)).is_merged:
            raise ForgeRefused(405, "Pull Request is not mergeable")
        self._forge.merge_pull_request(int(number), sha=payload["sha"], method=payload["merge_method"])
        return {"merged": True}

    def _shown(self, found: list) -> list:
        """Return *found* without its newest for some looks, as a forge of many machines may do."""
        if self._place.hidden_looks > 0 and found:
            self._place.hidden_looks -= 1
            return found[:-1]
        return found


ROUTES = {
    "GET": [
        (r"", "repository"),
        (r"/collaborators/([^/]+)/permission", "permission"),
        (r"/issues", "issues"),
        (r"/issues/(\d+)", "issue"),
        (r"/issues/(\d+)/labels", "labels"),
        (r"/issues/(\d+)/comments", "comments"),
        (r"/pulls", "pulls"),
        (r"/pulls/(\d+)", "pull"),
    ],
    "POST": [
        (r"/issues/(\d+)/labels", "add_labels"),
        (r"/issues/(\d+)/comments", "create_comment"),
        (r"/pulls", "create_pull"),
    ],
    "PATCH": [(r"/issues/comments/(\d+)", "edit_comment"), (r"/pulls/(\d+)", "edit_pull")],
    "PUT": [(r"/pulls/(\d+)/merge", "merge")],
    "DELETE": [(r"/issues/(\d+)/labels/(.+)", "remove_label"), (r"/issues/comments/(\d+)", "delete_comment")],
}


def to_issue(issue: Issue) -> dict:
    return {
        **asdict(issue),
        "user": {"login": issue.author},
        "html_url": issue.url,
        "labels": [{"name": name} for name in issue.labels],
        "assignees": [{"login": name} for name in issue.assignees],
    }


def to_comment(comment: Comment) -> dict:
    return {
        "id": comment.comment_id,
        "body": comment.body,
        "user": {"login": comment.author},
        "html_url": comment.url,
        "created_at": comment.created_at,
    }


def to_pull(pull: PullRequest, repository: str) -> dict:
    return {
        "number": pull.number,
        "node_id": f"PR_{pull.number}",
        "title": pull.title,
        "body": pull.body,
        "state": pull.state,
        "draft": pull.is_draft,
        "merged_at": "2026-01-31T09:00:00Z" if pull.is_merged else None,
        "user": {"login": pull.author},
        "html_url": pull.url,
        "head": {"ref": pull.head, "sha": pull.head_sha, "repo": {"full_name": repository}},
        "base": {"ref": pull.base},
    }
