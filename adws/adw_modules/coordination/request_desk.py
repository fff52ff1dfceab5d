"""
Answering what was asked of the owner of a workflow: each request is obeyed first, then answered.

Obeying looks at the state the document is in, not at what the request hoped for: a pause that comes after the end is
too late, and says so. What cannot be written is not answered either: the next owner finds it.
"""

from __future__ import annotations

from functools import partial

from adws.adw_modules import attempt_rules, command_rules, resume_rules
from adws.adw_modules.command_rules import Mark
from adws.adw_modules.coordination.keeper import ENDING_REQUESTS, Charge, reason_of
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.interfaces import Request, Requests
from adws.adw_modules.interfaces_engine import Order
from adws.adw_modules.outcome import Outcome, Stopped
from adws.adw_modules.runs import stop_reason
from adws.adw_modules.state_table import ACTIVE_STATES, TERMINAL_STATES, WorkflowState

#: The answer to a hint.
NOTED = "noted for the next attempt"

#: Requests that park the workflow.
PAUSING = ("pause", "stop")
_ABANDONING = ("abandon", "rollback")
#: Orders after which somebody else goes on with the workflow.
_LEAVING = ("drain", "lost_lease")


class RequestDesk:
    """Answers the requests to the owner of one workflow."""

    def __init__(self, requests: Requests, session: WorkSession, charge: Charge) -> None:
        self._requests = requests
        self._session = session
        self._charge = charge

    def fetch(self) -> None:
        """Bring what was asked since the keeper looked, or of an owner that died over it."""
        for request in self._requests.open_for(self._charge.adw_id):
            self._charge.note(request)

    def obey(self) -> Outcome | None:
        """Obey and answer everything while no attempt is under way; return the outcome when that ends the work."""
        if self._has_lost_lease():
            return Stopped(reason="lost_lease")
        self._close_what_a_crash_left()
        outcome = self._obey_requests()
        order = self._charge.current()
        if outcome is not None or order is None:
            return outcome
        if order.kind in _LEAVING:
            return Stopped(reason=order.kind)

        return self._obey_order(order)

    def note_hints(self) -> None:
        """Write the hints down and leave everything else: an attempt is recorded that has to run or be suspended."""
        for request in self._charge.open_requests():
            if request.kind == "hint" and not self._has_lost_lease():
                self._obey_request(request)

    def conclude(self, outcome: Outcome) -> Outcome:
        """Obey what came while the last attempt ran, and return how the work ends with that."""
        if self._has_lost_lease():
            return outcome
        self.fetch()
        changed = self._obey_requests()
        order = self._charge.current()
        if changed is None and order is not None and order.kind not in _LEAVING:
            changed = self._obey_order(order)

        return changed or outcome

    # --- how -----------------------------------------------------------------------------------------------------

    def _has_lost_lease(self) -> bool:
        order = self._charge.current()
        return order is not None and order.kind == "lost_lease"

    def _close_what_a_crash_left(self) -> None:
        # A parked or abandoned workflow has no attempt that runs, and no process.
        if any(request.kind in ENDING_REQUESTS for request in self._charge.open_requests()):
            self._session.settle()

    def _obey_order(self, order: Order) -> Outcome | None:
        """Obey an order that came without a request: a signal, or a run that shall stop."""
        if order.request_id is not None:
            return None  # answered with its request
        self._session.settle()

        return self._pause(order.reason) if order.kind in PAUSING else self._abandon(order.reason)

    def _obey_requests(self) -> Outcome | None:
        outcome: Outcome | None = None
        for request in self._charge.open_requests():
            outcome = self._obey_request(request) or outcome

        return outcome

    def _obey_request(self, request: Request) -> Outcome | None:
        outcome: Outcome | None = None
        if request.kind == "hint":
            answer = self._hint(request)
        elif request.kind in PAUSING:
            outcome = self._pause(reason_of(request), _mark_of(request))
            answer = self._stands()
        elif request.kind in _ABANDONING:
            outcome = self._abandon(reason_of(request), _mark_of(request))
            answer = self._stands()
        else:
            answer = f"{request.kind} is nothing that this owner can do"
        self._requests.handled(request.request_id, answer)
        self._charge.answered(request.request_id)

        return outcome

    def _hint(self, request: Request) -> str:
        if self._state() in TERMINAL_STATES:
            return f"too late: the workflow is {self._state().value}"
        self._session.change(partial(note_hint, request))

        return NOTED

    def _pause(self, reason: str, mark: Mark | None = None) -> Outcome | None:
        """Park the workflow unless it is parked or over."""
        if not self._is_active():
            self._note(mark, WorkflowState.PAUSED)
            return None

        told = stop_reason(reason, self._session.doubt)

        return self._session.change(lambda draft: _marked(draft, mark, attempt_rules.pause(draft, told)))

    def _abandon(self, reason: str, mark: Mark | None = None) -> Outcome | None:
        """Give the workflow up unless it is over."""
        if self._state() in TERMINAL_STATES:
            self._note(mark, WorkflowState.ABANDONED)
            return None

        told = stop_reason(reason, self._session.doubt)

        return self._session.change(lambda draft: _marked(draft, mark, attempt_rules.abandon(draft, told)))

    def _note(self, mark: Mark | None, state: WorkflowState) -> None:
        """Write down who asked for what is so already: the attempt that it ended wrote *state* with its own end."""
        if mark is not None and self._state() is state and not command_rules.is_marked(self._session.document, mark):
            self._session.change(lambda draft: command_rules.mark(draft, mark))

    def _stands(self) -> str:
        document = self._session.document
        reasons = {WorkflowState.PAUSED: document.pause_reason, WorkflowState.FAILED: document.terminal_reason}
        why = reasons.get(self._state())

        return f"{document.current_state}: {why}" if why else document.current_state

    def _is_active(self) -> bool:
        return self._state() in ACTIVE_STATES

    def _state(self) -> WorkflowState:
        return WorkflowState(self._session.document.current_state)


def note_hint(request: Request, draft: Draft) -> None:
    """Write the hint of *request* down, unless a delivery that was done twice asked for it before."""
    payload, mark = request.payload, _mark_of(request)
    if command_rules.is_marked(draft.document, mark):
        return
    command_rules.mark(draft, mark)
    resume_rules.add_hint(draft, str(payload.get("phase") or ""), str(payload.get("text") or ""), request.asked_by)


def _mark_of(request: Request) -> Mark | None:
    return Mark.from_json(request.payload.get("mark"))


def _marked(draft: Draft, mark: Mark | None, outcome: Outcome) -> Outcome:
    command_rules.mark(draft, mark)

    return outcome
