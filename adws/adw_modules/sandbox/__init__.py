"""Boxes for agents, commands and gates: what they may read, write and connect to, enforced by the kernel."""
