"""Cycles that the search expects of drawn programs, beside the clock of what is emitted of them.

    python benchmarks/search_and_clock.py [--count N] [--seed S] [--most P] [--models NAME,..]

Models, mixtures of experts among them, layers, meshes, tokens, phases, wafers and types are drawn.
Of f32 functions of elements have no vector form. Of those whose program fits the cycles by which
passes choose layouts (``meshc estimate``) stand beside those of the emitted program (``--clock``).
Nothing runs. Behind each ratio stands what both spend computing and on all else.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from statistics import mean

from meshc.cost.predictions import Prediction
from meshc.driver import CompileRequest, load_any
from meshc.driver.planning.wafers import MeshPhase, phase_on_mesh
from meshc.support.diagnostics import Diagnostics, MeshcError

MODELS = (
    "smollm2-135m", "llama-3-8b", "llama-2-7b", "llama-2-13b", "codellama-34b", "qwen2.5-72b",
    "llama-3.3-70b", "qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b", "deepseek-v2-lite",
)  # fmt: skip
DEVICES = ("wse2", "wse3")
TYPES = ("f16", "f16", "f32")
LAYERS = (1, 2, 3)
TOKENS = (64, 256, 1024, 4096)
HEAD = (
    "model", "phase", "device", "dtype", "mesh", "layers", "tokens", "search", "clock", "ratio",
)  # fmt: skip
LEAST = 8
"""The shortest side of a mesh."""


def drawn(count: int, seed: int, most: int, models: Sequence[str]) -> Iterator[MeshPhase]:
    """So many phases of ``models`` whose programs fit, on meshes with sides of up to ``most``."""
    chance, found = random.Random(seed), 0
    loaded = {name: load_any(name, Diagnostics()) for name in models}
    while found < count:
        name, phase = chance.choice(models), chance.choice(("decode", "decode", "prefill"))
        sides = [round(LEAST * (most / LEAST) ** chance.random()) for _ in range(2)]
        columns, rows = (sides[0], sides[0]) if chance.random() < 0.5 else sides
        request = CompileRequest(
            device=chance.choice(DEVICES),
            mesh=f"{min(columns, 750)}x{rows}",
            layers=chance.choice(LAYERS),
            seq=chance.choice(TOKENS),
            dtype=chance.choice(TYPES),
        )
        one = MeshPhase(loaded[name], phase, request, trial=True)
        try:
            one.fit()
        except MeshcError:
            continue
        found += 1
        yield one


def row(phase: MeshPhase) -> tuple[float, list[object]]:
    """The ratio of both, and the cells of a row."""
    search, clock = (phase_on_mesh(phase, told).prediction for told in (False, True))
    assert search is not None and clock is not None
    asked = phase.request
    ratio = search.total / clock.total
    return ratio, [
        phase.loaded.name,
        phase.phase,
        asked.device_name,
        asked.dtype,
        asked.mesh_name,
        asked.layers,
        asked.seq,
        f"{search.total:,.0f}",
        f"{clock.total:,.0f}",
        f"{ratio:.2f}",
        f"{search.cost.compute:,.0f}, {clock.cost.compute:,.0f}",
        f"{_others(search):,.0f}, {_others(clock):,.0f}",
    ]


def _others(found: Prediction) -> float:
    return found.total - found.cost.compute


def main() -> None:
    """Print a row for each program and the errors of the search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=990)
    parser.add_argument("--models", default=",".join(MODELS), help="default: all of MODELS")
    options = parser.parse_args()
    print(" | ".join([*HEAD, "computing: search, clock", "else: search, clock"]))
    ratios = []
    for phase in drawn(options.count, options.seed, options.most, options.models.split(",")):
        ratio, cells = row(phase)
        ratios.append(ratio)
        print(" | ".join(map(str, cells)), flush=True)
    errors = [abs(ratio - 1) for ratio in ratios]
    print(f"{len(errors)} programs: mean error {mean(errors):.0%}, largest {max(errors):.0%}")


if __name__ == "__main__":
    main()
