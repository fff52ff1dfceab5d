"""
Run a phase as a conversation with a coding agent: the one driver of every agent there is.

What an agent says about itself is not enough: success needs its terminal event, no error, and what the phase is for,
seen from outside. The conversation's id is durable before the agent starts, wherever it can be chosen, so that a crash
loses nothing; one that the agent does not know any more is replaced by a fresh one, once, within the same attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from adws.adw_modules import agent_options, agent_sessions, cost_rules, durable_file, prompt_text
from adws.adw_modules.agent import AgentProfile, AgentReading, AgentTask, TokenUsage
from adws.adw_modules.agent_preflight import AgentPreflight, variables_of
from adws.adw_modules.agent_sessions import Conversation
from adws.adw_modules.attempt_files import AttemptFiles
from adws.adw_modules.cost_rules import Allowance, BudgetWatch, CostOf
from adws.adw_modules.engine.budget_orders import BUDGET, BudgetOrders
from adws.adw_modules.engine.runners.agent_job import (
    Job,
    Listener,
    Spoken,
    digest,
    failure_of,
    is_lost,
    refusal_of,
    rules_of,
    situation_of,
)
from adws.adw_modules.engine.runners.agent_result import AgentFolder, answered_result, first_line, verdict_problem
from adws.adw_modules.engine.runners.phase_files import clean_result, environment, read_result, told
from adws.adw_modules.engine.runners.phase_result import report_of
from adws.adw_modules.errors import RunFailed, StateError, UsageError
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_engine import Harvest, PhaseContext
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.outcome import RunReport, Suspended
from adws.adw_modules.own_secrets import OWN_SECRETS
from adws.adw_modules.process import SystemProcesses
from adws.adw_modules.process_output import CappedFile
from adws.adw_modules.process_run import MAX_OUTPUT_BYTES, CommandLine, ProcessEnd, run_process
from adws.adw_modules.process_tree import GRACE_SECONDS
from adws.adw_modules.prompt_files import PromptFiles
from adws.adw_modules.prompt_text import PromptFacts
from adws.adw_modules.redaction import Redactor
from adws.adw_modules.workflow import AGENT, AGENTS, PhaseSpec

if TYPE_CHECKING:
    from adws.adw_modules.document import AttemptRecord, WorkflowDocument

#: What git is told in the environment of every agent: it asks nobody for a password, uses no stored one, and what it
#: writes is safe when it says so.
GIT_VARIABLES: Mapping[str, str] = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsync",
    "GIT_CONFIG_VALUE_0": "all",
    "GIT_CONFIG_KEY_1": "credential.helper",
    "GIT_CONFIG_VALUE_1": "",
}

_NO_GOAL = (
    "nobody said what the goal is: the issue has no text here. Set up a forge to read it from, or say what to do with"
    " adw resume"
)


def _no_price(_model: str, _tokens: TokenUsage) -> float | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentParts:
    """What agents are run with."""

    clock: Clock
    processes: SystemProcesses
    redactor: Redactor
    env: Mapping[str, str] = field(repr=False)  #: the environment that the allowed variables are taken from
    prompts: PromptFiles
    preflight: AgentPreflight
    profile_of: Callable[[str], AgentProfile]  #: raises ConfigError for an agent that does not exist
    folder_of: Callable[[str], Path]  #: a workflow's own directory
    usual: str = "claude"  #: the agent of the runner `agent`
    permissions: str = "edit"
    max_turns: int | None = None
    env_names: tuple[str, ...] = ()  #: further variables that every agent gets
    own_secrets: frozenset[str] = OWN_SECRETS
    #: Says whether the working directory differs from a commit, by commits or by changes that are not committed.
    has_changed: Callable[[Path, str], bool] = lambda _cwd, _base: True
    #: What an attempt may cost, given what its phase allows one; None: no limit.
    allowance: Callable[[WorkflowDocument, float | None], Allowance | None] = lambda _document, _usd: None
    cost_of: CostOf = _no_price
    billing: str = "auto"  #: how agents are paid (`cost_rules.BILLING`)
    local: Callable[[datetime], datetime] = datetime.astimezone  #: puts a moment into the zone of the machine
    grace_seconds: float = GRACE_SECONDS
    max_output_bytes: int = MAX_OUTPUT_BYTES


class AgentRunner:
    """Runs phases with agents; implements `Runner`, for every agent under its own name."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts

    # --- before ------------------------------------------------------------------------------------------------

    def profile(self, runner: str) -> AgentProfile:
        """Return the agent that the runner called *runner* means; raise ConfigError."""
        return self._parts.profile_of(self._parts.usual if runner == AGENT else runner)

    def check(self, phase: PhaseSpec) -> str:
        """Return what is wrong with *phase* for this runner, "" when nothing is; starts nothing."""
        kept = sorted(self._parts.own_secrets.intersection(phase.env))
        if kept:
            return f"phase {phase.name} asks for {', '.join(kept)}, which adw keeps to itself: take it out of env"
        wrong = "; ".join(agent_options.problems_of(phase))
        if wrong:
            return f"phase {phase.name}: {wrong}"
        profile = self.profile(phase.runner)
        if "max_turns" in phase.options and not profile.capabilities.limits_turns:
            return f"phase {phase.name}: {profile.name} cannot limit its turns: take max_turns out"

        return self._parts.prompts.problem(phase.prompt)

    def why_idle(self, phase: PhaseSpec) -> str:
        """Return why *phase* cannot be started on this machine, "" when it can, or when no agent works on it."""
        if phase.runner not in (AGENT, *AGENTS):
            return ""

        return self._parts.preflight.missing(self.profile(phase.runner)) or self.check(phase)

    def run(self, phase: PhaseSpec, context: PhaseContext) -> RunReport | Suspended:
        """Let the agent work on *phase* once; what can be seen afterwards says whether it worked."""
        problem = self.check(phase)
        if problem:
            raise RunFailed(FailedRun(subtype="config", text=problem), problem)
        job = self._job(phase, context)
        known = self._known(job)
        spoken = self._speak(job, known)
        if known is not None and is_lost(spoken):
            context.say(f"{job.profile.name} does not know its conversation any more: a new one takes over")
            context.record_agent({"lost_session": known.session_id})
            spoken = self._speak(job, None)

        try:
            return self._report(job, spoken)
        finally:
            self._clean_up(job)

    def _job(self, phase: PhaseSpec, context: PhaseContext) -> Job:
        files = AttemptFiles(context.folder, phase.name, context.attempt_number)
        files.make_folder()
        files.discard("result.json")
        record = next(one for one in context.document.phases if one.name == context.phase)

        return Job(
            profile=self.profile(phase.runner),
            options=agent_options.read_options(phase),
            phase=phase,
            context=context,
            record=record,
            files=files,
            folder=AgentFolder.make(files),
            prompt=self._parts.prompts.read(phase.prompt),
            base=agent_sessions.base_of(record, default=context.base),
        )

    def _known(self, job: Job) -> Conversation | None:
        if not job.profile.capabilities.resumes or job.options.session == "fresh":
            return None

        return agent_sessions.session_for(job.record, agent=job.profile.name)

    # --- one start ---------------------------------------------------------------------------------------------

    def _speak(self, job: Job, known: Conversation | None) -> Spoken:
        """Start the agent, in the conversation *known* or in a new one, and return what came of it."""
        prompt_file = self._write_prompt(job, known)
        before = cost_rules.totals_before(job.context.document, known.session_id if known else "")
        allowed = self._parts.allowance(job.context.document, job.options.budget_usd)
        task = self._task(job, known, prompt_file, allowed, spent=before.cost_usd)
        watch = BudgetWatch(
            allowed,
            job.profile,
            before,
            cost_of=self._parts.cost_of,
            model=task.model,
            billing=self._parts.billing,
        )
        job.context.record_agent(self._facts(job, task, prompt_file))
        transcript = CappedFile(job.files.path("transcript.log"), max_bytes=self._parts.max_output_bytes)
        with contextlib.closing(transcript):
            listener = Listener(job, watch, transcript, session_id=task.session_id)
            end = self._start(job, task, listener, watch)
        reading = listener.reading
        if watch.blind:
            job.context.say(watch.blind)

        failure = failure_of(job.profile, reading, end, now=self._parts.local(self._parts.clock.now()))

        return Spoken(end=end, reading=reading, usage=watch.usage, failure=failure)

    def _task(
        self, job: Job, known: Conversation | None, prompt_file: Path, allowed: Allowance | None, *, spent: float
    ) -> AgentTask:
        able = job.profile.capabilities
        fresh = agent_sessions.new_session_id(self._parts.clock.token()) if able.chooses_session else ""
        budget = cost_rules.budget_for_agent(allowed, self._parts.billing) if able.limits_budget else None
        if budget is not None and known is not None and able.totals_are_of_session:
            budget += spent  # it counts from where the conversation began
        turns = job.options.max_turns or (self._parts.max_turns if able.limits_turns else None)

        return AgentTask(
            prompt_file=prompt_file,
            cwd=job.context.cwd,
            folder=job.folder.path,
            model=job.context.model,
            session_id=known.session_id if known else fresh,
            is_resumed=known is not None,
            max_turns=turns,
            budget_usd=budget,
            permissions=job.options.permissions or self._parts.permissions,
            arguments=job.options.arguments,
        )

    def _start(self, job: Job, task: AgentTask, listener: Listener, watch: BudgetWatch) -> ProcessEnd:
        parts, able = self._parts, job.profile.capabilities

        return run_process(
            CommandLine(
                argv=(parts.preflight.program(job.profile), *job.profile.argv(task)),
                cwd=task.cwd,
                env=self._environment(job),
                timeouts=job.phase.timeouts,
                stdout_path=job.files.stdout,
                stderr_path=job.files.stderr,
                max_output_bytes=parts.max_output_bytes,
                grace_seconds=parts.grace_seconds,
                stdin_path=task.prompt_file if able.reads_stdin else None,
            ),
            clock=parts.clock,
            processes=parts.processes,
            orders=BudgetOrders(job.context.orders, watch),
            record=job.context.record_process,
            redactor=parts.redactor,
            on_line=listener.line,
            saw_result=lambda: listener.reading.has_result,
        )

    def _environment(self, job: Job) -> dict[str, str]:
        parts, context = self._parts, job.context
        names = (*variables_of(job.profile, parts.env), *parts.env_names, *job.phase.env)

        return {
            **environment(parts.env, names, context, own_secrets=parts.own_secrets),
            **job.profile.settings,
            **GIT_VARIABLES,
            **told(context, job.files, redactor=parts.redactor),
            "ADW_RESULT_FILE": str(job.folder.result),
        }

    # --- the prompt --------------------------------------------------------------------------------------------

    def _write_prompt(self, job: Job, known: Conversation | None) -> Path:
        document, issue = job.context.document, job.context.document.issue
        facts = PromptFacts(
            mark=self._parts.clock.token(),
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
            result_file=str(job.folder.result),
            wants_result=job.evidence == "result",
            results=job.context.results,
            hints=job.context.hints,
            situation=situation_of(job, known, self._parts.folder_of(document.adw_id)),
        )
        if prompt_text.lacks_goal(job.prompt.text, facts):
            raise RunFailed(FailedRun(subtype="config", text=_NO_GOAL), f"{_NO_GOAL} {document.adw_id} -m TEXT")
        text = prompt_text.build(job.prompt.text, facts)

        return job.files.write("prompt.md", self._parts.redactor.redact_text(text).encode("utf-8", "replace"))

    def _facts(self, job: Job, task: AgentTask, prompt_file: Path) -> JsonObject:
        """Return what is kept with the attempt before the agent starts."""
        return {
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

    # --- after -------------------------------------------------------------------------------------------------

    def _report(self, job: Job, spoken: Spoken) -> RunReport | Suspended:
        order = spoken.end.ordered
        if order is not None and order.kind != BUDGET:
            return Suspended(reason=order.kind, usage=spoken.usage)
        try:
            report = self._verdict(job, spoken)
        except RunFailed as exc:
            report = RunReport(ok=False, error=exc)

        return replace(
            report,
            summary=report.summary or first_line(str(report.error)),
            exit_code=spoken.end.exit_code,
            usage=spoken.usage,
            cost_usd=cost_rules.counted(spoken.usage),
            output_files=job.files.existing(),
        )

    def _verdict(self, job: Job, spoken: Spoken) -> RunReport:
        """Return the report of a success; raise RunFailed for what is none."""
        order = spoken.end.ordered
        if order is not None:
            raise RunFailed(FailedRun(subtype=BUDGET, text=order.reason), order.reason)
        is_denied = spoken.failure is not None and spoken.failure.subtype == "denied"
        if spoken.failure is not None and not is_denied:
            raise RunFailed(spoken.failure)
        result = self._result(job, spoken.reading)
        self._look_for_evidence(job, spoken, result)
        self._note_plan(job)
        report = report_of(result, summary=first_line(spoken.reading.text) or f"{job.profile.name} ended well")
        left = ", ".join(spoken.end.leftovers)

        return replace(report, summary=f"{report.summary} (ended what it left running: {left})") if left else report

    def _result(self, job: Job, reading: AgentReading) -> JsonObject:
        """Return what the agent gave back, {} for nothing; raise RunFailed when it cannot be read."""
        job.folder.keep(job.files)
        found = read_result(job.files, redactor=self._parts.redactor)

        return found or (answered_result(reading) if job.evidence == "result" else reading.structured or {})

    def _clean_up(self, job: Job) -> None:
        """Leave no result as the agent wrote it: also of one that failed, or was ended."""
        with contextlib.suppress(RunFailed):
            job.folder.keep(job.files)
        clean_result(job.files, redactor=self._parts.redactor)

    def _look_for_evidence(self, job: Job, spoken: Spoken, result: JsonObject) -> None:
        """Raise RunFailed when what the phase is for cannot be seen."""
        wrong = verdict_problem(result) if job.evidence == "result" else None
        if wrong is not None:
            raise RunFailed(refusal_of(spoken) or wrong)
        if job.evidence != "change":
            return
        if not job.base:
            job.context.say("there is no repository: what the agent changed cannot be seen")
        elif not self._parts.has_changed(job.context.cwd, job.base):
            said = first_line(spoken.reading.text) or "nothing"
            text = f"{job.profile.name} said that it worked, but nothing changed since {job.base[:12]}; it said: {said}"
            raise RunFailed(
                refusal_of(spoken) or FailedRun(subtype="no_effect", text=text, tool=job.profile.name), text
            )

    def _note_plan(self, job: Job) -> None:
        """Write down where the plan is, for the phases that follow."""
        effects, document = job.context.effects, job.context.document
        if job.phase.state != "planning" or effects is None or document.plan_file == job.plan_file:
            return
        if (job.context.cwd / job.plan_file).is_file():
            effects.set_fields(plan_file=job.plan_file)

    # --- after a crash -----------------------------------------------------------------------------------------

    def harvest(self, document: WorkflowDocument, phase: PhaseSpec, attempt: AttemptRecord) -> Harvest | None:
        """Return what an attempt achieved that never reported, read from its output; None when that is nothing."""
        facts = attempt.agent or {}
        try:
            profile = self._parts.profile_of(str(facts.get("name") or ""))
            files = AttemptFiles(self._parts.folder_of(document.adw_id), phase.name, attempt.number)
            said = files.read("stdout.log", max_bytes=self._parts.max_output_bytes * 2)
        except (UsageError, ValueError, StateError, OSError, durable_file.TooLarge):
            return None
        if not said:
            return None
        parser = profile.parser()
        for line in said.decode("utf-8", "replace").splitlines():
            parser.line(line)

        return self._harvested(document, attempt, profile, parser.reading, files)

    def _harvested(
        self,
        document: WorkflowDocument,
        attempt: AttemptRecord,
        profile: AgentProfile,
        reading: AgentReading,
        files: AttemptFiles,
    ) -> Harvest:
        session_id = reading.session_id or str((attempt.agent or {}).get("session_id") or "")
        usage = cost_rules.usage_of(
            reading,
            profile,
            cost_rules.totals_before(document, session_id),
            cost_of=self._parts.cost_of,
            model=attempt.model or "",
            billing=self._parts.billing,
        )
        cut = RunFailed(FailedRun(subtype="killed", text="it was cut off", tool=profile.name))
        report = RunReport(
            ok=False,
            error=cut,
            summary=first_line(reading.text),
            usage=usage,
            cost_usd=cost_rules.counted(usage),
            output_files=files.existing(),
        )

        return Harvest(report=report, agent={"session_id": session_id} if session_id else {})
