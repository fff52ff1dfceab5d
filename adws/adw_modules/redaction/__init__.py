"""Keeping secrets out of everything that is written."""
