"""
Every workflow there is: where a name leads, what is refused with file and line, what a start freezes.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules import document
from adws.adw_modules.errors import ConfigError, UnknownWorkflow, WorkflowInvalid
from adws.adw_modules.workflow.library import Workflows, built_in_names
from adws.adw_modules.workflow.load import GATE_KEYS, PHASE_KEYS, RETRY_KEYS, TIMEOUT_KEYS, WORKFLOW_KEYS
from adws.adw_modules.workflow.model import RUNNERS, PhaseSpec, WorkflowSpec, thaw
from adws.config.toml_file import ConfigSection, SettingsFile

FILE = Path("/home/adw.toml")
MINE = """\
[workflows.mine]
description = "Mine"

[[workflows.mine.phases]]
name = "build"
command = ["make"]
"""
HELLO = WorkflowSpec(
    name="hello", phases=(PhaseSpec(name="build", state="building", runner="command", shell="x"),), source="here"
)


def plain_table(data):
    """A table that stands in no file."""
    return SimpleNamespace(data=data, where=lambda *_keys: "adw.toml:1")


def make(text="", *, files=(), runners=RUNNERS, **options):
    file = SettingsFile(FILE, text)
    return Workflows(
        runners=runners,
        has_file=files.__contains__,
        definitions=ConfigSection("workflows", file),
        phases=ConfigSection("phases", file),
        **options,
    )


def refused(text, **options):
    with pytest.raises(WorkflowInvalid) as raised:
        make(text, **options)

    assert isinstance(raised.value, ConfigError)
    return list(raised.value.problems)


# --- names -----------------------------------------------------------------------------------------------------


def test_without_a_file_there_is_what_comes_with_adw():
    known = Workflows(runners=RUNNERS, has_file=lambda _name: False)

    assert known.names() == built_in_names()
    assert [spec.name for spec in known.all()] == list(built_in_names())


def test_a_name_leads_to_its_workflow_and_a_known_one_to_the_built_in():
    known = make(MINE)

    assert known.get("mine").description == "Mine"
    assert known.get("mine").source == f"{FILE}:1"
    assert known.get("sdlc").name == "sdlc"
    assert known.get("adw_plan_build_iso").name == "plan_build"
    assert known.names()[-1] == "mine"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("plan_biuld", "plan_build"), ("mnie", "mine"), ("adw_plan_biuld_iso", "adw_plan_build_iso"), ("zzz", "")],
)
def test_an_unknown_name_is_refused_with_those_there_are(name, meant):
    with pytest.raises(UnknownWorkflow) as raised:
        make(MINE).get(name)

    assert f"there is no workflow {name!r}" in str(raised.value)
    assert ("did you mean" in str(raised.value)) == bool(meant)
    assert meant in str(raised.value)
    assert "; there are: sdlc, plan_build, " in str(raised.value)
    assert raised.value.known[-1] == "mine"
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("name", ["sdlc", "adw_sdlc_iso"])
def test_the_name_of_a_built_in_is_taken_only_on_purpose(name):
    text = MINE.replace("mine", name)

    assert refused(text) == [
        (
            f"{FILE}:1: [workflows.{name}] {name} is the name of a workflow that comes with adw: choose another name, "
            "or say replace = true"
        )
    ]
    known = make(text.replace("description", "replace = true\ndescription"))
    assert known.get(name).description == "Mine"
    assert name not in known.aliases()
    assert known.names().count(name) == 1


def test_a_replaced_built_in_is_what_its_other_names_mean_too():
    known = make(MINE.replace("mine", "plan_build").replace("description", "replace = true\ndescription"))

    assert known.get("adw_plan_build_iso").description == "Mine"


def test_there_must_be_something_to_replace():
    assert refused(MINE.replace("mine", "sdcl").replace("description", "replace = true\ndescription")) == [
        f"{FILE}:2: [workflows.sdcl] there is no workflow 'sdcl' to replace, did you mean sdlc?"
    ]


# --- what is wrong ---------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_told_with_file_and_line():
    text = """\
[phases.plan]
command = ["make"]
shell = "make"

[phases.bild]
shell = "make"

[phases.lint]
gates = [
  {shell = "x"},
  {artifact = "/etc"},
]

[workflows.mine]
[[workflows.mine.phases]]
name = "plan"
tier = 1
command = "make"

[[workflows.mine.phases]]
name = "build"
runner = "comand"
gate = "human"

[[workflows.mine.phases]]
name = "review"
prompt = "review.md"
runner = "claude"
timeouts = {wall = 0}

[workflows.other]
[workflows."bad name"]
phases = [{name = "test", shell = "x", needs = ["nope"]}]
"""
    assert refused(text, runners=("command", "claude")) == [
        f"{FILE}:1: [phases.plan] the runner command needs command (a list) or shell (one line), and has both",
        f"{FILE}:5: [phases.bild] no built-in phase is called 'bild', did you mean build?",
        f"{FILE}:11: [phases.lint] the artifact '/etc' is absolute: give one below the working directory",
        (
            f'{FILE}:18: [workflows.mine] phase \'plan\': command must be a list, such as ["make", "plan"]; '
            "for one line use shell"
        ),
        f"{FILE}:22: [workflows.mine] phase 'build': there is no runner 'comand', did you mean command?",
        f"{FILE}:27: [workflows.mine] phase 'review': there is no prompt file review.md: write it, or name another",
        (
            f"{FILE}:29: [workflows.mine] phase 'review': the timeout wall is 0 and must be more than 0 seconds, "
            "at most 1e+09"
        ),
        (
            f"{FILE}:20: [workflows.mine] phase 'build' (tier 0) comes after 'plan' (tier 1): a tier can only be "
            "followed by itself or a later one"
        ),
        f"{FILE}:31: [workflows.other] a workflow needs at least one phase",
        (
            f"{FILE}:32: [workflows.bad name] 'bad name' cannot be the name of a workflow: use letters, digits, '-' "
            "and '_' (at most 64), a letter first"
        ),
        f"{FILE}:33: [workflows.bad name] phase 'test' needs 'nope', but there is no such phase; there are: test",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [("[workflows]\nmine = 3", 2), ("[workflows.mine]\ndescription = 'x'\nphases = 3", 3)],
)
def test_what_could_not_be_read_is_no_matter_for_further_complaints(text, line):
    [problem] = refused(text)

    assert problem.startswith(f"{FILE}:{line}: [workflows.mine] ")


def test_a_table_of_no_file_is_refused_too():
    with pytest.raises(
        WorkflowInvalid, match=r"^adw\.toml:1: \[workflows\.mine\] a workflow needs at least one phase$"
    ):
        Workflows(runners=RUNNERS, has_file=lambda _name: False, definitions=plain_table({"mine": {}}))


def test_a_prompt_that_is_there_is_accepted():
    text = '[[workflows.mine.phases]]\nname = "plan"\nrunner = "claude"\nprompt = "plan.md"\n'

    assert make(text, runners=("claude",), files=("plan.md",)).get("mine").phases[0].prompt == "plan.md"


def test_an_overlay_that_names_a_prompt_needs_that_prompt():
    assert refused('[phases.plan]\nprompt = "plan.md"') == [
        f"{FILE}:2: [phases.plan] there is no prompt file plan.md: write it, or name another"
    ]


def test_an_option_that_no_agent_has_is_told_with_its_line():
    text = "[phases.plan]\noptions = { max_turn = 3 }\n"

    assert refused(text) == [f"{FILE}:2: [phases.plan] 'max_turn' is no option of an agent, did you mean max_turns?"]


KEYS = sorted({*WORKFLOW_KEYS, *PHASE_KEYS, *TIMEOUT_KEYS, *RETRY_KEYS, *GATE_KEYS, "strange"})
SCALARS = st.sampled_from(
    [
        0,
        1,
        -1,
        10**400,
        0.5,
        float("nan"),
        float("inf"),
        True,
        False,
        "",
        "plan",
        "build",
        "human",
        "command",
        "a:b",
        "\0",
    ]
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
)
PHASES = st.lists(st.dictionaries(st.sampled_from(sorted(PHASE_KEYS)), ANYTHING, max_size=6), max_size=3)


@given(
    workflow=ANYTHING | st.fixed_dictionaries({"phases": PHASES}),
    phase=ANYTHING | st.dictionaries(st.sampled_from(sorted(PHASE_KEYS)), ANYTHING, max_size=4),
)
def test_whatever_the_file_says_is_read_or_refused(workflow, phase):
    """Never an error of another kind: a file is written by people."""
    tables = {"definitions": plain_table({"mine": workflow}), "phases": plain_table({"plan": phase})}
    known, problems = None, ()
    try:
        known = Workflows(runners=RUNNERS, has_file=lambda _name: False, **tables)
    except WorkflowInvalid as exc:
        problems = exc.problems

    assert all(problem.startswith("adw.toml:1: [") for problem in problems)
    if known is not None:
        kept = document.WorkflowRef.model_validate(known.freeze(known.get("mine")))
        assert thaw(kept).phases == known.get("mine").phases


# --- overlays and settings -------------------------------------------------------------------------------------


def test_a_built_in_phase_gets_what_the_file_gives_it():
    known = make('[phases.plan]\ncommand = ["make", "plan"]\n[phases.build]\nmax_attempts = 2\n', max_attempts=7)

    plan, build = known.get("plan_build").phases
    assert (plan.runner, plan.command, plan.max_attempts) == ("command", ("make", "plan"), 7)
    assert (build.runner, build.max_attempts) == ("agent", 2)


def test_phases_of_a_user_have_the_attempts_of_the_settings():
    assert make(MINE, max_attempts=7).get("mine").phases[0].max_attempts == 7


# --- starting --------------------------------------------------------------------------------------------------


def nothing_installed(phase):
    return "there is no command 'claude' in PATH: install it" if phase.runner == "agent" else ""


def test_a_built_in_phase_without_a_runner_is_told_about_when_its_workflow_is_started():
    known = make('[phases.build]\nshell = "make"\n', why_idle=nothing_installed)
    spec = known.get("plan_build")

    assert known.without_runner(spec) == {"plan": "there is no command 'claude' in PATH: install it"}
    with pytest.raises(WorkflowInvalid) as raised:
        known.freeze(spec)
    assert str(raised.value) == (
        "phase plan of plan_build has no runner: there is no command 'claude' in PATH: install it; "
        "or give it a command in adw.toml under [phases.plan]"
    )


def test_all_phases_without_a_runner_are_told_about_at_once_and_the_reason_once():
    known = make(why_idle=nothing_installed)

    with pytest.raises(WorkflowInvalid) as raised:
        known.check_ready(known.get("plan_build_test"))
    assert str(raised.value) == (
        "the phases plan, build, test of plan_build_test have no runner: there is no command 'claude' in PATH: install "
        "it; or give each a command in adw.toml under [phases.plan], [phases.build], [phases.test]"
    )


def test_a_phase_of_a_user_without_a_runner_is_told_without_a_table_that_would_not_count():
    known = make(runners=("claude",), files=("x",), why_idle=lambda _phase: "claude is gone")
    phases = (PhaseSpec(name="mine", state="building", runner="claude", prompt="x"),)

    with pytest.raises(WorkflowInvalid, match=r"^phase mine of own has no runner: claude is gone$"):
        known.check_ready(WorkflowSpec(name="own", phases=phases))


def test_without_agents_at_all_a_built_in_cannot_be_started():
    known = make(runners=("command", "ship", "clean"))

    assert known.without_runner(known.get("plan_build")) == dict.fromkeys(("plan", "build"), "no agent is set up")


def test_with_an_agent_every_built_in_can_be_started():
    known = Workflows(runners=(*RUNNERS, "agent"), has_file=lambda _name: True)

    for spec in known.all():
        known.check_ready(spec)


def test_a_definition_that_was_ready_is_checked_again_as_far_as_it_can_change():
    files = {"plan.md"}
    known = Workflows(runners=("claude", "command"), has_file=files.__contains__)
    prompted = WorkflowSpec(
        name="asks", phases=(PhaseSpec(name="plan", state="planning", runner="claude", prompt="plan.md"),)
    )
    known.check_ready(HELLO)
    known.check_ready(HELLO)
    known.check_ready(prompted)

    files.clear()
    with pytest.raises(WorkflowInvalid, match=r"no prompt file plan\.md"):
        known.check_ready(prompted)
    with pytest.raises(WorkflowInvalid, match="runner"):
        known.check_ready(WorkflowSpec(name="x", phases=(PhaseSpec(name="x", state="building", runner="nothing"),)))


def test_what_is_frozen_comes_back_from_the_document():
    known = make(MINE)
    spec = known.get("mine")
    kept = document.WorkflowRef.model_validate(known.freeze(spec))

    assert (kept.name, kept.version) == ("mine", "1")
    thawed = thaw(kept)
    assert (thawed.name, thawed.version, thawed.phases) == (spec.name, spec.version, spec.phases)


def test_a_definition_that_was_never_taken_in_is_checked_when_it_is_frozen():
    bad = WorkflowSpec(name="bad", phases=(PhaseSpec(name="build", state="building", runner="command"),))

    with pytest.raises(WorkflowInvalid, match="workflow bad: phase 'build': the runner command needs"):
        make().freeze(bad)


# --- definitions in Python -------------------------------------------------------------------------------------


def test_a_definition_in_python_is_found_by_its_name():
    known = make()
    known.register(HELLO)

    assert known.get("hello") is HELLO
    assert known.names()[-1] == "hello"


def test_a_definition_in_python_that_is_not_sound_is_refused_and_not_kept():
    known = make()
    bad = WorkflowSpec(
        name="hello", phases=(PhaseSpec(name="build", state="nope", runner="command", shell="x", max_attempts=0),)
    )

    with pytest.raises(WorkflowInvalid) as raised:
        known.register(bad)
    assert len(raised.value.problems) == 2
    with pytest.raises(UnknownWorkflow):
        known.get("hello")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sdlc", "sdlc is the name of a workflow that comes with adw"),
        ("adw_plan_iso", "adw_plan_iso is the name of a workflow that comes with adw"),
        ("hello", r"there is a workflow hello already \(here\)"),
        ("mine", rf"there is a workflow mine already \({FILE}:1\)"),
    ],
)
def test_a_name_that_is_taken_is_given_to_a_definition_in_python_only_on_purpose(name, words):
    known = make(MINE)
    known.register(HELLO)
    other = WorkflowSpec(name=name, phases=HELLO.phases)

    with pytest.raises(WorkflowInvalid, match=f"{words}: choose another name, or register it with replace=True"):
        known.register(other)
    assert known.get(name) is not other
    known.register(other, replace=True)
    assert known.get(name) is other
