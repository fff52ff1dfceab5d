"""Carrying out deliveries against a GitHub that fails: whatever gets lost, it is done once and answered once."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from adws.adw_modules.forge.github import GitHubAccess, GitHubForge
from adws.adw_modules.queue.model import RunState
from adws.testing import FakeClock
from tests import sampling
from tests.fault_forge import FAULTS, FaultForge
from tests.unit.delivery_lab import CHOSEN, DeliveryLab
from tests.unit.engine_cases import ADW_ID

#: Faults after which nobody knows what was done, and those that say to come again.
LATER = ("500 before", "502 after", "reset after", "half an answer", "429 retry-after")


@contextmanager
def github(lab: DeliveryLab):
    """Let the lab speak to its forge through GitHub's API, on a server that can fail."""
    place = lab.forge
    with FaultForge(place) as server:
        access = GitHubAccess(token="tok_bot", api_url=server.url, timeout_seconds=5.0, seconds_between_writes=0.0)
        lab.forge = GitHubForge(place.repository, access, clock=FakeClock(), scrub=str)
        try:
            yield server
        finally:
            lab.forge.close()
            lab.forge = place
            lab.home.lease_renewer.close()


@pytest.mark.parametrize(("fault", "kind"), sampling.each_value_once(LATER, ["resume", "start", "refusal"]))
def test_each_request_may_fail_once_and_still_it_is_done_and_answered_once(kind, fault):
    number = 0
    while True:
        lab = DeliveryLab()
        if kind != "start":
            lab.stand("PAUSED")
        if kind == "refusal":
            lab.forge.people["ada"] = "read"
        guid = lab.deliver(lab.request() if kind == "start" else lab.command("resume", "use tabs"))
        with github(lab) as server:
            server.arm(FAULTS[fault], request=number)
            first = lab.work()
            server.disarm()
            if first.run.state is RunState.PENDING:
                assert lab.row(guid).status == "received"
                lab.home.clock.advance(600)
                run = next(run for run in lab.home.runs.page(states=(RunState.PENDING,)) if run.kind == "delivery")
                me = lab.home.parts.processes.me("worker")
                lab.work(lab.home.runs.claim(me, ttl_seconds=30.0, run_id=run.run_id))
            is_over = number >= len(server.requests)
        check(lab, guid, kind)
        if is_over:
            assert number >= 2, "the loop saw more than one request"
            return
        number += 1


def check(lab: DeliveryLab, guid: str, kind: str) -> None:
    assert lab.row(guid).status == ("refused" if kind == "refusal" else "done")
    assert len(lab.comments()) == (kind != "start")
    if kind == "start":
        assert lab.workflows() == [CHOSEN]
    elif kind == "resume":
        assert [hint["text"] for hint in lab.home.document(ADW_ID).hints] == ["use tabs"]
        assert lab.home.state() == "planning"
    else:
        assert lab.home.state() == "paused"
