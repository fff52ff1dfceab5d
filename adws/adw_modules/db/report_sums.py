"""
The sums of reports: bringing them up, and what is not in them yet.

Events say which workflows have changed, their documents say what they add. What a workflow has added stands in its row,
so only the difference is added: nothing is counted twice, whatever dies meanwhile, and after events or documents were
made again all workflows are simply looked at once more. Nothing of this is on the path of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from adws.adw_modules import plain_document, report_tallies
from adws.adw_modules.db import report_statements as sql
from adws.adw_modules.db import rows, settled_events
from adws.adw_modules.db.session import Database, Session
from adws.adw_modules.errors import AdwError
from adws.adw_modules.report_tallies import NOTHING, Last, Slot, Sum, Tallies

#: Events, and documents, that are looked at in one transaction.
EVENTS_AT_ONCE, DOCUMENTS_AT_ONCE = 2000, 400
#: So many events may be waiting to be looked at; from there on whoever asks brings the sums up first.
MOST_WAITING = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """How far was looked."""

    seq: int = -1  #: the last event; -1: none, so all workflows have to be looked at
    all_after: str | None = None  #: of a look at all workflows: the last one; None: there is none under way

    @property
    def is_whole(self) -> bool:
        """Whether only events have to be looked at."""
        return self.seq >= 0 and self.all_after is None


@dataclass(slots=True)
class News:
    """What is not in the sums yet."""

    sums: dict[Slot, Sum] = field(default_factory=dict)
    lasts: dict[Slot, Last] = field(default_factory=dict)
    workflows: dict[str, Tallies] = field(default_factory=dict)

    def add(self, added: dict[Slot, Sum], tallies: Tallies) -> None:
        """Take in what a workflow adds."""
        self.workflows[tallies.adw_id] = tallies
        for slot, total in added.items():
            self.sums[slot] = self.sums.get(slot, NOTHING).plus(total)
            last = tallies.lasts.get(slot)
            if last is not None and last.at >= self.lasts.get(slot, Last()).at:
                self.lasts[slot] = last


class ReportSums:
    """Keeps the sums."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._take = database.spell(sql.PROGRESS_TAKE)

    # --- bringing them up --------------------------------------------------------------------------------------

    def bring_up(self) -> int:
        """Add what is new, and return how many workflows had something new."""
        last, looked = settled_events.last(self._database), 0
        while last is not None:
            ids, is_through = self._database.transact(lambda session: self._look_at_some(session, last))
            looked += ids
            if is_through:
                break

        return looked

    def bring_up_if_behind(self) -> None:
        """Do it when much is new; where nothing can be written, the answers are right without it, only slower."""
        with self._database.read() as session:
            progress = progress_of(session)
            newest = session.one(settled_events.EVENTS_LAST) or (0,)
        if progress.is_whole and newest[0] - progress.seq <= MOST_WAITING:
            return
        try:
            self.bring_up()
        except AdwError:
            return

    def add_last(self, session: Session, adw_id: str) -> None:
        """Add what a workflow adds that is about to be forgotten."""
        session.run(sql.PROGRESS_BEGIN, {"name": sql.EVENTS})
        session.one(self._take)
        add_workflows(session, [adw_id])

    def _look_at_some(self, session: Session, last: int) -> tuple[int, bool]:
        """Add what some workflows add; return how many had something new, and whether that was all."""
        session.run(sql.PROGRESS_BEGIN, {"name": sql.EVENTS})
        session.one(self._take)
        progress = progress_of(session)
        if progress.seq < 0:
            place = settled_events.event_at(session, last)
            session.run(sql.PROGRESS_MOVE, {"name": sql.EVENTS, "seq": last, "place": place})
            session.run(sql.PROGRESS_MOVE, {"name": sql.ALL, "seq": 0, "place": ""})
            return 0, False
        if progress.all_after is not None:
            return self._look_at_all(session, progress.all_after), False
        params = {"after": progress.seq, "last": last, "limit": EVENTS_AT_ONCE}
        found = session.all(sql.EVENTS_AFTER, params)
        if found:
            session.run(sql.PROGRESS_MOVE, {"name": sql.EVENTS, "seq": found[-1][0], "place": found[-1][1]})

        return add_workflows(session, sorted({row[2] for row in found})), len(found) < EVENTS_AT_ONCE

    def _look_at_all(self, session: Session, after: str) -> int:
        found = session.all(sql.WORKFLOWS_AFTER, {"after": after, "limit": DOCUMENTS_AT_ONCE})
        if len(found) < DOCUMENTS_AT_ONCE:
            session.run(sql.PROGRESS_END, {"name": sql.ALL})
        else:
            session.run(sql.PROGRESS_MOVE, {"name": sql.ALL, "seq": 0, "place": found[-1][0]})

        return add_workflows(session, [row[0] for row in found])

    # --- what is not in them yet -------------------------------------------------------------------------------

    def news(self, session: Session) -> News:
        """Return what has to be added to the sums that *session* sees."""
        found = News()
        for tallies, added in _differences(session, self._waiting(session, progress_of(session))):
            found.add(added, tallies)

        return found

    def _waiting(self, session: Session, progress: Progress) -> Iterator[str]:
        """Yield the workflows that were not looked at."""
        changed = session.all(sql.WORKFLOWS_AFTER_EVENT, {"after": progress.seq})
        after = progress.all_after if progress.seq >= 0 else ""
        yield from (row[0] for row in changed if after is None or row[0] <= after)
        while after is not None:
            found = session.all(sql.WORKFLOWS_AFTER, {"after": after, "limit": DOCUMENTS_AT_ONCE})
            yield from (row[0] for row in found)
            after = found[-1][0] if len(found) == DOCUMENTS_AT_ONCE else None


def progress_of(session: Session) -> Progress:
    """Return how far was looked; nowhere when the last event is not the one that was looked at: they are others now."""
    found = {row[0]: row for row in session.all(sql.PROGRESS_ALL)}
    events, everything = found.get(sql.EVENTS), found.get(sql.ALL)
    if events is None or events[1] < 0 or settled_events.event_at(session, events[1]) != events[2]:
        return Progress()

    return Progress(seq=int(events[1]), all_after=None if everything is None else str(everything[2]))


def add_workflows(session: Session, adw_ids: Sequence[str]) -> int:
    """Add what workflows add that is not in the sums yet, and return how many there were; `PROGRESS_TAKE` is ours."""
    new = News()
    for tallies, added in _differences(session, adw_ids):
        new.add(added, tallies)
    session.run_each(sql.SUM_ADD, [_sum_params(slot, total, new) for slot, total in sorted(new.sums.items())])
    session.run_each(sql.WORKFLOW_PUT, [_workflow_params(tallies) for tallies in new.workflows.values()])

    return len(new.workflows)


def _differences(session: Session, adw_ids: Iterable[str]) -> Iterator[tuple[Tallies, dict[Slot, Sum]]]:
    """Yield what each workflow adds, and what of it is not in the sums; those with nothing new are left out."""
    waiting = iter(adw_ids)
    while some := list(islice(waiting, DOCUMENTS_AT_ONCE)):
        named = {f"id{place}": adw_id for place, adw_id in enumerate(some)}
        for row in session.all(sql.DOCUMENTS.format(ids=", ".join(f":{name}" for name in named)), named):
            adw_id, workflow, body, before = row
            tallies = report_tallies.tallies_of(adw_id, workflow, plain_document.read(body))
            added = report_tallies.difference(report_tallies.from_text(before), tallies.sums)
            if added:
                yield tallies, added


def _sum_params(slot: Slot, total: Sum, new: News) -> dict[str, object]:
    last = new.lasts.get(slot, Last())
    texts = {**slot._asdict(), "last_at": last.at, "adw_id": last.adw_id, "label": last.label}

    return {**{name: rows.plain(text) for name, text in texts.items()}, **total._asdict()}


def _workflow_params(tallies: Tallies) -> dict[str, object]:
    named = {name: getattr(tallies, name) for name in sql.WORKFLOW_COLUMNS if name != "sums"}

    return {**named, "sums": report_tallies.to_text(tallies.sums)}
