"""
The benchmark of the run queue, which is in run_queue.py.

    python scripts/bench/queue.py [--rounds 1000] [--latency-rounds 200] [--idle-seconds 60] [--directory DIR]
                                  [--only sqlite|postgresql]

A script's own directory is searched first for modules, so whoever asks for the standard module `queue` from a script in
this directory gets this file: then it stands aside for that module.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import sysconfig
from pathlib import Path


def stand_aside() -> None:
    """Put the standard module in the place of this one."""
    file = Path(sysconfig.get_path("stdlib")) / "queue.py"
    spec = importlib.util.spec_from_file_location("queue", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import the standard module queue from {file}", name="queue")
    module = importlib.util.module_from_spec(spec)
    sys.modules["queue"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("run_queue.py")), run_name="__main__")
else:
    stand_aside()
