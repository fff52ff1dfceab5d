"""
Data types and the interface of a forge, which hosts issues and pull requests.

Creating means find or create by a marker and is never retried blindly: after a lost reply the caller looks it up first.
A forge knows nothing about workflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True, slots=True)
class Issue:
    """An issue as the forge has it."""

    number: int
    title: str
    body: str = ""
    author: str = ""
    url: str = ""
    state: str = "open"  #: open | closed
    labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Comment:
    """A comment on an issue or a pull request."""

    comment_id: int
    body: str
    author: str = ""
    url: str = ""
    created_at: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequest:
    """A pull request."""

    number: int
    title: str
    body: str
    head: str  #: branch
    head_sha: str
    base: str  #: branch
    state: str  #: open | closed
    is_draft: bool = False
    is_merged: bool = False
    author: str = ""
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewPullRequest:
    """A pull request to be opened."""

    title: str
    body: str
    head: str
    base: str
    is_draft: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ForgeAccess:
    """Our permissions on a forge, as the forge reports them."""

    login: str
    may_push: bool | None = None  #: None: not reported
    may_write_issues: bool | None = None
    scopes: tuple[str, ...] | None = None  #: of the token; None: it has no scopes to show
    is_private: bool = False
    requests_left: int | None = None  #: in this hour
    server_time: str = ""  #: its clock in HTTP format; "" if not reported


class Forge(Protocol):
    """
    A place with issues and pull requests, for one repository.

    Raises ForgeNotFound, ForgeRefused (with the HTTP status), ForgeUnavailable (the effect is unknown) and ForgeBusy
    (with the time to wait). Look-ups may be repeated; creating calls may not.
    """

    @property
    def repository(self) -> str:
        """owner/name."""

    def login(self) -> str:
        """Return our own login on the forge."""

    def default_branch(self) -> str:
        """Return the branch that pull requests go to."""

    def permission(self, login: str) -> str:
        """Return the permission of *login*: admin | maintain | write | triage | read | none."""

    # --- issues ------------------------------------------------------------------------------------------------

    def issue(self, number: int) -> Issue:
        """Return an issue."""

    def issues(self, *, label: str = "", state: str = "open", limit: int = 100) -> tuple[Issue, ...]:
        """Return issues, newest first."""

    def add_labels(self, number: int, labels: tuple[str, ...]) -> None:
        """Add labels to an issue or pull request; existing ones stay. May be repeated."""

    def remove_label(self, number: int, label: str) -> None:
        """Remove a label; a missing one is fine. May be repeated."""

    # --- comments ----------------------------------------------------------------------------------------------

    def comments(self, number: int, *, since: str = "") -> tuple[Comment, ...]:
        """Return the comments of an issue or pull request, oldest first."""

    def create_comment(self, number: int, body: str) -> Comment:
        """Post a comment. Not repeated."""

    def edit_comment(self, comment_id: int, body: str) -> Comment:
        """Replace a comment's text. May be repeated."""

    def delete_comment(self, comment_id: int) -> None:
        """Delete a comment; one that is gone is fine."""

    # --- pull requests -----------------------------------------------------------------------------------------

    def pull_request(self, number: int) -> PullRequest:
        """Return a pull request."""

    def pull_requests_of(self, head: str, *, state: str = "all") -> tuple[PullRequest, ...]:
        """Return the pull requests from branch *head*, newest first."""

    def create_pull_request(self, new: NewPullRequest) -> PullRequest:
        """Open a pull request. Not repeated."""

    def edit_pull_request(
        self, number: int, *, title: str | None = None, body: str | None = None, is_draft: bool | None = None
    ) -> PullRequest:
        """Change a pull request. May be repeated."""

    def close_pull_request(self, number: int) -> PullRequest:
        """Close the pull request; a closed one is fine."""

    def merge_pull_request(self, number: int, *, sha: str, method: str = "squash") -> PullRequest:
        """Merge the pull request if its head is *sha*; a merged one is fine."""

    def remote_url(self) -> str:
        """Return the URL for git pushes, without a secret in it."""

    def close(self) -> None:
        """Close connections and files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IssueText:
    """An issue as in the payload, unaffected by later edits."""

    number: int
    title: str
    body: str
    author: str = ""
    url: str = ""
    labels: tuple[str, ...] = ()
    is_pull_request: bool = False


# Optional abilities of a forge besides `Forge`: who put a label on, and which webhook deliveries failed.
#
# Data types only. Without them the author of an issue counts as the requester.


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """Who put a label on an issue last, and when."""

    login: str
    at: str  #: timestamps.to_text
    is_bot: bool = False
    created_at: str = ""  #: of the issue, in the forge's format
    raw_at: str = ""  #: `at` in the forge's format


@dataclass(frozen=True, kw_only=True, slots=True)
class HookDelivery:
    """One attempt of the forge to send us a webhook delivery."""

    hook_id: int
    delivery_id: int
    guid: str
    is_ok: bool
    at: str  #: timestamps.to_text
    event: str = ""


@runtime_checkable
class KnowsLabellers(Protocol):
    """A forge that reports who put a label on."""

    def labelled(self, number: int, label: str) -> Labelled | None:
        """Return who last put *label* on the issue, or None if nobody did."""


@runtime_checkable
class Redelivers(Protocol):
    """A forge that records its webhook deliveries and can repeat them."""

    def hook_deliveries(self, *, since: str) -> tuple[HookDelivery, ...]:
        """Return every delivery attempt since a moment, newest first."""

    def redeliver(self, hook_id: int, delivery_id: int) -> None:
        """Ask the forge to send a delivery again. Not repeated."""
