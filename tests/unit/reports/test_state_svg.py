"""The picture of the states: all of them, the moves that were made, and where the workflow is."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter

import pytest

from adws.adw_modules.reports.charts import about, moves_of, state_svg
from adws.adw_modules.state_machine import PIPELINE, StateTransition, WorkflowState, derive_table
from tests.unit.timeline_cases import move

TABLE = StateTransition.TRANSITIONS


def picture(table=TABLE, current="pending", made=()) -> ET.Element:
    return ET.fromstring(state_svg(table, current, Counter(made)))


def classes(tree: ET.Element) -> dict[str, set[str]]:
    """Return the classes of each state that is drawn."""
    groups = [one for one in tree.iter("g") if (one.get("class") or "").startswith("state ")]
    return {one.get("class").split()[1]: set(one.get("class").split()[2:]) for one in groups}


def edges(tree: ET.Element, kind: str) -> list[str]:
    return [
        one.find("title").text
        for one in tree.iter("g")
        if one.find("title") is not None and one.find("path") is not None and one.find("path").get("class") == kind
    ]


@pytest.mark.parametrize("bits", range(1, 256, 7))
def test_every_state_of_every_table_is_in_the_picture_and_inside_of_it(bits):
    table = derive_table([(s.value, s) for number, s in enumerate(PIPELINE) if bits >> number & 1])
    tree = picture(table)
    height = float(tree.get("height"))
    rows = [one.find("rect") for one in tree.iter("g") if (one.get("class") or "").startswith("state ")]

    assert set(classes(tree)) == {state.value for state in table}
    assert all(float(r.get("y")) >= 0 and float(r.get("y")) + float(r.get("height")) <= height for r in rows)
    assert len({(r.get("x"), r.get("y")) for r in rows}) == len(rows)


def test_the_state_it_is_in_is_marked_and_those_it_was_in_are_told_apart():
    tree = picture(current="building", made=[("pending", "planning"), ("planning", "building")])
    result = classes(tree)

    assert result["building"] == {"current"}
    assert result["planning"] == result["pending"] == {"seen"}
    assert result["testing"] == set()
    assert tree.find("title").text == "The workflow is building"


def test_the_moves_that_were_made_are_marked_and_counted():
    tree = picture(current="testing", made=[("testing", "building")] * 3 + [("building", "failed")])

    assert edges(tree, "edge made") == ["testing to building, 3 times", "building to failed"]
    assert [one.text for one in tree.iter("text") if one.get("class") == "times"] == ["\u00d73"]
    assert "testing to building" not in edges(tree, "edge")
    assert "reviewing to building" in edges(tree, "edge")


def test_every_move_of_the_table_can_be_drawn_as_made():
    moves = [(source.value, target.value) for source, row in TABLE.items() for target in row]
    said = [f"{a} to {b}".replace("_", " ") for a, b in moves]

    assert edges(picture(made=moves), "edge made") == said


def test_moves_of_other_tools_that_the_table_has_no_states_for_are_left_out():
    assert edges(picture(made=[("drawing", "building"), ("pending", "planning")]), "edge made") == [
        "pending to planning"
    ]


def test_what_all_phases_share_is_drawn_once_from_the_box():
    tree = picture()
    plain = [one for one in tree.findall("path") if one.get("class") == "edge"]

    assert len(plain) == 5  # to paused, failed and abandoned; back from paused and failed
    shorter = {**TABLE, WorkflowState.SHIPPING: (WorkflowState.CLEANING,), WorkflowState.FAILED: ()}
    assert len([one for one in picture(shorter).findall("path") if one.get("class") == "edge"]) == 1


def test_the_picture_is_told_in_words():
    assert about("rolled_back", {}) == "The workflow is rolled back."
    assert about("testing", {("testing", "building"): 2, ("pending", "planning"): 1}) == (
        "The workflow is testing. Moves so far: testing to building 2 times, pending to planning."
    )
    many = {("pending", str(number)): 1 for number in range(25)}
    assert about("paused", many).endswith(", pending to 19 and 5 others.")


def test_moves_are_counted_from_the_history():
    history = [move("pending", "planning", 1), move("planning", "paused", 2), move("pending", "planning", 3)]

    assert moves_of(history) == {("pending", "planning"): 2, ("planning", "paused"): 1}


def test_a_state_that_a_stranger_named_is_no_markup():
    tree = picture(current="<b>", made=[("<b>", "pending")])

    assert tree.find("title").text == "The workflow is <b>"
    assert "<b> to pending" in tree.find("desc").text
