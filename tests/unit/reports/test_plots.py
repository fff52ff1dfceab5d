"""Pictures of numbers: sound, escaped, with words for who cannot see them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from adws.adw_modules.reports import charts, plots
from adws.adw_modules.reports.charts import Column, Mark, Plot
from adws.adw_modules.reports.model import CostSum, DayOutcomes, FailureGroup, PhaseAttempts

PLOT = Plot(key="a", title="A title", about="What it shows.")
HOSTILE = "\"><script>alert(1)</script>&'\u202e"
DAYS = plots.days_of("2026-01-29", "2026-01-31")
FIRST, LAST = DAYS[0], DAYS[-1]
OUTCOMES = (DayOutcomes(day=FIRST, completed=3, failed=1), DayOutcomes(day=LAST, abandoned=1, rolled_back=1))
COSTS = (CostSum(key=FIRST, cost_usd=12.0, attempts=1), CostSum(key="2026-01-01", cost_usd=99.0, attempts=1))


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def found(root: ET.Element, tag: str, kind: str = "") -> list[ET.Element]:
    return [one for one in root.iter(tag) if not kind or kind in one.get("class", "").split()]


def words(root: ET.Element, kind: str) -> list[str]:
    return [group[0].text for group in found(root, "g", kind)]


# --- what every picture has ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "svg",
    [
        charts.columns_svg(PLOT, []),
        charts.line_svg(PLOT, []),
        charts.bars_svg(PLOT, []),
        charts.columns_svg(PLOT, [Column(label="x", parts=(Mark(value=1, kind="k", words="w"),))]),
    ],
    ids=["no columns", "no points", "no bars", "one column"],
)
def test_a_picture_is_read_out_by_its_title_and_its_description(svg):
    """Also one with nothing in it."""
    root = parsed(svg)

    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "a-title a-about")
    assert [(one.get("id"), one.text) for one in (root[0], root[1])] == [
        ("a-title", "A title"),
        ("a-about", "What it shows."),
    ]


def test_nothing_that_a_stranger_wrote_is_taken_for_markup():
    """Whatever stands in labels, words, kinds or titles."""
    plot = Plot(key=HOSTILE, title=HOSTILE, about=HOSTILE, limit=1.0, limit_words=HOSTILE, text=lambda _value: HOSTILE)
    pictures = [
        charts.columns_svg(plot, [Column(label=HOSTILE, parts=(Mark(value=1, kind=HOSTILE, words=HOSTILE),))]),
        charts.line_svg(plot, [Mark(label=HOSTILE, value=1, words=HOSTILE)]),
        charts.bars_svg(plot, [Mark(label=HOSTILE, value=1, words=HOSTILE, kind=HOSTILE)]),
    ]

    for svg in pictures:
        assert "<script" not in svg
        assert found(parsed(svg), "script") == []


def test_every_text_passes_what_takes_care_of_strangers():
    """Words, labels, titles and descriptions alike."""
    failure = FailureGroup(phase="bu\u202eild", category="fatal", message="no\u202e", count=3, last_at="", adw_id="")
    care = lambda text: text.replace("\u202e", "?")  # noqa: E731 - one line is all there is to it

    pictures = [
        plots.failures_plot([failure], say=care),
        plots.phase_costs_plot([CostSum(key="bu\u202eild", cost_usd=1.0)], say=care),
        plots.attempts_plot(PhaseAttempts(phase="bu\u202eild", needed={1: 1}), key="x", say=care),
    ]

    assert ["\u202e" in svg for svg in pictures] == [False] * 3
    assert "bu?ild" in pictures[2]


@pytest.mark.parametrize(
    ("most", "top"),
    [(0.0, 1.0), (7.0, 8.0), (8.0, 8.0), (8.1, 10.0), (0.03, 0.04), (1234.0, 2000.0), (float("inf"), 1.0)],
)
def test_a_scale_ends_with_a_round_number_above_all_that_is_shown(most, top):
    """Where there is nothing it ends with 1."""
    assert charts.scale_of(most, PLOT) == pytest.approx(top)
    assert charts.scale_of(most, Plot(key="a", title="", about="", top=3000.0)) >= 3000.0 or most == float("inf")


# --- kinds of pictures -----------------------------------------------------------------------------------------


def test_parts_of_a_column_stand_on_each_other_and_what_is_small_is_seen():
    """A part of nothing is not drawn."""
    parts = tuple(Mark(value=value, kind=kind, words=kind) for value, kind in ((500, "a"), (0, "b"), (1, "c")))

    root = parsed(charts.columns_svg(PLOT, [Column(label="x", parts=parts)]))

    lower, upper = (one.find("rect") for one in found(root, "g", "part"))
    assert words(root, "part") == ["a", "c"]
    assert float(upper.get("y")) + float(upper.get("height")) == pytest.approx(float(lower.get("y")), abs=0.01)
    assert float(upper.get("height")) == 2.0


def test_a_line_is_broken_where_there_is_no_value():
    """A day without an end is no day of failure."""
    points = [Mark(label=str(n), value=value, words=str(n)) for n, value in enumerate((1.0, 0.5, None, 1.0))]

    root = parsed(charts.line_svg(PLOT, points))

    assert len(found(root, "line", "stroke")) == 1
    assert words(root, "dot") == ["0", "1", "3"]


@pytest.mark.parametrize(
    ("count", "labelled"),
    [(1, [0]), (4, [0, 1, 2, 3]), (5, [0, 2, 4]), (14, [1, 5, 9, 13]), (100, [24, 49, 74, 99])],
)
def test_labels_below_are_few_and_equally_far_apart_and_the_last_column_has_one(count, labelled):
    """However many days there are."""
    columns = [Column(label=f"day {n}") for n in range(count)]

    ticks = found(parsed(charts.columns_svg(PLOT, columns)), "text", "tick")

    below = [one for one in ticks if one.text.startswith("day")]
    assert [one.text for one in below] == [f"day {n}" for n in labelled]
    assert below[-1].get("text-anchor") == ("end" if count > 4 else "middle"), "what is narrow has no room around it"


# --- what reports draw -----------------------------------------------------------------------------------------


def test_every_day_is_drawn_also_one_without_an_end():
    """The description says what all of them came to."""
    root = parsed(plots.outcomes_plot(OUTCOMES, DAYS))

    assert [one.text for one in found(root, "text", "tick")][-3:] == ["29 Jan", "30 Jan", "31 Jan"]
    assert words(root, "part") == [
        f"{FIRST}: 3 completed",
        f"{FIRST}: 1 failed",
        f"{LAST}: 1 abandoned",
        f"{LAST}: 1 rolled back",
    ]
    assert root[1].text == f"{FIRST} to {LAST}: 3 completed, 1 failed, 1 abandoned, 1 rolled back."


def test_the_success_rate_has_a_point_for_each_day_with_an_end():
    """The whole time has its rate in the description."""
    root = parsed(plots.success_plot(OUTCOMES, DAYS))

    assert words(root, "dot") == [f"{FIRST}: 75%: 3 of 4 completed", f"{LAST}: 0%: 0 of 2 completed"]
    assert root[1].text == f"{FIRST} to {LAST}: 50%: 3 of 6 completed."


def test_days_that_cost_more_than_they_may_are_marked():
    """Days outside are not counted."""
    root = parsed(plots.costs_plot(COSTS, DAYS, budget=10.0))

    assert words(root, "over") == [f"{FIRST}: $12.00"]
    assert root[1].text == f"{FIRST} to {LAST}: $12.00 in all. A day may cost $10.00."
    unlimited = parsed(plots.costs_plot(COSTS, DAYS))
    assert (words(unlimited, "cost"), words(unlimited, "limit")) == ([f"{FIRST}: $12.00"], [])


def test_a_budget_that_is_far_away_is_said_and_not_drawn():
    """A line far above would make every day look like nothing."""
    near, far = (parsed(plots.costs_plot(COSTS, DAYS, budget=budget)) for budget in (48.0, 48.1))

    assert (words(near, "limit"), words(far, "limit")) == (["a day may cost $48.00"], [])
    assert far[1].text.endswith("A day may cost $48.10.")


def test_phases_are_drawn_by_what_they_cost():
    """What cost most comes first."""
    costs = [CostSum(key="test", cost_usd=1.0, attempts=2), CostSum(key="build", cost_usd=3.0, attempts=4)]

    root = parsed(plots.phase_costs_plot(costs))

    assert words(root, "bar") == ["build: $3.00 in 4 attempts", "test: $1.00 in 2 attempts"]
    assert root[1].text == "build $3.00, test $1.00."
    assert parsed(plots.phase_costs_plot([]))[1].text == "Nothing was spent."


def test_attempts_that_were_needed_are_drawn_with_those_between():
    """A phase that never succeeded says so."""
    root = parsed(plots.attempts_plot(PhaseAttempts(phase="build", needed={1: 5, 3: 1}), key="x"))

    assert root[0].text == "Attempts until build succeeded"
    assert words(root, "needed") == ["5 times 1 attempt", "1 time 3 attempts"]
    assert [one.text for one in found(root, "text", "tick")][-3:] == ["1", "2", "3"]
    assert parsed(plots.attempts_plot(PhaseAttempts(phase="build"), key="x"))[1].text == "It never did."


def test_failures_are_drawn_by_how_often_they_came():
    """With their whole message as words."""
    failure = FailureGroup(phase="build", category="fatal", message="no " * 100, count=3, last_at="", adw_id="")

    root = parsed(plots.failures_plot([failure]))

    assert words(root, "bar") == [f"3 x build, fatal: {'no ' * 100}"]
    assert len(found(root, "text", "name")[0].text) < 100
    assert parsed(plots.failures_plot([]))[1].text == "No attempt failed."


def test_the_days_of_a_picture_are_not_too_many():
    """The last ones are those that are drawn; without a day nothing is."""
    assert DAYS == ("2026-01-29", "2026-01-30", "2026-01-31")
    assert len(plots.days_of("2020-01-01", "2026-01-31T09:00")) == 120
    assert plots.days_of("2026-02-01", "2026-01-31") == ("2026-01-31",)
    assert parsed(plots.outcomes_plot((), ()))[1].text.startswith("No day: ")
