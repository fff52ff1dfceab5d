"""
What a delivery asks for, by its event and its action.

Pure. Each event has one function. People are answered only where they asked; whether they have the permission is
decided by the worker, at the forge. What CI or a merge reports is a fact and not a request, so it does not matter who
sent it: the worker compares it with the pull request and the commit that it has on record.
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
# A part that is missing, null or of another type is empty: senders leave out what they like, and a text may be null
# where nobody wrote one.

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
    kept = value[:limit]
    if kept.isascii() and "\x00" not in kept:
        return kept

    return kept.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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


# --- rules -----------------------------------------------------------------------------------------------------

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
    follow_ups = FOLLOW_UPS if settings.webhook_max_followups else frozenset()

    return DeliveryRules(
        secrets=settings.webhook_secret or (),
        repositories=(comparable(settings.repository),) if settings.repository else (),
        label=settings.webhook_label,
        login=settings.webhook_login or "",
        bots=settings.webhook_bots,
        events=frozenset(settings.webhook_events) | follow_ups,
        workflows=tuple(workflows),
    )


# --- issues ----------------------------------------------------------------------------------------------------

#: A label that comes with a new issue is reported twice; both belong to one request.
_AT_ONCE = timedelta(seconds=10)
#: Conclusions of checks that say that something is wrong with the commit.
_RED = frozenset({"failure", "timed_out", "startup_failure"})


class _EventContext(NamedTuple):
    """A delivery under examination."""

    event: str
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
    has_label = context.rules.label in issue.labels and LABEL in context.rules.events
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
    """Return a command that follows from what happened; nobody waits for an answer."""
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
    # The text of the issue is there already: of what its author asks for only the choices count.
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
    """Return what the text of the issue asks for; only its author counts: nobody else chooses for the requester."""
    is_author = issue.author and issue.author.lower() == context.actor.login.lower()
    if not is_author or comment_commands.is_ours(issue.body):
        return None
    asked = comment_commands.read_body(issue.body, workflows=context.rules.workflows)
    if asked is None and context.rules.label in issue.labels:
        options = comment_commands.read_options(issue.body)
        return options if options.model_set else None

    return asked


def _intent(context: _EventContext, what: str) -> str:
    """Return the intent of something that happened to the issue: what came with a new issue is one with it."""
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
        intent=f"{context.repository} checks {sha}",  # one commit is worked on once, however many checks are red
    )


# --- who and where ---------------------------------------------------------------------------------------------


def _rejection(context: _EventContext) -> str:
    """Return why the sender is rejected, "" when they are not; what they may do is decided later."""
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


#: (event, action) -> what switches it on, and what judges it.
_EVENTS: Mapping[tuple[str, str], tuple[str, Callable[[_EventContext], Verdict]]] = MappingProxyType(
    {
        ("issues", "labeled"): (LABEL, _labeled),
        ("issues", "opened"): (OPENED, _opened),
        ("issues", "assigned"): (ASSIGNED, _assigned),
        ("issues", "closed"): (CLOSED, _closed),
        ("issue_comment", "created"): (COMMENT, _commented),
        ("pull_request", "closed"): (PULL_REQUEST, _pull_request_closed),
        ("pull_request_review", "submitted"): (REVIEW, _reviewed),
        ("check_suite", "completed"): (CHECKS, _checked),
        ("workflow_run", "completed"): (CHECKS, _checked),
    }
)
