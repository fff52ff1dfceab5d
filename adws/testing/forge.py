"""
A forge in memory: issues, comments, pull requests, and the branches of an imaginary remote.

Tests push to it with `push`, create issues with `create_issue`, and find every change in `calls`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from adws.adw_modules import timestamps
from adws.adw_modules.errors import ForgeNotFound, ForgeRefused
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.model import Comment, Issue, NewPullRequest, PullRequest
from adws.adw_modules.interfaces import Clock
from adws.testing.clock import FakeClock


@dataclass(kw_only=True)
class _Site:
    """The state shared by all views of one forge."""

    issues: dict[int, Issue] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    labels: dict[int, tuple[str, ...]] = field(default_factory=dict)
    comments: dict[int, tuple[int, Comment, str]] = field(default_factory=dict)  #: id -> issue, comment, changed at
    branches: dict[str, str] = field(default_factory=dict)
    history: dict[str, frozenset[str]] = field(default_factory=dict)  #: branch -> its commits
    people: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    last_number: int = 0
    last_comment: int = 0
    guard: threading.RLock = field(default_factory=threading.RLock)


class MemoryForge:
    """A `Forge` for tests; `seen_by` returns the same forge for another user."""

    def __init__(
        self,
        repository: str = "acme/widget",
        *,
        clock: Clock | None = None,
        login: str = "adw-bot",
        scrub: Callable[[str], str] = str,
    ) -> None:
        self._site = _Site(people={login: "admin"})
        self._repository = repository
        self._clock = clock or FakeClock()
        self._login = login
        self._scrub = scrub
        self.push("main", "0" * 40)

    # --- for tests ---------------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[str]:
        """The names of the calls that changed something, in order."""
        return self._site.calls

    @property
    def people(self) -> dict[str, str]:
        """User -> permission."""
        return self._site.people

    def seen_by(self, login: str) -> MemoryForge:
        """Return the same forge as seen by *login*."""
        other = MemoryForge(self._repository, clock=self._clock, login=login, scrub=self._scrub)
        other._site = self._site

        return other

    def create_issue(self, title: str, body: str = "", *, labels: tuple[str, ...] = (), author: str = "") -> Issue:
        """Create an issue, as a person does."""
        with self._site.guard:
            number = self._next_number()
            self._site.issues[number] = Issue(
                number=number,
                title=title,
                body=body,
                author=author or self._login,
                url=f"https://forge.invalid/{self._repository}/issues/{number}",
            )
            self._site.labels[number] = labels

        return self.issue(number)

    def push(self, branch: str, sha: str = "") -> str:
        """Put a new commit on a branch and return it; a new branch starts from the default branch."""
        with self._site.guard:
            before = self._site.history.get(branch, self._site.history.get("main", frozenset()))
            commit = sha or hashlib.sha1(f"{branch} {len(before)}".encode(), usedforsecurity=False).hexdigest()
            self._site.branches[branch] = commit
            self._site.history[branch] = before | {commit}

        return commit

    def delete_branch(self, branch: str) -> None:
        """Delete a branch of the remote."""
        self._site.branches.pop(branch, None)

    # --- the forge ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Do nothing: nothing is kept open."""

    @property
    def repository(self) -> str:
        """The repository, as owner/name."""
        return self._repository

    def login(self) -> str:
        """Return our login."""
        return self._login

    def default_branch(self) -> str:
        """Return the base branch of pull requests."""
        return "main"

    def permission(self, login: str) -> str:
        """Return the permission of *login*."""
        return self._site.people.get(login, "none")

    def remote_url(self) -> str:
        """Return the URL git pushes to."""
        return f"https://forge.invalid/{self._repository}.git"

    def issue(self, number: int) -> Issue:
        """Return an issue."""
        if number not in self._site.issues:
            raise ForgeNotFound(f"there is no issue {number}")

        return replace(self._site.issues[number], labels=self._site.labels.get(number, ()))

    def issues(self, *, label: str = "", state: str = "open", limit: int = 100) -> tuple[Issue, ...]:
        """Return issues, newest first."""
        result = [self.issue(number) for number in sorted(self._site.issues, reverse=True)]
        wanted = [one for one in result if state in {"all", one.state} and (not label or label in one.labels)]

        return tuple(wanted[:limit])

    def add_labels(self, number: int, labels: tuple[str, ...]) -> None:
        """Add labels to an issue or pull request."""
        with self._site.guard:
            self._note("add_labels")
            self._must_exist(number)
            self._site.labels[number] = tuple(dict.fromkeys((*self.labels_of(number), *labels)))

    def remove_label(self, number: int, label: str) -> None:
        """Remove a label from an issue or pull request."""
        with self._site.guard:
            self._note("remove_label")
            self._must_exist(number)
            self._site.labels[number] = tuple(one for one in self.labels_of(number) if one != label)

    def labels_of(self, number: int) -> tuple[str, ...]:
        """Return the labels of an issue or pull request."""
        return self._site.labels.get(number, ())

    def comments(self, number: int, *, since: str = "") -> tuple[Comment, ...]:
        """Return the comments, oldest first; with *since*, those changed since then."""
        self._must_exist(number)
        moment = timestamps.parse(since) if since else None

        return tuple(
            comment
            for _, (place, comment, changed) in sorted(self._site.comments.items())
            if place == number and (moment is None or timestamps.parse(changed) >= moment)
        )

    def create_comment(self, number: int, body: str) -> Comment:
        """Post a comment."""
        with self._site.guard:
            self._note("create_comment")
            self._must_exist(number)
            self._site.last_comment += 1
            made = Comment(
                comment_id=self._site.last_comment,
                body=forge_text.outgoing_body(body, self._scrub),
                author=self._login,
                url=f"https://forge.invalid/{self._repository}/issues/{number}#{self._site.last_comment}",
                created_at=self._now(),
            )
            self._site.comments[made.comment_id] = (number, made, self._now())

        return made

    def edit_comment(self, comment_id: int, body: str) -> Comment:
        """Replace the text of a comment."""
        with self._site.guard:
            self._note("edit_comment")
            if comment_id not in self._site.comments:
                raise ForgeNotFound(f"there is no comment {comment_id}")
            place, old, _ = self._site.comments[comment_id]
            made = replace(old, body=forge_text.outgoing_body(body, self._scrub))
            self._site.comments[comment_id] = (place, made, self._now())

        return made

    def delete_comment(self, comment_id: int) -> None:
        """Delete a comment."""
        self._note("delete_comment")
        self._site.comments.pop(comment_id, None)

    def pull_request(self, number: int) -> PullRequest:
        """Return a pull request."""
        if number not in self._site.pulls:
            raise ForgeNotFound(f"there is no pull request {number}")
        value = self._site.pulls[number]
        if value.state != "open":
            return value

        return replace(value, head_sha=self._site.branches.get(value.head, value.head_sha))

    def pull_requests_of(self, head: str, *, state: str = "all") -> tuple[PullRequest, ...]:
        """Return the pull requests from branch *head*, newest first."""
        result = [self.pull_request(number) for number in sorted(self._site.pulls, reverse=True)]

        return tuple(one for one in result if one.head == head and state in {"all", one.state})

    def create_pull_request(self, new: NewPullRequest) -> PullRequest:
        """Open a pull request."""
        with self._site.guard:
            self._note("create_pull_request")
            for branch in (new.head, new.base):
                if branch not in self._site.branches:
                    raise ForgeRefused(422, f"there is no branch {branch}")
            if self.pull_requests_of(new.head, state="open"):
                raise ForgeRefused(422, f"A pull request already exists for {new.head}.")
            if self._site.branches[new.head] in self._site.history[new.base]:
                raise ForgeRefused(422, f"No commits between {new.base} and {new.head}")
            return self._put(new)

    def _put(self, new: NewPullRequest) -> PullRequest:
        number = self._next_number()
        self._site.pulls[number] = PullRequest(
            number=number,
            title=forge_text.outgoing_title(new.title, self._scrub),
            body=forge_text.outgoing_body(new.body, self._scrub),
            head=new.head,
            head_sha=self._site.branches[new.head],
            base=new.base,
            state="open",
            is_draft=new.is_draft,
            author=self._login,
            url=f"https://forge.invalid/{self._repository}/pull/{number}",
        )

        return self._site.pulls[number]

    def edit_pull_request(
        self, number: int, *, title: str | None = None, body: str | None = None, is_draft: bool | None = None
    ) -> PullRequest:
        """Change a pull request."""
        with self._site.guard:
            self._note("edit_pull_request")
            result = self.pull_request(number)
            self._site.pulls[number] = replace(
                result,
                title=result.title if title is None else forge_text.outgoing_title(title, self._scrub),
                body=result.body if body is None else forge_text.outgoing_body(body, self._scrub),
                is_draft=result.is_draft if is_draft is None else is_draft,
            )

        return self.pull_request(number)

    def close_pull_request(self, number: int) -> PullRequest:
        """Close a pull request."""
        with self._site.guard:
            self._note("close_pull_request")
            self._site.pulls[number] = replace(self.pull_request(number), state="closed")

        return self.pull_request(number)

    def merge_pull_request(self, number: int, *, sha: str, method: str = "squash") -> PullRequest:
        """Merge a pull request if its head is *sha*."""
        with self._site.guard:
            self._note("merge_pull_request")
            result = self.pull_request(number)
            if result.is_merged:
                return result
            if result.state != "open" or result.is_draft or method not in {"squash", "merge", "rebase"}:
                raise ForgeRefused(405, f"pull request {number} cannot be merged")
            if result.head_sha != sha:
                raise ForgeRefused(409, f"{result.head} is at another commit")
            self._site.pulls[number] = replace(result, state="closed", is_merged=True)
            self.push(result.base)

        return self.pull_request(number)

    def _must_exist(self, number: int) -> None:
        if number not in self._site.issues and number not in self._site.pulls:
            raise ForgeNotFound(f"there is no issue or pull request {number}")

    def _next_number(self) -> int:
        self._site.last_number += 1

        return self._site.last_number

    def _note(self, call: str) -> None:
        self._site.calls.append(call)

    def _now(self) -> str:
        return timestamps.to_text(self._clock.now())
