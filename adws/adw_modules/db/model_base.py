"""
What every part of the schema is described with.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: A number the database gives; SQLite only does that for its own INTEGER.
Number = BigInteger().with_variant(Integer, "sqlite")
