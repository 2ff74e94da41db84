"""Cycles that the compiler predicts for whole models, beside the simulator's.

    python benchmarks/model_predictions.py [--draw any] [--most 24] [--count 40] [--seed 1] [--json]

Models are drawn at random: llama or qwen2, layers, heads and groups, odd dims, element type, KV
policy, mesh, architecture, capacity, and the position of the token whose step is run. Prompts are
as long as there is room for, which is what is predicted. With ``--most`` sides of meshes are up to
so many cores, half of that where layers lie in regions; else they are those of ``MESHES``. Weights
are random numbers. No constant of the model is fitted to any of them. The timing model is the
default one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt
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
    phase: str = "decode"

    @property
    def scalar(self) -> tuple[str, str]:
        """The option of the program's host that says where the token or the prompt ends."""
        if self.phase == "decode":
            return "--pos", str(self.position)
        return "--len", str(self.capacity)

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
    """Predicted and simulated cycles of one token, or of a prompt."""

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


def drawn_prompt(dice: random.Random) -> Model:
    """One random model that reads prompts."""
    return replace(drawn(dice), capacity=dice.choice((5, 8, 12, 24, 33)), phase="prefill")


def drawn_in_regions(dice: random.Random) -> Model:
    """One random model whose layers are dealt to two or three regions."""
    model, regions = drawn(dice), dice.choice((2, 3))
    columns, rows = dice.choice(MESHES[:8]).split("x")
    mesh = f"r={regions},y={rows},x={columns}"
    return replace(model, layers=max(model.layers, regions), mesh=mesh)


DRAWN = {"decode": drawn, "prefill": drawn_prompt, "regions": drawn_in_regions}
ANY = "any"
LEAST = 2
"""The shortest side of a mesh that ``--most`` draws."""


def on_larger_mesh(model: Model, dice: random.Random, most: int) -> Model:
    """``model`` on a mesh with sides of up to ``most`` cores, or half of that in regions."""
    regions, _, inner = model.mesh.partition(",")
    longest = most // 2 if inner else most
    columns, rows = (round(LEAST * (longest / LEAST) ** dice.random()) for _ in range(2))
    rows = columns if dice.random() < 0.5 else rows
    mesh = f"{regions},y={rows},x={columns}" if inner else f"{columns}x{rows}"
    return replace(model, mesh=mesh)


def compiled(model: Model, folder: Path) -> Mapping[str, str]:
    """The files of its program, by way of its configuration in ``folder``. Raises MeshcError for a
    model that is refused."""
    (folder / "config.json").write_text(json.dumps(model.config()))
    report = Diagnostics()
    asked = CompileRequest(
        target="csl", device=model.device, mesh=model.mesh, dtype=model.dtype, kv=model.kv,
        seq=model.capacity, phase=model.phase,
    )  # fmt: skip
    return compile_loaded(load_any(str(folder), report), asked, (), report).files


def tensors(files: Mapping[str, str]) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights and inputs for a program."""
    generator = np.random.default_rng(0)
    return {
        name: (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in json.loads(files["report.json"])["inputs"].items()
    }


def taken(model: Model, folder: Path) -> Mapping[str, str]:
    """The files of :func:`compiled`, or none where the model is refused for memory or regions."""
    try:
        return compiled(model, folder)
    except MeshcError as refusal:
        if not {d.code for d in refusal.diagnostics} <= REFUSED:
            raise
        return {}


def measured(model: Model, commands: str) -> Point | None:
    """Compile, give random weights, run one step or prompt; none where the model is refused."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = taken(model, folder)
        if not files:
            return None
        for path, content in files.items():
            (folder / path).write_text(content)
        (folder / "data").mkdir()
        for tensor, numbers in tensors(files).items():
            np.save(folder / "data" / f"{tensor}.npy", numbers)
        script = ["bash", f"commands_{model.device}.sh", *model.scalar]
        cycles = cycles_printed(script, folder, OUR_CYCLES, commands)
    return Point(model, json.loads(files["report.json"])["predicted_cycles"], cycles)


def points(kind: str, seed: int, count: int, commands: str, most: int | None) -> list[Point]:
    """``count`` random models that a mesh takes."""
    dice, found = random.Random(seed), list[Point]()
    while len(found) < count:
        model = DRAWN[dice.choice([*DRAWN]) if kind == ANY else kind](dice)
        if most is not None:
            model = on_larger_mesh(model, dice, most)
        point = measured(model, commands)
        said = "refused" if point is None else f"{point.ratio:.3f}"
        print(f"{said} {model}", file=sys.stderr, flush=True)
        if point is not None:
            found.append(point)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", choices=(*DRAWN, ANY), default="decode")
    parser.add_argument("--most", type=int, help="cores of the longest side of a mesh")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = points(options.draw, options.seed, options.count, stand_ins(), options.most)
    found.sort(key=lambda point: point.ratio)
    if options.json:
        print(json.dumps([asdict(point) for point in found]))
        return
    header = (
        "model",
        "layers",
        "heads",
        "type, cache",
        "phase, mesh",
        "predicted",
        "simulated",
        "ratio",
    )
    rows = []
    for point in found:
        model = point.model
        heads = f"{model.heads}/{model.groups} of {model.lanes}"
        cache = f"{model.dtype}, {model.kv} {model.capacity}"
        mesh = f"{model.phase}, {model.device} {model.mesh}"
        name = f"{model.family} {model.width}, {model.hidden}"
        row = (name, model.layers, heads, cache, mesh, point.predicted, int(point.simulated))
        rows.append((*row, f"{point.ratio:.2f}"))
    print(table(header, rows))
    errors = [abs(point.ratio - 1) for point in found]
    near = sum(error <= LIMIT for error in errors)
    print(f"\n{near} of {len(found)} within {LIMIT:.0%}, mean error {mean(errors):.1%}")


if __name__ == "__main__":
    main()
