"""Time per decoded token: the emitted distributed program against plain dense NumPy.

    python benchmarks/decode_speed.py [--mesh 8x8] [--tokens 24] [--rounds 3] [--json]

Compiles SmolLM2-135M, loads the emitted program into this process and lets it and a dense decoder
of the same weights generate in turn. Both are float32 and use the BLAS of the same NumPy; the
tokens must be equal. On a machine that does other work too, set OPENBLAS_NUM_THREADS=1: threads
that wait for each other make the times of both meaningless.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from dense_llama import DenseLlama
from measuring import MIB, peak_bytes, table

from meshc.backends.python import load_program
from meshc.driver import CompileRequest, compile_loaded, find_weights, load_any, open_weights
from meshc.support.diagnostics import Diagnostics
from meshc.support.output import write_directory

MODEL = "smollm2-135m"
PROMPT = (504, 3575, 282, 4649, 314)  # "The capital of France is"
CAPACITY = 128
MOST_RATIO = 2.0
Gap = tuple[float, float]
MOST_BYTES = 3 * 10**9


@dataclass(frozen=True)
class Decoding:
    """Medians over all gaps between tokens of all rounds, in seconds."""

    mesh: str
    tokens: int
    rounds: int
    compile_seconds: float
    load_seconds: float
    mesh_seconds_per_token: float
    dense_seconds_per_token: float
    mesh_quartiles: tuple[float, float]
    dense_quartiles: tuple[float, float]
    mesh_cpu_per_token: float
    dense_cpu_per_token: float
    mesh_peak_bytes: int
    tokens_equal: bool

    @property
    def ratio(self) -> float:
        return self.mesh_seconds_per_token / self.dense_seconds_per_token

    @property
    def cpu_ratio(self) -> float:
        return self.mesh_cpu_per_token / self.dense_cpu_per_token


class Stopwatch:
    """Gaps between calls of :meth:`lap`, by the clock and in processor time of all threads."""

    def __init__(self) -> None:
        self.laps: list[tuple[float, float]] = []

    def lap(self, *_: object) -> None:
        self.laps.append((perf_counter(), process_time()))

    def gaps(self) -> list[Gap]:
        return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self.laps)]


def measure(mesh: str, tokens: int, rounds: int) -> Decoding:
    """Compile, load, and time both decoders in turn."""
    report = Diagnostics()
    started = perf_counter()
    loaded = load_any(MODEL, report)
    compiled = compile_loaded(loaded, CompileRequest(mesh=mesh, seq=CAPACITY))
    compile_seconds = perf_counter() - started
    place = find_weights(MODEL, None, None)
    assert place is not None and loaded.config is not None
    tensors = open_weights(place, loaded.config, None, report)
    started = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_directory(Path(folder) / "program", compiled.files, compiled.facts)
        program = load_program(Path(folder) / "program").load(tensors)
    load_seconds = perf_counter() - started
    ours, _ = _round(program, tokens)
    # Taken before the dense decoder has weights of its own.
    peak = peak_bytes()
    dense = DenseLlama(loaded.config, tensors, CAPACITY)
    theirs, _ = _round(dense, tokens)
    mesh_gaps, dense_gaps = list[Gap](), list[Gap]()
    for _ in range(rounds):
        mesh_gaps += _round(program, tokens)[1]
        dense_gaps += _round(dense, tokens)[1]
    mesh_wall, mesh_cpu = zip(*mesh_gaps, strict=True)
    dense_wall, dense_cpu = zip(*dense_gaps, strict=True)
    return Decoding(
        mesh,
        tokens,
        rounds,
        compile_seconds,
        load_seconds,
        statistics.median(mesh_wall),
        statistics.median(dense_wall),
        _quartiles(mesh_wall),
        _quartiles(dense_wall),
        statistics.median(mesh_cpu),
        statistics.median(dense_cpu),
        peak,
        ours == theirs,
    )


def _round(decoder: Any, tokens: int) -> tuple[list[int], list[Gap]]:
    watch = Stopwatch()
    found: list[int] = decoder.generate(PROMPT, tokens, watch.lap)
    return found, watch.gaps()


def _quartiles(gaps: Sequence[float]) -> tuple[float, float]:
    first, _, third = statistics.quantiles(gaps, n=4)
    return first, third


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mesh", default="8x8", help="columns x rows, default 8x8")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.mesh, args.tokens, args.rounds)
    if args.json:
        print(
            json.dumps(
                asdict(found) | {"ratio": found.ratio, "cpu_ratio": found.cpu_ratio}, indent=1
            )
        )
        return
    print(f"{MODEL}, float32, {found.tokens} tokens x {found.rounds} rounds, capacity {CAPACITY}\n")
    rows = [
        _row(
            f"mesh {found.mesh}",
            found.mesh_seconds_per_token,
            found.mesh_quartiles,
            found.mesh_cpu_per_token,
        ),
        _row(
            "dense NumPy",
            found.dense_seconds_per_token,
            found.dense_quartiles,
            found.dense_cpu_per_token,
        ),
    ]
    print(table(["decoder", "median per token", "quartiles", "CPU time"], rows))
    print(f"\nratio {found.ratio:.2f} (limit {MOST_RATIO}), of CPU time {found.cpu_ratio:.2f}")
    print(
        f"peak memory with the mesh program loaded {found.mesh_peak_bytes / MIB:.0f} MiB "
        f"(limit {MOST_BYTES / MIB:.0f})"
    )
    print(f"compile {found.compile_seconds:.1f} s, load {found.load_seconds:.1f} s")
    print("tokens equal" if found.tokens_equal else "TOKENS DIFFER")


def _row(name: str, median: float, quartiles: tuple[float, float], cpu: float) -> list[str]:
    low, high = (f"{q * 1e3:.1f}" for q in quartiles)
    return [name, f"{median * 1e3:.1f} ms", f"{low} .. {high} ms", f"{cpu * 1e3:.1f} ms"]


if __name__ == "__main__":
    main()
