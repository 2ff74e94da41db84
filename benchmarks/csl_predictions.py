"""Cycles that ``meshc estimate`` predicts beside those that the fabric simulator takes.

    python benchmarks/csl_predictions.py [--count 60] [--seed 1] [--no-crossovers] [--json]

*Points* are products and matrix-vector products drawn at random: algorithm, mesh, sizes, element
types and architecture. No constant of the model is fitted to any of them: setups, lanes and scalar
costs are those of ``docs/sim.md``, and how programs spend them is counted in their text.

*Crossovers* are the smallest size at which one algorithm takes fewer cycles than another, found by
bisection twice, over predictions and over simulated cycles.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import csl_scaling
import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed, stand_ins
from measuring import table

from meshc.backends import csl
from meshc.driver.questions import GEMMS, GEMVS, Question, tile_module
from meshc.passes.manager import PassManager
from meshc.pipelines import resource_passes

TYPES = (("f16", "f16"), ("f16", "f32"), ("f32", "f32"))
MESHES = ("2x2", "3x3", "4x4", "5x5", "6x6", "8x8", "12x12", "4x6", "3x5", "6x4", "2x8")
COLUMNS = ("1x3", "1x4", "2x6", "1x8", "2x12", "1x16", "1x24")
LIMIT = 0.15


@dataclass(frozen=True)
class Point:
    """One program: what was asked, and both cycle counts."""

    algo: str
    question: Question
    predicted: float
    simulated: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.simulated


@dataclass(frozen=True)
class Crossing:
    """Where ``second`` overtakes ``first``: sizes predicted and simulated, None for never in range,
    and both counts of ``second`` over ``first`` at the sizes at the ends."""

    first: str
    second: str
    over: str
    predicted: int | None
    simulated: int | None
    ends: tuple[float, float, float, float]


@dataclass(frozen=True)
class Contest:
    """Two algorithms of one kind, over a size from ``low`` to ``high``."""

    kind: str
    first: str
    second: str
    over: str
    low: int
    high: int
    ask: Callable[[int], Question]


def _gemm(tile: int, side: int, device: str = "wse2") -> Question:
    n = tile * side
    return Question(n, n, n, f"{side}x{side}", device, "f16", "f16")


def _sum(
    words: int, cores: int, device: str = "wse2", types: tuple[str, str] = TYPES[2]
) -> Question:
    """A matrix-vector product that is all reduction: one row of the matrix on each core."""
    return Question(1, cores, words, f"1x{cores}", device, *types)


def _shift(cores: int) -> Question:
    """One step of a ring of the cores of a row."""
    return Question(1, 1, 1, f"{cores}x1", "wse2")


CONTESTS = (
    Contest("gemv", "pipeline", "k_tree:2", "cores, 8 f32", 4, 64, lambda p: _sum(8, p)),
    Contest("gemv", "pipeline", "k_tree:2", "cores, 32 f32", 4, 64, lambda p: _sum(32, p)),
    Contest("gemv", "k_tree:2", "pipeline", "f32, 16 cores", 2, 256, lambda w: _sum(w, 16)),
    Contest("gemv", "k_tree:2", "pipeline", "f32, 30 cores", 2, 256, lambda w: _sum(w, 30)),
    Contest("gemv", "k_tree:2", "ring", "f32, 4 cores", 8, 1536, lambda w: _sum(w, 4)),
    Contest("gemv", "k_tree:2", "ring", "f32, 8 cores", 8, 1024, lambda w: _sum(w, 8)),
    Contest("shift", "natural", "interleaved", "cores", 2, 48, _shift),
    Contest("gemm", "cyclic_shift", "cannon", "side, tile 4", 4, 24, lambda p: _gemm(4, p)),
    Contest("gemm", "cyclic_shift", "summa", "side, tile 8", 3, 20, lambda p: _gemm(8, p)),
    Contest("gemm", "summa", "cyclic_shift", "half tile, 4x4", 1, 12, lambda t: _gemm(2 * t, 4)),
    Contest(
        "gemm", "allgather", "cyclic_shift", "half tile, 4x4", 1, 12, lambda t: _gemm(2 * t, 4)
    ),
)


@cache
def measure(kind: str, algo: str, question: Question, commands: str) -> Point:
    """Compile, predict, run on the simulator."""
    if kind == "shift":
        cores = int(question.mesh.partition("x")[0])
        found = csl_scaling.measure(algo, cores, question.device, commands)
        return Point(algo, question, found.predicted, found.simulated)
    module = PassManager(resource_passes()).run(tile_module(question, kind, algo))
    files = csl.emit({"main": module})
    facts = json.loads(files["report.json"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).write_text(content)
        (folder / "data").mkdir()
        generator = np.random.default_rng(0)
        for tensor, shape in facts["inputs"].items():
            np.save(folder / "data" / f"{tensor}.npy", generator.random(shape, np.float32))
        script = ["bash", f"commands_{question.device}.sh"]
        cycles = cycles_printed(script, folder, OUR_CYCLES, commands)
    found = Point(algo, question, facts["predicted_cycles"], cycles)
    print(f"{algo} {question.mesh} {found.ratio:.2f}", file=sys.stderr)
    return found


def predicted(kind: str, algo: str, question: Question, commands: str) -> float:
    """Cycles of the prediction alone, where it can be had alone."""
    if kind == "shift":
        return measure(kind, algo, question, commands).predicted
    module = PassManager(resource_passes()).run(tile_module(question, kind, algo))
    found = csl.needs(module).predicted
    return 0.0 if found is None else float(found.cycles)


def drawn(seed: int, count: int) -> list[tuple[str, str, Question]]:
    """Random programs."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        kind = dice.choice(("gemm", "gemv"))
        algo = dice.choice(GEMMS if kind == "gemm" else GEMVS)
        mesh = dice.choice(MESHES if kind == "gemm" else COLUMNS)
        columns, rows = map(int, mesh.split("x"))
        device = dice.choice(("wse2", "wse3"))
        tile = [dice.choice((2, 3, 4, 6, 8, 12, 16)) for _ in range(3)]
        if kind == "gemm":
            m, k, n = (extent * max(columns, rows) for extent in tile)
        else:
            m, k = 1, rows * dice.choice((1, 4, 8, 16, 32))
            n = columns * dice.choice((1, 2, 5, 8, 16, 32, 64, 100))
        found.append((kind, algo, Question(m, k, n, mesh, device, *dice.choice(TYPES))))
    return found


def crossing(contest: Contest, commands: str) -> Crossing:
    """Both crossing points of a contest."""

    def simulated(algo: str, question: Question) -> float:
        return measure(contest.kind, algo, question, commands).simulated

    def model(algo: str, question: Question) -> float:
        return predicted(contest.kind, algo, question, commands)

    def ratio(cycles: Callable[[str, Question], float], size: int) -> float:
        question = contest.ask(size)
        return cycles(contest.second, question) / cycles(contest.first, question)

    points, ends = [], []
    for cycles in (model, simulated):
        low, high = contest.low, contest.high
        ends += [ratio(cycles, low), ratio(cycles, high)]
        points.append(_bisected(lambda size, c=cycles: ratio(c, size) < 1, low, high))
    return Crossing(
        contest.first, contest.second, contest.over, points[0], points[1],
        (ends[0], ends[2], ends[1], ends[3]),
    )  # fmt: skip


def _bisected(overtaken: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest size at which ``overtaken`` holds; None when it does not at ``high``."""
    if overtaken(low):
        return low
    if not overtaken(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if overtaken(middle) else (middle, high)
    return high


def _point_row(point: Point) -> tuple[object, ...]:
    ask = point.question
    return (
        point.algo, f"{ask.m} x {ask.k} x {ask.n}", ask.mesh, ask.device,
        f"{ask.dtype}, {ask.accumulate}", f"{point.predicted:.0f}", f"{point.simulated:.0f}",
        f"{point.ratio:.2f}",
    )  # fmt: skip


def _crossing_row(found: Crossing) -> tuple[object, ...]:
    low, low_measured, high, high_measured = (f"{end:.2f}" for end in found.ends)
    return (
        f"{found.second} under {found.first}", found.over, found.predicted or "never",
        found.simulated or "never", f"{low}, {low_measured}", f"{high}, {high_measured}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60, help="points, default 60")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-crossovers", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = stand_ins()
    points = [measure(*one, commands) for one in drawn(options.seed, options.count)]
    contests = () if options.no_crossovers else CONTESTS
    crossings = [crossing(contest, commands) for contest in contests]
    if options.json:
        found = {
            "points": [asdict(p) for p in points],
            "crossovers": [asdict(c) for c in crossings],
        }
        print(json.dumps(found))
        return
    points.sort(key=lambda p: p.ratio)
    header = (
        "algorithm",
        "M x K x N",
        "mesh",
        "device",
        "types",
        "predicted",
        "simulated",
        "ratio",
    )
    print(table(header, [_point_row(p) for p in points]))
    near = sum(abs(p.ratio - 1) <= LIMIT for p in points)
    print(f"\n{near} of {len(points)} within {LIMIT:.0%}\n")
    header = ("crossover", "over", "predicted", "simulated", "ratios at first", "ratios at last")
    print(table(header, [_crossing_row(c) for c in crossings]))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.stderr)
