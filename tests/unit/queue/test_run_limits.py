"""How many runs go on at a time: counted by labels, held by the tightest limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import UsageError
from adws.adw_modules.queue.model import RunLimits, check_labels, full_labels, labels_of, labels_text

LIMITS = RunLimits(scopes={"workflow": {"*": 2, "sdlc": 1}, "repository": {"acme/widget": 0}})


def test_a_limit_of_its_own_wins_over_the_one_for_each():
    assert [LIMITS.of(f"workflow:{name}") for name in ("sdlc", "patch")] == [1, 2]
    assert LIMITS.of("repository:acme/other") is None
    assert LIMITS.of("provider:anthropic") is None


def test_labels_are_full_when_as_many_runs_carry_them_as_may():
    live = [{"workflow:sdlc"}, {"workflow:patch"}, {"provider:x"}]

    assert full_labels(live, LIMITS) == ("repository:acme/widget", "workflow:sdlc")
    assert full_labels([*live, {"workflow:patch"}], LIMITS) == (
        "repository:acme/widget",
        "workflow:patch",
        "workflow:sdlc",
    )


@given(st.lists(st.frozensets(st.sampled_from(["workflow:a", "workflow:b", "provider:c"]))))
def test_a_label_is_full_exactly_when_its_count_reached_its_limit(live):
    limits = RunLimits(scopes={"workflow": {"*": 2}, "provider": {"c": 3}})

    full = full_labels(live, limits)

    for label, most in {"workflow:a": 2, "workflow:b": 2, "provider:c": 3}.items():
        assert (label in full) is (sum(label in labels for labels in live) >= most)


def test_labels_are_read_back_from_their_text():
    labels = frozenset({"workflow:sdlc", "repository:acme/widget"})

    assert labels_text(labels) == "|repository:acme/widget|workflow:sdlc|"
    assert labels_of(labels_text(labels)) == labels
    assert labels_text([]) == ""
    assert labels_of("") == frozenset()


@pytest.mark.parametrize("label", ["", "sdlc", "team:a", "workflow:", "workflow:a|b"])
def test_what_is_no_label_is_refused(label):
    with pytest.raises(UsageError, match="write repository or workflow or provider, a colon and a name"):
        check_labels([label])
