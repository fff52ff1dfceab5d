"""`/metrics`: what Prometheus reads; with a token, as the API, unless the settings open it to this machine."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from adws.adw_modules import metrics
from adws.adw_modules.metric_names import Values
from adws.web.routes import ERRORS, HomeOf

_FORMATS: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}, "application/openmetrics-text": {}}

router = APIRouter(tags=["metrics"], responses=ERRORS)


@router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=Response,
    responses={200: {"description": "Every metric.", "content": _FORMATS}},
)
def get_metrics(home: HomeOf, request: Request) -> Response:
    """Show how many there are of what, and what was counted, in the format that Prometheus reads."""
    readings = home.part(lambda app: app.measuring).readings()
    refused: Values = {(reason,): float(count) for reason, count in dict(home.refused).items()}
    accept = request.headers.get("accept", "")
    page, media_type = metrics.render({**readings, "adw_webhook_refused_total": refused}, accept)

    return Response(page, headers={"Content-Type": media_type, "Cache-Control": "no-store"})
