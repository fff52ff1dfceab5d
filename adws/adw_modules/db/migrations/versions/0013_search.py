"""Searching: the index of the newest workflows has the columns a search compares, and titles have a length."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Cut titles as lists show them, which an index of PostgreSQL could not hold otherwise, and make the index anew."""
    op.execute("UPDATE workflow_states SET title = substr(title, 1, 300) WHERE length(title) > 300")
    op.drop_index("ix_workflow_states_newest", table_name="workflow_states")
    op.create_index(
        "ix_workflow_states_newest",
        "workflow_states",
        ["created_at", "adw_id", "title", "repository", "issue_number"],
    )
