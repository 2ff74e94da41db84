"""Reductions that go to the middle of a line: right on every core, predicted, and with fewer cycles
than those that go to its first core. Those that come back by segments take a queue less."""

import json
from dataclasses import replace

import numpy as np
import pytest
from csl_runs import compiled, emit, run_files
from reduced import crossed

from meshc.devices import device
from meshc.ir.affine import Expr
from meshc.ir.ops.mesh import AllReduce
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.sim import machines
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

GIVEN = " holds(collectives_selected, padding_safe, partitioned, placed)"
DIMS = {"y": "Y", "x": "X", "xg": "G", "xd": "D"}


def summed(axis, mesh, words="", segment=0, lanes=3, reduce="sum", kind="f32"):
    """The sum, or maximum, of ``lanes`` elements over each line along ``axis`` of a mesh (rows,
    columns), perhaps in segments of so many columns; cores have a term each."""
    rows, columns = mesh
    sizes = {"y": rows, "x": columns}
    if axis == "xd":
        sizes = {"y": rows, "xg": columns // segment, "xd": segment}
    given = " ".join(f"{DIMS[a]}_{a}:1" for a in sizes)
    left = " ".join(f"{DIMS[a]}_{a}:1" for a in sizes if a != axis)
    kept = ", ".join(["P", *(DIMS[a] for a in sizes if a != axis)])
    extents = ", ".join(f"{DIMS[a]} = {size}" for a, size in sizes.items())
    factors = f" (xg = {columns // segment}, xd = {segment})" if segment else ""
    every = ", ".join(DIMS[a] for a in sizes)
    return f"""module @folded level(mesh){GIVEN if words else ""} {{
  dims P = {lanes}, {extents}
  options dtype = {kind}, accumulate = {kind}
  mesh y = {rows}, x = {columns}{factors}
  func @main(in %v: {kind}[P, {every}]<{given}>) -> ({kind}[{kept}]<{left}>) {{
    %p = mesh.row_{reduce} %v {{dim = {DIMS[axis]}}} : {kind}[{kept}]<{left} +{axis}>
    %s = mesh.all_reduce %p {{axis = {axis}, reduce = {reduce}{words}}} : {kind}[{kept}]<{left}>
    mesh.return %s
  }}
}}
"""


def ran(text, size_of_axis, folder, monkeypatch, arch, timing="vendor-simulator"):
    """The terms, what every core has, with a last dim for the cores of the line, the cycles and
    those predicted."""
    folder.mkdir()
    monkeypatch.setattr(machines, "DEFAULT", timing)
    modules = compiled(text, folder, "folded.meshir", device=arch)
    axis, size = size_of_axis
    module = modules["main"]
    (port,) = (p for p in module.ports if p.direction == "out")
    module.dims = {**module.dims, "COPY": size}
    module.ports[module.ports.index(port)] = replace(
        port,
        tensor=replace(port.tensor, dims=(*port.tensor.dims, "COPY")),
        element=(*port.element, Expr.var(axis)),
        where=None,
    )
    files = emit(modules)
    report = json.loads(files["report.json"])
    (shape,) = report["inputs"].values()
    v = np.random.default_rng(1).integers(-9, 10, shape).astype(np.float32)
    found, cycles = run_files(files, {"v": v}, folder, monkeypatch)
    (result,) = found.values()
    return v, result, cycles, report["predicted_cycles"]


LINES = {
    "row of 4": ("x", (1, 4), "[2]", 0),
    "row of 8": ("x", (2, 8), "[4]", 0),
    "row of 8 in pairs": ("x", (1, 8), "[2, 2]", 0),
    "row of 22, last groups short": ("x", (1, 22), "[4, 3]", 0),
    "column of 6": ("y", (6, 2), "[3]", 0),
    "column of 14, a core alone": ("y", (14, 1), "[3, 3]", 0),
    "segments of 4": ("xd", (2, 16), "[2, 2]", 4),
    "segments of 5, last groups short": ("xd", (1, 10), "[3, 2]", 5),
    "back by two segments of 3": ("x", (2, 6), "[3]", 3),
    "back by four segments of 4": ("x", (1, 16), "[2, 4]", 4),
    "back by six segments of 3, last group short": ("x", (2, 18), "[3, 2, 2]", 3),
}


@pytest.mark.parametrize(("line", "arch"), crossed([*LINES], ("wse2", "wse3")))
def test_every_core_has_the_sum(line, arch, tmp_path, monkeypatch):
    """Sums of whole numbers are exact; cycles are predicted within a tenth."""
    axis, mesh, groups, segment = LINES[line]
    size = {"y": mesh[0], "x": mesh[1], "xd": segment}[axis]
    for reduce in ("sum", "max"):
        algo = "segmented" if axis == "x" and segment else "folded"
        text = summed(axis, mesh, f", algo = {algo}, groups = {groups}", segment, reduce=reduce)
        v, result, cycles, predicted = ran(text, (axis, size), tmp_path / reduce, monkeypatch, arch)
        wanted = getattr(v, reduce)({"y": 1, "x": 2, "xd": 3}[axis])
        np.testing.assert_array_equal(result, np.repeat(wanted[..., None], size, -1))
        assert predicted == pytest.approx(cycles, rel=0.1)


@pytest.mark.parametrize("timing", ["vendor-simulator", "machine"])
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_folding_saves_cycles_and_can_be_turned_off(arch, timing, tmp_path, monkeypatch):
    text = summed("x", (1, 48), ", algo = k_tree, groups = [48]", lanes=6)
    found = {}
    for fold in (True, False):
        module = parse_module(Source("folded.meshir", text))
        module.device = device(arch)
        SelectCollective(fold=fold).run(module, Diagnostics())
        (op,) = (op for op in module.walk() if isinstance(op, AllReduce))
        assert op.algo == ("folded" if fold else "k_tree")
        folder = tmp_path / str(fold)
        found[fold] = ran(print_module(module), ("x", 48), folder, monkeypatch, arch, timing)
    assert found[True][2] < found[False][2] and found[True][3] < found[False][3]
    np.testing.assert_array_equal(found[True][1], found[False][1])


SEGMENTED = f"""module @layer level(mesh){GIVEN} {{
  dims P = 8, Y = 2, X = 96, G = 4, D = 24
  options dtype = f32, accumulate = f32
  mesh y = 2, x = 96 (xg = 4, xd = 24)
  func @main(in %v: f32[P, Y, X]<Y_y:1 X_x:1>, in %w: f32[P, Y, G, D]<Y_y:1 G_xg:1 D_xd:1>)
      -> (f32[P, Y]<Y_y:1>, f32[P, Y, G]<Y_y:1 G_xg:1>) {{
    %p = mesh.row_sum %v {{dim = X}} : f32[P, Y]<Y_y:1 +x>
    %s = mesh.all_reduce %p {{axis = x}} : f32[P, Y]<Y_y:1>
    %q = mesh.row_sum %w {{dim = D}} : f32[P, Y, G]<Y_y:1 G_xg:1 +xd>
    %t = mesh.all_reduce %q {{axis = xd}} : f32[P, Y, G]<Y_y:1 G_xg:1>
    mesh.return %s, %t
  }}
}}
"""


@pytest.mark.parametrize("timing", ["vendor-simulator", "machine"])
def test_coming_back_by_segments_saves_cycles_and_can_be_turned_off(timing, tmp_path, monkeypatch):
    """Three queues are left, as beside sums over columns."""
    monkeypatch.setattr(machines, "DEFAULT", timing)
    scarce = device("wse2")
    scarce = scarce.with_numbers(input_queues=scarce.whole("reserved_input_queues") + 3)
    found = {}
    for segmented in (True, False):
        module = parse_module(Source("segments.meshir", SEGMENTED))
        module.device = scarce
        SelectCollective(segmented=segmented).run(module, Diagnostics())
        over_x = next(op for op in module.walk() if isinstance(op, AllReduce))
        assert (over_x.algo == "segmented") == segmented
        module.device = device("wse2")
        files = emit(compiled(print_module(module), tmp_path, "segments.meshir", device="wse2"))
        report = json.loads(files["report.json"])
        rng = np.random.default_rng(1)
        given = {n: rng.integers(-9, 10, s).astype(np.float32) for n, s in report["inputs"].items()}
        folder = tmp_path / str(segmented)
        folder.mkdir()
        results, cycles = run_files(files, given, folder, monkeypatch)
        found[segmented] = cycles, report["predicted_cycles"]
        sums = given["v"].sum(2), given["w"].sum(3)
        for result, wanted in zip(results.values(), sums, strict=True):
            np.testing.assert_array_equal(result, wanted)
    assert found[True] < found[False] and found[True][1] < found[False][1]
