"""
`/admin/recover-runs` and `/api/v1/sessions`: taking back what dead workers left, and whose agents are at work.

Both need the token. What is recovered is told to the log with who asked, and answered under the same names in every
mode.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from adws.adw_modules.errors import StateNotFound, UsageError
from adws.adw_modules.interfaces_coordination import AgentSession
from adws.adw_modules.recovery_facts import Mode, mode_of
from adws.web import models
from adws.web.routes import ERRORS, HomeOf, asker

logger = logging.getLogger("adw.web")

router = APIRouter(tags=["admin"], responses=ERRORS)

#: More seconds than anybody waits.
_LONGEST_SECONDS = 366 * 86_400.0

Threshold = Annotated[float, Field(ge=0, le=_LONGEST_SECONDS, allow_inf_nan=False)]


class RecoverQuery(BaseModel):
    """How far recovery goes, in the address."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["none", "stale", "all"] | None = Field(default=None, description="null: that of the settings")
    threshold: Threshold | None = Field(default=None, description="seconds; null: that of the settings")
    force: bool | None = Field(default=None, description="with mode all: take work also from owners that live")


class SessionFilter(BaseModel):
    """Whose sessions to list."""

    model_config = ConfigDict(extra="forbid")

    adw_id: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$",
        description='id of a workflow: all that it had; "": those of every workflow that have not ended',
    )


_NO_ORDER = models.RecoverOrder()


@router.post("/admin/recover-runs", operation_id="recover_runs")
def recover_runs(
    home: HomeOf, wanted: Annotated[RecoverQuery, Query()], order: models.RecoverOrder = _NO_ORDER
) -> models.Recovered:
    """Find work whose worker is gone and make it ready to go on; the body wins over the address."""
    recovery = home.part(lambda app: app.work.recovery)
    mode = mode_of(order.mode or wanted.mode or home.settings.recovery_mode)
    is_forced = order.force if order.force is not None else bool(wanted.force)
    if is_forced and mode is not Mode.ALL:
        raise UsageError("force takes work from owners that live: use it with mode all, or leave it out")
    threshold = order.threshold if order.threshold is not None else wanted.threshold
    policy = replace(recovery.policy, is_forced=is_forced)
    if threshold is not None:
        policy = replace(policy, threshold_seconds=threshold)
    result = recovery.recover(every_document=True, mode=mode, policy=policy, is_dry_run=order.dry_run)
    home.bring_up()
    found = result.to_json()
    counts = {key: found[key] for key in ("reset_to_pending", "marked_failed", "marked_stopped", "run_ids")}
    said = {"action": "recovery_asked", "by": asker(order.by), "mode": mode.value, "force": is_forced, **counts}
    logger.warning("Recovery was asked for", extra={**said, "dry_run": order.dry_run})

    return models.Recovered.model_validate(found)


@router.get("/api/v1/sessions", operation_id="list_sessions")
def list_sessions(home: HomeOf, wanted: Annotated[SessionFilter, Query()]) -> models.SessionList:
    """List the agents at work, oldest first; with an id all that a workflow ever had."""
    sessions = home.part(lambda app: app.sessions)
    if not wanted.adw_id:
        return models.SessionList(sessions=[_line(session) for session in sessions.live()])
    found = sessions.of_workflow(wanted.adw_id)
    if not found and not home.part(lambda app: app.store).exists(wanted.adw_id):
        raise StateNotFound(wanted.adw_id)

    return models.SessionList(sessions=[_line(session) for session in found])


def _line(session: AgentSession) -> models.SessionLine:
    return models.SessionLine(
        session_id=session.session_id,
        adw_id=session.adw_id,
        run_id=session.run_id,
        phase=session.phase,
        attempt_number=session.attempt_number,
        agent=session.agent,
        host=session.host,
        status=session.status.value,
        executor_session_id=session.executor_session_id or None,
        reason=session.reason,
        started_at=session.started_at,
        ended_at=session.ended_at,
    )
