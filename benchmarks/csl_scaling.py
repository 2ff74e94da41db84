"""How emitted CSL scales with the mesh: cycles on the fabric simulator beside predicted ones.

    python benchmarks/csl_scaling.py [--most 64] [--json] [--plot docs/images/csl_scaling.png]

*Shifts* are one step of a ring by itself: every core of a row sends 16 f16 to the rank below and
waits for what comes. In natural order the message that closes the ring crosses the whole row.
*Products* hold a 4 x 4 x 4 tile per core in f16, aligned by the host: MeshGEMM on interleaved axes,
Cannon on natural ones. *Reductions* are those of a matrix-vector product whose cores have 16 f16
each, along a column, to all cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed, stand_ins
from measuring import table

from meshc.analysis.layout.placement import ring_step
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.affine import AffineMap, Cond, Expr
from meshc.support.diagnostics import Diagnostics

TILE, WORDS = 4, 16
SHIFT = ("interleaved", "natural")
GEMM = ("cyclic_shift", "cannon")
REDUCE = ("pipeline", "k_tree:2", "k_tree:3")

PRODUCT = """\
model product(M={n}, K={n}, N={n}) {{
  weights f32  accumulate f16
  param w[K, N]
  main(x[M, K]) -> [M, N] {{ return x @ w }}
}}
"""
SUM = """\
model sum(M=1, K={size}, N={words}) {{
  weights f32  accumulate f16
  param w[K, N]
  main(x[M, K]) -> [M, N] {{ return x @ w }}
}}
"""


STEP = """\
module @step level(tile) {{
  dims X = {size}, I = {words}
  options dtype = f16
  mesh y = 1, x = {size}{order}
  buffer %a : f16[{words}] {{role = in}}
  buffer %b : f16[{words}] {{role = out}}
  channel @ring_x "{route}"
  port @a in f16[X, I] : %a {{lanes = [i], element = [x, i]}}
  port @b out f16[X, I] : %b {{lanes = [i], element = [x, i]}}
  program @main {{
    %sent = tile.send @ring_x, %a : token
    %got = tile.recv @ring_x, %b : token
    tile.wait %sent, %got
  }}
}}
"""


@dataclass(frozen=True)
class Point:
    """Cycles of one program on one mesh; ``steps`` is 1 for a reduction."""

    algorithm: str
    size: int
    steps: int
    simulated: float
    predicted: float

    @property
    def per_step(self) -> float:
        return self.simulated / self.steps

    @property
    def error(self) -> float:
        return self.predicted / self.simulated - 1


def step_text(order: str, size: int) -> str:
    """One step of the ring of a row as a tile-level module."""
    x, y = Expr.var("x"), Expr.var("y")
    if order == "interleaved":
        pieces = ring_step(size).substitute({"p": x}).pieces
    else:
        pieces = ((Cond.ge(x, 1), x - 1), (Cond.eq(x, 0), x + (size - 1)))
    route = AffineMap.of(("y", "x"), [((y, target), where) for where, target in pieces])
    ring = " interleaved" if order == "interleaved" else ""
    return STEP.format(size=size, words=WORDS, route=route, order=ring)


def program(algorithm: str, size: int) -> tuple[str, str, dict[str, Any]]:
    """Text and file name of a program, and options of its compile."""
    if algorithm in SHIFT:
        return step_text(algorithm, size), "program.meshir", {"mesh": f"{size}x1"}
    if algorithm in GEMM:
        options = {"mesh": f"{size}x{size}", "algo": (f"gemm={algorithm}",), "align": "host"}
        return PRODUCT.format(n=TILE * size), "program.mesh", options
    options = {"mesh": f"1x{size}", "algo": (f"all_reduce={algorithm}",)}
    return SUM.format(size=size, words=WORDS), "program.mesh", options


def measure(algorithm: str, size: int, device: str, commands: str) -> Point:
    """Compile, run on the simulator, read both cycle counts."""
    text, file_name, options = program(algorithm, size)
    request = CompileRequest(target="csl", device=device, dtype="f16", **options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / file_name
        source.write_text(text)
        report = Diagnostics()
        files = compile_loaded(load_any(str(source), report), request, (), report).files
        facts = json.loads(files["report.json"])
        for path, content in files.items():
            (folder / path).write_text(content)
        (folder / "data").mkdir()
        generator = np.random.default_rng(0)
        for tensor, shape in facts["inputs"].items():
            np.save(folder / "data" / f"{tensor}.npy", generator.random(shape, np.float32))
        script = ["bash", f"commands_{device}.sh"]
        cycles = cycles_printed(script, folder, OUR_CYCLES, commands)
    steps = size if algorithm in GEMM else 1
    return Point(algorithm, size, steps, cycles, facts["predicted_cycles"])


def plot(points: Sequence[Point], path: Path) -> None:
    """Cycles of a shift, per step of a product, of a reduction; lines are predictions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
    for axis, algorithms in zip(axes, (SHIFT, GEMM, REDUCE), strict=True):
        for name in algorithms:
            mine = [p for p in points if p.algorithm == name]
            sizes = [p.size for p in mine]
            (line,) = axis.plot(sizes, [p.predicted / p.steps for p in mine], label=name)
            axis.plot(sizes, [p.per_step for p in mine], "o", color=line.get_color())
        axis.set_xlabel("cores per side")
        axis.set_ylim(bottom=0)
        axis.legend(title="line: predicted, dots: simulated")
    axes[0].set_title("one shift of a ring by itself, cycles")
    axes[1].set_title("cycles per step of a product")
    axes[2].set_title(f"all-reduce of {WORDS} f16, cycles")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": ""})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=64, help="largest mesh, default 64")
    parser.add_argument("--device", default="wse2", choices=("wse2", "wse3"))
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    commands = stand_ins()
    sizes = [n for n in (4, 8, 16, 32, 48, 64) if n <= options.most]
    points = []
    for algorithm in (*SHIFT, *GEMM, *REDUCE):
        for size in sizes:
            points.append(measure(algorithm, size, options.device, commands))
            print(f"{algorithm} {size}", file=sys.stderr)
    if options.plot:
        plot(points, options.plot)
    if options.json:
        print(json.dumps([asdict(p) for p in points]))
        return
    rows = [
        (p.algorithm, p.size, f"{p.simulated:.0f}", f"{p.per_step:.0f}", f"{p.error:+.0%}")
        for p in points
    ]
    print(table(("algorithm", "mesh", "cycles", "per step", "prediction"), rows))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as problem:
        raise SystemExit(problem.stderr) from None
