"""
Every call of the forge times every way a server can fail: the right error, nothing done twice, nothing left over.

The numbers of requests are counted, not written down: each request of a call fails once, in each way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import contextmanager

import pytest

from adws.adw_modules.errors import ForgeBusy, ForgeError, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge.effects import ForgeEffects
from adws.adw_modules.forge.github import GitHubAccess, GitHubForge
from adws.adw_modules.forge.model import NewPullRequest
from adws.testing import FakeClock, MemoryForge
from tests import sampling
from tests.fault_forge import FAULTS, RESET_AT, FaultForge

KEY = b"k" * 32
BRANCH = "feature-issue-1-adw-1a2b3c4d-door"
NEW = NewPullRequest(title="feature: #1 - Door", body="Body\n", head=BRANCH, base="main")
#: Seconds that an answer is waited for: where none comes, and where one does that a busy machine may take long for.
NO_ANSWER_SECONDS, ANSWER_SECONDS = 0.3, 30.0

#: name -> the call. The world has issue 1 with a label and comment 1 on it, and, where asked for, pull request 2.
CALLS: Mapping[str, Callable[[GitHubForge], object]] = {
    "login": lambda forge: forge.login(),
    "default_branch": lambda forge: forge.default_branch(),
    "permission": lambda forge: forge.permission("adw-bot"),
    "issue": lambda forge: forge.issue(1),
    "issues": lambda forge: forge.issues(),
    "add_labels": lambda forge: forge.add_labels(1, ("new",)),
    "remove_label": lambda forge: forge.remove_label(1, "adw"),
    "remove_label that is not there": lambda forge: forge.remove_label(1, "other"),
    "comments": lambda forge: forge.comments(1),
    "create_comment": lambda forge: forge.create_comment(1, "text"),
    "edit_comment": lambda forge: forge.edit_comment(1, "other text"),
    "delete_comment": lambda forge: forge.delete_comment(1),
    "pull_request": lambda forge: forge.pull_request(2),
    "pull_requests_of": lambda forge: forge.pull_requests_of(BRANCH),
    "create_pull_request": lambda forge: forge.create_pull_request(NEW),
    "edit_pull_request": lambda forge: forge.edit_pull_request(2, title="Other", is_draft=False),
    "close_pull_request": lambda forge: forge.close_pull_request(2),
    "merge_pull_request": lambda forge: forge.merge_pull_request(3, sha="f" * 40),
}


@contextmanager
def a_world(*, has_pull_request: bool = True, is_answered: bool = True):
    place = MemoryForge(clock=FakeClock())
    place.create_issue("Door", labels=("adw",))
    place.create_comment(1, "first")
    place.push(BRANCH)
    if has_pull_request:
        place.create_pull_request(NEW)
        place.push("ready", "f" * 40)
        place.create_pull_request(NewPullRequest(title="T", body="B", head="ready", base="main", is_draft=False))
    place.calls.clear()
    with FaultForge(place) as server:
        seconds = ANSWER_SECONDS if is_answered else NO_ANSWER_SECONDS
        access = GitHubAccess(token="tok_bot", api_url=server.url, timeout_seconds=seconds, seconds_between_writes=0.0)
        forge = GitHubForge(place.repository, access, clock=FakeClock(), scrub=str)
        try:
            yield place, server, forge
        finally:
            forge.close()


@functools.cache  # asked again for each fault
def requests_of(name: str) -> int:
    with a_world(has_pull_request=name != "create_pull_request") as (_, server, forge):
        CALLS[name](forge)
        return len(server.requests)


#: In the ordinary run each call meets some faults, others than the call before it, and each fault some calls.
FAULTED = [(name, fault) for turn, name in enumerate(CALLS) for fault in sampling.share(list(FAULTS), turn, 5)]


@pytest.mark.parametrize(("name", "fault"), FAULTED)
def test_each_fault_of_each_call_is_the_right_error_and_is_not_repeated(name, fault):
    call, has_pull_request = CALLS[name], name != "create_pull_request"
    wanted = FAULTS[fault]
    for number in range(requests_of(name)):
        with a_world(has_pull_request=has_pull_request, is_answered=wanted.wire != "slow") as (_, server, forge):
            server.arm(wanted, request=number)

            with pytest.raises(ForgeError) as caught:
                call(forge)

            assert type(caught.value) is wanted.error
            # After a refusal a merge is looked up. Nothing else is asked after a fault, and nothing is sent again.
            looks = name == "merge_pull_request" and wanted.error is ForgeRefused
            assert len(server.requests) <= number + 1 + looks
            writes = [one for one in server.requests if one[0] != "GET"]
            assert len(writes) == len(set(writes))


def test_a_limit_that_is_used_up_ends_at_its_reset():
    with a_world() as (_, server, forge):
        server.arm(FAULTS["403 used up"])

        with pytest.raises(ForgeBusy) as caught:
            forge.issue(1)

        assert caught.value.seconds == RESET_AT - FakeClock().now().timestamp() + 1.0


def test_the_token_goes_to_no_other_host():
    """
    Neither a redirection nor the address of a next page is followed to where it leads.
    """
    with a_world() as (place, server, forge):
        for i in range(150):
            place.create_comment(1, f"comment {i}")

        assert len(forge.comments(1)) == 151  # the server names a page at elsewhere.invalid
        server.arm(FAULTS["301 elsewhere"])
        with pytest.raises(ForgeRefused, match=r"correct github\.repository"):
            forge.issue(1)

        assert {path.partition("?")[0] for _, path in server.requests} == {
            "/repos/acme/widget/issues/1/comments",
            "/repos/acme/widget/issues/1",
        }


def test_the_error_shows_no_token():
    with a_world(is_answered=False) as (_, server, forge):
        for fault in FAULTS.values():
            server.arm(fault)
            with pytest.raises(ForgeError) as caught:
                forge.issue(1)
            assert "tok_bot" not in repr(caught.value) + str(caught.value.__cause__)


# --- find or create --------------------------------------------------------------------------------------------

EFFECTS: Mapping[str, Callable[[ForgeEffects, bool], object]] = {
    "pull request": lambda effects, in_doubt: effects.pull_request("1a2b3c4d", NEW, in_doubt=in_doubt),
    "sticky comment": lambda effects, in_doubt: effects.sticky_comment("1a2b3c4d", 1, "a\nb", in_doubt=in_doubt),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", EFFECTS)
def test_after_any_fault_anywhere_there_is_one_and_only_one(name, fault):
    """
    Each request of find-or-create fails once, in each way; then the attempt is made again, in doubt.
    """
    number = 0
    while True:
        with a_world(has_pull_request=False, is_answered=FAULTS[fault].wire != "slow") as (place, server, forge):
            server.arm(FAULTS[fault], request=number)
            raised = _error_of(lambda: EFFECTS[name](ForgeEffects(forge, clock=FakeClock(), key=KEY), False))
            assert raised is None or type(raised) is FAULTS[fault].error
            server.disarm()
            if raised is None and number >= len(server.requests):
                assert number >= 3, "the loop saw looking, making and looking again"
                return
            EFFECTS[name](ForgeEffects(forge, clock=FakeClock(), key=KEY), True)

            pulls, comments = place.pull_requests_of(BRANCH), place.comments(1)
            assert len(pulls) == (name == "pull request")
            assert len(comments) == 1 + (name == "sticky comment")
            assert "close_pull_request" not in place.calls
            assert "delete_comment" not in place.calls
        number += 1


def _error_of(call) -> ForgeError | None:
    try:
        call()
    except ForgeError as error:
        return error
    return None


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("hidden", [1, 2])
def test_what_a_lost_answer_made_is_found_though_it_is_not_shown_at_once(name, hidden):
    with a_world(has_pull_request=False) as (place, server, forge):
        clock = FakeClock()
        forge.login()
        server.arm(FAULTS["reset after"], request=1)
        server.hidden_looks = hidden + (name == "sticky comment")  # the first look is before it is made

        EFFECTS[name](ForgeEffects(forge, clock=clock, key=KEY), False)

        assert clock.slept == [3.0, 6.0][:hidden]
        assert len(place.pull_requests_of(BRANCH)) + len(place.comments(1)) == 2


def test_the_network_down_for_long_leaves_it_in_doubt():
    with a_world(has_pull_request=False) as (place, server, forge):
        forge.login()
        for request in range(1, 5):
            server.arm(FAULTS["reset before"], request=request)

        with pytest.raises(ForgeUnavailable):
            ForgeEffects(forge, clock=FakeClock(), key=KEY).pull_request("1a2b3c4d", NEW)

        assert place.pull_requests_of(BRANCH) == ()
