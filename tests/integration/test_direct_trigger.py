"""`handle_webhook_trigger`: one workflow for an issue, and no way around its lock."""

from __future__ import annotations

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.errors import UsageError
from adws.adw_triggers.trigger_webhook import handle_webhook_trigger
from tests.integration.work_lab import make_work_lab

WORKFLOW = (
    '[workflow]\ndefault = "short"\n[workflows.short]\n[[workflows.short.phases]]\nname = "plan"\nshell = "true"\n'
)


@pytest.fixture
def app(tmp_path):
    lab = make_work_lab(tmp_path)
    (lab.home / "adw.toml").write_text(WORKFLOW)
    with lab.open() as opened, default_home.using(opened):
        for number in (1, 2):
            assert opened.forge.create_issue(f"Thing {number}", "Please.").number == number
        yield opened


def comments(app, number: int) -> list[str]:
    return [comment.body for comment in app.forge.comments(number)]


def test_a_new_workflow_is_started_with_the_issue_as_it_is_now(app):
    adw_id = handle_webhook_trigger(1)

    document = app.store.load(adw_id).document
    assert (document.current_state, document.issue.title) == ("pending", "Thing 1")
    assert app.locks.holder(1).adw_id == adw_id
    assert [run.kind for run in app.runs.of_workflow(adw_id)] == ["start"]


def test_a_second_one_is_not_started_and_a_comment_says_who_is_at_work(app):
    first = handle_webhook_trigger("1")

    assert handle_webhook_trigger(1) is None
    assert handle_webhook_trigger(1) is None

    assert list(app.store.ids()) == [first]
    assert len(comments(app, 1)) == 1
    assert f"`{first}` is at work" in comments(app, 1)[0]


def test_the_owner_of_the_lock_goes_on(app):
    adw_id = handle_webhook_trigger(1)
    app.control.pause(adw_id, by="ada")

    assert handle_webhook_trigger(1, adw_id) == adw_id

    assert app.store.load(adw_id).document.current_state != "paused"
    assert not any("Nothing was done" in text for text in comments(app, 1))


def test_an_id_that_does_not_own_the_issue_gets_nowhere(app):
    """
    The bypass: an id of its own was enough to work on any issue.
    """
    first, other = handle_webhook_trigger(1), handle_webhook_trigger(2)
    for adw_id in (first, other):
        app.control.pause(adw_id, by="ada")

    assert handle_webhook_trigger(1, other) is None

    assert app.store.load(other).document.current_state == "paused"
    assert app.locks.holder(1).adw_id == first
    assert f"Nothing was done: workflow {other} may not continue on issue 1" in comments(app, 1)[-1]


def test_an_id_that_nobody_has_gets_nowhere(app):
    assert handle_webhook_trigger(1, "deadbeef") is None

    assert app.locks.holder(1) is None
    assert "deadbeef" in comments(app, 1)[0]


@pytest.mark.parametrize("number", [0, -1, "x", True, None])
def test_what_is_no_issue_is_refused(app, number):
    with pytest.raises(UsageError):
        handle_webhook_trigger(number)
