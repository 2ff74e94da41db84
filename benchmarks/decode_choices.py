"""Cycles of a decode layer with all choices of how functions are written, and without each.

    python benchmarks/decode_choices.py [--sums f32] [--json]

The layers are those of ``compare_decode.py`` on 8x8 PEs, weights in f16, sums in f16 or f32. All
run on the fabric simulator behind a full cache, with random weights.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed, stand_ins
from compare_decode import LAYERS
from layer_runs import LAYER, Layer
from measuring import table

from meshc.backends import csl
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.passes.base import Pass
from meshc.passes.resources.csl.assign_registers import AssignCslRegisters
from meshc.passes.resources.csl.select_functions import SelectCslFunctions
from meshc.passes.resources.csl.select_products import SelectCslProducts
from meshc.pipelines import resource_passes
from meshc.support.diagnostics import Diagnostics

SIDE = 8
DEVICES = ("wse2", "wse3")
CHOICES: dict[str, Pass] = {
    "all": SelectCslFunctions(),
    "in f32": SelectCslFunctions(accuracy="single"),
    "without angles": SelectCslFunctions(angles=False),
    "without turns": SelectCslFunctions(turns=False),
    "without narrow": SelectCslFunctions(narrow=False),
    "without functions": SelectCslFunctions(functions=False),
    "without fresh": SelectCslProducts(fresh=False),
    "without registers": AssignCslRegisters(functions=False),
    "none": SelectCslFunctions(functions=False, angles=False, turns=False),
}


def cycles(layer: Layer, device: str, sums: str, choice: Pass) -> float:
    """Cycles of one step of ``layer`` in which ``choice`` stands for the usual pass."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "layer.mesh"
        source.write_text(LAYER.format(dim=layer.dim, ffn=layer.ffn, layers=1, sums=sums))
        report = Diagnostics()
        asked = CompileRequest(
            compile_to="tile", device=device, mesh=f"{layer.side}x{layer.side}", dtype="f16",
            seq=layer.seq, phase="decode",
        )  # fmt: skip
        modules = compile_loaded(load_any(str(source), report), asked, (), report).modules
        for module in modules.values():
            for one in resource_passes():
                (choice if one.NAME == choice.NAME else one).run(module, report)
        files = csl.emit(modules)
        for path, content in files.items():
            (folder / path).write_text(content)
        (folder / "data").mkdir()
        generator = np.random.default_rng(0)
        for tensor, shape in json.loads(files["report.json"])["inputs"].items():
            drawn = generator.standard_normal(shape) / np.sqrt(shape[-1])
            np.save(folder / "data" / f"{tensor}.npy", drawn.astype(np.float32))
        script = ["bash", f"commands_{device}.sh", "--pos", str(layer.seq - 1)]
        return cycles_printed(script, folder, OUR_CYCLES, stand_ins())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sums", choices=("f16", "f32"), default="f16")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    points = [(layer, device) for layer in LAYERS if layer.side == SIDE for device in DEVICES]
    found = {
        name: [cycles(layer, device, options.sums, choice) for layer, device in points]
        for name, choice in CHOICES.items()
    }
    if options.json:
        print(json.dumps(found))
        return
    header = ("choice", *(f"{device}, {layer.dim} wide" for layer, device in points))
    print(table(header, [(name, *(f"{c:.0f}" for c in row)) for name, row in found.items()]))


if __name__ == "__main__":
    main()
