"""Conductors of ownership: who may work on a workflow, and how what is shared is made again."""
