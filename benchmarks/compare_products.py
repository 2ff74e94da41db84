"""Cycles of emitted products beside WaferLLM's hand-written MeshGEMM and MeshGEMV.

    python benchmarks/compare_products.py DIR [--kind gemm] [--device wse2] [--only P]
        [--timing machine] [--json]

DIR is the published program, with its ``MeshGEMM`` and ``MeshGEMV``; nothing of it is kept. Its
host scripts need NumPy 1: when the installed one is newer, ``pip install --target FOLDER
'numpy<2'`` and ``--numpy FOLDER``. Both programs run on the fabric simulator at the same mesh and
sizes, f16 throughout; both align the left operand of a MeshGEMM on the cores, and both leave the
result of a MeshGEMV on all of them. Cycles are those that the programs themselves measure.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from compare_csl import our_cycles
from layer_runs import Simulator, published
from measuring import table

from meshc.sim.commands_folder import make_bin
from meshc.sim.timing import DEFAULT, MODELS

PRODUCT = """\
model product(M={rows}, K={size}, N={size}) {{
  weights f32  accumulate f16
  param w[K, N]
  main(x[M, K]) -> [M, N] {{ return x @ w }}
}}
"""
FOLDERS = {"gemm": "MeshGEMM", "gemv": "MeshGEMV"}


@dataclass(frozen=True)
class Product:
    """A ``kind`` of product with square weights of ``size`` on a mesh of ``side`` squared; of a
    product with a vector theirs sums in so many ``groups``."""

    kind: str
    side: int
    size: int
    groups: int = 1


PRODUCTS = (
    *(Product("gemm", side, side * tile) for side in (4, 8, 16, 32) for tile in (4, 8, 16)),
    *(Product("gemv", 4, size, 2) for size in (16, 64, 256)),
    *(Product("gemv", 8, size, 2) for size in (32, 128, 256)),
    *(Product("gemv", 16, size, 4) for size in (64, 256, 512)),
    *(Product("gemv", 32, size, 4) for size in (128, 256, 512)),
)


def ours(product: Product, device: str, folder: Path, timing: str) -> float:
    """Compile the product with random operands and run it."""
    source = folder / "product.mesh"
    rows = product.size if product.kind == "gemm" else 1
    source.write_text(PRODUCT.format(rows=rows, size=product.size))
    mesh = f"{product.side}x{product.side}"
    words = [str(source), "--mesh", mesh, "--device", device, "--dtype", "f16"]
    if product.kind == "gemm":
        words += ["--algo", "gemm=cyclic_shift"]
    commands = make_bin(folder / "our_bin", ["--timing", timing])
    return our_cycles(words, folder, str(commands))


def theirs(
    product: Product, device: str, given: Path, numpy: str | None, folder: Path, timing: str
) -> float:
    """Run a copy of the published program."""
    copy = folder / "theirs"
    shutil.copytree(
        given / FOLDERS[product.kind] / {"wse2": "WSE-2", "wse3": "WSE-3"}[device], copy
    )
    sizes = [product.size] * 3 if product.kind == "gemm" else [product.size] * 2 + [product.groups]
    script = " ".join(["bash ./run_sim.sh", str(product.side), *map(str, sizes)])
    simulator = Simulator(timing, traced=False)
    return published(copy, script, "", 1, numpy, folder, simulator).cycles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--numpy", metavar="FOLDER", help="where NumPy 1 is, for their scripts")
    parser.add_argument("--kind", choices=tuple(FOLDERS))
    parser.add_argument("--device", choices=("wse2", "wse3"))
    parser.add_argument("--only", type=int, metavar="P", help="meshes of P x P alone")
    parser.add_argument("--timing", choices=MODELS, default=DEFAULT, help="whose cycles")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, rows = [], []
    for product in PRODUCTS:
        if options.kind not in (None, product.kind) or options.only not in (None, product.side):
            continue
        for device in (options.device,) if options.device else ("wse2", "wse3"):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                mine = ours(product, device, folder, options.timing)
                other = theirs(
                    product, device, options.folder, options.numpy, folder, options.timing
                )
            ratio = other / mine
            facts = {"device": device, **asdict(product)}
            found.append({**facts, "ours": mine, "theirs": other, "ratio": ratio})
            mesh = f"{device} {product.side}x{product.side}"
            cycles = (f"{mine:.0f}", f"{other:.0f}", f"{ratio:.2f}")
            rows.append((product.kind, mesh, product.size, *cycles))
            print(*rows[-1], sep=" | ", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
        return
    print(table(("product", "mesh", "size", "ours", "theirs", "ratio"), rows))


if __name__ == "__main__":
    main()
