"""Cycles of the CSL simulator beside published measurements.

    python benchmarks/simulator_truth.py [--only WORDS] [--backend auto|python|c] [--json]

Each row is a minimal program of our own with the shape of what was measured: between two time
stamps, or from the log of its prints. A row that calibrates a constant of the cycle model says so;
all others are predictions. The error is the distance to the nearest end of what was measured.
Rows are of the vendor's simulator, those that name a CS-2 of the machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import truth_fabric as fabric
import truth_programs as programs
import truth_reductions as reductions
import truth_tasks as tasks
from measuring import table
from truth_programs import interval, on_the_machine, one, per_element, product, vectors
from truth_rounds import rounds

from meshc.sim.host.host_operations import OPTIONS
from meshc.sim.machine.run_options import Options


@dataclass(frozen=True)
class Row:
    """``simulate`` gives what ``low`` to ``high`` was measured for, in cycles unless named."""

    name: str
    low: float
    high: float
    kind: str
    simulate: Callable[[], float]


@dataclass(frozen=True)
class Result:
    name: str
    measured: str
    simulated: float
    error: float
    kind: str


MULTIPLY, ACCUMULATE = "@fmuls(dst, s0, s1);", "@fmacs(dst, s0, s1, 2.0);"
IN_A_CALL = """
var scale = @zeros([16]f32);
const scales = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{16} -> scale[i] });
fn step(factor: f32) void { @fmacs(dst, s0, s1, factor); }
"""
VECTORS = [
    Row("product 16x16x32 on 2x2 PEs", 9756, 9756, "calibrates", lambda: product(8, 8, 32)),
    Row("product 64x64x32", 88_795, 88_795, "predicted", lambda: product(32, 32, 32)),
    Row("product 16x16x128", 38_844, 38_844, "predicted", lambda: product(8, 8, 128)),
    Row("product 64x64x128", 357_853, 357_853, "predicted", lambda: product(32, 32, 128)),
    Row("@fmacs, destination stays in its bank, per element", 2.03, 2.03, "calibrates",
        lambda: per_element(ACCUMULATE, 4, 1)),
    Row("@fmacs, nothing conflicts, per element", 1.1, 1.2, "calibrates",
        lambda: per_element(ACCUMULATE, 1, 1)),
    Row("@fmacs of 32 in one bank group, per call", 68, 71, "predicted",
        lambda: interval(ACCUMULATE * 16, vectors(32, 0)) / 16),
    Row("the same called by @map", 68, 71, "calibrates",
        lambda: interval("@map(step, scales);", vectors(32, 0) + IN_A_CALL) / 16),
    Row("@fmuls of registers apart, n = 1028", 1034, 1034, "calibrates",
        lambda: interval(MULTIPLY, vectors(1028, 1))),
    Row("@fmuls of registers apart, n = 5124", 5130, 5130, "predicted",
        lambda: interval(MULTIPLY, vectors(5124, 1))),
    Row("@fmuls in one bank group, n = 1028", 2062, 2062, "predicted",
        lambda: interval(MULTIPLY, vectors(1028, 0))),
    Row("@fmuls in one bank group, n = 5124", 10_254, 10_254, "predicted",
        lambda: interval(MULTIPLY, vectors(5124, 0))),
    Row("one more register load from a variable", 27, 28, "calibrates", programs.register_load),
    Row("two descriptors built, not two bases written", 14, 14, "calibrates",
        programs.descriptors_per_iteration),
    Row("time stamp of a trace", 50, 54, "calibrates", programs.traced_time),
    Row("synchronous @fmovs of 64 words to the fabric", 66, 66, "predicted", programs.send),
    Row("one hop, wse2", 1, 1, "calibrates", lambda: tasks.hop("wse2")),
    Row("one hop, wse3", 2, 2, "calibrates", lambda: tasks.hop("wse3")),
    Row("one more PE in a pipelined chain, wse2", 6, 6, "calibrates",
        lambda: fabric.relay("wse2")),
    Row("one more PE in a pipelined chain, wse3", 9, 9, "calibrates",
        lambda: fabric.relay("wse3")),
    Row("one more element in a pipelined chain", 1, 1, "predicted", fabric.stream),
    Row("a chain of 15 that adds 128 f32, registers loaded, wse2", 317, 317, "predicted",
        lambda: fabric.loaded_chain("wse2")),
    Row("a chain of 15 that adds 128 f32, registers loaded, wse3", 343, 343, "predicted",
        lambda: fabric.loaded_chain("wse3")),
    Row("copy of 1024 f16 between stamps", 266, 266, "calibrates",
        lambda: one("@fmovh(d, a)", "f16", 1024)),
    Row("sum of 1024 f16 between stamps", 268, 268, "calibrates",
        lambda: one("@faddh(d, a, b)", "f16", 1024)),
    Row("scale of 1024 f16 between stamps", 267, 267, "calibrates",
        lambda: one("@fmulh(d, a, 2.0)", "f16", 1024)),
    Row("triad of 1024 f16 between stamps", 269, 269, "predicted",
        lambda: one("@fmach(d, a, b, 2.0)", "f16", 1024)),
    Row("scale of 512 f32 between stamps", 523, 523, "predicted",
        lambda: one("@fmuls(d, a, 2.0)", "f32", 512)),
    Row("@fmacs of 512 f32 between stamps", 524, 524, "calibrates",
        lambda: one("@fmacs(d, a, b, 2.0)", "f32", 512)),
    Row("copy of 1024 f16 between stamps, a CS-2", 384, 384, "calibrates",
        lambda: on_the_machine(lambda: one("@fmovh(d, a)", "f16", 1024))),
    Row("@fmacs of 512 f32 between stamps, a CS-2", 618, 618, "calibrates",
        lambda: on_the_machine(lambda: one("@fmacs(d, a, b, 2.0)", "f32", 512))),
    Row("from the sender's first line to the receiver's", 188, 188, "predicted",
        fabric.to_the_receiver),
    Row("from line to line of a data task that prints", 182, 182, "calibrates",
        fabric.between_lines),
    Row("one hop between receivers that print", 2, 2, "predicted", fabric.farther),
    Row("an all-reduce of a word in turns, 2x2 PEs, wse3", 735, 735, "calibrates",
        lambda: reductions.all_reduce(2, 2)),
    Row("the same, 8x8 PEs", 1282, 1282, "calibrates", lambda: reductions.all_reduce(8, 8)),
]  # fmt: skip
PUBLISHED_ROUNDS = [
    (3, "calibrates", 12, 17), (4, "predicted", 15, 21), (5, "predicted", 16, 23),
    (10, "predicted", 16, 23),
]  # fmt: skip
SCALARS = [
    Row("base of a product without its operations, 32 passes", 1.93, 2.11, "calibrates",
        lambda: programs.bases(32)),
    Row("the same, 128 passes", 11.05, 11.11, "calibrates", lambda: programs.bases(128)),
    Row("sparse product by coordinates without its operations, per nonzero", 34, 34, "calibrates",
        lambda: programs.per_nonzero("")),
    Row("sparse product by columns without its operations, 1,024 nonzeros", 34_553, 34_553,
        "calibrates", lambda: programs.by_columns("", 32)),
    Row("the same, 64 nonzeros", 2513, 2513, "predicted", lambda: programs.by_columns("", 8)),
    Row("sparse product by rows of 32 without its operations, 1,024 nonzeros", 34_719, 34_719,
        "predicted", lambda: programs.by_rows("", 32)),
    Row("f32 to i16", 100, 100, "calibrates", programs.to_integer),
    Row("f32 division", 50, 50, "calibrates", programs.division),
    Row("sparse product by coordinates, per nonzero", 110, 110, "predicted",
        lambda: programs.per_nonzero(programs.MULTIPLIED)),
    Row("sparse product by columns, 1,024 nonzeros", 115_544, 115_544, "predicted",
        lambda: programs.by_columns(programs.MULTIPLIED, 32)),
    Row("sparse product by rows of 32, 1,024 nonzeros", 112_703, 112_703, "predicted",
        lambda: programs.by_rows(programs.MULTIPLIED, 32)),
    Row("sparse product by rows of 8, 64 nonzeros", 6146, 6146, "predicted",
        lambda: programs.by_rows(programs.MULTIPLIED, 8)),
    Row("data task on WSE-3, per wavelet (below 20)", 0, 20, "predicted", programs.data_task),
    Row("from line to line around an asynchronous send", 28, 28, "predicted",
        fabric.around_a_send),
    Row("data task, block, send, unblock, per word, wse2", 9, 26, "predicted",
        lambda: tasks.relayed("wse2")),
    Row("data task, block, send, unblock, per word, wse3", 29, 29, "calibrates",
        lambda: tasks.relayed("wse3")),
    Row("word of a broadcast vector, a task each, wse2", 56, 56, "predicted",
        lambda: tasks.multiplied("wse2")),
    Row("word of a broadcast vector, a task each, wse3", 66, 66, "predicted",
        lambda: tasks.multiplied("wse3")),
    Row("wavelet of a data task that does little, wse3", 31, 31, "calibrates",
        lambda: tasks.taken("wse3")),
    Row("from a sender's task to its neighbour's, wse3", 28, 30, "predicted",
        lambda: tasks.to_the_neighbour("wse3")),
    *(
        Row(f"round of a stencil of a number per PE, {n}x{n}, {arch}", cycles, cycles, kind,
            lambda n=n, arch=arch: rounds(n, arch))
        for n, kind, *both in PUBLISHED_ROUNDS
        for arch, cycles in zip(("wse2", "wse3"), both, strict=True)
    ),
]  # fmt: skip
PUBLISHED_STENCILS = {  # cycles of the corner and of an inner PE
    ("wse2", 8): (1420, 1797), ("wse2", 16): (3495, 4140), ("wse2", 22): (7936, 8782),
    ("wse2", 32): (10_452, 11_501), ("wse2", 64): (33_374, 35_052),
    ("wse3", 8): (1582, 2034), ("wse3", 16): (3779, 4599), ("wse3", 22): (8300, 9395),
    ("wse3", 32): (10_787, 12_350), ("wse3", 64): (34_061, 36_679),
}  # fmt: skip


def _stencils() -> Iterator[Row]:
    """Stencils, with halos by data tasks; those of 16, 22 and 64 calibrate the bank groups,
    data tasks, moved descriptors and operations of 32 bits."""
    for (arch, n), cycles in PUBLISHED_STENCILS.items():
        kind = "calibrates" if n in (16, 22, 64) else "predicted"
        for place, (who, measured) in enumerate(zip(("corner", "inner PE"), cycles, strict=True)):
            yield Row(
                f"stencil of {n}x{n} a PE, {who}, {arch}", measured, measured, kind,
                lambda n=n, arch=arch, place=place: fabric.stencil(n, arch, place),
            )  # fmt: skip


LANES = [  # elements per cycle on WSE-2 and on WSE-3, by the vendor's table
    ("@mov16(d, a)", "u16", 4, 8), ("@mov32(d, a)", "u32", 2, 4),
    ("@add16(d, a, b)", "u16", 4, 8), ("@addc16(d, a, b)", "u16", 1, 8),
    ("@sll16(d, a, b)", "u16", 1, 4), ("@faddh(d, a, b)", "f16", 4, 8),
    ("@fmulh(d, a, b)", "f16", 4, 8), ("@fmach(d, a, b, 2.0)", "f16", 4, 8),
    ("@fmaxh(d, a, b)", "f16", 1, 8), ("@fadds(d, a, b)", "f32", 2, 4),
    ("@fsubs(d, a, b)", "f32", 2, 4), ("@fnegs(d, a)", "f32", 2, 4),
    ("@fmaxs(d, a, b)", "f32", 1, 4),
]  # fmt: skip
STRIDES = [(1, 4), (2, 4), (3, 4), (5, 4), (7, 2), (9, 2), (4, 2), (8, 1)]


def _lanes() -> Iterator[Row]:
    """Elements per cycle by type and architecture, and of u16 on WSE-2 by stride."""
    for call, kind, *rates in LANES:
        for arch, rate in zip(("wse2", "wse3"), rates, strict=True):
            yield Row(
                f"{call} per cycle, {arch}", rate, rate, "documented",
                lambda call=call, kind=kind, arch=arch: programs.lanes(call, kind, 1, arch),
            )  # fmt: skip
    for step, rate in STRIDES:
        yield Row(
            f"@mov16 at stride {step} per cycle, wse2", rate, rate, "documented",
            lambda step=step: programs.lanes("@mov16(d, a)", "u16", step, "wse2"),
        )  # fmt: skip


TASKS = [*SCALARS, *_stencils()]  # to 15 %; the others to 5 %
ROWS = [*VECTORS, *TASKS, *_lanes()]


def result_of(row: Row) -> Result:
    """A row with what the simulator says; an error of 0 lies within what was measured."""
    simulated = row.simulate()
    nearest = min(max(simulated, row.low), row.high)
    error = (simulated - nearest) / nearest if nearest else 0.0
    measured = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
    return Result(row.name, measured, round(simulated, 2), round(error, 4), row.kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="WORDS", default="", help="rows with these words")
    parser.add_argument("--backend", default="auto", choices=("auto", "python", "c"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    OPTIONS[0] = Options(backend=args.backend)
    results = [result_of(row) for row in ROWS if args.only in row.name]
    if args.json:
        print(json.dumps([asdict(r) for r in results], indent=1))
        return
    lines = [(r.name, r.measured, f"{r.simulated:g}", f"{r.error:+.1%}", r.kind) for r in results]
    print(table(("row", "measured", "simulated", "error", ""), lines))


if __name__ == "__main__":
    main()
