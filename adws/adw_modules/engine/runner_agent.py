"""
Run a phase as a conversation with a coding agent: one driver for all agents.

An agent's own report is not enough: success needs its final event, no error, and the phase's outcome, seen from
outside. The conversation's id is stored before the agent starts, if it can be chosen, so that a crash loses nothing; a
conversation that the agent does not know any more is replaced by a new one, once, within the same attempt.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import costs, durable_file
from adws.adw_modules.agent import AgentProfile, AgentReading, AgentTask, Usage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents import prices, prompts
from adws.adw_modules.agents import sessions as agents_sessions
from adws.adw_modules.agents.preflight import variables_of
from adws.adw_modules.agents.prompts import Prompt, PromptFacts
from adws.adw_modules.attempt_files import AttemptFiles, list_files, read_tail
from adws.adw_modules.clock import uuid_of
from adws.adw_modules.costs import Allowance, BudgetWatch
from adws.adw_modules.durable_file import TooLarge
from adws.adw_modules.engine.advisor import NOT_THE_WORK
from adws.adw_modules.engine.gates import VERDICT_KEYS
from adws.adw_modules.engine.runner_command import (
    MAX_RESULT_BYTES,
    bad_result,
    clean_result,
    environment,
    parse_result,
    read_result,
    report_of,
    task_variables,
)
from adws.adw_modules.engine.service_guard import PERSON_CLASSES
from adws.adw_modules.errors import FailedRun, RunFailed, StateError, UnsafePath, UsageError
from adws.adw_modules.identifiers import OWN_SECRETS, JsonObject
from adws.adw_modules.phase import (
    Harvest,
    Order,
    Orders,
    PhaseContext,
    RunReport,
    Suspended,
)
from adws.adw_modules.process.output import CappedFile
from adws.adw_modules.process.run import MAX_OUTPUT_BYTES, CommandLine, OnLine, ProcessEnd, run_process
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import AGENT, AGENTS, AgentOptions, PhaseSpec, Timeouts

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, PhaseRecord, WorkflowDocument
    from adws.adw_modules.steps.tools import CallContext
    from adws.app import Home


# The result of an agent: a file in a directory of its own, or an object at the end of its last answer.
#
# It fails closed: a required result that does not say whether the phase succeeded is treated as missing.


#: Longest line of a summary.
MAX_LINE = 200
#: Name of the result file, where the agent writes it and where it is kept.
RESULT = "result.json"

_BLOCK = re.compile(r"^```json[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def make_folder(files: AttemptFiles) -> Path:
    """Return the attempt's directory for the agent, apart from adw's files, after removing an old result from it."""
    folder = files.path("agent")
    durable_file.make_directory(str(folder))
    if folder.is_symlink() or not folder.is_dir():
        raise UnsafePath(f"{folder} is not a directory of its own: move it away, adw makes it again")
    (folder / RESULT).unlink(missing_ok=True)

    return folder


def keep_result(folder: Path, files: AttemptFiles) -> None:
    """Move the result, if there is one, from *folder* to the files of the attempt; raise RunFailed."""
    try:
        payload = durable_file.read_file(str(folder / RESULT), max_bytes=MAX_RESULT_BYTES)[0]
    except FileNotFoundError:
        return
    except (TooLarge, UnsafePath, OSError) as exc:
        raise bad_result(str(exc)) from exc
    finally:
        with contextlib.suppress(OSError):  # nobody reads it any more, and it may contain secrets
            (folder / RESULT).unlink()

    files.write(RESULT, payload)


def answered_result(reading: AgentReading) -> JsonObject:
    """Return the object at the end of the agent's last answer, or {}; raise RunFailed."""
    if reading.structured is not None:
        return reading.structured
    blocks = _BLOCK.findall(reading.text)

    return parse_result(blocks[-1].encode()) if blocks else {}


def verdict_problem(result: JsonObject) -> FailedRun | None:
    """Return what is wrong with a result that must state success; None if it does, or asks for rework."""
    if result.get("rework") is True:
        return None
    said = [result[key] for key in VERDICT_KEYS if key in result]
    if not result:
        return FailedRun(subtype="no_effect", text="it gave back no result, though the phase asks for one")
    if len(said) != 1 or not isinstance(said[0], bool):
        keys = " or ".join(VERDICT_KEYS)
        return FailedRun(subtype="bad_output", text=f"its result does not say {keys} with true or false")
    if said[0]:
        return None
    summary = result.get("summary")

    return FailedRun(subtype="gate", text=f"it says itself that it did not succeed: {summary or 'it does not say why'}")


def first_line(text: str) -> str:
    """Return the first non-empty line of *text*, short enough for a summary."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")

    return first if len(first) <= MAX_LINE else f"{first[: MAX_LINE - 3]}..."


# One attempt of an agent: its input, its output while it runs, and the meaning of its end.
#
# Everything that can be decided without starting a process; `run_agent` starts it.


#: Most bytes of a rules file that are hashed.
MAX_RULES_BYTES = 1 << 20
#: Most bytes of each output of a gate that are read for a prompt.
MAX_GATE_BYTES = 256 * 1024
_GATE_FILE = re.compile(r"gate-([0-9]+)\.")
#: Statuses of attempts that did not end by themselves.
_CUT_OFF = frozenset({"interrupted", "suspended", "parked"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One attempt of an agent."""

    profile: AgentProfile
    options: AgentOptions
    phase: PhaseSpec
    context: PhaseContext
    record: PhaseRecord
    files: AttemptFiles
    folder: Path  #: the directory that the agent may write to
    prompt: Prompt
    base: str  #: the commit that the work is compared with, "" without a repository

    @property
    def evidence(self) -> str:
        """The evidence needed after the agent reported success."""
        return workflow_model.evidence_of(self.phase)

    @property
    def plan_file(self) -> str:
        """Path of the existing or future plan, below the working directory."""
        document = self.context.document
        number = f"issue-{document.issue_number}-" if document.issue_number is not None else ""

        return document.plan_file or f"specs/{number}adw-{document.adw_id}-plan.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTurn:
    """The result of one start of the agent."""

    end: ProcessEnd
    reading: AgentReading
    usage: Usage
    failure: FailedRun | None


class OutputListener:
    """Processes the agent's output while it works: for people, the record, the budget and the breakers."""

    def __init__(self, job: Job, watch: BudgetWatch, transcript: CappedFile, *, session_id: str) -> None:
        """*transcript* gets the text shown to people."""
        self._job = job
        self._watch = watch
        self._transcript = transcript
        self._parser = job.profile.parser()
        self._session_id = session_id
        self._version = ""
        self._is_answered = False

    @property
    def reading(self) -> AgentReading:
        """The parsed output so far."""
        return self._parser.reading

    def line(self, stream: str, line: str) -> None:
        """Process a line of stdout or stderr."""
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
    Return why the agent failed, judging by its output and its exit, or None without a sign of failure.

    *now* is in the machine's time zone, in which agents state when a used-up quota is available again.
    """
    if end.ordered:
        return None
    if end.exceeded:
        what = f"it was killed: {end.exceeded}"
        return FailedRun(signal=end.signal, subtype="killed", text=what, tool=profile.name)
    if end.survivors:
        what = f"what it started could not be ended: {', '.join(end.survivors)}"
        return FailedRun(exit_code=end.exit_code, signal=end.signal, text=what, tool=profile.name)
    failure = profile.failure(reading, end)
    if failure is None and profile.capabilities.tells_result and not reading.has_result:
        return FailedRun(exit_code=end.exit_code, text="it ended without saying its result", tool=profile.name)

    return failure and replace(prices.with_reset(failure, now=now), box=end.box)


def _gate_output(phase: str, attempt: int, folder: Path) -> str:
    """Return the output of the last gate that was run in an attempt: the one that did not pass."""
    files = [
        (int(match[1]), file)
        for file in list_files(folder)
        if (file.phase, file.attempt) == (phase, attempt) and (match := _GATE_FILE.match(file.kind))
    ]
    last = max((number for number, _ in files), default=0)
    shown = sorted((file.kind, file.name) for number, file in files if number == last)

    return "".join(read_tail(folder, name, max_bytes=MAX_GATE_BYTES) for _, name in reversed(shown))


def _is_about_work(before: AttemptRecord) -> bool:
    """Say whether the agent could avoid what ended an attempt."""
    klass = str((before.error or {}).get("klass") or "")

    return before.status not in _CUT_OFF and klass not in {*NOT_THE_WORK, *PERSON_CLASSES, "budget"}


def rules_of(profile: AgentProfile, cwd: Path) -> JsonObject:
    """Return the hashes of the repository's files with instructions for the agent."""
    result: JsonObject = {}
    for name in profile.rules_files:
        try:
            result[name] = digest(durable_file.read_file(str(cwd / name), max_bytes=MAX_RULES_BYTES)[0])
        except FileNotFoundError:
            continue
        except (StateError, OSError, durable_file.TooLarge) as exc:
            result[name] = f"cannot be read: {first_line(str(exc))}"

    return result


def digest(payload: bytes) -> str:
    """Return the SHA-256 of *payload*."""
    return hashlib.sha256(payload).hexdigest()


# An agent that has used up its budget is stopped as by an order.
#
# Orders of people take precedence. Checking is cheap: the sum is recomputed only after new output of the agent.


#: The kind of this order; a runner turns it into a failure, not a suspension.
BUDGET = "budget"


class BudgetOrders:
    """The `Orders` of an attempt, plus one when its budget is used up."""

    def __init__(self, orders: Orders, watch: BudgetWatch) -> None:
        self._orders = orders
        self._watch = watch

    def current(self) -> Order | None:
        """Return the order to obey, or None while the work may continue."""
        return self._orders.current() or self._budget()

    def wait(self, seconds: float) -> Order | None:
        """Wait at most *seconds* for an order; a used-up budget returns at once."""
        return self.current() or self._orders.wait(seconds) or self._budget()

    def _budget(self) -> Order | None:
        passed = self._watch.passed

        return Order(kind=BUDGET, reason=passed) if passed else None


#: git's configuration in the environment of every agent: no password prompts, no stored passwords, and synced writes.
GIT_VARIABLES: Mapping[str, str] = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsync",
    "GIT_CONFIG_VALUE_0": "all",
    "GIT_CONFIG_KEY_1": "credential.helper",
    "GIT_CONFIG_VALUE_1": "",
}


def run_agent(
    home: Home,
    profile: AgentProfile,
    task: AgentTask,
    phase: PhaseSpec,
    context: PhaseContext | CallContext,
    *,
    watch: BudgetWatch,
    env: Mapping[str, str],
    timeouts: Timeouts,
    on_line: OnLine,
    saw_result: Callable[[], bool],
    files: Sequence[Path] = (),
    outputs: AttemptFiles | None = None,
) -> ProcessEnd:
    """Run an agent's program on *task* in the sandbox of *phase*; it may read *files*, *outputs* gets its output."""
    called = home.sandboxes.task_inside(task, profile, phase.sandbox)
    command = CommandLine(
        argv=(home.agent_preflight.program(profile), *profile.argv(called)),
        cwd=task.cwd,
        env={**env, **profile.settings, **GIT_VARIABLES},
        timeouts=timeouts,
        stdout_path=outputs.stdout if outputs is not None else None,
        stderr_path=outputs.stderr if outputs is not None else None,
        max_output_bytes=MAX_OUTPUT_BYTES,
        grace_seconds=home.settings.grace_seconds,
        stdin_path=task.prompt_file if profile.capabilities.reads_stdin else None,
    )
    with home.sandboxes.boxed(
        command,
        context.document,
        say=context.say,
        denied=context.denied,
        own=phase.sandbox,
        agent=profile,
        may_write=task.permissions != "read",
        egress=phase.egress,
        files=[*files, task.prompt_file],
        folders=[task.folder],
    ) as boxed:
        return run_process(
            boxed,
            clock=home.clock,
            processes=home.processes,
            orders=BudgetOrders(context.orders, watch),
            record=context.record_process,
            redactor=home.redactor,
            on_line=on_line,
            saw_result=saw_result,
        )


_NO_GOAL = (
    "nobody said what the goal is: the issue had no text when the workflow started. Write it in the issue, which adw"
    " retry reads again, or say what to do with adw resume"
)


class AgentRunner:
    """Runs phases with agents; implements `Runner` for every agent under its own name."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cost_of = home.cost_of  # now: unreadable prices are refused before anything runs

    # --- before ------------------------------------------------------------------------------------------------

    def profile(self, runner: str) -> AgentProfile:
        """Return the agent of the runner called *runner*; raise ConfigError."""
        return agents_base.profile(self._home.settings.agent_name if runner == AGENT else runner)

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, or ""; starts nothing."""
        kept = sorted(OWN_SECRETS.intersection(phase.env))
        if kept:
            return f"phase {phase.name} asks for {', '.join(kept)}, which adw keeps to itself: take it out of env"
        wrong = "; ".join(workflow_model.problems_of(phase))
        if wrong:
            return f"phase {phase.name}: {wrong}"
        profile = self.profile(phase.runner)
        if "max_turns" in phase.options and not profile.capabilities.limits_turns:
            return f"phase {phase.name}: {profile.name} cannot limit its turns: take max_turns out"

        return self._home.prompts.problem(phase.prompt)

    def why_idle(self, phase: PhaseSpec) -> str:
        """Return why *phase* cannot be started on this machine, or "" if it can or needs no agent."""
        if phase.runner not in (AGENT, *AGENTS):
            return ""

        return self._home.agent_preflight.missing(self.profile(phase.runner)) or self.check(phase)

    def model_for(self, document: WorkflowDocument, phase: PhaseSpec, record: PhaseRecord) -> str:
        """Return the model of the attempt that is about to begin, "" for the agent's own choice or without an agent."""
        settings = self._home.settings

        return prices.model_for(
            document, phase, record, usual=(settings.agent_model or {}).get("", ""), sets=prices.model_sets(settings)
        )

    def allowance(self, document: WorkflowDocument, attempt_usd: float | None) -> Allowance | None:
        """Return the cost limit of an attempt, given that of its phase, or None for no limit."""
        return costs.allowance(
            document,
            max_cost_usd=self._home.settings.quota_max_cost,
            attempt_usd=attempt_usd,
            rest_of_day_usd=self._home.quotas.rest_of_day(),
        )

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Let the agent work on *phase* once; visible evidence decides whether it succeeded."""
        problem = self.check(phase)
        if problem:
            raise RunFailed(FailedRun(subtype="config", text=problem), problem)
        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        files.discard(RESULT)
        self._home.commands.set_up(phase, context)
        record = next(one for one in context.document.phases if one.name == context.phase)
        job = Job(
            profile=self.profile(phase.runner),
            options=AgentOptions.model_validate(dict(phase.options)),
            phase=phase,
            context=context,
            record=record,
            files=files,
            folder=make_folder(files),
            prompt=self._home.prompts.read(phase.prompt),
            base=agents_sessions.base_of(record, default=context.base),
        )
        known = ""
        if job.profile.capabilities.resumes and job.options.session != "fresh":
            known = agents_sessions.session_for(record, agent=job.profile.name)
        turn = self._start_agent(job, known)
        failure = turn.failure
        is_lost = failure is not None and agents_sessions.is_unknown_session(failure)
        if known and is_lost and not turn.reading.tokens.total:
            context.say(f"{job.profile.name} does not know its conversation any more: a new one takes over")
            context.record_agent({"lost_session": known})
            turn = self._start_agent(job, "")

        try:
            return self._report(job, turn)
        finally:
            # No result stays as the agent wrote it, even if the agent failed or was stopped.
            with contextlib.suppress(RunFailed):
                keep_result(job.folder, job.files)
            clean_result(job.files, redactor=self._home.redactor)

    # --- one start ---------------------------------------------------------------------------------------------

    def _start_agent(self, job: Job, known: str) -> AgentTurn:
        """Start the agent in the conversation *known*, or in a new one for "", and return the result."""
        prompt_file = self._write_prompt(job, known)
        before = costs.totals_before(job.context.document, known)
        allowed = self.allowance(job.context.document, job.options.budget_usd)
        able, settings = job.profile.capabilities, self._home.settings
        budget = costs.budget_for_agent(allowed, settings.agent_billing) if able.limits_budget else None
        if budget is not None and known and able.totals_are_of_session and not before.counts_calls:
            # Its budget counts from the start of the conversation, unless it counts the cost of each call anew.
            budget += before.cost_usd
        fresh = uuid_of(self._home.clock.token()) if able.chooses_session else ""
        task = AgentTask(
            prompt_file=prompt_file,
            cwd=job.context.cwd,
            folder=job.folder,
            model=job.context.model,
            session_id=known or fresh,
            is_resumed=bool(known),
            max_turns=job.options.max_turns,
            budget_usd=budget,
            permissions=job.options.permissions or settings.agent_permissions,
            arguments=job.options.arguments,
        )
        watch = BudgetWatch(
            allowed,
            job.profile,
            before,
            cost_of=self._cost_of,
            model=task.model,
            billing=settings.agent_billing,
        )
        job.context.record_agent(
            {
                "name": job.profile.name,
                "provider": job.profile.provider,
                "session_id": task.session_id,
                "is_resumed": task.is_resumed,
                "model": task.model,
                "permissions": task.permissions,
                "base": job.base,
                "prompt": {
                    "name": job.prompt.name,
                    "source": job.prompt.source,
                    "template_sha256": digest(job.prompt.text.encode()),
                    "sha256": digest(prompt_file.read_bytes()),
                    "file": job.files.relative(prompt_file),
                },
                "rules": rules_of(job.profile, task.cwd),
            }
        )
        transcript = CappedFile(job.files.path("transcript.log"), max_bytes=MAX_OUTPUT_BYTES)
        with contextlib.closing(transcript):
            listener = OutputListener(job, watch, transcript, session_id=task.session_id)
            home, context = self._home, job.context
            names = (*variables_of(job.profile, home.env), *(settings.agent_env or ()), *job.phase.env)
            told = task_variables(context, job.files, redactor=home.redactor)
            end = run_agent(
                home,
                job.profile,
                task,
                job.phase,
                context,
                watch=watch,
                env={**environment(home.env, names, context), **told, "ADW_RESULT_FILE": str(job.folder / RESULT)},
                timeouts=job.phase.timeouts,
                on_line=listener.line,
                saw_result=lambda: listener.reading.has_result,
                files=[Path(told[name]) for name in ("ADW_ISSUE_FILE", "ADW_HINTS_FILE")],
                outputs=job.files,
            )
        reading = listener.reading
        if watch.blind:
            job.context.say(watch.blind)

        failure = failure_of(job.profile, reading, end, now=self._home.clock.now().astimezone())

        return AgentTurn(end=end, reading=reading, usage=watch.usage, failure=failure)

    # --- the prompt --------------------------------------------------------------------------------------------

    def _write_prompt(self, job: Job, known: str) -> Path:
        document, issue = job.context.document, job.context.document.issue
        folder = self._home.folder_of(document.adw_id)
        before = agents_sessions.newest_before(job.record)
        error, report = (before.error or {}, before.report or {}) if before else ({}, {})
        if before is not None and before.round != job.record.round and job.phase.on_rework:
            error = {}  # sent back for this failure, the work has changed since
        sent_back = job.record.sent_back or {}
        by, number = str(sent_back.get("phase") or ""), sent_back.get("attempt")
        is_gate = before is not None and error.get("klass") == "gate"
        facts = PromptFacts(
            mark=self._home.clock.token(),
            adw_id=document.adw_id,
            phase=job.phase.name,
            title=issue.title if issue else "",
            body=issue.body if issue else "",
            author=(issue.author or "") if issue else "",
            issue_number=document.issue_number,
            repository=document.repository,
            branch=document.branch_name or "",
            base=job.base,
            plan_file=job.plan_file,
            result_file=str(job.folder / RESULT),
            wants_result=job.evidence == "result",
            results=job.context.results,
            hints=job.context.hints,
            is_resumed=bool(known),
            is_handed_over=not known and agents_sessions.had_session(job.record),
            attempt=job.context.attempt_number,
            ended=before.status if before else "",
            trouble=str(error.get("message") or "") if before is not None and _is_about_work(before) else "",
            last_words=str(report.get("summary") or ""),
            gate_output=_gate_output(job.phase.name, before.number, folder) if before and is_gate else "",
            sent_back_by=by,
            sent_back_why=str(sent_back.get("reason") or ""),
            sent_back_output=_gate_output(by, number, folder) if by and isinstance(number, int) else "",
        )
        if prompts.lacks_goal(job.prompt.text, facts):
            raise RunFailed(FailedRun(subtype="config", text=_NO_GOAL), f"{_NO_GOAL} {document.adw_id} -m TEXT")
        text = prompts.build(job.prompt.text, facts)

        return job.files.write("prompt.md", self._home.redactor.redact_text(text).encode("utf-8", "replace"))

    # --- after -------------------------------------------------------------------------------------------------

    def _report(self, job: Job, turn: AgentTurn) -> RunReport | Suspended:
        order = turn.end.ordered
        if order is not None and order.kind != BUDGET:
            return Suspended(reason=order.kind, usage=turn.usage)
        if order is not None:
            spent = RunFailed(FailedRun(subtype=BUDGET, text=order.reason), order.reason)
            report = RunReport(ok=False, error=spent)
        else:
            try:
                report = self._success(job, turn)
            except RunFailed as exc:
                report = RunReport(ok=False, error=exc)

        return replace(
            report,
            summary=report.summary or first_line(str(report.error)),
            exit_code=turn.end.exit_code,
            usage=turn.usage,
            cost_usd=costs.counted(turn.usage),
            output_files=job.files.existing(),
        )

    def _success(self, job: Job, turn: AgentTurn) -> RunReport:
        """Return the report of a success; raise RunFailed if the agent failed, or its work cannot be seen."""
        context, reading = job.context, turn.reading
        # A denied tool may be why nothing was done; if the work was done, it does not matter.
        denied = turn.failure if turn.failure is not None and turn.failure.subtype == "denied" else None
        if turn.failure is not None and denied is None:
            raise RunFailed(turn.failure)
        keep_result(job.folder, job.files)
        result = read_result(job.files, redactor=self._home.redactor)
        if not result:
            result = answered_result(reading) if job.evidence == "result" else reading.structured or {}
        if job.evidence == "result" or any(result.get(key) is False for key in VERDICT_KEYS):
            wrong = verdict_problem(result)
            if wrong is not None:
                raise RunFailed(denied or wrong)
        if job.evidence == "change" and not job.base:
            context.say("there is no repository: what the agent changed cannot be seen")
        elif job.evidence == "change":
            rules = self._home.workspace.renewed_rules(context.document)
            if not self.has_changed(context.cwd, job.base, *rules):
                said = first_line(reading.text) or "nothing"
                name, base = job.profile.name, job.base[:12]
                text = f"{name} said that it worked, but nothing changed since {base}; it said: {said}"
                raise RunFailed(denied or FailedRun(subtype="no_effect", text=text, tool=name), text)

        # Record the path of the plan for later phases.
        is_new = job.phase.state == "planning" and context.document.plan_file != job.plan_file
        if is_new and context.effects is not None and (context.cwd / job.plan_file).is_file():
            context.effects.set_fields(plan_file=job.plan_file)
        report = report_of(result, summary=first_line(reading.text) or f"{job.profile.name} ended well")
        left = ", ".join(turn.end.leftovers)

        return replace(report, summary=f"{report.summary} (ended what it left running: {left})") if left else report

    def has_changed(self, cwd: Path, base: str, *ignored: str) -> bool:
        """Say whether *cwd* differs from the commit *base*, by commits or uncommitted changes outside *ignored*."""
        home = self._home
        if not home.has_worktrees:
            return True

        return bool({*home.workplace.status(cwd)} - {*ignored} or home.workplace.changed_files(cwd, base))

    # --- after a crash -----------------------------------------------------------------------------------------

    def harvest(self, document: WorkflowDocument, phase: PhaseSpec, attempt: AttemptRecord) -> Harvest | None:
        """Return what an unreported attempt achieved, read from its output, or None."""
        facts = attempt.agent or {}
        try:
            profile = agents_base.profile(str(facts.get("name") or ""))
            files = AttemptFiles(self._home.folder_of(document.adw_id), phase.name, attempt.number)
            said = files.read("stdout.log", max_bytes=MAX_OUTPUT_BYTES * 2)
        except (UsageError, ValueError, StateError, OSError, durable_file.TooLarge):
            return None
        if not said:
            return None
        parser = profile.parser()
        for line in said.decode("utf-8", "replace").splitlines():
            parser.line(line)

        reading = parser.reading
        session_id = reading.session_id or str(facts.get("session_id") or "")
        usage = costs.usage_of(
            reading,
            profile,
            costs.totals_before(document, session_id),
            cost_of=self._cost_of,
            model=attempt.model or "",
            billing=self._home.settings.agent_billing,
        )
        report = RunReport(
            ok=False,
            error=RunFailed(FailedRun(subtype="killed", text="it was cut off", tool=profile.name)),
            summary=first_line(reading.text),
            usage=usage,
            cost_usd=costs.counted(usage),
            output_files=files.existing(),
        )

        return Harvest(report=report, agent={"session_id": session_id} if session_id else {})
