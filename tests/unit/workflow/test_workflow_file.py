"""
Definitions as a user writes them: what each key becomes, and what is refused at which key.
"""

from __future__ import annotations

import tomllib

import pytest

from adws.adw_modules.workflow.load import read_overlay, read_workflow, written_path
from adws.adw_modules.workflow.model import Gate, PhaseSpec, RetrySpec, Timeouts, WorkflowSpec
from adws.adw_modules.workflow.requirements import Requirements


def read(text, **options):
    """The definition of `[workflows.mine]` in *text*."""
    return read_workflow("mine", tomllib.loads(text)["workflows"]["mine"], **options)


def wrong(text):
    return [(problem.path, problem.message) for problem in read(text).problems]


def phase_with(line):
    return f'[[workflows.mine.phases]]\nname = "build"\nshell = "x"\n{line}\n'


def test_every_key_becomes_its_field():
    text = """
    [workflows.mine]
    description = "Mine"
    version = "3"
    replace = true
    demands = {host = "alpha", tags = ["gpu"]}
    [[workflows.mine.phases]]
    name = "make"
    state = "building"
    runner = "command"
    command = ["make", "all"]
    options = {a = 1}
    tier = 1
    needs = ["x"]
    required = false
    max_attempts = 2
    timeouts = {wall = 600, idle = 60.5, after_result = false}
    retry = {strategy = "fixed", base_seconds = 2, max_seconds = 60, categories = ["transient"]}
    gates = [{command = ["a"], timeout_seconds = 5}, {shell = "b"}, {artifact = "c"}, {result = true}, {human = true}]
    allowed_paths = ["src"]
    env = ["TOKEN"]
    on_rework = "x"
    [[workflows.mine.phases]]
    name = "test"
    shell = "make test"
    gate = "human"
    [[workflows.mine.phases]]
    name = "review"
    call = "a.b:c"
    [[workflows.mine.phases]]
    name = "document"
    prompt = "doc.md"
    """
    definition = read(text, source="adw.toml:2", max_attempts=9)

    assert definition.problems == ()
    assert definition.is_replacement
    assert definition.spec == WorkflowSpec(
        name="mine",
        description="Mine",
        version="3",
        source="adw.toml:2",
        demands=Requirements(host="alpha", tags=frozenset({"gpu"})),
        phases=(
            PhaseSpec(
                name="make",
                state="building",
                runner="command",
                command=("make", "all"),
                options={"a": 1},
                tier=1,
                needs=("x",),
                is_required=False,
                max_attempts=2,
                timeouts=Timeouts(wall=600, idle=60.5, after_result=None),
                retry=RetrySpec(strategy="fixed", base_seconds=2, max_seconds=60, categories=("transient",)),
                gates=(
                    Gate(kind="command", command=("a",), timeout_seconds=5),
                    Gate(kind="command", shell="b"),
                    Gate(kind="artifact", artifact="c"),
                    Gate(kind="result"),
                    Gate(kind="human"),
                ),
                allowed_paths=("src",),
                env=("TOKEN",),
                on_rework="x",
            ),
            PhaseSpec(
                name="test",
                state="testing",
                runner="command",
                shell="make test",
                max_attempts=9,
                gates=(Gate(kind="human"),),
            ),
            PhaseSpec(name="review", state="reviewing", runner="python", call="a.b:c", max_attempts=9),
            PhaseSpec(name="document", state="documenting", runner="agent", prompt="doc.md", max_attempts=9),
        ),
    )


def test_what_is_left_out_is_as_usual():
    definition = read('[[workflows.mine.phases]]\nname = "build"\ncommand = ["make"]')

    assert not definition.is_replacement
    assert definition.spec == WorkflowSpec(
        name="mine",
        source="adw.toml",
        phases=(PhaseSpec(name="build", state="building", runner="command", command=("make",)),),
    )


@pytest.mark.parametrize(
    ("line", "path", "words"),
    [
        ("stat = 'x'", ("stat",), "phase 'build': 'stat' is no key of a phase, did you mean state?"),
        ("xyz = 1", ("xyz",), "'xyz' is no key of a phase; the keys are: name, state, runner"),
        ("is_required = true", ("is_required",), "did you mean required?"),
        ("state = 1", ("state",), "state must be a text"),
        ("command = 'make'", ("command",), 'command must be a list, such as ["make", "plan"]; for one line use shell'),
        ("command = [1]", ("command",), "command must be a list of texts"),
        ("needs = 'plan'", ("needs",), "needs must be a list of texts"),
        ("tier = 1.5", ("tier",), "tier must be a whole number"),
        ("tier = true", ("tier",), "tier must be a whole number"),
        ("required = 'no'", ("required",), "required must be true or false"),
        ("options = 1", ("options",), "options must be a table"),
        ("timeouts = 60", ("timeouts",), "timeouts must be a table"),
        ("timeouts = {wal = 1}", ("timeouts", "wal"), "'wal' is no key of timeouts, did you mean wall?"),
        (
            "timeouts = {wall = '1h'}",
            ("timeouts", "wall"),
            "wall must be a number of seconds, or false for no limit",
        ),
        ("timeouts = {wall = true}", ("timeouts", "wall"), "must be a number of seconds"),
        ("retry = {max = 1}", ("retry", "max"), "'max' is no key of retry"),
        ("retry = {base_seconds = '1'}", ("retry", "base_seconds"), "base_seconds must be a number of seconds"),
        ("retry = {categories = 'x'}", ("retry", "categories"), "categories must be a list of texts"),
        ("gate = 'humans'", ("gate",), 'gate must be "human" or "result"; other gates are tables in gates'),
        ("gate = true", ("gate",), "gate must be"),
        ("gate = ['human']", ("gate",), "gate must be"),
        ("gates = 'human'", ("gates",), "gates must be a list of tables"),
        ("gates = ['human']", ("gates", 0), "a gate must be a table"),
        (
            "gates = [{result = true}, {}]",
            ("gates", 1),
            "a gate is one thing: give exactly one of command, shell, artifact, result, human",
        ),
        ("gates = [{result = true, human = true}]", ("gates", 0), "a gate is one thing"),
        ("gates = [{human = false}]", ("gates", 0, "human"), "human must be true, or be left out"),
        (
            "gates = [{shell = 'x', timeout_second = 1}]",
            ("gates", 0, "timeout_second"),
            "did you mean timeout_seconds?",
        ),
        ("gate = 'human'\ngates = []", ("gates",), "give gate or gates, not both"),
    ],
    ids=str,
)
def test_a_bad_key_of_a_phase_is_refused_at_its_place(line, path, words):
    text = phase_with(line)
    if line.startswith("command"):
        text = text.replace('shell = "x"\n', "")
    [(result, message)] = wrong(text)

    assert result == ("phases", 0, *path)
    assert message.startswith("phase 'build': ")
    assert words in message


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("[workflows]\nmine = 3", (), "mine must be a table, such as [workflows.mine]"),
        ("[workflows.mine]\nphases = 3", ("phases",), "phases must be a list of tables, each begun by"),
        ("[workflows.mine]\nphases = [3]", ("phases", 0), "phase number 1 must be a table"),
        ("[workflows.mine]\ndescripton = 'x'", ("descripton",), "did you mean description?"),
        ("[workflows.mine]\nversion = 2", ("version",), "version must be a text"),
        ("[workflows.mine]\nreplace = 'yes'", ("replace",), "replace must be true or false"),
        ("[workflows.mine]\ndemands = 'gpu'", ("demands",), 'demands must be such as {host = "alpha", tags = ["gpu"]}'),
        ("[workflows.mine]\ndemands = {tags = ['a b']}", ("demands",), "'a b' is no tag"),
    ],
    ids=str,
)
def test_a_bad_key_of_a_workflow_is_refused_at_its_place(text, path, words):
    [(result, message)] = wrong(text)

    assert result == path
    assert words in message


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        ("", ["phase number 1 has no name", "phase number 1 has no state", "phase number 1 has no runner"]),
        ("name = 'plan'", ["phase 'plan' has no runner: give it one of command, shell, call, prompt and steps"]),
        ("name = 'deploy'\nshell = 'x'", ["phase 'deploy' has no state: say under which it runs, one of planning,"]),
        ("name = 3\nshell = 'x'", ["name must be a text"]),
        ("name = 'plan'\ncommand = 'x'", ["phase 'plan': command must be a list"]),
        ("name = 'deploy'\nstate = 'building'", ["phase 'deploy' has no runner"]),
        ("name = 'deploy'\ncolour = 1", ["'colour' is no key", "has no state", "has no runner"]),
    ],
    ids=str,
)
def test_what_a_phase_must_have_is_asked_for_unless_it_could_not_be_read(lines, messages):
    result = [message for _, message in wrong(f"[[workflows.mine.phases]]\n{lines}")]

    assert len(result) == len(messages)
    for message, words in zip(result, messages, strict=True):
        assert words in message


def test_everything_that_is_wrong_is_said_at_once():
    text = """
    [workflows.mine]
    colour = "red"
    [[workflows.mine.phases]]
    name = "plan"
    command = "make"
    tier = "one"
    [[workflows.mine.phases]]
    name = "build"
    shell = "x"
    gates = [{}, {shell = 1}]
    """

    assert [path for path, _ in wrong(text)] == [
        ("colour",),
        ("phases", 0, "command"),
        ("phases", 0, "tier"),
        ("phases", 1, "gates", 0),
        ("phases", 1, "gates", 1, "shell"),
    ]


# --- overlays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        ({"command": ["make"]}, {"command": ("make",), "runner": "command"}),
        ({"shell": "make"}, {"shell": "make", "runner": "command"}),
        ({"call": "a:b"}, {"call": "a:b", "runner": "python"}),
        ({"prompt": "p.md", "runner": "claude"}, {"prompt": "p.md", "runner": "claude"}),
        ({"required": False}, {"is_required": False}),
        ({"gate": "human"}, {"gates": (Gate(kind="human"),)}),
        ({}, {}),
    ],
    ids=repr,
)
def test_an_overlay_has_only_what_is_written(raw, fields):
    overlay = read_overlay("plan", raw)

    assert overlay.problems == ()
    assert overlay.fields == fields


@pytest.mark.parametrize(
    ("name", "raw", "path", "words"),
    [
        ("plna", {}, (), "no built-in phase is called 'plna', did you mean plan?"),
        ("deploy", {}, (), "no built-in phase is called 'deploy'; there are: plan, build, lint"),
        ("plan", 3, (), "plan must be a table, such as [phases.plan]"),
        ("plan", {"comand": []}, ("comand",), "'comand' is no key of a built-in phase, did you mean command?"),
        ("plan", {"tier": 1}, ("tier",), "tier places a phase in its workflow: define a workflow of your own"),
        ("plan", {"name": "x"}, ("name",), "define a workflow of your own to change that"),
        ("plan", {"max_attempts": "3"}, ("max_attempts",), "max_attempts must be a whole number"),
    ],
    ids=repr,
)
def test_a_bad_overlay_is_refused_at_its_place(name, raw, path, words):
    [problem] = read_overlay(name, raw).problems

    assert problem.path == path
    assert words in problem.message


# --- places ----------------------------------------------------------------------------------------------------


def test_the_gate_of_the_short_key_stands_at_that_key():
    raw = {"phases": [{"gate": "human"}, {"gates": [{}]}]}

    assert written_path(raw, ("phases", 0, "gates", 0, "kind")) == ("phases", 0, "gate")
    assert written_path(raw, ("phases", 1, "gates", 0, "kind")) == ("phases", 1, "gates", 0, "kind")
    assert written_path(raw, ("phases", 1, "runner")) == ("phases", 1, "runner")
