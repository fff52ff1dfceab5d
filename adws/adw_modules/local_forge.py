"""
A forge without an account or a server: issues and pull requests are JSON files, with a bare git repository beside them.

It keeps the same contract as GitHub. Whether a pull request is merged is asked of the repository: merging by hand and a
crash in the middle of a merge are both seen. No checkout of anybody is touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from adws.adw_modules import forge_texts, timestamps
from adws.adw_modules.bare_git import BareRepository
from adws.adw_modules.errors import ForgeNotFound, ForgeRefused
from adws.adw_modules.forge import Comment, Issue, NewPullRequest, PullRequest
from adws.adw_modules.forge_files import COMMENT, ISSUES, NUMBER, PULLS, ForgeFiles, objects_in
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.json_value import JsonObject, JsonValue

#: The bare repository, in the directory of the forge.
REMOTE_NAME = "remote.git"

_CLOSES = re.compile(r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+#(\d{1,9})\b", re.IGNORECASE)


class LocalForge:
    """Issues and pull requests below *root*; implements `forge.Forge`, also for several processes at once."""

    def __init__(
        self,
        root: Path,
        *,
        repository: str,
        git: BareRepository,
        clock: Clock,
        scrub: Callable[[str], str],
        login: str = "adw",
    ) -> None:
        self._files = ForgeFiles(root, clock=clock)
        self._repository = repository
        self._git = git
        self._clock = clock
        self._scrub = scrub
        self._login = login

    def prepare(self, default_branch: str = "main") -> None:
        """Make the directories and the bare repository; nothing happens when they are there."""
        self._files.prepare()
        with self._files.turn():
            self._git.make(default_branch)

    def close(self) -> None:
        """Nothing is kept open."""

    @property
    def repository(self) -> str:
        """owner/name."""
        return self._repository

    def login(self) -> str:
        """Return the name that adw signs with here."""
        return self._login

    def default_branch(self) -> str:
        """Return the branch that pull requests go to."""
        return self._git.default_branch()

    def permission(self, login: str) -> str:
        """Return what *login* may do: adw itself everything, others what `people` in `forge.json` says."""
        if login == self._login:
            return "admin"

        return self._files.people().get(login, "none")

    def remote_url(self) -> str:
        """Return where git pushes to: a directory."""
        return str(self._git.path)

    # --- issues ------------------------------------------------------------------------------------------------

    def create_issue(self, title: str, body: str = "", *, labels: tuple[str, ...] = (), author: str = "") -> Issue:
        """Write a new issue; what a person does on the site of another forge."""
        with self._files.turn():
            number = self._files.next_number(NUMBER)
            data = self._new_item(title, body, author=author or self._login, labels=labels)
            self._files.write(ISSUES, number, data)

        return self._to_issue(number, data)

    def close_issue(self, number: int) -> Issue:
        """Close an issue; one that is closed already is fine."""
        with self._files.turn():
            return self._to_issue(number, self._change(ISSUES, number, state="closed"))

    def issue(self, number: int) -> Issue:
        """Return an issue."""
        return self._to_issue(number, self._must_read(ISSUES, number))

    def issues(self, *, label: str = "", state: str = "open", limit: int = 100) -> tuple[Issue, ...]:
        """Return issues, newest first."""
        found: list[Issue] = []
        for number in self._files.numbers(ISSUES):
            if len(found) >= limit:
                break
            issue = self.issue(number)
            if state in {"all", issue.state} and (not label or label in issue.labels):
                found.append(issue)

        return tuple(found)

    def add_labels(self, number: int, labels: tuple[str, ...]) -> None:
        """Put labels on an issue or pull request."""
        with self._files.turn():
            kind = self._kind_of(number)
            has = _texts(self._must_read(kind, number), "labels")
            self._change(kind, number, labels=list(dict.fromkeys([*has, *labels])))

    def remove_label(self, number: int, label: str) -> None:
        """Take a label off; one that is not there is fine."""
        with self._files.turn():
            kind = self._kind_of(number)
            has = _texts(self._must_read(kind, number), "labels")
            self._change(kind, number, labels=[one for one in has if one != label])

    # --- comments ----------------------------------------------------------------------------------------------

    def comments(self, number: int, *, since: str = "") -> tuple[Comment, ...]:
        """Return the comments, oldest first; with *since* those made or changed since then."""
        data = self._must_read(self._kind_of(number), number)
        found = sorted(objects_in(data, "comments"), key=_id_of)
        if since:
            moment = timestamps.parse(since)
            found = [one for one in found if _changed_at(one) >= moment]

        return tuple(self._to_comment(number, one) for one in found)

    def create_comment(self, number: int, body: str) -> Comment:
        """Post a comment."""
        with self._files.turn():
            kind = self._kind_of(number)
            data = self._must_read(kind, number)
            comment: JsonObject = {
                "id": self._files.next_number(COMMENT),
                "author": self._login,
                "body": forge_texts.outgoing_body(body, self._scrub),
                "created_at": self._now(),
                "updated_at": self._now(),
            }
            self._change(kind, number, comments=[*objects_in(data, "comments"), comment])

        return self._to_comment(number, comment)

    def edit_comment(self, comment_id: int, body: str) -> Comment:
        """Replace a comment's text."""
        with self._files.turn():
            kind, number, data = self._holder_of(comment_id)
            text = forge_texts.outgoing_body(body, self._scrub)
            found = [
                {**one, "body": text, "updated_at": self._now()} if _id_of(one) == comment_id else one
                for one in objects_in(data, "comments")
            ]
            self._change(kind, number, comments=list(found))

        return next(self._to_comment(number, one) for one in found if _id_of(one) == comment_id)

    def delete_comment(self, comment_id: int) -> None:
        """Delete a comment; one that is gone is fine."""
        with self._files.turn():
            try:
                kind, number, data = self._holder_of(comment_id)
            except ForgeNotFound:
                return
            left = [one for one in objects_in(data, "comments") if _id_of(one) != comment_id]
            self._change(kind, number, comments=list(left))

    def _holder_of(self, comment_id: int) -> tuple[str, int, JsonObject]:
        for kind in (ISSUES, PULLS):
            for number in self._files.numbers(kind):
                data = self._must_read(kind, number)
                if any(_id_of(one) == comment_id for one in objects_in(data, "comments")):
                    return kind, number, data

        raise ForgeNotFound(f"there is no comment {comment_id} in {self._files.root}")

    # --- pull requests -----------------------------------------------------------------------------------------

    def pull_request(self, number: int) -> PullRequest:
        """Return a pull request."""
        return self._to_pull_request(number, self._must_read(PULLS, number))

    def pull_requests_of(self, head: str, *, state: str = "all") -> tuple[PullRequest, ...]:
        """Return the pull requests from branch *head*, newest first."""
        return tuple(one for one in self._pulls_from(head) if state in {"all", one.state})

    def _pulls_from(self, head: str) -> Iterator[PullRequest]:
        for number in self._files.numbers(PULLS):
            data = self._must_read(PULLS, number)
            if data.get("head") == head:
                yield self._to_pull_request(number, data)

    def create_pull_request(self, new: NewPullRequest) -> PullRequest:
        """Open a pull request; head and base must be in the remote, with something between them."""
        with self._files.turn():
            head_sha, base_sha = self._git.commit_of(new.head), self._git.commit_of(new.base)
            for branch, commit in ((new.head, head_sha), (new.base, base_sha)):
                if commit is None:
                    raise ForgeRefused(422, f"there is no branch {branch} in {self._git.path}: push it first")
            if any(one.state == "open" for one in self._pulls_from(new.head)):
                raise ForgeRefused(422, f"a pull request for {new.head} is open already")
            if head_sha and base_sha and self._git.has(head_sha, inside=base_sha):
                raise ForgeRefused(422, f"there are no commits between {new.base} and {new.head}")
            number = self._files.next_number(NUMBER)
            data = {
                **self._new_item(new.title, new.body, author=self._login),
                "head": new.head,
                "head_sha": head_sha,
                "base": new.base,
                "is_draft": new.is_draft,
            }
            self._files.write(PULLS, number, data)

        return self._to_pull_request(number, data)

    def edit_pull_request(
        self, number: int, *, title: str | None = None, body: str | None = None, is_draft: bool | None = None
    ) -> PullRequest:
        """Change a pull request."""
        changes: JsonObject = {}
        if title is not None:
            changes["title"] = forge_texts.outgoing_title(title, self._scrub)
        if body is not None:
            changes["body"] = forge_texts.outgoing_body(body, self._scrub)
        if is_draft is not None:
            changes["is_draft"] = is_draft
        with self._files.turn():
            return self._to_pull_request(number, self._change(PULLS, number, **changes))

    def close_pull_request(self, number: int) -> PullRequest:
        """Close it; one that is closed or merged already is fine."""
        with self._files.turn():
            found = self.pull_request(number)
            if found.state != "open":
                return found
            return self._to_pull_request(number, self._change(PULLS, number, state="closed", head_sha=found.head_sha))

    def merge_pull_request(self, number: int, *, sha: str, method: str = "squash") -> PullRequest:
        """Merge it into its base in the bare repository, by squash or merge, if its head is *sha*."""
        if method not in {"squash", "merge"}:
            raise ForgeRefused(405, f"a local forge merges by squash or merge, not by {method}")
        with self._files.turn():
            found = self.pull_request(number)
            if found.is_merged:
                return self._write_merged(found)
            _refuse_unmergeable(found, sha)
            self._merge(found, is_squash=method == "squash")
            return self._write_merged(found)

    def _merge(self, found: PullRequest, *, is_squash: bool) -> None:
        base = self._git.commit_of(found.base)
        if base is None:
            raise ForgeRefused(405, f"the branch {found.base} is gone")
        message = f"{found.title} (#{found.number})\n\n{found.body}".strip()
        commit = self._git.merged_commit(found.head_sha, onto=base, message=message, is_squash=is_squash)
        if commit is None:
            raise ForgeRefused(405, f"{found.head} conflicts with {found.base}: bring it up to date first")
        # Written before the branch moves: after a crash it is seen that the branch has this commit.
        self._change(PULLS, found.number, merge_commit=commit)
        if not self._git.move(found.base, commit, expected=base):
            raise ForgeRefused(409, f"{found.base} moved meanwhile: ask again")

    def _write_merged(self, found: PullRequest) -> PullRequest:
        data = self._change(PULLS, found.number, state="closed", is_merged=True, head_sha=found.head_sha)
        for number in {int(one) for one in _CLOSES.findall(found.body)}:
            if self._files.read(ISSUES, number) is not None:
                self._change(ISSUES, number, state="closed")

        return self._to_pull_request(found.number, data)

    # --- files and nouns ---------------------------------------------------------------------------------------

    def _new_item(self, title: str, body: str, *, author: str, labels: tuple[str, ...] = ()) -> JsonObject:
        return {
            "title": forge_texts.outgoing_title(title, self._scrub),
            "body": forge_texts.outgoing_body(body, self._scrub),
            "author": author,
            "state": "open",
            "labels": list(labels),
            "assignees": [],
            "comments": [],
            "created_at": self._now(),
            "updated_at": self._now(),
        }

    def _change(self, kind: str, number: int, **changes: JsonValue) -> JsonObject:
        data = {**self._must_read(kind, number), **changes, "updated_at": self._now()}
        self._files.write(kind, number, data)

        return data

    def _kind_of(self, number: int) -> str:
        return PULLS if self._files.read(PULLS, number) is not None else ISSUES

    def _must_read(self, kind: str, number: int) -> JsonObject:
        data = self._files.read(kind, number)
        if data is None:
            what = "issue" if kind == ISSUES else "pull request"
            raise ForgeNotFound(f"there is no {what} {number} in {self._files.root}")

        return data

    def _now(self) -> str:
        return timestamps.to_text(self._clock.now())

    def _url(self, kind: str, number: int) -> str:
        return (self._files.root / kind / f"{number}.json").as_uri()

    def _to_issue(self, number: int, data: JsonObject) -> Issue:
        return Issue(
            number=number,
            title=_text(data, "title"),
            body=_text(data, "body"),
            author=_text(data, "author"),
            url=self._url(ISSUES, number),
            state=_text(data, "state") or "open",
            labels=_texts(data, "labels"),
            assignees=_texts(data, "assignees"),
        )

    def _to_comment(self, number: int, data: JsonObject) -> Comment:
        return Comment(
            comment_id=_id_of(data),
            body=_text(data, "body"),
            author=_text(data, "author"),
            url=f"{self._url(self._kind_of(number), number)}#{_id_of(data)}",
            created_at=_text(data, "created_at"),
        )

    def _to_pull_request(self, number: int, data: JsonObject) -> PullRequest:
        is_open = _text(data, "state") == "open"
        # What is over keeps the commit it ended with, whatever becomes of the branch.
        now = self._git.commit_of(_text(data, "head")) if is_open else None
        head_sha = now or _text(data, "head_sha")
        is_merged = data.get("is_merged") is True or (is_open and self._is_in_base(data, head_sha))

        return PullRequest(
            number=number,
            title=_text(data, "title"),
            body=_text(data, "body"),
            head=_text(data, "head"),
            head_sha=head_sha,
            base=_text(data, "base"),
            state="closed" if is_merged else _text(data, "state"),
            is_draft=data.get("is_draft") is True,
            is_merged=is_merged,
            author=_text(data, "author"),
            url=self._url(PULLS, number),
        )

    def _is_in_base(self, data: JsonObject, head_sha: str) -> bool:
        base = self._git.commit_of(_text(data, "base"))
        if base is None:
            return False
        commits = filter(None, (_text(data, "merge_commit"), head_sha))

        return any(self._git.has(commit, inside=base) for commit in commits)


def _refuse_unmergeable(found: PullRequest, sha: str) -> None:
    if found.state != "open":
        raise ForgeRefused(405, f"pull request {found.number} is closed")
    if found.is_draft:
        raise ForgeRefused(405, f"pull request {found.number} is a draft")
    if found.head_sha != sha:
        raise ForgeRefused(409, f"{found.head} is at {found.head_sha[:12]}, not at {sha[:12]}: look at it again")


def _text(data: JsonObject, name: str) -> str:
    value = data.get(name)

    return value if isinstance(value, str) else ""


def _texts(data: JsonObject, name: str) -> tuple[str, ...]:
    value = data.get(name)

    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def _changed_at(data: JsonObject) -> datetime:
    """Return when a comment was changed last; one that was written by hand may not say."""
    return timestamps.parse(_text(data, "updated_at") or _text(data, "created_at") or timestamps.UNKNOWN_MOMENT)


def _id_of(data: JsonObject) -> int:
    value = data.get("id")

    return value if isinstance(value, int) else 0
