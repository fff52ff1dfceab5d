"""
`/api/v1/workflows/{id}/...`: what people do to a workflow, by the same doors as the command line.

While somebody works on it, he is asked, and the answer is 202: the request is kept, and `is_done` is false.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from adws.adw_modules.coordination.control import Applied, Asked, Control
from adws.adw_modules.errors import UsageError
from adws.adw_modules.rollback_rules import Wishes
from adws.web import models
from adws.web.errors import fitting
from adws.web.home import Home
from adws.web.routes import ERRORS, AdwId, HomeOf, asker

router = APIRouter(
    prefix="/api/v1/workflows/{adw_id}",
    tags=["workflows"],
    responses={**ERRORS, 202: {"model": models.Done, "description": "Whoever works on it was asked."}},
)

#: Seconds that a rollback waits for the owner to let go before it is answered with 409.
ROLLBACK_WAIT_SECONDS = 5.0

#: What a request without a body means.
_NO_ORDER, _NO_STOP, _NO_ROLLBACK = models.Order(), models.StopOrder(), models.RollbackOrder()
_NO_RESUME, _NO_RETRY, _NO_DECISION = models.Resume(), models.Retry(), models.Decision()


@router.post("/pause", operation_id="pause_workflow")
def pause(home: HomeOf, adw_id: AdwId, response: Response, order: models.Order = _NO_ORDER) -> models.Done:
    """Park a workflow; an attempt under way is suspended and does not count."""
    with fitting():
        done = _control(home, adw_id).pause(adw_id, by=asker(order.by), reason=order.reason)

    return _told(adw_id, done, home, response)


@router.post("/stop", operation_id="stop_workflow")
def stop(home: HomeOf, adw_id: AdwId, response: Response, order: models.StopOrder = _NO_STOP) -> models.Done:
    """Stop the work on a workflow: its processes are asked to end, then killed; the workflow is paused."""
    with fitting():
        control = _control(home, adw_id)
        done = control.stop(adw_id, by=asker(order.by), reason=order.reason, is_urgent=order.is_urgent)

    return _told(adw_id, done, home, response)


@router.post("/abandon", operation_id="abandon_workflow")
def abandon(home: HomeOf, adw_id: AdwId, response: Response, order: models.Order = _NO_ORDER) -> models.Done:
    """Give a workflow up and free its issue; what it made is kept."""
    with fitting():
        done = _control(home, adw_id).abandon(adw_id, by=asker(order.by), reason=order.reason)

    return _told(adw_id, done, home, response)


@router.post("/resume", operation_id="resume_workflow")
def resume(home: HomeOf, adw_id: AdwId, response: Response, order: models.Resume = _NO_RESUME) -> models.Done:
    """Make a workflow that stopped go on; a worker takes it up. 409 while somebody works on it."""
    with fitting():
        done = _control(home, adw_id).resume(
            adw_id, by=asker(order.by), from_phase=order.from_phase, hint=order.hint, budget=order.budget_usd
        )

    return _told(adw_id, done, home, response)


@router.post("/retry", operation_id="retry_workflow")
def retry(home: HomeOf, adw_id: AdwId, response: Response, order: models.Retry = _NO_RETRY) -> models.Done:
    """Try a failed workflow again; with a grant also when its attempts are used up."""
    with fitting():
        control = _control(home, adw_id)
        state = home.part(lambda app: app.store).load(adw_id).document.current_state
        if state != "failed":
            raise UsageError(f"workflow {adw_id} is {state}, not failed: resume it instead")
        done = control.resume(adw_id, by=asker(order.by), hint=order.hint, grant=order.grant, budget=order.budget_usd)

    return _told(adw_id, done, home, response)


@router.post("/approve", operation_id="approve_workflow")
def approve(home: HomeOf, adw_id: AdwId, response: Response, order: models.Decision = _NO_DECISION) -> models.Done:
    """Let the phase that waits for a person pass, and go on."""
    with fitting():
        done = _control(home, adw_id).approve(adw_id, by=asker(order.by), text=order.text)

    return _told(adw_id, done, home, response)


@router.post("/reject", operation_id="reject_workflow")
def reject(home: HomeOf, adw_id: AdwId, response: Response, order: models.Decision = _NO_DECISION) -> models.Done:
    """Send the phase that waits for a person back to work, with the text as a hint."""
    with fitting():
        done = _control(home, adw_id).reject(adw_id, by=asker(order.by), text=order.text)

    return _told(adw_id, done, home, response)


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
        state = home.part(lambda app: app.store).load(adw_id).document.current_state
        runs = home.part(lambda app: app.tidy.rollback_runs)
        run = runs.queue(adw_id, wishes, by=by, wait_seconds=ROLLBACK_WAIT_SECONDS)

    return models.Done(
        adw_id=adw_id,
        state=state,
        is_done=False,
        message=f"workflow {adw_id} waits for a worker that rolls it back",
        run_id=run.run_id,
    )


def _control(home: Home, adw_id: str) -> Control:
    """Return what changes workflows; raise StateNotFound for one that is not there."""
    home.part(lambda app: app.store).peek(adw_id)

    return home.part(lambda app: app.work.control)


def _told(adw_id: str, done: Asked | Applied, home: Home, response: Response) -> models.Done:
    home.bring_up()
    if isinstance(done, Applied):
        run_id = done.run.run_id if done.run else None
        return models.Done(adw_id=adw_id, state=done.state, is_done=True, message=done.message, run_id=run_id)
    response.status_code = 202
    document = home.part(lambda app: app.store).load(adw_id).document

    return models.Done(
        adw_id=adw_id,
        state=document.current_state,
        is_done=False,
        message=f"asked {done.owner}, who is at work; the {done.request.kind} is kept",
        request_id=done.request.request_id,
    )
