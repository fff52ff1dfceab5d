"""
docs/steps.md and the code name the same keys, filters and names, and every example, also those of examples, is sound.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adws.adw_modules.expressions.values import DEFAULTS, FILTERS, FUNCTIONS, PRESENCE, TESTS
from adws.adw_modules.workflow import checks as workflow_checks
from adws.adw_modules.workflow import load as workflow_load
from adws.adw_modules.workflow import model as workflow_model
from adws.adw_modules.workflow.library import Workflows
from adws.adw_modules.workflow.model import RUNNERS
from adws.config import load as config_load
from adws.config import settings

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "steps.md").read_text()
EXAMPLES = re.findall(
    r"```toml\n(.*?)```",
    PAGE.partition("## Execution\n")[0] + (ROOT / "examples" / "steps.md").read_text(),
    re.DOTALL,
)

#: heading -> the keys that are accepted there
TABLES = {
    "### Keys of a step": {*workflow_load.STEP_KEYS},
    "### Keys of `loop`": {*workflow_load.LOOP_KEYS},
    "### Keys of `on_error`": {*workflow_load.ON_ERROR_KEYS},
    "### Keys of `on_success`": {*workflow_load.ON_SUCCESS_KEYS} - {*workflow_load.ON_ERROR_KEYS},
    "### Keys of `sink`": {*workflow_load.SINK_KEYS},
    "### Keys of `[connections.NAME]`": {key for keys in settings.CONNECTION_KEYS.values() for key in keys},
}


def section(heading):
    return PAGE.split(f"{heading}\n")[1].split("\n#")[0]


def load(text, tmp_path):
    (tmp_path / "adw.toml").write_text(text)
    settings = config_load.load(env={}, cwd=tmp_path)
    return Workflows(
        runners=RUNNERS,
        has_file=lambda _name: False,
        definitions=settings.section("workflows"),
        connections={name: one.type for name, one in settings.connections.items()},
    )


@pytest.mark.parametrize("heading", TABLES)
def test_exactly_the_accepted_keys_are_documented(heading):
    documented = re.findall(r"^- `(\w+)` \(", section(heading), re.MULTILINE)

    assert documented == list(dict.fromkeys(documented))
    assert {*documented} == TABLES[heading]


def test_exactly_the_inputs_of_each_tool_are_documented():
    rows = re.findall(r"^- `(\w+)` `(\w+)`: ", section("### Inputs of the tools"), re.MULTILINE)

    assert rows == [(tool, name) for tool, names in workflow_model.INPUTS_OF_TOOL.items() for name in names]
    said = section("### Inputs of the tools").split("but for")[1]
    assert {*re.findall(r"`(\w+)`", said)} == {*workflow_model.NO_TEMPLATES}


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("- filters: ", [*FILTERS, *DEFAULTS]),
        ("- tests, after `is`: ", [*TESTS, *PRESENCE]),
        ("- functions: ", [*FUNCTIONS]),
    ],
)
def test_everything_an_expression_may_use_is_listed(head, names):
    listed = PAGE.split(head)[1].split("\n- ")[0].split("\n\n")[0]

    assert re.findall(r"`(\w+)`", listed) == sorted(names)


def test_the_names_that_templates_know_are_listed():
    table = section("## Templates and conditions")

    assert {*re.findall(r"`(\w+)`", table.split("- everywhere: ")[1].split("\n")[0])} == {*workflow_checks.EVERYWHERE}
    assert all(f"`{name}`" in table for name in workflow_checks.RESERVED)


@pytest.mark.parametrize("text", EXAMPLES, ids=[re.findall(r"workflows\.(\w+)", text)[0] for text in EXAMPLES])
def test_every_example_is_sound_and_kept_as_it_is(text, tmp_path):
    workflows = load(text, tmp_path)
    spec = workflows.get(re.findall(r"workflows\.(\w+)", text)[0])

    assert workflows.freeze(spec)["phases"][0]["steps"]
    assert {phase.runner for phase in spec.phases} == {workflow_model.STEPS}


def test_the_examples_combine_loop_retry_and_sink_in_every_way():
    """Seven of them are the examples of the distributed loop and retry that this follows."""
    names = re.findall(r'^name = "(\w+)"\ntool', "\n".join(EXAMPLES), re.MULTILINE)

    assert {
        "process_users",
        "fetch_paginated_data",
        "process_items",
        "fetch_data",
        "fetch_multiple_apis",
        "process_batch",
        "fetch_pages",
        "fetch_all",
    } <= {*names}


def test_an_example_with_a_mistake_is_refused_with_its_line(tmp_path):
    text = EXAMPLES[0].replace("workload.api_url }}/users", "workload.api_uri }}/users")
    line = text[: text.index("api_uri")].count("\n") + 1

    with pytest.raises(ValueError, match=rf"adw.toml:{line}: .*step 'list_users': url names workload.api_uri") as info:
        load(text, tmp_path)
    assert "did you mean api_url?" in str(info.value)


def test_the_steps_of_a_built_in_phase_are_checked_too(tmp_path):
    (tmp_path / "adw.toml").write_text(
        '[[phases.test.steps]]\nname = "a"\ntool = "http"\nurl = "{{ workload.any }}{{ vars.none }}"\n'
    )
    table = config_load.load(env={}, cwd=tmp_path).section("phases")

    with pytest.raises(ValueError, match=r"adw.toml:4: \[phases.test\] step 'a': url names vars.none") as info:
        Workflows(runners=RUNNERS, has_file=lambda _name: True, phases=table)
    assert "workload" not in str(info.value), "which workload there will be is not known"
