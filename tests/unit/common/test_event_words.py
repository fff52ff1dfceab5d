"""An event in a line: its facts, short and readable."""

from __future__ import annotations

from adws.adw_modules.events import Event, facts_of


def test_facts_come_by_name_and_what_is_empty_is_left_out():
    event = Event(event_type="x", data={"b": 1, "a": "one word", "c": None, "d": "", "e": [1, "ü"]}, duration=1.5)

    assert facts_of(event) == 'a="one word" b=1 e=[1, "ü"] duration=1.500'


def test_of_an_error_its_message_is_told():
    event = Event(
        event_type="x", data={"error": {"message": "it broke", "category": "fatal"}, "empty": {"message": ""}}
    )

    assert facts_of(event) == 'empty="" error="it broke"'


def test_an_event_without_facts_says_nothing():
    assert facts_of(Event(event_type="x")) == ""
