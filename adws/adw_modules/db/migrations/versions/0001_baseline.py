"""The schema that all later steps start from."""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: a new database is made whole from `db/schema.py`, and none is older than this."""
