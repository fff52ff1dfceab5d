"""
What deliveries are held against: whose they may be, and which events count.

Words only, and how the settings say them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.repository_name import comparable

if TYPE_CHECKING:
    from adws.config import Settings

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
