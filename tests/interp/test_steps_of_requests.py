"""Steps of several requests, each at its own position, at every level: as if each were alone."""

from itertools import product

import numpy as np
import pytest
from interp_model_texts import batched, transformer
from reduced import only
from test_levels_agree import lowered

from meshc.interp.check import Session, check_same, compare, reduction_length
from meshc.interp.inputs import random_inputs
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.support.diagnostics import MeshcError

LENGTHS = (7, 2, 5)
STEPS = 3


def prompts():
    """The prompt of each request ``[1, L, E]``, and what each reads later ``[steps, E]``."""
    random = np.random.default_rng(7)
    given = [random.standard_normal((1, length, 10)) for length in LENGTHS]
    return given, random.standard_normal((len(LENGTHS), STEPS, 10))


def constants(module):
    inputs = random_inputs(module, 3, {"len": 7, "request": 0})
    states = {p.value.name for p in module.function.params if p.role == "state"}
    return {n: a for n, a in inputs.items() if n != "x0" and n not in states}


def alone(request):
    """The logits of a request that has the graph-level model for itself."""
    given, later = prompts()
    weights = constants(transformer(7))
    prefill, decode = Session(transformer(7), weights), Session(transformer(1), weights)
    prefill.step({"x0": given[request][0]}, {"len": LENGTHS[request]})
    decode.adopt_state(prefill)
    return [
        decode.step({"x0": later[request, [step]]}, {"pos": LENGTHS[request] + step})[0]
        for step in range(STEPS)
    ]


def together(prefill, decode, *executor):
    """The logits ``[requests, L, V]`` of each step."""
    given, later = prompts()
    weights = constants(transformer(7))
    sessions = [Session(module, weights, *executor) for module in (prefill, decode)]
    for request in (2, 0, 1):
        scalars = {"len": LENGTHS[request], "request": request}
        sessions[0].step({"x0": given[request]}, scalars)
    sessions[1].adopt_state(sessions[0])
    return [
        sessions[1].step({"x0": later[:, [step]]}, {"pos": [n + step for n in LENGTHS]})[0]
        for step in range(STEPS)
    ]


def check(found, tolerance=None):
    length = reduction_length(transformer(7))
    for request in range(len(LENGTHS)):
        own = [logits[request] for logits in found]
        if tolerance:
            np.testing.assert_allclose(own, alone(request), atol=tolerance)
        else:
            assert compare(alone(request), own, "f32", length).agrees


def test_the_graph_gives_each_request_what_it_gets_alone():
    check(together(batched(7, 3), batched(1, 3)), 1e-12)


MESHES = [(1, 1), (2, 2), (3, 3), (2, 4), (3, 7), (5, 6)]


@pytest.mark.parametrize(
    ("mesh", "policy"),
    only(
        product(MESHES, ["shift", "cyclic", "concat"]),
        ((2, 2), "cyclic"),
        ((2, 4), "shift"),
        ((3, 3), "concat"),
    ),
)
def test_every_level_computes_the_same(mesh, policy):
    rows, columns = mesh
    phases = [lowered(batched(n, 3), rows, columns, ShiftKvCache(policy)) for n in (7, 1)]
    check(together(*(mesh for mesh, _ in phases)), 1e-12)
    check(together(*(tile for _, tile in phases)))


def test_vectors_that_move_to_the_other_axis_take_all_requests_along():
    decode = batched(1, 3, projected=True)
    mesh, tile = lowered(decode, 2, 3)
    assert any(op.NAME == "mesh.relayout" for op in mesh.walk())
    assert check_same(decode, mesh).max_error < 1e-12
    assert check_same(decode, tile).agrees


@pytest.mark.parametrize("executor", [("late", "depth-first"), ("early", "random(5)")])
def test_no_order_of_the_cores_changes_the_numbers(executor):
    phases = [lowered(batched(n, 3), 3, 4)[1] for n in (7, 1)]
    check(together(*phases, *executor))


def test_one_position_stands_for_that_of_all_requests():
    decode = batched(1, 3)
    _, tile = lowered(batched(1, 3), 2, 2)
    weights, x = constants(transformer(7)), np.ones((3, 1, 10))
    for module in (decode, tile):
        one, each = (Session(module, weights).step({"x0": x}, {"pos": p}) for p in (0, [0, 0, 0]))
        np.testing.assert_array_equal(one[0], each[0])


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("rows", "scalars"),
    [
        (1, {"pos": [0, 1]}),
        (1, {"pos": [0, 1, 11]}),
        (7, {"len": [1, 2, 3], "request": 0}),
        (7, {"len": 2, "request": 3}),
    ],
)
@pytest.mark.parametrize("level", ["graph", "mesh", "tile"])
def test_scalars_that_fit_no_request_are_refused(level, rows, scalars):
    module = batched(rows, 3)
    if level != "graph":
        module = lowered(module, 2, 2)[level == "tile"]
    x = np.zeros((3, 1, 10) if rows == 1 else (1, 2, 10))
    with pytest.raises(MeshcError, match="interp-scalar"):
        Session(module, constants(transformer(7))).step({"x0": x}, scalars)


def test_ops_of_values_without_requests_cannot_have_a_position_of_each():
    module = transformer(1)
    module.dims["B"] = 3
    with pytest.raises(MeshcError, match=r"no dim B"):
        Session(module, constants(module)).step({"x0": np.zeros((1, 10))}, {"pos": [0, 0, 0]})
    with pytest.raises(MeshcError, match=r"no dim B"):
        lowered(module, 2, 2)
