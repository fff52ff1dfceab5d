"""A run that was changed in the database, beside what was known of it."""

from __future__ import annotations

import dataclasses

from adws.adw_modules.queue import store as queue_store
from adws.adw_modules.queue.model import Run, RunState
from adws.adw_modules.workflow.requirements import Requirements

KNOWN = Run(
    run_id=7,
    adw_id="0a1b2c3d",
    kind="start",
    state=RunState.RUNNING,
    priority=3,
    not_before="",
    attempts=2,
    token=5,
    owner="somebody",
    seconds_left=12.5,
    reason="",
    payload={"a": 1},
    asked_by="octocat",
    created_at="2026-01-31T09:00:00.000000Z",
    updated_at="2026-01-31T09:00:01.000000Z",
    started_at="2026-01-31T09:00:02.000000Z",
    demands=Requirements(host="h"),
    labels=frozenset({"provider:x"}),
    losses=1,
    slot="s",
    parent_run_id=4,
)


def test_what_a_row_tells_is_new_and_everything_else_stays():
    new = {
        "state": RunState.FAILED,
        "not_before": "2026-01-31T10:00:00.000000Z",
        "owner": "",
        "seconds_left": 0.0,
        "reason": "it broke",
        "updated_at": "2026-01-31T09:30:00.000000Z",
        "started_at": "2026-01-31T09:00:03.000000Z",
        "finished_at": "2026-01-31T09:30:00.000000Z",
        "losses": 2,
    }

    changed = queue_store.changed(KNOWN, ("failed", *list(new.values())[1:], 0))

    assert changed == dataclasses.replace(KNOWN, **new)
