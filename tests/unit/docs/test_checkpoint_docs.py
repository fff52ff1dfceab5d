"""What docs/workflows.md says about checkpoints works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from adws.adw_modules.checkpoint import KEEP, MAX_BYTES, VARIABLE
from adws.adw_modules.engine.runner_python import METHODS, execute

PAGE = (Path(__file__).parents[3] / "docs" / "workflows.md").read_text()
EXECUTOR = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_executor_goes_on_from_any_of_its_checkpoints():
    names: dict = {}
    exec(EXECUTOR, names)
    saved = []
    context = SimpleNamespace(
        checkpoint=None, save_checkpoint=lambda data, step_name: saved.append((list(data["pages"]), step_name))
    )
    whole = execute(names["Report"](), "Report", context)

    assert len(whole["pages"]) == len(saved) == 5
    for pages, step_name in saved:
        context.checkpoint = {"pages": list(pages)}
        assert step_name == pages[-1]
        assert execute(names["Report"](), "Report", context) == whole


@pytest.mark.parametrize(
    "word", [*METHODS, VARIABLE, f"The newest {KEEP} of a task", f"JSON of at most {MAX_BYTES >> 20} MiB"]
)
def test_the_page_names_what_there_is(word):
    assert word in " ".join(PAGE.split())
