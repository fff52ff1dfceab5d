"""
The doctor: what to do after a failed attempt that simply trying again may not help.

Pure. A case comes in, a prescription comes out. Who prescribes is asked only about the work itself, never about the
network or the machine, and has a limited number of calls, for each phase and for the whole workflow. What a
prescription does to a document is in `treatment`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.model_choice import another_model, has_model, ladder_of
from adws.adw_modules.outcome import RunReport
from adws.adw_modules.phase_choice import is_exhausted, limit
from adws.adw_modules.resume_rules import definition_of
from adws.adw_modules.retry_decision import first_line

if TYPE_CHECKING:
    from adws.adw_modules.attempt_rules import Trouble
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.error_handler import ErrorFacts
    from adws.adw_modules.interfaces_engine import PhaseContext
    from adws.adw_modules.json_value import JsonObject
    from adws.adw_modules.workflow import PhaseSpec, WorkflowSpec

#: Calls of the doctor, for one phase and for a whole workflow; and how often a workflow is planned again.
MAX_CALLS_PER_PHASE = 2
MAX_CALLS = 10
MAX_REPLANS = 2

RETRY, RETRY_MODEL, REPLAN, SKIP, HUMAN = "retry", "retry_model", "replan", "skip", "human"
#: What a doctor may decide -> what that means.
DECISIONS: Mapping[str, str] = {
    RETRY: "go on as was judged: try again, or give up",
    RETRY_MODEL: "try again with another model",
    REPLAN: "go back to the plan phase, with the reason as a hint",
    SKIP: "give the remaining attempts of this phase up",
    HUMAN: "stop, a person has to look",
}

#: The network, a provider or the machine: nothing that another model or another plan would help against.
NOT_THE_WORK = frozenset(
    {"rate_limited", "quota_window", "overloaded", "server", "network", "busy", "conflict", "database", "killed"}
    | {"disk", "port", "memory", "descriptors"}
)
#: Not tried again by itself, though another model or a smaller plan may do it.
_MAY_BE_HELPED = frozenset({"context", "turns", "refused"})
_GAVE_UP = "RETRIES_DO_NOT_HELP"

_NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{7,40}\b|\d+")
_BLANK = re.compile(r"\s+")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)
_MODEL = re.compile(r"[A-Za-z0-9][\w./:@\[\]-]{0,199}")
#: Characters of a reason that are kept.
MAX_REASON = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A failed attempt, for the doctor to look at."""

    facts: ErrorFacts  #: why it failed
    phase: PhaseSpec
    record: PhaseRecord  #: its newest attempt is the failed one, still open
    document: WorkflowDocument
    context: PhaseContext  #: of that attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Prescription:
    """What the doctor decided."""

    decision: str  #: one of DECISIONS
    reason: str  #: one sentence for people, and for the next plan
    model: str = ""  #: retry_model: the one for the next attempts of the phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Consultation:
    """A prescription, and what it took to get it."""

    prescription: Prescription
    by: str  #: who decided: rules, or the name of a callable or an agent
    problem: str = ""  #: why the doctor's answer was no use, "" when it was
    report: RunReport | None = None  #: of an agent that was asked: what it used

    @property
    def is_news(self) -> bool:
        """Whether there is more to it than that the rules have nothing to add."""
        return self.prescription.decision != RETRY or self.by != "rules"


def no_answer(by: str, problem: BaseException | str) -> Consultation:
    """Return that the doctor was no help: what was judged is done, and the record says why."""
    said = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
    ordered = Prescription(decision=RETRY, reason="the doctor gave no answer that could be used")

    return Consultation(prescription=ordered, by=by, problem=said[:MAX_REASON])


# --- who is asked ----------------------------------------------------------------------------------------------


def may_ask(document: WorkflowDocument, record: PhaseRecord, trouble: Trouble) -> bool:
    """Say whether the doctor is asked about a failed attempt: attempts and calls are left, and it may help."""
    facts = trouble.facts
    if facts is None or trouble.is_parked or facts.klass in NOT_THE_WORK or is_exhausted(record):
        return False
    if len(record.doctor) >= MAX_CALLS_PER_PHASE or document.doctor_calls >= MAX_CALLS:
        return False

    return trouble.retry_at is not None or trouble.terminal_reason == _GAVE_UP or facts.klass in _MAY_BE_HELPED


# --- the doctor that comes with adw ----------------------------------------------------------------------------


def prescribe(
    facts: ErrorFacts, phase: PhaseSpec, record: PhaseRecord, document: WorkflowDocument, *, spare: Sequence[str] = ()
) -> Prescription:
    """
    Return what the rules have against the failure of the newest attempt of *record*; *spare* are models for everybody.

    What does not fit into a model, or was refused by it, goes to another one. A gate that says the same twice speaks
    against the plan, any other failure that comes twice against the model. All else is tried again, or not, as judged.
    """
    other = another_model(phase, record, spare)
    may_replan = _is_plan_of_agent(document, record)
    if facts.klass in _MAY_BE_HELPED:
        # What a model refuses by its policy, it refuses with another plan too.
        return _help(facts, phase, other, may_replan=may_replan and facts.klass != "refused")
    before = failure_before(record)
    if before is None or fingerprint_of(before) != fingerprint(facts.klass, facts.message):
        return Prescription(decision=RETRY, reason="it is worth another try")
    said = f"it failed twice in the same way ({facts.klass}): {first_line(facts.message)}"
    if facts.klass == "gate" and may_replan:
        return Prescription(decision=REPLAN, reason=said)
    if other:
        return Prescription(decision=RETRY_MODEL, reason=said, model=other)

    return Prescription(decision=RETRY, reason=said)


def _help(facts: ErrorFacts, phase: PhaseSpec, other: str, *, may_replan: bool) -> Prescription:
    reason = f"{facts.klass}: {first_line(facts.message)}"
    if other:
        return Prescription(decision=RETRY_MODEL, reason=reason, model=other)
    if may_replan:
        return Prescription(decision=REPLAN, reason=reason)
    if facts.recoverable:
        return Prescription(decision=RETRY, reason=reason)

    return Prescription(decision=HUMAN if phase.is_required else SKIP, reason=reason)


def _is_plan_of_agent(document: WorkflowDocument, record: PhaseRecord) -> bool:
    """Say whether planning again is possible and can change anything: a command makes the same plan again."""
    spec = definition_of(document)
    index = next(place for place, found in enumerate(document.phases) if found.name == record.name)
    plan = way_back(document, spec, index)

    return isinstance(plan, int) and has_model(spec.phases[plan])


def way_back(document: WorkflowDocument, spec: WorkflowSpec, index: int) -> int | str:
    """Return the place of the phase that plans the work of the one at *index*, or why it cannot be gone back to."""
    plan = next((place for place, phase in enumerate(spec.phases[:index]) if phase.state == "planning"), None)
    if plan is None:
        return f"no phase plans what {spec.phases[index].name} does"
    if document.replans >= MAX_REPLANS:
        return f"it was planned again {document.replans} of {MAX_REPLANS} times"
    if document.pr_merged:
        return "its pull request is merged"
    # Counters are kept: a phase that has no attempt left could not be done again.
    spent = next((found.name for found in document.phases[plan:index] if _is_done(found) and is_exhausted(found)), "")

    return f"{spent} has no attempt left to be done again" if spent else plan


def _is_done(record: PhaseRecord) -> bool:
    return record.status == "complete"


# --- failures that are the same --------------------------------------------------------------------------------


def failure_before(record: PhaseRecord) -> AttemptRecord | None:
    """Return the failed attempt before the newest one in the same round; those that were stopped do not count."""
    before = [made for made in record.attempts[:-1] if made.round == record.round and made.status == "failed"]

    return before[-1] if before else None


def fingerprint_of(attempt: AttemptRecord) -> str:
    """Return what the failure of an attempt is recognised by."""
    error = attempt.error or {}

    return fingerprint(str(error.get("klass") or ""), str(error.get("message") or ""))


def fingerprint(klass: str, message: str) -> str:
    """Return what two failures have in common that are the same but for numbers, hashes and line breaks."""
    return f"{klass}:{_BLANK.sub(' ', _NUMBER.sub('#', message.lower())).strip()}"


# --- a case for others -----------------------------------------------------------------------------------------


def case_data(case: Case) -> JsonObject:
    """Return a case as plain JSON, for a function of the user or for an agent."""
    record, document = case.record, case.document

    return {
        "adw_id": document.adw_id,
        "phase": case.phase.name,
        "state": case.phase.state,
        "runner": case.phase.runner,
        "is_required": case.phase.is_required,
        "error": {
            "class": case.facts.klass,
            "category": case.facts.category.value,
            "message": case.facts.message,
            "advice": case.facts.advice,
            "is_recoverable": case.facts.recoverable,
        },
        "attempt": record.attempts[-1].number,
        "attempts_used": record.attempts_used,
        "max_attempts": limit(record),
        "model": record.attempts[-1].model or "",
        "models": list(ladder_of(case.phase)),
        "replans": document.replans,
        "max_replans": MAX_REPLANS,
        "attempts_before": [_attempt_data(made) for made in record.attempts[:-1] if made.round == record.round],
        "decisions": list(DECISIONS),
    }


def _attempt_data(made: AttemptRecord) -> JsonObject:
    error = made.error or {}

    return {
        "number": made.number,
        "status": made.status,
        "model": made.model or "",
        "class": error.get("klass") or "",
        "message": error.get("message") or "",
    }


# --- answers of others -----------------------------------------------------------------------------------------


def read_answer(answer: object) -> Prescription:
    """
    Return the prescription that a callable or an agent answered with; raise ValueError that says what is wrong.

    An object with `decision`, `reason` and, for retry_model, `model`; or such an object as JSON text, also in a fence.
    """
    if isinstance(answer, Prescription):
        answer = {"decision": answer.decision, "reason": answer.reason, "model": answer.model}
    given = _parsed(answer) if isinstance(answer, str) else answer
    if not isinstance(given, Mapping):
        raise ValueError(f"the answer is no JSON object but {type(given).__name__}")  # noqa: TRY004 - about its value
    decision, reason, model = (given.get(name, "") for name in ("decision", "reason", "model"))
    if not isinstance(decision, str) or decision not in DECISIONS:
        raise ValueError(f"its decision is {decision!r}, not one of {', '.join(DECISIONS)}")
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("it gives no reason")
    if decision != RETRY_MODEL:
        return Prescription(decision=decision, reason=reason.strip()[:MAX_REASON])
    # What begins with a dash would be an option of the agent.
    if not isinstance(model, str) or _MODEL.fullmatch(model) is None:
        raise ValueError(f"{model!r} is not the name of a model")

    return Prescription(decision=RETRY_MODEL, reason=reason.strip()[:MAX_REASON], model=model)


def _parsed(text: str) -> object:
    found = _FENCED.findall(text)
    try:
        return json.loads(found[-1] if found else text)
    except ValueError as exc:
        raise ValueError(f"the answer is no JSON: {exc}") from exc
