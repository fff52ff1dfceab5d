"""Workflow definitions: model, loading, checks, library."""
