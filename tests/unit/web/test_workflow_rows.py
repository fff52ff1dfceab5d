"""What the page of a workflow tells of its document."""

from __future__ import annotations

import pytest

from adws.adw_modules import views
from adws.adw_modules.document import FrozenIssue
from adws.web.dashboard import frame
from tests.unit.timeline_cases import document, phase

ISSUE = "https://github.invalid/acme/shop/issues/7"


@pytest.mark.parametrize(
    ("said", "issue", "expected"),
    [
        ("https://forge.invalid/pr/9", ISSUE, "https://forge.invalid/pr/9"),
        ("", ISSUE, "https://github.invalid/acme/shop/pull/9"),
        ("javascript:alert(1)", "javascript:alert(2)", ""),
        ("", "https://forge.invalid/tickets/7", ""),
    ],
)
def test_a_pull_request_is_where_the_forge_says_or_beside_the_issue(said, issue, expected):
    ship = phase("ship", result={"pr_number": 9, "url": said})
    made = document(ship, pr_number=9, issue=FrozenIssue(url=issue))

    assert views.workflow(made).pull_request_url == expected


def test_without_a_pull_request_or_an_issue_there_is_no_address():
    assert views.workflow(document(issue=FrozenIssue(url=ISSUE))).pull_request_url == ""
    assert views.workflow(document()).issue_url == ""
    assert views.workflow(document(pr_number=9)).pull_request_url == ""


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("10 %\r20 %\r\ndone", "10 %\n20 %\ndone"),
        ("\x1b[", ""),
        ("a\x08b\u202ec", "a\ufffdb\ufffdc"),
    ],
)
def test_terminal_codes_are_removed_from_pages(written, shown):
    assert frame.readable(written) == shown
