"""One spelling for a repository."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.errors import UsageError
from adws.adw_modules.identifiers import comparable, in_home, normalise, on_github


def test_every_spelling_of_a_repository_becomes_one():
    for text in [
        *("acme/widget", "Acme/Widget", "ACME/WIDGET.git", "acme/widget/", "https://github.com/Acme/Widget"),
        *("http://github.com/acme/widget.git", "https://bob@github.com/acme/widget/", "HTTPS://GitHub.com/acme/widget"),
        *(
            "ssh://git@github.com/acme/widget.git",
            "ssh://git@github.com:22/acme/widget",
            "git@github.com:Acme/widget.git",
        ),
        *("git://github.com/acme/widget.git", "git@github.com:/acme/widget"),
    ]:
        assert normalise(text) == "acme/widget", text


@pytest.mark.parametrize(
    ("text", "name"),
    [("", ""), ("acme/wid.github", "acme/wid.github"), ("acme/x.git.io", "acme/x.git.io"), ("a/.github", "a/.github")],
)
def test_only_a_final_git_is_cut_off(text, name):
    assert normalise(text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("acme", "acme/", "/widget", "acme/widget/tree", "../..", "./x", "acme/..", "a b/c", " ", "acme/widget\n"),
        *("https://github.com/acme", "https://github.com", "ftp://github.com/acme/widget", "äcme/widget", "-"),
    ],
)
def test_what_names_no_repository_is_refused_with_a_sentence(text):
    with pytest.raises(UsageError, match="names no repository: give owner/name"):
        normalise(text)


def test_what_an_old_document_says_is_compared_as_it_is():
    assert comparable("somewhere else") == "somewhere else"
    assert comparable("https://github.com/Acme/Widget") == "acme/widget"


@pytest.mark.parametrize(
    ("text", "home", "meant"),
    [
        ("", "", ""),
        ("", "Acme/Widget", "acme/widget"),
        ("ACME/widget", "Acme/Widget", "acme/widget"),
        ("acme/gadget", "acme/widget", "acme/gadget"),
        ("acme/gadget", "", "acme/gadget"),
        ("somewhere else", "acme/widget", "somewhere else"),
    ],
)
def test_no_name_is_the_repository_of_the_home(text, home, meant):
    assert in_home(text, home) == meant


@given(
    st.from_regex(r"[A-Za-z0-9_.-]{1,9}/[A-Za-z0-9_-]{1,9}", fullmatch=True).filter(
        lambda t: t.split("/")[0] not in {".", ".."}
    )
)
def test_a_normalised_name_stays_as_it_is(text):
    assert normalise(normalise(text)) == normalise(text) == text.lower()


def test_a_repository_on_github_is_told_by_its_address():
    for address, name in [
        ("https://github.com/Acme/Shop.git", "Acme/Shop"),
        ("https://github.com/acme/shop/", "acme/shop"),
        ("https://user:secret@github.com/acme/shop", "acme/shop"),
        ("git@github.com:acme/shop.git", "acme/shop"),
        ("git@github.com-work:acme/shop.git", "acme/shop"),
        ("ssh://git@github.com/acme/shop.git", "acme/shop"),
        ("ssh://git@ssh.github.com:443/acme/shop.git", "acme/shop"),
        ("github.com/acme/shop", "acme/shop"),
        ("https://gitlab.com/acme/shop.git", ""),
        ("https://github.com.evil.example/acme/shop", ""),
        ("https://example.com/github.com/acme", ""),
        ("/srv/github.com/acme/shop", ""),
        ("", ""),
    ]:
        assert on_github(address) == name, address
