"""What docs/checkpoints.md shows works as it says."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules import ambient
from adws.adw_modules.checkpoint import KEEP, MAX_BYTES, CheckpointManager
from adws.adw_modules.engine.runners.checkpoint_file import KIND, VARIABLE
from adws.adw_modules.engine.runners.executor import METHODS, Executor
from adws.testing import memory_parts

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
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
    parts = memory_parts()
    opened = ambient.OpenedCheckpoints(store=parts.checkpoints, clock=parts.clock, close=lambda: None)
    monkeypatch.setattr(ambient, "_opener", lambda place: {"report.db": opened}[place])
    names: dict = {}
    with ambient.using(parts):
        exec(LIBRARY, names)

        assert names["result"] == {"steps": 5}
        assert CheckpointManager().list_checkpoints("nightly report") == ()


@pytest.mark.parametrize("word", [*METHODS, VARIABLE, KIND, f"The newest {KEEP} of a task", f"{MAX_BYTES >> 20} MiB"])
def test_the_page_names_what_there_is(word):
    assert word in " ".join(PAGE.split())
