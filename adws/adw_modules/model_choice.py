"""
Which model an attempt is made with.

Pure. Chosen when the attempt is begun and written down with it: whoever comes after a crash reads it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from adws.adw_modules.workflow import CLEAN, COMMAND, PYTHON, SHIP

if TYPE_CHECKING:
    from adws.adw_modules.document import PhaseRecord, WorkflowDocument
    from adws.adw_modules.workflow import PhaseSpec

#: Runners that ask no model.
_NO_MODEL = frozenset({COMMAND, PYTHON, SHIP, CLEAN})
#: The sets that older tools write into documents. They name no model, unless the settings say which.
KNOWN_SETS = frozenset({"base", "heavy", "lightweight"})


def has_model(phase: PhaseSpec) -> bool:
    """Say whether an agent, and so a model, works on *phase*."""
    return phase.runner not in _NO_MODEL


def model_for(
    document: WorkflowDocument,
    phase: PhaseSpec,
    record: PhaseRecord,
    *,
    usual: str = "",
    sets: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """
    Return the model of the next attempt of *phase*, "" for the agent's own choice.

    First what the doctor ordered, then what the phase's options say (`models` by attempt of the round, the last one
    stays; `model`), then the model set of the workflow (a name in *sets*, or a model itself), then the *usual* one.
    """
    if not has_model(phase):
        return ""
    ladder = ladder_of(phase)
    if record.model and record.model not in ladder:
        return record.model
    if ladder:
        # What the doctor ordered out of the same list is a step up: later attempts never fall back behind it.
        least = ladder.index(record.model) if record.model else 0
        return ladder[min(max(record.attempts_used, least), len(ladder) - 1)]
    wanted = phase.options.get("model")
    if isinstance(wanted, str) and wanted:
        return wanted

    return _of_set(document.model_set, sets) or usual


def _of_set(name: str | None, sets: Mapping[str, str]) -> str:
    if not name:
        return ""

    return sets.get(name, "" if name in KNOWN_SETS else name)


def ladder_of(phase: PhaseSpec) -> tuple[str, ...]:
    """Return the models of *phase*, from its first attempt up."""
    models = phase.options.get("models")
    if not isinstance(models, Sequence) or isinstance(models, str):
        return ()

    return tuple(model for model in models if isinstance(model, str) and model)


def another_model(phase: PhaseSpec, record: PhaseRecord, spare: Sequence[str] = ()) -> str:
    """Return a model that no attempt of this round was made with, of the phase's own or the *spare* ones; "": none."""
    if not has_model(phase):
        return ""
    tried = {attempt.model for attempt in record.attempts if attempt.round == record.round}

    return next((model for model in (*ladder_of(phase), *spare) if model not in tried), "")
