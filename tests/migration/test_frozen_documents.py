"""
One frozen document for each version and each kind of file found in the wild, with its frozen result beside it.

The `*.expected.json` files were read by a person. A change of a migration that changes one of them changes what happens
to files that are out there: write a new step instead. Only a field that the model got since, and that is empty for an
old document, is added to them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adws.adw_modules import document
from adws.adw_modules.state_schema import StateMigration

DOCUMENTS = Path(__file__).with_name("documents")
NAMES = sorted(path.stem for path in DOCUMENTS.glob("*.json") if not path.name.endswith(".expected.json"))


def read(name):
    return json.loads((DOCUMENTS / f"{name}.json").read_text())


def test_there_is_a_frozen_document_of_every_version():
    """
    A version nobody froze is a version nobody can promise to read.
    """
    assert {name.partition("_")[0] for name in NAMES} == {"v1", "v2", "v3"}
    assert len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_document_migrates_to_its_frozen_result(name):
    """
    Compared exactly, types included: 1 is not 1.0 and not true.
    """
    result = StateMigration.migrate(read(name))

    assert json.dumps(result, sort_keys=True) == json.dumps(read(f"{name}.expected"), sort_keys=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_migrated_document_parses_and_keeps_every_key_through_the_model(name):
    """
    What the model writes holds all that the migration gave it.
    """
    result = StateMigration.migrate(read(name))

    written = json.loads(document.to_bytes(document.parse(result)))

    assert _is_within(result, written)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("v3")])
def test_a_migration_gives_every_field_of_the_model(name):
    """
    A field that is added to the model needs its place in the last step: an old key of that name is something else.
    """
    assert set(document.WorkflowDocument.model_fields) <= set(StateMigration.migrate(read(name)))


def _is_within(part, whole):
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and _is_within(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(_is_within(a, b) for a, b in zip(part, whole, strict=True))
    return part == whole
