"""Owning a workflow: one live owner, takeovers complete or not at all, issues freed by the ending write."""

from __future__ import annotations

import logging

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.errors import (
    DatabaseUnavailable,
    DurabilityUnknown,
    Fenced,
    IssueLocked,
    LeaseLost,
    NotTheLockOwner,
    RunLost,
    StateConflict,
    StateCorrupt,
    StateExists,
    StateNotFound,
    StateWriteFailed,
    WorkflowBusy,
)
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.ownership.local_lock import LocalLock
from adws.adw_modules.ownership.ownership import OwnedWorkflow, WorkflowOwnership
from adws.adw_modules.queue.model import NewRun, Run, RunEnd, RunState
from adws.adw_modules.store.files import FileStateStore
from tests.homes import ABANDONED, lab_home

ID, OTHER = "1a2b3c4d", "5e6f7a8b"


class Home:
    """One database and one directory, used by any number of processes."""

    def __init__(self, *, repository: str = "") -> None:
        parts = lab_home(repository=repository or None, store="files")
        self.clock, self.processes, self.state_dir = parts.clock, parts.processes, parts.settings.state_dir
        self.runs, self.locks, self.leases, self.registry = parts.runs, parts.locks, parts.leases, parts.registry
        self.store = RecordingStore(self.state_dir, clock=self.clock, projection=parts.projection)
        self.parts = parts
        self.local_locks: list[LocalLock] = []  #: of every process

    def process(self, **changes) -> WorkflowOwnership:
        """Another process on this machine."""
        self.local_locks.append(LocalLock(self.state_dir))
        parts = {
            "store": self.store,
            "leases": self.leases,
            "registry": self.registry,
            "local_lock": self.local_locks[-1],
            "processes": self.processes,
            "clock": self.clock,
            "locks": self.locks,
        }
        return WorkflowOwnership(**{**parts, **changes})

    def document(self, adw_id: str = ID, issue_number: int | None = 42, **fields) -> WorkflowDocument:
        now = timestamps.to_text(self.clock.now())
        return WorkflowDocument(adw_id=adw_id, issue_number=issue_number, created_at=now, updated_at=now, **fields)

    def created(self, adw_id: str = ID, issue_number: int | None = 42, **fields) -> None:
        with self.process().create(self.document(adw_id, issue_number, **fields)):
            pass

    def is_locked(self, adw_id: str = ID) -> bool:
        """Say whether any process has the file lock of a workflow."""
        return LocalLock(self.state_dir).is_held(adw_id)

    def free_local_lock(self, adw_id: str = ID) -> None:
        """Free the file lock of a workflow, as the kernel does for a process that is gone."""
        for lock in self.local_locks:
            lock.let_go(adw_id)

    def events(self, adw_id: str = ID) -> tuple[Event, ...]:
        self.parts.projection.flush()
        return self.parts.events.of_workflow(adw_id)

    def event_types(self, adw_id: str = ID) -> list[str]:
        return [event.event_type for event in self.events(adw_id)]


class RecordingStore(FileStateStore):
    """A store that tells in which order it was used, and can be made to fail."""

    def __init__(self, root, **options) -> None:
        super().__init__(root, **options)
        self.calls: list[str] = []
        self.failing: dict[str, BaseException] = {}

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise self.failing[name]

    def create(self, document, *, events=()):
        self._note("create")
        return super().create(document, events=events)

    def load(self, adw_id):
        self._note("load")
        return super().load(adw_id)

    def save(self, document, **options):
        self._note("save")
        return super().save(document, **options)

    def revoke_writers(self, adw_id, *, fence):
        self._note(f"fence_out {fence}")
        super().revoke_writers(adw_id, fence=fence)

    def sweep(self, adw_id):
        self._note("sweep")


@pytest.fixture
def home():
    return Home()


def abandon(home: Home, adw_id: str = ID) -> OwnedWorkflow:
    """Let a process own a workflow and never come back: it has neither left the block nor died."""
    block = home.process().own(adw_id)
    ABANDONED.append(block)  # a block that is collected would be left

    return block.__enter__()


# --- owning ----------------------------------------------------------------------------------------------------


def test_an_owner_writes_the_next_revision_under_its_fence(home):
    home.created()
    with home.process().own(ID) as owned:
        stored = owned.save(owned.document.model_copy(update={"branch_name": "adw/x"}))

        assert owned.document is stored
    assert (stored.revision, stored.fence, stored.branch_name) == (2, 2, "adw/x")
    assert home.store.load(ID).document == stored


def test_a_clean_take_writes_nothing(home):
    home.created()
    before = home.store.load(ID)
    with home.process().own(ID):
        pass

    assert home.store.load(ID) == before
    assert home.event_types() == ["workflow_created"]


def test_a_second_owner_is_told_who_works(home):
    home.created()
    with home.process(role="worker").own(ID) as owned:
        name = owned.lease.owner.describe()
        with pytest.raises(WorkflowBusy) as caught, home.process().own(ID):
            pass

    assert caught.value.owner == f"{name} (alive, its lease ends in 30 s)"
    assert str(caught.value).startswith(f"workflow {ID} is being worked on by {caught.value.owner}: wait, or ask")


def test_an_owner_of_another_machine_is_busy_until_its_lease_ends(home):
    home.created()
    former = abandon(home)
    home.processes.lose_sight_of(former.lease.owner)
    home.clock.advance(29.9)
    with pytest.raises(WorkflowBusy, match="unknown"), home.process().own(ID):
        pass

    home.clock.advance(0.1)
    with home.process().own(ID) as owned:
        assert owned.lease.fence == former.lease.fence + 1


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt(), SystemExit(1)])
def test_leaving_the_block_gives_everything_back_whatever_the_reason(home, error):
    home.created()
    with pytest.raises(type(error)), home.process().own(ID):
        raise error

    assert home.leases.read(ID).owner is None
    assert not home.is_locked()


def test_a_release_that_fails_never_hides_the_error_of_the_block(home, monkeypatch, caplog):
    home.created()

    def unreachable(lease):
        raise DatabaseUnavailable

    monkeypatch.setattr(home.leases, "release", unreachable)
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="the real one"), home.process().own(ID):
        raise RuntimeError("the real one")

    assert not home.is_locked(), "the file lock is free all the same"
    assert [record.action for record in caplog.records] == ["lease_not_released"]


def test_an_interrupt_while_giving_back_still_releases_the_lease(home, monkeypatch):
    home.created()
    process = home.process()

    def interrupted(adw_id):
        raise KeyboardInterrupt

    monkeypatch.setattr(process.local_lock, "let_go", interrupted)
    with pytest.raises(KeyboardInterrupt), process.own(ID):
        pass

    assert home.leases.read(ID).owner is None


def test_nothing_is_written_after_the_block(home):
    home.created()
    with home.process().own(ID) as owned:
        pass

    with pytest.raises(LeaseLost, match="was released: own it again to write"):
        owned.save(owned.document)
    with pytest.raises(LeaseLost):
        owned.renew()
    assert home.store.load(ID).document.revision == 1


def test_a_refused_write_ends_the_ownership(home):
    home.created()
    with home.process().own(ID) as owned:
        old = owned.document
        owned.save(old)
        with pytest.raises(StateConflict):
            owned.save(old)
        with pytest.raises(LeaseLost, match="is at revision 2, not 1"):
            owned.save(owned.document)
        with pytest.raises(LeaseLost):
            owned.renew()


def test_a_load_that_fails_leaves_nobody_as_owner(home):
    home.created()
    home.store.failing["load"] = StateCorrupt("x", "torn")
    with pytest.raises(StateCorrupt), home.process().own(ID):
        pass

    assert home.leases.read(ID).owner is None
    assert not home.is_locked()


def test_a_taker_that_is_overtaken_after_its_look_is_told_by_whom(home, monkeypatch):
    home.created()
    with home.process(role="worker").own(ID) as owned:
        monkeypatch.setattr(home.leases, "read", lambda adw_id: None)
        with pytest.raises(WorkflowBusy, match=owned.lease.owner.describe()), home.process().own(ID):
            pass


# --- renewing --------------------------------------------------------------------------------------------------


def test_a_renewed_lease_outlives_its_first_end(home):
    home.created()
    with home.process().own(ID) as owned:
        home.clock.advance(20)
        assert owned.seconds_left() == pytest.approx(10)
        owned.renew()
        assert owned.seconds_left() == pytest.approx(30)
        home.clock.advance(20)
        with pytest.raises(WorkflowBusy), home.process().own(ID):
            pass


def test_a_lease_that_ran_out_is_not_renewed(home):
    home.created()
    with home.process().own(ID) as owned:
        home.clock.advance(31)
        assert owned.seconds_left() < 0
        with pytest.raises(LeaseLost):
            owned.renew()
        with pytest.raises(LeaseLost):
            owned.save(owned.document)


# --- taking over -----------------------------------------------------------------------------------------------


def test_a_dead_owner_is_succeeded_at_once(home):
    home.created()
    former = abandon(home)
    home.processes.kill(former.lease.owner)
    home.free_local_lock()  # the kernel freed its file lock

    with home.process().own(ID) as owned:
        document = owned.document

    assert (document.revision, document.fence) == (2, 3), "the takeover is a revision of its own"
    event = home.events(ID)[-1]
    assert event.event_type == "lease_taken_over"
    assert event.data["former_owner"] == former.lease.owner.describe()
    assert OwnerRecord(token=former.lease.owner.token, **event.data["former"]) == former.lease.owner
    assert former.lease.owner.token not in str(event), "what an owner proves itself by is not told"
    assert (event.data["former_fence"], event.data["verdict"], event.data["why"]) == (2, "dead", "its process is dead")


def test_a_stopped_owner_is_shut_out_before_its_document_is_read(home):
    home.created()
    former = abandon(home)
    home.clock.advance(31)
    home.store.calls.clear()

    with home.process().own(ID) as owned:
        assert home.store.calls == [f"fence_out {former.lease.fence}", "load", "save"]
        with pytest.raises(Fenced):
            former.save(former.document)
        owned.save(owned.document)
    assert home.event_types()[-1] == "lease_taken_over"
    assert home.events(ID)[-1].data["verdict"] == "alive"
    assert home.events(ID)[-1].data["why"] == "its lease had ended"


def test_the_late_write_of_a_former_owner_is_refused_and_ends_it(home):
    home.created()
    former = abandon(home)
    home.clock.advance(31)
    with home.process().own(ID):
        pass

    with pytest.raises(Fenced):
        former.save(former.document)
    with pytest.raises(LeaseLost):
        former.save(former.document)


def test_left_overs_are_swept_only_with_the_file_lock_in_hand(home):
    """A stopped process holds the lock: what keeps it out must stay."""
    home.created()
    home.store.calls.clear()
    with home.process().own(ID):
        pass
    assert home.store.calls == ["sweep", "load"]

    abandon(home)
    home.clock.advance(31)
    home.store.calls.clear()
    with home.process().own(ID):
        pass
    assert "sweep" not in home.store.calls


def test_an_owner_without_the_file_lock_takes_it_as_soon_as_it_is_free(home):
    home.created()
    former = abandon(home)
    home.clock.advance(31)
    with home.process().own(ID) as owned:
        former.give_back()
        assert not home.is_locked()
        owned.save(owned.document)
        assert home.is_locked()
    assert not home.is_locked()


@pytest.mark.parametrize("step", ["fence_out 2", "load", "save"])
def test_a_takeover_that_was_cut_short_is_taken_over_again(home, step):
    """Giving the lease back cleanly would make the next owner believe that the former one had ended well."""
    home.created()
    abandon(home)
    home.clock.advance(31)
    home.store.failing[step] = StateWriteFailed("adw_state.json", OSError(28, "No space left on device"))
    with pytest.raises(StateWriteFailed), home.process().own(ID):
        pass
    assert home.leases.read(ID).owner is not None
    assert home.event_types() == ["workflow_created"]

    home.store.failing.clear()
    home.clock.advance(31)
    with home.process().own(ID):
        pass
    assert home.event_types() == ["workflow_created", "lease_taken_over"]


def test_the_hook_runs_before_the_takeover_is_written(home):
    """Agents of the former owner are ended first; when that fails the workflow is not taken."""
    home.created()
    former = abandon(home)
    home.clock.advance(31)
    seen = []

    def end_agents(takeover):
        seen.append((takeover.former, takeover.former_fence, takeover.verdict, takeover.document.revision))
        assert home.event_types() == ["workflow_created"]

    with home.process(on_takeover=end_agents).own(ID):
        pass
    assert seen == [(former.lease.owner, 2, Verdict.ALIVE, 1)]


def test_a_hook_that_fails_leaves_the_takeover_open(home):
    home.created()
    abandon(home)
    home.clock.advance(31)

    def cannot(takeover):
        raise OSError("agent does not die")

    with pytest.raises(OSError, match="agent does not die"), home.process(on_takeover=cannot).own(ID):
        pass
    assert home.store.load(ID).document.revision == 1
    assert home.leases.read(ID).owner is not None


def test_a_former_owner_whose_record_cannot_be_read_is_shut_out_too(home):
    home.created()
    abandon(home)
    home.clock.advance(31)
    take = home.leases.take

    def unreadable(*args, **kwargs):
        taken = take(*args, **kwargs)
        return type(taken)(lease=taken.lease, previous=None, previous_fence=taken.previous_fence)

    home.leases.take = unreadable
    with home.process().own(ID):
        pass
    assert "fence_out 2" in home.store.calls
    assert home.events(ID)[-1].data["former_owner"] == "unknown"


# --- creating --------------------------------------------------------------------------------------------------


def test_a_created_workflow_is_owned_and_has_its_issue(home):
    with home.process().create(home.document()) as owned:
        assert (owned.document.revision, owned.document.fence, owned.lease.fence) == (1, 1, 1)
        assert home.locks.verify(42, ID)
        assert home.is_locked()
        owned.save(owned.document)

    assert home.event_types() == ["workflow_created"]
    assert home.events(ID)[0].data == {"issue_number": 42, "repository": ""}
    assert home.leases.read(ID).owner is None
    assert home.locks.verify(42, ID), "the lock belongs to the workflow, not to the process that made it"


def test_a_second_workflow_of_an_issue_is_refused_and_leaves_nothing(home):
    home.created()
    with pytest.raises(IssueLocked) as caught, home.process().create(home.document(OTHER)):
        pass

    assert caught.value.holder == ID
    assert home.leases.read(OTHER) is None
    assert not home.store.exists(OTHER)


def test_the_same_number_in_another_repository_is_another_issue(home):
    home.created()
    home.created(OTHER, 42, repository="octo/cat")

    assert home.locks.holder(42, "octo/cat").adw_id == OTHER


def test_a_document_that_cannot_be_written_leaves_nothing(home):
    home.store.failing["create"] = StateWriteFailed("x", OSError(28, "No space left on device"))
    with pytest.raises(StateWriteFailed), home.process().create(home.document()):
        pass

    assert home.leases.read(ID) is None
    assert home.locks.holder(42) is None
    assert not home.is_locked()


def test_a_document_that_exists_without_a_row_is_not_touched(home):
    """After the database was lost: the id is taken, and neither a row nor a lock is made for it."""
    FileStateStore(home.state_dir, clock=home.clock).create(home.document(issue_number=7))
    with pytest.raises(StateExists), home.process().create(home.document()):
        pass

    assert home.leases.read(ID) is None
    assert home.locks.all() == ()
    assert home.store.load(ID).document.issue_number == 7


def test_a_document_that_was_written_but_not_synced_keeps_its_issue(home, monkeypatch):
    """The document is there, so its row and its lock must be there too."""
    real = home.store.create

    def not_synced(document, *, events=()):
        real(document, events=events)
        raise DurabilityUnknown("x", OSError(5, "Input/output error"))

    monkeypatch.setattr(home.store, "create", not_synced)
    with pytest.raises(DurabilityUnknown), home.process().create(home.document()):
        pass

    assert home.locks.verify(42, ID)
    assert home.leases.read(ID).owner is None


def test_a_workflow_that_is_left_to_a_worker_is_free_and_has_its_run(home):
    stored = home.process().leave(home.document(), run=NewRun(adw_id=ID))

    assert home.store.load(ID).document == stored
    assert home.event_types() == ["workflow_created"]
    assert home.leases.read(ID).owner is None
    assert not home.is_locked()
    assert [run.state for run in home.runs.of_workflow(ID)] == [RunState.PENDING]


# --- runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def claimed(home) -> Run:
    """The run of a workflow that a worker has claimed."""
    home.process().leave(home.document(), run=NewRun(adw_id=ID))
    return home.runs.claim(home.processes.me("worker"), ttl_seconds=30.0)


def test_a_run_begins_with_the_ownership_and_ends_with_it(home, claimed):
    with home.process().own(ID, run=claimed) as owned:
        assert owned.run.state is RunState.RUNNING

        ended = owned.end_run(owned.run, RunEnd(state=RunState.COMPLETED, reason="done"))

        assert (ended.state, home.runs.get(ended.run_id).state) == (RunState.COMPLETED, RunState.COMPLETED)
        assert home.leases.read(ID).owner is None
        assert not home.is_locked()
        with pytest.raises(LeaseLost, match="released"):
            owned.save(owned.document)
        with home.process().own(ID) as other:
            assert other.lease.fence == owned.lease.fence + 1


def test_leaving_the_block_after_the_run_has_ended_leaves_the_next_owner_alone(home, claimed):
    with home.process().own(ID, run=claimed) as owned:
        owned.end_run(owned.run, RunEnd(state=RunState.COMPLETED))
        next_owner = abandon(home)

    assert home.leases.read(ID).owner == next_owner.lease.owner
    assert home.is_locked()


def test_a_run_that_is_not_ours_any_more_lets_nobody_in(home, claimed):
    home.runs.requeue(claimed)

    with pytest.raises(RunLost), home.process().own(ID, run=claimed):
        pytest.fail("the block was entered")

    assert home.leases.read(ID).owner is None
    assert not home.is_locked()


def test_the_issue_of_a_workflow_that_is_over_becomes_free_with_its_run(home, claimed):
    with home.process().own(ID, run=claimed) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))
        assert home.locks.verify(42, ID), "the run is not over yet"

        owned.end_run(owned.run, RunEnd(state=RunState.COMPLETED))

        assert home.locks.all() == ()


def test_a_run_that_could_not_be_ended_still_frees_the_issue(home, claimed):
    with home.process().own(ID, run=claimed) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))
        home.runs.requeue(owned.run)
        with pytest.raises(RunLost):
            owned.end_run(owned.run, RunEnd(state=RunState.COMPLETED))
        assert home.locks.verify(42, ID)

    assert home.locks.all() == ()


def test_a_document_that_cannot_be_read_keeps_its_issue_when_the_run_is_given_back(home, claimed):
    home.store.failing["load"] = StateCorrupt("its file", "it is torn", "look at it")

    with pytest.raises(StateCorrupt), home.process().own(ID, run=claimed):
        pytest.fail("the block was entered")

    assert home.locks.verify(42, ID)
    assert home.leases.read(ID).owner is None


def test_a_run_that_was_lost_on_the_way_still_gives_the_workflow_back(home, claimed):
    with home.process().own(ID, run=claimed) as owned:
        home.runs.requeue(owned.run)
        with pytest.raises(RunLost):
            owned.end_run(owned.run, RunEnd(state=RunState.COMPLETED))
        assert home.leases.read(ID).owner == owned.lease.owner

    assert home.leases.read(ID).owner is None
    assert not home.is_locked()


# --- issues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_the_write_that_ends_a_workflow_frees_its_issue(home, state):
    home.created(repository="octo/cat")
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": state}))

        assert home.locks.holder(42, "octo/cat") is None


@pytest.mark.parametrize("state", ["planning", "paused", "failed", "pending"])
def test_a_workflow_that_is_parked_or_works_keeps_its_issue(home, state):
    home.created()
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": state}))

    assert home.locks.verify(42, ID)


def test_a_crash_before_the_issue_was_freed_is_made_good_by_the_next_write(home):
    home.created()
    with home.process().own(ID) as owned:
        home.store.save(owned.document.model_copy(update={"current_state": "completed"}), fence=owned.lease.fence)
    assert home.locks.verify(42, ID)

    with home.process().own(ID) as owned:
        owned.save(owned.document)
    assert home.locks.all() == ()


def test_a_later_write_of_a_finished_workflow_does_not_free_its_successor(home):
    home.created()
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))
    home.created(OTHER)
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "rolled_back"}))

    assert home.locks.verify(42, OTHER)


def test_a_database_that_is_away_does_not_undo_the_ending_write(home, monkeypatch, caplog):
    home.created()

    def unreachable(*_):
        raise DatabaseUnavailable

    with monkeypatch.context() as patch, home.process().own(ID) as owned:
        patch.setattr(home.locks, "release", unreachable)
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))
    assert home.locks.verify(42, ID)
    assert [record.action for record in caplog.records] == ["issue_lock_not_released"]

    freed = home.process().release_finished_locks()
    assert [lock.adw_id for lock in freed] == [ID]
    assert home.locks.all() == ()


def test_only_locks_of_finished_workflows_are_freed(home):
    home.created()
    home.created(OTHER, 43)
    home.store.failing["load"] = StateCorrupt("x", "torn")
    assert home.process().release_finished_locks() == (), "what cannot be read keeps its issue"

    home.store.failing.clear()
    assert home.process().release_finished_locks() == ()
    assert len(home.locks.all()) == 2


def test_a_lock_whose_workflow_was_never_written_is_freed_once_its_creator_is_gone(home):
    """A crash between registering and the first write; a creator that lives is left alone."""
    creator = home.processes.me("cli")
    home.registry.register(home.document(), creator, ttl_seconds=30.0)
    assert home.process().release_finished_locks() == ()

    home.processes.kill(creator)
    assert [lock.adw_id for lock in home.process().release_finished_locks()] == [ID]
    assert home.locks.all() == ()
    assert home.leases.read(ID) is None


def test_a_workflow_that_is_written_at_the_last_moment_keeps_its_lock(home):
    home.created()
    home.store.failing["load"] = StateNotFound(ID)

    assert home.process().release_finished_locks() == ()
    assert home.locks.verify(42, ID)


def test_the_lock_of_a_workflow_that_is_being_carried_on_is_not_freed(home):
    """Between its lock and the write that makes it active again a completed workflow has its issue."""
    home.created()
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))

    with home.process().own(ID) as owned:
        home.process().claim_again(owned.document)
        assert home.process().release_finished_locks() == ()
        assert home.process().release_if_finished(ID) is False
        assert home.locks.verify(42, ID)
    assert [lock.adw_id for lock in home.process().release_finished_locks()] == [ID], "nobody carried it on"


@pytest.mark.parametrize("sweep", ["release_finished_locks", "release_if_finished"])
def test_a_lock_is_not_freed_when_its_workflow_was_carried_on_while_somebody_looked(home, monkeypatch, sweep):
    home.created()
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))
    home.locks.acquire(42, ID)
    load = home.store.load

    def carried_on_meanwhile(adw_id):
        result = load(adw_id)
        monkeypatch.setattr(home.store, "load", load)
        with home.process().own(ID) as owned:
            home.process().claim_again(owned.document)
            owned.save(owned.document.model_copy(update={"current_state": "building"}))
        return result

    monkeypatch.setattr(home.store, "load", carried_on_meanwhile)
    other = home.process()
    freed = other.release_finished_locks() if sweep == "release_finished_locks" else other.release_if_finished(ID)

    assert not freed
    assert home.locks.verify(42, ID)


def test_a_workflow_is_not_carried_on_when_another_one_has_its_issue(home):
    home.created()
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "completed"}))
    home.created(OTHER)

    with home.process().own(ID) as owned, pytest.raises(IssueLocked, match=f"belongs to workflow {OTHER}"):
        home.process().claim_again(owned.document)


# --- continuing ------------------------------------------------------------------------------------------------


def test_a_continuing_run_proves_lock_and_document(home):
    home.created(repository="octo/cat")

    home.process().prove_continuing(ID, "42", "octo/cat")


def test_a_wrong_id_never_gets_in(home):
    home.created()
    home.created(OTHER, 43)

    with pytest.raises(
        NotTheLockOwner, match=f"workflow {OTHER} may not continue on issue 42: its document names issue 43"
    ):
        home.process().prove_continuing(OTHER, 42)
    with pytest.raises(StateNotFound):
        home.process().prove_continuing("00000000", 42)
    with pytest.raises(NotTheLockOwner, match="its document names issue 42"):
        home.process().prove_continuing(ID, 42, "octo/cat")
    assert home.locks.verify(42, ID)


def test_a_lock_that_names_the_id_does_not_help_when_the_document_names_another_issue(home):
    home.created()
    home.locks.acquire(44, ID)

    with pytest.raises(NotTheLockOwner):
        home.process().prove_continuing(ID, 44)


def test_a_free_lock_is_taken_again_by_its_own_workflow(home):
    home.created()
    home.locks.release(42, ID)

    home.process().prove_continuing(ID, 42)
    assert home.locks.verify(42, ID)


def test_an_issue_that_went_to_another_workflow_is_not_taken_back(home):
    home.created()
    home.locks.release(42, ID)
    home.created(OTHER)

    with pytest.raises(IssueLocked) as caught:
        home.process().prove_continuing(ID, 42)
    assert caught.value.holder == OTHER


def test_a_finished_workflow_does_not_continue(home):
    home.created()
    with home.process().own(ID) as owned:
        owned.save(owned.document.model_copy(update={"current_state": "abandoned"}))

    with pytest.raises(NotTheLockOwner, match="it is abandoned; start a new workflow for the issue"):
        home.process().prove_continuing(ID, 42)
    assert home.locks.all() == ()


def test_a_workflow_that_ends_while_its_lock_is_taken_again_leaves_no_lock(home, monkeypatch):
    home.created()
    home.locks.release(42, ID)
    acquire = home.locks.acquire

    def ends_meanwhile(*args):
        with home.process().own(ID) as owned:
            owned.save(owned.document.model_copy(update={"current_state": "completed"}))
        return acquire(*args)

    monkeypatch.setattr(home.locks, "acquire", ends_meanwhile)
    with pytest.raises(NotTheLockOwner):
        home.process().prove_continuing(ID, 42)
    assert home.locks.all() == ()
