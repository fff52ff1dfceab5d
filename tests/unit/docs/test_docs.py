"""The pages made from the code say what the code says, and everything a user can name is explained."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import click
import pytest

from adws.adw_modules.events import EVENT_TYPES, FIELD_NAMES
from adws.cli import main as frame
from adws.config import settings as config_settings

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def load_script():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "lib" / "make_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_docs = load_script()


def test_a_generated_page_is_what_the_code_says():
    pages = make_docs.make_pages(DOCS)

    assert {page.name for page in pages} == {
        "settings.md",
        "cli.md",
        "events.md",
        "http-api.md",
        "guarantees.md",
        "workflows.md",
        "architecture.md",
    }
    assert [page.name for page, text in pages.items() if page.read_text() != text] == [], "run scripts/docs"


def test_the_check_fails_on_a_page_that_drifted_and_making_it_again_fixes_it(tmp_path, capsys):
    for page in DOCS.glob("*.md"):
        (tmp_path / page.name).write_text(page.read_text())
    assert make_docs.main([], tmp_path) == 0
    (tmp_path / "cli.md").write_text("old")
    (tmp_path / "settings.md").unlink()
    capsys.readouterr()

    assert make_docs.main(["--check"], tmp_path) == 1

    said = capsys.readouterr().out
    assert "docs/cli.md is out of date: run scripts/docs" in said
    assert "docs/settings.md is out of date" in said
    assert (tmp_path / "cli.md").read_text() == "old"
    assert make_docs.main([], tmp_path) == 0
    assert make_docs.main(["--check"], tmp_path) == 0


@pytest.mark.parametrize(("page", "part"), [(page, part) for page, parts in make_docs.BLOCKS.items() for part in parts])
def test_a_page_without_marks_for_a_part_is_refused(tmp_path, page, part):
    with pytest.raises(SystemExit, match=f"{page} has no marks for the part {part}"):
        make_docs.with_block(tmp_path / page, part, "text", "# A page\n")


def test_every_command_setting_and_event_is_documented():
    commands, settings, events = make_docs.cli_page(), make_docs.settings_page(), (DOCS / "events.md").read_text()

    for path, _command, _ctx in make_docs.commands():
        assert re.search(rf"^### {path}( [A-Z\[(].*)?$", commands, re.MULTILINE), path
    for setting in config_settings.SETTINGS:
        assert re.search(rf"\n- `{setting.key}`( \(|:)", settings)
        assert setting.env == f"ADW_{setting.key.replace('.', '_').upper()}", "the page gives this rule"
        assert all(f"`{name}`" in settings for name in setting.aliases)
    for name in (*EVENT_TYPES, *FIELD_NAMES):
        assert f"\n- `{name}`" in events


def test_every_option_of_every_command_is_documented():
    page = make_docs.cli_page()
    options = {
        param.opts[0] for _, command, _ in make_docs.commands() for param in command.params if param.opts[0][0] == "-"
    }

    assert [
        one for one in sorted(options) if f"`{one}" not in page and f"{one} " not in page and f"{one}`" not in page
    ] == []


def test_the_page_of_settings_names_every_table_and_what_is_not_read():
    page = make_docs.settings_page()

    for name in config_settings.SECTIONS:
        assert f"\n- `[{name}]`: " in page
    for name in (*config_settings.IGNORED_VARIABLES, *(f"{one}*" for one in config_settings.RESERVED_PREFIXES)):
        assert f"`{name}`" in page


def test_there_are_at_most_twenty_pages_and_30_000_words():
    # The strokes of tables and bullets of lists are no words.
    words = {page.name: len(re.findall(r"\S*\w\S*", page.read_text())) for page in DOCS.rglob("*.md")}

    assert len(words) <= 20
    assert sum(words.values()) <= 30_000, sorted(words.items(), key=lambda one: -one[1])


def test_every_command_of_the_table_is_there_under_its_name():
    root = click.Context(frame.cli, info_name="adw")
    for section in frame.COMMANDS.values():
        for name in section:
            assert frame.cli.get_command(root, name).name == name


def test_every_command_and_option_explains_itself():
    root = click.Context(frame.cli, info_name="adw")
    silent = [
        f"{path} {param.opts[0]}"
        for path, command, _ctx in [("adw", frame.cli, root), *make_docs.commands(root)]
        for param in command.params
        if isinstance(param, click.Option) and not param.help
    ]

    assert silent == []
    assert [path for path, command, _ctx in make_docs.commands(root) if not inspect.cleandoc(command.help or "")] == []


def test_every_field_of_an_event_has_a_meaning():
    fields = list(make_docs.event_fields())

    assert tuple(name for name, _, _ in fields) == FIELD_NAMES
    assert [name for name, kind, meaning in fields if not kind or not meaning] == []


def test_the_page_of_the_document_has_every_field_as_it_is_written():
    page = (DOCS / "events.md").read_text()
    missing = [
        f"{part.__name__}.{name}"
        for part in make_docs.reference_pages.PARTS
        for name, field in part.model_fields.items()
        if not re.search(rf"`{field.alias or name}`(, `\w+`)* \(", page)
    ]

    assert missing == []


def test_the_page_of_the_api_has_every_operation():
    page = (DOCS / "http-api.md").read_text()
    described = make_docs.reference_pages.describe()
    operations = [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]

    assert [one for one in operations if f"\n- `{one[0]} {one[1]}`" not in page] == []
