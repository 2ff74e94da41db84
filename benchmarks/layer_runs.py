"""One layer of a transformer on the fabric simulator: emitted here, or written by others.

Cycles are those that the programs themselves measure; where they go is read off a trace of the
whole run, as the mean over PEs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed

from meshc.sim.commands_folder import make_bin
from meshc.sim.profile import Split, read_trace, split

LAYER = """\
use blocks
model layer(E={dim}, H=1, D={dim}, F={ffn}, layers={layers}) {{
  weights f16  accumulate {sums}
  main(x[B, L, E]) -> [B, L, E] {{
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, H, D], wv[E, H, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down)
    }}
    return x
  }}
}}
"""
PARTS = "compute + transfer + waiting"


@dataclass(frozen=True)
class Layer:
    """A square mesh of ``side``, and the dims of the layer; ``seq`` tokens of a cache or prompt.
    ``groups`` are those of two-phase sums, where the other program has them."""

    side: int
    dim: int
    ffn: int
    seq: int
    groups: int = 1


@dataclass(frozen=True)
class Found:
    """Cycles per token or prompt, and where they go."""

    cycles: float
    where: Split


def emitted(
    layer: Layer,
    device: str,
    phase: str,
    scalar: Sequence[str],
    folder: Path,
    layers: int = 1,
    sums: str = "f16",
) -> Found:
    """Compile a ``phase`` for a device, give random weights, and run it once with a ``scalar``
    (an option of its host); products sum in the element type ``sums``."""
    source, program = folder / "layer.mesh", folder / "ours"
    source.write_text(LAYER.format(dim=layer.dim, ffn=layer.ffn, layers=layers, sums=sums))
    mesh = f"{layer.side}x{layer.side}"
    words = [sys.executable, "-m", "meshc", "compile", str(source), "--target", "csl"]
    words += ["--device", device, "--mesh", mesh, "--seq", str(layer.seq), "--dtype", "f16"]
    words += ["--phase", phase, "-o", str(program)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return run_program(program, device, scalar, folder)


def run_program(
    program: Path, device: str, scalar: Sequence[str], folder: Path, rows: int | None = None
) -> Found:
    """Run a compiled layer once with random weights; its input ``x`` has so many rows (default: as
    many as there is room for)."""
    (program / "data").mkdir()
    generator = np.random.default_rng(0)
    for name, shape in json.loads((program / "report.json").read_text())["inputs"].items():
        drawn = generator.standard_normal(shape) / np.sqrt(shape[-1])
        drawn = drawn[:, :rows] if name == "x" else drawn
        np.save(program / "data" / f"{name}.npy", drawn.astype(np.float32))
    commands, trace = _traced(folder / "our_bin")
    command = ["bash", f"commands_{device}.sh", *scalar]
    cycles = cycles_printed(command, program, OUR_CYCLES, commands)
    return Found(cycles, split(read_trace(trace), "run"))


def published(
    copy: Path, script: str, task: str, repeats: int, numpy: str | None, folder: Path
) -> Found:
    """Run ``script`` in a ``copy`` of a program that prints the mean cycles of its timed repeats.
    ``repeats`` are all that begin with ``task``, those that are not timed included; ``numpy`` is
    a folder with the NumPy that its host needs."""
    commands, trace = _traced(folder / "their_bin")
    before = os.environ.get("PYTHONPATH")
    if numpy:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [numpy, before]))
    try:
        pattern = r"[Mm]ean cycles? count: ([0-9.]+)"
        cycles = cycles_printed(["bash", "-c", script], copy, pattern, commands)
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
    whole = split(read_trace(trace), task)
    mean = (each / repeats for each in (whole.compute, whole.transfer, whole.waiting))
    return Found(cycles, Split(*mean))


def shares(found: Found) -> str:
    """Where cycles go, in the order of :data:`PARTS`."""
    where = found.where
    return f"{where.compute:.0f} + {where.transfer:.0f} + {where.waiting:.0f}"


def _traced(folder: Path) -> tuple[str, Path]:
    """Stand-in commands that write a trace, and where."""
    trace = folder / "trace.json"
    return str(make_bin(folder, ["--trace", str(trace)])), trace
