"""Names and numbers that users of ADW know: branches, slugs, and the ports of an id."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.git.git import branch_name, slug
from adws.adw_modules.resources.ports import PortPair, PortRange

#: What other tools find our branches by.
KNOWN = re.compile(r"((?:patch|bug|feature|chore)-issue-\d+-adw-[a-f0-9]+-[\w-]+)")


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Add the login button", "add-login-button"),
        ("Fix it", "fix-it"),
        ("Crash when the user's file is empty and the disk is full today", "crash-when-users-file-empty-disk"),
        ("Füge Straße hinzu", "fuge-strae-hinzu"),
        ('$(rm -rf /); `id` && "quote" %s {x}\nnext', "rm-rf-id-quote-s-x"),
        ("--upload-pack=evil ../../etc", "upload-pack-evil-etc"),
        ("", "work"),
        ("日本語", "work"),
        ("x" * 300, "x" * 60),
    ],
)
def test_a_slug_comes_from_the_title_by_rule(title, expected):
    assert slug(title) == expected


@given(st.text(max_size=200))
def test_every_title_gives_a_slug_that_is_safe_and_the_same_again(title):
    made = slug(title)

    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,5}", made)
    assert len(made) <= 60
    assert slug(title) == made


@pytest.mark.parametrize(
    ("issue_class", "kind"),
    [("/bug", "bug"), ("Chore", "chore"), ("patch", "patch"), (None, "feature"), ("`/bug` because", "feature")],
)
def test_a_branch_is_named_as_users_know_it(issue_class, kind):
    name = branch_name("1a2b3c4d", issue_number=42, title="Add the login button", issue_class=issue_class)

    assert name == f"{kind}-issue-42-adw-1a2b3c4d-add-login-button"
    assert KNOWN.fullmatch(name)


# --- ports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adw_id", "backend"),
    [("abc12345", 9108), ("def67890", 9112), ("a1b2c3d4", 9101), ("77c90e61", 9101), ("12345678", 9111)],
)
def test_the_ports_of_an_id_are_those_that_users_know(adw_id, backend):
    assert next(PortRange().pairs_for(adw_id)) == PortPair(backend=backend, frontend=backend + 100)


def test_every_pair_comes_once_and_the_first_after_the_last():
    span = PortRange(backend_start=100, frontend_start=200, count=3)
    pairs = list(span.pairs_for("00000002"))

    assert [(pair.backend, pair.frontend) for pair in pairs] == [(102, 202), (100, 200), (101, 201)]
    assert all(pair in span for pair in pairs)
    assert PortPair(backend=100, frontend=201) not in span
    assert PortPair(backend=103, frontend=203) not in span
    assert str(span) == "100 to 102 and 200 to 202"
