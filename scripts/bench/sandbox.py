"""
How much longer a boxed process takes to start than a plain one, in one interleaved run.

    python scripts/bench/sandbox.py [--rounds 30]

A start may take 15 ms more with landlock, 60 ms more with bubblewrap. Exit code 1: one takes longer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import verdict

from adws.adw_modules.process.run import Sandbox, start_boxed
from adws.adw_modules.sandbox import bubblewrap, landlock, policy
from adws.adw_modules.sandbox.egress import EgressProxy

#: Milliseconds.
LIMITS = {"landlock": 15.0, "bubblewrap": 60.0}


class NoSandbox:
    """The yardstick: the same start, without a box."""

    name = "none"
    confines_thread = False

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return argv

    def confine(self) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        for name in ("work", "scratch"):
            (place / name).mkdir()
        rules = policy.build(
            policy.Surroundings(home=Path.home(), env=os.environ), cwd=place / "work", scratch=place / "scratch"
        )
        boxes: dict[str, Sandbox] = {"none": NoSandbox()}
        if landlock.abi():
            boxes["landlock"] = landlock.LandlockSandbox(rules, proxy_port=1)
        proxy = EgressProxy((), socket_path=place / "proxy")
        if bubblewrap.program():
            boxes["bubblewrap"] = bubblewrap.BubblewrapSandbox(rules, proxy_socket=place / "proxy")
        taken: dict[str, list[float]] = {name: [] for name in boxes}
        for _ in range(rounds):
            for name, box in boxes.items():
                start = time.perf_counter()
                start_boxed(box, ("/bin/true",), cwd=place / "work", env={"PATH": os.defpath}, seconds=30)
                taken[name].append(time.perf_counter() - start)
        proxy.close()
    plain = statistics.median(taken["none"])
    failed = False
    for name, limit in LIMITS.items():
        if name in taken:
            more = (statistics.median(taken[name]) - plain) * 1000
            failed |= not verdict.tell(f"{name} adds to a start", more, most=limit, unit="ms")

    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
