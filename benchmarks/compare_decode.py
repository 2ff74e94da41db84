"""Cycles per token of one emitted decode layer beside WaferLLM's hand-written Decode.

    python benchmarks/compare_decode.py DIR [--only P] [--sums f32] [--json]

DIR is the folder ``Decode`` of the published program, with its ``WSE-2`` and ``WSE-3``; nothing of
it is kept. Its host scripts need NumPy 1: when the installed one is newer, ``pip install --target
FOLDER 'numpy<2'`` and ``--numpy FOLDER``. Both programs run on the fabric simulator at the same
mesh, dims and types: one layer, one head as wide as the model, all in f16, a cache that is full.
Cycles are those that the programs themselves measure; where they go is read off a trace of the
whole run, as the mean over PEs.

What theirs leaves out of a layer is listed in ``LEFT_OUT``; ours computes all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed
from measuring import table

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
LEFT_OUT = (
    "sines and cosines of the position (the host gives them)",
    "the new key and value in the cache",
    "exp (a polynomial of degree 4 in its place, (1 + x/256)^4)",
    "SiLU of the gate (applied to the other factor, and to dim/P of its ffn/P elements)",
    "the norm of x (its squares are scaled) and the mask",
)
REPEATS = 10  # tokens that theirs times, behind one that it does not
# Their host for WSE-3 times nothing as published: it hands over both counts in the wrong order.
THEIR_COUNTS = {
    "np.int16(repeat_steps), np.int16(warmup_steps)": "np.int16(1), np.int16(repeat_steps)",
    "repeat_steps = 1\n": f"repeat_steps = {REPEATS}\n",
}


@dataclass(frozen=True)
class Layer:
    """A square mesh of ``side`` and the dims of the layer; ``groups`` of their two-phase sums."""

    side: int
    dim: int
    ffn: int
    seq: int
    groups: int


LAYERS = (
    Layer(8, 64, 64, 64, 2),  # model_config/test.json
    Layer(8, 128, 256, 128, 2),
    Layer(16, 128, 128, 128, 4),
    Layer(16, 256, 512, 256, 4),
)


@dataclass(frozen=True)
class Found:
    """Cycles per token, and where they go."""

    cycles: float
    where: Split


def ours(layer: Layer, device: str, folder: Path, layers: int = 1, sums: str = "f16") -> Found:
    """Compile, give random weights, run the step behind a full cache."""
    source, program = folder / "layer.mesh", folder / "ours"
    source.write_text(LAYER.format(dim=layer.dim, ffn=layer.ffn, layers=layers, sums=sums))
    mesh = f"{layer.side}x{layer.side}"
    words = [sys.executable, "-m", "meshc", "compile", str(source), "--target", "csl"]
    words += ["--device", device, "--mesh", mesh, "--seq", str(layer.seq), "--dtype", "f16"]
    words += ["--phase", "decode", "-o", str(program)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    (program / "data").mkdir()
    generator = np.random.default_rng(0)
    for name, shape in json.loads((program / "report.json").read_text())["inputs"].items():
        drawn = generator.standard_normal(shape) / np.sqrt(shape[-1])
        np.save(program / "data" / f"{name}.npy", drawn.astype(np.float32))
    commands, trace = _traced(folder / "our_bin")
    command = ["bash", f"commands_{device}.sh", "--pos", str(layer.seq - 1)]
    cycles = cycles_printed(command, program, OUR_CYCLES, commands)
    return Found(cycles, split(read_trace(trace), "run"))


def theirs(layer: Layer, device: str, given: Path, numpy: str | None, folder: Path) -> Found:
    """Run a copy of the published program."""
    copy = folder / "theirs"
    shutil.copytree(given / {"wse2": "WSE-2", "wse3": "WSE-3"}[device], copy)
    host = copy / "launch_sim.py"
    text = host.read_text()
    for published, counts in THEIR_COUNTS.items():
        text = text.replace(published, counts)
    host.write_text(text)
    facts = {
        "P": layer.side, "group_num": layer.groups, "bsz": 1, "dim": layer.dim, "n_heads": 1,
        "n_kv_heads": 1, "head_dim": layer.dim, "seq_len": layer.seq, "ffn_dim": layer.ffn,
    }  # fmt: skip
    (copy / "layer.json").write_text(json.dumps(facts))
    commands, trace = _traced(folder / "their_bin")
    # the last command of their script removes files that only a cluster leaves
    script = "bash ./run_sim.sh layer.json || test -d out"
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
    whole = split(read_trace(trace), "decode_host")
    tokens = REPEATS + 1
    mean = Split(whole.compute / tokens, whole.transfer / tokens, whole.waiting / tokens)
    return Found(cycles, mean)


def _traced(folder: Path) -> tuple[str, Path]:
    """Stand-in commands that write a trace, and where."""
    trace = folder / "trace.json"
    return str(make_bin(folder, ["--trace", str(trace)])), trace


def _row(layer: Layer, device: str, mine: Found, other: Found) -> tuple[str, ...]:
    def shares(found: Found) -> str:
        where = found.where
        return f"{where.compute:.0f} + {where.transfer:.0f} + {where.waiting:.0f}"

    return (
        f"{device} {layer.side}x{layer.side}", f"{layer.dim}, {layer.ffn}, {layer.seq}",
        f"{mine.cycles:.0f}", shares(mine), f"{other.cycles:.0f}", shares(other),
        f"{other.cycles / mine.cycles:.2f}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--numpy", metavar="FOLDER", help="where NumPy 1 is, for their scripts")
    parser.add_argument("--only", type=int, metavar="P", help="meshes of P x P alone")
    parser.add_argument("--sums", choices=("f16", "f32"), default="f16", help="of our products")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, rows = [], []
    for layer in LAYERS:
        if options.only not in (None, layer.side):
            continue
        for device in ("wse2", "wse3"):
            with tempfile.TemporaryDirectory() as name:
                mine = ours(layer, device, Path(name), sums=options.sums)
                other = theirs(layer, device, options.folder, options.numpy, Path(name))
            found.append(
                {
                    "device": device, **asdict(layer), "ours": asdict(mine),
                    "theirs": asdict(other), "ratio": other.cycles / mine.cycles,
                }
            )  # fmt: skip
            rows.append(_row(layer, device, mine, other))
            print(*rows[-1], sep=" | ", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
        return
    parts = "compute + transfer + waiting"
    header = ("mesh", "dim, ffn, cache", "ours", parts, "theirs", parts, "ratio")
    print(table(header, rows))
    print("\nTheirs leaves out:")
    for one in LEFT_OUT:
        print(f"- {one}")


if __name__ == "__main__":
    main()
