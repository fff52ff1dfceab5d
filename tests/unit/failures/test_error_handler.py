"""Failures are classified by what they carry, and the answer keeps the real error."""

from __future__ import annotations

import errno
import json
import subprocess
import urllib.error
from email.message import Message
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import errors, external_tasks
from adws.adw_modules.error_handler import (
    BUILT_IN_TYPES,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    OWN_TYPES,
    TIMED_CLASSES,
    ErrorClassifier,
    ErrorFacts,
    WorkflowError,
    describe,
    facts_of,
)
from adws.adw_modules.error_tables import (
    CATEGORY_ADVICE,
    CLASSES,
    ERRNOS,
    EXIT_CODES,
    HTTP_STATUSES,
    RETRYABLE,
    SEVERITY,
    SIGNALS,
    SUBTYPES,
    TOOL_EXIT_CODES,
    TYPE_NAMES,
    ErrorCategory,
    worst,
)
from adws.adw_modules.errors import FailedRun, RunFailed


def _class(exception):
    return describe(exception, "build").klass


def _raised(exception):
    """Return *exception* as it is after it was raised."""
    try:
        raise exception
    except type(exception) as exc:
        return exc


class HttpError(Exception):
    """What a library for HTTP raises."""

    def __init__(self, status, text="", headers=None):
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class Stubborn(Exception):
    """An exception that does not want to be looked at."""

    @property
    def status(self):
        raise RuntimeError("no")

    @property
    def headers(self):
        raise ValueError("no")

    def __str__(self):
        raise TypeError("no")


# --- the tables ------------------------------------------------------------------------------------------------


def test_every_code_names_a_class():
    tables = [HTTP_STATUSES, SUBTYPES, EXIT_CODES, SIGNALS, ERRNOS, TYPE_NAMES, *TOOL_EXIT_CODES.values()]
    names = {name for table in tables for name in table.values()}
    names |= {name for _, name in (*OWN_TYPES, *BUILT_IN_TYPES)} | TIMED_CLASSES

    assert names <= set(CLASSES)


def test_every_class_has_advice_of_its_own():
    advice = [item.advice for item in CLASSES.values()]

    assert len(set(advice)) == len(advice)
    assert all(text.endswith(".") and len(text) < 200 for text in advice)


def test_what_is_not_retried_by_its_category_says_so():
    assert {name for name, item in CLASSES.items() if item.is_recoverable} == {
        name for name, item in CLASSES.items() if item.category in RETRYABLE
    }
    assert all(item.needs_person for item in CLASSES.values() if item.category is ErrorCategory.CONFIGURATION)
    assert set(SEVERITY) == set(ErrorCategory) == set(CATEGORY_ADVICE)


def test_of_several_failures_the_worst_counts_and_the_first_of_equals():
    assert worst(["network", "billing", "auth", "disk"]) == "billing"
    assert worst(["network", "bug", "billing"]) == "bug"


# --- our own errors --------------------------------------------------------------------------------------------

TASK = external_tasks.ExternalTask(
    task_id="t", adw_id="x", phase="build", round=1, attempt_number=1, catalog_id="", deadline="rate limit"
)
OWN = [
    (errors.ConfigError("x"), "config"),
    (errors.UsageError("x"), "config"),
    (errors.InvalidAdwId("../x"), "config"),
    (errors.PlatformUnsupported(), "config"),
    (errors.BadWorkflowGraph("x"), "config"),
    (errors.IllegalTransition("a", "b", []), "illegal"),
    (errors.RetriesExhausted(3, 3), "illegal"),
    (errors.StateNotFound("x"), "state"),
    (errors.StateExists("x"), "state"),
    (errors.StateInvalid("x"), "state"),
    (errors.StateCorrupt("x", "y"), "state"),
    (errors.StateUnserialisable("x"), "state"),
    (errors.UnsafePath("x"), "state"),
    (errors.StateWriteFailed("x", OSError(errno.ENOSPC, "full")), "disk"),
    (errors.StateReadFailed("x", OSError(errno.EACCES, "no")), "permission"),
    (errors.DurabilityUnknown("x", OSError(errno.EIO, "bad")), "storage"),
    (errors.StateConflict("x", 1, 2), "conflict"),
    (errors.Fenced("x", 1), "ownership"),
    (errors.NoMigrationPath("x"), "state"),
    (errors.NewerVersion("9", "3"), "version"),
    (errors.MigrationFailed("1", "2", ValueError("x")), "state"),
    (errors.WorkflowBusy("x", "y"), "busy"),
    (errors.IssueLocked(1, "x"), "taken"),
    (errors.LeaseLost(), "ownership"),
    (errors.RunLost(7), "ownership"),
    (errors.NotTheLockOwner("x", 1, "y"), "ownership"),
    (errors.LockUnavailable("x", OSError(errno.ENOLCK, "none")), "config"),
    (errors.LockUnavailable("x", OSError(errno.ENOSPC, "full")), "disk"),
    (errors.DatabaseUnavailable("x"), "database"),
    (errors.TransactionAborted("x"), "database"),
    (errors.DatabaseCorrupt("x", "y"), "state"),
    (errors.CommitUnknown("x", "y"), "commit_unknown"),
    (errors.SchemaMismatch("x"), "version"),
    (errors.DatabaseMoved("x"), "config"),
    (errors.WorkflowInvalid("x"), "config"),
    (errors.UnknownWorkflow("x", ["y"]), "config"),
    (errors.RunNotFound(7), "config"),
    (errors.DemandsUnmet("it demands tag gpu"), "config"),
    (errors.StartRefused("issue 7 is closed"), "config"),
    (errors.PullRequestOpen(7, pr_number=8, adw_id="1a2b3c4d"), "config"),
    (errors.RepositoryNotTrusted("detected dubious ownership"), "config"),
    (errors.ClaimLost("t", "its deadline is over"), "ownership"),
    (errors.ForeignToken("t"), "ownership"),
    (errors.EventRefused("iteration 3 is completed already: it ends once"), "illegal"),
    (errors.ClaimHeld(TASK), "busy"),
    (errors.Overdue(TASK), "timeout"),
    (errors.TaskNotFound("t"), "config"),
    (errors.ExecutionNotFound("e"), "config"),
    (errors.DeliveryNotFound("72d3162e"), "config"),
    (errors.DeliveryConflict("72d3162e"), "conflict"),
    (errors.ExpressionError("there is no rate_limit", expression="rate_limit > 0"), "config"),
    (errors.SinkRefused("the table quota_exceeded has no column rate_limit"), "config"),
    (errors.GateFailed("test", "rate limit, disk full"), "gate"),
    (errors.ForgeBusy(30.0), "rate_limited"),
    (errors.TooManyRequests("mallory"), "rate_limited"),
    (errors.CircuitOpen("github", reason="disk full"), "overloaded"),
    (errors.ForgeUnavailable("no such file, disk full"), "server"),
    (errors.NotifyFailed("disk full"), "server"),
    (errors.ForgeNotFound("x"), "missing"),
    (errors.ForgeRefused(422, "rate limit"), "invalid"),
    (errors.ForgeRefused(401, "x"), "auth"),
    (errors.PathsNotAllowed("test", ["rate limit"]), "gate"),
    (errors.BaseRed("make test", "1a2b3c4d", "rate limit, disk full"), "base"),
    (errors.ShippingRefused("disk full"), "config"),
    (errors.NotOurs("disk full"), "config"),
    (errors.RepositoryTampered("build", "disk full"), "config"),
    (errors.RemoteChanged("origin", "file:///timeout", "file:///b"), "config"),
    (errors.FilterNotRun("a.key", "crypt"), "config"),
    (errors.PullRequestMerged(7), "config"),
    (errors.RollbackBlocked("disk full"), "busy"),
    (errors.RemoteRefused("disk full"), "auth"),
    (errors.GitUnreachable("disk full"), "network"),
    (errors.PortsExhausted("disk full"), "port"),
    (errors.QuotaExceeded("disk", "disk full"), "busy"),
    (errors.WorkElsewhere("1a2b3c4d", "far"), "busy"),
    (errors.SetupFailed(("make",), "disk full"), "failed"),
]

#: Errors that stand for many, and say what they are by their text, their number or their evidence.
WIDE = {"AdwError", "StateError", "OwnershipError", "DatabaseError", "BackupError", "RunFailed"}


def test_our_own_errors_have_their_class():
    assert [(type(error).__name__, _class(error)) for error, _ in OWN] == [
        (type(error).__name__, klass) for error, klass in OWN
    ]


def test_every_error_of_ours_has_a_class_of_failure():
    """A new error in errors.py needs a line in OWN_TYPES, and one above."""
    ours = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.AdwError)}

    tested = {base.__name__ for error, _ in OWN for base in type(error).__mro__}
    assert ours - tested - WIDE == set()


def test_a_forge_that_is_busy_is_asked_again_when_it_said():
    assert describe(errors.ForgeBusy(1800.0), "build").retry_delay == 1800.0


@pytest.mark.parametrize("error", [errors.Fenced("x", 1), errors.CommitUnknown("x", "y"), errors.LeaseLost()])
def test_an_owner_who_lost_the_workflow_or_does_not_know_never_just_repeats(error):
    assert not describe(error, "build").recoverable


# --- built-in and foreign errors -------------------------------------------------------------------------------


def test_an_error_is_known_by_its_number_or_type():
    for error, klass in [
        (OSError(errno.ENOSPC, "full"), "disk"),
        (OSError(errno.EADDRINUSE, "used"), "port"),
        (OSError(errno.EMFILE, "many"), "descriptors"),
        (OSError(errno.ECONNREFUSED, "no"), "network"),
        (OSError(errno.ETIMEDOUT, "late"), "timeout"),
        (OSError(errno.EIO, "bad"), "storage"),
        (PermissionError(errno.EACCES, "no"), "permission"),
        (FileNotFoundError(errno.ENOENT, "none"), "missing"),
        (FileNotFoundError("none"), "missing"),
        (PermissionError("none"), "permission"),
        (TimeoutError(), "timeout"),
        (ConnectionResetError(), "network"),
        (InterruptedError(), "busy"),
        (OSError(99_999, "strange"), "unknown"),
        (MemoryError(), "memory"),
        (ImportError("cannot import name 'x'"), "dependency"),
        (TypeError("unsupported operand type(s) for +"), "bug"),
        (KeyError("config"), "bug"),
        (AssertionError("rate limit"), "bug"),
        (ZeroDivisionError(), "bug"),
        (NotImplementedError(), "bug"),
        (RecursionError(), "bug"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(), "failed"),
        (SystemExit(1), "failed"),
        (SystemExit(127), "missing"),
        (SystemExit("rate limit exceeded"), "rate_limited"),
        (json.JSONDecodeError("x", "y", 0), "bad_output"),
        (type("RateLimitError", (Exception,), {})("slow"), "rate_limited"),
        (type("ReadTimeout", (type("TimeoutException", (Exception,), {}),), {})(), "timeout"),
        (subprocess.TimeoutExpired("x", 3), "timeout"),
        (RuntimeError("fail"), "unknown"),
        (ValueError("what"), "unknown"),
    ]:
        assert _class(error) == klass, error


def test_structure_decides_before_text_and_an_error_without_a_message_gets_one():
    assert _class(ConnectionResetError("401 unauthorized: bad config, disk full")) == "network"
    assert _class(type("E", (Exception,), {"code": 429})("x")) == "unknown"  # a code without headers is no status
    error = ErrorClassifier.classify(TypeError(), "build")
    assert (error.message, error.category, error.recoverable) == (
        "TypeError without a message",
        ErrorCategory.FATAL,
        False,
    )
    assert set(error.metadata) == {"class", "advice"}  # a fatal error asks for nothing


def test_an_http_status_decides():
    for status, klass in [
        *((400, "invalid"), (401, "auth"), (402, "billing"), (403, "auth"), (404, "invalid"), (408, "timeout")),
        *((409, "conflict"), (413, "context"), (422, "invalid"), (429, "rate_limited"), (451, "refused")),
        *((500, "server"), (501, "invalid"), (502, "server"), (503, "overloaded"), (504, "timeout"), (507, "disk")),
        *(
            (529, "overloaded"),
            (599, "server"),
            (301, "invalid"),
            (200, "unknown"),
            (600, "unknown"),
            (True, "unknown"),
        ),
    ]:
        assert _class(HttpError(status)) == klass, status


@pytest.mark.parametrize(
    "error",
    [
        HttpError(429),
        type("E", (Exception,), {"status_code": 429})(),
        type("E", (Exception,), {"http_status": 429})(),
        type("E", (Exception,), {"response": SimpleNamespace(status_code=429)})(),
        urllib.error.HTTPError("http://x", 429, "slow", Message(), None),
    ],
    ids=["status", "status_code", "http_status", "response", "urllib"],
)
def test_a_status_is_found_where_libraries_keep_it(error):
    facts = describe(error, "build")

    assert facts.klass == "rate_limited"
    assert facts.metadata["http_status"] == 429


@pytest.mark.parametrize(
    ("text", "headers", "klass"),
    [
        ("Resource not accessible", {}, "auth"),
        ("You have exceeded a secondary rate limit", {}, "rate_limited"),
        ("Forbidden", {"Retry-After": "60"}, "rate_limited"),
        ("Forbidden", {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1794794537"}, "rate_limited"),
        ("Forbidden", {"X-RateLimit-Remaining": "17", "X-RateLimit-Reset": "1794794537"}, "auth"),
    ],
)
def test_a_403_is_a_rate_limit_only_when_it_says_so(text, headers, klass):
    assert _class(HttpError(403, text, headers)) == klass


def test_the_time_the_server_names_goes_into_the_metadata():
    in_seconds = describe(HttpError(429, "", {"retry-after": "17"}), "ship")
    at_reset = describe(HttpError(403, "", {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1794794537"}), "ship")
    response = SimpleNamespace(status_code=503, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})
    at_date = describe(type("E", (Exception,), {"response": response})(), "ship")

    assert (in_seconds.retry_delay, in_seconds.metadata["retry_delay_from"]) == (17.0, "server")
    assert at_reset.metadata["retry_at"] == "2026-11-16T02:02:17.000000Z"
    assert at_date.metadata["retry_at"] == "2026-10-21T07:28:00.000000Z"


def test_a_text_may_name_the_time_where_the_failure_has_one():
    told = describe(Exception("Rate limit reached. Please try again in 20s."), "build")
    talk = describe(Exception("connection refused, try again in 20s"), "build")

    assert (told.retry_delay, told.metadata["retry_delay_from"]) == (20.0, "server")
    assert (talk.retry_delay, "retry_delay_from" in talk.metadata) == (5.0, False)


# --- failed runs -----------------------------------------------------------------------------------------------


def test_a_failed_run_is_known_by_what_ended_it():
    for run, klass in [
        (FailedRun(exit_code=1), "failed"),
        (FailedRun(), "failed"),
        (FailedRun(exit_code=1, text="Credit balance is too low"), "billing"),
        (FailedRun(exit_code=127), "missing"),
        (FailedRun(exit_code=126), "permission"),
        (FailedRun(exit_code=124), "timeout"),
        (FailedRun(exit_code=137), "killed"),
        (FailedRun(exit_code=143), "killed"),
        (FailedRun(exit_code=139), "crashed"),
        (FailedRun(exit_code=130), "interrupted"),
        (FailedRun(exit_code=128, text="fatal: could not read Username"), "auth"),
        (FailedRun(exit_code=129), "failed"),
        (FailedRun(exit_code=41), "failed"),
        (FailedRun(exit_code=41, tool="gemini"), "auth"),
        (FailedRun(exit_code=53, tool="gemini"), "turns"),
        (FailedRun(exit_code=52, tool="gemini"), "invalid"),
        (FailedRun(exit_code=55, tool="gemini"), "invalid"),
        (FailedRun(exit_code=54, tool="gemini", subtype="no_space_left"), "disk"),
        (FailedRun(exit_code=1, subtype="FatalTurnLimitedError"), "turns"),
        (FailedRun(exit_code=1, subtype="connection_failed"), "network"),
        (FailedRun(exit_code=1, subtype="usage_limit_reached", http_status=429), "quota_window"),
        (FailedRun(exit_code=1, subtype="unknown_session", text="rate limit"), "failed"),
        (FailedRun(exit_code=1, text="To use Codex with your ChatGPT plan, upgrade to Plus"), "billing"),
        (FailedRun(exit_code=1, text="Monthly usage limit: nothing left"), "quota_window"),
        (FailedRun(exit_code=173, tool="gemini"), "rate_limited"),
        (FailedRun(exit_code=173, tool="gemini", text="limit PerDay"), "quota_window"),
        (FailedRun(exit_code=127, tool="gemini"), "missing"),
        (FailedRun(signal=9), "killed"),
        (FailedRun(signal=15), "killed"),
        (FailedRun(signal=11), "crashed"),
        (FailedRun(signal=2), "interrupted"),
        (FailedRun(timed_out="wall", signal=9), "timeout"),
        (FailedRun(timed_out="idle", exit_code=143), "timeout"),
        (FailedRun(subtype="error_max_turns", exit_code=1), "turns"),
        (FailedRun(subtype="error_max_budget_usd"), "budget"),
        (FailedRun(subtype="prompt_too_long"), "context"),
        (FailedRun(subtype="ProviderAuthError"), "auth"),
        (FailedRun(subtype="no_effect"), "no_effect"),
        (FailedRun(subtype="denied"), "denied"),
        (FailedRun(subtype="unknown", text="rate limit"), "rate_limited"),
        (FailedRun(subtype="failed", exit_code=137), "killed"),
        (FailedRun(subtype="success", http_status=401, exit_code=1), "auth"),
        (FailedRun(subtype="success", http_status=429, text="You've hit your 5-hour limit"), "quota_window"),
        (FailedRun(subtype="success", http_status=429, text="rejected (429)"), "rate_limited"),
        (FailedRun(subtype="success", http_status=400, text="Prompt is too long"), "context"),
        (FailedRun(subtype="rate_limit", text="You've hit your weekly limit"), "quota_window"),
        (FailedRun(http_status=200, text="overloaded"), "overloaded"),
    ]:
        assert _class(RunFailed(run)) == klass, run


def test_a_failed_run_says_how_it_ended():
    facts = describe(RunFailed(FailedRun(exit_code=3, subtype="x", text="one\ntwo: bad\n\n", tool="ruff")), "lint")

    assert facts.message == "ruff ended with exit code 3: two: bad"
    assert facts.metadata["exit_code"] == 3
    assert facts.metadata["subtype"] == "x"
    assert "signal" not in facts.metadata


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (FailedRun(timed_out="idle"), "the run was stopped because its time was over (idle)"),
        (FailedRun(signal=9), "the run was ended by signal 9"),
        (FailedRun(subtype="no_effect"), "the run failed (no_effect)"),
        (FailedRun(), "the run failed"),
    ],
)
def test_the_message_of_a_failed_run_names_its_end(run, message):
    assert str(RunFailed(run)) == message
    assert str(RunFailed(run, "my words")) == "my words"


RESET_TEXT = "2026-11-16T02:02:17.000000Z"


@pytest.mark.parametrize(
    ("run", "retry_at", "delay"),
    [
        (FailedRun(subtype="quota_window", resets_at=1794794537.0), RESET_TEXT, 1800.0),
        (FailedRun(subtype="quota_window", resets_at=1794794537.0, retry_after_seconds=5.0), RESET_TEXT, 1800.0),
        (FailedRun(subtype="quota_window", resets_at=float("nan"), retry_after_seconds=5.0), None, 5.0),
        (FailedRun(subtype="quota_window", resets_at=1e300), None, 1800.0),
        (FailedRun(subtype="quota_window", retry_after_seconds=7200.0), None, 7200.0),
        (FailedRun(subtype="auth", resets_at=1794794537.0), None, None),
    ],
)
def test_a_failed_run_brings_the_moment_at_which_a_quota_opens(run, retry_at, delay):
    facts = describe(RunFailed(run), "build")

    assert (facts.metadata.get("retry_at"), facts.retry_delay) == (retry_at, delay)
    assert facts.metadata.get("retry_delay_from") == ("server" if delay in (5.0, 7200.0) else None)


@pytest.mark.parametrize(
    ("error", "klass"),
    [
        (subprocess.CalledProcessError(-9, ["x"]), "killed"),
        (subprocess.CalledProcessError(127, ["x"]), "missing"),
        (subprocess.CalledProcessError(1, ["x"], stderr=b"fatal: bad credentials \xff"), "auth"),
        (subprocess.CalledProcessError(1, ["x"], output="connection refused"), "network"),
        (subprocess.CalledProcessError(1, ["x"]), "failed"),
    ],
)
def test_a_process_that_somebody_else_ran_is_known_too(error, klass):
    assert _class(error) == klass


# --- causes and groups -----------------------------------------------------------------------------------------


def _caused(error, cause):
    error.__cause__ = cause
    return error


def _chain_of(between):
    error = ConnectionResetError()
    for _ in range(between + 1):
        error = _caused(RuntimeError("x"), error)
    return error


def test_what_caused_an_error_decides_when_the_error_itself_does_not():
    for error, klass in [
        (_caused(RuntimeError("the step failed"), ConnectionResetError()), "network"),
        (_caused(RuntimeError("the step failed"), RuntimeError("rate limit")), "rate_limited"),
        (_caused(RuntimeError("rate limit"), OSError(errno.ENOSPC, "full")), "disk"),
        (_caused(RuntimeError("the step failed"), RunFailed(FailedRun(exit_code=1))), "failed"),
        (urllib.error.URLError(ConnectionRefusedError()), "network"),
        (_caused(RunFailed(FailedRun(exit_code=1)), SystemExit(1)), "failed"),
        (_caused(RuntimeError("the answer has no field x"), KeyError("x")), "unknown"),  # a translated lookup is no bug
        (_caused(KeyError("x"), ConnectionResetError()), "bug"),
        (_chain_of(6), "network"),  # a chain of causes is followed eight errors far
        (_chain_of(7), "unknown"),
    ]:
        assert _class(error) == klass, error


def test_a_circle_of_causes_ends():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first

    assert _class(first) == "unknown"


def test_a_group_is_as_bad_as_its_worst_member():
    group = ExceptionGroup("two", [ConnectionResetError(), ExceptionGroup("in", [HttpError(401), TimeoutError()])])

    facts = describe(group, "build")

    assert (facts.klass, facts.metadata["http_status"]) == ("auth", 401)


def test_a_stranger_that_cannot_be_asked_is_unknown():
    facts = describe(_raised(Stubborn()), "build")

    assert facts.klass == "unknown"
    assert facts.message == "<Stubborn: no text, TypeError>"
    assert "test_error_handler.py" in facts.traceback


@given(
    st.builds(
        lambda text, kind, values: type("E", (kind,), values)(text),
        st.text(),
        st.sampled_from([Exception, OSError, ValueError, TimeoutError, errors.AdwError]),
        st.dictionaries(
            st.sampled_from(["status", "code", "headers", "returncode", "stderr", "response", "errno", "reason"]),
            st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.dictionaries(st.text(), st.text())),
        ),
    )
)
def test_every_exception_has_an_answer_that_json_can_hold(error):
    facts = describe(error, "build")

    assert facts.klass in CLASSES
    assert ErrorFacts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False))) == facts


# --- the answer ------------------------------------------------------------------------------------------------


def test_an_error_keeps_cause_and_traceback():
    cause = _raised(ValueError("broken"))

    error = ErrorClassifier.classify(cause, "test")

    assert error.__cause__ is cause
    assert (error.message, error.phase, str(error)) == ("broken", "test", "broken")
    assert "ValueError: broken" in error.traceback
    assert "in _raised" in error.traceback
    assert "NoneType" not in error.traceback


def test_an_error_that_was_never_raised_has_a_traceback_without_lines():
    error = WorkflowError("x", ErrorCategory.FATAL, "build")

    assert error.traceback == "adws.adw_modules.error_handler.WorkflowError: x\n"


def test_what_is_classified_stays_as_it_is():
    error = WorkflowError("disk full, rate limit", ErrorCategory.FATAL, "build")

    assert ErrorClassifier.classify(error, "ship") is error


def test_what_was_classified_once_is_not_guessed_again_when_it_is_wrapped():
    said = WorkflowError("x", ErrorCategory.RESOURCE, "build", recoverable=True, metadata={"retry_delay": 7})
    wrapped = _caused(RuntimeError("401 unauthorized"), _caused(TypeError("y"), said))

    error = ErrorClassifier.classify(wrapped, "ship")

    assert (error.message, error.phase) == ("401 unauthorized", "ship")
    assert (error.category, error.recoverable, error.metadata) == (ErrorCategory.RESOURCE, True, {"retry_delay": 7})
    assert error.__cause__ is wrapped


def test_the_fields_of_a_workflow_error_have_defaults():
    given_metadata = {"a": 1}
    error = WorkflowError("x", "transient", "build", metadata=given_metadata)
    given_metadata["a"] = 2

    assert error.category is ErrorCategory.TRANSIENT
    assert (error.recoverable, error.metadata) == (False, {"a": 1})
    with pytest.raises(ValueError, match="banana"):
        WorkflowError("x", "banana", "build")


@pytest.mark.parametrize(
    ("text", "category", "recoverable", "metadata"),
    [
        ("rate limit", "rate_limit", True, {"retry_delay": 60}),
        ("no space left on device", "resource", True, {"requires_cleanup": True}),
        ("command not found", "configuration", False, {"requires_manual_intervention": True}),
        ("connection refused", "transient", True, {"retry_delay": 5}),
        ("prompt is too long", "resource", True, {"requires_cleanup": True, "fresh_session": True, "max_retries": 1}),
    ],
)
def test_the_metadata_say_what_the_failure_asks_for(text, category, recoverable, metadata):
    error = ErrorClassifier.classify(RuntimeError(text), "build")

    assert (error.category.value, error.recoverable) == (category, recoverable)
    assert {key: error.metadata.get(key) for key in metadata} == metadata
    asked = {"requires_cleanup", "requires_manual_intervention", "retry_delay"}
    assert asked & set(error.metadata) == asked & set(metadata)


def test_facts_of_an_error_that_names_only_a_category():
    facts = facts_of(WorkflowError("x", ErrorCategory.RESOURCE, "build", recoverable=True))

    assert (facts.klass, facts.advice) == ("resource", CATEGORY_ADVICE[ErrorCategory.RESOURCE])
    assert facts.needs_cleanup
    assert not facts.needs_person
    assert facts_of(WorkflowError("x", ErrorCategory.CONFIGURATION, "build")).needs_person


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), True, "5", None, 10**400, object()])
def test_a_delay_that_is_none_is_not_taken(delay):
    facts = facts_of(WorkflowError("x", ErrorCategory.TRANSIENT, "build", metadata={"retry_delay": delay}))

    assert facts.retry_delay is None
    json.dumps(facts.to_json(), allow_nan=False)


def test_facts_go_to_json_and_back():
    facts = describe(_raised(HttpError(429, "slow", {"retry-after": "7"})), "ship")

    plain = json.loads(json.dumps(facts.to_json()))

    assert ErrorFacts.from_json(plain) == facts
    assert plain["category"] == "rate_limit"
    assert plain["error_type"] == "HttpError"
    assert plain["advice"]


def test_facts_that_are_none_are_refused_or_filled():
    filled = ErrorFacts.from_json({"category": "fatal", "metadata": [1], "message": 7, "recoverable": "yes"})

    assert (filled.klass, filled.message, filled.metadata, filled.recoverable) == ("fatal", "", {}, False)
    with pytest.raises(errors.StateInvalid, match="category is 'odd', not one of transient, rate_limit"):
        ErrorFacts.from_json({"category": "odd"})


def test_a_giant_message_is_kept_at_both_ends():
    facts = describe(_raised(RuntimeError("start" + "x" * 100_000 + "the end")), "build")

    assert facts.message.startswith("start")
    assert facts.message.endswith("the end")
    assert "characters left out" in facts.message
    assert len(facts.message) < MAX_MESSAGE + 100
    assert len(facts.traceback) < MAX_TRACEBACK + 100


@pytest.mark.parametrize(
    ("text", "klass"),
    [
        ("cat: x: No such file or directory", "missing"),
        ("touch: cannot touch 'x': Permission denied", "permission"),
        ("ModuleNotFoundError: No module named 'x'", "dependency"),
        ("curl: (7) Failed to connect to x port 80: Connection refused", "network"),
    ],
)
def test_the_advice_names_the_sandbox_that_may_be_why(text, klass):
    inside = describe(RunFailed(FailedRun(exit_code=1, text=text, box="landlock")), "build")
    outside = describe(RunFailed(FailedRun(exit_code=1, text=text)), "build")

    assert (inside.klass, outside.klass) == (klass, klass)
    assert "its sandbox (landlock)" in inside.advice
    assert "sandbox" not in outside.advice
