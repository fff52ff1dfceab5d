"""
Carrying out what a delivery asks for: authorise, act, answer, write down what came of it, in this order.

Who asked is looked at before any lock is taken, each time. Every step can be cut off and made again: the workflow has
an id that was chosen before, a change is written with its delivery, an answer is found by its marker. A forge that
gives no answer is asked again later, a bounded number of times.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from adws.adw_modules import command_rules, timestamps, trigger_requests
from adws.adw_modules.command_rules import FACTS, Mark
from adws.adw_modules.coordination.delivery_commands import Commands
from adws.adw_modules.coordination.delivery_parts import DONE, FAILED, REFUSED, Came, DeliveryParts
from adws.adw_modules.coordination.delivery_starts import Starts
from adws.adw_modules.coordination.workflow_work import WorkEnd
from adws.adw_modules.errors import (
    AdwError,
    ConfigError,
    DatabaseError,
    DeliveryNotFound,
    Fenced,
    ForgeBusy,
    ForgeError,
    ForgeUnavailable,
    LeaseLost,
    StateConflict,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.repository_name import comparable
from adws.adw_modules.runs import Run, RunState
from adws.adw_modules.trigger import Command, DeliveryRow, RunRequest

logger = logging.getLogger("adw.deliveries")

#: How often a delivery is taken up, and the seconds before the second time; each wait is twice the one before.
MAX_TRIES = 10
FIRST_SECONDS = 5.0
MAX_SECONDS = 600.0

#: Who asks again may have more luck: the forge gave no answer, or somebody is at the workflow right now.
_LATER = (ForgeUnavailable, ForgeBusy, WorkflowBusy, LeaseLost, Fenced, StateConflict)


class DeliveryWork:
    """Does what runs of kind `delivery` are for; implements `Errand`."""

    def __init__(self, parts: DeliveryParts) -> None:
        self._parts = parts
        self._commands = Commands(parts)
        self._starts = Starts(parts)

    def work(self, run: Run) -> WorkEnd:
        """Carry out the delivery of a claimed run and end that, or put it off."""
        parts = self._parts
        run = parts.runs.begin(run)
        row = parts.deliveries.get(_guid(run))
        if row is None:
            raise UsageError(f"delivery {_guid(run)} is not kept any more: there is nothing to do")
        if row.status != "received":  # cut off between its end and that of its run
            return self._ended(run, RunState.COMPLETED, row.outcome)
        if run.state is RunState.STOPPING:
            self.give_up(run, f"its run was stopped: {run.reason}")
            return self._ended(run, RunState.STOPPED, run.reason)
        try:
            came = self._carry_out(run, row)
        except _LATER as exc:
            return self._later(run, exc)
        parts.deliveries.finish(row.guid, status=came.status, outcome=came.text, adw_id=came.adw_id)
        _log(row, came)

        return self._ended(run, RunState.COMPLETED, came.text)

    def give_up(self, run: Run, why: str) -> None:
        """Write down that the delivery of *run* is not carried out, and why."""
        try:
            self._parts.deliveries.finish(_guid(run), status=FAILED, outcome=why)
        except DeliveryNotFound:
            return  # it was forgotten meanwhile: nobody looks for it any more

    # --- one delivery ------------------------------------------------------------------------------------------

    def _carry_out(self, run: Run, row: DeliveryRow) -> Came:
        request = self._request(row)
        why = self._why_not(request)
        if why:
            came = Came(status=REFUSED, text=why, is_forbidden=True)
        else:
            self._renew(run)
            came = self._act(request, run, row)
        self._renew(run)

        return self._answer(request, row, came)

    def _request(self, row: DeliveryRow) -> RunRequest | Command:
        try:
            return trigger_requests.from_json(self._parts.deliveries.request_of(row.guid) or {})
        except DatabaseError as exc:  # of another version: asking again would not change it
            raise UsageError(str(exc)) from exc

    def _renew(self, run: Run) -> None:
        """Keep the claim, which a slow forge could outlast; raise RunLost when somebody else has it by now."""
        self._parts.runs.renew(run, ttl_seconds=self._parts.options.ttl_seconds)

    def _why_not(self, request: RunRequest | Command) -> str:
        """Return why nothing is done for whoever asked, "" when he may ask for it."""
        options = self._parts.options
        home = comparable(options.repository) if options.repository else ""
        if home and request.repository and comparable(request.repository) != home:
            return f"it is about {request.repository}, and this home works on {options.repository}"
        if isinstance(request, Command) and request.cause in FACTS:
            return ""  # nobody asked: what the forge told is looked at there before anything is done
        why = command_rules.why_not_listed(request.actor, options.access)
        if why or not command_rules.needs_permission(request.actor):
            return why
        permission = self._parts.forge().permission(request.actor.login)

        return command_rules.why_not_permitted(request.actor, permission, options.access)

    def _act(self, request: RunRequest | Command, run: Run, row: DeliveryRow) -> Came:
        # Of this run, not of the delivery alone: `adw replay` is meant to do it once more.
        made = Mark(delivery=f"{row.guid}#{run.run_id}", kind=_kind(request), by=request.actor.login)
        if isinstance(request, Command):
            return self._commands.obey(request, row, made)
        if not request.adw_id:
            return self._starts.start(request, row)
        going_on = Command(
            kind="resume",
            repository=request.repository,
            number=request.issue.number,
            actor=request.actor,
            adw_id=request.adw_id,
            text=request.hint,
            cause=request.cause,
        )

        return self._commands.obey(going_on, row, made)

    def _answer(self, request: RunRequest | Command, row: DeliveryRow, came: Came) -> Came:
        """Say what came of it where it was asked for; a forge that will not have it said changes nothing."""
        wants = request.answers if isinstance(request, Command) else True
        if came.is_silent or not wants:
            return came
        number = request.number if isinstance(request, Command) else request.issue.number
        try:
            answers = self._parts.answers()
            if came.is_forbidden:
                answers.refuse(number, _sorry(came), login=request.actor.login)
            else:
                answers.say(number, came.answer or _sentence(came), delivery=came.topic or row.guid)
        except (ForgeUnavailable, ForgeBusy):
            raise
        except (ForgeError, ConfigError):
            said = {"action": "delivery_not_answered", "delivery": row.guid}
            logger.warning("The forge does not take the answer", extra=said, exc_info=True)

        return came

    # --- ends --------------------------------------------------------------------------------------------------

    def _later(self, run: Run, cause: AdwError) -> WorkEnd:
        """Put a delivery off, or end it when it was put off often enough."""
        if run.attempts >= MAX_TRIES:
            why = f"given up after {run.attempts} tries: {cause}"
            self.give_up(run, why)
            return self._ended(run, RunState.FAILED, why)
        seconds = min(MAX_SECONDS, FIRST_SECONDS * 2.0 ** min(max(run.attempts - 1, 0), 16))
        if isinstance(cause, ForgeBusy):
            seconds = min(MAX_SECONDS, max(seconds, cause.seconds))
        due = timestamps.to_text(self._parts.clock.now() + timedelta(seconds=seconds))
        again = self._parts.runs.requeue(run, not_before=due, reason=str(cause))

        return WorkEnd(run=again, outcome=None, message=str(cause))

    def _ended(self, run: Run, state: RunState, reason: str) -> WorkEnd:
        return WorkEnd(run=self._parts.runs.finish(run, state, reason=reason), outcome=None, message=reason)


def _guid(run: Run) -> str:
    return str(run.payload.get("guid") or "")


def _kind(request: RunRequest | Command) -> str:
    return request.kind if isinstance(request, Command) else "run"


def _sentence(came: Came) -> str:
    return f"{came.text[:1].upper()}{came.text[1:]}."


def _sorry(came: Came) -> str:
    return f"Sorry, nothing was done: {came.text}."


def _log(row: DeliveryRow, came: Came) -> None:
    facts = {"delivery": row.guid, "status": came.status, "outcome": came.text, "workflow": came.adw_id}
    action = "delivery_done" if came.status == DONE else "delivery_refused"
    logger.info("Delivery carried out", extra={"action": action, **facts})
