"""
Finding workflows without reading their documents.

A page starts where the page before ended (its cursor is the last row's place), so a page is read along an index and
costs the same however many workflows there are and however far back it is.
"""

from __future__ import annotations

import base64
import binascii
import json

from adws.adw_modules import search_rules
from adws.adw_modules.db import rows, statements
from adws.adw_modules.db.session import Database, Row
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import Page, PageQuery, WorkflowSummary
from adws.adw_modules.repository_name import in_home

#: Rows a page may have.
MAX_LIMIT = 1000


class DatabaseCatalogue:
    """A `Catalogue` in the database."""

    def __init__(self, database: Database, *, repository: str = "") -> None:
        """Look into *database*; *repository* is the one that "" stands for in this home."""
        self._database = database
        self._repository = repository
        self._summary = database.spell(statements.SUMMARY)

    def page(self, query: PageQuery) -> Page:
        """Return one page; its cost does not grow with the number of workflows."""
        if not 1 <= query.limit <= MAX_LIMIT:
            raise UsageError(f"a page has 1 to {MAX_LIMIT} rows, not {query.limit}")
        sql, params = self.query_of(query)
        with self._database.read() as session:
            found = session.all(sql, params)
        shown = tuple(rows.to_summary(row) for row in found[: query.limit])

        return Page(rows=shown, next_cursor=to_cursor(shown[-1]) if len(found) > query.limit else None)

    def find_by_issue(self, issue_number: int, repository: str | None = None) -> tuple[WorkflowSummary, ...]:
        """Return the workflows of an issue, newest first."""
        sql, params = self._select(PageQuery(issue_number=issue_number, repository=repository))
        with self._database.read() as session:
            found: list[Row] = session.all(f"{sql} {statements.NEWEST_FIRST}", params)

        return tuple(rows.to_summary(row) for row in found)

    def query_of(self, query: PageQuery) -> tuple[str, dict[str, object]]:
        """Return the SQL of a page and its parameters; one row more than asked for tells whether there is another."""
        sql, params = self._select(query)

        return f"{sql} {statements.NEWEST_FIRST} LIMIT :limit", {**params, "limit": query.limit + 1}

    def _select(self, query: PageQuery) -> tuple[str, dict[str, object]]:
        params: dict[str, object] = dict(self._database.lease_clock())
        conditions = []
        words = search_rules.words_in(query.search)
        # With words, an index of these would lead away from the one that finds words: so they are hidden from it.
        hidden = " || ''" if words else ""
        if query.repository is not None:
            conditions.append(f"repository{hidden} {self._of_repository(query.repository, params)}")
        for name in ("state", "workflow"):
            wanted = getattr(query, name)
            if wanted is not None:
                conditions.append(f"{name}{hidden} = :{name}")
                params[name] = rows.plain(wanted)
        if query.issue_number is not None:
            conditions.append("issue_number = :issue_number")
            params["issue_number"] = query.issue_number
        conditions += [self._has_word(word, number, params) for number, word in enumerate(words)]
        if query.cursor is not None:
            conditions.append(statements.AFTER_CURSOR)
            params["cursor_created_at"], params["cursor_adw_id"] = from_cursor(query.cursor)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""

        return f"{self._summary} {where}", params

    def _has_word(self, word: str, number: int, params: dict[str, object]) -> str:
        """Return the condition that *word* is found."""
        found = []
        for place, spelling in enumerate(search_rules.spellings(rows.plain(word))):
            name = f"word_{number}_{place}"
            params[name] = f"%{_escaped(spelling)}%"
            found.append(statements.HAS_TEXT.replace("{name}", name))
        params[f"id_{number}"] = f"{_escaped(rows.plain(word))}%"
        found.append(statements.HAS_ID.replace("{name}", f"id_{number}"))
        issue = search_rules.issue_in(word)
        if issue is not None:
            params[f"issue_{number}"] = issue
            found.append(statements.HAS_ISSUE.replace("{name}", f"issue_{number}"))

        return self._database.spell(f"({' OR '.join(found)})")

    def _of_repository(self, repository: str, params: dict[str, object]) -> str:
        """Return what a repository has to be; rows that name none are of the home's own."""
        key = in_home(repository, self._repository)
        params["repository"] = rows.plain(key)
        is_own = key == in_home("", self._repository)

        return "IN (:repository, '')" if is_own and key else "= :repository"


def _escaped(text: str) -> str:
    """Return *text* as a pattern that means nothing but itself."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def to_cursor(row: WorkflowSummary) -> str:
    """Return the place after *row*, as text without a meaning to anybody else."""
    return base64.urlsafe_b64encode(json.dumps([row.created_at, row.adw_id]).encode()).decode().rstrip("=")


def from_cursor(cursor: str) -> tuple[str, str]:
    """Return the place in *cursor*; raise UsageError when it is not one of ours."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        created_at, adw_id = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        created_at = adw_id = None
    if not isinstance(created_at, str) or not isinstance(adw_id, str) or "\x00" in created_at + adw_id:
        raise UsageError(f"{cursor[:60]!r} is not a cursor: use the next_cursor of the page before, unchanged")

    return created_at, adw_id
