"""An owner is called dead on proof alone, whatever its record or the machine says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.interfaces import Observation, OwnerRecord, Verdict, judge

RECORD = OwnerRecord(
    token="7f" * 16,
    host="builder",
    machine="machine-a",
    boot_id="boot-1",
    pid_namespace="pid:[1]",
    pid=4711,
    start_ticks=5000,
    role="worker",
)
SEEN = Observation(machine="machine-a", boot_id="boot-1", pid_namespace="pid:[1]", exists=True, start_ticks=5000)


def test_the_process_that_took_the_lease_is_alive():
    assert judge(RECORD, SEEN) is Verdict.ALIVE


@pytest.mark.parametrize(
    "seen",
    [
        replace(SEEN, boot_id="boot-2"),
        replace(SEEN, boot_id="boot-2", exists=None, pid_namespace="pid:[9]"),
        replace(SEEN, exists=False, start_ticks=0),
        replace(SEEN, start_ticks=5001),
        replace(SEEN, is_zombie=True),
    ],
    ids=["other-boot", "other-boot-proves-it-alone", "pid-gone", "pid-reused", "zombie"],
)
def test_an_owner_is_dead_only_on_proof(seen):
    assert judge(RECORD, seen) is Verdict.DEAD


def test_what_cannot_be_read_is_unknown_and_never_dead():
    for record, seen in [
        (None, SEEN),
        (replace(RECORD, machine="machine-b"), replace(SEEN, exists=False)),
        (replace(RECORD, machine=""), replace(SEEN, machine="", exists=False)),
        (replace(RECORD, boot_id=""), replace(SEEN, exists=False)),
        (RECORD, replace(SEEN, boot_id="", exists=False)),
        (RECORD, replace(SEEN, pid_namespace="pid:[2]", exists=False)),
        (replace(RECORD, pid_namespace=""), replace(SEEN, pid_namespace="", exists=False)),
        (RECORD, replace(SEEN, exists=None)),
        (replace(RECORD, start_ticks=0), SEEN),
        (RECORD, replace(SEEN, start_ticks=0)),
    ]:
        assert judge(record, seen) is Verdict.UNKNOWN, record


def test_a_record_survives_its_text():
    assert OwnerRecord.from_text(RECORD.to_text()) == RECORD


def test_a_text_that_is_not_a_record_gives_no_record():
    """A record with a pid that is a text would be looked for, not found, and taken for dead."""
    for text in [
        "",
        "{",
        "null",
        "[1, 2]",
        "{}",
        json.dumps({**json.loads(RECORD.to_text()), "from_the_future": 1}),
        json.dumps({**json.loads(RECORD.to_text()), "pid": "4711"}),
        json.dumps({**json.loads(RECORD.to_text()), "pid": True}),
        json.dumps({**json.loads(RECORD.to_text()), "boot_id": None}),
        "[" * 100_000,
    ]:
        assert OwnerRecord.from_text(text) is None, text


@given(text=st.text())
def test_no_text_makes_the_reader_fail(text):
    assert OwnerRecord.from_text(text) is None


def test_an_owner_is_named_by_role_pid_and_host():
    assert RECORD.describe() == "worker 4711@builder"
