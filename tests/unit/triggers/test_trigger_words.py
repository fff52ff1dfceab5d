"""What words ask for."""

from __future__ import annotations

import time

import pytest

from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.workflow.library import ALIASES
from adws.adw_triggers.comment_commands import (
    SAID_COMMANDS,
    Ambiguous,
    CommentCommand,
    is_ours,
    read_body,
    read_comment,
    read_options,
)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("adw", CommentCommand()),
        (" ADW \r\n", CommentCommand()),
        ("adw model_set heavy", CommentCommand(model_set="heavy")),
        ("/adw", CommentCommand()),
        ("/ADW model set: Heavy", CommentCommand(model_set="heavy")),
        ("/adw run", CommentCommand()),
        ("/adw start plan_build", CommentCommand(workflow="plan_build")),
        ("/adw plan_build", CommentCommand(workflow="plan_build")),
        ("/adw adw_plan_build_iso", CommentCommand(workflow="adw_plan_build_iso")),
        ("/adw run my-own use v2", CommentCommand(workflow="my-own", text="use v2")),
        ("/adw run model_set base", CommentCommand(model_set="base")),
        ("/adw run --again", CommentCommand(is_again=True)),
        ("/adw --again", CommentCommand(is_again=True)),
        ("adw --again", CommentCommand(is_again=True)),
        ("/adw run sdlc --again\nUse v2.", CommentCommand(workflow="sdlc", is_again=True, text="Use v2.")),
        ("/adw run sdlc\nDo not say --again.", CommentCommand(workflow="sdlc", text="Do not say --again.")),
        ("/adw deploy now", CommentCommand(workflow="deploy", text="now")),
        (
            "/adw run plan_build model_set heavy\nUse v2.",
            CommentCommand(workflow="plan_build", model_set="heavy", text="Use v2."),
        ),
        ("adw_plan_build_iso", CommentCommand(workflow="adw_plan_build_iso")),
        ("adw_plan_build", CommentCommand(workflow="adw_plan_build")),
        ("ADW_Plan_Build_ISO.", CommentCommand(workflow="adw_plan_build_iso")),
        ("adw_plan_build_iso model_set heavy", CommentCommand(workflow="adw_plan_build_iso", model_set="heavy")),
        ("adw_build_iso adw-12345678", CommentCommand(workflow="adw_build_iso", adw_id="12345678")),
        ("adw_review_iso adw_id abc12345", CommentCommand(workflow="adw_review_iso", adw_id="abc12345")),
        ("adw_test_iso adw_id: abc12345", CommentCommand(workflow="adw_test_iso", adw_id="abc12345")),
        ("adw_build_iso 1a2b3c4d", CommentCommand(workflow="adw_build_iso", adw_id="1a2b3c4d")),
        ("adw_build_iso 12345678.", CommentCommand(workflow="adw_build_iso", adw_id="12345678")),
        (
            "adw_build_iso 42 1a2b3c4d",
            CommentCommand(workflow="adw_build_iso", adw_id="1a2b3c4d", issue_number=42),
        ),
        (
            "adw_build_iso #42 adw-1a2b3c4d",
            CommentCommand(workflow="adw_build_iso", adw_id="1a2b3c4d", issue_number=42),
        ),
        (
            "adw_build_iso 42 adw_id 1a2b3c4d use blue",
            CommentCommand(workflow="adw_build_iso", adw_id="1a2b3c4d", issue_number=42, text="use blue"),
        ),
        ("adw_plan_iso 42", CommentCommand(workflow="adw_plan_iso", issue_number=42)),
        ("adw_patch_iso 42 doors, not 3", CommentCommand(workflow="adw_patch_iso", text="42 doors, not 3")),
        ("adw_patch_iso decorate it", CommentCommand(workflow="adw_patch_iso", text="decorate it")),
        (
            "adw_build_iso model_set heavy 1a2b3c4d\nand paint it",
            CommentCommand(workflow="adw_build_iso", adw_id="1a2b3c4d", model_set="heavy", text="and paint it"),
        ),
        ("/adw build 1a2b3c4d", CommentCommand(workflow="build", adw_id="1a2b3c4d")),
        ("/adw run ship adw-1a2b3c4d", CommentCommand(workflow="ship", adw_id="1a2b3c4d")),
        (
            "Do it:\nadw_plan_iso\nmodel set: lightweight",
            CommentCommand(workflow="adw_plan_iso", model_set="lightweight", text="Do it:"),
        ),
        ("adw_patch make it blue\nand round", CommentCommand(workflow="adw_patch", text="make it blue\nand round")),
        ("adw_plan_iso\nagain: adw_plan_iso", CommentCommand(workflow="adw_plan_iso", text="again: adw_plan_iso")),
        ("adw_sdlc_ZTE_iso", CommentCommand(workflow="adw_sdlc_ZTE_iso")),
        ("ADW_SDLC_ZTE", CommentCommand(workflow="adw_sdlc_ZTE")),
        ("adw_sdlc_zte_iso", CommentCommand(workflow="adw_sdlc_zte_iso")),
        ("adw_sdlc_Zte_iso", CommentCommand(workflow="adw_sdlc_zte_iso")),
        (
            "adw_plan_iso\nWe talked of model_set heavy before.",
            CommentCommand(workflow="adw_plan_iso", text="We talked of model_set heavy before."),
        ),
    ],
)
def test_a_comment_starts_a_workflow_by_the_known_forms(text, asked):
    assert read_comment(text, workflows=["deploy"]) == asked


def test_shipping_without_a_look_needs_capitals():
    assert ALIASES[read_comment("adw_sdlc_ZTE_iso").workflow] == "sdlc_ZTE"
    assert ALIASES[read_comment("adw_sdlc_zte_iso").workflow] == ALIASES["adw_sdlc_iso"]


def test_every_script_that_users_know_is_known():
    for name in ALIASES:
        assert read_comment(name) == CommentCommand(workflow=name)
        assert read_body(f"Please do.\n\n{name}\n") == CommentCommand(workflow=name, text="Please do.")


@pytest.mark.parametrize("command", SAID_COMMANDS)
def test_a_command_is_the_first_word_after_the_name(command):
    assert read_comment(f"/adw {command}") == CommentCommand(command=command)
    assert read_comment(f"\n/Adw {command.upper()}!") == CommentCommand(command=command)
    assert read_comment(f"/adw {command} 12345678 because\nof it") == CommentCommand(
        command=command, adw_id="12345678", text="because\nof it"
    )
    assert read_comment(f"/adw {command} adw-12345678 now") == CommentCommand(
        command=command, adw_id="12345678", text="now"
    )
    assert read_comment(f"/adw {command} use the other API") == CommentCommand(
        command=command, text="use the other API"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Thanks!",
        "thanks, adw",
        "adw is great",
        "see adw_state.json",
        "adw_helper is what I meant",
        "please /adw stop",
        "Well.\n/adw stop",
        "/adwx stop",
        "/ad",
        "model_set heavy",
        "adw-12345678 looks good",
        "> /adw stop",
        "  > adw_plan_iso",
        "    adw_plan_iso",
        "\tadw_plan_iso",
        "```\nadw_plan_iso\n```",
        "~~~ text\n/adw stop\n~~~~",
        "```\nadw_plan_iso",
        "````\n```\nadw_plan_iso\n```\n````",
        "```\n``` x\nadw_plan_iso\n```",
        "`adw_plan_iso`",
        "<pre>\nadw_plan_iso\n</pre>",
        "<code>adw_plan_iso</code>",
        "<!-- adw_plan_iso -->",
        "<!--\nadw_plan_iso\n-->",
        "<!-- hidden\nadw_plan_iso",
        "<!<!-- -->--\nadw_plan_iso\n-->",
    ],
)
def test_words_that_ask_for_nothing_start_nothing(text):
    assert read_comment(text) is None


def test_a_text_that_was_made_to_hide_something_asks_for_nothing():
    hidden = "<!-- -->"
    for _ in range(30):
        hidden = f"<!{hidden}-- -->"

    assert read_comment(f"{hidden}\nadw_plan_iso") is None


def test_what_is_said_after_code_counts_again():
    assert read_comment("```\nx\n```\nadw_plan_iso") == CommentCommand(workflow="adw_plan_iso")
    assert read_comment("<pre>x</pre>\nadw_plan_iso") == CommentCommand(workflow="adw_plan_iso")
    assert read_comment("<pre>\nx\n</pre>\nadw_plan_iso") == CommentCommand(workflow="adw_plan_iso")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("please run adw_plan_iso", "adw_plan_iso stands inside a line"),
        ("adw_plan_iso\nadw_build_iso", "it names adw_plan_iso and adw_build_iso"),
        ("adw_fly_iso", "adw_fly_iso is no workflow"),
        ("/adw fly", "'fly' is no command: there are run, resume"),
        ("/adw run ../etc", "cannot be the name"),
    ],
)
def test_what_looks_like_a_request_and_is_none_is_explained(text, said):
    unclear = read_comment(text)

    assert isinstance(unclear, Ambiguous)
    assert said in unclear.reason


def test_the_text_of_an_issue_takes_the_forms_and_no_commands():
    assert read_body("adw_plan_build_iso model_set heavy") == CommentCommand(
        workflow="adw_plan_build_iso", model_set="heavy"
    )
    assert read_body("ADW_Plan_Build_ISO") == CommentCommand(workflow="adw_plan_build_iso")
    assert read_body("ad<!-- -->w_plan_build_iso") == CommentCommand(workflow="adw_plan_build_iso")
    assert read_body("adw_fly_iso") == Ambiguous(reason="adw_fly_iso is no workflow that is known here")
    assert read_body("/adw stop") is None
    assert read_body("adw") is None


def test_a_line_of_an_issue_can_choose_the_models():
    assert read_options("Blue.\nmodel_set heavy") == CommentCommand(model_set="heavy")
    assert read_options("Blue.\nMODEL SET: Heavy") == CommentCommand(model_set="heavy")
    assert read_options("Blue.\nmo<!-- -->del_set heavy") == CommentCommand(model_set="heavy")
    assert read_options("The model_set heavy is slow.") == CommentCommand()


@pytest.mark.parametrize(
    "text",
    [
        "[ADW-AGENTS] 12345678_ops: done",
        "Done [adw-bot]",
        "12345678_ops: started",
        " deadbeef_sdlc_planner_x1: planned",
        "Done\n<!-- adw:v1 id=12345678 op=sticky mac=00000000000000000000 -->",
        forge_text.bot_comment("adw_plan_iso"),
    ],
)
def test_what_a_program_of_ours_wrote_is_known(text):
    assert is_ours(text)


@pytest.mark.parametrize("text", ["", "adw", "1234567_ops: x", "see 12345678_ops: x", "DEADBEEF_ops: x"])
def test_what_a_person_wrote_is_not_taken_for_ours(text):
    assert not is_ours(text)


def test_what_adw_repeats_of_a_request_asks_for_nothing():
    for text in ("adw_plan_iso", "/adw stop", "please adw_plan_iso"):
        assert read_comment(forge_text.quiet(text)) is None


@pytest.mark.parametrize(
    "unit", ["<!-", "<!<!-- -->--", "`" * 3 + "\n", "adw_", "> ", "/adw ", "\n", "adw_plan_iso ", "<pre>", "adw id "]
)
def test_a_hostile_text_takes_no_time(unit):
    text = unit * (2_000_000 // len(unit))
    started = time.process_time()
    read_comment(text)
    read_body(text)
    is_ours(text)

    assert time.process_time() - started < 5.0  # each takes milliseconds; minutes would be a pattern gone wild
