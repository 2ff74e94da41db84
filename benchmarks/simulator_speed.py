"""PE-cycles per second of the CSL simulator with both back ends, or on several threads.

    python benchmarks/simulator_speed.py DIRECTORY [--backends c,python] [--json] -- COMMAND...
    python benchmarks/simulator_speed.py DIRECTORY --backends c:1,c:2 -- COMMAND...

Runs COMMAND, a command line as in the program's own scripts, in a scratch copy of DIRECTORY with
the stand-ins for `cslc` and `cs_python` on PATH, once per back end. Only the time in which the
machine runs counts, in seconds of the processor, all threads together; compiling generated C and
host code do not. The rate on several threads, c:2 say, is by the clock, which is of use where so
many processors are free. A PE-cycle is one simulated cycle of one PE. Prints the rates and
their ratio; the cycles must be equal. Generated C is cached, so that a first run also compiles it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from measuring import MIB, peak_bytes, table

from meshc.sim import cs_python
from meshc.sim.commands_folder import make_bin
from meshc.sim.host import host_operations

RUNNING = ("run_until_unblocked", "run_until_received", "run_until_sent", "run_for", "run_to_rest")
SCRIPT = '#!/bin/sh\nexec "{python}" "{me}" --inside "{backend}" "{records}" "$@"\n'


@dataclass(frozen=True)
class Speed:
    """All simulations of one back end together; ``seconds`` are those of the running machine, of
    the processor, and ``clock_seconds`` by the clock."""

    backend: str
    simulations: int
    cycles: int
    pe_cycles: int
    seconds: float
    clock_seconds: float
    wall_seconds: float
    peak_bytes: int

    @property
    def rate(self) -> float:
        """PE-cycles per second."""
        seconds = self.clock_seconds if ":" in self.backend else self.seconds
        return self.pe_cycles / seconds if seconds else 0.0


class Stopwatch:
    """Adds up the time in which a machine runs."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.seconds = self.clock_seconds = 0.0
        for name in RUNNING:
            setattr(machine, name, self._timed(getattr(machine, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start, clock = process_time(), perf_counter()
            try:
                return method(*args)
            finally:
                self.seconds += process_time() - start
                self.clock_seconds += perf_counter() - clock

        return call


def inside(backend: str, records: str, args: Sequence[str]) -> int:
    """Take the place of ``cs_python`` and write a line for each simulation."""
    watches: list[Stopwatch] = []
    make: Any = host_operations.make_machine  # type: ignore[attr-defined]

    def timed(*given: Any) -> Any:
        watches.append(Stopwatch(make(*given)))
        return watches[-1].machine

    host_operations.make_machine = timed  # type: ignore[assignment, attr-defined]
    kind, _, threads = backend.partition(":")
    code = cs_python.main(["--backend", kind, "--threads", threads or "1", *args])
    with open(records, "a", encoding="utf-8") as out:
        for watch in watches:
            pes, cycles = len(watch.machine.pes), watch.machine.cycles
            times = watch.seconds, watch.clock_seconds
            out.write(json.dumps([pes, cycles, *times, peak_bytes()]) + "\n")
    return code


def measure(directory: Path, command: Sequence[str], backend: str) -> Speed:
    """Run the command with one back end. Raises RuntimeError when it fails."""
    with tempfile.TemporaryDirectory(prefix="simulator-speed-") as scratch:
        copy, records = Path(scratch) / "copy", Path(scratch) / "records"
        shutil.copytree(directory, copy)
        folder = make_bin(Path(scratch) / "bin")
        (folder / "cs_python").write_text(
            SCRIPT.format(
                python=sys.executable, me=Path(__file__).resolve(), backend=backend, records=records
            ),
            encoding="utf-8",
        )
        env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
        start = perf_counter()
        done = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, check=False
        )
        wall = perf_counter() - start
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
        found = [json.loads(line) for line in records.read_text().splitlines()]
    return Speed(
        backend,
        len(found),
        sum(cycles for _, cycles, *_ in found),
        sum(pes * cycles for pes, cycles, *_ in found),
        sum(seconds for _, _, seconds, *_ in found),
        sum(clock for *_, clock, _ in found),
        wall,
        max((peak for *_, peak in found), default=0),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the back ends disagree about cycles."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["--inside"]:
        return inside(given[1], given[2], given[3:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--backends", default="c,python")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(given)
    speeds = [measure(args.directory, args.command, b) for b in args.backends.split(",")]
    equal = len({(s.simulations, s.cycles) for s in speeds}) == 1
    ratio = speeds[0].rate / speeds[-1].rate if speeds[-1].rate else 0.0
    if args.json:
        rows = [{**asdict(s), "rate": s.rate} for s in speeds]
        print(json.dumps({"speeds": rows, "ratio": ratio, "cycles_equal": equal}, indent=1))
        return 0 if equal else 1
    print(table(
        ("back end", "simulations", "cycles", "PE-cycles", "s running", "s by clock",
         "M PE-cycles/s", "s wall", "peak MiB"),
        [(s.backend, s.simulations, s.cycles, s.pe_cycles, f"{s.seconds:.2f}",
          f"{s.clock_seconds:.2f}", f"{s.rate / 1e6:.2f}", f"{s.wall_seconds:.1f}",
          s.peak_bytes // MIB) for s in speeds],
    ))  # fmt: skip
    if len(speeds) > 1:
        print(f"{speeds[0].backend} is {ratio:.1f} times {speeds[-1].backend}; cycles are "
              f"{'equal' if equal else 'DIFFERENT'}")  # fmt: skip
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
