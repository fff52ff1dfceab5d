"""
How much longer a boxed process takes to start than a plain one, and a test suite to run, in one interleaved run.

    python scripts/bench/sandbox.py [--rounds 30] [--suites 15]

A start may take 15 ms more with landlock, 60 ms more with bubblewrap; a suite runs at 0.95 of its speed or better.
Exit code 1: one takes longer.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import verdict

from adws.adw_modules.process.run import Sandbox, start_boxed
from adws.adw_modules.sandbox import bubblewrap, landlock, policy
from adws.adw_modules.sandbox.egress import EgressProxy

#: Least speed of a test suite in a box, as a share of its speed outside.
SPEED = 0.95
#: 400 tests that compute, read and write files, and a tenth of which start a process.
SUITE = """\
import json, pathlib, subprocess, tempfile, unittest
def made(number):
    def test(self):
        with tempfile.TemporaryDirectory() as place:
            for name in range(10):
                path = pathlib.Path(place, f"{name}.json")
                path.write_text(json.dumps(list(range(500))))
                self.assertEqual(sum(json.loads(path.read_text())), 124750)
        if number % 10 == 0:
            subprocess.run(["git", "--version"], check=True, capture_output=True)
        self.assertGreater(sum(one * one for one in range(20000)), 0)
    return test
T = type("T", (unittest.TestCase,), {f"test_{number}": made(number) for number in range(400)})
"""
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
    parser.add_argument("--suites", type=int, default=15)
    asked = parser.parse_args()
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
        for _ in range(asked.rounds):
            for name, box in boxes.items():
                start = time.perf_counter()
                start_boxed(box, ("/bin/true",), cwd=place / "work", env={"PATH": os.defpath}, seconds=30)
                taken[name].append(time.perf_counter() - start)
        (place / "work" / "test_suite.py").write_text(SUITE)
        suites: dict[str, list[float]] = {name: [] for name in boxes}
        argv = (str(Path(sys.executable).resolve()), "-m", "unittest", "-q", "test_suite")
        for _ in range(asked.suites):
            # Whoever comes first in a round meets the machine as the last round left it, so the order is drawn.
            for name, box in random.sample(list(boxes.items()), len(boxes)):
                start = time.perf_counter()
                env = {"PATH": os.environ["PATH"], "HOME": str(place / "scratch"), "TMPDIR": str(place / "work")}
                _, said = start_boxed(box, argv, cwd=place / "work", env=env, seconds=300)
                if "OK" not in said:
                    raise SystemExit(f"the suite fails in {name}: {said}")
                suites[name].append(time.perf_counter() - start)
        proxy.close()
    plain = statistics.median(taken["none"])
    failed = False
    for name, limit in LIMITS.items():
        if name in taken:
            more = (statistics.median(taken[name]) - plain) * 1000
            failed |= not verdict.tell(f"{name} adds to a start", more, most=limit, unit="ms")
            # What else the machine does only adds time, by more than the box may: so of the faster quarter of the runs.
            speed = statistics.quantiles(suites["none"])[0] / statistics.quantiles(suites[name])[0]
            failed |= not verdict.tell(f"speed of a test suite in {name}", speed, least=SPEED)

    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
