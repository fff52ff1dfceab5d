"""
What the tests of the engine and its rules share: definitions, documents, and a world in memory that can crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from adws.adw_modules import resume_rules, timestamps, workflow
from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument, WorkflowRef
from adws.adw_modules.document_draft import Draft
from adws.adw_modules.engine.attempt import EngineParts, WorkSession
from adws.adw_modules.engine.gates import check_gates
from adws.adw_modules.engine.judgement import judge
from adws.adw_modules.errors import LeaseLost
from adws.adw_modules.interfaces import Owned
from adws.adw_modules.outcome import Outcome, RunReport
from adws.adw_modules.process_tree import Ending
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.workflow import STATE_OF_PHASE, Gate, PhaseSpec, WorkflowSpec
from adws.testing import START, FakeClock, MemoryOrders, MemoryParts, ScriptedRunner, memory_parts

ADW_ID = "1a2b3c4d"
S = WorkflowState
WELL = RunReport(ok=True, summary="done")
#: An error that is worth another attempt, however often.
BROKEN = ConnectionError("connection reset by peer")
HUMAN = (Gate(kind="human"),)


def phase(name: str, **changes) -> PhaseSpec:
    """A phase that a script plays, under the state its name is known for."""
    state = changes.pop("state", STATE_OF_PHASE.get(name, "building"))
    return PhaseSpec(**{"name": name, "state": state, "runner": "scripted", **changes})


def spec_of(*phases: PhaseSpec | str) -> WorkflowSpec:
    made = tuple(phase(item) if isinstance(item, str) else item for item in phases)
    return WorkflowSpec(name="tried", version="7", phases=made)


def records_of(spec: WorkflowSpec) -> list[PhaseRecord]:
    return [PhaseRecord(name=item.name, state=item.state, max_attempts=item.max_attempts) for item in spec.phases]


def document_of(spec: WorkflowSpec, **fields) -> WorkflowDocument:
    """The first revision of a workflow, as `launch` makes it."""
    text = timestamps.to_text(START)
    return WorkflowDocument(
        **{
            "adw_id": ADW_ID,
            "issue_number": 42,
            "workflow": WorkflowRef(**workflow.freeze(spec)),
            "phases": records_of(spec),
            "created_at": text,
            "updated_at": text,
            **fields,
        }
    )


def draft_of(document: WorkflowDocument, clock: FakeClock | None = None) -> Draft:
    now = (clock or FakeClock()).now
    return Draft(document, WorkflowStateMachine.of(document, now=now), now=now)


def attempt(number: int, status: str = "failed", **fields) -> AttemptRecord:
    return AttemptRecord(**{"number": number, "status": status, "started_at": timestamps.to_text(START), **fields})


def types(draft: Draft) -> list[str]:
    return [event.event_type for event in draft.events]


class World:
    """One workflow in memory, its store, and whoever works on it."""

    def __init__(self, spec: WorkflowSpec, scripts=None, *, parts: MemoryParts | None = None, **fields) -> None:
        self.clock = parts.clock if parts else FakeClock()
        self.parts = parts or memory_parts(clock=self.clock)
        self.spec = spec
        self.runner = ScriptedRunner(scripts)
        self.orders = MemoryOrders()
        self.ended: list[object] = []  #: what `end_process` was given
        self.engine = EngineParts(
            clock=self.clock,
            runners={"scripted": self.runner},
            judge=partial(judge, clock=self.clock),
            gates=partial(check_gates, run=no_command),
            folder_of=Path,
            workplace_of=lambda _document: Path(),
            end_process=self._end_process,
        )
        self._dropped: list[AbstractContextManager[Owned]] = []
        with self.parts.ownership.create(document_of(spec, **fields)):
            pass

    def _end_process(self, process: object) -> Ending:
        self.ended.append(process)
        return Ending(evidence="its process was ended", is_certain=True)

    # --- working -----------------------------------------------------------------------------------------------

    @contextmanager
    def session(self, **changes) -> Iterator[WorkSession]:
        """Own the workflow inside the block."""
        with self.parts.ownership.own(ADW_ID) as owned:
            yield WorkSession(replace(self.engine, **changes), owned, self.orders)

    def attempt(self, **changes) -> Outcome:
        """Make one attempt in a session of its own, as after a restart."""
        with self.session(**changes) as session:
            return session.attempt()

    def crash(self) -> None:
        """Begin an attempt and die in the middle of it: nobody closes anything."""
        assert self.die(), "there was no attempt to begin"

    def die(self) -> bool:
        """Die while owning the workflow, in the middle of an attempt if one could be begun; say whether it could."""
        owning = self.parts.ownership.own(ADW_ID)
        self._dropped.append(owning)  # kept, because a block that is collected would be left in good order
        owned = owning.__enter__()
        # To the document, work that ends like this and a process that is gone are the same: nothing is written.
        dying = ScriptedRunner({item.name: [LeaseLost("its process died")] for item in self.spec.phases})
        session = WorkSession(replace(self.engine, runners={"scripted": dying}), owned, self.orders)
        try:
            session.attempt()
        except LeaseLost:
            has_begun = True
        else:
            has_begun = False
        self.parts.processes.kill(owned.lease.owner)
        self.parts.local_lock.let_go(ADW_ID)

        return has_begun

    def change(self, rule: Callable):
        with self.session() as session:
            return session.change(rule)

    def resume(self, **how):
        with self.session() as session:
            session.settle()
            plan = session.plan_resume(**how)
            session.change(lambda draft: resume_rules.apply_resume(draft, plan, by="someone"))
            return plan

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def document(self) -> WorkflowDocument:
        """What is stored, read afresh."""
        return self.parts.store.load(ADW_ID).document

    @property
    def state(self) -> str:
        return self.document.current_state

    def record(self, name: str) -> PhaseRecord:
        return next(record for record in self.document.phases if record.name == name)

    def events(self, *kinds: str):
        return [event for event in self.parts.store.events_of(ADW_ID) if not kinds or event.event_type in kinds]


def no_command(*_args):
    raise AssertionError("no test of the engine runs a command")
