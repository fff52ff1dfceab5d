"""
docs/workflows.md and the code name the same keys and workflows, and the examples of the page work.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adws.adw_modules.workflow import load as workflow_load
from adws.adw_modules.workflow.library import ALIASES, Workflows, built_ins
from adws.adw_modules.workflow.model import RUNNERS
from adws.config import load as config_load

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "workflows.md").read_text()

#: heading -> the keys that are accepted there
TABLES = {
    "### Keys of `[workflows.NAME]`": workflow_load.WORKFLOW_KEYS,
    "### Keys of a phase": workflow_load.PHASE_KEYS,
    "### Keys of `timeouts`": workflow_load.TIMEOUT_KEYS,
    "### Keys of `retry`": workflow_load.RETRY_KEYS,
    "### Keys of a gate": workflow_load.GATE_KEYS,
}


def section(heading):
    return PAGE.split(f"{heading}\n")[1].split("\n#")[0]


def load(text, tmp_path):
    (tmp_path / "adw.toml").write_text(text)
    settings = config_load.load(env={}, cwd=tmp_path)
    return Workflows(
        runners=RUNNERS,
        has_file=lambda _name: True,
        definitions=settings.section("workflows"),
        phases=settings.section("phases"),
    )


@pytest.mark.parametrize("heading", TABLES)
def test_exactly_the_accepted_keys_are_documented(heading):
    documented = re.findall(r"^- `(\w+)` \(", section(heading), re.MULTILINE)

    assert documented == list(dict.fromkeys(documented))
    assert set(documented) == set(TABLES[heading])


def test_every_example_is_accepted(tmp_path):
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

    assert len(examples) == 2
    for text in examples:
        load(text, tmp_path)


def test_the_example_with_every_key_has_every_key_and_is_read_as_it_says(tmp_path):
    text = (ROOT / "examples" / "every_key.toml").read_text()
    spec = load(text, tmp_path).get("everything")
    # `prompt` needs an agent.
    for key in {key for keys in TABLES.values() for key in keys} - {"prompt"}:
        assert re.search(rf"\b{key}\b", text), f"the example lacks {key}"

    assert [gate.kind for gate in spec.phases[0].gates] == ["command", "command", "artifact", "result", "human"]


def test_the_keys_an_overlay_may_not_have_are_named():
    named = section("## Giving a built-in phase a command").split("but for\n")[1].split(":")[0]

    assert re.findall(r"`(\w+)`", named) == list(workflow_load.PLACING_KEYS)


def test_every_built_in_is_listed_with_its_phases_and_names():
    rows = re.findall(r"^- `(\w+)`: ([a-z ]+) \((.*)\)$", section("## Built-in workflows"), re.MULTILINE)

    assert {name: phases for name, phases, _ in rows} == {
        name: " ".join(phase.name for phase in spec.phases) for name, spec in built_ins().items()
    }
    assert {alias: name for name, _, aliases in rows for alias in re.findall(r"`(\w+)`", aliases)} == {
        alias: name for alias, name in ALIASES.items() if alias.endswith("_iso")
    }


def test_the_example_in_python_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("ADW_HOME", str(tmp_path))
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
    names: dict[str, object] = {}
    exec(code, names)

    assert names["frozen"] == {
        "name": "hello",
        "version": "1",
        "phases": [{"name": "build", "state": "building", "runner": "command", "command": ["make", "all"]}],
    }
