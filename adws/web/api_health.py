"""`/health`: whether this server can do its work; open to everybody, so it says little."""

from __future__ import annotations

from fastapi import APIRouter, Response

import adws
from adws.adw_modules.errors import AdwError
from adws.web import models
from adws.web.home import Home
from adws.web.routes import HomeOf

router = APIRouter(tags=["health"])


@router.get("/health", operation_id="get_health", responses={503: {"model": models.Health}})
def get_health(home: HomeOf, response: Response) -> models.Health:
    """Say whether deliveries can be stored and workers run; 503 when the database does not answer."""
    is_database_well = _can_read(home)
    wanted, running = home.workers()
    if not is_database_well:
        response.status_code = 503

    return models.Health(
        status="ok" if is_database_well else "the database does not answer",
        version=adws.__version__,
        database="ok" if is_database_well else "does not answer",
        workers_wanted=wanted,
        workers_running=running,
    )


def _can_read(home: Home) -> bool:
    try:
        home.part(lambda app: app.runs).seconds_to_next()
    except AdwError:
        return False

    return True
