"""What is an orphan, and what never is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import Resource, WorkflowDocument
from adws.adw_modules.housekeeping import inventory
from adws.adw_modules.housekeeping.inventory import KnownWorkflow, Orphan
from adws.testing import START

ADW_ID = "1a2b3c4d"


def known(state="rolled_back", **changes) -> KnownWorkflow:
    return KnownWorkflow(**{"adw_id": ADW_ID, "state": state, **changes})


def orphan(kind="branch", name="x", since="") -> Orphan:
    return Orphan(kind=kind, name=name, adw_id=ADW_ID, why="because", since=since)


@pytest.mark.parametrize("kind", sorted(inventory.NOT_IN))
def test_everything_of_a_workflow_that_does_not_exist_is_an_orphan(kind):
    assert inventory.why_orphan(kind, "x", None) == "there is no such workflow"


@pytest.mark.parametrize(
    ("kind", "state", "is_one"),
    [
        ("worktree", "completed", True),
        ("worktree", "abandoned", False),
        ("worktree", "failed", False),
        ("branch", "completed", False),
        ("branch", "rolled_back", True),
        ("remote_branch", "completed", False),
        ("remote_branch", "rolled_back", True),
        ("port", "paused", True),
        ("port", "building", False),
        ("quota", "failed", True),
        ("lock", "failed", False),
        ("lock", "abandoned", True),
        ("checkpoint", "failed", False),
        ("checkpoint", "paused", False),
        ("checkpoint", "abandoned", True),
        ("checkpoint", "completed", True),
        ("process", "paused", True),
        ("process", "testing", False),
        ("pull_request", "completed", False),
    ],
)
def test_what_may_be_there_in_which_state(kind, state, is_one):
    assert bool(inventory.why_orphan(kind, "x", known(state))) is is_one


def test_what_somebody_works_on_or_nobody_can_read_or_was_kept_is_no_orphan():
    assert not inventory.why_orphan("branch", "x", known(is_live=True))
    assert not inventory.why_orphan("branch", "x", known(""))
    assert not inventory.why_orphan("branch", "x", known(kept=frozenset({"x"})))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "abandoned", "has_open_effects": True}, "it is abandoned, and what it made is still there"),
        ({"state": "abandoned"}, ""),
        ({"state": "failed", "is_rolling_back": True}, "its rollback is not finished"),
        ({"state": "rolled_back", "is_rolling_back": True}, ""),
        ({"state": "failed", "is_rolling_back": True, "is_live": True}, ""),
        ({"state": "failed", "has_open_effects": True}, ""),
    ],
)
def test_a_workflow_as_a_whole_is_left_over_when_it_is_given_up_or_half_rolled_back(changes, why):
    assert inventory.why_left_over(known(**changes)) == why


def document(state: str, *resources: Resource, **fields) -> WorkflowDocument:
    moments = {"created_at": "then", "updated_at": "now"}
    return WorkflowDocument(
        adw_id=ADW_ID, issue_number=42, current_state=state, resources=resources, **moments, **fields
    )


def entry(outcome: str, host: str | None = None, **undo) -> Resource:
    return Resource(key="x", kind="worktree", host=host, outcome=outcome, undo=undo)


def test_what_is_known_of_a_workflow_comes_from_its_document():
    made = document("abandoned", entry("kept", branch="b", path="/x", sha="1"), entry("made"), rollback={})

    assert inventory.known_from(made, is_live=True) == KnownWorkflow(
        adw_id=ADW_ID,
        state="abandoned",
        updated_at="now",
        is_live=True,
        is_rolling_back=True,
        has_open_effects=True,
        kept=frozenset({"b", "/x"}),
    )


def test_orphans_come_in_the_order_they_can_be_removed():
    result = [orphan("lock"), orphan("branch"), orphan("worktree"), orphan("workflow")]

    ordered = inventory.chosen(result, older_than=None, now=START)

    assert [one.kind for one in ordered] == ["workflow", "worktree", "branch", "lock"]


def test_only_what_is_known_to_be_old_enough_is_chosen():
    old, new = (timestamps.to_text(START - timedelta(days=days)) for days in (8, 6))
    result = [orphan(name="old", since=old), orphan(name="new", since=new), orphan(name="unknown")]

    chosen = inventory.chosen(result, older_than=timedelta(days=7), now=START)

    assert [one.name for one in chosen] == ["old"]


def test_an_orphan_is_told_to_programs_without_what_removes_it():
    assert orphan().to_json() == {"kind": "branch", "name": "x", "adw_id": ADW_ID, "why": "because", "since": ""}


def test_on_machines_that_share_documents_each_looks_after_its_own():
    made = document(
        "completed", entry("kept", "far", path="/a"), entry("kept", "here", path="/b"), entry("made", "far", path="/c")
    )

    result = inventory.known_from(made, is_live=False, host="here")

    assert (result.kept, result.elsewhere) == ({"/b"}, {"far"})
    assert inventory.known_from(made, is_live=False).elsewhere == frozenset()
    said = "workflow 1a2b3c4d is completed and has something on far: only a worker there can look after it"
    assert inventory.why_not_here(result) == said
    assert inventory.why_not_here(replace(result, state="abandoned")).endswith(
        "only adw admin gc there can look after it"
    )
    for other in (
        replace(result, is_live=True),
        replace(result, state="building"),
        replace(result, elsewhere=frozenset()),
    ):
        assert inventory.why_not_here(other) == ""
