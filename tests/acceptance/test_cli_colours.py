"""Colours are for terminals, and only for people who do not say NO_COLOR."""

from __future__ import annotations

import pytest

from tests.acceptance import cli_lab
from tests.acceptance.cli_lab import Terminal

RED = "\x1b[31mERROR"


@pytest.fixture
def home(tmp_path):
    """A home with a document that is damaged: recovery logs that as an error."""
    home = cli_lab.make_home(tmp_path)
    damaged = home / "state" / "1a2b3c4d" / "adw_state.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    return home


def on_a_terminal(home):
    with Terminal(home, "admin", "recover") as terminal:
        terminal.end()
        return terminal.text


def test_a_terminal_gets_colours(home):
    assert RED in on_a_terminal(home)


def test_a_terminal_gets_none_with_no_color(home, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    text = on_a_terminal(home)

    assert "ERROR" in text
    assert "\x1b" not in text


def test_an_empty_no_color_does_not_count(home, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "")

    assert RED in on_a_terminal(home)


@pytest.mark.parametrize("form", ["auto", "text", "json"])
def test_a_pipe_gets_no_escape_codes(adw, home, form):
    done = adw("admin", "recover", env={"ADW_HOME": str(home), "ADW_LOG_FORMAT": form})

    assert "ERROR" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
