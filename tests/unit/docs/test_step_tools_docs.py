"""
docs/steps.md says what the tools and sinks do: types, keys of a failure, limits, and examples that are sound.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.redaction.redactor import Redactor
from adws.adw_modules.steps import http_client, iteration_worker, sink_rows, sinks, tools
from adws.adw_modules.steps.model import Assignment
from adws.adw_modules.steps.tools import MAX_RESULT_BYTES
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.model import StepSpec
from adws.config import load as config_load

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "steps.md").read_text()


def load(text, tmp_path):
    (tmp_path / "adw.toml").write_text(text)
    return config_load.load(env={}, cwd=tmp_path)


def test_the_example_of_hosts_is_read(tmp_path):
    [text] = [one for one in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if one.startswith("[steps]")]

    assert load(text, tmp_path).steps_http_allow == ("api.example.com", "*.internal.example.com")


def test_each_tool_and_each_kind_of_sink_is_explained():
    assert [*re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE)] == ["http", "command", "python", "agent"]
    assert {*re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE)} == {*workflow_model.TOOLS}
    rows = re.findall(r"^- ((?:`\w+`(?:, )?)+) \((exactly|at least) once", PAGE, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", " ".join(names for names, _ in rows))} == {*workflow_model.SINK_TOOLS}
    for options in workflow_model.SINK_OPTIONS.values():
        assert all(f"{option} = " in PAGE for option in options)


def test_the_types_of_columns_are_those_of_the_code():
    rows = re.findall(r"^- ([a-z ,]+): (`[A-Z]+`|no type), `([a-z ]+)`$", PAGE, re.MULTILINE)
    kinds = ["truth", "whole", "number", "text", "json", "mixed"]

    assert [(lite.strip("`").replace("no type", ""), post) for _, lite, post in rows] == [
        (sink_rows.SQLITE_TYPES[kind], sink_rows.POSTGRES_TYPES[kind]) for kind in kinds
    ]
    assert (sink_rows.SQLITE_TYPES["nothing"], sink_rows.POSTGRES_TYPES["nothing"]) == ("TEXT", "text")


def test_a_failure_has_the_keys_that_are_documented():
    class Failing:
        def call(self, *_args, **_kwargs):
            raise TimeoutError("slow")

    home = SimpleNamespace(tools={"command": Failing()}, clock=SystemClock(), redactor=Redactor())
    maker = iteration_worker.ToolCalls(home)
    assignment = Assignment(execution_id="e", index=0, element=None, attempt_number=1, page=1)
    context = type("Context", (), {"values": {}})()

    report = maker.make(StepSpec(name="s", tool="command"), assignment, context)

    section = PAGE.split("## Failures\n")[1].split("\n## ")[0].partition("with ")[2].partition(".\n")[0]
    documented = re.findall(r"`(\w+)`", section.replace("(such as `timeout`)", ""))
    assert {*documented} <= report.error.keys()
    assert (report.error["type"], report.error["category"]) == ("TimeoutError", "transient")


def test_the_numbers_and_names_are_those_of_the_code():
    plain = " ".join(PAGE.split())

    assert MAX_RESULT_BYTES == 8 * 1024 * 1024
    assert "A result of more than 8 MiB" in plain
    assert f"at most {http_client.MAX_REDIRECTS}." in plain
    assert f"at most {iteration_worker.MAX_MESSAGE} characters" in plain
    assert f"`{sink_rows.KEYS}`" in plain
    assert f"`{sinks.LEDGERS}/`" in plain
    assert "followed for `GET`, `HEAD` and `OPTIONS`" in plain
    assert http_client.FOLLOWED == ("GET", "HEAD", "OPTIONS")
    assert {*re.findall(r"`(\w+)`", plain.split(" without `session`")[1][:40])} | {"session"} == {*tools.NO_OPTIONS}
