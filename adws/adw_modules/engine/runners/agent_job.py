"""
One attempt of an agent: what it is about, what is heard while it runs, and what its end means.

What can be told without starting anything; `agent` starts it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import agent_options, agent_sessions, durable_file
from adws.adw_modules.agent import AgentEnd, AgentProfile, AgentReading, Usage
from adws.adw_modules.agent_options import AgentOptions
from adws.adw_modules.agent_sessions import Conversation
from adws.adw_modules.agents import reset_times
from adws.adw_modules.attempt_files import AttemptFiles, list_files, read_tail
from adws.adw_modules.cost_rules import BudgetWatch
from adws.adw_modules.doctor_rules import NOT_THE_WORK
from adws.adw_modules.engine.parties import PERSON_CLASSES
from adws.adw_modules.engine.runners.agent_result import AgentFolder, first_line
from adws.adw_modules.errors import StateError
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.interfaces_engine import PhaseContext
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.process_output import CappedFile
from adws.adw_modules.process_run import ProcessEnd
from adws.adw_modules.prompt_files import Prompt
from adws.adw_modules.prompt_text import Situation
from adws.adw_modules.workflow import PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord

#: Most bytes of a rules file that are read for its hash.
MAX_RULES_BYTES = 1 << 20
#: How attempts end that had no end of their own.
_CUT_OFF = frozenset({"interrupted", "suspended", "parked"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One attempt."""

    profile: AgentProfile
    options: AgentOptions
    phase: PhaseSpec
    context: PhaseContext
    record: PhaseRecord
    files: AttemptFiles
    folder: AgentFolder
    prompt: Prompt
    base: str  #: what the work is compared with, "" without a repository

    @property
    def evidence(self) -> str:
        """What has to be seen after the agent said that it worked."""
        return agent_options.evidence_of(self.phase)

    @property
    def plan_file(self) -> str:
        """Where the plan is, or shall be written, below the working directory."""
        document = self.context.document
        number = f"issue-{document.issue_number}-" if document.issue_number is not None else ""

        return document.plan_file or f"specs/{number}adw-{document.adw_id}-plan.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spoken:
    """What came of one start of the agent."""

    end: ProcessEnd
    reading: AgentReading
    usage: Usage
    failure: FailedRun | None


class Listener:
    """Hears what the agent says while it works: for people, for the record, for the budget, for who waits for it."""

    def __init__(self, job: Job, watch: BudgetWatch, transcript: CappedFile, *, session_id: str) -> None:
        """*transcript* gets what people are shown."""
        self._job = job
        self._watch = watch
        self._transcript = transcript
        self._parser = job.profile.parser()
        self._session_id = session_id
        self._version = ""
        self._is_answered = False

    @property
    def reading(self) -> AgentReading:
        """What was said so far."""
        return self._parser.reading

    def line(self, stream: str, line: str) -> None:
        """Take in a line of one of its outputs."""
        shown = self._parser.line(line) if stream == "stdout" else line
        for part in shown.splitlines():
            self._job.context.say(part)
            self._transcript.add(f"{part}\n")
        reading = self.reading
        self._watch.take(reading)
        if reading.is_answered and not self._is_answered:
            self._is_answered = True
            self._job.context.answered()
        if (reading.session_id, reading.version) != (self._session_id, self._version) and reading.session_id:
            self._session_id, self._version = reading.session_id, reading.version
            self._job.context.record_agent({"session_id": reading.session_id, "version": reading.version})


def failure_of(profile: AgentProfile, reading: AgentReading, end: ProcessEnd, *, now: datetime) -> FailedRun | None:
    """
    Return why the agent failed, as far as its own words and its end tell; None when nothing speaks against it.

    *now* is in the zone of the machine: agents say in its time when a used-up quota is open again.
    """
    if end.ordered:
        return None
    if end.survivors:
        what = f"what it started could not be ended: {', '.join(end.survivors)}"
        return FailedRun(exit_code=end.exit_code, signal=end.signal, text=what, tool=profile.name)
    seen = AgentEnd(exit_code=end.exit_code, signal=end.signal, timed_out=end.timed_out, tail=end.tail)
    failure = profile.failure(reading, seen)
    if failure is None and profile.capabilities.tells_result and not reading.has_result:
        return FailedRun(exit_code=end.exit_code, text="it ended without saying its result", tool=profile.name)

    return failure and reset_times.with_reset(failure, now=now)


def is_lost(spoken: Spoken) -> bool:
    """Say whether the agent did nothing because it does not know the conversation."""
    failure = spoken.failure

    return failure is not None and agent_sessions.is_unknown_session(failure) and not spoken.reading.tokens.total


def refusal_of(spoken: Spoken) -> FailedRun | None:
    """Return the refusal that may be why nothing was done."""
    return spoken.failure if spoken.failure is not None and spoken.failure.subtype == "denied" else None


def situation_of(job: Job, known: Conversation | None, folder: Path) -> Situation:
    """Return what the agent is told about what went before; *folder* is the directory of the workflow."""
    before = agent_sessions.newest_before(job.record)
    error, report = (before.error or {}, before.report or {}) if before else ({}, {})

    return Situation(
        is_resumed=known is not None,
        is_handed_over=known is None and agent_sessions.had_session(job.record),
        attempt=job.context.attempt_number,
        ended=before.status if before else "",
        trouble=str(error.get("message") or "") if before is not None and _is_about_work(before) else "",
        last_words=str(report.get("summary") or ""),
        gate_output=_gate_output(job.phase.name, before, folder) if error.get("klass") == "gate" and before else "",
    )


def _gate_output(phase: str, before: AttemptRecord, folder: Path) -> str:
    """Return the ends of what the gates of an attempt said."""
    files = [file for file in list_files(folder) if (file.phase, file.attempt) == (phase, before.number)]

    return "".join(read_tail(folder, file.name) for file in files if file.kind.startswith("gate-"))


def _is_about_work(before: AttemptRecord) -> bool:
    """Say whether what ended an attempt is something that the agent could do otherwise."""
    klass = str((before.error or {}).get("klass") or "")

    return before.status not in _CUT_OFF and klass not in {*NOT_THE_WORK, *PERSON_CLASSES, "budget"}


def rules_of(profile: AgentProfile, cwd: Path) -> JsonObject:
    """Return the hashes of the files of the repository that tell the agent how to work."""
    found: JsonObject = {}
    for name in profile.rules_files:
        try:
            found[name] = digest(durable_file.read_file(str(cwd / name), max_bytes=MAX_RULES_BYTES)[0])
        except FileNotFoundError:
            continue
        except (StateError, OSError, durable_file.TooLarge) as exc:
            found[name] = f"cannot be read: {first_line(str(exc))}"

    return found


def digest(payload: bytes) -> str:
    """Return the SHA-256 of *payload*."""
    return hashlib.sha256(payload).hexdigest()
