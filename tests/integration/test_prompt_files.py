"""Prompts on disk: the user's first, those that come with adw else, and what is wrong with one told in a sentence."""

from __future__ import annotations

import pytest

from adws.adw_modules.agents import prompts
from adws.adw_modules.agents.prompts import DEFAULTS, MAX_BYTES, PromptFiles
from adws.adw_modules.errors import UsageError


@pytest.fixture
def files(tmp_path):
    (tmp_path / "prompts").mkdir()
    return PromptFiles(tmp_path)


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_phase_has_a_sound_prompt_of_its_own(files, name):
    prompt = files.read(name)

    assert (prompt.source, files.problem(name)) == ("adw", "")
    assert prompt.text.startswith("# ")
    placed = {word for word in prompts.ALWAYS if f"{{{{{word}}}}}" in prompt.text}
    assert placed == set(prompts.ALWAYS)
    assert "push" in prompt.text, "who must not push is told so"


def test_the_prompt_of_the_user_wins(files, tmp_path):
    own = tmp_path / "prompts/plan.md"
    own.write_text("My way.\n")

    assert files.read("plan").text == "My way.\n"
    assert files.read("plan").source == str(own)


def test_a_name_may_be_a_file_below_the_home(files, tmp_path):
    (tmp_path / "mine.md").write_text("Mine.\n")

    assert files.has("mine.md")
    assert files.read("mine.md").text == "Mine.\n"


@pytest.mark.parametrize("name", ["nothing", "../plan", "", "a\0b", "prompts"])
def test_a_prompt_that_is_not_there_is_told(files, name):
    assert not files.has(name)
    with pytest.raises(UsageError, match="there is no prompt "):
        files.read(name)
    assert "or name one of plan, build, lint," in files.problem(name)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b" \n", "is empty: write what the agent shall do"),
        (b"\xff\xfe", "is no UTF-8 text: save it as one"),
        (b"x" * (MAX_BYTES + 1), f"has {MAX_BYTES + 1} bytes, the limit is {MAX_BYTES}"),
        (b"{{gaol}}", "cannot be used: {{gaol}} is no variable of a prompt, did you mean goal?"),
    ],
    ids=["empty", "bytes", "long", "variable"],
)
def test_a_prompt_that_cannot_be_used_is_told(files, tmp_path, payload, words):
    (tmp_path / "prompts/plan.md").write_bytes(payload)

    assert words in files.problem("plan")
