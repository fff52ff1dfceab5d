"""What every Projection keeps."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from adws.adw_modules.events import Event, stamp
from adws.adw_modules.interfaces import PageQuery, ProjectedWrite, WorkflowSummary
from adws.adw_modules.store.projection import Projection
from tests.contracts.worlds import FIRST, MOMENT, SECOND


def projection_on(database, **options) -> Projection:
    """Return the projection of a home whose database is open."""
    return Projection(SimpleNamespace(database=database, may_have_projection=lambda: True), **options)


def projected(revision: int, adw_id: str = FIRST, *, events: int = 1, state: str = "planning", fence: int = 1):
    """Return a write as the file store hands it over."""
    body = json.dumps({"adw_id": adw_id, "revision": revision, "title": "Ünïcode"}, ensure_ascii=False).encode()
    happened = [Event(event_type="state_changed", data={"n": number}) for number in range(events)]

    return ProjectedWrite(
        adw_id=adw_id,
        revision=revision,
        fence=fence,
        body=body,
        summary=WorkflowSummary(
            adw_id=adw_id,
            repository="acme/widget",
            issue_number=42,
            title="Ünïcode",
            workflow="sdlc",
            state=state,
            revision=revision,
            created_at=MOMENT,
            updated_at=MOMENT,
        ),
        events=stamp(happened, adw_id=adw_id, revision=revision, created_at=MOMENT),
    )


class ProjectionContract:
    """Mix in and give `projection`, and `world` to look at what it wrote."""

    def test_after_a_flush_the_copy_the_line_and_the_events_are_there(self, projection, world):
        projection.submit(projected(1, events=2))
        projection.flush()

        assert projection.copy_of(FIRST) == projected(1).body
        assert projection.confirmed_revision(FIRST) == 1
        (row,) = world.catalogue.page(PageQuery()).rows
        assert row == projected(1).summary
        assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.1.0", f"{FIRST}.1.1"]

    def test_of_many_writes_the_last_body_and_all_events_remain(self, projection, world):
        for revision in range(1, 21):
            projection.submit(projected(revision, state=f"state {revision}"))
        projection.flush()

        assert projection.copy_of(FIRST) == projected(20).body
        assert projection.confirmed_revision(FIRST) == 20
        assert [event.revision for event in world.events.of_workflow(FIRST)] == list(range(1, 21))
        assert world.catalogue.page(PageQuery(state="state 20")).rows[0].revision == 20

    @pytest.mark.parametrize("flush_between", [False, True], ids=["in one batch", "one after the other"])
    def test_an_older_revision_never_comes_back(self, projection, world, flush_between):
        projection.submit(projected(5, state="building"))
        if flush_between:
            projection.flush()
        projection.submit(projected(3, state="pending"))
        projection.flush()

        assert projection.copy_of(FIRST) == projected(5).body
        assert projection.confirmed_revision(FIRST) == 5
        assert world.catalogue.page(PageQuery()).rows[0].state == "building"
        assert len(world.events.of_workflow(FIRST)) == 2, "events of an older revision are still news"

    def test_handing_over_twice_changes_nothing(self, projection, world):
        for _ in range(2):
            projection.submit(projected(1, events=3))
            projection.flush()

        assert len(world.events.of_workflow(FIRST)) == 3

    def test_workflows_do_not_mix(self, projection):
        projection.submit(projected(4))
        projection.submit(projected(7, SECOND))
        projection.flush()

        assert projection.copy_of(FIRST) == projected(4).body
        assert projection.copy_of(SECOND) == projected(7, SECOND).body
        assert (projection.confirmed_revision(FIRST), projection.confirmed_revision(SECOND)) == (4, 7)

    def test_nothing_is_known_of_what_was_never_handed_over(self, projection):
        projection.flush()

        assert projection.confirmed_revision(FIRST) == 0
        assert projection.copy_of(FIRST) is None
