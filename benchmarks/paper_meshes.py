"""Tokens per second predicted for models and meshes of the WaferLLM paper, beside its figures.

    python benchmarks/paper_meshes.py [--model NAME] [--phase PHASE] [--side P] [--layers N]

Nothing runs: cycles are those of the clock of emitted CSL for WSE-2 in f16, with caches or prompts
of 4,096 tokens, at the device's clock. Where a mesh does not hold all layers of a model, those that
it holds are counted, or ``--layers`` of them, and each one more takes what the last of them does;
of prompts one layer is counted. Cycles of the timing model ``machine`` are those of the default one
and half as many again for steps that move 16 bits: no other constant differs for these programs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

from measuring import table

from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

TOKENS = 4096
PUBLISHED = {
    ("llama-3-8b", "decode"): {420: 2699.9, 540: 2501.5, 660: 2243.3},
    ("llama-2-13b", "decode"): {420: 2039.2, 540: 1899.4, 660: 1739.8},
    ("llama-3-8b", "prefill"): {480: 20320.6, 600: 25037.2, 720: 27686.5},
    ("llama-2-13b", "prefill"): {480: 13685.1, 600: 16854.2, 720: 17498.3},
}
"""Tokens per second of a request (WaferLLM, tables 3 and 4), by the side of the mesh."""
MOVED = ("copy", "rotate", "fill")
KINDS = {
    "products": ("gemm",),
    "moves": MOVED,
    "sums and maxima of rows": ("square_sum", "row_sum", "row_max"),
}
_SHORT = re.compile(
    r"region, which has (\d+):.*?(\d+) bytes per layer.*? and (\d+) bytes that do not depend",
    re.DOTALL,
)
FUNCTIONS, WAITS = "functions of elements", "transfers and scalar code"


@dataclass(frozen=True)
class Point:
    """Cycles of all layers: a decode step, or a prompt. ``counted`` layers were walked, in
    ``seconds`` of processor time with all of the compile; ``by_kind`` has cycles and bound."""

    model: str
    phase: str
    side: int
    layers: int
    counted: int
    cycles: float
    machine: float
    bound: float
    by_kind: dict[str, tuple[float, float]]
    seconds: float

    def tokens_per_second(self, cycles: float) -> float:
        """Of one request."""
        tokens = 1 if self.phase == "decode" else TOKENS
        return tokens * device("wse2").real("clock_hz") / cycles

    @property
    def published(self) -> float:
        return PUBLISHED[self.model, self.phase][self.side]


Told = dict[str, Any]


def report(model: str, phase: str, side: int, layers: int) -> Told:
    """``report.json`` of a program of so many layers. Raises MeshcError for what does not fit."""
    asked = CompileRequest(
        target="csl",
        device="wse2",
        mesh=f"{side}x{side}",
        dtype="f16",
        seq=TOKENS,
        phase=phase,
        layers=layers,
    )
    compiled = compile_loaded(load_any(model, Diagnostics()), asked, (), Diagnostics())
    told: Told = json.loads(compiled.files["report.json"])
    return told


def most_layers(model: str, phase: str, side: int, layers: int) -> tuple[int, Told]:
    """The most of ``layers`` that one region of the mesh holds, and the report of their program:
    as many as the refusal of all of them says, or the next fewer that are taken."""
    while True:
        try:
            told = report(model, phase, side, layers)
            if "regions" not in told:
                return layers, told
            layers -= 1
        except MeshcError as refusal:
            found = _SHORT.search("\n".join(map(str, refusal.diagnostics)))
            if found is None:
                raise
            room, each, fixed = (int(number) for number in found.groups())
            layers = min(layers - 1, (room - fixed) // each)
        if layers < 1:
            raise SystemExit(f"no layer of {model} fits {side}x{side}")


def by_kind(told: Told) -> dict[str, tuple[float, float]]:
    """Cycles and bound by the kind of the ops."""
    sums: Counter[str] = Counter()
    bounds: Counter[str] = Counter()
    for row in told["cycles_by_op"]:
        kernel = row["op"].split()[0]
        kind = next((kind for kind, names in KINDS.items() if kernel in names), FUNCTIONS)
        kind = WAITS if row["kind"] == "waits" else kind
        sums[kind] += row["cycles"]
        bounds[kind] += row["bound"]
    return {kind: (sums[kind], bounds[kind]) for kind in sums}


def lost_to_moves(told: Told) -> float:
    """Cycles that steps which move 16 bits lose on the machine."""
    moved = (r for r in told["cycles_by_op"] if r["op"].split()[0] in MOVED)
    return sum(row["times"] * row["each"]["steps"] / 2 for row in moved)


def point(model: str, phase: str, side: int, most: int | None = None) -> Point:
    """One mesh of the paper, of which no more than ``most`` layers are counted."""
    begun = process_time()
    config = load_any(model, Diagnostics()).config
    assert config is not None
    layers = config.layers
    if phase == "prefill":
        counted, told, less = 1, report(model, phase, side, 1), None
    else:
        counted, told = most_layers(model, phase, side, min(layers, most or layers))
        less = report(model, phase, side, counted - 1) if counted < layers else told

    def whole(of: Any) -> float:
        """What ``of`` says of a program, of all layers."""
        if less is None:
            return float(of(told) * layers)
        return float(of(told) + (layers - counted) * (of(told) - of(less)))

    kinds = {
        kind: (
            whole(lambda one, kind=kind: by_kind(one)[kind][0]),
            whole(lambda one, kind=kind: by_kind(one)[kind][1]),
        )
        for kind in by_kind(told)
    }
    cycles = whole(lambda one: one["predicted_cycles"])
    machine = cycles + whole(lost_to_moves)
    bound = whole(lambda one: one["bound_cycles"])
    spent = process_time() - begun
    return Point(model, phase, side, layers, counted, cycles, machine, bound, kinds, spent)


def shown(points: list[Point]) -> str:
    """Two tables: tokens per second, and cycles by kind over their bound."""
    first = [
        [
            f"{p.model} {p.phase} {p.side}x{p.side}",
            f"{p.counted} of {p.layers}",
            f"{p.cycles:,.0f}",
            f"{p.bound:,.0f}",
            f"{p.cycles / p.bound:.2f}",
            f"{p.tokens_per_second(p.machine):,.0f}",
            f"{p.published:,.0f}",
            f"{p.tokens_per_second(p.machine) / p.published:.2f}",
            f"{p.tokens_per_second(p.bound):,.0f}",
            f"{p.seconds:.0f}",
        ]
        for p in points
    ]
    head = ["program", "layers", "cycles", "bound", "ratio", "tokens/s", "published", "of it",
            "bound", "s"]  # fmt: skip
    kinds = list(dict.fromkeys(kind for p in points for kind in p.by_kind))
    second = [
        [f"{p.model} {p.phase} {p.side}x{p.side}"]
        + [f"{100 * p.by_kind[k][0] / p.cycles:.0f} %, {100 * p.by_kind[k][1] / p.cycles:.0f} %"
           for k in kinds]
        for p in points
    ]  # fmt: skip
    return f"{table(head, first)}\n\n{table(['share of cycles, of bound', *kinds], second)}"


def main(arguments: list[str] | None = None) -> int:
    """Print the points that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=sorted({model for model, _ in PUBLISHED}))
    parser.add_argument("--phase", choices=("decode", "prefill"))
    parser.add_argument("--side", type=int, help="columns and rows of the mesh")
    parser.add_argument("--layers", type=int, help="of a decode step, count no more than these")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    points = [
        point(model, phase, side, options.layers)
        for (model, phase), sides in PUBLISHED.items()
        for side in sides
        if options.model in (None, model)
        and options.phase in (None, phase)
        and options.side in (None, side)
    ]
    print(json.dumps([asdict(p) for p in points]) if options.json else shown(points))
    return 0


if __name__ == "__main__":
    sys.exit(main())
