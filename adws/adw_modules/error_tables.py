"""
The error categories and classes, and the tables of codes and patterns.

Tables only: how a class is recognised is in `error_handler`.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from types import MappingProxyType
from typing import TypeVar


class ErrorCategory(Enum):
    """How to go on after a failure."""

    TRANSIENT = "transient"  #: the same may work soon
    RATE_LIMIT = "rate_limit"  #: the same will work at the time the server says
    CONFIGURATION = "configuration"  #: it will not work before a person changes something
    RESOURCE = "resource"  #: it may work after a clean-up
    FATAL = "fatal"  #: it will not work


#: What may be retried at all.
RETRYABLE = frozenset({ErrorCategory.TRANSIENT, ErrorCategory.RATE_LIMIT, ErrorCategory.RESOURCE})


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorClass:
    """One finer class of failures, with what it asks for."""

    name: str
    category: ErrorCategory
    advice: str  #: one or two sentences for the person: what happened, what to do
    retry_delay: float | None = None  #: least seconds to wait when no server said how long
    max_retries: int | None = None  #: how often trying again can help; None: as often as is allowed
    needs_person: bool = False

    @property
    def is_recoverable(self) -> bool:
        """Whether trying again can help."""
        return self.category in RETRYABLE

    @property
    def needs_cleanup(self) -> bool:
        """Whether something has to be freed before the next attempt."""
        return self.category is ErrorCategory.RESOURCE


def _rate_limit(name: str, advice: str, *, delay: float) -> ErrorClass:
    return ErrorClass(name=name, category=ErrorCategory.RATE_LIMIT, advice=advice, retry_delay=delay, max_retries=5)


def _transient(name: str, advice: str, *, delay: float = 5.0, retries: int | None = None) -> ErrorClass:
    return ErrorClass(
        name=name, category=ErrorCategory.TRANSIENT, advice=advice, retry_delay=delay, max_retries=retries
    )


def _resource(name: str, advice: str, *, retries: int | None = None) -> ErrorClass:
    return ErrorClass(name=name, category=ErrorCategory.RESOURCE, advice=advice, max_retries=retries)


def _configuration(name: str, advice: str) -> ErrorClass:
    return ErrorClass(name=name, category=ErrorCategory.CONFIGURATION, advice=advice, needs_person=True)


def _fatal(name: str, advice: str, *, needs_person: bool = False) -> ErrorClass:
    return ErrorClass(name=name, category=ErrorCategory.FATAL, advice=advice, needs_person=needs_person)


_TABLE = (
    # --- rate limits: a quota is not a rate limit, it is over at a moment that may be days away
    _rate_limit(
        "rate_limited",
        "The server asked for fewer requests. adw waits as long as it was told; run fewer workflows at once if this "
        "comes often.",
        delay=60.0,
    ),
    _rate_limit(
        "quota_window",
        "The account's usage for this period is used up. adw continues after the reset; another account or model "
        "continues sooner.",
        delay=1800.0,
    ),
    # --- transient
    _transient(
        "overloaded", "The service has too much to do. adw retries; another model may answer sooner.", delay=30.0
    ),
    _transient("server", "The service failed by itself. adw retries; look at its status page if it stays.", retries=3),
    _transient("network", "The service could not be reached. Check network, proxy and address if this stays."),
    _transient("timeout", "It took longer than its time limit. Raise the phase's timeout if the work needs longer."),
    _transient(
        "killed",
        "Something ended the process from outside: the system when memory ran out, or a person. See the system log.",
    ),
    _transient("crashed", "The program itself crashed. If it does so again, update or replace it.", retries=1),
    _transient("busy", "Something else was using what is needed. adw retries.", delay=1.0),
    _transient(
        "conflict", "Somebody else changed it at the same time. adw reads it again and repeats.", delay=1.0, retries=3
    ),
    _transient("database", "The database could not be used for the moment. Check that its server runs.", delay=1.0),
    _transient("failed", "The command or agent said that it failed. Read its output: adw logs ID."),
    _transient(
        "gate", "The phase did its work, but the gate did not let it pass. Read what the gate said: adw logs ID."
    ),
    _transient(
        "no_effect",
        "It said that it worked, but nothing was changed. Say in the issue, or with a hint, what has to come out.",
        retries=1,
    ),
    _transient(
        "bad_output", "Its answer could not be read as what was asked for. Read its output: adw logs ID.", retries=2
    ),
    # --- resources: the clean-up comes first
    _resource("disk", "The disk is full. Free some space: adw admin gc removes what finished workflows left."),
    _resource("port", "The port is in use. adw takes another one; it never ends a program that it did not start."),
    _resource("memory", "The machine has no memory left. Run fewer workflows at once."),
    _resource("descriptors", "Too many files are open. Raise the limit (ulimit -n) or run fewer workflows at once."),
    _resource(
        "context",
        "The conversation no longer fits into the model. adw starts a new one; make the task smaller if that does not "
        "help.",
        retries=1,
    ),
    # --- what a person has to change
    _configuration("config", "A setting is wrong. Correct it, then: adw retry ID."),
    _configuration(
        "base",
        "A gate is red before any work was done. Fix it on the default branch, or set gates.base to compare or ignore, "
        "then: adw retry ID.",
    ),
    _configuration(
        "auth", "The service does not accept the credentials. Log in or renew the token, then: adw retry ID."
    ),
    _configuration(
        "billing", "The account has no credit left, or its spending limit is reached. Pay, then: adw retry ID."
    ),
    _configuration(
        "budget", "The budget for this work is spent. If the work is worth more: adw retry ID --budget USD."
    ),
    _configuration(
        "turns", "The agent used all its turns. Allow more turns or make the task smaller, then: adw retry ID."
    ),
    _configuration("invalid", "The service refused the request as it is. Correct what it names, then: adw retry ID."),
    _configuration("missing", "A file, program or directory is not there. Put it in place, then: adw retry ID."),
    _configuration(
        "permission", "The system does not allow this. Change owner or mode of what it names, then: adw retry ID."
    ),
    _configuration("dependency", "A module cannot be imported. Install it or correct the import, then: adw retry ID."),
    _configuration(
        "tls", "The server's certificate is not trusted. Correct certificates or address, then: adw retry ID."
    ),
    _configuration("denied", "The agent was not allowed to use a tool that it needs. Allow it, then: adw retry ID."),
    _configuration("version", "This adw and the stored data have different versions. Upgrade adw, then: adw retry ID."),
    _configuration("taken", "Another workflow has this issue. Wait for it or abandon it, then: adw retry ID."),
    # --- what no attempt helps
    _fatal("bug", "A program error: the same call fails the same way. The traceback says where."),
    _fatal(
        "refused",
        "The model declined the task by its policy. Reword the issue or do this part by hand.",
        needs_person=True,
    ),
    _fatal(
        "state",
        "The workflow's document needs attention first: adw admin verify says what is wrong.",
        needs_person=True,
    ),
    _fatal("storage", "The disk reports errors. Check it before anything is written again.", needs_person=True),
    _fatal(
        "commit_unknown",
        "Whether the last change was stored is not known. Look (adw status ID) before it is repeated.",
        needs_person=True,
    ),
    _fatal(
        "unknown",
        "adw does not know this failure, so it does not repeat it. Read the message and the output (adw logs ID); if "
        "another attempt can help: adw retry ID.",
    ),
    _fatal("ownership", "Another process has taken this workflow over; this one stops."),
    _fatal("interrupted", "Somebody interrupted it. Continue with: adw resume ID."),
    _fatal("illegal", "The workflow does not allow this step now: adw status ID says what it does allow."),
)

#: Every class by its name.
CLASSES: Mapping[str, ErrorClass] = MappingProxyType({found.name: found for found in _TABLE})

#: The advice where what failed ran in a sandbox, which may be why.
BOXED_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "missing": "A file, program or directory is not there, or its sandbox ({box}) does not show it. Put it in "
        "place, or add its path to sandbox.read, then: adw retry ID.",
        "permission": "The system or its sandbox ({box}) does not allow this. Change owner or mode of what it names, "
        "or add its path to sandbox.read or sandbox.write, then: adw retry ID.",
        "dependency": "A module cannot be imported, or its sandbox ({box}) does not show it. Install it with setup of "
        "the phase, or add its path to sandbox.read, then: adw retry ID.",
        "network": "The service could not be reached. From its sandbox ({box}) only hosts of sandbox.egress can be, "
        "through the proxy; check network, proxy and address if this stays.",
    }
)

#: The advice for an error that names a category but no class of its own.
CATEGORY_ADVICE: Mapping[ErrorCategory, str] = MappingProxyType(
    {
        ErrorCategory.TRANSIENT: "A retry may work.",
        ErrorCategory.RATE_LIMIT: CLASSES["rate_limited"].advice,
        ErrorCategory.CONFIGURATION: CLASSES["config"].advice,
        ErrorCategory.RESOURCE: "Something is used up. It is retried after a clean-up.",
        ErrorCategory.FATAL: "A retry does not help. Read the message and the traceback.",
    }
)

#: Classes of a failure of the network, the forge or an agent's provider: the work itself has not failed.
OUTAGES = frozenset({"network", "server", "overloaded", "timeout", "rate_limited", "quota_window"})

#: From the mildest to the worst: a group of failures is as bad as the worst of them.
SEVERITY = (
    ErrorCategory.TRANSIENT,
    ErrorCategory.RATE_LIMIT,
    ErrorCategory.RESOURCE,
    ErrorCategory.CONFIGURATION,
    ErrorCategory.FATAL,
)


def worst(names: list[str]) -> str:
    """Return the class of *names* whose category is the worst, the first of equals; *names* is not empty."""
    return max(names, key=lambda name: SEVERITY.index(CLASSES[name].category))


# What numbers and names say about a failure: HTTP statuses, exit codes, signals, system errors, names of errors.
#
# Tables only. A code that does not decide is not in its table; then the patterns for texts below are tried.


_Code = TypeVar("_Code", int, str)


def _classes(**codes: tuple[_Code, ...]) -> Mapping[_Code, str]:
    """Return code -> class for the codes of each class."""
    return MappingProxyType({code: name for name, known in codes.items() for code in known})


#: Status of an HTTP answer -> class; the rest of 4xx is `invalid`, of 5xx `server`.
HTTP_STATUSES: Mapping[int, str] = _classes(
    auth=(401, 403, 407),
    billing=(402,),
    timeout=(408, 504),
    conflict=(409, 412),
    context=(413,),
    busy=(423, 425),
    rate_limited=(429,),
    refused=(451,),
    invalid=(501, 505),
    overloaded=(503, 529),
    disk=(507,),
)

#: The name an agent, an API or a gate gave to the failure -> class. The name of a class stands for itself.
SUBTYPES: Mapping[str, str] = _classes(
    auth=(
        "authentication_error",
        "authentication_failed",
        "fatalauthenticationerror",
        "oauth_org_not_allowed",
        "permission_error",
        "providerautherror",
    ),
    bad_output=(
        "error_max_structured_output_retries",
        "malformed_tool_use_exhausted",
        "structured_output_retry_exhausted",
    ),
    billing=("billing_error", "credits_required", "insufficient_quota"),
    budget=("budget_exhausted", "error_max_budget_usd"),
    context=(
        "context_length_exceeded",
        "contextoverflowerror",
        "max_output_tokens",
        "messageoutputlengtherror",
        "prompt_too_long",
        "request_too_large",
    ),
    denied=("permission_denials",),
    disk=("no_space_left",),
    failed=("unknown_session",),
    gate=("gate_failed",),
    interrupted=("fatalcancellationerror",),
    invalid=(
        "fatalinputerror",
        "image_error",
        "invalid_request",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
    ),
    killed=("aborted_streaming", "aborted_tools"),
    network=("connection_failed",),
    overloaded=("overloaded_error",),
    quota_window=("gousagelimiterror", "quota_exhausted", "terminalquotaerror", "usage_limit_reached"),
    rate_limited=("rate_limit", "rate_limit_error", "resource_exhausted", "retryablequotaerror"),
    server=("model_error", "server_error"),
    timeout=("timeout_error",),
    turns=("error_max_turns", "fatalturnlimitederror", "max_turns"),
)

#: Exit codes that mean the same for every program. 124 is that of timeout(1), 126 and 127 those of the shell, and
#: 128 + n that of a shell whose child was ended by signal n; git itself uses 128 and 129, so those say nothing.
EXIT_CODES: Mapping[int, str] = _classes(
    timeout=(124,),
    permission=(126,),
    missing=(127,),
    interrupted=(130,),
    crashed=(134, 135, 136, 139),
    killed=(137, 143),
)

#: Exit codes of one program alone. Gemini CLI also ends with an HTTP status, of which the system keeps the low 8 bits.
TOOL_EXIT_CODES: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "gemini": _classes(
            auth=(41, 145, 147),
            config=(44,),
            invalid=(42, 52, 55, 148),
            turns=(53,),
            rate_limited=(173,),
            server=(244,),
            overloaded=(247,),
        )
    }
)

#: Signals by number, as they are on Linux.
SIGNALS: Mapping[int, str] = _classes(interrupted=(2,), crashed=(4, 6, 7, 8, 11))

#: Number of a system error -> class.
ERRNOS: Mapping[int, str] = _classes(
    disk=(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    port=(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
    memory=(errno.ENOMEM, errno.ENOBUFS),
    descriptors=(errno.EMFILE, errno.ENFILE),
    network=(
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN, errno.ESHUTDOWN),
        *(errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.EHOSTUNREACH, errno.EHOSTDOWN),
    ),
    timeout=(errno.ETIMEDOUT,),
    busy=(errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EINTR, errno.EDEADLK),
    permission=(errno.EACCES, errno.EPERM, errno.EROFS),
    missing=(errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV),
    config=(
        *(errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOEXEC, errno.EXDEV),
        *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
    ),
    storage=(errno.EIO, errno.ESTALE),
)

#: Name of an exception's type, for those of libraries that adw need not load -> class.
TYPE_NAMES: Mapping[str, str] = _classes(
    auth=("AuthenticationError", "BadCredentialsException"),
    bad_output=("JSONDecodeError",),
    config=("TOMLDecodeError",),
    context=("ContextWindowExceededError",),
    database=("InterfaceError",),
    network=(
        *("APIConnectionError", "ConnectError", "MaxRetryError", "NewConnectionError", "ProtocolError", "ProxyError"),
        *("ChunkedEncodingError", "IncompleteRead", "TransportError", "URLError", "gaierror", "herror"),
    ),
    overloaded=("OverloadedError", "ServiceUnavailableError"),
    rate_limited=("RateLimitError", "RateLimitExceededException"),
    server=("InternalServerError",),
    timeout=("APITimeoutError", "TimeoutException", "TimeoutExpired"),
    tls=("SSLCertVerificationError",),
)


# What programs, services and agents write when they fail, and which class of failure that is.
#
# Phrases are matched as whole words, so "port" is not in "report", nor inside identifiers, options and paths.
# What a test runner says about tests, and names in quotes, are left out: they speak of the code. The text is only asked
# when nothing with a structure decided, and only that of something that failed.


#: How much of a text is looked at, from its end: what ended a run stands there. Lines without a word do not count.
LAST_LINES = 50
LAST_CHARACTERS = 8_000
#: The same for a class that ends all trying: output of tests is full of such words, so they must stand at the very end.
CLOSING_LINES = 5


#: A line about a test: its name and its result, or what an assertion compared.
_TEST_LINE = re.compile(
    r"^\s*+(?:(?:FAILED|PASSED|FAIL|PASS|ok|not ok \d+)\s.*|--- (?:FAIL|PASS|SKIP): .*|=== RUN .*|"
    r"test \S+ \.\.\. .*|[✓✔✕✗✘\u00d7●]\s.*|E\s+assert\b.*|(?:Expected|Received|Actual|Got|Want)(?: \w+)?:.*|"
    r".*\bexpected: ?<.*|.*\bAssertion(?:Failed)?Error\b.*|thread '.*' panicked at .*)$"
)
#: A name in quotes, such as 'timeout' in "unknown option 'timeout'"; codes (ENOENT) and the values of a dict are none.
_QUOTED_NAME = re.compile(r"(?<!['\"]: )(?:'(?=[\w.$-]*?[a-z])[\w.$-]++'|`[\w.:$-]*`|\u2018[\w.:$-]*\u2019)")


def _words(*alternatives: str) -> re.Pattern[str]:
    """Return a pattern that finds the alternatives as whole words: not in `test_timeout`, `--timeout`, `timeout.py`."""
    before, after = r"(?<![A-Za-z0-9_/\\-])", r"(?![A-Za-z0-9_]|\.[a-z]{1,4}\b|[/\\-]\w)"

    return re.compile(rf"{before}(?:{'|'.join(alternatives)}){after}", re.IGNORECASE | re.MULTILINE)


#: The name of an environment variable that holds a secret or an address; capitals only.
_VARIABLE = r"(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|PAT|URL|DSN|HOME))"


#: A status number counts only where the text says that it is one: "line 429" is none.
_STATUS = r"(?:http(?:/[\d.]+)?|status(?: code)?|code|api error|error|rejected|overloaded)[ :=(\"']{1,4}"


def _status(numbers: str) -> str:
    return rf"{_STATUS}(?:{numbers})"


_PORTS = r"ports?(?: \d+)?(?:(?:,| and|, and) \d+)*"


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
            r"(?:Generate\w*)?PerDay[\w-]*",
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
            r"rate[ -]limit(?:s|ed|ing)?",
            r"(?-i:[Rr]atelimit(?:ed)?)",
            r"(?:secondary_|api_)?rate_limit(?:_error|_exceeded|ed)",
            r"\"rate_limit\"",
            r"RateLimit(?:Error|Exceeded\w*)",
            r"too ?many ?requests(?:Exception)?",
            r"request limit exceeded",
            r"rate exceeded(?=[.!]*$)",
            r"quota exceeded for quota (?:metric|group)",
            r"reduce your request rate",
            r"(?:being|been|was|is) throttled",
            r"(?-i:(?:Throttling|SlowDown|RequestLimitExceeded)(?:Exception|Error)?)",
            r"temporarily limiting requests",
            r"abuse detection",
            r"RESOURCE_EXHAUSTED",
            r"RetryableQuotaError",
            r"E429",
            _status("429"),
        ),
    ),
    (
        "overloaded",
        _words(
            r"overloaded_error",
            # Not the overloaded functions of compilers.
            r"overloaded(?! (?:functions?|methods?|operators?|constructors?|member|signatures?|['\"\u2018`]))",
            r"is at capacity",
            r"high demand",
            r"service (?:is )?(?:currently |temporarily )?unavailable",
            r"(?-i:UNAVAILABLE)",
            _status("503|529"),
        ),
    ),
    (
        "auth",
        _words(
            r"authentication[ _](?:failed|error|required)",
            r"AuthenticationError",
            r"(?:invalid|incorrect|missing) (?:\w+ )?(?:api[ -]key|x-api-key|access token|bearer token)",
            r"api[ -]key (?:is )?(?:missing|required|not provided|not set)",
            r"no api[ -]key",
            r"not authenticated",
            r"incorrect or missing password",
            r"(?:unable to locate|could not load) credentials",
            r"host key verification failed",
            r"no valid credential sources?",
            r"(?:ExpiredToken|InvalidClientTokenId|UnrecognizedClient|AccessDenied|AuthorizationFailed)(?:Exception)?",
            r"(?:security )?token (?:included in the request is invalid|has expired)",
            r"not (?:currently )?have an active account selected",
            r"does not have (?:authorization|permission)",
            r"PERMISSION_DENIED",
            r"UNAUTHENTICATED",
            r"please run:? +(?:'az login'|gh auth login|`?gcloud auth login)",
            r"access denied",
            r"requested access to the resource is denied",
            r"is forbidden: user",
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
        _words(
            r"certificate[ _]verify[ _]failed",
            r"certificate has expired",
            r"self[- ]signed certificate",
            r"unable to get local issuer certificate",
        ),
    ),
    (
        "timeout",
        _words(
            r"timed[ -]out",
            # The word alone is also that of settings: "the timeout of the pool".
            r"(?:connect(?:ion)?|read|write|request|response|gateway|socket|handshake|i/o|idle|network|operation|query|"
            r"statement|lock|server|api|client\.?)[ -]?time-?out(?:Error|Exception)?s?",
            r"time-?out (?:error|exceeded|expired|reached|occurred|was reached|waiting|while|after|awaiting)",
            r"time-?out (?:of )?\d+ ?m?s",
            r"^(?:\w*error: )?time-?outs?(?=[.!]*$| (?:connecting|reading|in|on|at|from|when) |: )",
            r"(?<!undefined: )time-?out(?=[.!)]*$)",
            r"timeout_error",
            r"(?-i:(?:UND_)?ERR_(?:[A-Z]+_)*TIMEOUT)",
            r"DEADLINE_EXCEEDED",
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
            r"connection (?:was |is )?(?:refused|reset|closed|aborted|error|lost|broken|terminated|failed)",
            r"connection was non-properly terminated",
            r"connection to the server \S+ was refused",
            r"(?-i:(?:net::)?(?:ERR_)?CONNECTION_(?:REFUSED|RESET|CLOSED|ABORTED|FAILED))",
            r"(?:unable to|could not|couldn't) connect to (?:the )?(?:server|host|endpoint)",
            r"error connecting to",
            r"connection failure",
            r"(?:no|lost) connection to (?:\w+ ){0,2}(?:server|host|database)",
            r"connection to (?:the )?(?:server|host|database) (?:was )?lost",
            r"closed the connection unexpectedly",
            r"SSL_ERROR_SYSCALL",
            r"network request failed",
            r"(?:Connection|NewConnection|MaxRetry)Error",
            r"no such host",
            r"early eof",
            r"empty reply from server",
            r"unexpected disconnect",
            r"network (?:aborted|connectivity|timeout|unreachable)",
            r"(?:unable|failed) to connect",
            r"could not (?:connect|resolve (?:host(?:name)?|proxy))",
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
    (
        "disk",
        _words(
            r"no space left(?: on (?:the )?(?:device|disk))?",
            r"ENOSPC",
            r"(?:disk|file ?system|volume) (?:is )?full",
            r"disk quota exceeded",
            r"EDQUOT",
            r"(?:insufficient|not enough|out of) (?:free |available )?(?:disk|storage)(?: space| capacity)?",
            r"no (?:free |available )?disk space",
            r"disk space is low",
            r"enough (?:free |available )?space (?:on|in) (?:the )?(?:disk|drive|volume|device|/\S*)",
        ),
    ),
    (
        "port",
        _words(
            r"address already in use",
            r"EADDRINUSE",
            rf"{_PORTS} (?:is |are |was |were )?(?:already |currently )?in use",
            rf"{_PORTS} (?:is |are |was |were )(?:already )?(?:allocated|taken|occupied|busy)",
            r"already (?:running|listening) on port \d+",
            r"no (?:free|available|unused) ports?",
            r"no ports? (?:is |are )?(?:available|free|left)",
            r"(?:could not|cannot|can't|unable to|failed to) find (?:a|an|any) (?:free|available|unused|open) port",
        ),
    ),
    (
        "memory",
        _words(
            r"out of memory",
            r"cannot allocate memory",
            r"ENOMEM",
            r"(?:OutOf)?MemoryError",
            r"std::bad_alloc",
            r"OOM[- ]?killed",
        ),
    ),
    ("descriptors", _words(r"too many open files", r"EMFILE", r"ENFILE")),
    (
        "busy",
        _words(
            r"database is locked",
            r"resource (?:busy|temporarily unavailable)",
            r"EBUSY",
            r"unable to create '[^']*\.lock': file exists",
        ),
    ),
    (
        "dependency",
        _words(
            r"cannot import name",
            r"no module named",
            r"cannot find (?:module|package)",
            r"ModuleNotFoundError",
            r"no matching distribution found",
        ),
    ),
    (
        "missing",
        _words(
            r"no such file or directory",
            r"ENOENT",
            r"(?:file|directory|folder|path|command|program|executable|script|linker|spec|template)(?: \S+)? "
            r"(?:(?:was |is )?not found|is missing|missing(?=[.!]*$))",
            r"(?:file|directory|folder|path) (?:\S+ )?does not exist",
            r"file or directory not found",
            r"(?:plan|spec|state|config)_file (?:is )?missing",
            r"executable file not found",
            r"(?:/\S*/)?(?:ba|da|a|z)?sh: (?:line \d+: |\d+: )?[\w./-]+: not found",
            r"repository(?: \S+)? not found",
            r"(?:config )?profile \([^)]*\) could not be found",
            r"could not find \S+ in \S+ or any parent directory",
            # In a sentence that says what was left out, it is no failure.
            r"(?<!as it )(?:is|are) not installed",
            r"missing script",
            r"not (?:appear to be )?a git repository",
            r"404 Not Found - GET",
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
            rf"missing (?:the )?{_VARIABLE}",
            rf"{_VARIABLE}(?: environment variable)?(?: is)? (?:missing|required|empty|not set|not defined)",
            rf"{_VARIABLE}: unbound variable",
            rf"set(?:ting)? the {_VARIABLE} environment variable",
            r"following environment variables before",
            r"missing (?:required )?\S+ in (?:the )?(?:state|config(?:uration)?|settings|environment)",
            r"no \S+ found in (?:the )?(?:state|config(?:uration)?|settings|environment)",
            r"externally-managed-environment",
            r"missing required (?:field|key|setting|parameter|property)s?",
            r"(?:couldn't|could not|cannot) find (?:a |an |the )?(?:\S*config\S*|configuration)(?: file)?",
            r"failed to load config(?:uration)?",
            r"you must specify a region",
            r"dubious ownership",
            r"unable to auto-detect email address",
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
    lines = last_part(text).splitlines()
    end, closing = _without_code(lines), _without_code(lines[-CLOSING_LINES:])
    return next(
        (
            name
            for name, pattern in PATTERNS
            if (allowed is None or name in allowed) and pattern.search(end if CLASSES[name].is_recoverable else closing)
        ),
        None,
    )


def _without_code(lines: list[str]) -> str:
    """Return what *lines* say beside the results of tests and names in quotes."""
    return _QUOTED_NAME.sub("''", "\n".join(line for line in lines if _TEST_LINE.match(line) is None))


def refined(name: str, text: str) -> str:
    """Return the class that *text* makes of the class *name*, or *name* itself."""
    return class_of_text(text, REFINEMENTS.get(name, frozenset())) or name


def last_part(text: str, lines: int = LAST_LINES) -> str:
    """Return the last *lines* of *text* that say something."""
    return "\n".join([line for line in text[-LAST_CHARACTERS:].splitlines() if line.strip()][-lines:])


# When a server wants to be asked again, as its headers or its text say it.
#
# What cannot be read, or makes no sense, was not said. No clock is needed: a moment stays a moment until a caller that
# knows the time decides.


_IN_SOME_TIME = re.compile(
    r"\b(?:retry|try again) in (\d{1,9}(?:\.\d{1,12})?) ?(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?)\b", re.IGNORECASE
)
_RESET_AFTER = re.compile(
    r"\bresets? (?:after|in) (?=\d)(?:(\d{1,4})h ?)?(?:(\d{1,6})m ?)?(?:(\d{1,9})s)?(?![\da-z])", re.IGNORECASE
)
_RETRY_AFTER = re.compile(r"\bretry[-_ ]after[\"']?[:= ]{1,3}[\"']?(\d{1,9})\b", re.IGNORECASE)
_RESET_EPOCH = re.compile(r"\blimit reached\|(\d{10})\b", re.IGNORECASE)
_RESET_UTC = re.compile(r"\bresets? (?:at )?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?) ?(?:UTC|Z)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerWait:
    """After how many seconds, or at which moment, the server wants to be asked again."""

    seconds: float | None = None  #: from the answer on
    at: datetime | None = None


#: The server said nothing about it.
NOT_SAID = ServerWait()


def in_seconds(value: object) -> ServerWait:
    """Return the wait of *value* seconds; what is no number from 0 up was not said."""
    seconds = _number(value)
    return NOT_SAID if seconds is None else ServerWait(seconds=seconds)


def at_epoch(value: object) -> ServerWait:
    """Return the wait until *value*, seconds since 1970; what is no such moment was not said."""
    seconds = _number(value)
    try:
        return NOT_SAID if seconds is None else ServerWait(at=datetime.fromtimestamp(seconds, UTC))
    except (OverflowError, ValueError, OSError):
        return NOT_SAID


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]  # asked by trying
    except (TypeError, ValueError, OverflowError):
        return None

    return number if math.isfinite(number) and number >= 0 else None


def by_headers(headers: Mapping[str, str]) -> ServerWait:
    """Return what *headers*, with names in lower case, say: Retry-After, else X-RateLimit-Reset."""
    after = headers.get("retry-after")
    if after is None:
        # The reset is also sent while there are requests left; then it is not what we were refused for.
        is_used_up = headers.get("x-ratelimit-remaining", "0") == "0"
        return at_epoch(headers.get("x-ratelimit-reset")) if is_used_up else NOT_SAID
    told = in_seconds(after)
    if told is not NOT_SAID:
        return told
    try:
        moment = parsedate_to_datetime(after)
        return ServerWait(at=moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC))
    except (TypeError, ValueError, OverflowError):
        return NOT_SAID


def by_text(text: str) -> ServerWait:
    """Return what *text* says. A time of day without a zone is not taken: whose zone it is in is not known."""
    if match := _IN_SOME_TIME.search(text):
        unit = match[2].lower()
        return in_seconds(float(match[1]) * (0.001 if unit == "ms" else 60.0 if unit[0] == "m" else 1.0))
    if match := _RESET_AFTER.search(text):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return in_seconds(hours * 3600 + minutes * 60 + seconds)
    if match := _RETRY_AFTER.search(text):
        return in_seconds(match[1])
    if match := _RESET_EPOCH.search(text):
        return at_epoch(match[1])
    if match := _RESET_UTC.search(text):
        try:
            return ServerWait(at=datetime.fromisoformat(match[1]).replace(tzinfo=UTC))
        except ValueError:
            return NOT_SAID

    return NOT_SAID
