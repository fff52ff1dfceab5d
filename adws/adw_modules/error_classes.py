"""
The kinds of failure: five categories that say how to go on, and finer classes that say what to tell a person.

One table, and nothing else: how a class is recognised stands in `error_evidence` and `error_patterns`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class ErrorCategory(Enum):
    """How to go on after a failure."""

    TRANSIENT = "transient"  #: the same may work soon
    RATE_LIMIT = "rate_limit"  #: the same will work at the time the server says
    CONFIGURATION = "configuration"  #: it will not work before a person changes something
    RESOURCE = "resource"  #: it may work after a clean-up
    FATAL = "fatal"  #: it will not work


#: What may be tried again at all.
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
        "The account's usage for this period is used up. adw goes on after the reset; another account or model goes on "
        "sooner.",
        delay=1800.0,
    ),
    # --- transient
    _transient(
        "overloaded", "The service has too much to do. adw tries again; another model may answer sooner.", delay=30.0
    ),
    _transient(
        "server", "The service failed by itself. adw tries again; look at its status page if it stays.", retries=3
    ),
    _transient("network", "The service could not be reached. Check network, proxy and address if this stays."),
    _transient("timeout", "It took longer than its time limit. Raise the phase's timeout if the work needs longer."),
    _transient(
        "killed",
        "Something ended the process from outside: the system when memory ran out, or a person. See the system log.",
    ),
    _transient("crashed", "The program itself crashed. If it does so again, update or replace it.", retries=1),
    _transient("busy", "Something else was using what is needed. adw tries again.", delay=1.0),
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
    _transient(
        "unknown",
        "adw does not know this failure; it tries once more. Read the message and the output: adw logs ID.",
        retries=1,
    ),
    # --- resources: the clean-up comes first
    _resource("disk", "The disk is full. Free some space: adw gc removes what finished workflows left."),
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
        "state", "The workflow's document needs attention first: adw verify ID says what is wrong.", needs_person=True
    ),
    _fatal("storage", "The disk reports errors. Check it before anything is written again.", needs_person=True),
    _fatal(
        "commit_unknown",
        "Whether the last change was stored is not known. Look (adw status ID) before it is repeated.",
        needs_person=True,
    ),
    _fatal("ownership", "Another process has taken this workflow over; this one stops."),
    _fatal("interrupted", "Somebody interrupted it. It goes on with: adw resume ID."),
    _fatal("illegal", "The workflow does not allow this step now: adw explain ID says what it does allow."),
)

#: Every class by its name.
CLASSES: Mapping[str, ErrorClass] = MappingProxyType({found.name: found for found in _TABLE})

#: The advice for an error that names a category but no class of its own.
CATEGORY_ADVICE: Mapping[ErrorCategory, str] = MappingProxyType(
    {
        ErrorCategory.TRANSIENT: "This may work when it is tried again.",
        ErrorCategory.RATE_LIMIT: CLASSES["rate_limited"].advice,
        ErrorCategory.CONFIGURATION: CLASSES["config"].advice,
        ErrorCategory.RESOURCE: "Something is used up. It is tried again after a clean-up.",
        ErrorCategory.FATAL: "Trying again does not help. Read the message and the traceback.",
    }
)

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
