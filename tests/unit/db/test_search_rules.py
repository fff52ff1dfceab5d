"""What somebody types to find a workflow."""

from __future__ import annotations

import pytest

from adws.adw_modules.db import listing
from adws.adw_modules.db.listing import LONGEST_WORD, MOST_WORDS


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
