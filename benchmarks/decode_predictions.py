"""Cycles per token that the compiler predicts for whole decode models, beside the simulator's.

    python benchmarks/decode_predictions.py [--count 40] [--seed 1] [--json]

Models are drawn at random: llama or qwen2, 1 to 3 layers, heads and groups, odd dims, element type,
KV policy, mesh, architecture, capacity and position. Weights are random numbers. No constant of the
model is fitted to any of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed, stand_ins
from measuring import table

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

LIMIT = 0.10
MESHES = ("1x2", "2x2", "3x2", "2x3", "4x2", "3x3", "4x4", "2x6", "5x3", "6x6", "8x4", "8x8")
REFUSED = {"does-not-fit", "csl-memory-full", "csl-regions"}
"""What a drawn model may be refused for, in words; another one is drawn in its place."""


@dataclass(frozen=True)
class Model:
    """A configuration and what it is compiled for."""

    family: str
    layers: int
    heads: int
    groups: int
    lanes: int
    width: int
    hidden: int
    vocabulary: int
    tied: bool
    dtype: str
    kv: str
    mesh: str
    device: str
    capacity: int
    position: int

    def config(self) -> dict[str, object]:
        """As a published checkpoint says it."""
        return {
            "model_type": self.family,
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "head_dim": self.lanes,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": 4096,
            "eos_token_id": 2,
        }


@dataclass(frozen=True)
class Point:
    """Predicted and simulated cycles of one token."""

    model: Model
    predicted: float
    simulated: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.simulated


def drawn(dice: random.Random) -> Model:
    """One random model."""
    groups = dice.choice((1, 1, 2, 3, 4))
    heads = groups * dice.choice((1, 1, 2, 3))
    lanes = dice.choice((4, 8, 16, 32))
    family = dice.choice(("llama", "qwen2"))
    capacity = dice.choice((8, 24, 48, 96, 200))
    return Model(
        family, dice.randint(1, 3), heads, groups, lanes,
        width=heads * lanes if family == "qwen2" else dice.randint(9, 120),
        hidden=dice.randint(10, 200), vocabulary=dice.randint(20, 300),
        tied=dice.random() < 0.5, dtype=dice.choice(("f16", "bf16", "f32")),
        kv=dice.choice(("cyclic", "shift", "concat")), mesh=dice.choice(MESHES),
        device=dice.choice(("wse2", "wse3")), capacity=capacity,
        position=dice.randrange(capacity),
    )  # fmt: skip


def measured(model: Model, commands: str) -> Point:
    """Compile, give random weights, run one step. Raises MeshcError for a model that is refused."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(model.config()))
        report = Diagnostics()
        loaded = load_any(str(folder), report)
        asked = CompileRequest(
            target="csl", device=model.device, mesh=model.mesh, dtype=model.dtype, kv=model.kv,
            seq=model.capacity, phase="decode",
        )  # fmt: skip
        compiled = compile_loaded(loaded, asked, (), report)
        for path, content in compiled.files.items():
            (folder / path).write_text(content)
        facts = json.loads(compiled.files["report.json"])
        (folder / "data").mkdir()
        generator = np.random.default_rng(0)
        for tensor, shape in facts["inputs"].items():
            numbers = generator.standard_normal(shape) / np.sqrt(shape[-1])
            np.save(folder / "data" / f"{tensor}.npy", numbers.astype(np.float32))
        script = ["bash", f"commands_{model.device}.sh", "--pos", str(model.position)]
        cycles = cycles_printed(script, folder, OUR_CYCLES, commands)
    return Point(model, facts["predicted_cycles"], cycles)


def points(seed: int, count: int, commands: str) -> list[Point]:
    """``count`` random models that a mesh takes."""
    dice, found = random.Random(seed), list[Point]()
    while len(found) < count:
        model = drawn(dice)
        try:
            found.append(measured(model, commands))
        except MeshcError as refusal:
            if not {d.code for d in refusal.diagnostics} <= REFUSED:
                raise
            print(f"{refusal.diagnostics[0].code} {model}", file=sys.stderr, flush=True)
            continue
        print(f"{found[-1].ratio:.3f} {model}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = sorted(points(options.seed, options.count, stand_ins()), key=lambda p: p.ratio)
    if options.json:
        print(json.dumps([asdict(point) for point in found]))
        return
    header = ("model", "layers", "heads", "type, cache", "mesh", "predicted", "simulated", "ratio")
    rows = []
    for point in found:
        model = point.model
        heads = f"{model.heads}/{model.groups} of {model.lanes}"
        cache = f"{model.dtype}, {model.kv} {model.capacity}"
        mesh, name = f"{model.device} {model.mesh}", f"{model.family} {model.width}, {model.hidden}"
        row = (name, model.layers, heads, cache, mesh, point.predicted, int(point.simulated))
        rows.append((*row, f"{point.ratio:.2f}"))
    print(table(header, rows))
    near = sum(abs(point.ratio - 1) <= LIMIT for point in found)
    print(f"\n{near} of {len(found)} within {LIMIT:.0%}")


if __name__ == "__main__":
    main()
