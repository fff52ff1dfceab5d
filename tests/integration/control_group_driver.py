"""
Runs one command with limits below a control group as systemd delegates one; for test_control_groups.py.

`control_group_driver memory|processes`: prints below which group adw made its own, how the command ended, and which
groups are left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adws.adw_modules.clock import SystemClock
from adws.adw_modules.process.cgroup import usable_place
from adws.adw_modules.process.identity import SystemProcesses
from adws.adw_modules.process.run import CommandLine, Limits, run_process
from adws.adw_modules.redaction.redactor import Redactor
from tests.integration.process_lab import LabOrders, void

#: What is used up at once: 200 MB that are written to, and 300 processes.
COMMANDS = {
    "memory": "x = b'x' * 200_000_000; import signal; signal.pause()",
    "processes": "import os, signal\nfor _ in range(300):\n    os.fork() or signal.pause()\nsignal.pause()",
}


def main(kind: str) -> None:
    clock = SystemClock()
    end = run_process(
        CommandLine(
            argv=(sys.executable, "-I", "-S", "-c", COMMANDS[kind]),
            cwd=Path.cwd(),
            env={},
            limits=Limits(memory_bytes=64 * 2**20, processes=20),
        ),
        clock=clock,
        processes=SystemProcesses(clock=clock),
        orders=LabOrders(),
        record=void,
        redactor=Redactor(),
    )
    place = usable_place()
    left = sorted(path.name for path in place.iterdir() if path.is_dir()) if place is not None else []
    said = {"place": str(place), "exceeded": end.exceeded, "tail": end.tail, "left": left}
    sys.stdout.write(json.dumps({**said, "survivors": list(end.survivors)}))


if __name__ == "__main__":
    main(sys.argv[1])
