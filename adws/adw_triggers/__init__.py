"""Doors that start work: webhook and cron."""
