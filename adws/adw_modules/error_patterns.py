"""
What programs, services and agents write when they fail, and which class of failure that is.

Words are matched whole, so that "port" is not found in "report". The text is only asked when nothing with
a structure decided, and only that of something that failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from adws.adw_modules.error_classes import CLASSES

#: How much of a text is looked at, from its end: what ended a run stands there. Lines without a word do not count.
LAST_LINES = 50
LAST_CHARACTERS = 8_000
#: The same for a class that ends all trying: output of tests is full of such words, so they must stand at the very end.
CLOSING_LINES = 5


def _words(*alternatives: str) -> re.Pattern[str]:
    """Return a pattern that finds the alternatives as whole words; `_` separates words too, as in rate_limit_error."""
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(alternatives)})(?![A-Za-z0-9])", re.IGNORECASE)


#: A status number counts only where the text says that it is one: "line 429" is none.
_STATUS = r"(?:http(?:/[\d.]+)?|status(?: code)?|code|api error|error|rejected|overloaded)[ :=(\"']{1,4}"


def _status(numbers: str) -> str:
    return rf"{_STATUS}(?:{numbers})"


#: In this order: what says more comes first. A limit that ends in seconds is no quota; an empty account is no limit.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("rate_limited", _words(r"please retry in \d+(?:\.\d+)? ?(?:ms|s|secs?|seconds?)")),
    (
        "quota_window",
        _words(
            r"usage limit reached",
            r"(?:hit|reached|exceeded) your (?:[\w-]+ ){0,3}usage limit",
            r"(?:hit|reached|exceeded) your (?:session|daily|weekly|monthly|opus|sonnet|haiku|\d+-hour) limit",
            r"(?:session|daily|weekly|monthly|\d+-hour) (?:usage )?limit (?:reached|exceeded)",
            r"(?:daily|weekly|monthly) usage limit",
            r"QUOTA_EXHAUSTED",
            r"TerminalQuotaError",
            r"GoUsageLimitError",
            r"\w*PerDay\w*",
            r"exhausted your (?:daily quota|capacity)",
        ),
    ),
    (
        "billing",
        _words(
            r"credit balance is too low",
            r"(?:out of|insufficient|no remaining) credits?",
            r"credits? (?:exhausted|required)",
            r"credits_required",
            r"billing_error",
            r"insufficient_quota",
            r"(?:spend|spending) (?:cap|limit)",
            r"check your plan and billing",
            r"payment required",
            r"with your \w+ plan, upgrade to",
            r"billing (?:is )?(?:not enabled|disabled|hard limit)",
            _status("402"),
        ),
    ),
    (
        "context",
        _words(
            r"prompt is too long",
            r"prompt_too_long",
            r"context_length_exceeded",
            r"(?:maximum )?context (?:length|window) (?:is )?exceeded",
            r"exceeds? the (?:model'?s )?(?:maximum )?context (?:length|window)",
            r"ran out of room in the model",
            r"ContextWindowExceeded(?:Error)?",
            r"ContextOverflowError",
            r"input is too long",
        ),
    ),
    ("budget", _words(r"error_max_budget_usd", r"budget_exhausted", r"(?:maximum|max) budget (?:reached|exceeded)")),
    (
        "turns",
        _words(
            r"error_max_turns",
            r"reached (?:the )?max(?:imum)?(?: number of)?(?: session)? (?:turns|actions)",
        ),
    ),
    ("refused", _words(r"usage policy", r"CyberPolicy", r"content policy", r"(?:blocked|declined) (?:by|for) safety")),
    (
        "rate_limited",
        _words(
            r"rate[ _-]?limit(?:s|ed|ing)?",
            r"RateLimit(?:Error|Exceeded\w*)",
            r"too many requests",
            r"temporarily limiting requests",
            r"abuse detection",
            r"RESOURCE_EXHAUSTED",
            r"RetryableQuotaError",
            _status("429"),
        ),
    ),
    (
        "overloaded",
        _words(
            r"overloaded(?:_error)?",
            r"is at capacity",
            r"high demand",
            r"service unavailable",
            _status("503|529"),
        ),
    ),
    (
        "auth",
        _words(
            r"authentication[ _](?:failed|error|required)",
            r"AuthenticationError",
            r"(?:invalid|incorrect|missing) (?:api[ -]key|x-api-key|access token|bearer token)",
            r"api key not valid",
            r"not logged in",
            r"please run /login",
            r"oauth token (?:has expired|revoked|is invalid)",
            r"bad credentials",
            r"could not read username",
            r"permission denied \(publickey\)",
            r"unauthorized",
            _status("401|403"),
        ),
    ),
    (
        "tls",
        _words(r"certificate[ _]verify[ _]failed", r"certificate has expired", r"self[- ]signed certificate"),
    ),
    (
        "timeout",
        _words(
            r"timed?[ -]?out",
            r"time-?outs?",
            r"(?:read|connect|request|gateway|connection)timeout",
            r"ETIMEDOUT",
            r"ESOCKETTIMEDOUT",
            r"Timeout(?:Error|Exception|Expired)",
            r"deadline exceeded",
            _status("408|504"),
        ),
    ),
    (
        "network",
        _words(
            r"connection (?:was )?(?:refused|reset|closed|aborted|error|lost|broken|terminated)",
            r"(?:unable|failed) to connect",
            r"could not (?:connect|resolve host)",
            r"ECONN(?:REFUSED|RESET|ABORTED)",
            r"E(?:HOST|NET)UNREACH",
            r"ENOTFOUND",
            r"EAI_AGAIN",
            r"EPIPE",
            r"broken pipe",
            r"network (?:error|is unreachable|is down|failure)",
            r"no route to host",
            r"name or service not known",
            r"temporary failure in name resolution",
            r"name resolution",
            r"stream disconnected",
            r"socket hang up",
            r"remote end (?:closed|hung up)",
            r"the remote end hung up",
            r"fetch failed",
        ),
    ),
    (
        "server",
        _words(r"internal server error", r"bad gateway", r"server_error", r"api_error", _status("500|502|520|52[1-4]")),
    ),
    ("disk", _words(r"no space left on device", r"ENOSPC", r"disk (?:is )?full", r"disk quota exceeded", r"EDQUOT")),
    ("port", _words(r"address already in use", r"EADDRINUSE", r"port \d+ is (?:already )?(?:in use|allocated)")),
    ("memory", _words(r"out of memory", r"cannot allocate memory", r"ENOMEM", r"MemoryError", r"OOM[- ]?killed")),
    ("descriptors", _words(r"too many open files", r"EMFILE", r"ENFILE")),
    ("busy", _words(r"database is locked", r"resource busy", r"EBUSY", r"unable to create '[^']*\.lock': file exists")),
    ("dependency", _words(r"cannot import name", r"no module named", r"cannot find module", r"ModuleNotFoundError")),
    (
        "missing",
        _words(
            r"no such file or directory",
            r"ENOENT",
            r"command not found",
            r"executable file not found",
            r"not a git repository",
            r"model_not_found",
        ),
    ),
    (
        "permission",
        _words(r"permission denied", r"operation not permitted", r"read-only file system", r"EACCES", r"EPERM"),
    ),
    (
        "config",
        _words(
            r"(?:invalid|bad|missing|unknown|malformed) (?:config(?:uration)?|setting|option|flag|argument)s?",
            r"config(?:uration)? (?:error|file not found|is (?:invalid|missing))",
            r"(?:missing|required|undefined) environment variables?",
            r"environment variables? [\w ]{1,60} (?:is|are) (?:missing|required|not set)",
            r"unrecognized arguments?",
        ),
    ),
)

#: A class -> the classes that the text may make of it: a status alone often says too little.
REFINEMENTS: Mapping[str, AbstractSet[str]] = MappingProxyType(
    {
        "rate_limited": {"quota_window", "billing"},
        "auth": {"rate_limited", "quota_window", "billing", "refused"},
        "invalid": {"context", "billing", "auth", "refused", "quota_window"},
        "server": {"overloaded"},
    }
)


def class_of_text(text: str, allowed: AbstractSet[str] | None = None) -> str | None:
    """Return the first class of the table that the end of *text* speaks of; only one of *allowed*, when given."""
    end, closing = last_part(text), last_part(text, CLOSING_LINES)
    return next(
        (
            name
            for name, pattern in PATTERNS
            if (allowed is None or name in allowed) and pattern.search(end if CLASSES[name].is_recoverable else closing)
        ),
        None,
    )


def refined(name: str, text: str) -> str:
    """Return the class that *text* makes of the class *name*, or *name* itself."""
    return class_of_text(text, REFINEMENTS.get(name, frozenset())) or name


def last_part(text: str, lines: int = LAST_LINES) -> str:
    """Return the last *lines* of *text* that say something."""
    return "\n".join([line for line in text[-LAST_CHARACTERS:].splitlines() if line.strip()][-lines:])
