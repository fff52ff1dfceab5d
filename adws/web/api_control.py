"""
`/api/v1/workflows/{id}/...`: what people do to a workflow, by the same doors as the command line.

While somebody works on it, he is asked, and the answer is 202: the request is kept, and `is_done` is false.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from adws.adw_modules.rollback_rules import Wishes
from adws.web import models
from adws.web.errors import fitting
from adws.web.orders import Orders
from adws.web.routes import ERRORS, AdwId, HomeOf, asker

router = APIRouter(
    prefix="/api/v1/workflows/{adw_id}",
    tags=["workflows"],
    responses={**ERRORS, 202: {"model": models.Done, "description": "Whoever works on it was asked."}},
)

#: What a request without a body means.
_NO_ORDER, _NO_STOP, _NO_ROLLBACK = models.Order(), models.StopOrder(), models.RollbackOrder()
_NO_RESUME, _NO_RETRY, _NO_DECISION = models.Resume(), models.Retry(), models.Decision()


@router.post("/pause", operation_id="pause_workflow")
def pause(home: HomeOf, adw_id: AdwId, response: Response, order: models.Order = _NO_ORDER) -> models.Done:
    """Park a workflow; an attempt under way is suspended and does not count."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).pause(reason=order.reason))


@router.post("/stop", operation_id="stop_workflow")
def stop(home: HomeOf, adw_id: AdwId, response: Response, order: models.StopOrder = _NO_STOP) -> models.Done:
    """Stop the work on a workflow: its processes are asked to end, then killed; the workflow is paused."""
    with fitting():
        orders = Orders(home, adw_id, by=asker(order.by))
        return _told(response, orders.stop(reason=order.reason, is_urgent=order.is_urgent))


@router.post("/abandon", operation_id="abandon_workflow")
def abandon(home: HomeOf, adw_id: AdwId, response: Response, order: models.Order = _NO_ORDER) -> models.Done:
    """Give a workflow up and free its issue; what it made is kept."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).abandon(reason=order.reason))


@router.post("/resume", operation_id="resume_workflow")
def resume(home: HomeOf, adw_id: AdwId, response: Response, order: models.Resume = _NO_RESUME) -> models.Done:
    """Make a workflow that stopped go on; a worker takes it up. 409 while somebody works on it."""
    with fitting():
        orders = Orders(home, adw_id, by=asker(order.by))
        return _told(response, orders.resume(from_phase=order.from_phase, hint=order.hint, budget=order.budget_usd))


@router.post("/retry", operation_id="retry_workflow")
def retry(home: HomeOf, adw_id: AdwId, response: Response, order: models.Retry = _NO_RETRY) -> models.Done:
    """Try a failed workflow again; with a grant also when its attempts are used up."""
    with fitting():
        orders = Orders(home, adw_id, by=asker(order.by))
        return _told(response, orders.retry(hint=order.hint, grant=order.grant, budget=order.budget_usd))


@router.post("/approve", operation_id="approve_workflow")
def approve(home: HomeOf, adw_id: AdwId, response: Response, order: models.Decision = _NO_DECISION) -> models.Done:
    """Let the phase that waits for a person pass, and go on."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).approve(text=order.text))


@router.post("/reject", operation_id="reject_workflow")
def reject(home: HomeOf, adw_id: AdwId, response: Response, order: models.Decision = _NO_DECISION) -> models.Done:
    """Send the phase that waits for a person back to work, with the text as a hint."""
    with fitting():
        return _told(response, Orders(home, adw_id, by=asker(order.by)).reject(text=order.text))


@router.post("/rollback", operation_id="rollback_workflow", status_code=202)
def rollback(home: HomeOf, adw_id: AdwId, order: models.RollbackOrder = _NO_ROLLBACK) -> models.Done:
    """Undo everything a workflow made; a worker does it. 409 when whoever works on it does not let go soon."""
    by = asker(order.by)
    wishes = Wishes(
        reason=order.reason or f"rolled back by {by}",
        keep_branch=order.keep_branch,
        force=order.force,
        forget_hosts=tuple(order.forget_hosts),
        by=by,
    )
    with fitting():
        return Orders(home, adw_id, by=by).roll_back(wishes)


def _told(response: Response, done: models.Done) -> models.Done:
    if not done.is_done:
        response.status_code = 202

    return done
