"""Time until the first token of a prompt: emitted distributed programs against transformers.

    python benchmarks/prompt_speed.py [--mesh 1x1 --mesh 8x8] [--tokens 256] [--seq 512]
                                      [--rounds 5] [--json]

Compiles SmolLM2-135M for each mesh, loads the emitted programs into this process and lets them and
the same model in transformers (float32, its own choice of attention, logits of the last token
alone) read a drawn prompt in turn; the first tokens must be equal. Needs torch and transformers
(extra ``oracle``). Both sides have one thread: set OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Times, interleaved, table

import meshc
from meshc.driver import find_weights, load_any, open_weights
from meshc.support.diagnostics import Diagnostics

sys.path.append(str(Path(__file__).parents[1] / "tools" / "oracle"))
from hf_model import hf_model

MODEL = "smollm2-135m"
LEAST_SHARES = {"1x1": 0.9, "8x8": 0.45}
"""Of the speed of transformers, the least that is asked of a mesh."""


def measure(meshes: list[str], tokens: int, seq: int, rounds: int) -> dict[str, Times]:
    """Times of transformers and of each mesh, by name; raises ``ValueError`` if tokens
    differ."""
    report = Diagnostics()
    config = load_any(MODEL, report).config
    place = find_weights(MODEL, None, None)
    assert place is not None and config is not None
    tensors = open_weights(place, config, None, report)
    prompt = np.random.default_rng(0).integers(5, config.vocab, tokens).tolist()
    judge = hf_model(tensors.checkpoint)
    judge.set_attn_implementation("sdpa")
    readers: dict[str, Any] = {"transformers": partial(_first_of_judge, judge, prompt)}
    for mesh in meshes:
        program = meshc.compile(MODEL, mesh=mesh, seq=seq).load(tensors)
        readers[mesh] = partial(_first, program, prompt)
    found = {name: read() for name, read in readers.items()}
    if len(set(found.values())) > 1:
        raise ValueError(f"first tokens differ: {found}")
    return dict(zip(readers, interleaved(list(readers.values()), rounds), strict=True))


@torch.no_grad()
def _first_of_judge(model: Any, prompt: list[int]) -> int:
    logits = model(torch.tensor([prompt]), logits_to_keep=1, use_cache=True).logits
    return int(logits[0, -1].argmax())


def _first(program: Any, prompt: list[int]) -> int:
    return int(program.generate(prompt, 1).tokens[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mesh", action="append", help="columns x rows, default 1x1 and 8x8")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seq", type=int, default=512, help="tokens that caches have room for")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    times = measure(args.mesh or list(LEAST_SHARES), args.tokens, args.seq, args.rounds)
    theirs = times["transformers"]
    rows = [
        {
            "reader": name,
            "seconds": taken.wall_median,
            "cpu_seconds": taken.cpu_median,
            "speed": theirs.wall_median / taken.wall_median,
            "cpu_speed": theirs.cpu_median / taken.cpu_median,
            "asked": LEAST_SHARES.get(name),
        }
        for name, taken in times.items()
    ]
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{MODEL}, float32, a prompt of {args.tokens}, caches of {args.seq}\n")
    head = ["reader", "median", "CPU time", "speed of transformers", "of CPU time", "asked"]
    print(table(head, [_row(row) for row in rows]))


def _row(row: dict[str, Any]) -> list[str]:
    times = [f"{row[key] * 1e3:.0f} ms" for key in ("seconds", "cpu_seconds")]
    shares = [f"{row[key]:.2f}" for key in ("speed", "cpu_speed")]
    return [row["reader"], *times, *shares, str(row["asked"] or "")]


if __name__ == "__main__":
    main()
