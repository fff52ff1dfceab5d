"""An index of the workflows that cost something, so that what was spent today is found without looking at all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    op.create_index(
        "ix_workflow_states_costing",
        "workflow_states",
        ["updated_at"],
        sqlite_where=sa.text("body LIKE '%\"cost_usd\"%'"),
        postgresql_where=sa.text("strpos(body, '\"cost_usd\"') > 0"),
    )
