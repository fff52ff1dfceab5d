"""
Write the schema of revision 0001 as SQL, from `db/schema.py`.

To be run (`python -m tests.migration.baseline.make`) when the schema changes before the first release. After it, these
files are never written again: a change is a new revision in `db/migrations/versions`.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from adws.adw_modules.db import schema

VERSION = "CREATE TABLE alembic_version (version_num VARCHAR(32) CONSTRAINT alembic_version_pkc PRIMARY KEY)"


def statements(dialect: str, url: str) -> list[str]:
    """Return what makes the schema in a database of *dialect*."""
    made: list[str] = []
    engine = sa.create_mock_engine(url, lambda sql, *_: made.append(str(sql.compile(dialect=engine.dialect))))
    schema.metadata.create_all(engine, checkfirst=False)
    made = [*sorted(sql for sql in made if "CREATE TABLE" in sql), *sorted(sql for sql in made if "INDEX" in sql)]

    return [
        *made,
        *(view.create(dialect) for view in schema.VIEWS),
        VERSION,
        "INSERT INTO alembic_version VALUES ('0001')",
    ]


if __name__ == "__main__":
    for dialect, url in {"sqlite": "sqlite://", "postgresql": "postgresql+psycopg://"}.items():
        text = "".join(f"{sql.strip()};\n\n" for sql in statements(dialect, url)).replace("\t", "  ")
        lines = (line.rstrip() for line in text.strip().splitlines())
        Path(__file__).with_name(f"{dialect}.sql").write_text("\n".join(lines) + "\n")
