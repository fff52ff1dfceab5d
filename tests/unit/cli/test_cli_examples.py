"""
Examples of the help: every command has some, each is understood, and the help shows them.
"""

from __future__ import annotations

import shlex

import click
import pytest
from click.testing import CliRunner

from adws.cli import common as cli_common
from adws.cli import main as frame
from tests.unit.docs.test_docs import make_docs

COMMANDS = {path.removeprefix("adw "): command for path, command, _ctx in make_docs.commands()}
#: Groups that do nothing by themselves: what is below them has examples.
EMPTY_GROUPS = {
    name
    for name, command in COMMANDS.items()
    if isinstance(command, click.Group) and not command.invoke_without_command
}
LINES = [(name, typed) for name, lines in cli_common.EXAMPLES.items() for typed, _what in lines]


def test_every_command_has_an_example_and_every_example_a_command():
    assert {*COMMANDS} - EMPTY_GROUPS == {*cli_common.EXAMPLES}


@pytest.mark.parametrize(("name", "typed"), LINES, ids=[typed for _name, typed in LINES])
def test_every_example_is_understood(name, typed, tmp_path, monkeypatch):
    """Its command is the one it stands under, and its options and arguments are known; nothing is run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents").mkdir()  # `adw state migrate` looks whether its directory is there
    ctx = frame.cli.make_context("adw", shlex.split(typed), obj=frame.Invocation())
    path: list[str] = []
    while isinstance(ctx.command, click.Group) and ctx._protected_args + ctx.args:
        word, command, rest = ctx.command.resolve_command(ctx, ctx._protected_args + ctx.args)
        path.append(word)
        ctx = command.make_context(word, rest, parent=ctx)

    assert " ".join(path) == name


def test_every_example_says_what_it_does_in_a_sentence():
    wrong = [what for lines in cli_common.EXAMPLES.values() for _typed, what in lines if not what.endswith(".")]

    assert wrong == []


@pytest.mark.parametrize("words", [["rollback"], ["db", "move"]])
def test_the_help_of_a_command_ends_with_its_examples(words):
    shown = CliRunner().invoke(frame.cli, [*words, "--help"], obj=frame.Invocation(), prog_name="adw").output

    for typed, what in cli_common.of(f"adw {' '.join(words)}"):
        assert f"\n  {typed}\n" in shown
        assert what[:40] in shown
    assert shown.index("Options:") < shown.index("Examples:")
