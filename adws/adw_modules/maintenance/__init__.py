"""Maintenance of a home: backup, rebuild, move, check."""
