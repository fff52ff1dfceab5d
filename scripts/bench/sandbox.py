"""
How much longer a boxed process takes to start than a plain one, and a test suite to run.

    python scripts/bench/sandbox.py [--rounds 30] [--suites 15]

A start may take 15 ms more with landlock, 60 ms more with bubblewrap; a suite runs at 0.95 of its speed or better.
Starts are interleaved. Suites run in pairs, one in the box and one outside at the same time on the same CPU, so that
both meet the same machine: compared are the CPU time that each used, with all that it started, and the time it took.
Exit code 1: one takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import verdict

from adws.adw_modules.process.run import Sandbox, start_boxed
from adws.adw_modules.sandbox import bubblewrap, landlock, policy
from adws.adw_modules.sandbox.egress import EgressProxy

#: Least speed of a test suite in a box, as a share of its speed outside.
SPEED = 0.95
#: 400 tests that compute, read and write files, and a tenth of which start a process; then the seconds that they took,
#: of the clock and of the CPU.
SUITE = """\
import json, pathlib, resource, subprocess, sys, tempfile, time, unittest
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
began = time.perf_counter()
done = unittest.main(argv=["suite", "-q"], exit=False)
took = time.perf_counter() - began
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
if done.result.wasSuccessful():
    print(json.dumps([took, sum(one.ru_utime + one.ru_stime for one in used)]))
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


def seconds_of_start(box: Sandbox, place: Path) -> float:
    start = time.perf_counter()
    start_boxed(box, ("/bin/true",), cwd=place, env={"PATH": os.defpath}, seconds=30)

    return time.perf_counter() - start


def seconds_of_suite(box: Sandbox, place: Path, work: Path) -> tuple[float, float]:
    """Return how long the suite takes, and the CPU time that it uses."""
    folder = Path(tempfile.mkdtemp(dir=work))
    env = {"PATH": os.environ["PATH"], "HOME": str(place / "scratch"), "TMPDIR": str(folder)}
    python = str(Path(sys.executable).resolve())
    said, errors = start_boxed(box, (python, "-c", SUITE), cwd=work, env=env, seconds=300)
    if not said:
        raise SystemExit(f"the suite fails in {box.name}: {errors}")
    took, used = json.loads(said)

    return took, used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--suites", type=int, default=15)
    asked = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        for name in ("work", "scratch"):
            (place / name).mkdir()
        rules = policy.build(
            policy.Surroundings(home=Path.home(), env=os.environ), cwd=place / "work", scratch=place / "scratch"
        )
        plain, boxes = NoSandbox(), dict[str, Sandbox]()
        if landlock.abi():
            boxes["landlock"] = landlock.LandlockSandbox(rules, proxy_port=1)
        proxy = EgressProxy((), socket_path=place / "proxy")
        if bubblewrap.program():
            boxes["bubblewrap"] = bubblewrap.BubblewrapSandbox(rules, proxy_socket=place / "proxy")

        starts: dict[str, list[float]] = {name: [] for name in ("none", *boxes)}
        for _ in range(asked.rounds):
            for box in random.sample([plain, *boxes.values()], len(boxes) + 1):
                starts[box.name].append(seconds_of_start(box, place / "work"))
        for name in boxes:
            # What else the machine does only adds time: the faster quarter is nearest to what the box itself adds.
            more = statistics.quantiles(starts[name])[0] - statistics.quantiles(starts["none"])[0]
            failed |= not verdict.tell(f"{name} adds to a start", more * 1000, most=LIMITS[name], unit="ms")

        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in boxes}
        with ThreadPoolExecutor(2) as pool:
            for _ in range(asked.suites):
                for box in random.sample(list(boxes.values()), len(boxes)):
                    both = [pool.submit(seconds_of_suite, one, place, place / "work") for one in (plain, box)]
                    outside, inside = (one.result() for one in both)
                    pairs[box.name].append((outside[0] / inside[0], outside[1] / inside[1]))
        proxy.close()
        for name, ratios in pairs.items():
            for number, what in enumerate(("speed", "CPU speed")):
                speed = statistics.median(pair[number] for pair in ratios)
                failed |= not verdict.tell(f"{what} of a test suite in {name}", speed, least=SPEED)

    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
