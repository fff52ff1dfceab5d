"""
A forge without an account or a server: issues and pull requests are JSON files, next to a bare git repository.

It keeps the same contract as GitHub. The repository decides whether a pull request is merged, so that merges by hand
and merges interrupted by a crash are noticed. Nobody's checkout is touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adws.adw_modules import durable_file, timestamps
from adws.adw_modules.durable_file import replace_file
from adws.adw_modules.errors import (
    ForgeBusy,
    ForgeNotFound,
    ForgeRefused,
    GitError,
    LockUnavailable,
    StateCorrupt,
    StateReadFailed,
    StateWriteFailed,
    UnsafePath,
)
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.model import Comment, Issue, NewPullRequest, PullRequest
from adws.adw_modules.git.git import GitCommands
from adws.adw_modules.git.private_dir import NAME as PRIVATE
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock

ISSUES, PULLS = "issues", "pulls"
#: Counters of numbers (issues and pull requests share them) and of comments.
NUMBER, COMMENT = "last_number", "last_comment"
#: The bare repository, in the directory of the forge.
REMOTE_NAME = "remote.git"

#: Seconds that a change waits for the lock.
TURN_SECONDS = 10.0
_POLL_SECONDS = 0.01
_COUNTS = "forge.json"
_LOCK = ".lock"
_MAX_BYTES = 64 * 1024 * 1024
_CORRECT = "correct the file, or move it away"
_CLOSES = re.compile(r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+#(\d{1,9})\b", re.IGNORECASE)
_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{|\.lock(?:/|$)))[A-Za-z0-9_][\w./+@#-]*(?<![./])")


class StoredComment(BaseModel):
    """A comment in the file of its issue or pull request; one written by hand may lack any field."""

    model_config = ConfigDict(extra="allow")

    id: int = 0
    author: str = ""
    body: str = ""
    created_at: str = ""
    updated_at: str = ""


class StoredItem(BaseModel):
    """The content of an issue's or pull request's file; one written by hand may lack any field."""

    model_config = ConfigDict(extra="allow")

    title: str = ""
    body: str = ""
    author: str = ""
    state: str = "open"  #: open | closed
    labels: list[str] = Field(default_factory=list)
    assignees: list[str] = Field(default_factory=list)
    comments: list[StoredComment] = Field(default_factory=list)
    created_at: str = ""
    updated_at: str = ""
    # For pull requests only.
    head: str = ""
    head_sha: str = ""
    base: str = ""
    is_draft: bool = False
    is_merged: bool = False
    merge_commit: str = ""


class LocalForge:
    """
    Issues and pull requests below *root*; implements `forge.Forge` and is safe for several processes.

    Each has one JSON file, which anybody can read and which is replaced atomically and durably. Numbers only grow, even
    if the item with the last one is gone: the counter is written before the item. A file lock allows one change at a
    time across all processes.
    """

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
        self._root = root
        self._repository = repository
        self._git = git
        self._clock = clock
        self._scrub = scrub
        self._login = login

    def prepare(self, default_branch: str = "main") -> None:
        """Create the directories and the bare repository if they are missing."""
        for place in (self._root, self._root / ISSUES, self._root / PULLS):
            try:
                durable_file.make_directory(str(place))
            except OSError as exc:
                raise StateWriteFailed(str(place), exc) from exc
        with self._turn():
            self._git.make(default_branch)

    def close(self) -> None:
        """Do nothing: no resource is kept open."""

    @property
    def repository(self) -> str:
        """owner/name."""
        return self._repository

    def login(self) -> str:
        """Return the name that adw uses on this forge."""
        return self._login

    def default_branch(self) -> str:
        """Return the branch that pull requests go to."""
        return self._git.default_branch()

    def permission(self, login: str) -> str:
        """Return the permission of *login*: admin for adw, others' from `{"people": {"alice": "write"}}` in a file."""
        if login == self._login:
            return "admin"
        people = self._counts().get("people")
        said = people.get(login) if isinstance(people, dict) else None

        return said if isinstance(said, str) else "none"

    def remote_url(self) -> str:
        """Return the directory that git pushes to."""
        return str(self._git.path)

    # --- issues ------------------------------------------------------------------------------------------------

    def create_issue(self, title: str, body: str = "", *, labels: tuple[str, ...] = (), author: str = "") -> Issue:
        """Create an issue, as a person does on the website of another forge."""
        with self._turn():
            number = self._next_number(NUMBER)
            item = self._new_item(title, body, author=author or self._login, labels=labels)
            self._write(ISSUES, number, item)

        return self._to_issue(number, item)

    def issue(self, number: int) -> Issue:
        """Return an issue."""
        return self._to_issue(number, self._read(ISSUES, number))

    def issues(self, *, label: str = "", state: str = "open", limit: int = 100) -> tuple[Issue, ...]:
        """Return issues, newest first."""
        result: list[Issue] = []
        for number in self._numbers(ISSUES):
            if len(result) >= limit:
                break
            issue = self.issue(number)
            if state in {"all", issue.state} and (not label or label in issue.labels):
                result.append(issue)

        return tuple(result)

    def add_labels(self, number: int, labels: tuple[str, ...]) -> None:
        """Add labels to an issue or pull request."""
        self._relabel(number, lambda has: list(dict.fromkeys([*has, *labels])))

    def remove_label(self, number: int, label: str) -> None:
        """Remove a label; a missing one is fine."""
        self._relabel(number, lambda has: [one for one in has if one != label])

    def _relabel(self, number: int, change: Callable[[list[str]], list[str]]) -> None:
        with self._turn():
            kind = self._kind_of(number)
            self._change(kind, number, labels=change(self._read(kind, number).labels))

    # --- comments ----------------------------------------------------------------------------------------------

    def comments(self, number: int, *, since: str = "") -> tuple[Comment, ...]:
        """Return the comments, oldest first; with *since* only those created or changed since then."""
        result = sorted(self._read(self._kind_of(number), number).comments, key=lambda one: one.id)
        if since:
            # A comment written by hand may lack its date.
            moments = [one.updated_at or one.created_at or timestamps.UNKNOWN_MOMENT for one in result]
            later = [timestamps.parse(moment) >= timestamps.parse(since) for moment in moments]
            result = [one for one, is_later in zip(result, later, strict=True) if is_later]

        return tuple(self._to_comment(number, one) for one in result)

    def create_comment(self, number: int, body: str) -> Comment:
        """Post a comment."""
        with self._turn():
            kind = self._kind_of(number)
            item = self._read(kind, number)
            comment = StoredComment(
                id=self._next_number(COMMENT),
                author=self._login,
                body=forge_text.outgoing_body(body, self._scrub),
                created_at=self._now(),
                updated_at=self._now(),
            )
            self._change(kind, number, comments=[*item.comments, comment])

        return self._to_comment(number, comment)

    def edit_comment(self, comment_id: int, body: str) -> Comment:
        """Replace a comment's text."""
        with self._turn():
            kind, number, comments = self._holder_of(comment_id)
            place = [one.id for one in comments].index(comment_id)
            changes = {"body": forge_text.outgoing_body(body, self._scrub), "updated_at": self._now()}
            comments[place] = comments[place].model_copy(update=changes)
            self._change(kind, number, comments=comments)

        return self._to_comment(number, comments[place])

    def delete_comment(self, comment_id: int) -> None:
        """Delete a comment; one that is gone is fine."""
        with self._turn():
            try:
                kind, number, comments = self._holder_of(comment_id)
            except ForgeNotFound:
                return
            self._change(kind, number, comments=[one for one in comments if one.id != comment_id])

    def _holder_of(self, comment_id: int) -> tuple[str, int, list[StoredComment]]:
        """Return kind and number of the item with the comment, and all comments of that item."""
        for kind in (ISSUES, PULLS):
            for number in self._numbers(kind):
                comments = self._read(kind, number).comments
                if any(one.id == comment_id for one in comments):
                    return kind, number, comments

        raise ForgeNotFound(f"there is no comment {comment_id} in {self._root}")

    # --- pull requests -----------------------------------------------------------------------------------------

    def pull_request(self, number: int) -> PullRequest:
        """Return a pull request."""
        return self._to_pull_request(number, self._read(PULLS, number))

    def pull_requests_of(self, head: str, *, state: str = "all") -> tuple[PullRequest, ...]:
        """Return the pull requests from branch *head*, newest first."""
        items = ((number, self._read(PULLS, number)) for number in self._numbers(PULLS))
        pulls = (self._to_pull_request(number, item) for number, item in items if item.head == head)

        return tuple(one for one in pulls if state in {"all", one.state})

    def create_pull_request(self, new: NewPullRequest) -> PullRequest:
        """Open a pull request; head and base must exist in the remote and differ by at least one commit."""
        with self._turn():
            head_sha, base_sha = self._git.commit_of(new.head), self._git.commit_of(new.base)
            for branch, commit in ((new.head, head_sha), (new.base, base_sha)):
                if commit is None:
                    raise ForgeRefused(422, f"there is no branch {branch} in {self._git.path}: push it first")
            if self.pull_requests_of(new.head, state="open"):
                raise ForgeRefused(422, f"a pull request for {new.head} is open already")
            if head_sha and base_sha and self._git.has(head_sha, inside=base_sha):
                raise ForgeRefused(422, f"there are no commits between {new.base} and {new.head}")
            number = self._next_number(NUMBER)
            branches = {"head": new.head, "head_sha": head_sha, "base": new.base, "is_draft": new.is_draft}
            item = self._new_item(new.title, new.body, author=self._login).model_copy(update=branches)
            self._write(PULLS, number, item)

        return self._to_pull_request(number, item)

    def edit_pull_request(
        self, number: int, *, title: str | None = None, body: str | None = None, is_draft: bool | None = None
    ) -> PullRequest:
        """Change a pull request."""
        changes: dict[str, object] = {}
        if title is not None:
            changes["title"] = forge_text.outgoing_title(title, self._scrub)
        if body is not None:
            changes["body"] = forge_text.outgoing_body(body, self._scrub)
        if is_draft is not None:
            changes["is_draft"] = is_draft
        with self._turn():
            return self._to_pull_request(number, self._change(PULLS, number, **changes))

    def close_pull_request(self, number: int) -> PullRequest:
        """Close the pull request; a closed or merged one is fine."""
        with self._turn():
            result = self.pull_request(number)
            if result.state != "open":
                return result
            return self._to_pull_request(number, self._change(PULLS, number, state="closed", head_sha=result.head_sha))

    def merge_pull_request(self, number: int, *, sha: str, method: str = "squash") -> PullRequest:
        """Merge the pull request into its base in the bare repository, by squash or merge, if its head is *sha*."""
        if method not in {"squash", "merge"}:
            raise ForgeRefused(405, f"a local forge merges by squash or merge, not by {method}")
        with self._turn():
            pull = self.pull_request(number)
            if not pull.is_merged:
                if pull.state != "open":
                    raise ForgeRefused(405, f"pull request {number} is closed")
                if pull.is_draft:
                    raise ForgeRefused(405, f"pull request {number} is a draft")
                if pull.head_sha != sha:
                    raise ForgeRefused(
                        409, f"{pull.head} is at {pull.head_sha[:12]}, not at {sha[:12]}: look at it again"
                    )
                base = self._git.commit_of(pull.base)
                if base is None:
                    raise ForgeRefused(405, f"the branch {pull.base} is gone")
                message = f"{pull.title} (#{pull.number})\n\n{pull.body}".strip()
                commit = self._git.merged_commit(
                    pull.head_sha, onto=base, message=message, is_squash=method == "squash"
                )
                if commit is None:
                    raise ForgeRefused(405, f"{pull.head} conflicts with {pull.base}: bring it up to date first")
                # Recorded before the branch moves: after a crash, the merge is recognised by this commit on the branch.
                self._change(PULLS, number, merge_commit=commit)
                if not self._git.move(pull.base, commit, expected=base):
                    raise ForgeRefused(409, f"{pull.base} moved meanwhile: ask again")
            item = self._change(PULLS, number, state="closed", is_merged=True, head_sha=pull.head_sha)
            for issue in {int(one) for one in _CLOSES.findall(pull.body)}:
                if self._path(ISSUES, issue).exists():
                    self._change(ISSUES, issue, state="closed")

        return self._to_pull_request(number, item)

    # --- files -------------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the forge's lock inside the block, for changes of files. Raises ForgeBusy if others hold it too long."""
        path = self._root / _LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, durable_file.NEW_FILE_MODE)
        except OSError as exc:
            raise LockUnavailable(str(path), exc) from exc
        try:
            until = self._clock.monotonic() + TURN_SECONDS
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if self._clock.monotonic() >= until:
                    raise ForgeBusy(1.0, f"somebody else is changing {self._root}")
                self._clock.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(fd)  # the file stays: two processes could hold "the" lock on two different files

    def _next_number(self, counter: str) -> int:
        """Return a number that was never used before; only inside `_turn`."""
        counts = self._counts()
        # Files may have been added by hand, and the counters may be lost.
        used = [(kind, number) for kind in (ISSUES, PULLS) for number in self._numbers(kind)]
        numbers = [number for _, number in used]
        if counter == COMMENT:
            numbers = [one.id for kind, number in used for one in self._read(kind, number).comments]
        last = counts.get(counter)
        number = max([*numbers, last if isinstance(last, int) else 0]) + 1
        self._replace(self._root / _COUNTS, {**counts, counter: number})

        return number

    def _numbers(self, kind: str) -> tuple[int, ...]:
        """Return the existing numbers, highest first."""
        try:
            names = [path.name for path in (self._root / kind).iterdir()]
        except FileNotFoundError:
            return ()
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))

        return tuple(sorted((int(stem) for stem in stems if stem.isascii() and stem.isdigit()), reverse=True))

    def _path(self, kind: str, number: int) -> Path:
        return self._root / kind / f"{number}.json"

    def _kind_of(self, number: int) -> str:
        return PULLS if self._path(PULLS, number).exists() else ISSUES

    def _read(self, kind: str, number: int) -> StoredItem:
        """Return the content of a file; raise ForgeNotFound, or StateCorrupt if it is invalid."""
        path = self._path(kind, number)
        data = self._load(path)
        if data is None:
            what = "issue" if kind == ISSUES else "pull request"
            raise ForgeNotFound(f"there is no {what} {number} in {self._root}")
        try:
            return StoredItem.model_validate(data)
        except ValidationError as exc:
            raise StateCorrupt(str(path), str(exc), _CORRECT) from exc

    def _counts(self) -> JsonObject:
        return self._load(self._root / _COUNTS) or {}

    def _load(self, path: Path) -> JsonObject | None:
        try:
            payload, _ = durable_file.read_file(str(path), max_bytes=_MAX_BYTES)
            data = json.loads(payload)
        except FileNotFoundError:
            return None
        except UnsafePath:
            raise
        except (ValueError, durable_file.TooLarge) as exc:
            raise StateCorrupt(str(path), str(exc), _CORRECT) from exc
        except OSError as exc:
            raise StateReadFailed(str(path), exc) from exc
        if not isinstance(data, dict):
            raise StateCorrupt(str(path), "it is no JSON object", _CORRECT)

        return data

    def _write(self, kind: str, number: int, item: StoredItem) -> None:
        """Replace a file durably; only inside `_turn`."""
        self._replace(self._path(kind, number), item.model_dump(exclude_unset=True))

    def _replace(self, path: Path, data: JsonObject) -> None:
        payload = json.dumps(data, indent=1, ensure_ascii=False, sort_keys=True).encode() + b"\n"
        try:
            directory = durable_file.open_directory(str(path.parent))
        except OSError as exc:
            raise StateWriteFailed(str(path), exc) from exc
        try:
            replace_file(directory, path.name, payload, path=str(path))
        finally:
            durable_file.close_quietly(directory)

    def _change(self, kind: str, number: int, **changes: object) -> StoredItem:
        item = self._read(kind, number).model_copy(update={**changes, "updated_at": self._now()})
        self._write(kind, number, item)

        return item

    # --- values ------------------------------------------------------------------------------------------------

    def _now(self) -> str:
        return timestamps.to_text(self._clock.now())

    def _new_item(self, title: str, body: str, *, author: str, labels: tuple[str, ...] = ()) -> StoredItem:
        return StoredItem(
            title=forge_text.outgoing_title(title, self._scrub),
            body=forge_text.outgoing_body(body, self._scrub),
            author=author,
            state="open",
            labels=list(labels),
            comments=[],
            created_at=self._now(),
            updated_at=self._now(),
        )

    def _to_issue(self, number: int, item: StoredItem) -> Issue:
        return Issue(
            number=number,
            title=item.title,
            body=item.body,
            author=item.author,
            url=self._path(ISSUES, number).as_uri(),
            state=item.state or "open",
            labels=tuple(item.labels),
            assignees=tuple(item.assignees),
        )

    def _to_comment(self, number: int, comment: StoredComment) -> Comment:
        return Comment(
            comment_id=comment.id,
            body=comment.body,
            author=comment.author,
            url=f"{self._path(self._kind_of(number), number).as_uri()}#{comment.id}",
            created_at=comment.created_at,
        )

    def _to_pull_request(self, number: int, item: StoredItem) -> PullRequest:
        is_open = item.state == "open"
        # A closed pull request keeps its last commit, whatever happens to the branch.
        head_sha = (self._git.commit_of(item.head) if is_open else None) or item.head_sha
        base = self._git.commit_of(item.base) if is_open and not item.is_merged else None
        is_merged = item.is_merged or (
            base is not None
            and any(self._git.has(commit, inside=base) for commit in (item.merge_commit, head_sha) if commit)
        )

        return PullRequest(
            number=number,
            title=item.title,
            body=item.body,
            head=item.head,
            head_sha=head_sha,
            base=item.base,
            state="closed" if is_merged else item.state,
            is_draft=item.is_draft,
            is_merged=is_merged,
            author=item.author,
            url=self._path(PULLS, number).as_uri(),
        )


class BareRepository:
    """
    One bare repository, read and merged in without a checkout.

    A merge makes a tree, a commit and one compare-and-set of the branch: nobody's working files are touched, and a
    crash in between leaves only an unreferenced object. git ignores all settings and hooks, even those of the
    repository itself: a phase can write there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._git = GitCommands(
            path.parent, private=path.with_name(PRIVATE), common_dir=path, author="adw <adw@localhost>"
        )

    def make(self, default_branch: str) -> None:
        """Create the repository if it is missing."""
        if not (self.path / "HEAD").is_file():
            self._git.plain("init", "--quiet", "--bare", f"--initial-branch={default_branch}", str(self.path))

    def default_branch(self) -> str:
        """Return the branch that HEAD names."""
        return self._git.run("symbolic-ref", "--short", "HEAD").text.strip()

    def commit_of(self, branch: str) -> str | None:
        """Return the commit of a branch, or None if it does not exist."""
        return self._git.commit_of(f"refs/heads/{branch}") if _BRANCH.fullmatch(branch) else None

    def has(self, commit: str, *, inside: str) -> bool:
        """Say whether *commit* is in the history of the commit *inside*."""
        return self._git.run("merge-base", "--is-ancestor", commit, inside, ok=None).status == 0

    def merged_commit(self, head: str, *, onto: str, message: str, is_squash: bool) -> str | None:
        """Return a new commit that merges *head* into *onto*, or None on a conflict; no branch is moved."""
        answer = self._git.run("merge-tree", "--write-tree", "--name-only", onto, head, ok=None)
        tree = answer.text.partition("\n")[0]
        if answer.status == 1 and tree:
            return None
        if answer.status != 0 or not tree:
            raise GitError(f"git could not merge {head[:12]} into {onto[:12]}: {answer.reason}")
        parents = ("-p", onto) if is_squash else ("-p", onto, "-p", head)

        return self._git.run("commit-tree", *parents, "-m", message, tree).text.strip()

    def move(self, branch: str, commit: str, *, expected: str) -> bool:
        """Move *branch* from *expected* to *commit*; return False if it is elsewhere."""
        asked = ("-c", "core.logAllRefUpdates=false", "update-ref", f"refs/heads/{branch}", commit, expected)

        return self._git.run(*asked, ok=None).status == 0
