"""
What of an outbox still waits after a revision was confirmed.
"""

from __future__ import annotations

import pytest

from adws.adw_modules.store.serialization import waiting_after


def _entry(revision):
    return {"event_id": f"1a2b3c4d.{revision}.0", "revision": revision}


@pytest.mark.parametrize(
    ("confirmed", "left"),
    [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, []), (9, [])],
    ids=["none", "first", "second", "all", "more"],
)
def test_what_came_with_a_later_revision_waits(confirmed, left):
    outbox = [_entry(1), _entry(2), _entry(3)]

    assert waiting_after(outbox, confirmed) == [_entry(revision) for revision in left]


@pytest.mark.parametrize("revision", ["2", None, [2]], ids=["text", "null", "list"])
def test_an_entry_changed_by_hand_counts_as_the_oldest(revision):
    outbox = [{"event_id": "x", "revision": revision}, _entry(2)]

    assert waiting_after(outbox, 0) == [_entry(2)]
