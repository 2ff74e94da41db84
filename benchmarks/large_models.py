"""Steps of large models on as few H200 as hold them: memory, predicted times, what compiling takes.

    python benchmarks/large_models.py [--seq 4096] [--batch 1 --batch 8 ..] [MODEL ..]

Each program is compiled in a process of its own, for 1, 2, 4, 8 GPUs until one fits; weights are of
16 bits or stay as the model is published (gpt-oss in MXFP4, DeepSeek-V3 in fp8). A time is what the
event model predicts of a step behind full caches (docs/step-times.md), and is held against what the
bytes of the step take at the rate of the device's file. Nothing is run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import meshc
from meshc.backends.cuda import from_json
from meshc.backends.cuda.memory import memory_of
from meshc.backends.cuda.step_times import step_with_full_caches
from meshc.support.diagnostics import MeshcError

CONFIGS = Path(__file__).parents[1] / "tests" / "data" / "real_configs"
MODELS = {
    "qwen3-30b-a3b": ("qwen3-30b-a3b", ""),
    "qwen3-235b-a22b": ("qwen3-235b-a22b", ""),
    "gpt-oss-20b": ("gpt-oss-20b", "mxfp4"),
    "gpt-oss-120b": (str(CONFIGS / "gpt-oss-120b.json"), "mxfp4"),
    "mixtral-8x7b": ("mixtral-8x7b", ""),
    "deepseek-v2-lite": ("deepseek-v2-lite", ""),
    "deepseek-v3": (str(CONFIGS / "deepseek-v3.json"), "e4m3_128"),
    "gemma-2-27b": (str(CONFIGS / "gemma-2-27b.json"), ""),
    "olmo-2-32b": (str(CONFIGS / "olmo-2-32b.json"), ""),
    "llama-3.3-70b": ("llama-3.3-70b", ""),
}
"""What ``meshc compile`` takes, and the format in which weights stay that can."""
GPUS = (1, 2, 4, 8, 16)


def compiled(name: str, gpus: int, batch: int, seq: int) -> dict[str, Any]:
    """What a compile in this process gives, and takes: processor seconds and bytes of memory."""
    model, form = MODELS[name]
    kept = (f"all={form}?",) if form else ()
    try:
        found = meshc.compile(
            model, target="cuda", device="h200", phase="decode",
            gpus=gpus, batch=batch, seq=seq, keep_quantised=kept,
        )  # fmt: skip
    except MeshcError as refusal:
        return {"refused": refusal.diagnostics[0].code}
    time = step_with_full_caches(found.modules["decode"])
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "gigabytes": memory_of(from_json(found.files["manifest.json"])).total / 1e9,
        "milliseconds": None if time is None else time.seconds * 1e3,
        "ratio": None if time is None else time.ratio,
        "limit": "" if time is None else time.limit,
        "seconds": spent.ru_utime + spent.ru_stime,
        "megabytes": spent.ru_maxrss / 1e3,
    }


def elsewhere(*asked: object) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", *map(str, asked)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def row(name: str, batches: Sequence[int], seq: int) -> list[str]:
    """The cells of a model."""
    found = gpus = None
    for gpus in GPUS:
        found = elsewhere(name, gpus, batches[0], seq)
        if found.get("refused") != "does-not-fit":
            break
    assert found is not None
    if "refused" in found:
        return [name, MODELS[name][1] or "16 bits", f"`{found['refused']}`"]
    tried = [found, *(elsewhere(name, gpus, batch, seq) for batch in batches[1:])]
    cells = [name, MODELS[name][1] or "16 bits", f"{gpus} x {found['gigabytes']:.1f} GB"]
    for one in tried:
        if "refused" in one:
            cells.append(f"`{one['refused']}`")
        elif one["milliseconds"] is None:
            cells.append("not predicted")
        else:
            cells.append(f"{one['milliseconds']:.2f} ms ({one['ratio']:.2f}, {one['limit']})")
    done = [one for one in tried if "refused" not in one]
    seconds, megabytes = (max(one[key] for one in done) for key in ("seconds", "megabytes"))
    return [*cells, f"{seconds:.1f} s, {megabytes:.0f} MB"]


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *numbers = options.one
        print(json.dumps(compiled(name, *map(int, numbers))))
        return
    batches = options.batch or [1, 8, 16]
    steps = [f"batch {batch}" for batch in batches]
    header = ["model", "weights", "GPUs and memory of each", *steps, "compiling at the most"]
    for cells in (header, ["---"] * len(header)):
        print("|", " | ".join(cells), "|", flush=True)
    for name in options.models or MODELS:
        print("|", " | ".join(row(name, batches, options.seq)), "|", flush=True)


if __name__ == "__main__":
    main()
