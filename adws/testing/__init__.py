"""
What tests of workflows, plugins and of adw itself need: a real home that is quick to make, and the few fakes there are.

`home()` is a real home on a temporary directory. Fakes stand in for time, the forge, agents and processes only; those
that have a real counterpart pass its contract suite (`tests/contracts`). Nothing here is used by adw itself.
"""

from __future__ import annotations

from adws.testing.clock import START, FakeClock
from adws.testing.forge import MemoryForge
from adws.testing.processes import FakeProcesses
from adws.testing.runners import MemoryOrders, ScriptedCall, ScriptedRunner
from adws.testing.temporary_home import home

__all__ = [
    "START",
    "FakeClock",
    "FakeProcesses",
    "MemoryForge",
    "MemoryOrders",
    "ScriptedCall",
    "ScriptedRunner",
    "home",
]
