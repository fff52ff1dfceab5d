"""What GitHub answers becomes a noun or exactly one kind of error."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from adws.adw_modules.errors import ForgeBusy, ForgeError, ForgeNotFound, ForgeRefused, ForgeUnavailable
from adws.adw_modules.forge import github_errors
from adws.adw_modules.forge.model import ForgeAccess
from adws.testing import START


def error_of(status, headers=None, body="{}"):
    with pytest.raises(ForgeError) as caught:
        github_errors.check_answer(status, headers or {}, body, now=START)

    return caught.value


@pytest.mark.parametrize("body", ["<html>", '{"a":', "\x00"])
def test_a_good_answer_that_cannot_be_read_says_nothing_about_the_effect(body):
    with pytest.raises(ForgeUnavailable):
        github_errors.check_answer(201, {}, body, now=START)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (100, ForgeUnavailable),
        (301, ForgeRefused),
        (304, ForgeRefused),
        (400, ForgeRefused),
        (401, ForgeRefused),
        (403, ForgeRefused),
        (404, ForgeNotFound),
        (405, ForgeRefused),
        (409, ForgeRefused),
        (422, ForgeRefused),
        (429, ForgeBusy),
        (500, ForgeUnavailable),
        (503, ForgeUnavailable),
    ],
)
def test_a_status_is_one_kind_of_error(status, kind):
    error = error_of(status)

    assert type(error) is kind
    assert not isinstance(error, ForgeRefused) or error.status == status


@pytest.mark.parametrize(
    ("headers", "message", "seconds"),
    [
        ({"retry-after": "17"}, "", 17.0),
        ({"retry-after": "0"}, "", 1.0),
        ({"retry-after": "soon"}, "", 60.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(START.timestamp()) + 90)}, "", 91.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(START.timestamp()) - 90)}, "", 1.0),
        ({"x-ratelimit-remaining": "12"}, "You have exceeded a secondary rate limit", 60.0),
        ({}, "You have triggered an abuse detection mechanism. Please retry your request again later.", 60.0),
    ],
)
@pytest.mark.parametrize("status", [403, 429])
def test_a_limit_is_not_a_refusal_and_says_how_long(status, headers, message, seconds):
    error = error_of(status, headers, json.dumps({"message": message}))

    assert isinstance(error, ForgeBusy)
    assert error.seconds == seconds


def test_a_date_to_come_back_at_is_understood():
    later = START + timedelta(seconds=30)
    error = error_of(429, {"retry-after": later.strftime("%a, %d %b %Y %H:%M:%S GMT")})

    assert isinstance(error, ForgeBusy)
    assert error.seconds == 31.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", ""),
        ("[]", ""),
        ("{}", ""),
        ('{"message": "No"}', "No"),
        ('{"message": "No", "errors": "many"}', "No"),
        ('{"message": "No", "errors": ["a", {"message": "b"}]}', "No: a: b"),
        ('{"message": "No", "errors": [{"resource": "PullRequest", "code": "custom"}]}', "No: PullRequest custom"),
    ],
)
def test_the_reason_is_told_in_one_line(body, said):
    assert github_errors.message_of(body) == said


def test_an_answer_of_graphql_may_carry_a_problem():
    assert github_errors.graphql_problem({"data": {}}) == ""
    assert github_errors.graphql_problem({"errors": []}) == ""
    assert github_errors.graphql_problem({"errors": [{"message": "a"}, {"message": "b"}]}) == "a; b"


def test_a_list_says_whether_it_goes_on():
    assert github_errors.has_next_page({"link": '<https://x/2>; rel="next", <https://x/9>; rel="last"'})
    assert not github_errors.has_next_page({"link": '<https://x/1>; rel="prev"'})
    assert not github_errors.has_next_page({})


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_something_else_than_was_asked_for_is_no_answer(value):
    with pytest.raises(ForgeUnavailable):
        github_errors.as_object(value)
    with pytest.raises(ForgeUnavailable):
        github_errors.to_issue(value)


def test_a_pull_request_is_merged_when_its_answer_or_its_list_says_so():
    plain = {"number": 7, "state": "closed", "head": {"ref": "x", "sha": "s"}, "base": {"ref": "main"}}

    assert not github_errors.to_pull_request(plain).is_merged
    assert github_errors.to_pull_request({**plain, "merged": True}).is_merged
    assert github_errors.to_pull_request({**plain, "merged_at": "2026-01-01T00:00:00Z"}).is_merged


@pytest.mark.parametrize(
    ("head", "is_ours"),
    [
        ({"ref": "b", "repo": {"full_name": "Acme/Widget"}}, True),
        ({"ref": "b", "repo": {"full_name": "mallory/widget"}}, False),
        ({"ref": "b", "repo": None}, False),
        ({"ref": "bb", "repo": {"full_name": "acme/widget"}}, False),
    ],
    ids=["ours", "a copy of it", "a copy that is gone", "another branch"],
)
def test_a_pull_request_of_a_copy_is_not_from_our_branch(head, is_ours):
    assert github_errors.comes_from({"head": head}, repository="acme/widget", branch="b") == is_ours


@pytest.mark.parametrize(
    ("answer", "permission"),
    [
        ({"permission": "write", "role_name": "maintain"}, "maintain"),
        ({"permission": "write", "role_name": "our own role"}, "write"),
        ({"permission": "push"}, "write"),
        ({"permission": "pull"}, "read"),
        ({"permission": "something"}, "none"),
        ({}, "none"),
    ],
)
def test_a_permission_is_one_of_six(answer, permission):
    assert github_errors.to_permission(answer) == permission


def test_a_comment_counts_from_its_last_change():
    assert github_errors.is_since({"updated_at": "2026-01-02T00:00:00Z"}, "2026-01-01T00:00:00Z")
    assert not github_errors.is_since({"updated_at": "2026-01-01T00:00:00Z"}, "2026-01-02T00:00:00Z")
    assert github_errors.is_since({"updated_at": "2026-01-01T00:00:00Z"}, "")
    assert github_errors.is_since({}, "2026-01-01T00:00:00Z")


# --- what we may do --------------------------------------------------------------------------------------------

HEADERS = {"x-oauth-scopes": "repo, workflow", "x-ratelimit-remaining": "4999", "date": "Sat, 31 Jan 2026 09:00:00 GMT"}


def test_what_a_token_may_do_is_told_by_the_repository_and_the_headers():
    result = github_errors.to_access("ada", {"private": True, "permissions": {"push": True}}, HEADERS)

    assert result == ForgeAccess(
        login="ada",
        may_push=True,
        scopes=("repo", "workflow"),
        is_private=True,
        requests_left=4999,
        server_time="Sat, 31 Jan 2026 09:00:00 GMT",
    )


@pytest.mark.parametrize(
    ("repository", "headers", "may_push", "scopes"),
    [
        ({"permissions": {"push": False}}, {"x-oauth-scopes": ""}, False, ()),
        ({"permissions": {"push": "yes"}}, {}, None, None),
        ({}, {"x-ratelimit-remaining": "many"}, None, None),
    ],
    ids=["classic-without-scopes", "odd", "fine-grained"],
)
def test_what_github_does_not_say_is_not_guessed(repository, headers, may_push, scopes):
    result = github_errors.to_access("ada", repository, headers)

    assert (result.may_push, result.scopes, result.requests_left, result.server_time) == (may_push, scopes, None, "")


@pytest.mark.parametrize(
    ("permissions", "may_push", "may_write_issues"),
    [
        ({"contents": "write", "pull_requests": "write", "issues": "write"}, True, True),
        ({"contents": "write", "pull_requests": "read", "issues": "read"}, False, False),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_what_an_app_may_do_is_told_by_its_installation(permissions, may_push, may_write_issues):
    result = github_errors.to_app_access("adw[bot]", {"id": 1, "permissions": permissions}, HEADERS)

    assert (result.may_push, result.may_write_issues, result.requests_left) == (may_push, may_write_issues, 4999)
