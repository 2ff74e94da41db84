"""Cycles of decode steps whose requests go through regions of a wafer one behind another.

    python benchmarks/csl_batches.py [--json]

Small llamas with f16 weights and f32 sums on the fabric simulator, random weights, every request at
the last position of its caches. A region *idles* in the cycles of a step in which it works on no
request: those of the step, less as many times the cycles that it takes for one request as there are
requests. What it takes for one is read off a step of a single request: from when the region before
is through to when it is itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from measuring import table

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.inputs import RandomArrays
from meshc.sim.emitted_runs import compile_folder, host_names
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics

MODEL = """\
use blocks
model small(E={dim}, H={heads}, G={groups}, D={lanes}, F={ffn}, V={vocabulary}, layers={layers}) {{
  weights f16  accumulate f32
  param last[E], head[E, V]
  main(x[B, L, E]) -> [B, L, V] {{
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down)
    }}
    return rms_norm(x, last) @ head
  }}
}}
"""


@dataclass(frozen=True)
class Shape:
    """A model and the mesh that it is dealt to."""

    mesh: str
    device: str
    layers: int
    dim: int
    heads: int
    groups: int
    lanes: int
    ffn: int
    vocabulary: int
    seq: int = 32


SHAPES = (
    Shape("r=2,y=4,x=4", "wse3", 4, 64, 4, 2, 16, 128, 64),
    Shape("r=3,y=3,x=4", "wse3", 6, 48, 4, 2, 12, 96, 48),
    Shape("r=3,y=2,x=2", "wse2", 3, 32, 2, 1, 16, 64, 512),
    Shape("y=4,x=4", "wse3", 2, 64, 4, 2, 16, 128, 64),
)
BATCHES = (2, 3, 4)


@dataclass(frozen=True)
class Step:
    """A step of ``batch`` requests: its cycles, those predicted, and when each region ends."""

    shape: Shape
    batch: int
    cycles: int
    predicted: int
    ends: tuple[int, ...]


def step(shape: Shape, batch: int) -> Step:
    """Run a step of ``batch`` requests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = {k: v for k, v in asdict(shape).items() if k not in ("mesh", "device", "seq")}
        (folder / "small.mesh").write_text(MODEL.format(**sizes))
        asked = CompileRequest(
            target="csl", device=shape.device, mesh=shape.mesh, seq=shape.seq, phase="decode",
            dtype="f16", batch=batch,
        )  # fmt: skip
        loaded = load_any(str(folder / "small.mesh"), Diagnostics())
        compiled = compile_loaded(loaded, asked, (), Diagnostics())
        for path, text in compiled.files.items():
            (folder / path).write_text(text)
        compile_folder(folder, folder / "out")
        names = host_names(folder / "run.py", Options(strict_queues=True, files=False))
        (module,) = compiled.modules.values()
        given = RandomArrays(module, 1, {}, ("weight", "in"))
        program = names["Program"](str(folder / "out"), given.__getitem__)
        last = shape.seq - 1
        program.run(given.__getitem__, {"pos": [last] * batch if batch > 1 else last})
        by_region = program.spent.reshape(module.the_mesh().regions, -1).max(axis=1)
        predicted = json.loads(compiled.files["report.json"])["predicted_cycles"]
        program.stop()
        return Step(shape, batch, int(by_region.max()), predicted, tuple(map(int, by_region)))


def row(alone: Step, found: Step) -> tuple[str, ...]:
    """The line of a step beside that of one request ``alone``."""
    stages = np.diff([0, *alone.ends])
    idle = (found.cycles - found.batch * stages) / found.cycles
    return (
        f"`{found.shape.mesh}`, {found.shape.layers} layers of {found.shape.dim}, "
        f"{found.shape.device}",
        str(found.batch),
        f"{found.cycles:,}",
        f"{found.batch * alone.cycles:,}",
        f"{found.batch * alone.cycles / found.cycles:.2f}",
        f"{100 * found.predicted / found.cycles - 100:+.1f} %",
        ", ".join(f"{max(0.0, part):.0%}" for part in idle),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {shape: [step(shape, batch) for batch in (1, *BATCHES)] for shape in SHAPES}
    if options.json:
        print(json.dumps([asdict(one) for steps in found.values() for one in steps]))
        return
    header = (
        "regions and model", "requests", "cycles of a step", "one after the other", "times fewer",
        "predicted", "each region idles",
    )  # fmt: skip
    print(table(header, [row(steps[0], one) for steps in found.values() for one in steps]))


if __name__ == "__main__":
    main()
