"""
The external services of a phase and their circuit breakers: asked before an attempt, told the result after it.

An open breaker makes the phase wait and uses no attempt. What counts is decided by the class of the failure, never by
its text: a service that answered, even with a refusal of this one request, is a service that works. When the database
of the breakers cannot be used, that is logged and holds nothing up.
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

#: The service behind issues and pull requests, and that behind the git remote.
GITHUB, GIT = "github", "git"

#: Seconds that a breaker stays open when only a person can help: long enough that not every workflow runs into it.
PERSON_SECONDS = 900.0
#: No breaker is opened for longer than this, whatever a service says.
MAX_SHUT = timedelta(days=31)
#: How timeout(1) ends.
TIMEOUT_EXIT = 124
#: A permit outlives the wall clock of its phase by this: its gates come after that.
PERMIT_MARGIN_SECONDS = 900.0
#: The same for a phase without a wall clock.
PERMIT_SECONDS = 4 * 3600.0


class ServiceVerdict(Enum):
    """What the end of an attempt says about a service."""

    ANSWERED = "answered"  #: it works
    FAILED = "failed"  #: one failure more
    SHUT = "shut"  #: nobody gets an answer before a certain moment: it is opened at once
    NOTHING = "nothing"  #: it was not asked, or nobody can tell


#: Classes of failures that only a person can end.
PERSON_CLASSES = ("auth", "billing")
#: How the reasons begin with which these open a breaker.
_PERSON_REASONS = tuple(f"{klass}: " for klass in PERSON_CLASSES)

#: Classes of failures (`error_tables`) of the service itself.
_SERVICE_CLASSES = ("overloaded", "server", "network", "rate_limited", "timeout")
#: What goes wrong on this side says nothing about the other one.
_OWN_CLASSES = (
    *("killed", "crashed", "interrupted", "missing", "permission", "dependency", "config", "base", "version", "tls"),
    *("disk", "port", "memory", "descriptors", "busy", "conflict", "database"),
    *("state", "storage", "commit_unknown", "ownership", "illegal", "bug", "taken"),
)
#: class of an error -> what it says; every other class means that the service answered
VERDICTS: Mapping[str, ServiceVerdict] = MappingProxyType(
    {
        **dict.fromkeys(_SERVICE_CLASSES, ServiceVerdict.FAILED),
        **dict.fromkeys(("quota_window", *PERSON_CLASSES), ServiceVerdict.SHUT),
        **dict.fromkeys(_OWN_CLASSES, ServiceVerdict.NOTHING),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakerEvent:
    """What an attempt did to a breaker, for an event: `draft.add_event(news.event_type, index, data=news.data)`."""

    event_type: str  #: breaker_opened | breaker_closed
    data: JsonObject = field(default_factory=dict)


def verdict_of(facts: ErrorFacts | None) -> ServiceVerdict:
    """Return what the end of an attempt says about its services; None: it went well."""
    if facts is None:
        return ServiceVerdict.ANSWERED
    # Our own timeouts, and timeout(1), end what takes long: that says nothing about the service.
    if facts.klass == "timeout" and (
        facts.metadata.get("timed_out") or facts.metadata.get("exit_code") == TIMEOUT_EXIT
    ):
        return ServiceVerdict.NOTHING

    return VERDICTS.get(facts.klass, ServiceVerdict.ANSWERED)


def is_about(party: str, facts: ErrorFacts) -> bool:
    """Return whether a failure is one of *party*: shipping talks to two, and the type of the error says to which."""
    if party == GIT:
        return facts.error_type.startswith("Git")
    if party == GITHUB:
        return facts.error_type.startswith("Forge")

    # An agent's provider has no part in what goes wrong between adw and the git remote or the forge.
    return not facts.error_type.startswith(("Git", "Forge"))


def shut_until(facts: ErrorFacts, now: datetime) -> datetime:
    """Return until when nobody gets an answer: as the service said, else for as long as the class is worth."""
    told = told_moment(facts) or now + min(timedelta(seconds=min(facts.retry_delay or PERSON_SECONDS, 1e9)), MAX_SHUT)
    # A quota is open again a little later than it says.
    margin = timedelta(seconds=QUOTA_MARGIN_SECONDS if facts.klass == "quota_window" else 0.0)

    return min(told, now + MAX_SHUT) + margin


class ServiceGuard:
    """The breakers around the attempts of a process: asked before one begins, told how it ended."""

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
        *providers* names the provider that the agent of a runner calls; *forge* is its kind.

        *has_remote* says whether there is a git remote to ship to; *scrub* takes secrets out of a line.
        """
        self._breakers = breakers
        self._clock = clock
        self._providers = providers
        self._scrub = scrub
        self._shipping = (*((GITHUB,) if forge == GITHUB else ()), *((GIT,) if has_remote else ()))
        self._permits: dict[tuple[str, str], dict[str, Permit]] = {}  #: (workflow, phase) -> party -> its permit
        self._news: dict[tuple[str, str], list[BreakerEvent]] = {}  #: what is not told yet
        self._guard = threading.Lock()

    def parties_of(self, phase: PhaseSpec) -> tuple[str, ...]:
        """Return the external services that *phase* needs; () for one that needs none."""
        if phase.runner in {SHIP, CLEAN}:
            return self._shipping
        provider = self._providers.get(phase.runner)

        return (provider,) if provider else ()

    def may_begin(self, document: WorkflowDocument, phase: PhaseSpec) -> Wait | None:
        """
        Take a permit of every service of *phase*; None: it may begin, and `settle` or `let_go` has to follow.

        When one of them refuses, nothing is taken, and the answer says when to ask again.
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
                        # Between the refusal and this check it may have opened up: then there is no need to wait.
                        at=breaker.refused_until() or self._clock.now(),
                        reason=f"{row.name} {what} after it failed{why}; sooner with {sooner}",
                    )
                got[party] = permit
        if got:
            with self._guard:
                self._permits[key] = got

        return None

    def services_of(self, phase: PhaseSpec, facts: ErrorFacts) -> dict[str, int]:
        """Return the services of *phase* that a failure is about, with the generations of their circuit breakers."""
        rows: list[BreakerRow] = []
        with _logged():
            rows = [self._breakers.get(party).row for party in self.parties_of(phase) if is_about(party, facts)]

        return {row.name: row.generation for row in rows}

    def has_closed(self, waits_for: Mapping[str, int]) -> bool:
        """Say whether the breakers of services have closed since they had these generations."""
        rows: list[BreakerRow] = []
        with _logged():
            rows = [self._breakers.get(party).row for party in waits_for]
        are_closed = all(row.state == CircuitState.CLOSED.value for row in rows)

        return are_closed and any(row.generation != waits_for[row.name] for row in rows)

    def answered(self, document: WorkflowDocument, phase: PhaseSpec) -> bool:
        """
        Take note, while an attempt runs, that its services answer; return whether that closed a breaker.

        Others need not wait for the end of a long trial. The attempt keeps its permits, and how it ends is still
        counted; `settle` tells what this did to breakers.
        """
        key, has_closed = (document.adw_id, phase.name), False
        with self._guard:
            held = self._permits.get(key, {})
        with _logged():
            for party, permit in tuple(held.items()):
                breaker = self._breakers.get(party)
                # While it is closed only the end counts: a service that answers first and then fails has failed.
                if breaker.state is CircuitState.HALF_OPEN and breaker.record_success(permit) is not None:
                    self._news.setdefault(key, []).append(_event(breaker, CircuitState.CLOSED, ""))
                    held[party] = breaker.acquire(seconds=_lifetime(phase)) or permit
                    has_closed = True

        return has_closed

    def reset_breakers(self, phase: PhaseSpec) -> bool:
        """
        Reset the breakers of *phase* that only a person can close; return whether it reset one.

        A person wants it to go on, so the cause is fixed: after a new login nobody waits for a breaker that cannot know
        of it. A breaker that is open for any other reason stays open.
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
        Say how an attempt ended, None for success, and give its permits back; return what that did to breakers.

        Call it before the finishing write, and put the answer's events into that. An attempt that was suspended is
        not settled but `let_go`.
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
        """Give back the permits of attempts at a workflow whose result is not known; may be repeated."""
        with self._guard:
            mine = [key for key in self._permits if key[0] == document.adw_id]
            held = [self._permits.pop(key) for key in mine]
            for key in mine:
                self._news.pop(key, None)
        for permits in held:
            self._give_back(permits)

    def _give_back(self, permits: Mapping[str, Permit]) -> None:
        with _logged():  # what is not given back ends by itself
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
    """Log that the database of the breakers cannot be used, and go on after the block."""
    try:
        yield
    except DatabaseError as exc:
        logger.warning("The breakers cannot be used", extra={"action": "breakers_unusable", "why": str(exc)})


# Runs that wait for a service: due at once when its circuit breaker closes.


#: Runs that are read at once.
_PAGE = 200


class ServiceWaits:
    """The runs whose workflows wait for services."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def wake(self) -> tuple[str, ...]:
        """
        Make every run due whose workflow waits for a service that is available again; return the workflows.

        Never raises: what is not woken goes on at its own time, and the schedule looks for it again.
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
