"""
The tool `agent`: one question to a coding agent, whose last answer is the result.

A fresh conversation for each call, started through the profile of the agent like that of a phase. It may read and
nothing else unless `options.permissions` says more: calls of a loop share one working directory. What it used is told
with the report, however it ended; what is left of the workflow's budget ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from adws.adw_modules import agent_options, agent_sessions, cost_rules, expressions, tampering
from adws.adw_modules.agent import AgentProfile, AgentReading, AgentTask, Usage
from adws.adw_modules.agent_options import AgentOptions
from adws.adw_modules.agent_preflight import variables_of
from adws.adw_modules.cost_rules import Allowance, BudgetWatch
from adws.adw_modules.engine.budget_orders import BUDGET, BudgetOrders
from adws.adw_modules.engine.runners.agent import GIT_VARIABLES, AgentParts
from adws.adw_modules.engine.runners.agent_job import failure_of
from adws.adw_modules.engine.runners.agent_result import answered_result
from adws.adw_modules.errors import RepositoryTampered, RunFailed, UsageError
from adws.adw_modules.failed_run import FailedRun
from adws.adw_modules.fanout.calls import CallContext
from adws.adw_modules.fanout.tools.processes import CallFiles, CallProcesses, call_files
from adws.adw_modules.fanout.tools.results import ToolResult, as_text, wrong_input
from adws.adw_modules.json_value import JsonObject, JsonValue
from adws.adw_modules.process_run import CommandLine, ProcessEnd, run_process
from adws.adw_modules.tampering import Marks
from adws.adw_modules.workflow import PhaseSpec, Timeouts

#: What an agent may do when its step does not say.
PERMISSIONS = "read"
#: Options of a phase that a single question has no use for.
NO_OPTIONS = ("evidence", "session", "models")


class AgentCallFailed(RunFailed):
    """An agent that a step asked failed; what it used counts all the same."""

    def __init__(self, run: FailedRun, facts: JsonObject, message: str | None = None) -> None:
        super().__init__(run, message)
        self.facts = facts


class SharedPlace(Protocol):
    """What all worktrees share, and no agent may change (`resources.shared_git.SharedGit`)."""

    def marks(self) -> Marks: ...
    def is_ancestor(self, old: str, new: str) -> bool: ...


class AgentTool:
    """Asks agents."""

    def __init__(
        self,
        parts: AgentParts,
        processes: CallProcesses,
        *,
        shared: Callable[[], SharedPlace | None] = lambda: None,
    ) -> None:
        """*shared* is what no agent may change, None where work is not done in worktrees."""
        self._parts = parts
        self._processes = processes
        self._shared = shared

    def call(self, inputs: Mapping[str, JsonValue], context: CallContext, *, timeout_seconds: float) -> ToolResult:
        """Ask the agent; raise RunFailed when it failed, when its budget is used up, or when it cannot be asked."""
        profile = self._parts.profile_of(str(inputs.get("agent") or self._parts.usual))
        options = _options(inputs.get("options") or {}, profile)
        prompt = self._prompt(inputs, context)
        with self._watched(context), call_files(context, self._parts.clock.token()) as files:
            files.stdin.write_text(self._parts.redactor.redact_text(prompt), "utf-8", "replace")
            task = self._task(inputs, context, profile, options, files)
            return self._ask(profile, task, context, options, timeout_seconds)

    # --- before ------------------------------------------------------------------------------------------------

    def _prompt(self, inputs: Mapping[str, JsonValue], context: CallContext) -> str:
        name = inputs.get("prompt_file")
        if name is None:
            text: JsonValue = as_text(inputs.get("prompt"), "prompt")
        else:
            try:
                text = expressions.render(self._parts.prompts.read(str(name)).text, context.values)
            except UsageError as exc:
                raise wrong_input(str(exc)) from exc
        if not isinstance(text, str) or not text.strip():
            raise wrong_input("the prompt came out empty: say what the agent shall do")

        return text

    def _task(
        self,
        inputs: Mapping[str, JsonValue],
        context: CallContext,
        profile: AgentProfile,
        options: AgentOptions,
        files: CallFiles,
    ) -> AgentTask:
        able = profile.capabilities
        model = inputs.get("model")

        return AgentTask(
            prompt_file=files.stdin,
            cwd=context.cwd,
            folder=files.folder,
            model=context.model if model is None else as_text(model, "model"),
            session_id=agent_sessions.new_session_id(self._parts.clock.token()) if able.chooses_session else "",
            max_turns=options.max_turns or (self._parts.max_turns if able.limits_turns else None),
            permissions=options.permissions or PERMISSIONS,
            arguments=options.arguments,
        )

    @contextmanager
    def _watched(self, context: CallContext) -> Iterator[None]:
        """Fail the call when what all worktrees share is changed while the agent works."""
        place = self._shared()
        before = place.marks() if place is not None else {}
        yield
        if place is not None:
            after = place.marks()
            changed = tampering.differences(before, after, is_forward=place.is_ancestor)
            if changed:
                raise RepositoryTampered(context.phase, tampering.described(changed, after))

    # --- the question ------------------------------------------------------------------------------------------

    def _ask(
        self,
        profile: AgentProfile,
        task: AgentTask,
        context: CallContext,
        options: AgentOptions,
        timeout_seconds: float,
    ) -> ToolResult:
        parts = self._parts
        allowed = self._allowance(context, options)
        budget = cost_rules.budget_for_agent(allowed, parts.billing) if profile.capabilities.limits_budget else None
        task = replace(task, budget_usd=budget)
        watch = BudgetWatch(allowed, profile, cost_of=parts.cost_of, model=task.model, billing=parts.billing)
        parser = profile.parser()

        def line(stream: str, text: str) -> None:
            for shown in (parser.line(text) if stream == "stdout" else text).splitlines():
                context.say(shown)
            watch.take(parser.reading)

        end = run_process(
            self._command(profile, task, context, timeout_seconds),
            clock=parts.clock,
            processes=parts.processes,
            orders=BudgetOrders(context.orders, watch),
            record=context.record_process,
            redactor=parts.redactor,
            on_line=line,
            saw_result=lambda: parser.reading.has_result,
        )

        return self._answer(profile, parser.reading, end, _facts(profile, task, watch.usage, parser.reading.session_id))

    def _answer(self, profile: AgentProfile, reading: AgentReading, end: ProcessEnd, facts: JsonObject) -> ToolResult:
        """Return what came of the question; raise AgentCallFailed when that is no answer."""
        if end.ordered is not None and end.ordered.kind != BUDGET:
            return ToolResult(ordered=end.ordered.kind, facts=facts)
        if end.ordered is not None:
            raise AgentCallFailed(FailedRun(subtype=BUDGET, text=end.ordered.reason), facts, end.ordered.reason)
        failure = failure_of(profile, reading, end, now=self._parts.local(self._parts.clock.now()))
        if failure is not None and failure.subtype != "denied":
            raise AgentCallFailed(failure, facts)
        try:
            value: JsonValue = answered_result(reading) or reading.text
        except RunFailed as exc:
            raise AgentCallFailed(exc.run, facts, str(exc)) from exc

        return ToolResult(value=value, facts={**facts, **_left(end)})

    def _allowance(self, context: CallContext, options: AgentOptions) -> Allowance | None:
        allowed = self._parts.allowance(context.document, options.budget_usd)

        return allowed and replace(allowed, usd=max(0.0, allowed.usd - context.spent()))

    def _command(
        self, profile: AgentProfile, task: AgentTask, context: CallContext, timeout_seconds: float
    ) -> CommandLine:
        parts = self._parts
        names = (*variables_of(profile, parts.env), *parts.env_names)
        env = self._processes.environment(context, [name for name in names if name not in parts.own_secrets])

        return CommandLine(
            argv=(parts.preflight.program(profile), *profile.argv(task)),
            cwd=Path(task.cwd),
            env={**env, **profile.settings, **GIT_VARIABLES},
            timeouts=Timeouts(wall=timeout_seconds, idle=None),
            max_output_bytes=parts.max_output_bytes,
            grace_seconds=parts.grace_seconds,
            stdin_path=task.prompt_file if profile.capabilities.reads_stdin else None,
        )


def _options(given: JsonValue, profile: AgentProfile) -> AgentOptions:
    if not isinstance(given, dict):
        raise wrong_input("options must be a table")
    phase = PhaseSpec(name="step", state="building", runner=profile.name, options=given)
    wrong = [*agent_options.problems_of(phase)]
    wrong += [f"the option {name} is for whole phases" for name in NO_OPTIONS if name in given]
    if "max_turns" in given and not profile.capabilities.limits_turns:
        wrong.append(f"{profile.name} cannot limit its turns")
    if wrong:
        raise wrong_input("; ".join(wrong))

    return agent_options.read_options(phase)


def _facts(profile: AgentProfile, task: AgentTask, usage: Usage, session_id: str) -> JsonObject:
    return {
        "agent": profile.name,
        "permissions": task.permissions,
        "session_id": session_id or task.session_id,
        "usage": usage.to_json(),
        "cost_usd": cost_rules.counted(usage),
    }


def _left(end: ProcessEnd) -> JsonObject:
    return {"leftovers": list(end.leftovers)} if end.leftovers else {}
