"""
Making the run that goes on with a workflow: what it demands of a worker, and the labels that limits count it under.

Pure. Both come from the definition that is frozen in the document, so whoever asks for the run, it demands the same.
Runs that undo something or do what a delivery asks for are not made here: they carry no labels, because a limit holds
work back and must not hold back what ends or undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adws.adw_modules.demands import Demands
from adws.adw_modules.runs import NewRun

if TYPE_CHECKING:
    from adws.adw_modules.document import WorkflowDocument
    from adws.adw_modules.json_value import JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMaker:
    """Makes the runs of workflows of one home."""

    repository: str = ""  #: of the home: that of documents that name none
    provider_of: Callable[[str], str] = lambda _runner: ""  #: runner of a phase -> whom its agent asks, "" for no agent

    def of(
        self, document: WorkflowDocument, kind: str, *, asked_by: str = "", priority: int = 0, not_before: str = ""
    ) -> NewRun:
        """Return the run of *kind* for *document*; raise UsageError when what it demands makes no sense."""
        workflow = document.workflow

        return NewRun(
            adw_id=document.adw_id,
            kind=kind,
            priority=priority,
            not_before=not_before,
            asked_by=asked_by,
            demands=Demands.from_json(workflow.demands) if workflow else Demands(),
            labels=self._labels(
                document.repository, workflow.name if workflow else "", workflow.phases if workflow else ()
            ),
        )

    def labels_of(self, data: JsonObject) -> frozenset[str]:
        """Return the labels of a document that is plain JSON."""
        workflow = data.get("workflow")
        known = workflow if isinstance(workflow, dict) else {}
        phases = known.get("phases")

        return self._labels(
            _text(data.get("repository")),
            _text(known.get("name")),
            [phase for phase in phases if isinstance(phase, dict)] if isinstance(phases, list) else (),
        )

    def _labels(self, repository: str, workflow: str, phases: Sequence[Mapping[str, object]]) -> frozenset[str]:
        # Forges do not tell Acme/Widget from acme/widget, and neither do limits.
        found = [("repository", (repository or self.repository).casefold()), ("workflow", workflow)]
        found += [("provider", self.provider_of(_text(phase.get("runner")))) for phase in phases]

        return frozenset(f"{scope}:{name}" for scope, name in found if name and "|" not in name)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
