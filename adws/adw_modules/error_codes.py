"""
What numbers and names say about a failure: HTTP statuses, exit codes, signals, system errors, names of errors.

Tables only. A code that does not decide is not in its table; then the text is asked (`error_patterns`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType

#: Status of an HTTP answer -> class; the rest of 4xx is `invalid`, of 5xx `server`.
HTTP_STATUSES: Mapping[int, str] = MappingProxyType(
    {
        401: "auth",
        402: "billing",
        403: "auth",
        407: "auth",
        408: "timeout",
        409: "conflict",
        412: "conflict",
        413: "context",
        423: "busy",
        425: "busy",
        429: "rate_limited",
        451: "refused",
        501: "invalid",
        503: "overloaded",
        504: "timeout",
        505: "invalid",
        507: "disk",
        529: "overloaded",
    }
)

#: The name an agent, an API or a gate gave to the failure -> class. The name of a class stands for itself.
SUBTYPES: Mapping[str, str] = MappingProxyType(
    {
        "aborted_streaming": "killed",
        "aborted_tools": "killed",
        "authentication_error": "auth",
        "authentication_failed": "auth",
        "billing_error": "billing",
        "budget_exhausted": "budget",
        "connection_failed": "network",
        "context_length_exceeded": "context",
        "contextoverflowerror": "context",
        "credits_required": "billing",
        "error_max_budget_usd": "budget",
        "error_max_structured_output_retries": "bad_output",
        "error_max_turns": "turns",
        "fatalauthenticationerror": "auth",
        "fatalcancellationerror": "interrupted",
        "fatalinputerror": "invalid",
        "fatalturnlimitederror": "turns",
        "gate_failed": "gate",
        "gousagelimiterror": "quota_window",
        "image_error": "invalid",
        "insufficient_quota": "billing",
        "invalid_request": "invalid",
        "invalid_request_error": "invalid",
        "malformed_tool_use_exhausted": "bad_output",
        "max_output_tokens": "context",
        "max_turns": "turns",
        "messageoutputlengtherror": "context",
        "model_error": "server",
        "model_not_found": "invalid",
        "no_space_left": "disk",
        "not_found_error": "invalid",
        "oauth_org_not_allowed": "auth",
        "overloaded_error": "overloaded",
        "permission_denials": "denied",
        "permission_error": "auth",
        "prompt_too_long": "context",
        "providerautherror": "auth",
        "quota_exhausted": "quota_window",
        "rate_limit": "rate_limited",
        "rate_limit_error": "rate_limited",
        "request_too_large": "context",
        "resource_exhausted": "rate_limited",
        "retryablequotaerror": "rate_limited",
        "server_error": "server",
        "structured_output_retry_exhausted": "bad_output",
        "terminalquotaerror": "quota_window",
        "timeout_error": "timeout",
        "unknown_session": "failed",
        "usage_limit_reached": "quota_window",
    }
)

#: Exit codes that mean the same for every program. 124 is that of timeout(1), 126 and 127 those of the shell, and
#: 128 + n that of a shell whose child was ended by signal n; git itself uses 128 and 129, so those say nothing.
EXIT_CODES: Mapping[int, str] = MappingProxyType(
    {
        124: "timeout",
        126: "permission",
        127: "missing",
        130: "interrupted",
        134: "crashed",
        135: "crashed",
        136: "crashed",
        137: "killed",
        139: "crashed",
        143: "killed",
    }
)

#: Exit codes of one program alone. Gemini CLI also ends with an HTTP status, of which the system keeps the low 8 bits.
TOOL_EXIT_CODES: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "gemini": MappingProxyType(
            {
                41: "auth",
                42: "invalid",
                44: "config",
                52: "invalid",
                53: "turns",
                55: "invalid",
                145: "auth",
                147: "auth",
                148: "invalid",
                173: "rate_limited",
                244: "server",
                247: "overloaded",
            }
        )
    }
)

#: Signals by number, as they are on Linux.
SIGNALS: Mapping[int, str] = MappingProxyType(
    {2: "interrupted", 4: "crashed", 6: "crashed", 7: "crashed", 8: "crashed", 11: "crashed"}
)

#: Number of a system error -> class.
ERRNOS: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "disk"),
        **dict.fromkeys((errno.EADDRINUSE, errno.EADDRNOTAVAIL), "port"),
        **dict.fromkeys((errno.ENOMEM, errno.ENOBUFS), "memory"),
        **dict.fromkeys((errno.EMFILE, errno.ENFILE), "descriptors"),
        **dict.fromkeys(
            (
                errno.ECONNREFUSED,
                errno.ECONNRESET,
                errno.ECONNABORTED,
                errno.EPIPE,
                errno.ENETUNREACH,
                errno.ENETDOWN,
                errno.ENETRESET,
                errno.EHOSTUNREACH,
                errno.EHOSTDOWN,
                errno.ENOTCONN,
                errno.ESHUTDOWN,
            ),
            "network",
        ),
        errno.ETIMEDOUT: "timeout",
        **dict.fromkeys((errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.EINTR, errno.EDEADLK), "busy"),
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "permission"),
        **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV), "missing"),
        **dict.fromkeys((errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOEXEC, errno.EXDEV), "config"),
        **dict.fromkeys((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), "config"),
        errno.EIO: "storage",
        errno.ESTALE: "storage",
    }
)

#: Name of an exception's type, for those of libraries that adw need not load -> class.
TYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "APIConnectionError": "network",
        "APITimeoutError": "timeout",
        "AuthenticationError": "auth",
        "BadCredentialsException": "auth",
        "ChunkedEncodingError": "network",
        "ConnectError": "network",
        "ContextWindowExceededError": "context",
        "IncompleteRead": "network",
        "InternalServerError": "server",
        "InterfaceError": "database",
        "JSONDecodeError": "bad_output",
        "MaxRetryError": "network",
        "NewConnectionError": "network",
        "OverloadedError": "overloaded",
        "ProtocolError": "network",
        "ProxyError": "network",
        "RateLimitError": "rate_limited",
        "RateLimitExceededException": "rate_limited",
        "SSLCertVerificationError": "tls",
        "ServiceUnavailableError": "overloaded",
        "TOMLDecodeError": "config",
        "TimeoutException": "timeout",
        "TimeoutExpired": "timeout",
        "TransportError": "network",
        "URLError": "network",
        "gaierror": "network",
        "herror": "network",
    }
)
