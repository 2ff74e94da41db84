"""Cycles per prompt of one emitted prefill layer beside WaferLLM's hand-written Prefill.

    python benchmarks/compare_prefill.py DIR [--only P] [--sums f32] [--timing machine]
        [--untraced] [--json]

DIR is the folder ``Prefill`` of the published program, with its ``WSE-2``; nothing of it is kept.
Its host scripts need NumPy 1: when the installed one is newer, ``pip install --target FOLDER
'numpy<2'`` and ``--numpy FOLDER``. Both programs run on the fabric simulator at the same mesh, dims
and types: one layer, one head as wide as the model, all in f16, a prompt as long as the program has
room for. Theirs has the length of the prompt compiled in; ours is one program for every length up
to it. There is none of theirs for WSE-3, so ours on WSE-3 stands beside theirs on WSE-2.

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
    "sines and cosines (the host gives them, the same for all positions)",
    "the causal mask",
    "keys and values in a cache that decode continues",
    "the sum of the input and attention (a case that is never reached)",
    "the statistics of its rows in both norms, and of attention's sums (it scales columns by them)",
    "SiLU of the gate (it takes (1 + exp(-x)) / x, for as many cycles)",
)
REPEATS = 3  # prompts that theirs times, behind one that it does not
LAYERS = (
    Layer(8, 64, 64, 64),  # model_config/test.json
    Layer(8, 128, 256, 128),
    Layer(16, 128, 128, 128),
    Layer(16, 256, 512, 256),
)


def ours(layer: Layer, device: str, folder: Path, sums: str, simulator: Simulator) -> Found:
    """Run a prompt of all tokens that the program has room for."""
    whole = ["--len", str(layer.seq)]
    return emitted(layer, device, "prefill", whole, folder, sums, simulator)


def theirs(
    layer: Layer, given: Path, numpy: str | None, folder: Path, simulator: Simulator
) -> Found:
    """Run a copy of the published program."""
    copy = folder / "theirs"
    shutil.copytree(given / "WSE-2", copy)
    facts = {
        "P": layer.side, "dim": layer.dim, "n_heads": 1, "n_kv_heads": 1, "head_dim": layer.dim,
        "seq_len": layer.seq, "ffn_dim": layer.ffn,
    }  # fmt: skip
    (copy / "layer.json").write_text(json.dumps(facts))
    script = "bash ./run_sim.sh layer.json"
    return published(copy, script, "prefill_host", REPEATS + 1, numpy, folder, simulator)


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
        with tempfile.TemporaryDirectory() as name:
            other = theirs(layer, options.folder, options.numpy, Path(name), simulator)
        for device in ("wse2", "wse3"):
            with tempfile.TemporaryDirectory() as name:
                mine = ours(layer, device, Path(name), options.sums, simulator)
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
    header = ("mesh", "dim, ffn, prompt", "ours", PARTS, "theirs (WSE-2)", PARTS, "ratio")
    print(table(header, rows))
    print("\nTheirs leaves out:")
    for one in LEFT_OUT:
        print(f"- {one}")


if __name__ == "__main__":
    main()
