"""
aider: plain text instead of events, and exit code 0 even if the model never answered.

Success is shown by the line about tokens after each answer, of which there may be several; an error of the model
library, at the start of a line, counts until the next such line. Conversations are not resumed: the work is in the
commits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from adws.adw_modules.agent import AgentCapabilities, AgentProfile, AgentReading, AgentTask, TokenUsage
from adws.adw_modules.agents import base as agents_base
from adws.adw_modules.agents.base import MAX_LINE, shown, storable
from adws.adw_modules.errors import FailedRun
from adws.adw_modules.process.run import ProcessEnd

_QUIET = (
    "--yes-always",
    "--no-pretty",
    "--no-stream",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-analytics",
    "--no-gitignore",
    "--no-suggest-shell-commands",
)
_PERMISSIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"read": ("--chat-mode=ask", "--no-auto-commits", "--no-dirty-commits"), "edit": (), "all": ()}
)

_VERSION = re.compile(r"Aider v(\S{1,40})$")
_MODEL = re.compile(r"(?:Main model|Model): (\S{1,200})")
_COUNT = r"([\d.,]{1,20}[kM]?)"
_TOKENS = re.compile(
    rf"Tokens: {_COUNT} sent(?:, {_COUNT} cache write)?(?:, {_COUNT} cache hit)?, {_COUNT} received\."
    r"(?: Cost: \$[\d.]{1,20} message, \$([\d.]{1,20}) session\.)?"
)
_ERROR = re.compile(r"litellm\.(?:exceptions\.)?([A-Za-z]{1,60})\b")
_DONE = re.compile(r"(?:Applied edit to|Commit [0-9a-f]{7,40}|Creating empty file|Retrying in) ?")
#: Beginnings of lines that report a failure although the model was reached -> name of the failure.
_TROUBLE: Mapping[re.Pattern[str], str] = MappingProxyType(
    {
        re.compile(r"Model \S{1,200} has hit a token limit!"): "context",
        re.compile(r"Empty response received from LLM"): "bad_output",
        re.compile(r"Only \d+ reflections allowed, stopping"): "bad_output",
    }
)
#: Names of errors of the model library -> name of the failure.
_ERRORS: Mapping[str, str] = MappingProxyType(
    {
        "APIConnectionError": "network",
        "APIError": "server",
        "APIResponseValidationError": "server",
        "AuthenticationError": "auth",
        "BadGatewayError": "server",
        "BadRequestError": "invalid",
        "BudgetExceededError": "budget",
        "ContentPolicyViolationError": "refused",
        "ContextWindowExceededError": "context",
        "InternalServerError": "server",
        "InvalidRequestError": "invalid",
        "NotFoundError": "invalid",
        "PermissionDeniedError": "auth",
        "RateLimitError": "rate_limited",
        "ServiceUnavailableError": "overloaded",
        "Timeout": "timeout",
        "UnprocessableEntityError": "invalid",
    }
)
_NO_CREDIT = re.compile(r'insufficient credits|"code"\s?:\s?402\b', re.IGNORECASE)


def argv(task: AgentTask) -> tuple[str, ...]:
    """Return the arguments for *task*; values follow `=`, so that none can be read as an option."""
    files = (
        f"--message-file={task.prompt_file}",
        f"--chat-history-file={task.folder / 'aider.chat.history.md'}",
        f"--input-history-file={task.folder / 'aider.input.history'}",
    )
    model = (f"--model={task.model}",) if task.model else ()

    return (*files, *_QUIET, *model, *_PERMISSIONS[task.permissions], *task.arguments)


class Parser:
    """Parses aider's lines."""

    def __init__(self) -> None:
        self._reading = AgentReading()

    @property
    def reading(self) -> AgentReading:
        """The result of the lines so far."""
        return self._reading

    def line(self, text: str) -> str:
        """Process a line; return the text to show."""
        now = self._reading
        if len(text) > MAX_LINE:
            return ""
        trouble = next((name for pattern, name in _TROUBLE.items() if pattern.match(text)), "")
        if used := _TOKENS.match(text):
            sent, written, read, received = (_count(part) for part in used.groups()[:4])
            tokens = TokenUsage(
                input=max(sent - read - written, 0), output=received, cache_read=read, cache_write=written
            )
            cost, turns = _number(used[5]) if used[5] else now.cost_usd, now.turns + 1
            self._reading = replace(now, is_error=False, subtype="", text="", tokens=tokens, cost_usd=cost, turns=turns)
        elif error := _ERROR.match(text):
            name = "billing" if _NO_CREDIT.search(text) else _ERRORS.get(error[1], "")
            self._reading = replace(now, is_error=True, subtype=name, text=storable(text))
        elif trouble:
            self._reading = replace(now, is_error=True, subtype=trouble, text=storable(text))
        elif (version := _VERSION.match(text)) and not now.version:
            self._reading = replace(now, version=version[1])
            return ""
        elif (model := _MODEL.match(text)) and not now.model:
            self._reading = replace(now, model=storable(model[1]))
        elif not _DONE.match(text):
            return ""

        return shown(text)


def _count(text: str | None) -> int:
    """Return a count that aider writes as 648, 1,024, 1.2k or 3M."""
    if not text:
        return 0
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1], 1)

    return round(_number(text.rstrip("kM")) * factor)


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:  # for example "1.2.3"
        return 0.0


def failure(reading: AgentReading, end: ProcessEnd) -> FailedRun | None:
    """Return why aider failed, or None without a sign of failure."""
    if not reading.turns:
        return agents_base.failure(reading, end, tool="aider")

    # After the model has answered, the output is mostly the answer, which is no evidence of a failure.
    return agents_base.failure(replace(reading, has_result=True), replace(end, tail=""), tool="aider")


PROFILE = AgentProfile(
    name="aider",
    provider=agents_base.PROVIDERS["aider"],
    capabilities=AgentCapabilities(reads_stdin=False, tells_result=False, tells_cost=True, commits=True),
    argv=argv,
    parser=Parser,
    failure=failure,
    variables=(
        "ANTHROPIC_API_KEY",
        "AZURE_API_BASE",
        "AZURE_API_KEY",
        "AZURE_API_VERSION",
        "DEEPSEEK_API_KEY",
        "GEMINI_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "OLLAMA_API_BASE",
        "OPENAI_API_BASE",
        "OPENAI_API_KEY",
        "OPENROUTER_API_KEY",
        "XAI_API_KEY",
    ),
    settings=MappingProxyType(
        {"AIDER_ANALYTICS": "false", "AIDER_CHECK_UPDATE": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ),
    rules_files=("CONVENTIONS.md", ".aider.conf.yml", ".aiderignore", ".aider.model.settings.yml"),
)
