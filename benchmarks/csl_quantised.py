"""Cycles and memory of a decode layer whose weights stay quantised, on the fabric simulator.

    python benchmarks/csl_quantised.py [--blocks] [--json]

A layer of attention with an MLP on few PEs, in f16 with sums of f32, all of its products' weights
in one format, behind a full cache of 32 tokens, with random codes. ``--blocks`` compares sizes of
what is decoded at a time instead.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare_csl import OUR_CYCLES, cycles_printed, stand_ins
from layer_runs import LAYER
from measuring import table

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics

SEQ = 32
LAYERS = ((4, 128, 256), (8, 256, 512))
"""Side of the mesh, features of the layer and of its MLP."""
DEVICES = ("wse2", "wse3")
FORMATS = ("", "q4_0", "q4_1", "q8_0", "int4_64")
BLOCKS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Run:
    """Cycles of a step on the simulator and as predicted, and bytes of a core."""

    cycles: float
    predicted: float
    weights: int
    data: int
    code: int


@dataclass(frozen=True)
class Sized(CompileRequest):
    """A request whose weights are decoded ``block`` bytes at a time; 0 for as many as usual."""

    block: int = 0

    def settings(self) -> dict[str, str]:
        """Specs of passes, with that size."""
        found = super().settings()
        if self.block:
            formats = ",".join(f'"{text}"' for text in self.keep_quantised)
            size = f"block-bytes={self.block}"
            found["keep-quantised"] = f"keep-quantised{{formats=[{formats}],{size}}}"
        return found


def run(layer: tuple[int, int, int], device: str, form: str, block: int = 0) -> Run:
    """One step of a layer whose weights are kept in ``form``, or decoded where it is empty."""
    side, dim, ffn = layer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "layer.mesh"
        source.write_text(LAYER.format(dim=dim, ffn=ffn, layers=1, sums="f32"))
        kept = (f"all={form}",) if form else ()
        asked = Sized(
            target="csl", device=device, mesh=f"{side}x{side}", dtype="f16", seq=SEQ,
            phase="decode", keep_quantised=kept, block=block,
        )  # fmt: skip
        compiled = compile_loaded(load_any(str(source), Diagnostics()), asked)
        (module,) = compiled.modules.values()
        for path, content in compiled.files.items():
            assert isinstance(content, str)
            (folder / path).write_text(content)
        report = json.loads(str(compiled.files["report.json"]))
        (folder / "data").mkdir()
        random = np.random.default_rng(0)
        kinds = {port.name: port.tensor.dtype for port in module.ports}
        for tensor, shape in report["inputs"].items():
            if kinds[tensor].coded:
                drawn = random.integers(0, 1 << kinds[tensor].bits, shape).astype(np.uint8)
            else:
                drawn = (random.standard_normal(shape) / 64).astype(np.float32)
            np.save(folder / "data" / f"{tensor}.npy", drawn)
        script = ["bash", f"commands_{device}.sh", "--pos", str(SEQ - 1)]
        cycles = cycles_printed(script, folder, OUR_CYCLES, stand_ins())
    memory = report["memory"]
    weights = sum(b.type.bytes for b in module.buffers if b.role == "weight")
    code = memory["code"]
    spent = sum(code[part] for part in ("runtime", "own", "margin"))
    return Run(cycles, report["predicted_cycles"], weights, memory["data"], spent)


def by_format() -> list[tuple[str, ...]]:
    """A row for each format."""
    rows = []
    for layer in LAYERS:
        side, dim, ffn = layer
        for device in DEVICES:
            plain = None
            for form in FORMATS:
                found = run(layer, device, form)
                plain = plain or found
                rows.append((
                    f"{side}x{side}, {dim}, {ffn}", device, form or "f16", f"{found.cycles:,.0f}",
                    f"{found.cycles / plain.cycles:.2f}",
                    f"{100 * (found.predicted / found.cycles - 1):+.1f} %",
                    f"{found.weights:,}", f"{found.data:,}", f"{found.code:,}",
                ))  # fmt: skip
    return rows


def by_block() -> list[tuple[str, ...]]:
    """A row for each size of a block."""
    rows = []
    for size in BLOCKS:
        found = [run(layer, device, "q4_1", size) for layer in LAYERS for device in DEVICES]
        rows.append((f"{size:,}", *(f"{one.cycles:,.0f} ({one.data:,})" for one in found)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.blocks:
        header = ("bytes", *(f"{side}x{side}, {d}" for side, *_ in LAYERS for d in DEVICES))
        rows = by_block()
    else:
        header = (
            "mesh, features, MLP", "device", "weights", "cycles", "times", "predicted",
            "bytes of weights", "data", "code",
        )  # fmt: skip
        rows = by_format()
    print(json.dumps([header, *rows]) if options.json else table(header, rows))


if __name__ == "__main__":
    main()
