"""Cycles per prompt of one emitted prefill layer with all lowering choices, and without each.

    python benchmarks/prefill_choices.py [--layer 8,64,64,64] [--device wse2] [--length N]

The layer (mesh, width, features of the MLP, tokens that the program has room for) is one of
``compare_prefill.py``, run on the fabric simulator. Each choice is a setting of a pass or of
``csl.emit``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from layer_runs import LAYER, Layer, run_program
from measuring import table

from meshc.backends import csl
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.passes.base import Pass
from meshc.passes.resources.csl.plan_memory import PlanCslMemory
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.passes.resources.csl.select_products import SelectCslProducts
from meshc.pipelines import resource_passes
from meshc.support.diagnostics import Diagnostics

PRODUCTS, FUNCTIONS = SelectCslProducts(blocks=False), SelectCslFunctions(blocks=False)
KEPT = SelectCslFunctions(kept=False)
NEITHER = SelectCslFunctions(blocks=False, kept=False)
WHOLE = SelectCslFunctions(whole=False)
CHOICES: dict[str, tuple[Sequence[Pass], dict[str, bool]]] = {
    "all": ((), {}),
    "without products in blocks": ((PRODUCTS,), {}),
    "without functions in blocks": ((FUNCTIONS,), {}),
    "without blocks that go over the end": ((WHOLE,), {}),
    "without angles kept": ((KEPT,), {}),
    "without cases in groups": ((), {"grouped": False}),
    "without waits that lead to the next round": ((), {"direct": False}),
    "without any of them": ((PRODUCTS, NEITHER), {"grouped": False, "direct": False}),
    "buffers share memory": ((PlanCslMemory(share="always"),), {}),
}


def cycles(
    layer: Layer,
    device: str,
    length: int,
    passes: Sequence[Pass],
    options: Mapping[str, bool],
    folder: Path,
) -> float:
    """Compile with these passes instead of those of their names and these options of ``csl.emit``,
    and run a prompt."""
    source = folder / "layer.mesh"
    source.write_text(LAYER.format(dim=layer.dim, ffn=layer.ffn, layers=1, sums="f16"))
    report = Diagnostics()
    request = CompileRequest(
        compile_to="tile", device=device, mesh=f"{layer.side}x{layer.side}", seq=layer.seq,
        dtype="f16", phase="prefill",
    )  # fmt: skip
    modules = compile_loaded(load_any(str(source), report), request, (), report).modules
    instead = {one.NAME: one for one in passes}
    for one in resource_passes():
        instead.get(one.NAME, one).run(modules["prefill"], report)
    program = folder / "ours"
    program.mkdir()
    for name, text in csl.emit(modules, **options).items():
        (program / name).write_text(text)
    return run_program(program, device, ["--len", str(length)], folder, length).cycles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layer", default="8,64,64,64", metavar="P,DIM,FFN,SEQ")
    parser.add_argument("--device", default="wse2")
    parser.add_argument("--length", type=int, metavar="N", help="default: all tokens of the layer")
    options = parser.parse_args()
    layer = Layer(*map(int, options.layer.split(",")))
    rows = []
    for name, (passes, choices) in CHOICES.items():
        with tempfile.TemporaryDirectory() as folder:
            length = options.length or layer.seq
            found = cycles(layer, options.device, length, passes, choices, Path(folder))
        rows.append((name, f"{found:.0f}"))
        print(*rows[-1], sep=" | ", file=sys.stderr)
    print(table(("choices", "cycles"), rows))


if __name__ == "__main__":
    main()
