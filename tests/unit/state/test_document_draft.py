"""A draft gathers what one write stores, and leaves the document it came from as it was."""

from __future__ import annotations

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import Draft
from adws.adw_modules.errors import IllegalTransition
from adws.adw_modules.state_machine import WorkflowStateMachine
from adws.testing import START
from tests.unit.engine_cases import S, attempt, document_of, draft_of, spec_of
from tests.unit.state_cases import Ticking


def test_the_document_that_came_in_is_never_changed():
    document = document_of(spec_of("plan", "build"))
    document.phases[0].attempts = [attempt(1, "running")]
    before = document.to_bytes()
    draft = draft_of(document)

    draft.move(S.PLANNING)
    draft.change_phase(0, status="complete")
    draft.end_attempt(0, "succeeded", duration=1.0)
    draft.document.pause_reason = "because"
    draft.finished()

    assert document.to_bytes() == before


def test_a_finished_draft_has_the_state_of_the_machine_and_its_history():
    draft = draft_of(document_of(spec_of("plan")))

    draft.move(S.PLANNING, {"reason": "begun"})
    document = draft.finished()

    assert document.current_state == "planning"
    assert [(entry.from_state, entry.to_state) for entry in document.state_history] == [("pending", "planning")]


def test_a_move_tells_where_from_where_to_and_why():
    draft = draft_of(document_of(spec_of("plan")))

    draft.move(S.PLANNING, {"reason": "begun"})

    (event,) = draft.events
    assert (event.event_type, event.status) == ("state_changed", "planning")
    assert event.data == {"from": "pending", "to": "planning", "reason": "begun"}


def test_a_move_that_is_refused_says_nothing():
    draft = draft_of(document_of(spec_of("plan", "build")))

    with pytest.raises(IllegalTransition):
        draft.move(S.BUILDING)

    assert draft.events == []


def test_moving_on_goes_through_every_state_that_was_passed_over():
    draft = draft_of(document_of(spec_of("plan", "build", "lint", "test")))

    draft.advance_to(S.PLANNING)
    draft.advance_to(S.TESTING)

    moves = [(event.data["from"], event.data["to"], event.data.get("reason")) for event in draft.events]
    assert moves == [
        ("pending", "planning", None),
        ("planning", "building", "passed_over"),
        ("building", "linting", "passed_over"),
        ("linting", "testing", None),
    ]


def test_moving_on_never_goes_back():
    draft = draft_of(document_of(spec_of("plan", "build")))
    draft.advance_to(S.BUILDING)

    with pytest.raises(IllegalTransition):
        draft.advance_to(S.PLANNING)


def test_all_of_one_write_has_one_moment():
    clock = Ticking()
    document = document_of(spec_of("plan"))
    document.phases[0].attempts = [attempt(1, "running")]

    draft = Draft(document, WorkflowStateMachine.of(document, now=clock.now), now=clock.now)
    clock.advance(100.0)
    ended = draft.end_attempt(0, "failed")

    assert ended.ended_at == draft.text == timestamps.to_text(draft.at)
    assert (draft.at - START).total_seconds() == 1.0


def test_only_the_newest_attempt_is_closed():
    document = document_of(spec_of("plan"))
    document.phases[0].attempts = [attempt(1), attempt(2, "running")]
    draft = draft_of(document)

    draft.end_attempt(0, "interrupted", error={"message": "cut off"})

    first, second = draft.phase(0).attempts
    assert (first.status, first.ended_at) == ("failed", None)
    assert (second.status, second.error) == ("interrupted", {"message": "cut off"})


def test_an_event_about_a_phase_has_its_name_status_and_newest_attempt():
    document = document_of(spec_of("plan", "build"))
    document.phases[1].attempts = [attempt(1), attempt(2)]
    draft = draft_of(document)

    draft.change_phase(1, status="retry_wait")
    draft.add_event("retry_scheduled", 1, data={"at": "soon"}, duration=2.0)

    (event,) = draft.events
    assert (event.node_id, event.node_name, event.node_type) == ("build", "build", "phase")
    assert (event.status, event.attempt_number, event.duration) == ("retry_wait", 2, 2.0)
    assert (event.catalog_id, event.data) == ("tried@7", {"at": "soon"})
