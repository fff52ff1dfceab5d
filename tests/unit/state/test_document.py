from __future__ import annotations

import json

import pytest

from adws.adw_modules import document
from adws.adw_modules.document import HistoryEntry
from adws.adw_modules.errors import StateInvalid, StateUnserialisable

MOMENT = "2026-01-31T09:00:00.000000Z"
MINIMAL = {"adw_id": "1a2b3c4d", "issue_number": 42, "created_at": MOMENT, "updated_at": MOMENT}


def test_a_document_needs_an_id_an_issue_and_its_moments():
    """
    Every field that is missing or bad is named, not only the first.
    """
    with pytest.raises(StateInvalid) as caught:
        document.parse({"retry_count": "many"})

    for field in ("adw_id", "issue_number", "created_at", "updated_at", "retry_count"):
        assert f"{field}: " in str(caught.value)


def test_an_error_says_where_in_the_document_it_is():
    with pytest.raises(StateInvalid, match=r"of 1a2b3c4d is not valid: phases\.0\.state: Field required"):
        document.parse({**MINIMAL, "phases": [{"name": "plan"}]})


@pytest.mark.parametrize("version", ["2.0", "4.0", 3, None])
def test_a_document_of_another_version_is_not_taken_for_ours(version):
    with pytest.raises(StateInvalid, match="migrate it before parsing"):
        document.parse({**MINIMAL, "state_version": version})


def test_unknown_keys_survive_at_every_level():
    data = {
        **MINIMAL,
        "team": {"name": "exports"},
        "model_config": "a key that pydantic knows too",
        "state_history": [{"from": "pending", "to": "planning", "timestamp": MOMENT, "by": "ada"}],
        "phases": [{"name": "plan", "state": "planning", "mood": "good"}],
        "cost": {"total_usd": 1.0, "invoices": 5},
    }

    written = json.loads(document.to_bytes(document.parse(data)))

    assert written["team"] == {"name": "exports"}
    assert written["model_config"] == "a key that pydantic knows too"
    assert written["state_history"][0]["by"] == "ada"
    assert written["phases"][0]["mood"] == "good"
    assert written["cost"]["invoices"] == 5


def test_what_is_written_is_read_back_the_same():
    parsed = document.parse({**MINIMAL, "note": "Grüße, 世界", "deep": {"list": [1, 2.5, None, True]}})

    assert document.parse(json.loads(document.to_bytes(parsed))) == parsed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("where", ["extra", "deep", "field"])
def test_numbers_that_json_has_no_word_for_are_refused(value, where):
    """
    Left alone they would be written as null, and the number would be lost without a word.
    """
    parsed = document.parse(MINIMAL)
    if where == "field":
        parsed.cost.total_usd = value
    else:
        parsed = parsed.model_copy(update={"extra": value if where == "extra" else {"in": [value]}})

    with pytest.raises(StateUnserialisable, match=r"1a2b3c4d holds .*, which is not JSON"):
        document.to_bytes(parsed)


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "lone surrogate"])
def test_a_value_that_cannot_be_written_is_refused_with_the_workflows_name(value):
    parsed = document.parse(MINIMAL).model_copy(update={"extra": value})

    with pytest.raises(StateUnserialisable, match="1a2b3c4d cannot be written as JSON"):
        document.to_bytes(parsed)


def test_the_history_is_kept_up_to_its_limit():
    parsed = document.parse(MINIMAL)
    moves = [{"from": "pending", "to": f"s{number}", "timestamp": MOMENT} for number in range(5)]

    parsed.add_history(moves, keep=3)

    assert [entry.to_state for entry in parsed.state_history] == ["s2", "s3", "s4"]
    assert all(isinstance(entry, HistoryEntry) for entry in parsed.state_history)


def test_a_copy_has_every_field_and_extra_key_and_shares_none_with_its_original():
    parsed = document.parse({**MINIMAL, "note": "kept", "state_version": "3.0"})

    made = parsed.model_copy()
    made.assign(revision=7)
    made.note = "changed"

    assert made.model_copy(update={"revision": 0, "note": "kept"}) == parsed
    assert (parsed.revision, parsed.note) == (0, "kept")
    assert "revision" in made.model_fields_set
    assert "revision" not in parsed.model_fields_set


def test_a_rollback_is_begun_once():
    parsed = document.parse(MINIMAL)

    parsed.begin_rollback()
    first = parsed.rollback
    parsed.begin_rollback()

    assert first is not None
    assert parsed.rollback is first
