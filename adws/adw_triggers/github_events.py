"""
Decide what a delivery asks for, by its event and action.

Pure, with one function per event. Only direct requests are answered; whether the person may make them is decided
by the worker, at the forge. A report of CI or of a merge is a fact, not a request, so its sender does not matter: the
worker compares it with the pull request and the commit on record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
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


# --- parts of a payload ----------------------------------------------------------------------------------------
#
# A part that is missing, null or of the wrong type reads as empty: senders leave fields out, and an unwritten text may
# be null.

#: Texts are cut to these lengths: forges allow 65,536 characters in a body and 256 in a title.
MAX_BODY, MAX_TITLE, MAX_NAME, MAX_LABELS = 100_000, 1_000, 200, 100
#: The highest number that is accepted and stored.
_MAX_NUMBER = 2**53
#: The login that GitHub shows for a user who deleted their account.
_GHOST = "ghost"


def object_in(data: JsonObject, name: str) -> JsonObject:
    """Return the object *name*, or an empty one."""
    value = data.get(name)

    return value if isinstance(value, dict) else {}


def objects_in(data: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects in the list *name*."""
    value = data.get(name)

    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_in(data: JsonObject, name: str, *, limit: int = MAX_NAME) -> str:
    """Return at most *limit* characters of the text *name*, with characters that no database stores replaced."""
    value = data.get(name)
    if not isinstance(value, str):
        return ""
    kept = value[:limit]
    if kept.isascii() and "\x00" not in kept:
        return kept

    return kept.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number_in(data: JsonObject, name: str) -> int | None:
    """Return the positive integer *name*, or None."""
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_NUMBER:
        return None

    return value


def login_in(data: JsonObject, name: str) -> str:
    """Return the login of the user *name*, or "" if the account was deleted."""
    login = text_in(object_in(data, name), "login")

    return "" if login.lower() == _GHOST else login


def issue_in(data: JsonObject) -> IssueText:
    """Return the issue in a payload, as it was when the delivery was sent."""
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


# --- rules -----------------------------------------------------------------------------------------------------

#: GitHub sends no larger payloads.
MAX_BODY_BYTES = 25 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryRules:
    """Which deliveries a home accepts, and from whom."""

    secrets: tuple[str, ...] = ()  #: one, or two during a rotation; empty: no delivery is accepted
    repositories: tuple[str, ...] = ()  #: owner/name; empty: every delivery is ignored
    label: str = "adw"  #: the label that starts a workflow when an issue gets it
    login: str = ""  #: of adw's own account; "": it has no account
    bots: tuple[str, ...] = ()  #: logins of bots that may make requests
    follows_up: bool = False  #: whether reviews and checks of pull requests are followed up
    workflows: tuple[str, ...] = ()  #: names beyond the built-in ones
    max_body_bytes: int = MAX_BODY_BYTES


def rules_of(settings: Settings, *, workflows: Collection[str] = ()) -> DeliveryRules:
    """Return the rules from *settings*; *workflows* are the names that can be started."""
    return DeliveryRules(
        secrets=settings.webhook_secret or (),
        repositories=(comparable(settings.repository),) if settings.repository else (),
        label=settings.webhook_label,
        login=settings.webhook_login or "",
        bots=settings.webhook_bots,
        follows_up=settings.webhook_max_followups > 0,
        workflows=tuple(workflows),
    )


# --- issues ----------------------------------------------------------------------------------------------------

#: GitHub reports the label of a new issue twice; within this time both deliveries are one request.
_AT_ONCE = timedelta(seconds=10)
#: Conclusions of checks that mean that the commit is broken.
_RED = frozenset({"failure", "timed_out", "startup_failure"})


class _EventContext(NamedTuple):
    """A delivery under examination."""

    event: str
    payload: JsonObject
    repository: str
    actor: Actor
    rules: DeliveryRules


def verdict_of(event: str, action: str, payload: JsonObject, *, repository: str, rules: DeliveryRules) -> Verdict:
    """Return the verdict on a delivery whose shape was checked."""
    if event == "ping":
        return Ignored(reason="the hook was set up, and this is its first sign of life")
    judge = _EVENTS.get((event, action))
    if judge is None:
        what = f"{event}.{action}" if action else event
        return Ignored(reason=f"nothing is done about {what[:120]}")
    if judge in _FOLLOW_UPS and not rules.follows_up:
        return Ignored(reason="reviews and checks count only with webhook.max_followups")

    login = login_in(payload, "sender")
    is_bot = object_in(payload, "sender").get("type") == "Bot" or login.endswith("[bot]")

    return judge(_EventContext(event, payload, repository, Actor(login=login, is_bot=is_bot), rules))


def _labeled(context: _EventContext) -> Verdict:
    label = text_in(object_in(context.payload, "label"), "name")
    if label != context.rules.label:
        return Ignored(reason=f"the label is {label!r}, and {context.rules.label!r} starts a workflow")
    issue = issue_in(context.payload)

    return _started(context, issue, _said_by_author(context, issue), cause="label", what=f"label {label}")


def _opened(context: _EventContext) -> Verdict:
    issue = issue_in(context.payload)
    has_label = context.rules.label in issue.labels
    asked = _said_by_author(context, issue)
    if isinstance(asked, Ambiguous):
        return Ignored(reason=asked.reason)
    if asked is None and not has_label:
        return Ignored(reason="the issue asks for no workflow")

    return _started(context, issue, asked, cause="label" if has_label else "opened", what="opened")


def _assigned(context: _EventContext) -> Verdict:
    assignee = login_in(context.payload, "assignee")
    if not context.rules.login:
        return Ignored(reason="adw has no account of its own that an issue could be assigned to")
    if assignee.lower() != context.rules.login.lower():
        return Ignored(reason=f"the issue is assigned to {assignee or 'nobody'}, not to {context.rules.login}")
    issue = issue_in(context.payload)

    return _started(context, issue, _said_by_author(context, issue), cause="assigned", what="assigned")


def _closed(context: _EventContext) -> Verdict:
    reason = _rejection(context)
    if reason:
        return Ignored(reason=reason)
    issue = object_in(context.payload, "issue")
    why = text_in(issue, "state_reason")

    return _fact(
        context,
        "abandon",
        number_in(issue, "number") or 0,
        text=f"the issue was closed as {why}" if why else "the issue was closed",
        cause="closed",
        intent=_intent(context, "closed"),
    )


def _fact(
    context: _EventContext, kind: str, number: int, *, text: str, cause: str, intent: str, head_sha: str = ""
) -> Command:
    """Return a command caused by an event rather than a request; nobody waits for an answer."""
    return Command(
        kind=kind,
        repository=context.repository,
        number=number,
        actor=context.actor,
        text=text,
        head_sha=head_sha,
        cause=cause,
        intent=intent,
        answers=False,
    )


def _started(
    context: _EventContext, issue: IssueText, asked: CommentCommand | Ambiguous | None, *, cause: str, what: str
) -> Verdict:
    reason = _rejection(context)
    if not reason and issue.is_pull_request:
        reason = f"{issue.number} is a pull request, and workflows are started on issues"
    if not reason and _is_closed(context):
        reason = f"issue {issue.number} is closed"
    if not reason and object_in(context.payload, "issue").get("locked") is True:
        reason = f"the conversation of issue {issue.number} is locked"
    if reason:
        return Ignored(reason=reason)
    # The workflow reads the text of the issue itself, so only the options in it are kept.
    chosen = replace(asked, text="", is_again=False) if isinstance(asked, CommentCommand) else CommentCommand()

    return _run_request(context, issue, chosen, cause=cause, intent=_intent(context, what))


def _run_request(
    context: _EventContext, issue: IssueText, asked: CommentCommand, *, cause: str, intent: str
) -> RunRequest:
    return RunRequest(
        repository=context.repository,
        issue=issue,
        actor=context.actor,
        workflow=asked.workflow,
        adw_id=asked.adw_id,
        model_set=asked.model_set,
        hint=asked.text,
        is_again=asked.is_again,
        cause=cause,
        intent=intent,
    )


def _said_by_author(context: _EventContext, issue: IssueText) -> CommentCommand | Ambiguous | None:
    """Return the request in the issue's body if the sender wrote it, else None: nobody chooses for another person."""
    is_author = issue.author and issue.author.lower() == context.actor.login.lower()
    if not is_author or comment_commands.is_ours(issue.body):
        return None
    asked = comment_commands.read_body(issue.body, workflows=context.rules.workflows)
    if asked is None and context.rules.label in issue.labels:
        options = comment_commands.read_options(issue.body)
        return options if options.model_set else None

    return asked


def _intent(context: _EventContext, what: str) -> str:
    """Return the intent of an event on the issue; events that came with a new issue share its intent."""
    issue = object_in(context.payload, "issue")
    number, created, updated = issue.get("number"), text_in(issue, "created_at"), text_in(issue, "updated_at")
    try:
        is_new = timestamps.parse(updated) - timestamps.parse(created) <= _AT_ONCE
    except (ValueError, OverflowError):
        is_new = False
    when = f"new {created}" if is_new and what != "closed" else f"{what} {updated}"

    return f"{context.repository}#{number} {when}"


# --- comments --------------------------------------------------------------------------------------------------


def _commented(context: _EventContext) -> Verdict:
    comment, issue = object_in(context.payload, "comment"), issue_in(context.payload)
    text = text_in(comment, "body", limit=MAX_BODY)
    if comment_commands.is_ours(text):
        return Ignored(reason="the comment was written by a program of ours")
    asked = comment_commands.read_comment(text, workflows=context.rules.workflows)
    if asked is None:
        return Ignored(reason="the comment asks for nothing")
    reason = asked.reason if isinstance(asked, Ambiguous) else _rejection(context)
    if isinstance(asked, Ambiguous) or reason:
        return Ignored(reason=reason)
    intent = f"{context.repository}#{issue.number} comment {number_in(comment, 'id') or text_in(comment, 'created_at')}"
    if asked.command:
        return Command(
            kind=asked.command,
            repository=context.repository,
            number=issue.number,
            actor=context.actor,
            adw_id=asked.adw_id,
            text=asked.text,
            cause="comment",
            intent=intent,
        )
    if issue.is_pull_request:
        return Ignored(reason="a workflow is started on an issue, not on a pull request: comment there")
    if _is_closed(context):
        return Ignored(reason=f"issue {issue.number} is closed: open it again first")
    if asked.issue_number not in {None, issue.number}:
        return Ignored(reason=f"it names issue {asked.issue_number} on issue {issue.number}: comment there")

    return _run_request(context, issue, asked, cause="comment", intent=intent)


# --- pull requests ---------------------------------------------------------------------------------------------


def _pull_request_closed(context: _EventContext) -> Verdict:
    pull = object_in(context.payload, "pull_request")
    number = number_in(pull, "number") or 0
    if _is_own(context):
        return Ignored(reason="adw closed or merged the pull request itself")
    head, base = object_in(pull, "head"), object_in(pull, "base")
    if text_in(object_in(head, "repo"), "full_name").lower() != text_in(object_in(base, "repo"), "full_name").lower():
        return Ignored(reason="the pull request comes from another repository, so it is not one of ours")
    is_merged = pull.get("merged") is True

    return _fact(
        context,
        "clean_up" if is_merged else "abandon",
        number,
        text="the pull request was merged" if is_merged else "the pull request was closed without a merge",
        head_sha=text_in(head, "sha"),
        cause="pull_request",
        intent=f"{context.repository}#{number} pull request closed {text_in(pull, 'closed_at')}",
    )


def _reviewed(context: _EventContext) -> Verdict:
    review, pull = object_in(context.payload, "review"), object_in(context.payload, "pull_request")
    state = text_in(review, "state").lower()
    if state != "changes_requested":
        return Ignored(
            reason=f"the review is {state or 'without a verdict'}: only one that wants changes is followed up"
        )
    text = text_in(review, "body", limit=MAX_BODY)
    reason = "the review was written by a program of ours" if comment_commands.is_ours(text) else _rejection(context)
    if reason:
        return Ignored(reason=reason)
    number = number_in(pull, "number") or 0

    return _fact(
        context,
        "rework",
        number,
        text=text,
        head_sha=text_in(review, "commit_id"),
        cause="review",
        intent=f"{context.repository}#{number} review {number_in(review, 'id') or text_in(review, 'submitted_at')}",
    )


def _checked(context: _EventContext) -> Verdict:
    checks = object_in(context.payload, context.event)
    conclusion = text_in(checks, "conclusion")
    if conclusion not in _RED:
        return Ignored(reason=f"the checks ended as {conclusion or 'nothing'}: only red ones are followed up")
    sha = text_in(checks, "head_sha")
    numbers = [number for pull in objects_in(checks, "pull_requests") if (number := number_in(pull, "number"))]
    if not numbers or not sha:
        return Ignored(reason="the checks name no pull request and commit")
    said = text_in(checks, "name") or text_in(object_in(checks, "app"), "name") or "checks"

    return _fact(
        context,
        "rework",
        numbers[0],
        text=f"{said} ended as {conclusion}",
        head_sha=sha,
        cause="checks",
        intent=f"{context.repository} checks {sha}",  # one rework per commit, however many checks are red
    )


# --- who and where ---------------------------------------------------------------------------------------------


def _rejection(context: _EventContext) -> str:
    """Return why the sender is rejected, or ""; their permissions are checked later."""
    login = context.actor.login
    if not login:
        return "the sender has no account any more"
    if _is_own(context):
        return f"{login} is the account of adw itself"
    if context.actor.is_bot and login.lower() not in {bot.lower() for bot in context.rules.bots}:
        return f"{login} is a program, and not one that is listened to"

    return ""


def _is_own(context: _EventContext) -> bool:
    return bool(context.rules.login) and context.actor.login.lower() == context.rules.login.lower()


def _is_closed(context: _EventContext) -> bool:
    return text_in(object_in(context.payload, "issue"), "state") == "closed"


#: (event, action) -> the function that decides.
_EVENTS: Mapping[tuple[str, str], Callable[[_EventContext], Verdict]] = MappingProxyType(
    {
        ("issues", "labeled"): _labeled,
        ("issues", "opened"): _opened,
        ("issues", "assigned"): _assigned,
        ("issues", "closed"): _closed,
        ("issue_comment", "created"): _commented,
        ("pull_request", "closed"): _pull_request_closed,
        ("pull_request_review", "submitted"): _reviewed,
        ("check_suite", "completed"): _checked,
        ("workflow_run", "completed"): _checked,
    }
)
#: Follow-ups of pull requests, handled only if the settings ask for them.
_FOLLOW_UPS = (_reviewed, _checked)
