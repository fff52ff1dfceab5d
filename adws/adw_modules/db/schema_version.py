"""
Which schema this adw knows.

Imports nothing: opening a database compares one text with `HEAD`, and only a difference loads SQLAlchemy and Alembic.
A test holds this table against the migration scripts.
"""

from __future__ import annotations

#: Every revision there ever was, oldest first.
KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014")
#: The revision this adw works with.
HEAD = KNOWN[-1]

#: Where Alembic keeps the revision of a database.
READ_VERSION = "SELECT version_num FROM alembic_version"
