"""Checkpoints: what may be saved, and that it comes back as it was."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adws.adw_modules import default_home
from adws.adw_modules.checkpoint import CheckpointManager
from adws.adw_modules.errors import UsageError
from adws.testing import FakeClock
from tests.homes import lab_home

CLOCK = FakeClock()


@pytest.fixture
def store():
    return lab_home(clock=CLOCK).checkpoints


@pytest.fixture
def manager(store):
    return CheckpointManager(store, clock=CLOCK)


# --- saving ----------------------------------------------------------------------------------------------------


def test_save_checkpoint(manager):
    """Each save returns a UUID of its own."""
    result = {manager.save_checkpoint("task", {"step": step}) for step in range(3)}

    assert len(result) == 3
    assert {uuid.UUID(text).version for text in result} == {4}
    assert all(str(uuid.UUID(text)) == text for text in result)


@pytest.mark.parametrize("task_id", ["", "   ", "a\nb", "a\x00b", "\ud800", "x" * 256])
def test_save_checkpoint_empty_task_id_raises(manager, task_id):
    for call in (
        lambda: manager.save_checkpoint(task_id, {}),
        lambda: manager.load_checkpoint(task_id),
        lambda: manager.list_checkpoints(task_id),
        lambda: manager.delete_checkpoints(task_id),
    ):
        with pytest.raises(ValueError, match=r"task_id .* is no name: use 1 to 255 printable characters"):
            call()


@pytest.mark.parametrize("task_id", [None, 7, b"task"])
def test_a_task_id_that_is_no_text_is_a_type_error(manager, task_id):
    with pytest.raises(TypeError, match="task_id must be a text, and is"):
        manager.save_checkpoint(task_id, {})


@pytest.mark.parametrize("data", [None, [1], "text", 3, json.dumps({"a": 1})])
def test_save_checkpoint_non_dict_raises(manager, data):
    with pytest.raises(TypeError, match=f"a checkpoint must be a dict, and is {type(data).__name__}"):
        manager.save_checkpoint("task", data)


@pytest.mark.parametrize(
    "value",
    [object(), b"bytes", {1, 2}, Path("here"), float("nan"), float("inf"), -float("inf")],
    ids=["object", "bytes", "set", "path", "nan", "inf", "-inf"],
)
def test_save_checkpoint_non_serializable_raises(manager, value):
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        manager.save_checkpoint("task", {"inner": [value]})

    assert manager.load_checkpoint("task") is None


class Odd(int):
    """Equal to nothing, not even to itself."""

    __hash__ = int.__hash__

    def __eq__(self, other):
        return False


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({1: "a"}, r"data has the key 1, and keys must be texts"),
        ({"a": {None: "b"}}, r"data\['a'\] has the key None"),
        ({"a": [{True: "b"}]}, r"data\['a'\]\[0\] has the key True"),
        ({"1": "a", 1: "b"}, "data has the key 1"),
        ({"a": (1, 2)}, r"data\['a'\] is tuple, and would be list"),
        ({"a": [0, ()]}, r"data\['a'\]\[1\] is tuple, and would be list"),
        ({"a": Odd(1)}, r"data\['a'\] is Odd, and would be int"),
    ],
)
def test_what_would_not_come_back_as_it_is_is_refused(manager, data, words):
    with pytest.raises(ValueError, match=words):
        manager.save_checkpoint("task", data)

    assert manager.load_checkpoint("task") is None


def test_a_checkpoint_that_is_too_large_is_refused_and_the_last_one_stays(store):
    manager = CheckpointManager(store, clock=CLOCK, max_bytes=20)
    manager.save_checkpoint("task", {"a": "x" * 11})

    with pytest.raises(ValueError, match="has 21 bytes, the limit is 20: keep large things in a file"):
        manager.save_checkpoint("task", {"a": "x" * 12})

    assert manager.load_checkpoint("task") == {"a": "x" * 11}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(data=st.dictionaries(st.text(), _JSON, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the newest counts, whatever was saved before
def test_what_is_loaded_is_what_was_saved(manager, data):
    manager.save_checkpoint("task", data)

    assert repr(manager.load_checkpoint("task")) == repr(data)


# --- loading and deleting --------------------------------------------------------------------------------------


def test_load_checkpoint_returns_latest(manager):
    """Both are saved in the same instant: the clock decides nothing."""
    manager.save_checkpoint("task", {"name": "A"})
    manager.save_checkpoint("task", {"name": "B"})

    assert manager.load_checkpoint("task") == {"name": "B"}
    first, second = manager.list_checkpoints("task")
    assert (first.created_at, first.sequence < second.sequence) == (second.created_at, True)


def test_delete_checkpoints(manager):
    for step in range(3):
        manager.save_checkpoint("task", {"step": step})

    assert (manager.delete_checkpoints("task"), manager.delete_checkpoints("task")) == (3, 0)
    assert manager.load_checkpoint("task") is None


# --- where they are kept ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("db", [None, 7, {}, object()])
def test_a_missing_store_is_a_type_error(db):
    with pytest.raises(TypeError, match=r"CheckpointManager got .*: give it a CheckpointStore, the path or URL"):
        CheckpointManager(db)


@pytest.mark.parametrize(("option", "value"), [("keep", 0), ("keep", 1001), ("max_bytes", 0)])
def test_limits_out_of_bounds_are_refused(store, option, value):
    with pytest.raises(UsageError, match=f"{option} is {value}: give a number"):
        CheckpointManager(store, **{option: value})


def test_without_a_store_it_is_that_of_the_home():
    parts = lab_home()
    with default_home.using(parts):
        made = CheckpointManager().save_checkpoint("task", {"a": 1})

    assert parts.checkpoints.latest("task").checkpoint_id == made


def test_a_named_database_is_opened_and_closed(monkeypatch, store):
    opened, closed = [], []

    def opener(place):
        opened.append(place)
        return default_home.OpenedCheckpoints(store=store, clock=CLOCK, close=lambda: closed.append(place))

    monkeypatch.setattr(default_home, "_opener", opener)
    with CheckpointManager(Path("some/adw.db")) as manager:
        manager.save_checkpoint("task", {"a": 1})
        assert (opened, closed) == (["some/adw.db"], [])

    assert closed == ["some/adw.db"]
    assert store.latest("task") is not None


def test_without_wiring_nothing_is_opened_by_name(monkeypatch):
    monkeypatch.setattr(default_home, "_opener", None)

    with pytest.raises(UsageError, match="import adws, or pass the store explicitly"):
        CheckpointManager("adw.db")


# --- phases ----------------------------------------------------------------------------------------------------


def test_data_that_never_ends_is_refused(manager):
    circle: dict = {}
    circle["again"] = circle
    deep: list = []
    for _ in range(100_000):
        deep = [deep]

    for data in (circle, {"deep": deep}):
        with pytest.raises(ValueError, match="cannot be written as JSON"):
            manager.save_checkpoint("task", data)
