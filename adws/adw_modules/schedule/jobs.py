"""
The jobs of the schedule: quotas, crashed work, orphans, breakers, notifications, retention, polling and the report.

A job may run twice for one tick (when the cron running it died and was replaced), so each is idempotent. It returns its
result in one sentence, its memo and its notices; the three are stored together, once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import circuit_breaker, effects, timestamps
from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Actor, Delivery, RunRequest
from adws.adw_modules.errors import (
    AdwError,
    ConfigError,
    DatabaseError,
    DeliveryConflict,
    ForgeNotFound,
    ForgeRefused,
    UsageError,
)
from adws.adw_modules.forge.model import Forge, HookDelivery, Issue, IssueText, KnowsLabellers, Labelled, Redelivers
from adws.adw_modules.identifiers import JsonObject, comparable, counted
from adws.adw_modules.interfaces import OwnerRecord, Verdict
from adws.adw_modules.queue.model import CRON, NewRun, Run, RunResult, RunState
from adws.adw_modules.recovery.plan import RecoveryAction
from adws.adw_modules.reports import reports as reports_module
from adws.adw_modules.reports.model import StuckKind, Window
from adws.adw_modules.schedule import notify
from adws.adw_modules.schedule.store import Notice, ScheduleRow, Tick
from adws.adw_modules.state_machine import ACTIVE_STATES, WorkflowState
from adws.adw_modules.worker.control import Applied

if TYPE_CHECKING:
    from adws.adw_modules.circuit_breaker import BreakerRow
    from adws.adw_modules.schedule.store import ScheduleStore
    from adws.app import Home
    from adws.config.settings import Settings


#: Every job of the schedule, in the order of display: when it runs if cron.jobs lists it, and what it does.
CRON_ENTRIES: Mapping[str, tuple[str, str]] = {
    "notify": ("* * * * *", "Send the notifications that no worker has sent."),
    "recover": ("*/2 * * * *", "Recover the runs of dead workers, and find stuck workflows."),
    "quota": ("*/5 * * * *", "Check the quotas; notify when one is used up or free; pause too large worktrees."),
    "breakers": ("*/5 * * * *", "Let circuit breakers whose timeout is over try a call."),
    "poll_issues": ("*/5 * * * *", "Start open issues with the label that no delivery reported."),
    "poll_comments": ("*/5 * * * *", "Start open issues without a comment, or whose latest comment is `adw`."),
    "redeliver": ("*/10 * * * *", "Ask GitHub to deliver failed deliveries again."),
    "gc": ("30 3 * * *", "Find orphaned resources."),
    "gc_execute": ("30 3 * * *", "Find orphaned resources, and remove them."),
    "retention": ("45 3 * * *", "Delete what is older than its retention time."),
    "report": ("0 6 * * *", "Make the daily report."),
}


def entries_of(settings: Settings) -> dict[str, str]:
    """Return the jobs of the schedule: name -> when each runs by itself, "" for never."""
    return {
        name: expression if name in settings.cron_jobs else "" for name, (expression, _what) in CRON_ENTRIES.items()
    }


#: Quotas of one machine; all others are shared by everybody who uses the database.
OF_MACHINE = frozenset({"disk", "memory", "worktrees", "worktree_size"})
#: Notifications are deleted after this long.
KEEP_NOTIFICATIONS = timedelta(days=30)
#: Maximum number of orphans named in the result of gc.
MOST_NAMED = 5

#: Kinds of failures in the daily report.
_MOST_FAILURES = 3
#: Limit of the daily report's counts, high enough for all.
_ALL = 10_000_000
_DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """The result of a job."""

    outcome: str  #: in one sentence
    memo: JsonObject | None = None  #: what it remembers; None: no change
    notices: tuple[Notice, ...] = ()
    details: tuple[str, ...] = ()  #: lines for people who watch


Job = Callable[[Tick], JobEnd]


class CronJobs:
    """The jobs, by the names of their entries."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def all(self) -> dict[str, Job]:
        """Return every job of this class."""
        return {
            "quota": self.quota,
            "recover": self.recover,
            "gc": self.gc,
            "gc_execute": self.gc_execute,
            "breakers": self.breakers,
            "retention": self.retention,
            "report": self.report,
            "notify": self.notify,
        }

    # --- quotas ------------------------------------------------------------------------------------------------

    def quota(self, tick: Tick) -> JobEnd:
        """
        Check the limits, and notify people of those that were reached and those that are free again.

        It switches nothing: a run that needs a place while a limit is reached is refused, and retried by itself. A
        workflow whose worktree has reached the size limit is paused, even in the middle of a phase.
        """
        quotas = self._home.quotas
        quotas.free_left_behind()
        sizes = quotas.sizes()
        paused = [self._pause_large(adw_id, why) for adw_id, why in quotas.too_large(sizes).items()]
        statuses = {
            f"{status.name}@{self._home.host}" if status.name in OF_MACHINE else status.name: status
            for status in quotas.status(sizes=sizes)
        }
        known = tick.memo.get("exceeded")
        before: JsonObject = dict(known) if isinstance(known, dict) else {}
        # The memo of other machines' quotas stays: only they can see theirs change.
        after = {key: since for key, since in before.items() if key not in statuses}
        notices: list[Notice] = []
        for key, status in statuses.items():
            if status.is_exceeded:
                after[key] = before.get(key, tick.due)
            if status.is_exceeded != (key in before):
                kind = "quota_exceeded" if status.is_exceeded else "quota_free"
                notices.append(
                    notify.quota_notice(
                        key,
                        is_exceeded=status.is_exceeded,
                        detail=status.detail,
                        key=f"{kind}:{key}:{tick.due}",
                        channels=self._home.notifier.channels_of(kind),
                    )
                )
        reached = [status.name for status in statuses.values() if status.is_exceeded]
        named = [name for name in reached if name != "worktree_size"]
        outcome = "; ".join(
            (
                *((f"used up, so that new work waits: {', '.join(named)}",) if named else ()),
                *((f"worktree too large: {', '.join(paused)}",) if paused else ()),
            )
        )
        details = tuple(f"{status.name}: {status.detail}" for status in statuses.values() if status.is_exceeded)

        return JobEnd(
            outcome=outcome or "no quota is used up",
            memo={"exceeded": after},
            notices=tuple(notices),
            details=details,
        )

    def _pause_large(self, adw_id: str, why: str) -> str:
        """Pause an unfinished workflow; return its id with its state after that."""
        try:
            document = self._home.load(adw_id)
            state, host = document.current_state, effects.host_of_work(document)
            if host not in {"", self._home.host}:
                return f"{adw_id} (works on {host}, and left it here)"
            if WorkflowState(state) in ACTIVE_STATES:
                answer = self._home.control.pause(adw_id, by=CRON, reason=why)
                state = answer.state if isinstance(answer, Applied) else "asked to pause"
        except AdwError as exc:
            return f"{adw_id} (not paused: {exc})"

        return f"{adw_id} ({state})"

    # --- crashed and stuck work --------------------------------------------------------------------------------

    def recover(self, tick: Tick) -> JobEnd:
        """Recover the runs of dead workers, and notify people of workflows that do not move."""
        del tick
        steps = self._home.recovery.recover().steps
        done = [step for step in steps if step.action is not RecoveryAction.REPORT]
        needs = [step for step in steps if step.action is RecoveryAction.REPORT]
        stuck = self._home.reporting.stuck()
        channels = self._home.notifier.channels_of("stuck")
        notices = [
            notify.stuck_notice(
                one.subject.adw_id,
                since=one.since,
                why=one.why,
                key=f"stuck:{one.subject.adw_id}:{one.kind.value}:{one.since}",
                channels=channels,
            )
            for one in stuck
            if one.kind is not StuckKind.LIMIT  # the job `quota` reports a limit once for all that wait
        ]
        notices += [
            Notice(
                key=f"stuck:{step.adw_id}:{hashlib.sha256(step.why.encode()).hexdigest()[:16]}",
                kind="stuck",
                title=f"workflow {step.adw_id} needs a person: {step.why}"[: notify.MAX_TITLE],
                text=notify.hint_of("stuck", step.adw_id),
                adw_id=step.adw_id,
                channels=channels,
            )
            for step in needs
        ]
        outcome = f"{len(done)} recovered, {len(needs)} need a person, {len(stuck)} do not move"
        details = tuple(f"{step.adw_id} {step.action.value}: {step.why}" for step in steps)

        return JobEnd(outcome=outcome, notices=tuple(notices), details=details)

    # --- orphans -----------------------------------------------------------------------------------------------

    def gc(self, tick: Tick) -> JobEnd:
        """Find orphans."""
        del tick
        collector = self._home.collector
        orphans = collector.find()
        named = tuple(f"{orphan.kind} {orphan.name}: {orphan.why}" for orphan in orphans)
        outcome = (
            f"{len(orphans)} left over; adw admin gc --execute removes them" if orphans else "nothing is left over"
        )

        return JobEnd(outcome=outcome, details=(*named, *collector.problems))

    def gc_execute(self, tick: Tick) -> JobEnd:
        """Remove orphans."""
        del tick
        collector = self._home.collector
        removals = collector.remove(collector.find())
        gone = sum(removal.is_gone for removal in removals)
        left = [f"{one.orphan.kind} {one.orphan.name}: {one.detail}" for one in removals if not one.is_gone]

        return JobEnd(outcome=f"{gone} removed, {len(left)} left", details=(*left, *collector.problems))

    def breakers(self, tick: Tick) -> JobEnd:
        """
        Store changes that are due: an open breaker admits a trial call, and an expired trial makes room for another.

        No service is called: a request to an agent's provider costs money. The next attempt that needs the service is
        the trial, and cron reports which breakers are open.
        """
        del tick
        now, store = self._home.clock.now(), circuit_breaker.DatabaseBreakers(self._home.database)

        def rule(row: BreakerRow) -> BreakerRow:
            current = circuit_breaker.seen(row, now)
            return row if current == row else replace(current, changed_at=timestamps.to_text(now))

        after = [store.change(row.name, rule) for row in store.all()]
        held = [row for row in after if row.state == circuit_breaker.CircuitState.OPEN.value]
        ready = [row.name for row in after if row.state == circuit_breaker.CircuitState.HALF_OPEN.value]
        # If a process died after closing a breaker, before waking the runs, they would wait for their due time.
        due = self._home.service_waits.wake()
        outcome = (
            f"{len(held)} open, {len(ready)} ready for a trial call" if held or ready else "no circuit breaker is open"
        )
        details = tuple(f"Circuit breaker open for {row.name} until {row.reopens_at}: {row.reason}" for row in held)

        trials = (f"{name} is ready for a trial call" for name in ready)

        return JobEnd(outcome=outcome, details=(*details, *trials, *(f"{adw_id} is due now" for adw_id in due)))

    def retention(self, tick: Tick) -> JobEnd:
        """Delete data that is older than the settings allow, and old notifications."""
        del tick
        now = self._home.clock.now()
        workflows, details = self._home.retention.forget_all()
        notices = self._home.notifications.forget_before(timestamps.to_text(now - KEEP_NOTIFICATIONS))
        outcome = "; ".join(
            (
                f"{counted(workflows, 'workflow')} and {counted(notices, 'notification')} forgotten",
                *details[:MOST_NAMED],
            )
        )

        return JobEnd(outcome=outcome, details=details)

    # --- notifying people ----------------------------------------------------------------------------------------

    def report(self, tick: Tick) -> JobEnd:
        """Make the daily report."""
        yesterday = timestamps.to_text(timestamps.parse(tick.due) - _DAY)
        day = self._home.reporting.report(Window(since=yesterday), with_orphans=False, limit=_MOST_FAILURES)
        queue = self._home.reports.queue(at_most=_ALL)
        waiting = queue.due.number + queue.later.number
        text, headline = reports_module.report(day, waiting=waiting), reports_module.headline(day, waiting=waiting)
        channels = self._home.notifier.channels_of("report")
        notice = Notice(key=f"report:{tick.due}", kind="report", title=f"adw: {headline}", text=text, channels=channels)

        return JobEnd(
            outcome=headline,
            memo={"report": text},
            notices=(notice,),
            details=tuple(text.splitlines()),
        )

    def notify(self, tick: Tick) -> JobEnd:
        """Make notices of new events, send those that are due, and update the sums of reports."""
        del tick
        made = self._home.notifier.gather()
        sent = self._home.notifier.send()
        self._home.reports.refresh()

        return JobEnd(
            outcome=f"{made} new, {sent['sent']} sent, {sent['pending']} to be retried, {sent['given_up']} failed"
        )


# Running entries of the schedule: each is claimed for one tick, run and recorded; and runs that request one.
#
# An entry is claimed in the database, by one of all crons and workers. A failed job is recorded; a process that dies
# leaves a claim that expires. A run of kind `cron` has a worker run an entry now, whenever it is due.


logger = logging.getLogger("adw.cron")

#: Seconds that a claim lasts; it is renewed while its job runs.
TTL_SECONDS = 120.0
#: Seconds before a run retries an entry that another process is running.
BUSY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """The result of an entry."""

    name: str
    due: str
    missed: int
    status: str  #: done | failed | busy (another cron has it) | lost (another cron took it over)
    outcome: str
    details: tuple[str, ...] = ()


def do_entry(
    home: Home, me: OwnerRecord, name: str, *, spec: str, due: str, row: ScheduleRow | None, missed: int = 0
) -> Ran:
    """Run the entry *name* for the moment *due*, unless another process has it; *row* is its stored row."""
    book, dead_token = home.schedule, None
    if row is not None and row.owner:
        owner = OwnerRecord.from_text(row.owner)
        # A claim of our own is stale: its end could not be stored, and we run one entry at a time.
        if owner == me or home.processes.verdict(owner) is Verdict.DEAD:
            dead_token = row.token
    seen = row.last_due if row else ""
    tick = book.claim(name, spec=spec, due=due, seen=seen, owner=me, ttl_seconds=TTL_SECONDS, dead_token=dead_token)
    if tick is None:
        outcome = "another cron has it, or has done it"
        return Ran(name=name, due=due, missed=missed, status="busy", outcome=outcome)
    status = "failed"
    with _claim_renewed(book, tick):
        try:
            status, end = "done", home.cron_jobs[name](tick)
        except DatabaseError:
            raise  # nothing can be recorded: the claim expires, and the next process does the tick
        except (AdwError, OSError) as exc:
            logger.warning("A job failed", extra={"action": "cron_failed", "entry": name}, exc_info=exc)
            end = JobEnd(outcome=" ".join(str(exc).split())[:500])
        except Exception as exc:  # a bug in one job must not stop the others
            logger.exception("A job broke", extra={"action": "cron_failed", "entry": name})
            end = JobEnd(outcome=f"a bug in adw: {type(exc).__name__}: {exc}"[:500])
    kept = book.finish(tick, status=status, outcome=end.outcome, memo=end.memo, notices=end.notices)
    logger.info("Done by schedule", extra={"action": "cron_ran", "entry": name, "outcome": end.outcome})

    return Ran(
        name=name,
        due=due,
        missed=missed,
        status=status if kept else "lost",
        outcome=end.outcome,
        details=end.details,
    )


@contextmanager
def _claim_renewed(book: ScheduleStore, tick: Tick) -> Iterator[None]:
    """Renew the claim while the block runs."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(TTL_SECONDS / 3):
            try:
                book.renew(tick, ttl_seconds=TTL_SECONDS)
            except DatabaseError as exc:
                logger.warning("A claim was not renewed", extra={"action": "database_trouble"}, exc_info=exc)

    thread = threading.Thread(target=renew, name="adw-cron-claim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# --- runs that request an entry --------------------------------------------------------------------------------


class CronRuns:
    """Queues runs for entries of the schedule, and executes those a worker claimed; implements `JobHandler`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def queue(self, entry: str, *, by: str = "") -> Run:
        """Return the durable run for *entry*, or its unfinished run if there is one."""
        self._check(entry)

        return self._home.runs.enqueue(NewRun(adw_id=f"cron-{entry}", kind=CRON, payload={"entry": entry}, asked_by=by))

    def do(self, entry: str) -> Ran:
        """Run *entry* now, whenever it is due; raise UsageError if there is no such entry."""
        self._check(entry)
        row = next((row for row in self._home.schedule.rows() if row.name == entry), None)
        now = timestamps.to_text(self._home.clock.now())
        me = self._home.processes.me("cron")  # a new owner for each call

        return do_entry(self._home, me, entry, spec=entries_of(self._home.settings)[entry], due=now, row=row)

    def work(self, run: Run) -> RunResult:
        """Execute a claimed run and end it; an entry that another cron is running is retried soon."""
        home = self._home
        run = home.runs.begin(run)
        if run.state is RunState.STOPPING:
            return self._ended(run, RunState.STOPPED, run.reason)
        with home.lease_renewer.keep(run, is_wanted=lambda: True):
            ran = self.do(str(run.payload.get("entry") or ""))
        if ran.status in {"busy", "lost"}:
            due = timestamps.to_text(home.clock.now() + timedelta(seconds=BUSY_SECONDS))
            again = home.runs.requeue(run, not_before=due, reason=ran.outcome)
            return RunResult(run=again, outcome=None, message=ran.outcome)

        return self._ended(run, RunState.COMPLETED if ran.status == "done" else RunState.FAILED, ran.outcome)

    def give_up(self, run: Run, why: str) -> None:
        """Do nothing: the run has the reason, and the entry will be due again."""

    def _ended(self, run: Run, state: RunState, reason: str) -> RunResult:
        ended = self._home.runs.finish(run, state, reason=reason)

        return RunResult(run=ended, outcome=None, message=ended.reason)

    def _check(self, entry: str) -> None:
        if entry not in CRON_ENTRIES:
            raise UsageError(f"{entry!r} is no entry of the schedule; use one of {', '.join(CRON_ENTRIES)}")


# Finding work that no webhook reported: issues that request it, and deliveries that GitHub could not make.
#
# What is found is handled like a delivery: stored with its run in one transaction, and authorised when a worker claims
# the run. The intent is spelled as the webhook spells it, so that work both delivered and found is started once. An
# issue that had a request or a workflow before is left alone.


#: Maximum number of issues read at a time, the newest first.
MOST_ISSUES = 100
#: A label younger than this is left to the webhook.
GRACE = timedelta(minutes=2)
#: A label added to a new issue within this time belongs to its opening, as the webhook sees it.
AT_ONCE = timedelta(seconds=10)
#: How long GitHub can redeliver.
REDELIVERABLE = timedelta(days=3)
#: Redelivery is no longer requested after this many failures.
MAX_TRIES = 5
#: The comment that requests the default workflow, as in older set-ups.
WORD = "adw"

_NO_FORGE = "no forge is configured, so nothing is polled"


def label_intent(repository: str, number: int, label: str, labelled: Labelled) -> str:
    """Return the intent that the webhook gives the same label."""
    is_new = False
    if labelled.created_at and labelled.at:
        is_new = timestamps.parse(labelled.at) - timestamps.parse(labelled.created_at) <= AT_ONCE
    when = f"new {labelled.created_at}" if is_new else f"label {label} {labelled.raw_at}"

    return f"{repository}#{number} {when}"


def delivery_of(request: RunRequest, *, action: str) -> Delivery:
    """Return *request* as a delivery found by polling; the same intent gives the same guid."""
    data = commands.to_json(request)
    body = json.dumps(data, sort_keys=True).encode()

    return Delivery(
        guid=f"poll-{hashlib.sha256(request.intent.encode()).hexdigest()[:32]}",
        event="poll",
        action=action,
        body=body,
        body_hash=hashlib.sha256(body).hexdigest(),
        sender=request.actor.login,
        repository=request.repository,
        number=request.issue.number,
        verdict="run",
        reason=f"{request.actor.login or 'somebody'} asks for a workflow on issue {request.issue.number}",
        request=data,
        intent=request.intent,
    )


class PollJobs:
    """The jobs that query the forge, by the names of their entries."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def all(self) -> dict[str, Job]:
        """Return every job of this class."""
        return {"poll_issues": self.issues, "poll_comments": self.comments, "redeliver": self.redeliver}

    # --- issues ------------------------------------------------------------------------------------------------

    def issues(self, tick: Tick) -> JobEnd:
        """Start labelled issues that no delivery reported."""
        del tick
        forge = self._forge()
        if forge is None:
            return JobEnd(outcome=_NO_FORGE)
        issues = forge.issues(label=self._home.settings.webhook_label, limit=MOST_ISSUES)
        started = [said for issue in issues if (said := self._look_at_label(forge, issue))]

        return JobEnd(outcome=f"{len(issues)} with the label, {len(started)} started", details=tuple(started))

    def _look_at_label(self, forge: Forge, issue: Issue) -> str:
        label, repository = self._home.settings.webhook_label, comparable(forge.repository)
        if self._is_known(repository, issue.number):
            return ""  # the webhook reports it if the label is added again
        labelled = forge.labelled(issue.number, label) if isinstance(forge, KnowsLabellers) else None
        if labelled is None:
            labelled = Labelled(login=issue.author, at="")
        elif labelled.at > timestamps.to_text(self._home.clock.now() - GRACE):
            return ""
        intent = (
            label_intent(repository, issue.number, label, labelled)
            if labelled.at
            else f"{repository}#{issue.number} poll label {label}"
        )
        actor = Actor(login=labelled.login, is_bot=labelled.is_bot)

        return self._ask(repository, issue, actor, intent, action="labeled")

    def _is_known(self, repository: str, number: int) -> bool:
        """Return whether the issue had a request or a workflow before."""
        asked = self._home.deliveries.has_requests_about(repository, number)
        return asked or bool(self._home.catalogue.find_by_issue(number, repository))

    def _ask(self, repository: str, issue: Issue, actor: Actor, intent: str, *, action: str) -> str:
        request = RunRequest(
            repository=repository,
            issue=IssueText(
                number=issue.number,
                title=issue.title,
                body=issue.body,
                author=issue.author,
                url=issue.url,
                labels=issue.labels,
            ),
            actor=actor,
            cause="poll",
            intent=intent,
        )
        delivery = delivery_of(request, action=action)
        if self._home.deliveries.get(delivery.guid) is not None:
            return ""
        [accepted] = self._home.deliveries.accept([delivery])
        if isinstance(accepted, DeliveryConflict):
            return ""  # another process found it at the same moment, and the issue was edited in between
        if isinstance(accepted, AdwError):
            raise accepted
        if not accepted.is_new:
            return ""

        return f"issue {issue.number} as {accepted.adw_id}, asked for by {actor.login or 'somebody'}"

    # --- comments ----------------------------------------------------------------------------------------------

    def comments(self, tick: Tick) -> JobEnd:
        """Start open issues without a comment, and those whose latest comment is `adw`, as in older set-ups."""
        del tick
        forge = self._forge()
        if forge is None:
            return JobEnd(outcome=_NO_FORGE)
        result = forge.issues(limit=MOST_ISSUES)
        started = [said for issue in result if (said := self._look_at_comments(forge, issue))]

        return JobEnd(outcome=f"{len(result)} open, {len(started)} started", details=tuple(started))

    def _look_at_comments(self, forge: Forge, issue: Issue) -> str:
        repository, number = comparable(forge.repository), issue.number
        comments = forge.comments(number)
        if not comments:
            if self._is_known(repository, number):
                return ""
            intent = f"{repository}#{number} poll without comments"
            return self._ask(repository, issue, Actor(login=issue.author), intent, action="opened")
        last = comments[-1]
        if last.body.strip().casefold() != WORD or last.author == forge.login():
            return ""
        intent = f"{repository}#{number} comment {last.comment_id}"  # as the webhook gives the same comment

        return self._ask(repository, issue, Actor(login=last.author), intent, action="commented")

    # --- deliveries that failed --------------------------------------------------------------------------------

    def redeliver(self, tick: Tick) -> JobEnd:
        """Ask GitHub to redeliver failed deliveries."""
        del tick
        if not self._home.settings.webhook_secret:
            return JobEnd(outcome="no webhook is set up (ADW_WEBHOOK_SECRET is not set), so nothing is asked for again")
        forge: object = self._forge()
        if forge is None:
            return JobEnd(outcome=_NO_FORGE)
        if not isinstance(forge, Redelivers):
            return JobEnd(outcome="this forge keeps no deliveries")
        since = timestamps.to_text(self._home.clock.now() - REDELIVERABLE)
        try:
            tries = forge.hook_deliveries(since=since)
        except (ForgeRefused, ForgeNotFound) as exc:
            return JobEnd(
                outcome="GitHub does not show us its hooks: give the token the right to read and write webhooks, "
                f"or leave redeliver out of cron.jobs ({exc})"
            )
        asked = []
        for one in failed_deliveries(tries):
            if self._home.deliveries.get(one.guid) is None:  # else it came another way, or its answer was lost
                forge.redeliver(one.hook_id, one.delivery_id)
                asked.append(f"{one.event} {one.guid} of {one.at}")

        return JobEnd(outcome=f"{counted(len(asked), 'delivery', 'deliveries')} asked for again", details=tuple(asked))

    def _forge(self) -> Forge | None:
        try:
            return self._home.forge
        except ConfigError:
            return None


def failed_deliveries(tries: tuple[HookDelivery, ...]) -> tuple[HookDelivery, ...]:
    """Return the last try of each delivery that never arrived, oldest first, except those that failed too often."""
    by_guid: dict[str, list[HookDelivery]] = defaultdict(list)
    for one in tries:
        by_guid[one.guid].append(one)
    failed = (
        max(group, key=lambda one: one.at)
        for group in by_guid.values()
        if not any(one.is_ok for one in group) and len(group) < MAX_TRIES
    )

    return tuple(sorted(failed, key=lambda one: one.at))
