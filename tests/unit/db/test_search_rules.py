"""What somebody types to find a workflow."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import listing
from adws.adw_modules.db.listing import LONGEST_WORD, MOST_WORDS
from adws.adw_modules.interfaces import WorkflowSummary

ROW = WorkflowSummary(
    adw_id="1a2b3c4d",
    repository="acme/widget",
    issue_number=42,
    title="Über the Crash at Login",
    workflow="sdlc",
    state="failed",
    revision=1,
    created_at="",
    updated_at="",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        (" \t\n ", ()),
        ("crash  at\tlogin crash", ("crash", "at", "login")),
        ("x" * 100, ("x" * LONGEST_WORD,)),
        (" ".join(map(str, range(20))), tuple(map(str, range(MOST_WORDS)))),
    ],
)
def test_a_search_is_a_few_short_words(text, words):
    assert listing.words_in(text) == words


@pytest.mark.parametrize(
    ("word", "number"),
    [("42", 42), ("#42", 42), ("##42", None), ("4x", None), ("٤٢", None), ("", None), ("9" * 16, None)],
)
def test_a_number_is_that_of_an_issue(word, number):
    assert listing.issue_in(word) == number


def test_other_letters_than_ascii_are_looked_for_in_each_case():
    assert listing.spellings("Login") == ("Login",)
    assert listing.spellings("über") == ("über", "ÜBER", "Über")


@pytest.mark.parametrize(
    "search", ["", "crash", "LOGIN über", "ÜBER", "acme", "WIDGET", "42", "#42", "1a2b", "1A2B", "crash 42 1a acme"]
)
def test_a_workflow_is_found_by_all_its_words(search):
    assert listing.fits(listing.words_in(search), ROW)


@pytest.mark.parametrize("search", ["crash nothing", "2b3c", "#43", "4", "sdlc", "failed"])
def test_one_word_that_is_not_there_is_enough_to_be_left_out(search):
    assert not listing.fits(listing.words_in(search), ROW)
