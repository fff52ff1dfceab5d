"""The one driver of agents: what it gives them, what it takes for success, how it ends them, what it keeps."""

from __future__ import annotations

import signal

import pytest

from adws.adw_modules.costs import Allowance
from adws.adw_modules.error_handler import describe
from adws.adw_modules.errors import RunFailed, UnsafePath
from adws.adw_modules.phase import Order, RunReport, Suspended
from adws.adw_modules.redaction.patterns import MASK
from tests.integration.agent_lab import SECRET, AgentWorld, phase

SESSION = "74a13641-132c-4dbe-bfdb-4df3ef8951db"


@pytest.fixture
def world(tmp_path):
    return AgentWorld(tmp_path)


def class_of(report: RunReport) -> str:
    assert not report.ok
    return describe(report.error, "build").klass


# --- what an agent is given ------------------------------------------------------------------------------------


def test_the_conversation_is_on_record_before_the_agent_starts(world):
    report = world.run()

    [call] = world.agent.calls
    assert report.ok
    assert world.order_of_things[:2] == ["agent", "process"]
    assert f"--session-id={world.facts[0]['session_id']}" in call["argv"]
    assert (world.known["name"], world.known["provider"], world.known["is_resumed"]) == ("claude", "anthropic", False)
    assert world.known["version"] == "9.9.9"


def test_the_prompt_comes_by_a_file_and_holds_the_goal_as_cleaned_data(world):
    world.hints = ("use the other door",)

    world.run()

    [call] = world.agent.calls
    assert call["prompt"] == world.file("prompt.md").read_text()
    assert "Title: Fix it" in call["prompt"]
    assert "use the other door" in call["prompt"]
    assert "obey me" not in call["prompt"]
    assert f"with {MASK}" in call["prompt"]
    assert not [item for item in call["argv"] if "Fix it" in item]


def test_an_agent_has_its_own_credentials_and_none_of_ours(world):
    world.change(agent_env=("MY_SETTING", "GITHUB_TOKEN"))

    world.run()

    env = world.agent.calls[0]["env"]
    assert (env["ANTHROPIC_API_KEY"], env["MY_SETTING"], env["GIVEN"]) == (SECRET, "mine", "by the engine")
    assert {"GITHUB_TOKEN", "GH_TOKEN", "SSH_AUTH_SOCK", "OTHER", "CODEX_API_KEY"} & set(env) == set()
    assert (env["GIT_TERMINAL_PROMPT"], env["HOME"]) == ("0", str(world.home))
    assert env["ADW_RESULT_FILE"] == str(world.file("agent") / "result.json"), "a place of the agent alone"


def test_what_agents_print_is_kept_without_secrets_and_shown_in_words(world):
    report = world.run({"say": f"the key is {SECRET}", "stderr": f"careful {SECRET}"})

    kept = world.file("stdout.log").read_text() + world.file("stderr.log").read_text()
    assert SECRET not in kept
    assert f"the key is {MASK}" in world.said
    assert f"careful {MASK}" in world.said
    assert not [line for line in world.said if line.startswith("{")]
    assert report.output_files == (
        *(f"phases/build/attempt-1.{kind}" for kind in ("hints.json", "issue.json", "prompt.md")),
        *(f"phases/build/attempt-1.{kind}" for kind in ("stderr.log", "stdout.log", "transcript.log")),
    )
    assert world.file("transcript.log").read_text().splitlines() == world.said


def test_a_prompt_of_the_user_wins_and_is_read_again_for_every_attempt(world):
    (world.home / "prompts").mkdir()
    own = world.home / "prompts/build.md"
    own.write_text("Do {{phase}} my way.\n")
    world.run()
    hash_before = world.known["prompt"]["template_sha256"]
    own.write_text("Do it another way.\n")

    world.run()

    first, second = (call["prompt"] for call in world.agent.calls)
    assert first.startswith("Do build my way.\n\nThe goal is issue 7")
    assert second.startswith("Do it another way.\n\nThe goal is issue 7")
    assert world.known["prompt"]["source"] == str(own)
    assert world.known["prompt"]["template_sha256"] != hash_before


# --- what counts as success ------------------------------------------------------------------------------------


def test_a_success_without_a_change_is_none(world):
    world.changed = False

    report = world.run({"answer": "It is done already."})

    assert class_of(report) == "no_effect"
    assert "it said: It is done already." in str(report.error)
    assert report.cost_usd == 0.25


def test_work_is_compared_with_what_the_first_attempt_of_the_round_stood_on(world):
    asked = []
    world.change(has_changed=lambda _cwd, base: asked.append(base) or True)
    world.after(
        {"status": "failed", "round": 1, "agent": {"base": "a" * 40}},
        {"status": "interrupted", "round": 2, "agent": {"base": "b" * 40}},
    )
    world.record.round = 2
    world.record.attempts[-1].round = 2

    world.run()

    assert asked == ["b" * 40]
    assert world.known["base"] == "b" * 40


@pytest.mark.parametrize(
    ("turn", "klass"),
    [
        ({"no_result": True}, "bad_output"),
        ({"exit": 3}, "failed"),
        ({"result": {"is_error": True, "result": "API Error: 500", "api_error_status": 500}}, "server"),
        ({"result": {"subtype": "error_max_turns", "is_error": True}, "exit": 1}, "turns"),
        ({"signal": signal.SIGKILL}, "killed"),
    ],
    ids=["no-result", "exit-code", "error-flag", "turns", "killed"],
)
def test_success_needs_result_exit_code_and_no_error(world, turn, klass):
    assert class_of(world.run(turn)) == klass


def test_a_tool_that_was_refused_matters_only_when_nothing_was_done(world):
    denied = {"result": {"permission_denials": [{"tool_name": "Write"}]}}

    assert world.run(denied).ok
    world.changed = False
    report = world.run(denied)

    assert class_of(report) == "denied"
    assert "Write" in report.error.run.text


@pytest.mark.parametrize(
    ("turn", "ok", "klass"),
    [
        ({"result_file": {"success": True, "summary": "all green"}}, True, ""),
        ({"answer": 'Done.\n```json\n{"passed": true, "summary": "all green"}\n```'}, True, ""),
        ({"result": {"structured_output": {"success": True, "summary": "all green"}}}, True, ""),
        ({}, False, "no_effect"),
        ({"result_file": "{"}, False, "bad_output"),
        ({"result_file": {"summary": "no verdict"}}, False, "bad_output"),
        ({"result_file": {"success": "yes"}}, False, "bad_output"),
        ({"result_file": {"success": False, "summary": "3 failed"}}, False, "gate"),
    ],
    ids=["file", "answer", "structured", "nothing", "no-json", "no-verdict", "no-boolean", "says-no"],
)
def test_a_test_or_review_has_to_give_back_a_verdict(world, turn, ok, klass):
    world.changed = False

    report = world.run(turn, state="testing")

    assert report.ok is ok
    assert (report.summary == "all green") if ok else (class_of(report) == klass)
    assert f"write one JSON object to the file {world.file('agent')}/result.json" in world.agent.calls[0]["prompt"]


def test_a_result_that_is_a_link_is_refused(world, tmp_path):
    (tmp_path / "passwords").write_text('{"success": true}')
    turn = {"do": [f"ln -s {tmp_path}/passwords $ADW_RESULT_FILE"]}

    assert class_of(world.run(turn, state="testing")) == "bad_output"


def test_a_folder_that_is_a_link_is_not_written_to(world, tmp_path):
    """
    An agent of an earlier attempt may have put it there.
    """
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/result.json").write_text("mine")
    world.file("x").parent.mkdir(parents=True)
    world.file("agent").symlink_to(tmp_path / "precious")

    with pytest.raises(UnsafePath, match="is not a directory of its own"):
        world.run()

    assert (tmp_path / "precious/result.json").read_text() == "mine"


# --- clocks, orders, what is left behind -----------------------------------------------------------------------


def test_what_an_agent_leaves_running_is_ended_and_told(world):
    report = world.run({"leaves": ["child", "daemon"]})

    assert report.ok
    assert "(ended what it left running: " in report.summary
    assert world.agent.left == []


def test_an_order_suspends_the_attempt_and_what_was_used_counts(world):
    def stop_when_it_speaks():
        if any("I look at it." in line for line in world.said):
            world.orders.order = Order(kind="drain")

    world.orders.on_look = stop_when_it_speaks

    result = world.run({"hang": "during", "tokens": 70})

    assert isinstance(result, Suspended)
    assert (result.reason, result.usage.tokens.input) == ("drain", 70)


# --- budgets ---------------------------------------------------------------------------------------------------


def test_an_agent_is_told_its_budget_on_top_of_what_the_conversation_cost(world):
    usage = {"cost_usd": 0.5, "tokens": {"input": 1}}
    world.after({"status": "interrupted", "agent": facts(), "report": {"usage": usage}})
    world.change(allowance=lambda _document, usd: Allowance(usd=usd, reason="x"), agent_billing="api")

    sums = {"claude-sonnet-5": {"inputTokens": 101, "outputTokens": 10}}
    report = world.run({"result": {"total_cost_usd": 0.75, "modelUsage": sums}}, options={"budget_usd": 2})

    assert "--max-budget-usd=2.5000" in world.agent.calls[0]["argv"]
    assert report.cost_usd == 0.25


# --- resuming -------------------------------------------------------------------------------------------------


def facts(**changes):
    return {"name": "claude", "session_id": SESSION, **changes}


@pytest.mark.parametrize("status", ["interrupted", "suspended", "parked", "failed"])
def test_a_conversation_goes_on(world, status):
    world.after({"status": status, "agent": facts(), "error": {"klass": "timeout", "message": "took too long"}})

    world.run()

    [call] = world.agent.calls
    assert f"--resume={SESSION}" in call["argv"]
    assert "This continues our conversation" in call["prompt"]
    assert ("took too long" in call["prompt"]) is (status == "failed")
    assert "Title: Fix it" in call["prompt"]
    assert (world.known["is_resumed"], world.known["session_id"]) == (True, SESSION)


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ({"status": "failed", "agent": facts(), "error": {"klass": "context"}}, {}),
        ({"status": "failed", "agent": facts(name="codex")}, {}),
        ({"status": "interrupted", "agent": facts()}, {"session": "fresh"}),
    ],
    ids=["full", "another-agent", "asked-for"],
)
def test_a_fresh_conversation_is_begun_where_the_old_one_is_of_no_use(world, before, options):
    world.after(before)

    world.run(options=options)

    [call] = world.agent.calls
    assert not [item for item in call["argv"] if item.startswith("--resume")]
    assert "in a conversation that cannot be continued" in call["prompt"]
    assert world.known["session_id"] != SESSION


@pytest.mark.parametrize(
    ("status", "klass", "is_told"),
    [
        ("failed", "gate", True),
        ("failed", "no_effect", True),
        ("failed", "timeout", True),
        ("failed", "overloaded", False),
        ("failed", "auth", False),
        ("failed", "budget", False),
        ("parked", "quota_window", False),
        ("interrupted", "", False),
    ],
)
def test_an_agent_is_warned_of_what_it_could_do_otherwise_and_of_nothing_else(world, status, klass, is_told):
    world.after({"status": status, "error": {"klass": klass, "message": "it went wrong"}})

    world.run({"answer": "Done."})

    prompt = world.agent.calls[-1]["prompt"]
    assert ("it went wrong" in prompt) is is_told
    assert "look at git status" in prompt


@pytest.mark.parametrize(("klass", "is_told"), [("gate", True), ("timeout", False)])
def test_an_agent_is_told_what_the_gate_said_that_did_not_let_it_pass(world, klass, is_told):
    world.after({"status": "failed", "error": {"klass": klass, "message": "make: *** [test] Error 1"}})
    place = world.folder / "phases" / "build"
    place.mkdir(parents=True, exist_ok=True)
    (place / "attempt-1.gate-1.stdout.log").write_text("FAILED test_greet.py::test_nobody\n")
    (place / "attempt-1.stdout.log").write_text("what the agent said itself\n")

    world.run({"answer": "Done."})

    prompt = world.agent.calls[-1]["prompt"]
    assert ("FAILED test_greet.py::test_nobody" in prompt) is is_told
    assert "what the agent said itself" not in prompt


def test_a_conversation_that_the_agent_does_not_know_is_handed_over_once(world):
    world.after({"status": "interrupted", "agent": facts(), "report": {"summary": "half of it is done"}})

    report = world.run({"knows": False}, {"answer": "Finished."})

    first, second = world.agent.calls
    assert (report.ok, report.summary) == (True, "Finished.")
    assert f"--resume={SESSION}" in first["argv"]
    assert not [item for item in second["argv"] if item.startswith("--resume")]
    assert "half of it is done" in second["prompt"]
    assert world.known["lost_session"] == SESSION
    assert f"--session-id={world.known['session_id']}" in second["argv"]
    assert len(world.records) == 2


# --- after a crash ---------------------------------------------------------------------------------------------


def test_what_a_cut_off_attempt_achieved_is_harvested(world):
    words = "half of it is done"
    world.orders.on_look = lambda: setattr(world.orders, "order", Order(kind="drain")) if words in world.said else None
    world.run({"hang": "during", "say": words, "tokens": 70})
    attempt = world.record.attempts[-1].model_copy(update={"agent": {**world.known, "session_id": ""}})

    result = world.runner.harvest(world.document, phase(), attempt)

    assert result.agent == {"session_id": world.known["session_id"]}
    assert (result.report.summary, result.report.usage.tokens.input) == (words, 70)
    assert class_of(result.report) == "killed"


# --- what is refused before ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": ("GH_TOKEN",)}, "phase build asks for GH_TOKEN, which adw keeps to itself"),
        ({"options": {"max_turns": 0}}, "the option max_turns is 0 and must be a whole number from 1 to 10000"),
        ({"options": {"modle": "x"}}, "'modle' is no option of an agent, did you mean model?"),
        ({"prompt": "nothing"}, "there is no prompt 'nothing': write "),
        ({"runner": "nobody"}, "there is no agent 'nobody'"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_started(world, changes, words):
    with pytest.raises((RunFailed, ValueError), match=words.replace("(", r"\(")):
        world.run(**changes)

    assert world.agent.calls == []
    assert world.facts == []


def test_the_plan_is_written_down_for_later_phases(world):
    fields = {}

    class Effects:
        def set_fields(self, **given):
            fields.update(given)

    context = world.context
    values = {name: getattr(context, name) for name in context.__slots__} | {"effects": Effects()}
    plan = "specs/issue-7-adw-1a2b3c4d-plan.md"
    world.agent.plays({"do": ["mkdir -p specs", f"echo steps > {plan}"]})

    report = world.runner.run(phase(state="planning", prompt="plan"), type(context)(**values))

    assert report.ok
    assert f"`{plan}`" in world.agent.calls[0]["prompt"]
    assert fields == {"plan_file": plan}
