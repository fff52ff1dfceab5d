"""What docs/checkpoints.md shows works as it says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules import default_home
from adws.adw_modules.checkpoint import KEEP, KIND, MAX_BYTES, VARIABLE, CheckpointManager
from adws.adw_modules.engine.runner_python import METHODS, Executor
from tests.homes import lab_home

PAGE = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()
EXECUTOR, LIBRARY = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_executor_goes_on_from_any_of_its_checkpoints():
    names: dict = {}
    exec(EXECUTOR, names)
    saved = []
    context = SimpleNamespace(
        checkpoint=None, save_checkpoint=lambda data, step_name: saved.append((list(data["pages"]), step_name))
    )
    whole = Executor(names["Report"](), "Report").run(context)

    assert len(whole["pages"]) == len(saved) == 5
    for pages, step_name in saved:
        context.checkpoint = {"pages": list(pages)}
        assert step_name == pages[-1]
        assert Executor(names["Report"](), "Report").run(context) == whole


def test_the_library_example_runs_and_leaves_nothing(monkeypatch):
    parts = lab_home()
    opened = default_home.OpenedCheckpoints(store=parts.checkpoints, clock=parts.clock, close=lambda: None)
    monkeypatch.setattr(default_home, "_opener", lambda place: {"report.db": opened}[place])
    names: dict = {}
    with default_home.using(parts):
        exec(LIBRARY, names)

        assert names["result"] == {"steps": 5}
        assert CheckpointManager().list_checkpoints("nightly report") == ()


@pytest.mark.parametrize("word", [*METHODS, VARIABLE, KIND, f"The newest {KEEP} of a task", f"{MAX_BYTES >> 20} MiB"])
def test_the_page_names_what_there_is(word):
    assert word in " ".join(PAGE.split())
