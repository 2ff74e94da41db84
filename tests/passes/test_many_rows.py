"""Forms of many rows: cyclic shifts, weights that stay where they are, and what lies between."""

import random
import re
from collections import Counter

import numpy as np
import pytest
from random_graphs import node_of_rows, random_graph
from test_forms import Everything, chosen_forms, layouts, lowered_model, reductions

from meshc.backends.python import HostFacts, emit, load_program
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import Trace, check_same, random_trace, run_trace
from meshc.interp.mesh import run_mesh
from meshc.interp.tile import TileMachine
from meshc.ir.clone import clone_module
from meshc.ir.ops import graph
from meshc.ir.parser import parse_module
from meshc.passes.manager import PassManager
from meshc.passes.mesh.partition import Partition
from meshc.pipelines import pipeline_from, pipeline_to
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

OF_PRODUCTS = ("gemm", "column_parallel", "row_parallel")


def drawn_pins(module, grid, seed):
    """Pins of some choices of the search, and of some products and inputs that leave it none."""
    drawn = random.Random(seed)
    search, _ = chosen_forms(module, grid)
    choices = {op.results[0].name: OF_PRODUCTS for op in module.walk() if is_product(op)}
    choices |= {"x": ("over_x", "whole")} | search.several
    return tuple(f"{n}={drawn.choice(f)}" for n, f in choices.items() if drawn.random() < 0.5)


def is_product(op):
    return isinstance(op, graph.Matmul)


def emitted(module, trace, folder):
    """What the emitted Python program of a tile module gives for ``trace``."""
    for name, text in emit({"main": module}, HostFacts("test")).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    program = load_program(folder).load(dict(trace.constant))
    ((inputs, scalars),) = trace.steps
    return list(program.run(inputs, **scalars).values())


def judge(seeds, folder):
    """Interpreters of all levels and the emitted program compute what each graph means; how often
    ops were emitted, and the refusals by code."""
    counts, refused = Counter(), Counter()
    for seed in seeds:
        module, grid = random_graph(seed, many_rows=True)
        pins = drawn_pins(module, grid, seed)
        passes = pipeline_to("tile", {"partition": str(Partition(grid=grid, forms=pins))})[2:]
        trace = random_trace(module, 0)
        wanted = run_trace(module, trace)
        try:
            mesh = PassManager(passes[:1]).run(clone_module(module))
            tile = PassManager(passes).run(clone_module(module))
        except MeshcError as error:
            refused[error.diagnostics[0].code] += 1
            continue
        counts.update(op.NAME for op in mesh.walk())
        for lowered in (mesh, tile):
            assert check_same(module, lowered, reference=wanted).agrees, (seed, pins)
        for got, expected in zip(emitted(tile, trace, folder / str(seed)), wanted, strict=True):
            bound = 1e-4 * max(1.0, np.abs(expected).max())
            assert np.abs(got - expected).max() <= bound, (seed, pins)
    return counts, refused


def test_pinned_forms_of_many_rows_compute_the_same(tmp_path):
    counts, refused = judge(range(25), tmp_path)
    wanted = ("gemv", "gemm", "all_reduce", "all_gather", "part", "repeat")
    assert all(counts[f"mesh.{name}"] > 2 for name in wanted), counts
    assert set(refused) <= {"bad-option", "unsupported-layout"}, refused
    assert refused.total() < 20, refused


@pytest.mark.slow
def test_many_pinned_forms_of_many_rows_compute_the_same(tmp_path):
    print(judge(range(1000), tmp_path))


def judge_search(seeds, ops):
    """Among all ways through random graphs none is cheaper; how many choices the graphs had."""
    choices = 0
    for seed in seeds:
        module, grid = random_graph(seed, ops, many_rows=True)
        search, best = chosen_forms(module, grid)
        every = Everything(search.problem).run()
        assert every[0].cost.total == pytest.approx(best.cost.total, rel=1e-9), seed
        choices += len(search.several)
    return choices


def test_exhaustive_search_of_many_rows_finds_nothing_cheaper():
    assert judge_search(range(60), 4) > 60


@pytest.mark.slow
def test_exhaustive_search_of_many_rows_finds_nothing_cheaper_on_many_graphs():
    assert judge_search(range(200), 6) > 200


def test_a_node_reads_short_prompts_with_two_reductions_a_layer():
    """Megatron's plan: whole heads and features over GPUs; sums behind attention and behind the
    feed-forward part are all that GPUs send."""
    module = lowered_model("llama-3-8b", "prefill", mesh="gpu=8", device="h100x8", seq=64)
    found = layouts(module)
    assert found["x"] == "<L_row%>"
    assert found["wq"] == "<H_gpuh D_gpud>" and found["wk"] == found["wv"] == "<G_gpuh D_gpud>"
    assert found["wo"] == "<H_gpuh D_gpud>"
    assert found["w_gate"] == found["w_up"] == "<F_gpu>" and found["w_down"] == "<F_gpu>"
    assert (module.mesh.size("gpuh"), module.mesh.size("gpud")) == (8, 1)
    assert reductions(module) == 2
    assert not {"mesh.all_gather", "mesh.part"} & {op.NAME for op in module.walk()}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_node_splits_heads_and_features(phase):
    """At the tile level a GPU has an eighth of the columns of projections and of feed-forward
    weights, and its heads of the cache."""
    loaded = load_any("llama-3-8b", Diagnostics())
    request = CompileRequest(device="h100x8", mesh="gpu=8", compile_to="tile")
    tile = PassManager(pipeline_to("tile", request.settings())).run(
        graph_module(loaded, phase, request)
    )
    shapes = {b.value.name: b.type.shape for b in tile.buffers}
    dims = tile.dims
    assert shapes["wq_wk_wv"][-1] == (dims["H"] + 2 * dims["G"]) * dims["D"] // 8
    assert shapes["w_gate_w_up"][-1] == 2 * dims["F"] // 8
    assert shapes["w_down"][-2:] == (dims["F"] // 8, dims["E"])
    assert shapes["kv_cache"][-3:] == (dims["G"] // 8, dims["S"], dims["D"])


def test_a_wafer_shifts_unless_it_is_told_otherwise():
    """Copies of weights on every row are for those who pin them."""
    module, grid = random_graph(2, many_rows=True)[0], "2x3"
    names = [op.results[0].name for op in module.walk() if is_product(op)]
    usual = PassManager([Partition(grid=grid)]).run(on_wafer(module))
    pins = tuple(f"{name}=column_parallel" for name in names)
    told = PassManager([Partition(grid=grid, forms=pins)]).run(on_wafer(module))
    kinds = [Counter(op.NAME for op in found.walk()) for found in (usual, told)]
    assert kinds[0]["mesh.gemm"] == kinds[1]["mesh.gemv"] == len(names) > 0
    assert kinds[0]["mesh.gemv"] == kinds[1]["mesh.gemm"] == 0


def on_wafer(module):
    other = clone_module(module)
    other.device = random_graph(0)[0].device
    return other


PART = """module @part level(mesh) {{
  dims L = 3, E = 5
  rows dim = L, capacity = L
  mesh y = 1, x = 2
  func @main(in %x: f32[L, E]<L_y%:3>) -> (f32[L, E]<L_y%:3 E_x:3>) {{
    %part = mesh.part %x {{axis = {axis}, dim = {dim}}} : f32[L, E]<L_y%:3 E_x:3>
    mesh.return %part
  }}
}}
"""


def test_a_part_is_zero_where_it_ends_beyond_its_dim():
    module = parse_module(Source("part", PART.format(axis="x", dim="E")))
    x = np.arange(1.0, 16).reshape(3, 5)
    np.testing.assert_array_equal(run_mesh(module, {"x": x})[0], x)


@pytest.mark.parametrize(("axis", "dim"), [("y", "E"), ("x", "L")])
def test_a_part_is_one_of_its_dim_over_its_axis(axis, dim):
    with pytest.raises(MeshcError) as caught:
        PassManager([]).run(parse_module(Source("part", PART.format(axis=axis, dim=dim))))
    assert re.search("mesh.part|stand", caught.value.diagnostics[0].message)


COPIES = """module @copies level(mesh) holds(partitioned, padding_safe) {
  dims L = 3, E = 5
  rows dim = L, capacity = L
  mesh y = 2, x = 4
  func @main(
    in %x: f32[L, E]<L_y%:2 E_x*2:3>, weight %g: f32[E]<E_x*2:3>
  ) -> (f32[L, E]<L_y%:2 E_x*2:3>) {
    %y = mesh.mul %x, %g : f32[L, E]<L_y%:2 E_x*2:3>
    mesh.return %y
  }
}
"""


def test_parts_that_several_cores_have_are_loaded_on_each_and_read_once(tmp_path):
    module = parse_module(Source("copies", COPIES))
    module.device = random_graph(0)[0].device
    tile = PassManager(pipeline_from(module, "tile")).run(clone_module(module))
    x, g = np.arange(1.0, 16).reshape(3, 5), np.arange(2.0, 7)
    machine = TileMachine(tile)
    machine.load("x", x)
    machine.load("g", g)
    np.testing.assert_array_equal(machine.run({})["y"], x * g)
    np.testing.assert_array_equal(run_mesh(module, {"x": x, "g": g})[0], x * g)
    trace = Trace({"g": g}, (({"x": x}, {}),))
    np.testing.assert_array_equal(emitted(tile, trace, tmp_path)[0], x * g)
    (result,) = (port for port in tile.ports if port.direction == "out")
    assert str(result.where) == "rank_x mod 2 = 0"


def test_rows_of_a_node_have_all_weights():
    module, _ = random_graph(2, many_rows=True)
    module.device = node_of_rows()
    best = chosen_forms(module, "2x3")[1]
    forms = dict(best.chosen)
    assert forms["x"] == "whole" and "column_parallel" in forms.values()
