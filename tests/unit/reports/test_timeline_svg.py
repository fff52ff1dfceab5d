"""The picture of a timeline: everything of it is there, in words too, and nothing in it is markup of a stranger."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from adws.adw_modules.reports.charts import about_timeline, clock_text, legend, timeline_svg
from adws.adw_modules.reports.timeline import Timeline, timeline
from tests.unit.timeline_cases import at, document, move, phase, text, tried


def picture(made: Timeline, **options) -> ET.Element:
    return ET.fromstring(timeline_svg(made, title="Timeline", **options))


def found(tree: ET.Element, tag: str, kind: str = "") -> list[ET.Element]:
    return [one for one in tree.iter(tag) if not kind or kind in (one.get("class") or "").split()]


BUSY = timeline(
    document(
        phase("plan", tried(1, 10, 60)),
        phase("build", tried(1, 60, 100, "failed", error={"message": "it broke"}), tried(2, 180), status="running"),
        phase("test", status="queued"),
        history=(move("testing", "building", 170, reason="rework"),),
        current_state="building",
    ),
    now=at(200),
)


def test_each_phase_has_a_lane_each_attempt_a_block_and_each_wait_a_line():
    tree = picture(BUSY)

    assert ["".join(one.itertext()) for one in found(tree, "text", "lane-name")] == [
        "plancomplete",
        "buildrunning",
        "testqueued",
    ]
    assert [one.get("class") for one in found(tree, "g", "bar")] == ["bar succeeded", "bar failed", "bar running open"]
    assert [one.get("class") for one in found(tree, "g", "wait")] == ["wait queue", "wait retry"]
    assert len(found(tree, "g", "rework")) == 1


def test_blocks_lie_where_their_time_is_and_have_their_number_where_there_is_room():
    tree = picture(BUSY)
    first = found(tree, "rect", "block")[0]

    assert (first.get("x"), first.get("width")) == ("5.000%", "25.000%")
    assert [one.text for one in found(tree, "text", "number")] == ["1", "1", "2"]
    thin = timeline(document(phase("build", tried(1, 0, 1), tried(2, 1))), now=at(100))
    assert [one.text for one in found(picture(thin), "text", "number")] == ["2"]


def test_the_picture_is_told_in_words():
    tree = picture(BUSY)

    assert tree.get("role") == "img"
    assert (tree.find("title").text, tree.find("desc").text) == ("Timeline", about_timeline(BUSY))
    assert about_timeline(BUSY) == (
        "1 min 50 s of work, 1 min 30 s of waiting. plan: 1 attempt. build: 2 attempts, 1 of them failed. "
        "test: not begun."
    )
    assert [one.find("title").text for one in found(tree, "g", "bar")][1:] == [
        "build: attempt 1 failed: it broke (40 s)",
        "build: attempt 2 running (so far 20 s)",
    ]


def test_the_present_is_marked_where_something_is_still_to_come():
    waits = phase("build", tried(1, 0, 100, "failed"), status="retry_wait", retry_at=text(125))

    (now,) = found(picture(timeline(document(waits), now=at(100))), "line", "now")

    assert now.get("x1") == "80.000%"
    assert found(picture(BUSY), "line", "now") == []


@pytest.mark.parametrize(
    ("seconds", "first"), [(100, "09:00:00"), (7200, "09:00"), (3 * 86_400, "31 Jan 09:00")], ids=["short", "h", "days"]
)
def test_times_are_as_exact_as_the_length_allows(seconds, first):
    made = timeline(document(phase("build", tried(1, 0))), now=at(seconds))

    assert clock_text(made.start, made) == first
    assert found(picture(made), "text", "tick")[0].text == first
    assert [one.get("text-anchor") for one in found(picture(made), "text", "tick")] == [
        "start",
        "middle",
        "middle",
        "middle",
        "end",
    ]


def test_nothing_a_stranger_wrote_is_markup_and_all_of_it_is_cleaned():
    nasty = '<script>alert("1")</script>'
    made = timeline(
        document(
            phase(nasty, tried(1, 0, 10, nasty, error={"message": nasty}), status=nasty),
            history=(move("paused", "building", 5, reason="resumed", by=nasty),),
        ),
        now=at(10),
    )
    seen: list[str] = []

    tree = ET.fromstring(timeline_svg(made, title=nasty, say=lambda said: seen.append(said) or said))

    assert found(tree, "script") == []
    assert [nasty in said for said in seen] == [True] * len(seen)
    assert len(seen) == 5  # the title, the description, the lane, the bar, the mark


def test_a_mark_outside_of_the_picture_is_not_drawn():
    ended = document(
        phase("build", tried(1, 0, 10)),
        history=(move("building", "completed", 10), move("paused", "completed", 50, reason="resumed")),
    )

    assert found(picture(timeline(ended, now=at(99))), "g", "mark") == []


def test_the_legend_names_what_is_in_the_picture_work_first():
    assert legend(BUSY) == [
        ("succeeded", "succeeded", False),
        ("failed", "failed", False),
        ("running", "running", False),
        ("retry", "waits for its next attempt", True),
        ("queue", "waits for a worker", True),
    ]
