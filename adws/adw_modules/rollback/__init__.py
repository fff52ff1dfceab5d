"""Undo what a workflow made: the plan, its steps, running it."""

from __future__ import annotations

from adws.adw_modules.rollback.run import WorkflowRollback, mark_workflow_rolled_back

__all__ = ["WorkflowRollback", "mark_workflow_rolled_back"]
