"""
One phase in itself: what is refused, at which key, and with which advice.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from adws.adw_modules.retry_handler import policies_of
from adws.adw_modules.workflow.checks import check_phase, shape_problems
from adws.adw_modules.workflow.model import Gate, PhaseSpec, RetrySpec, Timeouts

BUILD = PhaseSpec(name="build", state="building", runner="command", command=("make",))
RUNNERS = ("command", "python", "claude")


def problems(phase=BUILD, *, files=("prompt.md",), **changes):
    result = check_phase(replace(phase, **changes), runners=RUNNERS, has_file=files.__contains__)
    return [(problem.path, problem.message) for problem in result]


def one(**changes):
    [result] = problems(**changes)
    return result


def test_a_sound_phase_has_no_problem():
    for changes in [
        {},
        {"command": (), "shell": "make | tee log"},
        {"command": ("printf", "")},
        {"runner": "python", "command": (), "call": "package.module:function"},
        {"runner": "python", "command": (), "call": "module:function"},
        {"runner": "claude", "command": (), "prompt": "prompt.md"},
        {"timeouts": Timeouts(wall=0.5, idle=None, after_result=1)},
        {"retry": RetrySpec(strategy="linear", base_seconds=0, max_seconds=0, categories=("transient",))},
        {"retry": RetrySpec(base_seconds=5)},
        {"retry": RetrySpec(categories=())},
        {"max_attempts": 1},
        {"max_attempts": 100},
        {"tier": 1000},
        {"allowed_paths": ("src/**", "*.md", "a..b")},
        {"env": ("NPM_TOKEN", "_x")},
        {"options": {"a": [1, 2.5, None, True, {"b": "c"}]}},
        {
            "gates": (
                Gate(kind="command", command=("make", "check")),
                Gate(kind="command", shell="make check"),
                Gate(kind="artifact", artifact="dist/*.whl"),
                Gate(kind="result"),
                Gate(kind="human"),
            )
        },
    ]:
        assert problems(**changes) == [], changes


def test_what_is_wrong_is_said_at_its_key():
    for changes, path, words in [
        ({"name": ""}, ("name",), "'' cannot be the name of a phase"),
        ({"name": "a/b"}, ("name",), "use letters, digits, '-' and '_' (at most 64), a letter first"),
        ({"name": "9a"}, ("name",), "cannot be the name"),
        ({"name": "a" * 65}, ("name",), "aaa... cannot be the name"),
        ({"runner": "comand"}, ("runner",), "there is no runner 'comand', did you mean command?"),
        ({"runner": "zzz"}, ("runner",), "there is no runner 'zzz'; there are: command, python, claude"),
        ({"command": ()}, (), "the runner command needs command (a list) or shell (one line), and has neither"),
        ({"shell": "make"}, (), "and has both"),
        ({"command": (), "shell": " "}, ("shell",), "shell is empty: write the line to run"),
        ({"command": ("", "x")}, ("command",), "the first element of command is empty"),
        ({"command": ("a", "b\0")}, ("command",), "command holds a NUL character"),
        ({"command": (), "shell": "b\0"}, ("shell",), "shell holds a NUL character"),
        ({"call": "a.b:c"}, ("call",), "call is for the runner python, and the runner here is command"),
        ({"prompt": "prompt.md"}, ("prompt",), "prompt is for agents, and the runner here is command"),
        ({"runner": "python", "call": "a:b"}, ("command",), "command is for the runner command, and the runner here"),
        ({"runner": "claude", "prompt": "prompt.md"}, ("command",), "command is for the runner command"),
        ({"runner": "python", "command": ()}, (), "the runner python needs call, such as package.module:function"),
        ({"runner": "python", "command": (), "call": "a.b"}, ("call",), "'a.b' and must be of the form"),
        ({"runner": "python", "command": (), "call": "a.b:c.d"}, ("call",), "must be of the form"),
        ({"runner": "python", "command": (), "call": "a.2b:c"}, ("call",), "must be of the form"),
        ({"runner": "claude", "command": ()}, (), "the agent claude needs prompt"),
        (
            {"runner": "claude", "command": (), "prompt": "lost.md"},
            ("prompt",),
            "there is no prompt file lost.md: write it, or name another",
        ),
        ({"tier": -1}, ("tier",), "tier is -1 and must be from 0 to 1000"),
        ({"tier": 1001}, ("tier",), "must be from 0 to 1000"),
        ({"max_attempts": 0}, ("max_attempts",), "max_attempts is 0 and must be from 1 to 100"),
        ({"max_attempts": 101}, ("max_attempts",), "must be from 1 to 100"),
        ({"timeouts": Timeouts(wall=0)}, ("timeouts", "wall"), "the timeout wall is 0 and must be more than 0"),
        ({"timeouts": Timeouts(idle=-1)}, ("timeouts", "idle"), "must be more than 0 seconds"),
        ({"timeouts": Timeouts(idle=True)}, ("timeouts", "idle"), "must be more than 0 seconds"),
        ({"timeouts": Timeouts(idle="9")}, ("timeouts", "idle"), "the timeout idle is '9'"),
        ({"timeouts": Timeouts(wall=float("nan"))}, ("timeouts", "wall"), "the timeout wall is nan"),
        ({"timeouts": Timeouts(wall=float("inf"))}, ("timeouts", "wall"), "at most 1e+09"),
        ({"timeouts": Timeouts(wall=10**400)}, ("timeouts", "wall"), "..."),
        (
            {"retry": RetrySpec(strategy="exponental")},
            ("retry", "strategy"),
            "'exponental' is no retry strategy, did you mean exponential?",
        ),
        ({"retry": RetrySpec(strategy="")}, ("retry", "strategy"), "there are: fixed, linear, exponential"),
        ({"retry": RetrySpec(base_seconds=-1)}, ("retry", "base_seconds"), "base_seconds is -1 and must be from 0"),
        ({"retry": RetrySpec(max_seconds="x", base_seconds=1)}, ("retry", "max_seconds"), "max_seconds is 'x'"),
        (
            {"retry": RetrySpec(base_seconds=9, max_seconds=3)},
            ("retry", "max_seconds"),
            "max_seconds (3) is less than base_seconds (9)",
        ),
        (
            {"retry": RetrySpec(categories=("transient", "fatal"))},
            ("retry", "categories", 1),
            "'fatal' is no category of errors that can be retried; there are: rate_limit, resource, transient",
        ),
        ({"retry": RetrySpec(categories="transient")}, ("retry", "categories"), "must be a tuple of texts"),
        ({"allowed_paths": ("src", "/etc")}, ("allowed_paths", 1), "the allowed path '/etc' is absolute"),
        ({"allowed_paths": ("~/x",)}, ("allowed_paths", 0), "is absolute: give one below the working directory"),
        ({"allowed_paths": ("a/../../b",)}, ("allowed_paths", 0), "leaves the working directory: take the '..' out"),
        ({"allowed_paths": (" ",)}, ("allowed_paths", 0), "' ' is no path"),
        ({"commits": "yes"}, ("commits",), "commits must be True, False or None, not 'yes'"),
        (
            {"gates": (Gate(kind="command", shell="x", base="maybe"),)},
            ("gates", 0, "base"),
            "'maybe' is no way to treat a red base; there are: require, compare, ignore",
        ),
        ({"gates": (Gate(kind="human", base="ignore"),)}, ("gates", 0, "base"), "base is for gates that run a command"),
        ({"env": ("A=B",)}, ("env", 0), "'A=B' cannot be the name of an environment variable"),
        ({"options": {"at": date(2026, 1, 1)}}, ("options", "at"), "the option at cannot be kept as JSON"),
        ({"options": {"x": float("nan")}}, ("options", "x"), "cannot be kept as JSON"),
        ({"options": {"x": {1: 2}}}, ("options", "x"), "cannot be kept as JSON"),
        ({"options": {1: 2}}, ("options",), "1 in options is no text, and keys must be texts"),
    ]:
        found_path, message = one(**changes)

        assert found_path == path, changes
        assert words in message, changes
        assert len(message) < 200, changes


def test_options_that_are_too_deep_are_refused():
    deep = []
    for _ in range(30):
        deep = [deep]

    assert one(options={"x": deep})[0] == ("options", "x")


def test_a_gate_that_could_not_decide_is_refused():
    for gate, path, words in [
        (Gate(kind="comand"), ("kind",), "'comand' is no kind of gate, did you mean command?"),
        (Gate(kind="command"), (), "a gate of the kind command needs command (a list) or shell (one line), and has n"),
        (Gate(kind="command", command=("a",), shell="b"), (), "and has both"),
        (Gate(kind="command", command="make"), (), "the command of a gate must be a tuple of texts"),
        (Gate(kind="command", shell=3), (), "must be a tuple of texts"),
        (Gate(kind="artifact", artifact=3), (), "its shell and artifact texts"),
        (Gate(kind="artifact"), ("artifact",), "the artifact '' is no path"),
        (Gate(kind="artifact", artifact="/etc/passwd"), ("artifact",), "is absolute"),
        (Gate(kind="artifact", artifact="../x"), ("artifact",), "leaves the working directory"),
        (Gate(kind="artifact", artifact="x\0"), ("artifact",), "is no path"),
        (Gate(kind="artifact", artifact="x", shell="y"), ("shell",), "a gate is one thing"),
        (Gate(kind="human", artifact="x"), ("artifact",), "of the kind human, and has artifact too"),
        (Gate(kind="result", command=("x",)), ("command",), "of the kind result, and has command too"),
        (Gate(kind="human", timeout_seconds=0), ("timeout_seconds",), "must be more than 0 seconds"),
        (Gate(kind="human", timeout_seconds="1"), ("timeout_seconds",), "timeout_seconds is '1'"),
    ]:
        found_path, message = one(gates=(Gate(kind="human"), gate))

        assert found_path == ("gates", 1, *path), gate
        assert words in message, gate


def test_everything_that_is_wrong_is_said_at_once():
    result = problems(
        name="", tier=-1, max_attempts=0, env=("=",), gates=(Gate(kind="x"),), retry=RetrySpec(strategy="x")
    )

    assert [path[0] for path, _ in result] == ["name", "tier", "max_attempts", "retry", "env", "gates"]


def test_what_an_unknown_runner_would_need_is_not_asked():
    assert problems(runner="codex", command=(), prompt="lost.md") == [
        (("runner",), "there is no runner 'codex'; there are: command, python, claude")
    ]


def test_a_field_of_another_type_is_named_and_nothing_else_asked():
    """A text where a tuple belongs would otherwise be read letter by letter."""
    for changes, words in [
        ({"command": "make all"}, "command must be a tuple of texts, not 'make all'"),
        ({"needs": ["plan"]}, "needs must be a tuple of texts, not ['plan']"),
        ({"env": (1,)}, "env must be a tuple of texts, not (1,)"),
        ({"name": None}, "name must be a text, not None"),
        ({"max_attempts": "5"}, "max_attempts must be a whole number, not '5'"),
        ({"tier": True}, "tier must be a whole number, not True"),
        ({"is_required": 1}, "is_required must be True or False, not 1"),
        ({"timeouts": 5}, "timeouts must be Timeouts, not 5"),
        ({"retry": None}, "retry must be a RetrySpec, not None"),
        ({"gates": Gate(kind="human")}, "gates must be a tuple of Gates, not Gate(kind='human'"),
        ({"gates": ("human",)}, "gates must be a tuple of Gates, not ('human',)"),
        ({"options": []}, "options must be a mapping, not []"),
    ]:
        path, message = one(**changes)

        assert path == tuple(changes), changes
        assert message.startswith(words), changes
        assert [problem.path for problem in shape_problems(replace(BUILD, **changes))] == [path], changes


SECONDS = st.none() | st.sampled_from([0, 0.0, 1, 2.5, 1e9, 2e9, -1, float("nan"), float("inf")])


@given(
    st.builds(
        RetrySpec,
        strategy=st.none() | st.sampled_from(["fixed", "linear", "exponential", "square"]),
        base_seconds=SECONDS,
        max_seconds=SECONDS,
        categories=st.none()
        | st.lists(st.sampled_from(["transient", "rate_limit", "resource", "weather"]), max_size=2).map(tuple),
    )
)
def test_a_retry_is_accepted_when_the_rules_of_retries_can_use_it(retry):
    can_be_used = True
    try:
        policies_of(retry)
    except ValueError:
        can_be_used = False

    assert (problems(retry=retry) == []) == can_be_used
