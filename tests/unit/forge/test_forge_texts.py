"""Texts for a forge: found again by their marks, harmless when they repeat what others wrote, never too long."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import timestamps
from adws.adw_modules.document import AttemptRecord, Cost, PhaseRecord, WorkflowDocument, WorkflowRef
from adws.adw_modules.forge import text as forge_text
from adws.adw_modules.forge.text import BOT_MARK, MAX_BODY, MAX_TITLE, Marker
from adws.testing import START

KEY = b"k" * 32
MARKER = Marker(adw_id="1a2b3c4d", op="sticky")
#: What existing set-ups look for in a comment to start a workflow.
TRIGGERS = ("adw_plan_iso", "please run ADW_SDLC_ZTE_iso now", "/adw run", "x\n/adw resume 1a2b3c4d", "adw_")


def made(marker=MARKER, *, key=KEY, repository="acme/widget"):
    return forge_text.make_marker(marker, key=key, repository=repository)


def read(text, *, key=KEY, repository="acme/widget"):
    return forge_text.read_marker(text, key=key, repository=repository)


# --- markers


@pytest.mark.parametrize(
    "forged",
    [
        made().replace("1a2b3c4d", "5e6f7a8b"),
        made().replace("sticky", "pull_request"),
        made(key=b"x" * 32),
        made(repository="acme/other"),
        made().replace("mac=", "mac=0"),
        "<!-- adw:v1 id=1a2b3c4d op=sticky mac=00000000000000000000 -->",
    ],
    ids=["id", "op", "key", "repository", "length", "zeros"],
)
def test_a_forged_marker_is_none(forged):
    assert read(forged) is None


def test_a_forged_marker_before_ours_hides_nothing():
    assert read(made(key=b"x" * 32) + made()) == MARKER


def test_an_id_with_an_underscore_comes_back_and_is_no_trigger():
    marker = Marker(adw_id="adw_issue_1", op="pull_request")

    assert "adw_" not in made(marker)
    assert read(made(marker)) == marker


def test_cutting_a_long_text_leaves_its_marker():
    text = forge_text.with_marker("first line\n" + "x" * 100_000, made())

    assert text.startswith("first line\n<!-- adw")
    assert read(forge_text.outgoing_body(text, str)) == MARKER


# --- what others wrote


@pytest.mark.parametrize("text", TRIGGERS)
def test_a_trigger_is_broken_and_looks_the_same(text):
    broken = forge_text.break_triggers(text)

    assert "adw_" not in broken.lower()
    assert "/adw" not in broken.lower()
    assert broken.replace("\u2060", "") == text
    assert forge_text.break_triggers(broken) == broken


@pytest.mark.parametrize("word", ["Closes", "fix", "Fixed:", "resolves", "CLOSE"])
@pytest.mark.parametrize("what", ["#12", "GH-12", "acme/other#12", "https://github.com/acme/x/issues/12"])
def test_text_of_others_closes_no_issue(word, what):
    quiet = forge_text.quiet(f"This {word} {what}")

    assert f"{word} {what}" not in quiet
    assert quiet.replace("\u2060", "") == f"This {word} {what}"


def test_text_of_others_calls_nobody():
    assert "@alice" not in forge_text.quiet("ask @alice (or @acme/team)")
    assert forge_text.quiet("mail a@b.invalid, `@decorator`") == "mail a@b.invalid, `@decorator`"


def test_text_of_others_hides_nothing():
    hidden = "a<!-- do evil -->b\u200b\u202ec\U000e0041d <!-- never ends"

    assert forge_text.visible(hidden) == "abcd "
    assert forge_text.visible("two\r\nlines") == "two\nlines"
    assert forge_text.visible("a <<!-- x -->!-- nested --> b") == "a  b"
    assert forge_text.visible("a <\u200b!-- split --> b") == "a  b"
    assert read(forge_text.quiet(f"look {made()}")) is None


@given(st.text())
def test_quiet_text_has_no_trigger_mention_or_comment(text):
    quiet = forge_text.quiet(text + " adw_plan @bob <!--")

    assert "adw_" not in quiet.lower()
    assert " @bob" not in quiet
    assert "<!--" not in quiet


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file: /home/me/work/app.py", "no such file: .../app.py"),
        ("in ~/secret/place/x.txt.", "in .../x.txt."),
        ("see https://example.com/a/b/c", "see https://example.com/a/b/c"),
        ("src/app/main.py and a/b", "src/app/main.py and a/b"),
    ],
)
def test_paths_of_this_machine_are_not_told(text, shown):
    assert forge_text.without_local_paths(text) == shown


# --- what goes out


def test_a_body_is_scrubbed_before_it_is_cut():
    """
    A secret across the cut would lose its end, and stay.
    """
    secret = "a-secret-that-is-long"
    text = "x" * (MAX_BODY - len(forge_text.CUT) - 12) + secret + "y" * 1000

    sent = forge_text.outgoing_body(text, lambda said: said.replace(secret, "[redacted]"))

    assert secret[:10] not in sent
    assert len(sent) <= MAX_BODY


def test_a_comment_says_that_it_is_ours_and_fires_nothing():
    said = forge_text.bot_comment("run adw_plan_iso", adw_id="1a2b3c4d")

    assert said.startswith(f"{BOT_MARK} 1a2b3c4d: run ")
    assert "adw_" not in said
    assert forge_text.bot_comment("hello") == f"{BOT_MARK} hello"
    assert forge_text.bot_comment(f"{BOT_MARK} hello") == f"{BOT_MARK} hello"


# --- pull requests


@pytest.mark.parametrize(
    ("kind", "number", "title", "said"),
    [
        ("/bug", 7, "Fix the door", "bug: #7 - Fix the door"),
        ("feature", 7, "two\nlines", "feature: #7 - two lines"),
        (None, 7, "", "feature: #7 - no title"),
        ("chore", None, "No issue", "chore: No issue"),
    ],
)
def test_a_title_names_type_issue_and_what_it_is(kind, number, title, said):
    assert forge_text.pull_request_title(kind=kind, number=number, title=title) == said


def test_a_title_is_never_too_long():
    title = forge_text.pull_request_title(kind="bug", number=7, title="word " * 200)

    assert len(title) == MAX_TITLE
    assert title.endswith("...")


def test_a_body_closes_the_issue_and_names_the_run():
    body = forge_text.pull_request_body(adw_id="1a2b3c4d", number=7, summary="Made a door. Fixes #3, ask @bob.")

    assert body.endswith("\n\nCloses #7\n\nADW-Run: 1a2b3c4d")
    assert "Fixes #3" not in body
    assert "@bob" not in body


def test_a_long_summary_does_not_push_out_the_end():
    body = forge_text.pull_request_body(adw_id="1a2b3c4d", number=7, summary="x" * 100_000)
    sent = forge_text.outgoing_body(forge_text.with_marker(body, made()), str)

    assert len(sent) < MAX_BODY
    assert sent.endswith("ADW-Run: 1a2b3c4d")
    assert read(sent) == MARKER


# --- the sticky comment


def document(**changes):
    known = {
        "adw_id": "1a2b3c4d",
        "issue_number": 7,
        "created_at": timestamps.to_text(START),
        "updated_at": timestamps.to_text(START + timedelta(seconds=50)),
        "current_state": "building",
        "workflow": WorkflowRef(name="sdlc"),
        "cost": Cost(total_usd=2.5),
        "phases": [
            PhaseRecord(
                name="plan",
                state="planning",
                status="complete",
                attempts_used=2,
                granted=1,
                attempts=[
                    AttemptRecord(number=1, started_at="x", duration=10.0),
                    AttemptRecord(number=2, started_at="x", duration=5.0),
                    AttemptRecord(number=3, started_at="x"),
                ],
            ),
            PhaseRecord(name="build", state="building", status="retry_wait"),
        ],
    }
    return WorkflowDocument(**{**known, **changes})


def sticky(now=START + timedelta(seconds=90), *, state="", detail=None, **changes):
    return forge_text.sticky_text(document(**changes), now=now, state=state, detail=detail)


def test_the_sticky_comment_says_how_it_stands_and_what_to_type():
    assert sticky(pr_number=12) == (
        "[adw] 1a2b3c4d: building\n"
        "\n"
        "Workflow `1a2b3c4d` (sdlc) is **building**.\n"
        "\n"
        "| phase | status | attempts | time |\n"
        "|---|---|---|---|\n"
        "| plan | complete | 2 of 6 | 15 s |\n"
        "| build | retry wait | 0 of 5 |  |\n"
        "\n"
        "Cost: $2.50. Elapsed: 1 min 30 s.\n"
        "\n"
        "Pull request: #12\n"
        "\n"
        "To stop it: `adw pause 1a2b3c4d`. To continue after that: `adw resume 1a2b3c4d`."
    )


@pytest.mark.parametrize("state", ["completed", "abandoned", "rolled_back"])
def test_what_is_over_offers_nothing_to_type_and_took_until_its_last_change(state):
    said = sticky(START + timedelta(days=1), current_state=state, workflow=None)

    assert "`adw " not in said
    assert f"Workflow `1a2b3c4d` is **{state.replace('_', ' ')}**." in said
    assert "Elapsed: 50 s." in said


FAILED = PhaseRecord(
    name="build", state="building", status="failed", last_failure_reason="red in /home/me/x/y.py\n@bob"
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"current_state": "paused", "pause_reason": "asked by bob"}, "> asked by bob"),
        ({"current_state": "failed", "phases": [FAILED]}, "> red in .../y.py\n> @\u2060bob"),
        ({"current_state": "failed", "phases": [], "terminal_reason": "BUDGET"}, "> BUDGET"),
    ],
)
def test_what_stopped_says_why_and_how_to_go_on(changes, why):
    said = sticky(**changes)

    assert why in said
    assert "To continue: `adw resume 1a2b3c4d`." in said
    assert ("| phase |" in said) == bool(changes.get("phases", True))


def test_a_sticky_comment_fires_no_trigger_and_is_never_too_long():
    many = [PhaseRecord(name=f"adw_plan|{i}", state="planning") for i in range(5_000)]
    said = sticky(phases=many, detail="adw_plan_iso " * 5_000)

    assert len(forge_text.with_marker(said, made())) < MAX_BODY
    assert "adw_" not in said
    assert "plan\\|0" in said


@pytest.mark.parametrize("length", [MAX_BODY - 1, MAX_BODY, MAX_BODY + 1])
def test_only_what_is_too_long_is_cut(length):
    cut = forge_text.cut("x" * length)

    assert len(cut) <= MAX_BODY
    assert cut.endswith(forge_text.CUT) == (length > MAX_BODY)
