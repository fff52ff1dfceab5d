"""
Finding what no webhook told of: issues that ask for work, and deliveries that GitHub could not bring.

What is found goes the way of a delivery: stored with its run in one transaction, and authorised when a worker takes it
up. The intent is spelled as the webhook's is, so that what was told and found is started once; and an issue that
somebody asked about before, or that had a workflow, is left alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from adws.adw_modules import timestamps, trigger_requests
from adws.adw_modules.coordination.cron_jobs import Job, JobEnd
from adws.adw_modules.errors import ConfigError, DeliveryConflict, ForgeNotFound, ForgeRefused
from adws.adw_modules.forge import Forge, Issue
from adws.adw_modules.forge_polling import HookDelivery, KnowsLabellers, Labelled, Redelivers
from adws.adw_modules.interfaces import Catalogue, Clock
from adws.adw_modules.interfaces_schedule import Tick
from adws.adw_modules.repository_name import comparable
from adws.adw_modules.trigger import Actor, Deliveries, IssueText, NewDelivery, RunRequest

#: Most issues that are looked at in one go, the newest first.
MOST_ISSUES = 100
#: A label younger than this is left to the webhook.
GRACE = timedelta(minutes=2)
#: What happens to a new issue within this time belongs to its being opened, as the webhook sees it.
AT_ONCE = timedelta(seconds=10)
#: GitHub brings a delivery again for three days.
REDELIVERABLE = timedelta(days=3)
#: A delivery that failed so often is not asked for any more.
MAX_TRIES = 5
#: The comment that asks for the default workflow, as older set-ups have it.
WORD = "adw"

_NO_FORGE = "no forge is configured, so nothing is polled"


@dataclass(frozen=True, kw_only=True, slots=True)
class PollParts:
    """What polling works with."""

    clock: Clock
    forge: Callable[[], Forge]  #: raises ConfigError when none is configured
    deliveries: Deliveries
    catalogue: Catalogue
    label: str
    has_webhook: bool = False  #: GitHub is set up to bring us deliveries


def label_intent(repository: str, number: int, label: str, labelled: Labelled) -> str:
    """Return the intent that the webhook gives to the same label."""
    is_new = False
    if labelled.created_at and labelled.at:
        is_new = timestamps.parse(labelled.at) - timestamps.parse(labelled.created_at) <= AT_ONCE
    when = f"new {labelled.created_at}" if is_new else f"label {label} {labelled.raw_at}"

    return f"{repository}#{number} {when}"


def comment_intent(repository: str, number: int, comment_id: int) -> str:
    """Return the intent that the webhook gives to the same comment."""
    return f"{repository}#{number} comment {comment_id}"


def delivery_of(request: RunRequest, *, action: str) -> NewDelivery:
    """Return *request* as a delivery that we found ourselves; the same intent gives the same guid."""
    data = trigger_requests.to_json(request)
    body = json.dumps(data, sort_keys=True).encode()

    return NewDelivery(
        guid=f"poll-{hashlib.sha256(request.intent.encode()).hexdigest()[:32]}",
        event="poll",
        action=action,
        hook="",
        body=body,
        body_hash=hashlib.sha256(body).hexdigest(),
        sender=request.actor.login,
        repository=request.repository,
        number=request.issue.number,
        verdict="run",
        reason=f"{request.actor.login or 'somebody'} asks for a workflow on issue {request.issue.number}",
        request=data,
    )


class PollJobs:
    """The jobs that ask the forge, by the names of their entries."""

    def __init__(self, parts: PollParts) -> None:
        self._parts = parts

    def all(self) -> dict[str, Job]:
        """Return every job of this module."""
        return {"poll_issues": self.issues, "poll_comments": self.comments, "redeliver": self.redeliver}

    # --- issues ------------------------------------------------------------------------------------------------

    def issues(self, tick: Tick) -> JobEnd:
        """Start what the label asks for and no delivery told of."""
        del tick
        forge = self._forge()
        if forge is None:
            return JobEnd(outcome=_NO_FORGE)
        found = forge.issues(label=self._parts.label, limit=MOST_ISSUES)
        started = [said for issue in found if (said := self._look_at_label(forge, issue))]

        return JobEnd(outcome=f"{len(found)} with the label, {len(started)} started", details=tuple(started))

    def _look_at_label(self, forge: Forge, issue: Issue) -> str:
        label, repository = self._parts.label, comparable(forge.repository)
        if self._is_known(repository, issue.number):
            return ""  # who puts the label on again is heard by the webhook
        labelled = forge.labelled(issue.number, label) if isinstance(forge, KnowsLabellers) else None
        if labelled is None:
            labelled = Labelled(login=issue.author, at="")
        elif labelled.at > timestamps.to_text(self._parts.clock.now() - GRACE):
            return ""
        intent = (
            label_intent(repository, issue.number, label, labelled)
            if labelled.at
            else f"{repository}#{issue.number} poll label {label}"
        )
        actor = Actor(login=labelled.login, is_bot=labelled.is_bot)

        return self._ask(repository, issue, actor, intent, action="labeled")

    def _is_known(self, repository: str, number: int) -> bool:
        """Say whether anybody asked for work on the issue, or a workflow was made for it."""
        if self._parts.deliveries.count_since("", repository=repository, number=number):
            return True

        return bool(self._parts.catalogue.find_by_issue(number, repository))

    def _ask(self, repository: str, issue: Issue, actor: Actor, intent: str, *, action: str) -> str:
        request = RunRequest(
            repository=repository,
            issue=IssueText(
                number=issue.number,
                title=issue.title,
                body=issue.body,
                author=issue.author,
                url=issue.url,
                labels=issue.labels,
            ),
            actor=actor,
            cause="poll",
            intent=intent,
        )
        delivery = delivery_of(request, action=action)
        if self._parts.deliveries.get(delivery.guid) is not None:
            return ""
        clock = self._parts.clock
        try:
            accepted = self._parts.deliveries.accept(delivery, run_id_of=clock.token()[:8], adw_id=clock.token()[:8])
        except DeliveryConflict:
            return ""  # found by somebody else at the same moment, and the issue was edited in between
        if not accepted.is_new:
            return ""

        return f"issue {issue.number} as {accepted.row.adw_id}, asked for by {actor.login or 'somebody'}"

    # --- comments ----------------------------------------------------------------------------------------------

    def comments(self, tick: Tick) -> JobEnd:
        """Start open issues without a comment, and those whose latest comment is `adw`, as older set-ups do."""
        del tick
        forge = self._forge()
        if forge is None:
            return JobEnd(outcome=_NO_FORGE)
        found = forge.issues(limit=MOST_ISSUES)
        started = [said for issue in found if (said := self._look_at_comments(forge, issue))]

        return JobEnd(outcome=f"{len(found)} open, {len(started)} started", details=tuple(started))

    def _look_at_comments(self, forge: Forge, issue: Issue) -> str:
        repository, number = comparable(forge.repository), issue.number
        comments = forge.comments(number)
        if not comments:
            if self._is_known(repository, number):
                return ""
            intent = f"{repository}#{number} poll without comments"
            return self._ask(repository, issue, Actor(login=issue.author), intent, action="opened")
        last = comments[-1]
        if last.body.strip().casefold() != WORD or last.author == forge.login():
            return ""
        intent = comment_intent(repository, number, last.comment_id)

        return self._ask(repository, issue, Actor(login=last.author), intent, action="commented")

    # --- deliveries that failed --------------------------------------------------------------------------------

    def redeliver(self, tick: Tick) -> JobEnd:
        """Have GitHub bring deliveries again that it could not bring."""
        del tick
        if not self._parts.has_webhook:
            return JobEnd(outcome="no webhook is set up (webhook_secret), so nothing is asked for again")
        forge: object = self._forge()
        if forge is None:
            return JobEnd(outcome=_NO_FORGE)
        if not isinstance(forge, Redelivers):
            return JobEnd(outcome="this forge keeps no deliveries")
        since = timestamps.to_text(self._parts.clock.now() - REDELIVERABLE)
        try:
            tries = forge.hook_deliveries(since=since)
        except (ForgeRefused, ForgeNotFound) as exc:
            return JobEnd(
                outcome="GitHub does not show us its hooks: give the token the right to read and write webhooks, "
                f'or set redeliver = "off" under [cron] ({exc})'
            )
        asked = list(self._ask_again(forge, tries))

        return JobEnd(outcome=f"{len(asked)} deliveries asked for again", details=tuple(asked))

    def _ask_again(self, forge: Redelivers, tries: tuple[HookDelivery, ...]) -> Iterator[str]:
        for one in failed_deliveries(tries):
            if self._parts.deliveries.get(one.guid) is None:  # else it came another way, or its answer was lost
                forge.redeliver(one.hook_id, one.delivery_id)
                yield f"{one.event} {one.guid} of {one.at}"

    def _forge(self) -> Forge | None:
        try:
            return self._parts.forge()
        except ConfigError:
            return None


def failed_deliveries(tries: tuple[HookDelivery, ...]) -> tuple[HookDelivery, ...]:
    """Return the last try of each delivery that never came, oldest first; those that failed too often are left out."""
    by_guid: dict[str, list[HookDelivery]] = defaultdict(list)
    for one in tries:
        by_guid[one.guid].append(one)
    failed = (
        max(group, key=lambda one: one.at)
        for group in by_guid.values()
        if not any(one.is_ok for one in group) and len(group) < MAX_TRIES
    )

    return tuple(sorted(failed, key=lambda one: one.at))
