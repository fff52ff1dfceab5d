"""What was spent, read from the rows of both databases: by day, by provider, with a cap of its own."""

from __future__ import annotations

import pytest

from adws.adw_modules import document
from adws.adw_modules.db import connection
from adws.adw_modules.errors import QuotaExceeded
from adws.adw_modules.resources.quotas import GB, CostStore, Limits, Quotas
from adws.adw_modules.store.serialization import summary_of
from tests.contracts.worlds import FIRST, INSERT_WORKFLOW, SECOND, THIRD, make_document

TODAY, YESTERDAY = "2026-01-31T08:00:00.000000Z", "2026-01-30T23:59:59.999999Z"


class Meters:
    def free_disk(self, _path) -> int:
        return 100 * GB

    def free_memory(self) -> int:
        return 100 * GB


@pytest.fixture
def make(database, clock, tmp_path):
    def quotas(**limits) -> Quotas:
        trees, limit = tmp_path / "trees", Limits(**limits)
        return Quotas(database, clock=clock, trees=trees, host="one", limits=limit, meters=Meters())

    return quotas


def usage(cost, provider="robots", **more):
    return {"provider": provider, "model": "robot-1", "tokens": {"input": 10}, "cost_usd": cost, **more}


def ended(at=TODAY, cost=None, **more):
    report = {"cost_usd": cost, **more.pop("report", {})} if cost is not None else more.pop("report", None)
    return document.AttemptRecord(number=1, status="failed", started_at=at, ended_at=at, report=report, **more)


def put(database, adw_id, *attempts, total=0.0, **changes) -> None:
    phases = [document.PhaseRecord(name="build", state="building", attempts=list(attempts))]
    updated = max((one.ended_at or TODAY for one in attempts), default=TODAY)
    cost = document.Cost(total_usd=total)
    made = make_document(
        adw_id, **{"current_state": "building", "phases": phases, "cost": cost, "updated_at": updated, **changes}
    ).changed(revision=1)
    extra = {"fence": 1, "home": "database", "schema_version": "3.0", "body": made.to_bytes(indent=None).decode()}
    with database.write() as session:
        session.run(INSERT_WORKFLOW, {**connection.summary_params(summary_of(made)), **extra})


def entries(database, since=""):
    return list(CostStore(database).entries(since))


# --- what was spent --------------------------------------------------------------------------------------------


def test_every_attempt_that_cost_something_is_an_entry_however_it_ended(database):
    put(database, SECOND, ended(cost=1.0), ended(report={"usage": usage(None)}), ended(agent={"provider": "robots"}))
    put(database, FIRST, ended(YESTERDAY, cost=0.5, report={"usage": usage(0.5)}), workflow="small")
    put(database, THIRD, ended(report={"summary": "nothing"}))

    result = entries(database)

    assert [(one.adw_id, one.workflow, one.cost_usd, one.is_unknown) for one in result] == [
        (FIRST, "small", 0.5, False),
        (SECOND, "sdlc", 1.0, False),
        (SECOND, "sdlc", None, True),
        (SECOND, "sdlc", None, True),
    ]


def test_since_leaves_out_what_ended_before_also_of_a_workflow_that_goes_on(database):
    put(database, FIRST, ended(YESTERDAY, cost=0.5), ended(TODAY, cost=0.25))
    put(database, SECOND, ended(YESTERDAY, cost=4.0))

    assert [one.cost_usd for one in entries(database, "2026-01-31T00:00:00.000000Z")] == [0.25]
    assert entries(database, "2026-02-01T00:00:00.000000Z") == []


# --- the day ---------------------------------------------------------------------------------------------------


def test_what_was_spent_today_is_known_by_provider_and_subscriptions_count_nothing(database, make):
    put(
        database,
        FIRST,
        ended(YESTERDAY, cost=8.0, report={"usage": usage(8.0)}),
        ended(cost=0.1, report={"usage": usage(0.1)}),
        ended(cost=0.2, report={"usage": usage(0.2)}),
        ended(report={"usage": usage(50.0, is_subscription=True)}),
    )
    put(database, SECOND, ended(cost=1.0, report={"usage": usage(1.0, "others")}), ended(cost=2.0))

    today = next(one for one in make().status() if one.name == "cost_per_day")

    assert "3.30 USD were spent today (unnamed 2.00, others 1.00, robots 0.30)" in today.detail


def test_the_limit_of_the_day_says_who_got_what_when_there_are_several(database, make):
    put(database, FIRST, ended(cost=0.5, report={"usage": usage(0.5)}))
    quotas = make()

    def detail() -> str:
        return next(one.detail for one in quotas.status() if one.name == "cost_per_day")

    assert "0.50 USD were spent today and" in detail()
    put(database, SECOND, ended(cost=2.0, report={"usage": usage(2.0, "others")}))
    assert "2.50 USD were spent today (others 2.00, robots 0.50) and" in detail()


# --- a cap of its own ------------------------------------------------------------------------------------------


def refusal(quotas, adw_id, **options) -> str:
    with pytest.raises(QuotaExceeded) as refused:
        quotas.admit(adw_id, **options)
    assert refused.value.name == "cost"
    return str(refused.value)


def test_the_owner_knows_better_than_the_row_what_it_has_cost_and_may_cost(database, make):
    put(database, FIRST, total=10.0)
    put(database, SECOND, total=1.0, max_cost_usd=20.0)

    make(max_cost=10.0).admit(FIRST, spent=10.0, cap=12.0)

    assert "has cost 15.00 of 10.00 USD" in refusal(make(max_cost=10.0), SECOND, spent=15.0, cap=None)
