"""What every Catalogue keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.document import parse
from adws.adw_modules.errors import UsageError
from adws.adw_modules.interfaces import PageQuery, WorkflowResult, WorkflowSummary
from tests.contracts.worlds import FIRST, MOMENT, SECOND, THIRD, make_document

STATES = ("pending", "building", "failed")


def fill(world, count: int) -> list[str]:
    """Create workflows, three for each moment, and return their ids newest first."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = []
    for number in range(count):
        created_at = timestamps.to_text(start + timedelta(seconds=number // 3))
        adw_id = f"{(number * 7919) % 65536:08x}"
        document = make_document(
            adw_id,
            created_at=created_at,
            issue_number=number % 10 + 1,
            repository="acme/widget" if number % 2 else "acme/gadget",
            current_state=STATES[number % 3],
            workflow="sdlc" if number % 4 else "patch",
        )
        world.store.create(document)
        made.append((created_at, adw_id))

    return [adw_id for _, adw_id in sorted(made, reverse=True)]


def walk(world, **query) -> list[list[str]]:
    """Return the ids of every page."""
    pages, cursor = [], None
    while True:
        page = world.catalogue.page(PageQuery(cursor=cursor, **query))
        pages.append([row.adw_id for row in page.rows])
        cursor = page.next_cursor
        if cursor is None:
            return pages


class CatalogueContract:
    """Mix in and give a `world` fixture."""

    def test_a_row_says_what_the_document_says(self, world):
        world.store.create(make_document(title="Ünïcode"))

        stored_at = timestamps.to_text(world.clock.now())
        assert world.catalogue.page(PageQuery()).rows == (
            WorkflowSummary(
                adw_id=FIRST,
                repository="acme/widget",
                issue_number=42,
                title="Ünïcode",
                workflow="sdlc",
                state="pending",
                revision=1,
                created_at=MOMENT,
                updated_at=stored_at,
            ),
        )

    def test_a_search_finds_every_word_in_title_repository_id_or_number(self, world):
        world.store.create(make_document(FIRST, title="Crash at Login", issue_number=42))
        world.store.create(make_document(SECOND, title="Write a log", issue_number=7, repository="acme/gadget"))
        world.store.create(make_document(THIRD, title="Über 42: a_b is 100% done, hey!", issue_number=421))

        for search, found in [
            ("", {FIRST, SECOND, THIRD}),
            ("  ", {FIRST, SECOND, THIRD}),
            ("login", {FIRST}),
            ("LOGIN crash", {FIRST}),
            ("log", {FIRST, SECOND}),
            ("log widget", {FIRST}),
            ("acme/gadget", {SECOND}),
            ("ACME", {FIRST, SECOND, THIRD}),
            ("42", {FIRST, THIRD}),
            ("#42", {FIRST}),
            ("#42 login", {FIRST}),
            (SECOND[:3], {SECOND}),
            (SECOND[1:4], set()),
            ("100%", {THIRD}),
            ("1%", set()),
            ("a_b", {THIRD}),
            ("axb", set()),
            ("hey!", {THIRD}),
            ("über", {THIRD}),
            ("\x00 '\" \\ --", set()),
            ("nothing", set()),
        ]:
            assert {row.adw_id for row in world.catalogue.page(PageQuery(search=search)).rows} == found, search

    def test_a_search_is_paged_and_filtered_like_every_list(self, world):
        ids = fill(world, 40)
        pages = walk(world, search="acme gadget", state="failed", limit=3)

        result = [adw_id for page in pages for adw_id in page]
        assert result == [adw_id for adw_id in ids if adw_id in result]
        assert result == [adw_id for page in walk(world, repository="acme/gadget", state="failed") for adw_id in page]
        everything = [[*page] for page in walk(world, search="acme", repository="acme/widget", workflow="sdlc")]
        assert everything == walk(world, repository="acme/widget", workflow="sdlc")

    def test_a_title_is_kept_as_long_as_a_forge_allows_and_found_by_its_beginning(self, world):
        world.store.create(make_document(title="x" * 290 + " needle " + "y" * 5000))

        [row] = world.catalogue.page(PageQuery(search="needle")).rows
        assert row.title.startswith("x" * 290)
        assert world.catalogue.page(PageQuery(search="yyy")).rows == ()

    def test_a_row_follows_its_document(self, world):
        document = world.store.create(make_document())
        world.store.save(document.model_copy(update={"current_state": "planning"}), fence=1)

        row = world.catalogue.page(PageQuery()).rows[0]
        assert (row.state, row.revision) == ("planning", 2)
        assert world.catalogue.page(PageQuery(state="pending")).rows == ()

    def test_a_page_carries_what_each_workflow_made_and_cost_when_it_is_asked_for(self, world):
        def attempt(seconds):
            return {"number": 1, "status": "complete", "started_at": MOMENT, "duration": seconds}

        done = {"name": "build", "state": "building", "status": "complete", "attempts": [attempt(60.0), attempt(5.5)]}
        url = "https://github.com/acme/widget/issues/42"
        shipped = parse(
            make_document(FIRST).to_plain()
            | {"branch_name": "adw/42", "pr_number": 57, "cost": {"total_usd": 1.25}, "current_state": "shipping"}
            | {"phases": [done, {"name": "ship", "state": "shipping"}], "issue": {"title": "x", "url": url}}
        )
        optional = {"name": "lint", "state": "linting", "status": "failed"}
        failed = {"current_state": "failed", "phases": [optional, {**done, "status": "failed"}]}
        world.store.create(shipped)
        world.store.create(parse(make_document(SECOND, issue_number=7).to_plain() | failed))

        results = {row.adw_id: row.result for row in world.catalogue.page(PageQuery(with_results=True)).rows}

        assert results[FIRST] == WorkflowResult(
            phase="ship",
            branch_name="adw/42",
            pr_number=57,
            pull_request_url="https://github.com/acme/widget/pull/57",
            cost_usd=1.25,
            work_seconds=65.5,
        )
        assert results[SECOND].phase == "build"
        assert {row.result for row in world.catalogue.page(PageQuery()).rows} == {None}

    @pytest.mark.parametrize("limit", [1, 4, 7, 25, 100])
    def test_pages_show_every_workflow_once_newest_first(self, world, limit):
        expected = fill(world, 25)

        pages = walk(world, limit=limit)

        assert [adw_id for page in pages for adw_id in page] == expected
        assert all(len(page) == limit for page in pages[:-1])

    def test_a_filter_shows_what_matches_and_nothing_else(self, world):
        ids = fill(world, 24)

        for query, matches in [
            ({"state": "failed"}, lambda n: n % 3 == 2),
            ({"issue_number": 4}, lambda n: n % 10 == 3),
            ({"repository": "acme/widget"}, lambda n: n % 2 == 1),
            ({"workflow": "patch"}, lambda n: n % 4 == 0),
            ({"repository": "acme/gadget", "issue_number": 3}, lambda n: n % 10 == 2 and n % 2 == 0),
            ({"state": "failed", "workflow": "sdlc"}, lambda n: n % 3 == 2 and n % 4 != 0),
            ({"state": "no such state"}, lambda n: False),
        ]:
            wanted = {f"{(n * 7919) % 65536:08x}" for n in range(24) if matches(n)}
            shown = [adw_id for page in walk(world, limit=3, **query) for adw_id in page]
            assert shown == [adw_id for adw_id in ids if adw_id in wanted], query

    def test_a_page_is_not_disturbed_by_a_workflow_that_comes_meanwhile(self, world):
        expected = fill(world, 6)
        first = world.catalogue.page(PageQuery(limit=3))
        world.store.create(make_document("ffffffff", created_at="2026-06-01T00:00:00.000000Z"))

        second = world.catalogue.page(PageQuery(limit=3, cursor=first.next_cursor))

        assert [row.adw_id for row in (*first.rows, *second.rows)] == expected

    def test_the_workflows_of_an_issue_are_found_newest_first(self, world):
        ids = fill(world, 24)
        wanted = [f"{(n * 7919) % 65536:08x}" for n in range(24) if n % 10 == 2]

        result = [row.adw_id for row in world.catalogue.find_by_issue(3)]

        assert result == [adw_id for adw_id in ids if adw_id in wanted]
        assert world.catalogue.find_by_issue(3, "acme/widget") == ()
        assert len(world.catalogue.find_by_issue(3, "acme/gadget")) == len(wanted)
        assert world.catalogue.find_by_issue(99) == ()

    def test_every_spelling_of_a_repository_finds_its_workflows(self, world):
        world.store.create(make_document(repository="Acme/Widget"))

        for spelling in ("acme/widget", "https://github.com/ACME/widget.git"):
            assert [row.adw_id for row in world.catalogue.find_by_issue(42, spelling)] == [FIRST]
            assert [row.adw_id for row in world.catalogue.page(PageQuery(repository=spelling)).rows] == [FIRST]
        assert world.catalogue.find_by_issue(42, "") == ()

    def test_a_workflow_without_a_repository_is_listed_with_the_homes_own(self, home_world):
        home_world.store.create(make_document(repository="", created_at="2026-02-01T00:00:00.000000Z"))
        home_world.store.create(make_document(SECOND))
        home_world.store.create(make_document(THIRD, repository="acme/gadget"))

        for spelling in ("", "acme/widget"):
            assert [row.adw_id for row in home_world.catalogue.find_by_issue(42, spelling)] == [FIRST, SECOND]
        assert [row.adw_id for row in home_world.catalogue.find_by_issue(42, "acme/gadget")] == [THIRD]

    def test_an_empty_list_is_one_empty_page(self, world):
        assert walk(world) == [[]]

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_page_without_rows_is_refused(self, world, limit):
        with pytest.raises(UsageError):
            world.catalogue.page(PageQuery(limit=limit))
