"""
What is done on a schedule: looking after quotas, crashed work, left-overs, breakers, notifications and the report.

Each job may be done twice for one tick (a cron that died is taken over), so each is one that may. It returns what came
of it in one sentence, what it remembers and what people are told; the three are stored together, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from adws.adw_modules import breaker_rules, notify_rules, report_rules, timestamps
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.interfaces_reports import Window
from adws.adw_modules.interfaces_schedule import Notice, NotificationBook, Tick
from adws.adw_modules.json_value import JsonObject
from adws.adw_modules.recovery_facts import Action, RecoveryStep
from adws.adw_modules.report_rules import DayCounts

if TYPE_CHECKING:
    from adws.adw_modules.coordination.gc import GarbageCollector
    from adws.adw_modules.coordination.notifying import Notifier
    from adws.adw_modules.coordination.retention import Retention
    from adws.adw_modules.cost_entries import CostEntry
    from adws.adw_modules.interfaces_durability import BreakerRow, BreakerStore
    from adws.adw_modules.interfaces_reports import Reports, StuckNow
    from adws.adw_modules.interfaces_resources import Quotas, QuotaStatus

#: Quotas of one machine; the others are those of everybody who shares the database.
OF_MACHINE = frozenset({"disk", "memory", "worktrees", "worktree_size"})
#: Notifications are forgotten after this long.
KEEP_NOTIFICATIONS = timedelta(days=30)
#: Orphans that are named in what came of gc.
MOST_NAMED = 5

#: Kinds of failures in the report of the day.
_MOST_FAILURES = 3
#: The report of the day counts all there are, up to this.
_ALL = 10_000_000
_DAY = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEnd:
    """What came of a job."""

    outcome: str  #: in one sentence
    memo: JsonObject | None = None  #: what it remembers; None: as before
    notices: tuple[Notice, ...] = ()
    details: tuple[str, ...] = ()  #: lines for whoever looks on


Job = Callable[[Tick], JobEnd]


@dataclass(frozen=True, kw_only=True, slots=True)
class CronParts:
    """What the jobs work with."""

    clock: Clock
    host: str
    quotas: Quotas
    breakers: BreakerStore
    notifications: NotificationBook
    notifier: Notifier
    recover: Callable[[], tuple[RecoveryStep, ...]]
    collector: Callable[[], GarbageCollector]  #: built late: it looks at the repository
    costs: Callable[[str], Iterable[CostEntry]]  #: what attempts cost that ended since a moment
    free_places: Callable[[], object] = lambda: None  #: frees the places of workflows nobody works on
    gc_execute: bool = False
    reports: Reports
    stuck: Callable[[], tuple[StuckNow, ...]] = tuple  #: what does not move as it should
    retention: Callable[[], Retention] | None = None  #: built late; None: nothing is ever too old


class CronJobs:
    """The jobs, by the names of their entries."""

    def __init__(self, parts: CronParts) -> None:
        self._parts = parts

    def all(self) -> dict[str, Job]:
        """Return every job of this module."""
        return {
            "quota": self.quota,
            "recover": self.recover,
            "gc": self.gc,
            "breakers": self.breakers,
            "retention": self.retention,
            "report": self.report,
            "notify": self.notify,
        }

    # --- quotas ------------------------------------------------------------------------------------------------

    def quota(self, tick: Tick) -> JobEnd:
        """
        Look at the limits and tell people of those that were reached, and of those that are free again.

        Nothing is switched: whoever asks for a place while a limit is reached is refused and comes again by itself.
        """
        self._parts.free_places()
        statuses = {self._quota_key(status): status for status in self._parts.quotas.status()}
        known = tick.memo.get("exceeded")
        before: JsonObject = dict(known) if isinstance(known, dict) else {}
        # What other machines remember of themselves stays: only they can see it change.
        after = {key: since for key, since in before.items() if key not in statuses}
        notices: list[Notice] = []
        for key, status in statuses.items():
            if status.is_exceeded:
                after[key] = before.get(key, tick.due)
            if status.is_exceeded != (key in before):
                notices.append(self._quota_notice(key, status, tick.due))
        named = [status.name for status in statuses.values() if status.is_exceeded]
        outcome = f"used up, so that new work waits: {', '.join(named)}" if named else "no quota is used up"
        details = tuple(f"{status.name}: {status.detail}" for status in statuses.values() if status.is_exceeded)

        return JobEnd(outcome=outcome, memo={"exceeded": after}, notices=tuple(notices), details=details)

    def _quota_key(self, status: QuotaStatus) -> str:
        return f"{status.name}@{self._parts.host}" if status.name in OF_MACHINE else status.name

    def _quota_notice(self, key: str, status: QuotaStatus, due: str) -> Notice:
        kind = "quota_exceeded" if status.is_exceeded else "quota_free"

        return notify_rules.quota_notice(
            key,
            is_exceeded=status.is_exceeded,
            detail=status.detail,
            key=f"{kind}:{key}:{due}",
            channels=self._parts.notifier.channels_of(kind),
        )

    # --- crashed and stuck work --------------------------------------------------------------------------------

    def recover(self, tick: Tick) -> JobEnd:
        """Make work ready to go on whose worker is gone, and tell people of what does not move."""
        del tick
        steps = self._parts.recover()
        done = [step for step in steps if step.action is not Action.REPORT]
        needs = [step for step in steps if step.action is Action.REPORT]
        stuck = self._parts.stuck()
        channels = self._parts.notifier.channels_of("stuck")
        notices = [
            notify_rules.stuck_notice(
                one.subject.adw_id,
                since=one.since,
                why=one.why,
                key=f"stuck:{one.subject.adw_id}:{one.kind.value}:{one.since}",
                channels=channels,
            )
            for one in stuck
        ]
        notices += [
            Notice(
                key=f"stuck:{step.adw_id}:{hashlib.sha256(step.why.encode()).hexdigest()[:16]}",
                kind="stuck",
                title=f"workflow {step.adw_id} needs a person: {step.why}"[: notify_rules.MAX_TITLE],
                text=notify_rules.hint_of("stuck", step.adw_id),
                adw_id=step.adw_id,
                channels=channels,
            )
            for step in needs
        ]
        outcome = f"{len(done)} recovered, {len(needs)} need a person, {len(stuck)} do not move"
        details = tuple(f"{step.adw_id} {step.action.value}: {step.why}" for step in steps)

        return JobEnd(outcome=outcome, notices=tuple(notices), details=details)

    # --- left-overs --------------------------------------------------------------------------------------------

    def gc(self, tick: Tick) -> JobEnd:
        """Find left-overs, and remove them where that is switched on."""
        del tick
        collector = self._parts.collector()
        orphans = collector.find()
        named = tuple(f"{orphan.kind} {orphan.name}: {orphan.why}" for orphan in orphans)
        if not self._parts.gc_execute:
            found = f"{len(orphans)} left over; adw gc --execute removes them" if orphans else "nothing is left over"
            return JobEnd(outcome=found, details=(*named, *collector.problems))
        removals = collector.remove(orphans)
        gone = sum(removal.is_gone for removal in removals)
        left = [f"{one.orphan.kind} {one.orphan.name}: {one.detail}" for one in removals if not one.is_gone]

        return JobEnd(outcome=f"{gone} removed, {len(left)} left", details=(*left, *collector.problems))

    def breakers(self, tick: Tick) -> JobEnd:
        """
        Write down what time has changed: a breaker whose time has come lets somebody try, an ended trial frees a place.

        Nobody is asked anything: a question to an agent's provider costs money. The next attempt that needs the party
        is the trial, and cron says which parties are held off.
        """
        del tick
        now = self._parts.clock.now()

        def rule(row: BreakerRow) -> BreakerRow:
            found = breaker_rules.seen(row, now)
            return row if found == row else replace(found, changed_at=timestamps.to_text(now))

        after = [self._parts.breakers.change(row.name, rule) for row in self._parts.breakers.all()]
        held = [row for row in after if row.state == breaker_rules.CircuitState.OPEN.value]
        ready = [row.name for row in after if row.state == breaker_rules.CircuitState.HALF_OPEN.value]
        outcome = f"{len(held)} held off, {len(ready)} ready for a trial" if held or ready else "no party is held off"
        details = tuple(f"{row.name} is held off until {row.reopens_at}: {row.reason}" for row in held)

        return JobEnd(outcome=outcome, details=(*details, *(f"{name} may be tried" for name in ready)))

    def retention(self, tick: Tick) -> JobEnd:
        """Forget what is older than the settings say, and old notifications."""
        del tick
        now = self._parts.clock.now()
        workflows, details = self._parts.retention().forget_all() if self._parts.retention else (0, ())
        notices = self._parts.notifications.forget_before(timestamps.to_text(now - KEEP_NOTIFICATIONS))
        told = "; ".join((f"{workflows} workflows and {notices} notifications forgotten", *details[:MOST_NAMED]))

        return JobEnd(outcome=told, details=details)

    # --- telling people ----------------------------------------------------------------------------------------

    def report(self, tick: Tick) -> JobEnd:
        """Make the report of the day."""
        since, reports = timestamps.to_text(timestamps.parse(tick.due) - _DAY), self._parts.reports
        costs, queue, window = list(self._parts.costs(since)), reports.queue(at_most=_ALL), Window(since=since)
        counts = DayCounts(
            since=since,
            by_state={state: count.number for state, count in reports.states(at_most=_ALL).items()},
            cost_usd=sum(entry.cost_usd or 0.0 for entry in costs),
            attempts=len(costs),
            waiting=queue.due.number + queue.later.number,
            stuck=self._parts.stuck(),
            outcomes=reports.outcomes(window),
            failures=reports.failures(window, limit=_MOST_FAILURES),
        )
        told, channels = report_rules.report(counts), self._parts.notifier.channels_of("report")
        title = f"adw: {report_rules.headline(counts)}"
        notice = Notice(key=f"report:{tick.due}", kind="report", title=title, text=told, channels=channels)

        return JobEnd(
            outcome=report_rules.headline(counts),
            memo={"report": told},
            notices=(notice,),
            details=tuple(told.splitlines()),
        )

    def notify(self, tick: Tick) -> JobEnd:
        """Make notices of what happened, send what is due, and bring the sums of reports up."""
        del tick
        made = self._parts.notifier.gather()
        sent = self._parts.notifier.send()
        self._parts.reports.refresh()

        return JobEnd(
            outcome=f"{made} new, {sent.sent} sent, {sent.failed} to be tried again, {sent.given_up} given up"
        )
