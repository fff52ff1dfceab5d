"""
Everything about steps that can be known before anything runs, each with its place and a sentence.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from adws.adw_modules.workflow.checks import StepScope, check_steps, check_workflow
from adws.adw_modules.workflow.model import LoopSpec, NextRule, PhaseSpec, RetryRule, SinkSpec, StepSpec, WorkflowSpec

AROUND = StepScope(
    workload=frozenset({"api", "users"}),
    phases=frozenset({"plan"}),
    vars=frozenset({"old"}),
    connections={"main": "postgres", "lite": "sqlite", "lite2": "sqlite"},
)
HTTP = StepSpec(name="a", tool="http", inputs={"url": "http://x"})
LOOP = LoopSpec(collection=[1, 2])
PAGES = RetryRule(kind="on_success", when="response.more", max_attempts=100)
SINK = SinkSpec(tool="postgres", table="t", connection="main")


def check(*steps, around=AROUND):
    result = check_steps(steps, has_file=lambda name: name == "there.md", around=around)
    return [(problem.path, problem.message) for problem in result]


def one_wrong(step, path, words):
    [(where, message)] = check(step)

    assert where == ("steps", 0, *path)
    assert words in message
    assert message.startswith(f"step {step.name!r}: ")


def step(tool="http", name="a", **inputs):
    return StepSpec(name=name, tool=tool, inputs=inputs)


@pytest.mark.parametrize(
    "sound",
    [
        HTTP,
        step(url="{{ workload.api }}/x", method="post", params={"a": "{{ vars.old }}"}, json={"b": 1}),
        step(url="https://x", headers={"Authorization": "Bearer {{ steps.a.token|default('') }}"}),
        step(url="https://x", headers_env={"Authorization": "TOKEN"}, method="{{ workload.api }}"),
        step("command", command=["ls", "{{ phases.plan.dir }}"], env=["HOME_X"], output="lines"),
        step("command", shell="echo {{ issue.title|quote }} {{ workload.api|upper|quote }}"),
        step("python", call="a.b:c", args={"x": "{{ workload.users }}"}),
        step("python", code="def main(item):\n    return {'a': {1: '{{ x }}'}}"),
        step("agent", prompt="Look at {{ issue.body }}", agent="claude", model="m", options={}),
        step("agent", prompt_file="there.md"),
        replace(HTTP, loop=LOOP, retry=(PAGES, RetryRule(kind="on_error")), sink=SINK),
        replace(HTTP, loop=replace(LOOP, mode="async", concurrency=9, on_failure="threshold", threshold=3)),
        replace(HTTP, loop=replace(LOOP, element="user", where="user > 1", order_by="user")),
        replace(HTTP, loop=replace(LOOP, collection="{{ workload.users }}", on_failure="threshold", threshold=0.1)),
        replace(HTTP, sink=SinkSpec(tool="postgres", table="s.t")),
        replace(HTTP, sink=SinkSpec(tool="sqlite", table="t", connection="lite", mode="upsert", key=("id",))),
        replace(HTTP, sink=SinkSpec(tool="jsonl", path="out/{{ page }}.jsonl", rows="{{ result.items }}")),
        replace(HTTP, sink=SinkSpec(tool="python", call="a:b", options={"x": "{{ result }}"})),
        replace(HTTP, vars={"x": "{{ result.id }}"}, next=(NextRule(step="a", when="vars.x < 3"), NextRule(step=""))),
        replace(HTTP, retry=(replace(PAGES, collect="append", merge_path="a.b", next_call={"url": "{{ response }}"}),)),
        replace(HTTP, when="phases.plan.ok and other is not defined"),
    ],
)
def test_sound_steps_have_no_problem(sound):
    assert check(sound) == []


@pytest.mark.parametrize(
    ("wrong", "path", "words"),
    [
        (replace(HTTP, name="a-b"), ("name",), "'a-b' cannot be the name of a step: use letters, digits and '_'"),
        (replace(HTTP, tool="htp"), ("tool",), "there is no tool 'htp', did you mean http?"),
        (replace(HTTP, timeout_seconds=0), ("timeout_seconds",), "must be more than 0 seconds"),
        (replace(HTTP, timeout_seconds=float("nan")), ("timeout_seconds",), "must be more than 0 seconds"),
        (replace(HTTP, vars={"a-b": 1}), ("vars", "a-b"), "cannot be the name of a variable"),
        (step(url="http://x", json={"a": object()}), ("json",), "json cannot be kept as JSON"),
        (step(url="http://x", uri=1), ("uri",), "'uri' is no input of the tool http; there are: url"),
        (step(), (), "the tool http needs url"),
        (step(url="ftp://x"), ("url",), "must begin with http:// or https://"),
        (step(url="http://me:pw@x"), ("url",), "url holds a password: name an environment variable in headers_env"),
        (step(url="http://[x"), ("url",), "which is no address"),
        (step(url=["x"]), ("url",), "url must be a text, not ['x']"),
        (step(url="http://x", method="GETT"), ("method",), "'GETT' is no method of HTTP, did you mean GET?"),
        (step(url="http://x", json=1, body="x"), ("body",), "give json or body, not both"),
        (step(url="http://x", params=3), ("params",), "params must be a table, or a template of one"),
        (step(url="http://x", headers={"X-Api-Key": "abc"}), ("headers", "X-Api-Key"), "in headers_env instead"),
        (step(url="http://x", headers_env={"A": "a b"}), ("headers_env",), "names of environment variables"),
        (step("command"), (), "the tool command needs command or shell, and has neither"),
        (step("command", command=["a"], shell="a"), (), "and has both"),
        (step("command", shell=" "), ("shell",), "shell is empty"),
        (step("command", command="a b"), ("command",), "command must be a list of texts that is not empty"),
        (step("command", command=[]), ("command",), "command must be a list of texts that is not empty"),
        (step("command", command=["a"], output="xml"), ("output",), "'xml' is no form of output"),
        (step("command", command=["a"], env=["a b"]), ("env",), "a list of names of environment variables"),
        (step("command", shell="echo {{ issue.title }}"), ("shell",), "end it with |quote, or use command with a list"),
        (step("command", shell="{{ issue.title|quote }} {{ 1 }}"), ("shell",), "end it with |quote"),
        (step("python"), (), "the tool python needs call or code, and has neither"),
        (step("python", call="a.b"), ("call",), "must be of the form package.module:function"),
        (step("python", code="def main(:"), ("code",), "code cannot be read as Python"),
        (step("python", code="def other(): pass"), ("code",), "code has no function main"),
        (step("agent"), (), "the tool agent needs prompt or prompt_file, and has neither"),
        (step("agent", prompt_file="gone.md"), ("prompt_file",), "there is no prompt file gone.md"),
        (step("agent", prompt="x", agent="clod"), ("agent",), "there is no agent 'clod'"),
    ],
)
def test_what_a_step_and_its_tool_need(wrong, path, words):
    one_wrong(wrong, path, words)


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"collection": "abc"}, ("collection",), "collection must be a list or a template of one"),
        ({"collection": [object()]}, ("collection",), "collection must be a list or a template of one"),
        ({"element": "a-b"}, ("element",), "cannot be the name of an element: use letters"),
        ({"element": "steps"}, ("element",), "it means something else in templates"),
        ({"mode": "parallel"}, ("mode",), "'parallel' is no mode of a loop; there are: sequential, async"),
        ({"concurrency": 0}, ("concurrency",), "concurrency is 0 and must be from 1 to 1000"),
        ({"concurrency": 2}, ("concurrency",), 'a sequential loop makes one call at a time: say mode = "async"'),
        ({"chunk_size": 0}, ("chunk_size",), "chunk_size is 0 and must be from 1"),
        ({"limit": 0}, ("limit",), "limit is 0 and must be from 1"),
        ({"on_failure": "ignore"}, ("on_failure",), "'ignore' is no policy about failures"),
        ({"threshold": 3}, ("threshold",), 'threshold is for on_failure = "threshold"'),
        ({"on_failure": "threshold"}, ("threshold",), "threshold is 0.0 and must be the most failures"),
        ({"on_failure": "threshold", "threshold": 1.5}, ("threshold",), "a share of all iterations below 1"),
        ({"on_failure": "threshold", "threshold": float("nan")}, ("threshold",), "must be the most failures"),
        ({"where": "itm > 1"}, ("where",), "loop.where names itm, which is not known here, did you mean item?"),
        ({"order_by": "item +"}, ("order_by",), "it cannot be read"),
    ],
)
def test_what_a_loop_needs(change, path, words):
    one_wrong(replace(HTTP, loop=replace(LOOP, **change)), ("loop", *path), words)


@pytest.mark.parametrize(
    ("rule", "path", "words"),
    [
        (replace(PAGES, kind="on_luck"), (), "'on_luck' is no kind of rule"),
        (replace(PAGES, when=" "), (), "on_success has no while: without one it would never end"),
        (replace(PAGES, when=""), (), "on_success has no while: without one it would never end"),
        (replace(PAGES, max_attempts=0), ("max_attempts",), "max_attempts is 0 and must be from 1 to 10000"),
        (replace(PAGES, max_same_failures=0), ("max_same_failures",), "must be from 1"),
        (replace(PAGES, strategy="cubic"), ("backoff",), "'cubic' is no way for a wait to grow"),
        (replace(PAGES, base_seconds=-1), ("base_seconds",), "base_seconds is -1 and must be from 0"),
        (replace(PAGES, base_seconds=9, max_seconds=3), ("max_seconds",), "max_seconds (3) is less than base_seconds"),
        (replace(PAGES, next_call={"urll": "x"}), ("next_call", "urll"), "'urll' is no input of the tool http"),
        (replace(PAGES, collect="concat"), ("collect",), "'concat' is no way to collect"),
        (replace(PAGES, merge_path="a..b"), ("merge_path",), "merge_path is 'a..b' and must be keys with dots"),
        (replace(PAGES, when="respons.more"), ("while",), "names respons, which is not known here, did you mean resp"),
        (replace(PAGES, when="error.status"), ("while",), "error, which is not known here (it is known elsewhere"),
        (RetryRule(kind="on_error", when="response.x"), ("when",), "response, which is not known here"),
        (RetryRule(kind="on_error", merge_path="a"), ("merge_path",), "merge_path is for on_success"),
        (RetryRule(kind="on_error", next_call={"url": "x"}), ("next_call",), "next_call is for on_success"),
        (RetryRule(kind="on_error", collect="append"), ("collect",), "collect is for on_success"),
        (replace(PAGES, on_limit="ignore"), ("on_limit",), "'ignore' is no policy about the limit"),
        (RetryRule(kind="on_error", on_limit="fail"), ("on_limit",), "on_limit is for on_success"),
    ],
)
def test_what_a_rule_of_retry_needs(rule, path, words):
    result = check(replace(HTTP, retry=(rule,)))

    assert (("steps", 0, "retry", rule.kind, *path), True) in [(where, words in message) for where, message in result]


SHELL = step("command", shell="x")
INLINE = step("python", code="def main(): return 1")


@pytest.mark.parametrize(
    ("of", "next_call", "key", "words"),
    [
        (INLINE, {"code": "{{ response }}"}, "code", "code is the same for all calls of a step"),
        (INLINE, {"call": "{{ response }}"}, "call", "call is the same for all calls of a step"),
        (HTTP, {"headers_env": {"A": "{{ response }}"}}, "headers_env", "headers_env is the same for all calls"),
        (SHELL, {"env": ["HOME"]}, "env", "env is the same for all calls of a step"),
        (SHELL, {"shell": "echo {{ response }}"}, "shell", "end it with |quote"),
        (SHELL, {"command": ["x"]}, "command", "the step has shell, so its next call cannot have command"),
        (step(url="http://x", json={}), {"body": "x"}, "body", "the step has json, so its next call cannot have body"),
        (HTTP, {"params": 3}, "params", "params must be a table, or a template of one, not 3"),
        (HTTP, {"headers": {"Cookie": "x"}}, "headers.Cookie", "name an environment variable in headers_env instead"),
        (HTTP, {"url": 3}, "url", "url must be a text, not 3"),
        (HTTP, {"url": "http://a:b@x"}, "url", "url holds a password"),
        (HTTP, {"method": "FETCH"}, "method", "'FETCH' is no method of HTTP"),
    ],
)
def test_what_responses_may_change_of_the_next_call(of, next_call, key, words):
    """
    Strangers write responses: they may not become code, or part of a line for the shell, or name secrets.
    """
    path = ("retry", "on_success", "next_call", *key.split("."))
    one_wrong(replace(of, retry=(replace(PAGES, next_call=next_call),)), path, words)


def test_two_rules_of_one_kind_are_told_apart_by_their_place_in_the_list():
    rules = (RetryRule(kind="on_error", when="error.x"), RetryRule(kind="on_error", max_attempts=0))

    assert [path for path, _ in check(replace(HTTP, retry=rules))] == [("steps", 0, "retry", 1, "max_attempts")]


@pytest.mark.parametrize(
    ("sink", "path", "words"),
    [
        (SinkSpec(tool="mysql"), ("tool",), "there is no sink 'mysql'"),
        (replace(SINK, table=""), (), "a sink with the tool postgres needs table"),
        (replace(SINK, table="a b"), ("table",), "'a b' cannot be the name of a table"),
        (replace(SINK, path="x"), ("path",), "path is not for a sink with the tool postgres"),
        (replace(SINK, mode="insert"), ("mode",), "'insert' is no mode of a sink; there are: append, upsert"),
        (replace(SINK, mode="upsert"), ("key",), "upsert needs key"),
        (replace(SINK, key=("id",)), ("key",), "append has none"),
        (replace(SINK, mode="upsert", key=("a;b",)), ("key",), "'a;b' cannot be the name of a column"),
        (replace(SINK, connection="man"), ("connection",), "there is no connection 'man', did you mean main?"),
        (replace(SINK, connection="lite"), ("connection",), "the connection lite is of the type sqlite, not postgres"),
        (SinkSpec(tool="sqlite", table="t"), (), "needs connection; there are lite, lite2: say which"),
        (SinkSpec(tool="jsonl"), (), "a sink with the tool jsonl needs path"),
        (SinkSpec(tool="csv", path="/etc/x"), ("path",), "the path '/etc/x' is absolute"),
        (SinkSpec(tool="csv", path="x", mode="upsert"), ("mode",), "the sink csv can only append"),
        (
            SinkSpec(tool="csv", path="x", options={"delimeter": ";"}),
            ("options", "delimeter"),
            "'delimeter' is no option of the sink csv, did you mean delimiter?",
        ),
        (
            SinkSpec(tool="jsonl", path="x", options={"indent": 1}),
            ("options", "indent"),
            "'indent' is no option of the sink jsonl, which has none",
        ),
        (SinkSpec(tool="python", call="x"), ("call",), "must be of the form package.module:function"),
        (SinkSpec(tool="jsonl", path="x", rows="{{ response }}"), ("rows",), "response, which is not known here"),
    ],
)
def test_what_a_sink_needs(sink, path, words):
    one_wrong(replace(HTTP, sink=sink), ("sink", *path), words)


def test_a_sink_without_any_connection_is_told_how_to_write_one():
    around = replace(AROUND, connections={})

    [(_, message)] = check(replace(HTTP, sink=SinkSpec(tool="sqlite", table="t")), around=around)
    assert "write [connections.NAME] type = 'sqlite'" in message
    [(_, message)] = check(replace(HTTP, sink=SINK), around=around)
    assert "there is no connection 'main': write [connections.main]" in message
    assert check(replace(HTTP, sink=SINK), around=replace(AROUND, connections=None)) == []


@pytest.mark.parametrize(
    ("wrong", "path", "words"),
    [
        (
            step(url="{{ workload.apii }}"),
            ("url",),
            "workload.apii, and the workload of the workflow has no such",
        ),
        (step(url="{{ vars.new }}"), ("url",), "vars.new, and no step sets it in vars"),
        (step(url="{{ phases.build.x }}"), ("url",), "phases.build, and no phase before this one is called so"),
        (step(url="{{ steps.b.x }}"), ("url",), "steps.b, and there is no such step"),
        (step(url="{{ env.HOME }}"), ("url",), "url names env, which is not known here"),
        (step(url="http://x", params={"a": [{"b": "{{ itm }}"}]}), ("params", "a", 0, "b"), "params.a.0.b names itm"),
        (step(url="{{ x.__class__ }}"), ("url",), "__class__ is not possible"),
        (step(url="{{ 1|attr('x') }}"), ("url",), "there is no filter attr"),
        (step(url="{% for %}"), ("url",), "is not possible, only expressions"),
        (step("command", shell="{{ x"), ("shell",), "it cannot be read"),
        (replace(HTTP, when="item == 1", loop=LOOP), ("when",), "when names item, which is not known here"),
        (replace(HTTP, vars={"x": "{{ response.id }}"}), ("vars", "x"), "vars.x names response, which is not known"),
        (replace(HTTP, next=(NextRule(step="", when="rsult.x"),)), ("next", 0, "when"), "did you mean result?"),
    ],
)
def test_names_that_cannot_be_there_are_found(wrong, path, words):
    assert any(where == ("steps", 0, *path) and words in message for where, message in check(wrong))


def test_a_step_knows_the_steps_before_it_and_later_ones_only_when_a_step_goes_back():
    first, second = step(name="a", url="{{ steps.b.x }}"), step(name="b", url="{{ steps.a.x }}")

    [(path, message)] = check(first, second)
    assert path == ("steps", 0, "url")
    assert "steps.b, which comes later" in message
    assert check(first, replace(second, next=(NextRule(step="a", when="result.again"),))) == []


# --- order -----------------------------------------------------------------------------------------------------


def steps_with(**following):
    return [
        replace(HTTP, name=name, next=tuple(NextRule(step=to, when=when) for to, when in rules))
        for name, rules in following.items()
    ]


@pytest.mark.parametrize(
    ("steps", "path", "words"),
    [
        (steps_with(a=[("c", "")], b=[]), (0, "next", 0), "step 'a': next names 'c', and there is no such step"),
        (steps_with(a=[("b", ""), ("", "result")], b=[]), (0, "next", 0), "what follows is never reached"),
        (steps_with(a=[("a", "")]), (0, "next"), "the steps a -> a go round for ever"),
        (steps_with(x=[], a=[], b=[("a", "")]), (1, "next"), "the steps a -> b -> a go round for ever"),
    ],
)
def test_next_leads_somewhere_and_ends(steps, path, words):
    [(where, message)] = check(*steps)

    assert where == ("steps", *path)
    assert words in message


def test_a_way_back_with_a_condition_is_no_endless_circle():
    assert check(*steps_with(a=[], b=[("a", "result.again"), ("", "")])) == []
    assert check(*steps_with(a=[("b", "")], b=[("", "")])) == []


def test_names_are_unique_and_steps_not_too_many():
    assert any("two steps of that name" in message for _, message in check(HTTP, HTTP))
    [(path, message)] = check(*[replace(HTTP, name=f"s{number}") for number in range(201)])
    assert path == ("steps",)
    assert "a phase has at most 200" in message


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        (replace(HTTP, name=3), ("name",)),
        (replace(HTTP, inputs={1: 2}), ("inputs",)),
        (replace(HTTP, timeout_seconds="x"), ("timeout_seconds",)),
        (replace(HTTP, next=[NextRule(step="a")]), ("next",)),
        (replace(HTTP, retry=("x",)), ("retry",)),
        (replace(HTTP, loop="x"), ("loop",)),
        (replace(HTTP, loop=replace(LOOP, limit="x")), ("loop", "limit")),
        (replace(HTTP, loop=replace(LOOP, concurrency=True)), ("loop", "concurrency")),
        (replace(HTTP, retry=(replace(PAGES, base_seconds=None),)), ("retry", 0, "base_seconds")),
        (replace(HTTP, sink=replace(SINK, key="id")), ("sink", "key")),
        (replace(HTTP, next=(NextRule(step=None),)), ("next", 0, "step")),
    ],
)
def test_a_step_made_in_python_with_a_field_of_another_type_is_said_to(wrong, path):
    [(where, message)] = check(wrong)

    assert where == ("steps", 0, *path)
    assert "must be" in message


# --- in a workflow ---------------------------------------------------------------------------------------------


def workflow(*phases, **options):
    spec = WorkflowSpec(name="w", phases=phases, **options)
    result = check_workflow(spec, runners=("steps", "external", "command"), has_file=lambda _name: True, connections={})
    return [(problem.path, problem.message) for problem in result]


PHASE = PhaseSpec(name="build", state="building", runner="steps", steps=(HTTP,))


def test_steps_know_the_workload_and_the_phases_and_variables_before():
    first = replace(PHASE, name="plan", state="planning", steps=(replace(HTTP, vars={"x": 1}),))
    uses = step(url="{{ workload.api }}{{ vars.x }}{{ phases.plan.y }}")

    assert workflow(first, replace(PHASE, steps=(uses,)), workload={"api": "x"}) == []
    result = workflow(replace(PHASE, steps=(uses,)))
    assert [path for path, _ in result] == [("phases", 0, "steps", 0, "url")] * 3
    assert result[0][1].startswith("phase 'build': step 'a': url names phases.plan")


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (replace(PHASE, steps=()), "the runner steps needs steps"),
        (replace(PHASE, runner="command", shell="x"), "steps is for the runner steps, and the runner here is command"),
        (replace(PHASE, shell="x"), "shell is for the runner command, and the runner here is steps"),
        (replace(PHASE, deadline_seconds=5), "deadline_seconds is for the runner external"),
        (replace(PHASE, runner="external", steps=(), deadline_seconds=0), "must be more than 0 seconds"),
        (replace(PHASE, runner="external", steps=(), deadline_seconds="x"), "must be more than 0 seconds"),
        (replace(PHASE, steps=["x"]), "steps must be a tuple of StepSpecs"),
    ],
)
def test_what_phases_of_steps_and_external_ones_need(phase, words):
    assert any(words in message for _, message in workflow(phase))
