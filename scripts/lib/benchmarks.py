"""
Run the benchmarks and write down on docs/benchmarks.md what each measured, beside what was asked for.

Each is a process of its own and measures itself and its yardstick in one run; here its lines are read. The page says of
every limit whether it is met: a machine that is busy with other things spoils the numbers, so run it on a quiet one.

Use: benchmarks.py [--quick] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"
PAGE = ROOT / "docs" / "benchmarks.md"
sys.path[:0] = [str(BENCH), str(ROOT / "scripts" / "lib")]

import soak  # noqa: E402 - found by the path above
import verdict  # noqa: E402 - the same

#: benchmark -> what it compares, and its arguments when a quick look will do
BENCHMARKS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cli_startup": ("how long commands take to start", ("--rounds", "5")),
    "sandbox": ("how much longer a boxed process takes to start", ("--rounds", "5")),
    "state_write": ("what a durable step costs, and a page of a list", ("--rounds", "100")),
    "steps": ("workflows of nine phases, beside other durable engines", ("--rounds", "2", "--batch", "5")),
    "queue": ("the run queue on both databases", ("--rounds", "100", "--latency-rounds", "20", "--idle-seconds", "5")),
    "recovery": ("recovery of many workflows whose worker died", ("--workflows", "100")),
    "webhook": ("taking a webhook delivery", ("--rounds", "2", "--requests", "50")),
    "dashboard": (
        "pages of the dashboard with many workflows beside few",
        ("--few", "200", "--many", "2000", "--rounds", "5"),
    ),
    "loop": ("iterations of a loop on both databases, and their memory", ("--iterations", "500", "--rounds", "1")),
}
#: Benchmarks that keep what they install for next time.
WITH_ENVIRONMENT = ("steps", "loop")
#: Seconds after which a benchmark is taken as hanging.
PATIENCE = 3600.0
#: Lines of its complaints that are shown of a benchmark without a result.
LAST_LINES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of one benchmark."""

    name: str
    exit_code: int
    output: str
    seconds: float

    @property
    def verdicts(self) -> list[verdict.Verdict]:
        """Its comparisons with a limit."""
        return verdict.verdicts_in(self.output)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/all", description="Run the benchmarks and write the page.")
    parser.add_argument("--quick", action="store_true", help="measure less; writes no page")
    parser.add_argument("--only", nargs="+", choices=tuple(BENCHMARKS), help="run these; writes no page")
    given = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    results = [run(name, quick=given.quick) for name in given.only or BENCHMARKS]
    if not given.quick and not given.only:
        PAGE.write_text(page(results, load=load), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    missed = [one.what for result in results for one in result.verdicts if not one.is_met]
    broken = [result.name for result in results if not result.verdicts]
    print(f"{len(missed)} limits not met{': ' if missed else ''}{'; '.join(missed)}")
    if broken:
        print(f"without a result: {', '.join(broken)}")

    return 1 if missed or broken else 0


def run(name: str, *, quick: bool) -> Result:
    """Run one benchmark, showing its lines as they come."""
    print(f"\n=== {name}: {BENCHMARKS[name][0]}", flush=True)
    command = [sys.executable, str(BENCH / f"{name}.py"), *(BENCHMARKS[name][1] if quick else ())]
    if name in WITH_ENVIRONMENT:
        command += ["--environment", str(Path(tempfile.gettempdir()) / f"adw-bench-{name}")]
    os.sync()  # what somebody else left to be written would be written while this one measures its disk
    started, lines = time.monotonic(), []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
        process.wait(timeout=PATIENCE)
        errors.seek(0)
        said = errors.read().splitlines(keepends=True)[-LAST_LINES:]
    if not verdict.verdicts_in("".join(lines)):  # then what it complained about matters
        print("".join(said), end="", file=sys.stderr, flush=True)
        lines += said

    return Result(name=name, exit_code=process.returncode, output="".join(lines), seconds=time.monotonic() - started)


def page(results: Sequence[Result], *, load: float) -> str:
    """Return docs/benchmarks.md."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **{name: value for name, value in soak.machine().items() if name not in ("root", "strace")},
        "load before it began": f"{load:.2f}",
        **soak.versions(),
    }
    rows = [
        (f"`{result.name}`", one.what, one.measured, one.asked, "met" if one.is_met else "**not met**")
        for result in results
        for one in result.verdicts
    ]
    broken = "".join(
        f"`{result.name}` gave no result (exit code {result.exit_code}): its output is below.\n\n"
        for result in results
        if not result.verdicts
    )
    outputs = "\n".join(
        f"## {result.name}\n\n{BENCHMARKS[result.name][0].capitalize()}; {result.seconds:.0f} s.\n\n"
        f"```text\n{result.output.rstrip()}\n```\n"
        for result in results
        if not result.verdicts
    )
    machine = "; ".join(f"{name}: {value}" for name, value in facts.items())

    return (
        f"""# Benchmarks

<!-- Made by scripts/bench/all: run it again instead of changing this page. -->

Each benchmark measures adw and its yardstick in turns in one run, so that other load slows both: the ratio counts.
`scripts/bench/all` runs all of them and writes this page; the scripts in `scripts/bench/` explain what they measure.

Machine and versions: {machine}.

{soak.table(("Benchmark", "What", "Measured", "Asked for", "Verdict"), rows)}

{broken}{outputs}""".rstrip()
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
