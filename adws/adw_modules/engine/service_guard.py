"""
The external services of a phase and their circuit breakers: checked before an attempt, updated with its result.

An open breaker makes the phase wait and uses no attempt. The class of a failure decides what counts, never its text: a
service that answered, even by refusing this one request, works. If the breakers' database is unusable, that is logged
and delays nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules import timestamps
from adws.adw_modules.circuit_breaker import BreakerRow, CircuitBreaker, CircuitBreakerRegistry, CircuitState, Permit
from adws.adw_modules.error_handler import ErrorFacts
from adws.adw_modules.errors import DatabaseError, StateError
from adws.adw_modules.identifiers import JsonObject
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.phase import Wait
from adws.adw_modules.queue.model import RunState
from adws.adw_modules.retry_handler import QUOTA_MARGIN_SECONDS, first_line, told_moment
from adws.adw_modules.workflow.model import CLEAN, SHIP

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.workflow.model import PhaseSpec
    from adws.app import Home


logger = logging.getLogger("adw.engine")

#: The service of issues and pull requests, and that of the git remote.
GITHUB, GIT = "github", "git"

#: Seconds that a breaker stays open if only a person can help: long enough to spare most workflows the failure.
PERSON_SECONDS = 900.0
#: Longest time a breaker is opened for, whatever a service says.
MAX_SHUT = timedelta(days=31)
#: Exit code of timeout(1) after a time-out.
TIMEOUT_EXIT = 124
#: A permit outlives the wall-clock limit of its phase by this, because its gates run after that.
PERMIT_MARGIN_SECONDS = 900.0
#: Lifetime of a permit for a phase without a wall-clock limit.
PERMIT_SECONDS = 4 * 3600.0


class ServiceVerdict(Enum):
    """What the end of an attempt says about a service."""

    ANSWERED = "answered"  #: it works
    FAILED = "failed"  #: one more failure
    SHUT = "shut"  #: it answers nobody before a certain moment: the breaker opens at once
    NOTHING = "nothing"  #: it was not called, or the cause is unknown


#: Classes of failures that only a person can fix.
PERSON_CLASSES = ("auth", "billing")
#: Prefixes of the breaker reasons for these classes.
_PERSON_REASONS = tuple(f"{klass}: " for klass in PERSON_CLASSES)

#: Failure classes (`error_tables`) of the service itself.
_SERVICE_CLASSES = ("overloaded", "server", "network", "rate_limited", "timeout")
#: Failures on this side say nothing about the service.
_OWN_CLASSES = (
    *("killed", "crashed", "interrupted", "missing", "permission", "dependency", "config", "base", "version", "tls"),
    *("disk", "port", "memory", "descriptors", "busy", "conflict", "database"),
    *("state", "storage", "commit_unknown", "ownership", "illegal", "bug", "taken"),
)
#: error class -> verdict; any other class means that the service answered
VERDICTS: Mapping[str, ServiceVerdict] = MappingProxyType(
    {
        **dict.fromkeys(_SERVICE_CLASSES, ServiceVerdict.FAILED),
        **dict.fromkeys(("quota_window", *PERSON_CLASSES), ServiceVerdict.SHUT),
        **dict.fromkeys(_OWN_CLASSES, ServiceVerdict.NOTHING),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerEvent:
    """A breaker change caused by an attempt, for `draft.add_event(news.event_type, index, data=news.data)`."""

    event_type: str  #: breaker_opened | breaker_closed
    data: JsonObject = field(default_factory=dict)


def verdict_of(facts: ErrorFacts | None) -> ServiceVerdict:
    """Return what the end of an attempt says about its services; *facts* is None after a success."""
    if facts is None:
        return ServiceVerdict.ANSWERED
    # Our own time-outs and timeout(1) end slow work: no evidence about the service.
    if facts.klass == "timeout" and (
        facts.metadata.get("timed_out") or facts.metadata.get("exit_code") == TIMEOUT_EXIT
    ):
        return ServiceVerdict.NOTHING

    return VERDICTS.get(facts.klass, ServiceVerdict.ANSWERED)


def is_about(party: str, facts: ErrorFacts) -> bool:
    """Return whether a failure belongs to *party*: shipping uses two, and the type of the error distinguishes them."""
    if party == GIT:
        return facts.error_type.startswith("Git")
    if party == GITHUB:
        return facts.error_type.startswith("Forge")

    # An agent's provider is not involved in failures between adw and the git remote or the forge.
    return not facts.error_type.startswith(("Git", "Forge"))


def shut_until(facts: ErrorFacts, now: datetime) -> datetime:
    """Return until when the service is unavailable: as it said, else for the default time of the class."""
    told = told_moment(facts) or now + min(timedelta(seconds=min(facts.retry_delay or PERSON_SECONDS, 1e9)), MAX_SHUT)
    # A quota is available a little later than announced.
    margin = timedelta(seconds=QUOTA_MARGIN_SECONDS if facts.klass == "quota_window" else 0.0)

    return min(told, now + MAX_SHUT) + margin


class ServiceGuard:
    """The breakers around a process's attempts: checked before each one, updated at its end."""

    def __init__(
        self,
        breakers: CircuitBreakerRegistry,
        *,
        clock: Clock,
        providers: Mapping[str, str] = MappingProxyType({}),
        forge: str = "none",
        has_remote: bool = False,
        scrub: Callable[[str], str] = lambda text: text,
    ) -> None:
        """
        *providers* maps a runner to the provider that its agent calls; *forge* is the kind of forge.

        *has_remote* says whether there is a git remote to ship to; *scrub* removes secrets from a line.
        """
        self._breakers = breakers
        self._clock = clock
        self._providers = providers
        self._scrub = scrub
        self._shipping = (*((GITHUB,) if forge == GITHUB else ()), *((GIT,) if has_remote else ()))
        self._permits: dict[tuple[str, str], dict[str, Permit]] = {}  #: (workflow, phase) -> party -> its permit
        self._news: dict[tuple[str, str], list[BreakerEvent]] = {}  #: changes not reported yet
        self._guard = threading.Lock()

    def parties_of(self, phase: PhaseSpec) -> tuple[str, ...]:
        """Return the external services that *phase* needs, or ()."""
        if phase.runner in {SHIP, CLEAN}:
            return self._shipping
        provider = self._providers.get(phase.runner)

        return (provider,) if provider else ()

    def may_begin(self, document: WorkflowDocument, phase: PhaseSpec) -> Wait | None:
        """
        Take a permit of every service of *phase*; on None it may begin, and `settle` or `let_go` has to follow.

        If one service refuses, no permit is kept, and the returned Wait says when to ask again.
        """
        parties = self.parties_of(phase)
        if not parties:
            return None
        key, got = (document.adw_id, phase.name), dict[str, Permit]()
        with self._guard:
            before = self._permits.pop(key, {})
        self._give_back(before)
        with _logged():
            for party in parties:
                breaker = self._breakers.get(party)
                permit = breaker.acquire(seconds=_lifetime(phase))
                if permit is None:
                    self._give_back(got)
                    row = breaker.row
                    why = f" ({row.reason})" if row.reason else ""
                    what = "is tested by another workflow" if row.permits else "is not called"
                    sooner = f"adw admin breakers reset {row.name} and adw resume {document.adw_id}"
                    return Wait(
                        party=row.name,
                        generation=row.generation,
                        # The breaker may have become available since the refusal: then there is no need to wait.
                        at=breaker.refused_until() or self._clock.now(),
                        reason=f"{row.name} {what} after it failed{why}; sooner with {sooner}",
                    )
                got[party] = permit
        if got:
            with self._guard:
                self._permits[key] = got

        return None

    def services_of(self, phase: PhaseSpec, facts: ErrorFacts) -> dict[str, int]:
        """Return the services of *phase* that a failure is about, with their breakers' generations."""
        rows: list[BreakerRow] = []
        with _logged():
            rows = [self._breakers.get(party).row for party in self.parties_of(phase) if is_about(party, facts)]

        return {row.name: row.generation for row in rows}

    def has_closed(self, waits_for: Mapping[str, int]) -> bool:
        """Say whether the services' breakers have closed since they had these generations."""
        rows: list[BreakerRow] = []
        with _logged():
            rows = [self._breakers.get(party).row for party in waits_for]
        are_closed = all(row.state == CircuitState.CLOSED.value for row in rows)

        return are_closed and any(row.generation != waits_for[row.name] for row in rows)

    def answered(self, document: WorkflowDocument, phase: PhaseSpec) -> bool:
        """
        Record, during an attempt, that its services answer; return whether that closed a breaker.

        So others need not wait for the end of a long trial. The attempt keeps its permits, and its end still counts;
        `settle` reports the changes of breakers.
        """
        key, has_closed = (document.adw_id, phase.name), False
        with self._guard:
            held = self._permits.get(key, {})
        with _logged():
            for party, permit in tuple(held.items()):
                breaker = self._breakers.get(party)
                # With a closed breaker only the end counts: a service that answers first and then fails has failed.
                if breaker.state is CircuitState.HALF_OPEN and breaker.record_success(permit) is not None:
                    self._news.setdefault(key, []).append(_event(breaker, CircuitState.CLOSED, ""))
                    held[party] = breaker.acquire(seconds=_lifetime(phase)) or permit
                    has_closed = True

        return has_closed

    def reset_breakers(self, phase: PhaseSpec) -> bool:
        """
        Reset the breakers of *phase* that only a person can close; return whether one was reset.

        A person wants the workflow to continue, so the cause is fixed: after a new login nobody should wait for a
        breaker that cannot know about it. A breaker that is open for any other reason stays open.
        """
        has_closed = False
        with _logged():
            for party in self.parties_of(phase):
                breaker = self._breakers.get(party)
                if breaker.state is not CircuitState.CLOSED and breaker.row.reason.startswith(_PERSON_REASONS):
                    breaker.reset()
                    has_closed = True

        return has_closed

    def settle(
        self, document: WorkflowDocument, phase: PhaseSpec, facts: ErrorFacts | None
    ) -> tuple[BreakerEvent, ...]:
        """
        Record how an attempt ended (None: success) and release its permits; return the changes of breakers.

        Call it before the final write, and include the returned events in that. For a suspended attempt use `let_go`
        instead.
        """
        parties = self.parties_of(phase)
        if not parties:
            return ()
        key = (document.adw_id, phase.name)
        with self._guard:
            held = self._permits.pop(key, {})
        news = self._news.pop(key, [])
        with _logged():
            for party in parties:
                breaker = self._breakers.get(party)
                state = self._record(breaker, held.get(party), facts)
                if state is not None:
                    news.append(_event(breaker, state, facts.klass if facts else ""))

        return tuple(news)

    def _record(self, breaker: CircuitBreaker, permit: Permit | None, facts: ErrorFacts | None) -> CircuitState | None:
        if facts is None:
            return breaker.record_success(permit)
        verdict = verdict_of(facts) if is_about(breaker.executor_id, facts) else ServiceVerdict.NOTHING
        reason = self._scrub(f"{facts.klass}: {first_line(facts.message)}")
        if verdict is ServiceVerdict.ANSWERED:
            return breaker.record_success(permit)
        if verdict is ServiceVerdict.FAILED:
            return breaker.record_failure(permit, reason=reason)
        if verdict is ServiceVerdict.SHUT:
            return breaker.open_until(shut_until(facts, self._clock.now()), reason, permit)
        if permit is not None:
            breaker.give_back(permit)

        return None

    def let_go(self, document: WorkflowDocument) -> None:
        """Release the permits of a workflow's attempts whose result is unknown; may be repeated."""
        with self._guard:
            mine = [key for key in self._permits if key[0] == document.adw_id]
            held = [self._permits.pop(key) for key in mine]
            for key in mine:
                self._news.pop(key, None)
        for permits in held:
            self._give_back(permits)

    def _give_back(self, permits: Mapping[str, Permit]) -> None:
        with _logged():  # permits that are not released expire
            for party, permit in permits.items():
                self._breakers.get(party).give_back(permit)


def _lifetime(phase: PhaseSpec) -> float:
    wall = phase.timeouts.wall

    return PERMIT_SECONDS if wall is None else wall + PERMIT_MARGIN_SECONDS


def _event(breaker: CircuitBreaker, state: CircuitState, klass: str) -> BreakerEvent:
    name = "breaker_opened" if state is CircuitState.OPEN else "breaker_closed"
    data: JsonObject = {"party": breaker.executor_id}
    if state is CircuitState.OPEN:
        row = breaker.row
        data |= {"reopens_at": row.reopens_at, "reason": row.reason, "class": klass}
    logger.warning("A breaker changed its state", extra={"action": name, **data})

    return BreakerEvent(event_type=name, data=data)


@contextmanager
def _logged() -> Iterator[None]:
    """Log that the breakers' database cannot be used, and continue after the block."""
    try:
        yield
    except DatabaseError as exc:
        logger.warning("The breakers cannot be used", extra={"action": "breakers_unusable", "why": str(exc)})


# Runs that wait for a service: due at once when its circuit breaker closes.


#: Runs per query.
_PAGE = 200


class ServiceWaits:
    """The runs whose workflows wait for services."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def wake(self) -> tuple[str, ...]:
        """
        Make every run due whose workflow waits for a service that is available again; return the workflows.

        Never raises: a run that is not woken becomes due at its own time, and the schedule checks again.
        """
        home, woken = self._home, list[str]()
        with _logged():
            now, before = timestamps.to_text(home.clock.now()), None
            waiting: list[str] = []
            while page := home.runs.page(states=(RunState.PENDING,), limit=_PAGE, before=before):
                waiting.extend(run.adw_id for run in page if run.not_before > now and not run.slot)
                before = page[-1].run_id
            for adw_id in waiting:
                try:
                    phases = home.store.load(adw_id).document.phases
                except StateError:
                    continue
                waits_for = next((phase.waits_for for phase in phases if phase.status == "retry_wait"), {})
                if home.service_guard.has_closed(waits_for):
                    home.database.transact(partial(home.runs.wake_in, adw_id=adw_id))
                    woken.append(adw_id)

        return tuple(woken)
