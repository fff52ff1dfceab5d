"""
The wiring of the page of metrics: who is asked for what.

Apart from `app` because only the web door shows that page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import adws
from adws.adw_modules.coordination.measuring import Measuring, MeasuringParts
from adws.adw_modules.db.standings import DatabaseStandings
from adws.adw_modules.interfaces_reports import Window

if TYPE_CHECKING:
    from adws import config
    from adws.adw_modules.circuit_breaker import CircuitBreakerRegistry
    from adws.adw_modules.db.session import Database
    from adws.adw_modules.interfaces import Clock
    from adws.adw_modules.interfaces_coordination import Runners
    from adws.adw_modules.interfaces_metrics import EventTally
    from adws.adw_modules.interfaces_reports import Reports
    from adws.adw_modules.interfaces_resources import QuotaStatus
    from adws.adw_modules.process import SystemProcesses
    from adws.adw_modules.resources.quotas import MachineQuotas


class HomeMeasured(Protocol):
    """What the parts of a home are to who measures it (`app.App`)."""

    settings: config.Settings
    clock: Clock

    @property
    def database(self) -> Database: ...
    @property
    def tally(self) -> EventTally: ...
    @property
    def runners(self) -> Runners: ...
    @property
    def processes(self) -> SystemProcesses: ...
    @property
    def breakers(self) -> CircuitBreakerRegistry: ...
    @property
    def reports(self) -> Reports: ...
    @property
    def quotas(self) -> MachineQuotas: ...


def open_measuring(app: HomeMeasured) -> Measuring:
    """Return what reads the metrics of a home."""
    quotas, reports, breakers = app.quotas, app.reports, app.breakers

    def limits(day: str) -> tuple[QuotaStatus, ...]:
        spent = sum(line.cost_usd for line in reports.costs(Window(since=day), by="day"))
        return quotas.gauges(spent_today=spent, sizes=None)

    return Measuring(
        MeasuringParts(
            tally=app.tally,
            standings=DatabaseStandings(app.database, clock=app.clock),
            runners=app.runners,
            verdict=app.processes.verdict,
            breakers=breakers.stored,
            quotas=limits,
            clock=app.clock,
            lease_seconds=app.settings.lease_ttl_seconds,
            version=adws.__version__,
        )
    )
