"""One layer of a transformer on the fabric simulator: emitted here, or written by others.

Cycles are those that the programs themselves measure; where they go is read off a trace of the
whole run, as the mean over PEs.
"""

from __future__ import annotations

import argparse
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
from meshc.sim.timing import DEFAULT, MODELS

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
class Simulator:
    """Whose cycles a run takes, and whether it is traced, which takes more time and memory."""

    timing: str = DEFAULT
    traced: bool = True


@dataclass(frozen=True)
class Found:
    """Cycles per token or prompt, and where they go (of a run that was traced)."""

    cycles: float
    where: Split | None


def emitted(
    layer: Layer,
    device: str,
    phase: str,
    scalar: Sequence[str],
    folder: Path,
    sums: str = "f16",
    simulator: Simulator = Simulator(),
) -> Found:
    """Compile a ``phase`` for a device, give random weights, and run it once with a ``scalar``
    (an option of its host); products sum in the element type ``sums``."""
    source, program = folder / "layer.mesh", folder / "ours"
    source.write_text(LAYER.format(dim=layer.dim, ffn=layer.ffn, layers=1, sums=sums))
    mesh = f"{layer.side}x{layer.side}"
    words = [sys.executable, "-m", "meshc", "compile", str(source), "--target", "csl"]
    words += ["--device", device, "--mesh", mesh, "--seq", str(layer.seq), "--dtype", "f16"]
    words += ["--phase", phase, "-o", str(program)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return run_program(program, device, scalar, folder, simulator=simulator)


def run_program(
    program: Path,
    device: str,
    scalar: Sequence[str],
    folder: Path,
    rows: int | None = None,
    simulator: Simulator = Simulator(),
) -> Found:
    """Run a compiled layer once with random weights; its input ``x`` has so many rows (default: as
    many as there is room for)."""
    (program / "data").mkdir()
    generator = np.random.default_rng(0)
    for name, shape in json.loads((program / "report.json").read_text())["inputs"].items():
        drawn = generator.standard_normal(shape) / np.sqrt(shape[-1])
        drawn = drawn[:, :rows] if name == "x" else drawn
        np.save(program / "data" / f"{name}.npy", drawn.astype(np.float32))
    commands, trace = _commands(folder / "our_bin", simulator)
    command = ["bash", f"commands_{device}.sh", *scalar]
    cycles = cycles_printed(command, program, OUR_CYCLES, commands)
    return Found(cycles, split(read_trace(trace), "run") if simulator.traced else None)


def published(
    copy: Path,
    script: str,
    task: str,
    repeats: int,
    numpy: str | None,
    folder: Path,
    simulator: Simulator = Simulator(),
) -> Found:
    """Run ``script`` in a ``copy`` of a program that prints the mean cycles of its timed repeats.
    ``repeats`` are all that begin with ``task``, those that are not timed included; ``numpy`` is
    a folder with the NumPy that its host needs."""
    commands, trace = _commands(folder / "their_bin", simulator)
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
    if not simulator.traced:
        return Found(cycles, None)
    whole = split(read_trace(trace), task)
    mean = (each / repeats for each in (whole.compute, whole.transfer, whole.waiting))
    return Found(cycles, Split(*mean))


def shares(found: Found) -> str:
    """Where cycles go, in the order of :data:`PARTS`."""
    where = found.where
    if where is None:
        return "not traced"
    return f"{where.compute:.0f} + {where.transfer:.0f} + {where.waiting:.0f}"


def simulator_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a command line that :func:`asked_simulator` reads."""
    parser.add_argument("--timing", choices=MODELS, default=DEFAULT, help="whose cycles")
    parser.add_argument("--untraced", action="store_true", help="cycles alone, not where they go")


def asked_simulator(options: argparse.Namespace) -> Simulator:
    """The simulator that the flags ask for."""
    return Simulator(options.timing, not options.untraced)


def _commands(folder: Path, simulator: Simulator) -> tuple[str, Path]:
    """Stand-in commands of a ``simulator``, and where they write a trace."""
    trace = folder / "trace.json"
    traced = ["--trace", str(trace)] if simulator.traced else []
    return str(make_bin(folder, ["--timing", simulator.timing, *traced])), trace
