"""Costs of a module of the mesh level, op by op, beside what its passes chose it by."""

import re
from dataclasses import replace

import pytest

from meshc.cost.mesh_modules import searched
from meshc.cost.mesh_ops import MeshCosts
from meshc.cost.products import product_costs
from meshc.driver import CompileRequest, load_any
from meshc.driver.compiling import given_module
from meshc.ir.ops import mesh as ops
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_from
from meshc.support.diagnostics import Diagnostics


def chosen(phase, model="smollm2-135m", **fields):
    """The mesh-level module of a phase, its layers in one region, and what passes said."""
    request = CompileRequest(device="wse2", compile_to="mesh", **{"mesh": "24x24", **fields})
    graph = given_module(load_any(model, Diagnostics()), phase, request, Diagnostics())
    passes = pipeline_from(graph, "mesh", request.settings())
    report = Diagnostics()
    module = PassManager([p for p in passes if p.NAME != "split-regions"]).run(graph, report)
    return module, report


@pytest.mark.parametrize("mesh", ["24x24", "20x36", "96x96"])
def test_ops_add_up_to_what_the_search_found(mesh):
    module, report = chosen("decode", mesh=mesh)
    (words,) = [m.message for m in report.messages if m.code == "forms"]
    cycles = int(re.search(r": (\d+) cycles; next best", words)[1])
    found = searched(module)
    assert round(found.total) == cycles
    assert found.unit == "cycles" and found.clock_hz == 1_100_000_000
    assert sum(part.cost.total for part in found.parts) == pytest.approx(found.total)
    assert {part.times for part in found.parts} == {1, 30}


def test_products_are_counted_by_their_algorithm():
    by = {}
    for algo in ("cyclic_shift", "cannon"):
        module, _ = chosen("prefill", algo=(f"gemm={algo}",))
        by[algo] = {part.name: part.cost.total for part in searched(module).parts}
        product = next(
            op for op in module.walk() if isinstance(op, ops.Gemm) and op.results[0].name == "q"
        )
        mesh = module.the_mesh()
        predicted = MeshCosts.of_module(module, mesh)
        costs = product_costs(predicted.tiles(product), predicted.device, mesh.down, product.axis)
        name = f"gemm {algo} %q"
        assert by[algo][name] == pytest.approx(30 * costs[algo].cost.total)
    # On so few cores the longer way of cannon lies behind the products; not on many.
    assert by["cannon"]["gemm cannon %q"] == by["cyclic_shift"]["gemm cyclic_shift %q"]
    wide = replace(predicted.tiles(product), rows=750, columns=750)
    far = product_costs(wide, predicted.device)
    assert far["cannon"].cycles > far["cyclic_shift"].cycles


def test_reductions_are_counted_by_their_algorithm():
    found = {}
    for algo in ("pipeline", "k_tree:2"):
        module, _ = chosen("decode", mesh="16x16", kv="cyclic", algo=(f"all_reduce={algo}",))
        parts = searched(module).parts
        found[algo] = {p.name: p.cost.stages for p in parts if p.name.startswith("all_reduce")}
    names = found["pipeline"].keys() & found["k_tree:2"].keys()
    assert names and all(found["pipeline"][n] > found["k_tree:2"][n] for n in names)


def test_regions_work_on_different_requests():
    module, _ = chosen("decode")
    one = searched(module)
    assert searched(module, 3).total == pytest.approx(3 * one.total)
    module.mesh = module.the_mesh().in_regions(module.axes.outer, (), 3)
    inside = sum(part.cost.total for part in one.parts if part.times == 30)
    outside = one.total - inside
    assert searched(module).total == pytest.approx(one.total)
    assert searched(module, 4).total == pytest.approx(inside * (1 + 3 / 3) + 4 * outside)
    assert searched(module).left_out and not one.left_out


def test_numbers_that_were_asked_for_are_told_and_no_others():
    module, _ = chosen("decode")
    inputs = {one.name: one for one in searched(module).inputs}
    assert inputs["hop_cycles"].kind == "datasheet" and inputs["relay_cycles"].value == 6
    for name in ("relay_cycles", "route_cycles"):
        assert inputs[name].source.startswith("set-ups of emitted statements")
    assert "cores_x" not in inputs
    device = module.the_device()
    for name in ("relay_cycles", "hop_cycles", "f16_lanes_per_cycle"):
        other = replace(module, device=device.with_numbers(**{name: 7}))
        assert name in inputs and searched(other).total != searched(module).total
