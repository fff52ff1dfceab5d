"""Forges: issues, pull requests and comments."""
