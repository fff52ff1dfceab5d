"""What every EventLog keeps."""

from __future__ import annotations

import pytest

from adws.adw_modules.errors import InvalidAdwId, UsageError
from adws.adw_modules.events import FIELD_NAMES, Event
from tests.contracts.worlds import FIRST, MOMENT, SECOND, make_document

FULL = Event(
    event_type="state_changed",
    status="running",
    execution_id="run-1",
    parent_execution_id="run-0",
    parent_event_id="1a2b3c4d.1.0",
    retry_sequence_id="1a2b3c4d.1.0",
    attempt_number=2,
    iteration_index=3,
    total_iterations=10,
    node_id="n1",
    node_name="build",
    node_type="phase",
    catalog_id="sdlc@1",
    duration=1.25,
    result=["ok", {"n": 1}, None],
    context={"nested": {"list": [1, 2.5, True, None, "Ünï\u2028code"]}},
    data={"from": "pending", "to": "planning"},
    meta={"note": 'quotes " and \\ and \x00 too'},
)


def keys(events) -> list[str]:
    return [event.event_id for event in events]


class EventLogContract:
    """Mix in and give a `world` fixture."""

    def test_every_field_comes_back(self, world):
        world.store.create(make_document(), events=[FULL])

        (result,) = world.events.of_workflow(FIRST)

        assert result.event_id == f"{FIRST}.1.0"
        assert (result.adw_id, result.revision, result.created_at) == (FIRST, 1, MOMENT)
        for name in FIELD_NAMES:
            if name not in {"event_id", "adw_id", "revision", "created_at"}:
                assert getattr(result, name) == getattr(FULL, name), name

    def test_events_come_in_the_order_they_happened(self, world):
        document = world.store.create(make_document(), events=[Event(event_type="workflow_created")])
        for _ in range(12):
            document = world.store.save(
                document, fence=1, events=[Event(event_type="state_changed"), Event(event_type="state_set")]
            )

        expected = [f"{FIRST}.1.0", *(f"{FIRST}.{revision}.{n}" for revision in range(2, 14) for n in (0, 1))]
        assert keys(world.events.of_workflow(FIRST)) == expected

    def test_reading_goes_on_after_an_event(self, world):
        document = world.store.create(make_document(), events=[FULL, FULL, FULL])
        world.store.save(document, fence=1, events=[FULL])

        first = world.events.of_workflow(FIRST, limit=2)
        rest = world.events.of_workflow(FIRST, after=first[-1].event_id)

        assert keys(first) == [f"{FIRST}.1.0", f"{FIRST}.1.1"]
        assert keys(rest) == [f"{FIRST}.1.2", f"{FIRST}.2.0"]
        assert world.events.of_workflow(FIRST, after=rest[-1].event_id) == ()

    def test_the_newest_come_first_and_reading_goes_back_from_an_event(self, world):
        document = world.store.create(make_document(), events=[FULL, FULL, FULL])
        world.store.save(document, fence=1, events=[FULL])

        first = world.events.newest(FIRST, limit=2)
        rest = world.events.newest(FIRST, before=first[-1].event_id)

        assert keys(first) == [f"{FIRST}.2.0", f"{FIRST}.1.2"]
        assert keys(rest) == [f"{FIRST}.1.1", f"{FIRST}.1.0"]
        assert world.events.newest(FIRST, before=rest[-1].event_id) == ()

    def test_workflows_do_not_mix(self, world):
        world.store.create(make_document(), events=[FULL])
        world.store.create(make_document(SECOND), events=[FULL, FULL])

        assert keys(world.events.of_workflow(SECOND)) == [f"{SECOND}.1.0", f"{SECOND}.1.1"]
        assert keys(world.events.newest(SECOND)) == [f"{SECOND}.1.1", f"{SECOND}.1.0"]

    def test_an_event_of_nobody_is_no_place_to_go_on_from(self, world):
        world.store.create(make_document(), events=[FULL])
        world.store.create(make_document(SECOND), events=[FULL])

        for unknown in ("nonsense", f"{SECOND}.1.0"):
            with pytest.raises(UsageError, match="has no event"):
                world.events.of_workflow(FIRST, after=unknown)
            with pytest.raises(UsageError, match="has no event"):
                world.events.newest(FIRST, before=unknown)

    def test_a_workflow_without_events_has_none(self, world):
        world.store.create(make_document())

        assert world.events.of_workflow(FIRST) == ()

    def test_an_id_that_is_no_name_is_refused(self, world):
        with pytest.raises(InvalidAdwId):
            world.events.of_workflow("../etc")
