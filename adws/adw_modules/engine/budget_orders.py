"""
An agent that has used up its budget is ended like one that was ordered to.

What people order comes first. Looking is cheap: the sum is made again only when the agent has said something new.
"""

from __future__ import annotations

from adws.adw_modules.cost_rules import BudgetWatch
from adws.adw_modules.interfaces_engine import Order, Orders

#: The kind of the order; a runner makes a failure of it, not a suspension.
BUDGET = "budget"


class BudgetOrders:
    """The `Orders` of an attempt, and one more once its budget is used up."""

    def __init__(self, orders: Orders, watch: BudgetWatch) -> None:
        self._orders = orders
        self._watch = watch

    def current(self) -> Order | None:
        """Return the order to obey, None while the work may go on."""
        return self._orders.current() or self._budget()

    def wait(self, seconds: float) -> Order | None:
        """Wait for an order, at most that long; a budget that is used up is not waited for."""
        return self.current() or self._orders.wait(seconds) or self._budget()

    def _budget(self) -> Order | None:
        passed = self._watch.passed

        return Order(kind=BUDGET, reason=passed) if passed else None
