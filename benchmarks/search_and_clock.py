"""Cycles that the search expects of drawn programs, beside the clock of what is emitted of them.

    python benchmarks/search_and_clock.py [--count N] [--seed S] [--most P]

Models, layers, meshes, tokens and phases are drawn; of those whose program fits a WSE-2 in f16 the
cycles by which passes choose layouts (``meshc estimate``) stand beside those of the emitted program
(``--clock``). Nothing runs. Behind each ratio stands what both spend computing and on all else.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from statistics import mean

from meshc.cost.predictions import Prediction
from meshc.driver import CompileRequest, load_any
from meshc.driver.planning.wafers import MeshPhase, phase_on_mesh
from meshc.support.diagnostics import Diagnostics, MeshcError

MODELS = (
    "smollm2-135m", "llama-3-8b", "llama-2-7b", "llama-2-13b", "codellama-34b", "qwen2.5-72b",
    "llama-3.3-70b",
)  # fmt: skip
LAYERS = (1, 2, 3)
TOKENS = (64, 256, 1024, 4096)
HEAD = ("model", "phase", "mesh", "layers", "tokens", "search", "clock", "ratio")
LEAST = 8
"""The shortest side of a mesh."""


def drawn(count: int, seed: int, most: int) -> Iterator[MeshPhase]:
    """So many phases whose programs fit, on meshes with sides of up to ``most``."""
    chance, found = random.Random(seed), 0
    loaded = {name: load_any(name, Diagnostics()) for name in MODELS}
    while found < count:
        name, phase = chance.choice(MODELS), chance.choice(("decode", "decode", "prefill"))
        sides = [round(LEAST * (most / LEAST) ** chance.random()) for _ in range(2)]
        columns, rows = (sides[0], sides[0]) if chance.random() < 0.5 else sides
        request = CompileRequest(
            device="wse2",
            mesh=f"{min(columns, 750)}x{rows}",
            layers=chance.choice(LAYERS),
            seq=chance.choice(TOKENS),
            dtype="f16",
        )
        one = MeshPhase(loaded[name], phase, request)
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
        asked.mesh,
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
    options = parser.parse_args()
    print(" | ".join([*HEAD, "computing: search, clock", "else: search, clock"]))
    ratios = []
    for phase in drawn(options.count, options.seed, options.most):
        ratio, cells = row(phase)
        ratios.append(ratio)
        print(" | ".join(map(str, cells)), flush=True)
    errors = [abs(ratio - 1) for ratio in ratios]
    print(f"{len(errors)} programs: mean error {mean(errors):.0%}, largest {max(errors):.0%}")


if __name__ == "__main__":
    main()
