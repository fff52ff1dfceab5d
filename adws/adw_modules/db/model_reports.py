"""
The schema of the sums that reports are made of.

Everything here follows from documents: what a workflow has added stands in its row, so that looking at it again adds
only the difference. Amounts are whole numbers, so that adding and taking away leaves nothing behind.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Table, Text

from adws.adw_modules.db.model_base import metadata

report_sums = Table(
    "report_sums",
    metadata,
    # In the order in which they are asked for: one kind, from a day on.
    Column("kind", Text, primary_key=True),
    Column("day", Text, primary_key=True),  # of UTC; of durations: the first of the month
    Column("workflow", Text, primary_key=True),  # name of the definition
    Column("phase", Text, primary_key=True),  # "": of the workflow as a whole
    Column("item", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),  # millionths of a dollar, or milliseconds
    Column("last_at", Text, nullable=False),  # of failures: when the last one was
    Column("adw_id", Text, nullable=False),  # of which workflow
    Column("label", Text, nullable=False),  # and what it said
)

report_workflows = Table(
    "report_workflows",
    metadata,
    Column("adw_id", Text, primary_key=True),
    Column("workflow", Text, nullable=False),
    Column("outcome", Text, nullable=False),  # "": it goes on
    Column("last_day", Text, nullable=False),  # on which an attempt ended last
    Column("attempts", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),  # in millionths of a dollar
    Column("sums", Text, nullable=False),  # what it has added, as JSON; last, so that lists never walk over it
    Index("ix_report_workflows_cost", "cost", "adw_id"),
)

report_progress = Table(
    "report_progress",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # of the last event that was looked at
    Column("place", Text, nullable=False),  # its event_id; of a look at all: the last workflow
)
