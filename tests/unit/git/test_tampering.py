"""What was changed of what all worktrees share: found by marks, without the values, and without everyday changes."""

from __future__ import annotations

import pytest

from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
from adws.adw_modules.git.change_policy import described, differences, marks_of_config, unsettled

CONFIG = '[core]\n\tbare = false\n[remote "origin"]\n\turl = https://user:secret@example.com/x.git\n'
AT = "2026-01-31T09:00:0{}.000000Z"


def changed(text: str) -> set[str]:
    return set(differences(marks_of_config(CONFIG), marks_of_config(text)))


# --- configuration ---------------------------------------------------------------------------------------------


def test_every_key_has_a_mark_and_no_value_is_in_it():
    marks = marks_of_config(CONFIG)

    assert set(marks) == {"config core.bare", "config remote.origin.url"}
    assert "secret" not in str(marks)


@pytest.mark.parametrize(
    ("added", "name"),
    [
        ("[core]\n\thooksPath = /evil\n", "config core.hookspath"),
        ("[CORE]\n  fsmonitor = /evil\n", "config core.fsmonitor"),
        ('[filter "x"]\n\tclean = /evil\n', "config filter.x.clean"),
        ("[alias]\n\tst = !evil\n", "config alias.st"),
        ("[include]\n\tpath = /evil\n", "config include.path"),
        ('[branch "x"]\n\tremote = origin \\\n[core]\n\tpager = evil\n', "config (other lines)"),
        ('[branch "x"]\n\thooksPath = /evil\n', "config branch.x.hookspath"),
        ("[core] hooksPath = /evil\n", "config (other lines)"),
        ("[rebase]\n\tautoStash\n", "config rebase.autostash"),
        ("lonely\n", "config remote.origin.lonely"),
    ],
)
def test_what_is_added_is_named(added, name):
    assert name in changed(CONFIG + added)


@pytest.mark.parametrize(
    "text",
    [
        CONFIG + '[branch "x"]\n\tremote = origin\n\tmerge = refs/heads/x\n',
        "# a comment\n; another\n\n" + CONFIG,
        CONFIG.replace("\t", "    "),
    ],
    ids=["a-branch-is-made", "comments", "white-space"],
)
def test_what_happens_every_day_is_no_change(text):
    assert changed(text) == set()


def test_a_value_and_a_key_that_is_gone_are_changes():
    assert changed(CONFIG.replace("example.com", "evil.com")) == {"config remote.origin.url"}
    assert changed("[core]\n\tbare = false\n") == {"config remote.origin.url"}


def test_another_file_has_names_of_its_own():
    marks = marks_of_config("[core]\n\tbare = true\n", where="worktrees/a/config.worktree")

    assert set(marks) == {"config worktrees/a/config.worktree: core.bare"}


# --- refs and words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "is_forward", "found"),
    [
        ({"refs/heads/main": "a"}, {"refs/heads/main": "b"}, True, {}),
        ({"refs/heads/main": "a"}, {"refs/heads/main": "b"}, False, {"refs/heads/main": "a"}),
        ({"refs/heads/main": "a"}, {}, True, {"refs/heads/main": "a"}),
        ({}, {"refs/heads/main": "a"}, False, {}),
        ({}, {"refs/tags/v1": "a"}, False, {}),
        ({"refs/tags/v1": "a"}, {"refs/tags/v1": "b"}, True, {"refs/tags/v1": "a"}),
        ({}, {"refs/replace/a": "b"}, True, {"refs/replace/a": ""}),
    ],
    ids=["forward", "elsewhere", "deleted", "new-branch", "new-tag", "moved-tag", "replaced"],
)
def test_refs_may_go_forward_and_nothing_else(before, after, is_forward, found):
    assert differences(before, after, is_forward=lambda _old, _new: is_forward) == found


def test_it_is_told_what_became_of_each():
    words = described({"a": "", "b": "1", "c": "2"}, {"a": "3", "b": "4"})

    assert words == "a (new), b (changed), c (gone)"


# --- attempts --------------------------------------------------------------------------------------------------


def document(*attempts: dict) -> WorkflowDocument:
    made = [
        AttemptRecord(number=n, started_at=AT.format(n), **{"status": "failed", **one})
        for n, one in enumerate(attempts, 1)
    ]
    records = [PhaseRecord(name="plan", state="planning"), PhaseRecord(name="build", state="building", attempts=made)]
    return WorkflowDocument(
        adw_id="1a2b3c4d", issue_number=7, phases=records, created_at=AT.format(0), updated_at=AT.format(0)
    )


BEFORE = {"hooks/x": "1", "refs/heads/main": "a"}


@pytest.mark.parametrize(
    ("attempts", "found"),
    [
        ([], None),
        ([{"agent": {"name": "claude"}}], None),
        ([{"shared": {"before": BEFORE}}], None),
        ([{"shared": {"before": BEFORE, "changed": {"hooks/x": "1"}}}], {"hooks/x": "1"}),
        ([{"shared": {"before": BEFORE, "changed": {"hooks/x": "1"}}}, {"shared": {"before": BEFORE}}], None),
        ([{"shared": {"before": BEFORE}, "status": "interrupted"}], {"hooks/x": "1"}),
        ([{"shared": {"before": BEFORE, "changed": "nonsense"}}], None),
    ],
    ids=["none", "not-watched", "unchanged", "changed", "gone-on-with", "cut-off", "nonsense"],
)
def test_an_attempt_is_unsettled_until_the_next_one(attempts, found):
    expected = None if found is None else ("build", len(attempts), found)

    assert unsettled(document(*attempts)) == expected
