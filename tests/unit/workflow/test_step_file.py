"""
Steps as a user writes them: what each form becomes, what is refused at which key, and that JSON keeps all of it.
"""

from __future__ import annotations

import tomllib

import pytest

from adws.adw_modules.workflow.load import Place, read_steps, read_workflow
from adws.adw_modules.workflow.model import (
    LoopSpec,
    NextRule,
    RetryRule,
    SinkSpec,
    StepSpec,
    from_json,
    to_json,
)


def steps_in(value):
    """The steps in a value, and what is wrong with it."""
    place = Place([], "steps")
    steps = read_steps(value, place)
    return steps, [(problem.path, problem.message) for problem in place.problems]


def read(text, head="name = 'a'\ntool = 'http'\nurl = 'http://x'\n"):
    """The step that *text* goes on with."""
    (step,), problems = steps_in([tomllib.loads(f"{head}{text}")])
    assert problems == []
    return step


def wrong(text, head="name = 'a'\ntool = 'http'\nurl = 'http://x'\n"):
    return steps_in([tomllib.loads(f"{head}{text}")])[1]


def test_every_key_becomes_its_field():
    step = read(
        """
        name = "fetch"
        tool = "http"
        url = "{{ workload.api }}"
        method = "POST"
        params = {page = 1}
        headers = {Accept = "x"}
        headers_env = {Authorization = "TOKEN"}
        json = {a = [1]}
        when = "vars.x"
        next = [{step = "b", when = "result.y"}, {step = ""}]
        vars = {user_id = "{{ result.id }}"}
        timeout_seconds = 5
        [loop]
        collection = "{{ workload.users }}"
        element = "user"
        mode = "async"
        concurrency = 3
        chunk_size = 2
        where = "user.ok"
        order_by = "user.name"
        limit = 9
        on_failure = "threshold"
        threshold = 0.5
        [sink]
        tool = "sqlite"
        connection = "main"
        table = "t"
        mode = "upsert"
        key = ["id"]
        rows = "{{ result.rows }}"
        options = {a = 1}
        """,
        head="",
    )

    assert step == StepSpec(
        name="fetch",
        tool="http",
        inputs={
            "url": "{{ workload.api }}",
            "method": "POST",
            "params": {"page": 1},
            "headers": {"Accept": "x"},
            "headers_env": {"Authorization": "TOKEN"},
            "json": {"a": [1]},
        },
        when="vars.x",
        next=(NextRule(step="b", when="result.y"), NextRule(step="")),
        vars={"user_id": "{{ result.id }}"},
        timeout_seconds=5,
        loop=LoopSpec(
            collection="{{ workload.users }}",
            element="user",
            mode="async",
            concurrency=3,
            chunk_size=2,
            where="user.ok",
            order_by="user.name",
            limit=9,
            on_failure="threshold",
            threshold=0.5,
        ),
        sink=SinkSpec(
            tool="sqlite",
            connection="main",
            table="t",
            mode="upsert",
            key=("id",),
            rows="{{ result.rows }}",
            options={"a": 1},
        ),
    )


ERROR = {"kind": "on_error"}
SUCCESS = {"kind": "on_success", "when": "response.more", "max_attempts": 100}


@pytest.mark.parametrize(
    ("written", "rules"),
    [
        ("retry = true", [{**ERROR}]),
        ("retry = false", []),
        ("retry = 5", [{**ERROR, "max_attempts": 5}]),
        ("retry = {max_attempts = 4, backoff = 'fixed'}", [{**ERROR, "max_attempts": 4, "strategy": "fixed"}]),
        ("retry = {on_error = true}", [{**ERROR}]),
        ("retry = {on_error = 7}", [{**ERROR, "max_attempts": 7}]),
        (
            (
                "[retry.on_error]\nmax_attempts = 3\nbase_seconds = 1\nmax_same_failures = 2\n"
                "[retry.on_success]\nwhile = 'response.more'"
            ),
            [{**ERROR, "max_attempts": 3, "base_seconds": 1, "max_same_failures": 2}, SUCCESS],
        ),
        (
            (
                "[retry.on_success]\nwhile = 'response.more'\nmax_attempts = 9\n"
                "collect = 'append'\nmerge_path = 'data'\n"
                "next_call = {params = {page = '{{ page + 1 }}'}}"
            ),
            [
                {
                    **SUCCESS,
                    "max_attempts": 9,
                    "collect": "append",
                    "merge_path": "data",
                    "next_call": {"params": {"page": "{{ page + 1 }}"}},
                    "base_seconds": 0.0,
                }
            ],
        ),
        (
            (
                "retry = [{when = 'error.status == 429', then = {max_attempts = 9}}, {on = 'error', then = {}}, "
                "{when = 'response.more', then = {next_call = {params = {a = 1}}}}]"
            ),
            [
                {**ERROR, "when": "error.status == 429", "max_attempts": 9},
                {**ERROR},
                {**SUCCESS, "next_call": {"params": {"a": 1}}, "base_seconds": 0.0},
            ],
        ),
        ("retry = [{when = 'response.more', then = {max_attempts = 100}}]", [SUCCESS]),
        ("retry = [{when = 'page < 3', on = 'success'}]", [{**SUCCESS, "when": "page < 3"}]),
    ],
    ids=str,
)
def test_every_form_of_retry_means_rules(written, rules):
    assert read(written).retry == tuple(RetryRule(**rule) for rule in rules)


@pytest.mark.parametrize(
    ("written", "loop"),
    [
        ("loop = '{{ workload.users }}'", {"collection": "{{ workload.users }}"}),
        ("loop = [1, 2]", {"collection": [1, 2]}),
        ("loop = {collection = [1]}", {"collection": [1]}),
        ("loop = {collection = [1], mode = 'async'}", {"collection": [1], "mode": "async", "concurrency": 5}),
    ],
)
def test_every_form_of_loop(written, loop):
    assert read(written).loop == LoopSpec(**loop)


@pytest.mark.parametrize(
    ("written", "rules"),
    [
        ("next = 'b'", (NextRule(step="b"),)),
        ("next = ''", (NextRule(step=""),)),
        ("next = {step = 'b', when = 'x'}", (NextRule(step="b", when="x"),)),
        ("next = ['b', {step = 'c'}]", (NextRule(step="b"), NextRule(step="c"))),
    ],
)
def test_every_form_of_next(written, rules):
    assert read(written).next == rules


def test_one_column_is_a_key_too():
    assert read("sink = {tool = 'sqlite', table = 't', mode = 'upsert', key = 'id'}").sink.key == ("id",)


@pytest.mark.parametrize(
    ("written", "path", "words"),
    [
        ("urll = 'x'", (0, "urll"), "step 'a': 'urll' is no key of a step with the tool http, did you mean url?"),
        ("shell = 'x'", (0, "shell"), "shell is for the tool command, and the tool here is http"),
        ("when = 3", (0, "when"), "when must be a text"),
        ("params = {at = 2024-01-01}", (0, "params"), "params holds 2024-01-01, which JSON does not have"),
        ("loop = 3", (0, "loop"), "loop must be a table such as"),
        ("loop = {element = 'x'}", (0, "loop"), "loop has no collection"),
        ("loop = {collection = [1], colour = 1}", (0, "loop", "colour"), "'colour' is no key of loop"),
        ("loop = {collection = [1], threshold = true}", (0, "loop", "threshold"), "threshold must be a number"),
        ("retry = 'x'", (0, "retry"), "retry must be true, a number of attempts, a table, or a list of rules"),
        ("retry = {max_attempt = 3}", (0, "retry", "max_attempt"), "did you mean max_attempts?"),
        ("retry = {on_success = {max_attempts = 3}}", (0, "retry", "on_success"), "on_success has no while"),
        ("retry = {on_success = true}", (0, "retry", "on_success"), "on_success must be a table"),
        ("retry = {on_error = {}, wen = 1}", (0, "retry", "wen"), "'wen' is no key of retry with on_error"),
        ("retry = {on_error = {merge_path = 'x'}}", (0, "retry", "on_error", "merge_path"), "is no key of on_error"),
        ("retry = {on_success = {while = 'x', collect = 3}}", (0, "retry", "on_success", "collect"), "must be a text"),
        ("retry = [3]", (0, "retry", 0), "a rule must be a table"),
        ("retry = [{when = 'attempt < 3'}]", (0, "retry", 0), "a rule is about failures or about successes: say on ="),
        ("retry = [{on = 'x'}]", (0, "retry", 0, "on"), 'on must be "error" or "success"'),
        ("retry = [{then = {sink = 1}, on = 'error'}]", (0, "retry", 0, "then", "sink"), "is no key of then of on_er"),
        ("retry = [{then = {when = 'x'}, on = 'error'}]", (0, "retry", 0, "then"), "is its when, beside then"),
        ("sink = {table = 't'}", (0, "sink"), "sink has no tool; there are: sqlite, postgres, jsonl, csv, python"),
        ("sink = {tool = 'csv', path = 3}", (0, "sink", "path"), "path must be a text"),
        ("next = 3", (0, "next"), "next must be the name of a step"),
        ("next = [{when = 'x'}]", (0, "next", 0), "next has no step"),
        ("next = [3]", (0, "next", 0), "an element of next must be the name of a step"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_said_with_its_place(written, path, words):
    [(where, message)] = wrong(written)

    assert where == path
    assert words in message
    assert message.startswith("step 'a': ")


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["step number 1: it has no name: give it one", "step number 1: it has no tool: say which it calls"]),
        ("name = 3\ntool = 4", ["name must be a text", "tool must be a text"]),
        ("name = 'a'\ntool = ''\nurl = 'x'", ["step 'a': it has no tool"]),
        ("name = 'a'\ntool = 'http'\nurl = 'x'\nshell = 'x'\nx = 1", ["shell is for", "'x' is no key"]),
    ],
    ids=str,
)
def test_all_that_is_wrong_is_said_at_once(text, messages):
    result = [message for _, message in wrong(text, head="")]

    assert len(result) == len(messages)
    for message, words in zip(result, messages, strict=True):
        assert words in message


def test_steps_are_tables_in_a_list():
    [(_, message)] = steps_in({"name": "a"})[1]
    assert message.startswith("steps must be a list of tables, each begun by [[workflows.NAME.phases.steps]]")
    assert [message for _, message in steps_in(["a"])[1]] == ["step number 1: it must be a table"]


def test_steps_make_their_phase_run_by_steps():
    table = tomllib.loads(
        "[w.workload]\nx = [1]\n[[w.phases]]\nname = 'build'\n"
        "[[w.phases.steps]]\nname = 'a'\ntool = 'http'\nurl = 'u'\n"
        "[[w.phases]]\nname = 'test'\nrunner = 'external'\ndeadline_seconds = 60\n"
    )
    definition = read_workflow("w", table["w"])

    assert definition.problems == ()
    assert definition.spec.workload == {"x": [1]}
    assert [phase.runner for phase in definition.spec.phases] == ["steps", "external"]
    assert definition.spec.phases[0].steps == (StepSpec(name="a", tool="http", inputs={"url": "u"}),)
    assert definition.spec.phases[1].deadline_seconds == 60


def test_a_step_that_cannot_be_read_has_its_line_and_phase_and_nothing_else_is_asked_for():
    raw = {"phases": [{"name": "build", "steps": [{"name": "a", "tool": "http", "urll": 1}]}], "workload": 3}
    result = [(problem.path, problem.message) for problem in read_workflow("w", raw).problems]

    assert result == [
        (("workload",), "workload must be a table"),
        (
            ("phases", 0, "steps", 0, "urll"),
            "phase 'build': step 'a': 'urll' is no key of a step with the tool http, did you mean url?",
        ),
    ]


# --- JSON ------------------------------------------------------------------------------------------------------


def test_what_is_as_usual_is_not_written_and_what_is_newer_left_out():
    assert to_json(StepSpec(name="a", tool="http")) == {"name": "a", "tool": "http"}
    assert from_json(
        StepSpec, {"name": "a", "tool": "http", "colour": 1, "loop": {"collection": [], "x": 1}}
    ) == StepSpec(name="a", tool="http", loop=LoopSpec(collection=[]))


@pytest.mark.parametrize(
    "data",
    [
        "text",
        {"tool": "http"},
        {"name": "a", "tool": "b", "retry": {}},
        {"name": "a", "tool": "b", "next": [3]},
        {"name": "a", "tool": "b", "loop": []},
        {"name": "a", "tool": "b", "sink": {"tool": "x", "key": "k"}},
    ],
)
def test_a_step_that_is_not_whole_is_a_type_error(data):
    with pytest.raises(TypeError):
        from_json(StepSpec, data)
