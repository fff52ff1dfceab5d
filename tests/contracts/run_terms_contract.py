"""What every RunQueue keeps about the terms of a claim: what a worker offers, and how many runs go on at a time."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import UsageError
from adws.adw_modules.queue.model import (
    DELIVERY,
    DELIVERY_PRIORITY,
    ClaimPolicy,
    NewRun,
    Run,
    RunEnd,
    RunLimits,
    RunState,
)
from adws.adw_modules.workflow.requirements import Capabilities, Requirements
from tests.contracts.worlds import FIRST, SECOND, THIRD, make_owner

TTL = 30.0
GPU = Requirements(tags=frozenset({"gpu"}))
HERE, ELSEWHERE = Requirements(host="testhost"), Requirements(host="elsewhere")
LABELS = frozenset({"repository:acme/widget", "workflow:sdlc"})


def enqueue(world, adw_id=FIRST, **fields) -> Run:
    return world.runs.enqueue(NewRun(adw_id=adw_id, **fields))


def claim(world, name="one", **more) -> Run | None:
    return world.runs.claim(make_owner(name), ttl_seconds=TTL, **more)


def offering(*tags: str, host: str = "testhost") -> ClaimPolicy:
    return ClaimPolicy(offer=Capabilities(host=host, tags=frozenset(tags)))


def limited(**scopes: dict[str, int]) -> ClaimPolicy:
    return ClaimPolicy(limits=RunLimits(scopes=scopes))


class RunTermsContract:
    """Mix in and give a `world` fixture."""

    # --- demands -----------------------------------------------------------------------------------------------

    def test_demands_labels_slot_and_parent_are_stored_and_shown(self, world):
        parent = enqueue(world, SECOND)
        demands = Requirements(host="alpha", tags=frozenset({"gpu", "big"}))

        run = enqueue(world, demands=demands, labels=LABELS, slot="rollback@alpha", parent_run_id=parent.run_id)

        assert (run.demands, run.labels, run.slot, run.parent_run_id) == (
            demands,
            LABELS,
            "rollback@alpha",
            parent.run_id,
        )
        assert world.runs.get(run.run_id) == run

    @pytest.mark.parametrize("label", ["team:a", "workflow:", "sdlc", "workflow:a|b"])
    def test_what_is_no_label_is_refused(self, world, label):
        with pytest.raises(UsageError, match="no label of a run"):
            enqueue(world, labels=frozenset({label}))

        assert world.runs.page() == ()

    def test_a_run_goes_only_to_a_worker_that_meets_what_it_demands(self, world):
        run = enqueue(world, demands=GPU)

        assert claim(world) is None
        assert claim(world, terms=offering("big")) is None
        assert claim(world, terms=offering("big", "gpu")).run_id == run.run_id

    def test_without_an_offer_a_worker_offers_its_host(self, world):
        here = enqueue(world, demands=HERE)
        enqueue(world, SECOND, demands=ELSEWHERE)

        assert claim(world).run_id == here.run_id
        assert claim(world) is None
        assert claim(world, terms=offering(host="elsewhere")).adw_id == SECOND

    def test_what_others_must_do_is_passed_over(self, world):
        enqueue(world, demands=GPU, priority=9)
        enqueue(world, SECOND)
        enqueue(world, THIRD, demands=HERE)

        assert [claim(world).adw_id for _ in range(2)] == [SECOND, THIRD]
        assert claim(world) is None

    def test_demands_do_not_change_the_order(self, world):
        enqueue(world, FIRST, priority=1)
        enqueue(world, SECOND, priority=5, demands=GPU)
        enqueue(world, THIRD, priority=3, demands=HERE)

        order = [claim(world, terms=offering("gpu")).adw_id for _ in range(3)]

        assert order == [SECOND, THIRD, FIRST]

    def test_a_demand_that_comes_later_is_seen_by_a_worker_that_found_none_before(self, world):
        assert claim(world, terms=offering("gpu")) is None
        enqueue(world)
        claim(world, terms=offering("gpu"))
        run = enqueue(world, SECOND, demands=GPU, priority=9)
        enqueue(world, THIRD)

        assert claim(world, terms=offering("gpu")).run_id == run.run_id
        assert claim(world, terms=offering("gpu")).adw_id == THIRD

    def test_a_run_with_demands_is_not_claimed_before_its_time(self, world):
        due = timestamps.to_text(world.clock.now() + timedelta(seconds=60))
        enqueue(world, demands=HERE, not_before=due)

        assert claim(world) is None
        world.clock.advance(60)
        assert claim(world).adw_id == FIRST

    def test_by_its_id_a_run_is_claimed_only_by_who_meets_its_demands(self, world):
        run = enqueue(world, demands=GPU)

        assert claim(world, run_id=run.run_id) is None
        assert claim(world, run_id=run.run_id, terms=offering("gpu")).run_id == run.run_id

    def test_deliveries_may_demand_something_too(self, world):
        run = enqueue(world, kind=DELIVERY, priority=DELIVERY_PRIORITY, demands=GPU)
        plain = enqueue(world, SECOND, kind=DELIVERY, priority=DELIVERY_PRIORITY)

        assert claim(world, only_deliveries=True).run_id == plain.run_id
        assert claim(world, only_deliveries=True) is None
        assert claim(world, only_deliveries=True, terms=offering("gpu")).run_id == run.run_id

    def test_a_run_that_is_taken_back_demands_the_same(self, world):
        enqueue(world, demands=GPU, labels=LABELS)
        run = claim(world, terms=offering("gpu"))

        back = world.runs.take_back(run, reason="gone")

        assert (back.demands, back.labels) == (GPU, LABELS)
        assert claim(world) is None
        assert claim(world, terms=offering("gpu")).labels == LABELS

    # --- limits ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "scopes",
        [{"workflow": {"sdlc": 1}}, {"repository": {"*": 1}}, {"repository": {"*": 5}, "workflow": {"*": 1}}],
        ids=["by name", "for each", "the tighter one"],
    )
    def test_what_carries_a_full_label_is_passed_over(self, world, scopes):
        enqueue(world, labels=LABELS)
        enqueue(world, SECOND, labels=LABELS)
        enqueue(world, THIRD, labels=frozenset({"repository:acme/other", "workflow:patch"}))
        terms = limited(**scopes)

        assert [claim(world, terms=terms).adw_id for _ in range(2)] == [FIRST, THIRD]
        assert claim(world, terms=terms) is None
        assert claim(world).adw_id == SECOND, "who has no limits takes it"

    @pytest.mark.parametrize("end", ["finished", "given back", "taken back", "buried"])
    def test_a_run_that_is_left_makes_room(self, world, end):
        terms = limited(workflow={"sdlc": 1})
        enqueue(world, labels=LABELS, priority=-1)
        run = claim(world, terms=terms)
        enqueue(world, SECOND, labels=LABELS)
        assert claim(world, terms=terms) is None

        {
            "finished": lambda: world.runs.finish(run, RunState.FAILED),
            "given back": lambda: world.runs.requeue(run),
            "taken back": lambda: world.runs.take_back(run, reason="gone"),
            "buried": lambda: world.runs.settle_lost(run, RunEnd(state=RunState.DEAD, reason="gone")),
        }[end]()

        assert claim(world, terms=terms).adw_id == SECOND
        assert claim(world, terms=terms) is None

    @pytest.mark.parametrize("state", ["claimed", "running", "stopping"])
    def test_a_run_counts_from_its_claim_to_its_end(self, world, state):
        terms = limited(workflow={"sdlc": 1})
        enqueue(world, labels=LABELS)
        run = claim(world, terms=terms)
        if state != "claimed":
            world.runs.begin(run)
        if state == "stopping":
            world.runs.ask_to_stop(run.run_id)
        enqueue(world, SECOND, labels=LABELS)

        assert claim(world, terms=terms) is None

    def test_nothing_of_a_name_goes_on_whose_limit_is_nought(self, world):
        terms = limited(workflow={"sdlc": 0})
        run = enqueue(world, labels=LABELS)

        assert claim(world, terms=terms) is None
        assert claim(world, terms=terms, run_id=run.run_id) is None

    def test_a_name_that_is_part_of_another_is_another(self, world):
        terms = limited(workflow={"sdlc": 1})
        enqueue(world, labels=frozenset({"workflow:sdlc"}))
        enqueue(world, SECOND, labels=frozenset({"workflow:sdlc_from_build"}))
        enqueue(world, THIRD, labels=frozenset({"workflow:%"}))

        assert [claim(world, terms=terms).adw_id for _ in range(3)] == [FIRST, SECOND, THIRD]

    def test_limits_hold_for_a_claim_by_id(self, world):
        terms = limited(repository={"acme/widget": 1})
        first = enqueue(world, labels=LABELS)
        second = enqueue(world, SECOND, labels=LABELS)
        claimed = claim(world, terms=terms, run_id=first.run_id)

        assert claim(world, terms=terms, run_id=second.run_id) is None
        world.runs.finish(claimed, RunState.COMPLETED)
        assert claim(world, terms=terms, run_id=second.run_id).run_id == second.run_id

    def test_what_is_within_its_limits_must_still_be_met(self, world):
        enqueue(world, labels=LABELS, demands=GPU)
        limits = RunLimits(scopes={"workflow": {"sdlc": 1}})

        assert claim(world, terms=ClaimPolicy(limits=limits)) is None
        assert (
            claim(world, terms=ClaimPolicy(limits=limits, offer=Capabilities(host="a", tags=frozenset({"gpu"}))))
            is not None
        )

    def test_a_delivery_does_not_wait_for_a_place(self, world):
        terms = limited(repository={"*": 1})
        enqueue(world, labels=LABELS)
        claim(world, terms=terms)
        enqueue(world, SECOND, kind=DELIVERY, priority=DELIVERY_PRIORITY)

        assert claim(world, terms=terms, only_deliveries=True).adw_id == SECOND

    def test_of_many_claimers_no_more_get_a_run_than_the_limit_allows(self, world):
        terms = limited(workflow={"sdlc": 3})
        for number in range(12):
            enqueue(world, f"000000{number:02}", labels=LABELS)
        start, claimed = threading.Barrier(6), []

        def compete(name: str) -> None:
            start.wait()
            while (run := claim(world, name, terms=terms)) is not None:
                claimed.append(run.run_id)

        threads = [threading.Thread(target=compete, args=(f"worker {number}",)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(claimed) == len(set(claimed)) == 3

    def test_what_demands_something_and_waits_is_listed_the_oldest_first(self, world):
        first = enqueue(world, demands=GPU)
        enqueue(world, SECOND)
        third = enqueue(world, THIRD, demands=HERE, priority=9)

        assert [run.run_id for run in world.runs.demanding()] == [first.run_id, third.run_id]
        claim(world)
        assert [run.run_id for run in world.runs.demanding()] == [first.run_id]
