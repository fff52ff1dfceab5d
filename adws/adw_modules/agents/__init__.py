"""Coding agents: one module per program, prompts, prices, sessions."""
