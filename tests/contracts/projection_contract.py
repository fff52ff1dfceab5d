"""What every Projection keeps."""

from __future__ import annotations

from types import SimpleNamespace

from adws.adw_modules.db import connection
from adws.adw_modules.events import Event, stamp
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.store.projection import Projection
from adws.adw_modules.store.serialization import OutboxEntry, Revision, summary_of
from tests.contracts.worlds import FIRST, MOMENT, SECOND, make_document


def projection_on(database, **options) -> Projection:
    """Return the projection of a home whose database is open."""
    return Projection(SimpleNamespace(database=database, may_have_projection=lambda: True), **options)


def projected(revision: int, adw_id: str = FIRST, *, events: int = 1, state: str = "planning", fence: int = 1, since=0):
    """Return a revision as the file store hands it over; its outbox has the events of the revisions from *since* on."""
    happened = [Event(event_type="state_changed", data={"n": number}) for number in range(events)]
    waiting = [
        event
        for number in range(since or revision, revision + 1)
        for event in stamp(happened, adw_id=adw_id, revision=number, created_at=MOMENT)
    ]
    document = make_document(adw_id, title="Ünïcode")
    document = document.changed(
        current_state=state,
        revision=revision,
        fence=fence,
        outbox=[OutboxEntry(event.to_json()) for event in waiting],
    )
    rows = [connection.event_params(event) for event in waiting if event.revision == revision]

    return Revision(document, document.to_bytes(), rows)


class ProjectionContract:
    """Mix in and give `projection`, and `world` to look at what it wrote."""

    def test_the_copy_the_line_and_the_events_are_there(self, projection, world):
        projection.update(projected(1, events=2))

        assert projection.copy_of(FIRST) == projected(1, events=2).body
        assert projection.confirmed_revision(FIRST) == 1
        (row,) = world.catalogue.page(PageQuery()).rows
        assert row == summary_of(projected(1).document)
        assert [event.event_id for event in world.events.of_workflow(FIRST)] == [f"{FIRST}.1.0", f"{FIRST}.1.1"]

    def test_of_many_writes_the_last_body_and_all_events_remain(self, projection, world):
        for revision in range(1, 21):
            projection.update(projected(revision, state=f"state {revision}"))

        assert projection.copy_of(FIRST) == projected(20, state="state 20").body
        assert [event.revision for event in world.events.of_workflow(FIRST)] == list(range(1, 21))
        assert world.catalogue.page(PageQuery(state="state 20")).rows[0].revision == 20

    def test_a_title_that_changed_is_in_the_line(self, projection, world):
        projection.update(projected(1))
        after = projected(2)
        projection.update(after._replace(document=after.document.changed(repository="acme/other")))

        assert world.catalogue.page(PageQuery()).rows[0].repository == "acme/other"

    def test_an_older_revision_never_comes_back(self, projection, world):
        projection.update(projected(5, state="building"))
        projection.update(projected(3, state="pending"))

        assert projection.copy_of(FIRST) == projected(5, state="building").body
        assert projection.confirmed_revision(FIRST) == 5
        assert world.catalogue.page(PageQuery()).rows[0].state == "building"
        assert len(world.events.of_workflow(FIRST)) == 2, "events of an older revision are still news"

    def test_handing_over_twice_changes_nothing(self, projection, world):
        for _ in range(2):
            projection.update(projected(1, events=3))

        assert len(world.events.of_workflow(FIRST)) == 3

    def test_workflows_do_not_mix(self, projection):
        projection.update(projected(4))
        projection.update(projected(7, SECOND))

        assert projection.copy_of(FIRST) == projected(4).body
        assert projection.copy_of(SECOND) == projected(7, SECOND).body

    def test_nothing_is_known_of_what_was_never_handed_over(self, projection):
        assert projection.confirmed_revision(FIRST) == 0
        assert projection.copy_of(FIRST) is None
