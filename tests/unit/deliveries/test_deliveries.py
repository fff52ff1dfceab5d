"""Deliveries: bytes and headers in, what to keep out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest

from adws.adw_modules.deliveries import commands
from adws.adw_modules.deliveries.commands import Actor, Command, Delivery, Ignored, RunRequest
from adws.adw_modules.errors import DatabaseError
from adws.adw_modules.forge.model import IssueText
from adws.adw_triggers.delivery import judge, read
from adws.adw_triggers.github_events import DeliveryRules, rules_of
from adws.adw_triggers.http import Problem
from adws.config import load as config_load
from adws.config.settings import BY_NAME, Settings
from tests.delivery_cases import (
    HEAD,
    RULES,
    bytes_of,
    checks,
    comment,
    issue,
    labeled,
    payload,
    pull_request,
    review,
    signed,
    user,
)

DATA = Path(__file__).parents[2] / "data" / "webhooks"
OCTOCAT = Actor(login="octocat")


def taken(event: str, told: object, rules: DeliveryRules = RULES, **headers: str) -> Delivery:
    body = bytes_of(told)
    made = read(signed(event, body, **headers), body, rules)
    assert isinstance(made, Delivery), made
    return made


def asked(event: str, told: object, rules: DeliveryRules = RULES) -> RunRequest | Command:
    made = taken(event, told, rules)
    assert made.verdict != "ignored", made.reason
    return commands.from_json(json.loads(json.dumps(made.request)))


def why_ignored(event: str, told: object, rules: DeliveryRules = RULES) -> str:
    made = taken(event, told, rules)
    assert (made.verdict, made.request) == ("ignored", {})
    assert made.reason
    assert "\n" not in made.reason
    return made.reason


# --- what is refused -------------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_before_its_signature_is_made():
    rules = replace(RULES, max_body_bytes=10, secrets=())

    assert read({}, b"x" * 11, rules) == Problem(
        status=413, code="too_large", message="the payload has more than 10 bytes"
    )
    assert read({}, b"x" * 10, rules).status == 401


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"X-GitHub-Delivery": ""}, "X-GitHub-Delivery"),
        ({"X-GitHub-Delivery": "../x"}, "X-GitHub-Delivery"),
        ({"X-GitHub-Delivery": "x" * 101}, "X-GitHub-Delivery"),
        ({"X-GitHub-Event": ""}, "X-GitHub-Event"),
        ({"X-GitHub-Event": "Issues<script>"}, "X-GitHub-Event"),
        ({"Content-Type": "text/plain"}, "content type"),
    ],
)
def test_headers_that_make_no_sense_are_refused(changed, said):
    body = bytes_of(labeled())
    refused = read(signed("issues", body) | changed, body, RULES)

    assert isinstance(refused, Problem)
    assert refused.status == 400
    assert said in refused.message


@pytest.mark.parametrize(
    ("event", "told", "said"),
    [
        ("issues", payload("opened"), "it has no issue"),
        ("issues", payload("opened", issue=[]), "it has no issue"),
        ("issues", payload("opened", issue=issue(number="7")), "the issue in the payload has no number"),
        ("issues", payload("opened", issue=issue(number=True)), "has no number"),
        ("issues", payload("opened", issue=issue(number=0)), "has no number"),
        ("issues", payload("opened", issue=issue(number=2**60)), "has no number"),
        ("issues", comment("/adw stop"), "it has a comment"),
        ("issue_comment", labeled(), "it has no comment"),
        ("pull_request", review(), "it has a review"),
        ("pull_request_review", pull_request(merged=True), "it has no review"),
        ("check_suite", checks("workflow_run"), "it has no check_suite"),
    ],
)
def test_a_payload_of_another_event_is_refused(event, told, said):
    body = bytes_of(told)
    refused = read(signed(event, body), body, RULES)

    assert isinstance(refused, Problem)
    assert refused.status == 400
    assert said in refused.message
    assert judge(event, told, RULES) == Ignored(reason=refused.message)


# --- what is taken ---------------------------------------------------------------------------------------------


def test_all_that_is_kept_of_a_delivery():
    told = labeled(body=None)
    body = bytes_of(told)
    made = read(signed("issues", body, guid="g-1"), body, RULES)

    assert made == Delivery(
        guid="g-1",
        event="issues",
        action="labeled",
        hook="292430182",
        body=body,
        body_hash=hashlib.sha256(body).hexdigest(),
        sender="octocat",
        repository="acme/widget",
        number=7,
        verdict="run",
        reason="start the default workflow for issue 7 (label)",
        request=made.request,
        intent="acme/widget#7 label adw 2026-01-31T12:00:00Z",
    )
    assert commands.from_json(made.request) == RunRequest(
        repository="acme/widget",
        issue=IssueText(
            number=7,
            title="Add a button",
            body="",
            author="mona",
            url="https://github.com/Acme/Widget/issues/7",
            labels=("bug",),
        ),
        actor=OCTOCAT,
        cause="label",
        intent="acme/widget#7 label adw 2026-01-31T12:00:00Z",
    )


def test_a_form_is_taken_like_json_and_signed_over_its_own_bytes():
    body = urlencode({"payload": json.dumps(labeled())}).encode()
    made = read(signed("issues", body) | {"Content-Type": "application/x-www-form-urlencoded"}, body, RULES)

    assert (made.verdict, made.body) == ("run", body)


@pytest.mark.parametrize(("given", "kept"), [("12", "12"), ("<b>", ""), ("", "")])
def test_the_hook_is_named_when_it_says_who_it_is(given, kept):
    assert taken("issues", labeled(), X_GitHub_Hook_ID=given).hook == kept


def test_text_that_no_database_stores_is_replaced():
    wish = asked("issues", labeled(title="a\x00b\ud800c\U0001f600", body="\udfff", labels=[{"name": "x"}, {}, 7]))

    assert wish.issue.title == "a\ufffdb\ufffdc\U0001f600"
    assert wish.issue.body == "\ufffd"
    assert wish.issue.labels == ("x",)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ("push", payload(ref="refs/heads/main")),
        ("issues", payload("pinned", issue=issue())),
        ("star", payload("created")),
    ],
)
def test_what_is_not_known_is_ignored(event, told):
    assert why_ignored(event, told).startswith(f"nothing is done about {event}")


def test_other_repositories_are_ignored():
    other = labeled() | {"repository": {"full_name": "mallory/widget"}}

    assert why_ignored("issues", other) == "mallory/widget is not listened to"
    assert "without a repository" in why_ignored("issues", labeled() | {"repository": {"full_name": "../x y"}})
    assert "set github.repository" in why_ignored("issues", labeled(), replace(RULES, repositories=()))


@pytest.mark.parametrize(
    ("event", "told"),
    [("pull_request_review", review()), ("check_suite", checks()), ("workflow_run", checks("workflow_run"))],
)
def test_reviews_and_checks_count_only_where_workflows_may_follow_up(event, told):
    assert "only with webhook.max_followups" in why_ignored(event, told, replace(RULES, follows_up=False))


# --- labels, new issues, assignments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "closed"}, "issue 7 is closed"),
        ({"locked": True}, "the conversation of issue 7 is locked"),
        ({"pull_request": {"url": "x"}}, "7 is a pull request"),
    ],
)
def test_workflows_are_started_on_open_issues_only(changes, said):
    assert said in why_ignored("issues", labeled(**changes))
    assert said in why_ignored("issues", payload("assigned", issue=issue(**changes), assignee=user("adw-bot")))
    told = payload("opened", sender=user("mona"), issue=issue(body="adw_plan_iso", **changes))
    assert said in why_ignored("issues", told)


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        (user("ghost"), "no account any more"),
        ({"login": None}, "no account any more"),
        ([], "no account any more"),
        (user("ADW-Bot"), "ADW-Bot is the account of adw itself"),
        (user("dependabot[bot]", "Bot"), "dependabot[bot] is a program"),
        (user("sly[bot]"), "sly[bot] is a program"),
        (user("machine", "Bot"), "machine is a program"),
    ],
)
def test_those_who_are_no_people_are_not_listened_to(sender, said):
    assert said in why_ignored("issues", labeled() | {"sender": sender})
    assert said in why_ignored(
        "issues", payload("assigned", issue=issue(), assignee=user("adw-bot")) | {"sender": sender}
    )
    assert said in why_ignored("issues", payload("closed", issue=issue()) | {"sender": sender})
    assert said in why_ignored("issue_comment", comment("/adw stop") | {"sender": sender})
    assert said in why_ignored("pull_request_review", review() | {"sender": sender})
    told = payload("opened", issue=issue(labels=[{"name": "adw"}])) | {"sender": sender}
    assert said in why_ignored("issues", told)


def test_a_new_issue_starts_what_its_author_names():
    told = payload("opened", sender=user("mona"), issue=issue(body="Blue.\nadw_plan_build_iso model_set heavy"))
    wish = asked("issues", told)

    assert (wish.workflow, wish.model_set, wish.cause, wish.hint) == ("adw_plan_build_iso", "heavy", "opened", "")
    assert wish.issue.body == "Blue.\nadw_plan_build_iso model_set heavy"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"body": None}, "asks for no workflow"),
        ({"body": "Blue."}, "asks for no workflow"),
        ({"body": "[ADW-AGENTS] x\nadw_plan_iso"}, "asks for no workflow"),
        ({"body": "adw_plan_iso", "user": None}, "asks for no workflow"),
        ({"body": "adw_plan_iso", "user": user("somebody")}, "asks for no workflow"),
        ({"body": "adw_fly_iso"}, "adw_fly_iso is no workflow"),
    ],
)
def test_a_new_issue_that_asks_for_nothing_starts_nothing(changes, said):
    assert said in why_ignored("issues", payload("opened", sender=user("mona"), issue=issue(**changes)))


def test_a_new_issue_with_the_label_is_told_twice_and_wanted_once():
    fresh = issue(labels=[{"name": "adw"}], updated_at="2026-01-31T09:00:04Z", body="model_set heavy")
    opened = asked("issues", payload("opened", sender=user("mona"), issue=fresh | {"updated_at": fresh["created_at"]}))
    told = asked("issues", payload("labeled", sender=user("mona"), issue=fresh, label={"name": "adw"}))

    assert opened.intent == told.intent == "acme/widget#7 new 2026-01-31T09:00:00Z"
    assert (opened.cause, opened.model_set) == (told.cause, told.model_set) == ("label", "heavy")


def test_a_label_that_is_put_on_again_is_another_wish():
    first, second = (asked("issues", labeled(updated_at=f"2026-02-0{day}T09:00:00Z")) for day in (1, 2))

    assert first.intent != second.intent


def test_a_label_does_not_choose_what_a_stranger_wrote_into_the_issue():
    by_another = asked("issues", labeled(body="adw_sdlc_ZTE_iso", user=user("mallory")))
    by_himself = asked("issues", labeled(body="adw_sdlc_ZTE_iso", user=user("Octocat")))

    assert by_another.workflow == ""
    assert by_himself.workflow == "adw_sdlc_ZTE_iso"


def test_an_issue_that_is_assigned_to_adw_starts_a_workflow():
    told = payload("assigned", issue=issue(), assignee=user("Adw-Bot"))

    assert asked("issues", told).cause == "assigned"
    assert "assigned to mona, not to adw-bot" in why_ignored("issues", told | {"assignee": user("mona")})
    assert "assigned to nobody" in why_ignored("issues", told | {"assignee": None})
    assert "no account of its own" in why_ignored("issues", told, replace(RULES, login=""))


@pytest.mark.parametrize(
    ("why", "said"), [("not_planned", "the issue was closed as not_planned"), (None, "the issue was closed")]
)
def test_an_issue_that_is_closed_is_given_up(why, said):
    assert asked("issues", payload("closed", issue=issue(state="closed", state_reason=why))) == Command(
        kind="abandon",
        repository="acme/widget",
        number=7,
        actor=OCTOCAT,
        text=said,
        cause="closed",
        intent="acme/widget#7 closed 2026-01-31T12:00:00Z",
        answers=False,
    )


# --- comments --------------------------------------------------------------------------------------------------


def test_a_comment_gives_a_command():
    assert asked("issue_comment", comment("/adw resume use v2")) == Command(
        kind="resume",
        repository="acme/widget",
        number=7,
        actor=OCTOCAT,
        text="use v2",
        cause="comment",
        intent="acme/widget#7 comment 99",
    )
    assert taken("issue_comment", comment("/adw stop adw-12345678")).reason == "stop workflow 12345678 (comment)"


@pytest.mark.parametrize(
    ("event", "told", "said"),
    [
        ("issue_comment", comment("/adw status"), "report on the workflow of 7 (comment)"),
        ("pull_request", pull_request(merged=True), "clean up after the workflow of 8 (pull request)"),
        ("pull_request", pull_request(merged=False), "abandon the workflow of 8 (pull request)"),
    ],
)
def test_what_a_command_is_for_is_said_in_words(event, told, said):
    assert taken(event, told).reason == said


def test_a_comment_starts_or_continues_a_workflow():
    wish = asked("issue_comment", comment("adw_build_iso adw-12345678 model_set heavy\nUse v2."))

    assert (wish.workflow, wish.adw_id, wish.model_set, wish.hint) == ("adw_build_iso", "12345678", "heavy", "Use v2.")
    assert (wish.cause, wish.intent) == ("comment", "acme/widget#7 comment 99")
    assert taken("issue_comment", comment("adw_build_iso adw-12345678")).reason == (
        "continue 12345678: adw_build_iso for issue 7 (comment)"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "asks for nothing"),
        (7, "asks for nothing"),
        ("Thanks!", "asks for nothing"),
        ("[ADW-AGENTS] /adw stop", "a program of ours"),
        ("12345678_ops: adw_plan_iso", "a program of ours"),
        ("please adw_plan_iso", "stands inside a line"),
    ],
)
def test_a_comment_that_asks_for_nothing_is_ignored(text, said):
    assert said in why_ignored("issue_comment", comment(text))


def test_on_a_pull_request_comments_give_commands_and_start_nothing():
    told = {"pull_request": {"url": "x"}}

    assert asked("issue_comment", comment("/adw approve", **told)).kind == "approve"
    assert "not on a pull request" in why_ignored("issue_comment", comment("adw_plan_iso", **told))


def test_on_a_closed_issue_comments_give_commands_and_start_nothing():
    assert asked("issue_comment", comment("/adw rollback", state="closed")).kind == "rollback"
    assert "open it again first" in why_ignored("issue_comment", comment("adw", state="closed"))


def test_a_comment_without_an_id_is_known_by_its_moment():
    told = comment("/adw stop")
    told["comment"] = {"body": "/adw stop", "created_at": "2026-01-31T09:00:00Z"}

    assert asked("issue_comment", told).intent == "acme/widget#7 comment 2026-01-31T09:00:00Z"


# --- pull requests and checks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("merged", "kind"), [(True, "clean_up"), (False, "abandon")])
def test_a_pull_request_that_is_closed_is_cleaned_up_after_or_given_up(merged, kind):
    wish = asked("pull_request", pull_request(merged=merged))

    assert (wish.kind, wish.number, wish.head_sha, wish.cause, wish.answers) == (kind, 8, HEAD, "pull_request", False)
    assert wish.intent == "acme/widget#8 pull request closed 2026-02-01T09:00:00Z"


def test_it_does_not_matter_who_merges_but_adw_itself():
    told = pull_request(merged=True)

    assert asked("pull_request", told | {"sender": user("queue[bot]", "Bot")}).kind == "clean_up"
    assert "adw closed or merged" in why_ignored("pull_request", told | {"sender": user("adw-bot")})


@pytest.mark.parametrize("repo", [{"full_name": "mallory/widget"}, None])
def test_a_pull_request_of_a_fork_is_not_ours(repo):
    told = pull_request(merged=True, head={"sha": HEAD, "repo": repo})

    assert "comes from another repository" in why_ignored("pull_request", told)


def test_a_review_that_wants_changes_is_followed_up():
    assert asked("pull_request_review", review()) == Command(
        kind="rework",
        repository="acme/widget",
        number=8,
        actor=OCTOCAT,
        text="Please rename it.",
        head_sha=HEAD,
        cause="review",
        intent="acme/widget#8 review 55",
        answers=False,
    )
    assert asked("pull_request_review", review("CHANGES_REQUESTED", body=None)).text == ""
    told = review(id=None, submitted_at="2026-01-31T09:00:00Z")
    assert asked("pull_request_review", told).intent == "acme/widget#8 review 2026-01-31T09:00:00Z"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (review("approved"), "the review is approved"),
        (review(""), "the review is without a verdict"),
        (review(body="[ADW-AGENTS] x"), "a program of ours"),
    ],
)
def test_other_reviews_are_not_followed_up(told, said):
    assert said in why_ignored("pull_request_review", told)


@pytest.mark.parametrize("name", ["check_suite", "workflow_run"])
@pytest.mark.parametrize("conclusion", ["failure", "timed_out", "startup_failure"])
def test_red_checks_are_followed_up_once_for_each_commit(name, conclusion):
    wish = asked(name, checks(name, conclusion, name="CI"))

    assert (wish.kind, wish.number, wish.head_sha, wish.cause) == ("rework", 8, HEAD, "checks")
    assert (wish.text, wish.intent, wish.answers) == (f"CI ended as {conclusion}", f"acme/widget checks {HEAD}", False)


def test_checks_of_our_own_push_count_though_we_are_the_sender():
    assert asked("check_suite", checks() | {"sender": user("adw-bot")}).kind == "rework"
    assert asked("check_suite", checks(app={"name": "Actions"})).text == "Actions ended as failure"
    assert asked("check_suite", checks()).text == "checks ended as failure"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (checks(conclusion="success"), "ended as success"),
        (checks(conclusion="cancelled"), "ended as cancelled"),
        (checks(conclusion=None), "ended as nothing"),
        (checks(pull_requests=[]), "name no pull request"),
        (checks(pull_requests=None), "name no pull request"),
        (checks(pull_requests=[{"number": "8"}]), "name no pull request"),
        (checks(head_sha=None), "name no pull request and commit"),
    ],
)
def test_other_checks_are_not_followed_up(told, said):
    assert said in why_ignored("check_suite", told)


# --- samples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "event", "kind"),
    [
        ("issues.closed.json", "issues", "abandon"),
        ("pull_request.closed.merged.json", "pull_request", "clean_up"),
        ("check_suite.completed.failure.json", "check_suite", "rework"),
    ],
)
def test_samples_of_what_the_official_package_does_not_have(name, event, kind):
    body = (DATA / name).read_bytes()
    made = read(signed(event, body), body, RULES)

    assert commands.from_json(made.request).kind == kind


# --- settings --------------------------------------------------------------------------------------------------


def load(tmp_path: Path, **env: str) -> Settings:
    named = {BY_NAME[name].env: value for name, value in env.items()}
    return config_load.load(env={"ADW_HOME": str(tmp_path), **named}, cwd=tmp_path)


def test_the_settings_make_the_rules(tmp_path):
    settings = load(
        tmp_path,
        webhook_secret="one two",
        repository="Acme/Widget",
        webhook_label="do it",
        webhook_login="adw-bot",
        webhook_senders="a[bot], b[bot], ada, !bob[bot]",
        webhook_max_followups="3",
    )

    assert rules_of(settings, workflows=["own"]) == DeliveryRules(
        secrets=("one", "two"),
        repositories=("acme/widget",),
        label="do it",
        login="adw-bot",
        bots=("a[bot]", "b[bot]"),
        follows_up=True,
        workflows=("own",),
    )
    assert {"one", "two"} <= set(settings.secrets())


# --- as it is stored -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "wish"}, "neither a run nor a command"),
        ({"issue": None}, "its issue is None"),
        ({"actor": "octocat"}, "its actor is 'octocat'"),
        ({"workflow": 7}, "its workflow is 7"),
        ({"issue": {"number": "7"}}, "its number is '7'"),
        ({"issue": {"number": True}}, "its number is True"),
        ({"type": "command", "kind": "fly", "number": 7}, "'fly', which is no command"),
        ({"type": "command", "kind": "stop"}, "its number is None"),
    ],
)
def test_what_was_stored_by_another_version_is_named(changes, said):
    stored = taken("issues", labeled()).request | changes

    with pytest.raises(DatabaseError, match=said):
        commands.from_json(stored)


def test_fields_that_an_older_version_did_not_store_have_their_defaults():
    issue_ = {"number": 7, "title": "Add a button", "body": ""}
    stored = {"type": "run", "repository": "acme/widget", "issue": issue_, "actor": {"login": "octocat"}}

    assert commands.from_json(stored) == RunRequest(
        repository="acme/widget", issue=IssueText(number=7, title="Add a button", body=""), actor=OCTOCAT
    )
