"""
The text of a revision: what did not change is neither serialised nor searched for secrets again, and never stale.
"""

from __future__ import annotations

import json
import os
import random
import sys

import pytest

from adws.adw_modules import document as document_module
from adws.adw_modules.document import AttemptRecord, Draft, PhaseRecord, WorkflowDocument
from adws.adw_modules.errors import StateUnserialisable
from adws.adw_modules.events import Event
from adws.adw_modules.state_machine import PIPELINE, WorkflowStateMachine
from adws.adw_modules.store.serialization import Serializer
from adws.testing import FakeClock

MOMENT = "2026-01-31T09:00:00.000000Z"


class Watched:
    """A scrubber that counts what it is given, and hides one word."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, text: bytes) -> bytes:
        self.count += len(text)
        return text.replace(b"hunter2", b"[redacted]")


def serializer(scrub=None, **options) -> Serializer:
    return Serializer(clock=FakeClock(), scrub=scrub, **options)


def make_document(attempts: int = 1, **fields) -> WorkflowDocument:
    """Return a document with nine phases and *attempts* attempts at the second, each with the report of a long run."""
    made = [
        AttemptRecord(number=number, started_at=MOMENT, report={"summary": "word " * 40, "exit_code": 0})
        for number in range(1, attempts + 1)
    ]
    phases = [PhaseRecord(name=state.value, state=state.value) for state in PIPELINE]
    phases[1].assign(attempts=made)

    return WorkflowDocument(
        adw_id="1a2b3c4d", issue_number=7, created_at=MOMENT, updated_at=MOMENT, phases=phases, **fields
    )


def next_of(made: Serializer, document: WorkflowDocument, **fields):
    given = {"revision": document.revision + 1, "fence": 1, "events": (), "outbox": document.outbox, **fields}

    return made.next_revision(document, **given)


def change(draft: Draft, rng: random.Random) -> None:
    """Do one of the things that a step does to a draft."""
    index = rng.randrange(len(draft.document.phases))
    record = draft.phase(index)
    kind = rng.randrange(9)
    if kind == 0:
        number = len(record.attempts) + 1
        draft.change_phase(index, attempts=[*record.attempts, AttemptRecord(number=number, started_at=draft.text)])
    elif kind == 1 and record.attempts:
        draft.end_attempt(index, "failed", error={"message": f'line {rng.random()}\nand "more"', "deep": [{"a": []}]})
    elif kind == 2 and record.attempts:
        draft.mark_attempt(index, commit=f"{rng.random()}")
    elif kind == 3:
        draft.change_phase(index, status=rng.choice(["queued", "running", "failed"]), waits_for={"forge": 1})
    elif kind == 4:
        draft.document.resources = [
            *draft.document.resources,
            document_module.Resource(key=f"branch:{rng.random()}", kind="branch", undo={"sha": "ü"}),
        ]
    elif kind == 5:
        move = {"from": "pending", "to": "planning", "timestamp": draft.text, "metadata": {"n": rng.random()}}
        draft.document.add_history([move], keep=20)
    elif kind == 6:
        draft.document.issue = document_module.FrozenIssue(title=f"Title {rng.random()}", labels=["adw"])
    elif kind == 7:
        draft.document.rollback = document_module.RollbackRecord(steps=[{"n": rng.random()}])
    else:
        draft.document.warnings = [*draft.document.warnings, f"{rng.random()}"]
    draft.add_event("state_set", index, data={"n": rng.random()})


@pytest.mark.parametrize("indent", [1, None], ids=["indented", "compact"])
@pytest.mark.parametrize(
    "extra", [{}, {"team": {"name": "core", "size": [1, None]}, "lead": None}], ids=["known", "unknown keys"]
)
def test_the_text_is_that_of_the_whole_document_after_any_changes(extra, indent):
    rng = random.Random(os.environ["ADW_TEST_SEED"])
    made, clock = serializer(Watched(), is_indented=indent is not None), FakeClock()
    document = make_document(3, **extra)
    machine = WorkflowStateMachine.of(document, now=clock.now)
    if extra:
        attempts = [
            AttemptRecord.model_validate({**vars(attempt), "seen": None}) for attempt in document.phases[1].attempts
        ]
        document.phases[1].attempts = attempts
        document.phases[2] = PhaseRecord(name="x", state="building", own={"a": 1}, left=None, attempts=attempts)
        document.cost = document_module.Cost(budget=None)
    for _ in range(200):
        draft = Draft(document, machine, now=clock.now)
        for _ in range(rng.randrange(3)):
            change(draft, rng)
        outbox = document.outbox[rng.randrange(2) * 3 :]
        after = next_of(made, draft.document, events=draft.events, outbox=outbox)

        if indent is not None:
            assert after.body == after.document.to_bytes()
        assert document_module.parse(json.loads(after.body)) == after.document
        assert json.loads(after.body).get("lead", "") == extra.get("lead", "")
        # Now and then as another process would go on.
        document = document_module.parse(json.loads(after.body)) if rng.random() < 0.1 else after.document


def test_a_row_leaves_out_fields_that_are_null():
    after = next_of(serializer(is_indented=False), make_document(2))

    known = json.loads(after.body)

    assert "pr_number" not in known
    assert "result" not in known["phases"][0]
    assert document_module.parse(known) == after.document


def test_a_part_that_was_changed_in_place_is_written_as_it_is():
    made = serializer()
    document = next_of(made, make_document(2)).document
    document.phases[1].attempts[0].status = "failed"
    document.phases[0].assign(status="running")

    after = next_of(made, document)

    assert after.body == after.document.to_bytes()


def test_a_secret_in_a_part_that_another_store_wrote_is_found():
    """
    A text is remembered for the store that searched it, not for all.
    """
    document = make_document(issue={"title": "hunter2"})
    document = next_of(serializer(), document).document

    after = next_of(serializer(Watched()), document)

    assert b"hunter2" not in after.body
    assert after.document.issue.title == "[redacted]"


@pytest.mark.parametrize("max_outbox", [None, 0], ids=["in the document", "beside it"])
def test_a_secret_in_an_event_is_hidden_and_the_document_goes_on(max_outbox):
    made = serializer(Watched(), max_outbox=max_outbox)
    document = make_document(2)
    event = Event(event_type="state_set", data={"old": "hunter2"})

    after = next_of(made, document, events=[event])

    assert after.event_rows[0]["data"] == '{"old": "[redacted]"}'
    assert b"hunter2" not in after.body
    again = next_of(made, after.document)
    assert again.body == again.document.to_bytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_json_is_refused_wherever_it_stands(value):
    made = serializer()
    document = next_of(made, make_document(2)).document
    record = document.phases[1]
    changed = record.changed(attempts=[*record.attempts, AttemptRecord(number=3, started_at="", report={"n": value})])
    document.phases[1] = changed

    with pytest.raises(StateUnserialisable, match="is not JSON"):
        next_of(made, document)


def calls_of(action) -> int:
    """Return how many functions *action* calls, those of C included."""
    count = 0

    def note(_frame, event, _argument) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def cost_of_a_step(attempts: int) -> tuple[int, int]:
    """Return the bytes that are searched for secrets, and the calls, of a step with *attempts* attempts behind it."""
    scrub = Watched()
    made = serializer(scrub, max_outbox=0)
    document = next_of(made, make_document(attempts)).document
    record = document.phases[1]
    more = AttemptRecord(number=attempts + 1, started_at=MOMENT)
    changed = document.changed(phases=[document.phases[0], record.changed(attempts=[*record.attempts, more])])
    scrub.count = 0

    return calls_of(lambda: next_of(made, changed)), scrub.count


def test_a_step_costs_the_same_after_10_attempts_and_after_200():
    few, many = cost_of_a_step(10), cost_of_a_step(200)

    assert many[1] - few[1] <= 2, "a number has one digit more"
    # For each attempt that did not change only its text is looked up.
    assert many[0] - few[0] <= 190 * 2
    assert many[1] < 4_000
