"""Undo what a workflow made: the plan, its steps, running it."""

from __future__ import annotations

from adws.adw_modules.rollback.run import WorkflowRollback

__all__ = ["WorkflowRollback"]
