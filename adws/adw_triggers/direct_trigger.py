"""
`handle_webhook_trigger`: what a webhook asks for, as one plain call of a program that has checked it itself.

A new workflow takes the issue's lock with its first write, or a comment says who has it. One that is to go on must own
the lock, and its document must name the issue: an id alone opens nothing. The work is left to a worker.
"""

from __future__ import annotations

import logging

from adws import app_forge
from adws.adw_modules import ambient, command_rules
from adws.adw_modules.coordination.answers import Answers
from adws.adw_modules.coordination.launch import Start
from adws.adw_modules.document import FrozenIssue
from adws.adw_modules.errors import IssueLocked, NotTheLockOwner, OwnershipError, StateError, StateNotFound, UsageError
from adws.adw_modules.forge_effects import frozen_issue
from adws.adw_modules.ids import check_adw_id
from adws.adw_modules.locks import check_issue_number
from adws.app import App

logger = logging.getLogger("adw.webhook")

#: Who asks, for the history.
ASKED_BY = "a webhook"


def handle_webhook_trigger(issue_number: int | str, provided_adw_id: str | None = None) -> str | None:
    """
    Start a workflow for an issue, or make the given one go on, and return its id.

    None when the issue's lock does not allow it: then a comment on the issue says so. Raises UsageError for what makes
    no sense, and for a workflow that cannot go on.
    """
    number, app = check_issue_number(issue_number), _home()
    try:
        return _go_on(app, number, check_adw_id(provided_adw_id)) if provided_adw_id else _start(app, number)
    except (IssueLocked, NotTheLockOwner) as exc:
        _say_no(app, number, exc)
    except StateNotFound as exc:
        _say_no(app, number, NotTheLockOwner(provided_adw_id or "", number, str(exc)))

    return None


def _home() -> App:
    parts = ambient.parts()
    if not isinstance(parts, App):
        raise UsageError(
            "starting workflows needs an open home: use adws.app.open_app, or call this where one is found"
        )

    return parts


def _start(app: App, number: int) -> str:
    settings = app.settings
    has_forge = settings.forge_kind != "none"
    start = Start(
        issue_number=number,
        spec=app.workflows.get(settings.default_workflow),
        repository=settings.repository or "",
        issue=frozen_issue(app.forge, number) if has_forge else FrozenIssue(),
        asked_by=ASKED_BY,
        max_retries=settings.max_retries,
        max_reworks=settings.max_reworks,
        max_total_attempts=settings.max_total_attempts,
        max_minutes=settings.max_minutes,
    )

    return app.work.launcher.start(start).adw_id


def _go_on(app: App, number: int, adw_id: str) -> str:
    app.ownership.prove_continuing(adw_id, number)
    app.work.control.resume(adw_id, by=ASKED_BY)

    return adw_id


def _say_no(app: App, number: int, why: OwnershipError) -> None:
    logger.warning("A trigger was refused", extra={"action": "trigger_refused", "issue": number, "why": str(why)})
    if app.settings.forge_kind == "none":
        return
    key = app_forge.key_of(app.settings, clock=app.clock)
    answers = Answers(app.forge, key=key, scrub=app.redactor.redact_text)
    answers.say(number, _sentence(app, why), delivery=f"trigger {number} {_holder(why)}")


def _sentence(app: App, why: OwnershipError) -> str:
    if not isinstance(why, IssueLocked):
        return f"Nothing was done: {why}."
    try:
        holder = app.store.load(why.holder).document
    except StateError:
        holder = None  # it is being made, or cannot be read

    return f"{command_rules.why_no_second(why.holder, holder)}."


def _holder(why: OwnershipError) -> str:
    return why.holder if isinstance(why, IssueLocked) else str(getattr(why, "adw_id", ""))
