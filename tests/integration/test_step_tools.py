"""The tools `command` and `python`: values stay values, results are JSON, and nothing is left running."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adws.adw_modules import timestamps
from adws.adw_modules.errors import RunLost
from adws.adw_modules.phase import Order
from adws.adw_modules.redaction.patterns import MASK
from adws.adw_modules.steps import tools
from adws.adw_modules.steps.iteration_worker import MAX_MESSAGE
from adws.adw_modules.workflow.model import SinkSpec
from tests.integration.call_lab import SECRET, CallWorld
from tests.integration.process_lab import is_alive


@pytest.fixture
def world(tmp_path) -> Iterator[CallWorld]:
    made = CallWorld(tmp_path)
    yield made
    made.close()


# --- command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "output", "result"),
    [
        ("two words", {}, "two words"),
        ('{"a": [1]}', {}, {"a": [1]}),
        ("[1, 2]", {}, [1, 2]),
        ("[not json", {}, "[not json"),
        ("7", {}, "7"),
        ('{"a": 1}', {"output": "text"}, '{"a": 1}'),
        ("7", {"output": "json"}, 7),
        ("a\nb\n", {"output": "lines"}, ["a", "b", ""][:2]),
        ("", {"output": "lines"}, []),
    ],
    ids=["text", "table", "list", "no-json", "number", "as-text", "as-json", "lines", "no-lines"],
)
def test_the_result_of_a_command_is_what_it_printed(world, printed, output, result):
    report = world.make("command", command=["printf", "%s", printed], **output)

    assert (report.ok, report.result, report.meta) == (True, result, {"call": {"exit_code": 0}})


def test_a_value_is_one_argument_whatever_is_in_it(world):
    script = "import json, sys; print(json.dumps(sys.argv[1:]))"

    report = world.make(
        "command", command=[sys.executable, "-c", script, "{{ issue.title }}", "{{ item.id }}", "a {{ workload.name }}"]
    )

    assert report.result == ["Fix it; rm -rf /", "0", "a o'clock $HOME"]


def test_a_command_gets_few_variables_and_never_those_of_adw(world):
    script = "import json, os; print(json.dumps(dict(os.environ)))"

    report = world.make("command", command=[sys.executable, "-c", script], env=["MINE"])
    refused = world.make("command", command=["true"], env=["GITHUB_TOKEN"])

    assert isinstance(report.result, dict)
    assert {"MINE": "my own", "GIVEN": "by the engine", "ADW_ID": "1a2b3c4d", "ADW_PHASE": "build"}.items() <= (
        report.result.items()
    )
    assert not {"OTHER", "GITHUB_TOKEN", "GH_TOKEN", "API_TOKEN"} & report.result.keys()
    assert "GITHUB_TOKEN, which adw keeps to itself" in refused.error["message"]


def test_a_command_that_fails_says_how_and_what_it_said_last(world):
    report = world.make("command", shell="echo one; echo 'the last word' >&2; exit 3")

    assert (report.ok, report.result) == (False, None)
    error = report.error
    assert (error["type"], error["category"], error["exit_code"], error["status"]) == (
        "RunFailed",
        "transient",
        3,
        None,
    )
    assert error["message"].endswith("ended with exit code 3: the last word")
    assert error["has_stack_trace"] is True
    assert error["failed_at"] == timestamps.to_text(world.clock.now())


def test_a_message_is_short_and_without_secrets(world):
    report = world.make("command", shell=f"echo 'x {SECRET} {'y' * 4000}' >&2; exit 1")

    assert len(report.error["message"]) <= MAX_MESSAGE
    assert SECRET not in json.dumps([report.error, report.fingerprint])


def test_a_command_that_prints_too_much_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "MAX_RESULT_BYTES", 1000)
    world = CallWorld(tmp_path)

    fine = world.make("command", shell="head -c 900 /dev/zero | tr '\\0' x")
    report = world.make("command", shell="head -c 1001 /dev/zero | tr '\\0' x")
    escaped = world.make("command", shell="head -c 990 /dev/zero | tr '\\0' '\"'")

    assert (fine.ok, len(fine.result)) == (True, 900)
    for one in (report, escaped):
        assert "the limit is 1000: " in one.error["message"]
    world.close()


def test_a_command_whose_time_is_over_is_ended_with_all_that_it_started(world):
    world.orders.on_look = lambda: world.clock.advance(1.0)
    pids = world.cwd / "pids"

    report = world.make("command", shell=f"(sleep 1000 & echo $! >> {pids}); echo $$ >> {pids}; sleep 1000", timeout=5)

    assert report.error["message"].startswith("`(sleep 1000 &")
    assert (report.error["klass"], report.is_suspended) == ("timeout", False)
    assert [pid for pid in map(int, pids.read_text().split()) if is_alive(pid)] == []


def test_a_command_that_was_ended_on_order_is_suspended_and_does_not_count(world):
    def order() -> None:
        if (world.cwd / "up").exists():
            world.orders.order = Order(kind="stop", is_urgent=True)

    world.orders.on_look = order
    report = world.make("command", shell="touch up; exec sleep 1000")

    assert (report.ok, report.is_suspended, report.error) == (False, True, None)
    assert report.meta == {"call": {"ordered": "stop"}}
    assert [record.argv[0] for record in world.records] == ["/bin/sh"]


def test_no_file_of_a_call_is_left(world):
    world.make("command", command=["echo", "x"], stdin="y")
    world.make("command", command=["false"])
    world.make("python", code="def main(): return 1")

    assert list((world.folder / "calls").iterdir()) == []


# --- python ----------------------------------------------------------------------------------------------------


def test_code_gets_its_arguments_and_gives_back_json(world):
    code = (
        "import os\ndef main(item, names):\n    print('noise')\n"
        "    return {'item': item, 'cwd': os.getcwd(), 'n': names}"
    )

    report = world.make("python", code=code, args={"item": "{{ item }}", "names": ["ä", None, 1.5]})

    assert report.result == {"item": {"id": 0}, "cwd": str(world.cwd), "n": ["ä", None, 1.5]}
    assert "noise" in world.said


def test_code_does_not_run_in_our_process_and_sees_nothing_of_the_user(world):
    (world.cwd / "json.py").write_text("raise SystemExit(99)")
    code = "import os, sys\ndef main():\n    return [os.getpid(), sys.flags.isolated, sorted(os.environ)]"

    report = world.make("python", code=code)

    pid, isolated, names = report.result
    assert pid != os.getpid()
    assert isolated == 1
    assert not {"OTHER", "API_TOKEN", "GITHUB_TOKEN"} & {*names}


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("def main():\n    raise ValueError('no good')", "ValueError", "ValueError: no good"),
        ("import no_such_thing\ndef main(): pass", "ModuleNotFoundError", "No module named"),
        ("def main(): import sys; sys.exit(4)", "SystemExit", "SystemExit: 4"),
        ("def main(): return {1, 2}", "RunFailed", "main gave back what is no JSON"),
        ("def main(): return float('nan')", "RunFailed", "main gave back what is no JSON"),
        ("import os\ndef main(): os._exit(0)", "RunFailed", "ended without a result"),
        ("import os, signal\ndef main(): os.kill(os.getpid(), signal.SIGKILL)", "RunFailed", "signal 9"),
        ("def main(x): return x", "TypeError", "missing 1 required positional argument"),
    ],
    ids=["raises", "import", "exit", "set", "nan", "vanishes", "killed", "arguments"],
)
def test_code_that_fails_says_what_it_raised(world, code, name, message):
    report = world.make("python", code=code)

    assert (report.ok, report.error["type"]) == (False, name)
    assert message in report.error["message"]


def test_a_function_of_the_home_is_called_with_the_arguments(world):
    (world.home / "my_step_tools_a.py").write_text("def double(item, by=2):\n    return {'id': item['id'] * by}\n")

    report = world.make("python", call="my_step_tools_a:double", args={"item": "{{ item }}"}, index=4)

    assert report.result == {"id": 8}


@pytest.mark.parametrize(
    ("body", "name", "category", "message"),
    [
        ("raise KeyError('gone')", "KeyError", "fatal", "gone"),
        ("raise TimeoutError('slow')", "TimeoutError", "transient", "slow"),
        ("import sys; sys.exit('bye')", "RunFailed", "transient", "called sys.exit('bye')"),
        ("return (1, 2)", "RunFailed", "transient", "lists, not tuples"),
        ("return {1: 2}", "RunFailed", "transient", "text keys"),
        ("return object()", "RunFailed", "transient", "cannot be written as JSON"),
        ("return float('inf')", "RunFailed", "transient", "cannot be written as JSON"),
    ],
)
def test_what_a_function_raises_or_gives_back_wrongly_is_a_failed_call(world, body, name, category, message):
    module = f"my_step_tools_{abs(hash(body))}"
    (world.home / f"{module}.py").write_text(f"def work():\n    {body}\n")

    report = world.make("python", call=f"{module}:work")

    assert (report.error["type"], report.error["category"]) == (name, category)
    assert message in report.error["message"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("no_such_module:f", "cannot import no_such_module"),
        ("json:no_such_function", "json has no function no_such_function"),
        ("json", "write it as package.module:function"),
        ("asyncio:sleep", "asyncio:sleep is async, and adw calls it as a plain function"),
    ],
)
def test_a_function_that_is_not_there_or_async_is_told(world, call, message):
    report = world.make("python", call=call)

    assert report.error["category"] == "configuration"
    assert message in report.error["message"]


def test_a_run_that_was_lost_is_no_failure_of_the_call(world):
    def lost(*_args: object, **_kwargs: object) -> None:
        raise RunLost(7)

    world.tools["command"].call = lost

    with pytest.raises(RunLost):
        world.make("command", command=["true"])


# --- sinks -----------------------------------------------------------------------------------------------------


def test_each_kind_of_sink_saves_what_the_call_gave_back(world):
    (world.home / "my_step_sink.py").write_text(
        "seen = []\ndef save(rows, key, note=''):\n    seen.append((rows, key, note))\n"
    )
    sinks = [
        SinkSpec(tool="sqlite", table="t"),
        SinkSpec(tool="jsonl", path="out/{{ item.id }}.jsonl"),
        SinkSpec(tool="csv", path="t.csv", options={"delimiter": ";"}, rows="{{ result.rows }}"),
        SinkSpec(
            tool="python", call="my_step_sink:save", options={"note": "{{ issue.title }}"}, rows="{{ result.rows }}"
        ),
    ]
    code = "def main(n): return {'rows': [{'id': n}, {'id': n + 1}], 'n': n}"

    reports = [world.make("python", code=code, args={"n": "{{ index }}"}, sink=sink, index=3) for sink in sinks]

    assert [report.meta for report in reports] == [{"call": {"rows": rows}} for rows in (1, 1, 2, 2)]
    assert (world.cwd / "out" / "3.jsonl").read_text() == '{"rows":[{"id":3},{"id":4}],"n":3}\n'
    assert (world.cwd / "t.csv").read_text() == "id\n3\n4\n"
    assert sys.modules["my_step_sink"].seen == [
        ([{"id": 3}, {"id": 4}], "1a2b3c4d.build.1.step#3#1", "Fix it; rm -rf /")
    ]


def test_a_call_that_is_made_again_saves_nothing_twice(world):
    for page in (1, 1, 2):
        world.make("command", command=["echo", "x"], sink=SinkSpec(tool="jsonl", path="t.jsonl"), page=page)

    assert (world.cwd / "t.jsonl").read_text() == '{"value":"x"}\n' * 2


def test_a_sink_that_fails_fails_the_call(world):
    (world.home / "my_bad_sink.py").write_text("def save(rows, key):\n    raise ConnectionError('gone')\n")
    cases = {
        "gone": SinkSpec(tool="python", call="my_bad_sink:save"),
        "'nope' is no option of the sink csv; there are: delimiter": SinkSpec(
            tool="csv", path="x", options={"nope": 1}
        ),
        "'nope' is no option of the sink sqlite, which has none": SinkSpec(
            tool="sqlite", table="t", options={"nope": 1}
        ),
        "the option delimiter is 'ab', and must be one character": SinkSpec(
            tool="csv", path="x", options={"delimiter": "ab"}
        ),
        "there is no connection of the type postgres": SinkSpec(tool="postgres", table="t"),
        "there is no connection other": SinkSpec(tool="sqlite", table="t", connection="other"),
        "leaves the working directory": SinkSpec(tool="jsonl", path="{{ '../' ~ result }}"),
        "the path of the sink is 7": SinkSpec(tool="jsonl", path="{{ 7 }}"),
        "there is no nothing": SinkSpec(tool="jsonl", path="x", rows="{{ nothing }}"),
    }

    for message, sink in cases.items():
        report = world.make("command", command=["echo", "x"], sink=sink)
        assert report.ok is False
        assert message.lower() in report.error["message"].lower()
        assert report.meta == {"call": {"exit_code": 0}}


def test_a_sink_that_ends_the_program_fails_only_the_call(world: CallWorld, tmp_path: Path):
    (world.home / "my_ending_sink.py").write_text("import sys\ndef save(rows, key):\n    sys.exit(2)\n")

    report = world.make("command", command=["echo", "x"], sink=SinkSpec(tool="python", call="my_ending_sink:save"))

    assert "called sys.exit(2)" in report.error["message"]


def test_a_value_in_a_line_of_shell_is_quoted(world):
    report = world.make("command", shell="printf '%s|' {{ workload.name|quote }} {{ issue.title|quote }}")

    assert report.result == "o'clock $HOME|Fix it; rm -rf /|"


def test_code_whose_time_is_over_is_ended(world):
    world.orders.on_look = lambda: world.clock.advance(1.0)

    report = world.make("python", code="import signal\ndef main(): signal.pause()", timeout=3)

    assert report.error["klass"] == "timeout"


def test_what_a_command_prints_is_without_secrets(world):
    assert world.make("command", command=["echo", SECRET]).result == MASK
