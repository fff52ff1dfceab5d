"""
Claiming runs in the database, on the terms of a worker: what it offers, and how many of a kind may go on at a time.

The usual case is one statement: nothing demands anything, and nothing is limited. Only while something waits that
demands something are demands read and matched; only under limits are labels counted, in the transaction that claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adws.adw_modules import timestamps
from adws.adw_modules.db import run_rows, run_statements
from adws.adw_modules.db.session import Database, Row, Session
from adws.adw_modules.demands import Demands, Offer, meets
from adws.adw_modules.interfaces import Clock
from adws.adw_modules.owner_record import OwnerRecord
from adws.adw_modules.run_limits import RunLimits, full_labels
from adws.adw_modules.runs import DELIVERY_PRIORITY, NO_LIMITS, Run, Terms, labels_of

#: The highest number a row can have.
LAST_ID = 2**63 - 1
#: Makes the text of a query for so many demands that are met and so many labels that are full.
_Text = Callable[[int, int], str]
_DUES = (run_statements.IS_DUE, run_statements.IS_DUE_DELIVERY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimer:
    """Who claims, for how long, on which terms."""

    owner: OwnerRecord
    ttl_seconds: float
    terms: Terms

    @property
    def offer(self) -> Offer:
        """What he has to offer."""
        return self.terms.offer or Offer(host=self.owner.host)


class RunClaims:
    """Claims from the table runs."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._is_sqlite = database.dialect == "sqlite"
        # A reader waits for nobody, a claim for every writer before it: so one that will find nothing is not made.
        # Where the last one found something, the next one will too.
        self._looks_first = self._is_sqlite
        # Spelled once: these two are all of the usual case.
        self._undemanding = {due: self._spelled(run_statements.claim_undemanding(due)) for due in _DUES}
        self._any_due = {due: self._spelled(run_statements.is_any_due(due)) for due in _DUES}
        self._demands_wait = False  #: when it was last looked at; what is wrong here costs a statement, no more

    def claim(self, claimer: Claimer, *, run_id: int | None, only_deliveries: bool) -> Run | None:
        """Return the run that is claimed, None when there is none on these terms."""
        params = {
            **self._database.lease_clock(),
            "owner": claimer.owner.to_text(),
            "ttl": claimer.ttl_seconds,
            "moment": timestamps.to_text(self._clock.now()),
        }
        if run_id is not None:
            found = self._one(claimer, {**params, "run_id": run_id}) if 0 < run_id <= LAST_ID else None
        elif only_deliveries:
            # They carry no labels: what they ask for is short, and a stop is not to wait for what it stops.
            delivering = {**params, "rank": -DELIVERY_PRIORITY}
            found = self._first(run_statements.IS_DUE_DELIVERY, claimer, NO_LIMITS, delivering)
        else:
            found = self._first(run_statements.IS_DUE, claimer, claimer.terms.limits, params)
            self._looks_first = self._is_sqlite and found is None

        return None if found is None else run_rows.to_run(found)

    # --- one by its id -----------------------------------------------------------------------------------------

    def _one(self, claimer: Claimer, params: dict[str, object]) -> Row | None:
        limits = claimer.terms.limits
        found = self._claimed(run_statements.claim_one, params, (), limits)
        if found is not None:
            return found
        with self._database.read() as session:
            row = session.one(run_statements.DEMANDS_OF_RUN, params)
        if row is None or not row[0] or not meets(claimer.offer, Demands.from_text(row[0])):
            return None

        return self._claimed(run_statements.claim_one, params, (row[0],), limits)

    # --- the next ----------------------------------------------------------------------------------------------

    def _first(self, due: str, claimer: Claimer, limits: RunLimits, params: dict[str, object]) -> Row | None:
        """Return the first that is *due*."""
        is_usual = not limits and not self._demands_wait
        if is_usual:
            if self._must_look(due) and not self._is_any_due(due, params):
                return None
            found = self._database.transact(lambda session: session.one(self._undemanding[due], params))
            if found is not None:
                return found
        met = self._met(claimer.offer)
        if is_usual and not self._demands_wait:
            return None
        if self._is_sqlite and not self._is_due(due, met, limits, params):
            return None

        return self._claimed(lambda number, full: run_statements.claim_first(due, number, full), params, met, limits)

    def _must_look(self, due: str) -> bool:
        return self._is_sqlite and (self._looks_first or due == run_statements.IS_DUE_DELIVERY)

    def _met(self, offer: Offer) -> tuple[str, ...]:
        """Return the demands that wait and that *offer* meets."""
        with self._database.read() as session:
            waiting = [row[0] for row in session.all(self._spelled(run_statements.DEMANDS_WAITING))]
        self._demands_wait = bool(waiting)

        return tuple(text for text in waiting if meets(offer, Demands.from_text(text)))

    def _is_any_due(self, due: str, params: dict[str, object]) -> bool:
        with self._database.read() as session:
            return session.one(self._any_due[due], params) is not None

    def _is_due(self, due: str, met: Sequence[str], limits: RunLimits, params: dict[str, object]) -> bool:
        with self._database.read() as session:
            full = _full(session, limits)
            text = self._spelled(run_statements.is_due(due, len(met), len(full)))

            return session.one(text, {**params, **_numbered("met", met), **_numbered("full", full)}) is not None

    # --- how -----------------------------------------------------------------------------------------------------

    def _claimed(self, text: _Text, params: dict[str, object], met: Sequence[str], limits: RunLimits) -> Row | None:
        """Return the row that *text* claims; labels are counted in the same transaction, and by one at a time."""

        def work(session: Session) -> Row | None:
            if limits and not self._is_sqlite:
                session.one(run_statements.LIMITS_LOCK)
            full = _full(session, limits)
            wanted = {**params, **_numbered("met", met), **_numbered("full", full)}

            return session.one(self._spelled(text(len(met), len(full))), wanted)

        return self._database.transact(work)

    def _spelled(self, sql: str) -> str:
        return run_statements.spelled(self._database, sql)


def _full(session: Session, limits: RunLimits) -> tuple[str, ...]:
    """Return the labels that no further run may carry now, between their bars."""
    if not limits:
        return ()
    live = (labels_of(row[0]) for row in session.all(run_statements.LABELS_LIVE))

    return tuple(f"|{label}|" for label in full_labels(live, limits))


def _numbered(name: str, values: Sequence[str]) -> dict[str, str]:
    return {f"{name}{number}": value for number, value in enumerate(values)}
