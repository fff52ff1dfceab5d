"""The pages made from the code say what the code says, and everything a user can name is explained."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import click
import pytest

from adws.adw_modules.events import EVENT_TYPES, FIELD_NAMES
from adws.cli import main as frame
from adws.config import load as config_load
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
        "state-machine.md",
        "recovery.md",
        "metrics.md",
        "state-schema.md",
        "http-api.md",
        "architecture.md",
        "seeds.md",
    }
    assert [page.name for page, text in pages.items() if page.read_text() != text] == [], "run scripts/docs"


def test_the_check_fails_on_a_page_that_drifted_and_making_it_again_mends_it(tmp_path, capsys):
    for page in DOCS.glob("*.md"):
        (tmp_path / page.name).write_text(page.read_text())
    assert make_docs.main([], tmp_path) == 0
    (tmp_path / "events.md").write_text("old")
    (tmp_path / "settings.md").unlink()
    capsys.readouterr()

    assert make_docs.main(["--check"], tmp_path) == 1

    said = capsys.readouterr().out
    assert "docs/events.md is out of date: run scripts/docs" in said
    assert "docs/settings.md is out of date" in said
    assert (tmp_path / "events.md").read_text() == "old"
    assert make_docs.main([], tmp_path) == 0
    assert make_docs.main(["--check"], tmp_path) == 0


def test_a_page_without_marks_for_the_diagram_is_refused(tmp_path):
    (tmp_path / "state-machine.md").write_text("# States\n")

    with pytest.raises(SystemExit, match="has no marks for the diagram"):
        make_docs.make_pages(tmp_path)


def test_a_page_without_marks_for_the_table_is_refused(tmp_path):
    (tmp_path / "recovery.md").write_text("# Recovery\n")

    with pytest.raises(SystemExit, match="has no marks for the table"):
        make_docs.with_recovery_table(tmp_path / "recovery.md")


def test_every_command_setting_and_event_is_documented():
    commands, settings, events = (make_docs.cli_page(), make_docs.settings_page(), make_docs.events_page())

    for path, _command, _ctx in make_docs.commands():
        assert f"### {path}\n" in commands
    for setting in config_settings.SETTINGS:
        for name in (setting.env, *([setting.key] if setting.is_in_file else []), *setting.aliases):
            assert f"`{name}`" in settings
    for name in (*EVENT_TYPES, *FIELD_NAMES):
        assert f"| `{name}` |" in events


def test_the_page_of_settings_names_every_key_every_table_and_what_is_not_read():
    page = make_docs.settings_page()
    example = make_docs.example_file()

    for setting in config_settings.SETTINGS:
        if setting.is_in_file:
            assert f"{setting.key.rpartition('.')[2]} = " in example
    assert '# repository = "owner/name or its URL"' in example
    for name in config_settings.SECTIONS:
        assert f"`[{name}]`" in page
    for name in config_settings.IGNORED_VARIABLES:
        assert f"| `{name}` | Known from other ADW set-ups. Ignored" in page
    for prefix in config_settings.RESERVED_PREFIXES:
        assert f"| `{prefix}*` | Reserved" in page


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


def test_the_example_file_is_valid_and_changes_nothing(tmp_path):
    plain = config_load.load(env={}, cwd=tmp_path)
    (tmp_path / "adw.toml").write_text(make_docs.example_file())

    settings = config_load.load(env={}, cwd=tmp_path)

    for setting in config_settings.SETTINGS:
        assert getattr(settings, setting.name) == getattr(plain, setting.name)
        if setting.is_in_file and setting.default:
            assert "adw.toml:" in settings.origin(setting.name)


def test_the_page_of_the_document_has_every_field_as_it_is_written():
    page = (DOCS / "state-schema.md").read_text()
    missing = [
        f"{part.__name__}.{name}"
        for part in make_docs.reference_pages.PARTS
        for name, field in part.model_fields.items()
        if f"| `{field.alias or name}` |" not in page
    ]

    assert missing == []


def test_the_page_of_the_api_has_every_operation():
    page = (DOCS / "http-api.md").read_text()
    described = make_docs.reference_pages.describe()
    operations = [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]

    assert [one for one in operations if f"## {one[0]} {one[1]}\n" not in page] == []
