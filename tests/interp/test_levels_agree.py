"""A model lowered by the passes computes the same at every level, on square and other meshes."""

import pytest
from interp_model_texts import transformer
from reduced import crossed

from meshc.devices import device
from meshc.interp.check import Session, check_same, compare, random_trace, reduction_length
from meshc.passes.graph.canonicalize import Canonicalize
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.passes.tile.expand_programs import ExpandPrograms
from meshc.support.diagnostics import Diagnostics

MESHES = [(1, 1), (2, 2), (3, 3), (2, 4), (4, 2), (3, 7), (5, 6)]


def lowered(module, rows, columns, cache=None):
    """The module at mesh and at tile level; ``cache`` says how caches take new rows."""
    report = Diagnostics()
    module.device = device("ideal")
    mesh = Partition(grid=f"{columns}x{rows}").run(module, report)
    for step in (PlaceInterleave(), SelectCollective(), cache or ShiftKvCache()):
        mesh = step.run(mesh, report)
    return mesh, ExpandPrograms().run(mesh, report)


@pytest.mark.parametrize(("mesh", "length"), crossed(MESHES, [1, 7]))
def test_every_level_computes_the_same(mesh, length):
    graph = transformer(length)
    mesh, tile = lowered(graph, *mesh)
    assert check_same(graph, mesh).max_error < 1e-12
    assert check_same(graph, tile).agrees


@pytest.mark.parametrize("length", [1, 7])
def test_lanes_that_packing_reorders_take_the_same_weights(length):
    graph = transformer(length, style="half")
    pairs = Canonicalize().run(transformer(length, style="half"), Diagnostics())
    assert list(pairs.paired) == ["wqs", "wks"]
    assert check_same(graph, pairs).max_error < 1e-12
    mesh, tile = lowered(pairs, 2, 4)
    assert check_same(graph, mesh).max_error < 1e-12
    assert check_same(graph, tile).agrees


@pytest.mark.parametrize(("dtype", "length"), crossed(["f16", "bf16"], [1, 5]))
def test_half_types_stay_within_their_bound(dtype, length):
    graph = transformer(length)
    graph.options["dtype"] = dtype
    found = check_same(graph, lowered(graph, 2, 4)[1])
    assert found.max_error > 1e-5


@pytest.mark.parametrize(
    ("mesh", "executor"),
    crossed([(2, 2), (3, 7), (4, 2)], [("late", "depth-first"), ("early", "random(5)")]),
)
def test_decode_goes_on_where_prefill_ended_on_the_cores(mesh, executor):
    rows, columns = mesh
    prefill, decode = transformer(7), transformer(1)
    trace = random_trace(prefill, 2)
    ((prompt, scalars),) = trace.steps
    later = [inputs for inputs, _ in random_trace(decode, 9).steps]
    results = []
    for first, second in (
        (prefill, decode),
        (lowered(prefill, rows, columns)[1], lowered(decode, rows, columns)[1]),
    ):
        sessions = [Session(module, trace.constant, *executor) for module in (first, second)]
        found = sessions[0].step(prompt, scalars)
        sessions[1].adopt_state(sessions[0])
        for step, inputs in enumerate(later):
            found += sessions[1].step(inputs, {"pos": scalars["len"] + step})
        results.append(found)
    assert len(results[0]) == 4
    assert compare(*results, "f32", reduction_length(prefill)).agrees
