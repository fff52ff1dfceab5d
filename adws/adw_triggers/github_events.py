"""
What a delivery asks for, by its event and its action.

Pure. Each event has one function. People are answered only where they asked; whether they may have it is decided by
the worker, at the forge. What CI or a merge says is a fact and not a wish, so it does not matter who sent it: the
worker holds it against the pull request and the commit that it has on record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from adws.adw_modules import timestamps
from adws.adw_modules.deliveries.commands import Actor, Command, Ignored, RunRequest, Verdict
from adws.adw_modules.forge.model import IssueText
from adws.adw_modules.identifiers import JsonObject, comparable
from adws.adw_triggers import comment_commands
from adws.adw_triggers.comment_commands import Ambiguous, CommentCommand

if TYPE_CHECKING:
    from adws.config.settings import Settings


# Parts of a payload, each in the one form that is used, whatever was sent.
#
# Pure. A part that is missing, null or of another type is empty: senders leave out what they like, and a text may be
# null where nobody wrote one.


#: Most that is taken of a text: forges allow 65,536 characters in a body and 256 in a title.
MAX_BODY, MAX_TITLE, MAX_NAME, MAX_LABELS = 100_000, 1_000, 200, 100
#: The highest number that a database takes.
_MAX_NUMBER = 2**53
#: The login that GitHub shows for a user who deleted their account.
_GHOST = "ghost"


def object_in(data: JsonObject, name: str) -> JsonObject:
    """Return the object *name*, an empty one when there is none."""
    value = data.get(name)

    return value if isinstance(value, dict) else {}


def objects_in(data: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of the list *name*."""
    value = data.get(name)

    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_in(data: JsonObject, name: str, *, limit: int = MAX_NAME) -> str:
    """Return the text *name*, without what no database stores, at most *limit* characters of it."""
    value = data.get(name)
    if not isinstance(value, str):
        return ""
    kept = value[:limit].replace("\x00", "\ufffd")

    return kept.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number_in(data: JsonObject, name: str) -> int | None:
    """Return the number *name*, which counts from 1; None when it is none."""
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_NUMBER:
        return None

    return value


def login_in(data: JsonObject, name: str) -> str:
    """Return the login of the user *name*, "" for one whose account was deleted."""
    login = text_in(object_in(data, name), "login")

    return "" if login.lower() == _GHOST else login


def actor_in(data: JsonObject, name: str = "sender") -> Actor:
    """Return the actor under *name*."""
    login = login_in(data, name)
    kind = text_in(object_in(data, name), "type")

    return Actor(login=login, is_bot=kind == "Bot" or login.endswith("[bot]"))


def issue_in(data: JsonObject) -> IssueText:
    """Return the issue of a payload that has one, as it was when the delivery was made."""
    issue = object_in(data, "issue")
    labels = (text_in(label, "name") for label in objects_in(issue, "labels")[:MAX_LABELS])

    return IssueText(
        number=number_in(issue, "number") or 0,
        title=text_in(issue, "title", limit=MAX_TITLE),
        body=text_in(issue, "body", limit=MAX_BODY),
        author=login_in(issue, "user"),
        url=text_in(issue, "html_url", limit=MAX_TITLE),
        labels=tuple(label for label in labels if label),
        is_pull_request=bool(issue.get("pull_request")),
    )


# The rules for deliveries: whose they may be, and which events count.
#
# Data only, and how the settings spell them.


#: What can be switched on and off, and which deliveries it is about.
LABEL, COMMENT, OPENED, ASSIGNED, CLOSED = "label", "comment", "opened", "assigned", "closed"
PULL_REQUEST = "pull_request"
REVIEW, CHECKS = "review", "checks"
#: What follows a pull request up: on only when somebody wants it.
FOLLOW_UPS = frozenset({REVIEW, CHECKS})
USUAL = frozenset({LABEL, COMMENT, OPENED, ASSIGNED, CLOSED, PULL_REQUEST})

#: GitHub sends no larger ones.
MAX_BODY_BYTES = 25 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRules:
    """What a home takes, and from whom."""

    secrets: tuple[str, ...] = ()  #: one, or two while they are changed; none: nothing is taken
    repositories: tuple[str, ...] = ()  #: owner/name; none: nothing is taken
    label: str = "adw"  #: what starts a workflow when an issue gets it
    login: str = ""  #: of the account that adw has for itself; "": it has none
    bots: tuple[str, ...] = ()  #: logins of programs that may ask for something
    events: frozenset[str] = USUAL  #: what is switched on
    workflows: tuple[str, ...] = ()  #: names of workflows beyond those that come with adw
    max_body_bytes: int = MAX_BODY_BYTES


def rules_of(settings: Settings, *, workflows: Collection[str] = ()) -> DeliveryRules:
    """Return the rules that *settings* make; *workflows* are the names there are to start."""
    secrets = (settings.webhook_secret, settings.webhook_secret_next)
    named = settings.webhook_repositories or ((settings.repository,) if settings.repository else ())
    follow_ups = FOLLOW_UPS if settings.webhook_followups else frozenset()

    return DeliveryRules(
        secrets=tuple(secret for secret in secrets if secret),
        repositories=tuple(map(comparable, named)),
        label=settings.webhook_label,
        login=settings.webhook_login or "",
        bots=settings.webhook_bots or (),
        events=frozenset(settings.webhook_events) | follow_ups,
        workflows=tuple(workflows),
        max_body_bytes=settings.webhook_max_body_bytes,
    )


#: A label that comes with a new issue is told twice; both belong to one wish.
_AT_ONCE = timedelta(seconds=10)
#: Ends of checks that say that something is wrong with the commit.
_RED = frozenset({"failure", "timed_out", "startup_failure"})


class _EventContext(NamedTuple):
    """A delivery that is looked at."""

    payload: JsonObject
    repository: str
    actor: Actor
    rules: DeliveryRules


def verdict_of(event: str, action: str, payload: JsonObject, *, repository: str, rules: DeliveryRules) -> Verdict:
    """Return what a delivery whose shape was checked asks for."""
    if event == "ping":
        return Ignored(reason="the hook was set up, and this is its first sign of life")
    known = _EVENTS.get((event, action))
    if known is None:
        what = f"{event}.{action}" if action else event
        return Ignored(reason=f"nothing is done about {what[:120]}")
    switch, judge = known
    if switch not in rules.events:
        return Ignored(reason=f"{switch} is switched off in the settings of webhooks")

    return judge(_EventContext(payload, repository, actor_in(payload), rules))


# --- issues ----------------------------------------------------------------------------------------------------


def _labeled(told: _EventContext) -> Verdict:
    label = text_in(object_in(told.payload, "label"), "name")
    if label != told.rules.label:
        return Ignored(reason=f"the label is {label!r}, and {told.rules.label!r} starts a workflow")
    issue = issue_in(told.payload)
    reason = _rejection(told) or _why_not_here(told, issue)
    if reason:
        return Ignored(reason=reason)

    return _started(told, issue, cause="label", intent=_moment(told, f"label {label}"))


def _opened(told: _EventContext) -> Verdict:
    issue = issue_in(told.payload)
    has_label = told.rules.label in issue.labels and LABEL in told.rules.events
    asked = _said_by_author(told, issue)
    if isinstance(asked, Ambiguous):
        return Ignored(reason=asked.reason)
    if asked is None and not has_label:
        return Ignored(reason="the issue asks for no workflow")
    reason = _rejection(told) or _why_not_here(told, issue)
    if reason:
        return Ignored(reason=reason)

    return _started(told, issue, cause="label" if has_label else "opened", intent=_moment(told, "opened"))


def _assigned(told: _EventContext) -> Verdict:
    assignee = login_in(told.payload, "assignee")
    if not told.rules.login:
        return Ignored(reason="adw has no account of its own that an issue could be assigned to")
    if assignee.lower() != told.rules.login.lower():
        return Ignored(reason=f"the issue is assigned to {assignee or 'nobody'}, not to {told.rules.login}")
    issue = issue_in(told.payload)
    reason = _rejection(told) or _why_not_here(told, issue)
    if reason:
        return Ignored(reason=reason)

    return _started(told, issue, cause="assigned", intent=_moment(told, "assigned"))


def _closed(told: _EventContext) -> Verdict:
    issue = issue_in(told.payload)
    reason = _rejection(told)
    if reason:
        return Ignored(reason=reason)
    why = text_in(object_in(told.payload, "issue"), "state_reason")

    return Command(
        kind="abandon",
        repository=told.repository,
        number=issue.number,
        actor=told.actor,
        text=f"the issue was closed as {why}" if why else "the issue was closed",
        cause="closed",
        intent=_moment(told, "closed"),
        answers=False,
    )


def _started(told: _EventContext, issue: IssueText, *, cause: str, intent: str) -> RunRequest:
    # Options in the text of an issue count only for its author: no stranger chooses for the one who labels.
    asked = _said_by_author(told, issue)
    chosen = asked if isinstance(asked, CommentCommand) else comment_commands.CommentCommand()

    return RunRequest(
        repository=told.repository,
        issue=issue,
        actor=told.actor,
        workflow=chosen.workflow,
        adw_id=chosen.adw_id,
        model_set=chosen.model_set,
        cause=cause,
        intent=intent,
    )


def _said_by_author(told: _EventContext, issue: IssueText) -> CommentCommand | Ambiguous | None:
    if not issue.author or issue.author.lower() != told.actor.login.lower() or comment_commands.is_ours(issue.body):
        return None
    asked = comment_commands.read_body(issue.body, workflows=told.rules.workflows)
    if asked is None and comment_commands.read_options(issue.body).model_set and told.rules.label in issue.labels:
        return comment_commands.read_options(issue.body)

    return asked


def _moment(told: _EventContext, what: str) -> str:
    """Return the intent of something that happened to the issue: what came with a new issue is one with it."""
    issue = object_in(told.payload, "issue")
    number, created, updated = issue.get("number"), text_in(issue, "created_at"), text_in(issue, "updated_at")
    try:
        is_new = timestamps.parse(updated) - timestamps.parse(created) <= _AT_ONCE
    except (ValueError, OverflowError):
        is_new = False
    when = f"new {created}" if is_new and what != "closed" else f"{what} {updated}"

    return f"{told.repository}#{number} {when}"


# --- comments --------------------------------------------------------------------------------------------------


def _commented(told: _EventContext) -> Verdict:
    comment, issue = object_in(told.payload, "comment"), issue_in(told.payload)
    text = text_in(comment, "body", limit=MAX_BODY)
    if comment_commands.is_ours(text):
        return Ignored(reason="the comment was written by a program of ours")
    asked = comment_commands.read_comment(text, workflows=told.rules.workflows)
    if asked is None:
        return Ignored(reason="the comment asks for nothing")
    reason = asked.reason if isinstance(asked, Ambiguous) else _rejection(told)
    if isinstance(asked, Ambiguous) or reason:
        return Ignored(reason=reason)
    intent = f"{told.repository}#{issue.number} comment {number_in(comment, 'id') or text_in(comment, 'created_at')}"
    if asked.command:
        return Command(
            kind=asked.command,
            repository=told.repository,
            number=issue.number,
            actor=told.actor,
            adw_id=asked.adw_id,
            text=asked.text,
            cause="comment",
            intent=intent,
        )

    return _begun(told, issue, asked, intent)


def _begun(told: _EventContext, issue: IssueText, asked: CommentCommand, intent: str) -> Verdict:
    if issue.is_pull_request:
        return Ignored(reason="a workflow is started on an issue, not on a pull request: comment there")
    if _is_closed(told):
        return Ignored(reason=f"issue {issue.number} is closed: open it again first")
    if asked.issue_number not in {None, issue.number}:
        return Ignored(reason=f"it names issue {asked.issue_number} on issue {issue.number}: comment there")

    return RunRequest(
        repository=told.repository,
        issue=issue,
        actor=told.actor,
        workflow=asked.workflow,
        adw_id=asked.adw_id,
        model_set=asked.model_set,
        hint=asked.text,
        is_again=asked.is_again,
        cause="comment",
        intent=intent,
    )


# --- pull requests ---------------------------------------------------------------------------------------------


def _pull_request_closed(told: _EventContext) -> Verdict:
    pull = object_in(told.payload, "pull_request")
    number = number_in(pull, "number") or 0
    if _is_own(told):
        return Ignored(reason="adw closed or merged the pull request itself")
    head, base = object_in(pull, "head"), object_in(pull, "base")
    if text_in(object_in(head, "repo"), "full_name").lower() != text_in(object_in(base, "repo"), "full_name").lower():
        return Ignored(reason="the pull request comes from another repository, so it is not one of ours")
    is_merged = pull.get("merged") is True

    return Command(
        kind="clean_up" if is_merged else "abandon",
        repository=told.repository,
        number=number,
        actor=told.actor,
        text="the pull request was merged" if is_merged else "the pull request was closed without a merge",
        head_sha=text_in(head, "sha"),
        cause="pull_request",
        intent=f"{told.repository}#{number} pull request closed {text_in(pull, 'closed_at')}",
        answers=False,
    )


def _reviewed(told: _EventContext) -> Verdict:
    review, pull = object_in(told.payload, "review"), object_in(told.payload, "pull_request")
    state = text_in(review, "state").lower()
    if state != "changes_requested":
        return Ignored(
            reason=f"the review is {state or 'without a verdict'}: only one that wants changes is followed up"
        )
    text = text_in(review, "body", limit=MAX_BODY)
    reason = "the review was written by a program of ours" if comment_commands.is_ours(text) else _rejection(told)
    if reason:
        return Ignored(reason=reason)
    number = number_in(pull, "number") or 0

    return Command(
        kind="rework",
        repository=told.repository,
        number=number,
        actor=told.actor,
        text=text,
        head_sha=text_in(review, "commit_id"),
        cause="review",
        intent=f"{told.repository}#{number} review {number_in(review, 'id') or text_in(review, 'submitted_at')}",
        answers=False,
    )


def _checked(name: str) -> Callable[[_EventContext], Verdict]:
    """Return the judge of what CI says in the part *name* of a payload."""

    def judge(told: _EventContext) -> Verdict:
        checks = object_in(told.payload, name)
        conclusion = text_in(checks, "conclusion")
        if conclusion not in _RED:
            return Ignored(reason=f"the checks ended as {conclusion or 'nothing'}: only red ones are followed up")
        sha = text_in(checks, "head_sha")
        numbers = [number for pull in objects_in(checks, "pull_requests") if (number := number_in(pull, "number"))]
        if not numbers or not sha:
            return Ignored(reason="the checks name no pull request and commit")
        said = text_in(checks, "name") or text_in(object_in(checks, "app"), "name") or "checks"

        return Command(
            kind="rework",
            repository=told.repository,
            number=numbers[0],
            actor=told.actor,
            text=f"{said} ended as {conclusion}",
            head_sha=sha,
            cause="checks",
            intent=f"{told.repository} checks {sha}",  # one commit is worked on once, however many checks are red
            answers=False,
        )

    return judge


# --- who and where ---------------------------------------------------------------------------------------------


def _rejection(told: _EventContext) -> str:
    """Return why the sender is rejected, "" when they are not; what they may do is decided later."""
    login = told.actor.login
    if not login:
        return "whoever sent it has no account any more"
    if _is_own(told):
        return f"{login} is the account of adw itself"
    if told.actor.is_bot and login.lower() not in {bot.lower() for bot in told.rules.bots}:
        return f"{login} is a program, and not one that is listened to"

    return ""


def _is_own(told: _EventContext) -> bool:
    return bool(told.rules.login) and told.actor.login.lower() == told.rules.login.lower()


def _why_not_here(told: _EventContext, issue: IssueText) -> str:
    if issue.is_pull_request:
        return f"{issue.number} is a pull request, and workflows are started on issues"
    if _is_closed(told):
        return f"issue {issue.number} is closed"
    if object_in(told.payload, "issue").get("locked") is True:
        return f"the conversation of issue {issue.number} is locked"

    return ""


def _is_closed(told: _EventContext) -> bool:
    return text_in(object_in(told.payload, "issue"), "state") == "closed"


#: (event, action) -> what switches it on, and who judges it.
_EVENTS: Mapping[tuple[str, str], tuple[str, Callable[[_EventContext], Verdict]]] = MappingProxyType(
    {
        ("issues", "labeled"): (LABEL, _labeled),
        ("issues", "opened"): (OPENED, _opened),
        ("issues", "assigned"): (ASSIGNED, _assigned),
        ("issues", "closed"): (CLOSED, _closed),
        ("issue_comment", "created"): (COMMENT, _commented),
        ("pull_request", "closed"): (PULL_REQUEST, _pull_request_closed),
        ("pull_request_review", "submitted"): (REVIEW, _reviewed),
        ("check_suite", "completed"): (CHECKS, _checked("check_suite")),
        ("workflow_run", "completed"): (CHECKS, _checked("workflow_run")),
    }
)
