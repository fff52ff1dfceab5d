"""Limits on real databases and a real disk: who races for the last place, what was spent, what counts as a worktree."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adws import testing
from adws.adw_modules import document, timestamps
from adws.adw_modules.db import connection
from adws.adw_modules.db.connection import Database
from adws.adw_modules.errors import QuotaExceeded
from adws.adw_modules.resources.quotas import GB, Limits, Quotas
from adws.adw_modules.store.serialization import summary_of
from tests import warm
from tests.contracts.worlds import FIRST, INSERT_WORKFLOW, SECOND, THIRD, make_document, make_owner


class FixedMeters:
    """A machine with as much as a test says."""

    def __init__(self, disk: int = 100 * GB, memory: int = 10 * GB) -> None:
        self.disk, self.memory = disk, memory
        self.asked: list[Path] = []

    def free_disk(self, path: Path) -> int:
        self.asked.append(path)
        return self.disk

    def free_memory(self) -> int:
        return self.memory


@pytest.fixture
def trees(tmp_path) -> Path:
    return tmp_path / "trees"


@pytest.fixture
def make(database, clock, trees):
    def quotas(meters=None, host="one", **limits) -> Quotas:
        limit = Limits(**limits)
        return Quotas(database, clock=clock, trees=trees, host=host, limits=limit, meters=meters or FixedMeters())

    return quotas


def put_tree(trees: Path, name: str, size: int = 0) -> None:
    (trees / name).mkdir(parents=True)
    (trees / name / ".git").write_text("gitdir: /somewhere\n")
    (trees / name / "big").write_bytes(b"x" * size)


def put_document(database: Database, adw_id: str, *, state="building", spent=(), owner="", **changes) -> None:
    """Store a workflow whose attempts cost *spent*: pairs of the moment they ended and US dollars."""
    attempts = [
        document.AttemptRecord(number=number, started_at=ended, ended_at=ended, report={"cost_usd": usd})
        for number, (ended, usd) in enumerate(spent, start=1)
    ]
    phases = [document.PhaseRecord(name="build", state="building", attempts=attempts)] if attempts else []
    cost = document.Cost(total_usd=sum(usd for _, usd in spent))
    updated = max((ended for ended, _ in spent), default="2026-01-31T09:00:00.000000Z")
    made = make_document(
        adw_id, current_state=state, phases=phases, cost=cost, revision=1, updated_at=updated, **changes
    )
    params = connection.summary_params(summary_of(made))
    extra = {"fence": 1, "home": "database", "schema_version": "3.0", "body": made.to_bytes(indent=None).decode()}
    with database.write() as session:
        session.run(INSERT_WORKFLOW, {**params, **extra})
        session.run(
            "UPDATE workflow_states SET owner = :owner, lease_boot = :boot, lease_until = :until WHERE adw_id = :id",
            {"owner": owner, "boot": database.lease_clock()["boot"], "until": 1e12 if owner else 0.0, "id": adw_id},
        )


def refusal(call, *args, **options) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as refused:
        call(*args, **options)
    return refused.value


def status(quotas, name, **options):
    return next(one for one in quotas.status(**options) if one.name == name)


# --- the last place --------------------------------------------------------------------------------------------


def test_of_many_racing_starts_exactly_fifteen_get_in(database_url, trees):
    ask = [sys.executable, str(Path(__file__).with_name("quota_asker.py")), database_url, str(trees), "quota"]
    running = warm.begin_together(*([*ask, f"{number:08x}"] for number in range(18)))
    said = sorted(process.stdout.readline().strip() for process in running)
    for process in running:
        process.communicate("\n", timeout=60)

    assert said == ["in"] * 15 + ["refused worktrees"] * 3


# --- worktrees -------------------------------------------------------------------------------------------------


def test_worktrees_that_are_there_count_and_other_directories_do_not(make, trees):
    put_tree(trees, "00000001")
    put_tree(trees, "00000002")
    (trees / "notes").mkdir()
    (trees / "clone" / ".git").mkdir(parents=True)
    (trees / "file").write_text("x")
    quotas = make(max_worktrees=3)

    assert status(quotas, "worktrees").used == 2
    quotas.admit(FIRST)
    refused = refusal(quotas.admit, SECOND)

    assert refused.name == "worktrees"
    assert "3 of 3 worktrees are in use" in str(refused)
    assert "adw admin gc, or raise quota.max_worktrees" in str(refused)


def test_every_limit_is_reached_when_as_much_as_it_says_is_used(make, database, trees):
    """
    `adw quota`, new work and a start that is only asked about go by the same rule, at the limit and just before it.
    """
    spent = [("2026-01-31T08:00:00.000000Z", 5.0)]
    put_tree(trees, FIRST, size=300_000)
    put_document(database, FIRST, spent=spent, owner=make_owner().to_text())
    size = make().sizes()[FIRST]
    cases = {
        "worktrees": (make(max_worktrees=1), make(max_worktrees=2)),
        "worktree_size": (make(max_worktree_size=size), make(max_worktree_size=size + 1)),
        "cost_per_day": (make(max_cost_per_day=5.0), make(max_cost_per_day=5.01)),
        "disk": (make(FixedMeters(disk=10 * GB - 1)), make(FixedMeters(disk=10 * GB))),
        "memory": (make(FixedMeters(memory=GB - 1)), make(FixedMeters(memory=GB))),
    }

    for name, (at_limit, before) in cases.items():
        assert (status(at_limit, name).is_exceeded, status(before, name).is_exceeded) == (True, False), name
        before.check_start("another")
        before.admit(SECOND)
        before.release(SECOND)
        if name != "worktree_size":  # stops the workflow that has it, and no other
            assert refusal(at_limit.admit, SECOND).name == name
        if name in {"worktrees", "cost_per_day", "disk"}:  # memory becomes free by itself
            assert refusal(at_limit.check_start, "another").name == name
    make(max_runs=1).admit(FIRST)
    assert refusal(make(max_runs=1).admit, SECOND).name == "runs"
    assert refusal(make(max_cost=5.0).admit, FIRST).name == "cost"
    make(max_cost=5.01).admit(FIRST)


# --- this machine ----------------------------------------------------------------------------------------------


def test_a_start_is_refused_by_what_somebody_has_to_free_and_not_by_what_passes(make, database, trees):
    assert refusal(make(FixedMeters(disk=9 * GB)).check_start, "sdlc").name == "disk"
    make(FixedMeters(memory=GB // 2)).check_start("sdlc")
    put_document(database, "00000001", state="completed", spent=[("2026-01-31T09:00:00.000000Z", 11.0)])
    assert refusal(make().check_start, "sdlc").name == "cost"
    make().check_start("another")
    for number in range(15):
        (trees / f"0000000{number:x}").mkdir(parents=True)
        (trees / f"0000000{number:x}" / ".git").write_text("gitdir: somewhere\n")
    assert refusal(make().check_start, "another").name == "worktrees"
    assert status(make(), "runs").used == 0, "nothing is reserved"


# --- money -----------------------------------------------------------------------------------------------------


def test_an_estimate_is_the_median_of_those_that_came_to_their_end(make, database):
    for number, usd in enumerate((1.0, 2.0, 30.0)):
        put_document(database, f"0000000{number}", state="completed", spent=[("2026-01-01T00:00:00.000000Z", usd)])
    put_document(database, "00000008", state="failed", spent=[("2026-01-01T00:00:00.000000Z", 99.0)])
    put_document(
        database, "00000009", state="completed", workflow="other", spent=[("2026-01-01T00:00:00.000000Z", 50.0)]
    )

    assert make().estimate("sdlc") == 2.0
    assert make().estimate("other") == 50.0
    assert make().estimate("never-run") is None


def test_a_day_counts_what_was_spent_since_midnight_and_what_is_to_come(make, database, clock):
    """
    An attempt of yesterday is not of today, and what a running workflow has spent of its estimate counts once.
    """
    put_document(database, FIRST, spent=[("2026-01-30T23:59:59.999999Z", 50.0), ("2026-01-31T00:00:00.000000Z", 3.0)])
    put_document(database, SECOND, spent=[("2026-01-31T08:00:00.000000Z", 4.0)], owner=make_owner().to_text())
    quotas = make(max_cost=100.0, max_cost_per_day=20.0)
    quotas.admit(SECOND, estimated_cost=6.0)

    assert status(quotas, "cost_per_day").used == pytest.approx(3.0 + 4.0 + 2.0)
    refused = refusal(quotas.admit, THIRD, estimated_cost=11.5)
    quotas.admit(THIRD, estimated_cost=11.0)

    assert refused.name == "cost_per_day"
    assert "7.00 USD were spent today and 13.50 USD are to come, of 20.00 USD" in str(refused)
    clock.advance(86_400.0)
    assert status(quotas, "cost_per_day").used == pytest.approx(2.0 + 11.0)


# --- left behind -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["paused", "failed", "completed", "abandoned", "rolled_back"])
def test_the_place_of_a_workflow_that_rests_and_that_nobody_owns_is_free(make, database, state):
    quotas = make(max_runs=1)
    quotas.admit(FIRST)
    put_document(database, FIRST, state=state)

    quotas.admit(SECOND)

    assert status(quotas, "runs").used == 1


def test_a_place_is_kept_while_somebody_works_or_is_about_to(make, database, clock):
    quotas = make(max_runs=3)
    for adw_id in (FIRST, SECOND, THIRD):
        quotas.admit(adw_id)
    put_document(database, FIRST, state="failed", owner=make_owner().to_text())
    put_document(database, SECOND, state="building")

    assert quotas.free_left_behind() == 0
    clock.advance(3601.0)
    assert quotas.free_left_behind() == 1, "the third never came to be"
    assert refusal(make(max_runs=2).admit, "00000009").name == "runs"


def test_what_was_spent_counts_even_without_an_estimate(make, database):
    put_document(database, FIRST, spent=[("2026-01-30T00:00:00.000000Z", 6.0), ("2026-01-31T01:00:00.000000Z", 5.0)])

    refused = refusal(make().admit, FIRST)

    assert refused.name == "cost"
    assert "has cost 11.00 of 10.00 USD" in str(refused)


@pytest.mark.parametrize("store", ["files", "database"])
def test_what_an_attempt_cost_counts_from_the_write_that_stores_it(store):
    with testing.home(store=store, quota_max_cost_per_day=10) as home:
        now = timestamps.to_text(home.clock.now())
        with home.ownership.create(make_document(FIRST, repository="acme/widget")) as owned:
            attempt = document.AttemptRecord(number=1, started_at=now, ended_at=now)
            for report, left in ((None, 10.0), ({"cost_usd": 4.0}, 6.0), ({"cost_usd": 7.0}, 3.0)):
                phase = document.PhaseRecord(name="build", state="building", attempts=[attempt.changed(report=report)])
                owned.save(owned.document.changed(phases=[phase]))
                home.store.flush()

                assert home.quotas.rest_of_day() == left
