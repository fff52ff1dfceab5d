"""
Every `adw` command that a page shows is one that there is, with options that it has; the rest is run elsewhere.
"""

from __future__ import annotations

import re

import click
import pytest

from adws.cli import main as frame
from tests import doc_commands

PAGES = [page for page in doc_commands.PAGES if doc_commands.adw_commands(page)]
#: What stands for something that a person fills in.
PLACEHOLDER = re.compile(r"\.\.\.|…|^[A-Z][A-Z_|=.]*$|^\[.*\]$|^<.*>$|^owner/name$")


def test_every_command_of_a_page_is_known_with_its_options():
    for page in PAGES:
        wrong = [" ".join(words) for words in doc_commands.adw_commands(page) if why_unknown(words)]

        assert wrong == [], page


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("status ID", True),
        ("db move URL --dry-run", True),
        ("resume 1a2b3c4d -m TEXT", True),
        ("statos ID", False),
        ("status --wat ID", False),
        ("db mov", False),
    ],
)
def test_a_command_that_is_not_there_would_be_found(line, is_known):
    assert (not why_unknown(line.split())) is is_known


@pytest.mark.parametrize("page", doc_commands.PAGES, ids=doc_commands.name_of)
def test_what_is_typed_stands_in_a_block_that_says_so(page):
    """A block without a language that holds commands would be passed over by those who run them."""
    passed_over = [
        block.text
        for block in doc_commands.blocks(page)
        if block.language not in {"sh", "console"} and re.search(r"^(\$ )?adw [a-z]", block.text, re.MULTILINE)
    ]

    assert passed_over == []


def why_unknown(words: list[str]) -> str:
    """Return why nothing can be typed so, "" when it can; what people fill in is anything."""
    group: click.Command = frame.cli
    ctx = click.Context(group, info_name="adw")
    rest = [word for word in words if not PLACEHOLDER.search(word)]
    while isinstance(group, click.Group):
        while rest and rest[0] == "--home":
            rest = rest[2:]
        names = [word for word in rest if not word.startswith("-")]
        if not names or (group.invoke_without_command and names[0] not in group.list_commands(ctx)):
            break
        command = group.get_command(ctx, names[0])
        if command is None:
            return f"no command {names[0]}"
        rest.remove(names[0])
        group, ctx = command, click.Context(command, info_name=names[0], parent=ctx)
    known = {name for param in group.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known]

    return f"no option {unknown[0]}" if unknown else ""
