"""
GitHub as a forge; the only module that uses PyGithub.

Each call is one request, sent once: after a lost reply to a create the caller looks it up and never sends it again.
Requests are sent one at a time, with a second between writes, and each ends within the time a worker may be silent.
PyGithub does sign-in, pacing and transport; `forge.github_errors` interprets the responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock
from urllib.parse import quote, urlsplit

from github import Consts
from github.Auth import AppAuth, Auth, Token
from github.Requester import Requester
from jwt.exceptions import PyJWTError  # comes with PyGithub, which signs with it

from adws.adw_modules import default_home, timestamps
from adws.adw_modules.clock import SystemClock
from adws.adw_modules.errors import ConfigError, ForgeBusy, ForgeNotFound, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.github_errors import (
    Json,
    as_object,
    as_objects,
    check_answer,
    comes_from,
    graphql_problem,
    has_next_page,
    is_since,
    text_in,
    to_access,
    to_app_access,
    to_comment,
    to_issue,
    to_permission,
    to_pull_request,
)
from adws.adw_modules.forge.model import (
    Comment,
    Forge,
    ForgeAccess,
    HookDelivery,
    Issue,
    Labelled,
    NewPullRequest,
    PullRequest,
)
from adws.adw_modules.identifiers import JsonValue
from adws.adw_modules.interfaces import Clock

#: The API of github.com.
DEFAULT_API_URL = Consts.DEFAULT_BASE_URL
#: Seconds between two writes, as GitHub requires of programs.
SECONDS_BETWEEN_WRITES = 1.0

_PER_PAGE = 100
#: An App's token is renewed when less time than this is left.
_TOKEN_RESERVE = timedelta(minutes=5)
_DRAFT = "mutation($id: ID!) { convertPullRequestToDraft(input: {pullRequestId: $id}) { clientMutationId } }"
_READY = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { clientMutationId } }"


@dataclass(frozen=True, kw_only=True, slots=True)
class GitHubAccess:
    """Our credentials for GitHub (a token, or an App with its key) and its address."""

    token: str = field(default="", repr=False)
    app_id: str = ""
    private_key: str = field(default="", repr=False)  #: in PEM
    api_url: str = DEFAULT_API_URL
    timeout_seconds: float = 4.0  #: to connect, and again to answer
    seconds_between_writes: float = SECONDS_BETWEEN_WRITES


def timeout_for(*, ttl_seconds: float, stop_seconds: float) -> float:
    """
    Return the time-out that keeps one request inside a lease: signing in, connecting and answering take one each.

    A worker stops itself *stop_seconds* after its last renewal, and another takes over its work after *ttl_seconds*: a
    request begun before the first moment must end before the second. Raises ConfigError if that is impossible.
    """
    room = ttl_seconds - stop_seconds - SECONDS_BETWEEN_WRITES
    if room < 3.0:
        raise ConfigError(
            f"lease.ttl_seconds is {ttl_seconds:g}: GitHub needs 12 seconds or more, so that a request ends in a lease"
        )

    return room / 3.0


class GitHubForge:
    """
    One repository on GitHub; implements `forge.Forge`. *scrub* removes secrets from all written text.

    Requests are sent one at a time.
    """

    def __init__(self, repository: str, access: GitHubAccess, *, clock: Clock, scrub: Callable[[str], str]) -> None:
        self._repository = repository
        self._access = access
        self._clock = clock
        self._scrub = scrub
        self._login = ""
        self._turn = Lock()
        if access.app_id and "PRIVATE KEY-----" not in access.private_key:
            raise ConfigError(
                "the key of the GitHub App is no private key in PEM: give the file GitHub let you download"
            )
        auth = AppAuth(access.app_id, access.private_key) if access.app_id else Token(access.token)
        first = self._new_requester(auth)
        self._graphql_url = first.graphql_url
        self._app = first if access.app_id else None
        self._requester = None if access.app_id else first
        self._good_until = clock.now()

    def close(self) -> None:
        """Close the connections to GitHub."""
        for requester in filter(None, (self._app, self._requester)):
            requester.close()

    @property
    def repository(self) -> str:
        """owner/name."""
        return self._repository

    def login(self) -> str:
        """Return our own login, for an App with `[bot]`; requested once."""
        if not self._login and self._app is not None:
            self._login = f"{text_in(as_object(self._send('GET', '/app', as_app=True)[0]), 'slug')}[bot]"
        elif not self._login:
            self._login = text_in(as_object(self._send("GET", "/user")[0]), "login")

        return self._login

    def access(self) -> ForgeAccess:
        """Request our permissions in the repository; for an App, those of its installation."""
        login, path = self.login(), f"/repos/{self._repository}"
        if self._app is not None:
            return to_app_access(login, *self._send("GET", f"{path}/installation", as_app=True))

        return to_access(login, *self._send("GET", path))

    def default_branch(self) -> str:
        """Return the branch that pull requests go to."""
        return text_in(as_object(self._call("GET", "")), "default_branch")

    def permission(self, login: str) -> str:
        """Return the permission of *login*; "none" for an unknown user."""
        try:
            return to_permission(self._call("GET", f"/collaborators/{_quoted(login)}/permission"))
        except ForgeNotFound:
            return "none"

    # --- issues ------------------------------------------------------------------------------------------------

    def issue(self, number: int) -> Issue:
        """Return an issue; raise ForgeNotFound for the number of a pull request, too."""
        answer = self._call("GET", f"/issues/{number}")
        if as_object(answer).get("pull_request"):
            raise ForgeNotFound(f"#{number} is a pull request, not an issue")

        return to_issue(answer)

    def issues(self, *, label: str = "", state: str = "open", limit: int = 100) -> tuple[Issue, ...]:
        """Return issues, newest first."""
        params: dict[str, JsonValue] = {"state": state, "sort": "created", "direction": "desc"}
        if label:
            params["labels"] = label
        result: list[Issue] = []
        for one in self._pages("/issues", params):
            if len(result) >= limit:
                break
            if not one.get("pull_request"):
                result.append(to_issue(dict(one)))

        return tuple(result)

    def add_labels(self, number: int, labels: tuple[str, ...]) -> None:
        """Add labels to an issue or pull request; GitHub creates unknown ones."""
        if labels:
            self._call("POST", f"/issues/{number}/labels", {"labels": list(labels)})

    def remove_label(self, number: int, label: str) -> None:
        """Remove a label; a missing one is fine."""
        try:
            self._call("DELETE", f"/issues/{number}/labels/{_quoted(label)}")
        except ForgeNotFound:
            # GitHub gives the same answer for a missing issue, and for one that we may not see.
            there = self._pages(f"/issues/{number}/labels", {})
            if any(text_in(one, "name") == label for one in there):
                raise

    # --- comments ----------------------------------------------------------------------------------------------

    def comments(self, number: int, *, since: str = "") -> tuple[Comment, ...]:
        """Return the comments, oldest first; with *since* only those created or changed since then."""
        result = self._pages(f"/issues/{number}/comments", {"since": since} if since else {})

        return tuple(to_comment(dict(one)) for one in result if is_since(one, since))

    def create_comment(self, number: int, body: str) -> Comment:
        """Post a comment. Not repeated."""
        return to_comment(self._call("POST", f"/issues/{number}/comments", {"body": self._outgoing(body)}))

    def edit_comment(self, comment_id: int, body: str) -> Comment:
        """Replace a comment's text."""
        return to_comment(self._call("PATCH", f"/issues/comments/{comment_id}", {"body": self._outgoing(body)}))

    def delete_comment(self, comment_id: int) -> None:
        """Delete a comment; one that is gone is fine."""
        try:
            self._call("DELETE", f"/issues/comments/{comment_id}")
        except ForgeNotFound:
            return

    # --- pull requests -----------------------------------------------------------------------------------------

    def pull_request(self, number: int) -> PullRequest:
        """Return a pull request."""
        return to_pull_request(self._call("GET", f"/pulls/{number}"))

    def pull_requests_of(self, head: str, *, state: str = "all") -> tuple[PullRequest, ...]:
        """Return the pull requests from branch *head* of this repository, newest first."""
        owner = self._repository.partition("/")[0]
        params: dict[str, JsonValue] = {
            "head": f"{owner}:{head}",
            "state": state,
            "sort": "created",
            "direction": "desc",
        }
        # Filtered again here: a server that does not know a filter returns everything.
        return tuple(
            to_pull_request(dict(one))
            for one in self._pages("/pulls", params)
            if comes_from(one, repository=self._repository, branch=head)
        )

    def create_pull_request(self, new: NewPullRequest) -> PullRequest:
        """Open a pull request. Not repeated."""
        payload: dict[str, JsonValue] = {
            "title": forge_text.outgoing_title(new.title, self._scrub),
            "body": self._outgoing(new.body),
            "head": new.head,
            "base": new.base,
            "draft": new.is_draft,
        }

        return to_pull_request(self._call("POST", "/pulls", payload))

    def edit_pull_request(
        self, number: int, *, title: str | None = None, body: str | None = None, is_draft: bool | None = None
    ) -> PullRequest:
        """Change a pull request; its draft status can only be changed by GraphQL."""
        changes: dict[str, JsonValue] = {}
        if title is not None:
            changes["title"] = forge_text.outgoing_title(title, self._scrub)
        if body is not None:
            changes["body"] = self._outgoing(body)
        path = f"/pulls/{number}"
        answer = self._call("PATCH", path, changes) if changes else self._call("GET", path)
        result = to_pull_request(answer)
        if is_draft is None or result.is_draft == is_draft:
            return result

        variables: JsonValue = {"id": text_in(as_object(answer), "node_id")}
        query = {"query": _DRAFT if is_draft else _READY, "variables": variables}
        if problem := graphql_problem(self._send("POST", self._graphql_url, payload=query)[0]):
            raise ForgeRefused(200, problem)

        return self.pull_request(number)

    def close_pull_request(self, number: int) -> PullRequest:
        """Close the pull request; a closed one is fine."""
        return to_pull_request(self._call("PATCH", f"/pulls/{number}", {"state": "closed"}))

    def merge_pull_request(self, number: int, *, sha: str, method: str = "squash") -> PullRequest:
        """Merge the pull request if its head is *sha*; a merged one is fine."""
        try:
            self._call("PUT", f"/pulls/{number}/merge", {"sha": sha, "merge_method": method})
        except ForgeRefused:
            result = self.pull_request(number)
            if not result.is_merged:
                raise
            return result

        return self.pull_request(number)

    def remote_url(self) -> str:
        """Return the URL for git pushes: on the website that belongs to the API."""
        parts = urlsplit(self._access.api_url)
        path = parts.path.rstrip("/").removesuffix("/api/v3")
        host = parts.netloc.removeprefix("api.") if parts.netloc == "api.github.com" else parts.netloc

        return f"{parts.scheme}://{host}{path}/{self._repository}.git"

    # --- used by cron only -------------------------------------------------------------------------------------
    #
    # GitHub does not repeat a failed delivery by itself. It keeps deliveries for some days and repeats one, with the
    # same guid, on request. That needs permission to read the repository's hooks.

    def labelled(self, number: int, label: str) -> Labelled | None:
        """Return who last put *label* on the issue, or None if nobody did."""
        issue = as_object(self._call("GET", f"/issues/{number}"))
        result: Labelled | None = None
        for one in self._pages(f"/issues/{number}/events", {}):  # oldest first
            named = text_in(as_object(one.get("label") or {}), "name")
            if text_in(one, "event") != "labeled" or named != label:
                continue
            actor, raw_at = as_object(one.get("actor") or {}), text_in(one, "created_at")
            result = Labelled(
                login=text_in(actor, "login"),
                is_bot=text_in(actor, "type") == "Bot",
                at=_moment(raw_at),
                raw_at=raw_at,
                created_at=text_in(issue, "created_at"),
            )

        return result

    def hook_deliveries(self, *, since: str) -> tuple[HookDelivery, ...]:
        """Return every delivery attempt since a moment, newest first: the last hundred per hook, as cron runs often."""
        result: list[HookDelivery] = []
        for hook in list(self._pages("/hooks", {})):
            if not isinstance(hook_id := hook.get("id"), int):
                continue
            path = f"/repos/{self.repository}/hooks/{hook_id}/deliveries"  # this list has no page numbers
            for one in as_objects(self._send("GET", path, params={"per_page": _PER_PAGE})[0]):
                number, guid, at = one.get("id"), text_in(one, "guid"), _moment(text_in(one, "delivered_at"))
                if not isinstance(number, int) or not guid or not at or at < since:
                    continue
                code = one.get("status_code")
                result.append(
                    HookDelivery(
                        hook_id=hook_id,
                        delivery_id=number,
                        guid=guid,
                        is_ok=isinstance(code, int) and 200 <= code < 300,
                        at=at,
                        event=text_in(one, "event"),
                    )
                )

        return tuple(sorted(result, key=lambda one: one.at, reverse=True))

    def redeliver(self, hook_id: int, delivery_id: int) -> None:
        """Ask GitHub to send a delivery again. Not repeated."""
        self._call("POST", f"/hooks/{hook_id}/deliveries/{delivery_id}/attempts", {})

    # --- requests ----------------------------------------------------------------------------------------------

    def _call(self, verb: str, path: str, payload: Json | None = None) -> JsonValue:
        """Send a request for *path* below the repository."""
        return self._send(verb, f"/repos/{self._repository}{path}", payload=payload)[0]

    def _pages(self, path: str, params: Json) -> Iterator[Json]:
        """Yield the items of all pages of a list. Pages are counted: a URL named by the server is never followed."""
        page, goes_on = 1, True
        while goes_on:
            asked: dict[str, JsonValue] = {**params, "per_page": _PER_PAGE, "page": page}
            answer, headers = self._send("GET", f"/repos/{self._repository}{path}", params=asked)
            yield from as_objects(answer)
            page, goes_on = page + 1, has_next_page(headers)

    def _send(
        self, verb: str, path: str, *, params: Json | None = None, payload: Json | None = None, as_app: bool = False
    ) -> tuple[JsonValue, Mapping[str, str]]:
        """Send one request and return the response and its headers; *as_app* signs in as the App itself."""
        if not self._turn.acquire(timeout=self._access.timeout_seconds):
            raise ForgeBusy(1.0, "another thread of this process is asking")
        try:
            started = self._clock.monotonic()
            requester = self._app if as_app and self._app else self._signed_in()
            # The request must arrive while we still own the workflow, not after a long wait.
            if self._clock.monotonic() - started > self._access.timeout_seconds:
                raise ForgeUnavailable("signing in to GitHub took too long: nothing was sent")
            return self._request(requester, verb, path, params, payload)
        finally:
            self._turn.release()

    def _signed_in(self) -> Requester:
        """Return the signed-in requester; an App gets a new token when the old one expires soon."""
        if self._app is None or (self._requester and self._clock.now() + _TOKEN_RESERVE < self._good_until):
            return self._requester  # type: ignore[return-value]  # without an App it is set from the start
        path = f"/repos/{self._repository}/installation"
        result, _ = self._request(self._app, "GET", path, None, None)
        number = as_object(result).get("id")
        made, _ = self._request(self._app, "POST", f"/app/installations/{number}/access_tokens", None, {})
        answer = as_object(made)
        token = text_in(answer, "token")
        if not token:
            raise ForgeUnavailable("GitHub gave the App no token")
        if self._requester:
            self._requester.close()
        self._requester = self._new_requester(Token(token))
        self._good_until = timestamps.parse(text_in(answer, "expires_at"))

        return self._requester

    def _request(
        self, requester: Requester, verb: str, path: str, params: Json | None, payload: Json | None
    ) -> tuple[JsonValue, Mapping[str, str]]:
        try:
            status, headers, body = requester.requestJson(
                verb, path, parameters=dict(params or {}), input=None if payload is None else dict(payload)
            )
        except OSError as exc:  # base of all transport errors: no connection, no response, a partial response
            raise ForgeUnavailable(f"GitHub did not answer ({_said(exc)}): nothing is known about the effect") from exc
        except RuntimeError as exc:  # PyGithub does not follow redirections to another host
            raise ForgeRefused(301, f"{_said(exc)}: correct github.repository or github.api_url") from exc
        except PyJWTError as exc:
            raise ConfigError(f"the key of the GitHub App cannot be used: {_said(exc)}") from exc

        return check_answer(status, headers, body, now=self._clock.now()), headers

    def _new_requester(self, auth: Auth) -> Requester:
        return Requester(
            auth=auth,
            base_url=self._access.api_url.rstrip("/"),
            timeout=self._access.timeout_seconds,  # type: ignore[arg-type]  # it goes to requests, which takes fractions
            user_agent="adw",
            per_page=_PER_PAGE,
            verify=True,
            retry=None,
            pool_size=None,
            seconds_between_writes=self._access.seconds_between_writes,
        )

    def _outgoing(self, body: str) -> str:
        return forge_text.outgoing_body(body, self._scrub)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _said(error: BaseException) -> str:
    """Return a library's message in one short line; URLs in it have no token, which is sent in a header."""
    return " ".join(str(error).split())[:300] or type(error).__name__


# --- plain calls on the forge of the home ----------------------------------------------------------------------


def make_adw_id() -> str:
    """Return a new workflow id: eight hex digits."""
    return SystemClock().token()[:8]


def post_github_comment(issue_number: int, comment: str, *, forge: Forge | None = None) -> Comment:
    """Post a comment with adw's mark, so that no program that listens to comments reacts to it."""
    return _forge(forge).create_comment(issue_number, forge_text.bot_comment(comment))


def close_pull_request(pr_number: int, comment: str = "", *, forge: Forge | None = None) -> PullRequest:
    """
    Post the reason as a comment, then close the pull request; may be repeated, the comment is posted once.

    A closed or merged one is returned unchanged.
    """
    place = _forge(forge)
    result = place.pull_request(pr_number)
    if result.state != "open":
        return result
    said, me = forge_text.bot_comment(comment), place.login() if comment else ""
    if comment and not any(one.author == me and one.body.strip() == said.strip() for one in place.comments(pr_number)):
        place.create_comment(pr_number, said)

    return place.close_pull_request(pr_number)


def _forge(forge: Forge | None) -> Forge:
    return default_home.get().forge if forge is None else forge


def _moment(text: str) -> str:
    """Return a moment in the one spelling that sorts, or "" if it cannot be parsed."""
    try:
        return timestamps.to_text(timestamps.parse(text))
    except (ValueError, OverflowError):
        return ""
