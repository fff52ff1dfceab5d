"""
What every StateStore keeps: in files and in a database.

Mix `StoreContract` into a test class, give a `store` fixture (with the `clock` fixture as its clock), and override the
hooks below it where a store differs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from functools import partial

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import (
    AttemptRecord,
    FrozenIssue,
    HistoryEntry,
    PhaseRecord,
    Resource,
    WorkflowDocument,
    WorkflowRef,
    to_bytes,
)
from adws.adw_modules.errors import Fenced, InvalidAdwId, StateConflict, StateExists, StateNotFound, StateUnserialisable
from adws.adw_modules.events import Event
from adws.testing import START, FakeClock

ADW_ID = "1a2b3c4d"
OTHER_ID = "5e6f7a8b"
BAD_IDS = ["../1a2b3c4d", "", ".", "..", "a/b", "a\0b", "1a2b3c4d\n", "-x", ".lock", "x" * 65, "ä1a2b3c4"]


def new_document(adw_id: str = ADW_ID, **fields) -> WorkflowDocument:
    """Return a document as a new workflow has it, owned under fence 1."""
    moment = timestamps.to_text(START)
    return WorkflowDocument.model_validate(
        {"adw_id": adw_id, "issue_number": 7, "created_at": moment, "updated_at": moment, "fence": 1, **fields}
    )


def rich_document() -> WorkflowDocument:
    """Return a document with something in every corner, also what adw does not know."""
    return new_document(
        repository="octo/repo",
        issue=FrozenIssue(title="Ünïcode \u2028 \U0001f642", body='quotes " and \\ and \n lines', labels=["adw"]),
        workflow=WorkflowRef(name="sdlc", phases=[{"name": "plan", "unknown": [1, 2.5, None, True]}]),
        phases=[PhaseRecord(name="plan", state="planning", attempts=[AttemptRecord(number=1, started_at="x", odd=1)])],
        resources=[Resource(key="branch:x", kind="branch", undo={"sha": "0" * 40})],
        state_history=[HistoryEntry(from_state="pending", to_state="planning", timestamp="t", metadata={"a": {}})],
        baseline_errors={"frontend": {"type_errors": 0}},
        start_time="2025-01-01",
        big=10**15,
    )


def _is_refused(call) -> bool:
    try:
        call()
    except InvalidAdwId:
        return True
    return False


class StoreContract(ABC):
    """The suite. A subclass gives the fixture `store` and `events_of`; `make` is a hook."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @abstractmethod
    def events_of(self, store, adw_id: str) -> tuple[Event, ...]:
        """Return every event that the store has for a workflow."""

    def make(self, store, document: WorkflowDocument, events=()) -> WorkflowDocument:
        """Create *document*; a store that needs a row first makes it here."""
        return store.create(document, events=events)

    # --- round trips -------------------------------------------------------------------------------------------

    def test_what_is_created_is_loaded_again_with_every_key(self, store):
        created = self.make(store, rich_document())
        loaded = store.load(ADW_ID)

        assert loaded.document == created
        assert loaded.notices == ()
        assert loaded.document.model_extra == {
            "baseline_errors": {"frontend": {"type_errors": 0}},
            "start_time": "2025-01-01",
            "big": 10**15,
        }
        assert loaded.document.phases[0].attempts[0].model_extra == {"odd": 1}

    def test_what_is_saved_is_loaded_again_with_every_key(self, store):
        created = self.make(store, new_document())
        changed = rich_document().model_copy(update={"revision": created.revision})
        saved = store.save(changed, fence=1)

        assert store.load(ADW_ID).document == saved
        assert store.load(ADW_ID).notices == ()
        assert saved.issue == changed.issue

    def test_what_is_loaded_can_be_had_as_plain_json(self, store):
        self.make(store, rich_document())
        data = store.load(ADW_ID).data

        assert data["state_version"] == "3.0"
        assert data["issue"]["body"] == 'quotes " and \\ and \n lines'
        assert data["state_history"][0]["from"] == "pending"
        assert "checksum" not in data
        assert WorkflowDocument.model_validate(data) == store.load(ADW_ID).document
        assert store.load(ADW_ID).notices == ()

    def test_a_loaded_document_may_be_changed_by_the_caller(self, store):
        self.make(store, rich_document())
        store.load(ADW_ID).document.phases.clear()

        assert len(store.load(ADW_ID).document.phases) == 1

    def test_no_argument_is_changed(self, store, clock):
        document, events = rich_document(), [Event(event_type="workflow_created")]
        before = to_bytes(document)
        created = self.make(store, document, events)
        clock.advance(1)
        before_save = to_bytes(created)
        store.save(created, fence=3, events=events)

        assert to_bytes(document) == before
        assert to_bytes(created) == before_save
        assert events == [Event(event_type="workflow_created")]

    # --- revisions and fences ----------------------------------------------------------------------------------

    def test_a_new_document_is_revision_one(self, store):
        assert self.make(store, new_document()).revision == 1
        assert store.load(ADW_ID).document.revision == 1

    def test_each_write_adds_one_to_the_revision_and_records_fence_and_moment(self, store, clock):
        document = self.make(store, new_document())
        for number in range(2, 6):
            clock.advance(10)
            document = store.save(document, fence=number)

            assert document.revision == number
            assert document.fence == number
            assert document.updated_at == timestamps.to_text(clock.now())
            assert store.load(ADW_ID).document == document

    def test_a_write_on_an_old_revision_is_a_conflict_and_changes_nothing(self, store):
        first = self.make(store, new_document())
        second = store.save(first, fence=1)

        with pytest.raises(StateConflict) as caught:
            store.save(first.model_copy(update={"plan_file": "late.md"}), fence=1)
        assert (caught.value.expected, caught.value.found) == (1, 2)
        assert store.load(ADW_ID).document == second

    def test_a_write_on_a_revision_that_is_not_there_yet_is_a_conflict(self, store):
        first = self.make(store, new_document())

        with pytest.raises(StateConflict):
            store.save(first.model_copy(update={"revision": 9}), fence=1)

    def test_a_write_under_a_lower_fence_is_refused_and_changes_nothing(self, store):
        first = self.make(store, new_document())
        second = store.save(first, fence=5)

        with pytest.raises(Fenced) as caught:
            store.save(second.model_copy(update={"plan_file": "late.md"}), fence=4)
        assert (caught.value.fence, caught.value.current) == (4, 5)
        assert store.load(ADW_ID).document == second

    def test_a_late_writer_learns_that_it_was_fenced_rather_than_of_a_conflict(self, store):
        first = self.make(store, new_document())
        store.save(first, fence=5)

        with pytest.raises(Fenced):
            store.save(first, fence=4)

    def test_who_was_fenced_out_cannot_write_and_the_successor_can(self, store):
        first = self.make(store, new_document())
        store.revoke_writers(ADW_ID, fence=1)

        with pytest.raises(Fenced):
            store.save(first, fence=1)
        assert store.load(ADW_ID).document == first
        assert store.save(first, fence=2).revision == 2
        with pytest.raises(Fenced):
            store.save(first, fence=1)

    def test_fencing_out_shuts_out_every_lower_fence_too(self, store):
        first = self.make(store, new_document())
        store.revoke_writers(ADW_ID, fence=3)

        for fence in (1, 2, 3):
            with pytest.raises(Fenced):
                store.save(first, fence=fence)
        assert store.save(first, fence=4).fence == 4

    def test_fencing_out_twice_is_the_same_as_once(self, store):
        first = self.make(store, new_document())
        store.revoke_writers(ADW_ID, fence=1)
        store.revoke_writers(ADW_ID, fence=1)

        with pytest.raises(Fenced):
            store.save(first, fence=1)
        assert store.save(first, fence=2).revision == 2

    def test_fencing_out_one_workflow_leaves_the_others_alone(self, store):
        self.make(store, new_document())
        other = self.make(store, new_document(OTHER_ID, issue_number=8))
        store.revoke_writers(ADW_ID, fence=1)

        assert store.save(other, fence=1).revision == 2

    # --- events ------------------------------------------------------------------------------------------------

    def test_events_come_with_their_revision_and_a_key_of_their_own(self, store, clock):
        document = self.make(store, new_document(), [Event(event_type="workflow_created", data={"n": 0})])
        for number in range(1, 4):
            clock.advance(1)
            pair = [Event(event_type="state_changed", data={"n": number}), Event(event_type="state_set")]
            document = store.save(document, fence=1, events=pair)
        events = self.events_of(store, ADW_ID)

        assert [event.event_id for event in events] == [
            f"{ADW_ID}.1.0",
            *(f"{ADW_ID}.{revision}.{index}" for revision in (2, 3, 4) for index in (0, 1)),
        ]
        assert [event.data.get("n") for event in events if event.data] == [0, 1, 2, 3]
        assert {event.adw_id for event in events} == {ADW_ID}
        assert [event.revision for event in events] == [1, 2, 2, 3, 3, 4, 4]
        assert events[0].created_at == timestamps.to_text(START)
        assert events[-1].created_at == timestamps.to_text(clock.now())

    def test_a_refused_write_leaves_no_event(self, store):
        first = self.make(store, new_document())
        store.save(first, fence=2)
        for document, fence in ((first, 2), (first, 1)):
            with pytest.raises((StateConflict, Fenced)):
                store.save(document, fence=fence, events=[Event(event_type="state_set")])

        assert self.events_of(store, ADW_ID) == ()

    # --- which documents there are -----------------------------------------------------------------------------

    def test_an_id_can_be_used_once(self, store):
        first = self.make(store, new_document())

        with pytest.raises(StateExists):
            store.create(new_document(issue_number=99))
        assert store.load(ADW_ID).document == first

    def test_what_is_not_there_is_not_found(self, store):
        assert not store.exists(ADW_ID)
        for call in (store.load, lambda adw_id: store.save(new_document(adw_id), fence=1)):
            with pytest.raises(StateNotFound, match=ADW_ID):
                call(ADW_ID)
        assert not store.exists(ADW_ID)

    def test_ids_are_those_of_the_documents(self, store):
        assert list(store.ids()) == []
        self.make(store, new_document())
        self.make(store, new_document(OTHER_ID, issue_number=8))
        self.make(store, new_document("orch-187_20251020", issue_number=9))

        assert sorted(store.ids()) == sorted([ADW_ID, OTHER_ID, "orch-187_20251020"])
        assert store.exists(OTHER_ID)

    def test_an_id_that_is_no_safe_name_is_refused_everywhere(self, store):
        taken = []
        for bad in BAD_IDS:
            sneaky = new_document().model_copy(update={"adw_id": bad})
            calls = {
                "load": partial(store.load, bad),
                "exists": partial(store.exists, bad),
                "revoke_writers": partial(store.revoke_writers, bad, fence=1),
                "create": partial(store.create, sneaky),
                "save": partial(store.save, sneaky, fence=1),
            }
            taken += [(bad, name) for name, call in calls.items() if not _is_refused(call)]

        assert taken == []

    # --- values ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), "half a character: \ud83d"])
    def test_a_value_that_json_cannot_hold_is_refused_and_the_old_revision_stays(self, store, value):
        first = self.make(store, new_document())

        with pytest.raises(StateUnserialisable):
            store.save(first.model_copy(update={"extra_field": value}), fence=1)
        assert store.load(ADW_ID).document == first
        assert store.save(first, fence=1).revision == 2, "the store works on after a refusal"

    def test_a_creator_that_was_shut_out_before_its_first_write_stays_out(self, store):
        store.revoke_writers(ADW_ID, fence=1)

        with pytest.raises(Fenced):
            store.create(new_document())

        assert not store.exists(ADW_ID)

    # --- concurrency -------------------------------------------------------------------------------------------

    def test_eight_threads_that_count_lose_nothing(self, store):
        self.make(store, new_document(count=0))
        trouble: list[BaseException] = []

        def count() -> None:
            done = 0
            while done < 5:
                document = store.load(ADW_ID).document
                changed = document.model_copy(update={"count": document.model_extra["count"] + 1})
                try:
                    store.save(changed, fence=1)
                except StateConflict:
                    continue
                except BaseException as exc:  # noqa: BLE001 - told to the test below
                    trouble.append(exc)
                    return
                done += 1

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        last = store.load(ADW_ID).document

        assert trouble == []
        assert last.model_extra["count"] == 40
        assert last.revision == 41

    def test_of_eight_creators_one_wins(self, store):
        start, outcomes = threading.Barrier(8), []

        def create(number: int) -> None:
            start.wait()
            try:
                self.make(store, new_document(plan_file=f"by {number}"))
                outcomes.append(number)
            except StateExists:
                pass

        self.make(store, new_document(OTHER_ID, issue_number=8))  # the store is open before the race
        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(outcomes) == 1
        assert store.load(ADW_ID).document.plan_file == f"by {outcomes[0]}"
