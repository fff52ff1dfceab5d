"""
What an event tells, in a line.

Pure.
"""

from __future__ import annotations

import json

from adws.adw_modules.events import Event
from adws.adw_modules.json_value import JsonValue


def facts_of(event: Event) -> str:
    """Return the facts of an event in few words."""
    facts = [f"{name}={_fact(value)}" for name, value in sorted(event.data.items()) if value not in (None, "")]
    if event.duration is not None:
        facts.append(f"duration={event.duration:.3f}")

    return " ".join(facts)


def _fact(value: JsonValue) -> str:
    """Return one fact: of a classified error what it says, a text with blanks in quotes."""
    if isinstance(value, dict) and "message" in value:
        value = value["message"]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)

    return json.dumps(text, ensure_ascii=False) if isinstance(value, str) and (" " in text or not text) else text
