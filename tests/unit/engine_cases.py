"""
What the tests of the engine and its rules share: definitions, documents, and a world that can crash.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

from adws.adw_modules import timestamps
from adws.adw_modules.document import AttemptRecord, Draft, PhaseRecord, WorkflowDocument, WorkflowRef
from adws.adw_modules.engine import resume
from adws.adw_modules.engine.attempt import WorkSession
from adws.adw_modules.engine.gates import Gates
from adws.adw_modules.engine.git_guard import Guard
from adws.adw_modules.errors import FailedRun, LeaseLost, RunFailed
from adws.adw_modules.phase import Outcome, RunReport
from adws.adw_modules.process.run import ProcessEnd
from adws.adw_modules.process.tree import ProcessEnding
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.state_machine import WorkflowState, WorkflowStateMachine
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import STATE_OF_PHASE, Gate, PhaseSpec, WorkflowSpec
from adws.app import Home
from adws.testing import START, FakeClock, MemoryOrders, ScriptedRunner
from tests.homes import ABANDONED, lab_home

ADW_ID = "1a2b3c4d"
S = WorkflowState
WELL = RunReport(ok=True, summary="done")
#: An error that is worth another attempt, however often.
BROKEN = RunFailed(FailedRun(exit_code=1, text="connection reset by peer"), "connection reset by peer")
HUMAN = (Gate(kind="human"),)


#: A gate that passes, or is replaced by what a test says.
GATED = (Gate(kind="command", command=("true",)),)


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
            "workflow": WorkflowRef(**workflow_model.freeze(spec)),
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


#: What tests replace of a home by the name on the left: a method, or a value, of one of its parts.
HOOKS = {
    "prepare": ("workspace", "prepare"),
    "around": ("workspace", "around"),
    "conclude": ("workspace", "conclude"),
    "ledger": ("workspace", "ledger"),
    "release": ("workspace", "release"),
    "workplace_of": ("workspace", "workplace_of"),
    "gates": ("gates", "check"),
    "clean_up": ("commands", "clean_up"),
    "phase_over": ("past_checkpoints", "forget"),
    "report": ("status_comment", "update"),
    "model_for": ("agent_runner", "model_for"),
    "harvest": ("agent_runner", "harvest"),
    "agent_begun": ("agent_session_recorder", "begin"),
    "agent_ended": ("agent_session_recorder", "end"),
    "may_begin": ("service_guard", "may_begin"),
    "answered": ("service_guard", "answered"),
    "reset_breakers": ("service_guard", "reset_breakers"),
    "settle_parties": ("service_guard", "settle"),
    "let_go": ("service_guard", "let_go"),
    "parties_of": ("service_guard", "parties_of"),
    "services_of": ("service_guard", "services_of"),
    "has_closed": ("service_guard", "has_closed"),
    "max_cost_usd": ("settings", "quota_max_cost"),
}


def engine_home(
    clock: FakeClock, runner: ScriptedRunner, end_process: Callable[[object], ProcessEnding]
) -> SimpleNamespace:
    """What a session reads of a home, where a script plays the phases and nothing outside is touched."""
    return SimpleNamespace(
        clock=clock,
        redactor=Redactor(),
        settings=SimpleNamespace(quota_max_cost=None),
        folder_of=Path,
        host="here",
        log_of=nullcontext,
        end_process=end_process,
        say=nothing,
        tell=nothing,
        phase_runners={"scripted": runner},
        advisor=None,
        commands=SimpleNamespace(clean_up=nothing),
        gates=Gates(SimpleNamespace(run_beside=well_ended), Guard(None)),
        past_checkpoints=SimpleNamespace(forget=nothing),
        status_comment=SimpleNamespace(update=nothing),
        agent_runner=SimpleNamespace(model_for=lambda *_: "", harvest=nothing),
        agent_session_recorder=SimpleNamespace(begin=nothing, end=nothing),
        service_guard=SimpleNamespace(
            may_begin=nothing,
            answered=nothing,
            reset_breakers=nothing,
            settle=lambda *_: (),
            let_go=nothing,
            parties_of=lambda _phase: (),
            services_of=lambda _phase, _facts: {},
            has_closed=lambda _waits_for: False,
        ),
        service_waits=SimpleNamespace(wake=lambda: ()),
        workspace=SimpleNamespace(
            prepare=nothing,
            around=lambda _document: nullcontext({}),
            conclude=lambda _session, _phase, _context, report: report,
            discard=nothing,
            sync=nothing,
            ledger=nothing,
            release=nothing,
            workplace_of=lambda _document: Path(),
        ),
    )


def home_with(home: SimpleNamespace, **changes) -> SimpleNamespace:
    """Return a copy of *home* with other parts, or with one thing of a part replaced (`HOOKS`)."""
    made = copy.copy(home)
    for name, value in changes.items():
        part, what = HOOKS.get(name, ("", name))
        if part:
            setattr(made, part, copy.copy(getattr(made, part)))
        setattr(getattr(made, part) if part else made, what, value)

    return made


def nothing(*_args) -> None:
    """Do nothing."""


class World:
    """One workflow in a home of its own, and everybody who works on it."""

    def __init__(self, spec: WorkflowSpec, scripts=None, *, parts: Home | None = None, **fields) -> None:
        self.clock = parts.clock if parts else FakeClock()
        self.parts = parts or lab_home(clock=self.clock)
        self.spec = spec
        self.runner = ScriptedRunner(scripts)
        self.orders = MemoryOrders()
        self.ended: list[object] = []  #: what `end_process` was given
        self.engine = engine_home(self.clock, self.runner, self._end_process)

        with self.parts.ownership.create(document_of(spec, **fields)):
            pass

    def _end_process(self, process: object) -> ProcessEnding:
        self.ended.append(process)
        return ProcessEnding(evidence="its process was ended", is_certain=True)

    # --- working -----------------------------------------------------------------------------------------------

    @contextmanager
    def session(self, **changes) -> Iterator[WorkSession]:
        """Own the workflow inside the block."""
        with self.parts.ownership.own(ADW_ID) as owned:
            yield WorkSession(home_with(self.engine, **changes), owned, self.orders)

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
        ABANDONED.append(owning)  # kept, because a block that is collected would be left in good order
        owned = owning.__enter__()
        # To the document, work that ends like this and a process that is gone are the same: nothing is written.
        dying = ScriptedRunner({item.name: [LeaseLost("its process died")] for item in self.spec.phases})
        session = WorkSession(home_with(self.engine, phase_runners={"scripted": dying}), owned, self.orders)
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
            session.change(lambda draft: resume.apply_resume(draft, plan, by="someone"))
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
        return [event for event in self.parts.events.of_workflow(ADW_ID) if not kinds or event.event_type in kinds]


def well_ended(*_args) -> ProcessEnd:
    """The end of a gate's command: no test of the engine runs one."""
    return ProcessEnd(exit_code=0)
