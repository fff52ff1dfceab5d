"""Workflow documents on disk and in the database."""
