"""
The nouns that everything else is built of: ids, moments, events, errors, the parts in force.
"""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import default_home, errors, events, identifiers, timestamps
from adws.adw_modules.events import Event
from adws.adw_modules.phase import NoOrders

BAD_IDS = [
    "",
    "../x",
    "..",
    ".",
    "a/b",
    "a\\b",
    "-rf",
    "_x",
    "a b",
    "a\n",
    "a\x00",
    "é",
    "a" * 65,
    "a.b",
    None,
    7,
    b"1a2b3c4d",
]


@pytest.mark.parametrize("adw_id", BAD_IDS, ids=repr)
def test_an_id_that_could_leave_its_directory_is_refused(adw_id):
    """
    One rule for every border: no separators, dots, leading dashes, white space, control characters or other types.
    """
    with pytest.raises(errors.InvalidAdwId) as raised:
        identifiers.check_adw_id(adw_id)

    assert "is not a workflow id" in str(raised.value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("adw_id", "ours"),
    [
        ("1a2b3c4d", True),
        ("orch-187-20251020140000", False),
        ("1A2B3C4D", False),
        ("1a2b3c4d5", False),
        ("a" * 64, False),
    ],
)
def test_our_ids_and_those_of_other_tools_are_told_apart(adw_id, ours):
    """Both are allowed; only eight hex digits are ours."""
    assert identifiers.check_adw_id(adw_id) == adw_id
    assert identifiers.is_ours(adw_id) is ours


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_a_moment_survives_its_text(moment):
    """The text is fixed width and gives the same moment back."""
    text = timestamps.to_text(moment) if moment.year >= 2 else None  # the first hours of year 1 have no UTC

    if text is not None:
        assert len(text) == 27
        assert timestamps.parse(text) == moment


def test_texts_sort_as_moments_do():
    """A whole second sorts before its own half, which a text without microseconds gets wrong."""
    whole = datetime(2026, 1, 31, 9, 0, 0, tzinfo=UTC)

    assert timestamps.to_text(whole) < timestamps.to_text(whole + timedelta(milliseconds=500))


def test_a_naive_moment_is_refused_and_a_naive_text_is_utc():
    """Local time never gets in."""
    with pytest.raises(ValueError, match="time zone"):
        timestamps.to_text(datetime(2026, 1, 31))  # noqa: DTZ001 - the naive one is what is refused

    assert timestamps.parse("2026-01-31T09:00:00") == datetime(2026, 1, 31, 9, tzinfo=UTC)


def test_stamped_events_have_keys_that_say_where_they_belong():
    """The key is made of workflow, revision and place, so storing an event twice changes nothing."""
    first, second = events.stamp(
        [Event(event_type="state_changed"), Event(event_type="state_set", execution_id="run-1")],
        adw_id="1a2b3c4d",
        revision=5,
        created_at="2026-01-31T09:00:00.000000Z",
    )

    assert (first.event_id, second.event_id) == ("1a2b3c4d.5.0", "1a2b3c4d.5.1")
    assert (first.execution_id, second.execution_id) == ("1a2b3c4d", "run-1")
    assert {first.adw_id, second.adw_id} == {"1a2b3c4d"}
    assert {first.revision, second.revision} == {5}


def test_an_event_survives_its_json():
    """Empty fields are left out, zeros are not, unknown keys do no harm."""
    event = Event(
        event_type="state_changed",
        adw_id="1a2b3c4d",
        iteration_index=0,
        duration=0.0,
        result=False,
        data={"from": "pending"},
    )

    written = event.to_json()

    assert written["iteration_index"] == 0
    assert written["result"] is False
    assert "parent_event_id" not in written
    assert Event.from_json({**written, "from_the_future": 1}) == event


def test_every_error_has_one_base_and_says_something_by_default():
    """One tree: a caller can catch AdwError, and each class says what it is about."""
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__]
    classes = [value for value in classes if issubclass(value, BaseException)]

    assert all(issubclass(value, errors.AdwError) for value in classes)
    assert all(value.__doc__ for value in classes)
    assert str(errors.PlatformUnsupported()) == errors.PlatformUnsupported.__doc__


def test_an_error_is_also_the_builtin_a_caller_expects():
    """`except ValueError` and `except FileNotFoundError` keep working, and the text says what to do."""
    for error, builtin, words in [
        (errors.InvalidAdwId("x" * 100), ValueError, "is not a workflow id"),
        (
            errors.IllegalTransition("pending", "testing", ["planning"], "why"),
            ValueError,
            "from pending to testing (why)",
        ),
        (errors.IllegalTransition("completed", "testing", []), ValueError, "nothing, it is final"),
        (errors.RetriesExhausted(3, 3), ValueError, "3 of 3 retries"),
        (errors.StateNotFound("state/x"), FileNotFoundError, "no workflow state at state/x"),
        (errors.StateNotFound("3"), FileNotFoundError, "no workflow state at 3; for issue 3 type '#3'; adw list"),
        (errors.StateExists("1a2b3c4d"), FileExistsError, "exists already"),
        (errors.StateCorrupt("p", "torn", "do this"), ValueError, "p is corrupt: torn; do this"),
        (errors.StateCorrupt("p", "torn"), ValueError, "p is corrupt: torn"),
        (errors.StateUnserialisable("x"), TypeError, "x"),
        (errors.StateWriteFailed("p", OSError(28, "No space left on device")), OSError, "No space left"),
        (errors.DurabilityUnknown("p", OSError(5, "Input/output error")), OSError, "could not be synced"),
        (errors.StateConflict("1a2b3c4d", 3, 4), errors.StateError, "at revision 4, not 3"),
        (errors.Fenced("1a2b3c4d", 3, 4), errors.StateError, "the present owner has 4"),
        (errors.Fenced("1a2b3c4d", 3), errors.StateError, "fence 3 is no longer valid"),
        (errors.NewerVersion("9.0", "3.0"), ValueError, "upgrade adw"),
        (errors.MigrationFailed("1.0", "2.0", KeyError("x")), ValueError, "1.0 -> 2.0"),
        (errors.WorkflowBusy("1a2b3c4d", "worker 7@host"), errors.OwnershipError, "worker 7@host"),
        (errors.IssueLocked(7, "1a2b3c4d", "o/r"), errors.OwnershipError, "issue 7 of o/r"),
        (errors.IssueLocked(7, "1a2b3c4d"), errors.OwnershipError, "issue 7 belongs"),
    ]:
        assert isinstance(error, builtin), error
        assert isinstance(error, errors.AdwError), error
        assert words in str(error), error


def test_a_write_error_keeps_its_number():
    """Callers tell a full disk from a broken one by errno."""
    assert errors.StateWriteFailed("p", OSError(28, "No space left on device")).errno == 28
    assert errors.DurabilityUnknown("p", OSError(5, "Input/output error")).errno == 5


@pytest.fixture
def no_factory(monkeypatch):
    monkeypatch.setattr(default_home, "_factory", None)


def test_without_wiring_the_house_says_what_is_missing(no_factory):
    """No silent default: the caller is told what to do."""
    with pytest.raises(errors.UsageError, match="import adws"):
        default_home.get()


def test_parts_are_built_once_and_can_be_replaced_for_a_while(no_factory):
    """The factory is asked at the first use only; `using()` puts other parts in place and takes them away again."""
    built = []
    default_home.provide(lambda: built.append(1) or f"parts {len(built)}")

    assert default_home.get() == "parts 1"
    with default_home.using("others"):
        assert default_home.get() == "others"
    assert default_home.get() == "parts 1"
    assert built == [1]


def test_where_nobody_orders_anything_nobody_waits_for_orders():
    orders = NoOrders()

    assert (orders.current(), orders.wait(1e9)) == (None, None)
