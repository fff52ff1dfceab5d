"""
Tools for tests of workflows, plugins and adw itself: a real home that is quick to make, and a few fakes.

`home()` is a real home in a temporary directory. There are fakes only for time, the forge, agents and processes; those
with a real counterpart pass its contract suite (`tests/contracts`). adw itself uses nothing from here.
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
