"""Steps that follow each other at once, with documents in files: when the database has their copies and events."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from adws import testing
from adws.adw_modules.document import WorkflowDocument
from adws.adw_modules.events import Event
from adws.adw_modules.interfaces import PageQuery
from adws.adw_modules.ownership.lease_renewer import LeaseRenewer, RenewalTimes

ADW_ID = "1a2b3c4d"
NOW = "2026-01-31T09:00:00.000000Z"


@pytest.fixture
def home(tmp_path):
    with testing.home(tmp_path, store="files") as home:
        home.lease_renewer = LeaseRenewer(
            clock=home.clock,
            requests=home.requests,
            runs=home.runs,
            store=home.store,
            times=RenewalTimes(look=3600.0),  # the test looks
        )
        yield home


@contextmanager
def owned_by_a_worker(home):
    """A workflow with one step written, under the lease renewer."""
    new = WorkflowDocument(adw_id=ADW_ID, issue_number=None, created_at=NOW, updated_at=NOW)
    with home.ownership.create(new) as owned, home.lease_renewer.charge(owned):
        step(owned)
        yield owned


def step(owned):
    owned.save(owned.document, events=[Event(event_type="state_set", data={"revision": owned.document.revision + 1})])


def stored(home):
    """Return the revision that lists show, and those whose events are in."""
    (line,) = home.catalogue.page(PageQuery()).rows
    events = [event for event in home.events.of_workflow(ADW_ID) if event.event_type == "state_set"]
    return line.revision, [event.revision for event in events]


def test_a_step_that_follows_at_once_is_copied_by_the_lease_renewer(home):
    with owned_by_a_worker(home) as owned:
        step(owned)
        assert stored(home) == (2, [2])

        home.lease_renewer.look()

        assert stored(home) == (3, [2, 3])


def test_a_step_that_comes_later_takes_the_collected_ones_along(home):
    with owned_by_a_worker(home) as owned:
        step(owned)
        home.clock.advance(0.1)
        step(owned)

        assert stored(home) == (4, [2, 3, 4])


def test_what_was_collected_is_copied_when_the_workflow_is_given_back(home):
    with owned_by_a_worker(home) as owned:
        for _ in range(3):
            step(owned)

    assert stored(home) == (5, [2, 3, 4, 5])


def test_without_a_lease_renewer_nothing_is_collected(home):
    new = WorkflowDocument(adw_id=ADW_ID, issue_number=None, created_at=NOW, updated_at=NOW)
    with home.ownership.create(new) as owned:
        for _ in range(3):
            step(owned)

        assert stored(home) == (4, [2, 3, 4])


def test_the_events_of_a_worker_that_died_are_stored_by_the_next_write(home):
    with owned_by_a_worker(home) as owned:
        step(owned)
        home.projection._behind.clear()  # what a killed process takes with it
        home.clock.advance(0.1)

        step(owned)

        assert stored(home) == (4, [2, 3, 4])
