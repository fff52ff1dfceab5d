"""
What a delivery asks for, by its event and its action.

Pure. Each event has one function. People are answered only where they asked; whether they may have it is decided by
the worker, at the forge. What CI or a merge says is a fact and not a wish, so it does not matter who sent it: the
worker holds it against the pull request and the commit that it has on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import NamedTuple

from adws.adw_modules import timestamps
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.trigger import Actor, Command, Ignored, IssueText, RunRequest, Verdict
from adws.adw_triggers import delivery_rules as switches
from adws.adw_triggers import trigger_words
from adws.adw_triggers.delivery_rules import DeliveryRules
from adws.adw_triggers.payload_fields import (
    MAX_BODY,
    actor_in,
    issue_in,
    login_in,
    number_in,
    object_in,
    objects_in,
    text_in,
)
from adws.adw_triggers.trigger_words import Asked, Unclear

#: A label that comes with a new issue is told twice; both belong to one wish.
_AT_ONCE = timedelta(seconds=10)
#: Ends of checks that say that something is wrong with the commit.
_RED = frozenset({"failure", "timed_out", "startup_failure"})


class _Told(NamedTuple):
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

    return judge(_Told(payload, repository, actor_in(payload), rules))


# --- issues ----------------------------------------------------------------------------------------------------


def _labeled(told: _Told) -> Verdict:
    label = text_in(object_in(told.payload, "label"), "name")
    if label != told.rules.label:
        return Ignored(reason=f"the label is {label!r}, and {told.rules.label!r} starts a workflow")
    issue = issue_in(told.payload)
    reason = _why_not_he(told) or _why_not_here(told, issue)
    if reason:
        return Ignored(reason=reason)

    return _started(told, issue, cause="label", intent=_moment(told, f"label {label}"))


def _opened(told: _Told) -> Verdict:
    issue = issue_in(told.payload)
    has_label = told.rules.label in issue.labels and switches.LABEL in told.rules.events
    asked = _said_by_author(told, issue)
    if isinstance(asked, Unclear):
        return Ignored(reason=asked.reason)
    if asked is None and not has_label:
        return Ignored(reason="the issue asks for no workflow")
    reason = _why_not_he(told) or _why_not_here(told, issue)
    if reason:
        return Ignored(reason=reason)

    return _started(told, issue, cause="label" if has_label else "opened", intent=_moment(told, "opened"))


def _assigned(told: _Told) -> Verdict:
    assignee = login_in(told.payload, "assignee")
    if not told.rules.login:
        return Ignored(reason="adw has no account of its own that an issue could be assigned to")
    if assignee.lower() != told.rules.login.lower():
        return Ignored(reason=f"the issue is assigned to {assignee or 'nobody'}, not to {told.rules.login}")
    issue = issue_in(told.payload)
    reason = _why_not_he(told) or _why_not_here(told, issue)
    if reason:
        return Ignored(reason=reason)

    return _started(told, issue, cause="assigned", intent=_moment(told, "assigned"))


def _closed(told: _Told) -> Verdict:
    issue = issue_in(told.payload)
    reason = _why_not_he(told)
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


def _started(told: _Told, issue: IssueText, *, cause: str, intent: str) -> RunRequest:
    # What the text of an issue chooses counts only for whoever wrote it: no stranger chooses for the one who labels.
    asked = _said_by_author(told, issue)
    chosen = asked if isinstance(asked, Asked) else trigger_words.Asked()

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


def _said_by_author(told: _Told, issue: IssueText) -> Asked | Unclear | None:
    if not issue.author or issue.author.lower() != told.actor.login.lower() or trigger_words.is_ours(issue.body):
        return None
    asked = trigger_words.read_body(issue.body, workflows=told.rules.workflows)
    if asked is None and trigger_words.read_options(issue.body).model_set and told.rules.label in issue.labels:
        return trigger_words.read_options(issue.body)

    return asked


def _moment(told: _Told, what: str) -> str:
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


def _commented(told: _Told) -> Verdict:
    comment, issue = object_in(told.payload, "comment"), issue_in(told.payload)
    text = text_in(comment, "body", limit=MAX_BODY)
    if trigger_words.is_ours(text):
        return Ignored(reason="the comment was written by a program of ours")
    asked = trigger_words.read_comment(text, workflows=told.rules.workflows)
    if asked is None:
        return Ignored(reason="the comment asks for nothing")
    reason = asked.reason if isinstance(asked, Unclear) else _why_not_he(told)
    if isinstance(asked, Unclear) or reason:
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


def _begun(told: _Told, issue: IssueText, asked: Asked, intent: str) -> Verdict:
    if issue.is_pull_request:
        return Ignored(reason="a workflow is started on an issue, not on a pull request: comment there")
    if _is_closed(told):
        return Ignored(reason=f"issue {issue.number} is closed: open it again first")

    return RunRequest(
        repository=told.repository,
        issue=issue,
        actor=told.actor,
        workflow=asked.workflow,
        adw_id=asked.adw_id,
        model_set=asked.model_set,
        hint=asked.text,
        cause="comment",
        intent=intent,
    )


# --- pull requests ---------------------------------------------------------------------------------------------


def _pull_request_closed(told: _Told) -> Verdict:
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


def _reviewed(told: _Told) -> Verdict:
    review, pull = object_in(told.payload, "review"), object_in(told.payload, "pull_request")
    state = text_in(review, "state").lower()
    if state != "changes_requested":
        return Ignored(
            reason=f"the review is {state or 'without a verdict'}: only one that wants changes is followed up"
        )
    text = text_in(review, "body", limit=MAX_BODY)
    reason = "the review was written by a program of ours" if trigger_words.is_ours(text) else _why_not_he(told)
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


def _checked(name: str) -> Callable[[_Told], Verdict]:
    """Return the judge of what CI says in the part *name* of a payload."""

    def judge(told: _Told) -> Verdict:
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


def _why_not_he(told: _Told) -> str:
    """Return why the sender is not listened to, "" when he is; what he may do is decided later."""
    login = told.actor.login
    if not login:
        return "whoever sent it has no account any more"
    if _is_own(told):
        return f"{login} is the account of adw itself"
    if told.actor.is_bot and login.lower() not in {bot.lower() for bot in told.rules.bots}:
        return f"{login} is a program, and not one that is listened to"

    return ""


def _is_own(told: _Told) -> bool:
    return bool(told.rules.login) and told.actor.login.lower() == told.rules.login.lower()


def _why_not_here(told: _Told, issue: IssueText) -> str:
    if issue.is_pull_request:
        return f"{issue.number} is a pull request, and workflows are started on issues"
    if _is_closed(told):
        return f"issue {issue.number} is closed"
    if object_in(told.payload, "issue").get("locked") is True:
        return f"the conversation of issue {issue.number} is locked"

    return ""


def _is_closed(told: _Told) -> bool:
    return text_in(object_in(told.payload, "issue"), "state") == "closed"


#: (event, action) -> what switches it on, and who judges it.
_EVENTS: Mapping[tuple[str, str], tuple[str, Callable[[_Told], Verdict]]] = MappingProxyType(
    {
        ("issues", "labeled"): (switches.LABEL, _labeled),
        ("issues", "opened"): (switches.OPENED, _opened),
        ("issues", "assigned"): (switches.ASSIGNED, _assigned),
        ("issues", "closed"): (switches.CLOSED, _closed),
        ("issue_comment", "created"): (switches.COMMENT, _commented),
        ("pull_request", "closed"): (switches.PULL_REQUEST, _pull_request_closed),
        ("pull_request_review", "submitted"): (switches.REVIEW, _reviewed),
        ("check_suite", "completed"): (switches.CHECKS, _checked("check_suite")),
        ("workflow_run", "completed"): (switches.CHECKS, _checked("workflow_run")),
    }
)
