"""
All errors that adw raises on purpose, in one tree.

Imports no other adw module at run time. The docstring of a class is its default message. Each class also subclasses the
built-in exception that a caller of the plain library would expect, so that `except ValueError` and
`except FileNotFoundError` keep working.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from adws.adw_modules.external_tasks import ExternalTask
    from adws.adw_modules.identifiers import JsonObject


class AdwError(Exception):
    """Base of every error adw raises on purpose."""

    #: Exit code of the command line: 1 expected failure, 2 wrong use.
    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class UsageError(AdwError, ValueError):
    """The command or call was used in a way that cannot work."""

    exit_code = 2


class ConfigError(AdwError, ValueError):
    """A setting is unknown, has a bad value, or is set twice with different values."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems or (str(self),)  #: one sentence for each problem


class InvalidAdwId(AdwError, ValueError):
    """A workflow id has a shape that is not allowed."""

    exit_code = 2

    def __init__(self, adw_id: object) -> None:
        shown = text if len(text := repr(adw_id)) <= 60 else f"{text[:57]}..."
        super().__init__(
            f"{shown} is not a workflow id: use letters, digits, '-' and '_' (at most 64), such as 1a2b3c4d"
        )
        self.adw_id = adw_id


class PlatformUnsupported(AdwError):
    """adw needs a POSIX system (Linux or macOS): Windows is not supported, use WSL."""


# --- state machine ---------------------------------------------------------------------------------------------


class IllegalTransition(AdwError, ValueError):
    """The state machine has no such edge."""

    def __init__(self, current: str, wanted: str, legal: Sequence[str], why: str = "") -> None:
        ways = ", ".join(legal) if legal else "nothing, it is final"
        reason = f" ({why})" if why else ""
        super().__init__(f"cannot go from {current} to {wanted}{reason}; from {current} a workflow may go to: {ways}")
        self.current, self.wanted, self.legal, self.why = current, wanted, tuple(legal), why


class RetriesExhausted(AdwError, ValueError):
    """No retries are left."""

    def __init__(self, used: int, limit: int) -> None:
        super().__init__(f"{used} of {limit} retries are used; a person may grant more with: adw retry ID --grant N")
        self.used, self.limit = used, limit


class BadWorkflowGraph(AdwError, ValueError):
    """A state table has an unreachable state, a trap, or no way to an end."""


# --- definitions of workflows ----------------------------------------------------------------------------------


class WorkflowInvalid(ConfigError):
    """A definition of a workflow is not sound; each problem names its place."""


class UnknownWorkflow(AdwError, LookupError):
    """There is no workflow of this name."""

    exit_code = 2

    def __init__(self, name: str, known: Sequence[str], meant: str = "") -> None:
        hint = f" (did you mean {meant}?)" if meant else ""
        super().__init__(f"there is no workflow {name!r}{hint}; there are: {', '.join(known)}")
        self.name, self.known = name, tuple(known)


# --- documents -------------------------------------------------------------------------------------------------


class StateError(AdwError):
    """Something is wrong with a workflow's document."""


class StateNotFound(StateError, FileNotFoundError):
    """There is no such workflow."""

    def __init__(self, what: str, hint: str = "adw list shows the workflows there are") -> None:
        # A short number is more likely an issue number.
        meant = f"for issue {what} type '#{what}'; " if re.fullmatch(r"\d{1,3}", what) else ""
        super().__init__(f"no workflow state at {what}; {meant}{hint}")
        self.what = what


class StateExists(StateError, FileExistsError):
    """A workflow with this id exists already."""

    def __init__(self, adw_id: str) -> None:
        super().__init__(f"workflow {adw_id} exists already; load it, or choose another id")
        self.adw_id = adw_id


class StateInvalid(StateError, ValueError):
    """A document lacks fields it must have, or holds values it may not have."""

    data: JsonObject | None = None  #: the document as plain JSON, for the person who repairs it


class StateCorrupt(StateError, ValueError):
    """A document cannot be read: torn, truncated, or not JSON."""

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        tail = f"; {hint}" if hint else ""
        super().__init__(f"{path} is corrupt: {reason}{tail}")
        self.path, self.reason = path, reason


class StateUnserialisable(StateError, TypeError, ValueError):
    """A value cannot be written as JSON and read back the same."""


class UnsafePath(StateError, ValueError):
    """A path is a symbolic link, or not a regular file, or outside its directory."""


class StateWriteFailed(StateError, OSError):
    """A document could not be written; the old revision is intact."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(f"could not write {path}: {cause.strerror or cause}; the old revision is intact")
        self.path, self.errno = path, cause.errno


class StateReadFailed(StateError, OSError):
    """A document is there but the system does not let us read it."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(f"could not read {path}: {cause.strerror or cause}")
        self.path, self.errno = path, cause.errno


class DurabilityUnknown(StateError, OSError):
    """A write was made, but whether it survives a power cut is not known: read it again, do not repeat the sync."""

    def __init__(self, path: str, cause: OSError) -> None:
        super().__init__(
            f"{path} was replaced but could not be synced ({cause.strerror or cause}): check the disk, then read again"
        )
        self.path, self.errno = path, cause.errno


class StateConflict(StateError):
    """Another writer was faster."""

    def __init__(self, adw_id: str, expected: int, found: int) -> None:
        super().__init__(
            f"workflow {adw_id} is at revision {found}, not {expected}: load it again and repeat the change"
        )
        self.adw_id, self.expected, self.found = adw_id, expected, found


class Fenced(StateError):
    """This writer no longer owns the workflow."""

    def __init__(self, adw_id: str, fence: int, current: int | None = None) -> None:
        by = f"; the present owner has {current}" if current is not None else ""
        super().__init__(f"workflow {adw_id} was taken over: fence {fence} is no longer valid{by}")
        self.adw_id, self.fence, self.current = adw_id, fence, current


class MigrationError(StateError, ValueError):
    """A document could not be brought to the current version."""


class NoMigrationPath(MigrationError):
    """No chain of registered migrations leads from one version to the other."""


class NewerVersion(MigrationError):
    """The document was written by a newer adw."""

    def __init__(self, found: str, current: str) -> None:
        super().__init__(f"the document has version {found}, this adw knows up to {current}: upgrade adw to use it")
        self.found, self.current = found, current


class MigrationFailed(MigrationError):
    """One step of a migration raised an error."""

    def __init__(self, from_version: str, to_version: str, cause: Exception) -> None:
        super().__init__(f"migration {from_version} -> {to_version} failed: {type(cause).__name__}: {cause}")
        self.from_version, self.to_version = from_version, to_version


# --- ownership -------------------------------------------------------------------------------------------------


class OwnershipError(AdwError):
    """The caller does not own what it wants to change."""


class WorkflowBusy(OwnershipError):
    """A live owner is working on this workflow."""

    def __init__(self, adw_id: str, owner: str) -> None:
        super().__init__(f"workflow {adw_id} is being worked on by {owner}: wait, or ask that owner to stop")
        self.adw_id, self.owner = adw_id, owner


class IssueLocked(OwnershipError):
    """Another workflow has this issue."""

    def __init__(self, issue_number: int, holder: str, repository: str = "") -> None:
        where = f" of {repository}" if repository else ""
        super().__init__(f"issue {issue_number}{where} belongs to workflow {holder}: adw status {holder} shows it")
        self.issue_number, self.holder, self.repository = issue_number, holder, repository


class LeaseLost(OwnershipError):
    """The lease was taken over or ran out."""


class RunLost(OwnershipError):
    """The run was claimed again or ended by another owner."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"run {run_id} is not yours any more: adw queue runs shows who has it")
        self.run_id = run_id


class StartRefused(AdwError):
    """A workflow cannot be started as things stand; nothing was created."""


class PullRequestOpen(StartRefused):
    """An issue has an open pull request of an earlier workflow."""

    def __init__(self, issue_number: int, *, pr_number: int, adw_id: str) -> None:
        super().__init__(
            f"issue {issue_number} has the open pull request #{pr_number} of workflow {adw_id}: merge or close it, "
            "say in a review of it what to change, or start once more with --again"
        )
        self.issue_number, self.pr_number, self.adw_id = issue_number, pr_number, adw_id


class DemandsUnmet(AdwError):
    """A run demands what no worker has."""


class RunNotFound(AdwError):
    """There is no such run."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"there is no run {run_id}: adw queue runs shows those there are")
        self.run_id = run_id


class DeliveryNotFound(AdwError, LookupError):
    """There is no such delivery."""

    def __init__(self, guid: str) -> None:
        super().__init__(f"there is no delivery {guid!r:.120}: adw webhook deliveries shows those that are kept")
        self.guid = guid


class DeliveryConflict(AdwError, ValueError):
    """A delivery with the same id arrived before with another body."""

    def __init__(self, guid: str) -> None:
        super().__init__(f"delivery {guid!r:.120} came before with another body: one of the two is not what it says")
        self.guid = guid


class TooManyRequests(AdwError):
    """A sender asks for more work than the limit allows."""

    def __init__(self, sender: str) -> None:
        super().__init__(f"{sender} asked for work too often in the last hour; this delivery was not stored")
        self.sender = sender


class NotTheLockOwner(OwnershipError):
    """A continuing run does not own the issue it wants to work on."""

    def __init__(self, adw_id: str, issue_number: int, why: str) -> None:
        super().__init__(f"workflow {adw_id} may not continue on issue {issue_number}: {why}")
        self.adw_id, self.issue_number, self.why = adw_id, issue_number, why


class LockUnavailable(OwnershipError, OSError):
    """A file lock cannot be used here."""

    def __init__(self, path: str, cause: OSError) -> None:
        why, advice = cause.strerror or str(cause), "adw needs a writable local disk with working flock"
        if cause.errno in {errno.ENOSPC, errno.EDQUOT}:
            why = f"the disk is full ({why})"
            advice = "make room, adw admin gc --execute removes what finished workflows left"
        super().__init__(f"cannot lock {path}: {why}; {advice}")
        self.path, self.errno = path, cause.errno


# --- failed runs -----------------------------------------------------------------------------------------------


class RunFailed(AdwError):
    """A process or an agent that adw started failed."""

    def __init__(self, run: FailedRun, message: str | None = None, *, name: str = "") -> None:
        """*name* is the name for messages, if it differs from that of the program."""
        last = next((line.strip() for line in reversed(run.text.splitlines()) if line.strip()), "")
        said = f": {last[:300]}" if last else ""
        super().__init__(message or f"{name or run.tool or 'the run'} {run.summary}{said}")
        self.run = run


# --- work ------------------------------------------------------------------------------------------------------


class GateFailed(AdwError):
    """A phase did its work, and a gate did not let it pass."""

    def __init__(self, phase: str, why: str) -> None:
        super().__init__(f"{phase} did not pass its gate: {why}")
        self.phase, self.why = phase, why


class BaseRed(AdwError):
    """A gate is red on the commit that work would start from."""

    def __init__(self, gate: str, commit: str, why: str, *, output: str = "") -> None:
        super().__init__(
            f"the gate `{gate}` is red on the base commit {commit[:12]} ({why}), so no agent is started: fix it there, "
            "or set gates.base to compare (only new failures count) or ignore"
        )
        self.gate, self.commit, self.why, self.output = gate, commit, why, output


class ExpressionError(AdwError, ValueError):
    """A template or a condition cannot be read, or has no value."""

    def __init__(self, why: str, *, expression: str = "", name: str = "") -> None:
        shown = repr(expression if len(expression) <= 120 else f"{expression[:117]}...")
        super().__init__(f"in the expression {shown}: {why}" if expression else why)
        self.why, self.expression, self.name = why, expression, name  #: *name*: the one that is missing


class SinkRefused(AdwError):
    """A sink cannot take what a call gave back: rows and place do not fit."""


# --- external services -----------------------------------------------------------------------------------------


class NotOurs(AdwError):
    """Something is not, or not any more, what adw made: it is left alone."""


class GitError(AdwError):
    """git could not do what was asked."""


class RepositoryNotTrusted(GitError):
    """git does not use a repository that belongs to another user until it is told to trust it."""


class GitUnreachable(GitError):
    """The remote gave no answer."""


class RemoteRefused(GitUnreachable):
    """The remote does not let adw in, or is not there: that does not pass by itself."""


class RemoteChanged(GitError):
    """The remote of the repository is not where adw recorded it to be."""

    def __init__(self, remote: str, now: str, recorded: str) -> None:
        """*now* is "" if the remote is gone, *recorded* is "" if there was none."""
        where = f"is {now} in the repository's configuration" if now else "is gone from the repository's configuration"
        back = f"git remote {'set-url' if now else 'add'} {remote} URL"
        super().__init__(
            f"the remote {remote} {where}, and adw recorded {recorded or 'none'}: nothing is sent there; "
            f"if you changed it, say so with adw init, else put it back with {back}"
        )
        self.remote = remote


class FilterNotRun(GitError):
    """A changed file belongs to a filter that adw does not run."""

    def __init__(self, name: str, driver: str) -> None:
        why = (
            "adw does not upload what git-lfs keeps: change this file by hand"
            if driver == "lfs"
            else f"adw runs filters of your own configuration alone: set filter.{driver} with git config --global"
        )
        super().__init__(
            f"{name} is not committed, because its attribute says filter={driver}, which is not run: {why}"
        )
        self.driver = driver


class PathsNotAllowed(AdwError):
    """A phase changed files that its definition does not let it change."""

    def __init__(self, phase: str, paths: Sequence[str], done: str = "undo it") -> None:
        """*done* says what happened to the changes, or has to."""
        more = f" and {len(paths) - 10} more" if len(paths) > 10 else ""
        super().__init__(
            f"{phase} changed files outside its allowed_paths: {', '.join(paths[:10])}{more}; {done}, or allow it"
        )
        self.phase, self.paths = phase, tuple(paths)


class RepositoryTampered(AdwError):
    """A phase or a gate changed what all worktrees of the repository share."""

    def __init__(self, phase: str, what: str) -> None:
        super().__init__(
            f"while {phase} worked, the git directory that all worktrees share was changed: {what}. "
            "Check and revert it; if it was you, or may stay, continue with: adw retry ID"
        )
        self.phase, self.what = phase, what


class RollbackBlocked(AdwError):
    """A step of a rollback cannot be made now."""


class PullRequestMerged(AdwError):
    """The pull request is merged, which is not undone: revert it on the forge instead."""

    def __init__(self, number: int | None = None) -> None:
        which = f"pull request #{number}" if number is not None else "its pull request"
        super().__init__(f"{which} is merged, which is not undone: revert it on the forge instead")
        self.number = number


class SetupFailed(AdwError):
    """A set-up command of a worktree failed."""

    def __init__(self, command: Sequence[str], why: str) -> None:
        super().__init__(f"the set-up command {' '.join(command)!r} of the worktree failed: {why}; see worktree.setup")
        self.command, self.why = tuple(command), why


class ShippingRefused(AdwError):
    """What is on a workflow's branch may not be shipped as it is."""


class PortsExhausted(AdwError):
    """No port is free in the range: free some with adw admin gc, or widen the range."""


#: Beginning of the message about an exhausted quota; runs store it as the reason for their wait.
QUOTA_REFUSAL = "the quota "
#: Beginning of the reason why a phase waits for a quota of its provider.
QUOTA_WAIT = "a quota is used up"


class QuotaExceeded(AdwError):
    """A quota is used up."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class WorkElsewhere(AdwError):
    """The work of this workflow is on another machine, and nowhere else."""

    def __init__(self, adw_id: str, host: str) -> None:
        super().__init__(
            f"the work of {adw_id} is on {host} and not on the remote, so only a worker there can continue it"
        )
        self.adw_id, self.host = adw_id, host


class ForgeError(AdwError):
    """The forge did not do what was asked."""


class ForgeNotFound(ForgeError, LookupError):
    """The forge has no such thing."""


class ForgeRefused(ForgeError):
    """The forge refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the forge refused ({status}): {message}")
        self.status = status


class ForgeUnavailable(ForgeError):
    """The forge did not answer, or with an error of its own: whether anything was done is not known."""


class ForgeBusy(ForgeError):
    """The forge asks for a retry later."""

    def __init__(self, seconds: float, message: str = "") -> None:
        super().__init__(f"the forge wants to be asked again in {seconds:.0f} s{f': {message}' if message else ''}")
        self.seconds = seconds


class CircuitOpen(AdwError):
    """A circuit breaker is open: the service failed too often and is not called for a while."""

    def __init__(self, name: str, until: datetime | None = None, reason: str = "") -> None:
        """*until* is when a call may be retried, or None if that may be any moment now."""
        when = f" until {until.isoformat(timespec='seconds')}" if until else ""
        super().__init__(f"the circuit breaker {name} is open, no calls{when}{f': {reason}' if reason else ''}")
        self.name, self.until = name, until


class NotifyFailed(AdwError):
    """A notification could not be sent."""


# --- database --------------------------------------------------------------------------------------------------


class DatabaseError(AdwError):
    """The database could not do what was asked."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached."""


class DatabaseCorrupt(DatabaseError):
    """The database file cannot be read as one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"the database {name} is corrupt: {reason}; restore a backup with adw db restore, or, when the documents "
            "live in files, move it aside and run adw db rebuild"
        )
        self.name, self.reason = name, reason


class CommitUnknown(DatabaseError):
    """The connection broke during a commit: whether it took place is not known."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"the connection to {name} broke during a commit ({reason}): it may or may not have taken place, "
            "look before you repeat the change"
        )
        self.name, self.reason = name, reason


class TransactionAborted(DatabaseError):
    """Another transaction was in the way, and this one was undone."""


class SchemaMismatch(DatabaseError):
    """The database has another schema version than this adw."""


class DatabaseMoved(DatabaseError):
    """What this database held is somewhere else now."""


class BackupError(AdwError):
    """A backup could not be made or restored."""


class TaskNotFound(AdwError):
    """There is no such task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id}: adw queue external lists those there are")


class ClaimHeld(AdwError):
    """Another worker has claimed the task and sent a heartbeat recently."""

    def __init__(self, task: ExternalTask) -> None:
        who = task.worker or "somebody else"
        super().__init__(
            f"task {task.task_id} is with {who} until {task.claim_until}, unless it gives a heartbeat: try again then"
        )


class ClaimLost(AdwError):
    """A report on a task comes from a worker that lost its claim; nothing was changed."""

    def __init__(self, task_id: str, why: str) -> None:
        super().__init__(f"task {task_id} is not yours any more: {why}")


class EventRefused(AdwError):
    """An event of a loop that is run outside contradicts what is recorded of it; nothing was changed."""


class ForeignToken(AdwError):
    """The given token belongs to another task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"the token is not that of task {task_id}: type adw queue external show {task_id} --token")


class Overdue(AdwError):
    """Nobody reported on a task in time."""

    def __init__(self, task: ExternalTask) -> None:
        had = f"; {task.worker or 'somebody'} had claimed it" if task.claims else "; nobody had claimed it"
        super().__init__(f"nobody reported on task {task.task_id} until {task.deadline}{had}")


class ExecutionNotFound(AdwError):
    """The execution, its iteration, or the stored part of its page does not exist."""

    def __init__(self, execution_id: str, index: int | None = None, page: int | None = None) -> None:
        what = f"execution {execution_id}" if index is None else f"iteration {index} of execution {execution_id}"
        what = what if page is None else f"page {page} of {what}"
        super().__init__(f"there is no {what}: adw status ID lists those of a workflow")


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRun:
    """
    The facts about a failed process or agent; None and "" mean that they are unknown.

    Data, not an exception: `RunFailed` carries it, and `error_handler` classifies by it.
    """

    exit_code: int | None = None
    signal: int | None = None  #: number of the signal that ended it
    timed_out: str | None = None  #: which of our time limits was exceeded: wall | idle | after_result
    text: str = ""  #: the end of its error output, or the message of its result
    subtype: str = ""  #: the agent's or gate's name for the failure, such as error_max_turns or no_effect
    http_status: int | None = None  #: of the response that ended it
    retry_after_seconds: float | None = None  #: how long the server said to wait, from now on
    resets_at: float | None = None  #: when an exhausted quota opens again, seconds since 1970
    tool: str = ""  #: name of the program, if its exit codes have their own meaning (gemini)
    box: str = ""  #: the sandbox that it ran in

    @property
    def summary(self) -> str:
        """How it ended, in a few words."""
        if self.timed_out is not None:
            return f"was stopped because its time was over ({self.timed_out})"
        if self.signal is not None:
            return f"was ended by signal {self.signal}"
        if self.exit_code is not None:
            return f"ended with exit code {self.exit_code}"

        return f"failed ({self.subtype})" if self.subtype else "failed"
