"""
What is ordered about a workflow over HTTP: the API and the dashboard do the same, and say the same about it.

While somebody works on it he is asked, and the request is kept: `is_done` of the answer is false then.
"""

from __future__ import annotations

from adws.adw_modules.coordination.control import Applied, Asked, Control
from adws.adw_modules.errors import UsageError
from adws.adw_modules.rollback_rules import Wishes
from adws.web import models
from adws.web.home import Home

#: Seconds that a rollback waits for the owner to let go before it is refused.
ROLLBACK_WAIT_SECONDS = 5.0


class Orders:
    """Orders about one workflow, by one person."""

    def __init__(self, home: Home, adw_id: str, *, by: str, control: Control | None = None) -> None:
        """*by* is who orders it, for the history; *control* changes the workflow, that of the home unless given."""
        self._home = home
        self._adw_id = adw_id
        self._by = by
        self._given = control

    def pause(self, *, reason: str = "") -> models.Done:
        """Park the workflow; an attempt under way is suspended and does not count."""
        return self._told(self._control().pause(self._adw_id, by=self._by, reason=reason))

    def stop(self, *, reason: str = "", is_urgent: bool = False) -> models.Done:
        """Stop the work on it: its processes are asked to end, then killed; the workflow is paused."""
        return self._told(self._control().stop(self._adw_id, by=self._by, reason=reason, is_urgent=is_urgent))

    def abandon(self, *, reason: str = "") -> models.Done:
        """Give it up and free its issue; what it made is kept."""
        return self._told(self._control().abandon(self._adw_id, by=self._by, reason=reason))

    def resume(self, *, from_phase: str = "", hint: str = "", budget: float | None = None) -> models.Done:
        """Make it go on; a worker takes it up."""
        control = self._control()

        return self._told(control.resume(self._adw_id, by=self._by, from_phase=from_phase, hint=hint, budget=budget))

    def retry(self, *, hint: str = "", grant: int = 0, budget: float | None = None) -> models.Done:
        """Try a failed workflow again; with a *grant* also when its attempts are used up."""
        control, state = self._control(), self._state()
        if state != "failed":
            raise UsageError(f"workflow {self._adw_id} is {state}, not failed: resume it instead")

        return self._told(control.resume(self._adw_id, by=self._by, hint=hint, grant=grant, budget=budget))

    def approve(self, *, text: str = "") -> models.Done:
        """Let the phase that waits for a person pass, and go on."""
        return self._told(self._control().approve(self._adw_id, by=self._by, text=text))

    def reject(self, *, text: str = "") -> models.Done:
        """Send the phase that waits for a person back to work, with *text* as a hint."""
        return self._told(self._control().reject(self._adw_id, by=self._by, text=text))

    def hint(self, *, text: str) -> models.Done:
        """Say what to do differently in the next attempt."""
        return self._told(self._control().hint(self._adw_id, text, by=self._by))

    def roll_back(self, wishes: Wishes) -> models.Done:
        """Let a worker undo everything it made; raises WorkflowBusy when whoever works on it does not let go soon."""
        state = self._state()
        runs = self._home.part(lambda app: app.tidy.rollback_runs)
        run = runs.queue(self._adw_id, wishes, by=self._by, wait_seconds=ROLLBACK_WAIT_SECONDS)

        return models.Done(
            adw_id=self._adw_id,
            state=state,
            is_done=False,
            message=f"workflow {self._adw_id} waits for a worker that rolls it back",
            run_id=run.run_id,
        )

    def _control(self) -> Control:
        """Return what changes workflows; raise StateNotFound for one that is not there."""
        self._home.part(lambda app: app.store).peek(self._adw_id)

        return self._given or self._home.part(lambda app: app.work.control)

    def _state(self) -> str:
        return self._home.part(lambda app: app.store).load(self._adw_id).document.current_state

    def _told(self, done: Asked | Applied) -> models.Done:
        self._home.bring_up()
        if isinstance(done, Applied):
            run_id = done.run.run_id if done.run else None
            return models.Done(adw_id=self._adw_id, state=done.state, is_done=True, message=done.message, run_id=run_id)

        return models.Done(
            adw_id=self._adw_id,
            state=self._state(),
            is_done=False,
            message=f"asked {done.owner}, who is at work; the {done.request.kind} is kept",
            request_id=done.request.request_id,
        )


def cancel_retry(home: Home, retry_id: str, *, by: str, index: int | None = None, reason: str = "") -> str:
    """Give up what waits under *retry_id*, and return what was done; raise UsageError when nothing waits there."""
    message = home.part(lambda app: app.retries).cancel(retry_id, by=by, index=index, reason=reason)
    home.bring_up()

    return message
