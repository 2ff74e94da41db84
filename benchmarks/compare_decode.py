"""Cycles per token of one emitted decode layer beside WaferLLM's hand-written Decode.

    python benchmarks/compare_decode.py DIR [--only P] [--sums f32] [--timing machine]
        [--untraced] [--json]

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
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from layer_runs import (
    PARTS,
    Found,
    Layer,
    Simulator,
    asked_simulator,
    emitted,
    published,
    shares,
    simulator_flags,
)
from measuring import table

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


LAYERS = (
    Layer(8, 64, 64, 64, 2),  # model_config/test.json
    Layer(8, 128, 256, 128, 2),
    Layer(16, 128, 128, 128, 4),
    Layer(16, 256, 512, 256, 4),
)


def ours(layer: Layer, device: str, folder: Path, sums: str, simulator: Simulator) -> Found:
    """Run the step behind a full cache."""
    last = ["--pos", str(layer.seq - 1)]
    return emitted(layer, device, "decode", last, folder, sums, simulator)


def theirs(
    layer: Layer, device: str, given: Path, numpy: str | None, folder: Path, simulator: Simulator
) -> Found:
    """Run a copy of the published program."""
    copy = folder / "theirs"
    shutil.copytree(given / {"wse2": "WSE-2", "wse3": "WSE-3"}[device], copy)
    host = copy / "launch_sim.py"
    text = host.read_text()
    for as_published, counts in THEIR_COUNTS.items():
        text = text.replace(as_published, counts)
    host.write_text(text)
    facts = {
        "P": layer.side, "group_num": layer.groups, "bsz": 1, "dim": layer.dim, "n_heads": 1,
        "n_kv_heads": 1, "head_dim": layer.dim, "seq_len": layer.seq, "ffn_dim": layer.ffn,
    }  # fmt: skip
    (copy / "layer.json").write_text(json.dumps(facts))
    # the last command of their script removes files that only a cluster leaves
    script = "bash ./run_sim.sh layer.json || test -d out"
    return published(copy, script, "decode_host", REPEATS + 1, numpy, folder, simulator)


def _row(layer: Layer, device: str, mine: Found, other: Found) -> tuple[str, ...]:
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
    simulator_flags(parser)
    options = parser.parse_args()
    simulator = asked_simulator(options)
    found, rows = [], []
    for layer in LAYERS:
        if options.only not in (None, layer.side):
            continue
        for device in ("wse2", "wse3"):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                mine = ours(layer, device, folder, options.sums, simulator)
                other = theirs(layer, device, options.folder, options.numpy, folder, simulator)
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
    header = ("mesh", "dim, ffn, cache", "ours", PARTS, "theirs", PARTS, "ratio")
    print(table(header, rows))
    print("\nTheirs leaves out:")
    for one in LEFT_OUT:
        print(f"- {one}")


if __name__ == "__main__":
    main()
