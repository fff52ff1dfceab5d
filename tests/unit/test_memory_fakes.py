"""The twins in memory behave as the parts they stand in for; the store's own suite is in tests/contracts."""

from __future__ import annotations

import pytest

from adws.adw_modules import ambient
from adws.adw_modules.errors import (
    InvalidAdwId,
    IssueLocked,
    LeaseLost,
    StateExists,
    StateNotFound,
    UsageError,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import LeaseBusy, LeaseTaken, PageQuery
from adws.adw_modules.owner_record import Verdict
from adws.testing import (
    FakeClock,
    FakeProcesses,
    Machine,
    MemoryCatalogue,
    MemoryEventLog,
    MemoryIssueLocks,
    MemoryLeases,
    MemoryLocalLock,
    MemoryRegistry,
    MemoryRequests,
    MemoryStore,
    memory_parts,
)
from tests.contracts.local_lock_contract import LocalLockContract
from tests.contracts.store_contract import ADW_ID, OTHER_ID, new_document


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def processes(clock):
    return FakeProcesses(clock.token)


# --- leases ----------------------------------------------------------------------------------------------------


@pytest.fixture
def leases(clock):
    book = MemoryLeases(clock)
    book.add(ADW_ID)
    return book


def test_a_lease_is_taken_renewed_and_given_back(leases, processes, clock):
    me = processes.me("cli")
    taken = leases.take(ADW_ID, me, ttl_seconds=30)
    assert isinstance(taken, LeaseTaken)
    assert (taken.lease.fence, taken.previous, taken.previous_fence) == (1, None, 0)

    clock.advance(20)
    leases.renew(taken.lease, ttl_seconds=30)
    row = leases.read(ADW_ID)
    assert (row.owner, row.fence, row.seconds_left) == (me, 1, 30)

    assert leases.release(taken.lease)
    assert not leases.release(taken.lease)
    assert leases.read(ADW_ID).owner is None


def test_a_live_lease_keeps_others_out_until_it_ends(leases, processes, clock):
    first, second = processes.me("cli"), processes.me("worker")
    old = leases.take(ADW_ID, first, ttl_seconds=30).lease
    busy = leases.take(ADW_ID, second, ttl_seconds=30)
    assert isinstance(busy, LeaseBusy)
    assert busy.row.owner == first

    clock.advance(30)
    with pytest.raises(LeaseLost, match="ran out"):
        leases.renew(old, ttl_seconds=30)
    taken = leases.take(ADW_ID, second, ttl_seconds=30)
    assert (taken.lease.fence, taken.previous, taken.previous_fence) == (2, first, 1)
    with pytest.raises(LeaseLost, match="taken over"):
        leases.renew(old, ttl_seconds=30)
    assert not leases.release(old)


def test_the_lease_of_a_dead_owner_is_taken_at_once_by_its_fence(leases, processes):
    leases.take(ADW_ID, processes.me("cli"), ttl_seconds=30)

    assert isinstance(leases.take(ADW_ID, processes.me("cli"), ttl_seconds=30, dead_fence=9), LeaseBusy)
    assert leases.take(ADW_ID, processes.me("cli"), ttl_seconds=30, dead_fence=1).lease.fence == 2


def test_a_workflow_without_a_row_has_no_lease(leases, processes):
    assert leases.read(OTHER_ID) is None
    with pytest.raises(StateNotFound):
        leases.take(OTHER_ID, processes.me("cli"), ttl_seconds=30)
    with pytest.raises(StateExists):
        leases.add(ADW_ID)
    with pytest.raises(InvalidAdwId):
        leases.read("../x")


# --- issue locks and registry ----------------------------------------------------------------------------------


def test_an_issue_belongs_to_one_workflow_of_its_repository(clock):
    locks = MemoryIssueLocks(clock)
    assert locks.acquire(7, ADW_ID)
    assert locks.acquire(7, ADW_ID), "it was ours already"
    assert not locks.acquire(7, OTHER_ID)
    assert locks.acquire(7, OTHER_ID, "octo/repo")

    assert locks.verify(7, ADW_ID)
    assert not locks.verify(7, OTHER_ID)
    assert not locks.release(7, OTHER_ID)
    assert [lock.adw_id for lock in locks.all()] == [ADW_ID, OTHER_ID]
    assert locks.release(7, ADW_ID)
    assert locks.holder(7) is None
    assert locks.holder(7, "octo/repo").adw_id == OTHER_ID


def test_registering_locks_the_issue_or_leaves_nothing(clock, processes):
    leases, locks = MemoryLeases(clock), MemoryIssueLocks(clock)
    registry = MemoryRegistry(leases, locks)
    lease = registry.register(new_document(), processes.me("cli"), ttl_seconds=30)
    assert lease.fence == 1

    with pytest.raises(IssueLocked, match=ADW_ID):
        registry.register(new_document(OTHER_ID), processes.me("cli"), ttl_seconds=30)
    assert leases.read(OTHER_ID) is None
    with pytest.raises(StateExists):
        registry.register(new_document(issue_number=8), processes.me("cli"), ttl_seconds=30)
    assert locks.holder(8) is None

    registry.unregister(lease)
    registry.unregister(lease)
    assert leases.read(ADW_ID) is None
    assert locks.all() == ()


def test_a_workflow_without_an_issue_locks_none(clock, processes):
    locks = MemoryIssueLocks(clock)
    registry = MemoryRegistry(MemoryLeases(clock), locks)
    lease = registry.register(new_document(issue_number=None), processes.me("cli"), ttl_seconds=30)

    assert locks.all() == ()
    registry.unregister(lease)


# --- requests, lock, processes ---------------------------------------------------------------------------------


def test_requests_wait_for_the_owner_in_order(clock):
    requests = MemoryRequests(clock)
    first = requests.ask(ADW_ID, "pause", payload={"why": "lunch"}, asked_by="me")
    requests.ask(OTHER_ID, "stop")
    second = requests.ask(ADW_ID, "hint")

    assert requests.open_for(ADW_ID) == (first, second)
    assert requests.handled(first.request_id, "paused")
    assert not requests.handled(first.request_id, "paused")
    assert not requests.handled(99, "paused")
    assert requests.open_for(ADW_ID) == (second,)


class TestMemoryLocalLock(LocalLockContract):
    @pytest.fixture
    def machine(self):
        return Machine()

    @pytest.fixture
    def lock(self, machine):
        return MemoryLocalLock(machine)

    @pytest.fixture
    def other(self, machine):
        return MemoryLocalLock(machine)


def test_fake_owners_live_until_they_are_killed(processes):
    me, other = processes.me("cli"), processes.me("worker")
    assert me.token != other.token
    assert me.pid != other.pid
    assert processes.verdict(me) is Verdict.ALIVE

    processes.kill(me)
    processes.lose_sight_of(other)
    assert processes.verdict(me) is Verdict.DEAD
    assert processes.verdict(other) is Verdict.UNKNOWN
    assert processes.verdict(None) is Verdict.UNKNOWN


# --- lists and events ------------------------------------------------------------------------------------------


@pytest.fixture
def filled(clock):
    store = MemoryStore(clock=clock)
    for number in range(5):
        store.create(
            new_document(
                f"{number:08x}",
                issue_number=number % 2,
                created_at=f"2026-01-0{number + 1}T00:00:00.000000Z",
                current_state="failed" if number == 3 else "pending",
                repository="octo/repo" if number == 4 else "",
                workflow={"name": "sdlc"} if number else None,
            )
        )
    return store


def test_pages_show_every_workflow_once_newest_first(filled):
    catalogue, seen, cursor = MemoryCatalogue(filled), [], None
    while True:
        page = catalogue.page(PageQuery(limit=2, cursor=cursor))
        seen += [row.adw_id for row in page.rows]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == [f"{number:08x}" for number in (4, 3, 2, 1, 0)]
    with pytest.raises(UsageError, match="at least 1"):
        catalogue.page(PageQuery(limit=0))


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (PageQuery(state="failed"), [3]),
        (PageQuery(issue_number=0), [4, 2, 0]),
        (PageQuery(repository=""), [3, 2, 1, 0]),
        (PageQuery(workflow="sdlc", issue_number=1), [3, 1]),
    ],
    ids=["state", "issue", "repository", "workflow"],
)
def test_a_page_can_be_narrowed_down(filled, query, numbers):
    assert [row.adw_id for row in MemoryCatalogue(filled).page(query).rows] == [f"{n:08x}" for n in numbers]


def test_the_workflows_of_an_issue_are_found(filled):
    catalogue = MemoryCatalogue(filled)

    assert [row.adw_id for row in catalogue.find_by_issue(0)] == ["00000004", "00000002", "00000000"]
    assert [row.adw_id for row in catalogue.find_by_issue(0, "octo/repo")] == ["00000004"]


def test_events_are_read_from_any_point_on(clock):
    store = MemoryStore(clock=clock)
    store.create(new_document(), events=[Event(event_type="state_set", data={"n": n}) for n in range(4)])
    log = MemoryEventLog(store)

    assert [event.data["n"] for event in log.of_workflow(ADW_ID, limit=2)] == [0, 1]
    assert [event.data["n"] for event in log.of_workflow(ADW_ID, after=f"{ADW_ID}.1.1")] == [2, 3]
    with pytest.raises(UsageError, match="no event"):
        log.of_workflow(ADW_ID, after="nothing")


def test_a_lost_document_is_not_found(clock):
    store = MemoryStore(clock=clock)
    store.create(new_document())
    store.forget(ADW_ID)

    with pytest.raises(StateNotFound):
        store.load(ADW_ID)


# --- all together ----------------------------------------------------------------------------------------------


def test_memory_parts_make_a_whole_adw():
    parts = memory_parts()
    with parts.ownership.create(new_document(fence=0)) as owned:
        owned.save(owned.document.model_copy(update={"plan_file": "plan.md"}))
        with pytest.raises(WorkflowBusy), parts.ownership.own(ADW_ID):
            pass

    with parts.ownership.own(ADW_ID) as owned:
        assert owned.document.plan_file == "plan.md"
    assert parts.locks.holder(7).adw_id == ADW_ID
    assert [row.adw_id for row in parts.catalogue.page(PageQuery()).rows] == [ADW_ID]
    assert parts.events.of_workflow(ADW_ID)[0].event_type == "workflow_created"


def test_memory_parts_can_be_the_parts_in_force():
    parts = memory_parts()
    with ambient.using(parts):
        assert ambient.parts() is parts
