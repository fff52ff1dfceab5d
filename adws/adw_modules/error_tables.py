"""
The error categories and classes, and the tables of codes and patterns.

Tables only: `error_handler` recognises the class of an error.
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


class ErrorCategory(Enum):
    """How to continue after a failure."""

    TRANSIENT = "transient"  #: a retry may work soon
    RATE_LIMIT = "rate_limit"  #: a retry will work at the time the server names
    CONFIGURATION = "configuration"  #: fails until a person changes something
    RESOURCE = "resource"  #: may work after a clean-up
    FATAL = "fatal"  #: will not work


#: Categories that may be retried at all.
RETRYABLE = frozenset({ErrorCategory.TRANSIENT, ErrorCategory.RATE_LIMIT, ErrorCategory.RESOURCE})


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorClass:
    """A class of failures, finer than a category, and what it requires."""

    name: str
    category: ErrorCategory
    advice: str  #: one or two sentences for the person: what happened, what to do
    retry_delay: float | None = None  #: least seconds to wait unless the server names a time
    max_retries: int | None = None  #: how many retries can help; None: as many as allowed
    needs_person: bool = False

    @property
    def is_recoverable(self) -> bool:
        """Whether a retry can help."""
        return self.category in RETRYABLE


#: Category -> name of a finer class -> its advice.
_ADVICE: Mapping[ErrorCategory, Mapping[str, str]] = {
    ErrorCategory.RATE_LIMIT: {  # a quota is not a rate limit: its reset may be days away
        "rate_limited": "The server asked for fewer requests. adw waits as long as it was told; run fewer workflows at "
        "once if this comes often.",
        "quota_window": "The account's usage for this period is used up. adw continues after the reset; another "
        "account or model continues sooner.",
    },
    ErrorCategory.TRANSIENT: {
        "overloaded": "The service has too much to do. adw retries; another model may answer sooner.",
        "server": "The service failed by itself. adw retries; look at its status page if it stays.",
        "network": "The service could not be reached. Check network, proxy and address if this stays.",
        "timeout": "It took longer than its time limit. Raise the phase's timeout if the work needs longer.",
        "killed": "Something ended the process from outside: the system when memory ran out, or a person. See the "
        "system log.",
        "crashed": "The program itself crashed. If it does so again, update or replace it.",
        "busy": "Something else was using what is needed. adw retries.",
        "conflict": "Somebody else changed it at the same time. adw reads it again and repeats.",
        "database": "The database could not be used for the moment. Check that its server runs.",
        "failed": "The command or agent said that it failed. Read its output: adw logs ID.",
        "gate": "The phase did its work, but the gate did not let it pass. Read what the gate said: adw logs ID.",
        "no_effect": "It said that it worked, but nothing was changed. Say in the issue, or with a hint, what has to "
        "come out.",
        "bad_output": "Its answer could not be read as what was asked for. Read its output: adw logs ID.",
    },
    ErrorCategory.RESOURCE: {  # the clean-up comes first
        "disk": "The disk is full. Free some space: adw admin gc removes what finished workflows left.",
        "port": "The port is in use. adw takes another one; it never ends a program that it did not start.",
        "memory": "The machine has no memory left. Run fewer workflows at once.",
        "descriptors": "Too many files are open. Raise the limit (ulimit -n) or run fewer workflows at once.",
        "context": "The conversation no longer fits into the model. adw starts a new one; make the task smaller if "
        "that does not help.",
    },
    ErrorCategory.CONFIGURATION: {  # what a person has to change
        "config": "A setting is wrong. Correct it, then: adw retry ID.",
        "base": "A gate is red before any work was done. Fix it on the default branch, or set gates.base to compare or "
        "ignore, then: adw retry ID.",
        "auth": "The service does not accept the credentials. Log in or renew the token, then: adw retry ID.",
        "billing": "The account has no credit left, or its spending limit is reached. Pay, then: adw retry ID.",
        "budget": "The budget for this work is spent. If the work is worth more: adw retry ID --budget USD.",
        "turns": "The agent used all its turns. Allow more turns or make the task smaller, then: adw retry ID.",
        "invalid": "The service refused the request as it is. Correct what it names, then: adw retry ID.",
        "missing": "A file, program or directory is not there. Put it in place, then: adw retry ID.",
        "permission": "The system does not allow this. Change owner or mode of what it names, then: adw retry ID.",
        "dependency": "A module cannot be imported. Install it or correct the import, then: adw retry ID.",
        "tls": "The server's certificate is not trusted. Correct certificates or address, then: adw retry ID.",
        "denied": "The agent was not allowed to use a tool that it needs. Allow it, then: adw retry ID.",
        "version": "This adw and the stored data have different versions. Upgrade adw, then: adw retry ID.",
        "taken": "Another workflow has this issue. Wait for it or abandon it, then: adw retry ID.",
    },
    ErrorCategory.FATAL: {  # a retry does not help
        "bug": "A program error: the same call fails the same way. The traceback says where.",
        "refused": "The model declined the task by its policy. Reword the issue or do this part by hand.",
        "state": "The workflow's document needs attention first: adw admin verify says what is wrong.",
        "storage": "The disk reports errors. Check it before anything is written again.",
        "commit_unknown": "Whether the last change was stored is not known. Look (adw status ID) before it is "
        "repeated.",
        "unknown": "adw does not know this failure, so it does not repeat it. Read the message and the output (adw "
        "logs ID); if another attempt can help: adw retry ID.",
        "ownership": "Another process has taken this workflow over; this one stops.",
        "interrupted": "Somebody interrupted it. Continue with: adw resume ID.",
        "illegal": "The workflow does not allow this step now: adw status ID says what it does allow.",
    },
}
#: Least seconds to wait unless the server names a time; 5 after other transient failures.
_DELAYS = {
    "rate_limited": 60.0,
    "quota_window": 1800.0,
    "overloaded": 30.0,
    "busy": 1.0,
    "conflict": 1.0,
    "database": 1.0,
}
#: How many retries can help; for other classes, as many as allowed.
_MAX_RETRIES = {
    "rate_limited": 5,
    "quota_window": 5,
    "server": 3,
    "crashed": 1,
    "conflict": 3,
    "no_effect": 1,
    "bad_output": 2,
    "context": 1,
}
#: Fatal classes that a person has to look at; a wrong configuration always needs a person.
_FOR_A_PERSON = frozenset({"refused", "state", "storage", "commit_unknown"})

#: All classes by name.
CLASSES: Mapping[str, ErrorClass] = MappingProxyType(
    {
        name: ErrorClass(
            name=name,
            category=category,
            advice=advice,
            retry_delay=_DELAYS.get(name, 5.0 if category is ErrorCategory.TRANSIENT else None),
            max_retries=_MAX_RETRIES.get(name),
            needs_person=category is ErrorCategory.CONFIGURATION or name in _FOR_A_PERSON,
        )
        for category, classes in _ADVICE.items()
        for name, advice in classes.items()
    }
)

#: The advice for a failure in a sandbox, which may be its cause.
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

#: The advice for an error that has a category but no class.
CATEGORY_ADVICE: Mapping[ErrorCategory, str] = MappingProxyType(
    {
        ErrorCategory.TRANSIENT: "A retry may work.",
        ErrorCategory.RATE_LIMIT: CLASSES["rate_limited"].advice,
        ErrorCategory.CONFIGURATION: CLASSES["config"].advice,
        ErrorCategory.RESOURCE: "Something is used up. It is retried after a clean-up.",
        ErrorCategory.FATAL: "A retry does not help. Read the message and the traceback.",
    }
)

#: Classes for failures of the network, the forge or an agent's provider: the work itself has not failed.
OUTAGES = frozenset({"network", "server", "overloaded", "timeout", "rate_limited", "quota_window"})

#: From the mildest to the worst: a group of failures is as bad as its worst one.
SEVERITY = (
    ErrorCategory.TRANSIENT,
    ErrorCategory.RATE_LIMIT,
    ErrorCategory.RESOURCE,
    ErrorCategory.CONFIGURATION,
    ErrorCategory.FATAL,
)


def worst(names: list[str]) -> str:
    """Return the class of *names* with the worst category, the first of equals; *names* is not empty."""
    return max(names, key=lambda name: SEVERITY.index(CLASSES[name].category))


# --- numbers and names: those missing from their table do not decide, and the phrases for texts below are tried -------


def _classes(**codes: tuple[int, ...]) -> Mapping[int, str]:
    """Return code -> class, from the codes of each class."""
    return MappingProxyType({code: klass for klass, known in codes.items() for code in known})


def _named(**names: str) -> Mapping[str, str]:
    """Return name -> class, from the names of each class, separated by blanks."""
    return MappingProxyType({name: klass for klass, known in names.items() for name in known.split()})


#: HTTP status -> class; the rest of 4xx is `invalid`, of 5xx `server`.
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

#: The name an agent, an API or a gate gave to the failure -> class. The name of a class means that class.
SUBTYPES: Mapping[str, str] = _named(
    auth="authentication_error authentication_failed fatalauthenticationerror oauth_org_not_allowed permission_error "
    "providerautherror",
    bad_output="error_max_structured_output_retries malformed_tool_use_exhausted structured_output_retry_exhausted",
    billing="billing_error credits_required insufficient_quota",
    budget="budget_exhausted error_max_budget_usd",
    context="context_length_exceeded contextoverflowerror max_output_tokens messageoutputlengtherror prompt_too_long "
    "request_too_large",
    denied="permission_denials",
    disk="no_space_left",
    failed="unknown_session",
    gate="gate_failed",
    interrupted="fatalcancellationerror",
    invalid="fatalinputerror image_error invalid_request invalid_request_error model_not_found not_found_error",
    killed="aborted_streaming aborted_tools",
    network="connection_failed",
    overloaded="overloaded_error",
    quota_window="gousagelimiterror quota_exhausted terminalquotaerror usage_limit_reached",
    rate_limited="rate_limit rate_limit_error resource_exhausted retryablequotaerror",
    server="model_error server_error",
    timeout="timeout_error",
    turns="error_max_turns fatalturnlimitederror max_turns",
)

#: Exit codes with the same meaning for every program. 124 is from timeout(1), 126 and 127 from the shell, and 128 + n
#: from a shell whose child was ended by signal n; git itself uses 128 and 129, so those say nothing.
EXIT_CODES: Mapping[int, str] = _classes(
    timeout=(124,),
    permission=(126,),
    missing=(127,),
    interrupted=(130,),
    crashed=(134, 135, 136, 139),
    killed=(137, 143),
)

#: Exit codes of one program. Gemini CLI also ends with an HTTP status, of which the system keeps the low 8 bits.
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

#: Linux signal number -> class.
SIGNALS: Mapping[int, str] = _classes(interrupted=(2,), crashed=(4, 6, 7, 8, 11))

#: errno -> class.
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

#: Name of an exception's type, for libraries that adw need not load -> class.
TYPE_NAMES: Mapping[str, str] = _named(
    auth="AuthenticationError BadCredentialsException",
    bad_output="JSONDecodeError",
    config="TOMLDecodeError",
    context="ContextWindowExceededError",
    database="InterfaceError",
    network="APIConnectionError ConnectError MaxRetryError NewConnectionError ProtocolError ProxyError "
    "ChunkedEncodingError IncompleteRead TransportError URLError gaierror herror",
    overloaded="OverloadedError ServiceUnavailableError",
    rate_limited="RateLimitError RateLimitExceededException",
    server="InternalServerError",
    timeout="APITimeoutError TimeoutException TimeoutExpired",
    tls="SSLCertVerificationError",
)


# --- what programs, services and agents write when they fail ----------------------------------------------------
#
# Phrases are matched as whole words, so "port" does not match in "report", nor in identifiers, options and paths. The
# results of tests, and names in quotes, are left out: they are about the code. The text is only read if no structure
# decided, and only for something that failed.


#: How much of the end of a text is read: it tells what ended a run. Lines without a word do not count.
LAST_LINES = 50
LAST_CHARACTERS = 8_000
#: The same for classes that end all retries: output of tests is full of such words, so they must be at the very end.
CLOSING_LINES = 5


#: A line about a test: its name and its result, or what an assertion compared.
_TEST_LINE = re.compile(
    r"^\s*+(?:(?:FAILED|PASSED|FAIL|PASS|ok|not ok \d+)\s.*|--- (?:FAIL|PASS|SKIP): .*|=== RUN .*|"
    r"test \S+ \.\.\. .*|[✓✔✕✗✘\u00d7●]\s.*|E\s+assert\b.*|(?:Expected|Received|Actual|Got|Want)(?: \w+)?:.*|"
    r".*\bexpected: ?<.*|.*\bAssertion(?:Failed)?Error\b.*|thread '.*' panicked at .*)$"
)
#: A name in quotes, such as 'timeout' in "unknown option 'timeout'"; not a code (ENOENT) or a value of a dict.
_QUOTED_NAME = re.compile(r"(?<!['\"]: )(?:'(?=[\w.$-]*?[a-z])[\w.$-]++'|`[\w.:$-]*`|\u2018[\w.:$-]*\u2019)")


#: What a phrase can include as `<NAME>`. A variable is one that holds a secret or a URL, in capitals only; a status
#: (`<STATUS 402|403>`) counts only if the text calls it a status: "line 429" does not.
_NAMES = {
    "<VARIABLE>": r"(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|PAT|URL|DSN|HOME))",
    "<PORTS>": r"ports?(?: \d+)?(?:(?:,| and|, and) \d+)*",
}
_STATUS = r"(?:http(?:/[\d.]+)?|status(?: code)?|code|api error|error|rejected|overloaded)[ :=(\"']{1,4}"


def _words(phrases: str) -> re.Pattern[str]:
    """Return a pattern that finds the phrases as whole words: not in `test_timeout`, `--timeout`, `timeout.py`."""
    for name, meaning in _NAMES.items():
        phrases = phrases.replace(name, meaning)
    phrases = re.sub(r"<STATUS ([^>]*)>", lambda status: f"{_STATUS}(?:{status[1]})", phrases)
    lines = [line.strip() for line in phrases.splitlines()]
    before, after = r"(?<![A-Za-z0-9_/\\-])", r"(?![A-Za-z0-9_]|\.[a-z]{1,4}\b|[/\\-]\w)"
    choice = "|".join(line for line in lines if line and not line.startswith("# "))

    return re.compile(f"{before}(?:{choice}){after}", re.IGNORECASE | re.MULTILINE)


#: Class -> its phrases, one per line, except lines that begin with `# `. More specific classes come first. A limit that
#: ends in seconds is no quota; an empty account is no limit.
_PHRASES: Mapping[str, str] = {
    "quota_window": r"""
        usage limit reached
        (?:hit|reached|exceeded) your (?:[\w-]+ ){0,3}usage limit
        (?:hit|reached|exceeded) your (?:session|daily|weekly|monthly|opus|sonnet|haiku|\d+-hour) limit
        (?:session|daily|weekly|monthly|\d+-hour) (?:usage )?limit (?:reached|exceeded)
        (?:daily|weekly|monthly) usage limit
        QUOTA_EXHAUSTED
        TerminalQuotaError
        GoUsageLimitError
        (?:Generate\w*)?PerDay[\w-]*
        exhausted your (?:daily quota|capacity)
    """,
    "billing": r"""
        credit balance is too low
        (?:out of|insufficient|no remaining) credits?
        credits? (?:exhausted|required)
        credits_required
        billing_error
        insufficient_quota
        (?:spend|spending) (?:cap|limit)
        check your plan and billing
        payment required
        with your \w+ plan, upgrade to
        billing (?:is )?(?:not enabled|disabled|hard limit)
        <STATUS 402>
    """,
    "context": r"""
        prompt is too long
        prompt_too_long
        context_length_exceeded
        (?:maximum )?context (?:length|window) (?:is )?exceeded
        exceeds? the (?:model'?s )?(?:maximum )?context (?:length|window)
        ran out of room in the model
        ContextWindowExceeded(?:Error)?
        ContextOverflowError
        input is too long
    """,
    "budget": r"""
        error_max_budget_usd
        budget_exhausted
        (?:maximum|max) budget (?:reached|exceeded)
    """,
    "turns": r"""
        error_max_turns
        reached (?:the )?max(?:imum)?(?: number of)?(?: session)? (?:turns|actions)
    """,
    "refused": r"""
        usage policy
        CyberPolicy
        content policy
        (?:blocked|declined) (?:by|for) safety
    """,
    "rate_limited": r"""
        rate[ -]limit(?:s|ed|ing)?
        (?-i:[Rr]atelimit(?:ed)?)
        (?:secondary_|api_)?rate_limit(?:_error|_exceeded|ed)
        \"rate_limit\"
        RateLimit(?:Error|Exceeded\w*)
        too ?many ?requests(?:Exception)?
        request limit exceeded
        rate exceeded(?=[.!]*$)
        quota exceeded for quota (?:metric|group)
        reduce your request rate
        (?:being|been|was|is) throttled
        (?-i:(?:Throttling|SlowDown|RequestLimitExceeded)(?:Exception|Error)?)
        temporarily limiting requests
        abuse detection
        RESOURCE_EXHAUSTED
        RetryableQuotaError
        E429
        <STATUS 429>
    """,
    "overloaded": r"""
        overloaded_error
        # Not the overloaded functions of compilers.
        overloaded(?! (?:functions?|methods?|operators?|constructors?|member|signatures?|['\"\u2018`]))
        is at capacity
        high demand
        service (?:is )?(?:currently |temporarily )?unavailable
        (?-i:UNAVAILABLE)
        <STATUS 503|529>
    """,
    "auth": r"""
        authentication[ _](?:failed|error|required)
        AuthenticationError
        (?:invalid|incorrect|missing) (?:\w+ )?(?:api[ -]key|x-api-key|access token|bearer token)
        api[ -]key (?:is )?(?:missing|required|not provided|not set)
        no api[ -]key
        not authenticated
        incorrect or missing password
        (?:unable to locate|could not load) credentials
        host key verification failed
        no valid credential sources?
        (?:ExpiredToken|InvalidClientTokenId|UnrecognizedClient|AccessDenied|AuthorizationFailed)(?:Exception)?
        (?:security )?token (?:included in the request is invalid|has expired)
        not (?:currently )?have an active account selected
        does not have (?:authorization|permission)
        PERMISSION_DENIED
        UNAUTHENTICATED
        please run:? +(?:'az login'|gh auth login|`?gcloud auth login)
        access denied
        requested access to the resource is denied
        is forbidden: user
        api key not valid
        not logged in
        please run /login
        oauth token (?:has expired|revoked|is invalid)
        bad credentials
        could not read username
        permission denied \(publickey\)
        unauthorized
        <STATUS 401|403>
    """,
    "tls": r"""
        certificate[ _]verify[ _]failed
        certificate has expired
        self[- ]signed certificate
        unable to get local issuer certificate
    """,
    "timeout": r"""
        timed[ -]out
        # The word alone is also that of settings: "the timeout of the pool".
        (?:connect(?:ion)?|read|write|request|response|gateway|socket|handshake|i/o)[ -]?time-?out(?:Error|Exception)?s?
        (?:idle|network|operation|query|statement|lock|server|api|client\.?)[ -]?time-?out(?:Error|Exception)?s?
        time-?out (?:error|exceeded|expired|reached|occurred|was reached|waiting|while|after|awaiting)
        time-?out (?:of )?\d+ ?m?s
        ^(?:\w*error: )?time-?outs?(?=[.!]*$| (?:connecting|reading|in|on|at|from|when) |: )
        (?<!undefined: )time-?out(?=[.!)]*$)
        timeout_error
        (?-i:(?:UND_)?ERR_(?:[A-Z]+_)*TIMEOUT)
        DEADLINE_EXCEEDED
        ETIMEDOUT
        ESOCKETTIMEDOUT
        Timeout(?:Error|Exception|Expired)
        deadline exceeded
        <STATUS 408|504>
    """,
    "network": r"""
        connection (?:was |is )?(?:refused|reset|closed|aborted|error|lost|broken|terminated|failed)
        connection was non-properly terminated
        connection to the server \S+ was refused
        (?-i:(?:net::)?(?:ERR_)?CONNECTION_(?:REFUSED|RESET|CLOSED|ABORTED|FAILED))
        (?:unable to|could not|couldn't) connect to (?:the )?(?:server|host|endpoint)
        error connecting to
        connection failure
        (?:no|lost) connection to (?:\w+ ){0,2}(?:server|host|database)
        connection to (?:the )?(?:server|host|database) (?:was )?lost
        closed the connection unexpectedly
        SSL_ERROR_SYSCALL
        network request failed
        (?:Connection|NewConnection|MaxRetry)Error
        no such host
        early eof
        empty reply from server
        unexpected disconnect
        network (?:aborted|connectivity|timeout|unreachable)
        (?:unable|failed) to connect
        could not (?:connect|resolve (?:host(?:name)?|proxy))
        ECONN(?:REFUSED|RESET|ABORTED)
        E(?:HOST|NET)UNREACH
        ENOTFOUND
        EAI_AGAIN
        EPIPE
        broken pipe
        network (?:error|is unreachable|is down|failure)
        no route to host
        name or service not known
        temporary failure in name resolution
        name resolution
        stream disconnected
        socket hang up
        remote end (?:closed|hung up)
        the remote end hung up
        fetch failed
    """,
    "server": r"""
        internal server error
        bad gateway
        server_error
        api_error
        <STATUS 500|502|520|52[1-4]>
    """,
    "disk": r"""
        no space left(?: on (?:the )?(?:device|disk))?
        ENOSPC
        (?:disk|file ?system|volume) (?:is )?full
        disk quota exceeded
        EDQUOT
        (?:insufficient|not enough|out of) (?:free |available )?(?:disk|storage)(?: space| capacity)?
        no (?:free |available )?disk space
        disk space is low
        enough (?:free |available )?space (?:on|in) (?:the )?(?:disk|drive|volume|device|/\S*)
    """,
    "port": r"""
        address already in use
        EADDRINUSE
        <PORTS> (?:is |are |was |were )?(?:already |currently )?in use
        <PORTS> (?:is |are |was |were )(?:already )?(?:allocated|taken|occupied|busy)
        already (?:running|listening) on port \d+
        no (?:free|available|unused) ports?
        no ports? (?:is |are )?(?:available|free|left)
        (?:could not|cannot|can't|unable to|failed to) find (?:a|an|any) (?:free|available|unused|open) port
    """,
    "memory": r"""
        out of memory
        cannot allocate memory
        ENOMEM
        (?:OutOf)?MemoryError
        std::bad_alloc
        OOM[- ]?killed
    """,
    "descriptors": r"""
        too many open files
        EMFILE
        ENFILE
    """,
    "busy": r"""
        database is locked
        resource (?:busy|temporarily unavailable)
        EBUSY
        unable to create '[^']*\.lock': file exists
    """,
    "dependency": r"""
        cannot import name
        no module named
        cannot find (?:module|package)
        ModuleNotFoundError
        no matching distribution found
    """,
    "missing": r"""
        no such file or directory
        ENOENT
        (?:file|directory|folder|path|command|program)(?: \S+)? (?:(?:was |is )?not found|is missing|missing(?=[.!]*$))
        (?:executable|script|linker|spec|template)(?: \S+)? (?:(?:was |is )?not found|is missing|missing(?=[.!]*$))
        (?:file|directory|folder|path) (?:\S+ )?does not exist
        file or directory not found
        (?:plan|spec|state|config)_file (?:is )?missing
        executable file not found
        (?:/\S*/)?(?:ba|da|a|z)?sh: (?:line \d+: |\d+: )?[\w./-]+: not found
        repository(?: \S+)? not found
        (?:config )?profile \([^)]*\) could not be found
        could not find \S+ in \S+ or any parent directory
        # In a sentence that says what was left out, it is no failure.
        (?<!as it )(?:is|are) not installed
        missing script
        not (?:appear to be )?a git repository
        404 Not Found - GET
        model_not_found
    """,
    "permission": r"""
        permission denied
        operation not permitted
        read-only file system
        EACCES
        EPERM
    """,
    "config": r"""
        (?:invalid|bad|missing|unknown|malformed) (?:config(?:uration)?|setting|option|flag|argument)s?
        config(?:uration)? (?:error|file not found|is (?:invalid|missing))
        (?:missing|required|undefined) environment variables?
        environment variables? [\w ]{1,60} (?:is|are) (?:missing|required|not set)
        missing (?:the )?<VARIABLE>
        <VARIABLE>(?: environment variable)?(?: is)? (?:missing|required|empty|not set|not defined)
        <VARIABLE>: unbound variable
        set(?:ting)? the <VARIABLE> environment variable
        following environment variables before
        missing (?:required )?\S+ in (?:the )?(?:state|config(?:uration)?|settings|environment)
        no \S+ found in (?:the )?(?:state|config(?:uration)?|settings|environment)
        externally-managed-environment
        missing required (?:field|key|setting|parameter|property)s?
        (?:couldn't|could not|cannot) find (?:a |an |the )?(?:\S*config\S*|configuration)(?: file)?
        failed to load config(?:uration)?
        you must specify a region
        dubious ownership
        unable to auto-detect email address
        unrecognized arguments?
    """,
}
#: Class -> pattern for texts, tried in this order.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("rate_limited", _words(r"please retry in \d+(?:\.\d+)? ?(?:ms|s|secs?|seconds?)")),
    *((name, _words(phrases)) for name, phrases in _PHRASES.items()),
)

#: A class -> the classes to which the text may refine it: a status alone often says too little.
REFINEMENTS: Mapping[str, AbstractSet[str]] = MappingProxyType(
    {
        "rate_limited": {"quota_window", "billing"},
        "auth": {"rate_limited", "quota_window", "billing", "refused"},
        "invalid": {"context", "billing", "auth", "refused", "quota_window"},
        "server": {"overloaded"},
    }
)


def class_of_text(text: str, allowed: AbstractSet[str] | None = None) -> str | None:
    """Return the first class, of *allowed* if given, whose phrases occur at the end of *text*, or None."""
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
    """Return *lines* without results of tests and names in quotes."""
    return _QUOTED_NAME.sub("''", "\n".join(line for line in lines if _TEST_LINE.match(line) is None))


def refined(name: str, text: str) -> str:
    """Return the class to which *text* refines the class *name*, or *name* itself."""
    return class_of_text(text, REFINEMENTS.get(name, frozenset())) or name


def last_part(text: str, lines: int = LAST_LINES) -> str:
    """Return the last *lines* of *text* that are not blank."""
    return "\n".join([line for line in text[-LAST_CHARACTERS:].splitlines() if line.strip()][-lines:])


# --- when a server allows a retry, read from its headers or its text ----------------------------------------------
#
# Values that are unreadable or senseless are ignored. No clock is needed: a moment stays a moment until a caller that
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
    """The wait that a server asks for, in seconds or until a moment."""

    seconds: float | None = None  #: after the response
    at: datetime | None = None


#: The server named no wait.
NOT_SAID = ServerWait()


def in_seconds(value: object) -> ServerWait:
    """Return the wait of *value* seconds; NOT_SAID unless it is a number of at least 0."""
    seconds = _number(value)
    return NOT_SAID if seconds is None else ServerWait(seconds=seconds)


def at_epoch(value: object) -> ServerWait:
    """Return the wait until *value*, seconds since 1970; NOT_SAID if it is not such a moment."""
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
    """Return the wait in *headers*, whose names are in lower case: Retry-After, else X-RateLimit-Reset."""
    after = headers.get("retry-after")
    if after is None:
        # The reset is also sent while requests are left; then it is not why the server refused.
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
    """Return the wait named in *text*. A time of day without a zone is ignored: its zone is unknown."""
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
