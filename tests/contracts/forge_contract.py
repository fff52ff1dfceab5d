"""What every Forge keeps: GitHub itself, files on a disk, and the twin in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from adws.adw_modules.errors import ForgeNotFound, ForgeRefused
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.effects import ForgeEffects, freeze
from adws.adw_modules.forge.model import Forge, NewPullRequest
from adws.testing import FakeClock

#: A secret that the forge of every world knows; it must never get out.
SECRET = "hunter2-is-not-a-good-secret"
EVERYTHING = frozenset({"drafts", "duplicates", "heads", "pushes"})


@dataclass(frozen=True, kw_only=True)
class ForgeWorld:
    """A forge, and what people and git do to it."""

    forge: Forge
    create_issue: Callable[..., int]  #: title, body, labels -> number
    push: Callable[[str], str]  #: branch -> its new commit
    #: What this forge can do: turn drafts into pull requests, refuse a second one or a missing branch, see pushes.
    can: frozenset[str] = EVERYTHING

    def open_pull_request(self, branch: str = "feature-1", *, is_draft: bool = False, body: str = "Body"):
        self.push(branch)
        return self.forge.create_pull_request(
            NewPullRequest(title="Title", body=body, head=branch, base="main", is_draft=is_draft)
        )


class ForgeContract:
    """Mix in and give a `world` fixture: a ForgeWorld whose repository has a branch `main`."""

    def test_it_says_who_we_are_and_where(self, world):
        assert world.forge.repository.count("/") == 1
        assert world.forge.login()
        assert world.forge.default_branch() == "main"
        assert world.forge.remote_url().endswith(".git")
        assert "@" not in world.forge.remote_url()

    def test_we_may_write_and_a_stranger_may_do_nothing(self, world):
        assert world.forge.permission(world.forge.login()) in {"admin", "maintain", "write"}
        assert world.forge.permission("nobody-of-this-name") == "none"

    # --- issues

    def test_an_issue_is_what_a_person_wrote(self, world):
        number = world.create_issue("Add a door", "It has *none*.\n\nReally.", ("bug", "adw"))

        issue = world.forge.issue(number)

        assert (issue.number, issue.title, issue.body) == (number, "Add a door", "It has *none*.\n\nReally.")
        assert (issue.state, set(issue.labels)) == ("open", {"bug", "adw"})
        assert issue.author
        assert str(number) in issue.url

    @pytest.mark.parametrize("call", ["issue", "pull_request", "comments"])
    def test_what_is_not_there_is_not_found(self, world, call):
        with pytest.raises(ForgeNotFound):
            getattr(world.forge, call)(9999)

    def test_a_pull_request_is_no_issue(self, world):
        pull = world.open_pull_request()

        with pytest.raises(ForgeNotFound):
            world.forge.issue(pull.number)
        assert pull.number not in {one.number for one in world.forge.issues(state="all")}

    def test_issues_come_newest_first_and_can_be_chosen(self, world):
        numbers = [world.create_issue(f"Issue {i}", "", ("adw",) if i % 2 else ()) for i in range(4)]

        assert [one.number for one in world.forge.issues()] == numbers[::-1]
        assert [one.number for one in world.forge.issues(label="adw")] == [numbers[3], numbers[1]]
        assert [one.number for one in world.forge.issues(limit=2)] == numbers[:1:-1]
        assert world.forge.issues(state="closed") == ()

    def test_labels_are_added_and_taken_off_and_may_be_so_twice(self, world):
        number = world.create_issue("One", "", ("bug",))

        for _ in range(2):
            world.forge.add_labels(number, ("adw", "in progress"))
        assert set(world.forge.issue(number).labels) == {"bug", "adw", "in progress"}

        for _ in range(2):
            world.forge.remove_label(number, "in progress")
        assert set(world.forge.issue(number).labels) == {"bug", "adw"}
        world.forge.remove_label(number, "never there")

    def test_labels_go_on_pull_requests_too(self, world):
        pull = world.open_pull_request()

        world.forge.add_labels(pull.number, ("adw",))
        world.forge.remove_label(pull.number, "adw")

    # --- comments

    def test_comments_are_posted_changed_and_deleted(self, world):
        number = world.create_issue("One")
        first = world.forge.create_comment(number, "first")
        second = world.forge.create_comment(number, "second")
        assert first.comment_id < second.comment_id
        assert (first.author, first.body) == (world.forge.login(), "first")

        edited = world.forge.edit_comment(first.comment_id, "changed")
        assert (edited.comment_id, edited.body) == (first.comment_id, "changed")
        assert [one.body for one in world.forge.comments(number)] == ["changed", "second"]

        for _ in range(2):  # one that is gone is fine
            world.forge.delete_comment(first.comment_id)
        assert [one.comment_id for one in world.forge.comments(number)] == [second.comment_id]

    def test_a_number_is_never_given_twice(self, world):
        number = world.create_issue("One")
        first = world.forge.create_comment(number, "first")
        world.forge.delete_comment(first.comment_id)

        assert world.forge.create_comment(number, "second").comment_id > first.comment_id
        assert world.create_issue("Two") > number

    def test_a_comment_that_is_gone_cannot_be_changed(self, world):
        with pytest.raises(ForgeNotFound):
            world.forge.edit_comment(987654, "text")

    def test_comments_can_be_asked_for_since_a_moment(self, world):
        number = world.create_issue("One")
        world.forge.create_comment(number, "first")

        assert len(world.forge.comments(number, since="2001-01-01T00:00:00Z")) == 1
        assert world.forge.comments(number, since="2101-01-01T00:00:00Z") == ()

    def test_a_long_list_is_given_whole(self, world):
        number = world.create_issue("One")
        for i in range(103):
            world.forge.create_comment(number, f"comment {i}")

        assert [one.body for one in world.forge.comments(number)] == [f"comment {i}" for i in range(103)]

    def test_comments_go_on_pull_requests_too(self, world):
        pull = world.open_pull_request()

        world.forge.create_comment(pull.number, "on a pull request")

        assert [one.body for one in world.forge.comments(pull.number)] == ["on a pull request"]

    # --- what goes out

    def test_no_secret_goes_out(self, world):
        number = world.create_issue("One")
        comment = world.forge.create_comment(number, f"the token is {SECRET} ok")
        edited = world.forge.edit_comment(comment.comment_id, f"still {SECRET}")
        world.push("feature-1")
        pull = world.forge.create_pull_request(
            NewPullRequest(title=f"With {SECRET}", body=f"and {SECRET}", head="feature-1", base="main")
        )
        changed = world.forge.edit_pull_request(pull.number, title=f"new {SECRET}", body=f"new {SECRET}")

        for text in (comment.body, edited.body, pull.title, pull.body, changed.title, changed.body):
            assert SECRET not in text
            assert "[redacted]" in text

    def test_a_text_that_is_too_long_is_cut_and_says_so(self, world):
        number = world.create_issue("One")

        posted = world.forge.create_comment(number, "x" * 100_000)

        assert len(posted.body) == forge_text.MAX_BODY
        assert posted.body.endswith(forge_text.CUT)

    def test_a_title_is_one_short_line(self, world):
        pull = world.open_pull_request()

        changed = world.forge.edit_pull_request(pull.number, title="two\nlines " + "x" * 400)

        assert changed.title.startswith("two lines xxx")
        assert len(changed.title) == forge_text.MAX_TITLE

    # --- pull requests

    def test_a_pull_request_is_opened_as_a_draft_and_found_by_its_branch(self, world):
        sha = world.push("feature-1")
        made = world.forge.create_pull_request(NewPullRequest(title="T", body="B", head="feature-1", base="main"))

        assert (made.title, made.body, made.head, made.base) == ("T", "B", "feature-1", "main")
        assert (made.state, made.is_draft, made.is_merged) == ("open", True, False)
        assert (made.head_sha, made.author) == (sha, world.forge.login())
        assert world.forge.pull_request(made.number) == made
        assert world.forge.pull_requests_of("feature-1") == (made,)
        assert world.forge.pull_requests_of("feature") == ()

    def test_a_push_moves_the_head(self, world):
        if "pushes" not in world.can:
            pytest.skip("this emulator forgets pull requests when a branch moves")
        pull = world.open_pull_request()

        sha = world.push("feature-1")

        assert sha != pull.head_sha
        assert world.forge.pull_request(pull.number).head_sha == sha

    def test_a_second_pull_request_for_a_branch_is_refused(self, world):
        if "duplicates" not in world.can:
            pytest.skip("this emulator opens a second one")
        world.open_pull_request()

        with pytest.raises(ForgeRefused) as refused:
            world.forge.create_pull_request(NewPullRequest(title="T", body="B", head="feature-1", base="main"))
        assert refused.value.status == 422

    def test_a_branch_that_is_not_there_is_refused(self, world):
        if "heads" not in world.can:
            pytest.skip("this emulator does not look at branches")

        with pytest.raises(ForgeRefused) as refused:
            world.forge.create_pull_request(NewPullRequest(title="T", body="B", head="nowhere", base="main"))
        assert refused.value.status == 422

    def test_title_and_body_change_by_themselves(self, world):
        pull = world.open_pull_request(is_draft=True)

        assert world.forge.edit_pull_request(pull.number, title="New").body == "Body"
        changed = world.forge.edit_pull_request(pull.number, body="Other")
        assert (changed.title, changed.body, changed.is_draft) == ("New", "Other", True)
        assert world.forge.edit_pull_request(pull.number) == changed

    def test_a_draft_becomes_ready_and_a_draft_again(self, world):
        if "drafts" not in world.can:
            pytest.skip("this emulator has no GraphQL, which GitHub needs for it")
        pull = world.open_pull_request(is_draft=True)

        assert not world.forge.edit_pull_request(pull.number, is_draft=False).is_draft
        assert not world.forge.pull_request(pull.number).is_draft
        assert world.forge.edit_pull_request(pull.number, is_draft=True).is_draft

    def test_it_is_closed_and_may_be_closed_twice(self, world):
        pull = world.open_pull_request()

        for _ in range(2):
            closed = world.forge.close_pull_request(pull.number)
            assert (closed.state, closed.is_merged) == ("closed", False)
        assert world.forge.pull_requests_of("feature-1", state="open") == ()
        assert [one.number for one in world.forge.pull_requests_of("feature-1", state="closed")] == [pull.number]

    def test_after_one_was_closed_another_may_be_opened(self, world):
        first = world.open_pull_request()
        world.forge.close_pull_request(first.number)

        second = world.open_pull_request()

        assert [one.number for one in world.forge.pull_requests_of("feature-1")] == [second.number, first.number]

    def test_it_is_merged_and_merging_again_is_fine(self, world):
        pull = world.open_pull_request()

        merged = world.forge.merge_pull_request(pull.number, sha=pull.head_sha)
        again = world.forge.merge_pull_request(pull.number, sha=pull.head_sha)

        assert (merged.state, merged.is_merged) == ("closed", True)
        assert again == merged
        assert world.forge.pull_requests_of("feature-1")[0].is_merged
        assert world.forge.close_pull_request(pull.number).is_merged

    def test_another_head_than_the_named_one_is_not_merged(self, world):
        pull = world.open_pull_request()

        with pytest.raises(ForgeRefused):
            world.forge.merge_pull_request(pull.number, sha="1" * 40)
        assert not world.forge.pull_request(pull.number).is_merged

    def test_a_draft_is_not_merged(self, world):
        pull = world.open_pull_request(is_draft=True)

        with pytest.raises(ForgeRefused):
            world.forge.merge_pull_request(pull.number, sha=pull.head_sha)
        assert not world.forge.pull_request(pull.number).is_merged

    # --- made once

    def test_the_pull_request_and_the_comment_of_a_workflow_are_made_once_and_found_again(self, world):
        number = world.create_issue("Add a door", "It has none.")
        world.push("feature-1")
        title = forge_text.pull_request_title(kind="/feature", number=number, title="Add a door")
        new = NewPullRequest(
            title=title,
            body=forge_text.pull_request_body(adw_id="1a2b3c4d", number=number, summary="Done."),
            head="feature-1",
            base="main",
        )
        pulls, comments = set(), set()
        for in_doubt in (False, True):  # as two processes, the second after a crash of the first
            effects = ForgeEffects(world.forge, clock=FakeClock(), key=b"k" * 32)
            pulls.add(effects.pull_request("1a2b3c4d", new, in_doubt=in_doubt).number)
            comments.add(effects.sticky_comment("1a2b3c4d", number, f"[adw] {in_doubt}").comment_id)

        assert {one.number for one in world.forge.pull_requests_of("feature-1")} == pulls
        assert {one.comment_id for one in world.forge.comments(number)} == comments
        assert (len(pulls), len(comments)) == (1, 1)
        assert world.forge.pull_request(pulls.pop()).title == f"feature: #{number} - Add a door"
        assert world.forge.comments(number)[0].body.startswith("[adw] True\n<!-- adw:v1 ")

    def test_a_workflow_is_given_the_issue_as_it_is(self, world):
        number = world.create_issue("Add a door", "It has none.", ("adw",))

        frozen = freeze(world.forge.issue(number))

        assert (frozen.title, frozen.body, frozen.labels) == ("Add a door", "It has none.", ["adw"])
